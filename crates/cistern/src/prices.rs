//! What the stores of volumes charge, by one table of prices, and what was asked of them came to by that.
//!
//! The table is the one that comes with cistern, amended by a file of the user's; the kind of a store is what the user
//! says, or follows from its address. The same prices tell the cleaner what is worth cleaning.

use std::{io::Read, path::Path, path::PathBuf, time::Duration};

use cistern_engine::{
    price::{Bill, DAYS_PER_MONTH, How, Month, PriceTable, Priced, TABLE_BYTES_MAX, Tariff},
    store::{KindStats, StoreKind, StoreStats, StoreUrl, Variables},
    volume::CollectPlan,
};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// What the tables are in.
const CURRENCY: &str = "USD";
/// Microseconds of a month.
const MONTH_US: f64 = DAYS_PER_MONTH * 86_400e6;

/// The section `[prices]` of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct PriceSettings {
    pub table: Option<PathBuf>,
    pub kind: Option<String>,
}

/// The keys of the section and their meanings, for the reference.
pub const FIELDS: [(&str, &str); 2] = [
    ("table", "a file that amends the table that comes with cistern"),
    (
        "kind",
        "the kind of store in which all volumes of the daemon lie, one of those that `cistern cost` lists",
    ),
];

/// The table that counts, and what the user says of the stores.
pub struct Prices {
    table: PriceTable,
    kind: Option<String>,
}

/// What the store of one volume charges, and why that is believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorePrices {
    pub kind: String,
    pub how: Belief,
    /// The table that said something about the kind last, and its date.
    pub table: String,
    pub date: String,
    pub tariff: Tariff,
}

/// How sure it is that a store is of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Belief {
    Set,
    Known,
    Guessed,
    StandsIn,
}

impl From<How> for Belief {
    fn from(how: How) -> Belief {
        match how {
            How::Set => Belief::Set,
            How::Known => Belief::Known,
            How::Guessed => Belief::Guessed,
            How::StandIn => Belief::StandsIn,
        }
    }
}

impl Belief {
    /// For metrics, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Belief::Set => "set",
            Belief::Known => "known",
            Belief::Guessed => "guessed",
            Belief::StandsIn => "stands-in",
        }
    }

    /// For people.
    pub fn explain(self) -> &'static str {
        match self {
            Belief::Set => "as set",
            Belief::Known => "by its address",
            Belief::Guessed => "guessed from its address",
            Belief::StandsIn => "in place of its own, which are not known",
        }
    }
}

/// What requests, transfer and storage come to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub currency: String,
    /// In the time that was looked at.
    pub requests: f64,
    pub transfer: f64,
    pub total: f64,
    /// A month of what is stored now; absent where that is not known.
    pub rent_per_month: Option<f64>,
    /// A month at the rate of the time that was looked at, rent included.
    pub month: Option<f64>,
}

/// What collecting garbage comes to, by what is planned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectionCost {
    pub currency: String,
    /// Requests and transfer.
    pub once: f64,
    /// A month of the segments that are stored now, and of those that are when it is done.
    pub rent_now: f64,
    pub rent_after: f64,
}

impl Prices {
    /// Reads the table that the settings name. Fails for one that is no table, and for a kind that it does not have.
    pub fn load(settings: &PriceSettings) -> Outcome<Prices> {
        let prices = Prices { table: read_table(settings.table.as_deref())?, kind: settings.kind.clone() };
        prices.table.choose(prices.kind.as_deref(), "file", None)?;
        Ok(prices)
    }

    /// The prices of the store in which a volume lies.
    pub fn of(&self, url: &StoreUrl) -> StorePrices {
        let (scheme, host) = Variables::of_process().address(url);
        self.at(scheme, host.as_deref())
    }

    fn at(&self, scheme: &str, host: Option<&str>) -> StorePrices {
        let choice = self.table.choose(self.kind.as_deref(), scheme, host);
        let choice = choice.expect("what the user said was looked up, and what is guessed is shipped");
        let Priced { tariff, table, date, .. } =
            self.table.kind(&choice.kind).expect("it was chosen from it").clone();
        StorePrices { kind: choice.kind, how: choice.how.into(), table, date, tariff }
    }
}

