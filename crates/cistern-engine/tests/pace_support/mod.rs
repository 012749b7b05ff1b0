//! A model of everything around the two controllers: a writer, the room for dirty data, segments
//! that are sealed and uploaded over a link, and commits in order.
//!
//! Uses the controllers themselves, and a clock of its own. Deterministic. For the tests of their
//! behaviour and for the plots in the documentation.

#![allow(dead_code)] // the example draws only

use std::{collections::VecDeque, time::Duration};

use cistern_engine::{
    log::uploads::{UPLOADS, uploads_after},
    volume::pacing::throttle::Throttle,
    writeback::{
        budget::Budget,
        pi::{Controller, Goal, Rate},
        policy::{Decision, PackSituation, decide, segment_bytes},
    },
};

pub mod svg;

pub const MIB: f64 = (1 << 20) as f64;
/// One step of the model.
const STEP: Duration = Duration::from_millis(10);
/// The largest piece the writer writes at once: a step's worth at full speed is cut into these.
const WRITE_BYTES: f64 = 128.0 * 1024.0;

/// What the world does at one moment.
#[derive(Clone, Copy)]
pub struct Load {
    /// What the client would write, in bytes a second.
    pub write_bytes_per_s: f64,
    /// What the link carries; 0: the store is away.
    pub link_bytes_per_s: f64,
}

/// One run.
pub struct Scenario {
    pub name: &'static str,
    pub title: &'static str,
    pub room_bytes: u64,
    pub age_max: Duration,
    pub length: Duration,
    /// The load from a second on.
    pub load: fn(f64) -> Load,
}

/// What was seen in one second.
#[derive(Clone, Copy)]
pub struct Second {
    pub rate: Rate,
    pub dirty_bytes: f64,
    pub written_bytes: f64,
    pub uploaded_bytes: f64,
    pub link_bytes_per_s: f64,
    /// Highest and lowest number of bytes written in a tenth of this second.
    pub tenth_least_bytes: f64,
}

struct Segment {
    bytes: f64,
    left_bytes: f64,
    began: Option<Duration>,
    took: Option<Duration>,
}

/// The state of a run.
struct World {
    now: Duration,
    throttle: Throttle,
    controller: Controller,
    budget: Budget,
    goal: Goal,
    segment_bytes: u64,
    /// When which bytes were written that are not packed.
    unpacked: VecDeque<(Duration, f64)>,
    unpacked_bytes: f64,
    window: VecDeque<Segment>,
    uploads: usize,
    dirty_bytes: f64,
    /// What the writer has not been able to write yet, at most one step's worth.
    wanted_bytes: f64,
}

/// Runs a scenario.
pub fn run(scenario: &Scenario) -> Vec<Second> {
    let goal = Goal::new(scenario.room_bytes, scenario.age_max);
    let mut world = World {
        now: Duration::ZERO,
        throttle: Throttle::new(Duration::ZERO, scenario.room_bytes, 0),
        controller: Controller::new(&goal, Duration::ZERO),
        budget: Budget::new(Duration::ZERO),
        goal,
        segment_bytes: segment_bytes(scenario.room_bytes, 256 << 20),
        unpacked: VecDeque::new(),
        unpacked_bytes: 0.0,
        window: VecDeque::new(),
        uploads: *UPLOADS.start(),
        dirty_bytes: 0.0,
        wanted_bytes: 0.0,
    };
    (0..scenario.length.as_secs()).map(|second| world.second(scenario, second)).collect()
}

impl World {
    fn second(&mut self, scenario: &Scenario, second: u64) -> Second {
        let (mut written, mut uploaded, mut tenth, mut tenth_least) = (0.0, 0.0, 0.0, f64::MAX);
        let mut link = 0.0;
        let steps = (Duration::from_secs(1).as_millis() / STEP.as_millis()) as u64;
        for step in 0..steps {
            let load = (scenario.load)(second as f64 + step as f64 / steps as f64);
            link = load.link_bytes_per_s;
            let wrote = self.write(scenario, load.write_bytes_per_s);
            written += wrote;
            tenth += wrote;
            if (step + 1) % (steps / 10) == 0 {
                tenth_least = f64::min(tenth_least, tenth);
                tenth = 0.0;
            }
            uploaded += self.upload(load.link_bytes_per_s);
            self.commit();
            self.seal(scenario.age_max);
            self.now += STEP;
        }
        Second {
            rate: *self.controller.rate(),
            dirty_bytes: self.dirty_bytes,
            written_bytes: written,
            uploaded_bytes: uploaded,
            link_bytes_per_s: link,
            tenth_least_bytes: tenth_least,
        }
    }

    fn write(&mut self, scenario: &Scenario, bytes_per_s: f64) -> f64 {
        let step_bytes = bytes_per_s * STEP.as_secs_f64();
        self.wanted_bytes = (self.wanted_bytes + step_bytes).min(step_bytes + WRITE_BYTES);
        let mut written = 0.0;
        while self.wanted_bytes >= WRITE_BYTES && self.throttle.wait(self.now).is_zero() {
            if self.dirty_bytes + WRITE_BYTES > scenario.room_bytes as f64 {
                break; // the hard end
            }
            self.throttle.spend(WRITE_BYTES as i64);
            self.throttle.note_write(self.now, WRITE_BYTES as u64);
            self.unpacked.push_back((self.now, WRITE_BYTES));
            self.unpacked_bytes += WRITE_BYTES;
            self.dirty_bytes += WRITE_BYTES;
            self.throttle.see(self.dirty_bytes as u64);
            self.wanted_bytes -= WRITE_BYTES;
            written += WRITE_BYTES;
        }
        written
    }

