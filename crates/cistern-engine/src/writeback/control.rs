//! What the rest of the volume may ask of a running write-back, and what it shows.
//!
//! Keeps no account of what is dirty: that is the journal's ([`Journal::dirty_blocks`]), which hears of a commit here.

use std::{
    future::Future,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, watch};

use crate::{
    Error, Result,
    env::Stop,
    journal::Journal,
    rank::{Rank, Ranked},
    units::{BLOCK_BYTES, JournalPos, Seq},
    writeback::{
        age::Stamps,
        pi::{Goal, Rate},
        policy,
    },
};

/// Sixteenths of the room for dirty data that data leaves to what makes room in the store.
pub const LEFT_BY_DATA: u64 = 2;

/// What can be set while a write-back runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Data is committed within this time while the store answers and nobody pauses.
    pub dirty_age_max: Duration,
    /// Bytes that may be dirty before writes wait.
    pub room_bytes: u64,
    /// Bytes of memory that the volume may use; this one stays.
    pub memory_bytes: u64,
}

impl Tuning {
    pub fn goal(&self) -> Goal {
        Goal::new(self.room_bytes, self.dirty_age_max)
    }

    pub fn segment_bytes(&self) -> u64 {
        policy::segment_bytes(self.room_bytes, self.memory_bytes)
    }

    pub fn range_bytes(&self) -> u64 {
        policy::range_bytes(self.room_bytes, self.memory_bytes)
    }
}

/// What the flow shows of its controller.
#[derive(Clone, Copy, Debug, Default)]
pub struct ControlShown {
    pub rate: Rate,
    /// When the rate was last updated.
    pub updated: Duration,
    /// Segments that may be uploaded at once.
    pub uploads_max: usize,
}

/// The shared face of a write-back.
pub struct Control {
    journal: Arc<Journal>,
    state: Ranked<State>,
    /// Wakes the flow: new work, or a new wish.
    wake: Notify,
    /// Tells that the journal has heard of a commit, or that there will be none any more.
    committed: watch::Sender<()>,
    tuning: watch::Sender<Tuning>,
    /// Nothing is sealed. What is on its way is finished.
    paused: watch::Sender<bool>,
    stop: Stop,
    /// Ranges that were offered and are not committed.
    in_flight: AtomicU64,
    /// The newest committed seq of this writer; 0 before the first.
    committed_seq: AtomicU64,
}

struct State {
    stamps: Stamps,
    /// Up to here somebody waits for a commit.
    wanted: JournalPos,
    /// Up to here the flow has packed.
    packed: JournalPos,
    latched: Option<Error>,
    shown: ControlShown,
}

impl Control {
    /// For a journal that knows what of it is committed.
    pub fn new(journal: Arc<Journal>, tuning: Tuning, paused: bool) -> Control {
        let committed = journal.committed();
        let state = State {
            stamps: Stamps::default(),
            wanted: committed,
            packed: committed,
            latched: None,
            shown: ControlShown::default(),
        };
        Control {
            journal,
            state: Ranked::new(Rank::Flow, state),
            wake: Notify::new(),
            committed: watch::Sender::new(()),
            tuning: watch::Sender::new(tuning),
            paused: watch::Sender::new(paused),
            stop: Stop::new(),
            in_flight: AtomicU64::new(0),
            committed_seq: AtomicU64::new(0),
        }
    }

    /// A write was appended between two positions at `now`. Cheap: called for every write.
    pub fn note_append(&self, from: JournalPos, to: JournalPos, now: Duration) {
        debug_assert!(from <= to, "history only grows");
        let mut state = self.state.lock();
        state.stamps.note(from, now);
        let unpacked_before = from.0.saturating_sub(state.packed.0);
        let unpacked = to.0.saturating_sub(state.packed.0);
        drop(state);
        // The flow needs to know of the first write and of every full segment, not of each write.
        let segment = self.tuning.borrow().segment_bytes() / crate::units::BLOCK_BYTES as u64;
        if unpacked_before == 0 || unpacked_before / segment != unpacked / segment {
            self.wake.notify_one();
        }
    }

    /// Where the commits have come to, if so many blocks more are too many to wait for the store, with so many sixteenths of the room left.
    /// Where nothing waits, any number may.
    pub fn above_room(&self, blocks: u64, left: u64) -> Option<JournalPos> {
        let Range { start: committed, end: appended } = self.journal.dirty();
        let (dirty, room_bytes) = (appended.0 - committed.0, self.tuning().room_bytes);
        let is_above =
            dirty > 0 && (dirty + blocks) * BLOCK_BYTES as u64 > room_bytes - room_bytes / 16 * left;
        is_above.then_some(committed)
    }

    pub fn committed(&self) -> JournalPos {
        self.journal.committed()
    }

    pub fn tuning(&self) -> Tuning {
        *self.tuning.borrow()
    }

