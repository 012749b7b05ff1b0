//! What is known of a disk that has no room for the journal. No IO, no lock of its own.
//!
//! A journal whose space was reserved meets this only where the file system does not keep a reservation (copy-on-write,
//! quotas, file systems that cannot reserve). A write that failed for lack of room is no failure of the medium: what it
//! wrote in part is written again at the same place, and until then nothing behind it is.

use std::time::Duration;

/// The disk has no room for something that has to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// When that was seen first.
    pub since: Duration,
    /// What the disk said last.
    pub why: String,
}

/// Whether there is room, as far as the last writes tell.
#[derive(Debug, Default)]
pub(super) struct DiskSpace {
    /// Set until something was written again.
    shortage: Option<Shortage>,
    /// What lacks room is not tried again yet.
    holds_back: bool,
}

impl DiskSpace {
    pub fn shortage(&self) -> Option<&Shortage> {
        self.shortage.as_ref()
    }

    /// Whether what lacks room is not tried yet: until then only syncs are work for the writer.
    pub fn holds_back(&self) -> bool {
        self.holds_back
    }

    /// A write found no room; says whether that is news.
    pub fn run_short(&mut self, now: Duration, why: String) -> bool {
        let since = self.shortage.as_ref().map_or(now, |before| before.since);
        self.holds_back = true;
        self.shortage.replace(Shortage { since, why }).is_none()
    }

    /// What lacks room is tried once more.
    pub fn try_again(&mut self) {
        self.holds_back = false;
    }

    /// Something was written: gives the shortage that ends with that.
    pub fn found_room(&mut self) -> Option<Shortage> {
        self.holds_back = false;
        self.shortage.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shortage is as old as its first failure, and over with the first write that succeeds.
    #[test]
    fn a_shortage_lasts_until_something_is_written() {
        let mut disk = DiskSpace::default();
        let at = Duration::from_secs;
        assert!(disk.run_short(at(1), "first".into()) && disk.holds_back());
        disk.try_again();
        assert!(!disk.holds_back() && disk.shortage().is_some());
        assert!(!disk.run_short(at(2), "second".into()));
        assert_eq!(disk.found_room(), Some(Shortage { since: at(1), why: "second".into() }));
        assert!(!disk.holds_back() && disk.found_room().is_none());
        assert!(disk.run_short(at(3), "third".into()));
    }
}
