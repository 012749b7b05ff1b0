//! A client that changes how its volume is served while others work: mode, rates, pauses.
//!
//! What a FLUSH promises, and whether anything is uploaded, follows from it; all clients of a writer
//! share what they know of that.

use std::{pin::pin, time::Duration};

use cistern_engine::{Error, space::Bound, store::Rates, volume::Mode};
use futures_util::future::join;

use super::{Line, Mood, check_status, flush, read, write, zero};
use crate::device::Device;

/// The longest pause during which its client works.
const PAUSE_MAX: Duration = Duration::from_secs(120);
/// What was on its way, or about to be, has got there after so many seconds of the client's own.
const SETTLING_S: u64 = 30;
/// The longest look at what a pause holds, in seconds of the client's own.
const LOOK_S_MAX: u64 = 60;

/// How far a FLUSH reaches, and whether anything is uploaded, as far as clients know.
#[derive(Clone, Copy, Debug)]
pub struct Modes {
    mode: Mode,
    /// The tick from which on it is in effect.
    since: u64,
    /// Somebody is switching it: it is this one or another.
    changing: bool,
    /// Somebody holds the uploads.
    paused: bool,
    /// When they were held last.
    held_until: Duration,
    /// The script needs the uploads: nobody may hold them any more.
    unstoppable: bool,
}

impl Modes {
    /// The mode a volume was opened in.
    pub fn new(mode: Mode) -> Modes {
        let held_until = Duration::ZERO;
        Modes { mode, since: 0, changing: false, paused: false, held_until, unstoppable: false }
    }
}

impl Line {
    fn modes<T>(&self, f: impl FnOnce(&mut Modes) -> T) -> T {
        f(&mut self.modes.lock().expect("no panic under this lock"))
    }

    /// Whether the reply to a flush that was invoked then means the store: in writethrough ever since.
    pub(super) fn reaches_the_store(&self, invoked: u64) -> bool {
        self.modes(|m| m.mode == Mode::Writethrough && !m.changing && m.since <= invoked)
    }

    /// Whether a flush that was invoked then needs the local disk only.
    pub fn stays_local(&self, invoked: u64) -> bool {
        self.modes(|m| m.mode != Mode::Writethrough && !m.changing && m.since <= invoked)
    }

    /// The last moment at which a pause held the uploads.
    pub fn held_until(&self) -> Duration {
        let now = self.sim.now();
        self.modes(|m| if m.paused { now } else { m.held_until })
    }

    /// Lets the uploads go on, and nobody hold them again.
    pub async fn end_pauses(&self, device: &dyn Device) {
        self.modes(|m| m.unstoppable = true);
        self.resume(device).await;
    }

    async fn resume(&self, device: &dyn Device) {
        if !self.modes(|m| m.paused) {
            return;
        }
        if let Err(error) = device.set_paused(false).await {
            self.sim.fail(format!("a pause cannot be ended: {error:?}"));
        }
        let now = self.sim.now();
        self.modes(|m| (m.paused, m.held_until) = (false, now));
    }
}

/// Bounds of space that clients switch between.
const BOUNDS: [Bound; 4] = [Bound::Auto, Bound::Ratio(1.05), Bound::Ratio(1.3), Bound::Ratio(f64::INFINITY)];

/// Switches the mode, limits the rates or bounds the space. One client at a time switches the mode: of two switches at once
/// nobody knows which one lasts.
pub(super) async fn switch(line: &Line, device: &dyn Device) -> Mood {
    const MIB: u64 = 1 << 20;
    let limit = |n: u64| [None, Some(2 * MIB), Some(20 * MIB)][n as usize];
    if line.sim.chance(0.3) {
        let bound = BOUNDS[line.sim.range(0, BOUNDS.len() as u64) as usize];
        line.sim.note(format_args!("client: bounds space by {bound:?}"));
        return match device.set_bound(bound).await {
            Ok(_) => Mood::Content,
            Err(error) => line.complain("a change of the bound of space", &error),
        };
    }
    if line.sim.chance(0.5) {
        let rates = Rates { upload: limit(line.sim.range(0, 3)), download: limit(line.sim.range(0, 3)) };
        line.sim.note(format_args!("client: limits {rates:?}"));
        device.set_rates(rates);
        return Mood::Content;
    }
    if line.modes(|m| std::mem::replace(&mut m.changing, true)) {
        return Mood::Content;
    }
    let mode = [Mode::Writeback, Mode::Writethrough, Mode::Writearound][line.sim.range(0, 3) as usize];
    let hangs = line.modes(|m| m.paused) && mode == Mode::Writethrough;
    line.sim.note(format_args!("client: switches to {mode:?}"));
    let reply = device.set_mode(mode).await;
    let tick = line.sim.tick();
    line.modes(|m| {
        m.changing = false;
        m.since = tick;
        if let Ok(true) = reply {
            m.mode = mode;
        }
    });
    match reply {
        Ok(true) if hangs => {
            line.sim.fail("pause: a switch to writethrough is not refused");
            Mood::Done
        }
        Ok(_) => Mood::Content,
        Err(Error::PausedWritethrough) if hangs => Mood::Content,
        Err(error) => line.complain("a switch of the mode", &error),
    }
}

