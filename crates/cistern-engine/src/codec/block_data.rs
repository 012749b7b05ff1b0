//! Whole blocks of data on their way from one object to another, in the form they have: unpacked only where somebody looks into them.

use bytes::Bytes;

use super::compress::{Compression, Compressor, RAW, Undecodable, decompress};

/// Whole blocks of data. How many, whoever has them knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockData {
    /// As they are; nobody has tried to compress them.
    Plain(Bytes),
    /// As they are; compressing them was tried and does not pay.
    Dense(Bytes),
    /// A payload that is compressed. Nothing says that it decodes.
    Packed(Bytes),
}

impl BlockData {
    /// Those of a payload that was made with some compression.
    pub fn of_payload(payload: Bytes, compression: Compression) -> BlockData {
        match (payload.first(), compression) {
            (Some(&RAW), Compression::None) => BlockData::Plain(payload.slice(1..)),
            (Some(&RAW), _) => BlockData::Dense(payload.slice(1..)),
            _ => BlockData::Packed(payload),
        }
    }

    /// Their payload, its first byte by itself: the rest has at most as many bytes as they have. What has to be compressed is in `scratch`.
    pub fn payload<'a>(&'a self, compressor: &mut Compressor, scratch: &'a mut Vec<u8>) -> (u8, &'a [u8]) {
        let payload = match self {
            BlockData::Dense(bytes) => return (RAW, bytes),
            BlockData::Plain(bytes) => {
                scratch.clear();
                compressor.append(bytes, scratch);
                scratch
            }
            BlockData::Packed(payload) => &payload[..],
        };
        let (form, rest) = payload.split_first().expect("a payload says what it is");
        (*form, rest)
    }

    /// As they are in memory.
    pub fn bytes(&self) -> &Bytes {
        let (BlockData::Plain(bytes) | BlockData::Dense(bytes) | BlockData::Packed(bytes)) = self;
        bytes
    }

    /// Unpacked, if they have exactly so many bytes.
    pub fn unpack(&self, len: usize) -> Result<Bytes, Undecodable> {
        match self {
            BlockData::Plain(bytes) | BlockData::Dense(bytes) if bytes.len() == len => Ok(bytes.clone()),
            BlockData::Plain(_) | BlockData::Dense(_) => Err(Undecodable),
            BlockData::Packed(payload) => decompress(payload, len).map(Bytes::from),
        }
    }
}
