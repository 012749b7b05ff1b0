//! What a checkpoint names of snapshots: their table, the root of each, and the blocks that they hold
//! (`docs/format/snapshots.md`).
//!
//! All three are objects under `map/` with a random id: a plain header, and one sealed part of zstd-compressed JSON. The id is
//! unique, so it is the salt of the seal. Does no IO.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    branches::{self, Branch},
    checkpoint::{MapObject, MapPair},
    keys,
};
use crate::{
    Error, Result,
    codec::{
        Compression, MAGIC, MasterKey, ObjectKind, Sealer, compress, decompress_bounded, fields::Fields,
    },
    map::{BLOCKS_MAX, Levels, RunMeta, SeenBy, check_levels},
    segment::Rollback,
    snapshot::{Operation, Snapshots},
    store::PROBED_OBJECT_BYTES,
    units::{Extent, RunId, Salt, Seq, VolumeId},
};

/// Version of the formats that is written and read.
pub const FORMAT: u8 = 4;
/// Segments that a table forwards at most: some 20 bytes each, of a table that is written whenever it changes.
pub const FORWARDS_MAX: usize = 100_000;
/// Bytes of the largest such object, as stored and as JSON.
pub const ROOTS_BYTES_MAX: u64 = 64 << 20;
const _: () = assert!(ROOTS_BYTES_MAX <= PROBED_OBJECT_BYTES, "a store is known to take it");
/// Entries of held blocks in one object at most. More take several.
pub const HELD_MAX: usize = 1 << 19;
/// Bytes of the header: magic, version, volume, id.
const HEADER_BYTES: usize = MAGIC.len() + 1 + 16 + 16;
/// Bytes that compression and sealing add at most.
const ENDING_BYTES_MAX: usize = 64;
/// The only sealed part.
const PART: u64 = 0;
const NUMBER: u64 = 0;

/// What snapshots a volume has, and what they hold besides blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotTable {
    pub snapshots: Snapshots,
    /// The objects that hold the root of the snapshots at a position.
    pub roots: BTreeMap<Seq, MapPair>,
    /// Runs that the head does not need any more.
    pub runs: Vec<HeldRun>,
    /// What was moved away while snapshots saw it.
    pub forwards: Vec<Forward>,
    /// Where the volume was rolled back, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<Branch>,
}

/// What a rollback left: the state that the release found which tells it.
#[derive(Clone, Debug)]
pub struct LeftState {
    pub levels: Levels,
    /// The position of that state.
    pub covered: Seq,
    pub rollback: Rollback,
    /// The release.
    pub at: Seq,
}

impl SnapshotTable {
    /// Takes a rollback: the snapshot is kept for the volume itself, and what the volume found its blocks by is needed by snapshots alone.
    pub fn roll_back(&mut self, left: &LeftState) {
        let LeftState { levels, covered, rollback, at } = left;
        let Some((name, fork)) =
            self.snapshots.with_id(rollback.to).map(|(name, snapshot)| (name.to_owned(), snapshot.at))
        else {
            return;
        };
        let keep = Operation::Clone { name, clone: rollback.branch, way: String::new() };
        self.snapshots.apply(&keep, *at, 0);
        self.branches.push(Branch { id: rollback.branch, fork, from: *at });
        let known: BTreeSet<RunId> = self.runs.iter().map(|held| held.run.id).collect();
        let own = levels.iter().flatten().filter(|run| run.owner.is_none() && !known.contains(&run.id));
        // A run that was merged in part is in several levels.
        let own: BTreeMap<RunId, &RunMeta> = own.map(|run| (run.id, run)).collect();
        self.runs.extend(own.into_values().map(|run| HeldRun {
            run: MapObject { id: run.id, bytes: run.bytes },
            seen_by: SeenBy { first: run.since, last: run.since.max(*covered) },
        }));
    }
}

/// Segments that were moved away together, each as a whole, and where what is needed of them is now. A root that finds one of them
/// goes on to what these segments have of block and birth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// Each with the oldest birth of what was moved of it: no older snapshot sees any of that.
    pub from: Vec<(Seq, Seq)>,
    /// Roots from here on do not find them.
    pub until: Seq,
    pub to: Vec<ForwardTarget>,
}

/// A segment to which something was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardTarget {
    pub segment: Seq,
    /// Of the object.
    pub bytes: u64,
    /// From the first to the last block in it.
    pub blocks: Extent,
}

impl Forward {
    /// Leaves the segments that snapshots may find. False when there are none.
    pub fn keep_needed(&mut self, positions: &[Seq]) -> bool {
        self.from.retain(|&(_, since)| SeenBy::within(positions, since..self.until).is_some());
        !self.from.is_empty()
    }

