//! The log objects: they read back, and nothing that is damaged, swapped, forged or cut does.

use std::{ops::Range, sync::LazyLock};

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::{Compression, MAGIC, MasterKey, ObjectKind, Sealer, fields::put_varint},
    segment::{
        Claim, Content, Entry, EntryHead, EntryKind, FORMAT, Footer, FrameShape, JournalRange, MAPPINGS_MAX,
        Release, Rollback, SealedSegment, SegmentBuilder, Slot, TAIL_BYTES, Tail, encode_claim,
        encode_release, open_frame, open_raw, read_head, read_tail,
    },
    snapshot::Operation,
    units::{
        BLOCK_BYTES, Chain, Epoch, Extent, FrameRef, JournalPos, Mark, Place, SealNonce, Seq, SnapshotId,
    },
};
use golden::{corrupt, journal, key, noise, range, salt, slot, volume, whole};
use proptest::prelude::*;

mod golden;

/// Bytes of the trailer, by the format.
const TRAILER: usize = 96;
const SIZE: u64 = 0x1_2345_6000;
static KEY: LazyLock<MasterKey> = LazyLock::new(|| key(1));

fn builder(key: Option<&MasterKey>, compression: Compression, slot: Slot) -> SegmentBuilder {
    SegmentBuilder::written(key, slot, range(), SIZE, compression)
}

/// The fixed segment of the golden files: two frames, a hole, allocated zeroes.
fn sample(key: Option<&MasterKey>, compression: Compression, slot: Slot) -> SealedSegment {
    let mut builder = builder(key, compression, slot);
    builder.data(0x1_2233, &[0xd7; BLOCK_BYTES]);
    builder.zero(Extent::new(0x1_2234, 100), false);
    builder.zero(Extent::new(0x2_0000, 7), true);
    builder.data(0x3_0000, &[[0x11; BLOCK_BYTES], [0x22; BLOCK_BYTES]].concat());
    builder.finish()
}

/// A fixed segment of what was moved: a frame of three births, and one of a single block.
fn moved_sample(key: Option<&MasterKey>, compression: Compression, slot: Slot) -> SealedSegment {
    let mut builder = SegmentBuilder::moved(key, slot, Seq(4), 77, compression);
    builder.data_born(0x1_2230, Seq(4), &[0xd7; 2 * BLOCK_BYTES]);
    builder.data_born(0x1_2232, Seq(1), &[0xd8; BLOCK_BYTES]);
    builder.data_born(0x1_2233, Seq(3), &[0xd9; BLOCK_BYTES]);
    builder.data_born(0x3_0000, Seq(3), &[0x11; BLOCK_BYTES]);
    builder.finish()
}

fn kept_sample(key: Option<&MasterKey>, compression: Compression, slot: Slot) -> SealedSegment {
    let mut builder = SegmentBuilder::kept(key, slot, Seq(4), 77, compression);
    builder.data_born(0x1_2230, Seq(1), &[0xd7; 3 * BLOCK_BYTES]);
    builder.data_born(0x1_2230, Seq(3), &[0xd8; BLOCK_BYTES]);
    builder.data_born(0x1_2231, Seq(2), &[0xd9; 2 * BLOCK_BYTES]);
    builder.data_born(0x1_2231, Seq(4), &[0xda; BLOCK_BYTES]);
    builder.finish()
}

fn written() -> Content {
    Content::Written { range: range(), size_bytes: SIZE }
}

fn claim() -> Claim {
    Claim {
        host: "db-7.example.org".to_owned(),
        wall_ms: 1_700_000_000_123,
        journal: journal(),
        start: golden::mark(77),
        size_bytes: SIZE,
    }
}

fn release() -> Release {
    Release { wall_ms: 1_700_000_009_999, size_bytes: SIZE, rollback: None }
}

fn rollback() -> Release {
    let to = SnapshotId(uuid::Uuid::from_u128(0x51));
    Release { rollback: Some(Rollback { to, branch: volume(0x52) }), ..release() }
}

