//! Mutants of sending and receiving: what a stream tells, and when what came of it counts.

use super::{Change, Mutant, test, themed};

const BUILD: &str = "crates/cistern-engine/src/segment/build.rs";
const EXPORT: &str = "crates/cistern/src/cli/export/writer.rs";
const FOREIGN: &str = "crates/cistern-engine/src/volume/receive/into/foreign.rs";
const LOAD: &str = "crates/cistern-engine/src/volume/load.rs";
const IMPORT: &str = "crates/cistern/src/cli/import/input.rs";
const INTO: &str = "crates/cistern-engine/src/volume/receive/into.rs";
const RBD_READ: &str = "crates/cistern-engine/src/stream/rbd_read.rs";
const READ: &str = "crates/cistern-engine/src/stream/read.rs";
const RECEIVE: &str = "crates/cistern-engine/src/volume/receive.rs";
const SEND: &str = "crates/cistern-engine/src/volume/send.rs";
const STREAM: &str = "crates/cistern-engine/src/stream.rs";
const VOLUME: &str = "crates/cistern-engine/src/volume.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a-hole-is-not-sent",
        promise: "P10",
        story: "what was discarded between two snapshots stays where the difference is received",
        changes: &[Change {
            file: SEND,
            old: "RangeKind::Hole => StreamContent::Hole,",
            new: "RangeKind::Hole => continue,",
        }],
        test: test("-p cistern-engine --test volume_receive", "what_is_sent_arrives"),
        simulation: None,
    },
    Mutant {
        name: "a-received-snapshot-keeps-the-old-size",
        promise: "P10",
        story: "the volume was resized between two snapshots, and where the difference is received it is not",
        changes: &[Change { file: INTO, old: "volume.resize(header.size_bytes, true).await?;", new: "" }],
        test: test("-p cistern-engine --test volume_receive", "what_is_sent_arrives"),
        simulation: None,
    },
    Mutant {
        name: "a-stream-needs-no-end",
        promise: "P10",
        story: "a stream that was cut between two records counts as complete",
        changes: &[Change {
            file: READ,
            old: "read_exact(&mut self.from, &mut head)?;",
            new: "if read_exact(&mut self.from, &mut head).is_err() { self.is_complete = true; return Ok(None); }",
        }],
        test: test("-p cistern-engine --test format_stream", "damage_is_found_at_every_byte"),
        simulation: None,
    },
    Mutant {
        name: "the-end-does-not-wait",
        promise: "P10",
        story: "a receive ends, durably, while what it loaded is on its way: a crash leaves a complete snapshot with holes",
        changes: &[Change {
            file: LOAD,
            old: "writer.drain_to(*to).await?;\n            loading",
            new: "let _ = to;\n            loading",
        }],
        test: test("-p cistern-engine --test volume_load", "the_end_comes_behind_all_that_was_loaded"),
        simulation: themed("backups", 60),
    },
    Mutant {
        name: "what-was-given-up-is-passed-over",
        promise: "P10",
        story: "a load that was dropped on its way is missing, and what came behind it is there: who goes on from there never brings it",
        changes: &[Change { file: LOAD, old: "loading.is_torn = true;", new: "loading.is_torn = false;" }],
        test: test("-p cistern-engine --test volume_load", "what_was_given_up_leaves_no_hole"),
        simulation: None,
    },
    Mutant {
        name: "what-was-collected-stays",
        promise: "P10",
        story: "what was collected of a receive that was given up is loaded with the next one",
        changes: &[Change {
            file: LOAD,
            old: "        self.collected.clear();\n        self.on_their_way.clear();\n        (self.data_bytes, self.is_torn) = (0, false);",
            new: "        self.on_their_way.clear();\n        self.is_torn = false;",
        }],
        test: test("-p cistern-engine --test volume_load", "what_was_collected_goes_with_its_receive"),
        simulation: None,
    },
    Mutant {
        name: "what-is-packed-is-taken-for-plain",
        promise: "P10",
        story: "frames that pass as they lie are sealed as if they were data",
        changes: &[Change {
            file: BUILD,
            old: "BlockData::Packed(payload) => append_packed(sealer, extent.len, payload, body),",
            new: "BlockData::Packed(payload) => append_raw(sealer, payload, body),",
        }],
        test: test("-p cistern-engine --test volume_receive", "what_is_sent_arrives"),
        simulation: None,
    },
    Mutant {
        name: "what-is-not-complete-is-opened",
        promise: "P10",
        story: "after a receive that was killed the volume is served with half of the snapshot",
        changes: &[Change {
            file: VOLUME,
            old: "match volume.receiving() {",
            new: "match volume.receiving().filter(|_| false) {",
        }],
        test: test("-p cistern-engine --test volume_receive", "who_dies_while_receiving_left_nothing_half"),
        simulation: None,
    },
    Mutant {
        name: "a-broken-receive-is-not-gone-back-on",
        promise: "P10",
        story: "what a stream brought before it broke stays in the volume",
        changes: &[Change { file: RECEIVE, old: "self.put_back(kept).await?;", new: "let _ = kept;" }],
        test: test("-p cistern-engine --test volume_receive", "a_broken_stream_changes_nothing"),
        simulation: None,
    },
    Mutant {
        name: "what-is-put-back-counts-as-received",
        promise: "P10",
        story: "what is written below a receive, and the size that is set, are taken for what came of the stream: it goes on behind them",
        changes: &[
            Change {
                file: INTO,
                old: "volume.begin_receive(receiving(header)).await?;",
                new: "volume.begin_receive(receiving(header)).await?; volume.begin_fill(header.to.id).await?;",
            },
            Change {
                file: INTO,
                old: "volume.begin_fill(header.to.id).await?;\n        Ok(fill)",
                new: "Ok(fill)",
            },
        ],
        test: test("-p cistern-engine --test volume_receive", "a_stream_goes_on_where_it_broke"),
        simulation: None,
    },
    Mutant {
        name: "a-receive-goes-on-with-what-was-put-back",
        promise: "P10",
        story: "whoever is killed while it goes back leaves the bookmark, and what was put back counts as received",
        changes: &[Change {
            file: RECEIVE,
            old: "if snapshots.filling().is_some() {",
            new: "if snapshots.filling().is_some() && false {",
        }],
        test: test("-p cistern-engine --test volume_receive", "a_return_that_is_interrupted"),
        simulation: themed("backups", 300),
    },
    Mutant {
        name: "a-stream-goes-on-anywhere",
        promise: "P10",
        story: "a stream that begins behind what was received leaves out what is between",
        changes: &[Change { file: INTO, old: "if from > place {", new: "if from > place && place > from {" }],
        test: test("-p cistern-engine --test volume_receive", "what_was_received_before_it_broke_is_enough"),
        simulation: None,
    },
    Mutant {
        name: "a-missing-share-is-not-missed",
        promise: "P10",
        story: "of several shares one is not there, and what the others brought counts as the snapshot",
        changes: &[Change {
            file: STREAM,
            old: "match there.iter().position(|there| !there) {",
            new: "match there.iter().position(|there| !there).filter(|_| false) {",
        }],
        test: test("-p cistern-engine --test format_stream", "shares_belong_together"),
        simulation: None,
    },
    Mutant {
        name: "places-are-those-of-other-shares",
        promise: "P10",
        story: "how far any share came is taken for how far each of them did",
        changes: &[Change {
            file: RECEIVE,
            old: "head.last_changed(share, since)",
            new: "head.last_changed(if share.index() < shares { Share::ALL } else { share }, since)",
        }],
        test: test("-p cistern-engine --test volume_receive", "what_was_received_before_it_broke_is_enough"),
        simulation: themed("backups", 100),
    },
    Mutant {
        name: "a-difference-of-rbd-needs-no-end",
        promise: "P10",
        story: "a difference of rbd that was cut between two records counts as complete",
        changes: &[Change {
            file: RBD_READ,
            old: "None => self.tag()?,",
            new: "None => self.tag().unwrap_or(b'e'),",
        }],
        test: test("-p cistern-engine --test format_rbd", "without_its_end_it_is_not_complete"),
        simulation: None,
    },
    Mutant {
        name: "zeroes-of-rbd-are-not-written",
        promise: "P10",
        story: "what was discarded between two snapshots of an image stays where the difference is imported",
        changes: &[Change {
            file: FOREIGN,
            old: "PatchContent::Zeroes(len) => return self.clear(offset, len).await.map(|()| 0),",
            new: "PatchContent::Zeroes(_) => return Ok(0),",
        }],
        test: test("-p cistern-engine --test volume_foreign", "what_goes_through_rbd_arrives"),
        simulation: None,
    },
    Mutant {
        name: "what-a-shrink-leaves-in-a-sector-comes-back",
        promise: "P10",
        story: "an image of another system shrinks within a sector and grows again, and shows what it had there before",
        changes: &[Change {
            file: FOREIGN,
            old: "if state.base.is_none() { 0 } else { size }",
            new: "if state.base.is_none() { 0 } else { volume_bytes }",
        }],
        test: test("-p cistern-engine --test volume_foreign", "what_a_shrink_took_away_does_not_come_back"),
        simulation: None,
    },
    Mutant {
        name: "an-image-may-end-early",
        promise: "P10",
        story: "what writes an image into the pipe fails, and half of it is imported as all of it",
        changes: &[Change { file: IMPORT, old: "if (data.len() as u64) < len {", new: "if false {" }],
        test: test("-p cistern --test images", "an_import_that_fails_leaves_nothing"),
        simulation: None,
    },
    Mutant {
        name: "holes-are-not-zeroed-on-a-device",
        promise: "P10",
        story: "where a volume has a hole, the device that it is exported to shows what lay there before",
        changes: &[Change { file: EXPORT, old: "outlet.zeroes(at, offset - at).map_err(failed)?;", new: "" }],
        test: test("-p cistern --test images", "a_device_is_written_over"),
        simulation: None,
    },
];