    /// What later code relies on: that nothing leads back.
    fn is_valid(&self) -> bool {
        let newest = self.from.iter().map(|(segment, _)| *segment).max();
        let fits = |blocks: Extent| blocks.start.checked_add(blocks.len).is_some_and(|end| end <= BLOCKS_MAX);
        newest.is_some_and(|newest| self.to.iter().all(|to| to.segment > newest && fits(to.blocks)))
            && self.from.iter().all(|&(_, since)| since < self.until)
    }
}

/// A run that roots may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRun {
    pub run: MapObject,
    pub seen_by: SeenBy,
}

/// Blocks of a segment that the head has lost, and that snapshots saw then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldBlocks {
    pub segment: Seq,
    pub seen_by: SeenBy,
    pub blocks: u64,
}

/// What is stored in such an object.
pub trait RootsObject: Serialize + DeserializeOwned {
    /// The kind under which it is sealed.
    const KIND: ObjectKind;
    /// What later code relies on.
    fn is_valid(&self) -> bool;
}

impl RootsObject for SnapshotTable {
    const KIND: ObjectKind = ObjectKind::Snapshots;

    fn is_valid(&self) -> bool {
        let positions = self.snapshots.positions();
        self.snapshots.is_valid()
            && self.roots.keys().copied().eq(positions)
            && self.runs.iter().all(|held| held.seen_by.first <= held.seen_by.last)
            && self.forwards.iter().all(Forward::is_valid)
            && branches::are_valid(&self.branches)
    }
}

impl RootsObject for Levels {
    const KIND: ObjectKind = ObjectKind::Root;

    fn is_valid(&self) -> bool {
        check_levels(self).is_ok()
    }
}

impl RootsObject for Vec<HeldBlocks> {
    const KIND: ObjectKind = ObjectKind::Held;

    fn is_valid(&self) -> bool {
        self.len() <= HELD_MAX && self.iter().all(|held| held.seen_by.first <= held.seen_by.last)
    }
}

/// The bytes of the object `id`, which is checked as whoever reads it checks it.
///
/// # Errors
/// `Full` when it is longer than any reader would take, `Invalid` when it is something that none would.
pub fn encode_roots<T: RootsObject>(
    key: Option<&MasterKey>,
    volume: VolumeId,
    id: RunId,
    content: &T,
) -> Result<Bytes> {
    if !content.is_valid() {
        return Err(Error::unreadable(keys::run(id), "its content is impossible"));
    }
    let mut out = MAGIC.to_vec();
    out.push(FORMAT);
    out.extend_from_slice(volume.0.as_bytes());
    out.extend_from_slice(id.0.as_bytes());
    debug_assert_eq!(out.len(), HEADER_BYTES);
    let json = serde_json::to_vec(content).expect("plain fields always serialize");
    if (json.len() + HEADER_BYTES + ENDING_BYTES_MAX) as u64 > ROOTS_BYTES_MAX {
        return Err(Error::Full(format!(
            "what there is to say of snapshots has {} bytes: remove some of them (`cistern rm VOLUME@SNAPSHOT`)",
            json.len()
        )));
    }
    compress(Compression::Zstd, &json, &mut out);
    sealer(key, volume, T::KIND, id).seal_tail(PART, &mut out, HEADER_BYTES);
    Ok(out.into())
}

/// Reads the object `id`. `Error::Corrupt` names it and what is wrong.
pub fn decode_roots<T: RootsObject>(
    key: Option<&MasterKey>,
    volume: VolumeId,
    id: RunId,
    bytes: &[u8],
) -> Result<T> {
    let corrupt = |detail: &str| Error::corrupt(keys::run(id), detail);
    let mut fields = Fields::new(bytes);
    if fields.array() != Some(MAGIC) {
        return Err(corrupt("not a cistern object"));
    }
    match fields.u8() {
        Some(FORMAT) => {}
        Some(other) if other > 0 => {
            return Err(Error::Version { what: keys::run(id), found: other.into(), known: FORMAT.into() });
        }
        _ => return Err(corrupt("not a cistern object")),
    }
    if fields.array() != Some(*volume.0.as_bytes()) || fields.array() != Some(*id.0.as_bytes()) {
        return Err(corrupt("it is another object or of another volume"));
    }
    let payload =
        sealer(key, volume, T::KIND, id).open(PART, fields.rest()).map_err(|e| corrupt(&e.to_string()))?;
    let json = decompress_bounded(&payload, ROOTS_BYTES_MAX as usize).map_err(|e| corrupt(&e.to_string()))?;
    let content: T = serde_json::from_slice(&json).map_err(|e| corrupt(&e.to_string()))?;
    if content.is_valid() { Ok(content) } else { Err(corrupt("its content is impossible")) }
}

fn sealer(key: Option<&MasterKey>, volume: VolumeId, kind: ObjectKind, id: RunId) -> Sealer {
    Sealer::new(key, volume, kind, Salt(id.0.into_bytes()), NUMBER)
}
