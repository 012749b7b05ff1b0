//! What a state shows, or by what it differs from an older one, in order and with its data: what a stream is made of
//! (`docs/design/backup.md`).
//!
//! Of a volume that is open for reading only. Looks are some parts ahead and reads some groups; what is under way runs in tasks of its own,
//! so whoever takes it may take his time. Memory is bounded, and nothing is put into a chunk cache.

use std::{collections::VecDeque, sync::Arc};

use bytes::BytesMut;
use futures_util::FutureExt;

use crate::{
    Error, Result,
    codec::BlockData,
    env::Task,
    share::{SHARE_PART_BLOCKS, Share},
    stream::{StreamContent, StreamRecord},
    units::{BLOCK_BYTES, Extent, FRAME_BLOCKS_MAX, Mapping, Place, Seq},
    volume::{RangeKind, Volume, read::kind_of},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Parts of a share that are looked at at once, over all shares: so many, and where they have little up to so many times as many.
const LOOKS_MAX: usize = 32;
const LOOKS_GROWTH: usize = 8;
/// Mappings below which a part has little.
const FEW_MAPPINGS: usize = 64;
/// Blocks of data that are read at once: 4 MiB.
const GROUP_BLOCKS: u64 = 1 << 10;
/// Mappings of a group at most.
const GROUP_MAPPINGS: usize = 4096;
/// Groups that are read at once, over all shares; of each at least two.
const READS_MAX: usize = 8;

/// What of a state is wanted.
#[derive(Clone)]
pub enum SentSince {
    /// All of it; what is not told is a hole.
    Beginning,
    /// What changed behind a position of the log ([`SnapshotStatus::at`](super::SnapshotStatus::at)), and the snapshot that is there, where that position
    /// does not lead to this state.
    Position(u64, Option<Arc<Volume>>),
}

type PartLook = Task<Result<(Vec<Mapping>, u64)>>;
type Records = Task<Result<Vec<StreamRecord>>>;

/// A share of what a volume shows, or by what it differs, that is being read: records ascending.
pub struct Sending {
    volume: Arc<Volume>,
    since: SentSince,
    /// What was not looked at.
    parts: Box<dyn Iterator<Item = Extent> + Send>,
    looks: VecDeque<(Extent, PartLook)>,
    looks_max: usize,
    looks_min: usize,
    /// What was found, and is not being read yet; with so many blocks of data.
    found: Vec<Mapping>,
    found_blocks: u64,
    /// What is being read, and where each ends.
    reads: VecDeque<(u64, Records)>,
    reads_max: usize,
    ready: VecDeque<StreamRecord>,
    /// Blocks before this one were told, or are ready.
    at: u64,
}

impl Sending {
    /// The next record; `None` when there is no more.
    ///
    /// # Errors
    /// `Corrupt` where something is damaged; those of the store.
    pub async fn next(&mut self) -> Result<Option<StreamRecord>> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Ok(Some(record));
            }
            self.read_ahead().await?;
            let Some((end, read)) = self.reads.pop_front() else { return Ok(None) };
            self.ready = ended(read.await)?.into();
            debug_assert!(self.at <= end, "what is told ascends");
            self.at = end;
        }
    }

    /// How far in the volume it is, in bytes.
    pub fn place_bytes(&self) -> u64 {
        (self.at * BLOCK).min(self.volume.size_bytes())
    }

    /// Begins to read as much as may be under way. What lies near each other in an object is read together, wherever in the volume it belongs:
    /// so it waits until a group is full, unless nothing is being read. Waits for looks only if nothing was found.
    async fn read_ahead(&mut self) -> Result<()> {
        while self.reads.len() < self.reads_max {
            while self.looks.len() < self.looks_max {
                let Some(part) = self.parts.next() else { break };
                self.looks.push_back((part, self.volume.look_apart(part, &self.since)));
            }
            let (is_idle, is_full) = (self.reads.is_empty() && self.found.is_empty(), self.is_full());
            let looked = match self.looks.front_mut() {
                Some(_) if is_full => None,
                Some((_, look)) if is_idle => Some(look.await),
                Some((_, look)) => look.now_or_never(),
                None => None,
            };
            match looked {
                Some(looked) => self.looked(ended(looked)?),
                None if is_full || self.reads.is_empty() || self.looks.is_empty() => {
                    if self.found.is_empty() {
                        break;
                    }
                    self.read_found();
                }
                None => break,
            }
        }
        Ok(())
    }

    /// Whether a group's worth was found.
    fn is_full(&self) -> bool {
        self.found_blocks >= GROUP_BLOCKS || self.found.len() >= GROUP_MAPPINGS
    }

    /// Takes what the first look found.
    fn looked(&mut self, (mappings, end): (Vec<Mapping>, u64)) {
        let (part, _) = self.looks.pop_front().expect("it was the first one");
        if end < part.end() {
            let rest = Extent::between(end, part.end());
            self.looks.push_front((rest, self.volume.look_apart(rest, &self.since)));
        }
        let most = if mappings.len() < FEW_MAPPINGS { self.looks_max * 2 } else { self.looks_min };
        self.looks_max = most.min(self.looks_min * LOOKS_GROWTH);
        debug_assert!(
            self.found.last().zip(mappings.first()).is_none_or(|(a, b)| a.extent.end() <= b.extent.start),
            "what is found ascends and is apart"
        );
        self.found_blocks += data_blocks(&mappings);
        self.found.extend(mappings);
        if self.reads.is_empty() && self.found.is_empty() {
            self.at = end;
        }
    }

    /// Begins to read what was found, up to a group.
    fn read_found(&mut self) {
        let mut blocks = 0;
        let is_within = |mapping: &&Mapping| {
            blocks += if is_data(mapping) { mapping.extent.len } else { 0 };
            blocks <= GROUP_BLOCKS
        };
        let count = self.found.iter().take(GROUP_MAPPINGS).take_while(is_within).count().max(1);
        let rest = self.found.split_off(count);
        let group = std::mem::replace(&mut self.found, rest);
        self.found_blocks -= data_blocks(&group);
        debug_assert_eq!(self.found_blocks, data_blocks(&self.found), "what waits to be read is counted");
        let end = group.last().map_or(0, |mapping| mapping.extent.end());
        let volume = self.volume.clone();
        let read = async move { volume.read_to_send(group).await };
        self.reads.push_back((end, self.volume.env.spawn("send", read)));
    }
}

