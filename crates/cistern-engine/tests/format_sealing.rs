//! Sealing and keys: what is bound to its place, what stays secret, what hostile bytes cannot do.

use cistern_engine::units::SealNonce;
use cistern_engine::{
    Error,
    codec::{KeySource, MasterKey, NotAuthentic, ObjectKind, Sealer, WrappedKey, hex},
};
use golden::{env, key, salt, volume};
use proptest::prelude::*;

mod golden;

fn sealer(key: Option<&MasterKey>, of: u128, kind: ObjectKind, salted: u8, number: u64) -> Sealer {
    Sealer::new(key, volume(of), kind, salt(salted), number).with_nonce(SealNonce(*b"01234567"))
}

/// A part that a copy of the writer sealed for the same place opens for whoever does not know which of the two it wants, but
/// not where the other is known to be meant.
#[test]
fn the_nonce_of_a_sealing_is_proven() {
    let key = key(1);
    let of = |nonce: Option<&[u8; 8]>| {
        let sealer = Sealer::new(Some(&key), volume(1), ObjectKind::Segment, salt(1), 1);
        nonce.map_or(sealer.clone(), |nonce| sealer.with_nonce(SealNonce(*nonce)))
    };
    let mut sealed = Vec::new();
    of(Some(b"original")).seal(8, b"bytes", &mut sealed);
    assert_eq!(sealed.len(), 5 + 24);
    assert!(of(None).open(8, &sealed).is_ok() && of(Some(b"original")).open(8, &sealed).is_ok());
    assert_eq!(of(Some(b"the copy")).open(8, &sealed), Err(NotAuthentic));
    assert_eq!(of(None).open(8 + (1 << 32), &sealed), Err(NotAuthentic));
}

/// A sealed part opens at its own place only: another key, volume, kind, salt, number or part
/// is refused, with and without encryption.
#[test]
fn a_part_opens_at_its_place_only() {
    let (one, two) = (key(1), key(2));
    for key in [None, Some(&one)] {
        let right = sealer(key, 1, ObjectKind::Segment, 1, 1);
        let mut sealed = Vec::new();
        right.seal(5, b"the plain bytes", &mut sealed);
        assert_eq!(right.open(5, &sealed).as_deref(), Ok(&b"the plain bytes"[..]));
        assert_eq!(right.open(6, &sealed), Err(NotAuthentic));
        for wrong in [
            sealer(key, 2, ObjectKind::Segment, 1, 1),
            sealer(key, 1, ObjectKind::Claim, 1, 1),
            sealer(key, 1, ObjectKind::Segment, 2, 1),
            sealer(key, 1, ObjectKind::Segment, 1, 2),
            sealer(Some(&two), 1, ObjectKind::Segment, 1, 1),
        ] {
            assert_eq!(wrong.open(5, &sealed), Err(NotAuthentic));
        }
    }
}

/// With a key nothing of the plain bytes shows, and the same bytes at two places differ.
#[test]
fn sealed_bytes_tell_nothing() {
    let key = key(1);
    let sealer = sealer(Some(&key), 1, ObjectKind::Segment, 1, 1);
    let plain = [0xab; 64];
    let (mut first, mut second) = (Vec::new(), Vec::new());
    sealer.seal(0, &plain, &mut first);
    sealer.seal(1, &plain, &mut second);
    assert!(!golden::contains(&first, &[0xab; 4]));
    assert!(first.iter().zip(&second).filter(|(a, b)| a == b).count() < 16);
}

/// The derivation and both seals are fixed for ever. The expected bytes were computed by another
/// implementation (HMAC, AES-GCM and a bitwise CRC32C in Python) from the written format.
#[test]
fn seals_are_as_the_format_says() {
    let mut sealed = Vec::new();
    sealer(None, 3, ObjectKind::Run, 4, 5).seal(6, b"abc", &mut sealed);
    assert_eq!(hex::encode(&sealed), "616263c91c82d8");
    sealed.clear();
    sealer(Some(&key(7)), 3, ObjectKind::Run, 4, 5).seal(6, b"abc", &mut sealed);
    assert_eq!(hex::encode(&sealed), "7eeb9acc518239db419bbf49c619c291d0f84d");
    sealed.clear();
    sealer(Some(&key(7)), 3, ObjectKind::Segment, 4, 5).seal(6, b"abc", &mut sealed); // stores its nonce
    assert_eq!(hex::encode(&sealed), "181c9414171e52e6a0ffd8be11bc46714afdb03031323334353637");
}

