//! Disk images of other systems: imported as a whole or not at all, exported as they are, with programs that nobody here wrote.

mod daemon;

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::{Child, Output, Stdio},
};

use cistern_harness::{
    mount::{Access, LoopDevice},
    tool,
};
use daemon::Home;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The next number of splitmix64 (Steele, Lea and Flood 2014): the same in every run.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A raw image with holes, zeroes that were written, and data at any byte up to its last one. Gives how many of its blocks are not zero.
fn image(path: &Path, size: u64, seed: u64) -> u64 {
    let file = File::create(path).expect("created");
    file.set_len(size).expect("sized");
    let mut state = seed;
    for n in 0..12 {
        let offset = if n == 0 { size - size.min(1000) } else { draw(&mut state) % size };
        let len = (draw(&mut state) % 200_000).min(size - offset) as usize;
        let data: Vec<u8> = match draw(&mut state) % 3 {
            0 => vec![0; len],
            _ => (0..len).map(|_| draw(&mut state) as u8).collect(),
        };
        file.write_all_at(&data, offset).expect("written");
    }
    let all = fs::read(path).expect("read");
    all.chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0)).count() as u64
}

fn assert_same(one: &Path, other: &Path) {
    let (one_bytes, other_bytes) = (fs::read(one).expect("read"), fs::read(other).expect("read"));
    assert!(one_bytes == other_bytes, "{} is not {}", one.display(), other.display());
}

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).expect("there").blocks() * 512
}

fn exists(home: &Home, name: &str) -> bool {
    fs::symlink_metadata(home.path(name)).is_ok()
}

/// Raw to cistern to qcow2 to cistern to raw: the same bytes, of any size, and what was no data takes no space on any of these ways.
#[test]
fn what_goes_through_qcow2_comes_back() {
    let home = Home::new();
    for (seed, size) in [(1, 8 * MIB), (2, 5 * MIB + 512), (3, 512), (4, 300 * 1024), (5, 40 * MIB - 512)] {
        let (raw, back) = (home.path("disk.raw"), home.path("back.raw"));
        let data_blocks = image(&raw, size, seed);
        let [first, second] = [1, 2].map(|n| format!("./v{seed}-{n}"));
        let told = json(&home.ok(&["import", "disk.raw", &format!("{first}@a"), "--json"]));
        assert_eq!((&told["format"], &told["image_bytes"]), (&"raw".into(), &size.into()), "{told}");
        let data_bytes = told["data_bytes"].as_u64().expect("a number");
        assert!(
            data_bytes.div_ceil(BLOCK as u64) <= data_blocks,
            "{data_bytes} bytes in {data_blocks} blocks"
        );
        home.ok(&["export", &format!("{first}@a"), "disk.qcow2"]);
        let of = |name: &str| home.path(name).display().to_string();
        tool::run("qemu-img", ["check", "-q", &of("disk.qcow2")]).expect("an image in order");
        let compare = ["compare", "-f", "raw", "-F", "qcow2", &of("disk.raw"), &of("disk.qcow2")];
        tool::run("qemu-img", compare).expect("the same");
        let told = json(&home.ok(&["import", "disk.qcow2", &second, "--json"]));
        assert_eq!((&told["format"], &told["image_bytes"]), (&"qcow2".into(), &size.into()), "{told}");
        let again = told["data_bytes"].as_u64().expect("a number");
        assert!(again.div_ceil(BLOCK as u64) <= data_blocks, "{again} bytes in {data_blocks} blocks");
        home.ok(&["export", &second, "back.raw"]);
        assert_same(&back, &raw);
        // A filesystem needs some for itself.
        let most = data_blocks * BLOCK as u64 + (64 << 10);
        assert!(allocated(&back) <= most, "{} bytes for {data_blocks} blocks", allocated(&back));
        home.ok(&["check", &second, "--data", "--space"]);
        for name in ["disk.raw", "disk.qcow2", "back.raw"] {
            fs::remove_file(home.path(name)).expect("removed");
        }
    }
}

