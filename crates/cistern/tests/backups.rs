//! `cistern backup` as people do it: made again and again, pruned, listed, verified, restored; with volumes that fail, and killed anywhere.

mod daemon;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Stdio},
};

use daemon::{Daemon, Home};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Asserts that a state has one byte value in the MiB at each of some places.
fn assert_shows(home: &Home, url: &str, places: &[(u8, u64)]) {
    let listen = format!("unix:{}", home.path("shown.sock").display());
    let shown = home.start(&[url, "--read-only", "--listen", &listen]);
    places.iter().for_each(|(value, at)| shown.assert_filled(*value, at * MIB, MIB));
    shown.stop();
}

/// Two volumes of one daemon, with something in them, and places for backups.
fn two(home: &Home) -> Daemon {
    for place in ["vault", "other", "b"] {
        fs::create_dir(home.path(place)).expect("a directory");
    }
    home.ok(&["create", "./data", "--size", "64M"]);
    home.ok(&["create", "./wal", "--size", "32M"]);
    let daemon = home.start(&["./data", "./wal"]);
    fill(&daemon, "data", 1, 0);
    fill(&daemon, "wal", 2, 0);
    daemon
}

/// Writes a MiB of one byte value to one of the volumes.
fn fill(daemon: &Daemon, volume: &str, value: u8, at: u64) {
    let uri = daemon.uri.replace("///data", &format!("///{volume}"));
    let script = format!("h.pwrite(b'\\x{value:02x}' * {MIB}, {}); h.flush()", at * MIB);
    let output = daemon::nbdsh(&uri, &script);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Two volumes that are served, night after night: each backup brings what changed, of one instant, and on the volumes one bookmark is left.
/// They are listed, verified against what they are of, and restored.
#[test]
fn night_after_night() {
    let home = Home::new();
    let daemon = two(&home);
    let said = home.ok(&["backup", "./data,./wal", "--to", "./vault"]);
    assert!(said.contains("1 MiB, verified") && said.lines().count() == 2, "{said}");
    fill(&daemon, "data", 3, 5);
    let told = daemon::json(&home.ok(&["backup", "./data", "./wal", "--to", "./vault", "--json"]));
    let bytes: Vec<_> =
        told.as_array().expect("a list").iter().map(|one| one["data_bytes"].as_u64()).collect();
    assert_eq!(bytes, [Some(MIB), Some(0)], "{told}");
    for name in ["data", "wal"] {
        let (here, there) = (home.listed(&format!("./{name}")), home.listed(&format!("./vault/{name}")));
        assert_eq!((here.len(), there.len()), (1, 2), "{here:?} {there:?}");
        assert!(here[0].starts_with(&format!("[{}.", there[1])), "{here:?} {there:?}");
    }
    let all = daemon::json(&home.ok(&["backup", "ls", "./vault", "--json"]));
    let names: Vec<_> = all.as_array().expect("a list").iter().map(|one| one["name"].as_str()).collect();
    assert_eq!(names, [Some("data"), Some("wal")], "{all}");
    let table = home.ok(&["backup", "ls", "./vault"]);
    assert!(table.lines().count() == 5 && table.contains("AGE") && table.contains("64 MiB"), "{table}");
    let verified = home.ok(&["backup", "verify", "./vault"]);
    assert!(verified.contains("2 MiB of data, verified") && verified.lines().count() == 2, "{verified}");

    let first = format!("./vault/data@{}", home.listed("./vault/data")[0]);
    home.ok(&["backup", "restore", &first, "./old"]);
    assert_shows(&home, "./old", &[(1, 0), (0, 5)]);
    home.ok(&["backup", "restore", "./vault/data", "./new"]);
    assert_shows(&home, "./new", &[(1, 0), (3, 5)]);
    home.ok(&["snapshot", "./data@now", "--wait"]);
    let newest = format!("./vault/data@{}", home.listed("./vault/data")[1]);
    let same = home.ok(&["backup", "verify", &newest, "--against", "./data@now"]);
    assert!(same.contains("the same as"), "{same}");
    let differs = home.fails(5, &["backup", "verify", &first, "--against", "./data@now"]);
    assert!(differs.contains("do not show the same"), "{differs}");
    home.fails(2, &["backup", "verify", "./vault", "--against", "./data@now"]);
    home.fails(4, &["backup", "verify", "./nothing"]);
    daemon.stop();
    // Nobody serves them: that works too.
    home.ok(&["backup", "./data,./wal", "--to", "./vault"]);
    assert_eq!(home.listed("./vault/wal").len(), 3);
    home.ok(&["check", "./vault/data", "--data", "--space"]);
}

/// What --keep does not keep goes, when the new backup is there; what somebody named, holds, cloned or shows stays, and so does what was
/// backed up to another place.
#[test]
fn what_is_not_kept_goes() {
    let home = Home::new();
    let daemon = two(&home);
    home.ok(&["backup", "./data", "--to", "./vault"]);
    home.ok(&["backup", "./data", "--to", "./other"]);
    home.ok(&["snapshot", "./vault/data@by-hand"]);
    let first = home.listed("./vault/data")[0].clone();
    home.ok(&["hold", &format!("./vault/data@{first}"), "court"]);
    let keep = |home: &Home| home.ok(&["backup", "./data", "--to", "./vault", "--keep", "1y:1"]);
    home.ok(&["backup", "./data", "--to", "./vault"]);
    let second = home.listed("./vault/data").pop().expect("some");
    let said = keep(&home);
    assert!(said.contains(&format!("removed ./vault/data@{second}")) || said.contains(&second), "{said}");
    let there = home.listed("./vault/data");
    assert_eq!((there.len(), &there[..2]), (3, &[first.clone(), "by-hand".to_owned()][..]), "{there:?}");
    let third = format!("./vault/data@{}", there[2]);
    let listen = format!("unix:{}", home.path("shown.sock").display());
    let shown = home.start(&[&third, "--listen", &listen]);
    keep(&home);
    assert!(home.listed("./vault/data").contains(&there[2]), "somebody reads it");
    shown.stop();
    keep(&home);
    let there = home.listed("./vault/data");
    assert_eq!((there.len(), &there[..2]), (3, &[first, "by-hand".to_owned()][..]), "{there:?}");
    let told = daemon::json(&home.ok(&["backup", "./data", "--to", "./other", "--json"]));
    assert!(told[0]["from"].is_string(), "the other place goes on from its own: {told}");
    home.fails(2, &["backup", "./data", "--to", "./vault", "--keep", "often"]);
    daemon.stop();
}

/// One of several volumes that cannot be backed up keeps nobody else from it; the exit code and the text say which. Put right, the same
/// command does the rest.
#[test]
fn one_that_fails_stops_no_other() {
    let home = Home::new();
    let daemon = two(&home);
    home.ok(&["backup", "./data,./wal", "--to", "./vault"]);
    let busy =
        home.start(&["./vault/wal", "--listen", &format!("unix:{}", home.path("busy.sock").display())]);
    let failed = home.fails(3, &["backup", "./data,./wal", "--to", "./vault"]);
    assert!(failed.contains("of 2 volumes one is not backed up") && failed.contains("wal"), "{failed}");
    busy.stop();
    let failed = home.fails(4, &["backup", "./data", "./none", "./wal", "--to", "./vault"]);
    assert!(failed.contains("of 3 volumes one is not backed up: ") && failed.contains("none"), "{failed}");
    assert_eq!((home.listed("./vault/data").len(), home.listed("./vault/wal").len()), (3, 2));
    home.fails(4, &["backup", "./none", "--to", "./vault"]);
    home.fails(2, &["backup", "./data", "./elsewhere/data", "--to", "./vault"]);
    home.fails(2, &["backup", "./data", "--to", "."]);
    let missing = home.fails(4, &["backup", "./data", "--to", "./unmounted"]);
    assert!(missing.contains("mounted") && !home.path("unmounted").exists(), "{missing}");
    assert_eq!(home.listed("./data").len(), 1, "nothing is left of what failed");
    daemon.stop();
}

/// What somebody wrote to a backup is not overwritten unasked, nor another volume of the same name. Across a rollback of the volume, for which a
/// bookmark does not do, everything is compared, and the backups before stay.
#[test]
fn what_is_not_a_backup_is_not_overwritten() {
    let home = Home::new();
    two(&home).stop();
    home.ok(&["snapshot", "./data@a"]);
    home.ok(&["backup", "./data", "--to", "./vault"]);
    let write = |url: &str, value, at| {
        let daemon = home.start(&[url]);
        daemon.fill(value, at * MIB, MIB);
        daemon.stop();
    };
    write("./vault/data", 9, 20);
    let refused = home.fails(11, &["backup", "./data", "--to", "./vault"]);
    assert!(refused.contains("was written to") && refused.contains("--force"), "{refused}");
    assert_shows(&home, "./vault/data", &[(9, 20)]);
    home.ok(&["backup", "./data", "--to", "./vault", "--force"]);
    assert_shows(&home, "./vault/data", &[(1, 0), (0, 20)]);
    home.ok(&["create", "./b/data", "--size", "16M"]);
    let refused = home.fails(11, &["backup", "./b/data", "--to", "./vault"]);
    assert!(refused.contains("is no backup of"), "{refused}");

    write("./data", 4, 7);
    home.ok(&["backup", "./data", "--to", "./vault"]);
    home.ok(&["rollback", "./data@a", "--discard"]);
    write("./data", 5, 8);
    let told = daemon::json(&home.ok(&["backup", "./data", "--to", "./vault", "--json"]));
    assert!(told[0]["from"].is_null(), "all of it was compared: {told}");
    assert_shows(&home, "./vault/data", &[(1, 0), (0, 7), (5, 8)]);
    let before = home.listed("./vault/data")[2].clone();
    assert_shows(&home, &format!("./vault/data@{before}"), &[(1, 0), (4, 7), (0, 8)]);
    write("./data", 6, 9);
    let told = daemon::json(&home.ok(&["backup", "./data", "--to", "./vault", "--json"]));
    assert_eq!(told[0]["data_bytes"], MIB, "and from there on what changed: {told}");
    home.ok(&["check", "./vault/data", "--data", "--space"]);
}

/// A volume goes back to its backup in place, where only what differs is written; the next backup goes on from that.
#[test]
fn back_in_place() {
    let home = Home::new();
    let daemon = two(&home);
    home.ok(&["backup", "./data", "--to", "./vault"]);
    fill(&daemon, "data", 7, 0);
    fill(&daemon, "data", 7, 30);
    home.fails(3, &["backup", "restore", "./vault/data", "./data", "--differential"]);
    daemon.stop();
    let refused = home.fails(11, &["backup", "restore", "./vault/data", "./data"]);
    assert!(refused.contains("--differential"), "{refused}");
    home.ok(&["backup", "restore", "./vault/data", "./data", "--differential"]);
    assert_shows(&home, "./data", &[(1, 0), (0, 30)]);
    let again = home.ok(&["backup", "restore", "./vault/data", "./data", "--differential"]);
    assert!(again.contains("already"), "{again}");
    let writer = home.start(&["./data"]);
    writer.fill(8, 3 * MIB, MIB);
    writer.stop();
    let refused = home.fails(11, &["backup", "restore", "./vault/data", "./data", "--force"]);
    assert!(refused.contains("cistern rollback"), "{refused}");
    let told = daemon::json(&home.ok(&["backup", "./data", "--to", "./vault", "--json"]));
    assert_eq!(told[0]["data_bytes"], MIB, "{told}");
}

/// A backup of which the store gives something else than was written is told, and names what is damaged.
#[test]
fn damage_is_found() {
    let home = Home::new();
    two(&home).stop();
    home.ok(&["backup", "./data", "--to", "./vault"]);
    home.ok(&["backup", "verify", "./vault/data"]);
    let log = fs::read_dir(home.own("vault/data").join("log")).expect("a directory").flatten();
    let segments = log.map(|entry| (entry.metadata().expect("there").len(), entry.path()));
    // The data compresses well; the largest segment has it.
    let (_, segment) = segments.max().expect("some");
    let mut bytes = fs::read(&segment).expect("read");
    let middle = bytes.len() / 3;
    bytes[..middle].fill(0x5a);
    fs::set_permissions(&segment, fs::Permissions::from_mode(0o600)).expect("set");
    fs::write(&segment, bytes).expect("written");
    let found = home.fails(5, &["backup", "verify", "./vault/data"]);
    assert!(found.contains("cistern check"), "{found}");
}

/// The first segment of some size that appears in the log of a volume. What is being written has another name.
fn first_segment(home: &Home, volume: &str, child: &mut Child) -> PathBuf {
    let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    loop {
        let all = below(home.path(volume)).flat_map(|own| below(own.path().join("log")));
        let mut large = all.filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.len() > 4 * MIB));
        let segment = large.find(|entry| entry.file_name().len() == 16);
        if let Some(segment) = segment {
            return segment.path();
        }
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
}

