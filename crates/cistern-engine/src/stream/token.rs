//! What whoever sends has to know to go on where a stream broke, in a form that people can carry.

use std::{fmt, str::FromStr};

use crate::{Error, Result, share::SHARES_MAX, units::SnapshotId};

/// Stands for the base of a full stream.
const NO_BASE: &str = "full";

/// What was being received, and how far each share of it came: `TO:BASE:PLACE,PLACE...`, ids and blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    pub to: SnapshotId,
    pub base: Option<SnapshotId>,
    /// Of each share, the block from which on it was not received. 1 to 64.
    pub places: Vec<u64>,
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.to.0.simple())?;
        match self.base {
            Some(base) => write!(f, "{}:", base.0.simple())?,
            None => write!(f, "{NO_BASE}:")?,
        }
        let places: Vec<String> = self.places.iter().map(u64::to_string).collect();
        f.write_str(&places.join(","))
    }
}

impl FromStr for ResumeToken {
    type Err = Error;

    /// # Errors
    /// `Invalid` for what is no token.
    fn from_str(text: &str) -> Result<ResumeToken> {
        let parsed = || {
            let id = |text: &str| uuid::Uuid::parse_str(text).ok().map(SnapshotId);
            let (to, rest) = text.trim().split_once(':')?;
            let (base, places) = rest.split_once(':')?;
            let base = match base {
                NO_BASE => None,
                base => Some(id(base)?),
            };
            let places: Vec<u64> = places.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
            let token = ResumeToken { to: id(to)?, base, places };
            (token.places.len() <= SHARES_MAX as usize).then_some(token)
        };
        parsed().ok_or_else(|| {
            Error::Invalid(format!(
                "{text:?} is not what `cistern receive --token` says: take all of that line"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> SnapshotId {
        SnapshotId(uuid::Uuid::from_u128(n))
    }

    /// A token reads back as it was; what is none, or lost something on its way, is refused.
    #[test]
    fn a_token_reads_back() {
        for (base, places) in [(None, vec![0]), (Some(id(5)), vec![7, 0, u64::MAX])] {
            let token = ResumeToken { to: id(3), base, places };
            assert_eq!(token.to_string().parse::<ResumeToken>().expect("it is one"), token);
            assert_eq!(format!(" {token}\n").parse::<ResumeToken>().expect("it is one"), token);
        }
        let token = ResumeToken { to: id(3), base: Some(id(5)), places: vec![7] }.to_string();
        let many = ResumeToken { to: id(3), base: None, places: vec![1; 65] }.to_string();
        for bad in [
            "",
            "a:b:c",
            &token[1..],
            &token[..token.len() - 1],
            &format!("{token},"),
            &format!("{token},x"),
            &many,
        ] {
            bad.parse::<ResumeToken>().expect_err(bad);
        }
    }
}
