//! The bytes of the index file: a header page, and pages of records, one for each slot.
//!
//! Pure. A page that does not decode is an empty one; a record that makes no sense is an empty one.
//! See docs/format/cache.md.

use crc_fast::crc32_iscsi;

use super::{CHUNK_BYTES, CacheKey, PIECE_BYTES, PIECES, chunks::ChunkId, policy::Standing};

/// Bytes of a page, the unit of writing and of checksums.
pub(super) const PAGE_BYTES: usize = 4096;
/// Records of a page.
const RECORDS: usize = 36;
const RECORD_BYTES: usize = 112;
/// Bytes before the first record.
const HEAD_BYTES: usize = 60;
const MAGIC: &[u8; 8] = b"CSTNCIDX";
pub(super) const VERSION: u32 = 1;

/// Offsets in every page.
const VERSION_AT: usize = 8;
const PAGE_AT: usize = 12;
const ID_AT: usize = 16;
const CRC_AT: usize = PAGE_BYTES - 4;
/// And in the header page.
const SLOTS_AT: usize = 32;
const CHUNK_BYTES_AT: usize = 36;
const PIECE_BYTES_AT: usize = 40;
/// And in a record.
const CRCS_AT: usize = 48;

const _: () = assert!(HEAD_BYTES + RECORDS * RECORD_BYTES == CRC_AT);
const _: () = assert!(CRCS_AT + PIECES * 4 == RECORD_BYTES);
const _: () = assert!(ID_AT + size_of::<IndexId>() == SLOTS_AT && PIECE_BYTES_AT + 4 <= HEAD_BYTES);

/// Drawn when an index file is made: pages of another one do not count.
pub(super) type IndexId = [u8; 16];

/// What is known of the bytes of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRecord {
    pub owner: ChunkId,
    pub end: u32,
    pub valid: u16,
    pub unread: u16,
    pub place: Standing,
    pub reads: u8,
    pub stamp: u32,
    pub crcs: [u32; PIECES],
}

impl SlotRecord {
    fn is_sound(&self) -> bool {
        self.valid != 0 && self.unread & !self.valid == 0 && (1..=CHUNK_BYTES as u32).contains(&self.end)
    }
}

/// What the header page says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    Ours(IndexId),
    /// Why it cannot be used.
    Other(String),
}

/// Pages of records for so many slots.
pub(super) fn pages(slots: u32) -> u32 {
    slots.div_ceil(RECORDS as u32)
}

pub(super) fn page_of(slot: u32) -> u32 {
    slot / RECORDS as u32
}

/// The slots of a page.
pub(super) fn slots_of(page: u32, slots: u32) -> std::ops::Range<u32> {
    debug_assert!(page < pages(slots), "a page has slots");
    let first = page * RECORDS as u32;
    first..slots.min(first + RECORDS as u32)
}

/// Where a page of records begins in the file.
pub(super) fn page_offset(page: u32) -> u64 {
    (u64::from(page) + 1) * PAGE_BYTES as u64
}

/// Bytes of the index file for so many slots.
pub(super) fn file_bytes(slots: u32) -> u64 {
    page_offset(pages(slots))
}

pub(super) fn encode_header(id: &IndexId, slots: u32, out: &mut [u8]) {
    out.fill(0);
    put(out, SLOTS_AT, slots);
    put(out, CHUNK_BYTES_AT, CHUNK_BYTES as u32);
    put(out, PIECE_BYTES_AT, PIECE_BYTES as u32);
    finish(id, u32::MAX, out);
}

pub(super) fn decode_header(page: &[u8], slots: u32) -> Header {
    if page.len() != PAGE_BYTES || page[..VERSION_AT] != MAGIC[..] {
        return Header::Other("it is not an index of a chunk cache".to_owned());
    }
    let version = get(page, VERSION_AT);
    if version != VERSION {
        return Header::Other(format!("it has format version {version}, this cistern writes {VERSION}"));
    }
    let mut id = [0; 16];
    id.copy_from_slice(&page[ID_AT..ID_AT + 16]);
    if !is_page(&id, u32::MAX, page) {
        return Header::Other("its header is damaged".to_owned());
    }
    let sizes = [get(page, SLOTS_AT), get(page, CHUNK_BYTES_AT), get(page, PIECE_BYTES_AT)];
    match sizes == [slots, CHUNK_BYTES as u32, PIECE_BYTES as u32] {
        true => Header::Ours(id),
        false => Header::Other("it belongs to a cache of another size".to_owned()),
    }
}

/// Makes a page of the records of its slots, in order; `None` for a slot without content.
pub(super) fn encode_page(
    id: &IndexId,
    page: u32,
    records: impl Iterator<Item = Option<SlotRecord>>,
    out: &mut [u8],
) {
    debug_assert_eq!(out.len(), PAGE_BYTES, "a page is made whole");
    debug_assert!(records.size_hint().0 <= RECORDS, "every slot of a page has room in it");
    out.fill(0);
    let places = out[HEAD_BYTES..].chunks_exact_mut(RECORD_BYTES);
    for (record, out) in records.zip(places) {
        if let Some(record) = record {
            encode_record(&record, out);
        }
    }
    finish(id, page, out);
}

