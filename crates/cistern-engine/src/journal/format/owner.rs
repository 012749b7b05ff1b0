//! The bytes that say which process writes to a journal: who took it, and that it is at work. Between the superblock's two slots.

use super::{CRC_AT, is_intact, put_crc, put_u32, put_u64, u32_at, u64_at};
use crate::{
    env::{ProcessIdentity, plain_host},
    units::BLOCK_BYTES,
};

/// Block of the file that says who took the journal.
pub const OWNER_BLOCK: u64 = 4;
/// Block of the file that its owner writes while it is at work.
pub const BEAT_BLOCK: u64 = 5;

const OWNER_MAGIC: [u8; 8] = *b"CSTNOWNR";
const BEAT_MAGIC: [u8; 8] = *b"CSTNBEAT";
const FLAGS_AT: usize = 8;
const TOKEN_AT: usize = 16;
const HOST_AT: usize = 88;
/// Flag of an owner: it is one no more.
const RELEASED: u32 = 1;

/// Who took the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRecord {
    /// Drawn for each opening.
    pub token: [u8; 16],
    pub process: ProcessIdentity,
    /// It will not write any more.
    pub is_released: bool,
}

impl OwnerRecord {
    /// Fills one block.
    pub fn encode(&self, out: &mut [u8]) {
        let ProcessIdentity { boot, machine, namespace, pid, started, host } = &self.process;
        out.fill(0);
        out[..8].copy_from_slice(&OWNER_MAGIC);
        put_u32(out, FLAGS_AT, if self.is_released { RELEASED } else { 0 });
        for (n, id) in [&self.token, boot, machine].into_iter().enumerate() {
            out[TOKEN_AT + 16 * n..][..16].copy_from_slice(id);
        }
        put_u64(out, 64, *namespace);
        put_u64(out, 72, *started);
        put_u32(out, 80, *pid);
        let host = plain_host(host);
        put_u32(out, 84, host.len() as u32);
        out[HOST_AT..HOST_AT + host.len()].copy_from_slice(host.as_bytes());
        put_crc(out);
    }

    /// `None` for anything that is not an intact record.
    pub fn decode(block: &[u8]) -> Option<OwnerRecord> {
        if !is_intact(block, OWNER_MAGIC) {
            return None;
        }
        let id = |n: usize| block[TOKEN_AT + 16 * n..][..16].try_into().expect("sixteen bytes");
        let host = block[HOST_AT..CRC_AT].get(..u32_at(block, 84) as usize)?;
        let process = ProcessIdentity {
            boot: id(1),
            machine: id(2),
            namespace: u64_at(block, 64),
            started: u64_at(block, 72),
            pid: u32_at(block, 80),
            host: plain_host(&String::from_utf8_lossy(host)),
        };
        Some(OwnerRecord { token: id(0), process, is_released: u32_at(block, FLAGS_AT) & RELEASED != 0 })
    }
}

/// A sign that an owner is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerBeat {
    pub token: [u8; 16],
    /// How many came before.
    pub count: u64,
}

impl OwnerBeat {
    /// Fills one block.
    pub fn encode(self, out: &mut [u8]) {
        debug_assert_eq!(out.len(), BLOCK_BYTES);
        out.fill(0);
        out[..8].copy_from_slice(&BEAT_MAGIC);
        out[TOKEN_AT..TOKEN_AT + 16].copy_from_slice(&self.token);
        put_u64(out, 32, self.count);
        put_crc(out);
    }

    /// `None` for anything that is not an intact beat.
    pub fn decode(block: &[u8]) -> Option<OwnerBeat> {
        let token = |block: &[u8]| block[TOKEN_AT..TOKEN_AT + 16].try_into().expect("sixteen bytes");
        is_intact(block, BEAT_MAGIC).then(|| OwnerBeat { token: token(block), count: u64_at(block, 32) })
    }
}
