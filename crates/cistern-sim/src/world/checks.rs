//! What the script looks at between and after the rounds: readers elsewhere, refusals, fenced
//! writers, kept journals, the committed state as a whole.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cistern_engine::Error;

use super::{Damaged, PATIENCE, Past, Session, World};
use crate::{
    client::{self, Line, check_status},
    device::{Device, Exported, Site, may_pass},
    disk::Death,
    model::{Branch, Forced, Kind, Observed, Scope},
    plan::Theme,
    runtime::Incarnation,
    stamp::{Seen, seen, stamped},
    store::LATE_MAX,
};

/// Virtual time within which a write and a flush are done while the store is away.
const LOCAL_PATIENCE: Duration = Duration::from_secs(300);

impl Line {
    /// Somebody took the volume over and found this.
    pub(super) fn succeeded_by(&self, found: Observed) {
        *self.successor.lock().expect("no panic under this lock") = Some(found);
        self.committed(0);
    }
}

/// Within so many graces two sweeps look twice each.
const LOOKS_WITHIN_GRACES: u32 = 200;
/// Checkpoints after which a run of the map is named, if no merge is due any more.
const CHECKPOINTS_MAX: usize = 20;

/// Writes some sectors, of one block or two, and returns whether that was acknowledged.
pub(super) async fn write_sectors(line: &Line, device: &dyn Device) -> bool {
    let size = line.branch(|b| b.size());
    let (op, tick) = (line.number(), line.sim.tick());
    let count = line.sim.range(1, 9);
    let first = line.sim.range(0, size - count + 1);
    line.branch(|b| b.begin(op, Kind::Write, first, count, tick));
    line.sim.note(format_args!("script: op {op} writes {first}+{count}"));
    let reply = device.write(first * 512, Bytes::from(stamped(op, first, count)), false).await;
    if reply.is_ok() {
        let (tick, now) = (line.sim.tick(), line.sim.now());
        line.branch(|b| b.acknowledge(op, Forced::No, tick, now));
    }
    reply.is_ok()
}

impl World {
    /// Drains in fine weather, which must succeed.
    pub(super) async fn drained(&self, session: &Session) {
        self.calm();
        let damaged = self.damaged;
        let act = |device: Arc<dyn Device>, line: Arc<Line>| async move {
            let invoked = line.sim.tick();
            match device.drain().await {
                Ok(()) => {
                    line.sim.note(format_args!("drained up to tick {invoked}"));
                    line.committed(invoked);
                    check_status(&line, &*device);
                    let status = device.status();
                    // Blocks that are partial are completed by writes of the volume's own.
                    if status.dirty_bytes > 0 && !status.partial_blocks {
                        line.sim.fail(format!("drained and idle, but not clean: {status:?}"));
                    }
                }
                Err(error) if damaged => line.sim.note(format_args!("drain fails: {error}")),
                Err(error) => line.sim.fail(format!("a drain fails in fine weather: {error:?}")),
            }
        };
        self.on_device(session, "drain", act).await;
    }

    /// Opens the volume read-only on another host while the writer goes on. Where much is deleted it shows the same state
    /// for a while: no longer than the grace, behind which it may find an object missing.
    pub(super) async fn read_elsewhere(&mut self, session: &Session) -> Result<(), Damaged> {
        let inc = self.sim.incarnate();
        let host = (session.host + 1) % self.hosts.len();
        let (site, engine, settings) =
            (self.site(host, inc), self.engine.clone(), self.plan.settings.clone());
        let (sim, line, damaged) = (self.sim.clone(), session.line.clone(), self.damaged);
        let heals = self.plan.heals();
        let (since, begin, grace) = (self.sim.tick(), self.sim.now(), settings.grace);
        let lingers = self.plan.cleans() && self.sim.chance(0.5);
        let promised = line.branch(|b| {
            b.hold();
            b.committed_until()
        });
        let open = async move {
            let device = engine.open_read_only(&site, &settings, None).await?;
            let mut branch = line.branch(|b| b.clone());
            branch.forget_promises(since);
            if lingers {
                sim.sleep(sim.time(Duration::ZERO, grace)).await;
            }
            Ok::<_, Error>((branch, client::observe(&sim, &*device, damaged, heals).await?))
        };
        let seen = self.sim.limit(PATIENCE, self.sim.on(inc, "reader", open)).await.flatten();
        session.line.branch(Branch::release);
        self.sim.kill(inc, || ());
        match seen {
            Some(Ok((mut branch, found))) => self.accept_reader(session, &mut branch, &found, promised),
            Some(Err(error)) if may_pass(&error) || damaged || self.was_on_its_way(&error) => {
                self.sim.note(format_args!("the reader fails: {error}"));
                Ok(())
            }
            // Where the disk has no room for more, what is overwritten goes whoever reads.
            Some(Err(Error::NotFound(what)))
                if self.sim.now() >= begin + grace || self.plan.theme == Theme::SmallDisk =>
            {
                self.sim.note(format_args!("a reader that was slower than the grace misses {what}"));
                Ok(())
            }
            other => {
                let error = other.and_then(Result::err);
                self.sim.fail(format!("a reader cannot read: {error:?}"));
                Err(Damaged)
            }
        }
    }

