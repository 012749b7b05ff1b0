//! `cistern bench`: its figures are there, it writes into nothing that is somebody's, and nothing of it is left behind.

mod daemon;

use std::{collections::BTreeMap, fs, path::Path, process::Stdio};

use daemon::{Home, json};

/// As little as shows everything.
const QUICK: [&str; 5] = ["--time", "150ms", "--bytes", "32M", "--json"];

/// All that can be measured of a volume, its disk and its store.
const WORKS: [&str; 12] = [
    "sequential_write",
    "upload",
    "random_write",
    "write_flush",
    "sequential_read",
    "random_read",
    "disk_write",
    "disk_write_sync",
    "store_put",
    "store_put_small",
    "store_get",
    "store_get_random",
];

fn bench(home: &Home, arguments: &[&str]) -> serde_json::Value {
    json(&home.ok(&[&["bench"], arguments, &QUICK].concat()))
}

/// What was measured; each figure is there.
fn measured(report: &serde_json::Value) -> Vec<String> {
    let rows = report["rows"].as_array().expect("rows");
    for row in rows {
        for name in [
            "requests",
            "bytes",
            "seconds",
            "bytes_per_second",
            "requests_per_second",
            "request_bytes",
            "depth",
        ] {
            assert!(row[name].as_f64().is_some_and(|figure| figure > 0.0), "{name} of {row}");
        }
        let has_latency = row["work"] != "upload";
        for name in ["p50_us", "p99_us", "max_us"] {
            assert_eq!(row[name].as_u64().is_some_and(|us| us > 0), has_latency, "{name} of {row}");
        }
    }
    rows.iter().map(|row| row["work"].as_str().expect("a name").to_owned()).collect()
}

/// Everything below a directory, with its content.
fn tree(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("readable").flatten() {
        match entry.path() {
            path if path.is_dir() => all.extend(tree(&path)),
            path => drop(all.insert(path.display().to_string(), fs::read(&path).expect("readable"))),
        }
    }
    all
}

/// How many files are below a directory, while they come and go.
fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

/// What is in a directory; nothing if that is not there.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect()
}

/// Beside a volume that is there and one that is not: all kinds have figures, what limits is said of each, and neither the place nor the state directory
/// has anything that it did not have before. The volume itself was not touched.
#[test]
fn a_scratch_volume_is_measured_and_gone() {
    let home = Home::new();
    home.ok(&["create", "./vol", "--size", "64M"]);
    let before = tree(&home.path("vol"));
    fs::create_dir(home.path("place")).expect("made");
    for url in ["./vol", "./place/none"] {
        let report = bench(&home, &[url, "--size", "64M"]);
        let mut works = measured(&report);
        works.sort_unstable();
        let mut all = WORKS.map(str::to_owned).to_vec();
        all.sort_unstable();
        assert_eq!(works, all, "{report}");
        assert_eq!(report["limits"].as_array().map(Vec::len), Some(5), "{report}");
        let volume = report["volume"].as_str().expect("a volume");
        assert!(volume.contains(".bench-") && report["scratch"] == true, "{report}");
    }
    assert!(names(&home.path("place")).is_empty(), "{:?}", names(&home.path("place")));
    assert!(names(&home.path("state")).is_empty(), "{:?}", names(&home.path("state")));
    assert!(tree(&home.path("vol")) == before, "the volume was touched");
    assert!(!names(&home.path(".")).iter().any(|name| name.contains(".bench-")), "something is left");
}

/// For people it is a table with everything in it, and its last sentence says what limits. Only what is asked for is measured.
#[test]
fn people_get_a_table() {
    let home = Home::new();
    let arguments = ["bench", "./vol", "--size", "64M", "--time", "100ms", "--bytes", "16M"];
    let text = home.ok(&[&arguments[..], &["--only", "flush,random-read"]].concat());
    for part in [
        "scratch volume",
        "half within",
        "write, then flush",
        "write, then sync",
        "random read",
        "ranged get, random",
    ] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert!(!text.contains("sequential read") && !text.contains("random write"), "{text}");
    let last = text.lines().last().expect("lines");
    assert!(
        last.starts_with("What limits: flushes by ")
            && last.contains("; random reads by ")
            && last.ends_with('.'),
        "{text}"
    );
}

/// With --read-only not a byte of the store changes; with --overwrite the volume itself is written, and only if that is confirmed. Both also through the
/// daemon that serves it.
#[test]
fn a_volume_is_written_only_if_told() {
    let home = Home::new();
    let daemon = home.start(&["./vol", "--create", "64M"]);
    daemon.fill(7, 0, 32 << 20);
    daemon.nbdsh("import os; h.pwrite(os.urandom(8 << 20), 32 << 20)"); // objects that are not small
    let report = bench(&home, &["./vol", "--read-only"]);
    assert_eq!(report["through_daemon"], true);
    assert!(measured(&report).iter().all(|work| work.contains("read") || work.contains("get")), "{report}");
    daemon.assert_filled(7, 0, 32 << 20);
    daemon.stop();

    let before = tree(&home.path("vol"));
    let report = bench(&home, &["./vol", "--read-only"]);
    assert_eq!((&report["through_daemon"], &report["scratch"]), (&false.into(), &false.into()));
    assert_eq!(measured(&report), ["store_get", "store_get_random", "sequential_read", "random_read"]);
    let refused = home.fails(2, &["bench", "./vol", "--overwrite"]);
    assert!(refused.contains("lost") && refused.contains("add --yes"), "{refused}");
    assert!(tree(&home.path("vol")) == before, "it was written to");

    let report =
        bench(&home, &["./vol", "--overwrite", "--yes", "--only", "sequential-write,sequential-read"]);
    assert_eq!(report["through_daemon"], false);
    assert!(measured(&report).contains(&"sequential_write".to_owned()), "{report}");
    home.ok(&["check", "./vol", "--data"]);
    let daemon = home.start(&["./vol"]);
    daemon.nbdsh("assert h.pread(1 << 20, 0) != b'\\x07' * (1 << 20)");
    daemon.fill(9, 0, 32 << 20);
    let report = bench(&home, &["./vol", "--overwrite", "--yes"]);
    assert_eq!(report["through_daemon"], true);
    assert_eq!(measured(&report).len(), WORKS.len());
    daemon.nbdsh("assert h.pread(1 << 20, 0) != b'\\x09' * (1 << 20)");
    daemon.stop();
    assert!(!names(&home.path(".")).iter().any(|name| name.contains(".bench-")), "something is left");
}

