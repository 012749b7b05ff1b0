//! What a state shows, or by what it differs from an older one, in order and with its data: what a stream is made of
//! (`docs/design/backup.md`).
//!
//! Of a volume that is open for reading only. Looks are some parts ahead and reads some groups; what is under way runs in tasks of its own,
//! so whoever takes it may take his time. Memory is bounded, and nothing is put into a chunk cache.

use std::{collections::VecDeque, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};

use crate::{
    Error, Result,
    env::Task,
    stream::{StreamContent, StreamRecord},
    units::{BLOCK_BYTES, Extent, FRAME_BLOCKS_MAX, Mapping, Place, Seq},
    volume::{RangeKind, Volume, admin::ProgressFn, read::kind_of},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of a part of the volume that is looked at at once: 1 GiB.
const PART_BLOCKS: u64 = 1 << 18;
/// Parts that are looked at at once.
const LOOKS_MAX: usize = 32;
/// Blocks of data that are read at once: 4 MiB.
const GROUP_BLOCKS: u64 = 1 << 10;
/// Groups that are read at once.
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

type Records = Task<Result<Vec<StreamRecord>>>;

impl Volume {
    /// Gives what the volume shows, or by what it differs, to `tell`. Progress counts bytes of the volume.
    ///
    /// # Errors
    /// Of `tell`; `Corrupt` where something is damaged; those of the store.
    pub async fn send<E: From<Error>>(
        self: &Arc<Self>,
        since: SentSince,
        mut tell: impl AsyncFnMut(StreamRecord) -> Result<(), E>,
        progress: ProgressFn<'_>,
    ) -> Result<(), E> {
        debug_assert!(self.is_read_only(), "what is not committed is not sent");
        let blocks = self.size_bytes().div_ceil(BLOCK);
        let parts = (0..blocks.div_ceil(PART_BLOCKS)).map(|n| {
            let start = n * PART_BLOCKS;
            Extent::between(start, blocks.min(start + PART_BLOCKS))
        });
        let looks = stream::iter(parts.map(|part| {
            let looked = self.look_apart(part, &since);
            async move { (part, looked.await) }
        }));
        let mut looks = std::pin::pin!(looks.buffered(LOOKS_MAX));
        let mut reads: VecDeque<(u64, Records)> = VecDeque::new();
        while let Some((part, looked)) = looks.next().await {
            let (mut mappings, mut end) = ended(looked)?;
            loop {
                for group in groups(mappings) {
                    if reads.len() >= READS_MAX {
                        self.tell_next(&mut reads, &mut tell, progress).await?;
                    }
                    let group_end = group.last().map_or(0, |mapping| mapping.extent.end());
                    let volume = self.clone();
                    let read = async move { volume.read_to_send(group).await };
                    reads.push_back((group_end, self.env.spawn("send", read)));
                }
                if end == part.end() {
                    break;
                }
                let rest = self.look_apart(Extent::between(end, part.end()), &since).await;
                (mappings, end) = ended(rest)?;
            }
            if reads.is_empty() {
                progress((part.end() * BLOCK).min(self.size_bytes()), self.size_bytes());
            }
        }
        while !reads.is_empty() {
            self.tell_next(&mut reads, &mut tell, progress).await?;
        }
        progress(self.size_bytes(), self.size_bytes());
        Ok(())
    }

    async fn tell_next<E: From<Error>>(
        &self,
        reads: &mut VecDeque<(u64, Records)>,
        tell: &mut impl AsyncFnMut(StreamRecord) -> Result<(), E>,
        progress: ProgressFn<'_>,
    ) -> Result<(), E> {
        let Some((end, read)) = reads.pop_front() else { return Ok(()) };
        for record in ended(read.await)? {
            tell(record).await?;
        }
        progress((end * BLOCK).min(self.size_bytes()), self.size_bytes());
        Ok(())
    }

    /// Looks at the beginning of a part, in a task of its own.
    fn look_apart(self: &Arc<Self>, part: Extent, since: &SentSince) -> Task<Result<(Vec<Mapping>, u64)>> {
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
                self.try_read_to_send(self.map.lookup_each(&extents).await?).await
            }
            read => read,
        }
    }

    async fn try_read_to_send(&self, mappings: Vec<Mapping>) -> Result<Vec<StreamRecord>> {
        let mappings = self.frames.resolve(mappings).await?;
        let data: Vec<Mapping> = mappings.iter().filter(|mapping| is_data(mapping)).copied().collect();
        let blocks = match data.is_empty() {
            true => Vec::new(),
            false => self.frames.read_to_move(&data).await?,
        };
        Ok(records(&mappings, blocks))
    }
}

/// What a task gave, which ends by itself.
fn ended<T>(outcome: Option<Result<T>>) -> Result<T> {
    outcome.unwrap_or(Err(Error::Closed))
}

fn is_data(mapping: &Mapping) -> bool {
    matches!(mapping.place, Place::Frame(_))
}

/// Cuts mappings into groups with so much data that one is read at once.
fn groups(mappings: Vec<Mapping>) -> Vec<Vec<Mapping>> {
    let (mut groups, mut blocks) = (Vec::<Vec<Mapping>>::new(), 0);
    for mapping in mappings {
        let more = if is_data(&mapping) { mapping.extent.len } else { 0 };
        match groups.last_mut() {
            Some(group) if blocks + more <= GROUP_BLOCKS => {
                group.push(mapping);
                blocks += more;
            }
            _ => {
                groups.push(vec![mapping]);
                blocks = more;
            }
        }
    }
    groups
}

/// Records of mappings and the blocks of those with data: neighbours of one kind are one, data up to as much as a record has.
fn records(mappings: &[Mapping], blocks: Vec<Bytes>) -> Vec<StreamRecord> {
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
    out
}

/// Data that lies side by side.
#[derive(Default)]
struct Joined {
    start: u64,
    parts: Vec<Bytes>,
    blocks: u64,
}

impl Joined {
    fn add(&mut self, extent: Extent, data: Bytes, out: &mut Vec<StreamRecord>) {
        debug_assert!(extent.len <= FRAME_BLOCKS_MAX as u64, "a mapping is within a frame");
        let joins =
            self.start + self.blocks == extent.start && self.blocks + extent.len <= FRAME_BLOCKS_MAX as u64;
        if !joins {
            self.end(out);
            self.start = extent.start;
        }
        self.parts.push(data);
        self.blocks += extent.len;
    }

    fn end(&mut self, out: &mut Vec<StreamRecord>) {
        let data = match self.parts.as_slice() {
            [] => return,
            [one] => one.clone(),
            parts => {
                let mut joined = BytesMut::with_capacity(self.blocks as usize * BLOCK_BYTES);
                parts.iter().for_each(|part| joined.extend_from_slice(part));
                joined.freeze()
            }
        };
        let extent = Extent::new(self.start, self.blocks);
        out.push(StreamRecord { extent, content: StreamContent::Data(data) });
        *self = Joined::default();
    }
}
