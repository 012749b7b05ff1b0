//! The engine's environment on a simulated host: its tasks die with the incarnation, its clock is
//! the world's, its random bytes come from the seed.

use std::{sync::Arc, time::Duration};

use cistern_engine::env::{BoxFuture, Env, Environment};

use crate::runtime::{Incarnation, Sim};

/// What one incarnation of a host sees.
pub struct SimEnv {
    sim: Sim,
    inc: Incarnation,
    /// Milliseconds by which this host's wall clock is wrong.
    wall_skew_ms: u64,
}

/// Milliseconds since 1970 at the beginning of the world's clock: some day in 2033.
const WALL_BASE_MS: u64 = 2_000_000_000_000;

impl SimEnv {
    /// The environment of an incarnation.
    pub fn of(sim: &Sim, inc: Incarnation) -> Env {
        let wall_skew_ms = sim.range(0, 600_000);
        Env::new(Arc::new(SimEnv { sim: sim.clone(), inc, wall_skew_ms }))
    }
}

impl Environment for SimEnv {
    fn now(&self) -> Duration {
        self.sim.now()
    }

    fn wall_ms(&self) -> u64 {
        WALL_BASE_MS + self.wall_skew_ms + self.sim.now().as_millis() as u64
    }

    fn random(&self, out: &mut [u8]) {
        self.sim.fill(out);
    }

    fn sleep(&self, time: Duration) -> BoxFuture<()> {
        Box::pin(self.sim.sleep(time))
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<()>) {
        self.sim.spawn(self.inc, name, task);
    }

    fn dedicated(&self, name: &'static str, task: BoxFuture<()>) {
        self.sim.spawn(self.inc, name, task);
    }

    fn blocking(&self, task: BoxFuture<()>) {
        let sim = self.sim.clone();
        self.sim.spawn(
            self.inc,
            "blocking",
            Box::pin(async move {
                sim.dawdle().await;
                task.await;
            }),
        );
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        let sim = self.sim.clone();
        self.sim.spawn(
            self.inc,
            "compute",
            Box::pin(async move {
                sim.dawdle().await;
                work();
            }),
        );
    }
}
