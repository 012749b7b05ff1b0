//! The table of prices: what is shipped, what a user's file says otherwise, and what is wrong with such a file.
//!
//! A file that is refused changes nothing. Form: `docs/format/prices.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::Error as _};
use toml::Spanned;

use super::tariff::Tariff;
use crate::{Error, Result};

/// Bytes of the largest file: some hundred kinds of store.
pub const TABLE_BYTES_MAX: usize = 64 << 10;

const SHIPPED: &str = include_str!("shipped.toml");

/// The greatest price: a thousand times what anything costs is a slip of the decimal point.
const PRICE_MAX: f64 = 100.0;
/// The longest minimum duration: ten years.
const DAYS_MAX: f64 = 3650.0;
/// The greatest allowance for reading: a hundred times what is stored.
const MULTIPLE_MAX: f64 = 100.0;
/// The largest least object.
const OBJECT_BYTES_MAX: u64 = 1 << 30;
/// Bytes of the longest name of a kind, and of the longest text.
const NAME_BYTES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 400;

/// Prices by kind of store.
#[derive(Clone, Debug, PartialEq)]
pub struct PriceTable {
    kinds: BTreeMap<String, Priced>,
}

/// A kind of store: its prices, and where they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    pub tariff: Tariff,
    /// What the kind is, in a few words.
    pub about: String,
    /// Where the figures come from.
    pub source: String,
    /// Name of the last table that said something about the kind.
    pub table: String,
    /// Date of that table, `YYYY-MM-DD`.
    pub date: String,
}

impl PriceTable {
    /// The table that comes with cistern.
    pub fn shipped() -> PriceTable {
        let empty = PriceTable { kinds: BTreeMap::new() };
        empty.amended(SHIPPED).expect("a test reads the shipped table")
    }

    /// This table, with what `text` says otherwise: of a kind that is here already the keys that are given, and whole
    /// new kinds. `Invalid` with the line, the key and what is allowed.
    pub fn amended(mut self, text: &str) -> Result<PriceTable> {
        if text.len() > TABLE_BYTES_MAX {
            return Err(Error::Invalid(format!("a table of prices has at most {TABLE_BYTES_MAX} bytes")));
        }
        let file: File = toml::from_str(text).map_err(|e| wrong(text, e.span(), e.message()))?;
        for (name, lines) in file.kinds {
            let span = lines.span();
            let before = self.kinds.remove(&name.0);
            let priced = lines.into_inner().over(before, &file.name.0, &file.date.0);
            let priced = priced.map_err(|missing| {
                wrong(text, Some(span), &format!("{:?} is a new kind of store and needs {missing}", name.0))
            })?;
            self.kinds.insert(name.0, priced);
        }
        Ok(self)
    }

    /// The prices of a kind.
    pub fn kind(&self, name: &str) -> Option<&Priced> {
        self.kinds.get(name)
    }

    /// All kinds, by name.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &Priced)> {
        self.kinds.iter().map(|(name, priced)| (name.as_str(), priced))
    }
}

/// One sentence: the line, what stands there, and what is wrong with it.
fn wrong(text: &str, span: Option<std::ops::Range<usize>>, message: &str) -> Error {
    let message = message.replace('\n', ", ");
    let Some(before) = span.and_then(|span| text.get(..span.start)) else {
        return Error::Invalid(format!("table of prices: {message}"));
    };
    let number = before.matches('\n').count() + 1;
    let line: String = text.lines().nth(number - 1).unwrap_or("").trim().chars().take(80).collect();
    Error::Invalid(format!("table of prices, line {number} ({line}): {message}"))
}

/// A file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Text,
    date: Date,
    #[serde(default)]
    kinds: BTreeMap<KindName, Spanned<Lines>>,
}

/// What a file says about a kind. What it does not say stays as it was.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Lines {
    about: Option<Text>,
    source: Option<Text>,
    storage_per_gib_month: Option<Price>,
    put_per_1000: Option<Price>,
    get_per_1000: Option<Price>,
    upload_per_gib: Option<Price>,
    download_per_gib: Option<Price>,
    free_download_multiple: Option<Multiple>,
    min_days: Option<Days>,
    min_object_bytes: Option<ObjectBytes>,
}

impl Lines {
    /// The prices of a kind that had these before. The name of a key that is missing, if the kind is new.
    fn over(self, before: Option<Priced>, table: &str, date: &str) -> Result<Priced, &'static str> {
        let known = before.is_some();
        let (old, old_about) = before.map_or((Tariff::default(), None), |b| (b.tariff, Some(b.about)));
        let needed = |given: Option<Price>, old: f64, key: &'static str| match given {
            Some(Price(given)) => Ok(given),
            None if known => Ok(old),
            None => Err(key),
        };
        let tariff = Tariff {
            storage_per_gib_month: needed(
                self.storage_per_gib_month,
                old.storage_per_gib_month,
                "storage-per-gib-month",
            )?,
            put_per_1000: needed(self.put_per_1000, old.put_per_1000, "put-per-1000")?,
            get_per_1000: needed(self.get_per_1000, old.get_per_1000, "get-per-1000")?,
            upload_per_gib: self.upload_per_gib.map_or(old.upload_per_gib, |p| p.0),
            download_per_gib: self.download_per_gib.map_or(old.download_per_gib, |p| p.0),
            free_download_multiple: self.free_download_multiple.map_or(old.free_download_multiple, |m| m.0),
            min_days: self.min_days.map_or(old.min_days, |d| d.0),
            min_object_bytes: self.min_object_bytes.map_or(old.min_object_bytes, |b| b.0),
        };
        Ok(Priced {
            tariff,
            about: self.about.map(|t| t.0).or(old_about).unwrap_or_default(),
            // Where the old figures came from does not vouch for the new ones.
            source: self.source.map_or_else(|| table.to_owned(), |t| t.0),
            table: table.to_owned(),
            date: date.to_owned(),
        })
    }
}