/// The records of a page; `None` if it is not one of this index, or damaged.
pub(super) fn decode_page<'a>(
    id: &IndexId,
    page: u32,
    bytes: &'a [u8],
) -> Option<impl Iterator<Item = Option<SlotRecord>> + use<'a>> {
    let sound = bytes.len() == PAGE_BYTES && is_page(id, page, bytes);
    sound.then(|| bytes[HEAD_BYTES..].chunks_exact(RECORD_BYTES).map(decode_record))
}

fn encode_record(record: &SlotRecord, out: &mut [u8]) {
    debug_assert!(record.is_sound(), "what is written makes sense to who reads it: {record:?}");
    out[..16].copy_from_slice(&record.owner.object.id);
    out[16..24].copy_from_slice(&record.owner.object.number.to_le_bytes());
    put(out, 24, record.owner.chunk);
    put(out, 28, record.end);
    out[32..34].copy_from_slice(&record.valid.to_le_bytes());
    out[34..36].copy_from_slice(&record.unread.to_le_bytes());
    out[36] = record.place as u8;
    out[37] = record.reads;
    put(out, 40, record.stamp);
    for (piece, crc) in record.crcs.iter().enumerate() {
        put(out, CRCS_AT + piece * 4, *crc);
    }
}

fn decode_record(bytes: &[u8]) -> Option<SlotRecord> {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[..16]);
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let number = u64::from(get(bytes, 16)) | u64::from(get(bytes, 20)) << 32;
    let (end, valid, unread) = (get(bytes, 28), half(32), half(34));
    let place = Standing::of(bytes[36])?;
    let record = SlotRecord {
        owner: ChunkId { object: CacheKey::new(id, number), chunk: get(bytes, 24) },
        end,
        valid,
        unread,
        place,
        reads: bytes[37],
        stamp: get(bytes, 40),
        crcs: std::array::from_fn(|piece| get(bytes, CRCS_AT + piece * 4)),
    };
    record.is_sound().then_some(record)
}

/// Completes the head of a page.
fn finish(id: &IndexId, page: u32, out: &mut [u8]) {
    out[..VERSION_AT].copy_from_slice(MAGIC);
    put(out, VERSION_AT, VERSION);
    put(out, PAGE_AT, page);
    out[ID_AT..ID_AT + 16].copy_from_slice(id);
    let crc = crc32_iscsi(&out[..CRC_AT]);
    put(out, CRC_AT, crc);
}

fn is_page(id: &IndexId, page: u32, bytes: &[u8]) -> bool {
    let head = bytes[..VERSION_AT] == MAGIC[..]
        && get(bytes, VERSION_AT) == VERSION
        && get(bytes, PAGE_AT) == page
        && bytes[ID_AT..ID_AT + 16] == id[..];
    head && crc32_iscsi(&bytes[..CRC_AT]) == get(bytes, CRC_AT)
}

fn put(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: IndexId = [3; 16];

    fn record(number: u64) -> SlotRecord {
        SlotRecord {
            owner: ChunkId { object: CacheKey::new([number as u8; 16], number << 40), chunk: 7 },
            end: CHUNK_BYTES as u32 - number as u32,
            valid: 0b1011,
            unread: 0b10,
            place: Standing::Kept,
            reads: 9,
            stamp: 1 << 30,
            crcs: std::array::from_fn(|piece| piece as u32 * 0x0101_0101 + number as u32),
        }
    }

    /// What was written is read back, in its place; any flipped bit, another page's place or another index's
    /// id make the page an empty one.
    #[test]
    fn pages_are_themselves_or_nothing() {
        let records: Vec<Option<SlotRecord>> = (0..36).map(|n| (n % 3 != 0).then(|| record(n))).collect();
        let mut page = vec![0; PAGE_BYTES];
        encode_page(&ID, 5, records.clone().into_iter(), &mut page);
        let read = |id, number, page: &[u8]| decode_page(id, number, page).map(Iterator::collect::<Vec<_>>);
        assert_eq!(read(&ID, 5, &page), Some(records));
        assert!(read(&ID, 6, &page).is_none() && read(&[4; 16], 5, &page).is_none());
        for bit in 0..PAGE_BYTES * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&ID, 5, &page).is_none(), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Nonsense under a right checksum is nothing but empty slots.
    #[test]
    fn records_that_make_no_sense_are_empty() {
        for fill in 0..=u8::MAX {
            let mut page = vec![fill; PAGE_BYTES];
            page[ID_AT + 16..HEAD_BYTES].fill(0);
            finish(&ID, 0, &mut page);
            let records = decode_page(&ID, 0, &page).expect("the checksum is right");
            assert!(records.flatten().next().is_none(), "bytes of {fill}");
        }
    }

    /// The header says whose index it is, and why it is of no use.
    #[test]
    fn headers_are_told_apart() {
        let mut page = vec![0; PAGE_BYTES];
        let why = |page: &[u8], slots| match decode_header(page, slots) {
            Header::Ours(_) => String::new(),
            Header::Other(why) => why,
        };
        assert!(why(&page, 100).contains("not an index"));
        encode_header(&ID, 100, &mut page);
        assert_eq!(decode_header(&page, 100), Header::Ours(ID));
        assert!(why(&page, 101).contains("another size"));
        page[200] ^= 1;
        assert!(why(&page, 100).contains("damaged"));
        page[VERSION_AT] += 1;
        assert!(why(&page, 100).contains("version 2"));
    }
}
