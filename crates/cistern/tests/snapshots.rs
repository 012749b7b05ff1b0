//! Snapshots as people use them: made and removed beside a daemon and without one, listed, read by NBD clients, compared.

mod daemon;

use daemon::Home;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn names(home: &Home, url: &str) -> Vec<String> {
    let listed = home.ok(&["ls", url, "-H"]);
    listed.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

/// A snapshot shows what was there when it was made: under its own name at the daemon that serves the volume, and at another daemon,
/// while the volume is written on. Nobody can write to it.
#[test]
fn a_snapshot_is_served_beside_the_volume() {
    let home = Home::new();
    let mut writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, 2 * MIB);
    let told = home.ok(&["snapshot", "./tank@monday"]);
    assert!(told.contains("tank@monday"), "{told}");
    writer.fill(2, MIB, 2 * MIB);

    let uri = writer.uri.clone();
    writer.uri = uri.replace("///tank?", "///tank@monday?");
    writer.assert_filled(1, 0, 2 * MIB);
    writer.assert_filled(0, 2 * MIB, MIB);
    let refused = writer.try_nbdsh("h.pwrite(b'x' * 512, 0)");
    assert!(!refused.status.success(), "a snapshot is not written to");
    writer.uri = uri.replace("///tank?", "///tank@tuesday?");
    assert!(!writer.try_nbdsh("h.pread(512, 0)").status.success(), "there is none of that name");
    writer.uri = uri;
    writer.assert_filled(2, MIB, 2 * MIB);

    let socket = home.path("other.sock");
    let listen = format!("unix:{}", socket.display());
    let reader = home.start(&["./tank@monday", "--listen", &listen]);
    reader.assert_filled(1, 0, 2 * MIB);
    let busy = home.fails(3, &["rm", "./tank@monday"]);
    assert!(busy.contains("being served"), "{busy}");
    reader.stop();
    home.ok(&["rm", "./tank@monday"]);
    assert_eq!(names(&home, "./tank"), [""; 0]);
    writer.stop();
}

/// Without a daemon as with one: snapshots are made, held, listed with what they take, and removed; what they would free is said before.
#[test]
fn snapshots_need_no_daemon() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, 4 * MIB);
    writer.stop();
    let made = home.ok(&["snapshot", "./tank@a", "--wait"]);
    assert!(made.contains("in the store"), "{made}");
    let writer = home.start(&["./tank"]);
    writer.fill(2, MIB, MIB);
    home.ok(&["snapshot", "./tank@b"]);
    writer.fill(3, MIB, 2 * MIB);
    writer.stop();

    let listed = json(&home.ok(&["ls", "./tank", "--space", "--json"]));
    let of = |n: usize, what: &str| listed[n][what].as_u64().expect(what) / MIB;
    let space = |n| [of(n, "referenced_bytes"), of(n, "written_bytes"), of(n, "unique_bytes")];
    assert_eq!(listed[0]["name"], "a");
    assert_eq!((space(0), space(1)), ([4, 4, 1], [4, 1, 1]), "{listed}");
    let freed = home.ok(&["rm", "./tank@a", "--dry-run"]);
    assert!(freed.contains("1 MiB"), "{freed}");

    home.ok(&["hold", "./tank@a", "backup"]);
    let held = home.fails(2, &["rm", "./tank@a"]);
    assert!(held.contains("held") && held.contains("backup"), "{held}");
    assert!(home.ok(&["ls", "./tank"]).contains("backup"));
    home.ok(&["release", "./tank@a", "backup"]);
    home.ok(&["rm", "./tank@a", "--bookmark"]);
    assert!(home.ok(&["ls", "./tank"]).contains("bookmark"));
    let since = json(&home.ok(&["diff", "./tank@a", "--json"]));
    assert_eq!(
        (&since["ranges"][0]["offset"], &since["ranges"][0]["len"]),
        (&MIB.into(), &(2 * MIB).into()),
        "{since}"
    );
    for without_content in [&["serve", "./tank@a"][..], &["diff", "./tank@b", "./tank@a"]] {
        assert!(home.fails(4, without_content).contains("bookmark"));
    }
    home.ok(&["rm", "./tank@a"]);
    assert_eq!(names(&home, "./tank"), ["b"]);
    for name in ["c", "d", "e"] {
        home.ok(&["snapshot", &format!("./tank@{name}")]);
    }
    home.ok(&["hold", "./tank@d", "backup"]);
    let held = home.fails(2, &["rm", "./tank@b", "./tank@c", "./tank@d", "./tank@e"]);
    assert!(held.contains("./tank@d") || held.contains("snapshot d is held"), "{held}");
    assert_eq!(names(&home, "./tank"), ["d", "e"], "as far as it came");
    assert!(home.fails(2, &["rm", "./tank@e", "./tank"]).contains("one volume"));
    home.ok(&["check", "./tank", "--data"]);
}