    /// The link serves what is on its way in equal shares.
    fn upload(&mut self, link_bytes_per_s: f64) -> f64 {
        let active = self.window.iter().filter(|s| s.took.is_none()).count().min(self.uploads);
        let (mut left, mut uploaded) = (link_bytes_per_s * STEP.as_secs_f64(), 0.0);
        for (n, segment) in self.window.iter_mut().filter(|s| s.took.is_none()).take(active).enumerate() {
            let began = *segment.began.get_or_insert(self.now);
            let part = (left / (active - n) as f64).min(segment.left_bytes);
            segment.left_bytes -= part;
            left -= part;
            uploaded += part;
            if segment.left_bytes <= 0.0 {
                let took = self.now + STEP - began;
                segment.took = Some(took);
                self.uploads = uploads_after(self.uploads, took);
            }
        }
        uploaded
    }

    fn commit(&mut self) {
        while self.window.front().is_some_and(|front| front.took.is_some()) {
            let front = self.window.pop_front().expect("just seen");
            self.dirty_bytes -= front.bytes;
            self.throttle.note_commit(self.now, front.bytes as u64);
            self.throttle.see(self.dirty_bytes as u64);
        }
    }

    fn seal(&mut self, age_max: Duration) {
        loop {
            let rate = self.controller.rate().rate_bytes_per_s;
            self.budget.fill(self.now, rate, self.segment_bytes, self.segment_bytes);
            let follows = self.budget.keeps_up(self.segment_bytes);
            self.controller.update(&self.goal, self.now, self.dirty_bytes as u64, follows);
            let rate = self.controller.rate().rate_bytes_per_s;
            let unlimited = self.dirty_bytes >= self.goal.unlimited_bytes as f64;
            let oldest = self.unpacked.front().map_or(self.now, |(then, _)| *then);
            let decision = decide(&PackSituation {
                unpacked_blocks: (self.unpacked_bytes / 4096.0) as u64,
                unpacked_age: self.now - oldest,
                wanted: false,
                paused: false,
                budget_wait: if unlimited { Duration::ZERO } else { self.budget.wait(rate) },
                dirty_age_max: age_max,
                segment_bytes: self.segment_bytes,
            });
            if decision != Decision::Seal || self.window.len() > self.uploads {
                return;
            }
            let mut bytes = 0.0;
            while bytes < self.segment_bytes as f64
                && let Some((_, more)) = self.unpacked.pop_front()
            {
                bytes += more;
            }
            self.unpacked_bytes -= bytes;
            self.budget.spend(bytes as u64);
            self.window.push_back(Segment { bytes, left_bytes: bytes, began: None, took: None });
        }
    }
}

const GIB: u64 = 1 << 30;

const fn load(write_mib: f64, link_mib: f64) -> Load {
    Load { write_bytes_per_s: write_mib * MIB, link_bytes_per_s: link_mib * MIB }
}

/// The runs that the documentation shows.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "step",
        title: "Step: writes go from 2 to 20 and back to 2 MiB/s, link 30 MiB/s",
        room_bytes: 3 * GIB / 4,
        age_max: Duration::from_secs(120),
        length: Duration::from_secs(900),
        load: |s| if (100.0..500.0).contains(&s) { load(20.0, 30.0) } else { load(2.0, 30.0) },
    },
    Scenario {
        name: "ramp",
        title: "Ramp: writes grow from 0 to 60 MiB/s in 10 minutes, link 30 MiB/s",
        room_bytes: 3 * GIB / 4,
        age_max: Duration::from_secs(120),
        length: Duration::from_secs(900),
        load: |s| load((s / 10.0).min(60.0), 30.0),
    },
    Scenario {
        name: "flood",
        title: "Flood: a client that writes as fast as it may (300 MiB/s), link 30 MiB/s",
        room_bytes: 3 * GIB / 4,
        age_max: Duration::from_secs(30),
        length: Duration::from_secs(600),
        load: |_| load(300.0, 30.0),
    },
    Scenario {
        name: "outage",
        title: "Outage: the store is away for 5 minutes; writes 10 MiB/s, link 30 MiB/s",
        room_bytes: 3 * GIB / 4,
        age_max: Duration::from_secs(30),
        length: Duration::from_secs(900),
        load: |s| if (200.0..500.0).contains(&s) { load(10.0, 0.0) } else { load(10.0, 30.0) },
    },
    Scenario {
        name: "faster",
        title: "A flood while the link goes from 10 to 100 MiB/s",
        room_bytes: 3 * GIB / 4,
        age_max: Duration::from_secs(30),
        length: Duration::from_secs(600),
        load: |s| if s < 300.0 { load(300.0, 10.0) } else { load(300.0, 100.0) },
    },
    Scenario {
        name: "slower",
        title: "A flood while the link goes from 100 to 10 MiB/s",
        room_bytes: 3 * GIB / 4,
        age_max: Duration::from_secs(30),
        length: Duration::from_secs(600),
        load: |s| if s < 300.0 { load(300.0, 100.0) } else { load(300.0, 10.0) },
    },
];
