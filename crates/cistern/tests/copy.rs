//! `cistern copy` as people do it: into new volumes and after older copies, beside a daemon and without one, interrupted and killed.

mod daemon;

use std::{fs, os::unix::fs::PermissionsExt, process::Stdio};

use daemon::Home;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// What a state shows: one byte value over ranges of whole MiB, and zeroes elsewhere.
fn assert_shows(home: &Home, arguments: &[&str], size: u64, ranges: &[(u8, u64, u64)]) {
    let socket = home.path("shown.sock");
    let listen = format!("unix:{}", socket.display());
    let shown = home.start(&[arguments, &["--read-only", "--listen", &listen]].concat());
    let mut expected = format!("bytearray({size})");
    for (value, from, to) in ranges {
        let (from, len) = (from * MIB, (to - from) * MIB);
        expected = format!(
            "(lambda b: (b.__setitem__(slice({from}, {}), b'\\x{value:02x}' * {len}), b)[1])({expected})",
            from + len
        );
    }
    shown.nbdsh(&format!(
        "assert h.get_size() == {size}\ne = {expected}\nfor at in range(0, {size}, 1 << 20): assert h.pread(1 << 20, at) == e[at:at + (1 << 20)], at"
    ));
    shown.stop();
}

/// Name, and whether it is a bookmark, of what `ls` lists.
fn listed(home: &Home, url: &str) -> Vec<(String, bool)> {
    let all = json(&home.ok(&["ls", url, "--json"]));
    let one = |one: &Value| {
        let name = one["name"].as_str().expect("a name").to_owned();
        (name, one["is_bookmark"].as_bool().expect("a bool"))
    };
    all.as_array().expect("a list").iter().map(one).collect()
}

/// A copy of what a served volume holds, again and again: the first is whole, the next ones bring what changed; the daemon serves on. On the
/// volume one bookmark is left, and in the copy every snapshot.
#[test]
fn a_copy_follows_its_volume() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, 4 * MIB);
    let said = home.ok(&["copy", "./tank", "./copy"]);
    assert!(said.contains("created") && said.contains("4 MiB of data"), "{said}");
    assert_shows(&home, &["./copy"], 64 * MIB, &[(1, 0, 4)]);
    writer.fill(2, 2 * MIB, MIB);
    writer.nbdsh(&format!("h.trim({MIB}, 0)"));
    home.ok(&["resize", "./tank", "80M"]);
    let told = json(&home.ok(&["copy", "./tank", "./copy", "--json"]));
    let copied = &told["snapshots"][0];
    assert_eq!((&told["created"], &copied["data_bytes"]), (&false.into(), &MIB.into()), "{told}");
    assert_shows(&home, &["./copy"], 80 * MIB, &[(1, 1, 2), (2, 2, 3), (1, 3, 4)]);
    let (here, there) = (listed(&home, "./tank"), listed(&home, "./copy"));
    assert!(matches!(&here[..], [(name, true)] if name.starts_with("copy-")), "{here:?}");
    assert!(matches!(&there[..], [(_, false), (_, false)]), "{there:?}");
    assert!(here[0].0.starts_with(&there[1].0), "{here:?} {there:?}");
    // Another place has bookmarks of its own.
    home.ok(&["copy", "./tank", "./other"]);
    writer.fill(3, 10 * MIB, MIB);
    let told = json(&home.ok(&["copy", "./tank", "./copy", "--json"]));
    assert_eq!(told["snapshots"][0]["data_bytes"], MIB, "{told}");
    assert_eq!(listed(&home, "./tank").len(), 2);
    writer.stop();
    home.ok(&["check", "./copy", "--data", "--space"]);
}

/// The history comes along, in order; what was there already stays, and what is copied of the copy is the same again.
#[test]
fn the_history_comes_along() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    for n in 1..=3_u8 {
        writer.fill(n, u64::from(n) * MIB, MIB);
        home.ok(&["snapshot", &format!("./tank@s{n}")]);
    }
    home.ok(&["rm", "./tank@s2", "--bookmark"]);
    writer.fill(9, 20 * MIB, MIB);
    home.ok(&["copy", "./tank@s1", "./copy", "--snapshots"]);
    let told = json(&home.ok(&["copy", "./tank@s3", "./copy", "--snapshots", "--json"]));
    assert_eq!(told["snapshots"].as_array().expect("a list").len(), 1, "{told}");
    assert_eq!(
        (&told["snapshots"][0]["from"], &told["snapshots"][0]["data_bytes"]),
        (&"s1".into(), &(2 * MIB).into()),
        "{told}"
    );
    assert!(home.ok(&["copy", "./tank@s3", "./copy"]).contains("already"));
    writer.stop();
    let told = json(&home.ok(&["copy", "./copy@s3", "./third", "--snapshots", "--json"]));
    assert_eq!(told["snapshots"].as_array().expect("a list").len(), 2, "{told}");
    for url in ["./copy", "./third"] {
        assert_eq!(listed(&home, url), [("s1".to_owned(), false), ("s3".to_owned(), false)]);
        assert_shows(&home, &[&format!("{url}@s1")], 64 * MIB, &[(1, 1, 2)]);
        assert_shows(&home, &[url], 64 * MIB, &[(1, 1, 2), (2, 2, 3), (3, 3, 4)]);
    }
}

