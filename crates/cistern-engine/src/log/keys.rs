//! The names of a volume's objects. Numbers are 16 hexadecimal digits, so that names sort as the numbers do.
//!
//! The identity and the notes about the trash lie at the volume's place. All others lie in a directory there with the
//! volume's id for a name, and their names here are relative to that: seqs and numbers begin anew with every volume that is
//! created at a place, and a request that comes late, be it a put or a delete, must not meet another volume's object.
//!
//! Reading a name back is strict: what this module would not write is not one of our objects.

use uuid::Uuid;

use crate::{
    codec::hex,
    segment,
    units::{Epoch, RunId, Seq, VolumeId},
};

/// The identity of the volume; in its directory, a copy.
pub const VOLUME: &str = "volume.json";
/// Segments, claims and releases.
pub const LOG_PREFIX: &str = "log/";
/// Runs, usage and roots objects: everything that a checkpoint names by id.
pub const MAP_PREFIX: &str = "map/";
pub const CHECKPOINT_PREFIX: &str = "checkpoint/";
/// Proof that the volume has had a checkpoint.
pub const PROOF: &str = "has-checkpoints";
/// What is in it, for people.
pub const PROOF_BODY: &str =
    "This volume has had a checkpoint. Where none is listed, its log alone is not the volume.\n";
/// Proof that the volume has been opened for writing: that its log has a claim.
pub const LOG_PROOF: &str = "has-log";
/// What is in it, for people.
pub const LOG_PROOF_BODY: &str =
    "This volume has been written to. Where its log is not found, it is not empty.\n";
/// Hot sets: advice, see [`super::hot`].
pub const HOT_PREFIX: &str = "hot/";

/// Wrapped master keys.
pub const WRAPPING_PREFIX: &str = "keys/";
/// Notes about the trash.
pub const TRASH_PREFIX: &str = "trash/";
/// Notes of clones that are gone, for the volume they were made of.
pub const RELEASED_PREFIX: &str = "released/";
/// What is kept to be deleted when the store is full, see [`super::reserve`].
pub const RESERVE_PREFIX: &str = "reserve/";
/// Announcements of readers, see [`crate::gc::readers`].
pub const READERS_PREFIX: &str = "readers/";
/// What a probe of the store writes; deleted at its end.
pub const PROBE_PREFIX: &str = "probe/";

/// The directory of a volume's objects.
pub fn directory(volume: VolumeId) -> String {
    volume.0.simple().to_string()
}

/// Whether a directory may be a volume's.
pub fn is_directory(name: &str) -> bool {
    hex::decode::<16>(name).is_some()
}

/// Whether a volume would have an object of this name at its place.
pub fn is_of_a_volume(key: &str) -> bool {
    let is_in_directory = || key.split_once('/').is_some_and(|(dir, own)| is_directory(dir) && is_own(own));
    key == VOLUME || parse_trash(key).is_some() || is_in_directory()
}

/// Whether a volume would have an object of this name in its directory.
fn is_own(key: &str) -> bool {
    [VOLUME, PROOF, LOG_PROOF].contains(&key)
        || parse_entry(key).is_some()
        || parse_run(key).is_some()
        || parse_checkpoint(key).is_some()
        || parse_hot(key).is_some()
        || parse_wrapping(key).is_some()
        || parse_released(key).is_some()
        || is_reader(key)
        || parse_reserve(key).is_some()
}

/// The `number`th note about the trash.
pub fn trash(number: u64) -> String {
    numbered(TRASH_PREFIX, number)
}

pub fn parse_trash(key: &str) -> Option<u64> {
    parse_numbered(TRASH_PREFIX, key)
}

/// The `number`th object below a prefix.
pub fn numbered(prefix: &str, number: u64) -> String {
    format!("{prefix}{number:016x}")
}

pub fn parse_numbered(prefix: &str, key: &str) -> Option<u64> {
    number(key.strip_prefix(prefix)?)
}

/// The master key as it was wrapped for the `number`th secret.
pub fn wrapping(number: u64) -> String {
    numbered(WRAPPING_PREFIX, number)
}

pub fn parse_wrapping(key: &str) -> Option<u64> {
    parse_numbered(WRAPPING_PREFIX, key)
}

/// The note that a clone is gone.
pub fn released(clone: VolumeId) -> String {
    format!("{RELEASED_PREFIX}{}", clone.0.simple())
}

pub fn parse_released(key: &str) -> Option<VolumeId> {
    let bytes = hex::decode(key.strip_prefix(RELEASED_PREFIX)?)?;
    Some(VolumeId(Uuid::from_bytes(bytes)))
}

/// The `number`th object of the reserve.
pub fn reserve(number: u64) -> String {
    numbered(RESERVE_PREFIX, number)
}

pub fn parse_reserve(key: &str) -> Option<u64> {
    parse_numbered(RESERVE_PREFIX, key)
}

/// The `number`th announcement of a reader.
pub fn reader(id: Uuid, number: u64) -> String {
    format!("{READERS_PREFIX}{}-{number:016x}", id.simple())
}

