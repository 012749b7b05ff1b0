//! Completing blocks of which a journal range holds sectors: over their committed version, which is their base.
//!
//! A store that is away is waited for, as an upload would. A base that is damaged for good must not hold
//! everything else up: its block is left out of the segment, and goes on failing with its damaged base.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};

use crate::{
    Error, Result, env::Env, journal::Group, log::LogWriter, sectors::SectorMask, units::FRAME_BLOCKS_MAX,
    writeback::pack::incomplete,
};

/// Bases read at once for one segment.
const READS_MAX: usize = 16;
/// Pause between attempts while the store is away, on top of what the store's own retries take.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pauses after which a damaged base is fetched once more. One reply may be damaged; what stays so all this time
/// is damaged where it lies.
const DAMAGE_PAUSES_MS: [u64; 4] = [100, 400, 1600, 6400];

/// Whoever knows the committed version of blocks.
#[async_trait]
pub trait Bases: Send + Sync + 'static {
    /// The committed version of a block, or any later one: 4096 bytes.
    async fn read(&self, block: u64) -> Result<Bytes>;
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
    /// Their base is damaged.
    pub lost: Vec<u64>,
}

/// Completes every block of which the groups hold sectors only. Ends when the store is there.
pub(super) async fn complete(
    env: &Env,
    bases: &dyn Bases,
    log: &LogWriter,
    groups: Vec<Arc<Group>>,
) -> Completed {
    let mut left = env.compute(move || incomplete(&groups)).await;
    let mut out = Completed::default();
    for pause in DAMAGE_PAUSES_MS.into_iter().map(Some).chain([None]) {
        let mut damaged = BTreeMap::new();
        for (block, read) in read_all(env, bases, log, &left).await {
            match read {
                Ok(bytes) => drop(out.blocks.insert(block, bytes)),
                Err(e) => drop(damaged.insert(block, e)),
            }
        }
        left.retain(|sectors| damaged.contains_key(&sectors.block));
        let Some(pause) = pause.filter(|_| !left.is_empty()) else {
            for (block, error) in damaged {
                tracing::error!(
                    block,
                    %error,
                    "sectors that were written to this block are lost: the rest of it is damaged in the store. \
                     It cannot be read until it is written whole, or trimmed"
                );
                out.lost.push(block);
            }
            break;
        };
        env.sleep(Duration::from_millis(pause)).await;
    }
    out
}

type Attempt = (u64, Result<Bytes>);

/// Reads all bases, those that may share a frame one after the other.
async fn read_all(env: &Env, bases: &dyn Bases, log: &LogWriter, all: &[Sectors]) -> Vec<Attempt> {
    let frame = |sectors: &Sectors| sectors.block / FRAME_BLOCKS_MAX as u64;
    let together = all.chunk_by(|a, b| frame(a) == frame(b));
    let reads: Vec<_> = together.map(|several| read_some(env, bases, log, several)).collect();
    stream::iter(reads).buffered(READS_MAX).concat().await
}

async fn read_some(env: &Env, bases: &dyn Bases, log: &LogWriter, several: &[Sectors]) -> Vec<Attempt> {
    let mut out = Vec::with_capacity(several.len());
    for sectors in several {
        let base = read_base(env, bases, log, sectors.block).await;
        out.push((sectors.block, base.map(|base| sectors.over(&base))));
    }
    out
}

/// Tries for as long as the store is away.
async fn read_base(env: &Env, bases: &dyn Bases, log: &LogWriter, block: u64) -> Result<Bytes> {
    loop {
        match bases.read(block).await {
            Err(e @ (Error::Corrupt { .. } | Error::NotFound(_))) => return Err(e),
            Err(e) => {
                log.note_trouble(&e);
                env.sleep(RETRY_PAUSE).await;
            }
            sound => return sound,
        }
    }
}

impl Sectors {
    fn over(&self, base: &[u8]) -> Bytes {
        let mut block = BytesMut::from(base);
        self.mask.overlay(&mut block, &self.payload);
        block.freeze()
    }
}
