//! What goes to a store that has no room for more data: what makes room, and overtakes what waits.
//!
//! The history goes to the store in order, so a discard lies behind data that finds no room. But what it discards of that data
//! needs none if both become one segment: a range of the journal has of each block the newest write only, however long it is. And what lets go
//! of a snapshot (its removal, the release of a hold, the end of a clone) need not keep its place among the writes: no write depends on it, and
//! no reader can tell. So it goes ahead, in an entry of its own whose range of the journal is empty; in its place in the history it is found once
//! more, and does nothing.
//!
//! A snapshot that is made while data waits keeps what lies before it, until it is removed again. What is made and removed within one range was
//! in no segment before, and is in none then.
//!
//! Reads the journal and never the store. Memory is bounded: of what is looked at places are kept and no data, and of a range that is loaded the
//! data that its segment will have.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;

use crate::{
    Result,
    codec::{Compression, crc64},
    extents::{Divisible, ExtentMap},
    journal::{Group, Journal, Record},
    log::{LogWriter, NewEntry, NewSegment, Offer},
    segment::{JournalRange, OPERATIONS_MAX, SegmentBuilder, Slot},
    snapshot::Operation,
    units::{BLOCK_BYTES, Extent, JournalPos},
    writeback::pack::Newest,
};

/// Extents that are remembered of what was looked at: some 25 MB. Nothing is found behind more of them.
const EXTENTS_MAX: usize = 500_000;
/// Groups of one range. A hundred bytes of each are in memory while it is packed.
const GROUPS_MAX: u64 = 200_000;
/// Extents that a range may leave, which all go into one footer.
pub(super) const LEFT_MAX: usize = super::flow::RECORDS_MAX;

/// What a block was last set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// The payload, or sectors of it, at this position.
    Data(JournalPos),
    Zero,
}

impl Divisible for Last {
    fn skip(&self, blocks: u64) -> Last {
        match *self {
            Last::Data(at) => Last::Data(JournalPos(at.0 + blocks)),
            Last::Zero => Last::Zero,
        }
    }
}

/// What some groups leave of each other.
#[derive(Default)]
struct Remains {
    index: ExtentMap<Last>,
    data_blocks: u64,
    zero_blocks: u64,
}

impl Remains {
    fn take(&mut self, group: &Group) {
        for placed in group.records() {
            match placed.record {
                Record::Write(extent) => self.set(extent, Last::Data(placed.pos)),
                Record::Sectors { block, .. } => self.set(Extent::new(block, 1), Last::Data(placed.pos)),
                Record::Zero { extent, .. } => self.set(extent, Last::Zero),
                Record::Resize { .. } | Record::Operation { .. } | Record::Load { .. } => {}
            }
        }
    }

    fn set(&mut self, extent: Extent, last: Last) {
        let (mut data, mut zero) = (0, 0);
        self.index.insert(extent, last, |gone, before| match before {
            Last::Data(_) => data += gone.len,
            Last::Zero => zero += gone.len,
        });
        debug_assert!(data <= self.data_blocks && zero <= self.zero_blocks, "what is replaced was counted");
        (self.data_blocks, self.zero_blocks) = (self.data_blocks - data, self.zero_blocks - zero);
        match last {
            Last::Data(_) => self.data_blocks += extent.len,
            Last::Zero => self.zero_blocks += extent.len,
        }
    }
}

/// Snapshots that were made and not removed yet, by name, and where.
#[derive(Default)]
struct Made(BTreeMap<String, JournalPos>);

/// What an operation does to those.
enum Effect {
    Makes,
    /// What was made there is gone without a trace.
    Unmakes(JournalPos),
    /// Lets go of what is older than all that was looked at.
    LetsGo(Operation),
    /// Keeps its place, with all that lies before it.
    Stays,
}

impl Made {
    fn take(&mut self, at: JournalPos, operation: Operation) -> Effect {
        match operation {
            Operation::Make { name, .. } => {
                self.0.insert(name, at);
                Effect::Makes
            }
            Operation::Remove { ref name, bookmark } => match self.0.get(name).copied() {
                None => Effect::LetsGo(operation),
                Some(_) if bookmark => Effect::Stays,
                Some(made) => {
                    self.0.remove(name);
                    Effect::Unmakes(made)
                }
            },
            // A hold that is put on a snapshot, and a clone that is made, stay: so these are older.
            Operation::Release { .. } | Operation::Unclone { .. } => Effect::LetsGo(operation),
            _ => Effect::Stays,
        }
    }
}

