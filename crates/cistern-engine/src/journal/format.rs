//! The bytes of the journal: superblock and group header, as in `docs/format/journal.md`.
//!
//! Pure: encodes and decodes single blocks. Decoding takes arbitrary bytes, never panics and never
//! allocates more than one block can describe.

use uuid::Uuid;

use super::Record;
use crate::{
    error::{Error, Result},
    sectors::SectorMask,
    units::{BLOCK_BYTES, Chain, Extent, JournalId, Salt, VOLUME_BYTES_MAX, VolumeId},
};

/// The format this version writes, and the newest it reads.
pub const VERSION: u32 = 5;
/// Blocks before the ring.
pub const SUPERBLOCK_AREA_BLOCKS: u64 = 16;
/// Blocks of the file that hold the two superblock slots: far enough apart that no disk writes
/// both as one unit.
pub const SUPERBLOCK_SLOTS: [u64; 2] = [0, 8];
/// Payload blocks of the largest group (1 MiB): the header costs 0.4 % there, and one group in
/// memory or in a read stays small.
pub const GROUP_PAYLOAD_BLOCKS_MAX: u64 = 256;
/// Claims that a superblock names: the one that is in the log, and the last eight of which this is not known.
pub const CLAIMS_MAX: usize = 9;

mod owner;

pub use owner::{BEAT_BLOCK, OWNER_BLOCK, OwnerBeat, OwnerRecord};

const SUPERBLOCK_MAGIC: [u8; 8] = *b"CSTNJRNL";
const GROUP_MAGIC: [u8; 8] = *b"CSTNGRUP";
const CRC_AT: usize = BLOCK_BYTES - 4;
const FLAGS_AT: usize = 12;
const CLAIMS_AT: usize = 128;
/// Flag of a superblock: the journal was closed.
const CLOSED: u32 = 1;
const RECORDS_AT: usize = 80;
/// Bytes of one record in a header.
const RECORD_BYTES: usize = 16;
/// Bytes of the checksum of one payload block in a header.
const CRC_BYTES: usize = 4;
/// Bytes of a header for records and checksums.
const ENTRIES_BYTES: usize = CRC_AT - RECORDS_AT;
/// Bits of a record's first number that hold the block.
const START_BITS: u32 = 56;
/// Blocks of the largest volume.
const VOLUME_BLOCKS_MAX: u64 = VOLUME_BYTES_MAX / BLOCK_BYTES as u64;
/// Positions beyond are refused when decoded, so that adding to one cannot overflow.
pub(super) const POSITION_MAX: u64 = 1 << 60;

const KIND_WRITE: u64 = 1;
const KIND_HOLE: u64 = 2;
const KIND_ZERO: u64 = 3;
const KIND_RESIZE: u64 = 4;
const KIND_SECTORS: u64 = 5;
const KIND_OPERATION: u64 = 6;
const KIND_LOAD: u64 = 7;

const _: () = assert!(VOLUME_BLOCKS_MAX < 1 << START_BITS);
const _: () = assert!(RECORD_BYTES + GROUP_PAYLOAD_BLOCKS_MAX as usize * CRC_BYTES <= ENTRIES_BYTES);
const _: () = assert!(CLAIMS_AT + CLAIMS_MAX * size_of::<Salt>() <= CRC_AT);
const _: () = assert!(SUPERBLOCK_SLOTS[1] < SUPERBLOCK_AREA_BLOCKS);
const _: () = assert!(KIND_LOAD < 1 << (u64::BITS - START_BITS));

/// CRC32C of some bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The chain behind the group whose header is `block`: that holds the chain before it.
pub fn chain_behind(block: &[u8]) -> Chain {
    debug_assert_eq!(block.len(), BLOCK_BYTES);
    Chain(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, block))
}

/// Whether a group of so many records and payload blocks fits its header.
pub fn fits_header(records: usize, payload_blocks: u64) -> bool {
    payload_blocks <= GROUP_PAYLOAD_BLOCKS_MAX
        && records * RECORD_BYTES + payload_blocks as usize * CRC_BYTES <= ENTRIES_BYTES
}

