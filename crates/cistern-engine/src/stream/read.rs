//! Reading a stream, whatever its bytes are: what is given out is verified, bounded and in order.

use std::io::{self, Read};

use super::{
    CHECKSUM_BYTES, DATA, END, FORMAT, HEADER_BYTES, HOLE, PAYLOAD_BYTES_MAX, RECORD_BYTES, STREAM,
    StreamContent, StreamHeader, StreamRecord, StreamTotals, ZERO, checksum,
};
use crate::{
    Error, Result,
    codec::{BlockData, Compression, MAGIC, fields::Fields},
    share::Share,
    units::{BLOCK_BYTES, Extent, FRAME_BLOCKS_MAX},
};

pub(super) const STREAM_NAME: &str = "stream";
/// The payload of what has no data.
const NOTHING: [u8; 1] = [0];

/// A stream that is being read.
pub struct StreamReader<R: Read> {
    from: R,
    chain: [u8; CHECKSUM_BYTES],
    totals: StreamTotals,
    /// Behind the last record.
    at: u64,
    share: Share,
    blocks: u64,
    compression: Compression,
    is_complete: bool,
}

impl<R: Read> StreamReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// `Version` for one that is not known; `Corrupt` for what is none, is damaged, or ends; `Io`.
    pub fn begin(mut from: R) -> Result<(StreamReader<R>, StreamHeader)> {
        let no_stream = |_: Error| Error::corrupt(STREAM_NAME, "it is not a stream of cistern");
        let mut head = [0; HEADER_BYTES];
        let (begin, rest) = head.split_at_mut(MAGIC.len() + 1 + STREAM.len());
        read_exact(&mut from, begin).map_err(|e| if e.is_damage() { no_stream(e) } else { e })?;
        let (magic, version, kind) = (&begin[..MAGIC.len()], begin[MAGIC.len()], &begin[MAGIC.len() + 1..]);
        if magic != MAGIC || kind != STREAM || version == 0 {
            return Err(Error::corrupt(STREAM_NAME, "it is not a stream of cistern"));
        }
        if version != FORMAT {
            let (found, known) = (version.into(), FORMAT.into());
            return Err(Error::Version { what: STREAM_NAME.into(), found, known });
        }
        read_exact(&mut from, rest)?;
        let [.., to_len, base_len] = head;
        let mut names = vec![0; usize::from(to_len) + usize::from(base_len)];
        read_exact(&mut from, &mut names)?;
        let chain = checksum(&[&head, &names]);
        if read_checksum(&mut from)? != chain {
            return Err(Error::corrupt(STREAM_NAME, "its header is damaged"));
        }
        let fields = &head[MAGIC.len() + 1 + STREAM.len()..];
        let header = StreamHeader::decode(fields, &names).map_err(|why| Error::corrupt(STREAM_NAME, why))?;
        let (at, share, blocks, compression) =
            (header.from, header.share, header.blocks(), header.compression);
        let totals = StreamTotals::default();
        let reader = StreamReader { from, chain, totals, at, share, blocks, compression, is_complete: false };
        Ok((reader, header))
    }

    /// The next record; `None` when the stream is complete.
    ///
    /// # Errors
    /// `Corrupt` for what is damaged, out of order, or ends before its end; `Io`. Nothing more is to be read then.
    pub fn next_record(&mut self) -> Result<Option<StreamRecord>> {
        if self.is_complete {
            return Ok(None);
        }
        let mut head = [0; RECORD_BYTES];
        read_exact(&mut self.from, &mut head)?;
        let mut fields = Fields::new(&head);
        let [kind, form, zeroes @ ..]: [u8; 4] = fields.array().expect("the head has 24 bytes");
        let payload_bytes = fields.u32().expect("the head has 24 bytes") as usize;
        let [first, count] = [(); 2].map(|()| fields.u64().expect("the head has 24 bytes"));
        // Believed only as far as it bounds what is read.
        if payload_bytes > PAYLOAD_BYTES_MAX || zeroes != [0; 2] {
            return Err(self.damaged("is damaged, or of another stream"));
        }
        let mut payload = vec![0; 1 + payload_bytes];
        payload[0] = form;
        read_exact(&mut self.from, &mut payload[1..])?;
        let chain = checksum(&[&payload[1..], &head, &self.chain]);
        if read_checksum(&mut self.from)? != chain {
            return Err(self.damaged("is damaged, out of its place, or of another stream"));
        }
        if kind == END {
            return self.end(&payload, first, count).map(|()| None);
        }
        let extent =
            self.extent(first, count).ok_or_else(|| self.damaged("is out of order, or not of this share"))?;
        let content = content(kind, extent, payload, self.compression).map_err(|why| self.damaged(why))?;
        (self.chain, self.at) = (chain, extent.end());
        self.totals.add(kind, extent);
        Ok(Some(StreamRecord { extent, content }))
    }

    /// What it had, once it is complete.
    pub fn totals(&self) -> Option<StreamTotals> {
        self.is_complete.then_some(self.totals)
    }

    fn end(&mut self, payload: &[u8], records: u64, data_blocks: u64) -> Result<()> {
        if payload != NOTHING || self.totals != (StreamTotals { records, data_blocks }) {
            return Err(self.damaged("ends it, and counts other records than there were"));
        }
        let mut more = [0];
        match read_some(&mut self.from, &mut more)? {
            0 => self.is_complete = true,
            _ => return Err(Error::corrupt(STREAM_NAME, "something follows its end")),
        }
        Ok(())
    }

    /// An extent that may come next.
    fn extent(&self, start: u64, len: u64) -> Option<Extent> {
        let end = start.checked_add(len).filter(|end| *end <= self.blocks)?;
        let extent = (start >= self.at && len > 0).then(|| Extent::between(start, end));
        extent.filter(|extent| self.share.has(*extent))
    }

    fn damaged(&self, what: &str) -> Error {
        Error::corrupt(STREAM_NAME, format!("record {} {what}", self.totals.records + 1))
    }
}

fn content(
    kind: u8,
    extent: Extent,
    payload: Vec<u8>,
    compression: Compression,
) -> Result<StreamContent, &'static str> {
    match kind {
        DATA if extent.len <= FRAME_BLOCKS_MAX as u64 => {
            let blocks = BlockData::of_payload(payload.into(), compression);
            let data = blocks.unpack(extent.len as usize * BLOCK_BYTES).map_err(|_| "does not unpack")?;
            Ok(StreamContent::Data(match blocks {
                // Nobody who writes streams makes them longer.
                BlockData::Packed(payload) if payload.len() >= data.len() => BlockData::Plain(data),
                blocks => blocks,
            }))
        }
        ZERO if payload == NOTHING => Ok(StreamContent::Zero),
        HOLE if payload == NOTHING => Ok(StreamContent::Hole),
        _ => Err("is of no known kind, or has more than such a record has"),
    }
}

fn read_checksum(from: &mut impl Read) -> Result<[u8; CHECKSUM_BYTES]> {
    let mut checksum = [0; CHECKSUM_BYTES];
    read_exact(from, &mut checksum)?;
    Ok(checksum)
}

pub(super) fn read_exact(from: &mut impl Read, bytes: &mut [u8]) -> Result<()> {
    from.read_exact(bytes).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::corrupt(STREAM_NAME, "it ends before its last record: it was cut off")
        }
        _ => Error::io("reading the stream", &e),
    })
}

pub(super) fn read_some(from: &mut impl Read, bytes: &mut [u8]) -> Result<usize> {
    loop {
        match from.read(bytes) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => return read.map_err(|e| Error::io("reading the stream", &e)),
        }
    }
}
