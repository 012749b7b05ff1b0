//! One input of a merge: the mappings of one level within a window, in ascending order.
//!
//! Holds about one read-ahead of sealed bytes and one decoded block, whatever the size of its
//! runs; a run that is not longer than that is read with one request. Reading (`refill`, waits) and
//! decoding (`head`, computes) are apart, so that decoding runs on worker threads. A block that does
//! not verify is read once more, from the store itself: then what is bad is the run, and the error
//! says which.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{
    RunMeta, block,
    fence::FencePart,
    runs::{self, Runs, corrupt},
    version::Version,
};
use crate::{
    Error,
    codec::Sealer,
    units::{Extent, RunId},
};

/// What fails is one of the runs.
pub(super) type RunResult<T> = Result<T, (RunId, Error)>;

/// A run that is being read.
struct Open {
    meta: RunMeta,
    sealer: Sealer,
    /// All of its bytes, where they are few.
    whole: Option<Bytes>,
    /// Sections and blocks still to come.
    sections: VecDeque<FencePart>,
    blocks: VecDeque<FencePart>,
    /// Sealed bytes from `raw_at` on, a whole number of blocks.
    raw: Bytes,
    raw_at: u64,
    trust: Trust,
}

/// How far the bytes of the next block can be trusted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// They are verified when they are decoded.
    Unknown,
    /// They did not verify.
    Bad,
    /// They come from the store itself and verified.
    Checked,
}

/// A stream of the mappings of one level.
pub(super) struct Feed {
    runs: VecDeque<RunMeta>,
    open: Option<Open>,
    decoded: Vec<Version>,
    next: usize,
    /// Where the mapping before ended.
    end: u64,
    read_bytes: u64,
}

/// What a feed has at its front.
pub(super) enum FeedFront {
    Version(Version),
    /// It must be refilled first.
    Dry,
    Ended,
}

impl Feed {
    /// The mappings of `level` in `window`, read in pieces of about `read_bytes`.
    pub(super) fn new(level: &[RunMeta], window: Extent, read_bytes: u64) -> Feed {
        let clip = |run: &RunMeta| Some(RunMeta { span: run.span.intersect(window)?, ..run.clone() });
        let runs = level.iter().filter_map(clip).collect();
        Feed { runs, open: None, decoded: Vec::new(), next: 0, end: 0, read_bytes }
    }

    /// The mapping at the front; decodes the next block if need be.
    pub(super) fn head(&mut self) -> RunResult<FeedFront> {
        loop {
            if let Some(version) = self.decoded.get(self.next) {
                return Ok(FeedFront::Version(*version));
            }
            let Some(open) = &mut self.open else {
                return Ok(if self.runs.is_empty() { FeedFront::Ended } else { FeedFront::Dry });
            };
            if open.raw.is_empty() {
                if open.is_done() {
                    self.open = None;
                    continue;
                }
                return Ok(FeedFront::Dry);
            }
            self.decoded.clear();
            self.next = 0;
            match open.decode(self.end, &mut self.decoded) {
                Ok(end) => (self.end, open.trust) = (end, Trust::Unknown),
                Err(e) if open.trust == Trust::Checked => return Err((open.meta.id, e)),
                Err(_) => {
                    self.decoded.clear();
                    open.doubt();
                }
            }
        }
    }

    /// Takes the front mapping up to `to` (behind its start) away.
    pub(super) fn consume(&mut self, to: u64) {
        let version = &mut self.decoded[self.next];
        debug_assert!(to > version.extent().start, "what is consumed is something");
        if to >= version.extent().end() {
            self.next += 1;
        } else {
            *version = version.slice(Extent::between(to, version.extent().end()));
        }
    }

    /// Up to where the mappings are decoded: so much can be consumed without reading. `None` if none is.
    pub(super) fn decoded_to(&self) -> Option<u64> {
        self.decoded[self.next..].last().map(|version| version.extent().end())
    }

    /// Reads ahead if the front needs it.
    pub(super) async fn refill(&mut self, runs: &Runs) -> RunResult<()> {
        if self.next < self.decoded.len() {
            return Ok(());
        }
        if self.open.as_ref().is_none_or(Open::is_done) {
            let Some(meta) = self.runs.pop_front() else {
                self.open = None;
                return Ok(());
            };
            self.open = Some(Open::start(runs, meta, self.read_bytes).await?);
        }
        let open = self.open.as_mut().expect("opened just above");
        if !open.raw.is_empty() {
            return Ok(());
        }
        open.read(runs, self.read_bytes).await.map_err(|e| (open.meta.id, e))
    }
}

