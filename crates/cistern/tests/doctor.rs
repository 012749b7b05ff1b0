//! `cistern doctor`: what it says of a host and of a store, and for whom that is bad.

mod daemon;

use std::process::Output;

use daemon::Home;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// What was found.
fn findings(output: &Output) -> Vec<serde_json::Value> {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn of<'a>(findings: &'a [serde_json::Value], what: &str) -> &'a serde_json::Value {
    findings
        .iter()
        .find(|found| found["what"] == what)
        .unwrap_or_else(|| panic!("{what} is not among {findings:?}"))
}

/// A host that only serves NBD passes, whatever the kernel has: what `up` and `attach` need is bad only where they are wanted. Everything that was looked at is told,
/// what is not well with what to do.
#[test]
fn who_only_serves_passes() {
    let home = Home::new();
    let output = home.run(&["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let all = findings(&output);
    for what in [
        "version",
        "clock",
        "state directory",
        "journal disk",
        "memory",
        "limits",
        "privilege",
        "kernel NBD",
        "kernel ublk",
        "kernel ZFS",
        "blkid",
        "mount",
        "mkfs.ext4",
        "zpool",
        "NFS server",
    ] {
        of(&all, what);
    }
    assert!(
        all.iter().filter(|found| found["verdict"] != "ok").all(|found| found["hint"].is_string()),
        "{all:?}"
    );
    let output = home.run(&["doctor", "--up", "--json"]);
    let wanted = findings(&output);
    let bad = wanted.iter().filter(|found| found["verdict"] == "bad").count();
    assert_eq!(output.status.code(), Some(i32::from(bad > 0)), "{}", text(&output));
    for (without, with) in all.iter().zip(&wanted).filter(|(_, with)| with["verdict"] == "bad") {
        assert_eq!((&without["what"], &without["verdict"]), (&with["what"], &"note".into()));
    }
    assert!(!home.path("state").exists(), "it made something");
    // For people it is the same, in lines.
    let lines = text(&home.run(&["doctor"]));
    assert!(lines.contains("journal disk") && lines.contains("a sync takes"), "{lines}");
}

/// A store that keeps the rules is told so with its latencies, and left as it was; one that cannot be is bad.
#[test]
fn a_store_is_looked_at() {
    let home = Home::new();
    home.ok(&["create", "./vol", "--size", "64M"]);
    for url in ["./vol", "./new"] {
        let output = home.run(&["doctor", url, "--json"]);
        let all = findings(&output);
        let store = of(&all, "store");
        assert_eq!((output.status.code(), &store["verdict"]), (Some(0), &"ok".into()), "{store}");
        assert!(
            store["text"].as_str().is_some_and(|text| text.contains("keeps the rules; 4 KiB are written in")),
            "{store}"
        );
    }
    assert!(!home.path("new").exists() && !home.path("vol/probe").exists(), "the probe left something");
    let output = home.run(&["doctor", "./no/such/vol", "--json"]);
    let all = findings(&output);
    let store = of(&all, "store");
    assert_eq!((output.status.code(), &store["verdict"]), (Some(1), &"bad".into()), "{store}");
    assert!(
        store["text"].as_str().is_some_and(|text| text.contains("does not do: ") && text.contains("no/such")),
        "{store}"
    );
    let refused = home.fails(1, &["doctor", "./no/such/vol"]);
    assert!(refused.contains("1 of ") && refused.contains("bad"), "{refused}");
}

/// A journal in memory is bad, and so is more memory than this host can have.
#[test]
fn what_is_bad_for_a_journal() {
    let home = Home::new();
    let output = home.run(&["doctor", "--json", "--state-dir", "/dev/shm/of-nobody"]);
    let all = findings(&output);
    let found = of(&all, "state directory");
    assert_eq!((output.status.code(), &found["verdict"]), (Some(1), &"bad".into()), "{found}");
    assert!(found["text"].as_str().is_some_and(|text| text.contains("in memory")), "{found}");
    let output = home.run(&["doctor", "--json", "--memory", "1P"]);
    let all = findings(&output);
    let found = of(&all, "memory");
    assert_ne!(found["verdict"], "ok", "{found}");
    assert!(
        found["text"].as_str().is_some_and(|text| text.contains("--memory 1 PiB takes up to 1.5 PiB")),
        "{found}"
    );
    assert!(home.fails(2, &["doctor", "--memory", "1M"]).contains("memory is too small"));
}

/// Each line that is told stands in the documentation, with what it means.
#[test]
fn every_line_is_documented() {
    let home = Home::new();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/observing.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let table: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    for found in findings(&home.run(&["doctor", "./new", "--json"])) {
        let what = found["what"].as_str().expect("a name");
        let name = what.split('.').next().expect("a part"); // mkfs.ext4
        let name = if name == "zpool" { "mkfs, zpool" } else { name };
        let names = |line: &&str| line.split('|').nth(1).is_some_and(|cell| cell.contains(name));
        assert!(table.iter().any(names), "{what} is not in docs/observing.md");
    }
}
