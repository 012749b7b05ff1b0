//! The objects themselves, and what each request does to them. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    ops::Range,
    time::Duration,
};

use bytes::Bytes;
use cistern_engine::store::{Listed, Put, StoreError, StoreResult};
use rand::{Rng, RngExt};

/// No listing is older than this.
pub const LISTING_AGE_MAX: Duration = Duration::from_secs(20);

/// All objects by key.
#[derive(Default)]
pub struct Objects {
    map: BTreeMap<String, Bytes>,
    /// What came and went within the age of a listing, the oldest first.
    changes: VecDeque<Change>,
    /// Those that are there and that no get finds.
    absent: BTreeSet<String>,
}

/// An object that was put or deleted.
struct Change {
    at: Duration,
    key: String,
    /// Its size before that, if it was there.
    bytes_before: Option<u64>,
}

/// What a client may ask.
pub enum Request {
    Put { key: String, body: Bytes, if_absent: bool },
    Get { key: String, range: Range<u64> },
    List { prefix: String, after: String, count_max: usize },
    Dirs { prefix: String },
    Delete { key: String },
}

/// What a store answers.
pub enum Reply {
    Put(Put),
    Body(Bytes),
    Missing,
    Listing(Vec<Listed>),
    Dirs(Vec<String>),
    Deleted,
    /// The disk has no room for a put.
    Full,
    /// The quota has none.
    OverQuota,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Put { key, body, if_absent } => {
                write!(f, "put{} {key} {} bytes", if *if_absent { "-if-absent" } else { "" }, body.len())
            }
            Request::Get { key, range } if range.end == u64::MAX => write!(f, "get {key}"),
            Request::Get { key, range } => write!(f, "get {key} {range:?}"),
            Request::List { prefix, after, count_max } => {
                write!(f, "list {prefix} after {after:?} {count_max}")
            }
            Request::Dirs { prefix } => write!(f, "dirs {prefix}"),
            Request::Delete { key } => write!(f, "delete {key}"),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Put(put) => write!(f, "{put:?}"),
            Reply::Body(body) => write!(f, "{} bytes", body.len()),
            Reply::Missing => write!(f, "missing"),
            Reply::Listing(listing) => write!(f, "{} objects", listing.len()),
            Reply::Dirs(dirs) => write!(f, "{} directories", dirs.len()),
            Reply::Deleted => write!(f, "deleted"),
            Reply::Full => write!(f, "full"),
            Reply::OverQuota => write!(f, "over the quota"),
        }
    }
}

impl Reply {
    /// The reply as the client sees it.
    pub fn into_result(self, request: &Request) -> StoreResult<Reply> {
        match (&self, request) {
            (Reply::Missing, Request::Get { key, .. }) => Err(StoreError::NotFound(key.clone())),
            (Reply::Full, _) => Err(StoreError::NoRoom("the file system is full".into())),
            (Reply::OverQuota, _) => Err(StoreError::NoRoom("the quota is used up".into())),
            _ => Ok(self),
        }
    }

    /// The body of a reply to a get.
    pub fn body(self) -> Bytes {
        match self {
            Reply::Body(body) => body,
            other => unreachable!("a get is answered by a body, not by {other:?}"),
        }
    }
}

impl Objects {
    /// Lets a request take effect now. A listing shows what was there at a moment `listed_at`; a store that `overwrites` looks at no condition.
    pub fn apply(
        &mut self,
        request: &Request,
        overwrites: bool,
        now: Duration,
        listed_at: Duration,
    ) -> Reply {
        match request {
            Request::Put { key, body, if_absent } => {
                if *if_absent && !overwrites && self.map.contains_key(key) {
                    return Reply::Put(Put::Exists);
                }
                self.note_change(key, now);
                self.map.insert(key.clone(), body.clone());
                Reply::Put(Put::Created)
            }
            Request::Get { key, range } => match self.map.get(key).filter(|_| !self.absent.contains(key)) {
                Some(body) => {
                    let end = range.end.min(body.len() as u64) as usize;
                    let start = (range.start as usize).min(end);
                    Reply::Body(body.slice(start..end))
                }
                None => Reply::Missing,
            },
            Request::List { prefix, after, count_max } => {
                Reply::Listing(self.list(prefix, after, *count_max, listed_at))
            }
            Request::Dirs { prefix } => Reply::Dirs(self.dirs(prefix, listed_at)),
            Request::Delete { key } => {
                self.note_change(key, now);
                self.map.remove(key);
                Reply::Deleted
            }
        }
    }

