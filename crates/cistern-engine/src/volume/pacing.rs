//! Slowing writes gradually before the room for dirty data is full, fairly between clients.
//!
//! A write asks here before it gets its place in the journal. Below the high-water mark it passes;
//! above, it waits for its turn ([`fair`]) at the rate that the [`throttle`] allows. There is no task:
//! one of those who wait lets the others through. A flush never comes here.
//!
//! Keeps no account of what is dirty: it looks at the journal's before every decision.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{
    env::Env,
    journal::Journal,
    rank::{Locked, Rank, Ranked},
    units::{BLOCK_BYTES, JournalPos},
};

pub mod fair;
mod recent;
pub mod throttle;

pub use fair::ClientId;
use fair::FairQueue;
use throttle::Throttle;

/// How writes are slowed, at one moment.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ThrottleStatus {
    /// Bytes a second that are acknowledged at most; `None`: not limited.
    pub rate_bytes_per_s: Option<u64>,
    /// Writes that wait for their turn.
    pub waiting: u64,
    /// Bytes that may be dirty before writes wait.
    pub room_bytes: u64,
    /// Journal bytes written a second over the last seconds.
    pub written_bytes_per_s: u64,
    /// Journal bytes committed a second over the last seconds.
    pub drained_bytes_per_s: u64,
    /// Seconds until the room is full at these rates; `None` when it does not fill.
    pub full_in_s: Option<u64>,
}

/// The gate that all writes of a volume pass.
pub struct Pacer {
    env: Env,
    journal: Arc<Journal>,
    state: Ranked<State>,
    made: Made,
    /// Held by the waiting write that lets others through.
    turnstile: tokio::sync::Mutex<()>,
}

/// Writes that were made since the state was last looked at: noting one takes no lock.
#[derive(Default)]
struct Made {
    /// Bytes as which they passed.
    asked: AtomicU64,
    /// Bytes of the journal that they took.
    took: AtomicU64,
}

struct State {
    throttle: Throttle,
    /// Bounded by what clients have under way.
    queue: FairQueue<oneshot::Sender<()>>,
    /// What was committed when the journal was last looked at.
    seen: JournalPos,
}

impl Pacer {
    pub fn new(env: Env, journal: Arc<Journal>, room_bytes: u64) -> Pacer {
        let dirty = journal.dirty();
        let throttle = Throttle::new(env.now(), room_bytes, bytes_of(&dirty));
        let seen = dirty.start;
        let state = Ranked::new(Rank::Facade, State { throttle, queue: FairQueue::default(), seen });
        Pacer { env, journal, state, made: Made::default(), turnstile: tokio::sync::Mutex::new(()) }
    }

    /// The state, with everything that was noted before and what the journal says now.
    fn state(&self, now: Duration) -> Locked<'_, State> {
        let mut state = self.state.lock();
        let (took, asked) = (self.made.took.swap(0, Relaxed), self.made.asked.swap(0, Relaxed));
        if took > 0 {
            state.throttle.note_write(now, took);
        }
        state.throttle.spend(took as i64 - asked as i64);
        let dirty = self.journal.dirty();
        debug_assert!(dirty.start >= state.seen, "what is committed stays committed");
        if dirty.start > state.seen {
            let drained = state.seen..dirty.start;
            state.throttle.note_commit(now, bytes_of(&drained));
            state.seen = dirty.start;
        }
        state.throttle.see(bytes_of(&dirty));
        state
    }

    pub fn set_room(&self, room_bytes: u64) {
        self.state(self.env.now()).throttle.set_room(room_bytes);
    }

    /// The journal has just heard of a commit: this is the time at which it drained.
    pub fn note_commit(&self) {
        self.state(self.env.now());
    }

    /// A write that passed as `asked` bytes took `bytes` of the journal.
    pub fn note_write(&self, asked: u64, bytes: u64) {
        self.made.asked.fetch_add(asked, Relaxed);
        self.made.took.fetch_add(bytes, Relaxed);
    }

    /// Waits until `client` may write `bytes`.
    pub async fn pass(&self, client: ClientId, bytes: u64) {
        let granted = {
            let now = self.env.now();
            let mut state = self.state(now);
            if state.queue.is_empty() && state.throttle.wait(now).is_zero() {
                state.throttle.spend(bytes as i64);
                return;
            }
            let (grant, granted) = oneshot::channel();
            state.queue.push(client, bytes, grant);
            granted
        };
        // In memory of its own: a write that may go at once does not carry what this needs.
        Box::pin(self.wait_for_turn(granted)).await;
    }

    /// Lets writes through until one's own was granted.
    async fn wait_for_turn(&self, mut granted: oneshot::Receiver<()>) {
        tokio::select! {
            biased;
            _ = &mut granted => {}
            () = self.let_through() => unreachable!("lets others through until granted"),
        }
    }

    /// Lets writes through, one's own among them, until dropped.
    async fn let_through(&self) {
        let _turn = self.turnstile.lock().await;
        while let Some(wait) = self.grant() {
            self.env.sleep(wait).await;
        }
        std::future::pending().await // one's own was granted: this is dropped at once
    }

    /// Grants what may go now. Gives the time until more may, `None` when nobody waits.
    fn grant(&self) -> Option<Duration> {
        let now = self.env.now();
        let mut state = self.state(now);
        loop {
            let wait = state.throttle.wait(now);
            if !state.queue.is_empty() && !wait.is_zero() {
                return Some(wait);
            }
            let (bytes, grant) = state.queue.pop()?;
            if grant.send(()).is_ok() {
                state.throttle.spend(bytes as i64);
            }
        }
    }

    pub fn status(&self) -> ThrottleStatus {
        let now = self.env.now();
        let mut state = self.state(now);
        state.throttle.wait(now);
        let throttle = &state.throttle;
        ThrottleStatus {
            rate_bytes_per_s: throttle.rate().map(|rate| rate as u64),
            waiting: state.queue.len() as u64,
            room_bytes: throttle.room_bytes(),
            written_bytes_per_s: throttle.written_bytes_per_s(now) as u64,
            drained_bytes_per_s: throttle.drained_bytes_per_s(now) as u64,
            full_in_s: throttle.full_in_s(now).map(|seconds| seconds as u64),
        }
    }
}

fn bytes_of(range: &Range<JournalPos>) -> u64 {
    (range.end.0 - range.start.0) * BLOCK_BYTES as u64
}
