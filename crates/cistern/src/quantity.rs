//! Quantities as people write them: sizes with binary suffixes and durations.
//!
//! Parsing is exact or refused: no rounding, no silent overflow. Printing picks the unit in which
//! the number is short; what it prints without a fraction parses back to the same value.

use std::{fmt, str::FromStr, time::Duration};

use cistern_engine::space::Bound;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::failure::{Failure, Outcome};

/// Binary units, largest first; written as the letter alone or with `iB`.
const UNITS: [(&str, u64); 6] =
    [("E", 1 << 60), ("P", 1 << 50), ("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// Units of time, largest first. Unit of the number: milliseconds.
const TIMES: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let explain =
            || format!("'{text}' is not a size: write a number with K, M, G, T or P, like 10G or 1.5TiB");
        let text = text.trim();
        let (number, suffix) = split_number(text);
        let factor = match suffix.trim() {
            "" | "B" | "b" => 1,
            s => {
                let letter = s.strip_suffix("iB").unwrap_or(s);
                let unit = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(letter));
                match unit {
                    Some((_, factor)) => *factor,
                    None if s.len() == 2 && s.ends_with(['B', 'b']) => {
                        let letter = &s[..1];
                        return Err(format!(
                            "'{text}': is {letter}B decimal or binary? Write {letter} or {letter}iB: sizes are binary"
                        ));
                    }
                    None => return Err(explain()),
                }
            }
        };
        scale(number, factor).map(ByteSize).ok_or_else(explain)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, factor)| self.0 >= *factor) {
            None => write!(f, "{} bytes", self.0),
            Some((name, factor)) if self.0.is_multiple_of(*factor) => {
                write!(f, "{} {name}iB", self.0 / factor)
            }
            Some((name, factor)) => write!(f, "{:.1} {name}iB", self.0 as f64 / *factor as f64),
        }
    }
}

/// A length of time, exact to the millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let explain =
            || format!("'{text}' is not a duration: write a number with ms, s, m, h or d, like 30s or 5m");
        let (number, unit) = split_number(text.trim());
        let factor = TIMES.iter().find(|(name, _)| *name == unit.trim()).map(|(_, ms)| *ms);
        let factor = match factor {
            Some(factor) => factor,
            None if number == "0" && unit.is_empty() => 1,
            None => return Err(explain()),
        };
        scale(number, factor).map(|ms| Span(Duration::from_millis(ms))).ok_or_else(explain)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        match TIMES.iter().find(|(_, factor)| ms >= *factor) {
            None => f.write_str("0s"),
            Some((name, factor)) if ms.is_multiple_of(*factor) => write!(f, "{}{name}", ms / factor),
            Some((name, factor)) => write!(f, "{:.1}{name}", ms as f64 / *factor as f64),
        }
    }
}

/// Bytes of a volume, from the first to behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    pub from: u64,
    pub to: u64,
}

impl ByteRange {
    /// Offset and length, of a range that the volume with this name and size has.
    pub fn within(self, name: &str, size_bytes: u64) -> Outcome<(u64, u64)> {
        match self.to <= size_bytes {
            true => Ok((self.from, self.to - self.from)),
            false => {
                let size = ByteSize(size_bytes);
                Err(Failure::usage(format!("the range ends behind the volume: {name} has {size}")))
            }
        }
    }
}

impl FromStr for ByteRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let explain =
            || format!("'{text}' is not a range: write FROM-TO like 0-10G, or FROM+LENGTH like 10G+1G");
        let size = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        let (from, to) = match (text.split_once('-'), text.split_once('+')) {
            (Some((from, to)), None) => (size(from)?, size(to)?),
            (None, Some((from, len))) => {
                let from = size(from)?;
                (from, from.checked_add(size(len)?).ok_or_else(explain)?)
            }
            _ => return Err(explain()),
        };
        match from < to {
            true => Ok(ByteRange { from, to }),
            false => Err(format!("'{text}' is empty: it ends where it begins, or before")),
        }
    }
}

/// How much may be stored for what is live, as it is written: `auto`, a ratio, or `none`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpaceBound(pub Bound);

/// The least ratio: the closer to 1, the more often everything is moved.
const SPACE_BOUND_MIN: f64 = 1.05;

impl SpaceBound {
    /// The ratio, where it says one.
    pub fn ratio(self) -> Option<f64> {
        match self.0 {
            Bound::Ratio(ratio) if ratio.is_finite() => Some(ratio),
            _ => None,
        }
    }
}

impl FromStr for SpaceBound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<f64>()) {
            ("auto", _) => Ok(SpaceBound(Bound::Auto)),
            ("none", _) => Ok(SpaceBound(Bound::Ratio(f64::INFINITY))),
            (_, Ok(ratio)) if ratio.is_finite() && ratio >= SPACE_BOUND_MIN => {
                Ok(SpaceBound(Bound::Ratio(ratio)))
            }
            _ => Err(format!(
                "'{text}' is not a bound of space: write auto, stored bytes per live byte, at least \
                 {SPACE_BOUND_MIN}, like 1.3; or none"
            )),
        }
    }
}

