//! The script of a run: hosts, one volume, and what happens to them.
//!
//! Owns the truth about who should be writing. At any time there is at most one **writer** by the
//! script's book; **zombies** are writers that were taken over and do not know it yet. After each
//! opening the whole volume is read and held against the branch of the writer before.

use std::{
    sync::{Arc, Mutex, atomic::AtomicU32},
    time::Duration,
};

use cistern_engine::{
    Error,
    disk::Disk,
    store::{SharedStore, Within},
};

use crate::{
    client::{self, Album, Excuses, Line, Modes},
    device::{Device, Engine, Site, may_pass},
    disk::{Death, SimDisk},
    env::SimEnv,
    model::{Branch, Observed, Scope},
    plan::{Plan, Theme},
    runtime::{Incarnation, Outcome, Sim, WORLD},
    store::{SimStore, StoreFaults},
};

mod backups;
mod checks;
mod cloned_volumes;
mod clones;
mod overwriting;
mod quota;
mod recreated;
mod rekeyed;
mod rolled_back;
mod rounds;

use backups::Backup;
use cloned_volumes::OtherVolume;
use quota::ROOM_BYTES_MAX;

/// Virtual time within which anything must be done when nothing is in its way.
const PATIENCE: Duration = Duration::from_secs(4 * 3600);
/// Openings that may fail for reasons that pass before the weather is made fine.
const STORMY_OPENINGS_MAX: u32 = 4;

/// A layer around a disk, a store or a device.
pub type Layer<T> = Arc<dyn Fn(T) -> T + Send + Sync>;

/// Layers that lie, for the proof that the checker notices; none in honest runs.
#[derive(Clone, Default)]
pub struct Lies {
    pub disk: Option<Layer<Arc<dyn Disk>>>,
    pub store: Option<Layer<SharedStore>>,
    pub device: Option<Layer<Arc<dyn Device>>>,
}

/// One run to be.
#[derive(Clone)]
pub struct Run {
    pub seed: u64,
    pub engine: Arc<dyn Engine>,
    /// Forces the kind of trouble.
    pub theme: Option<Theme>,
    pub lies: Lies,
    /// Prints events as they happen.
    pub live: bool,
}

impl Run {
    /// An honest run of a seed.
    pub fn of(seed: u64, engine: Arc<dyn Engine>) -> Run {
        Run { seed, engine, theme: None, lies: Lies::default(), live: false }
    }

    /// Runs the seed to its end or to the first broken promise.
    pub fn go(&self) -> Outcome {
        let sim = Sim::new(self.seed, self.live);
        let plan = Plan::draw(&sim, self.theme);
        sim.note(format_args!("seed {} {plan:?}", self.seed));
        let world = World::new(&sim, plan, self.engine.clone(), self.lies.clone());
        sim.run(world.play())
    }
}

struct Host {
    /// As it calls itself: a clone has the name of what it was cloned from.
    name: String,
    state: SimDisk,
    cache: SimDisk,
    busy: bool,
}

/// An open volume on a host.
struct Session {
    host: usize,
    inc: Incarnation,
    /// When the volume was opened.
    since: Duration,
    line: Arc<Line>,
    /// Taken when the incarnation dies, so that nothing outlives it.
    device: Arc<Mutex<Option<Arc<dyn Device>>>>,
}

impl Session {
    fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.lock().expect("no panic under this lock").clone()
    }
}

/// What the next opening has to go by.
struct Past {
    branch: Branch,
    /// The host whose journal is at hand; `None`: only the store is.
    journal_on: Option<usize>,
    /// The last writer released the volume.
    released: bool,
    /// Ticks before which everything acknowledged must be in the store by its age.
    promised: u64,
    /// Everything acknowledged must be there, unless more than a process has ended since.
    outlived: bool,
}

/// Why a run ends early without a broken promise.
struct Damaged;