/// A clone begins as the snapshot, beside the volume that is served and without anybody who serves it; either is written on by itself,
/// and a clone of a clone too. The snapshot is there until its clones are gone, and a volume that has clones is not removed.
#[test]
fn clones_go_their_own_way() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, 4 * MIB);
    home.ok(&["snapshot", "./tank@monday"]);
    writer.fill(2, MIB, MIB);
    let told = home.ok(&["clone", "./tank@monday", "./copy"]);
    assert!(told.contains("copy is a clone of") && told.contains("cistern serve"), "{told}");
    for (code, wrong) in [
        (11, &["clone", "./tank@monday", "./copy"][..]),
        (4, &["clone", "./tank@tuesday", "./other"]),
        (2, &["clone", "./tank@monday", "s3://bucket/other"]),
    ] {
        home.fails(code, wrong);
    }
    assert!(!home.path("other").exists(), "nothing was begun");

    let socket = home.path("copy.sock");
    let copy = home.start(&["./copy", "--listen", &format!("unix:{}", socket.display())]);
    copy.assert_filled(1, 0, 4 * MIB);
    copy.fill(3, 2 * MIB, MIB);
    writer.fill(4, 3 * MIB, MIB);
    copy.assert_filled(1, 3 * MIB, MIB);
    copy.assert_filled(3, 2 * MIB, MIB);
    writer.assert_filled(1, 2 * MIB, MIB);
    copy.stop();
    home.ok(&["rm", "./tank@monday"]);
    let listed = json(&home.ok(&["ls", "./tank", "--json"]));
    assert!(listed[0]["name"].as_str().is_some_and(|name| name.starts_with('~')), "{listed}");
    assert!(home.ok(&["ls", "./tank"]).contains("removed"));
    writer.stop();

    home.ok(&["snapshot", "./copy@a"]);
    home.ok(&["clone", "./copy@a", "./again"]);
    assert!(home.ok(&["info", "./again"]).contains("clone of"));
    let again = home.start(&["./again"]);
    again.assert_filled(1, 0, 2 * MIB);
    again.assert_filled(3, 2 * MIB, MIB);
    again.stop();
    for volume in ["./tank", "./copy", "./again"] {
        home.ok(&["check", volume, "--data", "--space"]);
    }
    home.ok(&["snapshot", "./tank@c"]);
    home.ok(&["clone", "./tank@c", "./alone"]);
    let flat = home.ok(&["flatten", "./alone"]);
    assert!(flat.contains("stands by itself") && flat.contains("4 MiB"), "{flat}");
    home.ok(&["rm", "./tank@c"]);
    home.ok(&["check", "./alone", "--data", "--space"]);
    for volume in ["./tank", "./copy"] {
        let refused = home.fails(2, &["rm", volume, "--now", "--yes"]);
        assert!(refused.contains("clones"), "{refused}");
    }
    home.ok(&["rm", "./again", "--now", "--yes"]);
    home.ok(&["rm", "./copy@a"]);
    home.ok(&["rm", "./copy"]);
    assert!(home.ok(&["ls", "./tank"]).contains("removed"), "it may come back");
    home.ok(&["rm", "./copy", "--now", "--yes"]);
    home.ok(&["snapshot", "./tank@b"]);
    assert_eq!(names(&home, "./tank"), ["b"], "nothing is kept any more");
    home.ok(&["check", "./tank", "--data"]);
}

