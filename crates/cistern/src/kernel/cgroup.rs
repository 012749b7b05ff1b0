//! Control groups of the kernel (version 2) and their freezer: no process of a frozen one runs until it is thawed.
//!
//! Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst`, `cgroup.freeze` and `cgroup.events`.

use std::{
    fmt, fs,
    io::{ErrorKind, Result},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

const ROOT: &str = "/sys/fs/cgroup";

/// A control group, by its path below the root: `/user.slice/...`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cgroup(String);

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Cgroup {
    /// The one that a process is in; none where the process is gone or there are no control groups of this version.
    pub fn of(pid: u32) -> Option<Cgroup> {
        Cgroup::named(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
    }

    fn named(text: &str) -> Option<Cgroup> {
        text.lines().find_map(|line| line.strip_prefix("0::")).map(|path| Cgroup(path.to_owned()))
    }

    /// Whether everything is in it, or what everything else depends on.
    pub fn is_vital(&self) -> bool {
        matches!(&*self.0, "/" | "/init.scope")
    }

    /// Whether a frozen one would hold a process of another.
    pub fn contains(&self, other: &Cgroup) -> bool {
        other.0.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Freezes or thaws; a process that waits for a device is frozen when it has what it waits for. One that is gone is what it should be.
    pub fn set_frozen(&self, frozen: bool) -> Result<()> {
        match fs::write(self.file("cgroup.freeze"), if frozen { "1" } else { "0" }) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// Whether all of its processes are.
    pub fn is_frozen(&self) -> Result<bool> {
        match fs::read_to_string(self.file("cgroup.events")) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(true),
            events => Ok(events?.lines().any(|line| line == "frozen 1")),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("{ROOT}{}/{name}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process is in one group of version 2, whatever else is listed; a group contains itself and what is below it, and no other.
    #[test]
    fn groups_of_processes() {
        let of = |text| Cgroup::named(text).expect("understood");
        let shell = of("1:name=systemd:/x\n0::/user.slice/session-1.scope\n");
        assert_eq!(shell.to_string(), "/user.slice/session-1.scope");
        assert!(of("0::/user.slice\n").contains(&shell) && shell.contains(&shell));
        assert!(!of("0::/user\n").contains(&shell) && !shell.contains(&of("0::/user.slice\n")));
        assert!(of("0::/\n").is_vital() && of("0::/init.scope\n").is_vital() && !shell.is_vital());
        assert_eq!(Cgroup::named("1:cpu:/x\n"), None);
    }
}