/// What does not fit is refused, and neither volume is changed: a copy that was written to, another volume, itself, what is served. Told to, it
/// overwrites.
#[test]
fn what_does_not_fit_is_refused() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, MIB);
    home.ok(&["snapshot", "./tank@a"]);
    home.ok(&["copy", "./tank@a", "./copy"]);
    writer.fill(2, MIB, MIB);
    home.ok(&["snapshot", "./tank@b"]);
    let copy = home.start(&["./copy"]);
    copy.fill(7, 30 * MIB, MIB);
    let refused = home.fails(3, &["copy", "./tank@b", "./copy"]);
    assert!(refused.contains("stop its daemon"), "{refused}");
    copy.stop();
    let refused = home.fails(2, &["copy", "./tank@b", "./copy"]);
    assert!(refused.contains("written to since") && refused.contains("--force"), "{refused}");
    let refused = home.fails(2, &["copy", "./tank", "./copy"]);
    assert!(refused.contains("written to since"), "{refused}");
    assert_eq!(listed(&home, "./tank").len(), 2, "nothing is left of what was made for it");
    assert_shows(&home, &["./copy"], 64 * MIB, &[(1, 0, 1), (7, 30, 31)]);
    home.ok(&["create", "./foreign", "--size", "1M"]);
    let foreign = home.start(&["./foreign"]);
    foreign.fill(5, 0, MIB);
    foreign.stop();
    home.fails(11, &["copy", "./tank@b", "./foreign"]);
    home.fails(2, &["copy", "./tank@b", "./tank"]);
    home.fails(4, &["copy", "./tank@none", "./new"]);
    home.fails(4, &["copy", "./none", "./new"]);
    home.ok(&["rm", "./tank@a", "--bookmark"]);
    assert!(home.fails(4, &["copy", "./tank@a", "./new"]).contains("bookmark"));
    assert!(!home.path("new").exists());
    home.ok(&["copy", "./tank@b", "./copy", "--force"]);
    home.ok(&["copy", "./tank@b", "./foreign", "--differential"]);
    for url in ["./copy", "./foreign"] {
        assert_shows(&home, &[url], 64 * MIB, &[(1, 0, 1), (2, 1, 2)]);
    }
    writer.stop();
}

/// Across a rollback of the volume: from a snapshot that both have it is still known what differs.
#[test]
fn across_a_rollback() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, MIB);
    home.ok(&["snapshot", "./tank@a"]);
    writer.fill(2, MIB, MIB);
    home.ok(&["snapshot", "./tank@b", "--wait"]);
    writer.stop();
    home.ok(&["copy", "./tank@b", "./copy"]);
    home.ok(&["rollback", "./tank@a"]);
    let writer = home.start(&["./tank"]);
    writer.fill(3, 2 * MIB, MIB);
    home.ok(&["snapshot", "./tank@c", "--wait"]);
    writer.stop();
    let told = json(&home.ok(&["copy", "./tank@c", "./copy", "--json"]));
    assert_eq!(
        (&told["snapshots"][0]["from"], &told["snapshots"][0]["data_bytes"]),
        (&"b".into(), &MIB.into()),
        "{told}"
    );
    assert_shows(&home, &["./copy"], 64 * MIB, &[(1, 0, 1), (3, 2, 3)]);
    assert_shows(&home, &["./copy@b"], 64 * MIB, &[(1, 0, 1), (2, 1, 2)]);
}

