//! Passphrases that are typed on a terminal.

mod daemon;

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

use daemon::Home;

const MIB: u64 = 1 << 20;

/// Runs a command on a terminal of its own, on which these lines are typed; gives what stands there in the end.
fn on_a_terminal(home: &Home, arguments: &[&str], typed: &[&str]) -> String {
    let command = home.command(arguments);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().expect("plain"))).collect();
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
    script.current_dir(command.get_current_dir().expect("a home"));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script runs");
    let mut keys = script.stdin.take().expect("piped");
    typed.iter().for_each(|line| writeln!(keys, "{line}").expect("typed"));
    drop(keys);
    let ended = script.wait_with_output().expect("it ends");
    let shown = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{arguments:?}: {:?}: {shown}", ended.status);
    shown
}

/// Whatever a command opens and however often, a passphrase is typed once: of the volume that is copied, of the one that it goes into, which is new or
/// there, and to verify it. Only what it does not fit is asked for as well.
#[test]
fn it_is_typed_once() {
    let home = Home::new();
    fs::create_dir(home.path("vault")).expect("a directory");
    let asked = |shown: &str| shown.matches("Passphrase of").count();
    let shown = on_a_terminal(&home, &["create", "./tank", "--size", "16M", "--encrypt"], &["one", "one"]);
    assert!(shown.contains("New passphrase") && asked(&shown) == 0, "{shown}");
    on_a_terminal(&home, &["create", "./other", "--size", "16M", "--encrypt"], &["two", "two"]);
    for night in 0..2 {
        let shown = on_a_terminal(&home, &["backup", "./tank", "--to", "./vault"], &["one"]);
        assert!(asked(&shown) == 1 && !shown.contains("New passphrase"), "night {night}: {shown}");
    }
    let shown = on_a_terminal(&home, &["backup", "./tank", "./other", "--to", "./vault"], &["one", "two"]);
    assert!(asked(&shown) == 2 && shown.contains("Passphrase of other"), "{shown}");
    let shown = on_a_terminal(&home, &["copy", "./tank", "./copy"], &["one"]);
    assert_eq!(asked(&shown), 1, "{shown}");
    let mut opened = home.serve(&["./copy", "./vault/other"]);
    opened.env("CISTERN_PASSPHRASE", "one");
    let failed = opened.output().expect("the binary runs");
    assert_eq!(failed.status.code(), Some(6), "each has the secret of its own volume: {failed:?}");

    // A new volume for a stream.
    let stream = home.path("stream");
    home.ok(&["create", "./plain", "--size", "16M"]);
    let daemon = home.start(&["./plain"]);
    daemon.fill(1, 0, MIB);
    daemon.stop();
    home.ok(&["snapshot", "./plain@a"]);
    home.ok(&["send", "./plain@a", "--to", stream.to_str().expect("plain")]);
    let shown = on_a_terminal(&home, &["receive", "./sealed", "stream", "--encrypt"], &["three", "three"]);
    assert!(asked(&shown) == 0 && shown.contains("received"), "{shown}");
}
