//! Looking at everything that a stack consists of.

use std::{
    fs::TryLockError,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Stack, nfs,
    zfs::{self, Dataset, host_id},
};
use crate::{
    cli::attachments,
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, Device, Mount, mounts},
    stack::{self, Fs, HeldBy, Holder, OnDevice, ServedAs, Sharing, StackRecord, StackState, Way},
};

/// How long a device is waited for that is being looked at: its connection may just be renewed.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// Of those who use a filesystem.
const HOLDERS_NAMED: usize = 10;

impl Stack {
    /// Looks at everything.
    pub(super) async fn look(&mut self) -> Outcome<StackState> {
        let serving = self.serving().await?;
        let attachment =
            attachments::attachment(&self.state_dir, &self.record.url)?.filter(Attachment::holds);
        let claim = match &serving {
            // Only then does it matter; the store may be away.
            None if self.goal.way == (Way::Down { keep_dirty: false }) => self.claim().await?.held_by,
            None => HeldBy::Free,
            Some(_) => HeldBy::Ours,
        };
        let is_stale = match (&serving, &attachment) {
            (Some((_, served)), Some(attachment)) => attachments::backend(served) != attachment.backend,
            _ => false,
        };
        let served = match &serving {
            None => None,
            Some((daemon, served)) => {
                self.seq = self.seq.max(served.status.seq);
                let alive = self.record.daemon_lock(&self.state_dir);
                let alive = alive.map_err(|e| Failure::io("cannot look after the daemon", &e))?;
                self.record.starts_daemon = matches!(alive.try_lock(), Err(TryLockError::WouldBlock));
                Some(ServedAs {
                    read_only: served.status.read_only,
                    latched: served.status.latched.clone(),
                    dirty_bytes: served.status.dirty_bytes,
                    shared: match daemon.status().await {
                        Ok(status) => status.volumes.len() > 1,
                        Err(ended) if ended.kind == Kind::NotFound => false, // so it is seen at the next look
                        Err(failure) => return Err(failure),
                    },
                })
            }
        };
        let (content, partition) = match (&served, &attachment) {
            (Some(_), Some(attachment)) if !is_stale => {
                let (content, partition) = content_of(attachment.device).await?;
                (Some(content), partition)
            }
            _ => (None, None),
        };
        let pool = match self.goal.fs {
            Fs::Zfs => zfs::imported(&self.goal.name, self.goal.way).await?,
            _ => None,
        };
        let known = self.goal.id.as_deref();
        let is_ours = pool.as_ref().is_some_and(|pool| pool.is_on(content.as_ref(), known));
        let mounted = match (self.goal.fs, &attachment) {
            (Fs::Zfs, _) if is_ours => mounted(|mount| zfs::is_of_pool(mount, &self.goal.name))?,
            (Fs::Zfs, _) | (_, None) => Vec::new(),
            (_, Some(attachment)) => mounted(|mount| is_of_device(mount, attachment))?,
        };
        let datasets = match &pool {
            // Without a daemon it may wait for the device, and serving comes first anyway.
            Some(_) if is_ours && served.is_some() && self.goal.way == Way::Up => {
                zfs::datasets(&self.goal.name).await?
            }
            _ => Vec::new(),
        };
        let unmounted = datasets.iter().filter(|d| d.is_missing()).map(|d| d.name.clone()).collect();
        let sharing = self.sharing(&datasets, &mounted).await?;
        let holders = match self.goal.way {
            Way::Down { .. } if !mounted.is_empty() => {
                let all = stack::holders(&mounted).map_err(|e| Failure::io("cannot look who uses it", &e))?;
                named(&all)
            }
            _ => Vec::new(),
        };
        let device = attachment.map(|attachment| attachment.link());
        let host_id = host_id();
        Ok(StackState {
            served,
            claim,
            device,
            is_stale,
            content,
            partition,
            pool,
            mounted,
            unmounted,
            sharing,
            holders,
            host_id,
        })
    }

    async fn sharing(&self, datasets: &[Dataset], mounted: &[PathBuf]) -> Outcome<Sharing> {
        let server = nfs::server();
        let exports = nfs::exports(server, mounted).await?;
        let is_exported = |at: &Path| exports.iter().any(|export| export.at == at);
        let (declared, missing) = match self.goal.fs {
            Fs::Zfs => {
                let missing = datasets.iter().filter(|d| d.is_to_be_shared() && !is_exported(&d.at));
                let root = datasets.iter().find(|d| d.name == self.goal.name);
                (root.and_then(Dataset::declared), missing.map(|d| d.name.clone()).collect())
            }
            Fs::Ext4 | Fs::Xfs | Fs::Btrfs => {
                let declared = nfs::declared(&self.goal.name);
                let missing = mounted.iter().filter(|at| declared.is_some() && !is_exported(at));
                let missing = missing.map(|at| at.display().to_string()).collect();
                (declared, missing)
            }
        };
        Ok(Sharing { server, declared, missing, exports })
    }
}

/// What is on a device, and in which partition.
async fn content_of(device: Device) -> Outcome<(OnDevice, Option<PathBuf>)> {
    let shown = device.to_string();
    let looked = tokio::task::spawn_blocking(move || OnDevice::of(device));
    match tokio::time::timeout(READ_LIMIT, looked).await {
        Ok(content) => {
            content.expect("it does not panic").map_err(|e| Failure::io(format!("cannot look what is on {shown}"), &e))
        }
        Err(_) => Err(Failure::new(Kind::Other, format!("{shown} does not answer"))
            .hint("`cistern status` shows whether the store does; `cistern keep-attached` gives a device new connections")),
    }
}

/// The first of many, in words.
fn named(holders: &[Holder]) -> Vec<String> {
    let more = holders.len().saturating_sub(HOLDERS_NAMED);
    let mut named: Vec<String> = holders.iter().take(HOLDERS_NAMED).map(Holder::to_string).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named
}

/// Where something is mounted that is on an attached device: itself, or the pool that a stack of this host has on it.
pub(in crate::cli) fn mounted_from(state_dir: &Path, attachment: &Attachment) -> Outcome<Vec<PathBuf>> {
    let stacks = StackRecord::all(state_dir);
    let pool = stacks.iter().find(|record| record.url == attachment.url && record.fs == Fs::Zfs);
    mounted(|mount| {
        is_of_device(mount, attachment) || pool.is_some_and(|pool| zfs::is_of_pool(mount, &pool.name))
    })
}

/// Where what is wanted is mounted.
pub(super) fn mounted(is_wanted: impl Fn(&Mount) -> bool) -> Outcome<Vec<PathBuf>> {
    let all = mounts().map_err(|e| Failure::io("cannot look what is mounted", &e))?;
    Ok(all.into_iter().filter(is_wanted).map(|mount| mount.at).collect())
}

pub(super) fn is_of_device(mount: &Mount, attachment: &Attachment) -> bool {
    let source = Path::new(&mount.source);
    attachment.device.has(source) || source == attachment.link()
}
