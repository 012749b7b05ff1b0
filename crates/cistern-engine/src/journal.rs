//! The journal: the local, durable, ordered log of acknowledged writes that are not yet stored.
//!
//! Bytes and recovery are specified in `docs/format/journal.md`. One lock guards the state
//! ([`state`]); one task writes ([`writer`]). Positions never wrap.
//!
//! Promises: what [`Journal::sync`] confirmed survives power loss; recovery gives a prefix of
//! what was appended; wrong bytes are never returned. The first failed write or sync stops the
//! journal for good. Never interprets payload, and never decides what may be freed.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::{
    disk::{Disk, DiskFile},
    env::{Env, Task},
    error::{Error, Result},
    rank::{Locked, Rank, Ranked},
    sectors::SectorMask,
    units::{BLOCK_BYTES, Chain, Extent, JournalId, JournalPos, Mark, Salt, VolumeId},
};

mod files;
pub mod format;
mod group;
mod held;
mod outlive;
mod owner;
mod prepared;
mod recover;
mod recoveries;
mod ring;
mod scan;
mod scribe;
mod shortage;
mod staging;
mod state;
mod waiters;
mod writer;

pub use files::{discard, discard_unused, set_aside};
pub use group::{Group, PlacedRecord};
pub use held::HeldGroups;
pub use prepared::{Prepared, fit_one_group};
pub use recoveries::Recoveries;
pub use scan::{Scan, read_only_scan};
pub use shortage::Shortage;

use files::{write_again, write_staged, write_superblock};
use format::{GROUP_PAYLOAD_BLOCKS_MAX, POSITION_MAX, SUPERBLOCK_AREA_BLOCKS, Superblock};
use owner::{OwnedFile, Ownership};
use prepared::check_fits_ring;
use recover::{Depth, Walked};
use ring::Ring;
use scribe::Scribe;
use state::JournalState;
use writer::JournalWriter;

/// The journal's file in the state directory of a volume.
pub const FILE_NAME: &str = "journal";
/// Held by whoever has the journal open for writing.
const LOCK_NAME: &str = "journal.lock";
/// Bytes of the smallest journal: four of the largest groups.
pub const JOURNAL_BYTES_MIN: u64 =
    (SUPERBLOCK_AREA_BLOCKS + 4 * (1 + GROUP_PAYLOAD_BLOCKS_MAX)) * BLOCK_BYTES as u64;
/// Blocks of groups that are read from the disk at once (1 MiB): a journal of single writes has a group every
/// 8 KiB, and one read for each would be most of what write-back costs.
const LOAD_BLOCKS: u64 = 256;
/// Positions beyond are not given to a new journal.
const START_MAX: u64 = 1 << 56;

const _: () = assert!(START_MAX < POSITION_MAX, "what a new journal writes is read");

/// One thing that happened to the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Data was written; the payload is `extent.len` blocks.
    Write(Extent),
    /// Some sectors of a block were written, and not all: the payload is one block, of which only these count.
    Sectors { block: u64, mask: SectorMask },
    /// A range became zeroes: a hole, or `allocated` zeroes.
    Zero { extent: Extent, allocated: bool },
    /// The volume got this size.
    Resize { size_bytes: u64 },
    /// An operation on snapshots: so many bytes of the payload, which is one block. Alone in its group.
    Operation { bytes: u32 },
    /// What this token stands for became part of the volume: it lies in no journal, and without its segment it is nothing. Alone in
    /// its group.
    Load { token: u64 },
}

/// Buffers that are kept for what is loaded from the disk, as a part of the memory for groups.
const LOADED_SHARE: u64 = 4;

/// How to create or open a journal.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Bytes of the file. An existing one keeps its size.
    pub bytes: u64,
    /// Bound of the memory for queued groups, and for recent ones kept for reads and
    /// write-back. A single record may exceed it when nothing else is queued.
    pub memory_bytes: u64,
}

/// Why nothing was appended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// No room now: await [`Journal::room`] and try again.
    #[error("the journal is full")]
    Full,
    /// Trying again is pointless.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// What the journal and its writer share.
struct Shared {
    env: Env,
    ring: Ring,
    /// Where it is, for messages.
    name: String,
    state: Ranked<JournalState>,
    /// Never locked together with the state.
    scribe: Ranked<Scribe>,
    owner: Arc<Ownership>,
    /// Where what is acknowledged lies until it is in the ring; without it each write waits for that.
    staging: Option<Arc<dyn DiskFile>>,
    /// As the state knows them, for those who only want to know that: they only grow, and what lies between is dirty.
    appended: AtomicU64,
    freed: AtomicU64,
    /// Wakes the writer; called only when [`JournalState::must_wake`] says so.
    wake: Notify,
}

