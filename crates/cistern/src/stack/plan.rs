//! Which step is next, on the way up and on the way down: a pure function of what is wanted and what was seen.
//!
//! Invariant: on the way down no filesystem goes while it is shared, no device before what is on it, no daemon before its device, and no claim before its journal is empty,
//! unless that was asked for. A test goes through all that can be seen.

use std::path::PathBuf;

use super::{
    content::OnDevice,
    label::PoolLabel,
    record::Fs,
    share::{self, NfsExport, NfsServer, ShareClient, Sharing},
};
use crate::failure::{Failure, Kind};

/// Blocks of a device that is attached have two to the power of this bytes.
const DEVICE_ASHIFT: u64 = 12;

/// What is wanted.
#[derive(Clone, Debug)]
pub struct StackGoal {
    /// Of the stack, and of its pool.
    pub name: String,
    /// Of the volume.
    pub url: String,
    pub fs: Fs,
    /// Where a filesystem is to be mounted. A pool knows that itself.
    pub mount: Option<PathBuf>,
    /// The id by which the filesystem was known.
    pub id: Option<String>,
    /// With whom it is to be shared over NFS: nobody where the list is empty, whatever a pool says itself where there is none.
    pub share: Option<Vec<ShareClient>>,
    /// Import a pool that another host used last and did not export.
    pub take_over: bool,
    pub way: Way,
}

