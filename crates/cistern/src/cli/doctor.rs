//! `cistern doctor`: what this host has and lacks for `up` and `attach`.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Context, attachments, stacks},
    config::{Settings, StateSettings},
    control,
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, Device, Keeper, UblkFitness},
    quantity::ByteSize,
    stack::NfsServer,
    terminal,
};

/// Bit of `CAP_SYS_ADMIN` among the capabilities.
const CAP_SYS_ADMIN: u32 = 21;
/// Free space in the state directory below which a journal is small.
const STATE_FREE_MIN: u64 = 1 << 30;
/// What `statfs` says of a file system in memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Programs that `up` and `down` run, with what for and the package that has them on Debian.
const PROGRAMS: [(&str, &str, &str); 6] = [
    ("blkid", "seeing what a device holds", "util-linux"),
    ("mount", "filesystems but ZFS", "mount"),
    ("mkfs.ext4", "making ext4", "e2fsprogs"),
    ("mkfs.xfs", "making xfs", "xfsprogs"),
    ("mkfs.btrfs", "making btrfs", "btrfs-progs"),
    ("zpool", "ZFS", "zfsutils-linux"),
];

/// Say what this host lacks for `cistern up` and `attach`, and how to get it
///
/// Changes nothing, but for loading the kernel's modules nbd, ublk_drv and zfs if they can be. Each line says ok, note (it is missed in some cases) or
/// bad. Exit code 1 if anything is bad.
#[derive(Args)]
pub(super) struct Doctor {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Missed in some cases.
    Note,
    Bad,
}

/// Something that was looked at.
#[derive(Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, text: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Ok, text: text.into(), hint: None }
    }

    fn note(what: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Note, text: text.into(), hint: Some(hint.into()) }
    }

    fn bad(what: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Bad, text: text.into(), hint: Some(hint.into()) }
    }
}

impl Doctor {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let mut checks = vec![privilege()];
        checks.extend(kernel_nbd());
        checks.push(kernel_ublk());
        checks.push(zfs());
        checks.extend(PROGRAMS.map(program));
        checks.push(nfs());
        checks.push(state_directory(&settings.state_dir));
        checks.extend(attached(&settings.state_dir).await?);
        let bad = checks.iter().filter(|check| check.verdict == Verdict::Bad).count();
        match self.json {
            true => terminal::say_json(&checks)?,
            false => show(&checks)?,
        }
        match bad {
            0 => Ok(()),
            n => Err(Failure::new(
                Kind::Other,
                format!("{n} of {} things that were looked at are bad", checks.len()),
            )),
        }
    }
}

fn show(checks: &[Finding]) -> Outcome {
    let mut rows = Vec::new();
    for Finding { what, verdict, text, hint } in checks {
        let verdict = match verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Bad => "bad",
        };
        rows.push(vec![verdict.to_owned(), (*what).to_owned(), text.clone()]);
        rows.extend(hint.iter().map(|hint| vec![String::new(), String::new(), format!("-> {hint}")]));
    }
    terminal::say(terminal::table(&rows))
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

fn state_directory(state_dir: &Path) -> Finding {
    const WHAT: &str = "state directory";
    let shown = state_dir.display();
    // Where it will be, if it is not there yet.
    let Some(there) = state_dir.ancestors().find(|path| path.exists()) else {
        return Finding::bad(WHAT, format!("{shown} cannot be"), "--state-dir says another one");
    };
    let (kind, free_bytes) = match file_system(there) {
        Ok(found) => found,
        Err(e) => return Finding::bad(WHAT, format!("{shown}: {e}"), "--state-dir says another one"),
    };
    let free = ByteSize(free_bytes);
    if kind == TMPFS_MAGIC {
        return Finding::bad(
            WHAT,
            format!("{shown} is in memory: a journal there is lost with the next restart"),
            "--state-dir on a disk you trust",
        );
    }
    match free_bytes {
        0..STATE_FREE_MIN => Finding::note(
            WHAT,
            format!("{shown}: {free} are free, so journals are small and writes soon as slow as the upload"),
            "a larger disk, and --journal-size",
        ),
        _ => Finding::ok(WHAT, format!("{shown}, {free} free")),
    }
}

/// Kind of a file system, and its free bytes for this user.
fn file_system(path: &Path) -> std::io::Result<(u64, u64)> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| ErrorKind::InvalidInput)?;
    // SAFETY: zeros are a statfs, and the call fills it in for a path that lives through it.
    let (result, found) = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &raw mut found), found)
    };
    match result {
        0 => Ok((found.f_type as u64, found.f_bavail * found.f_bsize as u64)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Devices that are attached: whether anybody keeps them, and whether their volumes are served.
async fn attached(state_dir: &Path) -> Outcome<Vec<Finding>> {
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