impl fmt::Display for SpaceBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Bound::Auto => f.write_str("auto"),
            Bound::Ratio(ratio) if ratio.is_finite() => write!(f, "{ratio}"),
            Bound::Ratio(_) => f.write_str("none"),
        }
    }
}

impl Serialize for SpaceBound {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Bound::Ratio(ratio) if ratio.is_finite() => output.serialize_f64(ratio),
            _ => output.serialize_str(&self.to_string()),
        }
    }
}

impl<'de> Deserialize<'de> for SpaceBound {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Text(String),
        }
        let text = match Written::deserialize(input)? {
            Written::Number(ratio) => ratio.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(de::Error::custom)
    }
}

/// A count with separators: 1,234,567.
#[derive(Clone, Copy, Debug)]
pub struct Thousands(pub u64);

impl fmt::Display for Thousands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (i, digit) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

/// `number` (digits with at most one decimal point) times `factor`, when that is a whole number.
fn scale(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 || (number.contains('.') && fraction.is_empty()) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let mut out = u128::from(whole) * u128::from(factor);
    if !fraction.is_empty() {
        let scaled = u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor);
        let divisor = 10u128.pow(fraction.len() as u32);
        if !scaled.is_multiple_of(divisor) {
            return None;
        }
        out += scaled / divisor;
    }
    u64::try_from(out).ok()
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"4G\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::custom("a size is not negative"))
            }
        }
        input.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        String::deserialize(input)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_u64(self.0)
    }
}

/// An amount of money: two decimals where that says something, more for what is below a unit.
pub fn money(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1.0 { format!("{value:.2}") } else { format!("{value:.6}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways to write a range mean the same; what is empty or unclear is refused with an example.
    #[test]
    fn ranges_people_write() {
        let gib = 1 << 30;
        assert_eq!("0-10G".parse(), Ok(ByteRange { from: 0, to: 10 * gib }));
        assert_eq!("10G+1G".parse(), Ok(ByteRange { from: 10 * gib, to: 11 * gib }));
        for bad in ["10G", "", "-", "5-5", "6-5", "1+0", "1-2+3", "15E+15E"] {
            bad.parse::<ByteRange>().expect_err(bad);
        }
    }

    fn size(text: &str) -> Result<u64, String> {
        text.parse::<ByteSize>().map(|s| s.0)
    }

    /// A bound of space is a ratio that can be kept, or none.
    #[test]
    fn bounds_of_space() {
        let bound = |text: &str| text.parse::<SpaceBound>().map(|bound| bound.to_string());
        assert_eq!(
            (bound("1.3"), bound("2"), bound("none")),
            (Ok("1.3".into()), Ok("2".into()), Ok("none".into()))
        );
        for wrong in ["1", "0.5", "-2", "NaN", "inf", "Auto", ""] {
            assert!(bound(wrong).is_err_and(|e| e.contains("at least 1.05")), "{wrong}");
        }
    }

    /// Suffixes are binary, in either case, with or without `iB`, and a fraction is exact.
    #[test]
    fn sizes_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4096B", 4096),
            ("1K", 1 << 10),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("10 GiB", 10 << 30),
            ("90T", 90 << 40),
            ("1.5TiB", 3 << 39),
            ("2P", 2 << 50),
            ("15E", 15 << 60),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    /// What could be misread or does not fit is refused with a text that says how to write it.
    #[test]
    fn sizes_that_are_refused() {
        for text in
            ["", "G", "-1G", "1.G", ".5G", "1,5G", "10X", "16E", "1.0000000001T", "0.3K", "1 2", "1..2G"]
        {
            let error = size(text).expect_err(text);
            assert!(error.contains("like 10G"), "{error}");
        }
        assert!(size("10GB").expect_err("ambiguous").contains("G or GiB"));
    }

    /// Durations need a unit, but zero does not.
    #[test]
    fn durations() {
        for (text, ms) in
            [("0", 0), ("0s", 0), ("250ms", 250), ("30s", 30_000), ("1.5m", 90_000), ("2h", 7_200_000)]
        {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))), "{text}");
        }
        for text in ["30", "", "s", "5 parsecs", "-1s", "0.0001s"] {
            assert!(text.parse::<Span>().expect_err(text).contains("like 30s"));
        }
    }

    /// Long numbers are grouped from the right.
    #[test]
    fn thousands_are_grouped() {
        let text = |n| Thousands(n).to_string();
        assert_eq!([0, 999, 1000, 1_234_567].map(text), ["0", "999", "1,000", "1,234,567"]);
    }

    /// What is printed without a fraction reads back as the same value.
    #[test]
    fn printing_and_parsing_agree() {
        for bytes in [512, 1 << 10, 3 << 20, 90 << 40, 1 << 60] {
            let text = ByteSize(bytes).to_string().replace(" bytes", "");
            assert_eq!(size(&text), Ok(bytes), "{text}");
        }
        assert_eq!(ByteSize((3 << 30) + 1).to_string(), "3.0 GiB");
        for ms in [1, 999, 30_000, 60_000, 86_400_000] {
            let span = Span(Duration::from_millis(ms));
            assert_eq!(span.to_string().parse(), Ok(span));
        }
    }
}