/// The shipped table, with what a file says otherwise. Never reads more than a table may have.
pub fn read_table(path: Option<&Path>) -> Outcome<PriceTable> {
    let Some(path) = path else { return Ok(PriceTable::shipped()) };
    let failed = |e| Failure::io(format!("the table of prices {} cannot be read", path.display()), &e);
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(TABLE_BYTES_MAX as u64 + 1).read_to_string(&mut text).map_err(failed)?;
    PriceTable::shipped().amended(&text).map_err(|e| Failure::from(e).context(path.display()))
}

impl StorePrices {
    /// What was asked in a time costs, with so much stored now. Every try counts, as stores bill it; deletes are free.
    pub fn cost(&self, store: &StoreStats, stored_bytes: Option<u64>, time: Duration) -> Cost {
        let asked = asked(store, stored_bytes.unwrap_or(0));
        let Bill { storage, requests, transfer } = self.tariff.bill(&asked);
        let month = stored_bytes.map(|_| {
            let scale = MONTH_US / (time.as_micros() as f64).max(1.0);
            self.tariff.bill(&scaled(&asked, scale)).total()
        });
        Cost {
            currency: CURRENCY.to_owned(),
            requests,
            transfer,
            total: requests + transfer,
            rent_per_month: stored_bytes.map(|_| storage),
            month,
        }
    }
}

impl StorePrices {
    /// What a planned collection costs, and what segments cost before and after it.
    pub fn collection(&self, plan: &CollectPlan) -> CollectionCost {
        let planned = Month {
            stored_bytes: plan.stored_bytes,
            puts: plan.puts,
            gets: plan.gets,
            uploaded_bytes: plan.put_bytes,
            downloaded_bytes: plan.fetched_bytes,
        };
        let bill = self.tariff.bill(&planned);
        let after = self.tariff.bill(&Month { stored_bytes: plan.after_bytes, ..Month::default() });
        CollectionCost {
            currency: CURRENCY.to_owned(),
            once: bill.requests + bill.transfer,
            rent_now: bill.storage,
            rent_after: after.storage,
        }
    }
}

/// Requests and bytes by the classes in which they are billed.
fn asked(store: &StoreStats, stored_bytes: u64) -> Month {
    let sum = |kinds: &[StoreKind], of: fn(&KindStats) -> u64| {
        store.kinds.iter().filter(|kind| kinds.contains(&kind.kind)).map(of).sum()
    };
    let (puts, gets) = ([StoreKind::Put, StoreKind::PutIfAbsent], [StoreKind::Get, StoreKind::GetRange]);
    let lists: u64 = sum(&[StoreKind::List, StoreKind::ListDirs], |kind| kind.requests);
    Month {
        stored_bytes,
        puts: sum(&puts, |kind| kind.requests) + lists,
        gets: sum(&gets, |kind| kind.requests),
        uploaded_bytes: sum(&puts, |kind| kind.bytes),
        downloaded_bytes: sum(&gets, |kind| kind.bytes),
    }
}

fn scaled(asked: &Month, by: f64) -> Month {
    let scaled = |count: u64| (count as f64 * by) as u64;
    Month {
        stored_bytes: asked.stored_bytes,
        puts: scaled(asked.puts),
        gets: scaled(asked.gets),
        uploaded_bytes: scaled(asked.uploaded_bytes),
        downloaded_bytes: scaled(asked.downloaded_bytes),
    }
}

#[cfg(test)]
mod tests {
    use cistern_engine::stats::LatencyStats;

    use super::*;

    const GIB: u64 = 1 << 30;
    const DAY: Duration = Duration::from_secs(86_400);

    fn stats(kinds: &[(StoreKind, u64, u64)]) -> StoreStats {
        let kind = |&(kind, requests, bytes)| KindStats {
            kind,
            requests,
            errors: 0,
            bytes,
            latency: LatencyStats::default(),
        };
        StoreStats { kinds: kinds.iter().map(kind).collect(), last_error: None }
    }

    fn prices(kind: &str) -> StorePrices {
        let settings = PriceSettings { kind: Some(kind.to_owned()), table: None };
        Prices::load(&settings).expect("it is shipped").at("s3", None)
    }

