//! The checkpoint: the root from which everything else of a volume is found
//! (`docs/format/checkpoint.md`).
//!
//! A plain header says which volume, epoch and seq it is of; one sealed part holds zstd-compressed
//! JSON. Random bytes in the header make its sealing key unique. Does no IO.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    keys,
    origin::{CloneOrigin, are_valid},
};
use crate::{
    Error, Result,
    codec::{
        Compression, MAGIC, MasterKey, ObjectKind, Sealer, compress, crc32c, decompress_bounded,
        fields::Fields,
    },
    env::Env,
    map::Levels,
    segment::CheckpointName,
    store::PROBED_OBJECT_BYTES,
    units::{
        Chain, Epoch, JournalId, JournalPos, RunId, SECTOR_BYTES, Salt, Seq, VOLUME_BYTES_MAX, VolumeId,
    },
};

/// Version of the checkpoint's format that is written and read.
pub const FORMAT: u8 = 7;
/// Bytes of the largest checkpoint, as stored and as JSON. A 100 TiB volume of scattered blocks
/// has some 10,000 runs of 64 MiB, at about 250 bytes of JSON each.
pub const CHECKPOINT_BYTES_MAX: u64 = 64 << 20;
const _: () = assert!(CHECKPOINT_BYTES_MAX <= PROBED_OBJECT_BYTES, "a store is known to take it");

/// Bytes of the header: magic, version, volume, epoch, covered seq, salt, CRC32C.
pub const HEADER_BYTES: usize = CHECKED_BYTES + 4;
/// Bytes of the header that its CRC32C covers.
const CHECKED_BYTES: usize = MAGIC.len() + 1 + 16 + 8 + 8 + 16;
/// Bytes that compression and sealing add at most.
const ENDING_BYTES_MAX: usize = 64;
/// The only sealed part.
const PART: u64 = 0;

/// From where on in the log an epoch's salt applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochStart {
    pub first: Seq,
    pub epoch: Epoch,
    pub salt: Salt,
}

/// The newest claim at or before the covered seq.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastClaim {
    pub seq: Seq,
    pub host: String,
    pub wall_ms: u64,
    pub released: bool,
}

/// An object under `map/` that is named by its id, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapObject {
    pub id: RunId,
    pub bytes: u64,
}

/// Two objects under `map/` with the same content, each under an id of its own: what no other object could replace. Either serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MapPair {
    pub ids: [RunId; 2],
    /// Of each.
    pub bytes: u64,
}

impl MapPair {
    pub fn objects(self) -> [MapObject; 2] {
        self.ids.map(|id| MapObject { id, bytes: self.bytes })
    }
}

/// Marks of time that a checkpoint has at most.
pub const TIMES_MAX: usize = 1000;
/// Retired objects that a checkpoint names at most. What does not fit is retired later.
pub const RETIRED_MAX: usize = 50_000;

/// An object that no state from a checkpoint on needs, and that is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetiredName {
    /// `log/<seq>`: a segment that counted, or what the same epoch left there without counting.
    Segment(Seq),
    /// `map/<id>`: a run or a usage object.
    Map(RunId),
}

impl RetiredName {
    /// The object that has this key, if it is one that is ever retired.
    pub fn parse(key: &str) -> Option<RetiredName> {
        keys::parse_run(key)
            .map(RetiredName::Map)
            .or_else(|| keys::parse_entry(key).map(RetiredName::Segment))
    }

    /// Its name in the store.
    pub fn key(&self) -> String {
        match self {
            RetiredName::Segment(seq) => keys::entry(*seq),
            RetiredName::Map(id) => keys::run(*id),
        }
    }
}

/// An object to be deleted, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    pub name: RetiredName,
    pub bytes: u64,
}

