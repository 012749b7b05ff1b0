//! Sending and receiving as people do it: with the real binary, beside a daemon and without one, through files and pipes.

mod daemon;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Command, Output, Stdio},
    time::Duration,
};

use daemon::Home;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// A home with a served volume that has snapshots: a, and behind it b, larger, with data, a trimmed range and zeroes; then it was written on.
fn source(home: &Home) -> daemon::Daemon {
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.fill(1, 0, 4 * MIB);
    writer.fill(2, 8 * MIB, 4 * MIB);
    home.ok(&["snapshot", "./tank@a", "--wait"]);
    writer.fill(3, 2 * MIB, 3 * MIB);
    writer.nbdsh(&format!("h.trim({}, {})", MIB, 9 * MIB));
    home.ok(&["resize", "./tank", "80M"]);
    home.ok(&["snapshot", "./tank@b", "--wait"]);
    writer.fill(9, 0, 16 * MIB);
    writer
}

/// Asserts what a snapshot of `source` shows, under any URL.
fn assert_shows(home: &Home, url: &str, is_b: bool) {
    let socket = home.path("shown.sock");
    let shown = home.start(&[url, "--read-only", "--listen", &format!("unix:{}", socket.display())]);
    shown.assert_filled(1, 0, 2 * MIB);
    shown.assert_filled(if is_b { 3 } else { 1 }, 2 * MIB, 2 * MIB);
    shown.assert_filled(if is_b { 3 } else { 0 }, 4 * MIB, MIB);
    shown.assert_filled(2, 8 * MIB, MIB);
    shown.assert_filled(if is_b { 0 } else { 2 }, 9 * MIB, MIB);
    shown.assert_filled(2, 10 * MIB, 2 * MIB);
    for at in [12, 28, 44, 60] {
        shown.assert_filled(0, at * MIB, if at == 60 { 4 * MIB } else { 16 * MIB });
    }
    let size = shown.nbdsh("print(h.get_size())");
    assert_eq!(size, ((if is_b { 80 } else { 64 }) * MIB).to_string());
    shown.stop();
}

/// Receives bytes by a pipe.
fn receive(home: &Home, arguments: &[&str], stream: &[u8]) -> Output {
    let mut command = home.command(&[&["receive"], arguments].concat());
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    let stream = stream.to_vec();
    // It may end before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&stream)));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("written");
    output
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A full stream makes a volume, and the next one brings it on; each is there as a snapshot and as the volume. It comes beside a daemon that
/// writes on, of which nothing is seen; and twice is once.
#[test]
fn a_volume_follows_another_one() {
    let home = Home::new();
    let writer = source(&home);
    let said = home.ok(&["send", "./tank@a", "--to", "a.stream"]);
    assert!(said.contains("8 MiB of data"), "{said}");
    let said = home.ok(&["send", "./tank@b", "--from", "a", "--dry-run"]);
    assert!(said.contains("3 MiB of data"), "{said}");
    let said = home.ok(&["send", "./tank@b", "--from", "a", "-nv"]);
    let lines: Vec<Vec<&str>> = said.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["data", "1", "ranges", "3", "MiB"], "{said}");
    assert_eq!((lines[1][1], lines[2][0]), ("0", "holes"), "{said}");
    let told = json(&home.ok(&["send", "./tank@b", "--from", "a", "-nv", "--json"]));
    assert_eq!(told["ranges"]["data"], serde_json::json!({"ranges": 1, "bytes": 3 * MIB}), "{told}");
    assert!(
        told["ranges"]["hole"]["bytes"].as_u64().is_some_and(|bytes| bytes >= 9 * MIB - 3 * MIB),
        "{told}"
    );
    home.fails(2, &["send", "./tank@b", "-v"]);
    let sent = home.command(&["send", "./tank@b", "--from", "a"]).output().expect("the binary runs");
    assert!(sent.status.success(), "{}", stderr(&sent));
    writer.stop();

    let said = home.ok(&["receive", "./copy", "a.stream"]);
    assert!(said.contains("created ./copy") || said.contains("created"), "{said}");
    assert_shows(&home, "./copy", false);
    let output = receive(&home, &["./copy", "--json"], &sent.stdout);
    assert!(output.status.success(), "{}", stderr(&output));
    let told = json(&String::from_utf8_lossy(&output.stdout));
    assert_eq!((&told["snapshot"], &told["data_bytes"]), (&"b".into(), &(3 * MIB).into()), "{told}");
    assert_shows(&home, "./copy", true);
    assert_shows(&home, "./copy@a", false);
    let again = receive(&home, &["./copy"], &sent.stdout);
    assert!(again.status.success() && String::from_utf8_lossy(&again.stdout).contains("already"));
    let ids = |url: &str| -> Vec<Value> {
        let listed = json(&home.ok(&["ls", url, "--json"]));
        listed.as_array().expect("a list").iter().map(|snapshot| snapshot["id"].clone()).collect()
    };
    assert_eq!(ids("./copy"), ids("./tank"), "they are the same snapshots");
    home.ok(&["check", "./copy", "--data", "--space"]);
}

