//! Which step is next, on the way up and on the way down: a pure function of what is wanted and what was seen.
//!
//! Invariant: on the way down no device goes before what is on it, no daemon before its device, and no claim before its journal is empty,
//! unless that was asked for. A test goes through all that can be seen.

use std::path::PathBuf;

use super::{content::OnDevice, label::PoolLabel, record::Fs};
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
    /// Import a pool that another host used last and did not export.
    pub take_over: bool,
    pub way: Way,
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
    /// The pool of the name, if it is imported.
    pub pool: Option<Pool>,
    /// Where filesystems of it are mounted; nothing of another pool of that name.
    pub mounted: Vec<PathBuf>,
    /// Filesystems of the pool that should be mounted and are not.
    pub unmounted: Vec<String>,
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
    Import { force: bool },
    Mount,
    Unmount,
    Export,
    Detach,
    Drain,
    Stop { keep_dirty: bool },
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
        Some(_) if seen.unmounted.is_empty() => Ok(None),
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
        mounted if mounted.contains(wanted) => Ok(None),
        mounted => {
            let (at, wanted) = (mounted[0].display(), wanted.display());
            let failure =
                Failure::new(Kind::InUse, format!("{} is mounted on {at}, not on {wanted}", goal.name));
            Err(failure.hint(format!("unmount it, or say --mount {at}")))
        }
    }
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
        StackStep::Unmount | StackStep::Export => {
            (then.pool, then.mounted, then.unmounted) = (None, Vec::new(), Vec::new());
        }
        StackStep::Detach => (then.device, then.content) = (None, None),
        StackStep::Drain => then.served.iter_mut().for_each(|served| served.dirty_bytes = 0),
        StackStep::Stop { keep_dirty } => {
            let was_dirty = then.served.take().is_some_and(|served| served.dirty_bytes > 0);
            then.claim = if *keep_dirty && was_dirty { HeldBy::Ours } else { HeldBy::Free };
        }
    }
    then
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(fs: Fs, way: Way) -> StackGoal {
        let mount = (fs != Fs::Zfs).then(|| PathBuf::from("/srv/tank"));
        let (name, url) = ("tank".to_owned(), "s3://bucket/tank".to_owned());
        StackGoal { name, url, fs, mount, id: None, take_over: false, way }
    }

    fn label() -> PoolLabel {
        PoolLabel {
            name: "tank".into(),
            guid: 17,
            ashift: 12,
            host_id: 1,
            host_name: "here".into(),
            is_exported: true,
            is_destroyed: false,
        }
    }

    fn served() -> ServedAs {
        ServedAs { read_only: false, latched: None, dirty_bytes: 0, shared: false }
    }

    /// Nothing is there.
    fn nothing() -> StackState {
        StackState {
            served: None,
            claim: HeldBy::Free,
            device: None,
            is_stale: false,
            content: None,
            pool: None,
            mounted: Vec::new(),
            unmounted: Vec::new(),
            holders: Vec::new(),
            host_id: 1,
        }
    }

    fn attached(content: OnDevice) -> StackState {
        StackState {
            served: Some(served()),
            claim: HeldBy::Ours,
            device: Some("/dev/nbd0".into()),
            content: Some(content),
            ..nothing()
        }
    }

    fn imported() -> StackState {
        StackState {
            pool: Some(Pool { guid: 17, health: "ONLINE".into() }),
            mounted: vec!["/tank".into()],
            ..attached(OnDevice::Pool(label()))
        }
    }

    fn steps(goal: &StackGoal, mut seen: StackState) -> Vec<StackStep> {
        let mut steps = Vec::new();
        while let Some(step) = next(goal, &seen).expect("nothing hinders it") {
            seen = supposed(goal, &seen, &step);
            if step == StackStep::Attach {
                seen.content = Some(OnDevice::Blank);
            }
            steps.push(step);
            assert!(steps.len() < 10, "{steps:?}");
        }
        steps
    }

    fn refused(goal: &StackGoal, seen: &StackState) -> String {
        next(goal, seen).expect_err("refused").text
    }

    /// The whole way up and down, and what is left of it from wherever somebody stopped.
    #[test]
    fn the_way_up_and_the_way_down() {
        let (up, down) = (Way::Up, Way::Down { keep_dirty: false });
        let zfs = goal(Fs::Zfs, up);
        assert_eq!(steps(&zfs, nothing()), [StackStep::Serve, StackStep::Attach, StackStep::Make]);
        assert_eq!(steps(&zfs, attached(OnDevice::Blank)), [StackStep::Make]);
        let found = attached(OnDevice::Pool(label()));
        assert_eq!(steps(&zfs, found.clone()), [StackStep::Import { force: false }, StackStep::Mount]);
        assert_eq!(steps(&zfs, imported()), []);
        let half = StackState { unmounted: vec!["tank/home".into()], ..imported() };
        assert_eq!(steps(&zfs, half), [StackStep::Mount]);
        let xfs = goal(Fs::Xfs, up);
        assert_eq!(
            steps(&xfs, nothing()),
            [StackStep::Serve, StackStep::Attach, StackStep::Make, StackStep::Mount]
        );

        let dirty = Some(ServedAs { dirty_bytes: 1, ..served() });
        let zfs = goal(Fs::Zfs, down);
        let all =
            [StackStep::Export, StackStep::Detach, StackStep::Drain, StackStep::Stop { keep_dirty: false }];
        let busy = StackState { served: dirty.clone(), ..imported() };
        assert_eq!(steps(&zfs, busy.clone()), all);
        let kept = goal(Fs::Zfs, Way::Down { keep_dirty: true });
        assert_eq!(
            steps(&kept, busy),
            [StackStep::Export, StackStep::Detach, StackStep::Stop { keep_dirty: true }]
        );
        let daemon_gone = StackState { served: None, content: None, ..imported() };
        let known = StackGoal { id: Some("17".into()), ..zfs.clone() };
        let all =
            [StackStep::Serve, StackStep::Export, StackStep::Detach, StackStep::Stop { keep_dirty: false }];
        assert_eq!(steps(&known, daemon_gone), all);
        assert_eq!(steps(&zfs, nothing()), []);
        let left = StackState { claim: HeldBy::Ours, ..nothing() };
        assert_eq!(steps(&zfs, left.clone()), [StackStep::Serve, StackStep::Stop { keep_dirty: false }]);
        assert_eq!(steps(&kept, left), []);
        assert_eq!(steps(&zfs, StackState { claim: HeldBy::Others, ..nothing() }), []);
        let xfs = goal(Fs::Xfs, down);
        let mounted = StackState { mounted: vec!["/srv/tank".into()], ..attached(OnDevice::Blank) };
        let all = [StackStep::Unmount, StackStep::Detach, StackStep::Stop { keep_dirty: false }];
        assert_eq!(steps(&xfs, mounted), all);
        let shared = StackState { served: Some(ServedAs { shared: true, ..served() }), ..nothing() };
        assert_eq!(steps(&zfs, shared), []);
    }

    /// What is not what it should be is refused, with what it is.
    #[test]
    fn what_somebody_has_to_decide() {
        let zfs = goal(Fs::Zfs, Way::Up);
        let pool = |change: fn(&mut PoolLabel)| {
            let mut label = label();
            change(&mut label);
            attached(OnDevice::Pool(label))
        };
        assert!(refused(&zfs, &pool(|l| l.ashift = 9)).contains("blocks of 512 bytes"));
        assert!(refused(&zfs, &pool(|l| l.name = "other".into())).contains("holds pool other"));
        assert!(refused(&zfs, &pool(|l| l.is_destroyed = true)).contains("was destroyed"));
        assert!(
            refused(&zfs, &attached(OnDevice::Other("a partition table".into())))
                .contains("a partition table")
        );
        let ext4 = OnDevice::Filesystem { fs: Fs::Ext4, uuid: "u".into() };
        assert!(refused(&zfs, &attached(ext4.clone())).contains("holds ext4 u, and not zfs"));
        assert!(
            refused(&goal(Fs::Xfs, Way::Up), &pool(|_| ()))
                .contains("holds pool tank (guid 17), and not xfs")
        );
        let known = StackGoal { id: Some("18".into()), ..zfs.clone() };
        assert!(refused(&known, &pool(|_| ())).contains("is known as 18"));
        assert!(refused(&known, &attached(OnDevice::Blank)).contains("is known to have been there"));

        let foreign = pool(|l| (l.host_id, l.is_exported) = (2, false));
        assert!(refused(&zfs, &foreign).contains("did not export it"));
        let taking = StackGoal { take_over: true, ..zfs.clone() };
        assert_eq!(next(&taking, &foreign).expect("allowed"), Some(StackStep::Import { force: true }));
        let crashed = pool(|l| l.is_exported = false);
        assert_eq!(next(&zfs, &crashed).expect("its own"), Some(StackStep::Import { force: false }));

        let other = Some(Pool { guid: 99, health: "ONLINE".into() });
        assert!(
            refused(&zfs, &StackState { pool: other.clone(), ..pool(|_| ()) }).contains("not on this volume")
        );
        let unattached = StackState { served: Some(served()), pool: other.clone(), ..nothing() };
        assert!(refused(&zfs, &unattached).contains("not on this volume"));
        let suspended = Some(Pool { guid: 17, health: "SUSPENDED".into() });
        assert!(
            refused(&zfs, &StackState { pool: suspended.clone(), ..imported() }).contains("is suspended")
        );
        let read_only = StackState { served: Some(ServedAs { read_only: true, ..served() }), ..nothing() };
        assert!(refused(&zfs, &read_only).contains("read-only"));
        let latched = StackState {
            served: Some(ServedAs { latched: Some("taken over".into()), ..served() }),
            ..nothing()
        };
        assert!(refused(&zfs, &latched).contains("taken over"));
        let nowhere = StackGoal { mount: None, ..goal(Fs::Ext4, Way::Up) };
        assert!(refused(&nowhere, &attached(ext4.clone())).contains("to be mounted"));
        let elsewhere = StackState { mounted: vec!["/mnt".into()], ..attached(ext4) };
        assert!(refused(&goal(Fs::Ext4, Way::Up), &elsewhere).contains("mounted on /mnt, not on /srv/tank"));

        let down = goal(Fs::Zfs, Way::Down { keep_dirty: false });
        let busy = StackState { holders: vec!["process 7 (vi)".into()], ..imported() };
        assert!(refused(&down, &busy).contains("process 7 (vi)"));
        assert!(refused(&down, &StackState { pool: suspended, ..imported() }).contains("is suspended"));
        let stale = StackState { is_stale: true, ..imported() };
        assert!(refused(&down, &stale).contains("before another host had it"));
        assert!(refused(&zfs, &stale).contains("before another host had it"));
        // A pool of that name that is on something else is not ours to export.
        let not_ours = StackState { pool: other, mounted: Vec::new(), ..attached(OnDevice::Pool(label())) };
        assert_eq!(next(&down, &not_ours).expect("nothing hinders it"), Some(StackStep::Detach));
    }

    /// A pool is told from another one of its name by its guid: that of the label, or the one that is known where nobody can look.
    #[test]
    fn pools_are_told_by_their_guid() {
        let pool = Pool { guid: 17, health: "ONLINE".into() };
        let on_it = OnDevice::Pool(label());
        assert!(pool.is_on(Some(&on_it), None) && pool.is_on(Some(&on_it), Some("18")));
        assert!(pool.is_on(None, Some("17")));
        let other = Pool { guid: 18, ..pool.clone() };
        assert!(!other.is_on(Some(&on_it), Some("18")) && !other.is_on(None, Some("17")));
        assert!(!pool.is_on(None, None) && !pool.is_on(Some(&OnDevice::Blank), None));
    }

    /// From everything that can be seen, each way ends, and on the way down nothing goes that something still stands on.
    #[test]
    fn nothing_goes_that_something_stands_on() {
        let mut all = 0;
        for bits in 0..1u32 << 9 {
            let bit = |n: u32| bits & (1 << n) != 0;
            let (fs, keep_dirty) = (if bit(0) { Fs::Zfs } else { Fs::Ext4 }, bit(1));
            let content = match bit(0) {
                true => OnDevice::Pool(label()),
                false => OnDevice::Filesystem { fs: Fs::Ext4, uuid: "u".into() },
            };
            let has_device = bit(3);
            let seen = StackState {
                served: bit(2).then(|| ServedAs {
                    dirty_bytes: u64::from(bit(4)),
                    shared: bit(8),
                    ..served()
                }),
                claim: if bit(5) { HeldBy::Ours } else { HeldBy::Free },
                device: has_device.then(|| "/dev/nbd0".into()),
                content: has_device.then_some(content),
                pool: (bit(0) && bit(6)).then(|| Pool { guid: 17, health: "ONLINE".into() }),
                mounted: if bit(7) { vec!["/srv/tank".into()] } else { Vec::new() },
                ..nothing()
            };
            for way in [Way::Up, Way::Down { keep_dirty }] {
                let goal = StackGoal { id: Some(if bit(0) { "17" } else { "u" }.into()), ..goal(fs, way) };
                let mut seen = seen.clone();
                for turn in 0.. {
                    assert!(turn < 10, "{way:?} from {bits:b} does not end");
                    let Ok(Some(step)) = next(&goal, &seen) else { break };
                    let on_device = seen.pool.is_some() || !seen.mounted.is_empty();
                    match &step {
                        StackStep::Detach => assert!(!on_device && seen.served.is_some(), "{bits:b}"),
                        StackStep::Stop { keep_dirty: kept } => {
                            let dirty = seen.served.as_ref().expect("it is served").dirty_bytes;
                            assert!(!on_device && seen.device.is_none(), "{bits:b}");
                            assert!(dirty == 0 || (*kept && keep_dirty), "{bits:b}");
                        }
                        _ => {}
                    }
                    seen = supposed(&goal, &seen, &step);
                    if step == StackStep::Attach {
                        seen.content = Some(OnDevice::Filesystem { fs: Fs::Ext4, uuid: "u".into() });
                        if fs == Fs::Zfs {
                            seen.content = Some(OnDevice::Pool(label()));
                        }
                    }
                    all += 1;
                }
            }
        }
        assert!(all > 1000, "{all} steps were taken");
    }
}