/// What a journal knows about itself between two openings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub journal: JournalId,
    pub volume: VolumeId,
    pub generation: u64,
    pub ring_blocks: u64,
    pub start: u64,
    pub tail: u64,
    pub durable: u64,
    pub incarnation: u64,
    pub prewritten: u64,
    /// Where this incarnation began to write: no group from here on has a lower one.
    pub opened: u64,
    /// The chain at `tail`.
    pub chain: Chain,
    /// The salts of the claims that were tried with this journal, oldest first; at most [`CLAIMS_MAX`].
    pub claims: Vec<Salt>,
    /// Whether the journal was closed and ends at `durable`: nothing was written since.
    pub closed: bool,
}

impl Superblock {
    /// The offset in the file, in bytes, of the slot this generation is written to.
    pub fn slot_offset(&self) -> u64 {
        SUPERBLOCK_SLOTS[(self.generation % 2) as usize] * BLOCK_BYTES as u64
    }

    /// Fills one block.
    pub fn encode(&self, out: &mut [u8]) {
        assert_eq!(out.len(), BLOCK_BYTES);
        out.fill(0);
        put_head(out, SUPERBLOCK_MAGIC, self.journal);
        put_u32(out, FLAGS_AT, if self.closed { CLOSED } else { 0 });
        out[32..48].copy_from_slice(self.volume.0.as_bytes());
        let numbers = [
            self.generation,
            self.ring_blocks,
            self.start,
            self.tail,
            self.durable,
            self.incarnation,
            self.prewritten,
            self.opened,
            self.chain.0,
            self.claims.len() as u64,
        ];
        debug_assert!(48 + 8 * numbers.len() <= CLAIMS_AT, "claims lie behind the numbers");
        for (n, value) in numbers.into_iter().enumerate() {
            put_u64(out, 48 + 8 * n, value);
        }
        assert!(self.claims.len() <= CLAIMS_MAX);
        for (out, salt) in out[CLAIMS_AT..].chunks_exact_mut(size_of::<Salt>()).zip(&self.claims) {
            out.copy_from_slice(&salt.0);
        }
        put_crc(out);
        debug_assert!(
            Superblock::decode(out).is_ok_and(|read| read.as_ref() == Some(self)),
            "a superblock that is written is read: {self:?}"
        );
    }

    /// `None` for anything that is not an intact superblock; `Error::Version` for an intact one
    /// of a newer format.
    pub fn decode(block: &[u8]) -> Result<Option<Superblock>> {
        if !is_intact(block, SUPERBLOCK_MAGIC) {
            return Ok(None);
        }
        let found = u32_at(block, 8);
        if found != VERSION {
            return Err(Error::Version { what: "the journal".into(), found, known: VERSION });
        }
        let claims = usize::try_from(u64_at(block, 120)).ok().filter(|&n| n <= CLAIMS_MAX);
        let Some(claims) = claims else { return Ok(None) };
        let sb = Superblock {
            journal: JournalId(uuid_at(block, 16)),
            volume: VolumeId(uuid_at(block, 32)),
            generation: u64_at(block, 48),
            ring_blocks: u64_at(block, 56),
            start: u64_at(block, 64),
            tail: u64_at(block, 72),
            durable: u64_at(block, 80),
            incarnation: u64_at(block, 88),
            prewritten: u64_at(block, 96),
            opened: u64_at(block, 104),
            chain: Chain(u64_at(block, 112)),
            claims: (0..claims).map(|n| salt_at(block, CLAIMS_AT + n * size_of::<Salt>())).collect(),
            closed: u32_at(block, FLAGS_AT) & CLOSED != 0,
        };
        let bounded = [sb.generation, sb.ring_blocks, sb.durable, sb.incarnation, sb.prewritten, sb.opened];
        let sane = bounded.into_iter().all(|n| n < POSITION_MAX)
            && sb.ring_blocks > 0
            && sb.start <= sb.tail
            && sb.tail <= sb.durable
            && (sb.start..=sb.durable).contains(&sb.opened)
            && sb.durable - sb.tail <= sb.ring_blocks;
        Ok(sane.then_some(sb))
    }
}

