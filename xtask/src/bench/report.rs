//! The table: what was measured, against what, and whether it holds its bound.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::step;

/// A bound of a row.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// At most so much, or no more than a plain server has beside the same.
    NoWorseThan {
        most: f64,
        plain: f64,
    },
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    what: String,
    measured: String,
    against: String,
    value: f64,
    bound: Bound,
    holds: bool,
}

/// All rows of a run.
#[derive(Default, Serialize)]
pub struct Report {
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Report {
    /// Adds a row. `value` is what the bound is about; the texts show where it comes from.
    pub fn row(&mut self, what: &str, measured: String, against: String, value: f64, bound: Bound) {
        let holds = match bound {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
            Bound::NoWorseThan { most, plain } => value <= most.max(plain),
        };
        eprintln!(
            "  {what}: {measured} against {against}: {value:.2} ({})",
            if holds { "holds" } else { "MISSED" }
        );
        self.rows.push(Row { what: what.to_owned(), measured, against, value, bound, holds });
    }

    /// Adds something to know that has no bound.
    pub fn note(&mut self, text: String) {
        eprintln!("  {text}");
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// A group that could not be measured counts as missed.
    pub fn failed(&mut self, group: &str, error: &anyhow::Error) {
        self.row(group, format!("failed: {error:#}"), "-".into(), f64::NAN, Bound::AtLeast(0.0));
    }

    pub fn misses(&self) -> usize {
        self.rows.iter().filter(|row| !row.holds).count()
    }

    pub fn print(&self) {
        println!("\n| what | cistern | against | value | bound | |\n|---|---|---|---|---|---|");
        for row in &self.rows {
            let bound = match row.bound {
                Bound::AtLeast(least) => format!(">= {least}"),
                Bound::AtMost(most) => format!("<= {most}"),
                Bound::NoWorseThan { most, plain } => format!("<= {most} or {plain:.2} (plain)"),
            };
            let verdict = if row.holds { "holds" } else { "MISSED" };
            let measured = row.measured.replace(['\n', '|'], " ");
            println!(
                "| {} | {measured} | {} | {:.2} | {bound} | {verdict} |",
                row.what, row.against, row.value
            );
        }
        if !self.notes.is_empty() {
            println!();
        }
        self.notes.iter().for_each(|note| println!("- {note}"));
    }

    /// Writes everything to `bench/results`, a file per run.
    pub fn save(&self, quick: bool) -> Result<()> {
        let dir = step::root().join("bench/results");
        std::fs::create_dir_all(&dir)?;
        let seconds = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs());
        let path: PathBuf = dir.join(format!("{seconds}{}.json", if quick { "-quick" } else { "" }));
        std::fs::write(&path, serde_json::to_string_pretty(self)?)
            .with_context(|| path.display().to_string())?;
        println!("\nsaved: {}", path.strip_prefix(step::root()).unwrap_or(&path).display());
        Ok(())
    }
}

/// The middle one; of an even number, the lower.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}
