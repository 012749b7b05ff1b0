//! Loading in bulk: blocks that come from elsewhere go into segments as they come, and not through the journal.
//!
//! They are collected in memory up to a segment. Then a record of the journal gives that its place in the history, and write-back makes the
//! segment of it. What was loaded is durable when it is committed, and not before: [`Volume::settle_loads`] waits for that. A crash
//! leaves a prefix of the loads, like of everything. Only for who writes alone, and never a block twice: what lies in a load is not seen before
//! it is committed, and sectors that are written meanwhile would be completed with what was there before it.
//!
//! Memory: what is on its way, twice as long as it is sealed, and one segment that is collected. Where a volume has little memory its segments
//! are smaller.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{
    Error, Result,
    codec::{BlockData, Compression, crc64},
    journal::Record,
    segment::{self, MAPPINGS_MAX},
    stream::{StreamContent, StreamRecord},
    units::{FRAME_BLOCKS_MAX, JournalPos, SEGMENT_DATA_BYTES_MAX},
    volume::{ClientId, Volume, write::Writer},
};

/// What is on its way at once takes at most this part of a volume's memory, as data; at least two segments.
const MEMORY_SHARE: u64 = 4;
/// Records of one: each makes at most two mappings more than its own.
const RECORDS_MAX: usize = MAPPINGS_MAX / 4;
const _: () =
    assert!(3 * RECORDS_MAX <= MAPPINGS_MAX, "the mappings of all records are those of one segment");

/// What is being loaded.
pub struct Loading {
    collected: Vec<StreamRecord>,
    data_bytes: u64,
    /// Something was dropped on its way: what comes behind it must not be there without it.
    is_torn: bool,
    /// Data of one segment at most.
    segment_bytes: u64,
    /// How many may be on their way.
    most: usize,
    /// Where those end that are not known to be committed, ascending.
    on_their_way: VecDeque<JournalPos>,
}

impl Loading {
    /// Nothing yet, of a volume with so much memory.
    pub fn new(memory_bytes: u64) -> Loading {
        let segment_bytes = segment::data_bytes_max(memory_bytes);
        let most = (memory_bytes / MEMORY_SHARE) as usize / SEGMENT_DATA_BYTES_MAX;
        Loading {
            collected: Vec::new(),
            data_bytes: 0,
            is_torn: false,
            segment_bytes,
            most: most.max(2),
            on_their_way: VecDeque::new(),
        }
    }

    /// Drops what is collected, and what is known of the rest.
    fn forget(&mut self) {
        self.collected.clear();
        self.on_their_way.clear();
        (self.data_bytes, self.is_torn) = (0, false);
    }
}

impl Volume {
    /// Loads an extent, of which nothing is on its way.
    ///
    /// # Errors
    /// `ReadOnly`; `Corrupt` if what has to be unpacked does not; whatever stopped the volume.
    pub(super) async fn load(&self, record: StreamRecord) -> Result<()> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let record = fit(record, self.opened.compression)?;
        let mut loading = writer.loading.lock().await;
        let segment_bytes = writer.control.tuning().segment_bytes().min(loading.segment_bytes);
        if loading.is_torn {
            return Err(torn());
        }
        let is_full = loading.data_bytes + record.data_bytes() > segment_bytes
            || loading.collected.len() == RECORDS_MAX;
        if is_full {
            writer.send_off(&mut loading).await?;
        }
        loading.data_bytes += record.data_bytes();
        loading.collected.push(record);
        debug_assert!(loading.collected.len() <= RECORDS_MAX, "what is collected is one segment");
        Ok(())
    }

    /// Returns when everything that was loaded is in the store.
    ///
    /// # Errors
    /// `Invalid` if some of it was given up; whatever stopped the volume.
    pub(super) async fn settle_loads(&self) -> Result<()> {
        match self.settle_some_loads().await? {
            true => Ok(()),
            false => Err(torn()),
        }
    }

    /// The same; if some of it was given up, of what came before that. Gives whether it was all.
    ///
    /// # Errors
    /// Whatever stopped the volume.
    pub(super) async fn settle_some_loads(&self) -> Result<bool> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let mut loading = writer.loading.lock().await;
        if !loading.is_torn {
            writer.send_off(&mut loading).await?;
        }
        while let Some(to) = loading.on_their_way.front() {
            writer.drain_to(*to).await?;
            loading.on_their_way.pop_front();
        }
        Ok(!loading.is_torn)
    }

    /// Drops what is collected. What is on its way comes before whatever is written from here on.
    pub(super) async fn forget_loads(&self) {
        if let Some(writer) = &self.writer {
            writer.loading.lock().await.forget();
        }
    }
}

