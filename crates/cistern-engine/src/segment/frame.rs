//! One frame: up to 64 KiB of consecutive blocks, compressed and sealed together.
//!
//! Plain frame: one byte with the number of blocks, then a payload of `codec`. It is sealed under
//! the identity of its segment with its offset in the object as part.

use std::borrow::Cow;

use bytes::Bytes;

use super::entry::object_key;
use crate::{
    Error, Result,
    codec::{Compressor, Sealer, decompress, decompress_shared},
    units::{BLOCK_BYTES, FRAME_BLOCKS_MAX, FrameRef},
};

/// Appends the sealed frame of `data`, which is 1 to 16 whole blocks, to the object in `body`.
pub(super) fn append_frame(compressor: &mut Compressor, sealer: &Sealer, data: &[u8], body: &mut Vec<u8>) {
    let blocks = data.len() / BLOCK_BYTES;
    assert!(data.len().is_multiple_of(BLOCK_BYTES) && (1..=FRAME_BLOCKS_MAX).contains(&blocks));
    let from = body.len();
    body.push(blocks as u8);
    compressor.append(data, body);
    sealer.seal_tail(from as u64, body, from);
}

/// The blocks of a whole frame (`frame.index` is not applied), out of its bytes as stored.
/// `sealer` is the segment's. `Error::Corrupt` unless every byte is what was written there.
pub fn open_frame(sealer: &Sealer, frame: &FrameRef, stored: &[u8]) -> Result<Bytes> {
    let corrupt = |detail: &str| {
        let place = format!("{}, frame at {} of {} bytes", object_key(frame.seq), frame.offset, frame.stored);
        Error::corrupt(place, detail)
    };
    if stored.len() != frame.stored as usize {
        return Err(corrupt(&format!("{} bytes were read", stored.len())));
    }
    let plain = sealer.open(frame.offset.into(), stored).map_err(|e| corrupt(&e.to_string()))?;
    let blocks = plain.first().map_or(0, |&blocks| blocks as usize);
    if !(1..=FRAME_BLOCKS_MAX).contains(&blocks) {
        return Err(corrupt(&format!("it says that it has {blocks} blocks")));
    }
    if usize::from(frame.index) >= blocks {
        return Err(corrupt(&format!("it has {blocks} blocks, number {} is wanted", frame.index)));
    }
    let bytes = blocks * BLOCK_BYTES;
    match plain {
        Cow::Borrowed(plain) => decompress(&plain[1..], bytes).map(Bytes::from),
        Cow::Owned(plain) => decompress_shared(Bytes::from(plain).slice(1..), bytes),
    }
    .map_err(|e| corrupt(&e.to_string()))
}
