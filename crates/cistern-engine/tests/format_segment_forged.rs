//! Log objects as the format is written down, sealed rightly, with wrong content. They stand for
//! whoever can write to an unencrypted store, and for our own bugs.

use bytes::Bytes;
use cistern_engine::{
    codec::{Compression, MAGIC, ObjectKind, Sealer, compress, crc32c, fields::put_varint},
    segment::{Content, Entry, JournalRange, MAPPINGS_MAX, open_frame, open_payload, open_raw},
    units::{BLOCK_BYTES, Chain, Extent, FrameRef, JournalPos, Mapping, Mark, Place, Seq, VOLUME_BYTES_MAX},
};
use golden::{corrupt, journal, salt, slot, volume, whole};
use proptest::prelude::*;

mod golden;

/// The version of log objects, by the format.
const FORMAT: u8 = 5;

fn forge(kind: u8, frames: &[u8], footer: &[u8]) -> Vec<u8> {
    let mut object = [&MAGIC[..], &[FORMAT], frames].concat();
    let offset = object.len();
    let sealed_as = [ObjectKind::Segment, ObjectKind::Claim, ObjectKind::Release];
    let sealed_as = sealed_as.into_iter().find(|k| *k as u8 == kind).unwrap_or(ObjectKind::Run);
    let plain = [&3_u64.to_le_bytes()[..], &[0; 16], footer].concat();
    Sealer::new(None, volume(1), sealed_as, salt(0x5a), 5).seal(offset as u64, &plain, &mut object);
    let trailer = object.len();
    object.extend_from_slice(volume(1).0.as_bytes());
    object.extend_from_slice(&3_u64.to_le_bytes());
    object.extend_from_slice(&5_u64.to_le_bytes());
    object.extend_from_slice(&salt(0x5a).0);
    object.extend_from_slice(&[9; 8]);
    object.extend_from_slice(&[0; 16]);
    object.extend_from_slice(&(offset as u32).to_le_bytes());
    object.extend_from_slice(&((trailer - offset) as u32).to_le_bytes());
    object.extend_from_slice(&[kind, 0, 0, 0]);
    object.extend_from_slice(&crc32c(&object[trailer..]).to_le_bytes());
    object.extend_from_slice(&MAGIC);
    object.push(FORMAT);
    assert_eq!(object.len() - trailer, 96);
    object
}

fn footer(from: u64, to: u64, size: u64, count: u32, mappings: &[u8]) -> Vec<u8> {
    let mut out = [&[1][..], journal().0.as_bytes()].concat();
    out.extend_from_slice(&from.to_le_bytes());
    out.extend_from_slice(&0x0f_u64.to_le_bytes());
    out.extend_from_slice(&to.to_le_bytes());
    out.extend_from_slice(&0x70_u64.to_le_bytes());
    out.extend_from_slice(&size.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(mappings);
    out
}

fn varint(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, value);
    out
}

/// The format as written down gives the object that the code reads.
#[test]
fn a_segment_made_by_the_book_reads() {
    // Block 9: a frame of 2 blocks in 100 bytes; 11: one in 100 as well; 20: hole of 5; 25: zeroes.
    let mappings = [
        &[0x12][..],
        &varint(9),
        &varint(100),
        &[0x0e],
        &[0x00],
        &varint(8),
        &varint(5),
        &[0x05],
        &varint(3),
    ];
    let object = forge(1, &[0; 200], &footer(1, 2, 512, 4, &mappings.concat()));
    let (_, Entry::Segment(read)) = whole(None, &slot(1, 5), &object).unwrap() else { panic!() };
    let frame = |offset| Place::Frame(FrameRef { seq: Seq(5), offset, stored: 100, index: 0 });
    let mapping = |start, len, place| Mapping { extent: Extent::new(start, len), birth: Seq(5), place };
    let expected = [
        mapping(9, 2, frame(8)),
        mapping(11, 1, frame(108)),
        mapping(20, 5, Place::Hole),
        mapping(25, 3, Place::Zero),
    ];
    assert_eq!(read.mappings, expected);
    let mark = |pos, chain| Mark { pos: JournalPos(pos), chain: Chain(chain) };
    let range = JournalRange { journal: journal(), from: mark(1, 0x0f), to: mark(2, 0x70) };
    assert_eq!(read.content, Content::Written { range, size_bytes: 512 });
}

