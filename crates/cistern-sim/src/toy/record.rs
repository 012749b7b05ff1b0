//! One acknowledged request of the toy, and its bytes.

use bytes::Bytes;

use crate::device::Exported;

/// What a request changes.
#[derive(Clone, Debug)]
pub enum Record {
    Write { offset: u64, data: Bytes },
    Zero { offset: u64, len: u64 },
    Resize { size_bytes: u64 },
}

impl Record {
    /// Bytes it counts for in queues.
    pub fn bytes(&self) -> u64 {
        match self {
            Record::Write { data, .. } => data.len() as u64,
            Record::Zero { .. } | Record::Resize { .. } => 4096,
        }
    }

    pub fn apply(&self, volume: &mut Vec<u8>) {
        match self {
            Record::Write { offset, data } => {
                let at = *offset as usize;
                volume[at..at + data.len()].copy_from_slice(data);
            }
            Record::Zero { offset, len } => volume[*offset as usize..(*offset + *len) as usize].fill(0),
            Record::Resize { size_bytes } => volume.resize(*size_bytes as usize, 0),
        }
    }

    pub fn exported(self) -> Exported {
        match self {
            Record::Write { offset, data } => Exported::Write { offset, data },
            Record::Zero { offset, len } => Exported::Zero { offset, len },
            Record::Resize { size_bytes } => Exported::Resize { size_bytes },
        }
    }

    /// Kind, two numbers and the data's length: four words, then the data.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, first, second, data): (u64, u64, u64, &[u8]) = match self {
            Record::Write { offset, data } => (0, *offset, 0, data),
            Record::Zero { offset, len } => (1, *offset, *len, &[]),
            Record::Resize { size_bytes } => (2, *size_bytes, 0, &[]),
        };
        put(out, &[kind, first, second, data.len() as u64]);
        out.extend_from_slice(data);
    }

    /// Reads what `encode` wrote; `None` when it is not that.
    pub fn decode(bytes: &mut Bytes) -> Option<Record> {
        let [kind, first, second, len] = take(bytes)?;
        if len > bytes.len() as u64 {
            return None;
        }
        let data = bytes.split_to(len as usize);
        match kind {
            0 => Some(Record::Write { offset: first, data }),
            1 => Some(Record::Zero { offset: first, len: second }),
            2 => Some(Record::Resize { size_bytes: first }),
            _ => None,
        }
    }
}

pub fn put(out: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
}

pub fn take<const N: usize>(bytes: &mut Bytes) -> Option<[u64; N]> {
    if bytes.len() < 8 * N {
        return None;
    }
    let words = bytes.split_to(8 * N);
    let mut words =
        words.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("chunks of eight bytes")));
    Some(std::array::from_fn(|_| words.next().expect("as many as were split off")))
}

/// FNV-1a, 64 bits, over words.
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |h, w| {
        let word = w.iter().rev().fold(0, |acc, &b| acc << 8 | u64::from(b));
        (h ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    })
}
