//! The simulated world's executor: one thread, one clock, one source of chance.
//!
//! Owns every task, every timer and the event history. Each step picks a runnable task (by chance,
//! as far as the seed says so), polls it once and moves the clock by some microseconds; when nothing
//! can run, the clock jumps to the next timer. Tasks belong to an **incarnation**: one life of one
//! host between two crashes. An incarnation can be suspended (its tasks are not polled, while time
//! goes on) and killed (its tasks are dropped between two polls, which is to say at any await).
//!
//! Never reads a real clock, never starts a thread: the same seed gives the same history, and the
//! history's hash says so.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use cistern_engine::env::BoxFuture;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::oneshot;

use crate::trace::Trace;

mod sleep;

pub use sleep::Sleep;

/// One life of one host. [`WORLD`] is whatever is not a host: the script, the store, the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incarnation(u64);

/// The owner of tasks that no crash reaches.
pub const WORLD: Incarnation = Incarnation(0);

/// Polls after which a run counts as stuck in a busy loop. The longest honest runs need about
/// a tenth of it.
const POLLS_MAX: u64 = 40_000_000;
/// Microseconds of virtual time that one poll takes at most.
const POLL_MICROS_MAX: u64 = 12;

type TaskId = u64;
type Fuse = Box<dyn FnOnce() + Send>;

/// The tasks that were woken, each once.
#[derive(Default)]
struct Ready {
    queue: Vec<TaskId>,
    /// Woken since the last pick. They join the queue in the order of their numbers: some
    /// primitives (tokio's watch channel) wake those who wait in an order of their own chance.
    fresh: BTreeSet<TaskId>,
    queued: BTreeSet<TaskId>,
}

impl Ready {
    fn push(&mut self, id: TaskId) {
        if self.queued.insert(id) {
            self.fresh.insert(id);
        }
    }
    fn settle(&mut self) {
        self.queue.extend(std::mem::take(&mut self.fresh));
    }
    fn take(&mut self, index: usize) -> TaskId {
        let id = self.queue.remove(index);
        self.queued.remove(&id);
        id
    }
}

struct TaskWaker {
    id: TaskId,
    ready: Arc<Mutex<Ready>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.lock().expect("no panic under this lock").push(self.id);
    }
}

struct Slot {
    owner: Incarnation,
    name: &'static str,
    /// Taken out while the task is polled.
    future: Option<BoxFuture<()>>,
    waker: Waker,
}

#[derive(Default)]
struct Life {
    alive: bool,
    suspended: bool,
    /// Woken while suspended.
    parked: Vec<TaskId>,
    polls: u64,
    /// What happens before the poll of that number.
    fuse: Option<(u64, Fuse)>,
}

struct Core {
    now: Duration,
    tick: u64,
    polls: u64,
    rng: ChaCha8Rng,
    /// Chance that the next task is drawn from all runnable ones instead of the oldest.
    shuffle: f64,
    tasks: BTreeMap<TaskId, Slot>,
    timers: BTreeMap<(Duration, u64), Waker>,
    lives: BTreeMap<Incarnation, Life>,
    ids: u64,
    trace: Trace,
    failure: Option<String>,
}

/// A handle on the simulated world; clones share it.
#[derive(Clone)]
pub struct Sim {
    core: Arc<Mutex<Core>>,
    ready: Arc<Mutex<Ready>>,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first broken promise, hang or panic.
    pub failure: Option<String>,
    /// Hash over all events and all scheduling decisions.
    pub history: u64,
    /// The last events, oldest first.
    pub tail: Vec<String>,
    pub polls: u64,
    pub virtual_time: Duration,
}

enum Next {
    Poll(TaskId),
    Advanced,
    Stuck,
}