/// What is refused, and why: served volumes, a base that is not there, data that would be overwritten, a name that is taken, a stream that is
/// none. Nothing is made, nothing is changed. Told to, it overwrites.
#[test]
fn what_does_not_fit_is_refused() {
    let home = Home::new();
    let writer = source(&home);
    for (name, arguments) in [("full", &["./tank@b"][..]), ("b", &["./tank@b", "--from", "a"])] {
        home.ok(&[&["send", "--to", name], arguments].concat());
    }
    home.ok(&["send", "./tank@a", "--to", "a"]);
    let refused = home.fails(3, &["receive", "./tank", "full"]);
    assert!(refused.contains("served"), "{refused}");
    for (code, wrong) in [
        (4, &["send", "./tank@c", "--to", "x"][..]),
        (4, &["send", "./tank@b", "--from", "c", "--to", "x"]),
        (2, &["send", "./tank@a", "--from", "b", "--to", "x"]),
        (2, &["send", "./tank@a", "--from", "a", "--to", "x"]),
        (11, &["send", "./tank@a", "--to", "full"]),
        (4, &["receive", "./none", "b"]),
        (4, &["receive", "./none", "nothing"]),
    ] {
        home.fails(code, wrong);
    }
    writer.stop();
    assert!(!home.path("x").exists() && !home.path("x.unfinished").exists() && !home.path("none").exists());
    fs::write(home.path("text"), "this is not one").expect("written");
    assert!(home.fails(5, &["receive", "./none", "text"]).contains("not a stream"));

    home.ok(&["receive", "./copy", "a"]);
    let copy = home.start(&["./copy"]);
    copy.fill(7, 0, MIB);
    copy.stop();
    let refused = home.fails(2, &["receive", "./copy", "b"]);
    assert!(refused.contains("written to since") && refused.contains("--force"), "{refused}");
    let refused = home.fails(11, &["receive", "./copy", "full"]);
    assert!(refused.contains("not empty") && refused.contains("--differential"), "{refused}");
    let copy = home.start(&["./copy"]);
    copy.assert_filled(7, 0, MIB);
    copy.stop();
    home.ok(&["receive", "./copy", "b", "--force"]);
    assert_shows(&home, "./copy", true);
    assert!(
        home.ok(&["receive", "./copy@c", "full", "--force"]).contains("already"),
        "by its id, not its name"
    );
    home.ok(&["create", "./other", "--size", "1M"]);
    home.ok(&["snapshot", "./other@b"]);
    let refused = home.fails(11, &["receive", "./other", "full"]);
    assert!(refused.contains("another snapshot") && refused.contains("@NAME"), "{refused}");
    home.ok(&["receive", "./other@c", "full"]);
    assert_shows(&home, "./other@c", true);
}

