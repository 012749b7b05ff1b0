//! What is mounted.

use std::{
    fs,
    io::Result,
    path::{Path, PathBuf},
};

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// MAJOR:MINOR.
    pub number: String,
    /// Which directory of the filesystem.
    pub root: PathBuf,
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

/// Whether any process has a directory of a mounted filesystem, or something below it, bound to another place, as a container has what it was
/// given; `directory` counts from the filesystem's own root. Services with mount namespaces of their own have what is mounted here too,
/// but as it is here. Processes that end meanwhile or are not to be seen are passed over.
pub fn is_bound(at: &Path, directory: &Path) -> Result<bool> {
    let here: Vec<String> =
        mounts()?.into_iter().filter(|mount| mount.at == at).map(|mount| mount.number).collect();
    for process in fs::read_dir("/proc")?.flatten() {
        let text = fs::read_to_string(process.path().join("mountinfo")).unwrap_or_default();
        if binds(&text, &here, directory) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether lines of a `mountinfo` show a directory of a filesystem with one of these numbers, or something below it.
fn binds(mountinfo: &str, numbers: &[String], directory: &Path) -> bool {
    let is_it = |mount: Mount| numbers.contains(&mount.number) && mount.root.starts_with(directory);
    mountinfo.lines().filter_map(mount_of).any(is_it)
}

fn mount_of(line: &str) -> Option<Mount> {
    let (of_mount, of_fs) = line.split_once(" - ")?;
    let mut fields = of_mount.split(' ').skip(2);
    let (number, root, at) = (fields.next()?, fields.next()?, fields.next()?);
    let mut fields = of_fs.split(' ');
    let (fs, source) = (fields.next()?.to_owned(), fields.next()?);
    let (number, root, at) = (number.to_owned(), unescape(root).into(), unescape(at).into());
    Some(Mount { number, root, at, fs, source: unescape(source) })
}

/// Blanks and the like come as octal numbers.
pub fn unescape(text: &str) -> String {
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
        assert_eq!(mount.root, Path::new("/"));
        assert_eq!(
            mount_of(r"36 35 43:0 / /mnt rw - ext4 /dev/nbd0 rw").expect("understood").source,
            "/dev/nbd0"
        );
        assert_eq!(mount_of("nonsense"), None);
        assert!(!mounts().expect("readable").is_empty());
    }

    /// A container has the directory it was given, or a part of it; what is mounted as a whole is nobody's.
    #[test]
    fn what_a_container_was_given_is_seen() {
        let has = |line: &str| binds(line, &["43:0".to_owned()], Path::new("/data"));
        assert!(has("36 35 43:0 /data /srv rw - ext4 /dev/nbd0 rw"));
        assert!(has("36 35 43:0 /data/sub /srv rw - ext4 /dev/nbd0 rw"));
        assert!(!has("36 35 43:0 / /var/lib/cistern/docker/mounts/db rw - ext4 /dev/nbd0 rw"));
        assert!(!has("36 35 43:0 /database /srv rw - ext4 /dev/nbd0 rw"));
        assert!(!has("36 35 43:1 /data /srv rw - ext4 /dev/nbd1 rw"));
    }
}
