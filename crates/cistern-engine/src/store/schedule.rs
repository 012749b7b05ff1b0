//! One scheduler for everything that a daemon asks of its stores.
//!
//! Owns who may start a request next: by priority, by what a store bears, and by the rates the
//! user set. A request waits here and nowhere else; it is never changed, dropped or tried again
//! here ([`super::Retry`] lies above, so that a slot is held for one try and not between tries).
//! The decisions are pure ([`place`] and below); this file has the lock, the clock and those who
//! wait. The design is in `docs/design/scheduler.md`.
//!
//! Invariants: a slot goes back when its request ends, however it ends; nobody is told anything
//! under the lock; as long as anybody waits who may start later without anything ending, a timer
//! is armed.

mod away;
mod pieces;
mod place;
mod policy;
mod rate;
mod round;
mod scheduled;
mod stats;
mod window;
#[cfg(test)]
mod window_model_tests;
#[cfg(test)]
mod window_tests;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use place::{Buckets, Change, Next, Outcome, PlaceState, StartedRequest, Wish};
use policy::Direction;
use scheduled::Scheduled;
use serde::{Deserialize, Serialize};
pub use stats::{DirectionStats, PlaceStats, SchedulerStats};
use tokio::sync::oneshot;

use super::{Failures, PromisedRoom, Retry, SharedStore, StoreError, StoreResult, StoreUrl, Within};
use crate::{
    Error, Result,
    env::Env,
    rank::{Locked, Rank, Ranked},
};

/// How long a request waits for a store that is away before it is told so. Whoever tries again
/// comes back; whoever gives up knows why.
const AWAY_HOLD: Duration = Duration::from_secs(15);

/// Who waits for a request. Earlier ones go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// A client's read, or opening a volume.
    Read,
    /// What makes acknowledged data safe in the store.
    WriteBack,
    /// What a reader is about to ask for: read-ahead.
    Ahead,
    /// Nobody: warm-up, merges, cleaning.
    Background,
}

/// One store as its kinds of users reach it.
#[derive(Clone, Debug)]
pub struct Stores {
    pub read: SharedStore,
    pub write_back: SharedStore,
    pub ahead: SharedStore,
    pub background: SharedStore,
    /// What these are within, for what makes data safe: the identity of a volume lies beside its objects.
    pub whole: SharedStore,
    /// Of all requests through any of them, where they are tried again.
    pub failures: Failures,
    /// Of all volumes that go through the same scheduler: their disks may be one.
    pub promised: PromisedRoom,
    /// Of other volumes, from which a clone has its beginning.
    pub others: Arc<dyn OtherPlaces>,
    /// Begins when the volume is served.
    pub ride_out: RideOut,
}

/// Whether a file system may stand on what is read: then a read that is refused is tried again for minutes, like one that is not
/// answered. Keys expire, clocks are set, policies are mended; what was told EIO once stays read-only. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct RideOut(Arc<AtomicBool>);

impl RideOut {
    pub fn begin(&self) {
        self.0.store(true, Relaxed);
    }

    pub fn is_on(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// What a store is used for.
#[derive(Clone, Debug, Default)]
struct StoreUse {
    ride_out: RideOut,
    /// It is another volume's, which may be gone while everything around it is there.
    is_beside: bool,
}

/// Opens the stores of other places of the same store.
#[async_trait]
pub trait OtherPlaces: Send + Sync + fmt::Debug {
    /// Those of the place to which a way leads from here, like `../tank`.
    ///
    /// # Errors
    /// `NotFound` where nothing is there; `Invalid` where it leads nowhere.
    async fn stores(&self, way: &str) -> Result<Stores>;
}

/// Where only one place is known.
#[derive(Debug)]
struct NoOtherPlaces;

#[async_trait]
impl OtherPlaces for NoOtherPlaces {
    async fn stores(&self, way: &str) -> Result<Stores> {
        Err(Error::Invalid(format!("{way} is another place, of which nothing is known here")))
    }
}

impl From<&SharedStore> for Stores {
    fn from(store: &SharedStore) -> Stores {
        Stores::same(store.clone())
    }
}

impl From<&Stores> for Stores {
    fn from(stores: &Stores) -> Stores {
        stores.clone()
    }
}

impl Stores {
    /// All requests alike: for commands and tests, where nothing competes.
    pub fn same(store: SharedStore) -> Stores {
        let of = || store.clone();
        Stores {
            read: of(),
            write_back: of(),
            ahead: of(),
            background: of(),
            whole: of(),
            failures: Failures::default(),
            promised: PromisedRoom::default(),
            others: Arc::new(NoOtherPlaces),
            ride_out: RideOut::default(),
        }
    }

    /// The same, of a place beside which there are others.
    #[must_use]
    pub fn with_others(self, others: Arc<dyn OtherPlaces>) -> Stores {
        Stores { others, ..self }
    }

    /// A directory of the whole store.
    pub fn within(&self, dir: &str) -> Stores {
        let within = |store: &SharedStore| -> SharedStore { Arc::new(Within::new(store.clone(), dir)) };
        Stores {
            read: within(&self.read),
            write_back: within(&self.write_back),
            ahead: within(&self.ahead),
            background: within(&self.background),
            whole: self.whole.clone(),
            failures: self.failures.clone(),
            promised: self.promised.clone(),
            others: self.others.clone(),
            ride_out: self.ride_out.clone(),
        }
    }
}

/// Bounds of the bytes per second in both directions, for all stores of a daemon together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// `None`: no bound.
    pub upload: Option<u64>,
    pub download: Option<u64>,
}

/// The one scheduler of a daemon.
pub struct Scheduler {
    env: Env,
    /// No client waits for what passes it.
    is_bulk: bool,
    /// What is on its way to any of its stores: they may lie on one disk.
    promised: PromisedRoom,
    /// Held for memory operations only.
    state: Ranked<State>,
}

struct State {
    places: Vec<PlaceState<oneshot::Sender<Permit>>>,
    buckets: Buckets,
    waiters: u64,
    /// When the timer that fires next does.
    timer_at: Option<Duration>,
}

/// The right to have one request under way; the slot goes back when this is dropped.
struct Permit {
    scheduler: Arc<Scheduler>,
    place: usize,
    slot: Option<StartedRequest>,
}

/// A request in a queue; leaves it when dropped.
struct Waiting<'a> {
    scheduler: &'a Arc<Scheduler>,
    place: usize,
    id: u64,
    class: Priority,
    direction: Direction,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.scheduler.lock().places[self.place].cancel(self.id, self.class, self.direction);
    }
}

