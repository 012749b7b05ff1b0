//! `cargo xtask soak`: kill -9 of a daemon that cleans all the time, again and again, while two clients verify.
//!
//! One volume, 80 % in use, journal and cache small, the shortest grace, a tight bound: the cleaner always has work.
//! Each client has its own part of the volume (`clients`): one knows exactly what was promised, the other is fio. Some
//! kills hit the opening. With `--store s3` the store is a real S3 server whose requests fail now and then (`place`).
//!
//! A daemon that lives for less than a grace deletes nothing. So once the store has grown to `ROOM_BYTES`, the next
//! daemon lives until there is room again.
//!
//! Now and then a daemon makes a snapshot, and from the seventh on the oldest goes: the cleaner works beneath those that are left. One in
//! some of them is cloned first, and the clone stays when the snapshot goes. Behind one in some of them, while both clients rest, the
//! volume is rolled back to the oldest, perhaps killed in the middle of that, written, and rolled back to what it had left; then it is
//! flattened beside the load.
//!
//! With `--clients-stay` none of this: a client reconnects after each kill, sends nothing again that was answered, and looks for all of it
//! (`stays`). With `--two-mounts` no client writes but one, a little: two daemons start at once over one state directory (`twice`).
//!
//! At the end nobody writes for some graces, so that what crashes left behind is found and deleted. After a clean stop
//! another host without a local disk shows the same, every snapshot that was made and not removed is there, and `check --data --space` accounts for every object. Whatever is
//! missing, changed or not accounted for is a failure, and so is a daemon that ends or refuses by itself: then the
//! directory is kept. Everything that was started ends with this program, however that ends.

mod clients;
mod place;
mod stays;
mod still;
mod tally;
mod twice;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fixture::random_bytes,
    nbd::{Client, Dialect},
    scratch::{self, Scratch},
    serve::{Cistern, Serve, Server},
};
use clap::{Args, ValueEnum};

use self::{
    clients::{Fio, Promised},
    place::Place,
    still::Still,
    tally::Tally,
};
use crate::step;

/// A cold release build.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// The shortest that there is.
const GRACE: Duration = Duration::from_secs(10);
const VOLUME_MIB: u64 = 512;
/// What is in the store before a daemon may live until it is less by a quarter.
const ROOM_BYTES: u64 = 6 << 30;
const ROOM_LIMIT: Duration = Duration::from_secs(600);
/// So often a check may be cut short by a kill: on a slow machine nothing else would happen.
const UNSEEN_MAX: u32 = 3;
/// One in so many kills is followed by one of the opening.
const OPENINGS_PART: u64 = 8;
const OPENING_MAX: Duration = Duration::from_millis(400);
/// Of daemons that live for a second, those that make a snapshot; and snapshots that are kept.
const SNAPSHOTS_PART: f64 = 0.1;
const SNAPSHOTS_MAX: usize = 6;
/// One in so many of them is cloned, and so many clones are kept.
const CLONES_PART: u64 = 3;
const CLONES_MAX: usize = 2;
/// One in so many is followed by a rollback there and back; of these so many are killed in the middle.
const ROLLBACKS_PART: u64 = 4;
const KILLED_ROLLBACKS_PART: f64 = 0.5;
const ROLLBACK_MAX: Duration = Duration::from_millis(600);
/// What is written in between.
const BESIDE_BYTES: usize = 8 << 20;
/// Nobody writes for so many graces at the end: two looks of a sweep, two checkpoints, and the grace.
const REST_GRACES: u32 = 6;
const REST_LIMIT: Duration = Duration::from_secs(300);
/// What an idle volume leaves for the next writes to retire.
const REST_BYTES: u64 = 8 << 20;
/// How often something is said.
const SAID_EVERY: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct Options {
    /// How long the daemon is killed; some minutes of verification follow
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Mean time in seconds between a start and the next kill, which is equally likely at any moment
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    kill_every: u64,
    /// Where the volume lives
    #[arg(long, value_enum, default_value_t = Store::Directory)]
    store: Store,
    /// What is drawn: the same seed gives the same writes, times of kills and faults of the store
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead of all that: kills the daemon so often under a client that reconnects, and looks after each for what was acknowledged
    #[arg(long, value_name = "KILLS")]
    clients_stay: Option<u64>,
    /// Instead of all that: starts two daemons at once so often over one state directory that is mounted twice (sshfs, bindfs, mergerfs, gocryptfs)
    #[arg(long, value_name = "STARTS")]
    two_mounts: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    /// A directory
    Directory,
    /// MinIO, of whose requests 3 % fail: answered with 500 or 503, or cut off, before or after they took effect
    S3,
}

