//! How clients are made to rest for a while.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// How often who waits looks whether everything is over.
const LOOK: Duration = Duration::from_millis(200);

/// A place where clients stop between two steps while somebody wants them to.
pub struct Still {
    clients: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_wanted: bool,
    resting: usize,
}

/// While it is there, the clients rest.
pub struct Resting<'a>(&'a Still);

impl Still {
    pub fn of(clients: usize) -> Still {
        Still { clients, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Called by a client where it may rest; returns when it may go on.
    pub fn pass(&self, over: &AtomicBool) {
        let mut state = self.state();
        if !state.is_wanted {
            return;
        }
        state.resting += 1;
        self.changed.notify_all();
        while state.is_wanted && !over.load(Relaxed) {
            state = self.changed.wait_timeout(state, LOOK).expect("nothing panics under this lock").0;
        }
        state.resting -= 1;
    }

    /// Waits until all clients rest, or everything is over.
    pub fn rest(&self, over: &AtomicBool) -> Resting<'_> {
        let mut state = self.state();
        state.is_wanted = true;
        while state.resting < self.clients && !over.load(Relaxed) {
            state = self.changed.wait_timeout(state, LOOK).expect("nothing panics under this lock").0;
        }
        Resting(self)
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.0.state().is_wanted = false;
        self.0.changed.notify_all();
    }
}