impl Permit {
    fn slot(&self) -> &StartedRequest {
        self.slot.as_ref().expect("taken only at the end")
    }

    /// The request ended.
    fn end(mut self, outcome: Outcome) {
        let slot = self.slot.take().expect("a request ends once");
        self.scheduler.ended(self.place, &slot, outcome);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.scheduler.ended(self.place, &slot, Outcome::Dropped);
        }
    }
}

impl Scheduler {
    pub fn new(env: Env) -> Arc<Scheduler> {
        Self::made(env, false)
    }

    /// One for who reads all of something, at a rate that may be low: no client waits for any of it, so what waits for its turn waits as long as
    /// the rate says.
    pub fn in_bulk(env: Env) -> Arc<Scheduler> {
        Self::made(env, true)
    }

    fn made(env: Env, is_bulk: bool) -> Arc<Scheduler> {
        let buckets = Default::default();
        let state = State { places: Vec::new(), buckets, waiters: 0, timer_at: None };
        let promised = PromisedRoom::default();
        Arc::new(Scheduler { env, is_bulk, promised, state: Ranked::new(Rank::World, state) })
    }

    /// Whether a client waits for such requests: they end within its patience, the time included that they wait here.
    fn serves_client(&self, priority: Priority) -> bool {
        !self.is_bulk && matches!(priority, Priority::Read | Priority::Ahead)
    }

    /// `inner` as somebody of this priority reaches it.
    pub fn store(self: &Arc<Self>, inner: SharedStore, priority: Priority) -> SharedStore {
        self.used(inner, priority, StoreUse::default())
    }

    fn used(self: &Arc<Self>, inner: SharedStore, priority: Priority, used: StoreUse) -> SharedStore {
        let place = self.place_of(&inner.url());
        Arc::new(Scheduled::new(inner, self.clone(), place, priority, used))
    }

    /// `inner` as a volume uses it: scheduled, and tried again. What a client waits for ends
    /// within `patience`; once the volume is served, reads end later.
    pub fn stores(self: &Arc<Self>, inner: &SharedStore, patience: Duration) -> Stores {
        self.used_stores(inner, patience, &StoreUse::default())
    }

    /// The same, of another place that is read for the same volume: that it is away says nothing of the volume's own.
    pub fn stores_beside(
        self: &Arc<Self>,
        inner: &SharedStore,
        patience: Duration,
        ride_out: &RideOut,
    ) -> Stores {
        self.used_stores(inner, patience, &StoreUse { ride_out: ride_out.clone(), is_beside: true })
    }

    fn used_stores(self: &Arc<Self>, inner: &SharedStore, patience: Duration, used: &StoreUse) -> Stores {
        let (failures, ride_out) = (Failures::default(), &used.ride_out);
        let of = |priority| {
            let scheduled = self.used(inner.clone(), priority, used.clone());
            let retry = match self.serves_client(priority) {
                true => Retry::new(scheduled, self.env.clone(), patience),
                false => Retry::patient(scheduled, self.env.clone(), patience),
            };
            let retry = retry.counting(&failures);
            Arc::new(match priority {
                Priority::Read => retry.riding(ride_out.clone()),
                _ => retry,
            })
        };
        let write_back = of(Priority::WriteBack);
        Stores {
            read: of(Priority::Read),
            whole: write_back.clone(),
            write_back,
            ahead: of(Priority::Ahead),
            background: of(Priority::Background),
            failures: failures.clone(),
            promised: self.promised.clone(),
            others: Arc::new(NoOtherPlaces),
            ride_out: ride_out.clone(),
        }
    }