    fn assert_near(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
    }

    /// Requests are charged by class, bytes by direction, and what is stored by the month; a month at this rate is all of it.
    #[test]
    fn a_bill() {
        let store = stats(&[
            (StoreKind::PutIfAbsent, 2000, 32 * GIB),
            (StoreKind::List, 1000, 5),
            (StoreKind::GetRange, 10_000, 2 * GIB),
            (StoreKind::Delete, 5, 0),
            (StoreKind::DeleteMany, 5, 0),
        ]);
        let cost = prices("s3-standard-outside").cost(&store, Some(100 * GIB), DAY);
        let (requests, transfer) = (3.0 * 0.005 + 10.0 * 0.0004, 0.18);
        assert_near(cost.requests, requests);
        assert_near(cost.transfer, transfer);
        assert_near(cost.total, requests + transfer);
        assert_near(cost.rent_per_month.expect("known"), 2.3);
        let month = 2.3 + (requests + transfer) * DAYS_PER_MONTH;
        assert!((cost.month.expect("known") - month).abs() < 1e-4, "{cost:?}");
        assert_eq!(cost.currency, "USD");
        let reader = prices("s3-standard-outside").cost(&store, None, DAY);
        assert_eq!((reader.rent_per_month, reader.month, reader.total), (None, None, cost.total));
    }

    /// A collection costs its requests and its transfer once, and what it frees no rent any more.
    #[test]
    fn what_a_collection_costs() {
        let plan = CollectPlan {
            stored_bytes: 200 * GIB,
            after_bytes: 150 * GIB,
            gets: 10_000,
            fetched_bytes: 30 * GIB,
            puts: 2000,
            put_bytes: 30 * GIB,
            ..CollectPlan::default()
        };
        let cost = prices("s3-standard-outside").collection(&plan);
        assert_near(cost.once, 10.0 * 0.0004 + 2.0 * 0.005 + 30.0 * 0.09);
        assert_near(cost.rent_now, 4.6);
        assert_near(cost.rent_after, 3.45);
        assert_near(prices("b2").collection(&plan).once, 10.0 * 0.0004);
    }

    /// What may be read freely is free, and a month at this rate is more than that.
    #[test]
    fn free_reading_ends() {
        let store = stats(&[(StoreKind::Get, 0, 20 * GIB)]);
        let cost = prices("b2").cost(&store, Some(100 * GIB), DAY);
        assert_eq!(cost.transfer, 0.0);
        let month = 100.0 * 0.006 + (20.0 * DAYS_PER_MONTH - 300.0) * 0.01;
        assert!((cost.month.expect("known") - month).abs() < 1e-4, "{cost:?}");
    }

    /// The kind is what the user says, for any store; without a word it follows from the address, and that is told.
    #[test]
    fn the_kind_of_a_store() {
        let guessed = Prices::load(&PriceSettings::default()).expect("shipped").at("s3", None);
        assert_eq!((guessed.kind.as_str(), guessed.how), ("s3-standard", Belief::Guessed));
        assert_eq!(guessed.table, "shipped with cistern");
        let set = prices("wasabi");
        assert_eq!((set.kind.as_str(), set.how), ("wasabi", Belief::Set));
        let unknown = PriceSettings { kind: Some("glacier".into()), table: None };
        let refused = Prices::load(&unknown).err().expect("there is no such kind").text;
        assert!(refused.contains("known are b2, "), "{refused}");
    }

    /// What JSON calls a belief metrics do too.
    #[test]
    fn beliefs_have_one_name() {
        for belief in [Belief::Set, Belief::Known, Belief::Guessed, Belief::StandsIn] {
            assert_eq!(serde_json::to_value(belief).expect("plain"), belief.name());
        }
    }

    /// The documented keys are the keys.
    #[test]
    fn every_key_is_documented() {
        let keys = serde_json::to_value(PriceSettings::default()).expect("plain data");
        let mut keys: Vec<&String> = keys.as_object().expect("an object").keys().collect();
        let mut documented = FIELDS.map(|(key, _)| key);
        keys.sort();
        documented.sort();
        assert_eq!(keys, documented);
    }
}
