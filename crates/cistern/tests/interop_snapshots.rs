//! Snapshots and what changed since them, as foreign programs see them.

use anyhow::{Context, Result, ensure};
use cistern_harness::{fixture::Fixture, tool};
use serde_json::Value;

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const MIB: u64 = 1 << 20;

/// What nbdinfo says changed since a snapshot: offset, length and whether it did, in MiB.
fn map(uri: &str, snapshot: &str) -> Result<Vec<(u64, u64, bool)>> {
    let context = format!("--map=qemu:dirty-bitmap:{snapshot}");
    let map: Value = serde_json::from_str(&tool::run("nbdinfo", [&context, "--json", uri])?.stdout)?;
    let range = |range: &Value| {
        let field = |name: &str| range[name].as_u64().with_context(|| format!("no {name} in {range}"));
        Ok((field("offset")? / MIB, field("length")? / MIB, field("type")? == 1))
    };
    map.as_array().context("no map")?.iter().map(range).collect()
}

/// nbdinfo lists a snapshot as a bitmap and shows what changed since, of the volume and of a later snapshot, as it does with those of
/// QEMU's exports.
#[test]
fn nbdinfo_maps_what_changed() -> Result<()> {
    let volume = Fixture::start(CISTERN, "bitmaps", "64M", &[])?;
    let write = |offset: u64| {
        let script = format!("h.pwrite(b'x' * {MIB}, {}); h.flush()", offset * MIB);
        tool::run("nbdsh", ["-u", &volume.uri(), "-c", &script])
    };
    let snapshot = |name: &str| volume.server.ask(&["snapshot", &format!("{}@{name}", volume.url)]);
    write(1)?;
    snapshot("a")?;
    write(3)?;
    snapshot("b")?;
    write(5)?;
    let listed = tool::run("nbdinfo", ["--json", &volume.uri()])?.stdout;
    for context in ["base:allocation", "qemu:dirty-bitmap:a", "qemu:dirty-bitmap:b"] {
        ensure!(listed.contains(context), "no {context} in {listed}");
    }
    volume.server.ask(&["drain", &volume.url])?;
    let since_a = map(&volume.uri(), "a")?;
    ensure!(
        since_a == [(0, 3, false), (3, 1, true), (4, 1, false), (5, 1, true), (6, 58, false)],
        "{since_a:?}"
    );
    let since_b = map(&volume.uri(), "b")?;
    ensure!(since_b == [(0, 5, false), (5, 1, true), (6, 58, false)], "{since_b:?}");
    let between = map(&volume.server.uri_of("vol@b"), "a")?;
    ensure!(between == [(0, 3, false), (3, 1, true), (4, 60, false)], "{between:?}");
    tool::run_failing("nbdinfo", ["--map=qemu:dirty-bitmap:b", &volume.server.uri_of("vol@a")])?;
    Ok(())
}

/// A snapshot is copied and compared by nbdcopy and qemu-img while the volume is written over, and is what was there when it was made;
/// its holes are holes.
#[test]
fn a_snapshot_is_copied_while_the_volume_is_written() -> Result<()> {
    let volume = Fixture::start(CISTERN, "snapshot-copy", "256M", &[])?;
    let first = volume.random_file("first", 128 * MIB, 1)?;
    std::fs::File::options().write(true).open(&first)?.set_len(256 * MIB)?; // the rest is a hole
    let second = volume.random_file("second", 256 * MIB, 2)?.display().to_string();
    let first = first.display().to_string();
    tool::run("nbdcopy", ["--flush", &first, &volume.uri()])?;
    volume.server.ask(&["snapshot", &format!("{}@first", volume.url)])?;
    let shown = volume.server.uri_of("vol@first");
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| tool::run("nbdcopy", ["--flush", &second, &volume.uri()]));
        let back = volume.scratch.file("back").display().to_string();
        tool::run("nbdcopy", [&shown, &back])?;
        tool::run("cmp", [&first, &back])?;
        writing.join().expect("no panic")
    })?;
    tool::run("qemu-img", ["compare", "-f", "raw", "-F", "raw", &first, &shown])?;
    tool::run("qemu-img", ["compare", "-f", "raw", "-F", "raw", &second, &volume.uri()])?;
    let map = tool::run("qemu-img", ["map", "-f", "raw", "--output=json", &shown])?.stdout;
    let map: Value = serde_json::from_str(&map)?;
    let data = map.as_array().context("no map")?.iter().filter(|range| range["data"] == true);
    let data: u64 = data.filter_map(|range| range["length"].as_u64()).sum();
    ensure!(data == 128 * MIB, "{data} bytes of data in {map}");
    volume.server.stop()
}
