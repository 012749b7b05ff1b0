//! What is done with the snapshots of a volume, as journal and log carry it (`docs/format/segment.md`).
//!
//! Pure. Bytes that no operation can have give none. Knows nothing of what snapshots there are.

use serde::{Deserialize, Serialize};

use super::{NAME_BYTES_MAX, check_name, is_false};
use crate::{
    Error, Result,
    share::SHARES_MAX,
    units::{BLOCK_BYTES, SnapshotId, VolumeId},
};

/// Bytes of an operation at most, so that it fits one block of the journal.
pub const OPERATION_BYTES_MAX: usize = BLOCK_BYTES;
/// Bytes of the way to a clone at most.
const WAY_BYTES_MAX: usize = 1024;

const _: () = assert!(4 * (2 * NAME_BYTES_MAX + 100) <= OPERATION_BYTES_MAX);

/// What somebody did with snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Operation {
    /// Made one. `made_ms` is the wall clock, for people.
    Make {
        id: SnapshotId,
        name: String,
        made_ms: u64,
    },
    /// Removed one, or a bookmark. A snapshot may leave a bookmark.
    Remove {
        name: String,
        #[serde(default, skip_serializing_if = "is_false")]
        bookmark: bool,
    },
    /// Put a hold on one, under a tag: it is not removed before all of them are released.
    Hold {
        name: String,
        tag: String,
    },
    Release {
        name: String,
        tag: String,
    },
    /// Made a clone of one, which is there until the clone is gone; removed before, it is hidden.
    Clone {
        name: String,
        clone: VolumeId,
        /// From the volume to its clone, for people.
        way: String,
    },
    /// A clone is gone.
    Unclone {
        clone: VolumeId,
    },
    /// Begins to receive a snapshot: makes one of what is there, hidden, with the id `keep`.
    Receive {
        what: Receiving,
        keep: SnapshotId,
        made_ms: u64,
    },
    /// Everything that is written from here on is of what is being received: leaves a bookmark, hidden, with the id `from`.
    Fill {
        of: SnapshotId,
        from: SnapshotId,
        made_ms: u64,
    },
    /// What came counts for nothing any more: what is written from here on puts back what was there. Removes that bookmark.
    Return {
        of: SnapshotId,
    },
    /// Ends that, and removes what it made: what was received is a snapshot, or was gone back on.
    Received {
        of: SnapshotId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        made: Option<ReceivedState>,
    },
}

/// What is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receiving {
    pub of: SnapshotId,
    /// The snapshot with which it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<SnapshotId>,
    /// In how many shares it comes.
    pub shares: u32,
}

impl Receiving {
    pub(super) fn is_valid(&self) -> bool {
        (1..=SHARES_MAX).contains(&self.shares)
    }
}

/// What a received snapshot is called, and when it was made where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceivedState {
    pub name: String,
    pub made_ms: u64,
}

impl Operation {
    /// Whether it can be carried at all, whatever snapshots there are: asked before it is encoded, with what came from outside.
    ///
    /// # Errors
    /// `Invalid` for names that nobody can give, and for what is too long.
    pub fn check(&self) -> Result<()> {
        self.check_names()?;
        match serde_json::to_vec(self).expect("plain fields always serialize").len() {
            ..=OPERATION_BYTES_MAX => Ok(()),
            bytes => Err(Error::Invalid(format!(
                "the operation takes {bytes} bytes, and at most {OPERATION_BYTES_MAX} fit"
            ))),
        }
    }

    /// Its bytes, at most [`OPERATION_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("plain fields always serialize");
        assert!(json.len() <= OPERATION_BYTES_MAX, "names are short");
        json
    }

    /// `None` for anything that no operation can be.
    pub fn decode(bytes: &[u8]) -> Option<Operation> {
        let operation: Operation = serde_json::from_slice(bytes).ok()?;
        operation.check_names().is_ok().then_some(operation)
    }

    /// Whether it makes a snapshot: then where it stands among the writes matters.
    pub fn makes(&self) -> bool {
        self.made().is_some()
    }

    /// The snapshot that it makes.
    pub fn made(&self) -> Option<SnapshotId> {
        match self {
            Operation::Make { id, .. } => Some(*id),
            Operation::Receive { keep, .. } => Some(*keep),
            Operation::Fill { from, .. } => Some(*from),
            Operation::Received { of, made: Some(_) } => Some(*of),
            _ => None,
        }
    }

    /// The snapshot that is named.
    pub fn name(&self) -> Option<&str> {
        match self {
            Operation::Make { name, .. }
            | Operation::Remove { name, .. }
            | Operation::Hold { name, .. }
            | Operation::Release { name, .. }
            | Operation::Clone { name, .. } => Some(name),
            Operation::Received { made, .. } => made.as_ref().map(|made| made.name.as_str()),
            Operation::Unclone { .. }
            | Operation::Receive { .. }
            | Operation::Fill { .. }
            | Operation::Return { .. } => None,
        }
    }

    pub(super) fn check_names(&self) -> Result<()> {
        self.name().map_or(Ok(()), check_name)?;
        match self {
            Operation::Hold { tag, .. } | Operation::Release { tag, .. } => check_name(tag),
            Operation::Clone { way, .. } if way.len() > WAY_BYTES_MAX => {
                Err(Error::Invalid(format!("the way to the clone is longer than {WAY_BYTES_MAX} bytes")))
            }
            Operation::Receive { what, .. } if !what.is_valid() => {
                Err(Error::Invalid(format!("nothing is received in {} shares", what.shares)))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::{hold, make};

    /// Names and ways of any length are refused before anything relies on their being short.
    #[test]
    fn what_is_too_long_is_refused() {
        let long = "x".repeat(5000);
        let clone = |way: String| {
            let clone = VolumeId(uuid::Uuid::nil());
            Operation::Clone { name: "a".into(), clone, way }
        };
        for operation in [make(&long), hold("a", &long), clone(long.clone()), clone("\u{1}".repeat(1000))] {
            assert!(matches!(operation.check(), Err(Error::Invalid(_))));
        }
        clone("../b".into()).check().expect("it fits");
    }

    /// Operations read back; what is none, and what has a name that nobody can have given, does not.
    #[test]
    fn operations_read_back() {
        let longest = "x".repeat(NAME_BYTES_MAX);
        let release = Operation::Release { name: "a".into(), tag: "b".into() };
        for operation in [
            make("a"),
            Operation::Remove { name: longest.clone(), bookmark: false },
            hold(&longest, &longest),
            release,
        ] {
            assert_eq!(Operation::decode(&operation.encode()), Some(operation));
        }
        for bad in [
            "",
            "{}",
            r#"{"remove":{"name":""}}"#,
            r#"{"remove":{"name":"a/b"}}"#,
            r#"{"paint":{"name":"a"}}"#,
        ] {
            assert_eq!(Operation::decode(bad.as_bytes()), None, "{bad}");
        }
    }
}