/// What others write is read: images of VMware, VirtualBox, Hyper-V and Virtual PC as qemu-img makes them, seen by their first bytes, or by the last.
#[test]
fn formats_of_others() {
    let home = Home::new();
    image(&home.path("disk.raw"), 6 * MIB, 7);
    let raw = home.path("disk.raw").display().to_string();
    for (format, options) in [
        ("vmdk", "subformat=monolithicSparse"),
        ("vdi", "static=off"),
        ("vhdx", "subformat=dynamic"),
        ("vpc", "subformat=dynamic,force_size=on"),
        ("vpc", "subformat=fixed,force_size=on"),
    ] {
        let (other, url) = (format!("disk.{format}"), format!("./{format}-{}", options.len()));
        let made = home.path(&other).display().to_string();
        tool::run("qemu-img", ["convert", "-f", "raw", "-O", format, "-o", options, &raw, &made])
            .expect("made");
        let told = json(&home.ok(&["import", &other, &url, "--json"]));
        assert_eq!(told["format"], format, "{told}");
        home.ok(&["export", &url, "back.raw"]);
        assert_same(&home.path("back.raw"), &home.path("disk.raw"));
        fs::remove_file(home.path("back.raw")).expect("removed");
    }
}

/// Exports of servers that nobody here wrote are read, over TCP and a unix socket, and our own; holes are seen, errors are told and leave nothing.
#[test]
fn exports_of_other_servers() {
    let home = Home::new();
    let blocks = image(&home.path("disk.raw"), 9 * MIB + 512, 9);
    let nbdkit = |arguments: &[&str], run: &str| {
        let mut command = tool::command("nbdkit").expect("installed");
        for (name, value) in home.command(&[]).get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let run = format!("{} import \"$uri\" {run}", env!("CARGO_BIN_EXE_cistern"));
        command.current_dir(home.path("")).args(arguments).args(["--run", &run]);
        command.output().expect("it runs")
    };
    let output = nbdkit(&["-U", "-", "file", "disk.raw"], "./a@x --json");
    assert!(output.status.success(), "{}", stderr(&output));
    let told = json(&String::from_utf8_lossy(&output.stdout));
    assert!(told["data_bytes"].as_u64().expect("a number").div_ceil(BLOCK as u64) <= blocks, "{told}");
    home.ok(&["export", "./a@x", "a.raw"]);
    assert_same(&home.path("a.raw"), &home.path("disk.raw"));

    // Odd in size, and data only: each 8 bytes are their own place.
    let output = nbdkit(&["-U", "-", "--exportname", "", "pattern", "1000001"], "./b@x");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("447 bytes larger"), "{}", stderr(&output));
    home.ok(&["export", "./b@x", "b.raw"]);
    let b = fs::read(home.path("b.raw")).expect("read");
    assert_eq!(b.len(), 1_000_448);
    assert!((0..125_000).all(|n| b[8 * n..8 * n + 8] == (8 * n as u64).to_be_bytes()));
    assert!(b[1_000_001..].iter().all(|byte| *byte == 0));

    // Only whole blocks of 64 KiB, and no more than two at once.
    image(&home.path("even.raw"), 3 * MIB, 10);
    let sizes = ["blocksize-minimum=65536", "blocksize-preferred=65536", "blocksize-maximum=131072"];
    let strict = [&["-U", "-", "--filter=blocksize-policy", "file", "even.raw"], &sizes[..]].concat();
    let output = nbdkit(&[&strict[..], &["blocksize-error-policy=error"]].concat(), "./blocks@x");
    assert!(output.status.success(), "{}", stderr(&output));
    home.ok(&["export", "./blocks@x", "blocks.raw"]);
    assert_same(&home.path("blocks.raw"), &home.path("even.raw"));

    let output = nbdkit(&["-U", "-", "--filter=error", "pattern", "20M", "error-pread-rate=50%"], "./c");
    assert!(stderr(&output).contains("error: reading the export"), "{}", stderr(&output));
    assert!(!exists(&home, "c"), "it is gone again");

    // Our own, by TCP.
    let served = home.start(&["./a@x", "--read-only", "--listen", "127.0.0.1:0"]);
    let told = json(&home.ok(&["import", &served.uri, "./d@x", "--json"]));
    assert_eq!(told["format"], "nbd", "{told}");
    home.ok(&["export", "./d@x", "d.raw"]);
    assert_same(&home.path("d.raw"), &home.path("disk.raw"));
    let refused = home.fails(4, &["import", &format!("{}x", served.uri), "./e"]);
    assert!(refused.contains("the export"), "{refused}");
    served.stop();
    home.fails(2, &["import", "nbds://127.0.0.1/", "./e"]);
    assert!(!exists(&home, "e"));
}

