//! The daemon as its users see it: start, stop, crash, take-over, and everything around.
//!
//! Real processes, a directory store, and libnbd as the client.

mod daemon;

use std::{
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    process::{Command, Stdio},
};

use cistern_harness::tree;
use daemon::{Daemon, Home};

const CREATE: [&str; 3] = ["./tank", "--create", "1G"];
const MIB: u64 = 1 << 20;

/// The first volume of somebody: one command, no configuration. What was written is uploaded by
/// the stop, and found by the next start; starting again does not create again.
#[test]
fn serve_creates_and_serves_again() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(7, 4096, MIB);
    let farewell = daemon.stop();
    assert!(farewell.contains("tank: everything is in the store; released"), "{farewell}");
    let daemon = home.start(&["./tank", "--create", "2G"]);
    daemon.assert_filled(7, 4096, MIB);
    daemon.assert_filled(0, 4096 + MIB, MIB);
    // As GNU timeout does it: the process, then its group. That is one request to stop.
    daemon.signal(libc::SIGTERM);
    let farewell = daemon.stop();
    assert!(farewell.contains("has 1 GiB, not 2 GiB"), "{farewell}");
    assert!(farewell.contains("released"), "{farewell}");
    assert!(home.ok(&["info", "./tank"]).contains("none; the last was"));
    assert!(home.ok(&["ls", "."]).contains("tank"));
    assert!(home.ok(&["check", "./tank", "--data"]).contains("no fault found"));
}

/// A small volume reserves little of the disk, and nothing for a cache of what lies on that disk already.
#[test]
fn a_small_volume_reserves_little() {
    let home = Home::new();
    let serve = home.command(&["serve", "./tank", "--create", "256M"]);
    let daemon = Daemon::start(serve);
    let journal = tree::bytes(&home.path("state"));
    assert!(journal <= 272 * MIB, "{journal} bytes of journal");
    assert!(!home.path("cache").exists());
    daemon.stop();
}

/// `create` probes, says what comes next, and refuses to create twice.
#[test]
fn create_then_serve() {
    let home = Home::new();
    let told = home.ok(&["create", "./tank", "--size", "10G", "--compression", "zstd"]);
    assert!(told.contains("next:    cistern serve file:///"), "{told}");
    let again = home.fails(11, &["create", "./tank", "--size", "10G"]);
    assert!(again.contains("already") && again.contains("cistern serve"), "{again}");
    let daemon = home.start(&["./tank"]);
    assert_eq!(daemon.nbdsh("print(h.get_size())"), (10u64 << 30).to_string());
    daemon.stop();
}

/// After power loss everything that was flushed is there, before anything was uploaded.
#[test]
fn flushed_data_survives_a_kill() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    for i in 0..16u8 {
        daemon.fill(i + 1, u64::from(i) * MIB, MIB);
    }
    daemon.kill();
    let daemon = home.start(&["./tank"]);
    for i in 0..16u8 {
        daemon.assert_filled(i + 1, u64::from(i) * MIB, MIB);
    }
    daemon.stop();
}

/// `status --wait-clean` means what it says: the host and its disk may go, and another one finds
/// everything in the store.
#[test]
fn wait_clean_means_another_host_has_it() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(9, 0, 3 * MIB);
    let volume = home.status()["daemons"][0]["volumes"][0].clone();
    assert_eq!(
        volume["dirty_bytes"].as_u64(),
        Some(volume["acknowledged"].as_u64().expect("a number") * 4096)
    );
    assert!(home.ok(&["status"]).contains("tank: uploading"));
    assert!(home.ok(&["status", "tank", "--wait-clean", "--timeout", "2m"]).contains("clean"));
    let volume = home.status()["daemons"][0]["volumes"][0].clone();
    assert_eq!(volume["dirty_bytes"], 0);
    assert_eq!(volume["committed"], volume["acknowledged"]);
    daemon.kill();
    std::fs::remove_dir_all(home.path("state")).expect("the disk is lost");

    let in_use = home.fails(3, &["serve", "./tank", "--journal-size", "128M"]);
    assert!(in_use.contains("--take-over"), "{in_use}");
    let daemon = home.start(&["./tank", "--take-over"]);
    daemon.assert_filled(9, 0, 3 * MIB);
    daemon.stop();
}