impl Sim {
    /// A world in which `seed` decides everything. `live` prints each event as it happens.
    pub fn new(seed: u64, live: bool) -> Sim {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let shuffle = [0.0, 0.1, 0.5, 1.0][rng.random_range(0..4)];
        let life = Life { alive: true, ..Life::default() };
        let core = Core {
            now: Duration::from_secs(rng.random_range(1..100_000)),
            tick: 0,
            polls: 0,
            rng,
            shuffle,
            tasks: BTreeMap::new(),
            timers: BTreeMap::new(),
            lives: BTreeMap::from([(WORLD, life)]),
            ids: 0,
            trace: Trace::new(live),
            failure: None,
        };
        Sim { core: Arc::new(Mutex::new(core)), ready: Arc::default() }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Core) -> T) -> T {
        f(&mut self.core.lock().expect("no panic under this lock"))
    }

    /// Virtual time since the beginning of the world's clock.
    pub fn now(&self) -> Duration {
        self.with(|c| c.now)
    }

    /// The next number of the one order in which things happen; never 0.
    pub fn tick(&self) -> u64 {
        self.with(|c| {
            c.tick += 1;
            c.tick
        })
    }

    /// Draws from the seed.
    pub fn draw<T>(&self, f: impl FnOnce(&mut ChaCha8Rng) -> T) -> T {
        self.with(|c| f(&mut c.rng))
    }

    /// True with probability `p`.
    pub fn chance(&self, p: f64) -> bool {
        p > 0.0 && self.draw(|r| r.random_bool(p.min(1.0)))
    }

    /// A number in `[low, high)`.
    pub fn range(&self, low: u64, high: u64) -> u64 {
        self.draw(|r| r.random_range(low..high))
    }

    /// A time in `[low, high)`, at a resolution of a microsecond.
    pub fn time(&self, low: Duration, high: Duration) -> Duration {
        Duration::from_micros(self.range(low.as_micros() as u64, high.as_micros() as u64))
    }

    pub fn fill(&self, out: &mut [u8]) {
        self.draw(|r| r.fill_bytes(out));
    }

    /// Adds an event to the history.
    pub fn note(&self, event: fmt::Arguments<'_>) {
        self.with(|c| c.trace.add(c.now, event));
    }

    /// Ends the run: a promise is broken. The first one counts.
    pub fn fail(&self, why: impl Into<String>) {
        let why = why.into();
        self.with(|c| {
            c.trace.add(c.now, format_args!("VIOLATION {why}"));
            c.failure.get_or_insert(why);
        });
    }

    /// Begins a life of a host.
    pub fn incarnate(&self) -> Incarnation {
        self.with(|c| {
            c.ids += 1;
            let inc = Incarnation(c.ids);
            c.lives.insert(inc, Life { alive: true, ..Life::default() });
            inc
        })
    }

    pub fn is_alive(&self, inc: Incarnation) -> bool {
        self.with(|c| c.lives.get(&inc).is_some_and(|l| l.alive))
    }

    /// Polls that an incarnation has had: the measure for `burn_after`.
    pub fn polls_of(&self, inc: Incarnation) -> u64 {
        self.with(|c| c.lives.get(&inc).map_or(0, |l| l.polls))
    }

    /// Runs `act` right before the incarnation's poll that comes `polls` from now; it replaces any
    /// earlier fuse and goes out when the incarnation dies before.
    pub fn burn_after(&self, inc: Incarnation, polls: u64, act: impl FnOnce() + Send + 'static) {
        let act: Fuse = Box::new(act);
        let old = self.with(|c| {
            let life = c.lives.get_mut(&inc).filter(|l| l.alive)?;
            let at = life.polls + polls;
            life.fuse.replace((at, act))
        });
        drop(old);
    }

    /// Takes the fuse away.
    pub fn unburn(&self, inc: Incarnation) {
        let old = self.with(|c| c.lives.get_mut(&inc)?.fuse.take());
        drop(old);
    }

    /// Stops or resumes polling the incarnation's tasks. Time goes on, requests on their way too.
    pub fn suspend(&self, inc: Incarnation, suspended: bool) {
        let parked = self.with(|c| {
            let Some(life) = c.lives.get_mut(&inc) else { return Vec::new() };
            life.suspended = suspended;
            if suspended { Vec::new() } else { std::mem::take(&mut life.parked) }
        });
        let mut ready = self.ready.lock().expect("no panic under this lock");
        parked.into_iter().for_each(|id| ready.push(id));
    }

    /// Ends a life: none of its tasks is polled again, none can be added. `dying` runs before the
    /// tasks are dropped, while what they have in flight can still be seen.
    pub fn kill(&self, inc: Incarnation, dying: impl FnOnce()) {
        assert_ne!(inc, WORLD, "the world does not crash");
        let fuse = self.with(|c| {
            let life = c.lives.get_mut(&inc)?;
            life.alive = false;
            life.parked.clear();
            life.fuse.take()
        });
        drop(fuse);
        dying();
        let dead = self.with(|c| {
            let ids: Vec<TaskId> =
                c.tasks.iter().filter(|(_, s)| s.owner == inc).map(|(&id, _)| id).collect();
            ids.into_iter().filter_map(|id| c.tasks.remove(&id)).collect::<Vec<_>>()
        });
        drop(dead); // outside the lock: destructors wake others and may try to spawn
    }

    /// Adds a task. Dropped at once when its owner is dead.
    pub fn spawn(&self, owner: Incarnation, name: &'static str, future: BoxFuture<()>) {
        let (id, rejected) = self.with(|c| {
            if !c.lives.get(&owner).is_some_and(|l| l.alive) {
                return (None, Some(future));
            }
            c.ids += 1;
            let waker = Waker::from(Arc::new(TaskWaker { id: c.ids, ready: self.ready.clone() }));
            c.tasks.insert(c.ids, Slot { owner, name, future: Some(future), waker });
            (Some(c.ids), None)
        });
        drop(rejected);
        if let Some(id) = id {
            self.ready.lock().expect("no panic under this lock").push(id);
        }
    }

    /// Runs a future as a task of an incarnation. `None` when that dies first.
    pub async fn on<T: Send + 'static>(
        &self,
        inc: Incarnation,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.start(inc, name, future).await.ok()
    }

    /// Like [`Sim::on`], but runs beside the caller.
    pub fn start<T: Send + 'static>(
        &self,
        inc: Incarnation,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (send, receive) = oneshot::channel();
        self.spawn(
            inc,
            name,
            Box::pin(async move {
                let _ = send.send(future.await); // nobody may be waiting any more
            }),
        );
        receive
    }

    /// Waits.
    pub fn sleep(&self, time: Duration) -> Sleep {
        Sleep::until(self, self.now() + time)
    }

    /// Lets others run: for some polls, or some time, by chance.
    pub async fn dawdle(&self) {
        match self.range(0, 10) {
            0..4 => {}
            4..8 => self.sleep(Duration::ZERO).await,
            8 => self.sleep(self.time(Duration::from_micros(1), Duration::from_micros(500))).await,
            _ => self.sleep(self.time(Duration::from_micros(1), Duration::from_millis(20))).await,
        }
    }

    /// Gives a future a limit of virtual time: `None` when it is over.
    pub async fn limit<T>(&self, time: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut alarm = std::pin::pin!(self.sleep(time));
        tokio::select! {
            biased;
            out = &mut future => Some(out),
            () = &mut alarm => None,
        }
    }

    /// Runs the world's script to its end or to the first failure.
    pub fn run(&self, script: impl Future<Output = ()> + Send + 'static) -> Outcome {
        crate::trace::quietly(|| self.run_loudly(script))
    }

    fn run_loudly(&self, script: impl Future<Output = ()> + Send + 'static) -> Outcome {
        let mut done = self.start(WORLD, "script", script);
        let caught = |part: &mut dyn FnMut()| {
            // What panics in a task is caught there. A destructor may too: of a task that was killed, or of what is left of a failure.
            if catch_unwind(AssertUnwindSafe(part)).is_err() {
                self.fail(format!("panic outside of the tasks: {}", crate::trace::last_panic()));
            }
        };
        caught(&mut || {
            while matches!(done.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                if self.with(|c| c.failure.is_some()) {
                    break;
                }
                match self.next() {
                    Next::Poll(id) => self.poll(id),
                    Next::Advanced => {}
                    Next::Stuck => self.fail("hang: nothing can run and nothing is due"),
                }
            }
        });
        caught(&mut || self.bury_all());
        self.with(|c| Outcome {
            failure: c.failure.take(),
            history: c.trace.hash(),
            tail: c.trace.tail(),
            polls: c.polls,
            virtual_time: c.now,
        })
    }

    /// Drops what is left, so that tasks and the world do not keep each other alive.
    fn bury_all(&self) {
        let (tasks, fuses) = self.with(|c| {
            c.lives.values_mut().for_each(|l| l.alive = false);
            let fuses: Vec<_> = c.lives.values_mut().filter_map(|l| l.fuse.take()).collect();
            (std::mem::take(&mut c.tasks), fuses)
        });
        drop((tasks, fuses));
    }

    fn next(&self) -> Next {
        loop {
            let picked = self.with(|c| {
                let mut ready = self.ready.lock().expect("no panic under this lock");
                ready.settle();
                let count = ready.queue.len();
                if count == 0 {
                    return None;
                }
                let index = if c.shuffle > 0.0 && c.rng.random_bool(c.shuffle) {
                    c.rng.random_range(0..count)
                } else {
                    0
                };
                Some(ready.take(index))
            });
            let Some(id) = picked else { return self.advance() };
            let runnable = self.with(|c| {
                let Some(slot) = c.tasks.get(&id) else { return false };
                let life = c.lives.get_mut(&slot.owner).expect("tasks have a registered owner");
                if life.suspended {
                    life.parked.push(id);
                }
                !life.suspended
            });
            if runnable {
                return Next::Poll(id);
            }
        }
    }

    fn advance(&self) -> Next {
        let due = self.with(|c| {
            let (&(at, _), _) = c.timers.first_key_value()?;
            c.now = c.now.max(at);
            Some(c.take_due())
        });
        match due {
            Some(due) => {
                due.into_iter().for_each(Waker::wake);
                Next::Advanced
            }
            None => Next::Stuck,
        }
    }

    fn poll(&self, id: TaskId) {
        if let Some(fuse) = self.with(|c| c.burnt(id)) {
            fuse();
        }
        let Some((mut future, waker, name)) = self.with(|c| c.begin_poll(id)) else { return };
        let mut context = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        let (due, finished) = self.with(|c| {
            let finished = match &polled {
                Ok(Poll::Pending) => c.put_back(id, future).err(),
                _ => {
                    c.tasks.remove(&id);
                    Some(future)
                }
            };
            (c.take_due(), finished)
        });
        drop(finished);
        due.into_iter().for_each(Waker::wake);
        if polled.is_err() {
            self.fail(format!("panic in task {name}: {}", crate::trace::last_panic()));
        }
    }
}

