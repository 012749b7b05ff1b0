//! What a daemon did in the last 48 hours, in three resolutions and bounded memory.
//!
//! Pure: whoever samples notes a [`Moment`] once a second, with what was observed since the one before it. Each subject (the daemon, and
//! every volume) has three rings, which begin empty and grow with time: what is served for an hour takes the room of an hour. A column
//! that nobody noted is unknown, and so is a figure that says nothing, like the latency of no request. Never asks the time: columns lie
//! where the wall clock of the moments says, at whole multiples of their step.

use std::time::Duration;

use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::observe::{Observed, ObservedVolume};

mod reply;
mod ring;
mod series;

pub use reply::{HistoryPieces, HistoryQuery, HistoryReply, RingReply};
use ring::Ring;
pub use series::{DAEMON, Keep, Series, VOLUME};

/// Milliseconds of a column, and columns, of each ring: 10 minutes, 2 hours, 48 hours.
pub const RINGS: [(u64, usize); 3] = [(1_000, 600), (10_000, 720), (60_000, 2_880)];

/// Bytes of all values of a volume, at most.
const VOLUME_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(
    (RINGS[0].1 + RINGS[1].1 + RINGS[2].1) * VOLUME.len() * size_of::<f32>() < VOLUME_BYTES_MAX * 7 / 10
);

/// The rings of a daemon and its volumes.
pub struct History {
    daemon: Rings,
    /// In the order of their first coming. A daemon serves the same ones all its time.
    volumes: Vec<(String, Rings)>,
}

/// The rings of one subject.
struct Rings([Ring; RINGS.len()]);

/// All figures of one second: of the daemon, and of each volume by its name. Unknown ones are no numbers.
pub struct Moment {
    at_ms: u64,
    daemon: Vec<f32>,
    volumes: Vec<(String, Vec<f32>)>,
}

impl Moment {
    /// `seen` is what was observed since the moment before, `time` ago.
    pub fn of(seen: &Observed, time: Duration) -> Moment {
        let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
        let volume = |volume: &ObservedVolume| (volume.name.clone(), values(VOLUME, volume, seconds));
        Moment {
            at_ms: seen.wall_ms,
            daemon: values(DAEMON, seen, seconds),
            volumes: seen.volumes.iter().map(volume).collect(),
        }
    }
}

fn values<T>(table: &[Series<T>], of: &T, seconds: f64) -> Vec<f32> {
    let value = |series: &Series<T>| (series.value)(of, seconds).map_or(f32::NAN, |value| value as f32);
    table.iter().map(value).collect()
}

impl Default for History {
    fn default() -> History {
        History { daemon: Rings::new(DAEMON.len()), volumes: Vec::new() }
    }
}

impl History {
    /// Puts a moment into all rings.
    pub fn note(&mut self, moment: &Moment) {
        self.daemon.note(moment.at_ms, &moment.daemon, |at| DAEMON[at].keep);
        for (name, values) in &moment.volumes {
            let known = self.volumes.iter().position(|(known, _)| known == name);
            let at = known.unwrap_or_else(|| {
                self.volumes.push((name.clone(), Rings::new(VOLUME.len())));
                self.volumes.len() - 1
            });
            self.volumes[at].1.note(moment.at_ms, values, |at| VOLUME[at].keep);
        }
    }
}

impl Rings {
    fn new(width: usize) -> Rings {
        Rings(RINGS.map(|(step_ms, columns_max)| Ring::new(step_ms, columns_max, width)))
    }

    fn note(&mut self, at_ms: u64, values: &[f32], keep: impl Fn(usize) -> Keep + Copy) {
        self.0.iter_mut().for_each(|ring| ring.note(at_ms, values, keep));
    }
}

/// Figures under their names; one that is unknown is null.
struct Figures<'a, T: 'static>(&'a [f32], &'static [Series<T>]);

impl<T> Serialize for Figures<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.1.iter().zip(self.0).map(|(series, value)| (series.name, value)))
    }
}

/// As the event `sample` has it.
impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Volumes<'a>(&'a [(String, Vec<f32>)]);
        impl Serialize for Volumes<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|(name, values)| (name, Figures(values, VOLUME))))
            }
        }
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("at_ms", &self.at_ms)?;
        map.serialize_entry("daemon", &Figures(&self.daemon, DAEMON))?;
        map.serialize_entry("volumes", &Volumes(&self.volumes))?;
        map.end()
    }
}

#[cfg(test)]
mod tests;
