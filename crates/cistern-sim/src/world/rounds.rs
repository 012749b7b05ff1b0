//! The rounds of a run: clients work, then something happens, then somebody opens the volume again.

use std::{sync::Arc, time::Duration};

use cistern_engine::Error;
use tokio::sync::oneshot;

use super::{Damaged, PATIENCE, Past, Session, World};
use crate::{
    client,
    device::{Device, may_pass},
    disk::{Death, DiskFaults},
    plan::{Ending, Theme, Zombie},
    runtime::{Incarnation, Sim},
};

/// Requests that a store which is away may get: at its beginning, for each op of a client, and as time goes by.
const OUTAGE_REQUESTS_BASE: u64 = 100;
const OUTAGE_REQUESTS_PER_OP: u64 = 20;
const OUTAGE_REQUESTS_PER_SECOND: u64 = 1;

/// How long nothing happens until the superblock of the journal has followed.
const AT_REST: Duration = Duration::from_secs(5);

/// Clients at work; each is done when its receiver resolves.
pub(super) type Clients = Vec<oneshot::Receiver<()>>;

impl World {
    /// One round. Afterwards there is a writer again.
    pub(super) async fn round(&mut self) -> Result<(), Damaged> {
        let ending = self.plan.ending(&self.sim);
        self.sim.note(format_args!("this round ends with {ending:?}"));
        if self.sim.chance(0.7) {
            self.storm()
        } else {
            self.calm()
        }
        match self.plan.theme {
            Theme::Damage => self.damage(),
            Theme::BadCache => self.set_cache_faults(),
            Theme::Absent => self.hide_segments(),
            _ => {}
        }
        let session = self.writer.take().expect("there is a writer between rounds");
        let clients = self.start_clients(&session);
        match ending {
            Ending::PowerCut => self.crashing(session, clients, Death::PowerCut).await,
            Ending::Kill => self.crashing(session, clients, Death::Kill).await,
            Ending::LoseHost => self.losing(session, clients).await,
            Ending::Usurp(zombie) => self.usurping(session, clients, zombie).await,
            Ending::Close => self.closing(session, clients, PATIENCE).await,
            Ending::HastyClose => {
                self.closing(session, clients, Duration::from_millis(self.sim.range(0, 400))).await
            }
            Ending::GoOn => self.going_on(session, clients).await,
            Ending::Outage => self.outage(session, clients).await,
            Ending::DiskFails => self.disk_fails(session, clients).await,
            Ending::DiskFills => self.disk_fills(session, clients).await,
            Ending::Cloned => self.cloned(session, clients).await,
            Ending::Recreated => self.recreated(session, clients).await,
            Ending::RuleEnds => self.rule_ends(session, clients).await,
            Ending::RolledBack => self.rolled_back(session, clients).await,
            Ending::Rekeyed => self.rekeyed(session, clients).await,
            Ending::JournalRots => self.journal_rots(session, clients).await,
        }
    }

    pub(super) fn start_clients(&self, session: &Session) -> Clients {
        let device = session.device().expect("the writer is open");
        let client = |_| {
            let work = client::run(session.line.clone(), device.clone(), self.plan.ops);
            self.sim.start(session.inc, "client", work)
        };
        let mut clients: Clients = (0..self.plan.clients).map(client).collect();
        if self.plan.cleans() {
            let collection = client::collect(session.line.clone(), device.clone());
            clients.push(self.sim.start(session.inc, "collection", collection));
        }
        if self.plan.snapshots {
            let album = client::take_snapshots(session.line.clone(), device.clone());
            clients.push(self.sim.start(session.inc, "snapshots", album));
        }
        clients
    }

    /// Waits until all clients are done or dead; in the end with fine weather, which must suffice.
    pub(super) async fn wait(&self, clients: Clients) {
        let mut all = std::pin::pin!(futures_util::future::join_all(clients));
        if self.sim.limit(PATIENCE, &mut all).await.is_some() {
            return;
        }
        self.calm();
        if self.sim.limit(PATIENCE, &mut all).await.is_none() {
            self.sim.fail("hang: clients get no reply in fine weather");
        }
    }