/// What an open journal has of the directory, besides the ring.
struct Local {
    owner: Arc<Ownership>,
    staging: Option<Arc<dyn DiskFile>>,
    lock: Box<dyn Send + Sync>,
}

impl Shared {
    fn lock(&self) -> Locked<'_, JournalState> {
        self.state.lock()
    }
}

/// An open journal. Dropping it without `close` is a crash: what was synced is there.
pub struct Journal {
    shared: Arc<Shared>,
    id: JournalId,
    volume: VolumeId,
    /// The claims that were tried with it before it was opened, oldest first.
    claims: Vec<Salt>,
    /// Ends when the journal was closed or stopped.
    writer: tokio::sync::Mutex<Option<Task<()>>>,
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.with_state(|state| {
            if state.stopped().is_none() {
                drop(state.stop(Error::Closed)); // nobody can wait: that would borrow the journal
            }
        });
    }
}

impl Journal {
    /// Makes a new journal whose first record gets a position at or behind `start`.
    /// `Error::Exists` if there is one, `Error::Full` if the disk cannot hold it,
    /// `Error::Invalid` below [`JOURNAL_BYTES_MIN`].
    pub async fn create(
        env: &Env,
        disk: &Arc<dyn Disk>,
        volume: VolumeId,
        start: JournalPos,
        options: JournalOptions,
    ) -> Result<Arc<Journal>> {
        let name = format!("{}/{FILE_NAME}", disk.describe());
        if options.bytes < JOURNAL_BYTES_MIN {
            return Err(Error::Invalid(format!("a journal needs at least {JOURNAL_BYTES_MIN} bytes")));
        }
        if start.0 >= START_MAX {
            return Err(Error::Invalid(format!("a journal cannot begin at position {start}")));
        }
        let lock = disk.lock(LOCK_NAME)?;
        match disk.open(FILE_NAME).await {
            Err(Error::NotFound(_)) => {}
            Err(e) => return Err(e),
            Ok(_) => return Err(Error::Exists(name)),
        }
        let blocks = options.bytes / BLOCK_BYTES as u64;
        let superblock = Superblock {
            journal: JournalId(env.uuid()),
            volume,
            generation: 2,
            ring_blocks: blocks - SUPERBLOCK_AREA_BLOCKS,
            start: start.0,
            tail: start.0,
            durable: start.0,
            incarnation: 1,
            prewritten: start.0,
            opened: start.0,
            chain: Chain(u64::from_le_bytes(env.random_bytes())),
            claims: Vec::new(),
            closed: false,
        };
        let owner = files::make(env, disk, &superblock).await?;
        let file = OwnedFile::wrap(disk.open(FILE_NAME).await?, &owner);
        let ring = Ring::new(file, superblock.ring_blocks).keeping(options.memory_bytes / LOADED_SHARE);
        let state = JournalState::new(
            ring.blocks,
            options.memory_bytes,
            start.0,
            start.0,
            VecDeque::new(),
            VecDeque::from([superblock.chain]),
        );
        let staging = staging::open(disk, &owner).await;
        let local = Local { owner, staging, lock };
        Ok(Journal::start(env, ring, name, superblock, state, local))
    }

    /// Opens an existing journal. `visit` gets every record that is still there, in order, with
    /// its position and that of its group. Everything visited is durable when this returns.
    ///
    /// `Error::NotFound` without a journal, `Error::Locked` if another process has it,
    /// `Error::Version`, and `Error::Corrupt` for a journal of another volume or a damaged one;
    /// the text says what [`read_only_scan`] can still export.
    pub async fn open(
        env: &Env,
        disk: &Arc<dyn Disk>,
        volume: VolumeId,
        options: JournalOptions,
        recoveries: &Recoveries,
        visit: &mut (dyn FnMut(&Record, JournalPos, JournalPos) + Send),
    ) -> Result<Arc<Journal>> {
        let lock = disk.lock(LOCK_NAME)?;
        recover::check(env, disk, volume).await?;
        let owner = Ownership::take(env, disk).await?;
        match Journal::recover(env, disk, &owner, options, recoveries, visit).await {
            Ok((ring, name, superblock, state)) => {
                let staging = staging::open(disk, &owner).await;
                let local = Local { owner, staging, lock };
                Ok(Journal::start(env, ring, name, superblock, state, local))
            }
            Err(e) => {
                env.blocking(async move { owner.release().await }).await;
                Err(e)
            }
        }
    }

