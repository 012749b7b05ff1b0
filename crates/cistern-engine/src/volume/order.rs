//! The order point: the lock under which writes get their place, and reads their view.
//!
//! Under one lock lie the dirty index, the held extents and whether the volume still accepts writes; the size changes
//! under it. A commit moves blocks from the dirty index to the map under the same lock, so a
//! reader finds the newest acknowledged version of a block in exactly one of the two. Whoever comes here has done before
//! what takes time by the byte.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use crate::{
    Error, Result,
    cache::ChunkCache,
    fetch::entry_key,
    journal::{AppendError, Journal, Prepared, Record},
    log::{NewMoved, NewSegment},
    map::{Lookup, Map},
    rank::{FairlyLocked, FairlyRanked, Rank},
    sectors::SectorMask,
    snapshot::{NOT_COMMITTED, Operation, Snapshot, Snapshots},
    units::{BLOCK_BYTES, Extent, JournalPos, SECTOR_BYTES, Salt, Seq, SnapshotId},
    volume::{
        dirty::{Dirty, DirtyIndex},
        locks::{Held, HeldExtents},
        pacing::Pacer,
    },
};

/// Mappings moved from the dirty index to the map under one hold of the lock (some 100 us). Then whoever waits
/// has it first: a lock that goes to the fastest would stay with the commit for all of a segment, 3 ms.
const COMMIT_BATCH: usize = 128;

/// Journal, map and what ties them.
pub struct Core {
    pub journal: Arc<Journal>,
    pub map: Arc<Map>,
    pub pacer: Pacer,
    written: Written,
    /// Changed under the lock of `order`, where the resize gets its place; asked without. A read is held against it once, before
    /// it looks for anything. If the volume shrinks after that, the read began before the shrink was answered, and may show
    /// what was there, zeroes, or what came after a later growth, block by block. A write asks again under the lock, so
    /// that nothing is acknowledged which lies behind the end then. Who relies on the size for longer holds an extent.
    size_bytes: AtomicU64,
    order: FairlyRanked<Order>,
}

/// Where committed segments are offered to whoever reads them soon.
pub struct Written {
    pub cache: Option<Arc<ChunkCache>>,
    /// Of this writer's epoch.
    pub salt: Salt,
    /// Whether to.
    pub admit: AtomicBool,
}

impl Written {
    fn offer(&self, seq: Seq, body: &Bytes) {
        let Some(cache) = self.cache.as_ref().filter(|_| self.admit.load(Ordering::Relaxed)) else { return };
        cache.fill_written(entry_key(seq, self.salt), body);
    }
}

struct Order {
    dirty: DirtyIndex,
    held: HeldExtents,
    /// As acknowledged; those that are not committed are [`NOT_COMMITTED`].
    snapshots: Snapshots,
    /// Behind the last record that changed what the volume shows; at first, behind what there was when it was opened. An operation is a
    /// group of its own, so what comes behind one ends behind it.
    content: JournalPos,
    /// The snapshots that were made since, by the names that they were given.
    made: BTreeMap<String, Made>,
    /// Why no request is served any more.
    refusal: Option<Error>,
}

/// A snapshot that was made since the opening.
struct Made {
    id: SnapshotId,
    /// Behind the operation that made it.
    at: JournalPos,
}

impl Order {
    fn note_made(&mut self, operation: &Operation, at: JournalPos) {
        let content = self.content;
        self.made.retain(|_, made| made.at >= content); // no other will ever show what the volume shows
        if let (Some(id), Some(name)) = (operation.made(), operation.name()) {
            self.made.insert(name.to_owned(), Made { id, at });
        }
    }

    /// The snapshots that are there and show what the volume shows now. Two positions are compared, so whatever else is made or
    /// removed meanwhile has no say in it.
    fn showing_all(&self) -> impl Iterator<Item = SnapshotId> + '_ {
        let shows_all = move |(_, made): &(&String, &Made)| made.at >= self.content;
        let is_there = move |(name, made): &(&String, &Made)| {
            let there = self.snapshots.get(name);
            there.is_some_and(|there| there.id == made.id && !there.is_bookmark)
        };
        self.made.iter().filter(shows_all).filter(is_there).map(|(_, made)| made.id)
    }
}