/// A stream that is cut or damaged changes nothing, by a pipe as by a file; a volume that was made for it is gone again.
#[test]
fn a_broken_stream_leaves_nothing() {
    let home = Home::new();
    source(&home).stop();
    home.ok(&["send", "./tank@a", "--to", "a"]);
    home.ok(&["send", "./tank@b", "--from", "a", "--to", "b"]);
    let (full, difference) =
        (fs::read(home.path("a")).expect("sent"), fs::read(home.path("b")).expect("sent"));
    for cut in [10, 500, full.len() / 2, full.len() - 1] {
        let broken = receive(&home, &["./copy"], &full[..cut]);
        assert_eq!(broken.status.code(), Some(5), "{}", stderr(&broken));
        assert!(!home.path("copy").exists(), "{cut}");
    }
    home.ok(&["receive", "./copy", "a"]);
    let listed = home.ok(&["ls", "./copy", "-H"]);
    for at in [10, 300, difference.len() / 2, difference.len() - 40] {
        let mut bad = difference.clone();
        bad[at] ^= 8;
        let broken = receive(&home, &["./copy"], &bad);
        assert_eq!(broken.status.code(), Some(5), "{}", stderr(&broken));
        fs::write(home.path("bad"), &bad).expect("written");
        home.fails(5, &["receive", "./copy", "bad"]);
        assert_eq!(home.ok(&["ls", "./copy", "-H"]), listed);
        assert_shows(&home, "./copy", false);
    }
    home.ok(&["receive", "./copy", "b"]);
    assert_shows(&home, "./copy", true);
}

/// A volume `copy` that has snapshot a, and the stream that brings b.
fn copy_of_a(home: &Home) -> Vec<u8> {
    source(home).stop();
    home.ok(&["send", "./tank@a", "--to", "a"]);
    home.ok(&["send", "./tank@b", "--from", "a", "--to", "b"]);
    home.ok(&["receive", "./copy", "a"]);
    fs::read(home.path("b")).expect("sent")
}

