//! The journal's bytes: they are what the specification says, and no bytes break the decoder.

use cistern_engine::{
    codec::crc64,
    journal::{
        Record,
        format::{GroupHeader, Stamp, Superblock, chain_behind, crc32c, fits_header},
    },
    sectors::SectorMask,
    units::{Chain, Extent, JournalId, Salt, VolumeId},
};
use proptest::prelude::*;

mod golden;

const JOURNAL: JournalId = JournalId(uuid::Uuid::from_u128(0x00112233_4455_6677_8899_aabbccddeeff));
const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(0xffeeddcc_bbaa_9988_7766_554433221100));

fn superblock() -> Superblock {
    Superblock {
        journal: JOURNAL,
        volume: VOLUME,
        generation: 3,
        ring_blocks: 1000,
        start: 100,
        tail: 2000,
        durable: 2500,
        incarnation: 9,
        prewritten: 1100,
        opened: 1900,
        chain: Chain(0x0102_0304_0506_0708),
        claims: (1..=9).map(|n| Salt([n; 16])).collect(),
        closed: false,
    }
}

fn header() -> GroupHeader {
    GroupHeader {
        journal: JOURNAL,
        incarnation: 9,
        pos: 2600,
        durable: 2500,
        chain: Chain(0x1112_1314_1516_1718),
        opening: 0x2122_2324_2526_2728,
        records: vec![
            Record::Write(Extent::new(0x0001_0203_0405, 2)),
            Record::Zero { extent: Extent::new(7, 1 << 40), allocated: false },
            Record::Zero { extent: Extent::new(8, 1), allocated: true },
            Record::Resize { size_bytes: 1 << 40 },
            Record::Write(Extent::new(0, 1)),
            Record::Sectors { block: 9, mask: SectorMask::from_bits(0b1000_0110) },
        ],
        crcs: vec![0xAABB_CCDD, 1, 2, 3],
    }
}

fn encoded(header: &GroupHeader) -> Vec<u8> {
    let stamp = Stamp {
        journal: header.journal,
        incarnation: header.incarnation,
        pos: header.pos,
        durable: header.durable,
        chain: header.chain,
        opening: header.opening,
    };
    let mut block = vec![0xFF; 4096];
    GroupHeader::encode(stamp, header.records.iter().cloned(), &header.crcs, &mut block);
    block
}

fn encoded_superblock(superblock: &Superblock) -> Vec<u8> {
    let mut block = vec![0xFF; 4096];
    superblock.encode(&mut block);
    block
}

/// Puts the right checksum on arbitrary bytes, so that the fields behind it are reached.
fn sealed(mut block: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&block[..4092]);
    block[4092..].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Version 5 as it was written once and for all: these files never change.
#[test]
fn version_5_is_what_it_was() {
    let fresh = encoded_superblock(&superblock());
    assert!(golden::stored("journal_v5_superblock.bin", &fresh) == fresh);
    assert!(golden::stored("journal_v5_group.bin", &encoded(&header())) == encoded(&header()));
}

/// The chain behind a group is CRC-64/NVME of its header, so everything in the header is in it: the chain before, the
/// payload by its checksums, and what was drawn at the opening.
#[test]
fn the_chain_tells_headers_apart() {
    assert_eq!(crc64(b"123456789"), 0xAE8B_1486_0A79_9888, "the check value of CRC-64/NVME");
    let first = encoded(&header());
    assert_eq!(chain_behind(&first), Chain(crc64(&first)));
    let others = [
        GroupHeader { chain: Chain(1), ..header() },
        GroupHeader { opening: 1, ..header() },
        GroupHeader { crcs: vec![0xAABB_CCDD, 1, 3], ..header() },
    ];
    for other in others {
        assert_ne!(chain_behind(&encoded(&other)), chain_behind(&first), "{other:?}");
    }
}

/// What is encoded is decoded.
#[test]
fn round_trip() {
    assert_eq!(GroupHeader::decode(&encoded(&header())), Some(header()));
    for closed in [false, true] {
        let superblock = Superblock { closed, ..superblock() };
        assert_eq!(Superblock::decode(&encoded_superblock(&superblock)).expect("known"), Some(superblock));
    }
    assert_eq!(crc32c(b"123456789"), 0xE306_9283, "the check value of CRC-32C");
}

/// A superblock of a newer format says so instead of looking damaged.
#[test]
fn a_newer_version_is_named() {
    let mut block = encoded_superblock(&superblock());
    block[8] = 6;
    let refused = Superblock::decode(&sealed(block));
    assert!(matches!(refused, Err(cistern_engine::Error::Version { found: 6, known: 5, .. })));
}