/// A number from 0 to `max`, given as an integer or with a point.
fn amount<'de, D: Deserializer<'de>>(from: D, what: &str, max: f64) -> Result<f64, D::Error> {
    let value = f64::deserialize(from)?;
    match (0.0..=max).contains(&value) {
        true => Ok(value + 0.0), // -0 is 0
        false => Err(D::Error::custom(format!("{what} is a number from 0 to {max}"))),
    }
}

struct Price(f64);

impl<'de> Deserialize<'de> for Price {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        amount(from, "a price in dollars", PRICE_MAX).map(Price)
    }
}

struct Days(f64);

impl<'de> Deserialize<'de> for Days {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        amount(from, "a minimum duration in days", DAYS_MAX).map(Days)
    }
}

struct Multiple(f64);

impl<'de> Deserialize<'de> for Multiple {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        amount(from, "the multiple of what is stored", MULTIPLE_MAX).map(Multiple)
    }
}

struct ObjectBytes(u64);

impl<'de> Deserialize<'de> for ObjectBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let allowed = || D::Error::custom(format!("bytes are a whole number from 0 to {OBJECT_BYTES_MAX}"));
        let value = i64::deserialize(from).ok().and_then(|value| u64::try_from(value).ok());
        value.filter(|bytes| *bytes <= OBJECT_BYTES_MAX).map(ObjectBytes).ok_or_else(allowed)
    }
}

/// A line of text to show.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let fits = !text.is_empty() && text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
        let allowed = || D::Error::custom(format!("a text is one line of 1 to {TEXT_BYTES_MAX} bytes"));
        fits.then_some(Text(text)).ok_or_else(allowed)
    }
}

/// `YYYY-MM-DD`.
struct Date(String);

impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let allowed = || D::Error::custom("a date is written like \"2026-11-22\"");
        let text = String::deserialize(from).map_err(|_| allowed())?;
        let parts: Vec<&str> = text.split('-').collect();
        let number = |part: &str, digits: usize| {
            let is_number = part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
            part.parse::<u32>().ok().filter(|_| is_number)
        };
        let fits = match parts[..] {
            [year, month, day] => {
                number(year, 4).is_some()
                    && number(month, 2).is_some_and(|m| (1..=12).contains(&m))
                    && number(day, 2).is_some_and(|d| (1..=31).contains(&d))
            }
            _ => false,
        };
        fits.then_some(Date(text)).ok_or_else(allowed)
    }
}

/// The name of a kind of store.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct KindName(String);

