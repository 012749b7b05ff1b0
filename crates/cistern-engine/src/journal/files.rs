//! What is done to a journal's files while no writer has them: a new one, and what the end of a process left.

use std::sync::Arc;

use super::{
    FILE_NAME, LOCK_NAME,
    format::{SUPERBLOCK_AREA_BLOCKS, SUPERBLOCK_SLOTS, Superblock},
    owner::{self, Ownership},
    recover,
    ring::Ring,
    staging::StagedGroup,
};
use crate::{
    disk::{AlignedBuf, Disk},
    env::Env,
    error::{Error, Result},
    units::{BLOCK_BYTES, JournalId},
};

/// Makes a new journal, which is this process's; it has its name only once it is complete.
pub(super) async fn make(env: &Env, disk: &Arc<dyn Disk>, superblock: &Superblock) -> Result<Arc<Ownership>> {
    let bytes = (SUPERBLOCK_AREA_BLOCKS + superblock.ring_blocks) * BLOCK_BYTES as u64;
    let slots = (1..=SUPERBLOCK_SLOTS.len() as u64).map(|generation| {
        let superblock = Superblock { generation, ..superblock.clone() };
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        superblock.encode(&mut block);
        (superblock.slot_offset(), block)
    });
    Ownership::make(env, disk, bytes, &slots.collect::<Vec<_>>()).await
}

/// Journals that were set aside are looked at by number up to here.
const KEPT_MAX: u32 = 10_000;

/// Gives the journal in `disk`, which nobody has open, a name that none has yet, and returns that. For a journal that is not
/// needed: only the user deletes it.
pub async fn set_aside(env: &Env, disk: &Arc<dyn Disk>) -> Result<String> {
    let _lock = disk.lock(LOCK_NAME)?;
    owner::keep_others_out(env, disk).await?;
    for number in 1..=KEPT_MAX {
        let name = format!("{FILE_NAME}.kept-{number}");
        match disk.rename(FILE_NAME, &name).await {
            Ok(()) => return Ok(name),
            Err(Error::Exists(_)) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Error::Full(format!("{KEPT_MAX} journals were set aside in {}: remove some", disk.describe())))
}

/// Blocks that are written again at a time (4 MiB).
const WRITE_AGAIN_BLOCKS: u64 = 1024;

/// Writes the positions `[from, to)` again as they read, and syncs them. A process that died may have left
/// groups that were never synced, or whose sync failed: the kernel may show them for a while and never write
/// them back. They have to be durable before a superblock says so.
pub(super) async fn write_again(env: &Env, ring: &Ring, from: u64, to: u64) -> Result<()> {
    let mut at = from;
    while at < to {
        let blocks = WRITE_AGAIN_BLOCKS.min(to - at);
        let bytes = ring.load(env, at, blocks).await?;
        let ring = ring.clone();
        env.blocking(async move {
            ring.write(at, &[&bytes]).await?;
            ring.file.sync().await
        })
        .await?;
        at += blocks;
    }
    Ok(())
}

/// Writes groups into the ring that a process which died had staged, and perhaps not written: byte for byte what it would have written. If
/// this is interrupted, the next opening finds some of them here and the others where they were.
pub(super) async fn write_staged(env: &Env, ring: &Ring, staged: &[StagedGroup]) -> Result<()> {
    for group in staged {
        let (ring, pos, bytes) = (ring.clone(), group.header.pos, group.bytes.clone());
        env.blocking(async move { ring.write(pos, &[&bytes]).await }).await?;
    }
    Ok(())
}

/// Writes a superblock and syncs it.
pub(super) async fn write_superblock(env: &Env, ring: &Ring, superblock: Superblock) -> Result<()> {
    let file = ring.file.clone();
    env.blocking(async move {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        superblock.encode(&mut block);
        file.write_at(superblock.slot_offset(), &block).await?;
        file.sync().await
    })
    .await
}

/// Removes the journal in `disk` with everything it holds.
///
/// # Errors
/// `Locked` if a process has it open.
pub async fn discard(env: &Env, disk: &Arc<dyn Disk>) -> Result<()> {
    let _lock = disk.lock(LOCK_NAME)?;
    owner::remove_unfinished(env, disk).await?;
    match owner::keep_others_out(env, disk).await {
        Ok(()) | Err(Error::NotFound(_)) => disk.remove(FILE_NAME).await,
        Err(e) => Err(e),
    }
}

/// Removes the journal with this identity if nothing was ever written to it, also by another process to which it went meanwhile.
///
/// # Errors
/// `Locked` if one has it open.
pub async fn discard_unused(env: &Env, disk: &Arc<dyn Disk>, journal: JournalId) -> Result<()> {
    let _lock = disk.lock(LOCK_NAME)?;
    owner::keep_others_out(env, disk).await?;
    let found = recover::find(env, disk).await?;
    let at = &found.superblock;
    match at.journal == journal && at.closed && !found.slot_lost && at.durable == at.start {
        true => disk.remove(FILE_NAME).await,
        false => Ok(()),
    }
}
