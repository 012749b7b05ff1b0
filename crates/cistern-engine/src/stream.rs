//! The stream: what a snapshot shows, or by what it differs from an older one, as bytes that leave the store
//! (`docs/format/stream.md`).
//!
//! Owns the layout and its checks. Every record is verified, bounded and in order before anybody gets it, and no stream is complete
//! without its end. Does no IO but through what it is given, and knows nothing of volumes.

mod rbd;
mod rbd_read;
mod read;
mod runs;
mod token;
mod write;

use bytes::Bytes;

use crate::{
    Error,
    codec::{BlockData, Compression, MAGIC, fields::Fields},
    share::Share,
    snapshot::check_name,
    units::{BLOCK_BYTES, Extent, FRAME_BLOCKS_MAX, SECTOR_BYTES, SnapshotId, VOLUME_BYTES_MAX, VolumeId},
};

pub use rbd::RbdWriter;
pub use rbd_read::{RbdHeader, RbdReader};
pub use read::StreamReader;
pub use runs::zero_runs;
pub use token::ResumeToken;
pub use write::StreamWriter;

/// Version that is written and read.
pub const FORMAT: u8 = 2;

/// What it is, behind magic and version.
const STREAM: [u8; 8] = *b"stream\0\0";
/// Bytes of a header before the names.
const HEADER_BYTES: usize = 104;
const _: () = assert!(MAGIC.len() + 1 + STREAM.len() + 3 * 16 + 3 * 8 + 3 * 4 + 4 == HEADER_BYTES);
/// Bytes of a record before what it brings.
const RECORD_BYTES: usize = 24;
/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 32;
/// Bytes of the longest payload but for its first byte, which is in the head: what does not compress.
const PAYLOAD_BYTES_MAX: usize = FRAME_BLOCKS_MAX * BLOCK_BYTES;
const _: () = assert!(PAYLOAD_BYTES_MAX <= u32::MAX as usize, "a record says how long it is");

const DATA: u8 = 1;
const ZERO: u8 = 2;
const HOLE: u8 = 3;
const END: u8 = 255;

/// One state of a volume, as a stream names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamState {
    pub id: SnapshotId,
    pub name: String,
}

/// What a stream is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    pub volume: VolumeId,
    /// What is sent.
    pub to: StreamState,
    /// What it begins with; without one the stream is full.
    pub base: Option<StreamState>,
    /// Of the volume at `to`.
    pub size_bytes: u64,
    pub made_ms: u64,
    /// How the volume compresses.
    pub compression: Compression,
    /// Which blocks it tells of.
    pub share: Share,
    /// Block from which on it tells of them: not the first one if it goes on where another one ended.
    pub from: u64,
}

/// What an extent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamContent {
    /// 1 to 16.
    Data(BlockData),
    /// Allocated zeroes.
    Zero,
    Hole,
}

/// One extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRecord {
    pub extent: Extent,
    pub content: StreamContent,
}

impl StreamRecord {
    /// Bytes of data that it has, before compression.
    pub fn data_bytes(&self) -> u64 {
        match self.content {
            StreamContent::Data(_) => self.extent.len * BLOCK_BYTES as u64,
            StreamContent::Zero | StreamContent::Hole => 0,
        }
    }

    /// Its data, unpacked; `None` if it has none.
    ///
    /// # Errors
    /// `Corrupt` if it does not unpack to so many blocks.
    pub fn data(&self) -> Result<Option<Bytes>, Error> {
        let StreamContent::Data(blocks) = &self.content else { return Ok(None) };
        let broken = |_| {
            let what = format!("blocks {} to {}", self.extent.start, self.extent.end());
            Error::corrupt(what, "what is stored of them does not unpack")
        };
        blocks.unpack(self.data_bytes() as usize).map(Some).map_err(broken)
    }
}

/// Bytes at any place, as they come from what knows no blocks. Where patches overlap, the later one wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    pub offset: u64,
    pub content: PatchContent,
}

/// What a patch puts there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchContent {
    Data(Bytes),
    /// So many zeroes; whether they are allocated is not known.
    Zeroes(u64),
}

