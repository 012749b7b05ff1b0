//! Backups that other programs pull: what changed, from the bitmaps that snapshots are, into images of their own.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fixture::Fixture,
    mount::{Access, FuseFile},
    tool, tree,
};
use serde_json::Value;

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const MIB: u64 = 1 << 20;
const NIGHTS: [&str; 2] = ["monday", "tuesday"];

fn snapshot(volume: &Fixture, name: &str) -> Result<()> {
    volume.server.ask(&["snapshot", &format!("{}@{name}", volume.url)])?;
    volume.server.ask(&["drain", &volume.url])?;
    Ok(())
}

fn write(volume: &Fixture, script: &str) -> Result<()> {
    tool::run("nbdsh", ["-u", &volume.uri(), "-c", &format!("{script}; h.flush()")]).map(drop)
}

/// What a bitmap says is dirty: offset and length.
fn dirty(uri: &str, since: &str) -> Result<Vec<(u64, u64)>> {
    let context = format!("--map=qemu:dirty-bitmap:{since}");
    let map: Value = serde_json::from_str(&tool::run("nbdinfo", [&context, "--json", uri])?.stdout)?;
    let field =
        |range: &Value, name: &str| range[name].as_u64().with_context(|| format!("no {name} in {range}"));
    let ranges = map.as_array().context("no map")?.iter().filter(|range| range["type"] == 1);
    ranges.map(|range| Ok((field(range, "offset")?, field(range, "length")?))).collect()
}

/// Pulls what a snapshot changed since another one into an overlay, as QEMU's tools do it: the overlay stands on the export while dirty ranges are
/// copied up by reading, and on the backup before it from then on.
fn pull(uri: &str, since: &str, before: &Path, overlay: &Path) -> Result<()> {
    let text = |path: &Path| path.display().to_string();
    tool::run("qemu-img", ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", uri, &text(overlay)])?;
    let reads: Vec<String> =
        dirty(uri, since)?.iter().map(|(offset, len)| format!("read {offset} {len}")).collect();
    let mut arguments = vec!["-C".to_owned(), "-f".to_owned(), "qcow2".to_owned()];
    reads.into_iter().for_each(|read| arguments.extend(["-c".to_owned(), read]));
    arguments.push(text(overlay));
    let copied = tool::run("qemu-io", arguments)?;
    ensure!(!copied.stdout.contains("failed"), "{}", copied.stdout);
    tool::run(
        "qemu-img",
        ["rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", &text(before), &text(overlay)],
    )?;
    Ok(())
}

/// Bytes that an image has itself, and not what it is based on.
fn own_bytes(image: &Path) -> Result<u64> {
    let map =
        tool::run("qemu-img", ["map", "-f", "qcow2", "--output=json", &image.display().to_string()])?.stdout;
    let map: Value = serde_json::from_str(&map)?;
    let own = map.as_array().context("no map")?.iter().filter(|range| range["depth"] == 0);
    Ok(own.filter_map(|range| range["length"].as_u64()).sum())
}

/// A full backup and two incremental ones, each pulled from a snapshot while the volume is written on, into a chain of images: each of them shows its
/// snapshot, what was discarded and the growth between among it, and has little more than what changed.
#[test]
fn a_chain_of_images_is_pulled() -> Result<()> {
    let volume = Fixture::start(CISTERN, "pull", "64M", &[])?;
    let image = |name: &str| volume.scratch.file(&format!("{name}.qcow2"));
    let first = volume.random_file("first", 32 * MIB, 1)?.display().to_string();
    std::fs::File::options().write(true).open(&first)?.set_len(64 * MIB)?;
    tool::run("nbdcopy", ["--flush", &first, &volume.uri()])?;
    snapshot(&volume, "monday")?;
    write(&volume, &format!("h.pwrite(b'a' * {MIB}, {}); h.pwrite(b'b' * 512, 512)", 3 * MIB))?;
    write(&volume, &format!("h.trim({MIB}, {}); h.zero({MIB}, {})", 8 * MIB, 40 * MIB))?;
    snapshot(&volume, "tuesday")?;
    volume.server.ask(&["resize", &volume.url, "80M"])?;
    write(&volume, &format!("h.pwrite(b'c' * 4096, {}); h.pwrite(b'd' * 4096, {})", 3 * MIB, 79 * MIB))?;
    snapshot(&volume, "wednesday")?;
    write(&volume, &format!("h.pwrite(b'e' * {MIB}, 0)"))?;

    let of = |name: &str| volume.server.uri_of(&format!("vol@{name}"));
    let full = image("monday").display().to_string();
    tool::run("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", &of("monday"), &full])?;
    pull(&of("tuesday"), "monday", &image("monday"), &image("tuesday"))?;
    pull(&of("wednesday"), "tuesday", &image("tuesday"), &image("wednesday"))?;
    for name in ["monday", "tuesday", "wednesday"] {
        let backup = image(name).display().to_string();
        tool::run("qemu-img", ["compare", "-f", "qcow2", "-F", "raw", &backup, &of(name)])?;
        tool::run("qemu-img", ["check", "-q", &backup])?;
    }
    let (tuesday, wednesday) = (own_bytes(&image("tuesday"))?, own_bytes(&image("wednesday"))?);
    ensure!(tuesday <= 4 * MIB, "{tuesday} bytes of tuesday");
    ensure!(wednesday <= 17 * MIB, "{wednesday} bytes of wednesday");
    let changed: u64 = dirty(&of("tuesday"), "monday")?.iter().map(|(_, len)| len).sum();
    ensure!((3 * MIB..4 * MIB).contains(&changed), "{changed} bytes are dirty");
    volume.server.stop()
}