impl Volume {
    /// Begins to read what a share of the volume shows from a block on, or by what it differs. Shares are sent at once or one after the
    /// other.
    pub fn send(self: &Arc<Self>, since: SentSince, share: Share, from: u64) -> Sending {
        debug_assert!(self.is_read_only(), "what is not committed is not sent");
        let blocks = self.size_bytes().div_ceil(BLOCK);
        let parts = share.within(Extent::between(from.min(blocks), blocks)).flat_map(in_share_parts);
        let at_once = |all: usize| (all / share.count() as usize).max(2);
        Sending {
            volume: self.clone(),
            since,
            parts: Box::new(parts),
            looks: VecDeque::new(),
            looks_max: at_once(LOOKS_MAX),
            looks_min: at_once(LOOKS_MAX),
            found: Vec::new(),
            found_blocks: 0,
            reads: VecDeque::new(),
            reads_max: at_once(READS_MAX),
            ready: VecDeque::new(),
            at: from,
        }
    }

    /// Looks at the beginning of a part, in a task of its own.
    fn look_apart(self: &Arc<Self>, part: Extent, since: &SentSince) -> PartLook {
        let (volume, since) = (self.clone(), since.clone());
        self.env.spawn("look to send", async move {
            match since {
                SentSince::Beginning => {
                    let (mut mappings, end) = volume.changed_in(part, Seq(0)).await?;
                    mappings.retain(|mapping| mapping.place != Place::Hole);
                    Ok((mappings, end))
                }
                SentSince::Position(at, base) => volume.differs_in(part, Seq(at), base.as_deref()).await,
            }
        })
    }

    async fn read_to_send(&self, mappings: Vec<Mapping>) -> Result<Vec<StreamRecord>> {
        match self.try_read_to_send(mappings.clone()).await {
            Err(Error::NotFound(_)) if self.is_shown_anew().await? => {
                let extents: Vec<Extent> = mappings.iter().map(|mapping| mapping.extent).collect();
                self.try_read_to_send(self.with_partial(self.map.lookup_each(&extents).await?).await?).await
            }
            read => read,
        }
    }

    async fn try_read_to_send(&self, mappings: Vec<Mapping>) -> Result<Vec<StreamRecord>> {
        let (partial, whole) = self.apart_from_whole(mappings).await?;
        let whole = self.frames.resolve(whole).await?;
        let data: Vec<Mapping> = whole.iter().filter(|mapping| is_data(mapping)).copied().collect();
        let blocks = match data.is_empty() {
            true => Vec::new(),
            false => self.frames.read_to_send(&data, self.opened.compression).await?,
        };
        if partial.is_empty() {
            return Ok(records(&whole, blocks));
        }
        let mut all: Vec<(Mapping, BlockData)> = data.into_iter().zip(blocks).collect();
        for mapping in &partial {
            let data = Box::pin(self.read_complete(mapping.extent.start)).await?;
            all.push((*mapping, BlockData::Plain(data)));
        }
        all.sort_unstable_by_key(|(mapping, _)| mapping.extent.start);
        let mut mappings = [whole, partial].concat();
        mappings.sort_unstable_by_key(|mapping| mapping.extent.start);
        Ok(records(&mappings, all.into_iter().map(|(_, data)| data).collect()))
    }
}

