//! The environment of production: tokio, the kernel's boot clock and random source, threads.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{BoxFuture, Env, Environment, ProcessFate, ProcessIdentity};

/// Nice value of the worker threads: foreground requests come first on a busy machine.
const WORKER_NICE: i32 = 10;
/// Jobs that may wait for a worker. Callers hold the memory of their job, so their own limits
/// bound this long before.
const WORKER_QUEUE_MAX: usize = 4096;

/// Time slice asked for by threads that mostly wait (100 us). The scheduler prefers short slices
/// when such a thread wakes up.
const SHORT_SLICE_NS: u64 = 100_000;

/// Asks the scheduler to run the calling thread soon after it wakes up, at the price of shorter
/// turns. Needs no privilege; older kernels (before 6.12) ignore it.
///
/// On a machine whose processors were all busy, a 4 KiB write with fdatasync took 4 ms without
/// (the waking thread had to wait for the next timer tick) and 42 us with it.
pub fn prefer_latency() {
    /// `struct sched_attr` of the kernel, version 0 (sched_setattr(2)).
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    let mut attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime_ns: SHORT_SLICE_NS,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: the first two have no memory effects; sched_setattr reads `attr`, whose size it is
    // told. All act on the calling thread; failure is harmless.
    unsafe {
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            return; // somebody has chosen another policy for this process
        }
        attr.nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
    }
}

/// Holds the calling thread, one that may block, as exactly as the kernel can. The runtime's timers are exact to a
/// millisecond.
#[allow(clippy::disallowed_methods)] // this is the door
pub fn hold_thread(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

/// Bytes drawn from the kernel at once: so many it gives whole, without being interrupted.
const KERNEL_DRAW_BYTES_MAX: usize = 256;

/// Clock, randomness and threads of the machine. Must be made inside a tokio runtime.
pub struct RealEnv {
    runtime: tokio::runtime::Handle,
    work: mpsc::SyncSender<Box<dyn FnOnce() + Send>>,
}

impl RealEnv {
    /// Starts the worker pool, one thread per processor.
    pub fn start() -> Env {
        let (work, queue) = mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(WORKER_QUEUE_MAX);
        let queue = Arc::new(Mutex::new(queue));
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
        for _ in 0..threads {
            let queue = queue.clone();
            std::thread::Builder::new()
                .name("worker".into())
                .spawn(move || run_worker(&queue))
                .expect("the system can start a thread");
        }
        Env::new(Arc::new(RealEnv { runtime: tokio::runtime::Handle::current(), work }))
    }
}

fn run_worker(queue: &Mutex<mpsc::Receiver<Box<dyn FnOnce() + Send>>>) {
    // SAFETY: setpriority on the calling thread has no memory effects; failure is harmless.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, WORKER_NICE) };
    loop {
        let job = queue.lock().expect("no worker panics while it holds the queue").recv();
        match job {
            Ok(job) => job(),
            Err(mpsc::RecvError) => return,
        }
    }
}

impl Environment for RealEnv {
    fn now(&self) -> Duration {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` is a valid timespec for the duration of the call.
        let rc = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut t) };
        assert_eq!(rc, 0, "CLOCK_BOOTTIME exists on every supported kernel");
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    }

    #[allow(clippy::disallowed_methods)]
    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }

    /// The library's generator lies in the memory of this process, and a machine cloned while it runs has it twice. It notices
    /// that on some platforms only; the kernel does wherever the hypervisor tells it. One of the two is enough.
    fn random(&self, out: &mut [u8]) {
        aws_lc_rs::rand::fill(out).expect("the system's random source works");
        for part in out.chunks_mut(KERNEL_DRAW_BYTES_MAX) {
            let mut drawn = [0; KERNEL_DRAW_BYTES_MAX];
            // SAFETY: `drawn` has room for as many bytes as are asked for.
            let count = unsafe { libc::getrandom(drawn.as_mut_ptr().cast(), part.len(), 0) };
            assert_eq!(usize::try_from(count), Ok(part.len()), "the kernel's random source works");
            part.iter_mut().zip(drawn).for_each(|(byte, more)| *byte ^= more);
        }
    }

    #[allow(clippy::disallowed_methods)] // this is the door
    fn sleep(&self, time: Duration) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep(time))
    }

    #[allow(clippy::disallowed_methods)]
    fn spawn(&self, _name: &'static str, task: BoxFuture<()>) {
        self.runtime.spawn(task);
    }

    /// The thread has timers of its own: setting one does not wake a thread of the shared runtime, which
    /// would compete for a processor with whoever waits for this one.
    #[allow(clippy::disallowed_methods)]
    fn dedicated(&self, name: &'static str, task: BoxFuture<()>) {
        let timers = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without sockets needs nothing of the system");
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                prefer_latency();
                timers.block_on(task)
            })
            .expect("the system can start a thread");
    }

    #[allow(clippy::disallowed_methods)]
    fn blocking(&self, task: BoxFuture<()>) {
        let runtime = self.runtime.clone();
        self.runtime.spawn_blocking(move || runtime.block_on(task));
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        self.work.send(work).expect("workers outlive the environment");
    }

    fn process(&self) -> ProcessIdentity {
        ProcessIdentity::this()
    }

    fn fate_of(&self, process: &ProcessIdentity) -> ProcessFate {
        ProcessIdentity::this().fate_of(process)
    }
}
