//! How many snapshots a volume has at most, and how much their table takes.
//!
//! A table beyond these limits is read by nobody, so whatever would exceed one is refused before it is acknowledged: the only place
//! that says no. Pure.

use super::{Operation, Snapshot, Snapshots};
use crate::{Error, Result};

/// Snapshots and bookmarks of a volume at most, hidden ones included: their table is in memory, at some 200 bytes each.
pub const SNAPSHOTS_MAX: usize = 100_000;
/// Bytes of JSON that all of them take at most, with their names, holds and clones. What else the table of snapshots has (120 bytes
/// for each root, 130 for each segment that is forwarded, 105 for each run that only snapshots need) fits beside it.
pub const SNAPSHOTS_BYTES_MAX: usize = 24 << 20;

/// Rows of a table, and the bytes of JSON that they take at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TableSize {
    rows: usize,
    bytes: usize,
}

/// Bytes of a row at most, without its name, holds and clones, but with what it says of a receive.
const ROW_BYTES: usize = 380;
/// The same of one that has nothing to do with a receive.
const PLAIN_ROW_BYTES: usize = 190;
const HIDDEN_NAME_BYTES: usize = 1 + 32;
/// What stands around a tag, and around the way to a clone.
const TAG_BYTES: usize = 3;
const CLONE_BYTES: usize = 36 + 6;
/// The bookmark with which a receive begins to fill.
const FILLING: TableSize = TableSize { rows: 1, bytes: ROW_BYTES + HIDDEN_NAME_BYTES };

fn clone_bytes(way: &str) -> usize {
    let escaped = |c: char| match c {
        '"' | '\\' => 2,
        c if c.is_control() => 6,
        c => c.len_utf8(),
    };
    CLONE_BYTES + way.chars().map(escaped).sum::<usize>()
}

fn row_bytes(name: &str, snapshot: &Snapshot) -> usize {
    let holds: usize = snapshot.holds.iter().map(|tag| tag.len() + TAG_BYTES).sum();
    let clones: usize = snapshot.clones.values().map(|way| clone_bytes(way)).sum();
    let is_plain = snapshot.receiving.is_none() && snapshot.filling.is_none();
    // What has clones gets a hidden name when it is removed, and that is never refused.
    let name_bytes = if clones > 0 { name.len().max(HIDDEN_NAME_BYTES) } else { name.len() };
    name_bytes + holds + clones + if is_plain { PLAIN_ROW_BYTES } else { ROW_BYTES }
}