/// Where a reader finds some blocks.
pub enum Source {
    /// In the journal, from this position on.
    Journal(JournalPos),
    /// Nowhere: zeroes that are not committed yet.
    Zeroes {
        allocated: bool,
    },
    /// One block: these sectors in the journal, the others where the map says.
    Sectors {
        at: JournalPos,
        mask: SectorMask,
        base: Lookup,
    },
    Map(Lookup),
}

/// Where a reader finds the beginning of some blocks.
pub struct View {
    /// Ascending and without gaps.
    pub parts: Vec<(Extent, Source)>,
    /// The block behind the last of them.
    pub end: u64,
}

/// What became of asking for a place.
pub enum Submitted {
    /// Appended between two journal positions.
    Done { from: JournalPos, to: JournalPos },
    /// Somebody holds a part of the extent.
    Held(Arc<Held>),
    /// The journal has no room.
    NoRoom,
}

/// What became of asking for places for operations.
pub enum OperationPlaces {
    /// Appended, each between two journal positions.
    Done(Vec<Range<JournalPos>>),
    /// The journal of this one has no room.
    NoRoom(usize),
}

impl Core {
    pub fn new(
        journal: Arc<Journal>,
        map: Arc<Map>,
        pacer: Pacer,
        written: Written,
        (dirty, snapshots): (DirtyIndex, Snapshots),
        size_bytes: u64,
    ) -> Core {
        let content = journal.appended();
        let (held, made) = (HeldExtents::default(), BTreeMap::new());
        let order = Order { dirty, held, snapshots, content, made, refusal: None };
        let order = FairlyRanked::new(Rank::Facade, order);
        Core { journal, map, pacer, written, size_bytes: AtomicU64::new(size_bytes), order }
    }

    /// Whether what is written enters the chunk cache once it is committed.
    pub fn admit_written(&self, admit: bool) {
        self.written.admit.store(admit, Ordering::Relaxed);
    }

    fn order(&self) -> FairlyLocked<'_, Order> {
        self.order.lock()
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// From now on every request fails with `cause`; the first cause stays.
    pub fn refuse(&self, cause: Error) {
        let mut order = self.order();
        if order.refusal.is_none() {
            order.refusal = Some(cause);
        }
    }

    /// While closing it turned out that the volume has failed: that says more than that it is closed.
    pub fn stopped_by(&self, cause: Error) {
        self.order().refusal = Some(cause);
    }

    /// Why requests are refused, if they are.
    pub fn refusal(&self) -> Option<Error> {
        self.order().refusal.clone()
    }

    /// Gives a record its place in the history, or the records of one request theirs. `own` is the caller's held extent.
    pub fn submit(&self, prepared: &Prepared, own: Option<&Arc<Held>>) -> Result<Submitted> {
        let records = prepared.records();
        let mut order = self.order();
        let order = &mut *order;
        if let Some(e) = &order.refusal {
            return Err(e.clone());
        }
        for record in records {
            if let Some(extent) = record.extent()
                && let Some(held) = order.held.blocker(extent, own)
            {
                return Ok(Submitted::Held(held));
            }
            self.check_place(record, &order.dirty)?;
        }
        let from = self.journal.appended();
        let dirty = &mut order.dirty;
        let placed = &mut |part: Extent, at: JournalPos| {
            let is_of =
                |record: &&Record| record.extent().is_some_and(|extent| extent.intersect(part) == Some(part));
            let value = match records.iter().find(is_of).expect("a part is of a record") {
                Record::Zero { allocated, .. } => Dirty::Zero { at, allocated: *allocated },
                Record::Sectors { mask, .. } => Dirty::Sectors { at, mask: *mask },
                Record::Write(_) | Record::Resize { .. } | Record::Operation { .. } | Record::Load { .. } => {
                    Dirty::Data(at)
                }
            };
            dirty.insert(part, value);
        };
        match self.journal.append(prepared, placed) {
            Ok(to) => {
                debug_assert!(from <= to, "history only grows");
                debug_assert!(
                    records.iter().filter_map(Record::extent).all(|extent| order.dirty.covers(extent)),
                    "what was appended is found in the journal"
                );
                if let [Record::Resize { size_bytes }] = records {
                    debug_assert!(
                        size_bytes.is_multiple_of(SECTOR_BYTES as u64),
                        "a volume ends with a sector"
                    );
                    self.size_bytes.store(*size_bytes, Ordering::Release);
                }
                order.content = to;
                Ok(Submitted::Done { from, to })
            }
            Err(AppendError::Full) => Ok(Submitted::NoRoom),
            Err(AppendError::Failed(e)) => {
                order.refusal.get_or_insert(e.clone());
                Err(e)
            }
        }
    }

