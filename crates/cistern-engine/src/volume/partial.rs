//! Writes that begin or end inside a block, while their extent is held.
//!
//! A block whose other sectors are at hand is written whole. Otherwise its sectors go into the journal as
//! what they are, with those that stand there already, and write-back completes the block: no write waits for
//! the store. Only bytes that are no whole sectors are read first.

use std::{borrow::Cow, ops::Range, sync::Arc};

use bytes::{Bytes, BytesMut};

use crate::{
    Result,
    journal::Record,
    map::Lookup,
    sectors::SectorMask,
    units::{BLOCK_BYTES, Extent, JournalPos, Place, SECTOR_BYTES},
    volume::{ClientId, Piece, Volume, locks::Held, order::Source, write::Writer},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
const SECTOR: u64 = SECTOR_BYTES as u64;

/// A block of which a part is written.
struct Edge {
    block: u64,
    bytes: BytesMut,
    /// The sectors of `bytes` that count.
    known: SectorMask,
    /// It was unallocated before.
    was_hole: bool,
    /// The rest of it is in the store, and nobody fetches that yet.
    base_is_away: bool,
}

/// What a request puts into the journal that begins or ends inside a block.
#[derive(Default)]
pub(super) struct PartialWrite {
    /// In their order.
    records: Vec<(Record, BytesMut)>,
    /// Blocks of which the rest has to be fetched.
    bases: Vec<u64>,
}

impl PartialWrite {
    /// Zeroes over whole blocks.
    pub fn zero(&mut self, extent: Extent, allocated: bool) {
        self.records.push((Record::Zero { extent, allocated }, BytesMut::new()));
    }

    /// Whole blocks; those that go on where the last ones end are one record with them.
    fn whole(&mut self, first: u64, bytes: &[u8]) {
        let blocks = bytes.len() as u64 / BLOCK;
        if let Some((Record::Write(before), payload)) = self.records.last_mut()
            && before.end() == first
        {
            before.len += blocks;
            payload.extend_from_slice(bytes);
        } else if blocks > 0 {
            self.records.push((Record::Write(Extent::new(first, blocks)), bytes.into()));
        }
    }

    /// A block of which a part was written, or zeroed so that it is `allocated` or need not be.
    fn edge(&mut self, edge: Edge, zeroed: Option<bool>) {
        if edge.known != SectorMask::ALL {
            let record = Record::Sectors { block: edge.block, mask: edge.known };
            return self.records.push((record, edge.bytes));
        }
        match zeroed.filter(|_| edge.bytes.iter().all(|b| *b == 0)) {
            Some(allocated) => {
                self.zero(Extent::new(edge.block, 1), allocated || !edge.was_hole);
            }
            None => self.whole(edge.block, &edge.bytes),
        }
    }
}

impl Volume {
    /// Writes `data`, which touches the blocks `touched` and not all of them wholly. Returns the position to make durable.
    pub(super) async fn write_partial(
        &self,
        client: ClientId,
        writer: &Writer,
        offset: u64,
        data: &[u8],
        touched: Extent,
    ) -> Result<JournalPos> {
        let holding = writer.hold(touched).await;
        let mut request = PartialWrite::default();
        self.add_partial(&mut request, offset, data, None).await?;
        self.submit_request(client, writer, request, holding.held()).await
    }

    /// Puts into the journal what a request over a held extent is made of, as one.
    pub(super) async fn submit_request(
        &self,
        client: ClientId,
        writer: &Writer,
        request: PartialWrite,
        own: &Arc<Held>,
    ) -> Result<JournalPos> {
        let PartialWrite { records, bases } = request;
        let records = records.into_iter().map(|(record, payload)| (record, payload.freeze())).collect();
        let to = writer.submit_all(client, records, Some(own)).await?;
        bases.into_iter().for_each(|block| self.fetch_base(block));
        Ok(to)
    }

    /// Adds a write of `data` to a request. Zeroes that a client asked for as such are `zeroed`, to be allocated or not.
    pub(super) async fn add_partial(
        &self,
        request: &mut PartialWrite,
        offset: u64,
        data: &[u8],
        zeroed: Option<bool>,
    ) -> Result<()> {
        let (mut at, data) = self.whole_sectors(offset, data).await?;
        let mut rest = &data[..];
        while !rest.is_empty() {
            let (block, inside) = (at / BLOCK, (at % BLOCK) as usize);
            if inside == 0 && rest.len() >= BLOCK_BYTES {
                let (whole, behind) = rest.split_at(rest.len() / BLOCK_BYTES * BLOCK_BYTES);
                request.whole(block, whole);
                (at, rest) = (at + whole.len() as u64, behind);
                continue;
            }
            let (part, behind) = rest.split_at(rest.len().min(BLOCK_BYTES - inside));
            let edge = self.edge(block, inside, part).await?;
            if edge.base_is_away && edge.known != SectorMask::ALL {
                request.bases.push(block);
            }
            request.edge(edge, zeroed);
            (at, rest) = (at + part.len() as u64, behind);
        }
        Ok(())
    }

    /// A block as it is once `part` was written into it.
    async fn edge(&self, block: u64, inside: usize, part: &[u8]) -> Result<Edge> {
        assert!(
            inside.is_multiple_of(SECTOR_BYTES) && part.len().is_multiple_of(SECTOR_BYTES),
            "a sector that counts as known is known to the byte"
        );
        let mut edge = self.at_hand(block).await?;
        let written = inside..inside + part.len();
        edge.bytes[written.clone()].copy_from_slice(part);
        edge.known = edge.known.union(SectorMask::touched(written));
        Ok(edge)
    }

    /// What is here of a held block, without the store and without the cache's disk.
    async fn at_hand(&self, block: u64) -> Result<Edge> {
        let extent = Extent::new(block, 1);
        let new = |bytes: &[u8], known| Edge {
            block,
            bytes: bytes.into(),
            known,
            was_hole: false,
            base_is_away: false,
        };
        loop {
            let Some((_, source)) = self.view(extent)?.pop() else { unreachable!("a block has a view") };
            match source {
                Source::Zeroes { allocated } => {
                    return Ok(Edge { was_hole: !allocated, ..new(&[0; BLOCK_BYTES], SectorMask::ALL) });
                }
                Source::Journal(at) => {
                    if let Some(data) = self.read_journal(extent, at).await? {
                        return Ok(new(&data, SectorMask::ALL));
                    }
                }
                Source::Sectors { at, mask, base } => {
                    if let Some(sectors) = self.read_journal(extent, at).await? {
                        let mut edge = self.committed_at_hand(block, &base);
                        mask.overlay(&mut edge.bytes, &sectors);
                        edge.known = edge.known.union(mask);
                        return Ok(Edge { was_hole: false, base_is_away: false, ..edge });
                    }
                }
                Source::Map(lookup) => return Ok(self.committed_at_hand(block, &lookup)),
            }
            // Committed and freed since the view was taken: look again.
        }
    }

    /// The committed version of a block, if memory has it.
    fn committed_at_hand(&self, block: u64, lookup: &Lookup) -> Edge {
        // What lies apart from it would have to be asked for too.
        let mapping = if lookup.may_have_sectors() { None } else { lookup.first_known() };
        let was_hole = mapping.is_some_and(|m| m.place == Place::Hole);
        let bytes = mapping.and_then(|m| match m.place {
            Place::Frame(_) => self.frames.at_hand(&m),
            Place::Hole | Place::Zero => Some(Bytes::from_static(&[0; BLOCK_BYTES])),
        });
        match bytes {
            Some(bytes) => {
                let known = SectorMask::ALL;
                Edge { block, bytes: BytesMut::from(&bytes[..]), known, was_hole, base_is_away: false }
            }
            None => {
                let (bytes, known) = (BytesMut::zeroed(BLOCK_BYTES), SectorMask::NONE);
                Edge { block, bytes, known, was_hole, base_is_away: true }
            }
        }
    }

    /// A write with the sectors made whole that it begins and ends in.
    async fn whole_sectors<'d>(&self, offset: u64, data: &'d [u8]) -> Result<(u64, Cow<'d, [u8]>)> {
        let end = offset + data.len() as u64;
        let (from, until) = (offset / SECTOR * SECTOR, end.next_multiple_of(SECTOR));
        if (from, until) == (offset, end) {
            return Ok((offset, Cow::Borrowed(data)));
        }
        let mut all = Vec::with_capacity((until - from) as usize);
        if from < offset {
            all.extend_from_slice(&self.read_sector(from).await?[..(offset - from) as usize]);
        }
        all.extend_from_slice(data);
        if end < until {
            let sector = self.read_sector(until - SECTOR).await?;
            all.extend_from_slice(&sector[(end - (until - SECTOR)) as usize..]);
        }
        debug_assert_eq!(all.len() as u64, until - from, "the sectors around a write are whole");
        Ok((from, Cow::Owned(all)))
    }

    async fn read_sector(&self, at: u64) -> Result<Bytes> {
        let wanted: Range<u64> = at..at + SECTOR;
        let pieces = self.read_blocks(Extent::new(at / BLOCK, 1), &wanted).await?;
        let inside = (at % BLOCK) as usize;
        assert_eq!(pieces.len(), 1, "a block is one piece: what is taken for zeroes is nothing else");
        Ok(match pieces.as_slice() {
            [Piece::Data(data)] => data.slice(inside..inside + SECTOR_BYTES),
            _ => Bytes::from_static(&[0; SECTOR_BYTES]),
        })
    }
}