/// Starts to import a raw image by a pipe, and gives it some of it.
fn piped(home: &Home, url: &str, size: u64, some: &[u8]) -> Child {
    let mut command = home.command(&["import", "-", url, "--size", &size.to_string()]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary runs");
    // It may end before it has read everything.
    let _ = child.stdin.as_mut().expect("piped").write_all(some);
    child
}

fn ended(mut child: Child) -> Output {
    drop(child.stdin.take());
    child.wait_with_output().expect("it ends")
}

/// An image of which not all comes, or more than was said, leaves nothing; nor does Ctrl-C. Killed, it is gone back on by hand.
#[test]
fn an_import_that_fails_leaves_nothing() {
    let home = Home::new();
    let some = vec![7; 3 * MIB as usize];
    for size in [3 * MIB + 1, 3 * MIB - 1] {
        let output = ended(piped(&home, "./a", size, &some));
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        assert!(stderr(&output).contains(&size.to_string()), "{}", stderr(&output));
        assert!(!exists(&home, "a"));
    }
    assert!(ended(piped(&home, "./a@x", 3 * MIB, &some)).status.success());

    // More than waits between a thread and a task: that it was taken says that it is being imported.
    let more = vec![7; 16 * MIB as usize];
    let mut interrupted = piped(&home, "./b", 64 * MIB, &more);
    let pid = libc::pid_t::try_from(interrupted.id()).expect("a process id");
    // SAFETY: a signal to a child that was not waited for yet.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    // Its input does not end before it does.
    let stdin = interrupted.stdin.take();
    let output = interrupted.wait_with_output().expect("it ends");
    drop(stdin);
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(!exists(&home, "b"), "{}", stderr(&output));

    let mut killed = piped(&home, "./b", 64 * MIB, &more);
    killed.kill().expect("killed");
    killed.wait().expect("it ended");
    assert_eq!(home.run(&["serve", "./b"]).status.code(), Some(8), "it is not complete");
    home.ok(&["receive", "--abort", "./b"]);
    assert!(ended(piped(&home, "./b@x", 3 * MIB, &some)).status.success(), "into what is empty again");
}

/// What an import left that was killed is unfinished, and shows what was there before. Whatever comes into it next goes back first: another import, which leaves
/// nothing of the first one, a stream, a copy.
#[test]
fn a_killed_import_is_gone_back_on() {
    let home = Home::new();
    let (noise, small) = (vec![7; 16 * MIB as usize], vec![5; 3 * MIB as usize]);
    let kill = |url: &str, flags: &[&str]| {
        let size = (64 * MIB).to_string();
        let mut command = home.command(&[&["import", "-", url, "--size", &size], flags].concat());
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
        child.stdin.as_mut().expect("piped").write_all(&noise).expect("taken");
        child.kill().expect("killed");
        child.wait().expect("it ended");
        assert_eq!(home.run(&["serve", "./a"]).status.code(), Some(8), "it is not complete");
    };
    let same = |url: &str, bytes: &[u8]| {
        let output = home.run(&["export", url, "-"]);
        assert!(output.status.success() && output.stdout == bytes, "{url}: {}", stderr(&output));
    };
    kill("./a@killed", &[]);
    let output = ended(piped(&home, "./a@x", 3 * MIB, &small));
    assert!(output.status.success(), "{}", stderr(&output));
    same("./a@x", &small);

    kill("./a@killed", &["--force"]);
    same("./a", &small);
    home.ok(&["create", "./other", "--size", "3M"]);
    home.ok(&["copy", "./a@x", "./other", "--force"]);
    let writer = home.start(&["./other"]);
    writer.fill(9, MIB, MIB);
    writer.stop();
    home.ok(&["snapshot", "./other@y"]);
    home.ok(&["send", "./other@y", "--from", "x", "--to", "y"]);
    home.ok(&["receive", "./a", "y"]);
    let mut changed = small.clone();
    changed[MIB as usize..2 * MIB as usize].fill(9);
    same("./a@y", &changed);

    kill("./a@killed", &["--force"]);
    let writer = home.start(&["./other"]);
    writer.fill(8, 0, MIB);
    writer.stop();
    home.ok(&["copy", "./other", "./a"]);
    changed[..MIB as usize].fill(8);
    same("./a", &changed);
    home.ok(&["check", "./a", "--data", "--space"]);
}

/// What is no image, names other files, is compressed, or is not there is refused before anything is made, unless it was told; raw is taken as it is, and says
/// what it looks like.
#[test]
fn what_is_not_an_image_is_refused() {
    let home = Home::new();
    image(&home.path("disk.raw"), MIB, 3);
    let of = |name: &str| home.path(name).display().to_string();
    tool::run(
        "qemu-img",
        ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &of("disk.raw"), &of("over.qcow2")],
    )
    .expect("made");
    fs::write(home.path("bad.qcow2"), "QFI\u{fb}").expect("written");
    fs::write(home.path("packed"), b"\x1f\x8b\x08").expect("written");
    fs::write(home.path("empty"), b"").expect("written");
    for (code, wrong, why) in [
        (2, &["over.qcow2"][..], "names other files"),
        (1, &["disk.raw", "--format", "qcow2"], "qcow2 format"),
        (2, &["packed"], "compressed"),
        (2, &["empty"], "size 0"),
        (4, &["nothing"], "No such file"),
        (2, &["."], "neither"),
        (2, &["-"], "--size"),
        (5, &["disk.raw", "--format", "rbd"], "not a difference of rbd"),
        (2, &["disk.raw", "--from", "x"], "all of an image"),
        (2, &["nbd:///x"], "no address"),
    ] {
        let refused = home.fails(code, &[&["import"], wrong, &["./v"]].concat());
        assert!(refused.contains(why), "{wrong:?}: {refused}");
        assert!(!exists(&home, "v"), "{wrong:?}");
    }
    let mut without = home.command(&["import", "over.qcow2", "./v", "--format", "qcow2"]);
    let output = without.env("PATH", "/nonexistent").output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("qemu-utils"), "{}", stderr(&output));

    home.ok(&["import", "over.qcow2", "./v@x", "--format", "qcow2"]);
    home.ok(&["export", "./v@x", "back.raw"]);
    assert_same(&home.path("back.raw"), &home.path("disk.raw"));
    let refused = home.fails(11, &["import", "disk.raw", "./v"]);
    assert!(refused.contains("not empty") && refused.contains("--force"), "{refused}");
    let refused = home.fails(11, &["import", "disk.raw", "./v@x", "--force"]);
    assert!(refused.contains("another snapshot"), "{refused}");
    let output = home.run(&["import", "over.qcow2", "./v@y", "--format", "raw", "--force"]);
    assert!(output.status.success() && stderr(&output).contains("looks like qcow2"), "{}", stderr(&output));
    home.ok(&["export", "./v@y", "as-it-is"]);
    let (there, image) =
        (fs::read(home.path("as-it-is")).expect("read"), fs::read(home.path("over.qcow2")).expect("read"));
    assert!(there.starts_with(&image), "nothing of what was there shines through");
    let daemon = home.start(&["./v"]);
    assert!(home.fails(3, &["import", "disk.raw", "./v@z"]).contains("being served"));
    daemon.stop();
}