    /// Sets the rates, for requests that wait already too.
    pub fn set_rates(self: &Arc<Self>, rates: Rates) {
        let now = self.env.now();
        let mut state = self.lock();
        state.buckets[Direction::Up as usize].set(now, rates.upload);
        state.buckets[Direction::Down as usize].set(now, rates.download);
        self.start_all(state);
    }

    pub fn stats(&self) -> SchedulerStats {
        let now = self.env.now();
        let state = self.lock();
        let rate = |direction: Direction| state.buckets[direction as usize].rate();
        SchedulerStats {
            rates: Rates { upload: rate(Direction::Up), download: rate(Direction::Down) },
            places: state.places.iter().map(|place| place.stats(now)).collect(),
        }
    }

    fn lock(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    /// The place that a store lies in, by number.
    fn place_of(&self, url: &str) -> usize {
        let name = place_name(url);
        let places = &mut self.lock().places;
        match places.iter().position(|place| place.name() == name) {
            Some(found) => found,
            None => {
                places.push(PlaceState::new(name));
                places.len() - 1
            }
        }
    }

    /// Waits for the turn of a request.
    async fn admit(self: &Arc<Self>, place: usize, wish: Wish) -> StoreResult<Permit> {
        let Wish { class, direction, .. } = wish;
        let (id, mut told) = self.enqueue(place, wish);
        if let Ok(permit) = told.try_recv() {
            return Ok(permit);
        }
        let _waiting = Waiting { scheduler: self, place, id, class, direction };
        loop {
            tokio::select! {
                biased;
                permit = &mut told => return Ok(permit.expect("who leaves the queue is told")),
                () = self.env.sleep(AWAY_HOLD) => {}
            }
            if let Some((since, why)) = self.lock().places[place].away(direction) {
                let away_s = self.env.now().saturating_sub(since).as_secs();
                return Err(StoreError::Unreachable(format!("{why} (away for {away_s} s)")));
            }
        }
    }

    /// Puts a request into its queue and starts what may start, perhaps this very request.
    fn enqueue(self: &Arc<Self>, place: usize, wish: Wish) -> (u64, oneshot::Receiver<Permit>) {
        let (tell, told) = oneshot::channel();
        let now = self.env.now();
        let mut state = self.lock();
        let id = state.waiters;
        state.waiters += 1;
        state.places[place].enqueue(now, id, wish, tell);
        self.start_all(state);
        (id, told)
    }

    fn ended(self: &Arc<Self>, place: usize, slot: &StartedRequest, outcome: Outcome) {
        let (now, direction) = (self.env.now(), slot.direction);
        let jitter = match &outcome {
            Outcome::Answered { .. } => 0,
            _ => u32::from(u16::from_le_bytes(self.env.random_bytes())) % 1001,
        };
        let mut state = self.lock();
        let State { places, buckets, .. } = &mut *state;
        let change = places[place].ended(now, slot, outcome, buckets, jitter);
        let changed = (change != Change::None).then(|| places[place].name().to_owned());
        self.start_all(state);
        match (change, changed) {
            (Change::Away, Some(place)) => tracing::debug!(place, ?direction, "the store does not answer"),
            (Change::Back { after }, Some(place)) => {
                tracing::debug!(place, ?direction, after_s = after.as_secs(), "the store answers again");
            }
            _ => {}
        }
    }

    /// Starts whatever may start, and sees to it that somebody looks again in time.
    fn start_all(self: &Arc<Self>, mut state: Locked<'_, State>) {
        let now = self.env.now();
        let mut started = Vec::new();
        let mut wait: Option<Duration> = None;
        let State { places, buckets, timer_at, .. } = &mut *state;
        for (number, place) in places.iter_mut().enumerate() {
            loop {
                match place.next(now, buckets) {
                    Next::Start(tell, slot) => started.push((tell, number, slot)),
                    Next::Wait(pause) => {
                        wait = Some(wait.map_or(pause, |other| other.min(pause)));
                        break;
                    }
                    Next::Idle => break,
                }
            }
        }
        let alarm = wait.filter(|pause| timer_at.is_none_or(|at| now + *pause < at));
        if let Some(pause) = alarm {
            *timer_at = Some(now + pause);
        }
        drop(state);
        if let Some(pause) = alarm {
            self.look_again(pause);
        }
        for (tell, place, slot) in started {
            // Who does not wait any more gives the slot back by not taking it.
            let _ = tell.send(Permit { scheduler: self.clone(), place, slot: Some(slot) });
        }
    }

    /// Arms a timer. It keeps nothing alive but itself, for a minute at most.
    fn look_again(self: &Arc<Self>, pause: Duration) {
        let (env, scheduler) = (self.env.clone(), Arc::downgrade(self));
        drop(self.env.spawn("store timer", async move {
            env.sleep(pause).await;
            if let Some(scheduler) = scheduler.upgrade() {
                let mut state = scheduler.lock();
                state.timer_at = None;
                scheduler.start_all(state);
            }
        }));
    }
}

/// What the windows are kept by: requests to one bucket, or below one directory, meet the same
/// limits.
fn place_name(url: &str) -> String {
    StoreUrl::parse(url).map_or_else(|_| url.to_owned(), |url| url.neighbourhood())
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