/// A place in the journal up to which it makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overtaking {
    pub to: JournalPos,
    /// Bytes of data that goes to the store with it.
    pub bytes: u64,
}

/// A look ahead over the journal from where packing stands, which goes on as that grows.
pub(super) struct Survey {
    from: JournalPos,
    /// Everything before it was looked at.
    at: JournalPos,
    left: Remains,
    payload_blocks: u64,
    groups: u64,
    operations: usize,
    made: Made,
    /// What lets go of older snapshots, and before which snapshots are made and removed at most.
    removals: Vec<(JournalPos, Operation)>,
    /// Nothing behind what was looked at goes into one range with it.
    is_over: bool,
    /// As one segment that takes least.
    joined: Option<Overtaking>,
    /// As it lies there, in as many segments as that makes.
    plain: Option<Overtaking>,
}

impl Survey {
    pub fn from(from: JournalPos) -> Survey {
        Survey {
            from,
            at: from,
            left: Remains::default(),
            payload_blocks: 0,
            groups: 0,
            operations: 0,
            made: Made::default(),
            removals: Vec::new(),
            is_over: false,
            joined: None,
            plain: None,
        }
    }

    pub fn begins(&self) -> JournalPos {
        self.from
    }

    /// Looks at everything durable.
    pub async fn go_on(&mut self, journal: &Journal, segment_bytes: u64) -> Result<()> {
        let durable = journal.durable();
        while self.at < durable && !self.is_over {
            for group in journal.groups(self.at).await? {
                if !self.is_over && self.at < durable {
                    self.look(&group, segment_bytes);
                }
            }
        }
        Ok(())
    }

    fn look(&mut self, group: &Group, segment_bytes: u64) {
        debug_assert_eq!(group.start(), self.at, "nothing is passed over");
        let operation = operation(group);
        let is_operation = operation.is_some();
        let effect = operation.map(|operation| self.made.take(group.start(), operation));
        self.is_over = matches!(effect, Some(Effect::Stays))
            || group.load().is_some()
            || self.left.index.len() >= EXTENTS_MAX
            || self.groups == GROUPS_MAX
            || (is_operation && self.operations == OPERATIONS_MAX);
        if self.is_over {
            return;
        }
        self.groups += 1;
        self.at = group.next();
        if let Some(Effect::LetsGo(removal)) = effect {
            self.removals.push((group.start(), removal));
        }
        match is_operation {
            true => self.operations += 1,
            false => self.payload_blocks += group.payload_blocks(),
        }
        self.left.take(group);
        if !self.made.0.is_empty() {
            return; // what lies before it is kept
        }
        let Remains { index, data_blocks, zero_blocks } = &self.left;
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let is_less = |than: &Option<Overtaking>| than.is_none_or(|o| o.bytes >= bytes(*data_blocks));
        // It gives back more than it takes, as far as that can be told from here.
        let makes_room =
            *zero_blocks > 0 && zero_blocks >= data_blocks && bytes(*data_blocks) <= segment_bytes;
        if makes_room && index.len() <= LEFT_MAX && is_less(&self.joined) {
            self.joined = Some(Overtaking { to: self.at, bytes: bytes(*data_blocks) });
        }
        if *zero_blocks > 0 && *zero_blocks >= self.payload_blocks {
            self.plain.get_or_insert(Overtaking { to: self.at, bytes: bytes(self.payload_blocks) });
        }
    }

    /// What makes room as one segment.
    pub fn joined(&self) -> Option<Overtaking> {
        self.joined
    }

    /// What makes room as it lies there.
    pub fn plain(&self) -> Option<Overtaking> {
        self.plain
    }

    /// What lets go of snapshots at or behind a place, may go ahead of everything, and the place behind it.
    pub fn removals(&self, from: JournalPos) -> Option<(Vec<Operation>, JournalPos)> {
        let new = self.removals.iter().filter(|(at, _)| *at >= from);
        let removals: Vec<Operation> = new.map(|(_, removal)| removal.clone()).collect();
        (!removals.is_empty()).then_some((removals, self.at))
    }
}

