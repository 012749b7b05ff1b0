//! What snapshots a volume has, and the operations by which that changes (`docs/design/snapshots.md`).
//!
//! Pure. The operations are part of the history: the journal and the log carry them in order, and applying them in that order
//! gives the same table everywhere. So applying never fails: whether an operation makes sense is asked before it
//! gets its place.

mod limits;
mod operation;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    units::{Seq, SnapshotId, VolumeId},
};

pub use limits::{SNAPSHOTS_BYTES_MAX, SNAPSHOTS_MAX};
pub use operation::{OPERATION_BYTES_MAX, Operation, ReceivedState, Receiving};

/// Bytes of the longest name of a snapshot, and of the longest tag of a hold.
pub const NAME_BYTES_MAX: usize = 255;
/// Where a snapshot is whose entry has no place in the log yet: behind everything that is there.
pub const NOT_COMMITTED: Seq = Seq(u64::MAX);
/// Holds of one snapshot at most.
const HOLDS_MAX: usize = 64;
/// Clones of one snapshot at most.
const CLONES_MAX: usize = 10_000;
/// What the name of a snapshot begins with that nobody gave it: it was removed and has clones, or is what was there before something is
/// received. Nobody can give such a name.
const HIDDEN: char = '~';

/// Letters, digits and `-_.:+`, not beginning with a dash: so it needs no quotes and is a name in every store, list and path.
///
/// # Errors
/// `Invalid` says what a name looks like.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:+".contains(c);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('-') {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{name:?} is no name of a snapshot: letters, digits and -_.:+, at most {NAME_BYTES_MAX}, not beginning with -"
    )))
}

/// The name of a snapshot that nobody named, or that lost its name.
fn hidden_name(id: SnapshotId) -> String {
    format!("{HIDDEN}{}", id.0.simple())
}

/// Whether a name is that of a snapshot that was removed and has clones, or of what was there before something is received.
pub fn is_hidden(name: &str) -> bool {
    name.starts_with(HIDDEN)
}

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub id: SnapshotId,
    /// Its content is everything in the log up to here.
    pub at: Seq,
    /// When, by the clock of the host that made it, in milliseconds since 1970.
    pub made_ms: u64,
    /// Size of the volume then.
    pub size_bytes: u64,
    /// Tags of the holds on it.
    pub holds: BTreeSet<String>,
    /// What was cloned of it, and the way there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub clones: BTreeMap<VolumeId, String>,
    /// What is being received since it was made: it is what was there before, and nobody named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<Receiving>,
    /// What is being received: it is where that begins, a bookmark, and nobody named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filling: Option<SnapshotId>,
    /// It was removed, and its name and position are all that is left: to compare with.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_bookmark: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // what serde asks
fn is_false(value: &bool) -> bool {
    !value
}

/// The snapshots of a volume, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshots(BTreeMap<String, Snapshot>);

impl Snapshots {
    /// Whether an operation makes sense now.
    ///
    /// # Errors
    /// `Exists`, `NotFound` or `Invalid`, to show to who asked for it.
    pub fn check(&self, operation: &Operation) -> Result<()> {
        operation.check_names()?;
        self.check_receiving(operation)?;
        self.check_named(operation)?;
        self.check_room(operation)
    }

    /// Whether what an operation names is there, or is not, as it has to be.
    fn check_named(&self, operation: &Operation) -> Result<()> {
        let Some(name) = operation.name() else { return Ok(()) };
        if operation.makes() {
            return match self.0.contains_key(name) {
                true => Err(Error::Exists(format!("snapshot {name}"))),
                false => Ok(()),
            };
        }
        let snapshot = self.0.get(name).ok_or_else(|| Error::NotFound(format!("snapshot {name}")))?;
        match operation {
            Operation::Hold { .. } | Operation::Clone { .. } | Operation::Remove { bookmark: true, .. }
                if snapshot.is_bookmark =>
            {
                Err(Error::Invalid(format!("{name} is a bookmark: it has no content any more")))
            }
            Operation::Remove { .. } if !snapshot.holds.is_empty() => {
                let tags: Vec<&str> = snapshot.holds.iter().map(String::as_str).collect();
                Err(Error::Invalid(format!("snapshot {name} is held: {}", tags.join(", "))))
            }
            Operation::Hold { tag, .. } if snapshot.holds.contains(tag) => {
                Err(Error::Exists(format!("hold {tag} on snapshot {name}")))
            }
            Operation::Clone { .. } if snapshot.clones.len() >= CLONES_MAX => {
                Err(Error::Invalid(format!("snapshot {name} has {CLONES_MAX} clones already")))
            }
            Operation::Hold { .. } if snapshot.holds.len() >= HOLDS_MAX => {
                Err(Error::Invalid(format!("snapshot {name} has {HOLDS_MAX} holds already")))
            }
            Operation::Release { tag, .. } if !snapshot.holds.contains(tag) => {
                Err(Error::NotFound(format!("hold {tag} on snapshot {name}")))
            }
            _ => Ok(()),
        }
    }