/// Kills for as long as was asked for, verifies, and prints the counts.
pub fn run(options: &Options) -> Result<()> {
    let build = step::cargo(&["build", "--release", "--locked", "-p", "cistern"]);
    step::run("release build", build, BUILD_LIMIT)?;
    let cistern = Cistern::new(scratch::target_dir()?.join("release/cistern"));
    let mut scratch = Scratch::new("soak")?;
    let outcome = match (options.clients_stay, options.two_mounts) {
        (Some(kills), _) => stays::run(kills, options.seed, &cistern, &scratch),
        (None, Some(starts)) => twice::run(starts, &cistern),
        (None, None) => soak(options, &cistern, &scratch),
    };
    if outcome.is_err() {
        scratch.keep();
        println!("everything is kept in {}", scratch.path().display());
    }
    outcome
}

fn soak(options: &Options, cistern: &Cistern, scratch: &Scratch) -> Result<()> {
    let size = format!("{VOLUME_MIB}M");
    let place = Place::start(options.store, options.seed, cistern, scratch, &size)?;
    let serve = place.cistern.serve(scratch, &place.url).args(arguments());
    let mut server = serve.start()?;
    let mut promised = Promised::new(server.socket(), options.seed);
    let mut fio = Fio::start(scratch, server.socket(), options.seed)?;
    let over = AtomicBool::new(false);
    let unseen = AtomicU32::new(0);
    let still = Still::of(2);
    let mut killer = Killer {
        serve,
        seed: options.seed,
        over: &over,
        unseen: &unseen,
        still: &still,
        snapshots: VecDeque::new(),
        clones: VecDeque::new(),
        tally: Tally::default(),
    };
    std::thread::scope(|scope| -> Result<()> {
        let exact = scope.spawn(|| promised.run(&over, &unseen, &still));
        let laps = scope.spawn(|| fio.run(&over, &still));
        let time = Duration::from_secs(options.minutes * 60);
        let killed = killer.run(&mut server, time, Duration::from_secs(options.kill_every), &place);
        over.store(true, Relaxed);
        // Without a daemon fio ends once it has asked in vain for long enough.
        let outcomes = [exact, laps].map(|client| client.join().expect("a client does not panic"));
        [killed].into_iter().chain(outcomes).collect()
    })?;
    killer.rest(&server)?;
    let tally = &mut killer.tally;
    server.stop().context("the clean stop")?;
    place.heal();
    let elsewhere =
        killer.serve.clone().state_dir(scratch.file("state-2")).cache_dir(scratch.file("cache-2"));
    let server = elsewhere.start()?;
    promised.verify_all()?;
    fio.verify_all(&server)?;
    server.stop()?;
    let made: BTreeSet<String> = killer.snapshots.iter().cloned().collect();
    let listed = tally::snapshots(&elsewhere, &place.url)?;
    let listed: BTreeSet<String> = listed.into_iter().filter(|name| !name.starts_with('~')).collect();
    ensure!(listed == made, "the snapshots are {listed:?}, and {made:?} were made and not removed");
    for clone in &killer.clones {
        tally::checked(&place.cistern, clone)?;
    }
    tally.report = tally::checked(&place.cistern, &place.url)?;
    tally.print(&promised, &fio, &place);
    Ok(())
}

/// Of the daemon.
fn arguments() -> Vec<String> {
    let grace = format!("{}s", GRACE.as_secs());
    [
        "--journal-size",
        "64M",
        "--cache-size",
        "64M",
        "--space-bound",
        "1.1",
        "--max-dirty-age",
        "2s",
        "--grace",
        &grace,
    ]
    .map(str::to_owned)
    .into()
}

/// Who starts daemons and kills them.
struct Killer<'a> {
    serve: Serve,
    seed: u64,
    over: &'a AtomicBool,
    /// Kills since the exact client saw everything.
    unseen: &'a AtomicU32,
    /// Makes the clients rest.
    still: &'a Still,
    /// Those that are there, oldest first.
    snapshots: VecDeque<String>,
    /// URLs of the clones that are there, oldest first.
    clones: VecDeque<String>,
    tally: Tally,
}