/// What an extent has of each part in which it lies.
fn in_share_parts(extent: Extent) -> impl Iterator<Item = Extent> {
    let parts = extent.start / SHARE_PART_BLOCKS..extent.end().div_ceil(SHARE_PART_BLOCKS);
    parts.filter_map(move |part| Extent::new(part * SHARE_PART_BLOCKS, SHARE_PART_BLOCKS).intersect(extent))
}

/// What a task gave, which ends by itself.
fn ended<T>(outcome: Option<Result<T>>) -> Result<T> {
    outcome.unwrap_or(Err(Error::Closed))
}

fn is_data(mapping: &Mapping) -> bool {
    matches!(mapping.place, Place::Frame(_))
}

fn data_blocks(mappings: &[Mapping]) -> u64 {
    mappings.iter().filter(|mapping| is_data(mapping)).map(|mapping| mapping.extent.len).sum()
}

/// Records of mappings and the blocks of those with data: neighbours of one kind are one, data up to as much as a record has.
fn records(mappings: &[Mapping], blocks: Vec<BlockData>) -> Vec<StreamRecord> {
    let mut blocks = blocks.into_iter();
    let (mut out, mut data) = (Vec::new(), Joined::default());
    for mapping in mappings {
        let extent = mapping.extent;
        let content = match kind_of(mapping) {
            RangeKind::Data => {
                data.add(extent, blocks.next().expect("one for each mapping"), &mut out);
                continue;
            }
            RangeKind::Zero => StreamContent::Zero,
            RangeKind::Hole => StreamContent::Hole,
        };
        data.end(&mut out);
        match out.last_mut() {
            Some(last) if last.content == content && last.extent.end() == extent.start => {
                last.extent.len += extent.len
            }
            _ => out.push(StreamRecord { extent, content }),
        }
    }
    data.end(&mut out);
    debug_assert!(blocks.next().is_none(), "one for each mapping");
    debug_assert!(
        out.is_sorted_by(|a: &StreamRecord, b| a.extent.end() <= b.extent.start),
        "records ascend and are apart"
    );
    debug_assert_eq!(
        out.iter().map(|record| record.extent.len).sum::<u64>(),
        mappings.iter().map(|mapping| mapping.extent.len).sum::<u64>(),
        "records tell of all that was looked at"
    );
    out
}

/// Data that lies side by side and is not packed.
#[derive(Default)]
struct Joined {
    start: u64,
    parts: Vec<BlockData>,
    blocks: u64,
}

impl Joined {
    fn add(&mut self, extent: Extent, data: BlockData, out: &mut Vec<StreamRecord>) {
        debug_assert!(extent.len <= FRAME_BLOCKS_MAX as u64, "a mapping is within a frame");
        if let BlockData::Packed(_) = data {
            self.end(out);
            return out.push(StreamRecord { extent, content: StreamContent::Data(data) });
        }
        let joins = self.start + self.blocks == extent.start
            && self.start / FRAME_BLOCKS_MAX as u64 == (extent.end() - 1) / FRAME_BLOCKS_MAX as u64;
        if !joins {
            self.end(out);
            self.start = extent.start;
        }
        self.parts.push(data);
        self.blocks += extent.len;
    }

    fn end(&mut self, out: &mut Vec<StreamRecord>) {
        let mut parts = std::mem::take(&mut self.parts);
        let content = match parts.len() {
            0 => return,
            1 => parts.remove(0),
            _ => {
                let mut joined = BytesMut::with_capacity(self.blocks as usize * BLOCK_BYTES);
                parts.iter().for_each(|part| joined.extend_from_slice(part.bytes()));
                let are_dense = parts.iter().all(|part| matches!(part, BlockData::Dense(_)));
                let joined = joined.freeze();
                if are_dense { BlockData::Dense(joined) } else { BlockData::Plain(joined) }
            }
        };
        debug_assert_eq!(
            content.bytes().len() as u64,
            self.blocks * BLOCK,
            "what lies side by side is joined without gaps"
        );
        let extent = Extent::new(self.start, self.blocks);
        out.push(StreamRecord { extent, content: StreamContent::Data(content) });
        *self = Joined::default();
    }
}
