//! The filesystems of Debian as users of a volume: made, mounted, checked.

use std::path::Path;

use anyhow::Result;

use crate::{
    mount::{BlockDevice, Mounted},
    scratch::Scratch,
    tool,
};

/// A kind of filesystem, by the name that mount knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }

    /// Makes an empty filesystem on `device`.
    pub fn make(self, device: &BlockDevice) -> Result<()> {
        let force = if self == Kind::Ext4 { "-F" } else { "-f" };
        tool::run(&format!("mkfs.{}", self.name()), [Path::new("-q"), Path::new(force), device.path()])
            .map(drop)
    }

    pub fn mount(self, scratch: &Scratch, device: BlockDevice) -> Result<Mounted> {
        Mounted::mount(scratch, device, self.name())
    }

    /// Checks an unmounted filesystem without repairing anything; any finding is an error.
    pub fn check(self, device: &BlockDevice) -> Result<()> {
        let device = device.path();
        match self {
            Kind::Ext4 => tool::run("fsck.ext4", [Path::new("-f"), Path::new("-n"), device]),
            Kind::Xfs => tool::run("xfs_repair", [Path::new("-n"), device]),
            Kind::Btrfs => tool::run("btrfs", [Path::new("check"), device]),
        }
        .map(drop)
    }
}