impl Open {
    async fn start(runs: &Runs, meta: RunMeta, read_bytes: u64) -> RunResult<Open> {
        let is_small = meta.bytes <= read_bytes;
        let whole = match is_small {
            true => read_whole(runs, &meta).await.map_err(|e| (meta.id, e))?,
            false => None,
        };
        let top = runs.top_to_merge(&meta, whole.as_ref()).await.map_err(|e| (meta.id, e))?;
        let entries = &top.fence.entries[top.fence.find(meta.span.start)..];
        let sections = entries.iter().take_while(|e| e.first < meta.span.end()).copied().collect();
        let (blocks, raw, raw_at) = (VecDeque::new(), Bytes::new(), 0);
        let trust = Trust::Unknown;
        Ok(Open { sealer: top.sealer.clone(), meta, whole, sections, blocks, raw, raw_at, trust })
    }

    fn is_done(&self) -> bool {
        self.raw.is_empty() && self.blocks.is_empty() && self.sections.is_empty()
    }

    /// Reads the next blocks, at least one, `read_bytes` at most if that is more.
    async fn read(&mut self, runs: &Runs, read_bytes: u64) -> Result<(), Error> {
        if self.blocks.is_empty() {
            let Some(section) = self.sections.pop_front() else { return Ok(()) };
            let fence = runs.section_to_merge(&self.meta, section, self.whole.as_ref()).await?;
            let entries = &fence.entries[fence.find(self.meta.span.start)..];
            self.blocks = entries.iter().take_while(|e| e.first < self.meta.span.end()).copied().collect();
        }
        let Some(first) = self.blocks.front() else { return Ok(()) };
        let mut end = first.offset;
        for e in &self.blocks {
            let next = e.offset + u64::from(e.bytes);
            if next - first.offset > read_bytes && end > first.offset {
                break;
            }
            end = next;
        }
        let first = *first;
        self.raw_at = first.offset;
        if self.trust == Trust::Unknown {
            match runs.read_to_merge(&self.meta, self.raw_at..end, self.whole.as_ref()).await {
                Err(e) if e.is_damage() => {}
                read => {
                    self.raw = read?;
                    return Ok(());
                }
            }
        }
        self.raw = runs.read_block_again(&self.meta, first, &self.sealer).await?;
        self.trust = Trust::Checked;
        Ok(())
    }

    /// The block that was just taken did not verify: it comes once more, and alone.
    fn doubt(&mut self) {
        self.raw = Bytes::new();
        self.trust = Trust::Bad;
    }

    /// Decodes the next block into `out`, cut to the span, and takes it off. Returns where its mappings end.
    fn decode(&mut self, end: u64, out: &mut Vec<Version>) -> Result<u64, Error> {
        let entry = *self.blocks.front().expect("raw bytes are whole blocks");
        debug_assert_eq!(entry.offset, self.raw_at, "blocks are decoded in the order in which they lie");
        let sealed = self.raw.slice(..entry.bytes as usize);
        let plain = runs::open(&self.sealer, &self.meta, entry.offset, &sealed)?;
        let malformed = || corrupt(&self.meta, entry.offset, "the block is malformed");
        block::decode(&plain, out).ok_or_else(malformed)?;
        let span = self.meta.span;
        out.retain_mut(|version| match version.extent().intersect(span) {
            Some(part) => {
                if part != version.extent() {
                    *version = version.slice(part);
                }
                true
            }
            None => false,
        });
        if out.first().is_some_and(|first| first.extent().start < end) {
            return Err(malformed());
        }
        self.blocks.pop_front();
        self.raw = self.raw.slice(entry.bytes as usize..);
        self.raw_at += u64::from(entry.bytes);
        Ok(out.last().map_or(end, |last| last.extent().end()))
    }
}

/// All of a run; `None` when it is not as it was written, so that its parts are looked at one by one.
async fn read_whole(runs: &Runs, meta: &RunMeta) -> Result<Option<Bytes>, Error> {
    match runs.read_to_merge(meta, 0..meta.bytes, None).await {
        Err(e) if e.is_damage() => Ok(None),
        read => read.map(Some),
    }
}
