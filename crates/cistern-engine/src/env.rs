//! The only door to clock, randomness, tasks and worker threads.
//!
//! Everything in the engine that waits, spawns, draws or asks the time does so through an
//! [`Environment`]. Production uses [`real::RealEnv`]; the simulator has its own, in which one
//! seed decides everything. A lint forbids the direct ways.
//!
//! Tasks have owners: dropping a [`Task`] does not stop it, awaiting it waits for its end, and every
//! long-lived task ends when its owner closes the channel it listens on.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::{oneshot, watch};

/// A boxed future without a borrowed environment.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// What the engine may ask of the world besides disk and store.
pub trait Environment: Send + Sync + 'static {
    /// Time since an arbitrary fixed point. Monotonic, and counts time spent suspended.
    fn now(&self) -> Duration;
    /// Milliseconds since 1970 by the wall clock. For people, and for names that two hosts derive alike; never for decisions.
    fn wall_ms(&self) -> u64;
    /// Fills `out` with cryptographically strong random bytes.
    fn random(&self, out: &mut [u8]);
    /// Waits.
    fn sleep(&self, time: Duration) -> BoxFuture<()>;
    /// Runs a task beside the caller.
    fn spawn(&self, name: &'static str, task: BoxFuture<()>);
    /// Runs a task on a thread of its own; it may block there on local IO.
    fn dedicated(&self, name: &'static str, task: BoxFuture<()>);
    /// Runs a task that may block on local IO, on a bounded pool of threads.
    fn blocking(&self, task: BoxFuture<()>);
    /// Runs a computation on a bounded pool of low-priority worker threads.
    fn compute(&self, work: Box<dyn FnOnce() + Send + 'static>);
    /// Which process this is.
    fn process(&self) -> ProcessIdentity {
        ProcessIdentity::default()
    }
    /// What became of another. Where processes are simulated, one whose lock is free has ended.
    fn fate_of(&self, _process: &ProcessIdentity) -> ProcessFate {
        ProcessFate::Ended
    }
}

/// A shared environment with conveniences on top of the narrow trait.
#[derive(Clone)]
pub struct Env {
    environment: Arc<dyn Environment>,
    /// How many tasks run that the end of the process is to wait for.
    parting: Arc<watch::Sender<usize>>,
}

/// Counts a task until it has ended, in whatever way.
struct Parting(Arc<watch::Sender<usize>>);

impl Parting {
    fn begin(count: &Arc<watch::Sender<usize>>) -> Parting {
        count.send_modify(|count| *count += 1);
        Parting(count.clone())
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A running task. As a future it gives the task's result, or `None` when the task was torn down
/// (its host died).
pub struct Task<T>(oneshot::Receiver<T>);

impl<T> Future for Task<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(context).map(Result::ok)
    }
}

impl Env {
    pub fn new(environment: Arc<dyn Environment>) -> Self {
        Self { environment, parting: Arc::new(watch::Sender::new(0)) }
    }
    pub fn now(&self) -> Duration {
        self.environment.now()
    }
    pub fn wall_ms(&self) -> u64 {
        self.environment.wall_ms()
    }
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.environment.random(&mut out);
        out
    }
    /// Which process this is.
    pub fn process(&self) -> ProcessIdentity {
        self.environment.process()
    }
    /// What became of another.
    pub fn fate_of(&self, process: &ProcessIdentity) -> ProcessFate {
        self.environment.fate_of(process)
    }
    /// A fresh random (version 4) identity.
    pub fn uuid(&self) -> uuid::Uuid {
        uuid::Builder::from_random_bytes(self.random_bytes()).into_uuid()
    }
    pub async fn sleep(&self, time: Duration) {
        self.environment.sleep(time).await;
    }
    /// Runs `future` and gives up after `limit`: `None`.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut alarm = self.environment.sleep(limit);
        tokio::select! {
            biased;
            out = &mut future => Some(out),
            () = &mut alarm => None,
        }
    }
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        let (send, receive) = oneshot::channel();
        self.environment.spawn(name, Box::pin(report(task, send)));
        Task(receive)
    }
    /// The same for a task that puts something right when it is told to end: [`parted`](Self::parted) waits for it.
    pub fn spawn_parting<T: Send + 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        let counted = Parting::begin(&self.parting);
        self.spawn(name, async move {
            let done = task.await;
            drop(counted);
            done
        })
    }
    /// Returns once no such task runs any more.
    pub async fn parted(&self) {
        let _ = self.parting.subscribe().wait_for(|count| *count == 0).await; // the sender is here
    }
    /// Runs a future as a task of its own and waits for it: what happens in between wakes that task and not the caller,
    /// whose thread may be another. It ends with the caller's wait. Pending for ever when the host dies, and panics when it did.
    pub async fn beside<T: Send + 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (mut send, receive) = oneshot::channel();
        let until_nobody_waits = async move {
            let ended = tokio::select! {
                biased;
                ended = AssertUnwindSafe(task).catch_unwind() => ended,
                () = send.closed() => return,
            };
            let _ = send.send(ended); // nobody may be waiting any more
        };
        self.environment.spawn(name, Box::pin(until_nobody_waits));
        outcome(receive).await
    }
    pub fn dedicated<T: Send + 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        let (send, receive) = oneshot::channel();
        self.environment.dedicated(name, Box::pin(report(task, send)));
        Task(receive)
    }
    /// Runs a future that may block on local IO. Ends for ever (pending) when the host dies, and panics when it did.
    pub async fn blocking<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> T {
        let (send, receive) = oneshot::channel();
        self.environment.blocking(Box::pin(report(AssertUnwindSafe(task).catch_unwind(), send)));
        outcome(receive).await
    }
    /// Runs a computation on the worker pool. Panics when it did: a worker goes on to the next, and whoever waits is not
    /// left waiting.
    pub async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, receive) = oneshot::channel();
        self.environment.compute(Box::new(move || {
            let _ = send.send(catch_unwind(AssertUnwindSafe(work)));
        }));
        outcome(receive).await
    }
}

