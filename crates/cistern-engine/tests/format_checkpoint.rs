//! Checkpoints and usage objects: they read back, and nothing damaged, swapped or forged does.

use std::sync::LazyLock;

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::{Compression, MAGIC, MasterKey, ObjectKind, Sealer, compress, crc32c, fields::put_varint},
    log::{
        checkpoint::{
            Checkpoint, EpochStart, HEADER_BYTES, LastClaim, MapObject, MapPair, RETIRED_MAX, Retired,
            RetiredName,
        },
        origin::{CloneOrigin, CloneSource},
        roots::{HELD_MAX, HeldBlocks, SnapshotTable, encode_roots},
        usage::{CHANGES_MAX, Counts, SegmentUsage, UsageChange, decode_usage, encode_usage},
    },
    map::{RunMeta, SeenBy},
    units::{Chain, Epoch, Extent, JournalPos, RunId, Salt, Seq, SnapshotId},
};
use golden::{env, journal, key, salt, volume};
use proptest::prelude::*;
use serde_json::Value;
use uuid::Uuid;

mod golden;

static KEY: LazyLock<MasterKey> = LazyLock::new(|| key(1));

fn run(number: u128) -> RunId {
    RunId(Uuid::from_u128(0x0e0e_0000_0000_4000_8000_0000_0000_0000 + number))
}

fn sample() -> Checkpoint {
    let run_meta = |number: u128, start| RunMeta {
        id: run(number),
        bytes: 123_456,
        mappings: 789,
        frame_blocks: 1500,
        mapped_blocks: 1600,
        rank: 1,
        span: Extent::new(start, 1000),
        birth_min: Seq(2),
        birth_max: Seq(40),
        since: Seq(39),
        owner: (number == 2).then_some(volume(9)),
    };
    Checkpoint {
        epoch: Epoch(3),
        covered: Seq(41),
        journal: journal(),
        journal_pos: JournalPos(99_000),
        journal_chain: Chain(0xfedc_ba98_7654_3210),
        size_bytes: 0x1_2345_6000,
        claim: LastClaim {
            seq: Seq(30),
            host: "db-7.example.org".to_owned(),
            wall_ms: 1_700_000_000_123,
            released: false,
        },
        epochs: vec![
            EpochStart { first: Seq(1), epoch: Epoch(1), salt: salt(1) },
            EpochStart { first: Seq(30), epoch: Epoch(3), salt: salt(3) },
        ],
        levels: vec![vec![run_meta(1, 0), run_meta(2, 5000)], vec![run_meta(3, 0)]],
        usage: vec![MapObject { id: run(4), bytes: 321 }],
        retired: vec![
            Retired { name: RetiredName::Segment(Seq(7)), bytes: 16 << 20 },
            Retired { name: RetiredName::Map(run(6)), bytes: 99 },
        ],
        times: vec![(Seq(7), 1_699_000_000), (Seq(40), 1_700_000_000)],
        snapshots: Some(MapPair { ids: [run(5), run(15)], bytes: 77 }),
        held: vec![MapObject { id: run(7), bytes: 78 }],
        origins: vec![origin(8, "../../a/b", 3), origin(9, "../c", 5)],
        flattened: Some(Seq(39)),
    }
}

fn origin(number: u128, way: &str, at: u64) -> CloneOrigin {
    let source = CloneSource { volume: volume(number), way: way.to_owned() };
    CloneOrigin { source, snapshot: SnapshotId(Uuid::from_u128(number)), at: Seq(at) }
}

const NAME: (Epoch, Seq) = (Epoch(3), Seq(41));

fn decode(key: Option<&MasterKey>, bytes: &[u8]) -> Result<Checkpoint> {
    Checkpoint::decode(key, volume(1), NAME, bytes)
}

fn encode(key: Option<&MasterKey>) -> Bytes {
    sample().encode(&env(5), key, volume(1)).unwrap()
}

fn changes() -> Vec<SegmentUsage> {
    let added = |(seq, stored_bytes, written_blocks, dead_blocks, touched)| SegmentUsage {
        seq: Seq(seq),
        change: UsageChange::Added(Counts {
            stored_bytes,
            written_blocks,
            dead_blocks,
            touched: Seq(touched),
        }),
    };
    let mut changes =
        [(2, 16 << 20, 4096, 0, 7), (3, 0, 0, 4096, 1000), (900, 1, 0, u64::MAX, 999)].map(added).to_vec();
    changes.insert(2, SegmentUsage { seq: Seq(4), change: UsageChange::Gone });
    changes
}

