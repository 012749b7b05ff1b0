//! What a seed makes of a run: the volume, the weather, the length, the ways in which rounds end.
//!
//! Decided once, before anything runs, and printed with every failure.

use std::time::Duration;

use cistern_engine::{
    codec::{Compression, KeySource},
    journal::JOURNAL_BYTES_MIN,
    space::Bound,
    volume::Mode,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::{device::Settings, disk::DiskFaults, runtime::Sim, store::StoreFaults};

const MIB: u64 = 1 << 20;

/// What kind of trouble a run is about. Small faults of other kinds are mixed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Crashes of one host that keeps its disk.
    Crashes,
    /// Hosts are lost or fenced; volumes move.
    TakeOvers,
    /// The store is away for long.
    Outages,
    /// The local disk fails.
    BadDisk,
    /// The disk of the chunk cache fails, lies, and loses files: nobody may notice.
    BadCache,
    /// Bytes change, in the store and on the disk.
    Damage,
    /// Segments are out of sight for a time: a directory that is not mounted, a disk of a pool that is away.
    Absent,
    /// Nothing goes wrong.
    Calm,
    /// The smallest journal, always full: laps, and space that is used again at once.
    TinyRing,
    /// Hundreds of small segments over a map with much in it: merges of every kind.
    Merges,
    /// A volume that is overwritten again and again, cleaned all the time and rid of what it does not need at once.
    Cleaning,
    /// As `Cleaning`, in a store whose disk is full of garbage within a grace.
    SmallDisk,
    /// As `Cleaning`, in a store with a quota, which is used up now and then.
    Quota,
    /// As `Cleaning`, and clients make and remove snapshots.
    Snapshots,
    /// As `Snapshots`, in a store whose listings are up to 20 s old.
    OldListings,
    /// Several uploads are on their way at any time, slow and late, when their writer crashes or is fenced.
    Stragglers,
    /// The store is sound, single replies are damaged: nothing of it may last.
    BadReplies,
    /// The journal of a host that is down loses bits which it had synced.
    RottenJournal,
    /// Hosts are cloned, at rest or while they run, and original and copy are both started.
    Clones,
    /// As `Snapshots`, of a volume that is a clone of another one, which goes on too.
    ClonedVolumes,
    /// As `Snapshots`, and the volume is rolled back to them.
    RolledBack,
    /// As `TakeOvers`, in a store that ceases to keep what is there, and keeps it again.
    Overwriting,
    /// Volumes are removed and created again at their place while objects of before are still on their way.
    Recreated,
    /// The secret of an encrypted volume is changed, by requests that come late and twice.
    Rekeyed,
    /// Snapshots of the volume are received into another one, while it is written, cleaned and crashes; so does whoever receives.
    Backups,
}

impl Theme {
    pub const ALL: [Theme; 25] = [
        Theme::Crashes,
        Theme::TakeOvers,
        Theme::Outages,
        Theme::BadDisk,
        Theme::BadCache,
        Theme::Damage,
        Theme::Absent,
        Theme::Calm,
        Theme::TinyRing,
        Theme::Merges,
        Theme::Cleaning,
        Theme::SmallDisk,
        Theme::Quota,
        Theme::Snapshots,
        Theme::OldListings,
        Theme::Stragglers,
        Theme::BadReplies,
        Theme::RottenJournal,
        Theme::Clones,
        Theme::ClonedVolumes,
        Theme::RolledBack,
        Theme::Overwriting,
        Theme::Recreated,
        Theme::Rekeyed,
        Theme::Backups,
    ];

