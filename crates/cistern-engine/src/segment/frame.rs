//! One frame: up to 64 KiB of consecutive blocks, in one of two shapes.
//!
//! **Packed**, where compression pays: one byte with the number of blocks, then a payload of
//! `codec`, sealed as a whole with its offset in the object as part. **Raw**, where it does not:
//! every block sealed by itself with its own offset as part, so that a reader fetches and opens the
//! blocks it needs and no other. The stored length alone tells which: only raw frames are a
//! multiple of a sealed block, because a packed one that would be is padded by a byte.
//!
//! Invariant: sealed parts lie one behind the other, so no two of an object share a part.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;

use super::entry::object_key;
use crate::{
    Error, Result,
    codec::{Compressor, ObjectKind, Sealer, decompress, decompress_shared},
    units::{BLOCK_BYTES, FRAME_BLOCKS_MAX, FrameRef},
};

/// Set in the first byte of a packed frame: its last plain byte is padding.
const PADDED: u8 = 0x80;

/// How the frames of a volume lie in its segments: what is known of a frame by its place alone.
#[derive(Clone, Copy, Debug)]
pub struct FrameShape {
    /// Bytes of a block of a raw frame, as stored.
    sealed_block_bytes: u32,
}

impl FrameShape {
    pub const fn new(encrypted: bool) -> FrameShape {
        let overhead = Sealer::overhead_of(ObjectKind::Segment, encrypted);
        FrameShape { sealed_block_bytes: (BLOCK_BYTES + overhead) as u32 }
    }

    pub fn is_raw(self, frame: &FrameRef) -> bool {
        frame.stored.is_multiple_of(self.sealed_block_bytes)
    }

    /// Where in the object the bytes lie that reading `blocks` blocks of a frame from `frame.index`
    /// on takes: those blocks of a raw frame, all of a packed one.
    pub fn needed(self, frame: &FrameRef, blocks: u64) -> Range<u64> {
        let begin = u64::from(frame.offset);
        if !self.is_raw(frame) {
            return begin..begin + u64::from(frame.stored);
        }
        let unit = u64::from(self.sealed_block_bytes);
        let begin = begin + u64::from(frame.index) * unit;
        begin..begin + blocks * unit
    }
}

/// Bytes of a block of a raw frame, as stored.
fn sealed_block_bytes(sealer: &Sealer) -> usize {
    BLOCK_BYTES + sealer.overhead()
}

/// Appends the sealed frame of `data`, which is 1 to 16 whole blocks, to the object in `body`.
pub(super) fn append_frame(compressor: &mut Compressor, sealer: &Sealer, data: &[u8], body: &mut Vec<u8>) {
    let blocks = data.len() / BLOCK_BYTES;
    assert!(data.len().is_multiple_of(BLOCK_BYTES) && (1..=FRAME_BLOCKS_MAX).contains(&blocks));
    let from = body.len();
    body.push(blocks as u8);
    if compressor.append_if_it_pays(data, body) {
        return seal_packed(sealer, body, from);
    }
    body.truncate(from);
    append_raw(sealer, data, body);
}

/// The same of blocks of which it is known that compressing them does not pay.
pub(super) fn append_raw(sealer: &Sealer, data: &[u8], body: &mut Vec<u8>) {
    assert!(data.len().is_multiple_of(BLOCK_BYTES), "what is left of a block would be lost");
    debug_assert!((1..=FRAME_BLOCKS_MAX).contains(&(data.len() / BLOCK_BYTES)), "a frame has 1 to 16 blocks");
    let from = body.len();
    for block in data.chunks_exact(BLOCK_BYTES) {
        let at = body.len();
        sealer.seal(at as u64, block, body);
    }
    debug_assert_eq!(
        body.len() - from,
        data.len() / BLOCK_BYTES * sealed_block_bytes(sealer),
        "a raw frame is so many sealed blocks"
    );
}

/// The same of so many blocks that are compressed already.
pub(super) fn append_packed(sealer: &Sealer, blocks: u64, payload: &[u8], body: &mut Vec<u8>) {
    debug_assert!((1..=FRAME_BLOCKS_MAX as u64).contains(&blocks));
    let from = body.len();
    body.push(blocks as u8);
    body.extend_from_slice(payload);
    seal_packed(sealer, body, from);
}

/// Seals the packed frame that begins at `from`.
fn seal_packed(sealer: &Sealer, body: &mut Vec<u8>, from: usize) {
    if (body.len() - from + sealer.overhead()).is_multiple_of(sealed_block_bytes(sealer)) {
        body[from] |= PADDED;
        body.push(0);
    }
    sealer.seal_tail(from as u64, body, from);
    debug_assert!(
        !(body.len() - from).is_multiple_of(sealed_block_bytes(sealer)),
        "its length tells a packed frame from a raw one"
    );
}