fn refused<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(error @ (Error::Corrupt { .. } | Error::Version { .. })) => error.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

/// What is written today reads for ever: these files stand for objects in users' stores.
#[test]
fn golden_checkpoints_and_usage() {
    for (suffix, key) in [("plain", None), ("sealed", Some(&*KEY))] {
        // A compressor may improve and the map may tell more of its runs, so only reading is fixed.
        let stored = golden::stored(&format!("checkpoint-7-{suffix}.bin"), &encode(key));
        assert_eq!(decode(key, &stored).unwrap(), sample());
        let fresh = encode_usage(key, volume(1), run(9), &changes());
        let stored = golden::stored(&format!("usage-2-{suffix}.bin"), &fresh);
        assert_eq!(stored, fresh);
        assert_eq!(decode_usage(key, volume(1), run(9), &stored).unwrap(), changes());
    }
}

/// Every flipped bit and every truncation of both objects is detected.
#[test]
fn every_flipped_bit_and_truncation_is_detected() {
    for key in [None, Some(&*KEY)] {
        let usage = encode_usage(key, volume(1), run(9), &changes());
        type Check<'a> = &'a dyn Fn(&[u8]) -> String;
        let checks: [(Bytes, Check); 2] = [
            (encode(key), &|bytes| refused(decode(key, bytes))),
            (usage, &|bytes| refused(decode_usage(key, volume(1), run(9), bytes))),
        ];
        for (object, check) in checks {
            let mut damaged = object.to_vec();
            for bit in 0..damaged.len() * 8 {
                damaged[bit / 8] ^= 1 << (bit % 8);
                check(&damaged);
                damaged[bit / 8] ^= 1 << (bit % 8);
            }
            for len in 0..object.len() {
                check(&object[..len]);
                check(&object[object.len() - len..]);
            }
        }
    }
}

/// An object under another name, of another volume, kind or key is refused by name.
#[test]
fn swapped_objects_are_detected() {
    for key in [None, Some(&*KEY)] {
        let object = encode(key);
        for name in [(Epoch(4), Seq(41)), (Epoch(3), Seq(42))] {
            let text = refused(Checkpoint::decode(key, volume(1), name, &object));
            assert!(text.contains("checkpoint/0000000000000003-0000000000000029"), "{text}");
        }
        refused(Checkpoint::decode(key, volume(2), NAME, &object));
        let usage = encode_usage(key, volume(1), run(9), &changes());
        refused(decode_usage(key, volume(1), run(8), &usage));
        refused(decode_usage(key, volume(2), run(9), &usage));
        refused(decode(key, &usage));
        refused(decode_usage(key, volume(1), run(9), &object));
    }
    for wrong in [None, Some(&key(2))] {
        refused(decode(wrong, &encode(Some(&KEY))));
        refused(decode_usage(
            wrong,
            volume(1),
            run(9),
            &encode_usage(Some(&KEY), volume(1), run(9), &changes()),
        ));
    }
    refused(decode(Some(&KEY), &encode(None)));
}

/// With encryption neither the host nor sizes nor runs can be read; and the same checkpoint made
/// twice shares no sealed bytes, because its salt is drawn anew.
#[test]
fn encrypted_checkpoints_tell_nothing() {
    let object = encode(Some(&KEY));
    let (run, journal) = (run(1).to_string(), journal().to_string());
    let secrets = ["db-7", "released", "123456", &run, &journal];
    for secret in secrets {
        assert!(!golden::contains(&object, secret.as_bytes()), "{secret}");
    }
    let again = sample().encode(&env(6), Some(&KEY), volume(1)).unwrap();
    let equal = object[60..].iter().zip(&again[60..]).filter(|(a, b)| a == b).count();
    assert!(equal < object.len() / 16, "{equal} of {}", object.len());
    assert_eq!(decode(Some(&KEY), &again).unwrap(), sample());
}

