//! Who goes on for whom among connections that outlive their server: what was under way on one is sent again on the next (`docs/format/nbd.md`,
//! "A connection that outlives the server").
//!
//! Invariant: before the first request of a connection is begun, everything of those before it to the same export has ended, and nothing
//! more of them is read. So no request that was sent again overwrites what was written behind its second copy.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use tokio::sync::watch;

/// The connections of a server, by export, each line in the order of coming.
#[derive(Default)]
pub(crate) struct Succession(Mutex<BTreeMap<String, Vec<Member>>>);

/// A connection, as those behind it see it.
#[derive(Clone)]
struct Member {
    cut: watch::Sender<bool>,
    /// Closed once it has ended.
    alive: watch::Receiver<()>,
}

/// The place of a connection in its line. Dropped when everything of it has ended.
pub(crate) struct Turn {
    cut: watch::Receiver<bool>,
    before: Vec<Member>,
    _alive: watch::Sender<()>,
}

impl Succession {
    /// A place behind all that are there.
    pub(crate) fn join(&self, export: &str) -> Turn {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(export.to_owned()).or_default();
        line.retain(|member| member.alive.has_changed().is_ok());
        let before = line.clone();
        let ((cut_by, cut), (alive, is_alive)) = (watch::channel(false), watch::channel(()));
        line.push(Member { cut: cut_by, alive: is_alive });
        Turn { cut, before, _alive: alive }
    }
}

impl Turn {
    /// Cuts off those before it, and waits for their end.
    pub(crate) async fn begin(&mut self) {
        for member in &self.before {
            member.cut.send_replace(true);
        }
        for mut member in self.before.drain(..) {
            while member.alive.changed().await.is_ok() {}
        }
    }

    /// Tells when somebody behind it has begun.
    pub(crate) fn cut(&self) -> watch::Receiver<bool> {
        self.cut.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Who begins waits for all before him, of the same export alone; who only waits in line hinders nobody.
    #[tokio::test]
    async fn one_after_another() {
        let lines = Succession::default();
        let (first, mut second, mut third) = (lines.join("a"), lines.join("a"), lines.join("a"));
        let mut other = lines.join("b");
        other.begin().now_or_never().expect("it is the only one");
        assert!(!*first.cut().borrow());
        assert!(second.begin().now_or_never().is_none());
        assert!(*first.cut().borrow() && !*third.cut().borrow());
        drop(first);
        // The future that was dropped above had taken nobody out of the line.
        let mut again = lines.join("a");
        drop(second);
        third.begin().now_or_never().expect("all before it have ended");
        assert!(again.begin().now_or_never().is_none());
        drop(third);
        let mut last = lines.join("a");
        drop(again);
        last.begin().now_or_never().expect("all have ended");
    }
}
