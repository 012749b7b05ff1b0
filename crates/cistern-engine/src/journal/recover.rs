//! Recovery: reads superblocks, walks the groups from the tail and judges where they end.
//!
//! Only reads. What it accepts is a prefix of what was appended and contains everything that was
//! synced, or it refuses.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;

use super::{
    FILE_NAME,
    format::{
        GROUP_PAYLOAD_BLOCKS_MAX, GroupHeader, SUPERBLOCK_AREA_BLOCKS, SUPERBLOCK_SLOTS, Superblock,
        chain_behind, crc32c,
    },
    group::Group,
    recoveries::Turn,
    ring::Ring,
    staging::{StagedGroup, StagedGroups},
};
use crate::{
    disk::{AlignedBuf, Disk, DiskFile},
    env::{Env, Task},
    error::{Error, Result},
    units::{BLOCK_BYTES, Chain, Extent, JournalId, JournalPos, VolumeId},
};

/// Blocks that may be written and not synced (64 MiB): so far behind an invalid group recovery
/// has to look for proof that it was synced.
pub(super) const UNSYNCED_BLOCKS_MAX: u64 = 16384;
/// Blocks read at a time (8 MiB, and as much ahead): full speed of the disk.
const WINDOW_BLOCKS: u64 = 2048;
pub(super) const WINDOW_BYTES: usize = WINDOW_BLOCKS as usize * BLOCK_BYTES;
/// Blocks that a window repeats from the one before: a group that does not fit into one lies
/// whole in the next.
const OVERLAP_BLOCKS: u64 = 1 + GROUP_PAYLOAD_BLOCKS_MAX;

/// Payload blocks (64 KiB) from which on a disk gives the next header sooner by itself than with what lies before it.
const STEPPED_OVER_BLOCKS_MIN: u64 = 16;

const _: () = assert!(WINDOW_BLOCKS > 2 * OVERLAP_BLOCKS);

/// An existing journal before its groups were looked at.
pub(super) struct FoundJournal {
    pub name: String,
    pub ring: Ring,
    pub superblock: Superblock,
    /// The other slot was unreadable and may have held something newer.
    pub slot_lost: bool,
    /// What may continue the ring.
    staged: StagedGroups,
}

impl FoundJournal {
    /// Before this position a group whose header is intact can be taken to be so itself until it is used: the journal was closed, and
    /// nobody wrote to it since.
    fn closed_at(&self) -> Option<u64> {
        (self.superblock.closed && !self.slot_lost).then_some(self.superblock.durable)
    }
}

/// How much of a journal is verified by a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Every block.
    Payloads,
    /// Of a journal that was closed the headers alone; every block otherwise.
    Needed,
}

/// What the walk over the groups gave.
pub(super) struct Walked {
    /// First positions of the valid groups.
    pub starts: VecDeque<u64>,
    /// The chain before each of them, and behind the last.
    pub chains: VecDeque<Chain>,
    /// Behind the last valid group.
    pub head: u64,
    /// Up to where superblock and valid groups say that it was synced.
    pub durable: u64,
    /// The greatest incarnation seen.
    pub incarnation: u64,
    /// Why the end is not a torn one but damage.
    pub damage: Option<String>,
    /// Groups that are not in the ring, and were staged for it.
    pub staged: Vec<StagedGroup>,
}

/// Whether there is a journal of this volume: changes nothing.
///
/// # Errors
/// As those of [`find`]; `Corrupt` for one of another volume.
pub(super) async fn check(env: &Env, disk: &Arc<dyn Disk>, volume: VolumeId) -> Result<()> {
    let name = format!("{}/{FILE_NAME}", disk.describe());
    let (superblock, _) = newest_superblock(env, &name, &disk.open(FILE_NAME).await?).await?;
    match superblock.volume == volume {
        true => Ok(()),
        false => Err(Error::corrupt(name, format!("it belongs to volume {}", superblock.volume))),
    }
}

/// Opens the file and reads its superblock.
pub(super) async fn find(env: &Env, disk: &Arc<dyn Disk>) -> Result<FoundJournal> {
    let name = format!("{}/{FILE_NAME}", disk.describe());
    let file = disk.open(FILE_NAME).await?;
    let (superblock, slot_lost) = newest_superblock(env, &name, &file).await?;
    // What was closed is in the ring as a whole.
    let staged = match superblock.closed && !slot_lost {
        true => StagedGroups::default(),
        false => StagedGroups::load(env, disk).await?,
    };
    Ok(FoundJournal { name, ring: Ring::new(file, superblock.ring_blocks), superblock, slot_lost, staged })
}

