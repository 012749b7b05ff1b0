//! Writing what `rbd import-diff` of Ceph reads ("rbd diff v1"): names of snapshots, a size, writes and zeroes, an end.
//!
//! It has no checksums and no identities but names, and knows no difference between zeroes and holes. Not v2: Ceph has that only within
//! whole images, and its `import-diff` refuses it.

use std::io::{self, Write};

use super::{StreamHeader, StreamRecord, StreamTotals};
use crate::units::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;
const BANNER: &[u8] = b"rbd diff v1\n";

/// Such a stream that is being written.
pub struct RbdWriter<W: Write> {
    out: W,
    size_bytes: u64,
    totals: StreamTotals,
}

impl<W: Write> RbdWriter<W> {
    /// Begins it with the names of the snapshots and the size.
    pub fn begin(out: W, header: &StreamHeader) -> io::Result<Self> {
        let (size_bytes, totals) = (header.size_bytes, StreamTotals::default());
        let mut writer = RbdWriter { out, size_bytes, totals };
        writer.out.write_all(BANNER)?;
        if let Some(base) = &header.base {
            writer.name(b'f', &base.name)?;
        }
        writer.name(b't', &header.to.name)?;
        writer.put(b's', &[size_bytes], &[])?;
        Ok(writer)
    }

    /// The next extent.
    pub fn record(&mut self, record: &StreamRecord) -> io::Result<()> {
        let offset = record.extent.start * BLOCK;
        assert!(offset < self.size_bytes, "records are within the volume");
        let len = (record.extent.end() * BLOCK).min(self.size_bytes) - offset;
        self.totals.records += 1;
        match record.data().map_err(io::Error::other)? {
            Some(data) => {
                self.totals.data_blocks += record.extent.len;
                self.put(b'w', &[offset, len], &data[..len as usize])
            }
            None => self.put(b'z', &[offset, len], &[]),
        }
    }

    /// Ends it. Gives what it had, and what it was written to.
    pub fn finish(mut self) -> io::Result<(StreamTotals, W)> {
        self.out.write_all(b"e")?;
        self.out.flush()?;
        Ok((self.totals, self.out))
    }

    fn name(&mut self, tag: u8, name: &str) -> io::Result<()> {
        let len = (name.len() as u32).to_le_bytes();
        self.put(tag, &[], &[&len, name.as_bytes()].concat())
    }

    /// A record: its tag, numbers, bytes.
    fn put(&mut self, tag: u8, numbers: &[u64], bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(&[tag])?;
        for number in numbers {
            self.out.write_all(&number.to_le_bytes())?;
        }
        self.out.write_all(bytes)
    }
}