/// Volumes of which one has so much that its backup takes some seconds.
fn much_more(home: &Home) -> Daemon {
    let daemon = two(home);
    for at in 1..41 {
        daemon.nbdsh(&format!("import os\nh.pwrite(os.urandom({MIB}), {})", at * MIB));
    }
    daemon
}

/// What the store loses of a backup while it is made is noticed the same night: it is no backup then, the older ones stay, and the next night makes
/// one.
#[test]
fn what_the_store_lost_is_noticed_the_same_night() {
    let home = Home::new();
    let daemon = much_more(&home);
    home.ok(&["backup", "./wal", "--to", "./vault"]);
    let mut command =
        home.command(&["backup", "./data", "./wal", "--to", "./vault", "--keep", "1y:1", "--rate", "8M"]);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let segment = first_segment(&home, "vault/data", &mut child);
    let mut bytes = fs::read(&segment).expect("read");
    bytes[MIB as usize..][..100].fill(0x5a);
    fs::set_permissions(&segment, fs::Permissions::from_mode(0o600)).expect("set");
    fs::write(&segment, bytes).expect("written");
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(5), "{said}");
    assert!(said.contains("this backup was removed again") && said.contains("cistern check"), "{said}");
    assert!(home.listed("./data").is_empty() && home.listed("./vault/data").is_empty());
    assert_eq!(home.listed("./vault/wal").len(), 1, "the other one is backed up, and the one before it gone");
    assert!(!said.contains("--force"), "{said}");
    home.ok(&["backup", "./data", "--to", "./vault"]);
    home.ok(&["backup", "verify", "./vault/data"]);
    daemon.stop();
}

