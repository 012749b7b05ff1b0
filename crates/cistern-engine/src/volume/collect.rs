//! Collecting garbage, or putting blocks in order, because somebody asked for it: `cistern gc`.
//!
//! Works in steps, each some tens of MiB, so that whoever stops asking has stopped it. What the cleaner does by itself goes on
//! between them.

use std::{pin::pin, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    cleaner::{Demands, Moved},
    units::{BLOCK_BYTES, Extent},
    upkeep::Coverage,
    volume::{Volume, live::PAUSED, write::Writer},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How often it is looked whether that has become impossible meanwhile.
const LOOK: Duration = Duration::from_secs(1);

/// Whom to ask.
pub struct Collector {
    pub coverage: Coverage,
    pub demands: Demands,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collect {
    /// Find out what is dead and retire what can go: a checkpoint.
    Retire,
    /// Move what is live out of segments with much garbage, until at most `ratio` bytes are stored per live byte.
    Clean { ratio: f64 },
    /// Write the blocks of a range, in bytes, side by side.
    Defragment { offset: u64, len: u64 },
    /// Of a clone: write the blocks of a range, in bytes, that lie with another volume.
    Adopt { offset: u64, len: u64 },
    /// Of a clone: when all of its blocks are its own, need nothing of other volumes any more.
    LetGo,
}

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectStep {
    pub moved_bytes: u64,
    /// Segments of which nothing is live any more.
    pub vacated_segments: u64,
    /// There is more to do: for `Defragment` and `Adopt` from this byte of the volume on.
    pub next: Option<u64>,
}

impl Volume {
    /// One step. Of `Defragment` and `Adopt` from the beginning of its range.
    ///
    /// # Errors
    /// `ReadOnly`; `Invalid` for a range behind the end or while write-back is paused; whatever stopped the volume.
    pub async fn collect(&self, what: Collect) -> Result<CollectStep> {
        self.refuse_while_hindered()?;
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let Collector { coverage, demands } = &writer.collector;
        let step = async {
            match what {
                Collect::Retire => coverage.cover().await.map(|()| Moved::default()),
                Collect::Clean { ratio } => demands.clean(ratio).await,
                Collect::Defragment { offset, len } => {
                    self.check_bounds(offset, len)?;
                    let end = (offset + len).div_ceil(BLOCK);
                    demands.defragment(Extent::between(offset / BLOCK, end)).await
                }
                Collect::Adopt { offset, len } => {
                    self.check_bounds(offset, len)?;
                    let end = (offset + len).div_ceil(BLOCK);
                    demands.adopt(Extent::between(offset / BLOCK, end)).await
                }
                Collect::LetGo => self.let_go_of_origins().await,
            }
        };
        let Moved { blocks, segments, next } = self.unless_hindered(writer, step).await?;
        Ok(CollectStep {
            moved_bytes: blocks * BLOCK,
            vacated_segments: segments,
            next: next.map(|block| block * BLOCK),
        })
    }

    /// Refuses where nothing would come to the store.
    pub(super) fn refuse_while_hindered(&self) -> Result<()> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        hindrance(writer).map_or(Ok(()), Err)
    }

    /// What `step` gives, or what came between.
    async fn unless_hindered<T>(&self, writer: &Writer, step: impl Future<Output = Result<T>>) -> Result<T> {
        let mut step = pin!(step);
        loop {
            tokio::select! {
                biased;
                done = &mut step => return done.map_err(|e| hindrance(writer).unwrap_or(e)),
                () = self.env.sleep(LOOK) => if let Some(e) = hindrance(writer) { return Err(e) },
            }
        }
    }
}

/// Why no step would end: the volume has stopped, or its uploads are held.
fn hindrance(writer: &Writer) -> Option<Error> {
    let paused = || writer.control.is_paused().then(|| Error::Invalid(PAUSED.to_owned()));
    writer.core.refusal().or_else(paused)
}
