//! `volume.json`: what a volume is, for ever (`docs/format/volume.md`).
//!
//! Written once, at creation, and never again: a put that comes late changes nothing. JSON, so that a
//! person can read it. Knows its bytes, does no IO.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{GRACE, keys, origin::CloneSource};
use crate::{
    Error, Result,
    codec::{Compression, crc32c},
    units::{BLOCK_BYTES, SECTOR_BYTES, VOLUME_BYTES_MAX, VolumeId},
};

/// Version of the volume's format: of `volume.json` and of everything that has no version itself, such as
/// frames.
pub const FORMAT: u32 = 5;
/// Bytes of the longest `volume.json` that is read; ours have below 1 KiB.
pub const IDENTITY_BYTES_MAX: u64 = 64 << 10;

/// What the file calls itself.
const CISTERN: &str = "volume";

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub volume: VolumeId,
    /// When it was created, by the clock of that host, for people.
    pub created_ms: u64,
    /// Size until the log says otherwise, in bytes.
    pub size_bytes: u64,
    pub compression: Compression,
    /// Whether its objects are encrypted. The wrapped key lies beside, see [`super::wrapping`].
    pub encrypted: bool,
    /// Of a clone, what it was made of. Its beginning is its first checkpoint.
    pub origin: Option<CloneSource>,
    /// How long a slot of the log stays filled once a checkpoint covers it, whatever becomes of what is in it.
    pub slot_grace: Duration,
}

/// The part of the file that every version has.
#[derive(Deserialize)]
struct Preamble {
    cistern: String,
    format: u32,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cistern: String,
    format: u32,
    volume: VolumeId,
    created_ms: u64,
    size_bytes: u64,
    block_bytes: u32,
    compression: Compression,
    encrypted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<CloneSource>,
    /// Absent where it is the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot_grace_ms: Option<u64>,
    /// Of the file with a zero here, without white space.
    crc32c: u32,
}

impl File {
    fn checksum(&self) -> u32 {
        let unchecked = File { crc32c: 0, ..self.clone() };
        crc32c(&serde_json::to_vec(&unchecked).expect("plain fields always serialize"))
    }
}

impl Identity {
    /// The bytes of `volume.json`.
    pub fn encode(&self) -> Bytes {
        let mut file = File {
            cistern: CISTERN.to_owned(),
            format: FORMAT,
            volume: self.volume,
            created_ms: self.created_ms,
            size_bytes: self.size_bytes,
            block_bytes: BLOCK_BYTES as u32,
            compression: self.compression,
            encrypted: self.encrypted,
            origin: self.origin.clone(),
            slot_grace_ms: (self.slot_grace != GRACE).then_some(self.slot_grace.as_millis() as u64),
            crc32c: 0,
        };
        file.crc32c = file.checksum();
        let mut json = serde_json::to_vec_pretty(&file).expect("plain fields always serialize");
        json.push(b'\n');
        debug_assert!(json.len() as u64 <= IDENTITY_BYTES_MAX);
        json.into()
    }

    /// Reads `volume.json`. `Error::Version` for another format, `Error::Corrupt` for anything
    /// that is not a volume of ours.
    pub fn decode(bytes: &[u8]) -> Result<Identity> {
        let corrupt = |detail: String| Error::corrupt(keys::VOLUME, detail);
        if bytes.len() as u64 > IDENTITY_BYTES_MAX {
            return Err(corrupt(format!("not a cistern volume: it has {} bytes", bytes.len())));
        }
        let preamble: Preamble =
            serde_json::from_slice(bytes).map_err(|e| corrupt(format!("not a cistern volume: {e}")))?;
        if preamble.cistern != CISTERN || preamble.format == 0 {
            return Err(corrupt("not a cistern volume".to_owned()));
        }
        if preamble.format != FORMAT {
            let what = keys::VOLUME.to_owned();
            return Err(Error::Version { what, found: preamble.format, known: FORMAT });
        }
        let file: File = serde_json::from_slice(bytes).map_err(|e| corrupt(e.to_string()))?;
        if file.crc32c != file.checksum() {
            return Err(corrupt("its checksum does not fit: it is damaged, or was edited".to_owned()));
        }
        if file.block_bytes != BLOCK_BYTES as u32 {
            return Err(corrupt(format!("blocks of {} bytes", file.block_bytes)));
        }
        if file.size_bytes == 0
            || file.size_bytes > VOLUME_BYTES_MAX
            || !file.size_bytes.is_multiple_of(SECTOR_BYTES as u64)
        {
            return Err(corrupt(format!("a size of {} bytes", file.size_bytes)));
        }
        let File { volume, created_ms, size_bytes, compression, encrypted, origin, slot_grace_ms, .. } = file;
        let slot_grace = slot_grace_ms.map_or(GRACE, Duration::from_millis);
        Ok(Identity { volume, created_ms, size_bytes, compression, encrypted, origin, slot_grace })
    }

    /// The size with which its history begins; `None` for a clone, which has no state before its first checkpoint.
    pub fn size_at_creation(&self) -> Option<u64> {
        self.origin.is_none().then_some(self.size_bytes)
    }
}