    /// The name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Theme::Crashes => "crashes",
            Theme::TakeOvers => "take-overs",
            Theme::Outages => "outages",
            Theme::BadDisk => "bad-disk",
            Theme::BadCache => "bad-cache",
            Theme::Damage => "damage",
            Theme::Absent => "absent",
            Theme::Calm => "calm",
            Theme::TinyRing => "tiny-ring",
            Theme::Merges => "merges",
            Theme::Cleaning => "cleaning",
            Theme::SmallDisk => "small-disk",
            Theme::Quota => "quota",
            Theme::Snapshots => "snapshots",
            Theme::OldListings => "old-listings",
            Theme::Stragglers => "stragglers",
            Theme::BadReplies => "bad-replies",
            Theme::RottenJournal => "rotten-journal",
            Theme::Clones => "clones",
            Theme::ClonedVolumes => "cloned-volumes",
            Theme::RolledBack => "rolled-back",
            Theme::Overwriting => "overwriting",
            Theme::Recreated => "recreated",
            Theme::Rekeyed => "rekeyed",
            Theme::Backups => "backups",
        }
    }
}

/// How a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    PowerCut,
    Kill,
    /// The host and its disk are gone; another one takes over.
    LoseHost,
    /// Another host takes over while the old writer goes on.
    Usurp(Zombie),
    /// Close; opened from an empty disk elsewhere when that was clean.
    Close,
    /// Close with too little time; opened again on the same host.
    HastyClose,
    /// Drain, look around, go on with the same writer.
    GoOn,
    /// The store goes away; clients go on as far as the journal takes them.
    Outage,
    /// A sync or a write of the local disk fails.
    DiskFails,
    /// The local disk has no room for what is written to it, and then has some again.
    DiskFills,
    /// The host goes down, and bits of what its journal has synced are lost.
    JournalRots,
    /// The host is copied; the original goes on, then the copy, then the original again.
    Cloned,
    /// The volume is rolled back to one of its snapshots.
    RolledBack,
    /// The store begins to overwrite, and the writer stops; then the store keeps the rule again.
    RuleEnds,
    /// The host goes down, the volume is removed, and another one is created in its place.
    Recreated,
    /// The secret is changed, and the host goes down.
    Rekeyed,
}

/// What the old writer does while it is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zombie {
    /// It writes on.
    Busy,
    /// It is suspended, and wakes up later.
    Suspended,
    /// It does not reach the store.
    CutOff,
}

/// A run's parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    pub theme: Theme,
    pub settings: Settings,
    pub size_max_bytes: u64,
    pub hosts: usize,
    pub rounds: u64,
    pub clients: u64,
    pub ops: u64,
    /// Mean pause of a client between two ops.
    pub pause: Duration,
    pub write_bytes_max: u64,
    /// Polls of the engine within which a life often ends.
    pub fuse_polls: u64,
    /// Before the rounds every other block is written, so that the map has as many mappings.
    pub filled: bool,
    /// Trims of the whole volume and resizes happen.
    pub sweeping: bool,
    /// Clients make and remove snapshots.
    pub snapshots: bool,
    /// Clients switch the mode and the rates, and pause the uploads, while others work.
    pub switching: bool,
    pub faults: StoreFaults,
    /// Of the store, if its disk has an end.
    pub disk_bytes: Option<u64>,
    /// Chance that bytes of a store's reply are damaged.
    pub damage: f64,
    /// Chance that a listing is old.
    pub old_listing: f64,
    /// What is wrong with the disks of the chunk caches.
    pub cache_faults: DiskFaults,
    /// Chance that a read of a journal takes seconds.
    pub slow_reads: f64,
}

impl Plan {
    /// Draws a plan. `theme` forces the kind of trouble.
    pub fn draw(sim: &Sim, theme: Option<Theme>) -> Plan {
        sim.draw(|rng| Plan::from(rng, theme))
    }

