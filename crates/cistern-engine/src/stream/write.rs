//! Writing a stream: header, records in their order, end.

use std::io::{self, Write};

use super::{
    CHECKSUM_BYTES, DATA, END, HOLE, PAYLOAD_BYTES_MAX, StreamContent, StreamHeader, StreamRecord,
    StreamTotals, ZERO, checksum, record_head,
};
use crate::{
    codec::{BlockData, Compressor},
    share::Share,
    units::{Extent, FRAME_BLOCKS_MAX},
};

/// A stream that is being written. Without [`finish`](Self::finish) it is not complete, and nobody takes it.
pub struct StreamWriter<W: Write> {
    out: W,
    compressor: Compressor,
    /// What was compressed here.
    scratch: Vec<u8>,
    chain: [u8; CHECKSUM_BYTES],
    totals: StreamTotals,
    /// Behind the last record.
    at: u64,
    share: Share,
    blocks: u64,
}

impl<W: Write> StreamWriter<W> {
    /// Begins a stream with its header; its records are compressed as that says.
    pub fn begin(mut out: W, header: &StreamHeader) -> io::Result<Self> {
        let bytes = header.encode();
        let chain = checksum(&[&bytes]);
        out.write_all(&bytes)?;
        out.write_all(&chain)?;
        let compressor = Compressor::new(header.compression);
        let (at, share, blocks) = (header.from, header.share, header.blocks());
        let (scratch, totals) = Default::default();
        Ok(StreamWriter { out, compressor, scratch, chain, totals, at, share, blocks })
    }

    /// The next extent.
    pub fn record(&mut self, record: &StreamRecord) -> io::Result<()> {
        let StreamRecord { extent, content } = record;
        assert!(extent.start >= self.at && !extent.is_empty(), "records ascend");
        assert!(extent.end() <= self.blocks, "records are within the volume");
        assert!(self.share.has(*extent), "records are within the share");
        match content {
            StreamContent::Data(blocks) => {
                assert!(extent.len <= FRAME_BLOCKS_MAX as u64, "a record is not longer than a frame");
                let is_packed = matches!(blocks, BlockData::Packed(_));
                assert!(is_packed || blocks.bytes().len() as u64 == record.data_bytes(), "all of them");
                let mut scratch = std::mem::take(&mut self.scratch);
                let (form, rest) = blocks.payload(&mut self.compressor, &mut scratch);
                self.put(DATA, form, extent.start, extent.len, rest)?;
                self.totals.add(DATA, *extent);
                self.scratch = scratch;
            }
            StreamContent::Zero => self.put_empty(ZERO, *extent)?,
            StreamContent::Hole => self.put_empty(HOLE, *extent)?,
        }
        self.at = extent.end();
        Ok(())
    }

    fn put_empty(&mut self, kind: u8, extent: Extent) -> io::Result<()> {
        self.put(kind, 0, extent.start, extent.len, &[])?;
        self.totals.add(kind, extent);
        Ok(())
    }

    /// Ends it. Gives what it had, and what it was written to.
    pub fn finish(mut self) -> io::Result<(StreamTotals, W)> {
        let totals = self.totals;
        self.put(END, 0, totals.records, totals.data_blocks, &[])?;
        self.out.flush()?;
        Ok((totals, self.out))
    }

    fn put(&mut self, kind: u8, form: u8, first: u64, count: u64, payload: &[u8]) -> io::Result<()> {
        assert!(payload.len() <= PAYLOAD_BYTES_MAX, "no payload has more than a byte more");
        let head = record_head(kind, form, payload.len(), first, count);
        self.chain = checksum(&[payload, &head, &self.chain]);
        self.out.write_all(&head)?;
        self.out.write_all(payload)?;
        self.out.write_all(&self.chain)
    }
}