    /// Lets clients work until some moment, which may come long after they are done.
    pub(super) async fn some_time(&self, clients: Clients) {
        let work = futures_util::future::join_all(clients);
        let limit = match self.sim.range(0, 3) {
            0 => Duration::from_millis(self.sim.range(1, 2000)),
            1 => Duration::from_secs(self.sim.range(1, 60)),
            _ => PATIENCE,
        };
        self.sim.limit(limit, work).await;
        if self.sim.chance(0.5) {
            // So old that the age bound must have worked.
            self.sim.sleep(Duration::from_secs(self.sim.range(1, 900))).await;
        }
    }

    /// The ticks before which everything acknowledged must be in the store if its host is lost now.
    fn promised_by_age(&self, session: &Session) -> u64 {
        let (age, now) = (self.plan.settings.dirty_age_max, self.sim.now());
        // Ten requests one after the other, twice: looks whether this is still the volume, an upload, a look again.
        let slow = Duration::from_secs(600).mul_f64(self.plan.faults.slow);
        let margin = 2 * age + Duration::from_secs(60) + slow;
        // A writer has the time from its opening on, a store that answers, and nobody who pauses it.
        let begin = self.store.troubled_at().max(session.since).max(session.line.held_until());
        let healthy = begin + 2 * margin < now && !self.damaged;
        if healthy { session.line.branch(|b| b.acknowledged_until(now - margin)) } else { 0 }
    }

    async fn crashing(&mut self, session: Session, clients: Clients, death: Death) -> Result<(), Damaged> {
        self.crash_after_polls(session.host, session.inc, self.draw_polls(self.plan.fuse_polls));
        self.some_time(clients).await;
        self.end(&session, death);
        let host = session.host;
        let branch = session.line.branch(|b| b.clone());
        self.open(host, Past { branch, journal_on: Some(host), released: false, promised: 0, outlived: true })
            .await
    }

    async fn losing(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        if self.sim.chance(0.5) {
            self.crash_after_polls(session.host, session.inc, self.draw_polls(self.plan.fuse_polls));
        }
        self.some_time(clients).await;
        // A host that died earlier has had no time to write back.
        let promised = if self.sim.is_alive(session.inc) { self.promised_by_age(&session) } else { 0 };
        self.end(&session, Death::PowerCut);
        self.renew(session.host);
        let host = self.free_host(usize::MAX).expect("the lost host is free at least");
        let branch = session.line.branch(|b| b.clone());
        self.open(host, Past { branch, journal_on: None, released: false, promised, outlived: false }).await
    }

    async fn usurping(&mut self, session: Session, clients: Clients, zombie: Zombie) -> Result<(), Damaged> {
        if self.sim.chance(0.5) {
            self.sim.sleep(Duration::from_millis(self.sim.range(1, 20_000))).await;
        }
        while self.free_host(session.host).is_none() {
            let oldest = self.zombies.remove(0);
            self.lay_to_rest(oldest).await;
        }
        let host = self.free_host(session.host).expect("made free just above");
        let promised = if zombie == Zombie::Busy { self.promised_by_age(&session) } else { 0 };
        session.line.excuse(|e| e.fenced = true);
        self.haunt(&session, zombie);
        self.take_over_from(&session, host, promised).await?;
        drop(clients); // they go on; nobody waits for them
        self.zombies.push(session);
        Ok(())
    }

