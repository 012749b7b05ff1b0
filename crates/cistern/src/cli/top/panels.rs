//! The ten panels: what each says of a volume in words, and which figure it draws. Pure.

use std::collections::BTreeMap;

use crate::{control::ServedStatus, history::RingReply};

/// Columns of figures under the names of their series.
type Figures = BTreeMap<String, Vec<Option<f32>>>;

/// What one panel shows.
#[derive(Clone, Debug, PartialEq)]
pub struct PanelText {
    pub title: &'static str,
    pub text: String,
    /// Oldest first; unknown where nothing is known.
    pub drawn: Vec<Option<f32>>,
}

/// The newest figures, and those of the past, of a volume and its daemon.
pub struct PanelFigures<'a> {
    pub served: &'a ServedStatus,
    pub newest: Option<&'a RingReply>,
    pub past: Option<&'a RingReply>,
}

impl PanelFigures<'_> {
    fn of<'r>(&self, ring: Option<&'r RingReply>, name: &str) -> Option<&'r Vec<Option<f32>>> {
        let ring = ring?;
        let of_volume = ring.volumes.get(&self.served.name).and_then(|figures: &Figures| figures.get(name));
        of_volume.or_else(|| ring.daemon.get(name))
    }

    /// The newest value of a series.
    fn now(&self, name: &str) -> Option<f32> {
        newest(self.of(self.newest, name)?)
    }

    /// The sum of some series, column by column; unknown where all are.
    fn drawn(&self, names: &[&str]) -> Vec<Option<f32>> {
        let all: Vec<&Vec<Option<f32>>> = names.iter().filter_map(|name| self.of(self.past, name)).collect();
        let columns = all.iter().map(|series| series.len()).max().unwrap_or(0);
        let sum = |column: usize| {
            let known = all.iter().filter_map(|series| series.get(column).copied().flatten());
            known.reduce(|a, b| a + b)
        };
        (0..columns).map(sum).collect()
    }

    /// All ten, in their order.
    pub fn panels(&self) -> Vec<PanelText> {
        let now = |name: &str| self.now(name);
        let panel = |title, text, drawn: &[&str]| PanelText { title, text, drawn: self.drawn(drawn) };
        vec![
            panel("1 safe to disconnect?", self.safe(), &["dirty_bytes"]),
            panel(
                "2 throughput",
                format!(
                    "clients r {} w {}  store r {} w {}",
                    bytes(now("client_read_bytes_per_second")),
                    bytes(now("client_write_bytes_per_second")),
                    bytes(now("store_read_bytes_per_second")),
                    bytes(now("store_write_bytes_per_second")),
                ),
                &["client_read_bytes_per_second", "client_write_bytes_per_second"],
            ),
            panel(
                "3 requests/s",
                format!(
                    "read {} write {} flush {} trim {}",
                    count(now("reads_per_second")),
                    count(now("writes_per_second")),
                    count(now("flushes_per_second")),
                    count(now("trims_per_second")),
                ),
                &["reads_per_second", "writes_per_second", "flushes_per_second", "trims_per_second"],
            ),
            panel(
                "4 latency p50/p99, ms",
                format!(
                    "r {}/{} w {}/{} f {}/{}",
                    ms(now("read_p50_seconds")),
                    ms(now("read_p99_seconds")),
                    ms(now("write_p50_seconds")),
                    ms(now("write_p99_seconds")),
                    ms(now("flush_p50_seconds")),
                    ms(now("flush_p99_seconds")),
                ),
                &["write_p99_seconds"],
            ),
            panel("5 journal", self.journal(), &["journal_used_bytes"]),
            panel("6 cache", self.cache(), &["cache_hits_per_second"]),
            panel(
                "7 space",
                format!(
                    "live {} dead {} grace {}",
                    bytes(now("live_bytes")),
                    bytes(now("dead_bytes")),
                    bytes(now("grace_bytes")),
                ),
                &["live_bytes", "dead_bytes", "grace_bytes"],
            ),
            panel("8 requests and money", self.money(), &["cost_per_hour"]),
            panel("9 store", self.store(), &["store_put_p99_seconds"]),
            panel(
                "10 snapshots, cleaner",
                format!(
                    "{} snapshots, amplification {}",
                    count(now("snapshots")),
                    now("write_amplification").map_or("-".to_owned(), |value| format!("{value:.2}")),
                ),
                &["write_amplification"],
            ),
        ]
    }

    fn safe(&self) -> String {
        let status = &self.served.status;
        let bytes = bytes(Some(status.dirty_bytes as f32));
        match status {
            _ if status.latched.is_some() => format!("STOPPED, {bytes} not in the store"),
            _ if status.read_only => "YES: it is only read".to_owned(),
            _ if status.dirty_bytes == 0 => "YES: everything is in the store".to_owned(),
            _ => format!("NO: {bytes} not in the store, {} s", status.dirty_age_ms / 1000),
        }
    }

    fn journal(&self) -> String {
        let (used, size) = (self.now("journal_used_bytes"), self.now("journal_size_bytes"));
        let percent = match (used, size) {
            (Some(used), Some(size)) if size > 0.0 => format!("{:.0} %", used / size * 100.0),
            _ => "-".to_owned(),
        };
        let target = match self.now("write_back_target_bytes_per_second") {
            Some(target) => format!("to {}/s", bytes(Some(target))),
            None => "unlimited".to_owned(),
        };
        let rate = bytes(self.now("write_back_bytes_per_second"));
        format!("{percent} of {}, up {rate}/s, {target}", bytes(size))
    }

    fn cache(&self) -> String {
        let Some(size) = self.now("cache_size_bytes") else { return "none".to_owned() };
        let rate = |name: &str| self.now(name).unwrap_or(0.0);
        let (hits, cold, evicted) = (
            rate("cache_hits_per_second"),
            rate("cache_misses_cold_per_second"),
            rate("cache_misses_evicted_per_second"),
        );
        let all = hits + cold + evicted;
        let share = if all > 0.0 { format!("{:.0} %", hits / all * 100.0) } else { "-".to_owned() };
        let used = bytes(self.now("cache_occupied_bytes"));
        format!(
            "hits {share}, {used} of {}, cold {} evicted {}",
            bytes(Some(size)),
            count(Some(cold)),
            count(Some(evicted))
        )
    }

    fn money(&self) -> String {
        let (hour, rent) = (self.now("cost_per_hour"), self.now("storage_cost_per_month"));
        let month = match (hour, rent) {
            (None, None) => None,
            (hour, rent) => Some(rent.unwrap_or(0.0) + 730.0 * hour.unwrap_or(0.0)),
        };
        format!(
            "put {}/s get {}/s, now {}/h, {}/month",
            count(self.now("store_puts_per_second")),
            count(self.now("store_gets_per_second")),
            dollars(hour),
            dollars(month)
        )
    }

    fn store(&self) -> String {
        if let Some(away_ms) = self.served.store_away_ms {
            return format!("DOES NOT ANSWER for {} s", away_ms / 1000);
        }
        format!(
            "answers; get {} put {} ms, errors {}/s",
            ms(self.now("store_get_p99_seconds")),
            ms(self.now("store_put_p99_seconds")),
            count(self.now("store_errors_per_second"))
        )
    }
}