    fn from(rng: &mut ChaCha8Rng, theme: Option<Theme>) -> Plan {
        let drawn = match rng.random_range(0..32) {
            0..7 => Theme::Crashes,
            7..13 => Theme::TakeOvers,
            13..15 => Theme::Outages,
            15..17 => Theme::BadDisk,
            17..19 => Theme::BadCache,
            19..21 => Theme::Damage,
            21..23 => Theme::TinyRing,
            23 if rng.random_bool(0.5) => Theme::Merges,
            23 if rng.random_bool(0.5) => Theme::Cleaning,
            23 if rng.random_bool(0.5) => Theme::Snapshots,
            23 if rng.random_bool(0.5) => Theme::ClonedVolumes,
            23 if rng.random_bool(0.5) => Theme::RolledBack,
            23 if rng.random_bool(0.5) => Theme::Quota,
            23 if rng.random_bool(0.5) => Theme::OldListings,
            23 => Theme::Backups,
            24..26 => Theme::Stragglers,
            26..28 => Theme::BadReplies,
            28 => Theme::RottenJournal,
            29 => Theme::Clones,
            30 if rng.random_bool(0.5) => Theme::Overwriting,
            30 => Theme::Recreated,
            _ if rng.random_bool(0.5) => Theme::Rekeyed,
            _ if rng.random_bool(0.5) => Theme::SmallDisk,
            _ if rng.random_bool(0.5) => Theme::Absent,
            _ => Theme::Calm,
        };
        let theme = theme.unwrap_or(drawn);
        let settings = draw_settings(rng, theme);
        let size = settings.size_bytes;
        let plan = Plan {
            theme,
            size_max_bytes: size + size / 2,
            hosts: if matches!(theme, Theme::ClonedVolumes | Theme::Backups) { 4 } else { 3 },
            rounds: rng.random_range(2..7),
            clients: rng.random_range(1..5),
            ops: *pick(rng, &[15, 40, 100]),
            pause: *pick(rng, &[Duration::ZERO, Duration::from_millis(5), Duration::from_millis(300)]),
            write_bytes_max: *pick(rng, &[4096, 64 << 10, 256 << 10]),
            sweeping: rng.random_bool(0.5),
            snapshots: matches!(
                theme,
                Theme::Absent
                    | Theme::Snapshots
                    | Theme::OldListings
                    | Theme::ClonedVolumes
                    | Theme::RolledBack
                    | Theme::Backups
            ),
            switching: rng.random_bool(0.3),
            faults: draw_faults(rng, theme),
            disk_bytes: None,
            damage: if theme == Theme::Damage && rng.random_bool(0.5) { 0.02 } else { 0.0 },
            old_listing: 0.0,
            cache_faults: draw_cache_faults(rng, theme),
            slow_reads: 0.0,
            fuse_polls: 30_000,
            filled: false,
            settings,
        };
        plan.shaped(rng)
    }

