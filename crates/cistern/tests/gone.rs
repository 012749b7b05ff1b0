//! A store that vanishes or is exchanged under a running daemon: nothing is uploaded into another volume, nothing is
//! sent in plain that was to be encrypted, and the exit code says that it was not a clean end.

mod daemon;

use std::{fs, path::Path};

use daemon::{Daemon, Home};

const MIB: u64 = 1 << 20;
const CREATE: [&str; 3] = ["./tank", "--create", "1G"];

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("readable");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The id of the only volume that has a journal.
fn id(home: &Home) -> String {
    let mut ids = names(&home.path("state")).into_iter();
    ids.find(|name| home.path("state").join(name).join("journal").is_file()).expect("there is one")
}

/// Stops a daemon whose volume is gone; what it had not uploaded can be exported without the store.
fn stop_and_export(home: &Home, daemon: Daemon) -> String {
    daemon.signal(libc::SIGTERM);
    let ended = daemon.wait();
    assert_eq!(ended.code, Some(10), "{}", ended.stderr);
    let id = id(home);
    for text in ["gone from its store", "journal export", &id] {
        assert!(ended.stderr.contains(text), "{text}: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("everything is in the store"), "{}", ended.stderr);
    home.ok(&["journal", "export", &id, "--apply-to", "saved"]);
    let saved = fs::read(home.path("saved")).expect("readable");
    assert!(saved[..MIB as usize].iter().all(|byte| *byte == 7), "the export holds what was written");
    ended.stderr
}

/// The directory of the store is removed, and a new volume is made at its path: it is left as it is.
#[test]
fn a_volume_created_in_its_place_is_left_alone() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(7, 0, MIB);
    fs::remove_dir_all(home.path("tank")).expect("removed");
    home.ok(&["create", "./tank", "--size", "1G"]);
    stop_and_export(&home, daemon);
    assert_eq!(names(&home.own("tank")), ["volume.json"], "nothing was put into the other volume");
    home.start(&["./tank"]).stop();
}

/// The same with an empty directory, made by hand with the mark of a root.
#[test]
fn an_empty_directory_in_its_place_stays_empty() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(7, 0, MIB);
    fs::remove_dir_all(home.path("tank")).expect("removed");
    fs::create_dir_all(home.path("tank/.tmp")).expect("made");
    let said = stop_and_export(&home, daemon);
    assert!(said.contains("volume.json, which was there, is not there any more"), "{said}");
    assert_eq!(names(&home.path("tank")), [".tmp"]);
}

/// An encrypted volume whose place is taken by an unencrypted one is refused on the host that knows it, whether it is
/// served, made by the way, or looked at; and `rm` forgets it.
#[test]
fn what_was_encrypted_is_never_written_in_plain() {
    let home = Home::new();
    fs::write(home.path("key"), [7; 32]).expect("written");
    home.ok(&["create", "./tank", "--size", "1G", "--encrypt", "--key-file", "key"]);
    home.start(&["./tank", "--key-file", "key"]).stop();
    fs::rename(home.path("tank"), home.path("away")).expect("renamed");
    let made = home.fails(6, &[&["serve"][..], &CREATE].concat());
    assert!(made.contains("known on this host as an encrypted volume"), "{made}");
    assert!(!home.path("tank").exists());
    home.ok(&["create", "./tank", "--size", "1G"]);
    for verb in [&["serve", "./tank"][..], &["serve", "./tank", "--read-only"], &["resize", "./tank", "2G"]] {
        let refused = home.fails(6, verb);
        assert!(refused.contains("known on this host as an encrypted volume"), "{verb:?}: {refused}");
    }
    let keyed = home.fails(6, &["serve", "./tank", "--key-file", "key"]);
    assert!(keyed.contains("encrypted"), "{keyed}");
    assert_eq!(names(&home.own("tank")), ["volume.json"], "nothing was written");
    // What is removed here on purpose may be made anew in any way.
    home.ok(&["rm", "./tank", "--now", "--yes"]);
    home.start(&CREATE).stop();
}

/// The place of a volume is empty when its daemon starts, as a mount point is whose file system is not mounted: no new volume is made
/// there, the journal stays, and when the file system is back the same command serves what was there.
#[test]
fn no_volume_is_made_where_one_was() {
    let (home, create) = (Home::new(), ["./nas/tank", "--create", "1G"]);
    let (place, elsewhere) = (home.path("nas"), home.path("elsewhere"));
    fs::create_dir(&place).expect("made");
    let daemon = home.start(&create);
    daemon.fill(7, 0, MIB);
    daemon.kill();
    fs::rename(&place, &elsewhere).expect("moved");
    fs::create_dir(&place).expect("made");
    let refused = home.fails(4, &[&["serve"], &create[..]].concat());
    assert!(refused.contains("is its file system mounted?"), "{refused}");
    assert!(names(&place).is_empty() && home.path("state").join(id(&home)).join("journal").is_file());
    fs::remove_dir(&place).expect("empty");
    fs::rename(&elsewhere, &place).expect("moved back");
    let daemon = home.start(&create);
    daemon.assert_filled(7, 0, MIB);
    daemon.stop();
}

/// The directory goes away under a daemon and comes back, as with `umount --lazy` and another mount: nothing is dropped,
/// reads and writes of what is here go on, and the rest goes on by itself.
#[test]
fn a_directory_that_comes_back_is_used_again() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(1, 0, MIB);
    home.ok(&["drain", "./tank"]);
    fs::rename(home.path("tank"), home.path("elsewhere")).expect("moved");
    fs::create_dir(home.path("tank")).expect("made");
    daemon.fill(2, MIB, MIB);
    daemon.assert_filled(2, MIB, MIB);
    home.fails(8, &["status", "tank", "--wait-clean", "--timeout", "5s"]);
    let stopped = home.status()["daemons"][0]["volumes"][0]["latched"].clone();
    assert!(stopped.is_null(), "{stopped}");
    assert!(names(&home.path("tank")).is_empty(), "nothing is written there");
    fs::remove_dir(home.path("tank")).expect("empty");
    fs::rename(home.path("elsewhere"), home.path("tank")).expect("moved back");
    home.ok(&["drain", "./tank"]);
    daemon.assert_filled(1, 0, MIB);
    daemon.stop();
    home.ok(&["check", "./tank", "--data"]);
}