pub fn is_reader(key: &str) -> bool {
    let parts = key.strip_prefix(READERS_PREFIX).and_then(|name| name.split_once('-'));
    parts.is_some_and(|(id, n)| hex::decode::<16>(id).is_some() && number(n).is_some())
}

/// The log object at `seq`.
pub fn entry(seq: Seq) -> String {
    segment::object_key(seq)
}

pub fn parse_entry(key: &str) -> Option<Seq> {
    number(key.strip_prefix(LOG_PREFIX)?).map(Seq)
}

/// An object that a checkpoint names by `id`.
pub fn run(id: RunId) -> String {
    format!("{MAP_PREFIX}{}", id.0.simple())
}

/// What an object is called where another volume is open.
pub fn of_volume(key: &str, volume: VolumeId) -> String {
    format!("{key} of volume {volume}")
}

pub fn parse_run(key: &str) -> Option<RunId> {
    let bytes = hex::decode(key.strip_prefix(MAP_PREFIX)?)?;
    Some(RunId(Uuid::from_bytes(bytes)))
}

/// The checkpoint that the writer of `epoch` made when everything up to `covered` was in it.
pub fn checkpoint(epoch: Epoch, covered: Seq) -> String {
    format!("{CHECKPOINT_PREFIX}{:016x}-{:016x}", epoch.0, covered.0)
}

pub fn parse_checkpoint(key: &str) -> Option<(Epoch, Seq)> {
    let (epoch, covered) = key.strip_prefix(CHECKPOINT_PREFIX)?.split_once('-')?;
    Some((Epoch(number(epoch)?), Seq(number(covered)?)))
}

/// The hot set with this number that the writer of `epoch` made.
pub fn hot(epoch: Epoch, number: u64) -> String {
    format!("{HOT_PREFIX}{:016x}-{number:016x}", epoch.0)
}

pub fn parse_hot(key: &str) -> Option<(Epoch, u64)> {
    let (epoch, count) = key.strip_prefix(HOT_PREFIX)?.split_once('-')?;
    Some((Epoch(number(epoch)?), number(count)?))
}

fn number(digits: &str) -> Option<u64> {
    hex::decode(digits).map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Names that look nearly like ours are not taken for ours.
    #[test]
    fn foreign_names_are_not_ours() {
        let entries =
            ["log/", "log/1", "log/000000000000000G", "log/00000000000000001", "log/000000000000000A"];
        for key in entries {
            assert_eq!(parse_entry(key), None, "{key}");
        }
        for key in
            ["map/0", "run/00000000000000000000000000000001", "map/00000000-0000-0000-0000-000000000001"]
        {
            assert_eq!(parse_run(key), None, "{key}");
        }
        for key in
            ["checkpoint/1-2", "checkpoint/0000000000000001", "checkpoint/+000000000000001-0000000000000001"]
        {
            assert_eq!(parse_checkpoint(key), None, "{key}");
        }
    }

    /// What lies at a volume's place and in its directory is a volume's, and nothing else is.
    #[test]
    fn places_and_directories() {
        let dir = directory(VolumeId(Uuid::from_u128(7)));
        for key in [
            VOLUME.to_owned(),
            trash(1),
            format!("{dir}/{}", entry(Seq(1))),
            format!("{dir}/{}", wrapping(1)),
            format!("{dir}/{VOLUME}"),
        ] {
            assert!(is_of_a_volume(&key), "{key}");
        }
        for key in [
            entry(Seq(1)),
            format!("{dir}/{}", trash(1)),
            format!("tank/{}", entry(Seq(1))),
            format!("tank/{VOLUME}"),
        ] {
            assert!(!is_of_a_volume(&key), "{key}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Every name reads back, and names sort as the numbers do: listings rely on it.
        #[test]
        fn names_read_back_and_sort(a: u64, b: u64, c: u64, d: u64, id: u128) {
            prop_assert_eq!(parse_entry(&entry(Seq(a))), Some(Seq(a)));
            prop_assert_eq!(entry(Seq(a)).cmp(&entry(Seq(b))), a.cmp(&b));
            let run_id = RunId(Uuid::from_u128(id));
            prop_assert_eq!(parse_run(&run(run_id)), Some(run_id));
            let (one, two) = (checkpoint(Epoch(a), Seq(b)), checkpoint(Epoch(c), Seq(d)));
            prop_assert_eq!(parse_checkpoint(&one), Some((Epoch(a), Seq(b))));
            prop_assert_eq!(one.cmp(&two), (a, b).cmp(&(c, d)));
            prop_assert_eq!(parse_wrapping(&wrapping(a)), Some(a));
            prop_assert_eq!(wrapping(a).cmp(&wrapping(b)), a.cmp(&b));
            prop_assert_eq!(parse_trash(&trash(a)), Some(a));
            prop_assert_eq!(parse_reserve(&reserve(a)), Some(a));
            prop_assert_eq!(trash(a).cmp(&trash(b)), a.cmp(&b));
            let (one, two) = (hot(Epoch(a), b), hot(Epoch(c), d));
            prop_assert_eq!(parse_hot(&one), Some((Epoch(a), b)));
            prop_assert_eq!(one.cmp(&two), (a, b).cmp(&(c, d)));
        }
    }
}