/// A file has its name when it is whole, and what is there stays; a pipe gets every byte, and who does not take them is told of.
#[test]
fn an_export_that_fails_leaves_nothing() {
    let home = Home::new();
    image(&home.path("disk.raw"), 3 * MIB, 4);
    home.ok(&["import", "disk.raw", "./v@x"]);
    fs::write(home.path("there"), "something").expect("written");
    home.fails(11, &["export", "./v@x", "there"]);
    home.fails(11, &["export", "./v@x", "there", "--force", "--format", "qcow2"]);
    assert_eq!(fs::read(home.path("there")).expect("read"), b"something");
    home.fails(4, &["export", "./v@y", "new"]);
    home.fails(4, &["export", "./v@x", "nowhere/new"]);
    home.fails(2, &["export", "./v@x", "-", "--format", "qcow2"]);
    let full = home.run(&["export", "./v@x", "/dev/full"]);
    assert_eq!(full.status.code(), Some(9), "{}", stderr(&full));
    let mut command = home.command(&["export", "./v@x", "new.qcow2"]);
    let output = command.env("PATH", "/nonexistent").output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    for name in ["new", "new.unfinished", "new.qcow2", "new.qcow2.unfinished"] {
        assert!(!exists(&home, name), "{name}");
    }
    let output = home.run(&["export", "./v@x", "-"]);
    assert!(output.stdout == fs::read(home.path("disk.raw")).expect("read"), "{}", stderr(&output));
    let mut command = home.command(&["export", "./v", "-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut first = [0; 16];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("it begins");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("standard output"), "{}", stderr(&output));
}

/// A device is written over when that was told, with zeroes where the volume has holes; one that is too small is not touched. And it is imported.
#[test]
fn a_device_is_written_over() {
    let home = Home::new();
    let size = 3 * MIB + 512;
    image(&home.path("disk.raw"), size, 6);
    home.ok(&["import", "disk.raw", "./v@x"]);
    fs::write(home.path("small"), vec![9; 3 * MIB as usize]).expect("written");
    fs::write(home.path("large"), vec![9; 4 * MIB as usize]).expect("written");
    let attach =
        |name: &str| LoopDevice::attach(&home.path(name), 512, Access::ReadWrite).expect("a loop device");
    let name = |device: &LoopDevice| device.path().display().to_string();
    let (small, large) = (attach("small"), attach("large"));
    assert!(home.fails(11, &["export", "./v@x", &name(&large)]).contains("--force"));
    home.fails(9, &["export", "./v@x", &name(&small), "--force"]);
    home.ok(&["export", "./v@x", &name(&large), "--force"]);
    let told = json(&home.ok(&["import", &name(&large), "./back@x", "--json"]));
    assert_eq!(told["image_bytes"], 4 * MIB, "{told}");
    drop((small, large));
    assert!(fs::read(home.path("small")).expect("read").iter().all(|byte| *byte == 9));
    let (written, expected) =
        (fs::read(home.path("large")).expect("read"), fs::read(home.path("disk.raw")).expect("read"));
    assert!(written[..size as usize] == expected[..], "it shows something else");
    assert!(written[size as usize..].iter().all(|byte| *byte == 9), "behind the volume it is as it was");
    home.ok(&["export", "./back@x", "back.raw"]);
    assert_same(&home.path("back.raw"), &home.path("large"));
}

/// A new volume is made as it was told: encrypted, and compressed so.
#[test]
fn a_volume_is_made_as_it_was_told() {
    let home = Home::new();
    image(&home.path("disk.raw"), MIB, 5);
    fs::write(home.path("key"), [1; 32]).expect("written");
    home.ok(&["import", "disk.raw", "./v@x", "--encrypt", "--key-file", "key", "--compression", "zstd"]);
    home.fails(6, &["export", "./v@x", "back.raw"]);
    home.ok(&["export", "./v@x", "back.raw", "--key-file", "key"]);
    assert_same(&home.path("back.raw"), &home.path("disk.raw"));
    assert_eq!(json(&home.ok(&["info", "./v", "--json"]))["compression"], "zstd");
}

/// Differences that Ceph wrote come one after the other; so does what cistern writes for Ceph. Cut, foreign or out of turn they change nothing.
#[test]
fn differences_of_ceph() {
    let home = Home::new();
    let of_ceph = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cistern-engine/tests/rbd").join(name);
        path.display().to_string()
    };
    let (monday, tuesday, wednesday) =
        (of_ceph("monday.diff"), of_ceph("monday-tuesday.diff"), of_ceph("tuesday-wednesday.diff"));
    assert!(home.fails(4, &["import", &tuesday, "./v"]).contains("begins with snapshot monday"));
    home.ok(&["import", &monday, "./v"]);
    let whole = fs::read(&tuesday).expect("kept");
    fs::write(home.path("cut"), &whole[..whole.len() - 1]).expect("written");
    assert!(home.fails(5, &["import", "cut", "./v"]).contains("cut off"));
    assert!(home.fails(4, &["import", &wednesday, "./v"]).contains("snapshot tuesday"));
    let listed = home.ok(&["ls", "./v", "-H"]);
    assert_eq!(listed.lines().count(), 1, "{listed}");
    let mut command = home.command(&["import", "-", "./v"]);
    let output = command.stdin(File::open(&tuesday).expect("kept")).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let told = json(&home.ok(&["import", &wednesday, "./v@other", "--json"]));
    assert_eq!((&told["snapshot"], &told["image_bytes"]), (&"other".into(), &150_000.into()), "{told}");
    let export = |url: &str| {
        home.ok(&["export", url, "shown"]);
        let shown = fs::read(home.path("shown")).expect("exported");
        fs::remove_file(home.path("shown")).expect("removed");
        shown
    };
    // What rbd writes for Ceph again, from the names that it got here.
    for (from, to) in [(None, "monday"), (Some("monday"), "tuesday"), (Some("tuesday"), "other")] {
        let url = format!("./v@{to}");
        let from = from.map_or(vec![], |from| vec!["--from", from]);
        home.ok(&[&["send", &url, "--format", "rbd", "--to", to], &from[..]].concat());
        home.ok(&["import", to, "./w"]);
        assert!(export(&format!("./w@{to}")) == export(&url), "{to}");
    }
    // By another name.
    home.ok(&["import", &monday, "./x@first"]);
    home.fails(4, &["import", &tuesday, "./x"]);
    home.ok(&["import", &tuesday, "./x", "--from", "first"]);
    assert!(export("./x@tuesday") == export("./v@tuesday"));
    home.ok(&["check", "./x", "--data", "--space"]);
}