/// Everything there is to verify in a log object: the entry and all frames.
fn verify(key: Option<&MasterKey>, slot: &Slot, object: &[u8]) -> Result<(Entry, Vec<Bytes>)> {
    let (head, entry) = whole(key, slot, object)?;
    let mut frames = Vec::new();
    if let Entry::Segment(footer) = &entry {
        let sealer = Sealer::new(key, slot.volume, ObjectKind::Segment, head.salt, slot.seq.0);
        for mapping in &footer.mappings {
            if let Place::Frame(frame) = mapping.place {
                let stored = &object[frame.offset as usize..][..frame.stored as usize];
                frames.push(open_frame(&sealer, &FrameRef { index: 0, ..frame }, stored)?);
            }
        }
    }
    Ok((entry, frames))
}

/// One small object of each kind, with and without encryption.
fn all_kinds() -> Vec<(Option<&'static MasterKey>, Bytes)> {
    let mut all = Vec::new();
    for key in [None, Some(&*KEY)] {
        all.push((key, sample(key, Compression::Lz4, slot(1, 5)).body));
        all.push((key, moved_sample(key, Compression::Lz4, slot(1, 5)).body));
        all.push((key, kept_sample(key, Compression::Lz4, slot(1, 5)).body));
        all.push((key, encode_claim(key, &slot(1, 5), &claim())));
        all.push((key, encode_release(key, &slot(1, 5), &release())));
        all.push((key, encode_release(key, &slot(1, 5), &rollback())));
    }
    all
}

/// A segment gives back its range, its size and every block, at the mappings that were promised
/// when it was built.
#[test]
fn a_segment_reads_back() {
    for key in [None, Some(&*KEY)] {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let built = sample(key, compression, slot(1, 5));
            let (head, entry) = whole(key, &slot(1, 5), &built.body).unwrap();
            assert_eq!(
                head,
                EntryHead {
                    kind: EntryKind::Segment,
                    volume: volume(1),
                    epoch: Epoch(3),
                    seq: Seq(5),
                    salt: salt(0x5a),
                    nonce: slot(1, 5).nonce.mixed_with(range().from.chain.0 ^ range().to.chain.0),
                    checkpoint: Some((Epoch(2), Seq(4))),
                }
            );
            let footer =
                Footer { content: written(), operations: Vec::new(), mappings: built.mappings.clone() };
            assert_eq!(entry, Entry::Segment(footer));
            assert_eq!(built.data_bytes, 3 * BLOCK_BYTES as u64);
            let extents: Vec<_> = built.mappings.iter().map(|m| (m.extent.start, m.extent.len)).collect();
            assert_eq!(extents, [(0x1_2233, 1), (0x1_2234, 100), (0x2_0000, 7), (0x3_0000, 2)]);
            let (_, frames) = verify(key, &slot(1, 5), &built.body).unwrap();
            assert_eq!(frames[0][..], [0xd7; BLOCK_BYTES]);
            assert_eq!(frames[1][..], [[0x11; BLOCK_BYTES], [0x22; BLOCK_BYTES]].concat());
        }
    }
}

/// Operations on snapshots read back in their order, behind everything else; a segment may carry nothing else.
#[test]
fn operations_read_back() {
    for key in [None, Some(&*KEY)] {
        let mut builder = builder(key, Compression::Lz4, slot(1, 5));
        let id = SnapshotId(uuid::Uuid::from_u128(9));
        let operations = vec![
            Operation::Make { id, name: "a".into(), made_ms: 1_700_000_000_123 },
            Operation::Hold { name: "a".into(), tag: "sent".into() },
            Operation::Remove { name: "b".into(), bookmark: false },
        ];
        operations.iter().for_each(|operation| builder.operation(operation.clone()));
        let built = builder.finish();
        let (_, entry) = whole(key, &slot(1, 5), &built.body).unwrap();
        assert_eq!(entry, Entry::Segment(Footer { content: written(), operations, mappings: Vec::new() }));
    }
}

/// Blocks that were moved read back with their births, also where a frame has blocks of several.
#[test]
fn what_was_moved_keeps_its_births() {
    for key in [None, Some(&*KEY)] {
        for compression in [Compression::None, Compression::Lz4] {
            let built = moved_sample(key, compression, slot(1, 5));
            let (_, entry) = whole(key, &slot(1, 5), &built.body).unwrap();
            let (content, mappings) = (Content::Moved { base: Seq(4) }, built.mappings.clone());
            let footer = Footer { content, operations: Vec::new(), mappings };
            assert_eq!(entry, Entry::Segment(footer));
            assert_eq!(built.data_bytes, 5 * BLOCK_BYTES as u64);
            let places: Vec<_> = built
                .mappings
                .iter()
                .map(|m| {
                    let Place::Frame(frame) = m.place else { panic!("only data is moved") };
                    (m.extent.start, m.extent.len, m.birth.0, frame.index)
                })
                .collect();
            let first = [(0x1_2230, 2, 4, 0), (0x1_2232, 1, 1, 2), (0x1_2233, 1, 3, 3)];
            assert_eq!(places, [&first[..], &[(0x3_0000, 1, 3, 0)]].concat());
        }
    }
}