    /// Reads what is there, and makes it durable under a superblock of this opening.
    async fn recover(
        env: &Env,
        disk: &Arc<dyn Disk>,
        owner: &Arc<Ownership>,
        options: JournalOptions,
        recoveries: &Recoveries,
        visit: &mut (dyn FnMut(&Record, JournalPos, JournalPos) + Send),
    ) -> Result<(Ring, String, Superblock, JournalState)> {
        let turn = recoveries.turn().await;
        let mut found = recover::find(env, disk).await?;
        if found.ring.file.len() != options.bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64 {
            tracing::info!(journal = %found.name, bytes = found.ring.file.len(), "an existing journal keeps its size");
        }
        let walked = recover::walk(env, &found, &turn, Depth::Needed, &mut |header, _| {
            for placed in group::place_records(header.pos, &header.records) {
                visit(&placed.record, placed.pos, JournalPos(header.pos));
            }
            Ok(())
        })
        .await?;
        if let Some(damage) = &walked.damage {
            return Err(scan::damage_error(&found, &walked, damage));
        }
        // A slot that cannot be read may have named one incarnation more.
        let bump = if found.slot_lost { 2 } else { 1 };
        let superblock = Superblock {
            generation: found.superblock.generation + 1,
            durable: walked.head,
            incarnation: walked.incarnation + bump,
            prewritten: found.superblock.prewritten.max(walked.head),
            opened: walked.head,
            closed: false,
            ..found.superblock
        };
        found.ring.file = OwnedFile::wrap(found.ring.file, owner);
        write_staged(env, &found.ring, &walked.staged).await?;
        write_again(env, &found.ring, walked.durable.max(superblock.tail), walked.head).await?;
        write_superblock(env, &found.ring, superblock.clone()).await?;
        let tail = superblock.tail;
        let Walked { head, starts, chains, .. } = walked;
        let state = JournalState::new(found.ring.blocks, options.memory_bytes, tail, head, starts, chains);
        Ok((found.ring.keeping(options.memory_bytes / LOADED_SHARE), found.name, superblock, state))
    }

    fn start(
        env: &Env,
        ring: Ring,
        name: String,
        superblock: Superblock,
        mut state: JournalState,
        local: Local,
    ) -> Arc<Journal> {
        let Local { owner, staging, lock } = local;
        let (id, volume, claims) = (superblock.journal, superblock.volume, superblock.claims.clone());
        let at = state.frontiers();
        let head = at.appended;
        if staging.is_some() {
            state.stage();
        }
        let opening = u64::from_le_bytes(env.random_bytes());
        let scribe = Scribe::new(id, superblock.incarnation, opening, (head, state.written_chain()));
        let shared = Arc::new(Shared {
            env: env.clone(),
            ring,
            name,
            state: Ranked::new(Rank::Structure, state),
            scribe: Ranked::new(Rank::Structure, scribe),
            owner,
            staging,
            appended: AtomicU64::new(head),
            freed: AtomicU64::new(at.freed),
            wake: Notify::new(),
        });
        let writer =
            env.dedicated("journal", JournalWriter::new(shared.clone(), superblock, head, lock).run());
        Arc::new(Journal { shared, id, volume, claims, writer: tokio::sync::Mutex::new(Some(writer)) })
    }

    /// The identity of this journal file.
    pub fn id(&self) -> JournalId {
        self.id
    }

    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// The claims that were tried with this journal before it was opened, oldest first.
    pub fn claims(&self) -> &[Salt] {
        &self.claims
    }

