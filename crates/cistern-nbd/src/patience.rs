//! How long a client may hold what others wait for without moving.
//!
//! Decides nothing about the connection: says when the time is over, as long as it is asked.

use std::{future::Future, pin::Pin, task::Context, time::Duration};

use tokio::time::{Sleep, sleep};

/// Looks at a client's progress in the time after which one without any may lose its connection.
const STALL_LOOKS: u32 = 8;

/// The time of one client. Any progress counts, however slow: a client on
/// a busy machine or a thin link never gets here.
pub(crate) struct Patience {
    look: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Looks since the last progress at which others waited.
    idle_looks: u32,
    /// Bytes came or left since the last look.
    pub(crate) moved: bool,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Patience {
        Patience {
            look: (limit / STALL_LOOKS).max(Duration::from_millis(1)),
            timer: None,
            idle_looks: 0,
            moved: false,
        }
    }

    /// Whether there was no progress for the whole time in which others waited. Wakes the task for each further look.
    pub(crate) fn is_over(&mut self, cx: &mut Context<'_>, others_wait: bool) -> bool {
        let look = self.look;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(look)));
        let mut looks = 0;
        while timer.as_mut().poll(cx).is_ready() {
            looks += 1;
            timer.set(sleep(look));
        }
        (0..looks).for_each(|_| self.note_look(others_wait));
        self.idle_looks > STALL_LOOKS
    }

    fn note_look(&mut self, others_wait: bool) {
        match (std::mem::take(&mut self.moved), others_wait) {
            (true, _) => self.idle_looks = 0,
            (false, true) => self.idle_looks = self.idle_looks.saturating_add(1),
            (false, false) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any progress begins the time anew, however slow; without it the time is over, and not before. Where nobody
    /// waits a client may think as long as it likes.
    #[test]
    fn progress_counts_not_speed() {
        let mut patience = Patience::new(Duration::from_secs(30));
        for look in 0..1000 {
            patience.moved = look % STALL_LOOKS == 0;
            patience.note_look(true);
            assert!(patience.idle_looks < STALL_LOOKS);
        }
        patience.moved = true;
        (0..1000).for_each(|_| patience.note_look(false));
        assert_eq!(patience.idle_looks, 0);
        patience.moved = true;
        (0..=STALL_LOOKS).for_each(|_| patience.note_look(true));
        assert_eq!(patience.idle_looks, STALL_LOOKS, "a whole limit since the last look that saw progress");
    }
}