/// The header of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    pub journal: JournalId,
    pub incarnation: u64,
    pub pos: u64,
    pub durable: u64,
    /// The chain before the group.
    pub chain: Chain,
    /// Drawn when the journal was opened by the group's writer: copies that are opened apart differ in it.
    pub opening: u64,
    pub records: Vec<Record>,
    /// CRC32C of each payload block.
    pub crcs: Vec<u32>,
}

/// What a header says besides its records.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    pub journal: JournalId,
    pub incarnation: u64,
    pub pos: u64,
    pub durable: u64,
    pub chain: Chain,
    pub opening: u64,
}

impl GroupHeader {
    /// The position behind the group.
    pub fn next(&self) -> u64 {
        self.pos + 1 + self.crcs.len() as u64
    }

    /// Fills one block. The group must fit ([`fits_header`]), and what is alone must be.
    pub fn encode(
        stamp: Stamp,
        records: impl ExactSizeIterator<Item = Record>,
        crcs: &[u32],
        out: &mut [u8],
    ) {
        assert_eq!(out.len(), BLOCK_BYTES);
        assert!(records.len() > 0 && fits_header(records.len(), crcs.len() as u64));
        out.fill(0);
        put_head(out, GROUP_MAGIC, stamp.journal);
        put_u32(out, 12, records.len() as u32);
        put_u64(out, 32, stamp.incarnation);
        put_u64(out, 40, stamp.pos);
        put_u64(out, 48, stamp.durable);
        put_u32(out, 56, crcs.len() as u32);
        put_u64(out, 64, stamp.chain.0);
        put_u64(out, 72, stamp.opening);
        let mut at = RECORDS_AT;
        for record in records {
            let (first, second) = encode_record(&record);
            put_u64(out, at, first);
            put_u64(out, at + 8, second);
            at += RECORD_BYTES;
        }
        for &crc in crcs {
            put_u32(out, at, crc);
            at += CRC_BYTES;
        }
        debug_assert!(at <= CRC_AT);
        put_crc(out);
    }

    /// `None` for anything that is not an intact group header of this version.
    pub fn decode(block: &[u8]) -> Option<GroupHeader> {
        if !is_intact(block, GROUP_MAGIC) || u32_at(block, 8) != VERSION {
            return None;
        }
        let records_len = u32_at(block, 12) as usize;
        let payload_blocks = u32_at(block, 56) as usize;
        if records_len == 0
            || records_len > ENTRIES_BYTES / RECORD_BYTES
            || !fits_header(records_len, payload_blocks as u64)
        {
            return None;
        }
        let records: Vec<Record> = (0..records_len)
            .map(|n| RECORDS_AT + n * RECORD_BYTES)
            .map(|at| decode_record(u64_at(block, at), u64_at(block, at + 8)))
            .collect::<Option<_>>()?;
        let described: u64 = records.iter().try_fold(0u64, |sum, r| sum.checked_add(r.payload_blocks()))?;
        let crcs_at = RECORDS_AT + records_len * RECORD_BYTES;
        let header = GroupHeader {
            journal: JournalId(uuid_at(block, 16)),
            incarnation: u64_at(block, 32),
            pos: u64_at(block, 40),
            durable: u64_at(block, 48),
            chain: Chain(u64_at(block, 64)),
            opening: u64_at(block, 72),
            records,
            crcs: (0..payload_blocks).map(|n| u32_at(block, crcs_at + n * CRC_BYTES)).collect(),
        };
        let is_alone = records_len == 1 || !header.records.iter().any(Record::is_alone);
        let sane = described == payload_blocks as u64
            && is_alone
            && header.pos < POSITION_MAX
            && header.incarnation < POSITION_MAX
            && header.durable <= header.pos;
        sane.then_some(header)
    }
}

