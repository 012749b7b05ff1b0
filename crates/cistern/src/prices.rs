//! What a store charges, as far as the user has said it, and what requests came to by that.
//!
//! There are no prices by default: they differ by cloud, region and contract, and a directory or a
//! server of one's own costs nothing per request. Only requests and transfer are counted; the rent of
//! what is stored is not.

use cistern_engine::store::{KindStats, StoreKind, StoreStats};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

const GIB: f64 = (1u64 << 30) as f64;

/// The section `[prices]` of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Prices {
    pub currency: String,
    pub put_per_1000: f64,
    pub get_per_1000: f64,
    pub delete_per_1000: f64,
    pub upload_per_gib: f64,
    pub download_per_gib: f64,
}

/// The keys of the section and their meanings, for the reference.
pub const FIELDS: [(&str, &str); 6] = [
    ("currency", "what the numbers are in, such as `\"USD\"`; only shown"),
    ("put-per-1000", "1000 requests that write or list: `put`, `put_if_absent`, `list`, `list_dirs`"),
    ("get-per-1000", "1000 requests that read: `get`, `get_range`"),
    ("delete-per-1000", "1000 requests that delete: `delete`, `delete_many`; free in most clouds"),
    ("upload-per-gib", "a GiB sent to the store; free in most clouds"),
    (
        "download-per-gib",
        "a GiB received from the store; free from a host in the same region, in most clouds",
    ),
];

/// What requests came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub currency: String,
    pub requests: f64,
    pub transfer: f64,
    pub total: f64,
}

impl Prices {
    /// Refuses what can be no price.
    pub fn check(&self) -> Outcome {
        let prices = [
            self.put_per_1000,
            self.get_per_1000,
            self.delete_per_1000,
            self.upload_per_gib,
            self.download_per_gib,
        ];
        match prices.iter().all(|price| price.is_finite() && *price >= 0.0) {
            true => Ok(()),
            false => Err(Failure::usage("a price in [prices] is negative or no number")),
        }
    }

    /// What these requests cost. Every try counts, as stores bill it.
    pub fn cost(&self, store: &StoreStats) -> Cost {
        let requests = store.kinds.iter().map(|kind| self.of_requests(kind)).sum::<f64>();
        let transfer = store.kinds.iter().map(|kind| self.of_transfer(kind)).sum::<f64>();
        Cost { currency: self.currency.clone(), requests, transfer, total: requests + transfer }
    }

    fn of_requests(&self, kind: &KindStats) -> f64 {
        let per_1000 = match kind.kind {
            StoreKind::Put | StoreKind::PutIfAbsent | StoreKind::List | StoreKind::ListDirs => {
                self.put_per_1000
            }
            StoreKind::Get | StoreKind::GetRange => self.get_per_1000,
            StoreKind::Delete | StoreKind::DeleteMany => self.delete_per_1000,
        };
        kind.requests as f64 * per_1000 / 1000.0
    }

    fn of_transfer(&self, kind: &KindStats) -> f64 {
        let per_gib = match kind.kind {
            StoreKind::Put | StoreKind::PutIfAbsent => self.upload_per_gib,
            StoreKind::Get | StoreKind::GetRange => self.download_per_gib,
            StoreKind::List | StoreKind::ListDirs | StoreKind::Delete | StoreKind::DeleteMany => 0.0,
        };
        kind.bytes as f64 / GIB * per_gib
    }
}

#[cfg(test)]
mod tests {
    use cistern_engine::stats::LatencyStats;

    use super::*;

    fn asked(kinds: &[(StoreKind, u64, u64)]) -> StoreStats {
        let kind = |&(kind, requests, bytes)| KindStats {
            kind,
            requests,
            errors: 0,
            bytes,
            latency: LatencyStats::default(),
        };
        StoreStats { kinds: kinds.iter().map(kind).collect(), last_error: None }
    }

    /// Requests are charged by class and bytes by direction.
    #[test]
    fn a_bill() {
        let prices = Prices {
            currency: "USD".into(),
            put_per_1000: 0.005,
            get_per_1000: 0.0004,
            delete_per_1000: 0.0,
            upload_per_gib: 0.0,
            download_per_gib: 0.09,
        };
        let store = asked(&[
            (StoreKind::PutIfAbsent, 2000, 1 << 35),
            (StoreKind::List, 1000, 0),
            (StoreKind::GetRange, 10_000, 2 << 30),
            (StoreKind::Delete, 5, 0),
        ]);
        let cost = prices.cost(&store);
        assert!((cost.requests - (3.0 * 0.005 + 10.0 * 0.0004)).abs() < 1e-12, "{cost:?}");
        assert!(
            (cost.transfer - 0.18).abs() < 1e-12 && cost.total == cost.requests + cost.transfer,
            "{cost:?}"
        );
    }

    /// The documented keys are the keys.
    #[test]
    fn every_key_is_documented() {
        let keys = serde_json::to_value(Prices::default()).expect("plain data");
        let mut keys: Vec<&String> = keys.as_object().expect("an object").keys().collect();
        let mut documented = FIELDS.map(|(key, _)| key);
        keys.sort();
        documented.sort();
        assert_eq!(keys, documented);
    }

    /// Negative prices and those that are no number are refused.
    #[test]
    fn prices_are_not_negative() {
        assert!(Prices { get_per_1000: -1.0, ..Prices::default() }.check().is_err());
        assert!(Prices { get_per_1000: f64::NAN, ..Prices::default() }.check().is_err());
        assert!(Prices { get_per_1000: 1.0, ..Prices::default() }.check().is_ok());
    }
}
