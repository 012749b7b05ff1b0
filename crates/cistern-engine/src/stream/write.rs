//! Writing a stream: header, records in their order, end.

use std::io::{self, Write};

use super::{
    CHECKSUM_BYTES, DATA, END, HOLE, PAYLOAD_BYTES_MAX, StreamContent, StreamHeader, StreamRecord,
    StreamTotals, ZERO, checksum, record_head,
};
use crate::{
    codec::{BlockData, Compressor},
    share::Share,
    units::FRAME_BLOCKS_MAX,
};

/// A stream that is being written. Without [`finish`](Self::finish) it is not complete, and nobody takes it.
pub struct StreamWriter<W: Write> {
    out: W,
    compressor: Compressor,
    payload: Vec<u8>,
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
        let (payload, totals) = Default::default();
        Ok(StreamWriter { out, compressor, payload, chain, totals, at, share, blocks })
    }

    /// The next extent.
    pub fn record(&mut self, record: &StreamRecord) -> io::Result<()> {
        let StreamRecord { extent, content } = record;
        assert!(extent.start >= self.at && !extent.is_empty(), "records ascend");
        assert!(extent.end() <= self.blocks, "records are within the volume");
        assert!(self.share.has(*extent), "records are within the share");
        self.payload.clear();
        let kind = match content {
            StreamContent::Data(blocks) => {
                assert!(extent.len <= FRAME_BLOCKS_MAX as u64, "a record is not longer than a frame");
                let is_packed = matches!(blocks, BlockData::Packed(_));
                assert!(is_packed || blocks.bytes().len() as u64 == record.data_bytes(), "all of them");
                blocks.append_payload(&mut self.compressor, &mut self.payload);
                assert!(self.payload.len() <= PAYLOAD_BYTES_MAX, "no payload has more than a byte more");
                DATA
            }
            StreamContent::Zero => ZERO,
            StreamContent::Hole => HOLE,
        };
        self.put(kind, extent.start, extent.len)?;
        self.at = extent.end();
        self.totals.add(kind, *extent);
        Ok(())
    }

    /// Ends it. Gives what it had, and what it was written to.
    pub fn finish(mut self) -> io::Result<(StreamTotals, W)> {
        self.payload.clear();
        let totals = self.totals;
        self.put(END, totals.records, totals.data_blocks)?;
        self.out.flush()?;
        Ok((totals, self.out))
    }

    fn put(&mut self, kind: u8, first: u64, count: u64) -> io::Result<()> {
        let head = record_head(kind, self.payload.len(), first, count);
        self.chain = checksum(&[&self.chain, &head, &self.payload]);
        self.out.write_all(&head)?;
        self.out.write_all(&self.payload)?;
        self.out.write_all(&self.chain)
    }
}
