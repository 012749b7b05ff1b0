//! Who uses what is mounted.

use std::{
    fs,
    io::Result,
    path::{Path, PathBuf},
};

/// Holders that are named; of more it is said that there are.
const NAMED_MAX: usize = 10;

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// MAJOR:MINOR.
    pub number: String,
    pub at: PathBuf,
    pub fs: String,
    /// The device, or the dataset.
    pub source: String,
}

/// All that is mounted, in the order of mounting.
pub fn mounts() -> Result<Vec<Mount>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(text.lines().filter_map(mount_of).collect())
}

fn mount_of(line: &str) -> Option<Mount> {
    let (of_mount, of_fs) = line.split_once(" - ")?;
    let mut fields = of_mount.split(' ').skip(2);
    let (number, _root, at) = (fields.next()?, fields.next()?, fields.next()?);
    let mut fields = of_fs.split(' ');
    let (fs, source) = (fields.next()?.to_owned(), fields.next()?);
    Some(Mount { number: number.to_owned(), at: unescape(at).into(), fs, source: unescape(source) })
}

/// Blanks and the like come as octal numbers.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        let octal = (*byte == b'\\')
            .then(|| behind.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(meant) => {
                out.push(meant);
                rest = &behind[3..];
            }
            None => {
                out.push(*byte);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Who uses anything below some mount points: what else is mounted there, and processes that have something of it open or are in it.
///
/// Processes that end meanwhile are passed over, and so are those whose files this user may not see.
pub fn holders(points: &[PathBuf]) -> Result<Vec<String>> {
    let is_below = |path: &Path| points.iter().any(|point| path.starts_with(point));
    let mut found: Vec<String> = mounts()?
        .into_iter()
        .filter(|mount| is_below(&mount.at) && !points.contains(&mount.at))
        .map(|mount| format!("{} is mounted on {}", mount.source, mount.at.display()))
        .collect();
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(path) = used_by(&process.path()).into_iter().find(|path| is_below(path)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("process {pid} ({}) uses {}", name.trim_end(), path.display()));
        }
        if found.len() > NAMED_MAX {
            found.truncate(NAMED_MAX);
            found.push("and more".into());
            break;
        }
    }
    Ok(found)
}

/// What a process is in, and has open or mapped.
fn used_by(process: &Path) -> Vec<PathBuf> {
    let mut links: Vec<PathBuf> = ["cwd", "root", "exe"].map(|link| process.join(link)).into();
    for directory in ["fd", "map_files"] {
        let entries = fs::read_dir(process.join(directory)).into_iter().flatten().flatten();
        links.extend(entries.map(|entry| entry.path()));
    }
    links.iter().filter_map(|link| fs::read_link(link).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the kernel are understood, with optional fields or without, and with blanks in names.
    #[test]
    fn mounts_are_understood() {
        let line = r"33 24 0:29 / /pool/a\040b rw,relatime shared:5 - zfs pool/a\040b rw,xattr";
        let mount = mount_of(line).expect("understood");
        assert_eq!((mount.number.as_str(), mount.fs.as_str()), ("0:29", "zfs"));
        assert_eq!((mount.at.as_path(), mount.source.as_str()), (Path::new("/pool/a b"), "pool/a b"));
        assert_eq!(
            mount_of(r"36 35 43:0 / /mnt rw - ext4 /dev/nbd0 rw").expect("understood").source,
            "/dev/nbd0"
        );
        assert_eq!(mount_of("nonsense"), None);
        assert!(!mounts().expect("readable").is_empty());
    }

    /// A process that has a file open below a mount point is named; one beside it is not, whatever its name begins with.
    #[test]
    fn who_has_a_file_open_is_named() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (point, beside) = (dir.path().join("tank"), dir.path().join("tank2"));
        fs::create_dir_all(&point).expect("made");
        fs::create_dir_all(&beside).expect("made");
        let _beside = fs::File::create(beside.join("file")).expect("made");
        assert_eq!(holders(std::slice::from_ref(&point)).expect("looked"), Vec::<String>::new());
        let _held = fs::File::create(point.join("file")).expect("made");
        let found = holders(std::slice::from_ref(&point)).expect("looked");
        let own = format!("process {} (", std::process::id());
        assert!(found.len() == 1 && found[0].starts_with(&own), "{found:?}");
    }
}
