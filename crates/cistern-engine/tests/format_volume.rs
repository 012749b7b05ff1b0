//! `volume.json`, `keys/<n>` and `trash/<n>`: they read back, tell newer from foreign, and open with the right secret only.

use cistern_engine::{
    Error,
    codec::{Compression, KeySource, MasterKey, ObjectKind, Sealer},
    log::{
        GRACE,
        identity::{IDENTITY_BYTES_MAX, Identity},
        origin::CloneSource,
        trash::{Fate, Note},
        wrapping::Wrapping,
    },
};
use golden::{env, key, salt, volume};
use proptest::prelude::*;
use serde_json::Value;

mod golden;

fn identity(encrypted: bool) -> Identity {
    Identity {
        volume: volume(1),
        created_ms: 1_700_000_000_123,
        size_bytes: 10 << 40,
        compression: Compression::Lz4,
        encrypted,
        origin: None,
        slot_grace: GRACE,
    }
}

fn wrapping(source: &KeySource) -> Wrapping {
    Wrapping { volume: volume(1), number: 3, key: key(1).wrap(&env(2), source).unwrap() }
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

/// The files that are written today read for ever, and unlock with their passphrase and key file: they stand
/// for volumes of users.
#[test]
fn golden_identities() {
    for (name, encrypted) in [("plain", false), ("encrypted", true)] {
        let fresh = identity(encrypted);
        let stored = golden::stored(&format!("volume-5-{name}.json"), &fresh.encode());
        assert_eq!(stored, fresh.encode());
        assert_eq!(Identity::decode(&stored).unwrap(), fresh);
    }
    let origin = CloneSource { volume: volume(2), way: "../../pools/tank".to_owned() };
    let clone = Identity { origin: Some(origin), ..identity(true) };
    let stored = golden::stored("volume-5-clone.json", &clone.encode());
    assert_eq!(stored, clone.encode());
    assert_eq!(Identity::decode(&stored).unwrap(), clone);
    for (name, source) in [("passphrase", passphrase()), ("key-file", key_file())] {
        let fresh = wrapping(&source);
        let stored = golden::stored(&format!("key-1-{name}.json"), &fresh.encode());
        assert_eq!(stored, fresh.encode());
        let read = Wrapping::decode(3, &stored).unwrap();
        assert_eq!(read, fresh);
        assert!(is_the_key(&read.key.unwrap(&source).unwrap()));
    }
}

fn note(fate: Fate) -> Note {
    let (id, host) = (volume(2).0, "here".to_owned());
    Note { volume: volume(1), number: 3, id, fate, at_ms: 1_700_000_000_123, keep_ms: 86_400_000, host }
}

/// Notes about the trash that are written today read for ever.
#[test]
fn golden_notes() {
    for (name, fate) in
        [("removed", Fate::Removed), ("restored", Fate::Restored), ("deleting", Fate::Deleting)]
    {
        let fresh = note(fate);
        let stored = golden::stored(&format!("trash-1-{name}.json"), &fresh.encode());
        assert_eq!(stored, fresh.encode());
        assert_eq!(Note::decode(3, &stored).unwrap(), fresh);
    }
}

/// A note under another number, of a newer format, changed anywhere, or of something else is refused by name.
#[test]
fn a_note_that_is_not_what_was_written_is_refused() {
    let whole = note(Fate::Restored).encode();
    let corrupt = |number, bytes: &[u8]| match Note::decode(number, bytes) {
        Err(Error::Corrupt { what, .. }) => assert_eq!(what, format!("trash/{number:016x}")),
        other => panic!("not corrupt: {other:?}"),
    };
    corrupt(4, &whole);
    corrupt(3, &identity(true).encode());
    corrupt(3, b"");
    let edited = |field: &str, value: Value| {
        let mut json: Value = serde_json::from_slice(&whole).unwrap();
        json[field] = value;
        serde_json::to_vec(&json).unwrap()
    };
    for (field, value) in
        [("fate", "removed".into()), ("fate", "lost".into()), ("at_ms", 1.into()), ("extra", 1.into())]
    {
        corrupt(3, &edited(field, value));
    }
    let newer = Note::decode(3, &edited("format", 2.into()));
    assert!(matches!(newer, Err(Error::Version { found: 2, known: 1, .. })), "{newer:?}");
    for at in 0..whole.len() {
        let mut damaged = whole.to_vec();
        damaged[at] ^= 1;
        if let Ok(read) = Note::decode(3, &damaged) {
            assert_eq!(read, note(Fate::Restored), "byte {at}");
        }
    }
}

/// Each way of not having the right secret has its own text.
#[test]
fn a_missing_or_wrong_secret_is_named() {
    let text = |wrapping: &Wrapping, source: &KeySource| match wrapping.key.unwrap(source) {
        Err(Error::Key(text)) => text,
        other => panic!("not a key error: {other:?}"),
    };
    assert!(text(&wrapping(&key_file()), &KeySource::None).contains("is encrypted"));
    assert!(text(&wrapping(&key_file()), &passphrase()).contains("by a key file, not by a passphrase"));
    let other = KeySource::KeyFile((1..65).collect());
    assert!(text(&wrapping(&key_file()), &other).contains("wrong key file"));
}

/// A wrapped key under another number, of a newer format, changed, or of something else is refused by name.
#[test]
fn a_key_that_is_not_what_was_written_is_refused() {
    let whole = wrapping(&key_file()).encode();
    let corrupt = |number, bytes: &[u8]| match Wrapping::decode(number, bytes) {
        Err(Error::Corrupt { what, .. }) => assert_eq!(what, format!("keys/{number:016x}")),
        other => panic!("not corrupt: {other:?}"),
    };
    corrupt(4, &whole);
    corrupt(3, &identity(true).encode());
    corrupt(3, b"");
    let edited = |field: &str, value: Value| {
        let mut json: Value = serde_json::from_slice(&whole).unwrap();
        json[field] = value;
        serde_json::to_vec(&json).unwrap()
    };
    corrupt(3, &edited("volume", "c157e400-0000-4000-8000-000000000002".into()));
    corrupt(3, &edited("extra", 1.into()));
    let newer = Wrapping::decode(3, &edited("format", 2.into()));
    assert!(matches!(newer, Err(Error::Version { found: 2, known: 1, .. })), "{newer:?}");
    for at in 0..whole.len() {
        let mut damaged = whole.to_vec();
        damaged[at] ^= 1;
        if let Ok(read) = Wrapping::decode(3, &damaged) {
            assert_eq!(read, wrapping(&key_file()), "byte {at}");
        }
    }
}

fn edited(field: &str, value: Value) -> Result<Identity, Error> {
    let mut json: Value = serde_json::from_slice(&identity(false).encode()).unwrap();
    json[field] = value;
    Identity::decode(&serde_json::to_vec(&json).unwrap())
}

/// A newer or older format is told from a foreign file, even when it has fields that are not known here.
#[test]
fn other_formats_and_foreign_files_are_named() {
    assert!(matches!(edited("format", 6.into()), Err(Error::Version { found: 6, known: 5, .. })));
    let newer = br#"{"cistern": "volume", "format": 7, "shape": "new"}"#;
    assert!(matches!(Identity::decode(newer), Err(Error::Version { found: 7, .. })));
    let older = golden::stored("volume-1-plain.json", &[]);
    assert!(matches!(Identity::decode(&older), Err(Error::Version { found: 1, known: 5, .. })));
    let older = golden::stored("volume-2-passphrase.json", &[]);
    assert!(matches!(Identity::decode(&older), Err(Error::Version { found: 2, known: 5, .. })));
    let older = golden::stored("volume-3-encrypted.json", &[]);
    assert!(matches!(Identity::decode(&older), Err(Error::Version { found: 3, known: 5, .. })));
    let older = golden::stored("volume-4-plain.json", &[]);
    assert!(matches!(Identity::decode(&older), Err(Error::Version { found: 4, known: 5, .. })));
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
/// missing word about encryption never reads as "not encrypted".
#[test]
fn nothing_is_guessed() {
    for (field, value) in [
        ("format", 0.into()),
        ("block_bytes", 8192.into()),
        ("compression", "brotli".into()),
        ("volume", "1".into()),
        ("extra", 1.into()),
        ("encrypted", Value::Null),
        ("encrypted", 0.into()),
    ] {
        assert!(matches!(edited(field, value), Err(Error::Corrupt { .. })), "{field}");
    }
    let mut json: Value = serde_json::from_slice(&identity(true).encode()).unwrap();
    json.as_object_mut().unwrap().remove("encrypted");
    assert!(matches!(Identity::decode(&serde_json::to_vec(&json).unwrap()), Err(Error::Corrupt { .. })));
}

/// A value that is possible, but not the one that was written, is found by the checksum alone.
#[test]
fn a_changed_value_is_not_believed() {
    for (field, value) in [
        ("size_bytes", (1_u64 << 40).into()),
        ("created_ms", 1.into()),
        ("encrypted", true.into()),
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
        let whole = identity(true);
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
