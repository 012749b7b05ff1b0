//! The plain bytes of a segment's footer: what the segment carries and which blocks it maps.
//!
//! Mappings ascend, so only the gaps between them are stored; frames lie in the same order, so
//! only their lengths are. A single random block costs 4 to 8 bytes, and a few more for its birth
//! where that is not the segment's own seq.

use super::{Content, Footer, JournalRange, MAPPINGS_MAX, OPERATIONS_MAX};
use crate::{
    codec::fields::{Fields, VARINT_BYTES_MAX, put_varint},
    sectors::is_mappable,
    snapshot::{OPERATION_BYTES_MAX, Operation},
    units::{
        Chain, Extent, FRAME_BLOCKS_MAX, FrameRef, JournalId, JournalPos, Mapping, Mark, Place, SECTOR_BYTES,
        Seq, VOLUME_BYTES_MAX,
    },
};

/// Low two bits of a mapping's tag.
const HOLE: u8 = 0;
const ZERO: u8 = 1;
const FRAME: u8 = 2;
const PLACE_MASK: u8 = 3;
/// The extent begins where the one before it ended; no gap follows.
const ADJACENT: u8 = 1 << 2;
/// The frame has as many stored bytes as the frame before it; no length follows.
const SAME_STORED: u8 = 1 << 3;
/// Above: blocks of the frame, less one.
const BLOCKS_SHIFT: u32 = 4;

const _: () = assert!(FRAME_BLOCKS_MAX - 1 <= (u8::MAX >> BLOCKS_SHIFT) as usize);

/// What a segment carries, as its first byte tells.
const WRITTEN: u8 = 1;
const MOVED: u8 = 2;
/// As `WRITTEN`, and operations on snapshots.
const OPERATED: u8 = 3;
/// As `MOVED`, and extents may overlap: the gap is to the beginning of the one before.
const KEPT: u8 = 4;

/// Bytes of a footer before its mappings: kind, journal, from and to with their chains, size, count.
const FIXED_BYTES: usize = 1 + 16 + 16 + 16 + 8 + 4;
/// Bytes of all operations at most: their number, and the length of each.
const OPERATIONS_BYTES_MAX: usize = 1 + OPERATIONS_MAX * (2 + OPERATION_BYTES_MAX);
/// Bytes of a mapping at most: tag, two varints, birth, length of the piece.
const MAPPING_BYTES_MAX: usize = 1 + 3 * VARINT_BYTES_MAX + 1;
/// Plain bytes of the longest footer.
pub(super) const FOOTER_BYTES_MAX: usize =
    FIXED_BYTES + OPERATIONS_BYTES_MAX + MAPPINGS_MAX * MAPPING_BYTES_MAX;

/// Appends the plain footer. `mappings` ascend; their frames follow each other in the object.
pub(super) fn encode(content: &Content, operations: &[Operation], mappings: &[Mapping], out: &mut Vec<u8>) {
    assert!(mappings.len() <= MAPPINGS_MAX);
    match content {
        Content::Written { range, size_bytes } => {
            out.push(if operations.is_empty() { WRITTEN } else { OPERATED });
            out.extend_from_slice(range.journal.0.as_bytes());
            for mark in [range.from, range.to] {
                out.extend_from_slice(&mark.pos.0.to_le_bytes());
                out.extend_from_slice(&mark.chain.0.to_le_bytes());
            }
            out.extend_from_slice(&size_bytes.to_le_bytes());
            if !operations.is_empty() {
                put_operations(operations, out);
            }
            put_count(mappings.len(), out);
            let mut writer = FooterWriter::default();
            mappings.iter().for_each(|mapping| writer.mapping(mapping, out));
        }
        Content::Moved { base } | Content::Kept { base } => {
            assert!(operations.is_empty(), "operations are part of what was written");
            let may_overlap = matches!(content, Content::Kept { .. });
            out.push(if may_overlap { KEPT } else { MOVED });
            out.extend_from_slice(&base.0.to_le_bytes());
            let frames: Vec<&[Mapping]> = mappings.chunk_by(|a, b| frame_of(a) == frame_of(b)).collect();
            put_count(frames.len(), out);
            encode_frames(*base, may_overlap, &frames, out);
        }
    }
}