    /// P7: every snapshot that the volume lists, which is drained and idle, shows on another host what it must; and none is missing.
    pub(super) async fn look_at_snapshots(&mut self, session: &Session) -> Result<(), Damaged> {
        let names = session.device().map_or_else(Vec::new, |device| device.snapshots());
        if let Err(why) = self.album.listed(&names) {
            self.sim.fail(why);
            return Err(Damaged);
        }
        for name in names {
            let inc = self.sim.incarnate();
            let host = (session.host + 1) % self.hosts.len();
            let (site, engine, settings) =
                (self.site(host, inc), self.engine.clone(), self.plan.settings.clone());
            let (sim, damaged, heals, wanted) =
                (self.sim.clone(), self.damaged, self.plan.heals(), Some(name.clone()));
            let open = async move {
                let device = engine.open_read_only(&site, &settings, wanted).await?;
                client::observe(&sim, &*device, damaged, heals).await
            };
            let seen = self.sim.limit(PATIENCE, self.sim.on(inc, "snapshot", open)).await.flatten();
            self.sim.kill(inc, || ());
            match seen {
                Some(Ok(found)) => {
                    if let Err(why) = self.album.explain(&name, &found) {
                        self.sim.fail(why);
                        return Err(Damaged);
                    }
                }
                Some(Err(error)) if may_pass(&error) => {}
                other => {
                    self.sim.fail(format!(
                        "P7: snapshot {name} cannot be read: {:?}",
                        other.and_then(Result::err)
                    ));
                    return Err(Damaged);
                }
            }
        }
        Ok(())
    }

    fn accept_reader(
        &self,
        session: &Session,
        branch: &mut Branch,
        found: &Observed,
        promised: u64,
    ) -> Result<(), Damaged> {
        branch.end_life(self.sim.tick());
        match branch.explain(found, Scope::Store, promised) {
            Ok(cut) => {
                self.sim.note(format_args!("the reader sees a prefix up to tick {cut}"));
                session.line.branch(|b| b.confirm_committed(found, cut));
                Ok(())
            }
            Err(why) => {
                self.sim.fail(format!("a reader elsewhere: {why}"));
                Err(Damaged)
            }
        }
    }

    /// While a writer lives, nobody else opens the volume without being told to take over.
    pub(super) async fn refused(&mut self, session: &Session) {
        if self.sim.chance(0.3) {
            self.refused_on(session.host, session.host).await;
        } else {
            self.refused_elsewhere(session.host).await;
        }
    }

    /// What a writer has not stored, on a host that lives or is down, keeps the volume its own.
    pub(super) async fn refused_elsewhere(&mut self, writer: usize) {
        if let Some(host) = self.free_host(writer) {
            self.refused_on(host, writer).await;
        }
    }

