//! Hosts that are copied with their disks: a restored backup, a cloned machine, one put back to a snapshot.
//!
//! Both have the journal and the name of the same writer, and only one history may go on: whoever comes back with
//! another one is refused, and keeps what it has; or it finds a prefix of what the last writer stored.

use std::{sync::Arc, time::Duration};

use cistern_engine::Error;

use super::{Damaged, Past, Session, World, rounds::Clients};
use crate::{
    client::Line,
    device::{Device, may_pass},
    disk::Death,
    model::{Branch, Scope},
};

impl World {
    /// The writer's host is copied, while it runs or when it is down. The original goes on and goes down; the copy is
    /// started, works and goes down; the original is started again.
    pub(super) async fn cloned(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        let original = session.host;
        let copy = self.free_host(original).expect("nobody else runs in this theme");
        self.renew(copy);
        let session = if self.sim.chance(0.5) {
            self.sim.sleep(Duration::from_millis(self.sim.range(0, 3000))).await;
            self.clone_host(original, copy);
            self.wait(clients).await;
            session
        } else {
            self.wait(clients).await;
            let (branch, _) = self.goes_down(&session).await;
            self.clone_host(original, copy);
            self.open(
                original,
                Past { branch, journal_on: Some(original), released: false, promised: 0, outlived: false },
            )
            .await?;
            self.work().await
        };
        let (branch, owes) = self.goes_down(&session).await;
        let Some(()) = self.comes_back(copy, branch.clone(), false).await? else {
            let past =
                Past { branch, journal_on: Some(original), released: false, promised: 0, outlived: false };
            return self.open(original, past).await;
        };
        let session = self.work().await;
        let (branch, _) = self.goes_down(&session).await;
        match self.comes_back(original, branch.clone(), owes).await? {
            Some(()) => Ok(()),
            None => {
                self.open(
                    copy,
                    Past { branch, journal_on: Some(copy), released: false, promised: 0, outlived: false },
                )
                .await
            }
        }
    }

    /// Clients of the writer work until they are done.
    async fn work(&mut self) -> Session {
        let session = self.writer.take().expect("it was just opened");
        let clients = self.start_clients(&session);
        self.wait(clients).await;
        session
    }

    /// Sometimes flushes, then ends a session. Gives its history, and whether its journal holds something flushed
    /// that is nowhere else.
    async fn goes_down(&mut self, session: &Session) -> (Branch, bool) {
        let mut owes = None;
        if self.sim.chance(0.7) {
            let flush = |device: Arc<dyn Device>, line: Arc<Line>| async move {
                let invoked = line.sim.tick();
                let flushed = device.flush().await.is_ok();
                if flushed {
                    line.flushed(invoked);
                }
                flushed && device.status().dirty_bytes > 0
            };
            owes = self.on_device(session, "flush", flush).await;
        }
        self.end(session, if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut });
        (session.line.branch(|b| b.clone()), owes == Some(true))
    }

    /// A host whose journal is not the last writer's is started. It finds a prefix of what that one stored, and is
    /// the writer: `Some`. Or it is refused, and keeps its journal if that `owes` something.
    async fn comes_back(
        &mut self,
        host: usize,
        mut branch: Branch,
        owes: bool,
    ) -> Result<Option<()>, Damaged> {
        branch.end_life(self.sim.tick());
        self.calm();
        loop {
            let inc = self.sim.incarnate();
            self.sim.note(format_args!("host {host}: comes back"));
            match self.try_open(host, inc, false).await {
                Some(Ok((device, found))) => {
                    self.hosts[host].busy = true;
                    let tick = self.sim.tick();
                    self.accept(&mut branch, &found, Scope::Store, 0, tick)?;
                    self.seat(host, inc, device, branch);
                    // What came out of its own journal may be nowhere else yet: now it is.
                    self.drained(self.writer()).await;
                    return Ok(Some(()));
                }
                Some(Err(error)) if may_pass(&error) => {
                    self.crash(host, inc, Death::Kill);
                    self.sim.sleep(Duration::from_secs(60)).await;
                }
                Some(Err(error @ (Error::InUse { .. } | Error::StaleJournal(_)))) => {
                    self.sim.note(format_args!("host {host}: is refused: {error}"));
                    self.crash(host, inc, Death::Kill);
                    if owes && !self.hosts[host].state.has_journal() {
                        self.sim
                            .fail(format!("P5: host {host} is refused, and its journal is deleted: {error}"));
                    }
                    return Ok(None);
                }
                other => {
                    let error = other.and_then(Result::err);
                    self.sim.fail(format!("P5: a host with another history gets {error:?}"));
                    return Err(Damaged);
                }
            }
        }
    }
}