fn put_operations(operations: &[Operation], out: &mut Vec<u8>) {
    assert!(operations.len() <= OPERATIONS_MAX);
    out.push(operations.len() as u8);
    for operation in operations {
        let bytes = operation.encode();
        out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(&bytes);
    }
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

/// What tells the frame of a mapping from that of its neighbours.
fn frame_of(mapping: &Mapping) -> Option<u32> {
    match mapping.place {
        Place::Frame(frame) => Some(frame.offset),
        Place::Hole | Place::Zero => None,
    }
}

/// The extents and lengths of frames as for a segment that was written, each followed by the births of its blocks.
fn encode_frames(base: Seq, may_overlap: bool, frames: &[&[Mapping]], out: &mut Vec<u8>) {
    let mut writer = FooterWriter { may_overlap, ..FooterWriter::default() };
    for pieces in frames {
        let (first, last) = (pieces[0], pieces[pieces.len() - 1]);
        assert!(frame_of(&first).is_some(), "only data is moved");
        let extent = Extent::between(first.extent.start, last.extent.end());
        writer.mapping(&Mapping { extent, ..first }, out);
        for (n, piece) in pieces.iter().enumerate() {
            assert!(piece.birth <= base, "what is moved was there");
            let is_last = n + 1 == pieces.len();
            put_varint(out, (base.0 - piece.birth.0) << 1 | u64::from(!is_last));
            if !is_last {
                out.push(piece.extent.len as u8);
            }
        }
    }
}

/// Where the next mapping that is written continues.
#[derive(Default)]
struct FooterWriter {
    may_overlap: bool,
    block: u64,
    last_stored: Option<u32>,
}

impl FooterWriter {
    fn mapping(&mut self, mapping: &Mapping, out: &mut Vec<u8>) {
        debug_assert!(
            !mapping.extent.is_empty() && is_mappable(mapping.extent),
            "a mapping lies within a volume, or is of its sectors"
        );
        let gap = mapping.extent.start - self.block;
        self.block = if self.may_overlap { mapping.extent.start } else { mapping.extent.end() };
        let mut tag = if gap == 0 { ADJACENT } else { 0 };
        let mut stored = None;
        match mapping.place {
            Place::Hole => tag |= HOLE,
            Place::Zero => tag |= ZERO,
            Place::Frame(frame) => {
                debug_assert!(frame.index == 0 && mapping.extent.len <= FRAME_BLOCKS_MAX as u64);
                tag |= FRAME | ((mapping.extent.len - 1) as u8) << BLOCKS_SHIFT;
                stored = (self.last_stored != Some(frame.stored)).then_some(frame.stored);
                tag |= if stored.is_none() { SAME_STORED } else { 0 };
                self.last_stored = Some(frame.stored);
            }
        }
        out.push(tag);
        if gap != 0 {
            put_varint(out, gap);
        }
        match mapping.place {
            Place::Frame(_) => stored.into_iter().for_each(|stored| put_varint(out, stored.into())),
            Place::Hole | Place::Zero => put_varint(out, mapping.extent.len),
        }
    }
}

/// Reads a plain footer. `frames` is where in the object frames begin and end; they must fill it
/// exactly. The error is what is wrong, for a message.
pub(super) fn decode(plain: &[u8], seq: Seq, frames: std::ops::Range<u32>) -> Result<Footer, &'static str> {
    let mut fields = Fields::new(plain);
    let (content, operations, count) = decode_content(&mut fields, seq)?;
    if count > MAPPINGS_MAX {
        return Err("it has too many mappings");
    }
    let may_overlap = matches!(content, Content::Kept { .. });
    let mut reader = Reader { seq, may_overlap, block: 0, offset: frames.start, last_stored: None };
    // A mapping takes a byte at least, so this is bounded by what is really there.
    let mut mappings = Vec::with_capacity(count.min(fields.rest().len()));
    for _ in 0..count {
        let mapping = reader.mapping(&mut fields)?;
        match content {
            Content::Written { .. } => mappings.push(mapping),
            Content::Moved { base } | Content::Kept { base } => {
                reader.births(&mut fields, base, mapping, &mut mappings)?
            }
        }
        if mappings.len() > MAPPINGS_MAX {
            return Err("it has too many mappings");
        }
    }
    if !fields.rest().is_empty() {
        return Err("the footer is too long");
    }
    if reader.offset != frames.end {
        return Err("its frames do not fill the object");
    }
    debug_assert!(
        may_overlap || mappings.is_sorted_by(|a, b| a.extent.end() <= b.extent.start),
        "a footer gives mappings that ascend"
    );
    Ok(Footer { content, operations, mappings })
}

/// Whether a volume may have this size.
pub(super) fn check_size(size_bytes: u64) -> Result<(), &'static str> {
    if size_bytes > VOLUME_BYTES_MAX || !size_bytes.is_multiple_of(SECTOR_BYTES as u64) {
        return Err("no volume has the size it says");
    }
    Ok(())
}