impl Core {
    fn take_due(&mut self) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            due.push(entry.remove());
        }
        due
    }

    fn burnt(&mut self, id: TaskId) -> Option<Fuse> {
        let owner = self.tasks.get(&id)?.owner;
        let life = self.lives.get_mut(&owner).expect("tasks have a registered owner");
        let at = life.fuse.as_ref()?.0;
        if life.polls >= at { life.fuse.take().map(|(_, act)| act) } else { None }
    }

    fn begin_poll(&mut self, id: TaskId) -> Option<(BoxFuture<()>, Waker, &'static str)> {
        let slot = self.tasks.get_mut(&id)?;
        let future = slot.future.take().expect("a task is polled by nobody else");
        self.lives.get_mut(&slot.owner).expect("tasks have a registered owner").polls += 1;
        let out = (future, slot.waker.clone(), slot.name);
        self.polls += 1;
        if self.polls == POLLS_MAX {
            self.failure.get_or_insert(format!("hang: {POLLS_MAX} polls, last of task {}", out.2));
        }
        self.now += Duration::from_micros(self.rng.random_range(0..=POLL_MICROS_MAX));
        self.trace.mix(id);
        Some(out)
    }

    /// Gives the future back when the task was killed while it ran.
    fn put_back(&mut self, id: TaskId, future: BoxFuture<()>) -> Result<(), BoxFuture<()>> {
        match self.tasks.get_mut(&id) {
            Some(slot) => {
                slot.future = Some(future);
                Ok(())
            }
            None => Err(future),
        }
    }
}

#[cfg(test)]
mod tests;