/// Receives into `copy`, and is killed when all of the stream was written but its last byte.
fn killed(home: &Home, stream: &[u8]) {
    let mut command = home.command(&["receive", "./copy"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&stream[..stream.len() - 1]).expect("it reads");
    // It took all of it but what the pipe and its queue hold, so it has begun.
    while !home.ok(&["ls", "./copy", "--json"]).contains("receiving") {
        if child.try_wait().expect("a child").is_some() {
            panic!("it ended by itself");
        }
        std::thread::yield_now();
    }
    child.kill().expect("killed");
    child.wait().expect("it ended");
}

/// Killed in the middle of receiving: the volume is not served, its snapshots are; --abort goes back, and the same stream again completes it.
#[test]
fn a_receive_that_is_killed_is_gone_back_on() {
    let home = Home::new();
    let difference = copy_of_a(&home);
    killed(&home, &difference);
    let refused = home.run(&["serve", "./copy"]);
    assert_eq!(refused.status.code(), Some(8), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--abort"), "{}", stderr(&refused));
    assert_shows(&home, "./copy@a", false);
    assert_shows(&home, "./copy", false);
    let said = home.ok(&["receive", "./copy", "--abort"]);
    assert!(said.contains("as it was"), "{said}");
    assert_shows(&home, "./copy", false);
    assert!(home.ok(&["receive", "./copy", "--abort"]).contains("nothing to go back on"));
    killed(&home, &difference);
    home.ok(&["receive", "./copy", "b"]);
    assert_shows(&home, "./copy", true);
    home.ok(&["check", "./copy", "--data", "--space"]);
}

/// The token that a failed receive says.
fn token(said: &str) -> String {
    let (_, rest) = said.split_once("--resume ").unwrap_or_else(|| panic!("no token: {said}"));
    rest.split('`').next().expect("its end").to_owned()
}

/// A stream that breaks may leave what came, and the rest of it is enough; so is it after a kill. Until then nobody sees any of it, and what does not fit leaves
/// it as it is.
#[test]
fn what_came_need_not_be_sent_again() {
    let home = Home::new();
    let difference = copy_of_a(&home);
    let broken = receive(&home, &["./copy", "--resumable"], &difference[..difference.len() / 2]);
    assert_eq!(broken.status.code(), Some(5), "{}", stderr(&broken));
    let said = token(&stderr(&broken));
    assert_eq!(home.ok(&["receive", "./copy", "--token"]).trim(), said);
    assert_shows(&home, "./copy", false);
    assert_eq!(home.run(&["serve", "./copy"]).status.code(), Some(8));
    let wrong = format!("{}7", said);
    home.ok(&["send", "./tank@b", "--resume", &wrong, "--to", "late"]);
    assert!(home.fails(2, &["receive", "./copy", "late"]).contains("goes on at block"));
    assert!(
        home.fails(2, &["send", "./tank@a", "--resume", &said, "--to", "x"]).contains("what broke was not")
    );
    assert!(home.fails(2, &["send", "./tank@b", "--resume", &said, "--to", "x,y"]).contains("1 shares"));
    assert!(home.fails(2, &["send", "./tank@b", "--resume", "x", "--to", "x"]).contains("--token"));
    assert_eq!(home.ok(&["receive", "./copy", "--token"]).trim(), said, "it is as it was");
    let rest = home.command(&["send", "./tank@b", "--resume", &said]).output().expect("the binary runs");
    assert!(rest.status.success() && stderr(&rest).contains("the rest of"), "{}", stderr(&rest));
    assert!(rest.stdout.len() < difference.len() * 2 / 3, "{} of {}", rest.stdout.len(), difference.len());
    // Broken once more, it goes on from there.
    let broken = receive(&home, &["./copy"], &rest.stdout[..rest.stdout.len() / 2]);
    assert_eq!(broken.status.code(), Some(5), "{}", stderr(&broken));
    let further = token(&stderr(&broken));
    assert_ne!(further, said);
    home.ok(&["send", "./tank@b", "--resume", &further, "--to", "last"]);
    home.ok(&["receive", "./copy", "last"]);
    assert_shows(&home, "./copy", true);
    home.fails(4, &["receive", "./copy", "--token"]);
    home.ok(&["check", "./copy", "--data", "--space"]);

    let home = Home::new();
    let difference = copy_of_a(&home);
    killed(&home, &difference);
    let said = home.ok(&["receive", "./copy", "--token"]);
    home.ok(&["send", "./tank@b", "--resume", said.trim(), "--to", "rest"]);
    home.ok(&["receive", "./copy", "rest"]);
    assert_shows(&home, "./copy", true);

    let home = Home::new();
    source(&home).stop();
    home.ok(&["send", "./tank@b", "--to", "full"]);
    let full = fs::read(home.path("full")).expect("sent");
    let broken = receive(&home, &["./copy", "--resumable"], &full[..full.len() / 2]);
    home.ok(&["send", "./tank@b", "--resume", &token(&stderr(&broken)), "--to", "rest"]);
    assert!(home.ok(&["receive", "./copy", "--abort"]).contains("as it was"));
    let refused = home.fails(2, &["receive", "./copy", "rest"]);
    assert!(refused.contains("goes on at block"), "{refused}");
    home.ok(&["receive", "./copy", "full"]);
    assert_shows(&home, "./copy", true);
}

/// Several pipes take a share each, and are received together; one that is missing, there twice, or of another stream is named. What went over files is as good.
#[test]
fn a_stream_over_several_pipes() {
    const GIB: u64 = 1 << 30;
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "4G"]);
    for part in 0..4 {
        writer.fill(part as u8 + 1, part * GIB, MIB);
        writer.fill(part as u8 + 11, (part + 1) * GIB - MIB, MIB);
    }
    home.ok(&["snapshot", "./tank@a", "--wait"]);
    writer.fill(21, GIB - MIB, 2 * MIB);
    writer.nbdsh(&format!("h.trim({}, {})", 3 * GIB, MIB));
    home.ok(&["snapshot", "./tank@b", "--wait"]);
    writer.stop();

    for name in ["one", "two", "three"] {
        let made = std::process::Command::new("mkfifo").arg(home.path(name)).status();
        assert!(made.expect("mkfifo runs").success());
    }
    let pipes = "one,two,three";
    let mut send = home.command(&["send", "./tank@a", "--to", pipes]);
    let mut sending = send.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    // In any order.
    home.ok(&["receive", "./copy", "three,one,two"]);
    assert!(sending.wait().expect("it ends").success());

    home.ok(&["send", "./tank@b", "--from", "a", "--to", "x,y,z"]);
    home.ok(&["send", "./tank@b", "--to", "p,q,r"]);
    for (code, wrong, why) in [
        (2, "x,y", "share 3 of 3 is not there"),
        (2, "x,y,y", "twice"),
        (2, "x,y,r", "not of one"),
        (4, "x,y,w", "w"),
    ] {
        let refused = home.fails(code, &["receive", "./copy", wrong]);
        assert!(refused.contains(why), "{refused}");
    }
    home.fails(2, &["send", "./tank@b", "--to", "s,s"]);
    home.fails(2, &["send", "./tank@b", "--to", "s,t", "--format", "extents"]);
    home.ok(&["receive", "./copy", "x,y,z"]);
    let shown = home.start(&["./copy@b", "--read-only"]);
    shown.assert_filled(1, 0, MIB);
    shown.assert_filled(0, 2 * MIB, MIB);
    shown.assert_filled(0, GIB - MIB, 2 * MIB);
    shown.assert_filled(0, 3 * GIB - MIB, 2 * MIB);
    shown.assert_filled(14, 4 * GIB - MIB, MIB);
    shown.stop();
    home.ok(&["check", "./copy", "--data", "--space"]);
}

