//! `cargo xtask record-traces`: which parts of a device real filesystems read and write.
//!
//! ext4, XFS and btrfs work on a real tree of files, on a plain device behind nbdkit's log filter; what
//! reaches the device is what the kernel's own caches did not answer. Input of the chunk cache's replay
//! (`cargo run -p cistern-engine --example cache_traces`).

use std::{
    fmt::Write,
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use cistern_harness::{
    filesystem::Kind, fixture, mount::BlockDevice, pidfile::PidFile, scratch::Scratch, tool, tree,
};

use crate::step;

/// Where traces are kept.
const DIR: &str = "bench/traces";
const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];
/// The unit of the cache.
const CHUNK_BYTES: u64 = 64 << 10;
const DEVICE_BYTES: u64 = 8 << 30;
const SECTOR_BYTES: u32 = 4096;
/// Least files of the tree.
const FILES_MIN: usize = 5_000;
/// A file that is read as a whole in between: the backup, the video.
const SCAN_BYTES: usize = 512 << 20;

/// Shell scripts in the mounted tree, each with cold kernel caches. What is used again and again is the
/// metadata and a few directories; between that, everything or something large is read once.
const PHASES: &[&str] = &[
    "find . -ls > /dev/null",
    "cat scan > /dev/null",
    "find . -ls > /dev/null",
    "grep -rlw license 0 > /dev/null || true",
    "find 0 -type f | sort | awk 'NR % 9 == 0' | xargs -d '\\n' cat > /dev/null",
    "find 0 -type f | sort | awk 'NR % 9 == 0' | xargs -d '\\n' cat > /dev/null",
    "tar -cf - 0 | cat > /dev/null",
    "find . -ls > /dev/null",
    "find 0 -type f | sort | awk 'NR % 9 == 0' | xargs -d '\\n' cat > /dev/null",
    "find 0 -type f | sort | awk 'NR % 23 == 0' | xargs -d '\\n' touch",
    "mkdir copy && find 0 -maxdepth 2 -type f | head -2000 | xargs -d '\\n' cp --backup=numbered -t copy",
    "cat scan > /dev/null",
    "rm -r copy && find . -newer scan > /dev/null",
    "find 0 -type f | sort | awk 'NR % 9 == 0' | xargs -d '\\n' cat > /dev/null",
];

/// Records one trace for each kind of filesystem.
pub fn run() -> Result<()> {
    let dir = step::root().join(DIR);
    std::fs::create_dir_all(&dir)?;
    let trees = tree::find(FILES_MIN)?;
    for kind in KINDS {
        let scratch = Scratch::new("traces")?;
        let log = record(&scratch, kind, &trees)?;
        let (trace, accesses) = trace_of(&std::fs::read_to_string(log)?);
        let path = dir.join(format!("{}.trace", kind.name()));
        std::fs::write(&path, trace)?;
        tool::run("gzip", ["-9", "-n", "-f", &path.display().to_string()])?;
        println!("{}: {accesses} accesses, {DIR}/{0}.trace.gz", kind.name());
    }
    Ok(())
}

/// Works on a fresh filesystem; gives the log of its device.
fn record(scratch: &Scratch, kind: Kind, trees: &[PathBuf]) -> Result<PathBuf> {
    let (raw, log) = (scratch.file("raw"), scratch.file("requests"));
    File::create(&raw)?.set_len(DEVICE_BYTES)?;
    let (pid, socket) = (PidFile::new(scratch, "nbdkit")?, scratch.socket("nbd"));
    let mut command = tool::command("nbdkit")?;
    command.arg("--foreground").arg("--pidfile").arg(pid.path()).arg("--unix").arg(&socket);
    command.args(["--filter=log", "file"]).arg(&raw).arg(format!("logfile={}", log.display()));
    let _server = pid.start(scratch, command)?;
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let device = BlockDevice::attach(scratch, &uri, SECTOR_BYTES)?;
    kind.make(&device)?;
    let mounted = kind.mount(scratch, device)?;
    tree::copy(trees, mounted.dir())?;
    std::fs::write(mounted.dir().join("scan"), fixture::random_bytes(SCAN_BYTES, 11))?;
    mounted.unmount()?.detach()?;
    for phase in PHASES {
        // Attached anew, so that nothing is in the kernel's caches.
        let mounted = kind.mount(scratch, BlockDevice::attach(scratch, &uri, SECTOR_BYTES)?)?;
        in_directory(mounted.dir(), phase).with_context(|| (*phase).to_owned())?;
        mounted.unmount()?.detach()?;
    }
    Ok(log)
}

fn in_directory(dir: &Path, script: &str) -> Result<()> {
    let mut command = tool::command("sh")?;
    command.current_dir(dir).args(["-ec", script]);
    tool::run_command(command, tool::RUN_LIMIT).map(drop)
}

/// A line `0 CHUNK` for each read and `0 CHUNK w` for each write, and their number. The same line
/// several times in a row is one: a stream within a chunk says nothing about a cache.
fn trace_of(log: &str) -> (String, usize) {
    let mut trace = String::from("# object chunk [w], chunks of 64 KiB of the device\n");
    let (mut last, mut accesses) = (None, 0);
    for (is_write, offset, count) in log.lines().filter_map(request) {
        for chunk in offset / CHUNK_BYTES..(offset + count.max(1)).div_ceil(CHUNK_BYTES) {
            if last.replace((chunk, is_write)) != Some((chunk, is_write)) {
                let _ = writeln!(trace, "0 {chunk}{}", if is_write { " w" } else { "" }); // a String takes all
                accesses += 1;
            }
        }
    }
    (trace, accesses)
}

/// `... Read id=7 offset=0x1000 count=0x2000 ...`; none for everything else, replies included.
fn request(line: &str) -> Option<(bool, u64, u64)> {
    let mut words = line.split(' ').skip(3);
    let is_write = match words.next()? {
        "Read" => false,
        "Write" | "Zero" => true,
        _ => return None,
    };
    let mut number = |name: &str| {
        let value = words.by_ref().find_map(|word| word.strip_prefix(name))?;
        u64::from_str_radix(value, 16).ok()
    };
    Some((is_write, number("offset=0x")?, number("count=0x")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests become chunks; replies, flushes and repetitions do not.
    #[test]
    fn a_log_becomes_a_trace() {
        let log = "2026-01-01 00:00:00.000001 connection=1 Write id=1 offset=0x10000 count=0x20000 fua=0 ...\n\
                   2026-01-01 00:00:00.000002 connection=1 ...Write id=1 return=0\n\
                   2026-01-01 00:00:00.000003 connection=2 Read id=2 offset=0x3f000 count=0x2000 ...\n\
                   2026-01-01 00:00:00.000004 connection=1 Flush id=3 ...\n\
                   2026-01-01 00:00:00.000005 connection=1 Read id=4 offset=0x41000 count=0x1000 ...\n";
        let (trace, accesses) = trace_of(log);
        assert_eq!(accesses, 4);
        assert_eq!(trace.lines().skip(1).collect::<Vec<_>>(), ["0 1 w", "0 2 w", "0 3", "0 4"]);
    }
}