/// The superblock that counts, and whether the other slot was unreadable.
async fn newest_superblock(env: &Env, name: &str, file: &Arc<dyn DiskFile>) -> Result<(Superblock, bool)> {
    let blocks = file.len() / BLOCK_BYTES as u64;
    if blocks < SUPERBLOCK_AREA_BLOCKS {
        return Err(Error::corrupt(name, "the file is too short for a superblock"));
    }
    let mut slots = Vec::new();
    for slot in SUPERBLOCK_SLOTS {
        let block = load_slot(env, file, slot).await?;
        slots.push(Superblock::decode(&block)?);
    }
    let slot_lost = slots.iter().any(Option::is_none);
    let newest = slots.into_iter().flatten().max_by_key(|sb| sb.generation);
    let superblock = newest.ok_or_else(|| Error::corrupt(name, "both superblocks are damaged"))?;
    if superblock.ring_blocks > blocks - SUPERBLOCK_AREA_BLOCKS {
        return Err(Error::corrupt(name, "the file is shorter than its superblock says"));
    }
    Ok((superblock, slot_lost))
}

async fn load_slot(env: &Env, file: &Arc<dyn DiskFile>, slot: u64) -> Result<AlignedBuf> {
    let file = file.clone();
    env.blocking(async move {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        file.read_at(slot * BLOCK_BYTES as u64, &mut block).await.map(|()| block)
    })
    .await
}

/// Walks from the tail and hands every valid group to `visit`: its header, and its payload or, where that is not verified, nothing.
pub(super) async fn walk(
    env: &Env,
    found: &FoundJournal,
    turn: &Turn<'_>,
    depth: Depth,
    visit: &mut (dyn FnMut(&GroupHeader, &[u8]) -> Result<()> + Send),
) -> Result<Walked> {
    let sb = &found.superblock;
    let mut window = RingWindow::new(env, &found.ring, turn, sb.tail + found.ring.blocks);
    let mut walked = Walked {
        starts: VecDeque::new(),
        chains: VecDeque::from([sb.chain]),
        head: sb.tail,
        durable: sb.durable,
        incarnation: 0,
        damage: None,
        staged: Vec::new(),
    };
    let mut closed_at = found.closed_at().filter(|_| depth == Depth::Needed);
    // How many blocks before the next header were not asked for: nothing is read ahead for the first one, either.
    let mut stepped = if closed_at.is_some() { GROUP_PAYLOAD_BLOCKS_MAX } else { 0 };
    let mut chain = sb.chain;
    loop {
        let found_here = window.group(sb, walked.head, stepped, chain, walked.incarnation).await?;
        let mut accepted = None;
        if let Some((header, behind)) = found_here {
            let payload_blocks = header.crcs.len() as u64;
            if closed_at.is_some_and(|end| header.next() <= end) {
                stepped = payload_blocks;
                visit(&header, &[])?;
                accepted = Some((header, behind));
            } else {
                (closed_at, stepped) = (None, 0); // where somebody wrote all the same, nothing is taken for granted
                let payload = window.blocks(header.pos + 1, payload_blocks).await?;
                if crcs_match(&header.crcs, payload) {
                    visit(&header, payload)?;
                    accepted = Some((header, behind));
                }
            }
        }
        if accepted.is_none()
            && let Some(staged) = continuing(found, &walked, chain)
        {
            (closed_at, stepped) = (None, 0);
            visit(&staged.header, staged.payload())?;
            accepted = Some((staged.header.clone(), staged.behind));
            walked.staged.push(staged);
        }
        let Some((header, behind)) = accepted else { break };
        chain = behind;
        walked.accept(&header, behind);
    }
    if closed_at != Some(walked.head) {
        walked.damage = judge(&mut window, sb, walked.head).await?;
    }
    debug_assert!(
        walked.damage.is_some() || walked.durable <= walked.head,
        "what was synced is there, or it is damage"
    );
    window.close().await?;
    walked.incarnation = walked.incarnation.max(sb.incarnation);
    Ok(walked)
}

