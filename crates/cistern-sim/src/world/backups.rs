//! A run whose snapshots are received into another volume, on a host of its own, while the one is written, cleaned and crashes. Whoever
//! receives crashes too, loses its disk, and gets streams that break. That volume shows one snapshot as a whole, whatever happens.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use cistern_engine::{Error, Result};
use tokio::sync::oneshot;

use super::{Damaged, PATIENCE, World};
use crate::{
    client,
    device::{Errand, may_pass},
    disk::Death,
    model::{Branch, Observed, Scope},
    runtime::Incarnation,
};

/// Where the other volume lies.
const BACKUP: &str = "backup";
/// Polls of the engine within which whoever receives often dies.
const FUSE_POLLS: u64 = 6000;
/// Polls of the engine within which it dies at the end: what was loaded is on its way there.
const END_POLLS: u64 = 400;

/// The other volume of a run, and who receives into it.
pub(super) struct Backup {
    host: usize,
    errand: Option<(Incarnation, oneshot::Receiver<Result<()>>)>,
    /// Its disk was lost since it opened the volume.
    is_new: bool,
    book: Arc<Mutex<Book>>,
}

/// What the other volume has to show.
#[derive(Default)]
struct Book {
    /// Those that were received and are in the store, the newest last.
    stored: Vec<String>,
    /// Those that may be there behind them.
    perhaps: Vec<String>,
}

impl World {
    /// Makes the other volume, on the last host, which does nothing else.
    pub(super) async fn create_backup(&mut self) {
        let host = self.hosts.len() - 1;
        self.hosts[host].busy = true;
        let inc = self.sim.incarnate();
        let (site, engine, settings) =
            (self.site_at(BACKUP, host, inc), self.engine.clone(), self.plan.settings.clone());
        let create = async move { engine.create(&site, &settings).await };
        let done = self.sim.limit(PATIENCE, self.sim.on(inc, "create", create)).await.flatten();
        if !matches!(done, Some(Ok(()))) {
            self.sim.fail(format!("a volume cannot be created: {done:?}"));
        }
        self.sim.kill(inc, || ());
        self.backup = Some(Backup { host, errand: None, is_new: false, book: Arc::default() });
    }

    /// Somebody receives a snapshot while a round goes on.
    pub(super) fn start_errand(&mut self) {
        let Some(mut backup) = self.backup.take() else { return };
        if self.sim.chance(0.15) {
            self.sim.note(format_args!("the host of the backup is lost"));
            self.renew(backup.host);
            backup.is_new = true;
        }
        let inc = self.sim.incarnate();
        let part = || self.sim.range(0, 1000) as f64 / 1000.0;
        let (ends, stored) = (backup.book.clone(), backup.book.clone());
        let at_its_end =
            self.sim.chance(0.25).then(|| self.fuse(backup.host, inc, self.draw_polls(END_POLLS)));
        let errand = Errand {
            which: part(),
            shares: self.sim.range(1, 4) as u32,
            cut: self.sim.chance(0.4).then(part),
            resumes: self.sim.chance(0.6),
            compares: self.sim.chance(0.3),
            take_over: backup.is_new,
            ends: Box::new(move |name| {
                open(&ends).perhaps.push(name.to_owned());
                if let Some(burn) = &at_its_end {
                    burn();
                }
            }),
            stored: Box::new(move |name| {
                let mut book = open(&stored);
                book.perhaps.clear();
                book.stored.push(name.to_owned());
            }),
        };
        let (from, to) = (self.site(backup.host, inc), self.site_at(BACKUP, backup.host, inc));
        let (engine, settings, sim) = (self.engine.clone(), self.plan.settings.clone(), self.sim.clone());
        let begin = self.sim.time(Duration::ZERO, Duration::from_secs(20));
        let work = async move {
            sim.sleep(begin).await;
            engine.back_up(&from, &to, &settings, &errand).await
        };
        if self.sim.chance(0.5) {
            self.crash_after_polls(backup.host, inc, self.draw_polls(FUSE_POLLS));
        }
        backup.errand = Some((inc, self.sim.start(inc, "backup", work)));
        self.backup = Some(backup);
    }

