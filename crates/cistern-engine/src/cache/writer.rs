//! The one writer of the slab: takes fills from the queue, writes what is missing, confirms it.
//!
//! Being alone it never writes a slot that another write is under way to. A valid piece is never
//! written again, so a reader's bytes change under it only when its chunk was evicted, which it
//! can tell. It writes the index too, behind the fills: a page of the index that waits is as good as
//! one that was lost. Nothing is synced, because nothing is believed without its checksum.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::mpsc;

use super::{
    Admission, CHUNK_BYTES, PIECE_BYTES, PIECES,
    chunks::{pieces, split},
    index::SlotFill,
    lookup::{CacheShared, slab_offset},
    queue::{Fill, Why},
    save,
};
use crate::{Error, Result, disk::AlignedBuf};

/// What was just written goes to the disk in bursts of so many chunks (256 KiB) with pauses between, about
/// 85 MB/s. What comes faster is a bulk write, most of which would only displace itself.
const BURST_CHUNKS: usize = 4;
const BURST_PAUSE: Duration = Duration::from_millis(2);
/// How long the index may lag behind once there is nothing else to write.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Writes fills until the cache is closed or dropped, and then what is still queued, and the index.
pub(super) async fn run(shared: Arc<CacheShared>, mut woken: mpsc::Receiver<()>) {
    let mut chunk = AlignedBuf::zeroed(CHUNK_BYTES);
    loop {
        let waiting = shared.state().index.changed.len();
        let open = match waiting {
            0 => Some(woken.recv().await),
            _ => shared.env.timeout(IDLE_TIME, woken.recv()).await,
        };
        while let Some(fill) = next(&shared) {
            let now = shared.env.now();
            if !shared.health.is_full(now) {
                match write(&shared, &fill, &mut chunk).await {
                    Ok(true) => shared.health.has_room(),
                    Ok(false) => {}
                    Err(Error::Full(what)) => shared.health.full(now, &what),
                    Err(e) => shared.fault(&e.to_string()),
                }
            }
            shared.state().done(fill.ticket);
            save::behind(&shared, fill.bytes.len()).await;
        }
        match open {
            None => save::idle(&shared).await,
            Some(Some(())) => {}
            Some(None) => break,
        }
    }
    save::all(&shared).await;
}

fn next(shared: &CacheShared) -> Option<Fill> {
    shared.state().queue.front()
}

/// Writes what of a fill is missing; says whether that was anything.
async fn write(shared: &CacheShared, fill: &Fill, chunk: &mut AlignedBuf) -> Result<bool> {
    let range = fill.offset..fill.offset + fill.bytes.len() as u64;
    let (mut filled, mut wrote) = (0, false);
    for (n, (id, part)) in split(fill.object, &range).enumerate() {
        if n.is_multiple_of(BURST_CHUNKS) && shared.state().queue.is_leisurely() {
            shared.env.sleep(BURST_PAUSE).await;
        }
        if shared.health.is_off() || !shared.state().queue.wants(fill.ticket) {
            return Ok(wrote); // forgotten meanwhile
        }
        let begin = u64::from(id.chunk) * CHUNK_BYTES as u64;
        let end = (range.end.min(part.end) - begin) as u32;
        let data = &fill.bytes[(part.start - range.start) as usize..];
        let data = &data[..data.len().min((part.end - part.start) as usize)];
        debug_assert_eq!(
            data.len() as u64,
            u64::from(end) + begin - part.start,
            "a chunk gets its part of the fill"
        );
        let Some(enters) = fill.why.enters(n) else { continue };
        filled += data.len() as u64;
        let Some(claim) = shared.state().index.claim(&id, pieces(&part), end, enters) else {
            continue;
        };
        let first = pieces(&part).start * PIECE_BYTES;
        chunk[first..first + data.len()].copy_from_slice(data);
        let written = first + data.len();
        chunk[written..written.next_multiple_of(PIECE_BYTES)].fill(0); // behind the object's end
        match write_missing(shared, &claim, chunk).await {
            Ok(crcs) => {
                wrote |= !crcs.is_empty();
                let object_end = (!end.is_multiple_of(PIECE_BYTES as u32)).then_some(end);
                confirm(shared, fill, &claim, &crcs, object_end);
            }
            Err(e) => {
                shared.state().index.remove(claim.slot, claim.generation);
                return Err(e);
            }
        }
    }
    debug_assert!(filled <= fill.bytes.len() as u64, "no more is filled in than was offered");
    shared.counts.filled(&fill.why).fetch_add(filled, Relaxed);
    Ok(wrote)
}

/// Writes the missing pieces, neighbours together, and gives their checksums.
async fn write_missing(
    shared: &CacheShared,
    claim: &SlotFill,
    chunk: &AlignedBuf,
) -> Result<Vec<(usize, u32)>> {
    let mut crcs = Vec::with_capacity(PIECES);
    for run in runs(claim.missing) {
        let bytes = run.start * PIECE_BYTES..run.end * PIECE_BYTES;
        let at = slab_offset(claim.slot) + bytes.start as u64;
        shared.slab.write_at(at, &chunk[bytes]).await?;
        crcs.extend(run.map(|piece| {
            let bytes = piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES;
            (piece, crc_fast::crc32_iscsi(&chunk[bytes]))
        }));
    }
    Ok(crcs)
}

/// Makes what was written visible, unless it was forgotten while it was being written.
fn confirm(
    shared: &CacheShared,
    fill: &Fill,
    claim: &SlotFill,
    crcs: &[(usize, u32)],
    object_end: Option<u32>,
) {
    debug_assert_eq!(crcs.len(), claim.missing.count_ones() as usize, "all that was claimed was written");
    let mut state = shared.state();
    if state.queue.wants(fill.ticket) {
        let is_prefetched = matches!(fill.why, Why::Offered(Admission::Prefetch));
        state.index.confirm(claim, crcs, object_end, is_prefetched);
    }
}

/// The runs of set bits, ascending.
fn runs(mut bits: u16) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let start = bits.trailing_zeros();
        let len = (bits >> start).trailing_ones();
        let run = start as usize..(start + len) as usize;
        bits &= !((((1u32 << len) - 1) << start) as u16);
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs of a mask are exactly its bits.
    #[test]
    fn runs_are_the_bits() {
        for bits in 0..=u16::MAX {
            let all: Vec<Range<usize>> = runs(bits).collect();
            let mask = all.iter().cloned().flatten().fold(0u16, |mask, piece| mask | 1 << piece);
            assert_eq!(mask, bits);
            assert!(all.windows(2).all(|w| w[0].end < w[1].start));
        }
    }
}