impl Walked {
    /// One group more.
    fn accept(&mut self, header: &GroupHeader, behind: Chain) {
        self.starts.push_back(header.pos);
        self.chains.push_back(behind);
        self.incarnation = header.incarnation;
        self.head = header.next();
        self.durable = self.durable.max(header.durable);
    }
}

/// The staged group that goes on where the ring ends, by the rules of the ring.
fn continuing(found: &FoundJournal, walked: &Walked, chain: Chain) -> Option<StagedGroup> {
    let sb = &found.superblock;
    let is_of_age = |header: &GroupHeader| {
        header.incarnation >= incarnation_min(sb, walked.head, walked.incarnation)
            && header.next() <= sb.tail + found.ring.blocks
    };
    found.staged.continuing(sb.journal, walked.head, chain, is_of_age)
}

/// The lowest incarnation of a group at `pos`, behind a group of `incarnation`.
fn incarnation_min(sb: &Superblock, pos: u64, incarnation: u64) -> u64 {
    if pos >= sb.opened { incarnation.max(sb.incarnation) } else { incarnation }
}

/// Looks for proof that the groups should not end at `head`.
async fn judge(window: &mut RingWindow<'_>, sb: &Superblock, head: u64) -> Result<Option<String>> {
    if sb.durable > head {
        return Ok(Some(format!("it was synced up to {} by its superblock", sb.durable)));
    }
    // A later lap that reaches over the tail shows in the header of a group before the tail.
    let before = if head == sb.tail { head.min(GROUP_PAYLOAD_BLOCKS_MAX) } else { 0 };
    let limit = sb.tail + sb.ring_blocks;
    for at in head - before..(head + 1 + UNSYNCED_BLOCKS_MAX).min(limit) {
        let Some(header) = GroupHeader::decode(window.blocks(at, 1).await?) else { continue };
        if header.journal != sb.journal || header.pos % sb.ring_blocks != at % sb.ring_blocks {
            continue;
        }
        if header.pos == at && header.durable > head {
            return Ok(Some(format!("it was synced up to {} by the group at {at}", header.durable)));
        }
        if header.pos > at && header.next() > limit {
            return Ok(Some(format!(
                "the group at {} was written over it, so the superblock that allowed this was lost",
                header.pos
            )));
        }
    }
    Ok(None)
}

/// Whether every payload block fits its checksum.
pub(super) fn crcs_match(crcs: &[u32], payload: &[u8]) -> bool {
    payload.len() == crcs.len() * BLOCK_BYTES
        && payload.chunks_exact(BLOCK_BYTES).zip(crcs).all(|(block, &crc)| crc32c(block) == crc)
}

/// A header as it must be to belong to this journal at this position.
pub(super) fn decode_at(block: &[u8], journal: JournalId, pos: u64) -> Option<GroupHeader> {
    GroupHeader::decode(block).filter(|h| h.journal == journal && h.pos == pos)
}

/// Reads consecutive whole groups from the disk for write-back, which has time. `None` for one that is not intact.
pub(super) async fn load_groups(
    env: &Env,
    ring: &Ring,
    journal: JournalId,
    groups: &[Extent],
) -> Result<Vec<Option<Group>>> {
    let (Some(first), Some(last)) = (groups.first(), groups.last()) else { return Ok(Vec::new()) };
    debug_assert!(
        groups.windows(2).all(|pair| pair[0].end() == pair[1].start),
        "groups that are read together lie one behind the other"
    );
    let all = ring.load_giving_way(env, first.start, last.end() - first.start).await?;
    let place = |block: u64| (block - first.start) as usize * BLOCK_BYTES;
    let decode = |group: &Extent| {
        let whole = all.slice(place(group.start)..place(group.end()));
        let header = decode_at(&whole[..BLOCK_BYTES], journal, group.start)?;
        let payload = whole.slice(BLOCK_BYTES..);
        crcs_match(&header.crcs, &payload)
            .then(|| Group::from_disk(group.start, &header.records, header.crcs, payload))
    };
    Ok(groups.iter().map(decode).collect())
}