/// What there is of a volume and of its backup.
fn state(home: &Home) -> (BTreeSet<String>, BTreeSet<String>) {
    let listed = |url: &str| -> BTreeSet<String> {
        let output = home.run(&["ls", url, "--json"]);
        let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let names = all.as_array().cloned().unwrap_or_default();
        names.iter().map(|one| format!("{}{}{}", one["name"], one["is_bookmark"], one["receiving"])).collect()
    };
    (listed("./data"), listed("./vault/data"))
}

fn start(home: &Home) -> Child {
    let arguments = ["backup", "./data", "--to", "./vault", "--keep", "1y:1", "--rate", "8M"];
    home.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs")
}

/// Runs a backup that was killed again. If it was killed while its volume was made, it says how to get rid of what is left.
fn again(home: &Home) -> String {
    let arguments = ["backup", "./data", "--to", "./vault", "--keep", "1y:1", "--json"];
    let output = home.command(&arguments).output().expect("the binary runs");
    if String::from_utf8_lossy(&output.stderr).contains("creating or removing it was interrupted") {
        home.ok(&["rm", "./vault/data", "--yes"]);
        return home.ok(&arguments);
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Killed at every step that shows from outside, and run again: it finishes, what is there is right, and nothing is left over.
#[test]
fn killed_anywhere_and_run_again() {
    let home = Home::new();
    let daemon = two(&home);
    let noise = |at: u64| {
        daemon.nbdsh(&format!("import os\nh.pwrite(os.urandom({}), {}); h.flush()", 8 * MIB, at * MIB))
    };
    for round in 0..8_u64 {
        noise(2 + 4 * (round % 4));
        let before = state(&home);
        let mut child = start(&home);
        // Each round is killed one step later: a snapshot, a backup that is made, begun, complete, settled, pruned.
        let (mut steps, mut last) = (0, before.clone());
        while steps <= round && child.try_wait().expect("a child").is_none() {
            let now = state(&home);
            if now != last {
                (steps, last) = (steps + 1, now);
            }
        }
        let _ = child.kill();
        child.wait().expect("it ended");
        let told = daemon::json(&again(&home));
        let here = home.listed("./data");
        assert!(matches!(&here[..], [one] if one.starts_with("[backup-")), "round {round}: {here:?}");
        assert_eq!(
            home.listed("./vault/data"),
            [told[0]["snapshot"].as_str().expect("a name")],
            "round {round}"
        );
        home.ok(&["snapshot", "./data@now", "--wait"]);
        home.ok(&["backup", "verify", "./vault/data", "--against", "./data@now"]);
        home.ok(&["rm", "./data@now"]);
    }
    daemon.stop();
    home.ok(&["check", "./vault/data", "--data", "--space"]);
    home.ok(&["check", "./data", "--data", "--space"]);
}

/// The place of the backups is empty, as a mount point whose file system is not mounted: nothing is made there, and when it is
/// back the next backup brings what changed alone.
#[test]
fn nothing_begins_anew_where_backups_were() {
    let home = Home::new();
    let daemon = two(&home);
    home.ok(&["backup", "./data", "--to", "./vault"]);
    fs::rename(home.path("vault"), home.path("elsewhere")).expect("moved");
    fs::create_dir(home.path("vault")).expect("made");
    fill(&daemon, "data", 3, 5);
    let refused = home.fails(4, &["backup", "./data", "--to", "./vault"]);
    assert!(refused.contains("is it mounted?"), "{refused}");
    fs::remove_dir(home.path("vault")).expect("empty");
    fs::rename(home.path("elsewhere"), home.path("vault")).expect("moved back");
    let told = daemon::json(&home.ok(&["backup", "./data", "--to", "./vault", "--json"]));
    assert_eq!(told[0]["data_bytes"], MIB, "{told}");
    fs::remove_dir_all(home.path("vault")).expect("gone for good");
    fs::create_dir(home.path("vault")).expect("made");
    home.ok(&["backup", "./data", "--to", "./vault", "--force"]);
    daemon.stop();
}
