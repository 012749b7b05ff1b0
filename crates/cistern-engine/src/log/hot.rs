//! The hot set: which parts of which objects are worth having in a chunk cache
//! (`docs/format/hot.md`). Advice: nothing depends on it, and what it names may be gone. Does no IO.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;

use super::keys;
use crate::{
    Error, Result,
    codec::{
        MAGIC, MasterKey, ObjectKind, Sealer,
        fields::{Fields, put_varint},
    },
    env::Env,
    units::{Epoch, RunId, Salt, Seq, VolumeId},
};

/// Version of the format that is written, and the newest that is read.
pub const FORMAT: u8 = 1;
/// Bytes of the largest hot set.
pub const HOT_BYTES_MAX: u64 = 1 << 20;
/// Ranges in one set: some 6 bytes each where they are scattered worst.
pub const RANGES_MAX: usize = 160_000;
/// No range ends behind this piece.
pub const PIECES_MAX: u32 = 1 << 20;

const HEADER_BYTES: usize = MAGIC.len() + 1 + 16 + 8 + 8 + 16;
/// The only sealed part.
const PART: u64 = 0;

/// An object that a hot set can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HotName {
    Entry(Seq),
    Run(RunId),
}

/// By object the ranges in it, in pieces of 4 KiB: ascending, disjoint, none empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotSet {
    pub objects: BTreeMap<HotName, Vec<Range<u32>>>,
}

impl HotSet {
    /// Pieces in all.
    pub fn pieces(&self) -> u64 {
        self.objects.values().flatten().map(|r| u64::from(r.end - r.start)).sum()
    }

    /// Pieces that `other` has too.
    pub fn pieces_in(&self, other: &HotSet) -> u64 {
        let common = |(name, ranges): (&HotName, &Vec<Range<u32>>)| {
            let theirs = other.objects.get(name).map_or(&[][..], Vec::as_slice);
            let (mut i, mut sum) = (0, 0);
            for ours in ranges {
                while i < theirs.len() && theirs[i].end <= ours.start {
                    i += 1;
                }
                let touching = theirs[i..].iter().take_while(|r| r.start < ours.end);
                sum +=
                    touching.map(|r| u64::from(r.end.min(ours.end) - r.start.max(ours.start))).sum::<u64>();
            }
            sum
        };
        self.objects.iter().map(common).sum()
    }

