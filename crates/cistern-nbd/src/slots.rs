//! The places for connections: one count for those that are served, and a bounded set for those that have not
//! finished their negotiation, in which the oldest makes way for the newest.
//!
//! Of the unfinished ones the address with most of them loses its oldest: who opens many gets in his own way.
//! Never closes a connection that is served.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::task::AbortHandle;

/// The places of one server.
pub(crate) struct Slots {
    served_max: usize,
    unfinished_max: usize,
    /// Held for a few operations in memory.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    served: usize,
    /// In the order in which they came.
    unfinished: Vec<Unfinished>,
    ids: u64,
}

struct Unfinished {
    id: u64,
    /// `None`: a Unix socket.
    from: Option<IpAddr>,
    /// Set when the connection's task runs.
    task: Option<AbortHandle>,
}

/// A connection's place; it is free again when this is dropped.
pub(crate) struct Place {
    slots: Arc<Slots>,
    id: u64,
    is_served: bool,
}

impl Slots {
    pub(crate) fn new(served_max: usize, unfinished_max: usize) -> Arc<Slots> {
        debug_assert!(unfinished_max > 0);
        Arc::new(Slots { served_max, unfinished_max, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the places")
    }

    /// A place for a new connection; `None` while as many are served as may be. Where there are too many that have
    /// not finished, one of them ends.
    pub(crate) fn enter(self: &Arc<Slots>, from: Option<IpAddr>) -> Option<Place> {
        let mut state = self.state();
        if state.served >= self.served_max {
            return None;
        }
        let full = state.unfinished.len() >= self.unfinished_max;
        let ends = full.then(|| {
            let at = victim(state.unfinished.iter().map(|unfinished| unfinished.from));
            state.unfinished.remove(at)
        });
        state.ids += 1;
        let id = state.ids;
        state.unfinished.push(Unfinished { id, from, task: None });
        drop(state);
        if let Some(task) = ends.and_then(|unfinished| unfinished.task) {
            task.abort();
        }
        Some(Place { slots: self.clone(), id, is_served: false })
    }

    /// Says which task has the place, so that it can be ended.
    pub(crate) fn assign(&self, id: u64, task: AbortHandle) {
        if let Some(unfinished) = self.state().unfinished.iter_mut().find(|unfinished| unfinished.id == id) {
            unfinished.task = Some(task);
        }
    }
}

impl Place {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The negotiation is finished. False if as many are served as may be.
    pub(crate) fn serve(&mut self) -> bool {
        let mut state = self.slots.state();
        let Some(at) = state.unfinished.iter().position(|unfinished| unfinished.id == self.id) else {
            return false; // it had to make way just now
        };
        if state.served >= self.slots.served_max {
            return false;
        }
        state.unfinished.remove(at);
        state.served += 1;
        self.is_served = true;
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        match self.is_served {
            true => state.served -= 1,
            false => state.unfinished.retain(|unfinished| unfinished.id != self.id),
        }
    }
}

/// The oldest of the address that has most.
fn victim(addresses: impl Iterator<Item = Option<IpAddr>>) -> usize {
    let mut counts: HashMap<Option<IpAddr>, (usize, usize)> = HashMap::new();
    for (at, from) in addresses.enumerate() {
        counts.entry(from).or_insert((0, at)).0 += 1;
    }
    let most = counts.into_values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)));
    most.expect("only a full set has a victim").1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([127, 0, 0, last]))
    }

    /// Whoever opens many connections gets in his own way, and among equals the oldest goes.
    #[test]
    fn the_busiest_address_makes_way() {
        assert_eq!(victim([address(1), address(2), address(2), None].into_iter()), 1);
        assert_eq!(victim([None, address(2), address(3)].into_iter()), 0);
        assert_eq!(victim([address(1), None, None].into_iter()), 1);
    }

    /// Served and unfinished connections have counts of their own, and places become free again.
    #[test]
    fn places_come_back() {
        let slots = Slots::new(2, 2);
        let mut places: Vec<Place> = (0..5).map(|n| slots.enter(address(n)).expect("free")).collect();
        assert!(!places[0].serve() && !places[2].serve(), "they made way");
        assert!(places[3].serve() && places[4].serve());
        assert!(slots.enter(None).is_none(), "as many are served as may be");
        drop(places.pop());
        let mut late = slots.enter(None).expect("free again");
        assert!(late.serve());
        drop((places, late));
        let state = slots.state();
        assert_eq!((state.served, state.unfinished.len()), (0, 0));
    }
}