/// Content out of bounds is refused even under a right seal.
#[test]
fn forged_footers_are_refused() {
    let blocks_max = VOLUME_BYTES_MAX / BLOCK_BYTES as u64;
    let hole = |gap: u64, len: u64| [vec![0x00], varint(gap), varint(len)].concat();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("backwards", footer(2, 1, 512, 0, &[])),
        ("size", footer(1, 2, 513, 0, &[])),
        ("size", footer(1, 2, VOLUME_BYTES_MAX + 512, 0, &[])),
        ("too many", footer(1, 2, 512, MAPPINGS_MAX as u32 + 1, &[])),
        ("too many", footer(1, 2, 512, u32::MAX, &[])),
        ("cut short", footer(1, 2, 512, 1, &[])),
        ("cut short", footer(1, 2, 512, 0, &[])[..30].to_vec()),
        ("too long", footer(1, 2, 512, 0, &[0])),
        ("out of bounds", footer(1, 2, 512, 1, &hole(0, blocks_max + 1))),
        ("out of bounds", footer(1, 2, 512, 1, &hole(blocks_max, 1))),
        ("out of bounds", footer(1, 2, 512, 1, &hole(1, 0))),
        ("out of bounds", footer(1, 2, 512, 1, &hole(u64::MAX, 2))),
        ("out of bounds", footer(1, 2, 512, 2, &[hole(1, 1), hole(u64::MAX, u64::MAX)].concat())),
        ("no known kind", footer(1, 2, 512, 1, &[0x03, 1, 1])),
        ("no known kind", footer(1, 2, 512, 1, &[0x10, 1, 1])),
        ("no length", footer(1, 2, 512, 1, &[0x0a, 1])),
        ("no length", footer(1, 2, 512, 1, &[0x02, 1, 0])),
        ("do not fill", footer(1, 2, 512, 1, &[0x02, 1, 99])),
        ("do not fill", footer(1, 2, 512, 1, &[0x02, 1, 101])),
        ("no length", footer(1, 2, 512, 1, &[vec![0x02, 1], varint(1 << 32)].concat())),
        ("a frame is out", footer(1, 2, 512, 1, &[vec![0x02, 1], varint(u32::MAX.into())].concat())),
    ];
    let moved = |base: u64, count: u32, frames: &[u8]| {
        [&[2][..], &base.to_le_bytes(), &count.to_le_bytes(), frames].concat()
    };
    let kept = |base: u64, count: u32, frames: &[u8]| {
        [&[4][..], &base.to_le_bytes(), &count.to_le_bytes(), frames].concat()
    };
    let frame = |births: &[u8]| [&[0x12, 1, 100][..], births].concat(); // of two blocks
    let cases = cases.into_iter().chain([
        ("nothing that is known", vec![0]),
        ("nothing that is known", vec![5]),
        ("cut short", vec![4]),
        ("later time", kept(5, 0, &[])),
        ("never born", kept(4, 1, &frame(&[4 << 1]))),
        ("no data", kept(4, 1, &[0x00, 1, 1, 0])),
        (
            "out of bounds",
            kept(4, 2, &[frame(&[0]), [vec![0x12], varint(u64::MAX), vec![100, 0]].concat()].concat()),
        ),
        ("cut short", vec![3]),
        ("cut short", vec![]),
        ("cut short", vec![2, 4]),
        ("later time", moved(5, 0, &[])),
        ("no data", moved(4, 1, &[0x00, 1, 1, 0])),
        ("never born", moved(4, 1, &frame(&[4 << 1]))),
        ("never born", moved(4, 1, &frame(&[5 << 1]))),
        ("no block of its frame", moved(4, 1, &frame(&[1 << 1 | 1, 0]))),
        ("no block of its frame", moved(4, 1, &frame(&[1 << 1 | 1, 2]))),
        ("cut short", moved(4, 1, &frame(&[1 << 1 | 1, 1]))),
        ("do not fill", moved(4, 1, &[0x12, 1, 99, 0])),
    ]);
    for (expected, footer) in cases {
        let frames = vec![0; if expected == "do not fill" { 100 } else { 0 }];
        let text = corrupt(whole(None, &slot(1, 5), &forge(1, &frames, &footer)));
        assert!(text.contains(expected), "{expected}: {text}");
    }
    for kind in [0, 4, 255] {
        corrupt(whole(None, &slot(1, 5), &forge(kind, &[], &[])));
    }
    for kind in [2, 3] {
        let good = [7_u64.to_le_bytes(), 512_u64.to_le_bytes()].concat();
        let text = corrupt(whole(None, &slot(1, 5), &forge(kind, &[1], &good)));
        assert!(text.contains("only segments"), "{text}");
    }
    let release = [7_u64.to_le_bytes(), 513_u64.to_le_bytes()].concat();
    assert!(corrupt(whole(None, &slot(1, 5), &forge(3, &[], &release))).contains("size"));
    assert!(
        corrupt(whole(None, &slot(1, 5), &forge(3, &[], &[&release[..], &[0]].concat())))
            .contains("malformed")
    );
}

