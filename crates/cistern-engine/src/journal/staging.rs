//! The staging file: groups that were acknowledged and are not in the ring yet, for the case that the process is killed.
//!
//! A write to the ring goes past the page cache and takes as long as the disk does. One to this file goes into the page cache: that takes a
//! microsecond and survives the process, though not the host. What lies here are groups, byte for byte as they come into the ring
//! (`docs/format/journal.md`, "Staged groups"). Recovery takes one only where the ring ends and only if its chain continues what the ring
//! holds, so a file that is old, torn, damaged or of a copy adds nothing that is not the history of this journal.
//!
//! Never synced: what a FLUSH promises is in the ring.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    format::GroupHeader,
    group::Group,
    owner::{Ownership, beginning_of_unfinished},
    recover::{crcs_match, decode_at},
    scribe::MadeHeader,
};
use crate::{
    disk::{AlignedBuf, Disk, DiskFile},
    env::Env,
    error::{Error, Result},
    units::{BLOCK_BYTES, Chain, JournalId},
};

/// The file in the state directory of a volume.
const FILE_NAME: &str = "staging";
/// Blocks of the file (4 MiB): what comes while one batch is written, so that acknowledging waits for no disk.
pub(super) const STAGED_BLOCKS_MAX: u64 = 1024;
/// Blocks that are staged at once (1 MiB and some): what is more takes so long to copy that waiting for the ring costs no more.
const PIECE_BLOCKS_MAX: u64 = 300;

/// A write to the page cache that takes longer was made to wait.
const SLOW: Duration = Duration::from_millis(20);
/// For so long nothing is staged then.
const REST: Duration = Duration::from_secs(1);

/// The file, for writing by the owner of the journal; makes it where there is none. `None` where that fails: then each write waits for the
/// ring.
pub(super) async fn open(disk: &Arc<dyn Disk>, owner: &Ownership) -> Option<Arc<dyn DiskFile>> {
    match open_or_create(disk, owner).await {
        Ok(file) => Some(file),
        Err(error) => {
            tracing::warn!(%error, "without {FILE_NAME}: every write waits until the disk has it");
            None
        }
    }
}

async fn open_or_create(disk: &Arc<dyn Disk>, owner: &Ownership) -> Result<Arc<dyn DiskFile>> {
    let bytes = STAGED_BLOCKS_MAX as usize * BLOCK_BYTES;
    match disk.open_cached(FILE_NAME).await {
        Ok(file) if file.len() == bytes as u64 => return Ok(file),
        Ok(_) => disk.remove(FILE_NAME).await?,
        Err(Error::NotFound(_)) => {}
        Err(e) => return Err(e),
    }
    for name in disk.names(&beginning_of_unfinished(FILE_NAME)).await? {
        disk.remove(&name).await?;
    }
    let unfinished = owner.unfinished(FILE_NAME);
    let file = disk.create(&unfinished, bytes as u64).await?;
    // Written once, so that no later write has to allocate, and so to wait for the file system's log.
    file.write_at(0, &AlignedBuf::zeroed(bytes)).await?;
    file.sync().await?;
    disk.rename(&unfinished, FILE_NAME).await?;
    disk.open_cached(FILE_NAME).await
}

/// A group that lies in the staging file.
pub(super) struct StagedGroup {
    pub header: GroupHeader,
    /// The chain behind it.
    pub behind: Chain,
    /// Its header and its payload.
    pub bytes: Bytes,
}

impl StagedGroup {
    pub fn payload(&self) -> &[u8] {
        &self.bytes[BLOCK_BYTES..]
    }
}

/// All that may be a staged group of a journal.
#[derive(Default)]
pub(super) struct StagedGroups {
    bytes: Bytes,
}

impl StagedGroups {
    /// Reads the file; nothing where there is none.
    pub async fn load(env: &Env, disk: &Arc<dyn Disk>) -> Result<StagedGroups> {
        let file = match disk.open_cached(FILE_NAME).await {
            Ok(file) => file,
            Err(Error::NotFound(_)) => return Ok(StagedGroups::default()),
            Err(e) => return Err(e),
        };
        let blocks = (file.len() / BLOCK_BYTES as u64).min(STAGED_BLOCKS_MAX);
        let load = async move {
            let mut out = AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES);
            file.read_at(0, &mut out).await.map(|()| out)
        };
        Ok(StagedGroups { bytes: Bytes::from_owner(env.blocking(load).await?) })
    }

    /// The group that continues `chain` at `pos`, if an intact one lies here. Several may be of that position, of other histories.
    pub fn continuing(
        &self,
        journal: JournalId,
        pos: u64,
        chain: Chain,
        is_of_age: impl Fn(&GroupHeader) -> bool,
    ) -> Option<StagedGroup> {
        (0..self.bytes.len() / BLOCK_BYTES).find_map(|block| {
            let at = block * BLOCK_BYTES;
            let head = &self.bytes[at..at + BLOCK_BYTES];
            let header = decode_at(head, journal, pos).filter(|h| h.chain == chain && is_of_age(h))?;
            let behind = super::format::chain_behind(head);
            let end = at + (1 + header.crcs.len()) * BLOCK_BYTES;
            let bytes = (end <= self.bytes.len()).then(|| self.bytes.slice(at..end))?;
            let staged = StagedGroup { header, behind, bytes };
            crcs_match(&staged.header.crcs, staged.payload()).then_some(staged)
        })
    }
}

