//! What a device holds.

use std::{
    fmt,
    fs::File,
    io::{Error, ErrorKind, Result},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    label::{NVLIST_AT, NVLIST_BYTES, PoolLabel},
    record::Fs,
};
use crate::kernel::{BLOCK_BYTES, Device};

/// Bytes at the beginning and at the end of a blank device that are zeros.
const ENDS_BYTES: u64 = 1 << 20;

/// What `blkid` calls a table whose second sector it does not find: it is somewhere else where sectors are smaller.
const GPT_UNREAD: &str = "PMBR";

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnDevice {
    Blank,
    Pool(PoolLabel),
    Filesystem {
        fs: Fs,
        uuid: String,
    },
    /// Something else, in words.
    Other(String),
}

impl fmt::Display for OnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnDevice::Blank => f.write_str("nothing"),
            OnDevice::Pool(label) => label.fmt(f),
            OnDevice::Filesystem { fs, uuid } => write!(f, "{fs} {uuid}"),
            OnDevice::Other(what) => f.write_str(what),
        }
    }
}

impl OnDevice {
    /// Looks at a device without changing anything. Where it has partitions, at the one that has a filesystem, which is named then.
    ///
    /// # Errors
    /// Those of reading it, and of running `blkid`.
    pub fn of(device: Device) -> Result<(OnDevice, Option<PathBuf>)> {
        let table = match OnDevice::look(&device.path())? {
            Looked::At(content) => return Ok((content, None)),
            Looked::Table(table) if table == GPT_UNREAD => {
                let text =
                    format!("a partition table of a disk whose sectors do not have {BLOCK_BYTES} bytes");
                return Ok((OnDevice::Other(text), None));
            }
            Looked::Table(table) => table,
        };
        let mut filesystems = Vec::new();
        for partition in device.partitions()? {
            if let Looked::At(content @ (OnDevice::Pool(_) | OnDevice::Filesystem { .. })) =
                OnDevice::look(&partition)?
            {
                filesystems.push((content, partition));
            }
        }
        Ok(the_one(&table, filesystems))
    }

    fn look(device: &Path) -> Result<Looked> {
        let at = |content| Ok(Looked::At(content));
        let output =
            Command::new("blkid").args(["-p", "-o", "export"]).arg(device).output().map_err(|e| {
                Error::new(e.kind(), format!("blkid, of the package util-linux, cannot be started: {e}"))
            })?;
        let said = String::from_utf8_lossy(&output.stdout);
        match output.status.code() {
            Some(0) => {}
            // "If the specified token was not found, or no (specified) devices could be identified"; ambivalent is 8.
            Some(2) if is_blank(&File::open(device)?)? => return at(OnDevice::Blank),
            Some(2) => return at(OnDevice::Other("data that blkid does not know".into())),
            Some(8) => return at(OnDevice::Other("the signatures of several filesystems".into())),
            _ => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(Error::other(format!("blkid cannot read it: {why}")));
            }
        }
        match of_blkid(&said) {
            Blkid::Pool => match read_label(&File::open(device)?)? {
                Some(label) => at(OnDevice::Pool(label)),
                None => at(OnDevice::Other("a ZFS pool whose label cannot be read".into())),
            },
            Blkid::Filesystem { fs, uuid } => at(OnDevice::Filesystem { fs, uuid }),
            Blkid::Table(table) => Ok(Looked::Table(table)),
            Blkid::Other(what) => at(OnDevice::Other(what)),
        }
    }
}

/// What a device or a partition has.
enum Looked {
    At(OnDevice),
    /// A table of partitions, of a kind.
    Table(String),
}

/// The filesystem that is meant among those of a device's partitions: the only one.
fn the_one(table: &str, mut filesystems: Vec<(OnDevice, PathBuf)>) -> (OnDevice, Option<PathBuf>) {
    let all: Vec<String> =
        filesystems.iter().map(|(content, at)| format!("{content} in {}", at.display())).collect();
    match (filesystems.pop(), &all[..]) {
        (Some((content, at)), [_]) => (content, Some(at)),
        (None, _) => {
            (OnDevice::Other(format!("a partition table ({table}) and no filesystem in a partition")), None)
        }
        (Some(_), all) => (OnDevice::Other(format!("several filesystems: {}", all.join(", "))), None),
    }
}

/// What `blkid` found.
#[derive(Debug, PartialEq, Eq)]
enum Blkid {
    Pool,
    Filesystem { fs: Fs, uuid: String },
    Table(String),
    Other(String),
}