    /// One thing is received at a time, and no snapshot twice.
    fn check_receiving(&self, operation: &Operation) -> Result<()> {
        let now = self.receiving().map(|(_, now)| now.of);
        match (operation, now) {
            (Operation::Receive { .. }, Some(of)) => {
                Err(Error::Invalid(format!("snapshot {of} is being received already")))
            }
            (Operation::Receive { what, .. }, None) => {
                match self.iter().find(|(_, there)| there.id == what.of) {
                    Some((name, _)) => Err(Error::Exists(format!("snapshot {name}, which is the same,"))),
                    None => Ok(()),
                }
            }
            (Operation::Fill { of, .. } | Operation::Return { of } | Operation::Received { of, .. }, _)
                if now != Some(*of) =>
            {
                Err(Error::Invalid(format!("snapshot {of} is not being received")))
            }
            (Operation::Fill { of, .. }, _) if self.filling().is_some() => {
                Err(Error::Invalid(format!("snapshot {of} is being filled in already")))
            }
            _ => Ok(()),
        }
    }

    /// What is being received, and the name of the snapshot of what was there before.
    pub fn receiving(&self) -> Option<(&str, Receiving)> {
        self.iter().find_map(|(name, snapshot)| Some((name, snapshot.receiving?)))
    }

    /// The name of the bookmark behind which everything is of what is being received.
    pub fn filling(&self) -> Option<&str> {
        self.iter().find_map(|(name, snapshot)| snapshot.filling.map(|_| name))
    }

    /// Takes an operation that was carried by the entry at `seq`, as of which the volume has that size.
    pub fn apply(&mut self, operation: &Operation, seq: Seq, size_bytes: u64) {
        let made = |id: SnapshotId, made_ms| Snapshot {
            id,
            at: seq,
            made_ms,
            size_bytes,
            holds: BTreeSet::new(),
            clones: BTreeMap::new(),
            receiving: None,
            filling: None,
            is_bookmark: false,
        };
        match operation {
            Operation::Make { id, name, made_ms } => {
                self.0.insert(name.clone(), made(*id, *made_ms));
            }
            Operation::Receive { what, keep, made_ms } => {
                let before = Snapshot { receiving: Some(*what), ..made(*keep, *made_ms) };
                self.0.insert(hidden_name(*keep), before);
            }
            Operation::Fill { of, from, made_ms } => {
                let begin = Snapshot { filling: Some(*of), is_bookmark: true, ..made(*from, *made_ms) };
                self.0.insert(hidden_name(*from), begin);
            }
            Operation::Return { of } => self.0.retain(|_, there| there.filling != Some(*of)),
            Operation::Received { of, made: received } => {
                self.0.retain(|_, there| {
                    there.receiving.is_none_or(|now| now.of != *of) && there.filling != Some(*of)
                });
                if let Some(ReceivedState { name, made_ms }) = received {
                    self.0.insert(name.clone(), made(*of, *made_ms));
                }
            }
            Operation::Remove { name, bookmark } => {
                let Some(removed) = self.0.remove(name) else { return };
                if *bookmark {
                    let clones = BTreeMap::new();
                    self.0.insert(name.clone(), Snapshot { is_bookmark: true, clones, ..removed.clone() });
                }
                if !removed.clones.is_empty() {
                    self.0.insert(hidden_name(removed.id), removed);
                }
            }
            Operation::Hold { name, tag } => {
                self.0.get_mut(name).map(|snapshot| snapshot.holds.insert(tag.clone()));
            }
            Operation::Release { name, tag } => {
                self.0.get_mut(name).map(|snapshot| snapshot.holds.remove(tag));
            }
            Operation::Clone { name, clone, way } => {
                self.0.get_mut(name).map(|snapshot| snapshot.clones.insert(*clone, way.clone()));
            }
            Operation::Unclone { clone } => self.0.retain(|name, snapshot| {
                let was_there = snapshot.clones.remove(clone).is_some();
                !(was_there && is_hidden(name) && snapshot.clones.is_empty())
            }),
        }
    }

