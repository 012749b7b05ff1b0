//! A directory store whose disk is full of what a user needs no more: he can free it, with the commands that he is told of.
//!
//! Small filesystems are real ones (tmpfs), so the tests need root.

mod daemon;

use daemon::{Daemon, Home, SmallDisk};

const MIB: u64 = 1 << 20;

/// Overwrites the first so many MiB with what does not compress.
fn write(daemon: &Daemon, mib: u64, seed: u64) {
    daemon.nbdsh(&format!(
        "import random; r = random.Random({seed}); [h.pwrite(r.randbytes({MIB}), n * {MIB}) for n in range({mib})]; h.flush()"
    ));
}

/// Waits until what was written waits for room, and tells what is said of it.
fn until_full(home: &Home) -> String {
    loop {
        let volume = home.status()["daemons"][0]["volumes"][0].clone();
        if volume["store_error"].as_str().is_some_and(|said| said.contains("nearly full")) {
            return volume["store_error"].as_str().unwrap_or_default().to_owned();
        }
    }
}

/// Everything is discarded while data waits that has no room: the store is empty soon, and nothing waits any more.
#[test]
fn a_discard_empties_a_full_store() {
    let home = Home::new();
    let _store = SmallDisk::mount(home.path("store"), "size=96m");
    let daemon = home.start(&["./store/tank", "--create", "1G"]);
    write(&daemon, 128, 1);
    let said = until_full(&home);
    assert!(said.contains("fstrim") && !said.contains("cistern gc"), "{said}");
    daemon.nbdsh("[h.trim(32 << 20, n << 25) for n in range(32)]; h.flush()");
    home.ok(&["status", "--wait-clean", "--timeout", "2m"]);
    write(&daemon, 32, 2);
    home.ok(&["status", "--wait-clean", "--timeout", "2m"]);
    daemon.stop();
    home.ok(&["check", "./store/tank", "--data", "--space"]);
}

/// Snapshots hold nearly all of a full disk, and data waits: they are removed, and that makes room for it.
#[test]
fn removing_snapshots_makes_room() {
    let home = Home::new();
    let _store = SmallDisk::mount(home.path("store"), "size=128m");
    let daemon = home.start(&["./store/tank", "--create", "1G"]);
    for n in 0..2 {
        write(&daemon, 24, n);
        home.ok(&["snapshot", &format!("./store/tank@s{n}")]);
    }
    for n in 2..5 {
        write(&daemon, 24, n);
    }
    write(&daemon, 48, 9);
    until_full(&home);
    home.ok(&["rm", "./store/tank@s0"]);
    home.ok(&["rm", "./store/tank@s1"]);
    home.ok(&["status", "--wait-clean", "--timeout", "2m"]);
    daemon.stop();
    home.ok(&["check", "./store/tank", "--data"]);
}

/// A clone, and a snapshot under a hold, keep nearly all of a full disk, and data waits: the hold is released, the snapshot and the
/// clone are removed, and that makes room for it. The daemon serves on.
#[test]
fn what_a_clone_and_a_hold_keep_makes_room() {
    let home = Home::new();
    let _store = SmallDisk::mount(home.path("store"), "size=128m");
    let daemon = home.start(&["./store/tank", "--create", "1G"]);
    write(&daemon, 24, 0);
    home.ok(&["snapshot", "./store/tank@cloned"]);
    home.ok(&["clone", "./store/tank@cloned", "./store/copy"]);
    home.ok(&["rm", "./store/tank@cloned"]);
    write(&daemon, 24, 1);
    home.ok(&["snapshot", "./store/tank@held"]);
    home.ok(&["hold", "./store/tank@held", "audit"]);
    for n in 2..5 {
        write(&daemon, 24, n);
    }
    write(&daemon, 48, 9);
    until_full(&home);
    home.ok(&["release", "./store/tank@held", "audit"]);
    home.ok(&["rm", "./store/tank@held"]);
    home.ok(&["rm", "./store/copy", "--now", "--yes"]);
    home.ok(&["status", "--wait-clean", "--timeout", "2m"]);
    daemon.stop();
    home.ok(&["check", "./store/tank", "--data", "--space"]);
}

/// A reader that may not write to the store cannot make itself known: it reads, and says what that means.
#[test]
fn a_reader_that_may_not_write_says_so() {
    let home = Home::new();
    let store = SmallDisk::mount(home.path("store"), "size=64m");
    let daemon = home.start(&["./store/tank", "--create", "1G"]);
    daemon.fill(7, 0, MIB);
    daemon.stop();
    store.remount("ro");
    let daemon = home.start(&["./store/tank", "--read-only"]);
    daemon.assert_filled(7, 0, MIB);
    let said = daemon.stop();
    assert!(said.contains("--grace 15m"), "{said}");
}