    /// Takes segments out of sight that the newest checkpoint covers, each by chance. Says how many.
    pub fn hide_segments(&mut self, rng: &mut impl Rng) -> usize {
        let position = |key: &String| u64::from_str_radix(key.rsplit(['/', '-']).next()?, 16).ok();
        let below = |prefix| self.map.keys().filter(move |key| is_below(prefix, key));
        let covered = below("checkpoint/").filter_map(position).max().unwrap_or(0);
        let segments = below("log/").filter(|key| position(key).is_some_and(|seq| seq <= covered));
        let mut segments: Vec<String> = segments.cloned().collect();
        segments.pop(); // a writer that misses the newest object of the log stops
        self.absent.extend(segments.into_iter().filter(|_| rng.random_bool(0.7)));
        self.absent.len()
    }

    /// Everything is in sight again.
    pub fn show_all(&mut self) {
        self.absent.clear();
    }

    /// Of all objects together.
    pub fn bytes(&self) -> u64 {
        self.map.values().map(|body| body.len() as u64).sum()
    }

    fn note_change(&mut self, key: &str, now: Duration) {
        while self.changes.front().is_some_and(|change| change.at + LISTING_AGE_MAX < now) {
            self.changes.pop_front();
        }
        let bytes_before = self.map.get(key).map(|body| body.len() as u64);
        self.changes.push_back(Change { at: now, key: key.to_owned(), bytes_before });
    }

    /// The sizes of all below a prefix as they were at a moment.
    fn as_of(&self, prefix: &str, at: Duration) -> BTreeMap<&str, u64> {
        let below = self.map.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let mut sizes: BTreeMap<&str, u64> =
            below.map(|(key, body)| (key.as_str(), body.len() as u64)).collect();
        let undone = self.changes.iter().rev().take_while(|change| change.at > at);
        for change in undone.filter(|change| change.key.starts_with(prefix)) {
            match change.bytes_before {
                Some(bytes) => sizes.insert(&change.key, bytes),
                None => sizes.remove(change.key.as_str()),
            };
        }
        sizes
    }

    fn list(&self, prefix: &str, after: &str, count_max: usize, at: Duration) -> Vec<Listed> {
        let all = self.as_of(prefix, at).into_iter();
        let wanted = all.filter(|(key, _)| *key > after).take(count_max);
        wanted.map(|(key, bytes)| Listed { key: key.to_owned(), bytes }).collect()
    }

    fn dirs(&self, prefix: &str, at: Duration) -> Vec<String> {
        let all = self.as_of(prefix, at).into_keys();
        let mut dirs: Vec<String> = all
            .filter_map(|key| key.strip_prefix(prefix)?.split_once('/'))
            .map(|(dir, _)| dir.to_owned())
            .collect();
        dirs.dedup();
        dirs
    }

    /// All keys, ascending.
    pub fn keys(&self) -> Vec<String> {
        self.map.keys().cloned().collect()
    }

    /// Damages an object at rest that is below a prefix, wherever that begins: a flipped bit, a lost tail, or another object's content. Says what
    /// it did, `None` when there is nothing to damage.
    pub fn damage(&mut self, prefix: &str, rng: &mut impl Rng) -> Option<String> {
        let keys: Vec<String> = self.map.keys().filter(|k| is_below(prefix, k)).cloned().collect();
        if keys.is_empty() {
            return None;
        }
        let key = &keys[rng.random_range(0..keys.len())];
        let body = self.map.get(key).filter(|b| !b.is_empty())?;
        let at = rng.random_range(0..body.len());
        let mut bytes = body.to_vec();
        let what = match rng.random_range(0..4) {
            0 => {
                bytes.truncate(at);
                format!("{key} cut to {at} bytes")
            }
            1 if keys.len() > 1 => {
                let other = &keys[rng.random_range(0..keys.len())];
                bytes = self.map[other].to_vec();
                format!("{key} replaced by {other}")
            }
            _ => {
                bytes[at] ^= 1 << rng.random_range(0..8);
                format!("{key} bit flipped in byte {at}")
            }
        };
        self.map.insert(key.clone(), bytes.into());
        Some(what)
    }
}

fn is_below(prefix: &str, key: &str) -> bool {
    key.starts_with(prefix) || key.contains(&format!("/{prefix}"))
}