/// A stop that does not wait long enough for a store that is away leaves the data in the journal, says so with the
/// time it has waited, and by its exit code. Nothing is missing: the next start uploads it.
#[test]
fn what_is_not_uploaded_stays_in_the_journal() {
    let home = Home::new();
    let daemon = home.start(&[&CREATE[..], &["--drain-timeout", "2s"]].concat());
    daemon.fill(5, 0, 2 * MIB);
    std::fs::rename(home.path("tank"), home.path("away")).expect("renamed");
    let farewell = daemon.stop_unclean();
    assert!(farewell.contains("stay in the journal (not uploaded within 2s)"), "{farewell}");
    assert!(farewell.contains("are not in the store, only in the journal"), "{farewell}");
    std::fs::rename(home.path("away"), home.path("tank")).expect("renamed");
    let daemon = home.start(&["./tank"]);
    daemon.assert_filled(5, 0, 2 * MIB);
    assert!(daemon.stop().contains("everything is in the store"));
}

/// With the store away a stop would take as long as it may; a second Ctrl-C ends it, and nothing
/// is missing.
#[test]
fn a_second_interrupt_leaves_it_in_the_journal() {
    let home = Home::new();
    let mut daemon = home.start(&CREATE);
    daemon.fill(5, 0, 2 * MIB);
    std::fs::rename(home.path("tank"), home.path("away")).expect("renamed");
    daemon.fill(6, 2 * MIB, MIB);
    daemon.signal(libc::SIGINT);
    daemon.wait_to_say("Ctrl-C leaves it in the journal");
    assert!(home.ok(&["status"]).contains("tank: stopping"));
    daemon.signal(libc::SIGINT);
    let ended = daemon.wait();
    assert_eq!(ended.code, Some(8), "{}", ended.stderr);
    assert!(ended.stderr.contains("stay in the journal (interrupted after"), "{}", ended.stderr);
    let left = std::fs::read_dir(home.path("state/control")).expect("readable").flatten();
    assert!(left.into_iter().all(|entry| entry.file_name() == "lock"), "its socket is gone");

    std::fs::rename(home.path("away"), home.path("tank")).expect("renamed");
    let daemon = home.start(&["./tank"]);
    daemon.assert_filled(5, 0, 2 * MIB);
    daemon.assert_filled(6, 2 * MIB, MIB);
    daemon.stop();
}

/// Sizes change under a connected daemon and without one; a shrink needs insistence.
#[test]
fn resize_served_and_not() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(3, 0, MIB);
    let told = home.ok(&["resize", "./tank", "3G"]);
    assert_eq!(told.trim(), "tank: 1 GiB -> 3 GiB");
    assert_eq!(daemon.nbdsh("print(h.get_size())"), (3u64 << 30).to_string());
    daemon.fill(4, 2 << 30, MIB);
    let refused = home.fails(2, &["resize", "./tank", "1G"]);
    assert!(refused.contains("cut off") && refused.contains("--force"), "{refused}");
    daemon.stop();

    assert_eq!(home.ok(&["resize", "./tank", "2G", "--force"]).trim(), "tank: 3 GiB -> 2 GiB");
    let daemon = home.start(&["./tank"]);
    assert_eq!(daemon.nbdsh("print(h.get_size())"), (2u64 << 30).to_string());
    daemon.assert_filled(3, 0, MIB);
    daemon.stop();
}

/// `warm` fills the cache of a running daemon, says how much was missing, and the second time
/// nothing is; a new cache takes what was hot before. Without a daemon it says what to do.
#[test]
fn warm_fills_the_cache() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(3, 0, 4 * MIB);
    daemon.stop();
    let daemon = home.start(&["./tank"]);
    home.ok(&["warm", "./tank", "0-2M"]);
    let all = home.ok(&["warm", "./tank"]);
    assert!(all.starts_with("tank: 1 GiB warm, "), "{all}");
    let again = home.ok(&["warm", "./tank", "2M+2M", "--json"]);
    let again: serde_json::Value = serde_json::from_str(&again).expect("JSON");
    assert_eq!((&again["bytes"], &again["fetched_bytes"]), (&(2 * MIB).into(), &0.into()));
    home.ok(&["warm", "./tank", "--metadata"]);
    daemon.assert_filled(3, 0, 4 * MIB);
    let beyond = home.fails(2, &["warm", "./tank", "1G+1G"]);
    assert!(beyond.contains("1 GiB"), "{beyond}");
    daemon.stop();
    let daemon = home.start(&["./tank"]);
    home.ok(&["warm", "./tank", "--hot"]);
    daemon.stop();
    let gone = home.fails(4, &["warm", "./tank"]);
    assert!(gone.contains("cistern serve"), "{gone}");
}

