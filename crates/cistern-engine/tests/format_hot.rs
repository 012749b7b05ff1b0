//! Hot sets: they read back, and nothing damaged, swapped, newer or forged does.

use std::sync::LazyLock;

use cistern_engine::{
    Error,
    codec::{MAGIC, MasterKey, ObjectKind, Sealer, fields::put_varint},
    log::hot::{HotName, HotSet, PIECES_MAX, RANGES_MAX},
    units::{Epoch, RunId, Salt, Seq},
};
use golden::{corrupt, env, key, volume};
use proptest::prelude::*;
use uuid::Uuid;

mod golden;

static KEY: LazyLock<MasterKey> = LazyLock::new(|| key(1));
const NAME: (Epoch, u64) = (Epoch(3), 7);

fn run(number: u128) -> HotName {
    HotName::Run(RunId(Uuid::from_u128(0x0e0e_0000_0000_4000_8000_0000_0000_0000 + number)))
}

#[allow(clippy::single_range_in_vec_init)] // a list of ranges, of which some have one
fn sample() -> HotSet {
    let objects = [
        (HotName::Entry(Seq(0)), vec![0..16]),
        (HotName::Entry(Seq(9)), vec![3..4, 4..200, 1000..4096]),
        (HotName::Entry(Seq(u64::MAX - 1)), vec![PIECES_MAX - 1..PIECES_MAX]),
        (run(1), vec![0..1, 5..6]),
        (run(2), vec![7..100]),
    ];
    HotSet { objects: objects.into() }
}

/// The golden files read back as what they were made of, and are what is written today.
#[test]
fn golden_files_read_back() {
    for (name, key) in [("hot-1-plain.bin", None), ("hot-1-sealed.bin", Some(&*KEY))] {
        let fresh = sample().encode(&env(5), key, volume(1), NAME).expect("small");
        let stored = golden::stored(name, &fresh);
        assert_eq!(stored, fresh, "{name}");
        assert_eq!(HotSet::decode(key, volume(1), NAME, &stored).expect("whole"), sample());
    }
}

/// A flipped bit, a cut, another volume, name or key: all are found; a newer version is named.
#[test]
fn damage_and_strangers_are_found() {
    for key in [None, Some(&*KEY)] {
        let object = sample().encode(&env(5), key, volume(1), NAME).expect("small");
        let decode = |bytes: &[u8]| HotSet::decode(key, volume(1), NAME, bytes);
        for at in (0..object.len()).filter(|at| *at != MAGIC.len()) {
            let mut bad = object.to_vec();
            bad[at] ^= 4;
            corrupt(decode(&bad));
            corrupt(decode(&object[..at]));
        }
        corrupt(HotSet::decode(key, volume(2), NAME, &object));
        corrupt(HotSet::decode(key, volume(1), (Epoch(3), 8), &object));
        corrupt(HotSet::decode(key, volume(1), (Epoch(4), 7), &object));
        let mut newer = object.to_vec();
        newer[MAGIC.len()] = 2;
        assert!(matches!(decode(&newer), Err(Error::Version { found: 2, known: 1, .. })));
    }
    let other = golden::key(2);
    let object = sample().encode(&env(5), Some(&KEY), volume(1), NAME).expect("small");
    corrupt(HotSet::decode(Some(&other), volume(1), NAME, &object));
}

/// An object as the format says, sealed rightly, of these numbers.
fn forge(numbers: &[u64]) -> Vec<u8> {
    let mut plain = Vec::new();
    numbers.iter().for_each(|&n| put_varint(&mut plain, n));
    seal(&plain)
}

fn seal(plain: &[u8]) -> Vec<u8> {
    let mut out = [&MAGIC[..], &[1], volume(1).0.as_bytes()].concat();
    out.extend_from_slice(&NAME.0.0.to_le_bytes());
    out.extend_from_slice(&NAME.1.to_le_bytes());
    out.extend_from_slice(&[8; 16]);
    Sealer::new(None, volume(1), ObjectKind::Hot, Salt([8; 16]), NAME.1).seal(0, plain, &mut out);
    out
}

/// A set that a reader would refuse is not made: with more ranges than it takes, or with an object of which nothing is hot.
#[test]
fn what_no_reader_takes_is_not_made() {
    for ranges in [(0..RANGES_MAX as u32 + 1).map(|n| 2 * n..2 * n + 1).collect(), Vec::new()] {
        let set = HotSet { objects: [(HotName::Entry(Seq(7)), ranges)].into() };
        assert!(matches!(set.encode(&env(5), None, volume(1), NAME), Err(Error::Invalid(_))));
    }
}

/// Content that contradicts itself, or would take too much memory, is refused under a right seal.
#[test]
fn forged_sets_are_refused() {
    let decode = |numbers: &[u64]| HotSet::decode(None, volume(1), NAME, &forge(numbers));
    assert_eq!(decode(&[1, 5, 1, 2, 3, 0]).expect("right").objects[&HotName::Entry(Seq(5))], vec![2..5]);
    let (far, many) = (u64::from(PIECES_MAX), RANGES_MAX as u64 + 1);
    for bad in [
        &[1, 5, 1, 2, 3][..],
        &[1, 5, 0, 0],
        &[1, 5, 1, 2, 0, 0],
        &[1, 5, 1, far, 1, 0],
        &[1, 5, 1, u64::MAX, 1, 0],
        &[1, 5, many, 0, 1, 0],
        &[2, u64::MAX, 1, 0, 1, 0, 1, 0, 1, 0],
        &[0, 0, 0],
        &[u64::MAX],
    ] {
        corrupt(decode(bad));
    }
}

proptest! {
    #![proptest_config(golden::cases(64))]

    /// Any set reads back; what it has in common with itself is everything.
    #[test]
    fn sets_read_back(
        entries in prop::collection::btree_map(any::<u32>(), ranges(), 0..20),
        runs in prop::collection::btree_map(any::<u64>(), ranges(), 0..20), encrypt: bool,
    ) {
        let entries = entries.into_iter().map(|(n, r)| (HotName::Entry(Seq(n.into())), r));
        let set = HotSet { objects: entries.chain(runs.into_iter().map(|(n, r)| (run(n.into()), r))).collect() };
        let key = encrypt.then_some(&*KEY);
        let object = set.encode(&env(1), key, volume(1), NAME).expect("small");
        prop_assert_eq!(&HotSet::decode(key, volume(1), NAME, &object).expect("whole"), &set);
        prop_assert_eq!(set.pieces_in(&set), set.pieces());
        prop_assert_eq!(set.pieces_in(&HotSet::default()), 0);
    }

    /// Arbitrary bytes never panic, sealed rightly or not.
    #[test]
    fn arbitrary_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = HotSet::decode(None, volume(1), NAME, &bytes);
        let _ = HotSet::decode(None, volume(1), NAME, &seal(&bytes));
    }
}

fn ranges() -> impl Strategy<Value = Vec<std::ops::Range<u32>>> {
    prop::collection::vec((0u32..1000, 1u32..1000), 1..10).prop_map(|gaps| {
        let mut end = 0;
        let range = |(gap, len)| {
            let start = end + gap;
            end = start + len;
            start..end
        };
        gaps.into_iter().map(range).collect()
    })
}
