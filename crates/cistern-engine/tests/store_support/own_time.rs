//! Environments with a time of their own, and real threads.

#![allow(dead_code)] // each test binary uses a part

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use cistern_engine::env::{BoxFuture, Env, Environment, real::RealEnv};

/// The environment of production.
pub fn real_env() -> Env {
    RealEnv::start()
}

/// An environment with its own time, and real threads.
struct OwnTime {
    real: Env,
    /// `None`: the system's clock. Else the time in microseconds, which passes only when somebody
    /// waits, and then at once.
    jumps: Option<Arc<AtomicU64>>,
    /// How many times faster than the clock a wait is over.
    hurry: u32,
    /// By how many seconds it is later than the clock says.
    ahead_s: Arc<AtomicU64>,
    /// While it stands still, the time in microseconds; else 0.
    stands_at: Arc<AtomicU64>,
}

/// A clock that can be stopped. Waits go on.
pub struct StopClock {
    env: Env,
    stands_at: Arc<AtomicU64>,
}

impl StopClock {
    pub fn stop(&self) {
        self.stands_at.store(self.env.now().as_micros() as u64, Relaxed);
    }
    pub fn go_on(&self) {
        self.stands_at.store(0, Relaxed);
    }
}

/// An environment whose clock can be stopped.
pub fn env_to_stop() -> (Env, StopClock) {
    let (jumps, hurry, ahead_s) = (None, 1, Arc::default());
    let stands_at = Arc::new(AtomicU64::new(0));
    let env = OwnTime { real: real_env(), jumps, hurry, ahead_s, stands_at: stands_at.clone() };
    let env = Env::new(Arc::new(env));
    (env.clone(), StopClock { env, stands_at })
}

/// Time jumps: whatever is not ready when a timer is asked has lost against it.
pub fn jumping_env() -> Env {
    let jumps = Some(Arc::new(AtomicU64::new(1_000_000)));
    Env::new(Arc::new(OwnTime {
        real: real_env(),
        jumps,
        hurry: 1,
        ahead_s: Arc::default(),
        stands_at: Arc::default(),
    }))
}

/// Waits are over 200 times sooner: half a minute takes 150 ms.
pub fn hurried_env() -> Env {
    Env::new(Arc::new(OwnTime {
        real: real_env(),
        jumps: None,
        hurry: 200,
        ahead_s: Arc::default(),
        stands_at: Arc::default(),
    }))
}

/// It becomes later by seconds that the test adds.
pub fn env_put_forward() -> (Env, Arc<AtomicU64>) {
    let ahead_s = Arc::new(AtomicU64::new(0));
    let (real, stands_at) = (real_env(), Arc::default());
    let env = OwnTime { real, jumps: None, hurry: 1, ahead_s: ahead_s.clone(), stands_at };
    (Env::new(Arc::new(env)), ahead_s)
}

impl Environment for OwnTime {
    fn now(&self) -> Duration {
        match &self.jumps {
            Some(clock) => Duration::from_micros(clock.load(Relaxed)),
            None if self.stands_at.load(Relaxed) > 0 => Duration::from_micros(self.stands_at.load(Relaxed)),
            None => self.real.now() * self.hurry + Duration::from_secs(self.ahead_s.load(Relaxed)),
        }
    }
    fn wall_ms(&self) -> u64 {
        self.real.wall_ms()
    }
    fn random(&self, out: &mut [u8]) {
        out.iter_mut().for_each(|byte| *byte = self.real.random_bytes::<1>()[0]);
    }
    fn sleep(&self, time: Duration) -> BoxFuture<()> {
        match self.jumps.clone() {
            Some(clock) => Box::pin(async move { _ = clock.fetch_add(time.as_micros() as u64, Relaxed) }),
            None => {
                let (env, time) = (self.real.clone(), time / self.hurry);
                Box::pin(async move { env.sleep(time).await })
            }
        }
    }
    fn spawn(&self, name: &'static str, task: BoxFuture<()>) {
        drop(self.real.spawn(name, task));
    }
    fn dedicated(&self, name: &'static str, task: BoxFuture<()>) {
        drop(self.real.dedicated(name, task));
    }
    fn blocking(&self, task: BoxFuture<()>) {
        let env = self.real.clone();
        drop(self.real.spawn("blocking", async move { env.blocking(task).await }));
    }
    fn compute(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        let env = self.real.clone();
        drop(self.real.spawn("compute", async move { env.compute(work).await }));
    }
}