/// `gc --dry-run` says what collecting takes and changes nothing; `gc` does it, through the daemon or without one; what is
/// garbage is known, moved around and retired, and everything reads as before.
#[test]
fn gc_says_and_does() {
    let home = Home::new();
    let json = |text: String| -> serde_json::Value { serde_json::from_str(&text).expect("JSON") };
    let daemon = home.start(&[CREATE.as_slice(), &["--space-bound", "none"]].concat());
    daemon.fill(3, 0, 8 * MIB);
    home.ok(&["drain", "./tank"]);
    daemon.fill(4, 0, 4 * MIB);
    home.ok(&["drain", "./tank"]);
    let done = json(home.ok(&["gc", "./tank", "--to", "4", "--json"]));
    assert_eq!(done["moved_bytes"], 0, "it holds: {done}");
    assert!(done["before"]["segments"]["garbage_bytes"].as_u64() > Some(0), "{done}");
    let planned = json(home.ok(&["gc", "./tank", "--dry-run", "--to", "1.1", "--json"]));
    let moved_bytes = planned["moved_blocks"].as_u64().expect("a number") * 4096;
    assert!((MIB..=4 * MIB).contains(&moved_bytes), "{planned}");
    let said = home.ok(&["gc", "./tank", "--dry-run", "--to", "1.1"]);
    assert!(said.contains("nothing was changed") && said.contains("out of"), "{said}");
    let done = json(home.ok(&["gc", "./tank", "--to", "1.1", "--json"]));
    assert_eq!(
        (&done["moved_bytes"], &done["vacated_segments"]),
        (&moved_bytes.into(), &planned["victims"]),
        "{done}"
    );
    assert!(done["after"]["ratio"].as_f64() < Some(1.1), "{done}");
    let beyond = home.fails(2, &["gc", "./tank", "--defragment", "1G+1G"]);
    assert!(beyond.contains("1 GiB"), "{beyond}");
    daemon.assert_filled(4, 0, 4 * MIB);
    daemon.stop();

    let said = home.ok(&["gc", "./tank", "--defragment"]);
    assert!(said.starts_with("tank: 0 bytes moved") && said.contains("in grace"), "{said}");
    let daemon = home.start(&["./tank"]);
    daemon.assert_filled(4, 0, 4 * MIB);
    home.ok(&["pause", "./tank"]);
    let paused = home.fails(2, &["gc", "./tank"]);
    assert!(paused.contains("paused"), "{paused}");
    daemon.stop();
}

/// Readers need no claim: they serve the committed state beside the writer, and cannot write.
#[test]
fn read_only_beside_the_writer() {
    let home = Home::new();
    let writer = home.start(&CREATE);
    writer.fill(6, 0, MIB);
    home.ok(&["status", "--wait-clean"]);
    let reader = home.start(&["./tank", "--read-only", "--listen", "unix:reader.sock"]);
    reader.assert_filled(6, 0, MIB);
    assert_eq!(reader.nbdsh("print(h.is_read_only())"), "True");
    assert!(!reader.try_nbdsh("h.set_strict_mode(0); h.pwrite(b'x' * 512, 0)").status.success());
    let daemons = home.status()["daemons"].as_array().expect("a list").len();
    assert_eq!(daemons, 2, "both daemons of the state directory are shown");
    reader.stop();
    writer.stop();
}

/// One volume, two daemons of one host: the second is told which.
#[test]
fn a_volume_is_served_once() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    let taken = home.fails(3, &["serve", "./tank", "--listen", "unix:other.sock"]);
    assert!(taken.contains("in use by another process") && taken.contains("cistern status"), "{taken}");
    let taken = home.fails(3, &["serve", "./tank"]);
    assert!(taken.contains("cannot listen") && taken.contains("--listen"), "{taken}");
    let taken = home.fails(3, &["rm", "./tank", "--yes"]);
    assert!(taken.contains("being served"), "{taken}");
    daemon.fill(1, 0, MIB);
    daemon.stop();
}

/// A taken-over daemon stops for good and says why; what it had not uploaded is exported from its
/// journal and applied to an image.
#[test]
fn taken_over() {
    let home = Home::new();
    let old = home.start(&CREATE);
    old.fill(1, 0, MIB);
    home.ok(&["status", "--wait-clean"]);
    old.fill(2, MIB, MIB);
    let new = Home::new();
    let tank = home.path("tank");
    let tank = tank.to_str().expect("UTF-8");
    let writer = new.start(&[tank, "--take-over"]);
    writer.assert_filled(1, 0, MIB);
    writer.assert_filled(0, MIB, MIB);

    let fenced = home.fails(10, &["status", "--wait-clean", "--timeout", "1m"]);
    assert!(fenced.contains("fenced"), "{fenced}");
    assert!(home.ok(&["status"]).contains("tank: stopped"));
    assert!(!old.try_nbdsh("h.pwrite(b'x' * 4096, 0); h.flush()").status.success());
    old.signal(libc::SIGTERM);
    let ended = old.wait();
    assert_eq!(ended.code, Some(10), "it has stopped; what it acknowledged is in its journal");
    assert!(ended.stderr.contains("stay in the journal"), "what it acknowledged: {}", ended.stderr);

    let stale = home.fails(3, &["serve", "./tank"]);
    assert!(stale.contains("claimed by host"), "{stale}");
    home.ok(&["journal", "export", "./tank", "--apply-to", "image"]);
    let image = std::fs::read(home.path("image")).expect("made");
    assert!(image[MIB as usize..2 * MIB as usize].iter().all(|byte| *byte == 2));
    home.ok(&["journal", "export", "./tank", "--output", "stream"]);
    let stream = std::fs::read(home.path("stream")).expect("made");
    assert!(stream.starts_with(b"CISTJEX1") && stream.len() as u64 > MIB);
    writer.stop();
    let stale = home.fails(10, &["serve", "./tank"]);
    assert!(stale.contains("journal discard"), "{stale}");
    home.ok(&["journal", "discard", "./tank", "--yes"]);
    home.start(&["./tank"]).stop();
}