struct World {
    sim: Sim,
    plan: Plan,
    engine: Arc<dyn Engine>,
    lies: Lies,
    store: SimStore,
    hosts: Vec<Host>,
    ops: Arc<AtomicU32>,
    album: Arc<Album>,
    /// Where the volume lies.
    place: &'static str,
    /// Of a run about clones: what the volume was cloned of.
    other: Option<OtherVolume>,
    /// Of a run about backups: where they go.
    backup: Option<Backup>,
    writer: Option<Session>,
    zombies: Vec<Session>,
    /// The number of the volume's secret, and of the newest that was tried.
    secret: u32,
    secrets: u32,
    damaged: bool,
}

impl World {
    fn new(sim: &Sim, plan: Plan, engine: Arc<dyn Engine>, lies: Lies) -> World {
        let host = |n: usize| Host {
            name: format!("host{n}"),
            state: SimDisk::new(sim, format!("host{n}/state")),
            cache: SimDisk::new(sim, format!("host{n}/cache")),
            busy: false,
        };
        World {
            sim: sim.clone(),
            store: SimStore::new(sim, plan.disk_bytes),
            hosts: (0..plan.hosts).map(host).collect(),
            secret: 0,
            secrets: 0,
            plan,
            engine,
            lies,
            ops: Arc::new(AtomicU32::new(1)),
            album: Arc::default(),
            place: "volume",
            other: None,
            backup: None,
            writer: None,
            zombies: Vec::new(),
            damaged: false,
        }
    }

    async fn play(mut self) {
        self.create().await;
        if self.plan.theme == Theme::Backups {
            self.create_backup().await;
        }
        for host in &self.hosts {
            host.state.faults(|f| f.slow_reads = self.plan.slow_reads);
        }
        let sectors = self.plan.settings.size_bytes / 512;
        let branch = Branch::new(sectors, self.plan.size_max_bytes / 512);
        let past = Past { branch, journal_on: None, released: true, promised: 0, outlived: false };
        let mut on = self.open(0, past).await;
        if on.is_ok() && self.plan.filled {
            self.fill().await;
        }
        if on.is_ok() && self.plan.theme == Theme::ClonedVolumes {
            on = self.clone_volume().await;
        }
        for round in 0..self.plan.rounds {
            if on.is_err() {
                break;
            }
            self.sim.note(format_args!("round {round}"));
            self.start_other_clients();
            self.start_errand();
            on = self.round().await;
            if on.is_ok() {
                on = self.end_errand().await;
            }
            if on.is_ok() && self.other.is_some() && self.sim.chance(0.5) {
                on = self.other_round().await;
            }
        }
        if on.is_ok() && self.other.is_some() {
            on = self.look_at_other().await;
        }
        if on.is_ok() {
            on = self.finale().await;
            self.check_backup().await;
        }
        if on.is_err() {
            self.sim.note(format_args!("the damage is found; nothing more to see"));
        }
    }

    /// Gives the map something to hold.
    async fn fill(&self) {
        let fill =
            |device: Arc<dyn Device>, line: Arc<Line>| async move { client::fill(&line, &*device).await };
        self.on_device(self.writer(), "fill", fill).await;
        self.drained(self.writer()).await;
    }

    /// What a request meets in any weather.
    fn climate(&self, weather: StoreFaults) -> StoreFaults {
        StoreFaults { damage: self.plan.damage, old_listing: self.plan.old_listing, ..weather }
    }

    /// Fine weather: no faults on the way to the store.
    fn calm(&self) {
        let late_max = self.plan.faults.late_max;
        self.store.set_faults(self.climate(StoreFaults { late_max, ..StoreFaults::default() }));
        self.store.set_room(None);
    }

    fn storm(&self) {
        self.store.set_faults(self.climate(self.plan.faults.clone()));
        if self.plan.theme == Theme::Quota {
            self.store.set_room(Some(self.sim.range(0, ROOM_BYTES_MAX)));
        }
    }

