//! Mutants of partial blocks: what is written over what cannot be read, and what takes its place.

use super::{Change, Mutant, test, themed};

const APART: &str = "crates/cistern-engine/src/volume/apart.rs";
const BASES: &str = "crates/cistern-engine/src/writeback/bases.rs";
const COMPLETE: &str = "crates/cistern-engine/src/volume/complete.rs";
const MAP: &str = "crates/cistern-engine/src/map.rs";
const PACK: &str = "crates/cistern-engine/src/writeback/pack.rs";
const POLICY: &str = "crates/cistern-engine/src/map/policy.rs";
const WRITER: &str = "crates/cistern-engine/src/map/writer.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "sectors-are-lost-with-their-base",
        promise: "P1",
        story: "what was written over a block that cannot be read is zeroes in the store",
        changes: &[Change { file: PACK, old: "&spread(&payload[run])", new: "&vec![0; spread(&payload[run]).len()]" }],
        test: test("-p cistern-engine --test volume_partial", "what_is_written_over_a_missing_segment"),
        simulation: themed("absent", 20),
    },
    Mutant {
        name: "a-missing-base-is-zeroes",
        promise: "P4",
        story: "the rest of a block that cannot be read is filled up with zeroes, which replace it for good",
        changes: &[Change {
            file: BASES,
            old: "out.push((sectors.block, base.map(|base| sectors.over(&base))));",
            new: "let base = base.or_else(|e| if e.is_damage() { Ok(Bytes::from_static(&[0; 4096])) } else { Err(e) });
        out.push((sectors.block, base.map(|base| sectors.over(&base))));",
        }],
        test: test("-p cistern-engine --test volume_partial", "what_is_written_over_a_missing_segment"),
        simulation: themed("absent", 20),
    },
    Mutant {
        name: "an-origin-is-waited-for",
        promise: "P9",
        story: "all write-back of a clone waits for the store of the volume it was made of",
        changes: &[Change {
            file: BASES,
            old: "                return Err(error);\n",
            new: "                tracing::debug!(%error, \"waits\");\n",
        }],
        test: test("-p cistern-engine --test volume_partial", "a_clone_goes_on_when_its_parent_refuses"),
        simulation: None,
    },
    Mutant {
        name: "a-trim-leaves-its-sectors",
        promise: "P4",
        story: "a block that is trimmed or written as a whole shows sectors that were stored apart from it before",
        changes: &[Change {
            file: MAP,
            old: "} else if partial.has_sectors {",
            new: "} else if partial.has_sectors && m.extent.is_empty() {",
        }],
        test: test("-p cistern-engine --test volume_partial", "a_newer_block_takes_the_place"),
        simulation: themed("absent", 40),
    },
    Mutant {
        name: "what-is-moved-drops-its-sectors",
        promise: "P4",
        story: "the cleaner moves a block, and the sectors that stand over it are gone",
        changes: &[Change {
            file: MAP,
            old: "self.insert_places(&counting);",
            new: "self.insert(&counting);",
        }],
        test: test("-p cistern-engine --test map_model", "sectors_stay_over_a_block_that_is_moved"),
        simulation: None,
    },
    Mutant {
        name: "a-run-has-blocks-and-sectors",
        promise: "P7",
        story: "a run spans blocks and the sectors that are kept apart, so nothing in it ever seems to be dead",
        changes: &[Change {
            file: WRITER,
            old: "self.is_full() || (start >= sectors && (1..=sectors).contains(&self.totals.end))",
            new: "self.is_full() || (start >= sectors && (1..=sectors).contains(&self.totals.end) && sectors == 0)",
        }],
        test: test("-p cistern-engine --test map_model", "sectors_hide_nothing_that_died"),
        simulation: None,
    },
    Mutant {
        name: "sectors-count-among-blocks",
        promise: "P7",
        story: "levels of sectors make up the number at which levels of blocks are merged, so a merge follows every flush",
        changes: &[Change {
            file: POLICY,
            old: "    let blocks = Extent::between(0, ALL_SECTORS.start);",
            new: "    let blocks = Extent::between(0, BLOCKS_MAX);",
        }],
        test: test("-p cistern-engine --lib", "blocks_and_sectors_have_ranks_of_their_own"),
        simulation: themed("absent", 80),
    },
    Mutant {
        name: "a-stream-leaves-sectors-out",
        promise: "P10",
        story: "a difference misses blocks that were written in part while the rest could not be read",
        changes: &[Change {
            file: APART,
            old: "mappings.extend(missing);",
            new: "mappings.extend(missing.into_iter().take(0));",
        }],
        test: test("-p cistern-engine --test volume_partial", "a_stream_has_whole_blocks"),
        simulation: None,
    },
    Mutant {
        name: "completion-ignores-what-is-newer",
        promise: "P4",
        story: "a block is completed over what a client wrote since it was read",
        changes: &[Change {
            file: COMPLETE,
            old: "let Some((_, Source::Map(mut lookup))) = view.parts.into_iter().next() else {
            return Ok(CompletionOutcome::Passed);
        };",
            new: "let _ = Source::Map(self.blocks.map.begin(extent));
        drop(view);
        let mut lookup = self.blocks.map.begin(extent);",
        }],
        test: None,
        simulation: themed("absent", 120),
    },
];