fn operation(group: &Group) -> Option<Operation> {
    group.records().iter().find_map(|placed| match placed.record {
        Record::Operation { bytes } => {
            let block = group.payload(placed.pos, 1)?;
            Some(Operation::decode(&block[..bytes as usize]).expect("only operations are appended as such"))
        }
        _ => None,
    })
}

/// What a range of any length leaves, and the volume's size as of its end, which was `size_bytes` before; every snapshot that is made in it is removed
/// in it. Read twice: at first only to know what of it is left.
pub(super) async fn load(
    journal: &Journal,
    range: (JournalPos, JournalPos),
    size_bytes: u64,
) -> Result<(Newest, u64)> {
    let (mut left, mut size_bytes) = (Remains::default(), size_bytes);
    let (mut made, mut operations) = (Made::default(), BTreeSet::new());
    for_each_group(journal, range, |group| {
        left.take(&group);
        if let Some(operation) = operation(&group) {
            operations.insert(group.start());
            if let Effect::Unmakes(at) = made.take(group.start(), operation) {
                operations.remove(&at);
                operations.remove(&group.start());
            }
        }
        for placed in group.records() {
            if let Record::Resize { size_bytes: new } = placed.record {
                size_bytes = new;
            }
        }
    })
    .await?;
    let data = left.index.iter().filter_map(|(extent, last)| match *last {
        Last::Data(at) => Some(at.0..at.0 + extent.len),
        Last::Zero => None,
    });
    let wanted: BTreeSet<u64> = data.flatten().collect();
    assert!(made.0.is_empty(), "a snapshot shows what its segment ends with");
    let mut newest = Newest::new(journal);
    for_each_group(journal, range, |group| {
        let is_wanted = |at: JournalPos| match group.is_operation() {
            true => operations.contains(&group.start()),
            false => wanted.contains(&at.0),
        };
        newest.push(Arc::new(group.with_only(is_wanted)));
    })
    .await?;
    assert_eq!(
        newest.data_bytes(),
        left.data_blocks * BLOCK_BYTES as u64,
        "what is left of a range is in it"
    );
    Ok((newest, size_bytes))
}

async fn for_each_group(
    journal: &Journal,
    (from, to): (JournalPos, JournalPos),
    mut act: impl FnMut(Arc<Group>) + Send,
) -> Result<()> {
    let mut next = from;
    while next < to {
        for group in journal.groups(next).await? {
            if next < to {
                next = group.next();
                act(group);
            }
        }
    }
    assert_eq!(next, to, "a range ends where a group does");
    Ok(())
}

/// What lets go of snapshots, ahead of its places in the history.
pub(super) struct Removals {
    pub log: LogWriter,
    pub compression: Compression,
    /// Empty, where packing stands.
    pub range: JournalRange,
    pub size_bytes: u64,
    pub removals: Vec<Operation>,
}

#[async_trait]
impl Offer for Removals {
    async fn seal(&self, slot: &Slot) -> Result<NewEntry> {
        let Removals { log, compression, range, size_bytes, removals } = self;
        debug_assert_eq!(range.from, range.to, "they take nothing of the journal along");
        // The ends of an empty range cancel each other out, and tell nothing of what is removed.
        let mut bytes: Vec<u8> = removals.iter().flat_map(Operation::encode).collect();
        for told in [range.from.pos.0, range.from.chain.0, *size_bytes] {
            bytes.extend_from_slice(&told.to_le_bytes());
        }
        let slot = Slot { nonce: slot.nonce.mixed_with(crc64(&bytes)), ..*slot };
        let key = log.keys().key.as_deref();
        let mut builder = SegmentBuilder::written(key, slot, *range, *size_bytes, *compression);
        removals.iter().for_each(|removal| builder.operation(removal.clone()));
        let (sealed, partial) = (builder.finish(), Vec::new());
        Ok(NewEntry::Segment(NewSegment { sealed, partial, range: *range, size_bytes: *size_bytes }))
    }
    fn waits_for_room(&self) -> bool {
        true
    }
}
