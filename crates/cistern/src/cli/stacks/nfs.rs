//! The NFS server of this host: what it has, what it is told, and that it lets go.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::process::Command;

use super::programs::ask;
use crate::{
    failure::{Failure, Kind, Outcome},
    kernel::{Mount, unescape},
    stack::{NfsExport, NfsServer, escaped},
};

/// Where servers look for lines of others than the administrator.
const EXPORTS: &str = "/etc/exports.d";
const KERNEL: &str = "/proc/fs/nfsd";
/// The kernel's table of exports, and when what it has was made void.
const TABLE: &str = "/proc/net/rpc/nfsd.export";
/// How long the server may take to let go.
const RELEASE_LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

/// How the server of this host is.
pub fn server() -> NfsServer {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    if !places.any(|directory| directory.join("exportfs").is_file()) {
        return NfsServer::Missing;
    }
    let threads = fs::read_to_string(Path::new(KERNEL).join("threads")).unwrap_or_default();
    match threads.trim().parse::<u32>() {
        Ok(1..) => NfsServer::Runs,
        _ => NfsServer::Stopped,
    }
}

/// What the server gives to whom of some places.
pub(super) async fn exports(server: NfsServer, places: &[PathBuf]) -> Outcome<Vec<NfsExport>> {
    if server != NfsServer::Runs || places.is_empty() {
        return Ok(Vec::new());
    }
    let all = NfsExport::all_of(&ask(Command::new("exportfs").arg("-s")).await?);
    Ok(all.into_iter().filter(|export| places.iter().any(|place| export.at.starts_with(place))).collect())
}

/// The file in which a filesystem that is no pool is declared.
fn declaration(name: &str) -> PathBuf {
    Path::new(EXPORTS).join(format!("cistern-{name}.exports"))
}

pub(super) fn declared(name: &str) -> Option<String> {
    fs::read_to_string(declaration(name)).ok()
}

pub(super) fn declare(name: &str, line: &str) -> Outcome {
    let path = declaration(name);
    let written = fs::create_dir_all(EXPORTS).and_then(|()| fs::write(&path, line));
    written.map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))
}

pub(super) fn forget(name: &str) -> Outcome {
    let path = declaration(name);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(Failure::io(format!("cannot remove {}", path.display()), &e))
        }
        _ => Ok(()),
    }
}

/// Waits until the server has nothing of some filesystems any more, which are not shared by now. What clients have open there is taken back.
pub(super) async fn released(mounts: &[Mount]) -> Outcome {
    let begin = Instant::now();
    loop {
        for mount in mounts {
            // A kernel that takes nothing back (before 6.9) says no, or leaves what is open.
            let place = escaped(&mount.at.display().to_string());
            let _ = fs::write(Path::new(KERNEL).join("unlock_filesystem"), format!("{place}\n"));
        }
        if is_flush_due() {
            ask(Command::new("exportfs").arg("-f")).await?;
        }
        let holders = holders(mounts);
        if holders.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > RELEASE_LIMIT {
            let text = format!("the NFS server does not let go of it: {}", holders.join("; "));
            return Err(Failure::new(Kind::InUse, text).hint(
                "unmount it there, or `systemctl restart nfs-server`; Linux before 6.9 cannot take back what clients have open",
            ));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether it helps to flush the table. The kernel counts every flush as a second at least, and looks through the table no earlier than that time has come: with each of
/// several in one second it is later.
fn is_flush_due() -> bool {
    let said = fs::read_to_string(Path::new(TABLE).join("flush")).unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    said.trim().parse::<u64>().is_ok_and(|flushed| flushed < now)
}

/// Why the server has some filesystems still: clients that have files open, and what it keeps of an export itself.
fn holders(mounts: &[Mount]) -> Vec<String> {
    let mut found = Vec::new();
    for client in fs::read_dir(Path::new(KERNEL).join("clients")).into_iter().flatten().flatten() {
        let read = |file: &str| fs::read_to_string(client.path().join(file)).unwrap_or_default();
        if mounts.iter().any(|mount| has_open(&read("states"), &mount.number)) {
            let info = read("info");
            let address = info.lines().find_map(|line| line.strip_prefix("address: ")).unwrap_or("somebody");
            found.push(format!("client {} has files open", address.trim_matches('"')));
        }
    }
    let kept = fs::read_to_string(Path::new(TABLE).join("content")).unwrap_or_default();
    for mount in mounts.iter().filter(|mount| is_kept(&kept, &mount.at)) {
        found.push(format!("it keeps the export of {}", mount.at.display()));
    }
    found
}

/// Whether a client has anything open on the filesystem of a number, MAJOR:MINOR. What was taken back names none.
fn has_open(states: &str, number: &str) -> bool {
    let Some((major, minor)) = number.split_once(':') else { return false };
    let (Ok(major), Ok(minor)) = (major.parse::<u32>(), minor.parse::<u32>()) else { return false };
    states.contains(&format!("superblock: \"{major:02x}:{minor:02x}:"))
}

/// Whether the kernel's table of exports, a line each with `#` before those that count no more, names a place.
fn is_kept(table: &str, at: &Path) -> bool {
    let paths =
        table.lines().map(|line| line.trim_start_matches("# ")).filter_map(|line| line.split('\t').next());
    paths.into_iter().any(|path| Path::new(&unescape(path)) == at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clients have open is told by the number of the filesystem, and what was taken back is not counted.
    #[test]
    fn who_has_it_open() {
        let open = "- 0x01: { type: open, access: rw, superblock: \"00:20:2\", filename: \"/file\" }\n";
        assert!(has_open(open, "0:32"));
        assert!(!has_open(open, "0:33") && !has_open(open, "32:0") && !has_open(open, ""));
        assert!(!has_open("- 0x01: { type: open, access: --, deny: --, admin-revoked }\n", "0:32"));
    }

    /// What the kernel keeps of an export counts also where it is only about to be forgotten, and nothing of what is beside it.
    #[test]
    fn what_is_kept() {
        let table = "#path domain(flags)\n# /pool\t127.0.0.0/8(rw)\n/pool/a\\040b\t10.0.0.5(ro)\n";
        assert!(is_kept(table, Path::new("/pool")) && is_kept(table, Path::new("/pool/a b")));
        assert!(!is_kept(table, Path::new("/poo")) && !is_kept(table, Path::new("/pool/a")));
    }
}
