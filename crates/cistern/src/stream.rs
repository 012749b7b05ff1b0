//! An exported journal: a stream of writes that any program can apply to an image.
//!
#![doc = include_str!("stream.md")]

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
};

use cistern_engine::{units::VolumeId, volume::admin::JournalItem};

const MAGIC: &[u8; 8] = b"CISTJEX1";
/// Bytes of the stream's header and of each record's header.
const HEADER_BYTES: usize = 32;
/// Bytes written at once where a range cannot be punched out.
const ZEROES_BYTES: usize = 64 << 10;

/// Where exported writes go.
pub trait Sink: Send {
    /// Takes the next write.
    fn item(&mut self, item: &JournalItem) -> io::Result<()>;
    /// Completes the export and makes it durable as far as the target can be.
    fn finish(&mut self) -> io::Result<()>;
}

/// Writes the documented stream.
pub struct StreamSink<W: Write> {
    out: W,
    records: u64,
    payload_bytes: u64,
}

impl<W: Write> StreamSink<W> {
    /// Begins a stream with its header.
    pub fn begin(mut out: W, volume: VolumeId) -> io::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[16..].copy_from_slice(volume.0.as_bytes());
        out.write_all(&header)?;
        Ok(Self { out, records: 0, payload_bytes: 0 })
    }

    fn record(&mut self, kind: u8, offset: u64, len: u64, payload: &[u8]) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[0] = kind;
        header[8..16].copy_from_slice(&offset.to_le_bytes());
        header[16..24].copy_from_slice(&len.to_le_bytes());
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&header[..28]);
        digest.update(payload);
        // A CRC of 32 bits in the low half.
        header[28..].copy_from_slice(&(digest.finalize() as u32).to_le_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(payload)
    }
}

impl<W: Write + Send> Sink for StreamSink<W> {
    fn item(&mut self, item: &JournalItem) -> io::Result<()> {
        match item {
            JournalItem::Write { offset, data } => {
                self.record(1, *offset, data.len() as u64, data)?;
                self.payload_bytes += data.len() as u64;
            }
            JournalItem::Zero { offset, len } => self.record(2, *offset, *len, &[])?,
            JournalItem::Resize { size_bytes } => self.record(3, *size_bytes, 0, &[])?,
        }
        self.records += 1;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.record(255, self.records, self.payload_bytes, &[])?;
        self.out.flush()
    }
}

/// Applies the writes to a raw image.
pub struct ImageSink {
    image: File,
}

impl ImageSink {
    pub fn new(image: File) -> Self {
        Self { image }
    }

    /// Makes a range read as zeroes without growing the image: by a hole where that works.
    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let size = self.image.metadata()?;
        let end = offset.saturating_add(len);
        let end = if size.is_file() { end.min(size.len()) } else { end };
        if offset >= end {
            return Ok(()); // beyond the end a file reads as zeroes once it grows
        }
        let (Ok(start), Ok(count)) = (i64::try_from(offset), i64::try_from(end - offset)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a range beyond any file"));
        };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open for the duration of the call, which touches no memory.
        if unsafe { libc::fallocate(self.image.as_raw_fd(), mode, start, count) } == 0 {
            return Ok(());
        }
        let zeroes = vec![0; ZEROES_BYTES];
        let mut at = offset;
        while at < end {
            let part = (end - at).min(ZEROES_BYTES as u64) as usize;
            self.image.write_all_at(&zeroes[..part], at)?;
            at += part as u64;
        }
        Ok(())
    }
}

impl Sink for ImageSink {
    fn item(&mut self, item: &JournalItem) -> io::Result<()> {
        match item {
            JournalItem::Write { offset, data } => self.image.write_all_at(data, *offset),
            JournalItem::Zero { offset, len } => self.zero(*offset, *len),
            JournalItem::Resize { size_bytes } if self.image.metadata()?.is_file() => {
                self.image.set_len(*size_bytes)
            }
            JournalItem::Resize { .. } => Ok(()), // a device has the size it has
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.image.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn items() -> [JournalItem; 4] {
        [
            JournalItem::Resize { size_bytes: 16384 },
            JournalItem::Write { offset: 4096, data: Bytes::from(vec![7; 8192]) },
            JournalItem::Zero { offset: 8192, len: 4096 },
            JournalItem::Zero { offset: 12288, len: 1 << 40 },
        ]
    }

    /// The bytes of the stream are fixed: programs outside read it.
    #[test]
    fn the_stream_is_as_documented() {
        let mut bytes = Vec::new();
        let mut sink = StreamSink::begin(&mut bytes, VolumeId(uuid::Uuid::from_u128(5))).expect("memory");
        for item in items() {
            sink.item(&item).expect("memory");
        }
        sink.finish().expect("memory");
        assert_eq!(&bytes[..16], b"CISTJEX1\0\0\0\0\0\0\0\0");
        assert_eq!(bytes.len(), 32 + 5 * 32 + 8192);
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        assert_eq!((bytes[32], number(40), number(48)), (3, 16384, 0));
        assert_eq!((bytes[64], number(72), number(80)), (1, 4096, 8192));
        assert_eq!(&bytes[96..96 + 8192], &[7; 8192]);
        let end = bytes.len() - 32;
        assert_eq!((bytes[end], number(end + 8), number(end + 16)), (255, 4, 8192));
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[end..end + 28]) as u32;
        assert_eq!(bytes[end + 28..], crc.to_le_bytes());
    }

    /// Applied to an image, later writes win and the image has the size of the last resize.
    #[test]
    fn applied_to_an_image() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("image");
        let image = File::create(&path).expect("writable");
        let mut sink = ImageSink::new(image);
        for item in items() {
            sink.item(&item).expect("writable");
        }
        sink.finish().expect("writable");
        let bytes = std::fs::read(&path).expect("readable");
        assert_eq!(bytes.len(), 16384);
        assert!(bytes[..4096].iter().all(|b| *b == 0));
        assert!(bytes[4096..8192].iter().all(|b| *b == 7));
        assert!(bytes[8192..].iter().all(|b| *b == 0));
    }
}
