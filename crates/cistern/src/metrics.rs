//! Metrics in the text format of Prometheus (0.0.4): one table, from which come the exposition and its
//! documentation.
//!
//! Computed from [`Observed`] when somebody asks, so that they agree with `status --io --json` and cost
//! nothing in between. `daemon::metrics` is the server.

use std::fmt::Write;

use crate::observe::Observed;

mod table;

pub use table::TABLE;

/// What a client is told the text is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kinds of metric that the format knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the daemon runs.
    Counter,
    Gauge,
    /// Cumulative buckets with their count and sum.
    Histogram,
}

/// One metric: everything that is to be known about it.
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    /// Names of the labels, in the order of the samples' values.
    pub labels: &'static [&'static str],
    /// One sentence, without its full stop.
    pub help: &'static str,
    pub samples: fn(&Observed) -> Vec<Sample>,
}

/// One line of a metric; of a histogram all its lines.
pub struct Sample {
    labels: Vec<String>,
    value: Value,
}

enum Value {
    Count(u64),
    Real(f64),
    Histogram(Buckets),
}

struct Buckets {
    /// Inclusive upper bounds, ascending, and how many lie at or below each.
    up_to: Vec<(f64, u64)>,
    count: u64,
    sum: f64,
}

impl MetricKind {
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// All metrics of a daemon as text.
pub fn exposition(observed: &Observed) -> String {
    let mut out = String::new();
    for metric in TABLE {
        metric.write(observed, &mut out).expect("a string grows");
    }
    out
}

impl Metric {
    fn write(&self, observed: &Observed, out: &mut String) -> std::fmt::Result {
        let name = self.name;
        writeln!(out, "# HELP {name} {}.", self.help)?;
        writeln!(out, "# TYPE {name} {}", self.kind.name())?;
        for sample in (self.samples)(observed) {
            debug_assert_eq!(sample.labels.len(), self.labels.len(), "{name}");
            let labels: Vec<String> =
                self.labels.iter().zip(&sample.labels).map(|(name, value)| label(name, value)).collect();
            match &sample.value {
                Value::Count(value) => line(out, name, &labels, value)?,
                Value::Real(value) => line(out, name, &labels, value)?,
                Value::Histogram(buckets) => buckets.write(name, &labels, out)?,
            }
        }
        Ok(())
    }
}

impl Buckets {
    fn write(&self, name: &str, labels: &[String], out: &mut String) -> std::fmt::Result {
        let mut bucket = |bound: &str, count: u64| {
            let labels = [labels, &[label("le", bound)]].concat();
            line(out, &format!("{name}_bucket"), &labels, &count)
        };
        for (bound, count) in &self.up_to {
            bucket(&bound.to_string(), *count)?;
        }
        bucket("+Inf", self.count)?;
        line(out, &format!("{name}_sum"), labels, &self.sum)?;
        line(out, &format!("{name}_count"), labels, &self.count)
    }
}

fn line(out: &mut String, name: &str, labels: &[String], value: &impl std::fmt::Display) -> std::fmt::Result {
    match labels {
        [] => writeln!(out, "{name} {value}"),
        labels => writeln!(out, "{name}{{{}}} {value}", labels.join(",")),
    }
}

fn label(name: &str, value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{escaped}\"")
}

#[cfg(test)]
mod tests;