/// What of the file is in use.
#[derive(Default)]
pub(super) struct StagingRoom {
    /// Pieces whose groups may not be in the ring yet: the position behind each, its first block, and its blocks. Oldest first.
    live: VecDeque<(u64, u64, u64)>,
    /// Nothing is staged before.
    rests_until: Duration,
}

impl StagingRoom {
    /// A place for so many blocks that lie together, if there is one.
    fn place(&self, blocks: u64) -> Option<u64> {
        let (Some(&(_, oldest, _)), Some(&(_, first, len))) = (self.live.front(), self.live.back()) else {
            return (blocks <= STAGED_BLOCKS_MAX).then_some(0);
        };
        let end = first + len;
        let wraps = first < oldest;
        match () {
            () if wraps => (end + blocks <= oldest).then_some(end),
            () if end + blocks <= STAGED_BLOCKS_MAX => Some(end),
            () => (blocks <= oldest).then_some(0),
        }
    }

    /// Everything before `written` is in the ring.
    pub fn free(&mut self, written: u64) {
        while self.live.front().is_some_and(|&(end, ..)| end <= written) {
            self.live.pop_front();
        }
    }

    /// The kernel makes who writes to the page cache wait, because others fill it faster than the disk takes it: then the ring, which goes
    /// past it, is sooner for a while, and the thread that serves clients is not held up.
    pub fn note_time(&mut self, began: Duration, now: Duration) {
        if now.saturating_sub(began) > SLOW {
            self.rests_until = now + REST;
        }
    }

    /// Takes a place for groups, if there is one and they are not too much at once.
    pub fn take(&mut self, groups: Vec<Arc<Group>>, durable: u64, now: Duration) -> Option<StagedPiece> {
        if now < self.rests_until {
            return None;
        }
        let end = groups.last()?.next().0;
        let blocks = groups.iter().map(|group| group.blocks()).sum();
        let first = self.place(blocks).filter(|_| blocks <= PIECE_BLOCKS_MAX)?;
        self.live.push_back((end, first, blocks));
        Some(StagedPiece { groups, durable, first, end })
    }
}

/// Groups that are to be staged, and where.
pub(super) struct StagedPiece {
    pub groups: Vec<Arc<Group>>,
    /// What was synced when the piece was made.
    pub durable: u64,
    /// Its first block in the file.
    first: u64,
    /// The position behind it.
    pub end: u64,
}

impl StagedPiece {
    /// Writes the groups, but for the first of them that have no header any more: those are in the ring.
    pub async fn write(&self, file: &dyn DiskFile, headers: &[MadeHeader]) -> Result<()> {
        let groups = &self.groups[self.groups.len() - headers.len()..];
        let mut parts: Vec<&[u8]> = Vec::with_capacity(3 * groups.len());
        for (group, header) in groups.iter().zip(headers) {
            parts.push(&header.block);
            parts.extend(group.pieces());
        }
        file.write_vectored_at(self.first * BLOCK_BYTES as u64, &parts).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No two pieces that are in use overlap, whatever comes and goes, and what is free is found again.
    #[test]
    fn pieces_in_use_do_not_overlap() {
        let mut room = StagingRoom::default();
        let mut positions = 0;
        for step in 0_u64..5000 {
            let blocks = 1 + step * 7919 % 200;
            if let Some(first) = room.place(blocks) {
                assert!(first + blocks <= STAGED_BLOCKS_MAX);
                let overlaps =
                    |&(_, other, len): &(u64, u64, u64)| first < other + len && other < first + blocks;
                assert!(!room.live.iter().any(overlaps), "step {step}: {first}+{blocks} in {:?}", room.live);
                positions += blocks;
                room.live.push_back((positions, first, blocks));
            }
            if step % 3 == 0
                && let Some(&(oldest, ..)) = room.live.front()
            {
                room.free(oldest);
            }
        }
        room.free(u64::MAX);
        assert_eq!(room.place(STAGED_BLOCKS_MAX), Some(0));
    }
}