impl<'de> Deserialize<'de> for KindName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let is_name_byte = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_name_byte);
        let allowed = "the name of a kind of store has lower-case letters, digits and '-'";
        fits.then_some(KindName(name)).ok_or_else(|| D::Error::custom(allowed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: &str = "name = \"mine\"\ndate = \"2026-11-22\"\n";

    fn refusal(text: &str) -> String {
        PriceTable::shipped().amended(text).expect_err(text).to_string()
    }

    /// The shipped table has every kind that the guesses lead to, each with a date and a source.
    #[test]
    fn the_shipped_table_is_whole() {
        let table = PriceTable::shipped();
        let names: Vec<&str> = table.kinds().map(|(name, _)| name).collect();
        let expected = [
            "b2",
            "gcs-standard",
            "own-disks",
            "r2",
            "r2-ia",
            "s3-express",
            "s3-ia",
            "s3-standard",
            "s3-standard-outside",
            "wasabi",
        ];
        assert_eq!(names, expected);
        for (name, priced) in table.kinds() {
            assert!(!priced.source.is_empty() && !priced.about.is_empty(), "{name}");
            assert_eq!((priced.table.as_str(), priced.date.as_str()), ("shipped with cistern", "2026-11-22"));
            assert!(priced.tariff.storage_per_gib_month > 0.0, "{name}");
        }
    }

    /// A user's file changes the keys it gives, adds kinds, and leaves everything else; what it changed bears its name.
    #[test]
    fn a_users_file_amends_the_table() {
        let shipped = PriceTable::shipped();
        let text = format!(
            "{HEAD}[kinds.s3-standard]\nstorage-per-gib-month = 0.021\n\
             [kinds.tape]\nabout = \"a robot\"\nsource = \"contract 7\"\nstorage-per-gib-month = 1\n\
             put-per-1000 = 0\nget-per-1000 = 2.5\nmin-days = 180\nmin-object-bytes = 4096\n"
        );
        let table = shipped.clone().amended(&text).expect("it is right");
        let s3 = table.kind("s3-standard").expect("it stays");
        let old = shipped.kind("s3-standard").expect("it is shipped");
        assert_eq!(s3.tariff, Tariff { storage_per_gib_month: 0.021, ..old.tariff });
        assert_eq!((s3.about.as_str(), s3.source.as_str()), (old.about.as_str(), "mine"));
        let tape = table.kind("tape").expect("it is new");
        assert_eq!((tape.tariff.storage_per_gib_month, tape.tariff.min_days), (1.0, 180.0));
        assert_eq!(
            (tape.source.as_str(), tape.table.as_str(), tape.date.as_str()),
            ("contract 7", "mine", "2026-11-22")
        );
        assert_eq!(table.kind("r2"), shipped.kind("r2"));
        assert_eq!(table.kinds().count(), shipped.kinds().count() + 1);
    }

    /// Everything that cannot be meant is refused in one sentence: the line, what stands there, what is allowed.
    #[test]
    fn mistakes_are_explained() {
        for (lines, help) in [
            (
                "[kinds.r2]\nput-per-1000 = -1",
                "line 4 (put-per-1000 = -1): a price in dollars is a number from 0 to 100",
            ),
            ("[kinds.r2]\n\nget-per-1000 = nan", "line 5 (get-per-1000 = nan): a price in dollars"),
            ("[kinds.r2]\nupload-per-gib = inf", "line 4 (upload-per-gib = inf): a price in dollars"),
            ("[kinds.r2]\nupload-per-gib = 1e9", "line 4 (upload-per-gib = 1e9): a price in dollars"),
            ("[kinds.r2]\nupload-per-gib = \"1\"", "line 4 (upload-per-gib = \"1\"): invalid type"),
            (
                "[kinds.r2]\nmin-days = 1e5",
                "line 4 (min-days = 1e5): a minimum duration in days is a number from 0 to 3650",
            ),
            ("[kinds.r2]\nmin-object-bytes = -1", "line 4 (min-object-bytes = -1): bytes are a whole number"),
            (
                "[kinds.r2]\nmin-object-bytes = 0.5",
                "line 4 (min-object-bytes = 0.5): bytes are a whole number",
            ),
            ("[kinds.r2]\nfree-download-multiple = 1000", "a number from 0 to 100"),
            ("[kinds.r2]\nputs = 1", "line 4 (puts = 1): unknown field `puts`, expected one of"),
            ("[kinds.r2]\nabout = \"\"", "line 4 (about = \"\"): a text is one line"),
            ("[kinds.R2]\nput-per-1000 = 1", "lower-case letters"),
            (
                "[kinds.new]\nput-per-1000 = 1",
                "line 3 ([kinds.new]): \"new\" is a new kind of store and needs storage-per-gib-month",
            ),
            ("[kind.r2]\nput-per-1000 = 1", "line 3 ([kind.r2]): unknown field `kind`, expected one of"),
            ("[kinds.r2]\nput-per-1000 = 1\nput-per-1000 = 1", "line 5 (put-per-1000 = 1): duplicate key"),
            ("[kinds.r2", "line 3 ([kinds.r2): "),
        ] {
            let error = refusal(&format!("{HEAD}{lines}"));
            assert!(error.contains(help), "{lines}: {error}");
            assert!(error.starts_with("table of prices, line ") && !error.contains('\n'), "{error}");
        }
        assert!(refusal("date = \"2026-11-22\"").contains("missing field `name`"));
        for date in ["\"2026-13-01\"", "\"22.11.2026\"", "\"2026-1-1\"", "2026-11-22", "5"] {
            let error = refusal(&format!("name = \"mine\"\ndate = {date}"));
            assert!(error.contains("line 2") && error.contains("like \"2026-11-22\""), "{error}");
        }
        assert!(refusal(&" ".repeat(TABLE_BYTES_MAX + 1)).contains("at most 65536 bytes"));
    }

    proptest! {
        /// Whatever a file holds, reading it ends with a table or one sentence, and every number of a table is in bounds.
        #[test]
        fn no_text_does_harm(
            key in "[a-z0-9-]{1,12}|storage-per-gib-month|put-per-1000|min-days|min-object-bytes|about",
            value in "[ -~]{0,12}|-?[0-9]{1,20}|-?[0-9.e+]{1,9}|nan|[+-]inf",
            tail in "\\PC{0,40}",
        ) {
            match PriceTable::shipped().amended(&format!("{HEAD}[kinds.r2]\n{key} = {value}\n{tail}")) {
                Ok(table) => {
                    let tariff = table.kind("r2").expect("it stays").tariff;
                    for number in [tariff.storage_per_gib_month, tariff.put_per_1000, tariff.get_per_1000, tariff.min_days] {
                        prop_assert!(number.is_finite() && number >= 0.0);
                    }
                }
                Err(error) => prop_assert!(!error.to_string().contains('\n')),
            }
        }
    }
}
