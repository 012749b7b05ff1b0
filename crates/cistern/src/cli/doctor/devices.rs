//! What `up` and `attach` need: the kernel's drivers, privilege, programs; and whether what is attached is well.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::Finding;
use crate::{
    cli::{attachments, stacks},
    control,
    failure::Outcome,
    kernel::{Attachment, Device, Keeper, UblkFitness},
    stack::NfsServer,
};

/// Bit of `CAP_SYS_ADMIN` among the capabilities.
const CAP_SYS_ADMIN: u32 = 21;

/// Programs that `up` and `down` run, with what for and the package that has them on Debian.
const PROGRAMS: [(&str, &str, &str); 6] = [
    ("blkid", "seeing what a device holds", "util-linux"),
    ("mount", "filesystems but ZFS", "mount"),
    ("mkfs.ext4", "making ext4", "e2fsprogs"),
    ("mkfs.xfs", "making xfs", "xfsprogs"),
    ("mkfs.btrfs", "making btrfs", "btrfs-progs"),
    ("zpool", "ZFS", "zfsutils-linux"),
];

/// What devices take. What is missing is bad where somebody is to have one.
pub fn all(wanted: bool) -> Vec<Finding> {
    let mut findings = vec![privilege()];
    findings.extend(kernel_nbd());
    findings.push(kernel_ublk());
    findings.push(zfs());
    findings.extend(PROGRAMS.map(program));
    findings.push(nfs());
    match wanted {
        true => findings,
        false => findings.into_iter().map(Finding::at_most_note).collect(),
    }
}

fn privilege() -> Finding {
    const WHAT: &str = "privilege";
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    match capabilities >> CAP_SYS_ADMIN & 1 {
        1 => Finding::ok(WHAT, "devices may be attached (CAP_SYS_ADMIN)"),
        _ => Finding::bad(
            WHAT,
            "this user may attach no device",
            "run it as root; `cistern serve` takes no privilege",
        ),
    }
}

fn kernel_nbd() -> Vec<Finding> {
    const WHAT: &str = "kernel NBD";
    if let Err(failure) = attachments::nbd::kernel() {
        return vec![Finding::bad(WHAT, failure.text, failure.hint.unwrap_or_default())];
    }
    let all = Device::all_nbd().unwrap_or_default();
    let free = all.iter().filter(|device| !device.is_attached()).count();
    let text = format!("its client is there; {free} of {} devices are free", all.len());
    vec![match free {
        0 => Finding::bad(WHAT, text, "`modprobe -r nbd && modprobe nbd nbds_max=64`, while none is in use"),
        _ => Finding::ok(WHAT, text),
    }]
}

fn kernel_ublk() -> Finding {
    const WHAT: &str = "kernel ublk";
    match (UblkFitness::here(), attachments::ublk::driver()) {
        (UblkFitness::Crashes, _) => Finding::note(
            WHAT,
            "to make a device by this kernel's driver crashes it",
            "no --ublk here; Linux 6.18.6, Ubuntu's 6.17.0-41 and newer are mended",
        ),
        (UblkFitness::TooOld, _) | (_, Err(_)) => Finding::note(
            WHAT,
            "there is none that serves: `attach --ublk` needs it",
            "Linux 6.5 or newer, and `modprobe ublk_drv`",
        ),
        (UblkFitness::MayHang, Ok(_)) => Finding::note(
            WHAT,
            "its driver is there; before Linux 7.1 a device may hang in rare cases when its daemon is replaced (CVE-2026-53124)",
            "the NBD client, which is the default, does not",
        ),
        (UblkFitness::Good, Ok(_)) => Finding::ok(WHAT, "its driver is there, for `attach --ublk`"),
    }
}

fn zfs() -> Finding {
    const WHAT: &str = "kernel ZFS";
    if !Path::new("/sys/module/zfs").exists() {
        let _ = Command::new("modprobe").arg("zfs").output(); // whether it could shows below
    }
    let Ok(version) = fs::read_to_string("/sys/module/zfs/version") else {
        return Finding::note(
            WHAT,
            "there is none: `cistern up` needs it for pools",
            "Debian: zfs-dkms of contrib; or choose --fs ext4, xfs, btrfs",
        );
    };
    let version = version.trim();
    match stacks::host_id() {
        0 => Finding::note(
            WHAT,
            format!("{version}; this host has no hostid, so pools cannot tell it from others"),
            "`zgenhostid` makes one, before pools are imported",
        ),
        id => Finding::ok(WHAT, format!("{version}, hostid {id:08x}")),
    }
}

fn program((name, purpose, package): (&'static str, &'static str, &'static str)) -> Finding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found: Option<PathBuf> =
        std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file());
    match found {
        Some(path) => Finding::ok(name, path.display().to_string()),
        None if name == "blkid" => {
            Finding::bad(name, format!("not in PATH: for {purpose}"), format!("package {package}"))
        }
        None => Finding::note(name, format!("not in PATH: for {purpose}"), format!("package {package}")),
    }
}

fn nfs() -> Finding {
    const WHAT: &str = "NFS server";
    match stacks::nfs_server() {
        NfsServer::Runs => Finding::ok(WHAT, "it runs"),
        NfsServer::Stopped => Finding::note(
            WHAT,
            "it does not run: `cistern up --share` needs it",
            "`systemctl start nfs-server`",
        ),
        NfsServer::Missing => {
            Finding::note(WHAT, "there is none: `cistern up --share` needs it", "package nfs-kernel-server")
        }
    }
}

/// Devices that are attached: whether anybody keeps them, and whether their volumes are served.
pub async fn attached(state_dir: &Path) -> Outcome<Vec<Finding>> {
    const WHAT: &str = "attached";
    let all: Vec<Attachment> = attachments::all(state_dir)?.into_iter().filter(Attachment::holds).collect();
    let mut checks = Vec::new();
    if !all.is_empty() && Keeper::is_free(state_dir).is_ok_and(|free| free) {
        checks.push(Finding::bad(
            WHAT,
            "nobody gives devices new connections: they wait for ever when their daemon ends",
            "`cistern keep-attached`, best as a service",
        ));
    }
    for attachment in all {
        let (device, url) = (attachment.device, &attachment.url);
        checks.push(match control::serving(state_dir, url).await? {
            None => Finding::bad(
                WHAT,
                format!("{device} waits: nobody serves {url}"),
                format!("`cistern serve {url}`, or `cistern up`"),
            ),
            Some((_, served)) if attachments::backend(&served) != attachment.backend => Finding::bad(
                WHAT,
                format!("{device} shows what {url} was before another host had it, or before a rollback"),
                format!("`cistern detach {device} --force` gives up what waits there"),
            ),
            Some(_) => Finding::ok(WHAT, format!("{device} shows {url}")),
        });
    }
    Ok(checks)
}