impl StackGoal {
    /// What has to be declared of it, where it is to be shared with somebody.
    pub fn declaration(&self) -> Option<String> {
        let clients = self.share.as_ref().filter(|clients| !clients.is_empty())?;
        Some(match (&self.mount, self.fs) {
            (Some(mount), Fs::Ext4 | Fs::Xfs | Fs::Btrfs) => share::exports_line(mount, clients),
            _ => share::zfs_property(clients),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Up,
    /// Everything to the store, or all that is not there left in the journal.
    Down {
        keep_dirty: bool,
    },
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackState {
    pub served: Option<ServedAs>,
    /// Who has the volume by what the store says. Looked at where nobody here serves it.
    pub claim: HeldBy,
    pub device: Option<PathBuf>,
    /// The device shows what the volume was before another host had it, or before a rollback.
    pub is_stale: bool,
    /// Of the device, while the volume is served.
    pub content: Option<OnDevice>,
    /// The partition that it is in, if it is not on the device itself.
    pub partition: Option<PathBuf>,
    /// The pool of the name, if it is imported.
    pub pool: Option<Pool>,
    /// Where filesystems of it are mounted; nothing of another pool of that name.
    pub mounted: Vec<PathBuf>,
    /// Filesystems of the pool that should be mounted and are not.
    pub unmounted: Vec<String>,
    pub sharing: Sharing,
    /// Who uses what is mounted.
    pub holders: Vec<String>,
    /// Of this host, as pools know it.
    pub host_id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedAs {
    pub read_only: bool,
    /// Why it has stopped, if it has.
    pub latched: Option<String>,
    /// Acknowledged and not in the store.
    pub dirty_bytes: u64,
    /// The daemon serves other volumes as well.
    pub shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// Nobody has it, or it does not exist.
    Free,
    /// This host: its journal may have what the store has not.
    Ours,
    Others,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub guid: u64,
    pub health: String,
}

impl Pool {
    /// Whether it is the one of a device, or of the id that is known where the device cannot be looked at. Another one may have its name.
    pub fn is_on(&self, content: Option<&OnDevice>, known: Option<&str>) -> bool {
        match content {
            Some(OnDevice::Pool(label)) => label.guid == self.guid,
            _ => known == Some(&self.guid.to_string()),
        }
    }

    fn is_suspended(&self) -> bool {
        self.health == "SUSPENDED"
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackStep {
    Serve,
    Attach,
    Make,
    Import {
        force: bool,
    },
    Mount,
    Share,
    /// For good: nothing says any more that it should be shared.
    Unshare {
        for_good: bool,
    },
    Unmount,
    Export,
    Detach,
    Drain,
    Stop {
        keep_dirty: bool,
    },
}

/// Why nothing can be done.
pub type Refusal = Failure;

/// The next step; `None` when all is as it is wanted.
///
/// # Errors
/// Where somebody has to decide something first. Nothing was done.
pub fn next(goal: &StackGoal, seen: &StackState) -> Result<Option<StackStep>, Refusal> {
    if seen.is_stale {
        let device = seen.device.iter().map(|device| device.display().to_string()).collect::<String>();
        let text =
            format!("{device} shows what {} was before another host had it, or before a rollback", goal.url);
        return Err(Failure::new(Kind::InUse, text).hint(format!(
            "what waits there is lost: `cistern detach {device} --force` gives it up, then try again"
        )));
    }
    match goal.way {
        Way::Up => up(goal, seen),
        Way::Down { keep_dirty } => down(goal, seen, keep_dirty),
    }
}

fn up(goal: &StackGoal, seen: &StackState) -> Result<Option<StackStep>, Refusal> {
    let (name, url) = (&goal.name, &goal.url);
    can_be_shared(goal, seen)?;
    match &seen.served {
        None => return Ok(Some(StackStep::Serve)),
        Some(served) if served.read_only => {
            let failure = Failure::new(Kind::InUse, format!("{url} is served read-only on this host"));
            return Err(failure.hint("stop that daemon, then try again"));
        }
        Some(ServedAs { latched: Some(why), .. }) => {
            let failure = Failure::new(Kind::Stopped, format!("{url} has stopped: {why}"));
            return Err(failure.hint("`cistern status` says more; the daemon has to be started again"));
        }
        Some(_) => {}
    }
    let (Some(device), Some(content)) = (&seen.device, &seen.content) else {
        if goal.fs == Fs::Zfs && seen.pool.is_some() {
            return Err(elsewhere(name));
        }
        return Ok(Some(StackStep::Attach));
    };
    let device = device.display();
    match content {
        OnDevice::Blank => match &goal.id {
            None => Ok(Some(StackStep::Make)),
            Some(id) => {
                let failure = Failure::new(
                    Kind::Corrupt,
                    format!("{url} is empty, and {name} ({}, {id}) is known to have been there", goal.fs),
                );
                Err(failure.hint("is it the right URL? `cistern info` shows the volume. Nothing was made"))
            }
        },
        OnDevice::Other(what) => {
            let failure =
                Failure::new(Kind::InUse, format!("{url} holds {what}, not a filesystem of its own"));
            Err(failure.hint(format!("`cistern attach {url}` makes it {device}, for other tools")))
        }
        OnDevice::Pool(label) if goal.fs == Fs::Zfs => up_pool(goal, seen, label),
        OnDevice::Filesystem { fs, uuid } if *fs == goal.fs => up_filesystem(goal, seen, uuid),
        OnDevice::Pool(label) => Err(of_another_kind(goal, Fs::Zfs, &label.to_string())),
        OnDevice::Filesystem { fs, uuid } => Err(of_another_kind(goal, *fs, &format!("{fs} {uuid}"))),
    }
}

fn up_pool(goal: &StackGoal, seen: &StackState, label: &PoolLabel) -> Result<Option<StackStep>, Refusal> {
    let StackGoal { name, url, .. } = goal;
    if label.name != *name {
        let failure = Failure::usage(format!("{url} holds {label}, and not {name}"));
        return Err(failure.hint(format!("`cistern up {} --on {url}`", label.name)));
    }
    check_id(goal, &label.guid.to_string())?;
    if label.is_destroyed {
        let failure = Failure::new(Kind::NotFound, format!("{label} on {url} was destroyed"));
        return Err(failure.hint("`zpool import -D` may bring it back, behind `cistern attach`"));
    }
    if label.ashift < DEVICE_ASHIFT {
        let bytes = 1u64 << label.ashift.min(DEVICE_ASHIFT);
        let failure = Failure::usage(format!(
            "{label} was made with blocks of {bytes} bytes (ashift {}): importing it from a device with blocks of 4096 crashes ZFS",
            label.ashift
        ));
        return Err(failure.hint(
            "serve it, and import it through another client, like QEMU's, that shows blocks of 512 bytes",
        ));
    }
    match &seen.pool {
        Some(pool) if pool.guid != label.guid => Err(elsewhere(name)),
        Some(pool) if pool.is_suspended() => Err(suspended(name)),
        Some(_) if seen.unmounted.is_empty() => Ok(share_step(goal, seen)),
        Some(_) => Ok(Some(StackStep::Mount)),
        None => {
            let is_foreign = label.host_id != 0 && label.host_id != seen.host_id && !label.is_exported;
            match is_foreign && !goal.take_over {
                true => {
                    let failure = Failure::new(
                        Kind::InUse,
                        format!("{label} was used last by host {}, which did not export it", label.host_name),
                    );
                    Err(failure.hint(format!(
                        "`cistern down {name}` there; if that host is gone and uses it through no network either: --take-over"
                    )))
                }
                false => Ok(Some(StackStep::Import { force: is_foreign })),
            }
        }
    }
}

fn up_filesystem(goal: &StackGoal, seen: &StackState, uuid: &str) -> Result<Option<StackStep>, Refusal> {
    check_id(goal, uuid)?;
    let Some(wanted) = &goal.mount else {
        let failure = Failure::usage(format!("where is {} to be mounted?", goal.name));
        return Err(failure.hint("--mount DIR says it"));
    };
    match &seen.mounted[..] {
        [] => Ok(Some(StackStep::Mount)),
        mounted if mounted.contains(wanted) => Ok(share_step(goal, seen)),
        mounted => {
            let (at, wanted) = (mounted[0].display(), wanted.display());
            let failure =
                Failure::new(Kind::InUse, format!("{} is mounted on {at}, not on {wanted}", goal.name));
            Err(failure.hint(format!("unmount it, or say --mount {at}")))
        }
    }
}

/// What is missing between a mounted filesystem and one that is shared as it should be.
fn share_step(goal: &StackGoal, seen: &StackState) -> Option<StackStep> {
    let Sharing { server, declared, missing, exports } = &seen.sharing;
    let step = match &goal.share {
        Some(clients) if clients.is_empty() => {
            let is_shared = declared.is_some() || !exports.is_empty();
            return is_shared.then_some(StackStep::Unshare { for_good: true });
        }
        Some(_) => *declared != goal.declaration() || !missing.is_empty(),
        None => *server == NfsServer::Runs && !missing.is_empty(),
    };
    step.then_some(StackStep::Share)
}

/// Whether it can be shared with whom it is to be shared.
///
/// # Errors
/// Where nobody is there to share it.
pub fn can_be_shared(goal: &StackGoal, seen: &StackState) -> Result<(), Refusal> {
    let (text, hint) = match seen.sharing.server {
        _ if goal.declaration().is_none() => return Ok(()),
        NfsServer::Runs => return Ok(()),
        NfsServer::Missing => {
            ("this host has no NFS server", "install it (Debian: nfs-kernel-server), or say --no-share")
        }
        NfsServer::Stopped => {
            ("the NFS server of this host does not run", "`systemctl start nfs-server`, or say --no-share")
        }
    };
    Err(Failure::new(Kind::NotFound, format!("{} is to be shared, and {text}", goal.name)).hint(hint))
}

fn check_id(goal: &StackGoal, found: &str) -> Result<(), Refusal> {
    match &goal.id {
        Some(known) if known != found => {
            let text =
                format!("{} holds {} {found}, and {} is known as {known}", goal.url, goal.fs, goal.name);
            let hint = format!(
                "is it the right URL? For another one of that name, give it another name than {}",
                goal.name
            );
            Err(Failure::new(Kind::InUse, text).hint(hint))
        }
        _ => Ok(()),
    }
}

fn elsewhere(name: &str) -> Failure {
    let failure = Failure::new(Kind::InUse, format!("a pool {name} is imported that is not on this volume"));
    failure.hint(format!("`zpool status {name}` shows where it is; export it first"))
}

fn suspended(name: &str) -> Failure {
    let failure =
        Failure::new(Kind::Other, format!("pool {name} is suspended: a request to its device failed"));
    failure.hint(format!(
        "see that its volume is served (`cistern status`), then `zpool clear {name}`, then try again"
    ))
}

fn of_another_kind(goal: &StackGoal, found: Fs, what: &str) -> Failure {
    let failure = Failure::usage(format!("{} holds {what}, and not {}", goal.url, goal.fs));
    failure.hint(format!("--fs {found} says so"))
}

fn down(goal: &StackGoal, seen: &StackState, keep_dirty: bool) -> Result<Option<StackStep>, Refusal> {
    let name = &goal.name;
    let is_ours = |pool: &&Pool| pool.is_on(seen.content.as_ref(), goal.id.as_deref());
    let pool = seen.pool.as_ref().filter(|_| goal.fs == Fs::Zfs).filter(is_ours);
    let stands = pool.is_some() || !seen.mounted.is_empty();
    if stands {
        if pool.is_some_and(Pool::is_suspended) {
            return Err(suspended(name));
        }
        if !seen.holders.is_empty() {
            let failure = Failure::new(Kind::InUse, format!("{name} is in use: {}", seen.holders.join("; ")));
            return Err(failure.hint("end these, then try again; nothing was changed"));
        }
    }
    if seen.device.is_some() && seen.served.is_none() {
        return Ok(Some(StackStep::Serve)); // what waits in the device has to go somewhere
    }
    if stands && !seen.sharing.exports.is_empty() {
        return Ok(Some(StackStep::Unshare { for_good: false }));
    }
    if stands {
        return Ok(Some(if pool.is_some() { StackStep::Export } else { StackStep::Unmount }));
    }
    match (&seen.device, &seen.served) {
        (Some(_), _) => Ok(Some(StackStep::Detach)),
        (None, Some(served)) if served.dirty_bytes > 0 && !keep_dirty => Ok(Some(StackStep::Drain)),
        (None, Some(served)) if served.shared => Ok(None),
        (None, Some(served)) => Ok(Some(StackStep::Stop { keep_dirty: served.dirty_bytes > 0 })),
        (None, None) if seen.claim == HeldBy::Ours && !keep_dirty => Ok(Some(StackStep::Serve)),
        (None, None) => Ok(None),
    }
}

/// What is seen behind a step that does what it should: for showing a plan. What a device holds is not known before it is attached.
pub fn supposed(goal: &StackGoal, seen: &StackState, step: &StackStep) -> StackState {
    let mut then = seen.clone();
    match step {
        StackStep::Serve => {
            then.served = Some(ServedAs { read_only: false, latched: None, dirty_bytes: 0, shared: false });
            then.claim = HeldBy::Ours;
        }
        StackStep::Attach => then.device = Some(PathBuf::from("/dev/cistern").join(&goal.name)),
        StackStep::Make | StackStep::Import { .. } => {
            // A pool that is made is imported, and mounted.
            if goal.fs == Fs::Zfs {
                let guid = goal.id.as_ref().and_then(|id| id.parse().ok()).unwrap_or(1);
                then.pool = Some(Pool { guid, health: "ONLINE".into() });
                then.content = Some(OnDevice::Pool(PoolLabel {
                    name: goal.name.clone(),
                    guid,
                    ashift: DEVICE_ASHIFT,
                    host_id: seen.host_id,
                    host_name: String::new(),
                    is_exported: false,
                    is_destroyed: false,
                }));
                match step {
                    StackStep::Make => then.mounted = vec![PathBuf::from("/").join(&goal.name)],
                    _ => then.unmounted = vec![goal.name.clone()],
                }
            } else {
                let uuid = goal.id.clone().unwrap_or_default();
                then.content = Some(OnDevice::Filesystem { fs: goal.fs, uuid });
            }
        }
        StackStep::Mount => {
            then.unmounted.clear();
            then.mounted = vec![goal.mount.clone().unwrap_or_else(|| PathBuf::from("/").join(&goal.name))];
        }
        StackStep::Share => {
            then.sharing.declared = goal.declaration().or(then.sharing.declared);
            then.sharing.missing.clear();
            let shared = |at: &PathBuf| NfsExport { at: at.clone(), client: String::new() };
            then.sharing.exports = then.mounted.iter().map(shared).collect();
        }
        StackStep::Unshare { for_good } => {
            then.sharing.exports.clear();
            then.sharing.declared.take_if(|_| *for_good);
        }
        StackStep::Unmount | StackStep::Export => {
            (then.pool, then.mounted, then.unmounted) = (None, Vec::new(), Vec::new());
        }
        StackStep::Detach => (then.device, then.content, then.partition) = (None, None, None),
        StackStep::Drain => then.served.iter_mut().for_each(|served| served.dirty_bytes = 0),
        StackStep::Stop { keep_dirty } => {
            let was_dirty = then.served.take().is_some_and(|served| served.dirty_bytes > 0);
            then.claim = if *keep_dirty && was_dirty { HeldBy::Ours } else { HeldBy::Free };
        }
    }
    then
}

#[cfg(test)]
mod tests;