/// The host that received is gone for good: another one takes the volume over, and completes it, if need be in two runs.
#[test]
fn a_receive_of_a_host_that_is_gone() {
    let home = Home::new();
    let difference = copy_of_a(&home);
    killed(&home, &difference);
    let (other, copy) = (Home::new(), home.path("copy").display().to_string());
    let stream = home.path("b").display().to_string();
    let refused = other.run(&["receive", &copy, &stream]);
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--take-over"), "{}", stderr(&refused));
    // Here the stream breaks too, but what came stays, and the rest is enough.
    let cut = &difference[..difference.len() * 3 / 4];
    let broken = receive(&other, &[&copy, "--take-over", "--resumable"], cut);
    assert_eq!(broken.status.code(), Some(5), "{}", stderr(&broken));
    let said = token(&stderr(&broken));
    assert_eq!(other.ok(&["receive", &copy, "--token"]).trim(), said);
    assert_shows(&other, &copy, false);
    home.ok(&["send", "./tank@b", "--resume", &said, "--to", "rest"]);
    assert!(home.path("rest").metadata().expect("sent").len() < difference.len() as u64 / 2);
    other.ok(&["receive", &copy, &home.path("rest").display().to_string()]);
    assert_shows(&other, &copy, true);
    other.ok(&["check", &copy, "--data", "--space"]);
}