/// Holds the uploads for a while, goes on working meanwhile, and sees to it that they are held.
pub(super) async fn pause(line: &Line, device: &dyn Device) -> Mood {
    if line.modes(|m| m.changing || m.paused || m.unstoppable) {
        return Mood::Content;
    }
    let hangs = line.modes(|m| m.mode == Mode::Writethrough);
    line.sim.note(format_args!("client: pauses"));
    match device.set_paused(true).await {
        Ok(true) if hangs => {
            line.sim.fail("pause: one in writethrough is not refused");
            return Mood::Done;
        }
        Ok(true) => line.modes(|m| m.paused = true),
        Ok(false) => return Mood::Content,
        Err(Error::PausedWritethrough) if hangs => return Mood::Content,
        Err(error) => return line.complain("a pause", &error),
    }
    let mut work = pin!(work(line, device, line.sim.range(0, 20)));
    let done = line.sim.limit(line.sim.time(Duration::ZERO, PAUSE_MAX), &mut work).await;
    let watching = async {
        watch_held(line, device).await;
        let refused = try_to_drain(line, device).await;
        check_status(line, device);
        line.sim.note(format_args!("client: resumes"));
        line.resume(device).await;
        refused
    };
    let ending = async {
        match done {
            Some(mood) => mood,
            None => work.await, // it may have waited for room
        }
    };
    // Side by side: a request that nobody polls would keep its place in the queue to the store.
    let (refused, mood) = join(watching, ending).await;
    if matches!(refused, Mood::Done) { refused } else { mood }
}

async fn work(line: &Line, device: &dyn Device, count: u64) -> Mood {
    for _ in 0..count {
        let mood = match line.sim.range(0, 4) {
            0 => read(line, device).await,
            1 => zero(line, device).await,
            2 => flush(line, device).await,
            _ => write(line, device).await,
        };
        if let Mood::Done = mood {
            return mood;
        }
    }
    Mood::Content
}

/// Nothing is committed any more once everything is in the store that was on its way.
async fn watch_held(line: &Line, device: &dyn Device) {
    let mut held = None;
    for second in 0..line.sim.range(0, LOOK_S_MAX) {
        // Seconds one by one: of a host that is suspended meanwhile only one passes.
        line.sim.sleep(Duration::from_secs(1)).await;
        let status = device.status();
        if !line.modes(|m| m.paused) {
            return;
        }
        match held {
            None if second >= SETTLING_S && status.uploads_in_flight == 0 => held = Some(status.committed),
            Some(committed) if status.committed != committed => {
                line.sim.fail(format!("pause: more than what was on its way is uploaded: {status:?}"));
            }
            _ => {}
        }
    }
}

/// A drain would not end before the pause, so it says so; unless there is nothing to wait for.
async fn try_to_drain(line: &Line, device: &dyn Device) -> Mood {
    let holds = line.modes(|m| m.paused) && device.status().dirty_bytes > 0;
    match device.drain().await {
        Ok(()) if holds => {
            line.sim.fail("pause: a drain of what it holds succeeds");
            Mood::Done
        }
        Ok(()) => Mood::Content,
        Err(Error::Invalid(_)) if holds => Mood::Content,
        Err(error) => line.complain("a drain of a paused volume", &error),
    }
}
