//! What ZFS says of pools and their filesystems, in columns made for programs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tokio::process::Command;

use super::programs::ask;
use crate::{
    failure::{Failure, Kind, Outcome},
    kernel::Mount,
    stack::{Pool, Way},
};

/// A filesystem of a pool.
pub(super) struct Dataset {
    pub(super) name: String,
    can_mount: bool,
    is_mounted: bool,
    pub(super) is_locked: bool,
    /// Where it is, or would be, mounted.
    pub(super) at: PathBuf,
    /// Whom the server may give it to, in the words of ZFS.
    share: String,
}

impl Dataset {
    /// It should be mounted and is not.
    pub(super) fn is_missing(&self) -> bool {
        self.can_mount && !self.is_mounted
    }

    /// It is mounted where its properties say, and they say that it is shared.
    pub(super) fn is_to_be_shared(&self) -> bool {
        self.is_mounted && self.at.is_absolute() && self.declared().is_some()
    }

    pub(super) fn declared(&self) -> Option<String> {
        (self.share != "off").then(|| self.share.clone())
    }

    /// A line of `zfs list -Hp`.
    fn of(line: &str) -> Option<Dataset> {
        let mut fields = line.split('\t');
        let mut next = || fields.next();
        let (name, can_mount, mounted, mountpoint) = (next()?, next()?, next()?, next()?);
        let (key, share) = (next()?, next()?);
        Some(Dataset {
            name: name.to_owned(),
            can_mount: can_mount == "on" && !matches!(mountpoint, "none" | "legacy"),
            is_mounted: mounted == "yes",
            is_locked: key == "unavailable",
            at: mountpoint.into(),
            share: share.to_owned(),
        })
    }
}

/// Those of a pool, parents first.
pub(super) async fn datasets(pool: &str) -> Outcome<Vec<Dataset>> {
    const COLUMNS: &str = "name,canmount,mounted,mountpoint,keystatus,sharenfs";
    let said =
        ask(Command::new("zfs").args(["list", "-Hp", "-r", "-t", "filesystem", "-o", COLUMNS, pool])).await?;
    Ok(said.lines().filter_map(Dataset::of).collect())
}

/// The pool of a name, if it is imported.
pub(super) async fn imported(name: &str, way: Way) -> Outcome<Option<Pool>> {
    if !Path::new("/sys/module/zfs").exists() {
        if way != Way::Up {
            return Ok(None); // nothing is imported without it
        }
        let _ = Command::new("modprobe").arg("zfs").output().await; // whether it could shows below
        if !Path::new("/sys/module/zfs").exists() {
            return Err(Failure::new(Kind::NotFound, "the kernel has no ZFS")
                .hint("install it (Debian: zfs-dkms and zfsutils-linux of contrib), or choose another filesystem with --fs"));
        }
    }
    let said = ask(Command::new("zpool").args(["list", "-Hp", "-o", "name,guid,health"])).await?;
    Ok(said.lines().find_map(|line| {
        let mut fields = line.split('\t');
        let found = fields.next()? == name;
        let (guid, health) = (fields.next()?.parse().ok()?, fields.next()?.to_owned());
        found.then_some(Pool { guid, health })
    }))
}

/// The number of this host as pools know it; 0 where it has none.
pub fn host_id() -> u64 {
    let set = fs::read_to_string("/sys/module/spl/parameters/spl_hostid").unwrap_or_default();
    match set.trim().parse::<u64>() {
        Ok(id) if id != 0 => id,
        _ => fs::read("/etc/hostid")
            .ok()
            .and_then(|id| Some(u32::from_le_bytes(*id.first_chunk()?)))
            .map_or(0, u64::from),
    }
}

pub(super) fn is_of_pool(mount: &Mount, pool: &str) -> bool {
    let below = mount.source.strip_prefix(pool);
    mount.fs == "zfs" && below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a pool's filesystems those count as missing that can be mounted somewhere and are not.
    #[test]
    fn what_should_be_mounted() {
        let missing = |line: &str| Dataset::of(line).expect("understood").is_missing();
        assert!(missing("tank\ton\tno\t/tank\t-\toff"));
        for line in [
            "tank\ton\tyes\t/tank\t-\toff",
            "tank/a\tnoauto\tno\t/tank/a\t-\toff",
            "tank/b\ton\tno\tlegacy\t-\toff",
            "tank/c\ton\tno\tnone\t-\toff",
            "tank/d\toff\tno\t/tank/d\t-\toff",
        ] {
            assert!(!missing(line), "{line}");
        }
        let dataset = |line: &str| Dataset::of(line).expect("understood");
        assert!(dataset("tank/e\ton\tno\t/e\tunavailable\ton").is_locked);
        assert!(dataset("tank/e\ton\tyes\t/e\t-\trw=@10.0.0.0/24").is_to_be_shared());
        for line in
            ["tank\ton\tyes\t/tank\t-\toff", "tank\ton\tno\t/tank\t-\ton", "tank\ton\tyes\tlegacy\t-\ton"]
        {
            assert!(!dataset(line).is_to_be_shared(), "{line}");
        }
        let mount = |source: &str| Mount {
            root: "/".into(),
            number: "0:29".into(),
            at: "/".into(),
            fs: "zfs".into(),
            source: source.into(),
        };
        assert!(is_of_pool(&mount("tank"), "tank") && is_of_pool(&mount("tank/a"), "tank"));
        assert!(!is_of_pool(&mount("tank2"), "tank"));
    }
}
