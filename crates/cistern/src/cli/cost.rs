//! `cistern cost`: the prices that cleaning is reckoned with, and where they come from.

use std::{path::PathBuf, time::Duration};

use cistern_engine::price::{Candidate, DAYS_PER_MONTH, Priced, Tariff};
use clap::Args;
use serde::Serialize;

use crate::{cli::Context, failure::Outcome, prices::read_table, quantity::Span, terminal};

const SECONDS_PER_MONTH: f64 = DAYS_PER_MONTH * 86_400.0;

/// Show what stores charge, as cistern knows it: prices, their date and their source
///
/// In US dollars. PAYBACK is after how long the cleaning of a half-dead segment has paid for itself, where reading it
/// is billed and its MIN DAYS are over. By these prices the cleaner goes, and `status --io` shows what a volume costs, which
/// also says what kind of store it is taken for: the section [prices] of the settings file sets that.
#[derive(Args)]
pub(super) struct ShowCost {
    /// A table of your own, in TOML: it changes what it names and adds kinds of store
    ///
    /// [default: the one that the settings file names]
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// One kind of store.
#[derive(Serialize)]
struct Line<'a> {
    kind: &'a str,
    about: &'a str,
    source: &'a str,
    table: &'a str,
    date: &'a str,
    prices: Tariff,
    /// Absent where it never pays.
    payback_half_live_s: Option<u64>,
}

impl ShowCost {
    pub fn run(self, context: &Context) -> Outcome {
        let set = context.file.prices.as_ref().and_then(|prices| prices.table.as_ref());
        let table = read_table(self.prices.as_ref().or(set).map(PathBuf::as_path))?;
        let lines: Vec<Line> = table.kinds().map(Line::new).collect();
        match self.json {
            true => terminal::say_json(&lines),
            false => terminal::say(shown(&lines)),
        }
    }
}

impl<'a> Line<'a> {
    fn new((kind, priced): (&'a str, &'a Priced)) -> Line<'a> {
        let Priced { tariff, about, source, table, date } = priced;
        let half = Candidate { live: 0.5, cached: 0.0, idle: Duration::ZERO, age: Duration::MAX };
        let payback_s = half.payback_months(tariff) * SECONDS_PER_MONTH;
        let payback_half_live_s = payback_s.is_finite().then_some(payback_s as u64);
        Line { kind, about, source, table, date, prices: *tariff, payback_half_live_s }
    }

    fn row(&self) -> Vec<String> {
        let of = &self.prices;
        let prices = [
            of.storage_per_gib_month,
            of.put_per_1000,
            of.get_per_1000,
            of.upload_per_gib,
            of.download_per_gib,
        ];
        let mut row = vec![self.kind.to_owned()];
        row.extend(prices.map(|price| price.to_string()));
        row.extend([of.free_download_multiple, of.min_days].map(|number| number.to_string()));
        let payback = self.payback_half_live_s.map(|s| Span(Duration::from_secs(s)).to_string());
        row.push(payback.unwrap_or_else(|| "never".to_owned()));
        row
    }
}

fn shown(lines: &[Line]) -> String {
    let header = [
        "KIND",
        "GIB-MONTH",
        "1000 PUT",
        "1000 GET",
        "GIB UP",
        "GIB DOWN",
        "FREE DOWN",
        "MIN DAYS",
        "PAYBACK",
    ];
    let header = header.map(str::to_owned).to_vec();
    let rows: Vec<_> = std::iter::once(header).chain(lines.iter().map(Line::row)).collect();
    let mut out = terminal::right_aligned(&rows);
    for Line { kind, about, source, table, date, .. } in lines {
        out.push_str(&format!("\n\n{kind}: {about}\n  {table}, {date}; from {source}"));
    }
    out
}