/// Without the right secret an encrypted volume stays shut, with its own exit code.
#[test]
fn encrypted_volumes() {
    let home = Home::new();
    let with = |passphrase: &str, arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.env("CISTERN_PASSPHRASE", passphrase);
        command
    };
    let created = with("correct horse", &["create", "./tank", "--size", "1G", "--encrypt"]).status();
    assert!(created.expect("the binary runs").success());
    let wrong = with("battery staple", &["serve", "./tank"]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(6), "{text}");
    assert!(text.contains("cannot open file:///"), "{text}");
    let none = home.fails(6, &["serve", "./tank"]);
    assert!(none.contains("CISTERN_PASSPHRASE"), "{none}");

    std::fs::write(home.path("key"), [42; 32]).expect("writable");
    let changed = with("correct horse", &["key", "change", "./tank", "--new-key-file", "key"]).status();
    assert!(changed.expect("the binary runs").success());
    assert_eq!(with("correct horse", &["serve", "./tank"]).output().expect("runs").status.code(), Some(6));
    let daemon = home.start(&["./tank", "--key-file", "key"]);
    daemon.fill(8, 0, MIB);
    daemon.stop();
    assert!(home.ok(&["info", "./tank"]).contains("sealed"));
    let told = home.ok(&["info", "./tank", "--key-file", "key"]);
    assert!(told.contains("1 GiB") && told.contains(" live, ") && told.contains(" in grace"), "{told}");
    let daemon = home.start(&["./tank", "--key-file", "key"]);
    daemon.assert_filled(8, 0, MIB);
    daemon.stop();
    assert!(home.ok(&["check", "./tank", "--data", "--key-file", "key"]).contains("no fault"));
}

/// Several volumes have names of their own, and none is the default.
#[test]
fn several_volumes() {
    let home = Home::new();
    let daemon = home.start(&["./a", "./b", "--create", "64M"]);
    daemon.fill(1, 0, MIB);
    let other = Daemon::nbdsh(&daemon, "print(h.get_size())");
    assert_eq!(other, (64 * MIB).to_string());
    let list = Command::new("nbdinfo").args(["--list", &daemon.uri]).output().expect("nbdinfo is installed");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.contains("export=\"a\"") && list.contains("export=\"b\""), "{list}");
    assert!(home.ok(&["status", "b"]).starts_with("b: clean"));
    let missing = home.fails(4, &["status", "c"]);
    assert!(missing.contains("serves c"), "{missing}");
    daemon.stop();
    let twice = home.fails(2, &["serve", "./a", "./x/a"]);
    assert!(twice.contains("named a"), "{twice}");
}

/// A service manager gives the socket and hears of the beginning and the end.
#[test]
fn systemd() {
    let home = Home::new();
    let notified = UnixDatagram::bind(home.path("notify")).expect("bindable");
    let socket = home.path("activated.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("bindable");
    let daemon = home.serve(&CREATE);
    let mut command = Command::new("sh");
    // The protocol wants the process's own id and the descriptor 3.
    command.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null"]);
    command.arg(daemon.get_program()).args(daemon.get_args()).current_dir(home.path(""));
    command.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("NOTIFY_SOCKET", home.path("notify")).stdin(Stdio::from(OwnedFd::from(listener)));
    let daemon = Daemon::start(command);
    assert!(daemon.uri.ends_with("activated.sock"), "{}", daemon.uri);
    daemon.fill(1, 0, MIB);
    daemon.stop();
    let mut heard = String::new();
    let mut message = [0; 4096];
    notified.set_nonblocking(true).expect("a socket");
    while let Ok(len) = notified.recv(&mut message) {
        heard += std::str::from_utf8(&message[..len]).expect("UTF-8");
        heard.push('\n');
    }
    assert!(heard.contains("READY=1") && heard.contains("STOPPING=1"), "{heard}");
    assert!(heard.contains("STATUS="), "{heard}");
}