impl Patch {
    pub fn len(&self) -> u64 {
        match &self.content {
            PatchContent::Data(data) => data.len() as u64,
            PatchContent::Zeroes(len) => *len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a complete stream had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    pub records: u64,
    pub data_blocks: u64,
}

impl StreamTotals {
    fn add(&mut self, kind: u8, extent: Extent) {
        self.records += 1;
        self.data_blocks += if kind == DATA { extent.len } else { 0 };
    }
}

impl StreamHeader {
    /// Blocks of the volume, the last one perhaps in part.
    pub fn blocks(&self) -> u64 {
        self.size_bytes.div_ceil(BLOCK_BYTES as u64)
    }

    /// Whether these are all shares of one.
    ///
    /// # Errors
    /// `Invalid` says what is missing, or which of them is of something else.
    pub fn check_together(headers: &[StreamHeader]) -> Result<(), Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        let Some(first) = headers.first() else { return invalid("there is no stream".into()) };
        let of = |header: &StreamHeader| {
            (header.to.id, header.base.clone().map(|base| base.id), header.size_bytes)
        };
        let count = first.share.count();
        let mut there = vec![false; count as usize];
        for header in headers {
            let share = header.share;
            let number = share.index() + 1;
            if of(header) != of(first) || share.count() != count {
                return invalid(format!(
                    "the streams are not of one: share {number} of {} of snapshot {} is among them, and share {} of {count} of {}",
                    share.count(),
                    header.to.name,
                    first.share.index() + 1,
                    first.to.name
                ));
            }
            if std::mem::replace(&mut there[share.index() as usize], true) {
                return invalid(format!("share {number} of {count} is there twice"));
            }
        }
        match there.iter().position(|there| !there) {
            Some(missing) => invalid(format!(
                "share {} of {count} is not there: all of them are received together",
                missing + 1
            )),
            None => Ok(()),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.push(FORMAT);
        out.extend(STREAM);
        out.extend(self.volume.0.as_bytes());
        out.extend(self.to.id.0.as_bytes());
        out.extend(self.base.as_ref().map_or([0; 16], |base| *base.id.0.as_bytes()));
        for number in [self.size_bytes, self.made_ms, self.from] {
            out.extend(number.to_le_bytes());
        }
        for number in [self.share.index(), self.share.count(), BLOCK_BYTES as u32] {
            out.extend(number.to_le_bytes());
        }
        let compression = match self.compression {
            Compression::None => 0,
            Compression::Lz4 => 1,
            Compression::Zstd => 2,
        };
        let base_name = self.base.as_ref().map_or("", |base| &base.name);
        let len = |name: &str| u8::try_from(name.len()).expect("names have at most 255 bytes");
        out.extend([compression, 0, len(&self.to.name), len(base_name)]);
        debug_assert_eq!(out.len(), HEADER_BYTES, "names begin where who reads a header expects them");
        out.extend(self.to.name.as_bytes());
        out.extend(base_name.as_bytes());
        out
    }

    /// What is said behind magic, version and kind; else what is wrong with it.
    fn decode(fields: &[u8], names: &[u8]) -> Result<StreamHeader, &'static str> {
        let mut fields = Fields::new(fields);
        let short = "its header is short";
        let mut id = || fields.array().map(uuid::Uuid::from_bytes).ok_or(short);
        let (volume, to, base) = (VolumeId(id()?), SnapshotId(id()?), id()?);
        let mut number = || fields.u64().ok_or(short);
        let (size_bytes, made_ms, from) = (number()?, number()?, number()?);
        let mut number = || fields.u32().ok_or(short);
        let (index, count, block_bytes) = (number()?, number()?, number()?);
        let [compression, zero, to_len, base_len] = fields.array().ok_or(short)?;
        let compression = match compression {
            0 => Compression::None,
            1 => Compression::Lz4,
            2 => Compression::Zstd,
            _ => return Err("it names a compression that is not known"),
        };
        if names.len() != usize::from(to_len) + usize::from(base_len) || zero != 0 {
            return Err("its header is not one");
        }
        if block_bytes != BLOCK_BYTES as u32 {
            return Err("its blocks are not of 4096 bytes");
        }
        if !(1..=VOLUME_BYTES_MAX).contains(&size_bytes) || !size_bytes.is_multiple_of(SECTOR_BYTES as u64) {
            return Err("no volume has the size that it names");
        }
        if base.is_nil() != (base_len == 0) {
            return Err("its base has a name and no id, or an id and no name");
        }
        let name = |bytes: &[u8]| {
            let name = std::str::from_utf8(bytes).ok().filter(|name| check_name(name).is_ok());
            name.map(str::to_owned).ok_or("no snapshot has the name that it gives")
        };
        let (to_name, base_name) = names.split_at(to_len.into());
        let to = StreamState { id: to, name: name(to_name)? };
        let base = match base.is_nil() {
            true => None,
            false => Some(StreamState { id: SnapshotId(base), name: name(base_name)? }),
        };
        let share = Share::new(index, count).ok_or("there is no share like the one that it names")?;
        let header = StreamHeader { volume, to, base, size_bytes, made_ms, compression, share, from };
        match from <= header.blocks() {
            true => Ok(header),
            false => Err("it goes on behind the end of the volume"),
        }
    }
}

/// The checksum over some bytes, in their order: what is long comes first.
fn checksum(parts: &[&[u8]]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn record_head(kind: u8, form: u8, payload_bytes: usize, first: u64, count: u64) -> [u8; RECORD_BYTES] {
    let mut head = [0; RECORD_BYTES];
    head[..2].copy_from_slice(&[kind, form]);
    head[4..8].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    head[8..16].copy_from_slice(&first.to_le_bytes());
    head[16..].copy_from_slice(&count.to_le_bytes());
    head
}