/// A volume goes back to a snapshot without a daemon and beside one: it shows that, with its size, and what it left is a snapshot, to which it
/// can go back in turn. While a client has it open it is refused, and forced it fails that client and shows the rest the other content.
#[test]
fn a_volume_goes_back() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, 4 * MIB);
    home.ok(&["snapshot", "./tank@monday"]);
    writer.fill(2, MIB, MIB);
    writer.stop();
    home.ok(&["resize", "./tank", "128M"]);
    let told = home.ok(&["rollback", "./tank@monday"]);
    assert!(told.contains("monday") && told.contains("tank@before-rollback-1"), "{told}");
    assert_eq!(names(&home, "./tank"), ["monday", "before-rollback-1"]);

    let writer = home.start(&["./tank"]);
    writer.assert_filled(1, 0, 4 * MIB);
    assert_eq!(writer.nbdsh("print(h.get_size())"), (64 * MIB).to_string());
    writer.fill(3, 2 * MIB, MIB);
    let back = json(&home.ok(&["rollback", "./tank@before-rollback-1", "--leave", "other", "--json"]));
    assert_eq!((&back["to"], &back["left"]), (&"before-rollback-1".into(), &"other".into()), "{back}");
    writer.assert_filled(2, MIB, MIB);
    writer.assert_filled(1, 2 * MIB, 2 * MIB);
    assert_eq!(writer.nbdsh("print(h.get_size())"), (128 * MIB).to_string());

    let state = home.path("state");
    let rollback = |more: &str| {
        let (program, state) = (env!("CARGO_BIN_EXE_cistern"), state.display());
        let url = home.path("tank@other");
        format!(
            "import subprocess\ncode = subprocess.run(['{program}', 'rollback', '{}', '--state-dir', '{state}'{more}], \
             capture_output=True).returncode\n",
            url.display()
        )
    };
    let busy = writer.nbdsh(&(rollback("") + "h.pread(512, 0)\nprint(code)"));
    assert_eq!(busy, "3", "a client had it open");
    let forced = rollback(", '--force', '--discard'")
        + "try:\n  h.pread(512, 0)\n  print('reads on')\nexcept nbd.Error:\n  print(code)";
    assert_eq!(writer.nbdsh(&forced), "0", "that client is told");
    writer.assert_filled(3, 2 * MIB, MIB);
    writer.assert_filled(1, 0, 2 * MIB);
    assert_eq!(names(&home, "./tank"), ["monday", "before-rollback-1", "other"]);
    writer.fill(4, 0, MIB);
    writer.stop();

    for (code, wrong, text) in [
        (4, &["rollback", "./tank@tuesday"][..], "cistern ls"),
        (11, &["rollback", "./tank@monday", "--leave", "other"], "other"),
        (2, &["rollback", "./tank@monday", "--leave", "x", "--discard"], "--discard"),
        (2, &["rollback", "./tank"], "@NAME"),
    ] {
        let stderr = home.fails(code, wrong);
        assert!(stderr.contains(text), "{wrong:?}: no '{text}' in {stderr}");
    }
    home.ok(&["rm", "./tank@monday"]);
    home.ok(&["check", "./tank", "--data", "--space"]);
    home.ok(&["flatten", "./tank"]);
    home.ok(&["rm", "./tank@before-rollback-1", "./tank@other"]);
    let writer = home.start(&["./tank"]);
    writer.assert_filled(4, 0, MIB);
    writer.assert_filled(1, MIB, MIB);
    writer.stop();
    home.ok(&["check", "./tank", "--data", "--space"]);
}

/// A daemon rolls an encrypted volume back without asking for the secret again, unless that was changed since: then nothing happens.
#[test]
fn an_encrypted_volume_goes_back() {
    let home = Home::new();
    for (name, byte) in [("old", 1), ("new", 2)] {
        std::fs::write(home.path(name), [byte; 32]).expect("writable");
    }
    home.ok(&["create", "./tank", "--size", "64M", "--encrypt", "--key-file", "old"]);
    let writer = home.start(&["./tank", "--key-file", "old"]);
    writer.fill(1, 0, MIB);
    home.ok(&["snapshot", "./tank@a", "--key-file", "old"]);
    writer.fill(2, 0, MIB);
    home.ok(&["rollback", "./tank@a", "--key-file", "old"]);
    writer.assert_filled(1, 0, MIB);
    writer.fill(3, 0, MIB);
    home.ok(&["key", "change", "./tank", "--key-file", "old", "--new-key-file", "new"]);
    let refused = home.fails(6, &["rollback", "./tank@a", "--key-file", "new"]);
    assert!(refused.contains("restart the daemon"), "{refused}");
    writer.assert_filled(3, 0, MIB);
    assert_eq!(
        json(&home.ok(&["ls", "./tank", "--json", "--key-file", "new"])).as_array().map(Vec::len),
        Some(2)
    );
    writer.stop();
    home.ok(&["rollback", "./tank@a", "--key-file", "new"]);
    home.ok(&["check", "./tank", "--data", "--space", "--key-file", "new"]);
}

/// A difference is what was written and discarded between two states, and its totals; whole ranges and nothing else.
#[test]
fn a_difference_is_listed() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, 8 * MIB);
    home.ok(&["snapshot", "./tank@a"]);
    writer.fill(2, 2 * MIB, MIB);
    writer.nbdsh(&format!("h.trim({MIB}, {})", 6 * MIB));
    home.ok(&["snapshot", "./tank@b", "--wait"]);
    writer.fill(3, 20 * MIB, MIB);
    writer.stop();
    let between = json(&home.ok(&["diff", "./tank@a", "./tank@b", "--json"]));
    let range = |n: usize| {
        let range = &between["ranges"][n];
        (range["offset"].as_u64(), range["len"].as_u64(), range["kind"].as_str())
    };
    assert_eq!(range(0), (Some(2 * MIB), Some(MIB), Some("data")), "{between}");
    assert_eq!(range(1), (Some(6 * MIB), Some(MIB), Some("hole")), "{between}");
    assert_eq!((&between["totals"]["ranges"], &between["totals"]["data_bytes"]), (&2.into(), &MIB.into()));
    let to_newest = json(&home.ok(&["diff", "./tank@b", "--json"]));
    assert_eq!(to_newest["ranges"][0]["offset"], 20 * MIB);
    assert_eq!(home.ok(&["diff", "./tank@b", "./tank@b"]), "");
}