    fn site(&self, host: usize, inc: Incarnation) -> Site {
        self.site_at(self.place, host, inc)
    }

    fn site_at(&self, place: &'static str, host: usize, inc: Incarnation) -> Site {
        let lie_disk =
            |disk| self.lies.disk.as_ref().map_or_else(|| Arc::clone(&disk), |lie| lie(Arc::clone(&disk)));
        let store = self.store.from_host(host);
        let bucket = self.lies.store.as_ref().map_or_else(|| store.clone(), |lie| lie(store.clone()));
        Site {
            env: SimEnv::of(&self.sim, inc),
            place,
            store: Arc::new(Within::new(bucket.clone(), place)),
            bucket,
            state: lie_disk(self.hosts[host].state.mount(inc)),
            cache: lie_disk(self.hosts[host].cache.mount(inc)),
            host: self.hosts[host].name.clone(),
        }
    }

    /// A new machine takes the place of a host: empty disks, its own name.
    fn renew(&mut self, host: usize) {
        self.disks(host).iter().for_each(|d| d.wipe());
        self.hosts[host].name = format!("host{host}");
    }

    /// A host becomes a copy of another one as that is now: its disks, as a power cut would leave them, and its name.
    fn clone_host(&mut self, from: usize, to: usize) {
        assert!(!self.hosts[to].busy, "a copy is made onto a machine that is off");
        self.sim.note(format_args!("host {to} becomes a copy of host {from}"));
        for (from, to) in self.disks(from).iter().zip(self.disks(to)) {
            to.copy_of(from);
        }
        self.hosts[to].name = self.hosts[from].name.clone();
    }

    async fn create(&self) {
        let inc = self.sim.incarnate();
        let (site, engine, settings) = (self.site(0, inc), self.engine.clone(), self.plan.settings.clone());
        let create = async move { engine.create(&site, &settings).await };
        let done = self.sim.limit(PATIENCE, self.sim.on(inc, "create", create)).await;
        self.sim.note(format_args!("created: {done:?}"));
        if !matches!(done, Some(Some(Ok(())))) {
            self.sim.fail(format!("a volume cannot be created: {done:?}"));
        }
        self.sim.kill(inc, || ());
    }

    /// Opens the volume on a host and checks what it finds against the past.
    async fn open(&mut self, host: usize, past: Past) -> Result<(), Damaged> {
        assert!(!self.hosts[host].busy, "one life at a time");
        self.hosts[host].busy = true;
        if past.journal_on != Some(host) {
            self.forget_other_volume(host);
        }
        let take_over = past.journal_on != Some(host) && !past.released;
        let scope = if past.journal_on == Some(host) { Scope::Journal } else { Scope::Store };
        if scope == Scope::Store && !past.released {
            self.album.lose_host();
        }
        let mut branch = past.branch;
        branch.end_life(self.sim.tick());
        let (inc, device, found) = self.open_for_good(host, take_over).await?;
        let tick = self.sim.tick();
        let outlived = past.outlived && !self.damaged && self.hosts[host].state.has_all();
        let promised = if outlived { tick } else { past.promised };
        self.accept(&mut branch, &found, scope, promised, tick)?;
        self.seat(host, inc, device, branch);
        Ok(())
    }

    fn accept(
        &self,
        branch: &mut Branch,
        found: &Observed,
        scope: Scope,
        promised: u64,
        tick: u64,
    ) -> Result<(), Damaged> {
        match branch.explain(found, scope, promised) {
            Ok(cut) => {
                self.sim.note(format_args!("found a prefix up to tick {cut} ({scope:?})"));
                branch.adopt(found, scope, cut, tick);
                Ok(())
            }
            Err(why) => {
                self.sim.fail(why);
                Err(Damaged)
            }
        }
    }

