//! Hooks around a snapshot, as people write them: what they find, when they run, and what becomes of the snapshot when they fail.

mod daemon;

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    process::{Child, Output, Stdio},
};

use daemon::{Daemon, Home};

/// Two volumes of one daemon, and a place for backups.
fn two(home: &Home) -> Daemon {
    fs::create_dir(home.path("vault")).expect("a directory");
    home.ok(&["create", "./data", "--size", "16M"]);
    home.ok(&["create", "./wal", "--size", "16M"]);
    home.start(&["./data", "./wal"])
}

fn read(home: &Home, name: &str) -> String {
    fs::read_to_string(home.path(name)).unwrap_or_default()
}

/// Waits until a process tells something by a line in a pipe.
fn told(home: &Home, pipe: &str) -> String {
    fs::read_to_string(home.path(pipe)).expect("a pipe")
}

fn pipe(home: &Home, name: &str) {
    let made = std::process::Command::new("mkfifo").arg(home.path(name)).status().expect("mkfifo is there");
    assert!(made.success());
}

fn start(home: &Home, arguments: &[&str]) -> Child {
    home.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

fn signal(child: &Child) {
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The first runs before the snapshots are there and the second when they are; both are told which, and what the first started goes on until
/// then. What they print is not mixed into the result.
#[test]
fn hooks_run_around_the_snapshots() {
    let home = Home::new();
    let daemon = two(&home);
    let cistern = env!("CARGO_BIN_EXE_cistern");
    let look = |when: &str| {
        format!(
            "echo told; printf '%s\\n' \"$CISTERN_SNAPSHOTS\" \"$CISTERN_MADE\" > {when}; {cistern} ls ./data -H > {when}.ls"
        )
    };
    let pre = format!("{}; mkfifo held; (read line < held; echo $line > heard) & ", look("before"));
    let post = format!("{}; echo go > held", look("after"));
    let told = home.ok(&["snapshot", "./data@a", "./wal@b", "--pre", &pre, "--post", &post, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON alone");
    assert_eq!((&told[0]["name"], &told[1]["name"]), (&"a".into(), &"b".into()));
    let before = read(&home, "before");
    let lines: Vec<&str> = before.lines().collect();
    assert!(lines[0].ends_with("data@a") && lines[1].ends_with("wal@b") && lines[2].is_empty(), "{before}");
    assert_eq!(read(&home, "after").lines().collect::<Vec<_>>(), [lines[0], lines[1], "yes"]);
    assert_eq!(read(&home, "before.ls"), "");
    assert!(read(&home, "after.ls").starts_with("a\t"), "{}", read(&home, "after.ls"));
    while read(&home, "heard") != "go\n" {
        std::thread::yield_now();
    }
    daemon.stop();
}

/// If the first fails, no snapshot is made, the exit code says so, and the second runs all the same and knows it. So too where the snapshot fails.
#[test]
fn a_hook_that_fails_leaves_no_snapshot() {
    let home = Home::new();
    let daemon = two(&home);
    let post = "echo $CISTERN_MADE >> ended";
    let failed = home.fails(12, &["snapshot", "./data@a", "--pre", "exit 3", "--post", post]);
    assert!(failed.contains("exit code 3") && failed.contains("no snapshot was made"), "{failed}");
    home.fails(12, &["backup", "./data", "./wal", "--to", "./vault", "--pre", "kill -9 $$", "--post", post]);
    assert_eq!(home.ok(&["ls", "./data", "-H"]), "");
    home.ok(&["snapshot", "./data@a"]);
    home.fails(11, &["snapshot", "./data@a", "--pre", "true", "--post", post]);
    assert_eq!(read(&home, "ended"), "no\nno\nno\n");
    let both = home.fails(12, &["snapshot", "./data@b", "--pre", "exit 3", "--post", "exit 4"]);
    assert!(both.contains("exit code 3") && both.contains("--post failed (exit code 4)"), "{both}");
    daemon.stop();
}

/// Hooks of the settings file run around snapshots and backups unless a flag says otherwise; an empty flag is none.
#[test]
fn hooks_of_the_settings_file() {
    let home = Home::new();
    let daemon = two(&home);
    let file =
        "[hooks]\npre = \"echo file >> ran\"\npost = \"echo $CISTERN_MADE >> ran\"\ntimeout = \"9s\"\n";
    fs::write(home.path("cistern.toml"), file).expect("written");
    let with = |arguments: &[&'static str]| -> Vec<&'static str> {
        [&["--config", "cistern.toml"], arguments].concat()
    };
    home.ok(&with(&["snapshot", "./data@a"]));
    home.ok(&with(&["backup", "./data", "--to", "./vault", "--pre", "echo flag >> ran"]));
    home.ok(&with(&["snapshot", "./data@b", "--pre", "", "--post", ""]));
    assert_eq!(read(&home, "ran"), "file\nyes\nflag\nyes\n");
    fs::write(home.path("cistern.toml"), "[hooks]\npre = \"exec sleep 1000\"\ntimeout = \"10ms\"\n")
        .expect("written");
    let failed = home.fails(12, &with(&["snapshot", "./data@c"]));
    assert!(failed.contains("not done after 10ms"), "{failed}");
    daemon.stop();
}

/// If the second fails, what was made stands: the snapshot is there, the backup is complete, and the exit code says that something is wrong.
#[test]
fn a_failure_afterwards_leaves_what_was_made() {
    let home = Home::new();
    let daemon = two(&home);
    let failed = home.fails(12, &["snapshot", "./data@a", "--wait", "--post", "exit 4"]);
    assert!(failed.contains("stands"), "{failed}");
    assert!(home.ok(&["ls", "./data", "-H"]).contains("stored"));
    let failed = home.fails(12, &["backup", "./data", "--to", "./vault", "--post", "exit 4"]);
    assert!(failed.contains("the backups are complete"), "{failed}");
    home.ok(&["backup", "verify", "./vault/data"]);
    daemon.stop();
}

/// One that does not end in its time is killed, with all that it started, and has failed.
#[test]
fn a_hook_that_hangs_is_killed() {
    let home = Home::new();
    let daemon = two(&home);
    pipe(&home, "alive");
    // Whoever reads the pipe sees its end when the last of them is gone.
    let pre = "exec 3> alive; echo begun >&3; sleep 1000 & sleep 1000";
    let arguments = [
        "snapshot",
        "./data@a",
        "--pre",
        pre,
        "--post",
        "echo $CISTERN_MADE > ended",
        "--hook-timeout",
        "2s",
    ];
    let alive = home.path("alive");
    let reader = std::thread::spawn(move || fs::read_to_string(alive).expect("a pipe"));
    let child = start(&home, &arguments);
    assert_eq!(reader.join().expect("it read"), "begun\n");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(12), "{}", stderr(&ended));
    assert!(stderr(&ended).contains("not done after 2s"), "{}", stderr(&ended));
    assert_eq!((read(&home, "ended"), home.ok(&["ls", "./data", "-H"])), ("no\n".to_owned(), String::new()));
    daemon.stop();
}

/// Ctrl-C while the first runs: it is killed, the second runs, and no snapshot is made.
#[test]
fn an_interrupt_runs_the_second_hook() {
    let home = Home::new();
    let daemon = two(&home);
    for (n, verb) in
        [&["snapshot", "./data@a"][..], &["backup", "./data", "--to", "./vault"]].iter().enumerate()
    {
        let (alive, ended) = (format!("alive{n}"), format!("ended{n}"));
        pipe(&home, &alive);
        let pre = format!("echo begun > {alive}; exec sleep 1000");
        let post = format!("echo $CISTERN_MADE > {ended}");
        let child = start(&home, &[verb, &["--pre", &pre, "--post", &post][..]].concat());
        assert_eq!(told(&home, &alive), "begun\n");
        signal(&child);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!((output.status.code(), output.status.signal()), (Some(130), None), "{}", stderr(&output));
        assert_eq!(
            (read(&home, &ended), home.ok(&["ls", "./data", "-H"])),
            ("no\n".to_owned(), String::new())
        );
    }
    daemon.stop();
}