/// The blocks of a whole frame (`frame.index` is not applied), out of its bytes as stored.
/// `sealer` is the segment's. `Error::Corrupt` unless every byte is what was written there.
pub fn open_frame(sealer: &Sealer, frame: &FrameRef, stored: &[u8]) -> Result<Bytes> {
    if stored.len() != frame.stored as usize {
        return Err(corrupt(frame, &format!("{} bytes were read", stored.len())));
    }
    if stored.len().is_multiple_of(sealed_block_bytes(sealer)) {
        let blocks = stored.len() / sealed_block_bytes(sealer);
        if usize::from(frame.index) >= blocks {
            return Err(too_short(frame, blocks));
        }
        return open_raw(sealer, &FrameRef { index: 0, ..*frame }, stored);
    }
    let plain = sealer.open(frame.offset.into(), stored).map_err(|e| corrupt(frame, &e.to_string()))?;
    let (blocks, payload) = packed_payload(&plain).map_err(|detail| corrupt(frame, &detail))?;
    if usize::from(frame.index) >= blocks {
        return Err(too_short(frame, blocks));
    }
    let bytes = blocks * BLOCK_BYTES;
    match plain {
        Cow::Borrowed(plain) => decompress(&plain[payload], bytes).map(Bytes::from),
        Cow::Owned(plain) => decompress_shared(Bytes::from(plain).slice(payload), bytes),
    }
    .map_err(|e| corrupt(frame, &e.to_string()))
}

/// The payload of a packed frame, opened and not decoded; `None` if it has other blocks than so many from the first on.
/// `Error::Corrupt` unless every byte is what was written there.
pub fn open_payload(sealer: &Sealer, frame: &FrameRef, blocks: u64, stored: &Bytes) -> Result<Option<Bytes>> {
    if stored.len() != frame.stored as usize {
        return Err(corrupt(frame, &format!("{} bytes were read", stored.len())));
    }
    let plain = sealer.open(frame.offset.into(), stored).map_err(|e| corrupt(frame, &e.to_string()))?;
    let (has, payload) = packed_payload(&plain).map_err(|detail| corrupt(frame, &detail))?;
    let is_whole = frame.index == 0 && has as u64 == blocks;
    Ok(is_whole.then(|| match plain {
        Cow::Borrowed(plain) => stored.slice_ref(&plain[payload]),
        Cow::Owned(plain) => Bytes::from(plain).slice(payload),
    }))
}

/// The blocks of a raw frame from `frame.index` on, as many as `stored` holds: the bytes that
/// [`FrameShape::needed`] tells. `Error::Corrupt` unless every byte is what was written there.
pub fn open_raw(sealer: &Sealer, frame: &FrameRef, stored: &[u8]) -> Result<Bytes> {
    let unit = sealed_block_bytes(sealer);
    let (blocks, has) = (stored.len() / unit, frame.stored as usize / unit);
    if !stored.len().is_multiple_of(unit) || blocks == 0 || has > FRAME_BLOCKS_MAX {
        return Err(corrupt(frame, &format!("{} bytes are no part of a raw frame", stored.len())));
    }
    if usize::from(frame.index) + blocks > has {
        return Err(too_short(frame, has));
    }
    let mut out = Vec::with_capacity(blocks * BLOCK_BYTES);
    let mut at = u64::from(frame.offset) + u64::from(frame.index) * unit as u64;
    for sealed in stored.chunks_exact(unit) {
        sealer.open_onto(at, sealed, &mut out).map_err(|e| corrupt(frame, &format!("block at {at}: {e}")))?;
        at += unit as u64;
    }
    Ok(out.into())
}

/// The number of blocks of a packed frame, and where its payload lies in its plain bytes.
fn packed_payload(plain: &[u8]) -> Result<(usize, Range<usize>), String> {
    let first = plain.first().copied().unwrap_or(0);
    let blocks = usize::from(first & !PADDED);
    if !(1..=FRAME_BLOCKS_MAX).contains(&blocks) {
        return Err(format!("it says that it has {blocks} blocks"));
    }
    let payload = match (first & PADDED, plain[1..].last()) {
        (0, _) => 1..plain.len(),
        (_, Some(0)) => 1..plain.len() - 1,
        _ => return Err("its padding is not zero".to_owned()),
    };
    match payload.len() {
        0 => Err("it has no payload".to_owned()),
        len if len > blocks * BLOCK_BYTES + 1 => {
            Err(format!("{blocks} blocks have no payload of {len} bytes"))
        }
        _ => Ok((blocks, payload)),
    }
}

fn too_short(frame: &FrameRef, blocks: usize) -> Error {
    corrupt(frame, &format!("it has {blocks} blocks, number {} is wanted", frame.index))
}

fn corrupt(frame: &FrameRef, detail: &str) -> Error {
    let place = format!("{}, frame at {} of {} bytes", object_key(frame.seq), frame.offset, frame.stored);
    Error::corrupt(place, detail)
}