    /// Makes a writer a zombie, and sees to it that it comes back some day.
    fn haunt(&self, session: &Session, zombie: Zombie) {
        let (sim, store) = (self.sim.clone(), self.store.clone());
        let (inc, host) = (session.inc, session.host);
        let back = Duration::from_secs(self.sim.range(1, 20) * self.sim.range(1, 5000));
        match zombie {
            Zombie::Busy => {}
            Zombie::Suspended => {
                sim.note(format_args!("host {host}: suspended for {back:?}"));
                sim.suspend(inc, true);
                self.later(back, move || resume(&sim, inc, host));
            }
            Zombie::CutOff => {
                store.set_cut_off(host, true);
                self.later(back, move || store.set_cut_off(host, false));
            }
        }
    }

    async fn take_over_from(&mut self, old: &Session, host: usize, promised: u64) -> Result<(), Damaged> {
        self.hosts[host].busy = true;
        self.album.lose_host();
        let (inc, device, found) = self.open_for_good(host, true).await?;
        let mut branch = old.line.branch(|b| b.clone());
        let tick = self.sim.tick();
        branch.end_life(tick);
        self.accept(&mut branch, &found, crate::model::Scope::Store, promised, tick)?;
        old.line.succeeded_by(found);
        self.seat(host, inc, device, branch);
        Ok(())
    }

