//! Snapshots that a command makes in order to copy them: what they are called, and what becomes of them afterwards.
//!
//! Pure. On the volume that is copied their names say for which place they are, so whoever copies to another place leaves them alone. The newest
//! becomes a bookmark, from which the next copy goes on; what went before it goes. Where they arrive they are called without that. Never touches
//! what has another name, a hold or a clone.

use std::collections::BTreeSet;

use cistern_engine::{snapshot::is_hidden, units::SnapshotId, volume::SnapshotStatus};

use crate::{
    control::SnapshotChange,
    schedule::{self, Schedule},
};

/// Which command makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    Copy,
    Backup,
}

/// Those that one command makes for one place.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    maker: Maker,
    /// What their names end with.
    suffix: String,
}

impl Maker {
    fn prefix(self) -> &'static str {
        match self {
            Maker::Copy => "copy-",
            Maker::Backup => "backup-",
        }
    }

    /// Those for a place, which is told by its URL.
    pub fn marks(self, place: &str) -> Marks {
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, place.as_bytes());
        Marks { maker: self, suffix: format!(".{:08x}", sum as u32) }
    }

    /// Whether it is the name of one that has arrived.
    pub fn has_brought(self, name: &str) -> bool {
        const LIKE: &[u8] = b"0000-00-00T00:00:00";
        let Some(time) = name.strip_prefix(self.prefix()) else { return false };
        let fits = |(is, like): (&u8, &u8)| if *like == b'0' { is.is_ascii_digit() } else { is == like };
        time.len() == LIKE.len() && time.as_bytes().iter().zip(LIKE).all(fits)
    }

    /// Which of those that have arrived are not to be kept, oldest first; never the newest.
    pub fn expired(self, keep: &Schedule, all: &[SnapshotStatus], newest: SnapshotId) -> Vec<String> {
        let brought = |snapshot: &&SnapshotStatus| self.has_brought(&snapshot.name) && !snapshot.is_bookmark;
        let brought: Vec<&SnapshotStatus> = all.iter().filter(brought).collect();
        let expired = keep.expired(brought.iter().map(|snapshot| snapshot.made_ms).collect());
        let mut goes: Vec<&SnapshotStatus> = brought
            .into_iter()
            .filter(|snapshot| expired.contains(&snapshot.made_ms) && snapshot.id != newest)
            .filter(|snapshot| snapshot.holds.is_empty() && snapshot.clones.is_empty())
            .collect();
        goes.sort_by_key(|snapshot| snapshot.at);
        goes.into_iter().map(|snapshot| snapshot.name.clone()).collect()
    }
}

impl Marks {
    /// The name of one that is made now: none of these. If there is one of this second already, it is a later one.
    pub fn name(&self, wall_ms: u64, taken: &BTreeSet<String>) -> String {
        let seconds = (0..).map(|n: u64| schedule::dated(self.maker.prefix(), wall_ms + n * 1000));
        let mut names = seconds.map(|name| format!("{name}{}", self.suffix));
        names.find(|name| !taken.contains(name)).expect("there are more seconds than snapshots")
    }

    /// What one is called where it arrives, beside others; if one of these has its name, it is a later one.
    pub fn name_there(&self, snapshot: &SnapshotStatus, there: &[SnapshotStatus]) -> String {
        let is_free =
            |name: &String| !there.iter().any(|their| their.name == *name && their.id != snapshot.id);
        let own = self.arrived(&snapshot.name).map(str::to_owned);
        let later = (1..).map(|n: u64| schedule::dated(self.maker.prefix(), snapshot.made_ms + n * 1000));
        own.into_iter().chain(later).find(is_free).expect("there are more seconds than snapshots")
    }

    /// What one is called where it arrives alone; `None` for a name that none of these has.
    fn arrived<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_suffix(self.suffix.as_str()).filter(|name| self.maker.has_brought(name))
    }

    /// Those with content: the runs that made them did not come to their end.
    pub fn left<'a>(&self, all: &'a [SnapshotStatus]) -> impl Iterator<Item = &'a SnapshotStatus> {
        all.iter().filter(|snapshot| self.arrived(&snapshot.name).is_some() && !snapshot.is_bookmark)
    }

    /// Whether one has arrived before, as far as the volume that is copied tells.
    pub fn have_arrived(&self, all: &[SnapshotStatus]) -> bool {
        all.iter().any(|snapshot| self.arrived(&snapshot.name).is_some() && snapshot.is_bookmark)
    }

    /// What is to be done with those on the volume that is copied, when `newest` of them has arrived.
    pub fn settle(&self, all: &[SnapshotStatus], newest: SnapshotId) -> Vec<(String, SnapshotChange)> {
        let newest_at = all.iter().find(|snapshot| snapshot.id == newest).and_then(|snapshot| snapshot.at);
        let Some(newest_at) = newest_at else { return Vec::new() };
        let is_free = |snapshot: &&SnapshotStatus| {
            let is_one = self.arrived(&snapshot.name).is_some();
            is_one
                && snapshot.clones.is_empty()
                && snapshot.holds.is_empty()
                && snapshot.at.is_some_and(|at| at <= newest_at)
        };
        let change = |snapshot: &SnapshotStatus| match (snapshot.id == newest, snapshot.is_bookmark) {
            (true, true) => None,
            (true, false) => Some((snapshot.name.clone(), SnapshotChange::LeaveBookmark)),
            (false, _) => Some((snapshot.name.clone(), SnapshotChange::Remove)),
        };
        all.iter().filter(is_free).filter_map(change).collect()
    }
}

/// Whether somebody named it, and it has content.
pub(super) fn is_shown(snapshot: &SnapshotStatus) -> bool {
    !snapshot.is_bookmark && !is_hidden(&snapshot.name)
}

/// The newest snapshot or bookmark, not behind `to`, that another volume has too and from which what changed since is known.
pub(super) fn newest_common<'a>(
    all: &'a [SnapshotStatus],
    other: &[SnapshotStatus],
    to: &SnapshotStatus,
    is_known_since: impl Fn(&SnapshotStatus) -> bool,
) -> Option<&'a SnapshotStatus> {
    let ids: BTreeSet<SnapshotId> =
        other.iter().filter(|theirs| !is_hidden(&theirs.name)).map(|theirs| theirs.id).collect();
    let is_base = |snapshot: &&SnapshotStatus| {
        let is_older = snapshot.at.is_some_and(|at| to.at.is_some_and(|to| at <= to));
        is_older && snapshot.id != to.id && ids.contains(&snapshot.id) && is_known_since(snapshot)
    };
    all.iter().filter(is_base).max_by_key(|snapshot| (snapshot.at, snapshot.made_ms))
}

#[cfg(test)]
mod tests;