/// What became of something that ran elsewhere. Its panic goes on here; what it broke is its owner's, as ever.
async fn outcome<T>(receive: oneshot::Receiver<std::thread::Result<T>>) -> T {
    match receive.await {
        Ok(Ok(out)) => out,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => std::future::pending().await, // its host died
    }
}

async fn report<T>(task: impl Future<Output = T>, send: oneshot::Sender<T>) {
    let out = task.await;
    let _ = send.send(out); // an owner that no longer waits is fine
}

mod pauses;
mod process;
pub mod real;
mod stop;

pub use pauses::Pauses;
pub(crate) use process::plain_host;
pub use process::{ProcessFate, ProcessIdentity};
pub use stop::{Running, Stop, StopOnDrop};

#[cfg(test)]
mod tests {
    use super::{real::RealEnv, *};

    /// What runs beside its caller ends when the caller no longer waits.
    #[tokio::test]
    async fn what_nobody_waits_for_ends() {
        let (env, (begun, has_begun), (held, has_ended)) =
            (RealEnv::start(), oneshot::channel(), oneshot::channel::<()>());
        let task = async move {
            let _held = held;
            let _ = begun.send(()); // the test waits for it
            std::future::pending::<()>().await;
        };
        let waits = env.beside("a task", task);
        tokio::select! {
            biased;
            () = waits => unreachable!("it has no end of its own"),
            begun = has_begun => begun.expect("it begins"),
        }
        assert!(has_ended.await.is_err(), "what it held is dropped");
    }

    /// A panic of what runs beside its caller goes on in the caller.
    #[tokio::test]
    async fn a_panic_beside_goes_on_here() {
        let env = RealEnv::start();
        let ended =
            AssertUnwindSafe(env.beside("a task", async { panic!("as planned") })).catch_unwind().await;
        assert_eq!(ended.expect_err("it panics").downcast_ref::<&str>(), Some(&"as planned"));
    }
}