    /// Changes how the write-back behaves, from its next decision on.
    pub fn tune(&self, change: impl FnOnce(&mut Tuning)) {
        self.tuning.send_modify(change);
        self.wake.notify_one();
    }

    pub fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    /// Pauses the write-back or lets it go on, from its next decision on.
    pub fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
        self.wake.notify_one();
    }

    /// Whether it is paused, for who has to rest with it.
    pub fn pauses(&self) -> watch::Receiver<bool> {
        self.paused.subscribe()
    }

    /// Returns once somebody pauses the write-back.
    pub async fn paused(&self) {
        let _ = self.pauses().wait_for(|paused| *paused).await; // the sender lives as long as `self`
    }

    /// The state of the controller.
    pub fn shown(&self) -> ControlShown {
        self.state.lock().shown
    }

    pub(super) fn show(&self, shown: ControlShown) {
        self.state.lock().shown = shown;
    }

    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The newest seq this writer committed.
    pub fn committed_seq(&self) -> Option<Seq> {
        Some(Seq(self.committed_seq.load(Ordering::Relaxed))).filter(|seq| *seq > Seq(0))
    }

    /// When the oldest write that is not committed was made.
    pub fn oldest_dirty(&self) -> Option<Duration> {
        let committed = self.committed();
        self.state.lock().stamps.oldest_from(committed)
    }

    /// Everything before `to` is to be committed without waiting for more.
    pub fn want(&self, to: JournalPos) {
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(to);
        debug_assert!(state.packed <= self.journal.appended(), "only what was appended is packed");
        drop(state);
        self.wake.notify_one();
    }

    /// Returns when everything before `to` is committed.
    ///
    /// # Errors
    /// What latched the write-back, or `Closed` when it was stopped.
    pub async fn drain(&self, to: JournalPos) -> Result<()> {
        self.want(to);
        let mut committed = self.committed.subscribe();
        loop {
            committed.borrow_and_update(); // before looking: what is told after that is not missed
            if self.committed() >= to {
                return Ok(());
            }
            if let Some(e) = self.latched() {
                return Err(e);
            }
            self.unless_stopped(async { committed.changed().await.is_ok() }).await.ok_or(Error::Closed)?;
        }
    }

    /// Runs `future` unless and until the write-back is stopped: then `None`, and it is dropped.
    pub async fn unless_stopped<F: Future>(&self, future: F) -> Option<F::Output> {
        self.stop.unless_stopped(future).await
    }

    /// What stops the write-back.
    pub(super) fn stop(&self) -> &Stop {
        &self.stop
    }

    pub(super) fn latch(&self, e: &Error) {
        self.state.lock().latched.get_or_insert(e.clone());
        self.committed.send_replace(()); // wakes those who wait; they see the latch
    }

    fn latched(&self) -> Option<Error> {
        self.state.lock().latched.clone()
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// A range is packed, up to `packed`, and about to be offered.
    pub(super) fn set_packed(&self, packed: JournalPos) {
        let mut state = self.state.lock();
        assert!(state.packed <= packed, "ranges are packed in order");
        state.packed = packed;
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A range that was offered came back, and packing goes on from `packed`.
    pub(super) fn came_back(&self, packed: JournalPos) {
        let mut state = self.state.lock();
        assert!(packed <= state.packed, "what came back was packed");
        state.packed = packed;
        drop(state);
        let in_flight = self.in_flight.fetch_sub(1, Ordering::Relaxed);
        assert!(in_flight > 0, "only what was offered comes back");
    }

    /// The range `[from, to)` of the journal is committed at `seq`: its part of the journal may be reused, and whoever waits
    /// for it hears of that. For who commits, when everything else knows of it.
    pub fn commit(&self, seq: Seq, from: JournalPos, to: JournalPos) {
        let before = self.committed_seq.swap(seq.0, Ordering::Relaxed);
        assert!(before < seq.0, "segments are committed in the order of the log");
        assert_eq!(from, self.committed(), "ranges are committed in order");
        let appended = self.journal.appended();
        assert!(from <= to && to <= appended, "commits go forward, and not beyond what was acknowledged");
        let mut state = self.state.lock();
        assert!(to <= state.packed, "only what was packed is committed");
        state.stamps.committed(to, appended);
        drop(state);
        let in_flight = self.in_flight.fetch_sub(1, Ordering::Relaxed);
        assert!(in_flight > 0, "only what was offered is committed");
        self.journal.free(to);
        assert_eq!(to, self.committed(), "ranges end where groups do");
        self.committed.send_replace(());
    }

    /// Whether somebody waits for something behind `packed`, and since when the oldest write there is.
    pub(super) fn wishes(&self, packed: JournalPos) -> (bool, Option<Duration>) {
        let state = self.state.lock();
        (state.wanted > packed, state.stamps.oldest_from(packed))
    }
}