impl Snapshots {
    /// Whether the table takes what an operation adds. What is being received has the room for its end from its beginning on.
    pub(super) fn check_room(&self, operation: &Operation) -> Result<()> {
        let added = self.added_by(operation);
        if added.rows == 0 && added.bytes == 0 {
            return Ok(());
        }
        let kept_free = match self.receiving().is_some() && self.filling().is_none() {
            true if !matches!(operation, Operation::Fill { .. }) => FILLING,
            _ => TableSize::default(),
        };
        if self.0.len() + added.rows + kept_free.rows > SNAPSHOTS_MAX {
            return Err(Error::Invalid(format!(
                "the volume has {} snapshots and bookmarks, and no volume has more than {SNAPSHOTS_MAX}: remove some first \
                 (`cistern rm VOLUME@SNAPSHOT`)",
                self.0.len()
            )));
        }
        let bytes: usize = self.0.iter().map(|(name, snapshot)| row_bytes(name, snapshot)).sum();
        if bytes + added.bytes + kept_free.bytes > SNAPSHOTS_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the names, holds and clones of the volume's {} snapshots take {} MiB, and no volume has more of them: remove some \
                 snapshots first (`cistern rm VOLUME@SNAPSHOT`)",
                self.0.len(),
                bytes >> 20
            )));
        }
        Ok(())
    }

    /// What an operation adds to the table; nothing where it takes away as much.
    fn added_by(&self, operation: &Operation) -> TableSize {
        let row = |name_bytes| TableSize { rows: 1, bytes: PLAIN_ROW_BYTES + name_bytes };
        match operation {
            Operation::Make { name, .. } => row(name.len()),
            Operation::Receive { .. } => {
                TableSize { rows: 1 + FILLING.rows, bytes: ROW_BYTES + HIDDEN_NAME_BYTES + FILLING.bytes }
            }
            Operation::Fill { .. } => FILLING,
            Operation::Remove { name, bookmark: true } => match self.0.get(name) {
                Some(removed) if !removed.clones.is_empty() => row(name.len().max(HIDDEN_NAME_BYTES)),
                _ => TableSize::default(),
            },
            Operation::Hold { tag, .. } => TableSize { rows: 0, bytes: tag.len() + TAG_BYTES },
            Operation::Clone { way, .. } => {
                TableSize { rows: 0, bytes: clone_bytes(way) + HIDDEN_NAME_BYTES }
            }
            // Its row takes the place of two.
            Operation::Received { .. }
            | Operation::Remove { .. }
            | Operation::Release { .. }
            | Operation::Unclone { .. }
            | Operation::Return { .. } => TableSize::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        snapshot::{ReceivedState, Receiving, tests::make},
        units::{Seq, SnapshotId, VolumeId},
    };

    fn id(n: u128) -> SnapshotId {
        SnapshotId(uuid::Uuid::from_u128(n))
    }

    fn clone_of(name: &str, n: u128) -> Operation {
        let clone = VolumeId(uuid::Uuid::from_u128(n));
        Operation::Clone { name: name.into(), clone, way: "../b".into() }
    }

    /// A table of so many snapshots; the second one has a clone.
    fn table(rows: usize) -> Snapshots {
        let mut table = Snapshots::default();
        for n in 0..rows {
            let name = format!("s{n}");
            let make = Operation::Make { id: id(n as u128 + 100), name, made_ms: 7 };
            table.apply(&make, Seq(n as u64 + 1), 512);
        }
        table.apply(&clone_of("s1", 9), Seq(200_000), 512);
        table
    }

    fn take(table: &mut Snapshots, operation: &Operation) {
        table.check(operation).unwrap_or_else(|e| panic!("{operation:?}: {e}"));
        table.apply(operation, Seq(300_000), 512);
        assert!(table.is_valid(), "{operation:?} made a table that nobody reads");
    }

    fn refuses(table: &Snapshots, operation: &Operation) {
        let refused = table.check(operation).expect_err("it is full").to_string();
        assert!(refused.contains("cistern rm"), "{refused}");
    }

    /// At the limit everything that would add a row is refused, and says what to do: a snapshot, a receive, the bookmark of a cloned
    /// one, which stays. What takes rows away is not.
    #[test]
    fn no_operation_makes_a_table_that_nobody_reads() {
        let mut table = table(SNAPSHOTS_MAX - 1);
        let begin = |of| Operation::Receive {
            what: Receiving { of: id(of), base: None, shares: 1 },
            keep: id(of + 1),
            made_ms: 5,
        };
        refuses(&table, &begin(1)); // it takes two
        take(&mut table, &make("last"));
        let leave = |name: &str| Operation::Remove { name: name.into(), bookmark: true };
        for operation in [make("more"), begin(1), leave("s1")] {
            refuses(&table, &operation);
        }
        take(&mut table, &leave("s2")); // it takes the place of the snapshot
        take(&mut table, &Operation::Remove { name: "s3".into(), bookmark: false });
        take(&mut table, &leave("s1"));
        refuses(&table, &make("more"));
    }

    /// What began to be received comes to its end, however many snapshots a schedule makes meanwhile.
    #[test]
    fn a_receive_that_began_has_room_to_its_end() {
        let mut table = table(SNAPSHOTS_MAX - 3);
        let what = Receiving { of: id(1), base: None, shares: 1 };
        take(&mut table, &Operation::Receive { what, keep: id(2), made_ms: 5 });
        take(&mut table, &make("auto"));
        refuses(&table, &make("auto2"));
        take(&mut table, &Operation::Fill { of: id(1), from: id(3), made_ms: 5 });
        refuses(&table, &make("auto2"));
        let name = "x".repeat(super::super::NAME_BYTES_MAX);
        take(&mut table, &Operation::Received { of: id(1), made: Some(ReceivedState { name, made_ms: 3 }) });
        take(&mut table, &make("auto2"));
    }

    /// Long names, holds and clones fill a table as well: it never takes more than its part of the object.
    #[test]
    fn names_holds_and_clones_have_a_bound_of_bytes() {
        let mut table = table(60_000);
        let mut refused = 0;
        for n in 0..60_000 {
            let (name, tag) = (format!("s{n}"), format!("{n:0>250}"));
            let operation = match n % 3 {
                0 => Operation::Hold { name, tag },
                1 => Operation::Clone {
                    name,
                    clone: VolumeId(uuid::Uuid::from_u128(n)),
                    way: "\u{1}".repeat(40),
                },
                _ => Operation::Make { id: id(n), name: tag, made_ms: 7 },
            };
            // Asking sums up all rows: only near the bound.
            if n < 41_000 || table.check(&operation).is_ok() {
                table.apply(&operation, Seq(300_000 + n as u64), 512);
            } else {
                refused += 1;
            }
            if n % 10_000 == 0 || refused > 0 {
                let json = serde_json::to_vec(&table).expect("plain fields").len();
                assert!(json <= SNAPSHOTS_BYTES_MAX, "{json}");
            }
            if refused > 3 {
                break;
            }
        }
        assert!(refused > 0 && table.is_valid());
    }

    /// What a row is taken for is never less than what it takes.
    #[test]
    fn rows_are_weighed_generously() {
        let mut table = table(3);
        let what = Receiving { of: id(u128::MAX), base: Some(id(u128::MAX)), shares: 64 };
        table.apply(&Operation::Receive { what, keep: id(2), made_ms: u64::MAX }, Seq(u64::MAX), u64::MAX);
        table.apply(
            &Operation::Fill { of: what.of, from: id(3), made_ms: u64::MAX },
            Seq(u64::MAX),
            u64::MAX,
        );
        table.apply(&Operation::Hold { name: "s0".into(), tag: "t".repeat(255) }, Seq(5), 512);
        let weighed: usize = table.iter().map(|(name, snapshot)| row_bytes(name, snapshot)).sum();
        let json = serde_json::to_vec(&table).expect("plain fields").len();
        assert!(json <= weighed, "{json} > {weighed}");
    }
}
