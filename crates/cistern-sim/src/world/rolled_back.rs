//! A volume is rolled back to a snapshot, in any weather and through crashes: it goes on from there or from where it was, and what it
//! left is a snapshot.

use std::sync::Arc;

use cistern_engine::Error;

use super::{Damaged, Session, World, rounds::Clients};
use crate::{
    client::Line,
    device::{Device, may_pass},
    disk::Death,
    model::{Branch, Scope},
};

/// With what the volume may go on.
struct Candidate {
    what: &'static str,
    branch: Branch,
    scope: Scope,
    promised: u64,
}

impl World {
    pub(super) async fn rolled_back(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        self.wait(clients).await;
        self.drained(&session).await;
        self.look_at_snapshots(&session).await?;
        let names = session.device().map_or_else(Vec::new, |device| device.snapshots());
        if names.is_empty() || !self.sim.is_alive(session.inc) {
            self.writer = Some(session);
            return Ok(());
        }
        let to = names[self.sim.range(0, names.len() as u64) as usize].clone();
        let left = format!("left{}", session.line.number());
        self.sim.note(format_args!("the volume is rolled back to {to}, and leaves {left}"));
        self.unpause(&session).await;
        if self.sim.chance(0.5) {
            self.storm();
        }
        if self.sim.chance(0.5) {
            self.crash_after_polls(session.host, session.inc, self.draw_polls(3000));
        }
        let now = session.line.branch(|b| b.clone());
        self.album.leaves(&left, now.as_of(self.sim.tick(), self.sim.tick()), self.sim.tick());
        session.line.excuse(|e| e.closing = true);
        let roll_back = {
            let (to, left) = (to.clone(), left.clone());
            |device: Arc<dyn Device>, _: Arc<Line>| async move { device.roll_back(&to, &left).await }
        };
        let done = self.on_device(&session, "roll back", roll_back).await;
        self.sim.note(format_args!("rolled back: {done:?}"));
        match &done {
            Some(Ok(())) => self.album.is_stored(&left),
            Some(Err(error)) if !may_pass(error) && !matches!(error, Error::Closed) => {
                self.sim.fail(format!("a volume at rest is not rolled back: {error:?}"));
                return Err(Damaged);
            }
            _ => {}
        }
        self.end(&session, if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut });
        let (branch, invoked) = self.album.shown_by(&to);
        let to = Candidate { what: "the snapshot", branch, scope: Scope::Store, promised: invoked };
        let now = Candidate { what: "what was there", branch: now, scope: Scope::Journal, promised: 0 };
        let is_done = matches!(done, Some(Ok(())));
        let candidates = if is_done { vec![to] } else { vec![to, now] };
        self.open_one_of(session.host, is_done, candidates).await
    }

    async fn unpause(&self, session: &Session) {
        let act = |device: Arc<dyn Device>, line: Arc<Line>| async move { line.end_pauses(&*device).await };
        self.on_device(session, "end pauses", act).await;
    }

    /// Opens the volume, which shows one of these states.
    async fn open_one_of(
        &mut self,
        host: usize,
        is_released: bool,
        candidates: Vec<Candidate>,
    ) -> Result<(), Damaged> {
        let elsewhere = self.free_host(host).filter(|_| is_released && self.sim.chance(0.5));
        let host = elsewhere.unwrap_or(host);
        if elsewhere.is_some() {
            self.renew(host);
        }
        self.hosts[host].busy = true;
        let (inc, device, found) = self.open_for_good(host, false).await?;
        let tick = self.sim.tick();
        let mut whys = Vec::new();
        for Candidate { what, mut branch, scope, promised } in candidates {
            branch.end_life(tick);
            match branch.explain(&found, scope, promised) {
                Ok(cut) => {
                    self.sim.note(format_args!("the volume goes on with {what}, up to tick {cut}"));
                    branch.adopt(&found, scope, cut, tick);
                    self.seat(host, inc, device, branch);
                    return Ok(());
                }
                Err(why) => whys.push(format!("not {what}: {why}")),
            }
        }
        self.sim.fail(whys.join("; "));
        Err(Damaged)
    }
}
