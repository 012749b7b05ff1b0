//! Sectors that are written with the real program over a block whose rest cannot be read: a clone whose parent is not in its place, and
//! a segment or a run of the map that is missing or damaged. What was acknowledged is in the store, and the block is whole when its rest is back.

mod daemon;

use std::{
    fs,
    path::{Path, PathBuf},
};

use daemon::{Daemon, Home};

const MIB: u64 = 1 << 20;

/// A client writes one sector with FUA and flushes; the rest of its block is not there.
fn write_a_sector(daemon: &Daemon) {
    daemon.nbdsh(
        "h.pwrite(b'N' * 512, 512, nbd.CMD_FLAG_FUA); h.flush(); assert h.pread(512, 512) == b'N' * 512\n\
         try: h.pread(512, 0); assert False\n\
         except nbd.Error: pass",
    );
}

/// The block is what it was, with the sector over it.
fn assert_whole(daemon: &Daemon) {
    daemon.nbdsh("assert h.pread(4096, 0) == b'\\x07' * 512 + b'N' * 512 + b'\\x07' * 3072");
}

/// A volume in `parent`, and a clone of it beside; nobody serves them.
fn cloned(home: &Home, parent: &str) {
    let daemon = home.start(&[parent, "--create", "64M"]);
    daemon.fill(7, 0, MIB);
    let snapshot = format!("{parent}@s");
    home.ok(&["snapshot", &snapshot]);
    home.ok(&["clone", &snapshot, "./clone"]);
    daemon.stop();
}

/// The parent's directory is away (it is not mounted, say) while its clone is served and written: nothing that was acknowledged depends on
/// it, and when it is back in its place the block is whole.
#[test]
fn a_clone_keeps_what_is_written_while_its_parent_is_away() {
    let home = Home::new();
    cloned(&home, "./parent");
    fs::rename(home.path("parent"), home.path("away")).expect("moved");
    let daemon = home.start(&["./clone"]);
    write_a_sector(&daemon);
    home.ok(&["drain", "./clone"]);
    let status = home.ok(&["status"]);
    assert!(status.contains("some blocks are stored in part"), "{status}");
    daemon.stop();
    fs::rename(home.path("away"), home.path("parent")).expect("moved back");
    let daemon = home.start(&["./clone"]);
    assert_whole(&daemon);
    daemon.stop();
    home.ok(&["check", "./clone", "--data"]);
}

/// What a clone reads lies at a mount point, which is there and empty for a while, as behind an unmount.
#[test]
fn an_unmounted_place_takes_nothing_along() {
    let home = Home::new();
    fs::create_dir(home.path("disk")).expect("a directory");
    cloned(&home, "./disk/parent");
    fs::rename(home.path("disk"), home.path("away")).expect("moved");
    fs::create_dir(home.path("disk")).expect("an empty place");
    let daemon = home.start(&["./clone"]);
    write_a_sector(&daemon);
    home.ok(&["drain", "./clone"]);
    daemon.kill();
    let daemon = home.start(&["./clone"]);
    daemon.nbdsh("assert h.pread(512, 512) == b'N' * 512");
    fs::remove_dir(home.path("disk")).expect("nothing was put there");
    fs::rename(home.path("away"), home.path("disk")).expect("mounted again");
    assert_whole(&daemon);
    daemon.stop();
    home.ok(&["check", "./clone", "--data"]);
}

/// Writes a sector in writethrough over a block that cannot be read while the largest object below a directory of the volume is not what it was,
/// and kills the daemon: a FLUSH means the store, with that object and without.
fn a_sector_over_what_is_broken(what: &str, break_it: impl Fn(&Path)) {
    let home = Home::new();
    let daemon = home.start(&["./tank", "--create", "64M"]);
    daemon
        .nbdsh("import os; h.pwrite(os.urandom(1 << 20), 1 << 20); h.pwrite(b'\\x07' * 4096, 0); h.flush()");
    daemon.stop();
    let object = largest(home.own("tank").join(what));
    let sound = fs::read(&object).expect("readable");
    break_it(&object);
    fs::remove_dir_all(home.path("cache")).expect("removed"); // it has what the object had
    let daemon = home.start(&["./tank", "--mode", "writethrough"]);
    write_a_sector(&daemon);
    daemon.kill();
    let daemon = home.start(&["./tank"]);
    daemon.nbdsh("assert h.pread(512, 512) == b'N' * 512");
    daemon.stop();
    fs::write(&object, sound).expect("put right");
    let daemon = home.start(&["./tank"]);
    assert_whole(&daemon);
    daemon.stop();
    home.ok(&["check", "./tank", "--data"]);
}

/// One segment is out of sight for a while.
#[test]
fn a_missing_segment_takes_nothing_along() {
    a_sector_over_what_is_broken("log", |segment| fs::remove_file(segment).expect("removed"));
}

/// Bytes of a segment, and of a run of the map, are damaged for a while, as by a disk of an array that a scrub puts right.
#[test]
fn damage_that_is_put_right_takes_nothing_along() {
    let damage = |object: &Path| {
        let sound = fs::read(object).expect("readable");
        fs::write(object, sound.iter().map(|byte| byte ^ 1).collect::<Vec<_>>()).expect("damaged");
    };
    a_sector_over_what_is_broken("log", damage);
    a_sector_over_what_is_broken("map", damage);
}

fn largest(dir: PathBuf) -> PathBuf {
    let files = fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable").path());
    files.max_by_key(|path| path.metadata().expect("there").len()).expect("there is one")
}