/// What the segment at `seq` carries, operations, and its number of mappings (or of frames, of what was moved).
fn decode_content(fields: &mut Fields, seq: Seq) -> Result<(Content, Vec<Operation>, usize), &'static str> {
    let kind = fields.u8().ok_or(SHORT)?;
    let content = match kind {
        WRITTEN | OPERATED => decode_written(fields).ok_or(SHORT)?,
        MOVED => Content::Moved { base: Seq(fields.u64().ok_or(SHORT)?) },
        KEPT => Content::Kept { base: Seq(fields.u64().ok_or(SHORT)?) },
        _ => return Err("it carries nothing that is known"),
    };
    match &content {
        Content::Written { range, .. } if range.from.pos > range.to.pos => {
            return Err("its journal range runs backwards");
        }
        Content::Written { size_bytes, .. } => check_size(*size_bytes)?,
        Content::Moved { base } | Content::Kept { base } if *base >= seq => {
            return Err("what it moves is of a later time");
        }
        Content::Moved { .. } | Content::Kept { .. } => {}
    }
    let operations = match kind {
        OPERATED => decode_operations(fields)?,
        _ => Vec::new(),
    };
    Ok((content, operations, fields.u32().ok_or(SHORT)? as usize))
}

fn decode_operations(fields: &mut Fields) -> Result<Vec<Operation>, &'static str> {
    let count = usize::from(fields.u8().ok_or(SHORT)?);
    if count == 0 || count > OPERATIONS_MAX {
        return Err("no segment has so many operations");
    }
    let mut operations = Vec::with_capacity(count);
    for _ in 0..count {
        let length = u16::from_le_bytes(fields.array().ok_or(SHORT)?);
        let bytes = fields.take(length.into()).ok_or(SHORT)?;
        operations.push(Operation::decode(bytes).ok_or("an operation is of no known kind")?);
    }
    Ok(operations)
}

fn decode_written(fields: &mut Fields) -> Option<Content> {
    let journal = JournalId(uuid::Uuid::from_bytes(fields.array()?));
    let mut mark = || Some(Mark { pos: JournalPos(fields.u64()?), chain: Chain(fields.u64()?) });
    let (from, to) = (mark()?, mark()?);
    Some(Content::Written { range: JournalRange { journal, from, to }, size_bytes: fields.u64()? })
}

const SHORT: &str = "the footer is cut short";

/// Where the next mapping continues.
struct Reader {
    seq: Seq,
    may_overlap: bool,
    block: u64,
    offset: u32,
    last_stored: Option<u32>,
}

impl Reader {
    fn mapping(&mut self, fields: &mut Fields) -> Result<Mapping, &'static str> {
        let tag = fields.u8().ok_or(SHORT)?;
        let gap = if tag & ADJACENT != 0 { 0 } else { fields.varint().ok_or(SHORT)? };
        let start = self.block.checked_add(gap).ok_or("an extent is out of bounds")?;
        let (blocks, place) = match tag & PLACE_MASK {
            FRAME => (u64::from(tag >> BLOCKS_SHIFT) + 1, Place::Frame(self.frame(tag, fields)?)),
            kind @ (HOLE | ZERO) if tag & !(PLACE_MASK | ADJACENT) == 0 => {
                let place = if kind == HOLE { Place::Hole } else { Place::Zero };
                (fields.varint().ok_or(SHORT)?, place)
            }
            _ => return Err("a mapping is of no known kind"),
        };
        let is_sound = blocks > 0 && is_mappable(Extent::new(start, blocks));
        let end = start.checked_add(blocks).filter(|_| is_sound).ok_or("an extent is out of bounds")?;
        self.block = if self.may_overlap { start } else { end };
        Ok(Mapping { extent: Extent::new(start, blocks), birth: self.seq, place })
    }

    /// The births of a frame that was moved: a mapping for each run of blocks that were born together.
    fn births(
        &mut self,
        fields: &mut Fields,
        base: Seq,
        frame: Mapping,
        out: &mut Vec<Mapping>,
    ) -> Result<(), &'static str> {
        if frame_of(&frame).is_none() {
            return Err("it moves what has no data");
        }
        let mut rest = frame;
        loop {
            let value = fields.varint().ok_or(SHORT)?;
            let birth = base.0.checked_sub(value >> 1).filter(|&birth| birth > 0);
            rest.birth = Seq(birth.ok_or("what it moves was never born")?);
            if value & 1 == 0 {
                out.push(rest);
                return Ok(());
            }
            let blocks = fields.u8().ok_or(SHORT)?.into();
            if blocks == 0 || blocks >= rest.extent.len {
                return Err("a birth is of no block of its frame");
            }
            let (start, end) = (rest.extent.start, rest.extent.end());
            out.push(rest.slice(Extent::new(start, blocks)));
            rest = rest.slice(Extent::between(start + blocks, end));
        }
    }

    fn frame(&mut self, tag: u8, fields: &mut Fields) -> Result<FrameRef, &'static str> {
        let stored = if tag & SAME_STORED != 0 {
            self.last_stored
        } else {
            fields.varint().and_then(|stored| u32::try_from(stored).ok())
        };
        let stored = stored.filter(|&stored| stored > 0).ok_or("a frame has no length")?;
        let offset = self.offset;
        self.offset = offset.checked_add(stored).ok_or("a frame is out of bounds")?;
        self.last_stored = Some(stored);
        Ok(FrameRef { seq: self.seq, offset, stored, index: 0 })
    }
}