    async fn closing(&mut self, session: Session, clients: Clients, limit: Duration) -> Result<(), Damaged> {
        if self.sim.chance(0.5) {
            self.wait(clients).await;
        } else {
            self.sim.sleep(Duration::from_millis(self.sim.range(0, 3000))).await;
        }
        session.line.excuse(|e| e.closing = true);
        let unhurried = limit == PATIENCE && self.sim.chance(0.7);
        if unhurried {
            self.calm();
        }
        if self.sim.chance(0.2) {
            self.crash_after_polls(session.host, session.inc, self.draw_polls(2000));
        }
        let begin = self.sim.now();
        let close = |device: Arc<dyn Device>, _| async move { device.close(limit).await };
        let report = self.on_device(&session, "close", close).await;
        self.sim.note(format_args!("closed: {report:?}"));
        let clean = report.as_ref().is_some_and(|r| r.clean);
        let paused = session.line.held_until() >= begin;
        if unhurried && !paused && report.as_ref().is_some_and(|r| !r.clean) && !self.damaged {
            self.sim.fail(format!("a close with plenty of time was not clean: {report:?}"));
        }
        if clean {
            session.line.committed(self.sim.tick());
        }
        self.end(&session, if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut });
        if report.is_some_and(|r| r.journal_bytes_left > 0) {
            self.refused_elsewhere(session.host).await;
        }
        self.reopen_after_close(session, clean).await
    }

    async fn reopen_after_close(&mut self, session: Session, clean: bool) -> Result<(), Damaged> {
        let branch = session.line.branch(|b| b.clone());
        let elsewhere = self.free_host(session.host).filter(|_| self.sim.chance(0.5));
        match elsewhere {
            Some(host) if clean => {
                self.renew(host);
                self.open(
                    host,
                    Past { branch, journal_on: None, released: true, promised: 0, outlived: false },
                )
                .await
            }
            _ => {
                let journal_on = Some(session.host);
                self.open(
                    session.host,
                    Past { branch, journal_on, released: false, promised: 0, outlived: true },
                )
                .await
            }
        }
    }

    async fn going_on(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        let reads = self.plan.theme != Theme::Absent && self.sim.chance(0.5);
        let reader = if reads { self.read_elsewhere(&session).await } else { Ok(()) };
        self.wait(clients).await;
        reader?;
        self.drained(&session).await;
        if self.plan.theme == Theme::Quota {
            self.discarding_leads_out(&session).await;
        }
        // What was acknowledged is in the store, whatever was out of sight meanwhile; to see that all must be in sight.
        self.store.objects(|o| o.show_all());
        self.read_elsewhere(&session).await?;
        self.look_at_snapshots(&session).await?;
        if self.plan.cleans() {
            // Long enough, now and then, for a sweep.
            self.sim.sleep(self.sim.time(Duration::ZERO, 4 * self.plan.settings.grace)).await;
            self.check_store(session.host).await;
        }
        self.refused(&session).await;
        if self.plan.sweeping {
            self.resized(&session).await;
        }
        self.writer = Some(session);
        Ok(())
    }

    async fn outage(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        self.sim.sleep(Duration::from_millis(self.sim.range(0, 2000))).await;
        self.store.set_away(true);
        let (begin, asked) = (self.sim.now(), self.store.requests());
        self.write_while_away(&session).await;
        let away = self.length_of_outage();
        let work = futures_util::future::join_all(clients);
        let mut work = std::pin::pin!(work);
        let done = self.sim.limit(away, &mut work).await.is_some();
        if done {
            self.sim.sleep((begin + away).saturating_sub(self.sim.now())).await;
        }
        self.no_storm(self.sim.now() - begin, self.store.requests() - asked);
        let full = self.plan.theme == Theme::TinyRing;
        let crash = self.sim.chance(0.4) || full;
        if full {
            // The journal's space comes back piece by piece, and is used again at once.
            self.store.set_away(false);
            self.crash_after_polls(session.host, session.inc, self.draw_polls(self.plan.fuse_polls));
            self.sim.limit(Duration::from_secs(self.sim.range(1, 300)), &mut work).await;
        }
        if crash {
            self.end(&session, Death::PowerCut);
        }
        self.store.set_away(false);
        if crash {
            let (host, branch) = (session.host, session.line.branch(|b| b.clone()));
            return self
                .open(
                    host,
                    Past { branch, journal_on: Some(host), released: false, promised: 0, outlived: false },
                )
                .await;
        }
        self.calm();
        if !done && self.sim.limit(PATIENCE, &mut work).await.is_none() {
            self.sim.fail("P9: clients get no reply after the store is back");
        }
        self.drained(&session).await;
        self.writer = Some(session);
        Ok(())
    }

    /// Seconds are as likely as hours; at most one and a half days.
    fn length_of_outage(&self) -> Duration {
        let order = self.sim.range(0, 17);
        self.sim.time(Duration::from_secs(1), Duration::from_secs(2) * (1 << order))
    }

    /// A store that is away is asked now and then, not all the time.
    fn no_storm(&self, time: Duration, requests: u64) {
        self.sim.note(format_args!("store: asked {requests} times while it was away for {time:?}"));
        let clients = self.plan.clients * self.plan.ops; // reads are asked for by somebody
        if requests
            > OUTAGE_REQUESTS_BASE
                + clients * OUTAGE_REQUESTS_PER_OP
                + time.as_secs() * OUTAGE_REQUESTS_PER_SECOND
        {
            self.sim.fail(format!("P9: {requests} requests to a store that is away for {time:?}"));
        }
    }

    async fn disk_fails(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        self.sim.sleep(Duration::from_millis(self.sim.range(0, 500))).await;
        session.line.excuse(|e| e.disk_failed = true);
        let sync = self.sim.chance(0.6);
        self.hosts[session.host].state.faults(|f| {
            f.fail_next_sync = sync;
            f.fail_next_write = !sync;
        });
        self.wait(clients).await;
        // The next thing that needs the disk meets the fault, if nothing has yet.
        self.flush(&session).await;
        self.stays_stopped(&session).await;
        let death = if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut };
        self.end(&session, death);
        let (host, branch) = (session.host, session.line.branch(|b| b.clone()));
        self.open(
            host,
            Past { branch, journal_on: Some(host), released: false, promised: 0, outlived: false },
        )
        .await
    }

    /// P9: the disk of the journal has no room for some time: nothing fails, and everything goes on when it has. Dies now and then
    /// before that: what was flushed is there, and a write that came to the disk in part is no damage.
    async fn disk_fills(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        self.sim.sleep(Duration::from_millis(self.sim.range(0, 500))).await;
        let state = self.hosts[session.host].state.clone();
        let no_space = [1.0, 0.7, 0.3][self.sim.range(0, 3) as usize];
        state.faults(|f| (f.no_space, f.full) = (no_space, true));
        let full_for = self.sim.time(Duration::from_millis(10), Duration::from_secs(60));
        let mut work = std::pin::pin!(futures_util::future::join_all(clients));
        let done = self.sim.limit(full_for, &mut work).await.is_some();
        let dies = self.sim.chance(0.4);
        if dies {
            let death = if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut };
            self.end(&session, death);
        }
        state.faults(|f| (f.no_space, f.full) = (0.0, false));
        if dies {
            let (host, branch) = (session.host, session.line.branch(|b| b.clone()));
            let past = Past { branch, journal_on: Some(host), released: false, promised: 0, outlived: true };
            return self.open(host, past).await;
        }
        self.calm();
        if !done && self.sim.limit(PATIENCE, &mut work).await.is_none() {
            self.sim.fail("P9: clients get no reply after the disk of the journal has room again");
        }
        self.flush(&session).await;
        self.sim.sleep(AT_REST).await;
        let act = |device: Arc<dyn Device>, line: Arc<client::Line>| async move {
            let status = device.status();
            if status.latched.is_some() || status.journal_waits.is_some() {
                line.sim.fail(format!("P9: a disk that was full has stopped the volume: {status:?}"));
            }
        };
        self.on_device(&session, "goes on", act).await;
        self.drained(&session).await;
        self.writer = Some(session);
        Ok(())
    }

    /// A flush, which may fail.
    async fn flush(&self, session: &Session) {
        self.on_device(session, "flush", |device, line| async move {
            let invoked = line.sim.tick();
            if device.flush().await.is_ok() {
                line.flushed(invoked);
            }
        })
        .await;
    }

    /// P8: what has met a failing disk says so and goes on saying so, in its state and to every write and flush.
    async fn stays_stopped(&self, session: &Session) {
        let state = self.hosts[session.host].state.clone();
        let act = move |device: Arc<dyn Device>, line: Arc<client::Line>| async move {
            if !state.fault_is_met() {
                return;
            }
            for _ in 0..3 {
                let wrote = device.write(0, bytes::Bytes::from(vec![0; 4096]), false).await;
                let flushed = device.flush().await;
                let latched = device.status().latched;
                line.sim
                    .note(format_args!("stopped: write {wrote:?}, flush {flushed:?}, status {latched:?}"));
                if wrote.is_ok() || flushed.is_ok() || latched.is_none_or(|why| why.is_empty()) {
                    line.sim.fail("P8: the disk has failed, and the volume does not stay stopped");
                }
                let pause = line.sim.time(Duration::ZERO, Duration::from_secs(60));
                line.sim.sleep(pause).await;
            }
        };
        self.on_device(session, "stopped", act).await;
    }

    /// A writer stops, or a host goes down at rest, and the journal loses bits of what it has synced. It is refused, again and
    /// again, or nothing is missing and all of it gets into the store; then it is given up.
    async fn journal_rots(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        self.wait(clients).await;
        self.rests_with_its_journal(&session).await;
        let host = session.host;
        for _ in 0..self.sim.range(1, 4) {
            self.hosts[host].state.rot();
        }
        let branch = session.line.branch(|b| b.clone());
        let mut refused = 0;
        while refused < 2 {
            let inc = self.sim.incarnate();
            let opened = self.open_and_drain(host, inc).await;
            self.crash(host, inc, Death::Kill);
            match opened {
                Some(Ok(())) => {
                    let past = Past {
                        branch,
                        journal_on: Some(host),
                        released: false,
                        promised: 0,
                        outlived: false,
                    };
                    return self.open(host, past).await;
                }
                // The store may be in the way before the journal is judged.
                Some(Err(error)) if may_pass(&error) => {
                    self.calm();
                    continue;
                }
                // What was stopped is opened by its headers, and what rotted shows where it is read or uploaded.
                Some(Err(error @ (Error::Corrupt { .. } | Error::Latched(_)))) => {
                    self.sim.note(format_args!("host {host}: refuses its journal: {error}"));
                    refused += 1;
                }
                other => {
                    let error = other.and_then(Result::err);
                    self.sim.fail(format!("P8: a journal that lost what it had synced gives {error:?}"));
                    return Err(Damaged);
                }
            }
        }
        self.hosts[host].state.wipe();
        self.open(host, Past { branch, journal_on: None, released: false, promised: 0, outlived: false })
            .await
    }

    /// Everything is durable, and then the writer's life ends: at rest, or with a stop that uploads nothing any more.
    async fn rests_with_its_journal(&mut self, session: &Session) {
        self.flush(session).await;
        if self.sim.chance(0.5) {
            session.line.excuse(|e| e.closing = true);
            let close = |device: Arc<dyn Device>, _| async move { device.close(Duration::ZERO).await };
            let report = self.on_device(session, "close", close).await;
            self.sim.note(format_args!("closed: {report:?}"));
        } else {
            // From then on a lost end is not a torn one.
            self.sim.sleep(AT_REST).await;
        }
        self.end(session, if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut });
    }

    /// Opens the volume, reads everything and brings everything into the store, in either order; then it rests.
    async fn open_and_drain(&self, host: usize, inc: Incarnation) -> Option<Result<(), Error>> {
        let (site, engine, settings) =
            (self.site(host, inc), self.engine.clone(), self.plan.settings.clone());
        let (sim, drained_first) = (self.sim.clone(), self.sim.chance(0.5));
        let all = async move {
            let device = engine.open(&site, &settings, false).await?;
            if drained_first {
                device.drain().await?;
            }
            client::observe(&sim, &*device, false, false).await?;
            device.drain().await?;
            sim.sleep(AT_REST).await;
            Ok(())
        };
        let all = self.sim.limit(PATIENCE, self.sim.on(inc, "open and drain", all)).await;
        if all.is_none() {
            self.sim.fail(format!("hang: host {host} has not brought its journal into the store"));
        }
        all.flatten()
    }

    /// The caches' disks fail now, or do not for a while.
    fn set_cache_faults(&self) {
        let faults =
            if self.sim.chance(0.8) { self.plan.cache_faults.clone() } else { DiskFaults::default() };
        for host in &self.hosts {
            host.cache.faults(|f| *f = DiskFaults { full: self.sim.chance(0.1), ..faults.clone() });
        }
    }

    /// Changes bytes somewhere; from now on reads may fail, but not lie.
    fn damage(&mut self) {
        self.damaged = true;
        self.writer().line.excuse(|e| e.damaged = true);
        let host = self.writer().host;
        for _ in 0..self.sim.range(0, 4) {
            match self.sim.range(0, 4) {
                0 => drop(self.hosts[host].cache.flip_somewhere()),
                1 => drop(self.hosts[host].state.flip_somewhere()),
                _ => {
                    let prefix = ["log/", "map/", "checkpoint/", "log/"][self.sim.range(0, 4) as usize];
                    let what = self.sim.draw(|rng| self.store.objects(|o| o.damage(prefix, rng)));
                    self.sim.note(format_args!("store: damage: {what:?}"));
                }
            }
        }
    }
}

impl World {
    /// Segments go out of sight now, and come back some time, at the latest before the volume is opened again.
    fn hide_segments(&mut self) {
        self.writer().line.excuse(|e| e.absent = true);
        let hidden = self.sim.draw(|rng| self.store.objects(|o| o.hide_segments(rng)));
        self.sim.note(format_args!("store: {hidden} segments are out of sight"));
        if self.sim.chance(0.5) {
            let store = self.store.clone();
            let back = Duration::from_millis(self.sim.range(100, 120_000));
            self.later(back, move || store.objects(|o| o.show_all()));
        }
    }
}

fn resume(sim: &Sim, inc: Incarnation, host: usize) {
    sim.note(format_args!("host {host}: resumed"));
    sim.suspend(inc, false);
}