    /// Whether a record may come behind all that was acknowledged.
    fn check_place(&self, record: &Record, dirty: &DirtyIndex) -> Result<()> {
        // The volume may have shrunk since the request was checked. Zeroes behind the end are harmless, and
        // growing puts them there.
        if let (Record::Write(_) | Record::Sectors { .. }, Some(extent)) = (record, record.extent())
            && extent.end() > self.size_bytes().div_ceil(BLOCK_BYTES as u64)
        {
            return Err(Error::OutOfRange { size_bytes: self.size_bytes() });
        }
        if let Record::Sectors { block, mask } = *record {
            assert!(dirty.takes_sectors(block, mask), "sectors of block {block} would hide a newer version");
        }
        Ok(())
    }

    /// As `submit`, for operations on snapshots of several volumes: all at one instant, or none. Nobody who waited for one of their
    /// writes to be acknowledged finds a later one of another in a snapshot, and not that one.
    ///
    /// # Errors
    /// `Exists`, `NotFound` or `Invalid` for what makes no sense behind all that was acknowledged; whatever stopped a volume.
    pub fn operate(all: &[(&Core, &Prepared, &Operation)]) -> Result<OperationPlaces> {
        let orders: Vec<&FairlyRanked<Order>> = all.iter().map(|(core, ..)| &core.order).collect();
        let mut orders = FairlyRanked::lock_all(&orders);
        for ((_, _, operation), order) in all.iter().zip(&orders) {
            if let Some(e) = &order.refusal {
                return Err(e.clone());
            }
            order.snapshots.check(operation)?;
        }
        let is_full = |(core, prepared, _): &(&Core, &Prepared, &Operation)| {
            !core.journal.reserve(prepared.payload_blocks())
        };
        if let Some(full) = all.iter().position(is_full) {
            all[..full].iter().for_each(|(core, ..)| core.journal.unreserve());
            return Ok(OperationPlaces::NoRoom(full));
        }
        let mut places = Vec::with_capacity(all.len());
        for ((core, prepared, operation), order) in all.iter().zip(&mut orders) {
            debug_assert!(prepared.records().iter().all(Record::is_operation));
            let from = core.journal.appended();
            match core.journal.append(prepared, &mut |_, _| {}) {
                Ok(to) => {
                    order.snapshots.apply(operation, NOT_COMMITTED, core.size_bytes());
                    order.note_made(operation, to);
                    places.push(from..to);
                }
                Err(AppendError::Full) => unreachable!("room was reserved, and nobody else appends"),
                Err(AppendError::Failed(e)) => {
                    all[places.len()..].iter().for_each(|(core, ..)| core.journal.unreserve());
                    order.refusal.get_or_insert(e.clone());
                    return Err(e);
                }
            }
        }
        Ok(OperationPlaces::Done(places))
    }

    /// The snapshots, as acknowledged.
    pub fn snapshots(&self) -> Snapshots {
        self.order().snapshots.clone()
    }

    /// Whether something is kept for a clone.
    pub fn has_clones(&self) -> bool {
        self.order().snapshots.has_clones()
    }

    /// Whether no snapshot shows what the volume shows now, as far as is known since the opening.
    pub fn is_changed(&self) -> bool {
        self.order().showing_all().next().is_none()
    }