    /// What a theme needs in order to be about what it is about.
    fn shaped(mut self, rng: &mut ChaCha8Rng) -> Plan {
        let settings = &mut self.settings;
        match self.theme {
            Theme::TinyRing => {
                settings.size_bytes = 16 * MIB;
                settings.journal_bytes = JOURNAL_BYTES_MIN;
                settings.dirty_bytes_max = JOURNAL_BYTES_MIN;
                settings.mode = *pick(rng, &[Mode::Writeback, Mode::Writearound]);
                (self.clients, self.ops, self.pause) = (rng.random_range(2..5), 200, Duration::ZERO);
                self.write_bytes_max = 256 << 10;
                self.fuse_polls = 3000;
                self.faults = StoreFaults { slow: rng.random_range(0.0..0.5), ..StoreFaults::default() };
                // Most of what is dirty is on the disk alone, and space is used again while it is being read.
                if rng.random_bool(0.5) {
                    (settings.memory_bytes, self.slow_reads) = (2 * MIB, 0.05);
                }
            }
            Theme::Merges => {
                settings.size_bytes = 16 * MIB;
                settings.dirty_age_max = Duration::from_millis(20);
                (self.clients, self.ops, self.pause) = (2, 400, Duration::from_millis(20));
                self.rounds = rng.random_range(2..5);
                self.write_bytes_max = 8 << 10;
                (self.filled, self.sweeping) = (true, false);
            }
            Theme::Absent
            | Theme::Cleaning
            | Theme::SmallDisk
            | Theme::Quota
            | Theme::Snapshots
            | Theme::OldListings
            | Theme::ClonedVolumes
            | Theme::RolledBack
            | Theme::Backups => {
                settings.size_bytes = *pick(rng, &[2 * MIB, 8 * MIB]);
                settings.dirty_age_max = *pick(rng, &[Duration::from_millis(20), Duration::from_millis(200)]);
                settings.grace = *pick(rng, &[Duration::from_secs(90), Duration::from_secs(600)]);
                settings.slot_grace = settings.grace * 2;
                settings.space_bound = Bound::Ratio(*pick(rng, &[1.05, 1.2]));
                (self.clients, self.ops) = (rng.random_range(1..4), *pick(rng, &[100, 400]));
                self.pause = *pick(rng, &[Duration::from_millis(20), Duration::from_millis(200)]);
                self.rounds = rng.random_range(4..9);
                self.write_bytes_max = *pick(rng, &[4096, 64 << 10, 256 << 10]);
                (self.filled, self.sweeping) = (true, self.theme == Theme::Backups && rng.random_bool(0.5));
                if self.theme == Theme::Cleaning {
                    self.disk_bytes = Some(1 << 40); // so that readers are announced, and waited for
                }
                if self.theme == Theme::OldListings {
                    self.old_listing = rng.random_range(0.2..1.0);
                }
                if self.theme == Theme::Quota {
                    (settings.size_bytes, self.sweeping) = (8 * MIB, true);
                }
                if self.theme == Theme::SmallDisk {
                    settings.size_bytes = 2 * MIB;
                    self.disk_bytes = Some(*pick(rng, &[24 * MIB, 32 * MIB]));
                }
            }
            Theme::Stragglers | Theme::Recreated => {
                settings.dirty_age_max = *pick(rng, &[Duration::from_millis(40), Duration::from_millis(200)]);
                settings.mode = *pick(rng, &[Mode::Writeback, Mode::Writethrough]);
                (self.clients, self.ops) = (rng.random_range(2..5), 100);
                self.pause = *pick(rng, &[Duration::from_millis(5), Duration::from_millis(50)]);
                self.rounds = rng.random_range(4..9);
                self.faults = StoreFaults {
                    late: rng.random_range(0.0..0.5),
                    slow: rng.random_range(0.3..0.9),
                    lose_reply: rng.random_range(0.0..0.2),
                    late_max: Duration::from_secs(20),
                    ..StoreFaults::default()
                };
            }
            Theme::BadReplies => {
                self.damage = rng.random_range(0.005..0.05);
                self.faults = StoreFaults::default();
                // Checkpoints, and runs of the map that a chunk cache keeps.
                settings.cache_bytes = 16 * MIB;
                settings.dirty_age_max = Duration::from_millis(20);
                (self.clients, self.ops, self.pause) = (2, 200, Duration::from_millis(20));
            }
            Theme::RottenJournal => {
                settings.mode = Mode::Writeback;
                settings.dirty_age_max = Duration::from_secs(24 * 3600);
                settings.dirty_bytes_max = settings.journal_bytes;
            }
            Theme::Rekeyed => {
                settings.key = secret(0);
                self.faults = StoreFaults {
                    late: rng.random_range(0.1..0.5),
                    twice: rng.random_range(0.1..0.5),
                    lose_reply: rng.random_range(0.0..0.3),
                    lose_request: rng.random_range(0.0..0.2),
                    ..StoreFaults::default()
                };
                (self.ops, self.rounds) = (15, rng.random_range(3..7));
            }
            Theme::Overwriting => {
                settings.dirty_age_max = *pick(rng, &[Duration::from_millis(40), Duration::from_millis(200)]);
                (self.ops, self.rounds) = (100, rng.random_range(4..9));
                // What arrives late is taken whatever its sender does, and so is what a process sends that was stopped right before.
                (self.faults.late, self.faults.twice) = (0.0, 0.0);
            }
            Theme::Clones => {
                settings.mode = *pick(rng, &[Mode::Writeback, Mode::Writeback, Mode::Writethrough]);
            }
            _ => {}
        }
        self.size_max_bytes = self.settings.size_bytes * 3 / 2;
        self
    }

