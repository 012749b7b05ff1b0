//! The entries of the log as they lie in the store: listed, asked for by name, and read.

use futures_util::future::join_all;

use crate::{
    Error, Result,
    log::{keys, wrapping::VolumeKeys},
    segment::{Entry, EntryHead, TAIL_BYTES, Tail, read_tail},
    store::{Listed, Pages, Store, StoreError},
    units::{Seq, VolumeId},
};

/// Entries that are asked for at once. The log behind a checkpoint is bounded, so this only smooths the burst.
pub(super) const ENTRIES_IN_FLIGHT: usize = 32;
/// Batches of entries that are asked for by name, behind what is listed: some 4000 entries.
const BATCHES_MAX: usize = 128;
/// Bytes of what is left in an emptied slot, at most.
const EMPTIED_BYTES_MAX: u64 = 256;

/// What a slot of the log holds.
pub enum SlotContent {
    Entry(EntryHead, Entry),
    /// An object of another volume: a void slot.
    Foreign(VolumeId),
}

/// What does not verify is read once more: one reply may have come damaged.
pub(super) async fn believed_twice<T, F: Future<Output = Result<T>>>(read: impl Fn() -> F) -> Result<T> {
    match read().await {
        Err(Error::Corrupt { .. } | Error::Version { .. }) => read().await,
        done => done,
    }
}

/// The log's objects after some position.
#[derive(Default)]
pub(super) struct ListedLog {
    /// Up to the first gap.
    pub entries: Vec<(Seq, Listed)>,
    /// One that is listed beyond the gap, where a listing shows one.
    pub beyond: Option<(Seq, Listed)>,
}

/// The log's objects after `covered`, up to the first gap. Its names are consecutive, so the end of a listing is proven: nothing lies
/// in the next slot. Where something does, it came just now, or the listing is old or cut: what follows is asked for by name.
pub(super) async fn list_log(store: &dyn Store, covered: Seq) -> Result<ListedLog> {
    let mut out = ListedLog::default();
    list_until_gap(store, covered, &mut out).await?;
    let mut end = out.entries.last().map_or(covered, |(seq, _)| *seq);
    for batch in 0..BATCHES_MAX {
        let count = ENTRIES_IN_FLIGHT.min(1 << batch.min(ENTRIES_IN_FLIGHT.ilog2() as usize));
        let asked = (1..=count as u64)
            .map(|n| async move { (Seq(end.0 + n), store.size(&keys::entry(Seq(end.0 + n))).await) });
        for (seq, bytes) in join_all(asked).await {
            let Some(bytes) = bytes? else { return Ok(out) };
            out.entries.push((seq, Listed { key: keys::entry(seq), bytes }));
            end = seq;
        }
    }
    Err(Error::Unreachable("the log grows faster than it is read, or the store does not list it".into()))
}

/// The same by one listing.
async fn list_until_gap(store: &dyn Store, mut end: Seq, out: &mut ListedLog) -> Result<()> {
    let mut pages = Pages::behind(store, keys::LOG_PREFIX, keys::entry(end));
    while let Some(page) = pages.next_page().await? {
        let mut entries =
            page.into_iter().filter_map(|listed| Some((keys::parse_entry(&listed.key)?, listed)));
        while let Some((seq, listed)) = entries.next() {
            if seq != end.next() {
                out.beyond = Some(entries.next_back().unwrap_or((seq, listed)));
                return Ok(());
            }
            end = seq;
            out.entries.push((seq, listed));
        }
    }
    Ok(())
}

/// Reads what lies in one slot of the log, by its tail.
pub async fn read_entry(
    store: &dyn Store,
    keys: &VolumeKeys,
    seq: Seq,
    listed: &Listed,
) -> Result<SlotContent> {
    believed_twice(|| read_slot(store, keys, seq, listed)).await
}

/// The head of what is left in a slot, if it was emptied.
pub async fn read_emptied(store: &dyn Store, keys: &VolumeKeys, seq: Seq) -> Result<Option<EntryHead>> {
    let body = match store.get(&keys::entry(seq), EMPTIED_BYTES_MAX).await {
        Ok(body) => body,
        Err(StoreError::Unusable { .. }) => return Ok(None), // longer
        Err(e) => return Err(e.into()),
    };
    match read_tail(keys.key.as_deref(), keys.volume, seq, body.len() as u64, &body) {
        Ok(Tail::Whole(head, Entry::Emptied)) => Ok(Some(head)),
        _ => Ok(None),
    }
}

async fn read_slot(store: &dyn Store, keys: &VolumeKeys, seq: Seq, listed: &Listed) -> Result<SlotContent> {
    let mut from = listed.bytes.saturating_sub(TAIL_BYTES);
    // The footer says where it begins, so a second look is always enough.
    for _ in 0..2 {
        let tail = store.get_range(&listed.key, from..listed.bytes).await?;
        if tail.len() as u64 != listed.bytes - from
            && let Some(head) = read_emptied(store, keys, seq).await?
        {
            return Ok(SlotContent::Entry(head, Entry::Emptied)); // since it was listed
        }
        match read_tail(keys.key.as_deref(), keys.volume, seq, listed.bytes, &tail)? {
            Tail::Whole(head, entry) => return Ok(SlotContent::Entry(head, entry)),
            Tail::Foreign(volume) => return Ok(SlotContent::Foreign(volume)),
            Tail::NeedMore { from: start } => from = start,
        }
    }
    Err(Error::corrupt(listed.key.clone(), "the footer does not lie where the trailer says"))
}