    /// Makes an opened volume the writer.
    fn seat(&mut self, host: usize, inc: Incarnation, device: Arc<dyn Device>, branch: Branch) {
        assert!(self.writer.is_none(), "one writer at a time");
        self.hosts[host].state.forget_losses();
        let line = Line {
            sim: self.sim.clone(),
            plan: self.plan.clone(),
            branch: Mutex::new(branch),
            ops: self.ops.clone(),
            album: self.album.clone(),
            disk: self.hosts[host].state.clone(),
            successor: Mutex::new(None),
            modes: Mutex::new(Modes::new(self.plan.settings.mode)),
            excuses: Mutex::new(Excuses { damaged: self.damaged, ..Excuses::default() }),
        };
        let device = Arc::new(Mutex::new(Some(device)));
        let since = self.sim.now();
        self.writer = Some(Session { host, inc, since, line: Arc::new(line), device });
    }

    /// Opens, through crashes and bad weather, until it succeeds, and reads everything.
    async fn open_for_good(
        &mut self,
        host: usize,
        take_over: bool,
    ) -> Result<(Incarnation, Arc<dyn Device>, Observed), Damaged> {
        self.store.objects(|o| o.show_all());
        let mut crashes = if self.sim.chance(0.4) { self.sim.range(1, 4) } else { 0 };
        for attempt in 0.. {
            if attempt == STORMY_OPENINGS_MAX || self.sim.chance(0.4) {
                self.calm();
            }
            if attempt >= STORMY_OPENINGS_MAX && self.plan.heals() {
                // An opening has many replies to read, and one that is damaged fails it.
                self.store.set_faults(StoreFaults::default());
            }
            let inc = self.sim.incarnate();
            if crashes > 0 {
                crashes -= 1;
                self.crash_after_polls(host, inc, self.draw_polls(600));
            }
            if self.plan.theme == Theme::BadCache {
                self.spoil_cache(host);
            }
            self.sim.note(format_args!("host {host}: opens, take_over={take_over}"));
            let opened = self.try_open(host, inc, take_over).await;
            match opened {
                Some(Ok((device, found))) if self.sim.is_alive(inc) => {
                    self.sim.unburn(inc);
                    return Ok((inc, device, found));
                }
                Some(Err(error)) if self.sim.is_alive(inc) => {
                    self.sim.note(format_args!("host {host}: cannot open: {error}"));
                    self.crash(host, inc, Death::Kill);
                    // What was only damaged on its way is whole the next time.
                    // A writer that goes on while it is taken over may be faster than a slow claim, many times.
                    let outrun = take_over && matches!(error, Error::InUse { .. });
                    let passes = may_pass(&error) || outrun || (self.was_on_its_way(&error) && !self.damaged);
                    if self.damaged && !passes {
                        return Err(Damaged);
                    }
                    if !passes || attempt > 2 * STORMY_OPENINGS_MAX {
                        self.sim.fail(format!("host {host} cannot open the volume: {error:?}"));
                        return Err(Damaged);
                    }
                    self.sim.sleep(Duration::from_secs(self.sim.range(1, 120))).await;
                }
                _ => {} // it crashed
            }
        }
        unreachable!("the loop returns")
    }

    async fn try_open(
        &self,
        host: usize,
        inc: Incarnation,
        take_over: bool,
    ) -> Option<Result<(Arc<dyn Device>, Observed), Error>> {
        let (site, engine, settings) =
            (self.site(host, inc), self.engine.clone(), self.plan.settings.clone());
        let (sim, damaged, lies) = (self.sim.clone(), self.damaged, self.lies.clone());
        let heals = self.plan.heals();
        let open = async move {
            let device = engine.open(&site, &settings, take_over).await?;
            let device = lies.device.map_or_else(|| device.clone(), |lie| lie(device.clone()));
            let found = client::observe(&sim, &*device, damaged, heals).await?;
            Ok((device, found))
        };
        match self.sim.limit(PATIENCE, self.sim.on(inc, "open", open)).await {
            Some(opened) => opened,
            None => {
                self.sim.fail(format!("hang: host {host} has not opened the volume within {PATIENCE:?}"));
                None
            }
        }
    }