/// Reads `blkid -o export`: lines of NAME=VALUE.
fn of_blkid(said: &str) -> Blkid {
    let value = |name: &str| said.lines().filter_map(|line| line.split_once('=')).find(|(of, _)| *of == name);
    let of = |name: &str| value(name).map(|(_, value)| value.to_owned());
    let uuid = of("UUID").unwrap_or_default();
    match (of("TYPE").as_deref(), of("PTTYPE")) {
        (Some("zfs_member"), _) => Blkid::Pool,
        (Some("ext4"), _) => Blkid::Filesystem { fs: Fs::Ext4, uuid },
        (Some("xfs"), _) => Blkid::Filesystem { fs: Fs::Xfs, uuid },
        (Some("btrfs"), _) => Blkid::Filesystem { fs: Fs::Btrfs, uuid },
        (Some(other), _) => Blkid::Other(other.to_owned()),
        (None, Some(table)) => Blkid::Table(table),
        (None, None) => Blkid::Other("something that blkid does not name".into()),
    }
}

/// The first label of a device that a pool is on.
fn read_label(device: &File) -> Result<Option<PoolLabel>> {
    let mut nvlist = vec![0; NVLIST_BYTES];
    device.read_exact_at(&mut nvlist, NVLIST_AT)?;
    Ok(PoolLabel::parse(&nvlist))
}

/// Whether a device begins and ends with zeros.
fn is_blank(device: &File) -> Result<bool> {
    let size = size_of(device)?;
    let ends = [0, size.saturating_sub(ENDS_BYTES)];
    for at in ends {
        let mut end = vec![0; ENDS_BYTES.min(size) as usize];
        device.read_exact_at(&mut end, at)?;
        if end.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn size_of(mut device: &File) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    match device.seek(SeekFrom::End(0))? {
        0 => Err(Error::new(ErrorKind::InvalidData, "it has no size")),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What blkid prints is understood, whatever the order of its lines.
    #[test]
    fn blkid_is_understood() {
        let ext4 = "DEVNAME=/dev/nbd0\nUUID=ab-c\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n";
        assert_eq!(of_blkid(ext4), Blkid::Filesystem { fs: Fs::Ext4, uuid: "ab-c".into() });
        assert_eq!(of_blkid("TYPE=zfs_member\nLABEL=tank\nUUID=17"), Blkid::Pool);
        assert_eq!(of_blkid("PTTYPE=gpt\nPTUUID=1"), Blkid::Table("gpt".into()));
        assert_eq!(of_blkid("TYPE=crypto_LUKS"), Blkid::Other("crypto_LUKS".into()));
        assert_eq!(of_blkid(""), Blkid::Other("something that blkid does not name".into()));
    }

    /// Of several partitions the one with a filesystem is meant; where there are more of them, or none, nobody guesses.
    #[test]
    fn the_partition_that_is_meant() {
        let filesystem =
            |fs: Fs, at: &str| (OnDevice::Filesystem { fs, uuid: "u".into() }, PathBuf::from(at));
        let (ext4, xfs) = (filesystem(Fs::Ext4, "/dev/nbd0p2"), filesystem(Fs::Xfs, "/dev/nbd0p3"));
        assert_eq!(the_one("gpt", vec![ext4.clone()]), (ext4.0.clone(), Some(ext4.1.clone())));
        let none = the_one("gpt", Vec::new());
        assert_eq!(
            none,
            (OnDevice::Other("a partition table (gpt) and no filesystem in a partition".into()), None)
        );
        let several = the_one("dos", vec![ext4, xfs]);
        let text = "several filesystems: ext4 u in /dev/nbd0p2, xfs u in /dev/nbd0p3";
        assert_eq!(several, (OnDevice::Other(text.into()), None));
    }

    /// A device is blank while neither its first nor its last MiB has anything, also where they are the same.
    #[test]
    fn blank_devices() {
        for size in [ENDS_BYTES / 2, 5 * ENDS_BYTES] {
            let file = tempfile::tempfile().expect("a temporary file");
            file.set_len(size).expect("sized");
            assert!(is_blank(&file).expect("read"));
            for at in [1, size - 1] {
                file.write_all_at(b"x", at).expect("written");
                assert!(!is_blank(&file).expect("read"));
                file.write_all_at(b"\0", at).expect("written");
            }
        }
        assert!(is_blank(&tempfile::tempfile().expect("a temporary file")).is_err());
    }
}