    /// Makes the journal name these claims, at most [`format::CLAIMS_MAX`], instead of those before. When this
    /// returns it does so durably.
    pub async fn keep_claims(&self, claims: Vec<Salt>) -> Result<()> {
        let answer = self.with_state(|state| state.wait_claims(claims))?;
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// Changes the state, and wakes the writer if it sleeps.
    fn with_state<T>(&self, change: impl FnOnce(&mut JournalState) -> T) -> T {
        let mut state = self.shared.lock();
        let out = change(&mut state);
        let must_wake = state.must_wake();
        drop(state);
        if must_wake {
            self.shared.wake.notify_one();
        }
        out
    }

    /// Makes a record with its payload ([`Record::payload_blocks`]) ready for [`append`](Self::append): for a long one this
    /// takes milliseconds, so it is done where nobody waits. `Error::Invalid` for what can never be appended.
    pub fn prepare(&self, record: Record, payload: Bytes) -> Result<Prepared> {
        Prepared::new(record, payload, self.capacity_blocks())
    }

    /// The same for the records of one request, which go into one group: recovery, a segment and a snapshot have all of them or none.
    /// They must [fit](fit_one_group).
    pub fn prepare_together(&self, records: Vec<(Record, Bytes)>) -> Result<Prepared> {
        Prepared::together(records, self.capacity_blocks())
    }

    /// Appends what this journal prepared.
    /// The order of the calls is the order of history. A long write is in parts:
    /// `placed` gets each part with the position of its first payload block, ascending; it gets a
    /// zeroed extent once. Gives the position to pass to [`Journal::sync`]. All or nothing.
    pub fn append(
        &self,
        prepared: &Prepared,
        placed: &mut dyn FnMut(Extent, JournalPos),
    ) -> Result<JournalPos, AppendError> {
        let mut parts = Vec::with_capacity(prepared.parts().len());
        let end = self.with_state(|state| {
            let end = state.append(prepared, &mut parts)?;
            debug_assert!(self.shared.appended.load(Ordering::Relaxed) <= end.0, "positions only grow");
            self.shared.appended.store(end.0, Ordering::Release);
            Ok::<_, AppendError>(end)
        })?;
        debug_assert!(
            parts.is_sorted_by(|a, b| a.0.end() <= b.0.start && (a.1 < b.1 || prepared.is_together()))
                && parts.iter().all(|p| p.1 < end),
            "parts ascend, in the volume and in the journal"
        );
        for (part, pos) in parts {
            placed(part, pos);
        }
        Ok(end)
    }

    /// Keeps room for a record with so much payload, if there is any: the next append finds it, which has to be that record's.
    pub fn reserve(&self, payload_blocks: u64) -> bool {
        self.shared.lock().reserve(payload_blocks)
    }

    /// Gives up what was reserved.
    pub fn unreserve(&self) {
        self.shared.lock().unreserve();
    }

    /// Waits until a record with so much payload can be appended. Who comes first goes first.
    pub async fn room(&self, payload_blocks: u64) -> Result<()> {
        check_fits_ring(payload_blocks, self.capacity_blocks())?;
        match self.with_state(|state| state.wait_room(payload_blocks))? {
            Some(answer) => answer.await.unwrap_or(Err(Error::Closed)),
            None => Ok(()),
        }
    }

    /// Waits until everything before `to` is durable.
    pub async fn sync(&self, to: JournalPos) -> Result<()> {
        match self.with_state(|state| state.wait_sync(to.0))? {
            Some(answer) => answer.await.unwrap_or(Err(Error::Closed)),
            None => Ok(()),
        }
    }

    /// The payload blocks `[pos, pos + blocks)` of one group. `None` if they have been freed:
    /// look again where the data is now. `Error::Corrupt` if the disk does not give what was written.
    pub async fn read(&self, pos: JournalPos, blocks: u64) -> Result<Option<Bytes>> {
        let found = self.shared.lock().find(pos.0, blocks);
        let group = match found {
            group::FoundPayload::Memory(payload) => return Ok(Some(payload)),
            group::FoundPayload::Freed => return Ok(None),
            group::FoundPayload::Nowhere => {
                return Err(Error::Invalid(format!("no {blocks} payload blocks at journal position {pos}")));
            }
            group::FoundPayload::Disk(group) => group,
        };
        let Shared { env, ring, .. } = &*self.shared;
        let payload = recover::load_payload(env, ring, self.id, group.start, pos, blocks).await?;
        // What was freed meanwhile may have been written over.
        if self.tail().0 > group.start {
            return Ok(None);
        }
        payload.map(Some).ok_or_else(|| self.damaged(group.start))
    }

    /// The group that begins at `at`, which is durable and not freed; and where it must be read from the
    /// disk, those behind it as far as they come with it, up to 1 MiB. `Error::Invalid` if no such group
    /// begins there.
    pub async fn groups(&self, at: JournalPos) -> Result<Vec<Arc<Group>>> {
        let missing = || Error::Invalid(format!("no durable group begins at journal position {at}"));
        let found = self.shared.lock().find_groups(at.0, LOAD_BLOCKS).ok_or_else(missing)?;
        let places = match found {
            Ok(group) => return Ok(vec![group]),
            Err(places) => places,
        };
        let Shared { env, ring, .. } = &*self.shared;
        debug_assert!(
            places.first().is_some_and(|first| first.start == at.0),
            "the one asked for comes first"
        );
        let groups = recover::load_groups(env, ring, self.id, &places).await?;
        // What was freed meanwhile may have been written over.
        if self.tail().0 > at.0 {
            return Err(missing());
        }
        let intact = |(group, place): (Option<Group>, &Extent)| {
            group.map(Arc::new).ok_or_else(|| self.damaged(place.start))
        };
        groups.into_iter().zip(&places).map(intact).collect()
    }

    fn damaged(&self, start: u64) -> Error {
        let detail = format!(
            "the group at position {start} is not what was written. What lies before it can be exported when nobody has the journal \
             open (cistern journal export)"
        );
        Error::corrupt(&*self.shared.name, detail)
    }

    /// Everything before `to` is committed in the store. `to` is the start of a group, or the end
    /// of the newest durable one.
    pub fn free(&self, to: JournalPos) {
        let freed = self.with_state(|state| {
            let freed = state.free(to.0);
            self.shared.freed.store(state.frontiers().freed, Ordering::Release);
            freed
        });
        drop(freed); // not under the lock: megabytes go back to the allocator
    }

    /// Behind the newest record.
    pub fn appended(&self) -> JournalPos {
        JournalPos(self.shared.appended.load(Ordering::Acquire))
    }

    /// Everything before is committed in the store, as was told by [`free`](Self::free).
    pub fn committed(&self) -> JournalPos {
        JournalPos(self.shared.freed.load(Ordering::Acquire))
    }

    /// What is appended and not committed. **The one account of what is dirty:** only an append adds to it, only a commit takes
    /// from it, and whoever shows, bounds or paces dirty bytes asks here.
    pub fn dirty(&self) -> Range<JournalPos> {
        let committed = self.committed(); // first: what is appended only grows meanwhile
        let appended = self.appended();
        assert!(committed <= appended, "only what was acknowledged is committed");
        committed..appended
    }

    /// How much of the ring that is.
    pub fn dirty_blocks(&self) -> u64 {
        let dirty = self.dirty();
        dirty.end.0 - dirty.start.0
    }

    /// Behind the newest group that survives power loss.
    pub fn durable(&self) -> JournalPos {
        JournalPos(self.shared.lock().frontiers().durable)
    }

    /// The oldest group that is not freed begins here.
    pub fn tail(&self) -> JournalPos {
        JournalPos(self.shared.lock().frontiers().freed)
    }

    /// The mark at `pos`: where a group that is not freed begins, or the end, if everything before was written.
    pub fn mark_at(&self, pos: JournalPos) -> Option<Mark> {
        self.shared.lock().mark_at(pos.0)
    }

    /// Every mark from the tail to the end of what was written, ascending; never empty.
    pub fn marks(&self) -> Vec<Mark> {
        self.shared.lock().marks()
    }

    /// Blocks of the ring.
    pub fn capacity_blocks(&self) -> u64 {
        self.shared.ring.blocks
    }

    /// Why the journal has stopped, if it has.
    pub fn latched(&self) -> Option<Error> {
        self.shared.lock().stopped().filter(|why| !matches!(why, Error::Closed))
    }

    /// What its disk has no room for, while it has none: nothing is appended meanwhile.
    pub fn shortage(&self) -> Option<Shortage> {
        self.shared.lock().disk.shortage().cloned()
    }

    /// Takes nothing new, makes everything durable and ends the writer. Safe to call again.
    pub async fn close(&self) -> Result<()> {
        self.with_state(JournalState::close);
        let mut writer = self.writer.lock().await;
        if let Some(task) = writer.as_mut() {
            task.await; // whoever gives up here leaves it to the next call
            *writer = None;
        }
        let state = self.shared.lock();
        let at = state.frontiers();
        match state.stopped() {
            Some(Error::Closed) | None if at.durable == at.appended => Ok(()),
            Some(Error::Closed) | None => Err(Error::Latched("the journal's writer ended early".into())),
            Some(why) => Err(why),
        }
    }
}