impl Killer<'_> {
    /// Kills until the time is over or a client found something.
    fn run(&mut self, server: &mut Server, time: Duration, every: Duration, place: &Place) -> Result<()> {
        let begin = Instant::now();
        let mut said = Duration::ZERO;
        while begin.elapsed() < time && !self.is_over() {
            let life = every.mul_f64(-(1.0 - self.draw()).ln());
            self.live(server, life, place)?;
            self.tally.end_of_life(server)?;
            server.kill_now();
            self.tally.kills += 1;
            self.unseen.fetch_add(1, Relaxed);
            if self.draw() < 1.0 / OPENINGS_PART as f64 {
                let after = OPENING_MAX.mul_f64(self.draw());
                self.serve.start_and_kill(after)?;
                self.tally.kills_of_openings += 1;
            }
            let begun = Instant::now();
            *server = self.serve.start()?;
            self.tally.restart_max = self.tally.restart_max.max(begun.elapsed());
            if begin.elapsed() > said + SAID_EVERY {
                said = begin.elapsed();
                println!("{}: {}", step::seconds(said), self.tally.short());
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Lets the daemon be for so long, until not too many kills went unseen, and until there is room.
    fn live(&mut self, server: &mut Server, life: Duration, place: &Place) -> Result<()> {
        const LOOK: Duration = Duration::from_millis(500);
        let none = (1.0 - SNAPSHOTS_PART).powf(life.as_secs_f64().max(1.0));
        if self.draw() >= none {
            self.take_snapshot(server, place)?;
        }
        server.stays_up(life)?;
        while self.unseen.load(Relaxed) >= UNSEEN_MAX && !self.is_over() {
            server.stays_up(LOOK)?;
        }
        if place.stored_bytes() <= ROOM_BYTES {
            return Ok(());
        }
        self.tally.long_lives += 1;
        let begin = Instant::now();
        while place.stored_bytes() > ROOM_BYTES / 4 * 3 && !self.is_over() {
            ensure!(begin.elapsed() < ROOM_LIMIT, "nothing is deleted in {}", step::seconds(ROOM_LIMIT));
            server.stays_up(LOOK)?;
        }
        Ok(())
    }

    /// Makes a snapshot, and removes the oldest when there are too many.
    fn take_snapshot(&mut self, server: &mut Server, place: &Place) -> Result<()> {
        let name = format!("s{}", self.tally.snapshots);
        server.ask(&["snapshot", &format!("{}@{name}", place.url)])?;
        if self.tally.snapshots.is_multiple_of(CLONES_PART) {
            self.clone(server, &format!("{}@{name}", place.url), place)?;
        }
        self.tally.snapshots += 1;
        self.snapshots.push_back(name);
        if self.snapshots.len() > SNAPSHOTS_MAX
            && let Some(oldest) = self.snapshots.pop_front()
        {
            server.ask(&["rm", &format!("{}@{oldest}", place.url)])?;
        }
        if self.tally.snapshots.is_multiple_of(ROLLBACKS_PART) {
            self.roll_back_and_forth(server, place)?;
        }
        Ok(())
    }

    /// Rolls back to the oldest snapshot and, when something was written there, to what was left.
    fn roll_back_and_forth(&mut self, server: &mut Server, place: &Place) -> Result<()> {
        let number = self.tally.rollbacks;
        self.tally.rollbacks += 1;
        let url = |name: &str| format!("{}@{name}", place.url);
        let (to, left) = (url(&self.snapshots[0]), format!("l{number}"));
        let there = ["rollback", &to, "--leave", &left, "--force"];
        let resting = self.still.rest(self.over);
        if self.draw() < KILLED_ROLLBACKS_PART {
            let after = ROLLBACK_MAX.mul_f64(self.draw());
            std::thread::scope(|scope| {
                let command = scope.spawn(|| self.serve.ask(&there));
                std::thread::sleep(after);
                server.kill_now();
                let _ = command.join().expect("it does not panic"); // it may have come to it or not
            });
            self.tally.kills += 1;
            self.unseen.fetch_add(1, Relaxed);
            *server = self.serve.start()?;
            if !tally::snapshots(&self.serve, &place.url)?.contains(&left) {
                return Ok(());
            }
        } else {
            server.ask(&there)?;
        }
        let mut client = Client::connect(server.socket(), "", Dialect::Simple)?;
        client.write(0, &random_bytes(BESIDE_BYTES, number))?;
        client.flush()?;
        client.close()?;
        server.ask(&["rollback", &url(&left), "--discard", "--force"])?;
        drop(resting);
        server.ask(&["rm", &url(&left)])?;
        server.ask(&["flatten", &place.url]).map(drop)
    }

    /// Clones a snapshot, and removes the oldest clone when there are too many, after looking at all of it.
    fn clone(&mut self, server: &Server, snapshot: &str, place: &Place) -> Result<()> {
        let url = format!("{}-{}", place.url, self.tally.clones);
        server.ask(&["clone", snapshot, &url])?;
        self.tally.clones += 1;
        self.clones.push_back(url);
        if self.clones.len() > CLONES_MAX
            && let Some(oldest) = self.clones.pop_front()
        {
            tally::checked(&place.cistern, &oldest)?;
            server.ask(&["rm", &oldest, "--now", "--yes"])?;
        }
        Ok(())
    }

    /// Waits until what is not needed any more is deleted.
    fn rest(&mut self, server: &Server) -> Result<()> {
        let begin = Instant::now();
        loop {
            std::thread::sleep(Duration::from_secs(1)); // nobody tells when it is so far
            let rested = begin.elapsed() > GRACE * REST_GRACES && tally::grace_bytes(server)? < REST_BYTES;
            if rested || begin.elapsed() > REST_LIMIT {
                return self.tally.end_of_life(server);
            }
        }
    }

    /// In [0, 1).
    fn draw(&mut self) -> f64 {
        self.seed = self.seed.wrapping_add(1);
        let drawn = random_bytes(16, self.seed);
        let number = u64::from_le_bytes(drawn[8..16].try_into().expect("eight bytes"));
        (number >> 11) as f64 / (1u64 << 53) as f64
    }
}