proptest! {
    #![proptest_config(golden::cases(64))]

    /// Round trip behind whatever is in the buffer already; any flipped bit and any truncation is
    /// noticed.
    #[test]
    fn round_trip_and_damage(
        plain in proptest::collection::vec(any::<u8>(), 0..200),
        part: u64,
        encrypt: bool,
        flip: prop::sample::Index,
        cut: prop::sample::Index,
    ) {
        let key = key(9);
        let sealer = sealer(encrypt.then_some(&key), 1, ObjectKind::Run, 1, 1);
        let mut out = b"before".to_vec();
        sealer.seal(part, &plain, &mut out);
        prop_assert!(out.starts_with(b"before"));
        let mut sealed = out.split_off(6);
        prop_assert_eq!(sealed.len(), plain.len() + sealer.overhead());
        let opened = sealer.open(part, &sealed).unwrap().into_owned();
        prop_assert_eq!(opened, plain);
        prop_assert_eq!(sealer.open(part, &sealed[..cut.index(sealed.len())]), Err(NotAuthentic));
        let bit = flip.index(sealed.len() * 8);
        sealed[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(sealer.open(part, &sealed), Err(NotAuthentic));
    }
}

fn passphrase(text: &str) -> KeySource {
    KeySource::Passphrase(text.to_owned())
}

fn key_error(result: Result<MasterKey, Error>) -> String {
    match result {
        Err(Error::Key(text)) => text,
        other => panic!("not a key error: {other:?}"),
    }
}

/// Two keys are the same if what one seals the other opens.
fn same(one: &MasterKey, two: &MasterKey) -> bool {
    let mut sealed = Vec::new();
    sealer(Some(one), 1, ObjectKind::Run, 1, 1).seal(0, b"probe", &mut sealed);
    sealer(Some(two), 1, ObjectKind::Run, 1, 1).open(0, &sealed).is_ok()
}

/// The right passphrase gives the master key back, through JSON; anything else is told apart.
#[test]
fn a_passphrase_unwraps_and_a_wrong_one_is_named() {
    let master = key(1);
    let wrapped = master.wrap(&env(2), &passphrase("correct horse")).unwrap();
    let json = serde_json::to_string(&wrapped).unwrap();
    let wrapped: WrappedKey = serde_json::from_str(&json).unwrap();
    assert!(same(&master, &wrapped.unwrap(&passphrase("correct horse")).unwrap()));
    assert_eq!(key_error(wrapped.unwrap(&passphrase("wrong horse"))), "wrong passphrase");
    assert!(key_error(wrapped.unwrap(&KeySource::KeyFile(vec![1; 32]))).contains("by a passphrase, not"));
    assert!(key_error(wrapped.unwrap(&KeySource::None)).contains("is encrypted"));
    assert!(key_error(wrapped.unwrap(&passphrase(""))).contains("empty"));
}

/// A key file unwraps what it wrapped; too short and too long ones are refused.
#[test]
fn a_key_file_unwraps_and_a_wrong_one_is_named() {
    let master = key(1);
    let wrapped = master.wrap(&env(2), &KeySource::KeyFile(vec![1; 32])).unwrap();
    assert!(same(&master, &wrapped.unwrap(&KeySource::KeyFile(vec![1; 32])).unwrap()));
    assert_eq!(key_error(wrapped.unwrap(&KeySource::KeyFile(vec![2; 32]))), "wrong key file");
    assert!(key_error(wrapped.unwrap(&passphrase("p"))).contains("by a key file, not"));
    for bytes in [0, 31, (1 << 20) + 1] {
        let text = key_error(wrapped.unwrap(&KeySource::KeyFile(vec![1; bytes])));
        assert!(text.contains("32 to 1048576 bytes"), "{text}");
    }
    assert!(matches!(master.wrap(&env(2), &KeySource::None), Err(Error::Key(_))));
}

/// A stored file cannot make us allocate a terabyte or compute for ever, and a damaged one does
/// not unwrap.
#[test]
fn hostile_wrapped_keys_are_refused() {
    let master = key(1);
    let wrapped = master.wrap(&env(2), &passphrase("p")).unwrap();
    let good = serde_json::to_value(&wrapped).unwrap();
    for (field, value) in [
        ("memory_kib", u32::MAX),
        ("memory_kib", (1 << 20) + 1),
        ("memory_kib", 0),
        ("passes", u32::MAX),
        ("passes", 0),
        ("lanes", u32::MAX),
        ("lanes", 17),
        ("lanes", 0),
    ] {
        let mut bad = good.clone();
        bad["derivation"]["argon2id"][field] = value.into();
        let bad: WrappedKey = serde_json::from_value(bad).unwrap();
        let result = bad.unwrap(&passphrase("p"));
        assert!(matches!(&result, Err(Error::Corrupt { .. })), "{field} {value}: {result:?}");
    }
    for (field, value) in [("salt", ""), ("nonce", "00"), ("wrapped", "zz"), ("tag", "é")] {
        let mut bad = good.clone();
        bad[field] = value.into();
        assert!(serde_json::from_value::<WrappedKey>(bad).is_err(), "{field}");
    }
}

/// No secret is ever printed.
#[test]
fn secrets_do_not_show_in_debug_output() {
    assert_eq!(format!("{:?}", key(1)), "MasterKey(..)");
    assert!(!format!("{:?}", passphrase("hunter2")).contains("hunter2"));
}
