//! Completing blocks of which a journal range holds sectors: over their committed version, which is their base.
//!
//! A store that is away is waited for, as an upload would. A base that cannot be read for another reason (damage, a missing
//! segment, a volume it was cloned from that is not in its place, or whose own store does not answer) must neither hold everything else up
//! nor take what was written along: the segment has the sectors, apart from the rest, and they are put together when that can be read.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};

use crate::{
    Error, Result, env::Env, log::LogWriter, sectors::SectorMask, units::FRAME_BLOCKS_MAX,
    writeback::pack::Newest,
};

/// Bases read at once for one segment: with few segments made at once, many, or the link would wait.
const READS_MAX: usize = 32;
/// Pause between attempts while the store is away, on top of what the store's own retries take.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pauses after which a base that could not be read is fetched once more: one reply may be damaged. Longer ones would only keep
/// those waiting who need a commit, as nothing is lost.
const DAMAGE_PAUSES_MS: [u64; 2] = [100, 400];

/// Whoever knows the committed version of blocks.
#[async_trait]
pub trait Bases: Send + Sync + 'static {
    /// The committed version of a block, or any later one: 4096 bytes.
    async fn read(&self, block: u64) -> Result<Bytes>;
    /// Whether what does not answer is another volume, and write-back should not wait for it any longer.
    fn is_origin_away(&self) -> bool;
}

/// A block and what the journal has of it.
pub(super) struct Sectors {
    pub block: u64,
    pub mask: SectorMask,
    pub payload: Bytes,
}

/// What became of the sectors of a range.
#[derive(Default)]
pub(super) struct Completed {
    pub blocks: BTreeMap<u64, Bytes>,
    /// Those whose base cannot be read, ascending.
    pub partial: Vec<Sectors>,
}

/// Completes every block of which a range holds sectors only. Ends when the store is there.
pub(super) async fn complete(env: &Env, bases: &dyn Bases, log: &LogWriter, newest: &Newest) -> Completed {
    let mut left: Vec<_> = newest.sectors().collect();
    let wanted = left.len();
    let mut out = Completed::default();
    let mut pauses = DAMAGE_PAUSES_MS.into_iter();
    while !left.is_empty() {
        let mut damaged = BTreeMap::new();
        let mut away = None;
        for (block, read) in read_all(bases, &left).await {
            match read {
                Ok(bytes) => drop(out.blocks.insert(block, bytes)),
                Err(e) if e.is_damage() => drop(damaged.insert(block, e)),
                Err(e) => away = Some((block, e)),
            }
        }
        left.retain(|sectors| !out.blocks.contains_key(&sectors.block));
        if let Some((block, error)) = away {
            if let Err(error) = wait_for_store(env, bases, log, block, error).await {
                out.partial = std::mem::take(&mut left);
                tell_partial(&BTreeMap::from([(block, error)]), out.partial.len());
            }
        } else if let Some(pause) = pauses.next().filter(|_| !left.is_empty()) {
            env.sleep(Duration::from_millis(pause)).await;
        } else {
            out.partial = std::mem::take(&mut left);
            tell_partial(&damaged, damaged.len());
        }
    }
    assert_eq!(out.blocks.len() + out.partial.len(), wanted, "every block is complete or partial");
    out
}

fn tell_partial(damaged: &BTreeMap<u64, Error>, blocks: usize) {
    let Some((block, error)) = damaged.first_key_value() else { return };
    tracing::warn!(
        block,
        blocks,
        %error,
        "parts of blocks were written whose other parts cannot be read. They are stored by themselves and stay readable; \
         the blocks are completed when the rest can be read again"
    );
}

/// One request at a time finds out whether the store is back.
///
/// # Errors
/// The last one, when it is another volume's store that is away for long, and this one's is there: then write-back does not wait for it.
async fn wait_for_store(
    env: &Env,
    bases: &dyn Bases,
    log: &LogWriter,
    block: u64,
    mut error: Error,
) -> Result<()> {
    let _refused = log.refused();
    loop {
        log.note_trouble(&error);
        if bases.is_origin_away() {
            // Comes back when this one's store has answered; what it says is for who puts the segment.
            let _ = log.look().await;
            if bases.is_origin_away() {
                return Err(error);
            }
        }
        env.sleep(RETRY_PAUSE).await;
        match bases.read(block).await {
            Err(e) if !e.is_damage() => error = e,
            _ => return Ok(()),
        }
    }
}

type ReadBase = (u64, Result<Bytes>);

/// Completes what it can, those that may share a frame one after the other. Once the store is found away, nothing
/// more is asked, and what was not is missing in the answer.
async fn read_all(bases: &dyn Bases, all: &[Sectors]) -> Vec<ReadBase> {
    let frame = |sectors: &Sectors| sectors.block / FRAME_BLOCKS_MAX as u64;
    let together = all.chunk_by(|a, b| frame(a) == frame(b));
    let away = AtomicBool::new(false);
    let reads: Vec<_> = together.map(|several| read_some(bases, several, &away)).collect();
    stream::iter(reads).buffered(READS_MAX).concat().await
}

async fn read_some(bases: &dyn Bases, several: &[Sectors], away: &AtomicBool) -> Vec<ReadBase> {
    let mut out = Vec::with_capacity(several.len());
    for sectors in several {
        if away.load(Ordering::Relaxed) {
            break;
        }
        let base = bases.read(sectors.block).await;
        if base.as_ref().is_err_and(|e| !e.is_damage()) {
            away.store(true, Ordering::Relaxed);
        }
        out.push((sectors.block, base.map(|base| sectors.over(&base))));
    }
    out
}

impl Sectors {
    fn over(&self, base: &[u8]) -> Bytes {
        let mut block = BytesMut::from(base);
        self.mask.overlay(&mut block, &self.payload);
        block.freeze()
    }
}