    /// Whether this snapshot, which was made since the opening, is there and shows what the volume shows now.
    pub fn is_shown_by(&self, id: SnapshotId) -> bool {
        self.order().showing_all().any(|showing| showing == id)
    }

    /// One of them.
    pub fn snapshot(&self, name: &str) -> Option<Snapshot> {
        self.order().snapshots.get(name).cloned()
    }

    /// Holds an extent for a write of parts of blocks, or gives whom to wait for.
    pub fn hold(&self, extent: Extent) -> std::result::Result<Arc<Held>, Arc<Held>> {
        debug_assert!(!extent.is_empty(), "who holds nothing keeps nobody away");
        let mut order = self.order();
        match order.held.blocker(extent, None) {
            Some(blocker) => Err(blocker),
            None => Ok(order.held.hold(extent)),
        }
    }

    /// Also while the holder panics: whoever waits for the extent has to hear of it.
    pub fn release(&self, held: &Arc<Held>) {
        self.order.lock_after_panic().held.release(held);
    }

    /// Where the newest acknowledged version of the first blocks of `extent` is, at this instant: as far as
    /// `pieces_max` pieces reach, which bounds for how long others wait. Each part that the map answers gives at most
    /// `mappings_max` mappings.
    pub fn view(&self, extent: Extent, pieces_max: usize, mappings_max: usize) -> Result<View> {
        let order = self.order();
        if let Some(e) = &order.refusal {
            return Err(e.clone());
        }
        let mut view = View { parts: Vec::new(), end: extent.start };
        let mut left = pieces_max.max(1);
        for (part, dirty) in order.dirty.cover_first(extent, left) {
            let (seen, pieces, source) = match dirty {
                Some(Dirty::Sectors { at, mask }) => {
                    (part, 1, Source::Sectors { at, mask, base: self.map.begin(part) })
                }
                Some(Dirty::Data(at)) => (part, 1, Source::Journal(at)),
                Some(Dirty::Zero { allocated, .. }) => (part, 1, Source::Zeroes { allocated }),
                None => {
                    let lookup = self.map.begin_first(part, left, mappings_max);
                    (lookup.extent(), lookup.captured().max(1), Source::Map(lookup))
                }
            };
            debug_assert_eq!(seen.start, view.end, "a view has no gaps");
            view.end = seen.end();
            view.parts.push((seen, source));
            left = left.saturating_sub(pieces);
            if left == 0 || seen.end() < part.end() {
                break;
            }
        }
        order.unlock_fairly();
        Ok(view)
    }

    /// Moves the blocks of a segment from the dirty index to the map, where they were not written again since.
    pub fn commit_segment(&self, seq: Seq, segment: &NewSegment) {
        let NewSegment { sealed, partial, range, .. } = segment;
        assert!(range.from.pos <= range.to.pos, "a segment covers a range of the journal");
        for batch in sealed.mappings.chunks(COMMIT_BATCH) {
            let mut order = self.order();
            self.map.insert(batch);
            for mapping in batch {
                order.dirty.forget(mapping.extent, range.to.pos);
            }
            order.unlock_fairly();
        }
        // The map has their sectors by now.
        for &block in partial {
            self.order().dirty.forget(Extent::new(block, 1), range.to.pos);
        }
        for operation in &sealed.operations {
            if let Some(id) = operation.made() {
                self.order().snapshots.place(id, seq);
            }
        }
        self.written.offer(seq, &sealed.body);
    }

    /// Whether the dirty index has nothing while the journal says that nothing is dirty.
    pub fn agrees_with_journal(&self) -> bool {
        let order = self.order(); // nothing is appended meanwhile
        self.journal.dirty_blocks() > 0 || order.dirty.is_empty()
    }

    /// Points the map to where blocks were moved. They are the same blocks, so the order of requests has nothing to do
    /// with it.
    ///
    /// # Errors
    /// Of asking the map; then nothing was changed.
    pub async fn commit_moved(&self, moved: &NewMoved) -> Result<()> {
        self.map.insert_moved(&moved.sealed.mappings, moved.base).await
    }
}
