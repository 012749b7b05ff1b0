//! A record that is ready for a place in the journal. What costs time by the byte is done here, before anybody takes a
//! lock: checksums, and copies of what does not share memory with others.
//!
//! Where a record is cut depends on its length alone, never on the state of the journal. Knows nothing of positions.

use bytes::Bytes;

use super::{
    Record,
    format::GROUP_PAYLOAD_BLOCKS_MAX,
    group::{Payload, blocks_needed},
};
use crate::{
    error::{Error, Result},
    units::{BLOCK_BYTES, Extent},
};

const PART_BYTES: usize = GROUP_PAYLOAD_BLOCKS_MAX as usize * BLOCK_BYTES;

/// A record with its payload, checked, and in parts of which each goes into one group.
#[derive(Debug)]
pub struct Prepared {
    record: Record,
    /// Ascending and without gaps; one, of the record itself, unless that is a long write.
    parts: Vec<(Record, Payload)>,
}

impl Prepared {
    /// `Error::Invalid` if the payload is not that of the record, or no ring of so many blocks can hold it.
    pub(super) fn new(record: Record, payload: Bytes, ring_blocks: u64) -> Result<Prepared> {
        let blocks = record.payload_blocks();
        if !record.is_valid() || Some(payload.len() as u64) != blocks.checked_mul(BLOCK_BYTES as u64) {
            return Err(Error::Invalid(format!("{record:?} with {} bytes", payload.len())));
        }
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
        Ok(Prepared { record, parts })
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Blocks of payload.
    pub fn payload_blocks(&self) -> u64 {
        self.record.payload_blocks()
    }

    pub(super) fn parts(&self) -> &[(Record, Payload)] {
        &self.parts
    }
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