fn encode_record(record: &Record) -> (u64, u64) {
    let (kind, start, len) = match *record {
        Record::Write(e) => (KIND_WRITE, e.start, e.len),
        Record::Zero { extent: e, allocated: false } => (KIND_HOLE, e.start, e.len),
        Record::Zero { extent: e, allocated: true } => (KIND_ZERO, e.start, e.len),
        Record::Resize { size_bytes } => (KIND_RESIZE, 0, size_bytes),
        Record::Sectors { block, mask } => (KIND_SECTORS, block, mask.bits().into()),
        Record::Operation { bytes } => (KIND_OPERATION, 0, bytes.into()),
        Record::Load { token } => (KIND_LOAD, 0, token),
    };
    debug_assert!(start < 1 << START_BITS);
    (kind << START_BITS | start, len)
}

fn decode_record(first: u64, second: u64) -> Option<Record> {
    let (kind, start) = (first >> START_BITS, first & ((1 << START_BITS) - 1));
    let extent = Extent::new(start, second);
    let record = match kind {
        KIND_WRITE => Record::Write(extent),
        KIND_HOLE => Record::Zero { extent, allocated: false },
        KIND_ZERO => Record::Zero { extent, allocated: true },
        KIND_RESIZE if start == 0 => Record::Resize { size_bytes: second },
        KIND_SECTORS => {
            Record::Sectors { block: start, mask: SectorMask::from_bits(second.try_into().ok()?) }
        }
        KIND_OPERATION if start == 0 => Record::Operation { bytes: second.try_into().ok()? },
        KIND_LOAD if start == 0 => Record::Load { token: second },
        _ => return None,
    };
    record.is_valid().then_some(record)
}

impl Record {
    /// Blocks of payload that belong to the record.
    pub fn payload_blocks(&self) -> u64 {
        match self {
            Record::Write(extent) => extent.len,
            Record::Sectors { .. } | Record::Operation { .. } => 1,
            Record::Zero { .. } | Record::Resize { .. } | Record::Load { .. } => 0,
        }
    }

    /// Whether it is an operation on snapshots.
    pub fn is_operation(&self) -> bool {
        matches!(self, Record::Operation { .. })
    }

    /// Whether it shares its group with no other record.
    pub fn is_alone(&self) -> bool {
        matches!(self, Record::Operation { .. } | Record::Load { .. })
    }

    /// The blocks it changes.
    pub fn extent(&self) -> Option<Extent> {
        match *self {
            Record::Write(extent) | Record::Zero { extent, .. } => Some(extent),
            Record::Sectors { block, .. } => Some(Extent::new(block, 1)),
            Record::Resize { .. } | Record::Operation { .. } | Record::Load { .. } => None,
        }
    }

    /// Whether the record makes sense for some volume.
    pub(super) fn is_valid(&self) -> bool {
        match self {
            Record::Write(e) | Record::Zero { extent: e, .. } => {
                e.len > 0 && e.start.checked_add(e.len).is_some_and(|end| end <= VOLUME_BLOCKS_MAX)
            }
            Record::Sectors { block, mask } => *block < VOLUME_BLOCKS_MAX && mask.is_partial(),
            Record::Resize { size_bytes } => *size_bytes <= VOLUME_BYTES_MAX,
            Record::Operation { bytes } => (1..=BLOCK_BYTES as u32).contains(bytes),
            Record::Load { .. } => true,
        }
    }
}

fn is_intact(block: &[u8], magic: [u8; 8]) -> bool {
    block.len() == BLOCK_BYTES && block[..8] == magic && u32_at(block, CRC_AT) == crc32c(&block[..CRC_AT])
}

fn put_head(out: &mut [u8], magic: [u8; 8], journal: JournalId) {
    out[..8].copy_from_slice(&magic);
    put_u32(out, 8, VERSION);
    out[16..32].copy_from_slice(journal.0.as_bytes());
}

fn put_crc(out: &mut [u8]) {
    let crc = crc32c(&out[..CRC_AT]);
    put_u32(out, CRC_AT, crc);
}

fn put_u32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

fn uuid_at(block: &[u8], at: usize) -> Uuid {
    Uuid::from_bytes(block[at..at + 16].try_into().expect("sixteen bytes"))
}

fn salt_at(block: &[u8], at: usize) -> Salt {
    Salt(block[at..at + size_of::<Salt>()].try_into().expect("sixteen bytes"))
}
