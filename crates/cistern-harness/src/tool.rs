//! Other people's programs: where each comes from, and how one is run with a limit.
//!
//! A program that is not there is a failure that names its Debian package, never a skipped test.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::process;

/// Program, and the Debian 12 package that has it. `cargo xtask setup` installs all of them.
pub const PACKAGES: &[(&str, &str)] = &[
    ("bindfs", "bindfs"),
    ("borg", "borgbackup"),
    ("btrfs", "btrfs-progs"),
    ("cc", "build-essential"),
    ("chromium", "chromium"),
    ("curl", "curl"),
    ("dd", "coreutils"),
    ("diff", "diffutils"),
    ("find", "findutils"),
    ("faketime", "faketime"),
    ("fio", "fio"),
    ("fsck.ext4", "e2fsprogs"),
    ("fsfreeze", "util-linux"),
    ("fusermount3", "fuse3"),
    ("gocryptfs", "gocryptfs"),
    ("losetup", "mount"),
    ("mergerfs", "mergerfs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("nbdsh", "python3-libnbd"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("openssl", "openssl"),
    ("pngquant", "pngquant"),
    ("psql", "postgresql"),
    ("python3", "python3"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("restic", "restic"),
    ("s3backer", "s3backer"),
    ("setpriv", "util-linux"),
    ("/usr/lib/openssh/sftp-server", "openssh-sftp-server"),
    ("sshfs", "sshfs"),
    ("sync", "coreutils"),
    ("systemd-analyze", "systemd"),
    ("unshare", "util-linux"),
    ("virt-qemu-run", "libvirt-daemon-driver-qemu"),
    ("xfs_repair", "xfsprogs"),
];

/// How long one run of a client may take before it counts as hung.
pub const RUN_LIMIT: Duration = Duration::from_secs(300);

/// Where `program` is, looking into the system directories as well. An error names the package.
pub fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
        .with_context(|| match PACKAGES.iter().find(|(name, _)| *name == program) {
            Some((_, package)) => {
                format!("{program} is missing: apt-get install {package} (or: cargo xtask setup)")
            }
            None => format!("{program} is missing"),
        })
}

/// Where `cargo xtask setup` keeps what it builds.
pub fn built_directory() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    Ok(PathBuf::from(home).join(".cache/cistern-test"))
}

/// A command for `program`, which must be installed. Debian's own directories come first in its
/// PATH: what it starts in turn (python3, with libnbd's bindings) has to be Debian's.
pub fn command(program: &str) -> Result<Command> {
    let mut command = Command::new(find(program)?);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/sbin:/usr/bin:/sbin:/bin:{path}"));
    Ok(command)
}

/// A command as an error shows it: scripts and long lists are cut.
fn shown(command: &Command) -> String {
    const SHOWN_MAX: usize = 600;
    let text = format!("{:?} {:?}", command.get_program(), command.get_args().collect::<Vec<_>>());
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// What a program that ended well wrote.
#[derive(Clone, Debug)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
}

/// Runs `program` to its end. An exit code other than 0 is an error that shows what it wrote.
pub fn run<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> Result<Output> {
    let mut command = command(program)?;
    command.args(args);
    run_command(command, RUN_LIMIT)
}

/// As [`run`], with a ready command and its own limit.
pub fn run_command(command: Command, limit: Duration) -> Result<Output> {
    let shown = shown(&command);
    let (status, output) = finish(command, limit)?;
    if !status.success() {
        bail!("{shown}\n{status}\n{}{}", output.stdout, output.stderr);
    }
    Ok(output)
}

/// Runs to the end and expects failure; gives what was written.
pub fn run_failing<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> Result<Output> {
    let mut command = command(program)?;
    command.args(args);
    let shown = shown(&command);
    let (status, output) = finish(command, RUN_LIMIT)?;
    if status.success() {
        bail!("{shown}\nshould have failed, but ended well\n{}{}", output.stdout, output.stderr);
    }
    Ok(output)
}

/// Runs to the end, well or not: gives how it ended and what it wrote. One that is not done within `limit` is killed, and that is an error.
pub fn finish(mut command: Command, limit: Duration) -> Result<(std::process::ExitStatus, Output)> {
    let shown = shown(&command);
    let mut stdout = tempfile::tempfile()?;
    let mut stderr = tempfile::tempfile()?;
    command.stdin(std::process::Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let mut child = process::Guard::spawn(command).with_context(|| shown.clone())?;
    let status = child.wait(limit).with_context(|| shown)?;
    Ok((status, Output { stdout: read_all(&mut stdout)?, stderr: read_all(&mut stderr)? }))
}

fn read_all(file: &mut std::fs::File) -> Result<String> {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The SHA-256 of a file in hex, computed by a program of the system.
pub fn sha256(file: &Path) -> Result<String> {
    let out = run("sha256sum", [file])?;
    out.stdout.split_whitespace().next().map(str::to_owned).context("sha256sum printed nothing")
}