/// The newest value that is known among some columns.
pub fn newest(columns: &[Option<f32>]) -> Option<f32> {
    columns.iter().rev().copied().flatten().next()
}

/// Bytes in five characters at most, like `1.5G`.
pub fn bytes(value: Option<f32>) -> String {
    let Some(mut value) = value else { return "-".to_owned() };
    for unit in ["", "K", "M", "G", "T", "P"] {
        match value {
            _ if value < 10.0 && !unit.is_empty() => return format!("{value:.1}{unit}"),
            _ if value < 1000.0 => return format!("{value:.0}{unit}"),
            _ => value /= 1024.0,
        }
    }
    format!("{value:.0}E")
}

/// A number in five characters at most, like `1.2k`.
pub fn count(value: Option<f32>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 0.05 => "0".to_owned(),
        Some(value) if value < 10.0 => format!("{value:.1}"),
        Some(value) if value < 1000.0 => format!("{value:.0}"),
        Some(value) if value < 10_000.0 => format!("{:.1}k", value / 1000.0),
        Some(value) if value < 1e6 => format!("{:.0}k", value / 1000.0),
        Some(value) => format!("{:.1}M", value / 1e6),
    }
}

fn ms(value: Option<f32>) -> String {
    match value.map(|seconds| seconds * 1000.0) {
        None => "-".to_owned(),
        Some(ms) if ms < 1.0 => format!("{ms:.2}"),
        Some(ms) if ms < 10.0 => format!("{ms:.1}"),
        Some(ms) => format!("{ms:.0}"),
    }
}

fn dollars(value: Option<f32>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value > 0.0 && value < 0.01 => "<$0.01".to_owned(),
        Some(value) => format!("${value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures are as short as their place, and what is unknown is not zero.
    #[test]
    fn figures_are_short() {
        let text = |value: f32| bytes(Some(value));
        assert_eq!(
            [0.0, 999.0, 1000.0, 1536.0, 2e6, 5e12].map(text),
            ["0", "999", "1.0K", "1.5K", "1.9M", "4.5T"]
        );
        let text = |value: f32| count(Some(value));
        assert_eq!(
            [0.0, 0.3, 42.0, 1234.0, 56_789.0, 2e6].map(text),
            ["0", "0.3", "42", "1.2k", "57k", "2.0M"]
        );
        assert_eq!(
            (bytes(None), count(None), ms(None), dollars(None)),
            ("-".into(), "-".into(), "-".into(), "-".into())
        );
        assert_eq!(
            (dollars(Some(0.0)), dollars(Some(0.001)), dollars(Some(1.5))),
            ("$0.00".into(), "<$0.01".into(), "$1.50".into())
        );
        assert_eq!(newest(&[Some(1.0), Some(2.0), None]), Some(2.0));
    }
}
