//! Reading what `rbd export-diff` and `rbd merge-diff` of Ceph write ("rbd diff v1", and v2, which has lengths of records), whatever its
//! bytes are.
//!
//! There is no checksum in it: what is given out is bounded and within the image, and nothing more is known of it. Only its end record says
//! that all of it came. Places and lengths are any number of bytes, and nothing says that they ascend.

use std::io::Read;

use bytes::Bytes;

use super::{
    Patch, PatchContent,
    read::{STREAM_NAME, read_exact, read_some},
};
use crate::{
    Error, Result,
    units::{SECTOR_BYTES, VOLUME_BYTES_MAX},
};

/// Bytes of a banner.
const BANNER_BYTES: usize = 12;
const BANNERS: [(&[u8; BANNER_BYTES], Layout); 2] =
    [(b"rbd diff v1\n", Layout::V1), (b"rbd diff v2\n", Layout::V2)];
/// An image with all its snapshots, as `rbd export --export-format 2` writes it.
const IMAGE_BANNER: &[u8; BANNER_BYTES] = b"rbd image v2";
/// Bytes of the longest name of a snapshot that is read.
const NAME_BYTES_MAX: usize = 4096;
/// Bytes that are given out at once. Pieces end at multiples of it.
const PIECE_BYTES: u64 = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    V1,
    V2,
}

/// What such a stream says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdHeader {
    /// Name of the snapshot that it begins with; without one it is all of the image.
    pub from: Option<String>,
    /// Name of the snapshot that is sent, if it is one.
    pub to: Option<String>,
    /// Of the image at `to`: any number.
    pub size_bytes: u64,
}

impl RbdHeader {
    /// Size of a volume that holds it.
    pub fn volume_bytes(&self) -> u64 {
        self.size_bytes.next_multiple_of(SECTOR_BYTES as u64)
    }
}

/// Such a stream that is being read.
pub struct RbdReader<R: Read> {
    from: R,
    layout: Layout,
    size_bytes: u64,
    /// Tag of a record of which nothing else was read.
    tag: Option<u8>,
    /// What was not given out of a record with data: its place, and how much.
    rest: (u64, u64),
    records: u64,
    is_complete: bool,
}