    async fn refused_on(&mut self, host: usize, writer: usize) {
        if host != writer {
            self.forget_other_volume(host);
        }
        let inc = self.sim.incarnate();
        let (site, engine, settings) =
            (self.site(host, inc), self.engine.clone(), self.plan.settings.clone());
        let open = async move { engine.open(&site, &settings, false).await.map(|_| ()) };
        let opened = self.sim.limit(PATIENCE, self.sim.on(inc, "intruder", open)).await.flatten();
        self.sim.note(format_args!("an intruder on host {host}: {opened:?}"));
        let fine = match &opened {
            Some(Err(Error::Locked(_))) => host == writer,
            Some(Err(Error::InUse { .. } | Error::StaleJournal(_))) => host != writer,
            // Its claim may be out of sight.
            Some(Err(Error::Corrupt { .. })) if self.plan.theme == Theme::Absent => true,
            Some(Err(error)) => may_pass(error) || self.damaged || self.was_on_its_way(error),
            _ => false,
        };
        if !fine {
            self.sim.fail(format!("P5: an intruder on host {host} was not refused: {opened:?}"));
        }
        self.sim.kill(inc, || ());
    }

    /// Changes the size, flushed.
    pub(super) async fn resized(&self, session: &Session) {
        let (low, high) = (self.plan.settings.size_bytes / 1024, self.plan.size_max_bytes / 512);
        let sectors = self.sim.range(low.max(8), high + 1);
        let act = move |device: Arc<dyn Device>, line: Arc<Line>| async move {
            let (op, tick) = (line.number(), line.sim.tick());
            line.branch(|b| b.begin_resize(op, sectors, tick));
            line.sim.note(format_args!("script: op {op} resizes to {sectors} sectors"));
            let reply = device.resize(sectors * 512).await;
            if let Err(error) = reply {
                line.sim.note(format_args!("resize fails: {error}"));
                return Err(error);
            }
            let (end, now) = (line.sim.tick(), line.sim.now());
            line.branch(|b| b.acknowledge(op, Forced::No, end, now));
            let invoked = line.sim.tick();
            device.flush().await?;
            line.flushed(invoked);
            Ok(())
        };
        if let Some(Err(error)) = self.on_device(session, "resize", act).await
            && !may_pass(&error)
            && !self.damaged
        {
            self.sim.fail(format!("a resize fails: {error:?}"));
        }
    }

    /// P9: while the store is away, writes and local flushes go on.
    pub(super) async fn write_while_away(&self, session: &Session) {
        let Some(device) = session.device() else { return };
        let status = device.status();
        let room = status.journal_bytes / 4;
        let full = status.journal_used_bytes + room > status.journal_bytes
            || status.dirty_bytes + room > self.plan.settings.dirty_bytes_max;
        let begin = self.sim.tick();
        if full || !session.line.stays_local(begin) {
            return;
        }
        let act = |device: Arc<dyn Device>, line: Arc<Line>| async move {
            if !write_sectors(&line, &*device).await {
                line.sim.fail("P9: a write fails while the store is away");
            }
            let invoked = line.sim.tick();
            match device.flush().await {
                Ok(()) => line.flushed(invoked),
                Err(error) if line.stays_local(invoked) => {
                    line.sim.fail(format!("P9: a flush fails while the store is away: {error:?}"));
                }
                Err(error) => {
                    line.sim.note(format_args!("a flush that was to reach the store fails: {error}"))
                }
            }
        };
        let work = self.on_device(session, "write while away", act);
        let done = self.sim.limit(LOCAL_PATIENCE, work).await.is_some();
        if !done && !self.crowded(session) && session.line.stays_local(begin) {
            self.sim.fail(format!("P9: a write and a flush take {LOCAL_PATIENCE:?} while the store is away"));
        }
    }

    /// Whether clients have filled what may be dirty.
    fn crowded(&self, session: &Session) -> bool {
        session.device().is_none_or(|device| {
            let s = device.status();
            2 * s.journal_used_bytes > s.journal_bytes
                || 2 * s.dirty_bytes > self.plan.settings.dirty_bytes_max
        })
    }

