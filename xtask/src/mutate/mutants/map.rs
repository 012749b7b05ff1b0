//! Mutants of the map and of the codecs: what damage and merges may do.

use super::{Change, Mutant, test, themed};

const MAP: &str = "crates/cistern-engine/src/map.rs";
const FOOTER: &str = "crates/cistern-engine/src/segment/footer.rs";
const MERGE: &str = "crates/cistern-engine/src/map/merge.rs";
const SEAL: &str = "crates/cistern-engine/src/codec/seal.rs";
const LOOKUP: &str = "crates/cistern-engine/src/cache/lookup.rs";
const FRAMES: &str = "crates/cistern-engine/src/fetch/frames.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "merges-drop-holes",
        promise: "P4",
        story: "a merge forgets a hole above older data, which shines through again",
        changes: &[
            Change {
                file: MERGE,
                old: "        self.bases.oldest.is_some_and(",
                new: "        self.bases.snapshots.len() > 1_000_000 && self.bases.oldest.is_some_and(",
            },
            Change {
                file: MERGE,
                old: "            || self.older.iter().any(",
                new: "            && self.older.iter().any(",
            },
        ],
        test: test("-p cistern-engine --test map_model", "agrees_with_an_array"),
        simulation: themed("merges", 20),
    },
    Mutant {
        name: "seals-are-not-checked",
        promise: "P6",
        story: "without encryption, damaged bytes of the store are returned as data",
        changes: &[
            Change {
                file: SEAL,
                old: "            Inner::Checksum(identity) if tail == checksum(*identity, part, body).to_le_bytes() => {\n                Ok(",
                new: "            Inner::Checksum(identity) if tail != checksum(*identity, part, body).to_be_bytes() => {\n                Ok(",
            },
            Change {
                file: SEAL,
                old: "            Inner::Checksum(identity) if tail == checksum(*identity, part, body).to_le_bytes() => {\n                out",
                new: "            Inner::Checksum(identity) if tail != checksum(*identity, part, body).to_be_bytes() => {\n                out",
            },
        ],
        test: test("-p cistern-engine --test format_sealing", "a_part_opens_at_its_place_only"),
        simulation: themed("damage", 100),
    },
    Mutant {
        name: "cache-is-believed",
        promise: "P6",
        story: "what the disk of the cache gives is not verified",
        changes: &[Change {
            file: LOOKUP,
            old: "zip(crcs).all(|(piece, crc)| crc_fast::crc32_iscsi(piece) == *crc)",
            new: "zip(crcs).all(|(piece, crc)| crc_fast::crc32_iscsi(piece) == *crc || true)",
        }],
        test: None,
        simulation: themed("bad-cache", 200),
    },
    Mutant {
        name: "bad-frame-is-not-fetched-again",
        promise: "P6",
        story: "one damaged reply of a sound store fails a read for good",
        changes: &[Change {
            file: FRAMES,
            old: "Err(e) if e.is_damage() => self.reader.forget(object), // perhaps only our copy is bad",
            new: "Err(e) if e.is_damage() => return Err(e),",
        }],
        test: test("-p cistern-engine --test volume_damaged_replies", "a_damaged_reply"),
        simulation: themed("bad-replies", 100),
    },
    Mutant {
        name: "moves-are-unconditional",
        promise: "P4",
        story: "a block that was moved replaces what was written since the mover looked",
        changes: &[Change {
            file: MAP,
            old: "let same = |m: &Mapping| m.birth == moved.birth || (",
            new: "let same = |m: &Mapping| m.birth >= Seq(0) || (",
        }],
        test: test("-p cistern-engine --test map_model", "agrees_with_an_array"),
        simulation: None,
    },
    Mutant {
        name: "moves-ask-the-tables-only",
        promise: "P4",
        story: "a block that was moved is not held against the runs of a checkpoint that came meanwhile",
        changes: &[Change {
            file: MAP,
            old: "let levels_are_older = base >= self.covered();",
            new: "let levels_are_older = base >= Seq(0);",
        }],
        test: test("-p cistern-engine --test map_model", "agrees_with_an_array"),
        simulation: None,
    },
    Mutant {
        name: "late-moves-are-not-counted",
        promise: "P7",
        story: "a block that was moved too late is not dead, so its segment is never deleted",
        changes: &[Change {
            file: MAP,
            old: "late.iter().for_each(|m| table.lose(m, version::placed(m), snapshots));",
            new: "let _ = (late, table, snapshots);",
        }],
        test: test("-p cistern-engine --test map_model", "agrees_with_an_array"),
        simulation: None,
    },
    Mutant {
        name: "births-are-lost",
        promise: "P4",
        story: "a block that was moved is born when it was moved",
        changes: &[Change { file: FOOTER, old: "(base.0 - piece.birth.0) << 1 |", new: "0 << 1 |" }],
        test: test("-p cistern-engine --test format_segment", "what_was_moved_keeps_its_births"),
        simulation: None,
    },
];