/// Two volumes at once where one daemon has both, or nobody any; else it is said how.
#[test]
fn several_volumes_at_once() {
    let home = Home::new();
    for name in ["./a", "./b"] {
        home.ok(&["create", name, "--size", "64M"]);
    }
    home.ok(&["snapshot", "./a@one", "./b@one"]);
    let both = home.start(&["./a", "./b"]);
    home.ok(&["snapshot", "./a@two", "./b@two"]);
    let exists = home.fails(11, &["snapshot", "./a@three", "./b@two"]);
    assert!(exists.contains("two"), "{exists}");
    both.stop();
    let one = home.start(&["./a"]);
    let apart = home.fails(2, &["snapshot", "./a@four", "./b@four"]);
    assert!(apart.contains("same daemon"), "{apart}");
    one.stop();
    assert_eq!(
        (names(&home, "./a"), names(&home, "./b")),
        (vec!["one".into(), "two".into()], vec!["one".to_owned(), "two".into()])
    );
}

/// What makes no sense is refused in one sentence with the right code, and changes nothing.
#[test]
fn what_makes_no_sense_is_refused() {
    let home = Home::new();
    home.ok(&["create", "./tank", "--size", "64M"]);
    home.ok(&["create", "./other", "--size", "64M"]);
    home.ok(&["snapshot", "./tank@old"]);
    home.ok(&["snapshot", "./tank@new"]);
    for (code, arguments, text) in [
        (11, &["snapshot", "./tank@old"][..], "exists"),
        (2, &["snapshot", "./tank"], "@NAME"),
        (2, &["snapshot", "./tank@-x"], "letters"),
        (4, &["snapshot", "./nowhere@a"], "no volume"),
        (4, &["rm", "./tank@none"], "cistern ls"),
        (4, &["rm", "./tank@none", "--dry-run"], "cistern ls"),
        (2, &["rm", "./tank@old", "--now"], "at once"),
        (2, &["rm", "./tank", "--dry-run"], "URL@NAME"),
        (4, &["hold", "./tank@none", "x"], "none"),
        (4, &["release", "./tank@old", "x"], "x"),
        (4, &["serve", "./tank@none"], "none"),
        (4, &["diff", "./tank@none"], "none"),
        (2, &["diff", "./tank@new", "./tank@old"], "older one first"),
        (2, &["diff", "./tank@old", "./other"], "different volumes"),
        (2, &["ls", ".", "--space"], "--space"),
    ] {
        let stderr = home.fails(code, arguments);
        assert!(stderr.contains(text), "{arguments:?}: no '{text}' in {stderr}");
    }
    assert_eq!(names(&home, "./tank"), ["old", "new"]);
}

/// A schedule makes a snapshot where there is none, and no other before the next period; of those of a period the newest stays, and what is
/// held or has another name. It holds over a restart, until it is taken back.
#[test]
fn snapshots_by_themselves() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, MIB);
    home.ok(&["snapshot", "./tank@by-hand"]);
    let wait_for = |wanted: &dyn Fn(&[String]) -> bool| {
        let mut listed = (0..5000).map(|_| names(&home, "./tank"));
        listed.find(|names| wanted(names)).expect("it comes")
    };
    home.ok(&["auto-snapshot", "./tank", "--keep", "1y:1"]);
    writer.fill(2, MIB, MIB);
    let first = wait_for(&|names| names.len() == 2);
    assert!(first[1].starts_with("auto-20"), "{first:?}");
    home.ok(&["snapshot", "./tank@auto-older"]);
    home.ok(&["hold", "./tank@auto-older", "kept"]);
    home.ok(&["snapshot", "./tank@auto-newest"]);
    let kept = wait_for(&|names| !names.contains(&first[1]));
    assert_eq!(kept, ["by-hand", "auto-older", "auto-newest"]);
    let auto = || home.status()["daemons"][0]["volumes"][0]["auto_snapshot"].clone();
    assert_eq!((&auto()["schedule"], &auto()["overdue_ms"]), (&"1y:1".into(), &0.into()));
    assert!(home.ok(&["status"]).contains("1y:1, newest of 20"));
    writer.stop();
    let writer = home.start(&["./tank"]);
    assert_eq!(auto()["schedule"], "1y:1");
    home.ok(&["auto-snapshot", "./tank", "--keep", "none"]);
    assert!(auto().is_null());
    writer.stop();
    assert!(home.fails(2, &["auto-snapshot", "./tank", "--keep", "often"]).contains("like 15m:8"));
}
