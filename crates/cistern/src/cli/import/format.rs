//! In which format an image is: told, or seen in its first bytes.

use cistern_engine::stream::RbdReader;
use clap::ValueEnum;

use crate::failure::{Failure, Outcome};

/// Bytes at the beginning of a file that are looked at.
pub const LOOK_BYTES: usize = 512;

/// How an image lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImageFormat {
    /// As a disk has it, byte for byte
    Raw,
    /// What `rbd export-diff` or `rbd merge-diff` of Ceph writes, v1 or v2: it has no checksums
    Rbd,
    /// Of QEMU, with what it is based on
    Qcow2,
    /// Of VMware
    Vmdk,
    /// Of VirtualBox
    Vdi,
    /// Of Hyper-V
    Vhdx,
    /// Of Virtual PC and Azure (VHD)
    Vpc,
}

/// What first bytes are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Image(ImageFormat),
    /// An image that is not all of it: it names other files.
    Names(ImageFormat),
    /// Nothing that is imported, and what to do with it.
    Other(&'static str, &'static str),
    Unknown,
}

impl ImageFormat {
    /// The name of the format, for people and for qemu.
    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Rbd => "rbd",
            ImageFormat::Qcow2 => "qcow2",
            ImageFormat::Vmdk => "vmdk",
            ImageFormat::Vdi => "vdi",
            ImageFormat::Vhdx => "vhdx",
            ImageFormat::Vpc => "vpc",
        }
    }

    /// The format that was told, or the one that is seen. Raw is told, or nothing else was seen.
    ///
    /// # Errors
    /// For what cannot be imported; for what names other files, unless the format was told: a guest that writes to its raw disk could make it
    /// look like an image of which any file of the host is a part.
    pub fn of(told: Option<ImageFormat>, begin: &[u8], end: &[u8]) -> Outcome<ImageFormat> {
        let seen = see(begin, end);
        match (told, seen) {
            (Some(told), _) => Ok(told),
            (None, Seen::Image(seen)) => Ok(seen),
            (None, Seen::Unknown) => Ok(ImageFormat::Raw),
            (None, Seen::Names(seen)) => {
                let failure = Failure::usage(format!("it looks like {} that names other files", seen.name()));
                Err(failure.hint(format!("--format {} if you know where it comes from", seen.name())))
            }
            (None, Seen::Other(what, hint)) => {
                Err(Failure::usage(format!("it looks like {what}")).hint(hint))
            }
        }
    }

    /// What the first bytes look like, where that is not the format.
    pub fn looks_different(self, begin: &[u8], end: &[u8]) -> Option<&'static str> {
        match see(begin, end) {
            Seen::Image(seen) | Seen::Names(seen) if seen != self => Some(seen.name()),
            Seen::Other(what, _) => Some(what),
            _ => None,
        }
    }
}

fn see(begin: &[u8], end: &[u8]) -> Seen {
    let is_at = |at: usize, magic: &[u8]| begin.get(at..).is_some_and(|bytes| bytes.starts_with(magic));
    const UNPACK: &str =
        "unpack it first, or into a pipe: cistern import - URL --size SIZE; --format raw takes it as it is";
    const CONVERT: &str = "convert it first (qemu-img convert), or say --format raw to take it as it is";
    if is_at(0, b"QFI\xfb") {
        let version = begin.get(4..8);
        let number =
            |at: usize| begin.get(at..at + 8).is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0));
        // In version 3 the third of the incompatible features is a file for the data.
        let has_data_file = version == Some(&[0, 0, 0, 3]) && begin.get(79).is_some_and(|bits| bits & 4 != 0);
        return match number(8) || has_data_file {
            true => Seen::Names(ImageFormat::Qcow2),
            false => Seen::Image(ImageFormat::Qcow2),
        };
    }
    if RbdReader::<&[u8]>::begins(begin) {
        Seen::Image(ImageFormat::Rbd)
    } else if is_at(0, b"KDMV") {
        Seen::Image(ImageFormat::Vmdk)
    } else if is_at(0, b"# Disk DescriptorFile") {
        Seen::Names(ImageFormat::Vmdk)
    } else if is_at(64, &0xbeda_107f_u32.to_le_bytes()) {
        Seen::Image(ImageFormat::Vdi)
    } else if is_at(0, b"vhdxfile") {
        Seen::Image(ImageFormat::Vhdx)
    } else if is_at(0, b"conectix") || end.starts_with(b"conectix") {
        Seen::Image(ImageFormat::Vpc)
    } else if is_at(0, b"cistern") && is_at(8, b"stream") {
        Seen::Other("a stream of cistern send", "cistern receive takes it")
    } else if is_at(0, b"\x1f\x8b")
        || is_at(0, b"\x28\xb5\x2f\xfd")
        || is_at(0, b"\xfd7zXZ\0")
        || is_at(0, b"BZh")
    {
        Seen::Other("a compressed file", UNPACK)
    } else if is_at(0, b"QED\0") || is_at(0, b"WithoutFreeSpace") || is_at(0, b"WithouFreSpacExt") {
        Seen::Other("an image that is not known here", CONVERT)
    } else {
        Seen::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is seen is taken, unless it names other files; what is told wins; raw is what nothing else is.
    #[test]
    fn formats_are_seen() {
        let of = |begin: &[u8]| ImageFormat::of(None, begin, &[]).map_err(|failure| failure.text);
        let with = |at: usize, bytes: &[u8]| {
            let mut begin = [0; LOOK_BYTES];
            begin[at..at + bytes.len()].copy_from_slice(bytes);
            begin
        };
        let mut qcow2 = with(0, b"QFI\xfb\0\0\0\x03");
        assert_eq!(of(&qcow2), Ok(ImageFormat::Qcow2));
        qcow2[15] = 0x70;
        assert!(of(&qcow2).unwrap_err().contains("names other files"));
        assert_eq!(ImageFormat::of(Some(ImageFormat::Qcow2), &qcow2, &[]).ok(), Some(ImageFormat::Qcow2));
        assert_eq!(ImageFormat::of(Some(ImageFormat::Raw), &qcow2, &[]).ok(), Some(ImageFormat::Raw));
        assert_eq!(ImageFormat::Raw.looks_different(&qcow2, &[]), Some("qcow2"));
        assert_eq!(ImageFormat::Qcow2.looks_different(&qcow2, &[]), None);
        (qcow2[15], qcow2[79]) = (0, 4);
        assert!(of(&qcow2).unwrap_err().contains("names other files"));
        assert_eq!(of(b"rbd diff v1\nt"), Ok(ImageFormat::Rbd));
        assert_eq!(of(&with(64, &[0x7f, 0x10, 0xda, 0xbe])), Ok(ImageFormat::Vdi));
        assert_eq!(ImageFormat::of(None, &[0; LOOK_BYTES], b"conectix").ok(), Some(ImageFormat::Vpc));
        assert!(of(b"\x1f\x8b\x08").unwrap_err().contains("compressed"));
        assert!(of(b"cistern\x01stream\0\0").unwrap_err().contains("cistern send"));
        for raw in [&[][..], b"QFI", &[0xff; LOOK_BYTES]] {
            assert_eq!(of(raw), Ok(ImageFormat::Raw));
        }
    }
}