    /// Whether the run is about what is deleted, and when.
    pub fn cleans(&self) -> bool {
        matches!(
            self.theme,
            Theme::Absent
                | Theme::Cleaning
                | Theme::SmallDisk
                | Theme::Quota
                | Theme::Snapshots
                | Theme::OldListings
                | Theme::ClonedVolumes
                | Theme::RolledBack
                | Theme::Backups
        )
    }

    /// Whether what goes wrong on the way from the store must heal: the same request succeeds a little later.
    pub fn heals(&self) -> bool {
        self.theme == Theme::BadReplies
    }

    /// Draws how the next round ends.
    pub fn ending(&self, sim: &Sim) -> Ending {
        use Ending::{
            Cloned, Close, DiskFails, DiskFills, GoOn, HastyClose, JournalRots, Kill, LoseHost, Outage,
            PowerCut, Recreated, Rekeyed, RolledBack, RuleEnds, Usurp,
        };
        let zombies = [Zombie::Busy, Zombie::Suspended, Zombie::CutOff];
        let zombie = Usurp(zombies[sim.range(0, 3) as usize]);
        let choices: &[Ending] = match self.theme {
            Theme::Crashes => &[PowerCut, PowerCut, PowerCut, Kill, Kill, GoOn, Close, HastyClose, LoseHost],
            Theme::TakeOvers => &[LoseHost, LoseHost, zombie, zombie, Close, PowerCut, GoOn],
            Theme::Outages => &[Outage, Outage, PowerCut, LoseHost, HastyClose],
            Theme::BadDisk => {
                &[DiskFails, DiskFails, DiskFails, DiskFails, DiskFills, DiskFills, PowerCut, GoOn, LoseHost]
            }
            Theme::BadCache => &[GoOn, GoOn, PowerCut, Kill, Close, HastyClose, LoseHost],
            Theme::Damage => &[GoOn, Close, LoseHost],
            Theme::Calm => &[GoOn, Close],
            Theme::TinyRing => &[PowerCut, PowerCut, Kill, Outage, Outage, Outage],
            Theme::Merges => &[GoOn, GoOn, PowerCut, Close, LoseHost],
            Theme::Cleaning | Theme::Quota | Theme::Snapshots | Theme::OldListings | Theme::Backups => {
                &[GoOn, GoOn, PowerCut, Kill, Close, HastyClose, LoseHost, zombie, zombie, Outage]
            }
            Theme::SmallDisk => &[GoOn, GoOn, PowerCut, Kill, Close, HastyClose, LoseHost, zombie],
            Theme::Absent => &[GoOn, GoOn, GoOn, PowerCut, Kill, Close, Close, HastyClose, LoseHost],
            Theme::ClonedVolumes => &[GoOn, GoOn, PowerCut, Kill, Close, HastyClose, LoseHost, Outage],
            Theme::RolledBack => {
                &[RolledBack, RolledBack, RolledBack, RolledBack, GoOn, PowerCut, Close, LoseHost, zombie]
            }
            Theme::Stragglers => &[PowerCut, Kill, HastyClose, LoseHost, zombie],
            Theme::BadReplies => &[GoOn, GoOn, Close, PowerCut, LoseHost],
            Theme::Clones => &[Cloned, Cloned, Cloned, PowerCut, GoOn],
            Theme::Recreated => &[Recreated, Recreated, PowerCut, GoOn],
            Theme::Overwriting => {
                &[RuleEnds, RuleEnds, Usurp(Zombie::CutOff), Usurp(Zombie::CutOff), Usurp(Zombie::Busy), GoOn]
            }
            Theme::Rekeyed => &[Rekeyed, Rekeyed, Rekeyed, LoseHost, PowerCut],
            Theme::RottenJournal => &[JournalRots, JournalRots, JournalRots, GoOn],
        };
        choices[sim.range(0, choices.len() as u64) as usize]
    }
}