    /// A fenced writer must notice, stay stopped and keep its journal; then its life ends.
    pub(super) async fn lay_to_rest(&mut self, zombie: Session) {
        self.sim.suspend(zombie.inc, false);
        self.store.set_cut_off(zombie.host, false);
        self.calm();
        let act = |device: Arc<dyn Device>, line: Arc<Line>| async move {
            line.end_pauses(&*device).await;
            let wrote = write_sectors(&line, &*device).await;
            let invoked = line.sim.tick();
            let flushed = device.flush().await.is_ok();
            if flushed {
                line.flushed(invoked);
            }
            let drained = device.drain().await;
            line.sim.note(format_args!("zombie: wrote={wrote} flushed={flushed} drained={drained:?}"));
            if drained.is_ok() && wrote {
                line.committed(invoked); // it cannot be in what the successor found
                line.sim.fail("P5: a fenced writer drains");
            }
            if device.write(0, Bytes::from(vec![0; 4096]), false).await.is_ok() {
                line.sim.fail("P5: a fenced writer that was in touch with the store acknowledges writes");
            }
            if device.status().latched.is_none() {
                line.sim.fail("P5: a fenced writer does not show that it has stopped");
            }
            wrote && flushed
        };
        let wrote = self.on_device(&zombie, "zombie", act).await;
        let host = zombie.host;
        self.end(&zombie, if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut });
        self.kept_journal(&zombie, wrote == Some(true)).await;
        self.renew(host);
    }

    /// The journal of a fenced writer is not replayed, and can be exported.
    async fn kept_journal(&self, zombie: &Session, dirty: bool) {
        let inc = self.sim.incarnate();
        let (site, engine, settings) =
            (self.site(zombie.host, inc), self.engine.clone(), self.plan.settings.clone());
        let act = async move {
            // Taking over would fence the rightful writer if the journal were not in the way.
            let opened = if dirty { engine.open(&site, &settings, true).await.err() } else { None };
            (opened, engine.export(&site, &settings).await)
        };
        let done = self.sim.limit(PATIENCE, self.sim.on(inc, "export", act)).await.flatten();
        self.sim.kill(inc, || ());
        let Some((opened, exported)) = done else {
            self.sim.fail("hang: a journal cannot be exported");
            return;
        };
        if dirty && !matches!(opened, Some(Error::StaleJournal(_))) {
            self.sim.fail(format!("P5: the journal of a fenced writer is not refused: {opened:?}"));
        }
        match exported {
            Ok(items) => self.check_export(zombie, items),
            Err(error) if self.damaged => self.sim.note(format_args!("export fails: {error}")),
            Err(error) => {
                self.sim.fail(format!("P5: the journal of a fenced writer cannot be exported: {error:?}"))
            }
        }
    }

    /// What was committed and the exported journal together hold all that was promised locally.
    fn check_export(&self, zombie: &Session, items: Vec<Exported>) {
        let successor = zombie.line.successor.lock().expect("no panic under this lock").clone();
        let Some(mut state) = successor else { return };
        for item in items {
            match item {
                Exported::Write { offset, data } => state.set(offset / 512, &seen(offset / 512, &data)),
                Exported::Zero { offset, len } => {
                    state.set(offset / 512, &vec![Seen::Zero; (len / 512) as usize])
                }
                Exported::Resize { size_bytes } => {
                    state.size = size_bytes / 512;
                    state.sectors.resize(state.size as usize, Seen::Zero);
                }
            }
        }
        let mut branch = zombie.line.branch(|b| b.clone());
        branch.end_life(self.sim.tick());
        if let Err(why) = branch.explain(&state, Scope::Journal, 0) {
            self.sim.fail(format!("P5: the kept journal lacks something: {why}"));
        }
    }

    /// All is well again: fenced writers notice, everything acknowledged gets into the store, and
    /// another host finds it.
    pub(super) async fn finale(&mut self) -> Result<(), Damaged> {
        self.sim.note(format_args!("finale"));
        self.store.set_away(false);
        self.plan.damage = 0.0;
        self.calm();
        for zombie in std::mem::take(&mut self.zombies) {
            self.lay_to_rest(zombie).await;
        }
        let session = self.writer.take().expect("there is a writer between rounds");
        if self.plan.heals() {
            self.healed(&session).await;
        }
        self.drained(&session).await;
        self.read_elsewhere(&session).await?;
        self.look_at_snapshots(&session).await?;
        self.check_store(0).await;
        if self.plan.cleans() {
            self.orphans_vanish(&session).await;
        }
        if self.plan.theme == Theme::Rekeyed {
            self.one_secret_holds(session.host).await;
        }
        let close = |device: Arc<dyn Device>, _| async move { device.close(PATIENCE).await };
        let report = self.on_device(&session, "close", close).await;
        if !report.as_ref().is_some_and(|r| r.clean) && !self.damaged {
            self.sim.fail(format!("the last close is not clean: {report:?}"));
        }
        self.end(&session, Death::PowerCut);
        if self.damaged {
            return Ok(());
        }
        session.line.committed(self.sim.tick());
        let others = (1..self.hosts.len()).map(|n| (session.host + n) % self.hosts.len());
        let host = others.into_iter().find(|host| !self.hosts[*host].busy).expect("all zombies are at rest");
        self.renew(host);
        let branch = session.line.branch(|b| b.clone());
        self.open(host, Past { branch, journal_on: None, released: true, promised: 0, outlived: false })
            .await?;
        self.check_store(0).await;
        Ok(())
    }

    /// P7, the other way round: what nobody needs goes, whatever crashed, was fenced or came late before.
    async fn orphans_vanish(&self, session: &Session) {
        let grace = self.plan.settings.grace;
        for quiet in [LATE_MAX, grace * LOOKS_WITHIN_GRACES] {
            self.sim.sleep(quiet).await;
            self.wrote(session).await;
        }
        // What a merge made since the newest checkpoint is not named yet: the next one names it.
        let mut left = Ok(u64::MAX);
        for _ in 0..CHECKPOINTS_MAX {
            self.sim.sleep(Duration::from_secs(60)).await;
            left = self.orphans(session.host).await;
            if matches!(left, Ok(0)) {
                return;
            }
            self.wrote(session).await;
        }
        self.sim.fail(format!("P7: orphans are left after a quiet time: {left:?}"));
    }

    async fn wrote(&self, session: &Session) {
        let act = |device: Arc<dyn Device>, line: Arc<Line>| async move {
            line.end_pauses(&*device).await;
            write_sectors(&line, &*device).await
        };
        self.on_device(session, "write in the quiet", act).await;
        self.drained(session).await;
    }

    async fn orphans(&self, host: usize) -> Result<u64, Error> {
        let inc = self.sim.incarnate();
        let (site, engine, settings) =
            (self.site(host, inc), self.engine.clone(), self.plan.settings.clone());
        let act = async move { engine.orphans(&site, &settings).await };
        let orphans = self.sim.limit(PATIENCE, self.sim.on(inc, "orphans", act)).await.flatten();
        self.sim.kill(inc, || ());
        orphans.unwrap_or(Ok(u64::MAX))
    }

    /// P6: replies come whole again. Everything can be read at once, whatever is cached of the time before.
    async fn healed(&self, session: &Session) {
        let act = |device: Arc<dyn Device>, line: Arc<Line>| async move {
            if let Err(error) = client::observe(&line.sim, &*device, false, false).await {
                line.sim.fail(format!("P6: the store is sound, but a read fails for good: {error:?}"));
            }
        };
        self.on_device(session, "heal", act).await;
    }

    /// Whether an error may stem from a reply that was damaged on its way: the next attempt meets others.
    pub(super) fn was_on_its_way(&self, error: &Error) -> bool {
        self.plan.damage > 0.0 && matches!(error, Error::Corrupt { .. } | Error::Version { .. })
    }

    /// P7: everything that the committed state names is there and sound.
    pub(super) async fn check_store(&self, host: usize) {
        self.check_site(|inc| self.site(host, inc)).await;
    }

    pub(super) async fn check_site(&self, site: impl FnOnce(Incarnation) -> Site) {
        let inc = self.sim.incarnate();
        let (site, engine, settings) = (site(inc), self.engine.clone(), self.plan.settings.clone());
        let act = async move { engine.check(&site, &settings).await };
        let report = self.sim.limit(PATIENCE, self.sim.on(inc, "check", act)).await.flatten();
        self.sim.kill(inc, || ());
        match report {
            Some(Ok(faults)) if faults.is_empty() || self.damaged => {}
            Some(Ok(faults)) => self.sim.fail(format!("P7: the store is not sound: {faults:?}")),
            Some(Err(error)) if self.damaged => self.sim.note(format_args!("check fails: {error}")),
            other => self.sim.fail(format!("the store cannot be checked: {other:?}")),
        }
    }
}

impl Observed {
    fn set(&mut self, first: u64, shown: &[Seen]) {
        for (sector, &seen) in (first..self.size).zip(shown) {
            self.sectors[sector as usize] = seen;
        }
    }
}
