//! Usage objects: by how much the segments' written and dead bytes have changed
//! (`docs/format/checkpoint.md`).
//!
//! A plain header (volume, id) and one sealed part with the changes in ascending order of segment,
//! delta-coded. The id is random and unique, so it is the salt of the seal. Does no IO.

use bytes::Bytes;

use super::keys;
use crate::{
    Error, Result,
    codec::{
        MAGIC, MasterKey, ObjectKind, Sealer,
        fields::{Fields, VARINT_BYTES_MAX, put_varint},
    },
    units::{RunId, Salt, Seq, VolumeId},
};

/// Version of the format that is written, and the newest that is read.
pub const FORMAT: u8 = 1;
/// Changes in one object at most: those of 16 TiB of full segments. More take several objects.
pub const CHANGES_MAX: usize = 1 << 20;
/// Bytes of the largest usage object.
pub const USAGE_BYTES_MAX: u64 = 32 << 20;

const _: () = assert!((CHANGES_MAX * 3 * VARINT_BYTES_MAX + 4096) as u64 <= USAGE_BYTES_MAX);

/// The only sealed part.
const PART: u64 = 0;
const NUMBER: u64 = 0;

/// What has been added to the counts of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUsage {
    pub seq: Seq,
    /// Bytes of block data that the segment holds.
    pub written_bytes: u64,
    /// Bytes of them that nothing maps any more.
    pub dead_bytes: u64,
}

/// The bytes of the object `id`. `changes` ascend strictly by seq, at most `CHANGES_MAX`.
pub fn encode_usage(key: Option<&MasterKey>, volume: VolumeId, id: RunId, changes: &[SegmentUsage]) -> Bytes {
    assert!(changes.len() <= CHANGES_MAX);
    let mut out = MAGIC.to_vec();
    out.push(FORMAT);
    out.extend_from_slice(volume.0.as_bytes());
    out.extend_from_slice(id.0.as_bytes());
    let part = out.len();
    let mut next = 0;
    for change in changes {
        assert!(change.seq.0 >= next, "changes ascend by seq");
        put_varint(&mut out, change.seq.0 - next);
        put_varint(&mut out, change.written_bytes);
        put_varint(&mut out, change.dead_bytes);
        next = change.seq.0 + 1;
    }
    sealer(key, volume, id).seal_tail(PART, &mut out, part);
    out.into()
}

/// Reads the object `id`; ascending by seq. `Error::Corrupt` names the object and what is wrong.
pub fn decode_usage(
    key: Option<&MasterKey>,
    volume: VolumeId,
    id: RunId,
    bytes: &[u8],
) -> Result<Vec<SegmentUsage>> {
    let corrupt = |detail: String| Error::corrupt(keys::run(id), detail);
    let mut fields = Fields::new(bytes);
    if fields.array() != Some(MAGIC) {
        return Err(corrupt("not a cistern object".to_owned()));
    }
    match fields.u8() {
        Some(FORMAT) => {}
        Some(newer) if newer > FORMAT => {
            return Err(Error::Version { what: keys::run(id), found: newer.into(), known: FORMAT.into() });
        }
        _ => return Err(corrupt("not a cistern object".to_owned())),
    }
    if fields.array() != Some(*volume.0.as_bytes()) || fields.array() != Some(*id.0.as_bytes()) {
        return Err(corrupt("it is another object or of another volume".to_owned()));
    }
    if bytes.len() as u64 > USAGE_BYTES_MAX {
        return Err(corrupt(format!("it has {} bytes", bytes.len())));
    }
    let plain = sealer(key, volume, id).open(PART, fields.rest()).map_err(|e| corrupt(e.to_string()))?;
    decode_changes(&plain).ok_or_else(|| corrupt("its content is malformed".to_owned()))
}

fn decode_changes(plain: &[u8]) -> Option<Vec<SegmentUsage>> {
    let mut fields = Fields::new(plain);
    let mut changes = Vec::new();
    let mut next = Some(0_u64);
    while !fields.rest().is_empty() {
        let seq = next?.checked_add(fields.varint()?)?;
        next = seq.checked_add(1);
        let (written_bytes, dead_bytes) = (fields.varint()?, fields.varint()?);
        (changes.len() < CHANGES_MAX).then_some(())?;
        changes.push(SegmentUsage { seq: Seq(seq), written_bytes, dead_bytes });
    }
    Some(changes)
}

fn sealer(key: Option<&MasterKey>, volume: VolumeId, id: RunId) -> Sealer {
    Sealer::new(key, volume, ObjectKind::Usage, Salt(id.0.into_bytes()), NUMBER)
}