/// The scratch volume that lies in the home of a test.
fn scratch(home: &Home) -> Option<String> {
    names(&home.path(".")).into_iter().find(|name| name.contains(".bench-"))
}

/// Interrupted while it writes, it removes what it has made, here and in the store, and says so by its exit code.
#[test]
fn an_interruption_leaves_nothing() {
    let home = Home::new();
    let long = [
        "bench",
        "./vol",
        "--only",
        "random-write",
        "--request-size",
        "512",
        "--time",
        "5s",
        "--bytes",
        "256M",
    ];
    let mut command = home.command(&long);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    // The directory of its journal: it is open.
    while names(&home.path("state")).iter().all(|name| name.len() != 36) {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    assert!(scratch(&home).is_some());
    // SAFETY: a signal to a child that was not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) }, 0);
    let output = child.wait_with_output().expect("a child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert_eq!(scratch(&home), None, "{said}");
    assert!(names(&home.path("state")).is_empty(), "{:?}", names(&home.path("state")));
}

/// Killed, it leaves its volume; the next one names it with the command that removes it, and that does.
#[test]
fn what_a_kill_leaves_is_named() {
    let home = Home::new();
    let mut command =
        home.command(&["bench", "./vol", "--only", "random-read", "--time", "1h", "--bytes", "1P"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let has_objects = |name: &str| files(&home.path(name)) > 3;
    while !scratch(&home).is_some_and(|name| has_objects(&name)) {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    child.kill().expect("killed");
    child.wait().expect("a child");
    let left = scratch(&home).expect("it was killed");
    let next =
        home.run(&["bench", "./vol", "--size", "64M", "--time", "50ms", "--bytes", "1M", "--only", "flush"]);
    let said = String::from_utf8_lossy(&next.stderr);
    let how = said.split('`').find(|part| part.starts_with("cistern rm ")).expect("a command");
    assert!(how.contains(&left), "{said}");
    home.ok(&how.split(' ').skip(1).collect::<Vec<_>>());
    assert_eq!(scratch(&home), None);
}

/// What cannot be meant is refused before anything is made.
#[test]
fn bad_arguments() {
    let home = Home::new();
    for (arguments, texts) in [
        (&["./vol", "--request-size", "1000"][..], &["multiple of 512", "4K"][..]),
        (&["./vol", "--request-size", "8M"], &["up to 4 MiB"]),
        (&["./vol", "--depth", "0"], &["1..=128"]),
        (&["./vol", "--depth", "129"], &["1..=128"]),
        (&["./vol", "--time", "0"], &["no time"]),
        (&["./vol", "--bytes", "0"], &["like 256M"]),
        (&["./vol", "--size", "1000"], &["multiple of 512"]),
        (&["./vol", "--size", "1M"], &["at least 4 MiB"]),
        (&["./vol", "--only", "reads"], &["random-read"]),
        (&["./vol", "--read-only", "--only", "flush"], &["names none of them"]),
        (&["./vol", "--read-only", "--overwrite"], &["cannot be used with"]),
        (&["./vol", "--yes"], &["--overwrite"]),
        (&["./vol", "--overwrite", "--size", "1G"], &["cannot be used with"]),
        (&["vol"], &["./name"]),
    ] {
        let said = home.fails(2, &[&["bench"], arguments].concat());
        for text in texts {
            assert!(said.contains(text), "{arguments:?}: no '{text}' in {said}");
        }
    }
    for arguments in [["./nowhere", "--read-only"], ["./nowhere", "--overwrite"]] {
        assert!(home.fails(4, &[&["bench"], &arguments[..]].concat()).contains("no volume at"));
    }
    assert_eq!(names(&home.path(".")), Vec::<String>::new());
    assert!(home.fails(4, &["bench", "./a/b/vol"]).contains("a/b"));
}

/// A daemon that listens on no unix socket cannot be measured through it, and the message says what to do.
#[test]
fn a_daemon_without_a_socket_is_told_of() {
    let home = Home::new();
    let daemon = home.start(&["./vol", "--create", "64M", "--listen", "127.0.0.1:0"]);
    let said = home.fails(2, &["bench", "./vol", "--read-only"]);
    assert!(said.contains("not on a unix socket") && said.contains("--listen unix:"), "{said}");
    daemon.stop();
}
