//! Objects that are kept in a store only to be deleted when it takes nothing more.
//!
//! A store with a quota says that it is full by refusing a put, and not before. But what frees space has to be put first: the entry that
//! discards, runs of the map, a checkpoint, what is left in emptied slots. So a writer keeps objects without meaning, an eighth of what is
//! stored and 80 MiB at most, and deletes them when one of those is refused. It puts them again before any data once there is room.
//!
//! A store may look at what is stored when a put begins, and not at what is on its way. So data that is on its way at once could exceed the quota by
//! more than the reserve, and then nothing would lead out: beside a segment no more goes there than seven eighths of the reserve.
//!
//! Only the volume's writer uses them, and nothing depends on them: a late put or delete of one changes how much is kept.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{
    Result,
    log::keys,
    store::{LIST_MAX, SharedStore, delete_all},
};

/// Of what is stored.
const PART: u64 = 8;
/// Bytes of the first object; each is twice the one before, up to the largest.
const BYTES_MIN: u64 = 256 << 10;
const BYTES_MAX: u64 = 16 << 20;
/// All of them are 79.75 MiB.
const COUNT_MAX: u64 = 10;
/// So much may be on its way, however small the reserve is.
const FLIGHT_BYTES_MIN: u64 = 4 << 20;

/// The reserve of a volume.
pub(super) struct Reserve {
    store: SharedStore,
    /// Held while something is put or deleted.
    state: tokio::sync::Mutex<State>,
    /// Of the objects that are there.
    bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    /// So many objects are there, in the order of their numbers; `None` before the first look.
    there: Option<u64>,
    wanted: u64,
}

impl Reserve {
    pub fn new(store: SharedStore) -> Reserve {
        Reserve { store, state: tokio::sync::Mutex::default(), bytes: AtomicU64::new(0) }
    }

    /// How much data may be on its way beside what is sent next.
    pub fn flight_bytes_max(&self) -> u64 {
        FLIGHT_BYTES_MIN.max(self.bytes.load(Relaxed) / 8 * 7)
    }

    fn set_there(&self, state: &mut State, there: u64) {
        state.there = Some(there);
        self.bytes.store((0..there).map(bytes).sum(), Relaxed);
    }

    /// Puts what is missing for so much that is stored, if it may, and deletes what is more than that of twice as much.
    pub async fn keep(&self, stored_bytes: u64, may_grow: bool) -> Result<()> {
        self.state.lock().await.wanted = count(stored_bytes);
        while may_grow && !self.grow().await? {}
        let mut state = self.state.lock().await;
        while let Some(last) = state.there.and_then(|there| there.checked_sub(1))
            && last >= count(stored_bytes * 2)
        {
            self.remove(&[keys::reserve(last)]).await?;
            self.set_there(&mut state, last);
        }
        Ok(())
    }

    /// Puts one object, if one is missing; whether all are there then.
    pub async fn grow(&self) -> Result<bool> {
        let mut state = self.state.lock().await;
        if state.wanted == 0 {
            return Ok(true);
        }
        let there = match state.there {
            Some(there) => there,
            None => self.look().await?,
        };
        self.set_there(&mut state, there);
        if there < state.wanted {
            self.store.put(&keys::reserve(there), filling(there)).await?;
            self.set_there(&mut state, there + 1);
        }
        Ok(there + 1 >= state.wanted)
    }

    /// Deletes all of it; whether anything was there.
    pub async fn give_up(&self) -> Result<bool> {
        let mut state = self.state.lock().await;
        if state.there == Some(0) {
            return Ok(false);
        }
        // What was put and not answered may be there as well.
        let names = self.names().await?;
        state.there = None;
        self.bytes.store(0, Relaxed);
        self.remove(&names).await?;
        state.there = Some(0);
        Ok(!names.is_empty())
    }

    async fn remove(&self, names: &[String]) -> Result<()> {
        match delete_all(self.store.as_ref(), names).await.into_iter().next() {
            Some(undeleted) => Err(undeleted.why.into()),
            None => Ok(()),
        }
    }

    async fn look(&self) -> Result<u64> {
        let names = self.names().await?;
        let numbers = names.iter().zip(0..).take_while(|(name, number)| **name == keys::reserve(*number));
        Ok(numbers.count() as u64)
    }

    async fn names(&self) -> Result<Vec<String>> {
        let listed = self.store.list_after(keys::RESERVE_PREFIX, "", LIST_MAX).await?;
        let names = listed.into_iter().map(|listed| listed.key);
        Ok(names.filter(|name| keys::parse_reserve(name).is_some()).collect())
    }
}

fn bytes(number: u64) -> u64 {
    (BYTES_MIN << number.min(16)).min(BYTES_MAX)
}

/// How many objects are kept for so much that is stored.
fn count(stored_bytes: u64) -> u64 {
    let mut left = stored_bytes / PART;
    let mut fits = |number| {
        left = left.checked_sub(bytes(number))?;
        Some(())
    };
    (0..COUNT_MAX).take_while(|&number| fits(number).is_some()).count() as u64
}

/// What cannot be compressed, and is no other object's: SplitMix64 (Steele, Lea, Flood 2014), begun with the number.
fn filling(number: u64) -> bytes::Bytes {
    let mut state = number;
    let mut out = Vec::with_capacity(bytes(number) as usize);
    while (out.len() as u64) < bytes(number) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::MemoryStore;

    /// An eighth of what is stored is kept, in whole objects, and 80 MiB at most.
    #[test]
    fn the_reserve_grows_with_the_volume() {
        let kept = |stored_mib: u64| (0..count(stored_mib << 20)).map(bytes).sum::<u64>();
        assert_eq!([0, 1, 2, 8, 64].map(kept), [0, 0, 256 << 10, 768 << 10, 7936 << 10]);
        for stored in [0, 1, 7, 100, 250, 300, 1 << 20] {
            assert!(kept(stored) <= (stored << 20) / PART);
        }
        assert_eq!(kept(1 << 20), 319 << 18);
    }

    /// What was given up is gone, what another writer left is found, and what is missing is put again one by one.
    #[tokio::test]
    async fn what_is_given_up_comes_back() {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let stored = async || store.list_after("", "", 100).await.expect("listed").len();
        let reserve = Reserve::new(store.clone());
        reserve.keep(8 << 20, true).await.expect("kept");
        assert_eq!(stored().await, 2);
        reserve.keep(5 << 20, true).await.expect("kept");
        assert_eq!(stored().await, 2, "a little less changes nothing");
        let next = Reserve::new(store.clone());
        assert!(next.give_up().await.expect("given up"));
        assert!(!next.give_up().await.expect("nothing is left"));
        assert_eq!(stored().await, 0);
        assert!(next.grow().await.expect("nothing is wanted"), "where none is wanted, all are there");
        next.state.lock().await.wanted = 2;
        assert!(!next.grow().await.expect("one is put"));
        assert!(next.grow().await.expect("and the other"));
        assert_eq!(stored().await, 2);
        next.keep(0, false).await.expect("kept");
        assert_eq!(stored().await, 0);
    }
}