/// Reads payload blocks of the group at `start` and verifies them. `None` if they are not intact.
pub(super) async fn load_payload(
    env: &Env,
    ring: &Ring,
    journal: JournalId,
    start: u64,
    pos: JournalPos,
    blocks: u64,
) -> Result<Option<Bytes>> {
    /// Blocks between header and payload that are read along rather than skipped (64 KiB).
    const READ_ALONG_BLOCKS_MAX: u64 = 16;
    let skipped = pos.0 - start - 1;
    let (head, payload) = if skipped <= READ_ALONG_BLOCKS_MAX {
        let whole = ring.load(env, start, 1 + skipped + blocks).await?;
        (whole.slice(..BLOCK_BYTES), whole.slice((1 + skipped) as usize * BLOCK_BYTES..))
    } else {
        (ring.load(env, start, 1).await?, ring.load(env, pos.0, blocks).await?)
    };
    let intact = decode_at(&head, journal, start)
        .and_then(|h| h.crcs.get(skipped as usize..(skipped + blocks) as usize).map(<[u32]>::to_vec))
        .is_some_and(|crcs| crcs_match(&crcs, &payload));
    Ok(intact.then_some(payload))
}

/// A stretch of the ring in memory; the next one is being read meanwhile. Two buffers take turns.
struct RingWindow<'a> {
    env: &'a Env,
    ring: &'a Ring,
    turn: &'a Turn<'a>,
    /// Behind the last position that may be loaded.
    limit: u64,
    first: u64,
    /// How many blocks of the buffer hold something.
    held: u64,
    buffer: AlignedBuf,
    ahead: Option<NextStretch>,
}

/// A stretch that is being read.
struct NextStretch {
    first: u64,
    blocks: u64,
    task: Task<Result<AlignedBuf>>,
}

impl<'a> RingWindow<'a> {
    fn new(env: &'a Env, ring: &'a Ring, turn: &'a Turn<'a>, limit: u64) -> Self {
        RingWindow { env, ring, turn, limit, first: 0, held: 0, buffer: AlignedBuf::zeroed(0), ahead: None }
    }

    /// The block at `pos`; what lies before it, `stepped` blocks, was not asked for.
    async fn block_behind(&mut self, pos: u64, stepped: u64) -> Result<&[u8]> {
        if stepped < STEPPED_OVER_BLOCKS_MIN || pos >= self.limit {
            return self.blocks(pos, 1).await;
        }
        if !self.holds(pos, pos + 1) {
            self.take_ahead().await?;
        }
        if !self.holds(pos, pos + 1) {
            let loaded = self.ring.load_into(self.env, pos, 1, self.new_buffer()).await?;
            self.hold(pos, 1, loaded);
        }
        Ok(self.held(pos, pos + 1))
    }

    /// The blocks `[pos, pos + blocks)`; fewer behind the limit.
    async fn blocks(&mut self, pos: u64, blocks: u64) -> Result<&[u8]> {
        debug_assert!(blocks <= OVERLAP_BLOCKS, "what is asked for lies whole in one window");
        let end = (pos + blocks).min(self.limit).max(pos);
        if !self.holds(pos, end) {
            self.take_ahead().await?;
        }
        if !self.holds(pos, end) {
            let (out, blocks) = (self.new_buffer(), self.blocks_at(pos));
            let loaded = self.ring.load_into(self.env, pos, blocks, out).await?;
            self.hold(pos, blocks, loaded);
        }
        if self.ahead.is_none() {
            self.read_ahead();
        }
        Ok(self.held(pos, end))
    }

    fn held(&self, pos: u64, end: u64) -> &[u8] {
        debug_assert!(self.holds(pos, end), "what lies behind is of a stretch before");
        let at = (pos - self.first) as usize * BLOCK_BYTES;
        &self.buffer[at..at + (end - pos) as usize * BLOCK_BYTES]
    }

    fn end(&self) -> u64 {
        self.first + self.held
    }

    fn holds(&self, pos: u64, end: u64) -> bool {
        self.first <= pos && end <= self.end()
    }

    /// How much to load from a position.
    fn blocks_at(&self, pos: u64) -> u64 {
        WINDOW_BLOCKS.min(self.limit.saturating_sub(pos)).min(self.ring.blocks)
    }

    /// A buffer for a stretch.
    fn new_buffer(&self) -> AlignedBuf {
        self.turn.buffer(WINDOW_BLOCKS.min(self.ring.blocks) as usize * BLOCK_BYTES)
    }