/// A checkpoint as the format says, sealed rightly, of any content.
fn forge(payload: &[u8]) -> Vec<u8> {
    let mut out = [&MAGIC[..], &[7], volume(1).0.as_bytes()].concat();
    out.extend_from_slice(&3_u64.to_le_bytes());
    out.extend_from_slice(&41_u64.to_le_bytes());
    out.extend_from_slice(&[8; 16]);
    out.extend_from_slice(&crc32c(&out).to_le_bytes());
    Sealer::new(None, volume(1), ObjectKind::Checkpoint, Salt([8; 16]), 41).seal(0, payload, &mut out);
    out
}

fn forge_json(json: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    compress(Compression::Zstd, json, &mut payload);
    forge(&payload)
}

/// What a reader would refuse is not made, also by a release build: it would be stored, called good, and read by nobody.
#[test]
fn what_no_reader_takes_is_not_made() {
    let of = |change: fn(&mut Checkpoint)| {
        let mut checkpoint = sample();
        change(&mut checkpoint);
        match checkpoint.encode(&env(5), None, volume(1)) {
            Err(Error::Invalid(said)) => said,
            made => panic!("{made:?}"),
        }
    };
    for (said, needle) in [
        (
            of(|c| c.retired.push(Retired { name: RetiredName::Map(run(4)), bytes: 9 })),
            "it retires what it needs",
        ),
        (of(|c| c.retired = vec![c.retired[0]; RETIRED_MAX + 1]), "too many"),
        (of(|c| c.origins.reverse()), "origins"),
        (of(|c| c.times = (0..1001).map(|n| (Seq(n), 7)).collect()), "times"),
        (of(|c| c.epochs.reverse()), "epochs"),
        (of(|c| c.levels[0].reverse()), "span"),
        (of(|c| c.size_bytes += 1), "size"),
    ] {
        assert!(said.contains(needle) && said.contains("checkpoint/"), "{said}");
    }
    let mut table = SnapshotTable::default();
    table.roots.insert(Seq(5), MapPair { ids: [run(5), run(15)], bytes: 77 });
    let held = HeldBlocks { segment: Seq(1), seen_by: SeenBy { first: Seq(3), last: Seq(2) }, blocks: 1 };
    let id = RunId(Uuid::from_u128(7));
    assert!(matches!(encode_roots(None, volume(1), id, &table), Err(Error::Invalid(_))));
    assert!(matches!(encode_roots(None, volume(1), id, &vec![held]), Err(Error::Invalid(_))));
    assert!(matches!(encode_roots(None, volume(1), id, &vec![held; HELD_MAX + 1]), Err(Error::Invalid(_))));
}

/// Content that contradicts itself or would need too much memory is refused under a right seal.
#[test]
fn forged_checkpoints_are_refused() {
    let good = serde_json::to_value(sample()).unwrap();
    assert_eq!(decode(None, &forge_json(&serde_json::to_vec(&good).unwrap())).unwrap(), sample());
    for (pointer, value) in [
        ("/epoch", 4.into()),
        ("/covered", 42.into()),
        ("/size_bytes", 513.into()),
        ("/size_bytes", (1_u64 << 61).into()),
        ("/claim/seq", 42.into()),
        ("/epochs/0/first", 30.into()),
        ("/origins/1/at", 3.into()),
        ("/origins/1/at", 42.into()),
        ("/times/1/0", 7.into()),
        ("/times/0/1", 1_700_000_001.into()),
        ("/epochs/0/epoch", 3.into()),
        ("/epochs/1/first", 42.into()),
        ("/levels", Value::Null),
        ("/retired/0/name/segment", 42.into()),
        ("/retired/1/name/map", run(2).to_string().into()),
        ("/retired/1/name/map", run(4).to_string().into()),
        ("/retired/1/name/map", run(15).to_string().into()),
        ("/retired", vec![good["retired"][0].clone(); RETIRED_MAX + 1].into()),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        refused(decode(None, &forge_json(&serde_json::to_vec(&bad).unwrap())));
    }
    refused(decode(None, &forge_json(b"")));
    refused(decode(None, &forge_json(&[b'['; 100_000])));
    let bomb = zstd::bulk::compress(&vec![b' '; 200 << 20], 1).unwrap();
    refused(decode(None, &forge(&[&[2], &bomb[..]].concat())));
}

