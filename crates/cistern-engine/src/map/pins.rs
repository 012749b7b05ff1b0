//! Pins: while one is held, what the map resolved to since stays in the store.
//!
//! Whoever looks something up and then reads it holds one from before the look. Who deletes waits until all are gone that were taken before it decided:
//! what it deletes the map does not resolve to any more, so later ones do not need it. Taking one is two atomic operations.
//!
//! Invariant: one at a time waits. Between its waits only one of the two counts is not zero for long, so a wait ends when those who are
//! pinned end, however many come.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use tokio::sync::Notify;

#[derive(Default)]
pub struct Pins {
    generation: AtomicU64,
    /// Those that were taken in even and in odd generations.
    counts: [AtomicU64; 2],
    gone: Notify,
    /// The generation that is waited for; still there if that was given up.
    waiting: tokio::sync::Mutex<Option<u64>>,
}

/// What was resolved since it was taken stays.
pub struct Pin {
    pins: Arc<Pins>,
    generation: u64,
}

impl Pins {
    fn count(&self, generation: u64) -> &AtomicU64 {
        &self.counts[(generation % 2) as usize]
    }

    pub fn pin(self: &Arc<Pins>) -> Pin {
        loop {
            let generation = self.generation.load(SeqCst);
            self.count(generation).fetch_add(1, SeqCst);
            let pin = Pin { pins: self.clone(), generation };
            if self.generation.load(SeqCst) == generation {
                return pin;
            }
        }
    }

    /// Returns when all are gone that were taken before.
    pub async fn passed(&self) {
        let mut waiting = self.waiting.lock().await;
        if let Some(given_up) = *waiting {
            self.drained(given_up).await;
        }
        let before = self.generation.fetch_add(1, SeqCst);
        *waiting = Some(before);
        self.drained(before).await;
        *waiting = None;
    }

    async fn drained(&self, generation: u64) {
        loop {
            let gone = self.gone.notified();
            if self.count(generation).load(SeqCst) == 0 {
                return;
            }
            gone.await;
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let left = self.pins.count(self.generation).fetch_sub(1, SeqCst) - 1;
        if left == 0 && self.pins.generation.load(SeqCst) != self.generation {
            self.pins.gone.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    /// A wait ends with the last pin that was taken before it, whatever is taken meanwhile.
    #[tokio::test]
    async fn a_wait_is_for_those_before_it() {
        let pins = Arc::<Pins>::default();
        pins.passed().await;
        for _ in 0..3 {
            let (first, second) = (pins.pin(), pins.pin());
            let mut wait = pin!(pins.passed());
            assert!(poll!(&mut wait).is_pending());
            let later = pins.pin();
            drop(first);
            assert!(poll!(&mut wait).is_pending());
            drop(second);
            assert!(poll!(&mut wait).is_ready());
            drop(later);
        }
    }

    /// Who waits behind a wait that was given up waits for those as well.
    #[tokio::test]
    async fn a_wait_that_is_given_up_is_made_up_for() {
        let pins = Arc::<Pins>::default();
        let first = pins.pin();
        assert!(poll!(pin!(pins.passed())).is_pending());
        let mut wait = pin!(pins.passed());
        assert!(poll!(&mut wait).is_pending());
        drop(first);
        assert!(poll!(&mut wait).is_ready());
    }
}