/// Starts a copy that is slow enough to be met in the middle, and waits until its first segment is in the store.
fn begun(home: &Home) -> std::process::Child {
    let mut command = home.command(&["copy", "./tank@b", "./copy", "--rate", "8M"]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary runs");
    while !home.run(&["ls", "./copy", "--json"]).stdout.windows(9).any(|bytes| bytes == b"receiving") {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    child
}

/// Interrupted, the copy is unfinished, and says how to go back to what it was; killed too, and the same command brings the rest.
#[test]
fn interrupted_and_killed() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, MIB);
    home.ok(&["snapshot", "./tank@a", "--wait"]);
    for at in 0..40 {
        writer.nbdsh(&format!("import os\nh.pwrite(os.urandom({MIB}), {})", (2 + at) * MIB));
    }
    home.ok(&["snapshot", "./tank@b", "--wait"]);
    writer.stop();
    home.ok(&["copy", "./tank@a", "./copy"]);
    let child = begun(&home);
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("cistern receive --abort"), "{said}");
    home.fails(8, &["serve", "./copy"]);
    home.ok(&["receive", "--abort", "./copy"]);
    assert_eq!(listed(&home, "./copy"), [("a".to_owned(), false)]);
    assert_shows(&home, &["./copy"], 64 * MIB, &[(1, 0, 1)]);
    let mut child = begun(&home);
    child.kill().expect("killed");
    child.wait().expect("it ended");
    home.fails(8, &["serve", "./copy"]);
    // What had come is not brought again.
    let token = home.ok(&["receive", "./copy", "--token"]);
    let place: u64 = token.trim().rsplit(':').next().and_then(|place| place.parse().ok()).expect("a place");
    let copied = json(&home.ok(&["copy", "./tank@b", "./copy", "--json"]));
    let left = 42 * MIB - place.saturating_mul(4096).clamp(2 * MIB, 42 * MIB);
    assert_eq!(copied["snapshots"][0]["data_bytes"], left, "{token}");
    home.ok(&["backup", "verify", "./copy@b", "--against", "./tank@b"]);
    home.ok(&["check", "./copy", "--data", "--space"]);
}

/// A volume of which something is damaged is not copied: the copy is as it was before, and nothing is left unfinished.
#[test]
fn what_is_damaged_is_not_copied() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, MIB);
    home.ok(&["copy", "./tank", "./copy"]);
    let before = listed(&home, "./copy");
    for at in 0..40 {
        writer.nbdsh(&format!("import os\nh.pwrite(os.urandom({MIB}), {})", (2 + at) * MIB));
    }
    home.ok(&["snapshot", "./tank@b", "--wait"]);
    writer.stop();
    let log = fs::read_dir(home.own("tank").join("log")).expect("a directory").flatten();
    let segments = log.filter(|entry| entry.metadata().expect("there").len() > 4 * MIB);
    let last = segments.max_by_key(|entry| entry.file_name()).expect("some").path();
    let mut bytes = fs::read(&last).expect("read");
    bytes[MIB as usize..][..100].fill(0x5a);
    fs::set_permissions(&last, fs::Permissions::from_mode(0o600)).expect("set");
    fs::write(&last, bytes).expect("written");
    let said = home.fails(5, &["copy", "./tank@b", "./copy"]);
    assert!(said.contains("damaged"), "{said}");
    assert_eq!(listed(&home, "./copy"), before);
    home.start(&["./copy"]).stop();
    assert_shows(&home, &["./copy"], 64 * MIB, &[(1, 0, 1)]);
}

/// What is encrypted stays so, under another key if that is wanted, and so is what is to be.
#[test]
fn what_is_encrypted_stays_so() {
    let home = Home::new();
    fs::write(home.path("one"), [1; 32]).expect("written");
    fs::write(home.path("two"), [2; 32]).expect("written");
    let one = ["--key-file", "one"];
    home.ok(&["create", "./tank", "--size", "16M", "--encrypt", "--key-file", "one"]);
    let writer = home.start(&[&["./tank"], &one[..]].concat());
    writer.fill(5, MIB, MIB);
    writer.stop();
    home.ok(&["copy", "./tank", "./same", "--key-file", "one"]);
    home.ok(&["copy", "./tank", "./other", "--key-file", "one", "--to-key-file", "two"]);
    home.fails(6, &["check", "./same", "--key-file", "two"]);
    home.fails(6, &["check", "./other", "--key-file", "one"]);
    assert_shows(&home, &["./same", "--key-file", "one"], 16 * MIB, &[(5, 1, 2)]);
    assert_shows(&home, &["./other", "--key-file", "two"], 16 * MIB, &[(5, 1, 2)]);
    home.ok(&["create", "./plain", "--size", "1M"]);
    home.ok(&["copy", "./plain", "./sealed", "--encrypt", "--to-key-file", "two"]);
    home.fails(6, &["check", "./sealed", "--key-file", "one"]);
}