    /// Something happens to a cache while nobody uses it.
    fn spoil_cache(&self, host: usize) {
        let cache = &self.hosts[host].cache;
        match self.sim.range(0, 4) {
            0 => cache.spoil_some_file(),
            1 => (0..self.sim.range(1, 200)).for_each(|_| _ = cache.flip_somewhere()),
            _ => {}
        }
    }

    /// A number of polls, small ones as likely as large ones.
    fn draw_polls(&self, scale: u64) -> u64 {
        let high = 1 << self.sim.range(0, 6);
        self.sim.range(0, scale * high / 32 + 2)
    }

    fn crash_after_polls(&self, host: usize, inc: Incarnation, polls: u64) {
        self.fuse(host, inc, polls)();
    }

    /// What makes a life end so many polls after it is called.
    fn fuse(&self, host: usize, inc: Incarnation, polls: u64) -> impl Fn() + Send + Sync + 'static {
        let death = if self.sim.chance(0.6) { Death::PowerCut } else { Death::Kill };
        let (sim, disks) = (self.sim.clone(), self.disks(host));
        move || {
            let (then, disks) = (sim.clone(), disks.clone());
            sim.burn_after(inc, polls, move || crash_now(&then, &disks, host, inc, death));
        }
    }

    fn disks(&self, host: usize) -> [SimDisk; 2] {
        [self.hosts[host].state.clone(), self.hosts[host].cache.clone()]
    }

    fn crash(&self, host: usize, inc: Incarnation, death: Death) {
        crash_now(&self.sim, &self.disks(host), host, inc, death);
    }

    /// Ends a session's life and forgets its device.
    fn end(&mut self, session: &Session, death: Death) {
        self.crash(session.host, session.inc, death);
        session.device.lock().expect("no panic under this lock").take();
        session.line.branch(|b| b.end_life(self.sim.tick()));
        self.hosts[session.host].busy = false;
    }

    fn writer(&self) -> &Session {
        self.writer.as_ref().expect("there is a writer between rounds")
    }

    /// A host without a life, other than `not`.
    fn free_host(&self, not: usize) -> Option<usize> {
        let free: Vec<usize> = (0..self.hosts.len()).filter(|&h| !self.hosts[h].busy && h != not).collect();
        (!free.is_empty()).then(|| free[self.sim.range(0, free.len() as u64) as usize])
    }

    /// Runs something on the writer's device. `None` when its host dies first.
    async fn on_device<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        session: &Session,
        name: &'static str,
        act: impl FnOnce(Arc<dyn Device>, Arc<Line>) -> F,
    ) -> Option<T> {
        let device = session.device().filter(|_| self.sim.is_alive(session.inc))?;
        let act = self.sim.on(session.inc, name, act(device.clone(), session.line.clone()));
        match self.sim.limit(PATIENCE, act).await {
            Some(out) => out,
            None => {
                self.sim.note(format_args!("{}", device.symptoms()));
                self.sim.fail(format!("hang: {name} is not done within {PATIENCE:?}"));
                None
            }
        }
    }

    /// Does something later, whatever happens meanwhile.
    fn later(&self, time: Duration, act: impl FnOnce() + Send + 'static) {
        let sleep = self.sim.sleep(time);
        let act = async move {
            sleep.await;
            act();
        };
        self.sim.spawn(WORLD, "later", Box::pin(act));
    }
}

fn crash_now(sim: &Sim, disks: &[SimDisk], host: usize, inc: Incarnation, death: Death) {
    if sim.is_alive(inc) {
        sim.note(format_args!("host {host}: {death:?} after {} polls", sim.polls_of(inc)));
        sim.kill(inc, || disks.iter().for_each(|d| d.die(inc, death)));
    }
}