    /// The bytes of the object `keys::hot(epoch, number)`.
    ///
    /// # Errors
    /// `Full` when it is longer than any reader would take, `Invalid` when it is something that none would.
    pub fn encode(
        &self,
        env: &Env,
        key: Option<&MasterKey>,
        volume: VolumeId,
        (epoch, number): (Epoch, u64),
    ) -> Result<Bytes> {
        let salt = Salt(env.random_bytes());
        let mut out = MAGIC.to_vec();
        out.push(FORMAT);
        out.extend_from_slice(volume.0.as_bytes());
        out.extend_from_slice(&epoch.0.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&salt.0);
        debug_assert_eq!(out.len(), HEADER_BYTES);
        self.put(&mut out);
        if read_set(&out[HEADER_BYTES..]).as_ref() != Some(self) {
            return Err(Error::unreadable(keys::hot(epoch, number), "its ranges are too many, or none"));
        }
        Sealer::new(key, volume, ObjectKind::Hot, salt, number).seal_tail(PART, &mut out, HEADER_BYTES);
        match out.len() as u64 <= HOT_BYTES_MAX {
            true => Ok(out.into()),
            false => Err(Error::Full(format!("the hot set has {} bytes", out.len()))),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        let entries = || self.objects.iter().filter(|(name, _)| matches!(name, HotName::Entry(_)));
        let count = entries().count();
        put_varint(out, count as u64);
        let mut next = 0;
        for (name, ranges) in &self.objects {
            // Entries come first in the order of names.
            match name {
                HotName::Entry(seq) => {
                    put_varint(out, seq.0 - next);
                    next = seq.0 + 1;
                }
                HotName::Run(_) => break,
            }
            put_ranges(out, ranges);
        }
        put_varint(out, (self.objects.len() - count) as u64);
        for (name, ranges) in &self.objects {
            let HotName::Run(id) = name else { continue };
            out.extend_from_slice(id.0.as_bytes());
            put_ranges(out, ranges);
        }
    }

    /// Reads the object `keys::hot(epoch, number)`. `Error::Corrupt` names it and what is wrong.
    pub fn decode(
        key: Option<&MasterKey>,
        volume: VolumeId,
        (epoch, number): (Epoch, u64),
        bytes: &[u8],
    ) -> Result<HotSet> {
        let name = keys::hot(epoch, number);
        let corrupt = |detail: &str| Error::corrupt(name.clone(), detail);
        if bytes.len() as u64 > HOT_BYTES_MAX {
            return Err(corrupt("it is too long"));
        }
        let mut fields = Fields::new(bytes);
        if fields.array() != Some(MAGIC) {
            return Err(corrupt("not a cistern object"));
        }
        match fields.u8() {
            Some(FORMAT) => {}
            Some(newer) if newer > FORMAT => {
                return Err(Error::Version { what: name, found: newer.into(), known: FORMAT.into() });
            }
            _ => return Err(corrupt("not a cistern object")),
        }
        let place = (fields.array(), fields.u64(), fields.u64());
        if place != (Some(*volume.0.as_bytes()), Some(epoch.0), Some(number)) {
            return Err(corrupt("it is another object or of another volume"));
        }
        let salt = Salt(fields.array().ok_or_else(|| corrupt("it is cut short"))?);
        let sealer = Sealer::new(key, volume, ObjectKind::Hot, salt, number);
        let plain = sealer.open(PART, fields.rest()).map_err(|e| corrupt(&e.to_string()))?;
        read_set(&plain).ok_or_else(|| corrupt("its content is malformed"))
    }
}

fn put_ranges(out: &mut Vec<u8>, ranges: &[Range<u32>]) {
    put_varint(out, ranges.len() as u64);
    let mut end = 0;
    for range in ranges {
        debug_assert!(range.start >= end && range.end > range.start);
        put_varint(out, u64::from(range.start - end));
        put_varint(out, u64::from(range.end - range.start));
        end = range.end;
    }
}

fn read_set(plain: &[u8]) -> Option<HotSet> {
    let mut fields = Fields::new(plain);
    let mut set = HotSet::default();
    let mut room = RANGES_MAX;
    let mut next = Some(0u64);
    for _ in 0..fields.varint()? {
        let seq = next?.checked_add(fields.varint()?)?;
        next = seq.checked_add(1);
        set.objects.insert(HotName::Entry(Seq(seq)), read_ranges(&mut fields, &mut room)?);
    }
    let mut last = None;
    for _ in 0..fields.varint()? {
        let id = RunId(uuid::Uuid::from_bytes(fields.array()?));
        last.is_none_or(|last| last < id).then_some(())?;
        last = Some(id);
        set.objects.insert(HotName::Run(id), read_ranges(&mut fields, &mut room)?);
    }
    fields.rest().is_empty().then_some(set)
}

fn read_ranges(fields: &mut Fields<'_>, room: &mut usize) -> Option<Vec<Range<u32>>> {
    let count = usize::try_from(fields.varint()?).ok()?;
    *room = room.checked_sub(count).filter(|_| count > 0)?;
    let mut ranges = Vec::new();
    let mut end = 0u32;
    for _ in 0..count {
        let start = end.checked_add(u32::try_from(fields.varint()?).ok()?)?;
        let pieces = u32::try_from(fields.varint()?).ok().filter(|pieces| *pieces > 0)?;
        end = start.checked_add(pieces).filter(|end| *end <= PIECES_MAX)?;
        ranges.push(start..end);
    }
    Some(ranges)
}