/// Several versions of a block that are kept for snapshots read back, each with its birth, also where they share a frame with others.
#[test]
fn versions_that_are_kept_read_back() {
    for key in [None, Some(&*KEY)] {
        for compression in [Compression::None, Compression::Lz4] {
            let built = kept_sample(key, compression, slot(1, 5));
            let (entry, frames) = verify(key, &slot(1, 5), &built.body).unwrap();
            let (content, mappings) = (Content::Kept { base: Seq(4) }, built.mappings.clone());
            assert_eq!(entry, Entry::Segment(Footer { content, operations: Vec::new(), mappings }));
            let versions: Vec<_> = built
                .mappings
                .iter()
                .zip(frames)
                .map(|(m, frame)| {
                    let Place::Frame(f) = m.place else { panic!("only data is kept") };
                    (m.extent.start, m.extent.len, m.birth.0, frame[usize::from(f.index) * BLOCK_BYTES])
                })
                .collect();
            let first = [(0x1_2230, 3, 1, 0xd7), (0x1_2230, 1, 3, 0xd8)];
            assert_eq!(versions, [first, [(0x1_2231, 2, 2, 0xd9), (0x1_2231, 1, 4, 0xda)]].concat());
        }
    }
}

/// Claims and releases read back; a host name is kept within bounds and printable.
#[test]
fn claims_and_releases_read_back() {
    for key in [None, Some(&*KEY)] {
        let object = encode_claim(key, &slot(1, 9), &claim());
        let (head, entry) = whole(key, &slot(1, 9), &object).unwrap();
        assert_eq!((head.kind, entry), (EntryKind::Claim, Entry::Claim(claim())));
        for release in [release(), rollback()] {
            let object = encode_release(key, &slot(1, 9), &release);
            let (head, entry) = whole(key, &slot(1, 9), &object).unwrap();
            assert_eq!((head.kind, entry), (EntryKind::Release, Entry::Release(release)));
        }
        let odd = Claim { host: format!("a\x1b[31m\n{}", "ü".repeat(200)), ..claim() };
        let object = encode_claim(key, &slot(1, 9), &odd);
        let (_, Entry::Claim(read)) = whole(key, &slot(1, 9), &object).unwrap() else { panic!() };
        assert_eq!(read.host, format!("a[31m{}", "ü".repeat(125)));
    }
}

/// The bytes are what version 5 wrote, and what version 5 wrote still reads: these files stand
/// for objects in users' stores.
#[test]
fn golden_log_objects() {
    for (suffix, key) in [("plain", None), ("sealed", Some(&*KEY))] {
        for (name, compression) in
            [("raw", Compression::None), ("lz4", Compression::Lz4), ("zstd", Compression::Zstd)]
        {
            let fresh = sample(key, compression, slot(1, 5));
            let stored = golden::stored(&format!("segment-5-{name}-{suffix}.bin"), &fresh.body);
            let expected = verify(key, &slot(1, 5), &fresh.body).unwrap();
            let (Entry::Segment(footer), frames) = verify(key, &slot(1, 5), &stored).unwrap() else {
                panic!()
            };
            assert_eq!(frames, expected.1);
            assert_eq!(footer.content, written());
            if compression == Compression::None {
                assert_eq!(stored, fresh.body); // a compressor may improve, the format may not
            }
        }
        let fresh = moved_sample(key, Compression::None, slot(1, 5)).body;
        assert_eq!(golden::stored(&format!("moved-5-raw-{suffix}.bin"), &fresh), fresh);
        let fresh = encode_claim(key, &slot(1, 5), &claim());
        assert_eq!(golden::stored(&format!("claim-5-{suffix}.bin"), &fresh), fresh);
        let fresh = encode_release(key, &slot(1, 5), &release());
        assert_eq!(golden::stored(&format!("release-5-{suffix}.bin"), &fresh), fresh);
        let fresh = encode_release(key, &slot(1, 5), &rollback());
        assert_eq!(golden::stored(&format!("rollback-5-{suffix}.bin"), &fresh), fresh);
    }
}