/// The state of a volume as of log position `covered`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Of the writer that made the checkpoint.
    pub epoch: Epoch,
    /// The last log position whose effects are in here.
    pub covered: Seq,
    /// Where the log's walk continues behind `covered`.
    pub journal: JournalId,
    pub journal_pos: JournalPos,
    pub journal_chain: Chain,
    pub size_bytes: u64,
    pub claim: LastClaim,
    /// Ascending; every epoch that still has segments.
    pub epochs: Vec<EpochStart>,
    pub levels: Levels,
    pub usage: Vec<MapObject>,
    /// What this state and all later ones can do without, and may still be there.
    pub retired: Vec<Retired>,
    /// Entries of the log, and when they were in it at the latest, in seconds since 1970. Ascending.
    pub times: Vec<(Seq, u64)>,
    /// The table of snapshots; none without snapshots.
    pub snapshots: Option<MapPair>,
    /// Objects with the blocks that snapshots hold, oldest first.
    pub held: Vec<MapObject>,
    /// Where a clone has its beginning from, ascending by position; what is needed of those is in their hands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<CloneOrigin>,
    /// From this position on the volume shows nothing of its origins; snapshots of before may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flattened: Option<Seq>,
}

impl Checkpoint {
    /// What it names under `map/`. What snapshots need besides is named by their table.
    fn needed(&self) -> BTreeSet<RunId> {
        let runs = self.levels.iter().flatten().map(|run| run.id);
        let objects = self.usage.iter().chain(&self.held).map(|object| object.id);
        runs.chain(objects).chain(self.snapshots.iter().flat_map(|table| table.ids)).collect()
    }

    /// The claim of its epoch, which is never deleted from the log. The first checkpoint of a clone has none: it names the position in the other
    /// volume from which the clone goes on, as released.
    pub fn claim_in_log(&self) -> Option<Seq> {
        let is_made_for_clone = self.claim.released && self.claim.seq == self.covered;
        (!is_made_for_clone).then_some(self.claim.seq)
    }

    /// Its name: names of later checkpoints are greater.
    pub fn name(&self) -> CheckpointName {
        (self.epoch, self.covered)
    }

    /// The bytes of the object; its name is `keys::checkpoint(epoch, covered)`. It is checked as whoever reads it checks it.
    ///
    /// # Errors
    /// `Full` when it is longer than any reader would take, `Invalid` when it is something that none would.
    pub fn encode(&self, env: &Env, key: Option<&MasterKey>, volume: VolumeId) -> Result<Bytes> {
        let unreadable =
            |detail: String| Error::unreadable(keys::checkpoint(self.epoch, self.covered), detail);
        self.check(self.epoch, self.covered).map_err(|detail| unreadable(detail.to_owned()))?;
        crate::map::check_levels(&self.levels).map_err(|e| unreadable(e.to_string()))?;
        let salt = Salt(env.random_bytes());
        let mut out = MAGIC.to_vec();
        out.push(FORMAT);
        out.extend_from_slice(volume.0.as_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.covered.0.to_le_bytes());
        out.extend_from_slice(&salt.0);
        out.extend_from_slice(&crc32c(&out).to_le_bytes());
        debug_assert_eq!(out.len(), HEADER_BYTES);
        let json = serde_json::to_vec(self).expect("plain fields always serialize");
        if (json.len() + HEADER_BYTES + ENDING_BYTES_MAX) as u64 > CHECKPOINT_BYTES_MAX {
            return Err(Error::Full(format!("the checkpoint has {} bytes", json.len())));
        }
        compress(Compression::Zstd, &json, &mut out);
        let sealer = Sealer::new(key, volume, ObjectKind::Checkpoint, salt, self.covered.0);
        sealer.seal_tail(PART, &mut out, HEADER_BYTES);
        Ok(out.into())
    }

    /// The volume that a checkpoint is of, if its header is intact and names another one than `volume`. Bytes
    /// that do not verify may be ours, and are never taken for another's. The header alone is enough.
    pub fn foreign_volume(volume: VolumeId, bytes: &[u8]) -> Option<VolumeId> {
        let theirs = read_header(bytes).ok()?.volume;
        (theirs != volume).then_some(theirs)
    }