/// The secrets of a volume whose secret is changed, by number.
pub fn secret(number: u32) -> KeySource {
    KeySource::KeyFile(number.to_le_bytes().repeat(8))
}

fn pick<'a, T>(rng: &mut ChaCha8Rng, choices: &'a [T]) -> &'a T {
    &choices[rng.random_range(0..choices.len())]
}

fn draw_settings(rng: &mut ChaCha8Rng, theme: Theme) -> Settings {
    let size_bytes = *pick(rng, &[MIB, 4 * MIB, 4 * MIB + 512 * 3, 16 * MIB]);
    // Little memory and a small cache: reads come from the cache's disk, and chunks are evicted.
    let (memory, caches) = match theme {
        Theme::BadCache => (8 * MIB, [MIB, 2 * MIB, 8 * MIB]),
        _ => (*pick(rng, &[16 * MIB, 64 * MIB]), [0, 2 * MIB, 16 * MIB]),
    };
    let journal_bytes = *pick(rng, &[8 * MIB, 8 * MIB, 24 * MIB]);
    Settings {
        size_bytes,
        compression: *pick(rng, &[Compression::None, Compression::Lz4, Compression::Zstd]),
        key: if rng.random_bool(0.3) { KeySource::KeyFile(vec![7; 32]) } else { KeySource::None },
        mode: match rng.random_range(0..10) {
            0..3 => Mode::Writethrough,
            3 => Mode::Writearound,
            _ => Mode::Writeback,
        },
        journal_bytes,
        dirty_age_max: *pick(
            rng,
            &[Duration::from_millis(200), Duration::from_secs(2), Duration::from_secs(30)],
        ),
        dirty_bytes_max: *pick(rng, &[journal_bytes / 8, journal_bytes / 2, journal_bytes]),
        memory_bytes: memory,
        cache_bytes: *pick(rng, &caches),
        grace: *pick(rng, &[Duration::from_secs(90), Duration::from_secs(300), Duration::from_secs(900)]),
        grace_alone: Duration::from_secs(5),
        slot_grace: Duration::from_secs(900),
        space_bound: *pick(
            rng,
            &[Bound::Auto, Bound::Ratio(1.05), Bound::Ratio(1.3), Bound::Ratio(f64::INFINITY)],
        ),
    }
}

fn draw_cache_faults(rng: &mut ChaCha8Rng, theme: Theme) -> DiskFaults {
    if theme != Theme::BadCache {
        return DiskFaults::default();
    }
    let mut chance = |high: f64| if rng.random_bool(0.5) { rng.random_range(0.0..high) } else { 0.0 };
    DiskFaults { fail: chance(0.1), lie: chance(0.1), slow: chance(0.05), ..DiskFaults::default() }
}

fn draw_faults(rng: &mut ChaCha8Rng, theme: Theme) -> StoreFaults {
    if theme == Theme::Calm || rng.random_bool(0.3) {
        return StoreFaults::default();
    }
    let mut chance = |high: f64| if rng.random_bool(0.5) { rng.random_range(0.0..high) } else { 0.0 };
    StoreFaults {
        refuse: chance(0.2),
        lose_request: chance(0.1),
        lose_reply: chance(0.2),
        late: chance(0.1),
        twice: chance(0.2),
        slow: chance(0.2),
        ..StoreFaults::default()
    }
}