/// A frame under a right seal that says it has no blocks, too many, or that decodes to another
/// length, or whose padding is not, is refused.
#[test]
fn forged_frames_are_refused() {
    let sealer = Sealer::new(None, volume(1), ObjectKind::Segment, salt(0x5a), 5);
    let bomb = {
        let mut payload = vec![1];
        compress(Compression::Zstd, &[0; 1 << 20], &mut payload);
        payload
    };
    let raw = |blocks: u8, bytes: usize| [vec![blocks, 0], vec![0; bytes]].concat();
    let padding = |blocks: u8, bytes: usize, last: u8| [raw(blocks, bytes), vec![last]].concat();
    let whole = raw(1, 4096);
    let plains = [
        vec![],
        vec![1],
        vec![0x81],
        raw(0, 0),
        raw(0x80, 0),
        raw(17, 17 * 4096),
        raw(0x91, 17 * 4096),
        raw(1, 4095),
        raw(1, 4097),
        raw(0x81, 4096),
        padding(1, 4096, 0),
        padding(0x81, 4096, 1),
        raw(2, 4096),
        bomb,
    ];
    for (plain, good) in
        plains.into_iter().map(|p| (p, false)).chain([(whole, true), (padding(0x81, 4096, 0), true)])
    {
        let mut stored = Vec::new();
        sealer.seal(8, &plain, &mut stored);
        let frame = FrameRef { seq: Seq(5), offset: 8, stored: stored.len() as u32, index: 0 };
        let opened = open_frame(&sealer, &frame, &stored);
        if good {
            assert_eq!(opened.unwrap()[..], [0; 4096]);
        } else {
            corrupt(opened);
        }
    }
}

/// A packed frame whose payload is none, or longer than that of what does not compress, is refused also where it is not unpacked: whoever passes it on
/// relies on that.
#[test]
fn forged_payloads_are_refused() {
    let sealer = Sealer::new(None, volume(1), ObjectKind::Segment, salt(0x5a), 5);
    let open = |plain: &[u8]| {
        let mut stored = Vec::new();
        sealer.seal(8, plain, &mut stored);
        let frame = FrameRef { seq: Seq(5), offset: 8, stored: stored.len() as u32, index: 0 };
        let payload = open_payload(&sealer, &frame, 8, &Bytes::from(stored.clone()));
        (payload, open_frame(&sealer, &frame, &stored))
    };
    let long = |blocks: u8, len: usize| [&[blocks][..], &vec![0; len]].concat();
    let whole = 8 * BLOCK_BYTES + 1;
    for plain in [vec![8], vec![0x88, 0], long(8, whole + 1), long(0x88, whole + 2), long(8, 3 * whole)] {
        let (payload, blocks) = open(&plain);
        corrupt(payload);
        corrupt(blocks);
    }
    for plain in [long(8, whole), long(0x88, whole + 1)] {
        let (payload, blocks) = open(&plain);
        assert_eq!(payload.unwrap().map(|payload| payload.len()), Some(whole));
        assert_eq!(blocks.unwrap().len(), 8 * BLOCK_BYTES);
    }
}

/// A raw frame of more blocks than a frame may have is refused, whichever of them is wanted, and so is
/// one whose blocks are whole only together.
#[test]
fn forged_raw_frames_are_refused() {
    let sealer = Sealer::new(None, volume(1), ObjectKind::Segment, salt(0x5a), 5);
    let unit = BLOCK_BYTES + sealer.overhead();
    let mut stored = Vec::new();
    for n in 0..17 {
        sealer.seal(8 + n * unit as u64, &[7; BLOCK_BYTES], &mut stored);
    }
    let frame = |blocks: usize| FrameRef { seq: Seq(5), offset: 8, stored: (blocks * unit) as u32, index: 0 };
    assert_eq!(open_frame(&sealer, &frame(16), &stored[..16 * unit]).unwrap().len(), 16 * BLOCK_BYTES);
    corrupt(open_frame(&sealer, &frame(17), &stored));
    corrupt(open_raw(&sealer, &frame(17), &stored[..unit]));
    let mut together = Vec::new();
    sealer.seal(8, &vec![7; 2 * unit - sealer.overhead()], &mut together);
    corrupt(open_frame(&sealer, &frame(2), &together));
}

proptest! {
    #![proptest_config(golden::cases(48))]

    /// Arbitrary bytes under a right seal never panic, whatever kind they claim to be.
    #[test]
    fn arbitrary_footers_are_harmless(
        kind in 0..5_u8,
        fixed: bool,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let footer = if fixed { footer(1, 2, 512, 20, &bytes) } else { bytes };
        let _ = whole(None, &slot(1, 5), &forge(kind, &[], &footer));
    }
}