    /// The snapshot of which a clone was made, and its name.
    pub fn cloned_as(&self, clone: VolumeId) -> Option<(&str, &Snapshot)> {
        self.with_content().find(|(_, snapshot)| snapshot.clones.contains_key(&clone))
    }

    /// One with content, and its name.
    pub fn with_id(&self, id: SnapshotId) -> Option<(&str, &Snapshot)> {
        self.with_content().find(|(_, snapshot)| snapshot.id == id)
    }

    /// The entry that carried the making of a snapshot is committed.
    pub fn place(&mut self, id: SnapshotId, at: Seq) {
        // Its bookmark may be there too.
        self.0.values_mut().filter(|snapshot| snapshot.id == id).for_each(|snapshot| snapshot.at = at);
    }

    /// Makes bookmarks of those at whose positions there is no content.
    pub fn keep_content(&mut self, is_there: impl Fn(Seq) -> bool) {
        self.0.values_mut().for_each(|snapshot| snapshot.is_bookmark |= !is_there(snapshot.at));
    }

    pub fn get(&self, name: &str) -> Option<&Snapshot> {
        self.0.get(name)
    }

    /// One that has content.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn with_content_named(&self, name: &str) -> Result<&Snapshot> {
        match self.0.get(name) {
            Some(snapshot) if !snapshot.is_bookmark => Ok(snapshot),
            Some(_) => Err(Error::NotFound(format!("content of bookmark {name}"))),
            None => Err(Error::NotFound(format!("snapshot {name}"))),
        }
    }

    /// By name, those that have content.
    pub fn with_content(&self) -> impl Iterator<Item = (&str, &Snapshot)> {
        self.iter().filter(|(_, snapshot)| !snapshot.is_bookmark)
    }

    /// By name, bookmarks among them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Snapshot)> {
        self.0.iter().map(|(name, snapshot)| (name.as_str(), snapshot))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where those that have content are in the log, ascending, each place once.
    pub fn positions(&self) -> Vec<Seq> {
        let all: BTreeSet<Seq> = self.with_content().map(|(_, snapshot)| snapshot.at).collect();
        all.into_iter().collect()
    }

    /// Whether a clone was made of one of them, or the volume goes on from one.
    pub fn has_clones(&self) -> bool {
        self.with_content().any(|(_, snapshot)| !snapshot.clones.is_empty())
    }

    /// Where the oldest bookmark is.
    pub fn oldest_bookmark(&self) -> Option<Seq> {
        self.0.values().filter(|snapshot| snapshot.is_bookmark).map(|snapshot| snapshot.at).min()
    }

    /// What a decoder has to refuse: names that nobody can have given, too many.
    pub fn is_valid(&self) -> bool {
        let is_valid = |(name, snapshot): (&String, &Snapshot)| {
            (check_name(name).is_ok() || is_hidden(name))
                && snapshot.holds.len() <= HOLDS_MAX
                && snapshot.clones.len() <= CLONES_MAX
                && snapshot.receiving.is_none_or(|what| what.is_valid() && is_hidden(name))
                && (snapshot.filling.is_none() || (snapshot.is_bookmark && is_hidden(name)))
                && snapshot.holds.iter().all(|tag| check_name(tag).is_ok())
        };
        self.0.len() <= SNAPSHOTS_MAX && self.0.iter().all(is_valid)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(super) fn make(name: &str) -> Operation {
        Operation::Make { id: SnapshotId(uuid::Uuid::from_u128(7)), name: name.into(), made_ms: 7 }
    }

    pub(super) fn hold(name: &str, tag: &str) -> Operation {
        Operation::Hold { name: name.into(), tag: tag.into() }
    }

    /// Who asks for what makes no sense hears why, and nothing changes: a name twice, a snapshot that is not there, the removal
    /// of one that is held, names that need quotes.
    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut table = Snapshots::default();
        assert!(matches!(
            table.check(&Operation::Remove { name: "a".into(), bookmark: false }),
            Err(Error::NotFound(_))
        ));
        table.check(&make("a")).expect("it is new");
        table.apply(&make("a"), Seq(5), 512);
        assert!(matches!(table.check(&make("a")), Err(Error::Exists(_))));
        table.apply(&hold("a", "sent"), Seq(6), 512);
        assert!(matches!(table.check(&hold("a", "sent")), Err(Error::Exists(_))));
        let refused =
            table.check(&Operation::Remove { name: "a".into(), bookmark: false }).expect_err("it is held");
        assert!(refused.to_string().contains("sent"), "{refused}");
        let release = Operation::Release { name: "a".into(), tag: "sent".into() };
        table.apply(&release, Seq(7), 512);
        assert!(matches!(table.check(&release), Err(Error::NotFound(_))));
        table.check(&Operation::Remove { name: "a".into(), bookmark: false }).expect("nobody holds it");
        for bad in ["", "a b", "a@b", "-a", "ä", &"x".repeat(256)] {
            assert!(matches!(table.check(&make(bad)), Err(Error::Invalid(_))), "{bad}");
        }
    }

    /// Two snapshots may be of one place; it is one position until both are gone.
    #[test]
    fn positions_are_each_told_once() {
        let mut table = Snapshots::default();
        for (name, at) in [("c", 9), ("a", 5), ("b", 5)] {
            table.apply(&make(name), Seq(at), 512);
        }
        assert_eq!(table.positions(), [Seq(5), Seq(9)]);
        table.apply(&Operation::Remove { name: "b".into(), bookmark: false }, Seq(10), 512);
        assert_eq!(table.positions(), [Seq(5), Seq(9)]);
        table.apply(&Operation::Remove { name: "a".into(), bookmark: false }, Seq(11), 512);
        assert_eq!(table.positions(), [Seq(9)]);
    }

    /// A snapshot that is removed while it has clones is hidden under a name that nobody can give, keeps its content, and goes with
    /// the last of them. Its name is free again, and a bookmark may be left there.
    #[test]
    fn a_snapshot_stays_for_its_clones() {
        let volume = |n| VolumeId(uuid::Uuid::from_u128(n));
        let clone = |n| Operation::Clone { name: "a".into(), clone: volume(n), way: "../b".into() };
        let unclone = |n| Operation::Unclone { clone: volume(n) };
        let mut table = Snapshots::default();
        assert!(matches!(table.check(&clone(1)), Err(Error::NotFound(_))));
        table.apply(&make("a"), Seq(5), 512);
        for n in [1, 2] {
            assert_eq!(Operation::decode(&clone(n).encode()), Some(clone(n)));
            table.check(&clone(n)).expect("it is there");
            table.apply(&clone(n), Seq(6), 512);
        }
        let leave = Operation::Remove { name: "a".into(), bookmark: true };
        table.check(&leave).expect("clones do not keep it from being removed");
        table.apply(&leave, Seq(7), 512);
        assert!(table.get("a").is_some_and(|left| left.is_bookmark));
        let (hidden, snapshot) = table.cloned_as(volume(1)).expect("it has content");
        assert!(is_hidden(hidden) && snapshot.at == Seq(5) && table.is_valid());
        assert!(matches!(
            table.check(&Operation::Remove { name: hidden.into(), bookmark: false }),
            Err(Error::Invalid(_))
        ));
        table.apply(&unclone(1), Seq(8), 512);
        table.apply(&unclone(1), Seq(8), 512);
        assert_eq!(table.positions(), [Seq(5)]);
        table.apply(&unclone(2), Seq(9), 512);
        assert_eq!((table.positions(), table.iter().len()), (vec![], 1));
        table.apply(&make("b"), Seq(10), 512);
        table.apply(
            &Operation::Clone { name: "b".into(), clone: volume(3), way: "../c".into() },
            Seq(10),
            512,
        );
        table.apply(&unclone(3), Seq(11), 512);
        assert_eq!(table.positions(), [Seq(10)], "it was not removed");
    }

    /// What is received is there at once and as a whole: until then what was there before is kept, under a name that nobody can give.
    /// One thing is received at a time, nothing twice, and what is not being received is not ended.
    #[test]
    fn what_is_received_is_there_at_its_end() {
        let id = |n| SnapshotId(uuid::Uuid::from_u128(n));
        let what = |of| Receiving { of: id(of), base: None, shares: 3 };
        let begin = |of, keep| Operation::Receive { what: what(of), keep: id(keep), made_ms: 5 };
        let fill = |of, from| Operation::Fill { of: id(of), from: id(from), made_ms: 5 };
        let made = |name: &str| ReceivedState { name: name.into(), made_ms: 3 };
        let end = |of, name| Operation::Received { of: id(of), made: Some(made(name)) };
        let give_up = |of| Operation::Received { of: id(of), made: None };
        for operation in [begin(1, 2), fill(1, 3), Operation::Return { of: id(1) }, end(1, "a"), give_up(1)] {
            assert_eq!(Operation::decode(&operation.encode()), Some(operation));
        }
        assert_eq!(Operation::decode(&end(1, "~a").encode()), None);
        let mut table = Snapshots::default();
        assert!(table.check(&end(1, "a")).is_err() && table.check(&fill(1, 3)).is_err(), "it was not begun");
        let no_share =
            Operation::Receive { what: Receiving { shares: 0, ..what(1) }, keep: id(2), made_ms: 5 };
        assert_eq!(Operation::decode(&no_share.encode()), None);
        table.check(&begin(1, 2)).expect("nothing is received");
        table.apply(&begin(1, 2), Seq(5), 512);
        let (kept, of) = table.receiving().expect("it is being received");
        assert!(of == what(1) && is_hidden(kept) && table.is_valid());
        assert!(table.check(&fill(3, 9)).is_err() && table.filling().is_none());
        table.check(&fill(1, 9)).expect("it was begun");
        table.apply(&fill(1, 9), Seq(7), 1024);
        assert!(table.check(&fill(1, 10)).is_err(), "it was said");
        assert!(table.filling().is_some_and(is_hidden) && table.is_valid());
        let mut returning = table.clone();
        returning.check(&Operation::Return { of: id(1) }).expect("it was begun");
        returning.apply(&Operation::Return { of: id(1) }, Seq(8), 1024);
        assert!(returning.filling().is_none() && returning.receiving() == table.receiving());
        assert_eq!(table.positions(), [Seq(5)]);
        assert!(table.check(&begin(3, 4)).is_err() && table.check(&end(3, "a")).is_err());
        table.check(&end(1, "a")).expect("it was begun");
        table.apply(&end(1, "a"), Seq(9), 1024);
        assert_eq!((table.receiving(), table.filling(), table.positions()), (None, None, vec![Seq(9)]));
        let received = table.get("a").expect("received");
        assert_eq!((received.id, received.made_ms, received.size_bytes), (id(1), 3, 1024));
        assert!(matches!(table.check(&begin(1, 6)), Err(Error::Exists(_))));
        table.apply(&begin(7, 8), Seq(10), 512);
        assert!(matches!(table.check(&end(7, "a")), Err(Error::Exists(_))), "the name is taken");
        table.apply(&give_up(7), Seq(11), 512);
        assert_eq!((table.receiving(), table.positions()), (None, vec![Seq(9)]));
    }

    /// A bookmark keeps name and position and has no content: it holds nothing, is not held, and is removed like a snapshot.
    #[test]
    fn a_bookmark_is_a_position() {
        let mut table = Snapshots::default();
        table.apply(&make("a"), Seq(5), 512);
        table.apply(&make("b"), Seq(9), 512);
        let leave = Operation::Remove { name: "a".into(), bookmark: true };
        assert_eq!(Operation::decode(&leave.encode()).as_ref(), Some(&leave));
        table.check(&leave).expect("it is a snapshot");
        table.apply(&leave, Seq(10), 512);
        assert_eq!((table.positions(), table.oldest_bookmark()), (vec![Seq(9)], Some(Seq(5))));
        for wrong in [leave, hold("a", "x"), make("a")] {
            assert!(table.check(&wrong).is_err(), "{wrong:?}");
        }
        table.keep_content(|at| at == Seq(9));
        assert_eq!(table.positions(), [Seq(9)]);
        table.keep_content(|_| false);
        assert_eq!((table.positions(), table.iter().len()), (vec![], 2));
        table.apply(&Operation::Remove { name: "a".into(), bookmark: false }, Seq(11), 512);
        assert_eq!(table.oldest_bookmark(), Some(Seq(9)));
    }
}
