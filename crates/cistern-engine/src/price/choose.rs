//! Which prices are those of a store: by the user's word, or by its address.

use super::table::PriceTable;
use crate::{Error, Result};

const OWN_DISKS: &str = "own-disks";
const S3: &str = "s3-standard";

/// Suffixes of host names, and the kind of store behind them. The first that fits counts.
const HOSTS: [(&str, &str, How); 6] = [
    ("amazonaws.com", S3, How::Guessed),
    ("amazonaws.com.cn", S3, How::StandIn),
    ("r2.cloudflarestorage.com", "r2", How::Guessed),
    ("backblazeb2.com", "b2", How::Known),
    ("wasabisys.com", "wasabi", How::Known),
    ("storage.googleapis.com", "gcs-standard", How::Guessed),
];

/// The kind of a store, a key of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub kind: String,
    pub how: How,
}

/// How sure a choice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The user said it.
    Set,
    /// The address leaves nothing else.
    Known,
    /// The usual case of what has such an address: the storage class, and from where the store is used, cannot be seen.
    Guessed,
    /// There are no prices for this kind of store: those of a similar one stand in.
    StandIn,
}

impl PriceTable {
    /// The kind of a store: `set` if the user said it, or else by the scheme of its URL (`s3`, `gs`, `az`, `file`) and
    /// the host of its endpoint, with or without a port; no host is the vendor's own. `Invalid` for a kind that is not
    /// in the table.
    pub fn choose(&self, set: Option<&str>, scheme: &str, host: Option<&str>) -> Result<Choice> {
        let Some(kind) = set else {
            let (kind, how) = guess(scheme, host);
            return Ok(Choice { kind: kind.to_owned(), how });
        };
        match self.kind(kind) {
            Some(_) => Ok(Choice { kind: kind.to_owned(), how: How::Set }),
            None => {
                let known: Vec<&str> = self.kinds().map(|(name, _)| name).collect();
                Err(Error::Invalid(format!(
                    "there are no prices for {kind:?}: known are {}",
                    known.join(", ")
                )))
            }
        }
    }
}

fn guess(scheme: &str, host: Option<&str>) -> (&'static str, How) {
    match (scheme, host) {
        ("s3", None) => (S3, How::Guessed),
        ("gs", None) => ("gcs-standard", How::Guessed),
        ("az", None) => (S3, How::StandIn),
        (_, None) => (OWN_DISKS, How::Guessed),
        (scheme, Some(host)) => guess_by_host(scheme, host),
    }
}

fn guess_by_host(scheme: &str, host: &str) -> (&'static str, How) {
    let name = host.rsplit_once(':').map_or(host, |(name, _port)| name);
    let host = name.trim_end_matches('.').to_ascii_lowercase();
    let fits =
        |suffix: &str| host.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    if fits("amazonaws.com") && host.contains("s3express") {
        return ("s3-express", How::Known);
    }
    match HOSTS.iter().find(|(suffix, ..)| fits(suffix)) {
        Some((_, kind, how)) => (kind, *how),
        None if scheme == "az" && fits("core.windows.net") => (S3, How::StandIn),
        None => (OWN_DISKS, How::Guessed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every address leads to the kind that most stores with such an address are, and says how sure that is.
    #[test]
    fn addresses_lead_to_kinds() {
        let table = PriceTable::shipped();
        for (scheme, host, kind, how) in [
            ("file", None, "own-disks", How::Guessed),
            ("s3", None, "s3-standard", How::Guessed),
            ("s3", Some("s3.eu-central-1.amazonaws.com"), "s3-standard", How::Guessed),
            ("s3", Some("S3.EU-CENTRAL-1.AmazonAWS.com:443"), "s3-standard", How::Guessed),
            ("s3", Some("s3.cn-north-1.amazonaws.com.cn"), "s3-standard", How::StandIn),
            (
                "s3",
                Some("b--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com"),
                "s3-express",
                How::Known,
            ),
            ("s3", Some("0123abcd.r2.cloudflarestorage.com"), "r2", How::Guessed),
            ("s3", Some("0123abcd.eu.r2.cloudflarestorage.com"), "r2", How::Guessed),
            ("s3", Some("s3.us-west-004.backblazeb2.com"), "b2", How::Known),
            ("s3", Some("s3.wasabisys.com"), "wasabi", How::Known),
            ("s3", Some("s3.eu-central-2.wasabisys.com."), "wasabi", How::Known),
            ("s3", Some("storage.googleapis.com"), "gcs-standard", How::Guessed),
            ("gs", None, "gcs-standard", How::Guessed),
            ("az", None, "s3-standard", How::StandIn),
            ("az", Some("account.blob.core.windows.net"), "s3-standard", How::StandIn),
            ("s3", Some("minio.example.org:9000"), "own-disks", How::Guessed),
            ("s3", Some("[::1]:9000"), "own-disks", How::Guessed),
            ("s3", Some("10.0.0.7"), "own-disks", How::Guessed),
            ("s3", Some("notwasabisys.com"), "own-disks", How::Guessed),
            ("s3", Some("wasabisys.com.example.org"), "own-disks", How::Guessed),
        ] {
            let choice = table.choose(None, scheme, host).expect("a guess cannot fail");
            assert_eq!((choice.kind.as_str(), choice.how), (kind, how), "{scheme} {host:?}");
            assert!(table.kind(kind).is_some(), "{kind} is in the table");
        }
    }

    /// What the user says counts, if the table has it; otherwise the kinds that it has are listed.
    #[test]
    fn the_users_word_counts() {
        let table = PriceTable::shipped();
        let choice = table.choose(Some("s3-standard-outside"), "s3", None).expect("it is in the table");
        assert_eq!(choice, Choice { kind: "s3-standard-outside".into(), how: How::Set });
        let error = table.choose(Some("glacier"), "s3", None).expect_err("it is not").to_string();
        assert!(error.contains("\"glacier\"") && error.contains("b2, gcs-standard, own-disks"), "{error}");
    }
}
