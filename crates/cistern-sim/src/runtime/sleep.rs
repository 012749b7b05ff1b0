//! Waiting for a moment of virtual time.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::Sim;

/// A wait for a moment of virtual time. Pends at least once.
pub struct Sleep {
    sim: Sim,
    deadline: Duration,
    key: Option<(Duration, u64)>,
}

impl Sleep {
    pub(super) fn until(sim: &Sim, deadline: Duration) -> Sleep {
        Sleep { sim: sim.clone(), deadline, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (old, deadline, sim) = (self.key.take(), self.deadline, self.sim.clone());
        self.key = sim.with(|c| {
            if let Some(old) = old {
                c.timers.remove(&old);
                if c.now >= deadline {
                    return None;
                }
            }
            c.ids += 1;
            let key = (deadline, c.ids);
            c.timers.insert(key, cx.waker().clone());
            Some(key)
        });
        if self.key.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.sim.with(|c| c.timers.remove(&key));
        }
    }
}
