//! What a device holds.

use std::{
    fs::File,
    io::{Error, ErrorKind, Result},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

use super::{
    label::{NVLIST_AT, NVLIST_BYTES, PoolLabel},
    record::Fs,
};

/// Bytes at the beginning and at the end of a blank device that are zeros.
const ENDS_BYTES: u64 = 1 << 20;

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

impl OnDevice {
    /// Looks at a device without changing anything.
    ///
    /// # Errors
    /// Those of reading it, and of running `blkid`.
    pub fn of(device: &Path) -> Result<OnDevice> {
        let output =
            Command::new("blkid").args(["-p", "-o", "export"]).arg(device).output().map_err(|e| {
                Error::new(e.kind(), format!("blkid, of the package util-linux, cannot be started: {e}"))
            })?;
        let said = String::from_utf8_lossy(&output.stdout);
        match output.status.code() {
            Some(0) => {}
            // "If the specified token was not found, or no (specified) devices could be identified"; ambivalent is 8.
            Some(2) if is_blank(&File::open(device)?)? => return Ok(OnDevice::Blank),
            Some(2) => return Ok(OnDevice::Other("data that blkid does not know".into())),
            Some(8) => return Ok(OnDevice::Other("the signatures of several filesystems".into())),
            _ => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(Error::other(format!("blkid cannot read it: {why}")));
            }
        }
        match of_blkid(&said) {
            Blkid::Pool => match read_label(&File::open(device)?)? {
                Some(label) => Ok(OnDevice::Pool(label)),
                None => Ok(OnDevice::Other("a ZFS pool whose label cannot be read".into())),
            },
            Blkid::Filesystem { fs, uuid } => Ok(OnDevice::Filesystem { fs, uuid }),
            Blkid::Other(what) => Ok(OnDevice::Other(what)),
        }
    }
}

/// What `blkid` found.
#[derive(Debug, PartialEq, Eq)]
enum Blkid {
    Pool,
    Filesystem { fs: Fs, uuid: String },
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
        (None, Some(table)) => Blkid::Other(format!("a partition table ({table})")),
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
        assert_eq!(of_blkid("PTTYPE=gpt\nPTUUID=1"), Blkid::Other("a partition table (gpt)".into()));
        assert_eq!(of_blkid("TYPE=crypto_LUKS"), Blkid::Other("crypto_LUKS".into()));
        assert_eq!(of_blkid(""), Blkid::Other("something that blkid does not name".into()));
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