    /// Reads the checkpoint that is named by `epoch` and `covered`. `Error::Corrupt` unless every
    /// byte is what the writer of that epoch stored under that name.
    pub fn decode(
        key: Option<&MasterKey>,
        volume: VolumeId,
        (epoch, covered): (Epoch, Seq),
        bytes: &[u8],
    ) -> Result<Checkpoint> {
        let name = keys::checkpoint(epoch, covered);
        let corrupt = |detail: String| Error::corrupt(name.clone(), detail);
        let head = read_header(bytes).map_err(|fault| match fault {
            HeaderFault::Version(found) => {
                Error::Version { what: name.clone(), found: found.into(), known: FORMAT.into() }
            }
            HeaderFault::Damaged(detail) => corrupt(detail.to_owned()),
        })?;
        if (head.volume, head.epoch, head.covered) != (volume, epoch, covered) {
            let other = keys::checkpoint(head.epoch, head.covered);
            return Err(corrupt(format!("it is {other} of volume {}", head.volume)));
        }
        if bytes.len() as u64 > CHECKPOINT_BYTES_MAX {
            return Err(corrupt(format!("it has {} bytes", bytes.len())));
        }
        let sealer = Sealer::new(key, volume, ObjectKind::Checkpoint, head.salt, covered.0);
        let payload = sealer.open(PART, &bytes[HEADER_BYTES..]).map_err(|e| corrupt(e.to_string()))?;
        let json = decompress_bounded(&payload, CHECKPOINT_BYTES_MAX as usize)
            .map_err(|e| corrupt(e.to_string()))?;
        let checkpoint: Checkpoint = serde_json::from_slice(&json).map_err(|e| corrupt(e.to_string()))?;
        checkpoint.check(epoch, covered).map_err(|detail| corrupt(detail.to_owned()))?;
        crate::map::check_levels(&checkpoint.levels)?;
        Ok(checkpoint)
    }

    /// What later code relies on.
    fn check(&self, epoch: Epoch, covered: Seq) -> Result<(), &'static str> {
        if (self.epoch, self.covered) != (epoch, covered) {
            return Err("name and content disagree");
        }
        if self.size_bytes > VOLUME_BYTES_MAX || !self.size_bytes.is_multiple_of(SECTOR_BYTES as u64) {
            return Err("no volume has the size it says");
        }
        let ascend = |pair: &[EpochStart]| pair[0].first < pair[1].first && pair[0].epoch < pair[1].epoch;
        if !self.epochs.windows(2).all(ascend) {
            return Err("its epochs do not ascend");
        }
        if self.claim.seq > covered || self.epochs.last().is_some_and(|last| last.first > covered) {
            return Err("it tells of what it does not cover");
        }
        let ascend = |pair: &[(Seq, u64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        if self.times.len() > TIMES_MAX || !self.times.windows(2).all(ascend) {
            return Err("its times do not ascend, or are too many");
        }
        if !are_valid(&self.origins, covered) {
            return Err("its origins do not ascend, or lie behind it");
        }
        self.check_retired()
    }

    /// Nothing that is needed is to be deleted.
    fn check_retired(&self) -> Result<(), &'static str> {
        if self.retired.len() > RETIRED_MAX {
            return Err("it retires too many objects");
        }
        let needed = self.needed();
        let is_needed = |retired: &Retired| match retired.name {
            RetiredName::Segment(seq) => seq > self.covered,
            RetiredName::Map(id) => needed.contains(&id),
        };
        match self.retired.iter().any(is_needed) {
            true => Err("it retires what it needs"),
            false => Ok(()),
        }
    }
}

struct CheckpointHead {
    volume: VolumeId,
    epoch: Epoch,
    covered: Seq,
    salt: Salt,
}

enum HeaderFault {
    /// Of another version, this one.
    Version(u8),
    Damaged(&'static str),
}

fn read_header(bytes: &[u8]) -> Result<CheckpointHead, HeaderFault> {
    let mut fields = Fields::new(bytes);
    if fields.array() != Some(MAGIC) {
        return Err(HeaderFault::Damaged("not a cistern object"));
    }
    match fields.u8() {
        Some(FORMAT) => {}
        Some(other) if other > 0 => return Err(HeaderFault::Version(other)),
        _ => return Err(HeaderFault::Damaged("not a cistern object")),
    }
    let cut = HeaderFault::Damaged("it is cut short");
    let (checked, crc) = bytes.get(..HEADER_BYTES).ok_or(cut)?.split_at(CHECKED_BYTES);
    if crc != crc32c(checked).to_le_bytes() {
        return Err(HeaderFault::Damaged("its header is damaged"));
    }
    read_head(&mut fields).ok_or(HeaderFault::Damaged("it is cut short"))
}

fn read_head(fields: &mut Fields) -> Option<CheckpointHead> {
    Some(CheckpointHead {
        volume: VolumeId(uuid::Uuid::from_bytes(fields.array()?)),
        epoch: Epoch(fields.u64()?),
        covered: Seq(fields.u64()?),
        salt: Salt(fields.array()?),
    })
}