impl Writer {
    /// Gives what is collected its place.
    async fn send_off(&self, loading: &mut Loading) -> Result<()> {
        if loading.collected.is_empty() {
            return Ok(());
        }
        // Until it is done: whoever gives up anywhere in between drops at least the record that came with it.
        loading.is_torn = true;
        while loading.on_their_way.len() >= loading.most {
            let front = *loading.on_their_way.front().expect("there are some");
            self.drain_to(front).await?;
            loading.on_their_way.pop_front();
        }
        let mut content = std::mem::take(&mut loading.collected);
        debug_assert_eq!(
            loading.data_bytes,
            content.iter().map(StreamRecord::data_bytes).sum::<u64>(),
            "what is collected is counted"
        );
        loading.data_bytes = 0;
        // Of several shares each ascends by itself.
        content.sort_by_key(|record| record.extent.start);
        // Copies of this process draw the same, and load something else: they have to part here.
        let drawn = u64::from_le_bytes(self.env.random_bytes());
        let (content, sum) = self
            .env
            .compute(move || {
                let sum = sum(&content);
                (content, sum)
            })
            .await;
        let token = drawn ^ sum;
        self.loads.put(token, content);
        let to = match self.submit(ClientId::default(), Record::Load { token }, Bytes::new(), None).await {
            Ok(to) => to,
            Err(e) => {
                self.loads.forget(token);
                return Err(e);
            }
        };
        assert!(
            loading.on_their_way.back().is_none_or(|before| *before < to),
            "loads end one behind the other"
        );
        loading.on_their_way.push_back(to);
        debug_assert!(loading.on_their_way.len() <= loading.most, "what is on its way is bounded");
        loading.is_torn = false;
        self.control.want(to);
        Ok(())
    }
}

fn torn() -> Error {
    Error::Invalid("some of what was to be loaded was given up".into())
}

/// The record as it may lie in a segment of a volume that compresses like that.
fn fit(record: StreamRecord, compression: Compression) -> Result<StreamRecord> {
    let StreamRecord { extent, content: StreamContent::Data(blocks) } = &record else { return Ok(record) };
    let is_within = extent.start / FRAME_BLOCKS_MAX as u64 == (extent.end() - 1) / FRAME_BLOCKS_MAX as u64;
    let is_wanted = compression != Compression::None || !matches!(blocks, BlockData::Packed(_));
    if is_within && is_wanted {
        return Ok(record);
    }
    let data = record.data()?.expect("it has some");
    Ok(StreamRecord { content: StreamContent::Data(BlockData::Plain(data)), ..record })
}

/// A sum over what is loaded, and where.
fn sum(content: &[StreamRecord]) -> u64 {
    let mut sums = Vec::with_capacity(content.len() * 24);
    for StreamRecord { extent, content } in content {
        let of_content = match content {
            StreamContent::Data(blocks) => crc64(blocks.bytes()),
            StreamContent::Zero => 1,
            StreamContent::Hole => 2,
        };
        [extent.start, extent.len, of_content].iter().for_each(|n| sums.extend_from_slice(&n.to_le_bytes()));
    }
    crc64(&sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What is collected and what is on its way, twice, takes three quarters of a volume's memory at most, however little that is.
    #[test]
    fn a_load_is_a_part_of_memory() {
        for memory_mib in [16, 48, 64, 100, 256, 4096] {
            let Loading { most, segment_bytes, .. } = Loading::new(memory_mib * MIB);
            assert!((2 * most as u64 + 1) * segment_bytes <= memory_mib * MIB / 4 * 3, "{memory_mib} MiB");
            assert!(most >= 2 && segment_bytes >= MIB, "{memory_mib} MiB");
        }
    }
}