impl<R: Read> RbdReader<R> {
    /// Whether some bytes are the beginning of such a stream.
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(IMAGE_BANNER) || BANNERS.iter().any(|(banner, _)| bytes.starts_with(*banner))
    }

    /// Reads names and size.
    ///
    /// # Errors
    /// `Invalid` for another dialect of rbd; `Corrupt` for what is none, is damaged, or ends; `Io`.
    pub fn begin(mut from: R) -> Result<(RbdReader<R>, RbdHeader)> {
        let mut banner = [0; BANNER_BYTES];
        read_exact(&mut from, &mut banner)?;
        if banner == *IMAGE_BANNER {
            return Err(Error::Invalid(
                "this is a whole image of rbd, not a difference: use `rbd export-diff` for each snapshot"
                    .into(),
            ));
        }
        let known = BANNERS.iter().find(|(known, _)| banner == **known);
        let Some((_, layout)) = known else {
            return Err(Error::corrupt(STREAM_NAME, "it is not a difference of rbd"));
        };
        let layout = *layout;
        let mut reader = RbdReader {
            from,
            layout,
            size_bytes: 0,
            tag: None,
            rest: (0, 0),
            records: 0,
            is_complete: false,
        };
        let (mut names, mut size) = ([None, None], None);
        loop {
            let tag = reader.tag()?;
            match tag {
                b'f' | b't' => {
                    let name = &mut names[usize::from(tag == b't')];
                    if name.is_some() {
                        return Err(reader.damaged("names a snapshot once more"));
                    }
                    *name = Some(reader.name()?);
                }
                b's' if size.is_none() => {
                    reader.length_is(8)?;
                    size = Some(reader.number()?);
                }
                other => {
                    reader.tag = Some(other);
                    break;
                }
            }
            reader.records += 1;
        }
        let [from, to] = names;
        let Some(size_bytes) = size.filter(|size| (1..=VOLUME_BYTES_MAX).contains(size)) else {
            return Err(Error::corrupt(STREAM_NAME, "it says no size that a volume can have"));
        };
        reader.size_bytes = size_bytes;
        Ok((reader, RbdHeader { from, to, size_bytes }))
    }

    /// The next patch; `None` when the stream is complete.
    ///
    /// # Errors
    /// `Corrupt` for what is damaged, or ends before its end; `Io`. Nothing more is to be read then.
    pub fn next_patch(&mut self) -> Result<Option<Patch>> {
        while !self.is_complete {
            if self.rest.1 > 0 {
                return self.piece().map(Some);
            }
            let tag = match self.tag.take() {
                Some(tag) => tag,
                None => self.tag()?,
            };
            match tag {
                b'w' => self.rest = self.range(true)?,
                b'z' => {
                    let (offset, len) = self.range(false)?;
                    self.records += 1;
                    if len > 0 {
                        return Ok(Some(Patch { offset, content: PatchContent::Zeroes(len) }));
                    }
                    continue;
                }
                b'e' => {
                    if read_some(&mut self.from, &mut [0])? > 0 {
                        return Err(Error::corrupt(STREAM_NAME, "something follows its end"));
                    }
                    self.is_complete = true;
                }
                _ => return Err(self.damaged("is of no known kind")),
            }
            self.records += 1;
        }
        Ok(None)
    }

    /// What comes next of a record with data.
    fn piece(&mut self) -> Result<Patch> {
        let (offset, left) = self.rest;
        let len = left.min(PIECE_BYTES - offset % PIECE_BYTES);
        debug_assert!(len > 0 && offset + left <= self.size_bytes, "a piece is something within the image");
        let mut data = vec![0; len as usize];
        read_exact(&mut self.from, &mut data)?;
        self.rest = (offset + len, left - len);
        Ok(Patch { offset, content: PatchContent::Data(Bytes::from(data)) })
    }

    /// Place and length of a record, within the image.
    fn range(&mut self, has_data: bool) -> Result<(u64, u64)> {
        let follow = match self.layout {
            Layout::V1 => None,
            Layout::V2 => Some(self.number()?),
        };
        let (offset, len) = (self.number()?, self.number()?);
        if offset.checked_add(len).is_none_or(|end| end > self.size_bytes) {
            return Err(self.damaged("lies beyond the end of the image"));
        }
        // Within the image, so this does not overflow.
        let expected = 16 + if has_data { len } else { 0 };
        match follow.is_some_and(|follow| follow != expected) {
            true => Err(self.damaged("has another length than it says")),
            false => Ok((offset, len)),
        }
    }

    fn name(&mut self) -> Result<String> {
        let follow = match self.layout {
            Layout::V1 => None,
            Layout::V2 => Some(self.number()?),
        };
        let mut len = [0; 4];
        read_exact(&mut self.from, &mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if !(1..=NAME_BYTES_MAX).contains(&len) || follow.is_some_and(|follow| follow != 4 + len as u64) {
            return Err(self.damaged("names a snapshot as none is called"));
        }
        let mut name = vec![0; len];
        read_exact(&mut self.from, &mut name)?;
        String::from_utf8(name).map_err(|_| self.damaged("names a snapshot as none is called"))
    }

    /// In v2 a record says how much follows.
    fn length_is(&mut self, expected: u64) -> Result<()> {
        match self.layout == Layout::V2 && self.number()? != expected {
            true => Err(self.damaged("has another length than it says")),
            false => Ok(()),
        }
    }

    fn tag(&mut self) -> Result<u8> {
        let mut tag = [0];
        read_exact(&mut self.from, &mut tag)?;
        Ok(tag[0])
    }

    fn number(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        read_exact(&mut self.from, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn damaged(&self, what: &str) -> Error {
        Error::corrupt(STREAM_NAME, format!("record {} {what}", self.records + 1))
    }
}
