//! Looking at a journal without writing anything: for export, and for the salvageable prefix of a
//! damaged one.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    FILE_NAME, LOCK_NAME,
    group::Group,
    owner,
    recover::{self, Depth, FoundJournal, Walked},
    recoveries::Recoveries,
};
use crate::{
    disk::Disk,
    env::Env,
    error::{Error, Result},
    units::{JournalId, JournalPos, VolumeId},
};

/// What a scan found besides the groups.
#[derive(Clone, Debug)]
pub struct Scan {
    pub journal: JournalId,
    pub volume: VolumeId,
    /// Where the groups begin: everything before is committed in the store.
    pub tail: JournalPos,
    /// Behind the last valid group.
    pub end: JournalPos,
    /// The journal is damaged at `end`: acknowledged data behind it is lost.
    pub damage: Option<Error>,
}

/// Hands every valid group to `visit`, in order, and changes nothing. An error of `visit` ends the scan.
///
/// # Errors
/// `Locked` if a process has the journal open.
pub async fn read_only_scan(
    env: &Env,
    disk: &Arc<dyn Disk>,
    visit: &mut (dyn FnMut(&Group) -> Result<()> + Send),
) -> Result<Scan> {
    let _lock = disk.lock(LOCK_NAME)?;
    owner::refuse_if_at_work(env, disk, FILE_NAME).await?;
    let found = recover::find(env, disk).await?;
    let recoveries = Recoveries::new(1);
    let turn = recoveries.turn().await;
    let walked = recover::walk(env, &found, &turn, Depth::Payloads, &mut |header, payload| {
        let payload = Bytes::copy_from_slice(payload);
        visit(&Group::from_disk(header.pos, &header.records, header.crcs.clone(), payload))
    })
    .await?;
    Ok(Scan {
        journal: found.superblock.journal,
        volume: found.superblock.volume,
        tail: JournalPos(found.superblock.tail),
        end: JournalPos(walked.head),
        damage: walked.damage.as_ref().map(|damage| damage_error(&found, &walked, damage)),
    })
}

/// What to say about a damaged journal.
pub(super) fn damage_error(found: &FoundJournal, walked: &Walked, damage: &str) -> Error {
    let detail = format!(
        "the group at position {} is damaged, but {damage}. The {} groups before it (from position {}) \
         can be exported (cistern journal export); what lies behind is lost",
        walked.head,
        walked.starts.len(),
        found.superblock.tail
    );
    Error::corrupt(&*found.name, detail)
}