/// Every single flipped bit of an object is detected, wherever it is.
#[test]
fn every_flipped_bit_is_detected() {
    for (key, object) in all_kinds() {
        verify(key, &slot(1, 5), &object).unwrap();
        let mut damaged = object.to_vec();
        for bit in 0..damaged.len() * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            let result = verify(key, &slot(1, 5), &damaged);
            assert!(
                matches!(result, Err(Error::Corrupt { .. } | Error::Version { .. })),
                "bit {bit} of {}: {result:?}",
                damaged.len()
            );
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// An object that was cut at any length, at either end, is refused.
#[test]
fn every_truncation_is_detected() {
    for (key, object) in all_kinds() {
        for len in 0..object.len() {
            corrupt(verify(key, &slot(1, 5), &object[..len]));
            corrupt(verify(key, &slot(1, 5), &object[object.len() - len..]));
        }
    }
}

/// An object of another volume is told from one of ours by its trailer, if that is intact; damaged, it may be
/// ours and is corrupt.
#[test]
fn objects_of_other_volumes_are_told_by_an_intact_trailer() {
    for key in [None, Some(&*KEY)] {
        let object = sample(key, Compression::Lz4, slot(2, 6)).body;
        let read = |object: &[u8]| read_tail(key, volume(1), Seq(6), object.len() as u64, object);
        assert_eq!(read(&object).unwrap(), Tail::Foreign(volume(2)));
        let elsewhere = read_tail(key, volume(1), Seq(5), object.len() as u64, &object);
        assert_eq!(elsewhere.unwrap(), Tail::Foreign(volume(2)));
        for bit in 0..(TRAILER - 8) * 8 {
            let mut damaged = object.to_vec();
            let at = damaged.len() - (TRAILER - 8) + bit / 8;
            damaged[at] ^= 1 << (bit % 8);
            assert!(read(&damaged).is_err(), "bit {bit} of the trailer");
        }
        corrupt(read(&object[..object.len() - 1]));
        corrupt(read(
            b"put there by hand, and longer than a prefix and a trailer together, which have 104 bytes",
        ));
    }
}

/// An object of another seq says so, and one that claims our identity with another's
/// bytes does not open.
#[test]
fn swapped_objects_are_detected() {
    for key in [None, Some(&*KEY)] {
        let object = sample(key, Compression::Lz4, slot(2, 6)).body;
        let text = corrupt(whole(key, &slot(2, 5), &object));
        assert!(text.contains("log/0000000000000005") && text.contains("log/0000000000000006"), "{text}");
        assert_eq!(read_head(Seq(6), &object).unwrap().volume, volume(2));
        // The trailer of one on the body of the other, lengths being equal.
        for other in [
            slot(1, 6),
            slot(2, 7),
            Slot { salt: salt(1), ..slot(2, 6) },
            Slot { epoch: Epoch(4), ..slot(2, 6) },
            Slot { checkpoint: Some((Epoch(2), Seq(5))), ..slot(2, 6) },
            Slot { checkpoint: None, ..slot(2, 6) },
            Slot { nonce: SealNonce([1; 8]), ..slot(2, 6) },
        ] {
            if key.is_none() && other.nonce != slot(2, 6).nonce {
                continue; // nothing is sealed under it
            }
            let mut mixed = object[..object.len() - TRAILER].to_vec();
            let twin = sample(key, Compression::Lz4, other).body;
            mixed.extend_from_slice(&twin[twin.len() - TRAILER..]);
            corrupt(whole(key, &other, &mixed));
        }
    }
}

/// A frame opens in its own segment and at its own offset only.
#[test]
fn swapped_frames_are_detected() {
    for key in [None, Some(&*KEY)] {
        let mut builder = builder(key, Compression::None, slot(1, 5));
        builder.data(1, &[1; BLOCK_BYTES]);
        builder.data(3, &[3; BLOCK_BYTES]);
        let built = builder.finish();
        let [Place::Frame(one), Place::Frame(two)] = [built.mappings[0].place, built.mappings[1].place]
        else {
            panic!()
        };
        assert_eq!(one.stored, two.stored);
        let stored = |f: &FrameRef| &built.body[f.offset as usize..][..f.stored as usize];
        let open = |seq: u64, f: &FrameRef, stored: &[u8]| {
            let sealer = Sealer::new(key, volume(1), ObjectKind::Segment, salt(0x5a), seq);
            open_frame(&sealer, f, stored)
        };
        assert_eq!(open(5, &one, stored(&one)).unwrap()[..], [1; BLOCK_BYTES]);
        assert_eq!(open(5, &two, stored(&two)).unwrap()[..], [3; BLOCK_BYTES]);
        assert!(corrupt(open(5, &one, stored(&two))).contains("frame at 8 of"));
        corrupt(open(6, &one, stored(&one)));
        corrupt(open(5, &FrameRef { index: 1, ..one }, stored(&one)));
        corrupt(open(5, &one, &stored(&one)[1..]));
    }
}

/// A machine was cloned while it ran, its source of chance included: both sides draw the same for the same slot of the same
/// epoch. What differs in content shares no key stream, at no offset; what is the same is the same object.
#[test]
fn copies_of_a_writer_never_share_a_key_stream() {
    let mut state = 1;
    let plain = [noise(&mut state, 4 * BLOCK_BYTES), noise(&mut state, 4 * BLOCK_BYTES)];
    let other_end = Mark { pos: range().to.pos, chain: Chain(1) };
    let other_begin = Mark { pos: JournalPos(0x1111_2223), chain: Chain(2) };
    let sealed = |data: &[u8], range| {
        let mut builder = SegmentBuilder::written(Some(&KEY), slot(1, 5), range, SIZE, Compression::None);
        builder.data(0, data);
        builder.finish().body
    };
    let first = sealed(&plain[0], range());
    assert_eq!(first, sealed(&plain[0], range()));
    let xor = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| a ^ b).collect::<Vec<_>>();
    for range in [JournalRange { to: other_end, ..range() }, JournalRange { from: other_begin, ..range() }] {
        let second = sealed(&plain[1], range);
        assert_ne!(read_head(Seq(5), &first).unwrap(), read_head(Seq(5), &second).unwrap());
        for block in 0..4 {
            let stored = 8 + block * (BLOCK_BYTES + 24)..;
            let plains = plain.each_ref().map(|plain| &plain[block * BLOCK_BYTES..][..BLOCK_BYTES]);
            let shared = xor(&first[stored.clone()][..BLOCK_BYTES], &second[stored][..BLOCK_BYTES]);
            let alike = shared.iter().zip(xor(plains[0], plains[1])).filter(|(a, b)| **a == *b).count();
            assert!(alike < 64, "{alike} bytes of block {block} have the same key stream"); // 16 by chance
        }
    }
    let claims = [1, 2].map(|wall_ms| encode_claim(Some(&KEY), &slot(1, 5), &Claim { wall_ms, ..claim() }));
    assert_ne!(read_head(Seq(5), &claims[0]).unwrap(), read_head(Seq(5), &claims[1]).unwrap());
}

/// With encryption nothing but identities, kinds and lengths can be read from an object.
#[test]
fn encrypted_objects_tell_nothing() {
    let mut size_varint = Vec::new();
    put_varint(&mut size_varint, 0x1_2233);
    let journal = journal();
    let secrets: [&[u8]; 9] = [
        b"db-7",
        b"example",
        &[0xd7; 4],
        &[0x22; 4],
        &SIZE.to_le_bytes(),
        &0x1_2233_u64.to_le_bytes()[..4],
        &size_varint,
        journal.0.as_bytes(),
        &1_700_000_000_123_u64.to_le_bytes(),
    ];
    let show = |key| {
        let mut all = sample(key, Compression::None, slot(1, 5)).body.to_vec();
        all.extend_from_slice(&encode_claim(key, &slot(1, 6), &claim()));
        all.extend_from_slice(&encode_release(key, &slot(1, 7), &release()));
        all
    };
    let (sealed, plain) = (show(Some(&*KEY)), show(None));
    for secret in secrets {
        assert!(!golden::contains(&sealed, secret), "{secret:02x?}");
    }
    // The search would have found them.
    assert!(secrets.iter().filter(|secret| golden::contains(&plain, secret)).count() >= 8);
}

/// Opening with a wrong key, or without the key, is an error and not a panic.
#[test]
fn the_wrong_key_opens_nothing() {
    let object = sample(Some(&KEY), Compression::Lz4, slot(1, 5)).body;
    for wrong in [None, Some(&key(2))] {
        assert!(corrupt(whole(wrong, &slot(1, 5), &object)).contains("seal does not fit"));
    }
    let object = sample(None, Compression::Lz4, slot(1, 5)).body;
    corrupt(whole(Some(&KEY), &slot(1, 5), &object));
}

/// 4 KiB random incompressible writes cost at most 2 % more bytes than they have, and the footer
/// of a full segment of them fits in the first read of the tail, on a volume of 100 TiB.
#[test]
fn random_blocks_cost_little() {
    let mut state = 1;
    let mut blocks: Vec<u64> = (0..4096)
        .map(|_| u64::from_le_bytes(noise(&mut state, 8).try_into().unwrap()) % (100 << 40 >> 12))
        .collect();
    blocks.sort();
    blocks.dedup();
    let mut builder = builder(Some(&KEY), Compression::Lz4, slot(1, 5));
    builder.reserve(blocks.len() * BLOCK_BYTES);
    for &block in &blocks {
        builder.data(block, &noise(&mut state, BLOCK_BYTES));
    }
    assert_eq!(builder.mappings(), blocks.len());
    let built = builder.finish();
    let Place::Frame(last) = built.mappings.last().unwrap().place else { panic!() };
    let footer = built.body.len() - (last.offset + last.stored) as usize - TRAILER;
    let ratio = built.body.len() as f64 / built.data_bytes as f64;
    println!("footer {footer} bytes, {ratio:.4} bytes per byte");
    assert!(footer < 24 << 10 && ratio <= 1.01, "{footer} {ratio}");
    let tail = &built.body[built.body.len() - TAIL_BYTES as usize..];
    let read = read_tail(Some(&KEY), volume(1), Seq(5), built.body.len() as u64, tail).unwrap();
    assert!(matches!(read, Tail::Whole(_, Entry::Segment(footer)) if footer.mappings == built.mappings));
}

/// A footer longer than the tail asks for exactly what is missing, once; so does a tail too short
/// for the trailer.
#[test]
fn a_long_footer_asks_for_more() {
    let mut builder = builder(None, Compression::Lz4, slot(1, 5));
    builder.data(0, &[7; BLOCK_BYTES]);
    for i in 0..MAPPINGS_MAX as u64 - 1 {
        builder.zero(Extent::new(1000 + i * 1_000_000, 300_000), i % 2 == 0);
    }
    let built = builder.finish();
    let bytes = built.body.len() as u64;
    let read = |from: u64| read_tail(None, volume(1), Seq(5), bytes, &built.body[from as usize..]).unwrap();
    assert_eq!(read(bytes - 10), Tail::NeedMore { from: bytes - TAIL_BYTES });
    let Tail::NeedMore { from } = read(bytes - TAIL_BYTES) else { panic!() };
    assert!(from < bytes - TAIL_BYTES);
    assert!(
        matches!(read(from), Tail::Whole(_, Entry::Segment(footer)) if footer.mappings == built.mappings)
    );
}

/// Consecutive blocks share frames whichever way they were handed in, cut at multiples of 16 blocks; a gap or
/// an extent of zeroes begins a new frame.
#[test]
fn consecutive_blocks_share_frames() {
    let data = noise(&mut 1, 40 * BLOCK_BYTES);
    for pieces in [vec![40], vec![1; 40], vec![3, 16, 21], vec![17, 23], vec![32, 8]] {
        let mut builder = builder(None, Compression::None, slot(1, 5));
        let mut block = 0;
        for piece in pieces {
            builder.data(10 + block as u64, &data[block * BLOCK_BYTES..][..piece * BLOCK_BYTES]);
            block += piece;
        }
        builder.data(60, &data[..BLOCK_BYTES]);
        let built = builder.finish();
        let extents: Vec<_> = built.mappings.iter().map(|m| (m.extent.start, m.extent.len)).collect();
        assert_eq!(extents, [(10, 6), (16, 16), (32, 16), (48, 2), (60, 1)]);
        let (_, frames) = verify(None, &slot(1, 5), &built.body).unwrap();
        assert_eq!(frames[..4].concat(), data);
    }
}

/// A newer or older version is told from damage, and a foreign object from both.
#[test]
fn other_versions_and_foreign_objects_are_named() {
    let mut object = encode_release(None, &slot(1, 5), &release()).to_vec();
    *object.last_mut().unwrap() = 6;
    let result = whole(None, &slot(1, 5), &object);
    assert!(matches!(result, Err(Error::Version { found: 6, known: 5, .. })), "{result:?}");
    for version in [1, 2, 3, 4] {
        let older = golden::stored(&format!("release-{version}-plain.bin"), &[]);
        let result = whole(None, &slot(1, 5), &older);
        let Err(Error::Version { found, known: 5, .. }) = result else { panic!("{result:?}") };
        assert_eq!(found, version);
    }
    let foreign = corrupt(whole(None, &slot(1, 5), &[b'x'; 500]));
    assert!(foreign.contains("not a cistern object"), "{foreign}");
}

/// A frame that does not compress gives each of its blocks from that block's bytes alone, at the price
/// of a seal a block; no bit of them can be changed, and no other block takes their place.
#[test]
fn blocks_of_raw_frames_are_read_alone() {
    let data = noise(&mut 1, 16 * BLOCK_BYTES);
    for key in [None, Some(&*KEY)] {
        let mut builder = builder(key, Compression::Lz4, slot(1, 5));
        builder.data(32, &data);
        let built = builder.finish();
        let Place::Frame(frame) = built.mappings[0].place else { panic!() };
        let sealer = Sealer::new(key, volume(1), ObjectKind::Segment, salt(0x5a), 5);
        let shape = FrameShape::new(key.is_some());
        assert!(shape.is_raw(&frame));
        assert_eq!(frame.stored as usize, 16 * (BLOCK_BYTES + sealer.overhead()));
        let stored = |range: Range<u64>| &built.body[range.start as usize..range.end as usize];
        for (index, blocks) in [(0, 1), (7, 1), (15, 1), (3, 5), (0, 16)] {
            let part = FrameRef { index, ..frame };
            let bytes = stored(shape.needed(&part, blocks));
            assert_eq!(bytes.len(), blocks as usize * (BLOCK_BYTES + sealer.overhead()));
            let expected = &data[usize::from(index) * BLOCK_BYTES..][..blocks as usize * BLOCK_BYTES];
            assert!(open_raw(&sealer, &part, bytes).unwrap()[..] == *expected);
            for bit in (0..bytes.len() * 8).step_by(501) {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                corrupt(open_raw(&sealer, &part, &damaged));
            }
        }
        let (one, other) = (FrameRef { index: 4, ..frame }, FrameRef { index: 5, ..frame });
        corrupt(open_raw(&sealer, &one, stored(shape.needed(&other, 1))));
        let behind = FrameRef { index: 15, ..frame };
        assert!(corrupt(open_raw(&sealer, &behind, stored(shape.needed(&one, 2)))).contains("has 16 blocks"));
        corrupt(open_raw(&sealer, &one, &[]));
        corrupt(open_raw(&sealer, &one, &stored(shape.needed(&one, 1))[1..]));
    }
}

/// A frame that compresses is never as long as a raw one: where it would be, it is padded. So lengths
/// tell the two apart.
#[test]
fn packed_frames_are_never_taken_for_raw() {
    for key in [None, Some(&*KEY)] {
        let sealer = Sealer::new(key, volume(1), ObjectKind::Segment, salt(0x5a), 5);
        let unit = BLOCK_BYTES + sealer.overhead();
        let mut padded = 0;
        // So much noise and the rest zeroes: every length around that of a raw block comes up.
        for noisy in 4000..4120 {
            let mut data = vec![0; 2 * BLOCK_BYTES];
            data[..noisy].copy_from_slice(&noise(&mut 1, noisy));
            let mut builder = builder(key, Compression::Lz4, slot(1, 5));
            builder.data(0, &data);
            let built = builder.finish();
            let Place::Frame(frame) = built.mappings[0].place else { panic!() };
            assert!(!FrameShape::new(key.is_some()).is_raw(&frame), "{noisy}");
            let stored = &built.body[frame.offset as usize..][..frame.stored as usize];
            padded += usize::from(frame.stored as usize == unit + 1 && is_padded(&sealer, stored));
            assert!(open_frame(&sealer, &frame, stored).unwrap()[..] == data[..]);
        }
        assert_eq!(padded, 1);
    }
}

fn is_padded(sealer: &Sealer, stored: &[u8]) -> bool {
    sealer.open(8, stored).unwrap()[0] & 0x80 != 0
}

proptest! {
    #![proptest_config(golden::cases(48))]

    /// Any sequence of data and zeroes reads back as the blocks that were put in.
    #[test]
    fn any_segment_reads_back(
        steps in proptest::collection::vec((0..20_u64, 1..40_usize, 0..4_u8, any::<u64>()), 0..20),
        encrypt: bool,
        compression in prop_oneof![Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd)],
    ) {
        let key = encrypt.then_some(&*KEY);
        let mut builder = builder(key, compression, slot(1, 5));
        let (mut block, mut expected) = (0, Vec::new());
        for (gap, len, what, mut seed) in steps {
            block += gap;
            let extent = Extent::new(block, len as u64);
            match what {
                0 => builder.zero(extent, false),
                1 => builder.zero(extent, true),
                _ => {
                    let mut data = noise(&mut seed, len * BLOCK_BYTES);
                    if what == 2 { data.chunks_mut(BLOCK_BYTES).for_each(|b| b[100..].fill(9)) }
                    builder.data(block, &data);
                    expected.extend(data.chunks(BLOCK_BYTES).enumerate().map(|(i, b)| (block + i as u64, b.to_vec())));
                }
            }
            block = extent.end();
        }
        let built = builder.finish();
        let (entry, frames) = verify(key, &slot(1, 5), &built.body).unwrap();
        let Entry::Segment(footer) = entry else { panic!() };
        prop_assert_eq!(&footer.mappings, &built.mappings);
        prop_assert!(footer.mappings.windows(2).all(|w| w[0].extent.end() <= w[1].extent.start));
        let placed = footer.mappings.iter().filter(|m| matches!(m.place, Place::Frame(_)));
        let mut read = Vec::new();
        for (mapping, frame) in placed.zip(frames) {
            prop_assert_eq!(frame.len() as u64, mapping.extent.len * BLOCK_BYTES as u64);
            read.extend(frame.chunks(BLOCK_BYTES).enumerate().map(|(i, b)| (mapping.extent.start + i as u64, b.to_vec())));
        }
        prop_assert_eq!(read.len(), expected.len());
        prop_assert!(read == expected);
    }

    /// Any blocks of any births read back from a segment that moves them.
    #[test]
    fn any_moved_segment_reads_back(
        steps in proptest::collection::vec((0..40_u64, 1..20_u64, 1..6_u64), 1..60),
        encrypted: bool,
    ) {
        let key = encrypted.then_some(&*KEY);
        let mut builder = SegmentBuilder::moved(key, slot(1, 9), Seq(7), 1, Compression::Lz4);
        let (mut block, mut expected) = (0, Vec::new());
        for (gap, len, birth) in steps {
            block += gap;
            builder.data_born(block, Seq(birth), &vec![birth as u8; len as usize * BLOCK_BYTES]);
            expected.extend((block..block + len).map(|block| (block, Seq(birth))));
            block += len;
        }
        let built = builder.finish();
        let (_, entry) = whole(key, &slot(1, 9), &built.body).unwrap();
        let Entry::Segment(footer) = entry else { panic!() };
        prop_assert_eq!(&footer.mappings, &built.mappings);
        let blocks = footer.mappings.iter().flat_map(|m| (m.extent.start..m.extent.end()).map(|b| (b, m.birth)));
        prop_assert_eq!(blocks.collect::<Vec<_>>(), expected);
    }

    /// Arbitrary bytes as an object never panic, nor do arbitrary frames.
    #[test]
    fn arbitrary_objects_are_harmless(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        magic: bool,
        more in 0..1000_u64,
    ) {
        if magic { bytes.extend([&MAGIC[..], &[FORMAT]].concat()) }
        let _ = read_tail(None, volume(1), Seq(5), bytes.len() as u64 + more, &bytes);
        let _ = read_head(Seq(5), &bytes);
        let sealer = Sealer::new(None, volume(1), ObjectKind::Segment, salt(0x5a), 5);
        let mut stored = Vec::new();
        sealer.seal(8, &bytes, &mut stored);
        let frame = FrameRef { seq: Seq(5), offset: 8, stored: stored.len() as u32, index: 0 };
        let _ = open_frame(&sealer, &frame, &stored);
    }
}