    fn hold(&mut self, first: u64, blocks: u64, loaded: AlignedBuf) {
        debug_assert!(blocks == 0 || first + blocks <= self.limit, "no position is read in a later lap");
        debug_assert!(blocks as usize * BLOCK_BYTES <= loaded.len(), "a stretch lies whole in its buffer");
        self.turn.give_back(std::mem::replace(&mut self.buffer, loaded));
        (self.first, self.held) = (first, blocks);
    }

    /// Moves on to what was read ahead, if anything was.
    async fn take_ahead(&mut self) -> Result<()> {
        if let Some(NextStretch { first, blocks, task }) = self.ahead.take() {
            let loaded = task.await.ok_or(Error::Closed)??;
            self.hold(first, blocks, loaded);
        }
        Ok(())
    }

    fn read_ahead(&mut self) {
        if self.end() < self.limit && self.end() > self.first + OVERLAP_BLOCKS {
            let first = self.end() - OVERLAP_BLOCKS;
            let (env, ring, blocks) = (self.env.clone(), self.ring.clone(), self.blocks_at(first));
            let out = self.new_buffer();
            let load = async move { ring.load_into(&env, first, blocks, out).await };
            self.ahead = Some(NextStretch { first, blocks, task: self.env.spawn("journal-read", load) });
        }
    }

    /// Nothing goes on behind the caller's back, and the buffers are free.
    async fn close(mut self) -> Result<()> {
        self.take_ahead().await?;
        self.turn.give_back(self.buffer);
        Ok(())
    }

    /// The header of the group that may continue `chain` at `pos`, behind a group of this
    /// incarnation, of which `stepped` blocks were not asked for; and the chain behind it.
    async fn group(
        &mut self,
        sb: &Superblock,
        pos: u64,
        stepped: u64,
        chain: Chain,
        incarnation: u64,
    ) -> Result<Option<(GroupHeader, Chain)>> {
        let block = self.block_behind(pos, stepped).await?;
        let header = decode_at(block, sb.journal, pos).map(|header| (header, chain_behind(block)));
        let incarnation = incarnation_min(sb, pos, incarnation);
        let continues =
            |h: &GroupHeader| h.chain == chain && h.incarnation >= incarnation && h.next() <= self.limit;
        Ok(header.filter(|(header, _)| continues(header)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        disk::RealDisk,
        env::real::RealEnv,
        journal::recoveries::{BUFFERS_PER_TURN, Recoveries},
    };

    /// What a buffer held for another journal before is never handed out: a window has the ring's blocks and, behind the last
    /// that it may load, nothing, wherever that lies.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_window_has_nothing_of_another_journal() {
        const OTHER: u8 = 0xEE;
        let directory = tempfile::tempdir().expect("a directory");
        let (env, disk) = (RealEnv::start(), RealDisk::create(directory.path()).expect("a disk"));
        let blocks = 3 * WINDOW_BLOCKS / 2;
        let bytes = (SUPERBLOCK_AREA_BLOCKS + blocks) * BLOCK_BYTES as u64;
        let ring = Ring::new(disk.create(FILE_NAME, bytes).await.expect("a file"), blocks);
        let content = |pos: u64| [(pos % 199) as u8; BLOCK_BYTES];
        let mut all = AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES);
        (0..)
            .zip(all.chunks_exact_mut(BLOCK_BYTES))
            .for_each(|(pos, block)| block.copy_from_slice(&content(pos)));
        ring.write(0, &[&all]).await.expect("written");
        let recoveries = Recoveries::new(1);
        let turn = recoveries.turn().await;
        for limit in [1, 700, WINDOW_BLOCKS, WINDOW_BLOCKS + 1, blocks - 1] {
            let used = (0..BUFFERS_PER_TURN).map(|_| {
                let mut buffer = turn.buffer(WINDOW_BYTES);
                buffer.fill(OTHER);
                buffer
            });
            used.collect::<Vec<_>>().into_iter().for_each(|buffer| turn.give_back(buffer));
            let mut window = RingWindow::new(&env, &ring, &turn, limit);
            let mut pos = 0;
            while pos < limit + 10 {
                let asked = 1 + pos % GROUP_PAYLOAD_BLOCKS_MAX;
                let got = window.blocks(pos, asked).await.expect("read").to_vec();
                let expected: Vec<u8> = (pos..(pos + asked).min(limit)).flat_map(content).collect();
                assert!(got == expected, "{asked} blocks from {pos} of {limit}");
                pos += asked;
            }
            window.close().await.expect("closed");
        }
    }
}