    /// Waits until that is done or dead, and looks what there is.
    pub(super) async fn end_errand(&mut self) -> Result<(), Damaged> {
        let Some(mut backup) = self.backup.take() else { return Ok(()) };
        self.calm();
        if let Some((inc, done)) = backup.errand.take() {
            match self.sim.limit(PATIENCE, done).await {
                Some(Ok(Ok(()))) => backup.is_new = false,
                // The store was away, or the snapshot or what it needs was given up meanwhile.
                Some(Ok(Err(error))) if may_pass(&error) || matches!(error, Error::NotFound(_)) => {
                    self.sim.note(format_args!("the backup fails: {error}"));
                }
                Some(Ok(Err(error))) => self.sim.fail(format!("a backup fails: {error:?}")),
                Some(Err(_)) => self.sim.note(format_args!("the backup crashed")),
                None => self.sim.fail("hang: a backup is not done in fine weather"),
            }
            self.crash(backup.host, inc, Death::Kill);
        }
        let looked = self.look_at_backup(&backup).await;
        self.backup = Some(backup);
        looked
    }

    async fn look_at_backup(&self, backup: &Backup) -> Result<(), Damaged> {
        let (head, names) = self.show_backup(backup.host, None).await?;
        let (stored, perhaps) = {
            let book = open(&backup.book);
            (book.stored.clone(), book.perhaps.clone())
        };
        if let Some(lost) = stored.iter().find(|name| !names.contains(name)) {
            self.sim.fail(format!("P10: snapshot {lost} was received and is lost"));
            return Err(Damaged);
        }
        let candidates: Vec<Option<&String>> =
            std::iter::once(stored.last()).chain(perhaps.iter().map(Some)).collect();
        let refuted = candidates.iter().map_while(|name| match name {
            Some(name) => self.album.explain(name, &head).err(),
            None => self.is_empty(&head).err(),
        });
        let why: Vec<String> = refuted.collect();
        if why.len() == candidates.len() {
            self.sim.fail(format!("P10: what is shown is none of {candidates:?} as a whole: {why:?}"));
            return Err(Damaged);
        }
        self.sim.note(format_args!("the backup shows {:?}", candidates[why.len()]));
        for name in names {
            let (found, _) = self.show_backup(backup.host, Some(name.clone())).await?;
            if let Err(why) = self.album.explain(&name, &found) {
                self.sim.fail(format!("P10: received {why}"));
                return Err(Damaged);
            }
        }
        Ok(())
    }

    fn is_empty(&self, found: &Observed) -> Result<(), String> {
        let (size, max) = (self.plan.settings.size_bytes, self.plan.size_max_bytes);
        Branch::new(size / 512, max / 512).explain(found, Scope::Store, 0).map(drop)
    }

    /// What the other volume shows to a reader, and its snapshots.
    async fn show_backup(
        &self,
        host: usize,
        name: Option<String>,
    ) -> Result<(Observed, Vec<String>), Damaged> {
        let inc = self.sim.incarnate();
        let (site, engine, settings) =
            (self.site_at(BACKUP, host, inc), self.engine.clone(), self.plan.settings.clone());
        let sim = self.sim.clone();
        let look = async move {
            let device = engine.open_read_only(&site, &settings, name).await?;
            Ok::<_, Error>((client::observe(&sim, &*device, false, false).await?, device.snapshots()))
        };
        let seen = self.sim.limit(PATIENCE, self.sim.on(inc, "look at backup", look)).await.flatten();
        self.sim.kill(inc, || ());
        match seen {
            Some(Ok(seen)) => Ok(seen),
            other => {
                let error = other.and_then(Result::err);
                self.sim.fail(format!("P10: the backup cannot be read: {error:?}"));
                Err(Damaged)
            }
        }
    }

    /// Nothing of the other volume in the store is unsound, at the end.
    pub(super) async fn check_backup(&self) {
        if let Some(backup) = &self.backup {
            self.check_site(|inc| self.site_at(BACKUP, backup.host, inc)).await;
        }
    }
}

fn open(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().expect("no panic under this lock")
}
