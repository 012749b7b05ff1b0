//! What is mounted.

use std::{fs, io::Result, path::PathBuf};

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
    use std::path::Path;

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
}
