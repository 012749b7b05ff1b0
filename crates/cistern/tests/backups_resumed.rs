//! `cistern backup` and `copy` that are killed, interrupted or cut off from a store, and go on where they were: what came is not brought again, and
//! what nobody verified is verified.

mod daemon;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Output, Stdio},
};

use daemon::{Daemon, Home};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// What the volume has that is copied while it is interrupted.
const NOISE: u64 = 40 * MIB;

/// A volume of one daemon, with so much in it that its backup takes some seconds at 8 MiB/s, and a place for that.
fn much(home: &Home) -> Daemon {
    fs::create_dir(home.path("vault")).expect("a directory");
    let daemon = home.start(&["./data", "--create", "64M"]);
    noise(&daemon, 2, NOISE);
    daemon
}

fn noise(daemon: &Daemon, at: u64, bytes: u64) {
    for piece in 0..bytes / MIB {
        daemon.nbdsh(&format!("import os\nh.pwrite(os.urandom({MIB}), {})", (at + piece) * MIB));
    }
    daemon.nbdsh("h.flush()");
}

const BACKUP: [&str; 5] = ["backup", "./data", "--to", "./vault", "--json"];

/// Starts a command slowly enough to be met in the middle.
fn slowly(home: &Home, arguments: &[&str]) -> Child {
    let mut command = home.command(&[arguments, &["--rate", "8M"]].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// Objects of the logs of the volumes in a directory, by their numbers, with their sizes.
fn objects(directory: &Path) -> BTreeMap<(PathBuf, u64), u64> {
    let (mut directories, mut found) = (vec![directory.to_owned()], BTreeMap::new());
    while let Some(directory) = directories.pop() {
        let is_log = directory.ends_with("log");
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name();
            match u64::from_str_radix(&name.to_string_lossy(), 16) {
                Ok(number) if is_log => drop(found.insert((directory.clone(), number), metadata.len())),
                // What is on its way in is not there yet.
                _ if metadata.is_dir() && name != ".tmp" => directories.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// Those of some size.
fn segments(directory: &Path) -> Vec<PathBuf> {
    let large = objects(directory).into_iter().filter(|(_, bytes)| *bytes > 4 * MIB);
    large.map(|((log, number), _)| log.join(format!("{number:016x}"))).collect()
}

/// Waits until a segment came that the log of its volume has: several are stored at once, and one that overtook another is not in the log yet. What
/// was there is what lay there before the child began.
fn until_more_came(child: &mut Child, directory: &Path, was_there: &BTreeMap<(PathBuf, u64), u64>) {
    loop {
        let came: Vec<_> =
            objects(directory).into_iter().filter(|(object, _)| !was_there.contains_key(object)).collect();
        // The first that comes is the claim of the new writer.
        let is_next = |pair: &[((PathBuf, u64), u64)]| pair[1].0 == (pair[0].0.0.clone(), pair[0].0.1 + 1);
        let in_log = came.windows(2).take_while(|pair| is_next(pair));
        if in_log.into_iter().any(|pair| pair[1].1 > 4 * MIB) {
            return;
        }
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
}

/// A command that has brought something into a directory, and goes on.
fn in_the_middle(home: &Home, arguments: &[&str], directory: &str) -> Child {
    let directory = home.path(directory);
    let was_there = objects(&directory);
    let mut child = slowly(home, arguments);
    until_more_came(&mut child, &directory, &was_there);
    child
}

/// Kills a command that has brought something into a directory.
fn kill_in_the_middle(home: &Home, arguments: &[&str], directory: &str) {
    let mut child = in_the_middle(home, arguments, directory);
    child.kill().expect("killed");
    child.wait().expect("it ended");
}

/// The same, and tells it to end.
fn interrupt_in_the_middle(home: &Home, arguments: &[&str], directory: &str) -> Output {
    let child = in_the_middle(home, arguments, directory);
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    child.wait_with_output().expect("it ends")
}

/// Writes nonsense over a part of an object.
fn damage(object: &Path) {
    let mut bytes = fs::read(object).expect("read");
    bytes[MIB as usize..][..100].fill(0x5a);
    fs::set_permissions(object, fs::Permissions::from_mode(0o600)).expect("set");
    fs::write(object, bytes).expect("written");
}

/// A first backup that is killed again and again is finished by the run that is not, which sends only what did not come; then it brings what was written
/// since. Both are what the volume held, and one bookmark is left.
#[test]
fn a_first_backup_is_killed_and_goes_on() {
    let home = Home::new();
    let daemon = much(&home);
    home.ok(&["snapshot", "./data@then"]);
    kill_in_the_middle(&home, &BACKUP, "vault");
    let begun = home.listed("./data").pop().expect("a snapshot");
    assert!(begun.starts_with("backup-"), "{begun}");
    noise(&daemon, 50, MIB);
    // Again and again, as soon as it has a snapshot of its own beside that which is being received; and none of a run before.
    let mut own = String::new();
    for _ in 0..2 {
        let mut again = slowly(&home, &BACKUP);
        loop {
            match &home.listed("./data")[..] {
                [_, first, one] if *first == begun && *one != own => break own = one.clone(),
                _ => assert!(again.try_wait().expect("a child").is_none(), "it ended by itself"),
            }
        }
        again.kill().expect("killed");
        again.wait().expect("it ended");
    }
    noise(&daemon, 51, MIB);
    let told = daemon::json(&home.ok(&BACKUP));
    let (rest, since) = (&told[0]["finished"]["data_bytes"], &told[0]["data_bytes"]);
    assert!(rest.as_u64().is_some_and(|rest| rest <= NOISE - 4 * MIB), "{told}");
    assert_eq!(*since, 2 * MIB, "{told}");
    let there = home.listed("./vault/data");
    assert_eq!(there.len(), 2, "{there:?}");
    assert!(begun.starts_with(&format!("{}.", there[0])), "{begun} {there:?}");
    let here = home.listed("./data");
    assert!(here.len() == 2 && here[1].starts_with(&format!("[{}.", there[1])), "{here:?} {there:?}");
    home.ok(&["snapshot", "./data@now", "--wait"]);
    for (backup, snapshot) in [(&there[0], "./data@then"), (&there[1], "./data@now")] {
        home.ok(&["backup", "verify", &format!("./vault/data@{backup}"), "--against", snapshot]);
    }
    daemon.stop();
    home.ok(&["check", "./vault/data", "--data", "--space"]);
}

/// The same of what changed since a backup; and beside it another volume, which is not held up.
#[test]
fn what_changed_is_killed_and_goes_on() {
    let home = Home::new();
    much(&home).stop();
    home.ok(&["create", "./wal", "--size", "16M"]);
    let daemon = home.start(&["./data", "./wal"]);
    let both = [&["backup", "./wal"], &BACKUP[1..]].concat();
    home.ok(&both);
    noise(&daemon, 2, NOISE - 2 * MIB);
    home.ok(&["snapshot", "./data@then"]);
    kill_in_the_middle(&home, &BACKUP, "vault/data");
    let told = daemon::json(&home.ok(&BACKUP));
    let rest = told[0]["finished"]["data_bytes"].as_u64().expect("it was finished");
    assert!(rest <= NOISE - 6 * MIB && told[0]["data_bytes"] == 0, "{told}");
    let there = home.listed("./vault/data");
    assert_eq!((there.len(), home.listed("./data").len()), (3, 2), "{there:?}");
    home.ok(&["backup", "verify", &format!("./vault/data@{}", there[1]), "--against", "./data@then"]);
    home.ok(&["backup", "verify", "./vault/data", "--against", "./data@then"]);
    daemon.stop();
    // Nobody serves them: both together, one of them unfinished.
    let daemon = home.start(&["./data"]);
    noise(&daemon, 2, NOISE);
    daemon.stop();
    kill_in_the_middle(&home, &both, "vault/data");
    let told = daemon::json(&home.ok(&both));
    assert!(told[0]["error"].is_null() && told[1]["finished"].is_object(), "{told}");
    assert_eq!((home.listed("./wal").len(), home.listed("./data").len()), (1, 2));
}

/// A program that asks for JSON is told how far it is, in lines that it can tell from the result; nobody else is.
#[test]
fn programs_are_told_how_far_it_is() {
    let home = Home::new();
    let daemon = much(&home);
    let ended = slowly(&home, &BACKUP).wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    let lines: Vec<Value> = said.lines().map(daemon::json).collect();
    assert!(!lines.is_empty(), "40 MiB at 8 MiB/s take longer than three seconds");
    let field = |line: &Value, name: &str| line[name].as_u64().unwrap_or_else(|| panic!("{name}: {line}"));
    for line in &lines {
        assert!(["backing up", "verifying"].map(Value::from).contains(&line["progress"]), "{line}");
        assert!(field(line, "done_bytes") <= field(line, "of_bytes"), "{line}");
        assert!(field(line, "bytes_per_second") > 0 && line["seconds_left"].is_u64(), "{line}");
        assert!((1..=NOISE).contains(&field(line, "data_bytes")), "{line}");
    }
    assert!(daemon::json(&String::from_utf8_lossy(&ended.stdout))[0]["snapshot"].is_string());
    noise(&daemon, 2, NOISE);
    let ended = slowly(&home, &BACKUP[..4]).wait_with_output().expect("it ends");
    assert!(ended.stderr.is_empty() && ended.status.success(), "{ended:?}");
    daemon.stop();
}

/// Without the snapshot that was being received, nothing can be finished: what came goes, and all of it is brought anew.
#[test]
fn what_is_gone_is_not_finished() {
    let home = Home::new();
    let daemon = much(&home);
    kill_in_the_middle(&home, &BACKUP, "vault");
    let begun = home.listed("./data").pop().expect("a snapshot");
    home.ok(&["rm", &format!("./data@{begun}")]);
    let told = daemon::json(&home.ok(&BACKUP));
    assert!(told[0]["finished"].is_null() && told[0]["data_bytes"] == NOISE, "{told}");
    home.ok(&["snapshot", "./data@now", "--wait"]);
    home.ok(&["backup", "verify", "./vault/data", "--against", "./data@now"]);
    daemon.stop();
}

/// Ctrl-C keeps what came, and says how to go on and how to go back; both do.
#[test]
fn interrupted_it_keeps_what_came() {
    let home = Home::new();
    let daemon = much(&home);
    let ended = interrupt_in_the_middle(&home, &BACKUP, "vault");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("the same command goes on") && said.contains("cistern receive --abort"), "{said}");
    let told = daemon::json(&home.ok(&BACKUP));
    assert!(told[0]["finished"]["data_bytes"].as_u64().is_some_and(|rest| rest <= NOISE - 4 * MIB), "{told}");
    noise(&daemon, 2, NOISE);
    interrupt_in_the_middle(&home, &BACKUP, "vault");
    let (before, left) = (home.listed("./vault/data"), home.listed("./data"));
    assert_eq!(left.len(), 2, "{left:?}");
    home.ok(&["receive", "--abort", "./vault/data"]);
    let told = daemon::json(&home.ok(&BACKUP));
    assert!(told[0]["finished"].is_null() && told[0]["data_bytes"] == NOISE, "{told}");
    assert_eq!((before.len() - 1, home.listed("./data").len()), (2, 1), "what was given up is gone");
    home.ok(&["snapshot", "./data@now", "--wait"]);
    home.ok(&["backup", "verify", "./vault/data", "--against", "./data@now"]);
    daemon.stop();
}

/// A backup that is complete and that nobody verified, as a kill between the two leaves it: the volume has its snapshot still. The next run verifies
/// it first; if it is damaged, it goes, and what the backup showed before is put back, so the run after that needs no --force.
#[test]
fn what_nobody_verified_is_verified_first() {
    let home = Home::new();
    let daemon = much(&home);
    home.ok(&BACKUP);
    let own = home.listed("./data")[0].clone();
    let place = own.trim_matches(['[', ']']).rsplit('.').next().expect("a place").to_owned();
    let arrives = |time: &str| {
        noise(&daemon, 2, NOISE);
        let snapshot = format!("./data@backup-{time}.{place}");
        home.ok(&["snapshot", &snapshot, "--wait"]);
        home.ok(&["copy", &snapshot, "./vault/data"]);
    };
    arrives("2001-01-01T00:00:00");
    let told = daemon::json(&home.ok(&BACKUP));
    assert!(told[0]["finished"]["data_bytes"] == 0 && told[0]["data_bytes"] == 0, "{told}");
    assert_eq!(home.listed("./data").len(), 1);

    let (before, known) = (segments(&home.path("vault")), home.listed("./vault/data"));
    arrives("2001-01-02T00:00:00");
    let new = segments(&home.path("vault")).into_iter().find(|segment| !before.contains(segment));
    damage(&new.expect("a segment"));
    let said = home.fails(5, &BACKUP);
    assert!(said.contains("this backup was removed again") && !said.contains("--force"), "{said}");
    assert_eq!((home.listed("./vault/data"), home.listed("./data").len()), (known, 1));
    let told = daemon::json(&home.ok(&BACKUP));
    assert_eq!(told[0]["data_bytes"], NOISE, "{told}");
    home.ok(&["snapshot", "./data@now", "--wait"]);
    home.ok(&["backup", "verify", "./vault/data", "--against", "./data@now"]);
    daemon.stop();
    home.ok(&["check", "./vault/data", "--data", "--space"]);
}

/// Killed when the new backup is verified and settled, while older ones are removed: no harm is done, and the next run removes the rest.
#[test]
fn killed_while_older_ones_go() {
    let home = Home::new();
    fs::create_dir(home.path("vault")).expect("a directory");
    home.ok(&["create", "./data", "--size", "16M"]);
    home.ok(&BACKUP);
    let shown = home.start(&["./vault/data"]);
    for n in 0..240 {
        let time = format!("2001-01-01T00:{:02}:{:02}", n / 60, n % 60);
        home.ok(&["snapshot", &format!("./vault/data@backup-{time}")]);
    }
    shown.stop();
    let before = home.listed("./data");
    let keep = [&BACKUP[..], &["--keep", "1y:1"]].concat();
    let mut child = home.command(&keep).stdout(Stdio::null()).spawn().expect("the binary runs");
    let is_settled = |now: &[String]| now.len() == 1 && now[0].starts_with('[') && now != before;
    // It goes on for some milliseconds between two looks, and rests during them: removing them all takes longer, however slow a look is.
    let pid = child.id() as i32;
    // SAFETY: a signal to a child that was not waited for.
    let signal = |signal| unsafe { libc::kill(pid, signal) };
    loop {
        signal(libc::SIGSTOP);
        if is_settled(&home.listed("./data")) {
            break;
        }
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        signal(libc::SIGCONT);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().expect("killed");
    child.wait().expect("it ended");
    let (settled, there) = (home.listed("./data"), home.listed("./vault/data"));
    assert!(is_settled(&settled), "{settled:?}");
    assert!(there.len() > 1, "it was killed before it had removed all");
    let newest = there.last().expect("some");
    assert!(settled[0].starts_with(&format!("[{newest}.")), "{settled:?} {newest}");
    let told = daemon::json(&home.ok(&keep));
    assert!(told[0]["finished"].is_null(), "that was verified: {told}");
    // The kill may fall between a removal's record in the journal and its entry in the store, and only the store was listed.
    let removed = told[0]["removed"].as_array().expect("a list").len();
    assert!(removed == there.len() || removed + 1 == there.len(), "{told}");
    assert_eq!(home.listed("./vault/data").len(), 1, "{told}");
    home.ok(&["check", "./vault/data", "--data", "--space"]);
}

/// What an unnamed copy had begun is finished by the next one, which brings what changed since; and a restoration goes on as well.
#[test]
fn copies_and_restorations_go_on() {
    let home = Home::new();
    let daemon = much(&home);
    let copy = ["copy", "./data", "./copy", "--json"];
    kill_in_the_middle(&home, &copy, "copy");
    noise(&daemon, 50, MIB);
    let told = daemon::json(&home.ok(&copy));
    let bytes = |n: usize| told["snapshots"][n]["data_bytes"].as_u64().unwrap_or_else(|| panic!("{told}"));
    assert!(bytes(0) <= NOISE - 4 * MIB && bytes(1) == MIB, "{told}");
    assert_eq!((home.listed("./data").len(), home.listed("./copy").len()), (1, 2));
    home.ok(&["snapshot", "./data@now", "--wait"]);
    let newest = format!("./copy@{}", home.listed("./copy")[1]);
    home.ok(&["backup", "verify", &newest, "--against", "./data@now"]);
    daemon.stop();

    let restore = ["backup", "restore", "./copy", "./new", "--json"];
    let ended = interrupt_in_the_middle(&home, &restore, "new");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("the same command goes on") && ended.status.code() == Some(130), "{said}");
    let told = daemon::json(&home.ok(&restore));
    assert!(
        told["snapshots"][0]["data_bytes"].as_u64().is_some_and(|rest| rest <= NOISE - 4 * MIB),
        "{told}"
    );
    home.ok(&["backup", "verify", "./new", "--against", "./data@now"]);
}
