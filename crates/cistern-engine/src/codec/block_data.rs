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

    /// Appends their payload to `out`: at most one byte more than they have.
    pub fn append_payload(&self, compressor: &mut Compressor, out: &mut Vec<u8>) {
        match self {
            BlockData::Plain(bytes) => compressor.append(bytes, out),
            BlockData::Dense(bytes) => {
                out.push(RAW);
                out.extend_from_slice(bytes);
            }
            BlockData::Packed(payload) => out.extend_from_slice(payload),
        }
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