/// Usage that runs past the end of the log, says what is not known or is cut is refused under a right seal.
#[test]
fn forged_usage_is_refused() {
    let forge = |numbers: &[u64], cut: usize| {
        let mut plain = Vec::new();
        numbers.iter().for_each(|&n| put_varint(&mut plain, n));
        plain.truncate(plain.len() - cut);
        let mut out = [&MAGIC[..], &[2], volume(1).0.as_bytes(), run(9).0.as_bytes()].concat();
        let salt = Salt(run(9).0.into_bytes());
        Sealer::new(None, volume(1), ObjectKind::Usage, salt, 0).seal(0, &plain, &mut out);
        decode_usage(None, volume(1), run(9), &out)
    };
    let (added, gone) = (1, 0);
    assert_eq!(forge(&[9, 1, added, 2, 3, 4, 5], 0).unwrap()[0].seq, Seq(1));
    assert_eq!(forge(&[9, 1, gone, 0, gone], 0).unwrap()[1].seq, Seq(2));
    refused(forge(&[9, 1, added, 2, 3, 4, 5], 1));
    refused(forge(&[9, 1, added, 2, 3, 4, 5, 6], 0));
    refused(forge(&[9, 1, added, 2, 3, 4, 10], 0));
    refused(forge(&[9, 1, 2], 0));
    refused(forge(&[9, u64::MAX, gone, 0, gone], 0));
    refused(forge(&[9, 5, gone, u64::MAX, gone], 0));
    refused(forge(&vec![0; 1 + 2 * (CHANGES_MAX + 1)], 0));
}

/// Only an intact header makes a checkpoint another volume's: damaged, it may be ours.
#[test]
fn checkpoints_of_other_volumes_are_told_by_an_intact_header() {
    let object = encode(Some(&KEY));
    assert_eq!(Checkpoint::foreign_volume(volume(1), &object), None);
    assert_eq!(Checkpoint::foreign_volume(volume(2), &object), Some(volume(1)));
    assert_eq!(Checkpoint::foreign_volume(volume(2), &object[..HEADER_BYTES]), Some(volume(1)));
    assert_eq!(Checkpoint::foreign_volume(volume(2), &object[..HEADER_BYTES - 1]), None);
    let mut damaged = object.to_vec();
    for bit in 0..HEADER_BYTES * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Checkpoint::foreign_volume(volume(2), &damaged), None, "bit {bit}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Another version is told from damage.
#[test]
fn other_versions_are_named() {
    for other in [6, 8] {
        let mut object = encode(None).to_vec();
        object[MAGIC.len()] = other;
        let known = matches!(decode(None, &object), Err(Error::Version { found, known: 7, .. }) if found == u32::from(other));
        assert!(known, "version {other}");
    }
    let mut object = encode_usage(None, volume(1), run(9), &changes()).to_vec();
    object[MAGIC.len()] = 1;
    let result = decode_usage(None, volume(1), run(9), &object);
    assert!(matches!(result, Err(Error::Version { found: 1, known: 2, .. })));
}

proptest! {
    #![proptest_config(golden::cases(64))]

    /// Any changes read back.
    #[test]
    fn usage_reads_back(
        map in proptest::collection::btree_map(0..u64::MAX - 1, any::<Option<(u64, u64, u64, u64)>>(), 0..100),
        encrypt: bool,
    ) {
        let key = encrypt.then_some(&*KEY);
        let change = |change: Option<(u64, u64, u64, u64)>| match change {
            None => UsageChange::Gone,
            Some((stored_bytes, written_blocks, dead_blocks, touched)) => {
                UsageChange::Added(Counts { stored_bytes, written_blocks, dead_blocks, touched: Seq(touched) })
            }
        };
        let changes: Vec<_> =
            map.into_iter().map(|(seq, told)| SegmentUsage { seq: Seq(seq), change: change(told) }).collect();
        let object = encode_usage(key, volume(1), run(9), &changes);
        prop_assert_eq!(decode_usage(key, volume(1), run(9), &object).unwrap(), changes);
    }

    /// Arbitrary bytes never panic, sealed rightly or not.
    #[test]
    fn arbitrary_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(None, &bytes);
        let _ = decode(None, &forge(&bytes));
        let _ = decode_usage(None, volume(1), run(9), &bytes);
    }
}