/// Who reads a stream and ends is no reason for silence, and a file has its name when it is whole.
#[test]
fn a_stream_that_nobody_takes_is_an_error() {
    let home = Home::new();
    source(&home).stop();
    let mut command = home.command(&["send", "./tank@b"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("standard output"), "{}", stderr(&output));
    let full = home.run(&["send", "./tank@b", "--to", "/dev/full"]);
    assert_eq!(full.status.code(), Some(9), "{}", stderr(&full));
    home.fails(4, &["send", "./tank@b", "--to", "nowhere/b"]);
}

/// A rate that stands in a file holds, and may be changed while a stream is sent: what would take a quarter of an hour is done. A file that is not
/// there or says no rate is refused.
#[test]
fn a_rate_is_changed_meanwhile() {
    let home = Home::new();
    let writer = home.start(&["./tank", "--create", "64M"]);
    writer.nbdsh("import os\nfor n in range(48): h.pwrite(os.urandom(1 << 20), n << 20)\nh.flush()");
    home.ok(&["snapshot", "./tank@a", "--wait"]);
    writer.stop();
    let (send, rate) = (["send", "./tank@a", "--rate", "@rate", "--to", "stream"], home.path("rate"));
    assert!(home.fails(2, &send).contains("--rate names rate: No such file"));
    fs::write(&rate, "fast\n").expect("written");
    assert!(home.fails(2, &send).contains("--rate names rate: 'fast' is not a size"));
    fs::remove_file(&rate).expect("removed");
    assert!(Command::new("mkfifo").arg(&rate).status().expect("it runs").success());
    assert!(home.fails(2, &send).contains("--rate names rate: it is no regular file"));
    fs::remove_file(&rate).expect("removed");
    fs::write(&rate, "64K\n").expect("written");
    let mut command = home.command(&send);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let (lines, said) = std::sync::mpsc::channel();
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    let reader = std::thread::spawn(move || {
        stderr.lines().map_while(Result::ok).for_each(|line| _ = lines.send(line))
    });
    // It is changed until that is noticed: then the first rate was read before.
    let changed = (1..).find_map(|n| {
        fs::write(&rate, format!("{n}\n")).expect("written");
        said.recv_timeout(Duration::from_millis(100)).ok()
    });
    assert!(changed.is_some_and(|line| line.contains("per second from now on")));
    fs::write(&rate, "").expect("written");
    assert!(said.iter().any(|line| line.contains("without a limit from now on")));
    assert!(child.wait().expect("it ends").success());
    reader.join().expect("no panic");
    assert!(fs::metadata(home.path("stream")).expect("a stream").len() > 48 * MIB);
}

/// An encrypted volume is sent as what it holds, and received into one with another key.
#[test]
fn another_key_at_the_other_end() {
    let home = Home::new();
    fs::write(home.path("one"), [1; 32]).expect("written");
    fs::write(home.path("two"), [2; 32]).expect("written");
    home.ok(&["create", "./tank", "--size", "16M", "--encrypt", "--key-file", "one"]);
    let writer = home.start(&["./tank", "--key-file", "one"]);
    writer.fill(5, MIB, MIB);
    writer.stop();
    home.ok(&["snapshot", "./tank@a", "--key-file", "one"]);
    home.fails(6, &["send", "./tank@a", "--to", "a"]);
    home.ok(&["send", "./tank@a", "--to", "a", "--key-file", "one"]);
    home.ok(&["receive", "./copy", "a", "--encrypt", "--key-file", "two"]);
    home.fails(6, &["check", "./copy", "--key-file", "one"]);
    let shown = home.start(&["./copy@a", "--key-file", "two"]);
    shown.assert_filled(5, MIB, MIB);
    shown.assert_filled(0, 0, MIB);
    shown.stop();
}

/// Applies a stream of rbd to an image, as its format is documented; gives the names in it.
fn apply_rbd(stream: &[u8], image: &mut Vec<u8>) -> Vec<(u8, String)> {
    let mut rest = stream.strip_prefix(b"rbd diff v1\n").expect("a banner");
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let mut names = Vec::new();
    while rest[0] != b'e' {
        let (tag, body) = (rest[0], &rest[1..]);
        let len = match tag {
            b'f' | b't' => {
                let len = 4 + u32::from_le_bytes(body[..4].try_into().expect("four")) as usize;
                names.push((tag, String::from_utf8(body[4..len].to_vec()).expect("a name")));
                len
            }
            b's' => {
                image.resize(number(body), 0);
                8
            }
            b'w' => {
                let (at, len) = (number(body), number(&body[8..]));
                image[at..at + len].copy_from_slice(&body[16..16 + len]);
                16 + len
            }
            b'z' => {
                image[number(body)..][..number(&body[8..])].fill(0);
                16
            }
            other => panic!("tag {other}"),
        };
        rest = &body[len..];
    }
    assert_eq!(rest, b"e");
    names
}

/// Other programs take it too: a stream of `rbd import-diff` rebuilds the image, and extents tell where what lies without data.
#[test]
fn other_dialects_tell_the_same() {
    let home = Home::new();
    source(&home).stop();
    home.ok(&["send", "./tank@a", "--format", "rbd", "--to", "a"]);
    home.ok(&["send", "./tank@b", "--from", "a", "--format", "rbd", "--to", "b"]);
    let mut image = Vec::new();
    let read = |name: &str| fs::read(home.path(name)).expect("sent");
    assert_eq!(apply_rbd(&read("a"), &mut image), [(b't', "a".to_owned())]);
    assert_eq!(apply_rbd(&read("b"), &mut image), [(b'f', "a".to_owned()), (b't', "b".to_owned())]);
    let mib = |n: u64| (n * MIB) as usize;
    let mut expected = vec![0; mib(80)];
    for (value, from, to) in [(1, 0, 2), (3, 2, 5), (2, 8, 9), (2, 10, 12)] {
        expected[mib(from)..mib(to)].fill(value);
    }
    assert!(image == expected, "the image is what b shows");

    let told = home.ok(&["send", "./tank@b", "--from", "a", "--format", "extents"]);
    let lines: Vec<Value> = told.lines().map(json).collect();
    assert_eq!((&lines[0]["from"], &lines[0]["size_bytes"]), (&"a".into(), &(80 * MIB).into()), "{told}");
    let range = |offset, len, kind| serde_json::json!({"offset": offset, "len": len, "kind": kind});
    let ranges =
        [range(2 * MIB, 3 * MIB, "data"), range(9 * MIB, MIB, "hole"), range(64 * MIB, 16 * MIB, "hole")];
    assert_eq!(lines[1..4], ranges, "{told}");
    assert_eq!((&lines[4]["ranges"], lines.len()), (&3.into(), 5), "{told}");
}