/// A load is its token, and alone in its group: the range of its segment is that group.
#[test]
fn a_load_is_alone() {
    for token in [0, 1, u64::MAX] {
        let alone = GroupHeader { records: vec![Record::Load { token }], crcs: vec![], ..header() };
        assert_eq!(GroupHeader::decode(&encoded(&alone)), Some(alone));
        let records = vec![Record::Load { token }, Record::Resize { size_bytes: 512 }];
        let with_others = GroupHeader { records, crcs: vec![], ..header() };
        assert_eq!(GroupHeader::decode(&encoded(&with_others)), None);
    }
    let mut block =
        encoded(&GroupHeader { records: vec![Record::Load { token: 7 }], crcs: vec![], ..header() });
    block[80] = 1; // a first block
    assert_eq!(GroupHeader::decode(&sealed(block)), None);
}

/// An operation on snapshots is alone in its group: what else the group held would lie before it or behind it, and nobody could
/// tell which.
#[test]
fn an_operation_is_alone() {
    let operation = Record::Operation { bytes: 17 };
    let alone = GroupHeader { records: vec![operation.clone()], crcs: vec![7], ..header() };
    assert_eq!(GroupHeader::decode(&encoded(&alone)), Some(alone));
    let with_others = GroupHeader {
        records: vec![operation, Record::Resize { size_bytes: 512 }],
        crcs: vec![7],
        ..header()
    };
    assert_eq!(GroupHeader::decode(&encoded(&with_others)), None);
    for bytes in [0, 4097] {
        let impossible =
            GroupHeader { records: vec![Record::Operation { bytes }], crcs: vec![7], ..header() };
        assert_eq!(GroupHeader::decode(&encoded(&impossible)), None);
    }
}

/// Sectors of a block are some and not all: anything else says it as nothing or as a whole block.
#[test]
fn sectors_are_a_part_of_a_block() {
    for bits in 0..=u8::MAX {
        let sectors = Record::Sectors { block: 1, mask: SectorMask::from_bits(bits) };
        let header = GroupHeader { records: vec![sectors], crcs: vec![7], ..header() };
        let decoded = GroupHeader::decode(&encoded(&header));
        assert_eq!(decoded, Some(header).filter(|_| !matches!(bits, 0 | u8::MAX)));
    }
    let mut block = encoded(&header());
    block[64 + 16 * 5 + 9] = 1; // a ninth sector
    assert_eq!(GroupHeader::decode(&sealed(block)), None);
}

/// One write of a whole group fits, one block more does not; many small records have their limit.
#[test]
fn header_limits() {
    assert!(fits_header(1, 256));
    assert!(!fits_header(1, 257));
    assert!(fits_header(200, 203));
    assert!(!fits_header(200, 204));
    assert!(fits_header(250, 3));
    assert!(!fits_header(251, 0));
}

/// Every single flipped bit of a header is noticed.
#[test]
fn every_flipped_bit_is_noticed() {
    let (group, superblock) = (encoded(&header()), encoded_superblock(&superblock()));
    for bit in 0..4096 * 8 {
        let (mut group, mut superblock) = (group.clone(), superblock.clone());
        group[bit / 8] ^= 1 << (bit % 8);
        superblock[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(GroupHeader::decode(&group), None);
        assert_eq!(Superblock::decode(&superblock).expect("damage is not a version"), None);
    }
}

proptest! {
    /// Arbitrary bytes never panic and are never taken for a header.
    #[test]
    fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert_eq!(GroupHeader::decode(&bytes), None);
        prop_assert!(matches!(Superblock::decode(&bytes), Ok(None)));
    }

    /// Headers with arbitrary fields under a right checksum never panic, and whatever is accepted
    /// can be encoded again to the same meaning.
    #[test]
    fn arbitrary_fields_are_checked(
        changes in prop::collection::vec((0usize..200, any::<u8>()), 1..20),
        records in 0u8..8, blocks in 0u8..8,
    ) {
        let mut block = encoded(&header());
        block[12] = records;
        block[56] = blocks;
        for &(at, value) in &changes {
            block[8 + at] = value;
        }
        if let Some(decoded) = GroupHeader::decode(&sealed(block)) {
            let again = GroupHeader::decode(&encoded(&decoded));
            prop_assert_eq!(again, Some(decoded));
        }
        let mut block = encoded_superblock(&superblock());
        for &(at, value) in &changes {
            block[12 + at] = value;
        }
        if let Ok(Some(decoded)) = Superblock::decode(&sealed(block)) {
            prop_assert_eq!(Superblock::decode(&encoded_superblock(&decoded)).expect("known"), Some(decoded));
        }
    }
}
