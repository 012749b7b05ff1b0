//! A record that is ready for a place in the journal. What costs time by the byte is done here, before anybody takes a
//! lock: checksums, and copies of what does not share memory with others.
//!
//! Where a record is cut depends on its length alone, never on the state of the journal. Knows nothing of positions.

use bytes::Bytes;

use super::{
    Record,
    format::{GROUP_PAYLOAD_BLOCKS_MAX, fits_header},
    group::{Payload, blocks_needed},
};
use crate::{
    error::{Error, Result},
    units::{BLOCK_BYTES, Extent},
};

const PART_BYTES: usize = GROUP_PAYLOAD_BLOCKS_MAX as usize * BLOCK_BYTES;

/// A record with its payload, checked, and in parts of which each goes into one group; or several records, which go into one together.
#[derive(Debug)]
pub struct Prepared {
    records: Vec<Record>,
    /// Of one record: ascending and without gaps, and more than one if that is a long write. Of several: themselves.
    parts: Vec<(Record, Payload)>,
}

impl Prepared {
    /// `Error::Invalid` if the payload is not that of the record, or no ring of so many blocks can hold it.
    pub(super) fn new(record: Record, payload: Bytes, ring_blocks: u64) -> Result<Prepared> {
        check_payload(&record, &payload)?;
        let blocks = record.payload_blocks();
        check_fits_ring(blocks, ring_blocks)?;
        let parts = match record {
            Record::Write(extent) if blocks > GROUP_PAYLOAD_BLOCKS_MAX => cut(extent, &payload),
            _ => vec![(record.clone(), Payload::new(payload))],
        };
        debug_assert_eq!(
            parts.iter().map(|(_, part)| part.blocks()).sum::<u64>(),
            blocks,
            "the parts are the whole payload"
        );
        debug_assert!(
            blocks + parts.len() as u64 <= blocks_needed(blocks),
            "a record takes no more of the ring than is kept for it"
        );
        debug_assert!(
            parts
                .windows(2)
                .all(|pair| pair[0].0.extent().map(|e| e.end()) == pair[1].0.extent().map(|e| e.start)),
            "parts ascend without gaps"
        );
        Ok(Prepared { records: vec![record], parts })
    }

    /// The records of one request, which a crash leaves all or none of: [`fit_one_group`].
    pub(super) fn together(records: Vec<(Record, Bytes)>, ring_blocks: u64) -> Result<Prepared> {
        assert!(fit_one_group(records.iter().map(|(record, _)| record)), "they have room in a group");
        records.iter().try_for_each(|(record, payload)| check_payload(record, payload))?;
        let parts = records.into_iter().map(|(record, payload)| (record, Payload::new(payload)));
        let parts: Vec<(Record, Payload)> = parts.collect();
        let prepared = Prepared { records: parts.iter().map(|(record, _)| record.clone()).collect(), parts };
        check_fits_ring(prepared.payload_blocks(), ring_blocks)?;
        Ok(prepared)
    }

    /// In the order in which they are appended.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Whether a group has all of them or none.
    pub(super) fn is_together(&self) -> bool {
        self.records.len() > 1
    }

    /// Blocks of payload.
    pub fn payload_blocks(&self) -> u64 {
        self.records.iter().map(Record::payload_blocks).sum()
    }

    pub(super) fn parts(&self) -> &[(Record, Payload)] {
        &self.parts
    }
}

fn check_payload(record: &Record, payload: &Bytes) -> Result<()> {
    let bytes = record.payload_blocks().checked_mul(BLOCK_BYTES as u64);
    match record.is_valid() && Some(payload.len() as u64) == bytes {
        true => Ok(()),
        false => Err(Error::Invalid(format!("{record:?} with {} bytes", payload.len()))),
    }
}

/// Whether records may go into one group.
pub fn fit_one_group<'a>(records: impl Iterator<Item = &'a Record>) -> bool {
    let (mut count, mut blocks, mut is_alone) = (0, 0u64, false);
    for record in records {
        count += 1;
        blocks = blocks.saturating_add(record.payload_blocks());
        is_alone |= record.is_alone();
    }
    (count == 1 || !is_alone) && fits_header(count, blocks)
}

/// A long write as one record for each group that it takes.
fn cut(extent: Extent, payload: &Bytes) -> Vec<(Record, Payload)> {
    let part = |first: u64| {
        let part = Extent::between(first, (first + GROUP_PAYLOAD_BLOCKS_MAX).min(extent.end()));
        let from = (first - extent.start) as usize * BLOCK_BYTES;
        let until = (from + PART_BYTES).min(payload.len());
        (Record::Write(part), Payload::new(payload.slice(from..until)))
    };
    (extent.start..extent.end()).step_by(GROUP_PAYLOAD_BLOCKS_MAX as usize).map(part).collect()
}

/// Whether a ring of so many blocks can hold a record with so much payload.
pub(super) fn check_fits_ring(payload_blocks: u64, ring_blocks: u64) -> Result<()> {
    if payload_blocks <= ring_blocks && blocks_needed(payload_blocks) <= ring_blocks {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "a write of {payload_blocks} blocks does not fit a journal of {ring_blocks} blocks"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a write are what was written, in order, whatever its length.
    #[test]
    fn parts_are_the_whole() {
        for blocks in [1, 15, 16, 256, 257, 512, 700] {
            let payload: Bytes = (0..blocks * BLOCK_BYTES).map(|n| (n / 1000) as u8).collect();
            let extent = Extent::new(77, blocks as u64);
            let prepared = Prepared::new(Record::Write(extent), payload.clone(), 4096).expect("it fits");
            let (mut at, mut bytes) = (extent.start, Vec::new());
            for (record, part) in prepared.parts() {
                let Some(extent) = record.extent() else { panic!("a write") };
                assert_eq!((extent.start, extent.len as usize), (at, part.crcs().len()));
                assert!(extent.len <= GROUP_PAYLOAD_BLOCKS_MAX);
                (at, bytes) = (extent.end(), [bytes, part.bytes().to_vec()].concat());
            }
            assert_eq!(at, extent.end());
            assert!(bytes == payload);
        }
    }
}
