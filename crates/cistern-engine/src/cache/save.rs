//! Writes the index to its file, behind the fills and never in a reader's way.
//!
//! A page that was not written when the daemon dies costs misses, never wrong data. So pages are
//! written late: a page whose records change again and again is written once for many changes, and
//! the index never takes more than a part of the disk's writes.

use super::{
    lookup::CacheShared,
    pages::{PAGE_BYTES, encode_page, page_offset, slots_of},
};
use crate::{Error, disk::AlignedBuf};

/// Pages that may wait while fills are written; the longest waiting beyond them are written.
const WAITING_MAX: usize = 256;
/// Bytes of fills that pay for one page: the index takes at most an eighth of what fills take.
const FILL_BYTES_PER_PAGE: usize = 8 * PAGE_BYTES;
/// Pages that are written at once where nothing else is to do, and at the end.
const BATCH_PAGES: usize = 64;

/// After a fill of so many bytes: what waits too long, as far as the fill paid for it.
pub(super) async fn behind(shared: &CacheShared, fill_bytes: usize) {
    let waiting = shared.state().index.changed.len();
    let paid = fill_bytes.div_ceil(FILL_BYTES_PER_PAGE);
    save(shared, waiting.saturating_sub(WAITING_MAX).min(paid)).await;
}

/// While nothing else is to do: a batch.
pub(super) async fn idle(shared: &CacheShared) {
    save(shared, BATCH_PAGES).await;
}

/// At the end: everything, also what only the policy's order changed.
pub(super) async fn all(shared: &CacheShared) {
    shared.state().index.mark_used();
    while shared.state().index.changed.len() > 0 && !shared.health.is_off() {
        save(shared, BATCH_PAGES).await;
    }
}

/// Writes so many pages, the longest waiting first; neighbours together.
async fn save(shared: &CacheShared, count: usize) {
    let mut pages: Vec<u32> = {
        let mut state = shared.state();
        std::iter::from_fn(|| state.index.changed.pop()).take(count).collect()
    };
    pages.sort_unstable();
    for run in pages.chunk_by(|a, b| a + 1 == *b) {
        if shared.health.is_off() {
            return;
        }
        let mut out = AlignedBuf::zeroed(run.len() * PAGE_BYTES);
        for (page, out) in run.iter().zip(out.chunks_exact_mut(PAGE_BYTES)) {
            let state = shared.state();
            let slots = slots_of(*page, state.index.slots());
            encode_page(&shared.index_id, *page, slots.map(|no| state.index.record(no)), out);
        }
        match shared.index_file.write_at(page_offset(run[0]), &out).await {
            Ok(()) => {}
            Err(Error::Full(what)) => shared.health.full(shared.env.now(), &what),
            Err(e) => shared.fault(&e.to_string()),
        }
    }
}