/// What programs that find out by reading what changed are to back up: 64 MiB of which 24 are random.
fn volume_to_read(name: &str) -> Result<Fixture> {
    let volume = Fixture::start(CISTERN, name, "64M", &[])?;
    let first = volume.random_file("first", 24 * MIB, 1)?.display().to_string();
    std::fs::File::options().write(true).open(&first)?.set_len(64 * MIB)?;
    tool::run("nbdcopy", ["--flush", &first, &volume.uri()])?;
    Ok(volume)
}

/// Two nights of such a program: it is given each snapshot as a file, under the same path, and the second differs a little. Gives how many bytes
/// each added to its repository.
fn two_nights(
    volume: &Fixture,
    repository: &Path,
    back_up: impl Fn(&str, &str) -> Result<()>,
) -> Result<[u64; 2]> {
    let mut sizes = vec![tree::bytes(repository)];
    for name in NIGHTS {
        snapshot(volume, name)?;
        let uri = volume.server.uri_of(&format!("vol@{name}"));
        let shown = FuseFile::start(&volume.scratch, &uri, Access::ReadOnly)?;
        back_up(name, &shown.file().display().to_string())?;
        drop(shown);
        sizes.push(tree::bytes(repository));
        // Not only the next one is written over: each is restored from what it was.
        write(volume, &format!("h.pwrite(b'{name}x' * 65536, {MIB})", name = &name[..1]))?;
    }
    Ok([sizes[1] - sizes[0], sizes[2] - sizes[1]])
}

/// What was restored is what the snapshot of that night shows.
fn is_as_it_was(volume: &Fixture, name: &str, restored: &str) -> Result<()> {
    let uri = volume.server.uri_of(&format!("vol@{name}"));
    tool::run("qemu-img", ["compare", "-f", "raw", "-F", "raw", restored, &uri]).map(drop)
}

/// restic, which finds out by reading what changed: a night's run over a snapshot, of which the next one after a small change adds little; either is restored as
/// it was.
#[test]
fn restic_backs_up_snapshots() -> Result<()> {
    let volume = volume_to_read("restic")?;
    let repository = volume.scratch.dir("repository")?;
    let restic = |arguments: &[&str]| {
        let mut command = tool::command("restic")?;
        command.arg("--repo").arg(&repository).args(["--no-cache", "--quiet", "--json"]).args(arguments);
        command.env("RESTIC_PASSWORD", "not secret");
        tool::run_command(command, tool::RUN_LIMIT)
    };
    restic(&["init"])?;
    let back_up = |name: &str, file: &str| restic(&["backup", "--tag", name, file]).map(drop);
    let [first, second] = two_nights(&volume, &repository, back_up)?;
    ensure!(first > 24 * MIB && second < 8 * MIB, "the first took {first}, the second {second}");
    for name in NIGHTS {
        let place = volume.scratch.dir(&format!("restored-{name}"))?;
        restic(&["restore", "latest", "--tag", name, "--target", &place.display().to_string()])?;
        let found = tool::run("find", [&place.display().to_string(), "-name", "nbd", "-type", "f"])?.stdout;
        is_as_it_was(&volume, name, found.trim())?;
    }
    volume.server.stop()
}

/// The same with borg, which takes a file for unchanged by its times, its size and its inode: that a snapshot is shown under the path of the one before does not
/// make it that.
#[test]
fn borg_backs_up_snapshots() -> Result<()> {
    let volume = volume_to_read("borg")?;
    let (repository, own) = (volume.scratch.dir("repository")?, volume.scratch.dir("borg")?);
    let borg = |directory: &Path, arguments: &[&str]| {
        let mut command = tool::command("borg")?;
        command.args(arguments).current_dir(directory);
        command.env("BORG_REPO", &repository).env("BORG_BASE_DIR", &own);
        command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
        tool::run_command(command, tool::RUN_LIMIT)
    };
    borg(&own, &["init", "--encryption", "none"])?;
    let back_up = |name: &str, file: &str| borg(&own, &["create", &format!("::{name}"), file]).map(drop);
    let [first, second] = two_nights(&volume, &repository, back_up)?;
    ensure!(first > 24 * MIB && second < 12 * MIB, "the first took {first}, the second {second}");
    for name in NIGHTS {
        let place = volume.scratch.dir(&format!("restored-{name}"))?;
        borg(&place, &["extract", &format!("::{name}")])?;
        let found = tool::run("find", [&place.display().to_string(), "-name", "nbd", "-type", "f"])?.stdout;
        is_as_it_was(&volume, name, found.trim())?;
    }
    volume.server.stop()
}
