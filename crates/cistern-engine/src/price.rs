//! What keeping and moving bytes costs: the prices of stores, and what follows from them for cleaning.
//!
//! Owns the table of prices (a file with a date, that a user's file amends), the score by which victims are picked,
//! the rules that money makes (minimum storage durations, dear reading) and the best ratio of store to live data.
//! All of it is arithmetic on values: nothing here reads, waits, counts or decides by itself. No result is NaN.
//!
//! Units: US dollars; GiB of 2^30 bytes; months of 365.25 / 12 days; ratios and shares without unit. Where the
//! formulas come from: `docs/design/prices.md`; the form of the files: `docs/format/prices.md`.

mod choose;
mod ratio;
mod table;
mod tariff;
#[cfg(test)]
mod tests;
mod victim;

pub use choose::{Choice, How};
pub use ratio::{RATIO_MAX, RATIO_MIN, write_amplification};
pub use table::{PriceTable, Priced, TABLE_BYTES_MAX};
pub use tariff::{Bill, Month, Tariff};
pub use victim::{Candidate, LIVE_MAX_DEAR, Worth};

/// Bytes of the GiB in which prices are given.
pub const GIB: f64 = (1u64 << 30) as f64;
const SECONDS_PER_DAY: f64 = 86_400.0;
/// Days of a month, on average.
pub const DAYS_PER_MONTH: f64 = 365.25 / 12.0;
