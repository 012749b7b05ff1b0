//! `volume.json`: it reads back, tells newer from foreign, and opens with the right secret only.

use cistern_engine::{
    Error,
    codec::{Compression, KeySource, MasterKey, ObjectKind, Sealer},
    log::identity::{IDENTITY_BYTES_MAX, Identity},
};
use golden::{env, key, salt, volume};
use proptest::prelude::*;
use serde_json::Value;

mod golden;

fn identity(source: &KeySource) -> Identity {
    let key = match source {
        KeySource::None => None,
        source => Some(key(1).wrap(&env(2), source).unwrap()),
    };
    Identity {
        volume: volume(1),
        created_ms: 1_700_000_000_123,
        size_bytes: 10 << 40,
        compression: Compression::Lz4,
        key,
    }
}

fn passphrase() -> KeySource {
    KeySource::Passphrase("correct horse".to_owned())
}

fn key_file() -> KeySource {
    KeySource::KeyFile((0..64).collect())
}

/// Whether `found` opens what was sealed under `key(1)`.
fn is_the_key(found: &MasterKey) -> bool {
    let sealer = |key| Sealer::new(Some(key), volume(1), ObjectKind::Run, salt(1), 1);
    let mut sealed = Vec::new();
    let key = key(1);
    sealer(&key).seal(0, b"probe", &mut sealed);
    sealer(found).open(0, &sealed).is_ok()
}

/// The files that version 3 wrote read, and unlock with their passphrase and key file: they stand
/// for volumes of users.
#[test]
fn golden_identities() {
    for (name, source) in [("plain", KeySource::None), ("passphrase", passphrase()), ("key-file", key_file())]
    {
        let fresh = identity(&source);
        let stored = golden::stored(&format!("volume-3-{name}.json"), &fresh.encode());
        assert_eq!(stored, fresh.encode());
        let read = Identity::decode(&stored).unwrap();
        assert_eq!(read, fresh);
        match read.unlock(&source).unwrap() {
            Some(found) => assert!(is_the_key(&found)),
            None => assert_eq!(name, "plain"),
        }
    }
}

/// Each way of not having the right secret has its own text.
#[test]
fn a_missing_or_needless_secret_is_named() {
    let text = |identity: &Identity, source: &KeySource| match identity.unlock(source) {
        Err(Error::Key(text)) => text,
        other => panic!("not a key error: {other:?}"),
    };
    assert!(text(&identity(&KeySource::None), &passphrase()).contains("is not encrypted"));
    assert!(text(&identity(&key_file()), &KeySource::None).contains("is encrypted"));
    assert!(text(&identity(&key_file()), &passphrase()).contains("by a key file, not by a passphrase"));
}

fn edited(field: &str, value: Value) -> Result<Identity, Error> {
    let mut json: Value = serde_json::from_slice(&identity(&KeySource::None).encode()).unwrap();
    json[field] = value;
    Identity::decode(&serde_json::to_vec(&json).unwrap())
}

/// A newer or older format is told from a foreign file, even when it has fields that are not known here.
#[test]
fn other_formats_and_foreign_files_are_named() {
    assert!(matches!(edited("format", 4.into()), Err(Error::Version { found: 4, known: 3, .. })));
    let newer = br#"{"cistern": "volume", "format": 7, "shape": "new"}"#;
    assert!(matches!(Identity::decode(newer), Err(Error::Version { found: 7, .. })));
    for version in [1, 2] {
        let older = Identity::decode(&golden::stored(&format!("volume-{version}-plain.json"), &[]));
        let Err(Error::Version { found, known: 3, .. }) = older else { panic!("{older:?}") };
        assert_eq!(found, version);
    }
    let foreign: [&[u8]; 6] =
        [b"", b"{}", b"[1]", b"\xff\xfe", br#"{"cistern": "tank", "format": 2}"#, br#"{"version": 3}"#];
    for bytes in foreign {
        let error = Identity::decode(bytes).unwrap_err();
        assert!(error.to_string().contains("not a cistern volume"), "{error}");
    }
    assert!(matches!(
        Identity::decode(&vec![b' '; IDENTITY_BYTES_MAX as usize + 1]),
        Err(Error::Corrupt { .. })
    ));
}

/// A field that is unknown, missing or of another meaning is refused, not guessed: above all a
/// missing key never reads as "not encrypted".
#[test]
fn nothing_is_guessed() {
    for (field, value) in [
        ("format", 0.into()),
        ("block_bytes", 8192.into()),
        ("compression", "brotli".into()),
        ("volume", "1".into()),
        ("extra", 1.into()),
        ("key", Value::Bool(false)),
    ] {
        assert!(matches!(edited(field, value), Err(Error::Corrupt { .. })), "{field}");
    }
    let mut json: Value = serde_json::from_slice(&identity(&passphrase()).encode()).unwrap();
    json.as_object_mut().unwrap().remove("key");
    assert!(matches!(Identity::decode(&serde_json::to_vec(&json).unwrap()), Err(Error::Corrupt { .. })));
}

/// A value that is possible, but not the one that was written, is found by the checksum alone.
#[test]
fn a_changed_value_is_not_believed() {
    for (field, value) in [
        ("size_bytes", (1_u64 << 40).into()),
        ("created_ms", 1.into()),
        ("compression", "zstd".into()),
        ("volume", "c157e400-0000-4000-8000-000000000002".into()),
    ] {
        assert!(matches!(edited(field, value), Err(Error::Corrupt { .. })), "{field}");
    }
}

proptest! {
    #![proptest_config(golden::cases(64))]

    /// Damage anywhere in the file is an error, unless the file says the same as before.
    #[test]
    fn damage_never_makes_another_volume(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let whole = identity(&key_file());
        let mut bytes = whole.encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        for damaged in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            if let Ok(read) = Identity::decode(damaged) {
                prop_assert_eq!(&read, &whole);
            }
        }
    }
}
