//! Usage objects: by how much the counts of segments have changed
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

/// Version of the format that is written and read.
pub const FORMAT: u8 = 2;
/// Changes in one object at most: those of 8 TiB of full segments. More take several objects.
pub const CHANGES_MAX: usize = 1 << 19;
/// Bytes of the largest usage object.
pub const USAGE_BYTES_MAX: u64 = 32 << 20;

const _: () = assert!((CHANGES_MAX * (1 + 5 * VARINT_BYTES_MAX) + 4096) as u64 <= USAGE_BYTES_MAX);

/// The only sealed part.
const PART: u64 = 0;
const NUMBER: u64 = 0;
/// Tags of changes.
const GONE: u8 = 0;
const ADDED: u8 = 1;

/// What became of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUsage {
    pub seq: Seq,
    pub change: UsageChange,
}

/// How the counts of a segment change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageChange {
    /// It is retired: whatever is said of it before or behind does not count.
    Gone,
    Added(Counts),
}

/// Counts of one segment, or what is added to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of the object. Told once, by the first change of the segment: without it nothing else counts.
    pub stored_bytes: u64,
    /// Blocks of data in it.
    pub written_blocks: u64,
    /// Blocks of them that nothing maps any more.
    pub dead_blocks: u64,
    /// Where the log was when the counts changed last.
    pub touched: Seq,
}

impl Counts {
    /// Blocks that something may map.
    pub fn live_blocks(&self) -> u64 {
        self.written_blocks.saturating_sub(self.dead_blocks)
    }

    /// Bytes of the object that belong to live blocks, as if all its blocks were stored in equally many.
    pub fn live_bytes(&self) -> u64 {
        let share = u128::from(self.stored_bytes) * u128::from(self.live_blocks());
        (share / u128::from(self.written_blocks.max(1))) as u64
    }

    /// Adds what was counted later.
    pub fn add(&mut self, later: &Counts) {
        self.stored_bytes = self.stored_bytes.saturating_add(later.stored_bytes);
        self.written_blocks = self.written_blocks.saturating_add(later.written_blocks);
        self.dead_blocks = self.dead_blocks.saturating_add(later.dead_blocks);
        self.touched = self.touched.max(later.touched);
    }
}

/// The bytes of the object `id`. `changes` ascend strictly by seq, at most `CHANGES_MAX`.
pub fn encode_usage(key: Option<&MasterKey>, volume: VolumeId, id: RunId, changes: &[SegmentUsage]) -> Bytes {
    assert!(changes.len() <= CHANGES_MAX);
    let mut out = MAGIC.to_vec();
    out.push(FORMAT);
    out.extend_from_slice(volume.0.as_bytes());
    out.extend_from_slice(id.0.as_bytes());
    let part = out.len();
    let touched = |usage: &SegmentUsage| match usage.change {
        UsageChange::Added(added) => added.touched.0,
        UsageChange::Gone => 0,
    };
    let as_of = changes.iter().map(touched).max().unwrap_or(0);
    put_varint(&mut out, as_of);
    let mut next = 0;
    for usage in changes {
        assert!(usage.seq.0 >= next, "changes ascend by seq");
        put_varint(&mut out, usage.seq.0 - next);
        match usage.change {
            UsageChange::Gone => out.push(GONE),
            UsageChange::Added(added) => {
                out.push(ADDED);
                put_varint(&mut out, added.stored_bytes);
                put_varint(&mut out, added.written_blocks);
                put_varint(&mut out, added.dead_blocks);
                put_varint(&mut out, as_of - added.touched.0);
            }
        }
        next = usage.seq.0 + 1;
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
        Some(other) if other > 0 => {
            return Err(Error::Version { what: keys::run(id), found: other.into(), known: FORMAT.into() });
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
    let as_of = fields.varint()?;
    let mut changes = Vec::new();
    let mut next = Some(0_u64);
    while !fields.rest().is_empty() {
        let seq = next?.checked_add(fields.varint()?)?;
        next = seq.checked_add(1);
        let change = match fields.u8()? {
            GONE => UsageChange::Gone,
            ADDED => UsageChange::Added(Counts {
                stored_bytes: fields.varint()?,
                written_blocks: fields.varint()?,
                dead_blocks: fields.varint()?,
                touched: Seq(as_of.checked_sub(fields.varint()?)?),
            }),
            _ => return None,
        };
        (changes.len() < CHANGES_MAX).then_some(())?;
        changes.push(SegmentUsage { seq: Seq(seq), change });
    }
    Some(changes)
}

fn sealer(key: Option<&MasterKey>, volume: VolumeId, id: RunId) -> Sealer {
    Sealer::new(key, volume, ObjectKind::Usage, Salt(id.0.into_bytes()), NUMBER)
}
