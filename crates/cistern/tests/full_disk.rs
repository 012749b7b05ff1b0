//! The disk of the journal has no room, on a real btrfs, which writes elsewhere by itself: a journal that was reserved stays
//! so, and where a snapshot of the file system has undone that, writes wait and go on.
//!
//! Needs root, for a loop device and a mount.

mod daemon;

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use daemon::{Daemon, Home, SmallDisk, nbdsh};

const MIB: u64 = 1 << 20;
const CREATE: [&str; 3] = ["./tank", "--create", "256M"];
/// Between two looks; what is waited for comes by itself.
const LOOK: Duration = Duration::from_millis(200);

/// The state directory on a btrfs of its own.
struct Btrfs {
    place: PathBuf,
}

impl Btrfs {
    fn mount(home: &Home) -> Btrfs {
        let (image, place) = (home.path("image"), home.path("state"));
        File::create(&image).and_then(|file| file.set_len(500 * MIB)).expect("made");
        fs::create_dir(&place).expect("made");
        run("mkfs.btrfs", &[Path::new("-q"), &image]);
        run("mount", &[Path::new("-o"), Path::new("loop"), &image, &place]);
        Btrfs { place }
    }

    fn fill(&self) -> PathBuf {
        fill(&self.place)
    }
}

/// Somebody else takes all there is.
fn fill(place: &Path) -> PathBuf {
    let others = place.join("others");
    let mut file = File::create(&others).expect("made");
    for piece in [1 << 20, 4096] {
        let piece = vec![1; piece];
        while file.write_all(&piece).and_then(|()| file.sync_data()).is_ok() {}
    }
    others
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.place).status();
    }
}

fn run(program: &str, arguments: &[&Path]) {
    let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
    let status = Command::new(program).args(arguments).env("PATH", path).status();
    assert!(status.expect("it is installed").success(), "{program} {arguments:?}: this test needs root");
}

/// More than a lap of the journal, which has 128 MiB; all of it is in the store.
fn lap(home: &Home, daemon: &Daemon) {
    for n in 0..5 {
        daemon.fill(n + 1, u64::from(n) * 32 * MIB, 32 * MIB);
        home.ok(&["drain", "./tank"]);
    }
}

fn volume(home: &Home) -> serde_json::Value {
    home.status()["daemons"][0]["volumes"][0].clone()
}

/// The journal's second lap on a file system that others have filled finds the room that was reserved for it.
#[test]
fn a_reserved_journal_stays_reserved_on_btrfs() {
    let home = Home::new();
    let disk = Btrfs::mount(&home);
    let daemon = home.start(&CREATE);
    lap(&home, &daemon);
    disk.fill();
    daemon.fill(3, 0, 24 * MIB);
    daemon.assert_filled(3, 0, 24 * MIB);
    assert_eq!(volume(&home)["journal_waits"], serde_json::Value::Null);
    home.ok(&["drain", "./tank"]);
    daemon.stop();
}

/// A daemon is killed while others have filled the disk of its journal: the next one needs no room there, and serves what was acknowledged.
#[test]
fn a_full_disk_keeps_no_daemon_from_starting() {
    let home = Home::new();
    let _disk = SmallDisk::mount(home.path("state"), "size=160m");
    let daemon = home.start(&CREATE);
    fill(&home.path("state"));
    daemon.fill(3, 0, 8 * MIB);
    daemon.kill();
    let daemon = home.start(&CREATE);
    daemon.assert_filled(3, 0, 8 * MIB);
    home.ok(&["drain", "./tank"]);
    daemon.kill();
}

/// Nor does a disk on which not one file can be made: clients are served, and commands as soon as there is room for the control socket.
#[test]
fn a_disk_without_inodes_keeps_no_daemon_from_starting() {
    let home = Home::new();
    let _disk = SmallDisk::mount(home.path("state"), "size=160m,nr_inodes=64");
    let daemon = home.start(&CREATE);
    daemon.fill(3, 0, MIB);
    daemon.kill();
    // What the dead daemon's socket took is taken by others too.
    for socket in fs::read_dir(home.path("state/control")).expect("readable").flatten() {
        if socket.path().extension().is_some_and(|extension| extension == "sock") {
            fs::remove_file(socket.path()).expect("removed");
        }
    }
    let others = (0..).map_while(|n| File::create(home.path(&format!("state/other-{n}"))).ok()).count();
    assert!(others > 0, "there was room");
    let mut daemon = home.start(&CREATE);
    daemon.assert_filled(3, 0, MIB);
    daemon.fill(4, 32 * MIB, MIB);
    fs::remove_file(home.path("state/other-0")).expect("removed");
    daemon.wait_to_say("commands reach this daemon now");
    home.ok(&["drain", "./tank"]);
    daemon.stop();
}

/// Behind a snapshot of its subvolume every block of the journal needs new space, and there is none: a write waits, with its
/// flush, and `status` says why; the rest is read, and what was written before is flushed. When there is room it goes on, and no restart was needed.
#[test]
fn a_full_disk_of_the_journal_is_waited_for() {
    let home = Home::new();
    let disk = Btrfs::mount(&home);
    let mut daemon = home.start(&CREATE);
    lap(&home, &daemon);
    let subvolume = ["subvolume", "snapshot", "-r"].map(Path::new);
    run("btrfs", &[&subvolume[..], &[&disk.place, &disk.place.join("yesterday")]].concat());
    let others = disk.fill();
    let uri = daemon.uri.clone();
    let write = format!("h.pwrite(b'\\x03' * {}, 0); h.flush()", 8 * MIB);
    let writing = std::thread::spawn(move || nbdsh(&uri, &write));
    daemon.wait_to_say("the disk of the journal is full");
    assert!(volume(&home)["journal_waits"]["why"].is_string());
    assert!(home.ok(&["status"]).contains("the disk of the journal is full"));
    daemon.assert_filled(2, 32 * MIB, MIB);
    assert!(!writing.is_finished() && volume(&home)["latched"].is_null());
    fs::remove_file(others).expect("removed");
    run("btrfs", &[Path::new("filesystem"), Path::new("sync"), &disk.place]);
    let written = writing.join().expect("it ends");
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    daemon.assert_filled(3, 0, 8 * MIB);
    while !volume(&home)["journal_waits"].is_null() {
        std::thread::sleep(LOOK);
    }
    home.ok(&["drain", "./tank"]);
    daemon.stop();
}
