//! What people and scripts see of commands that fail: the text, the hint, the exit code.

use std::{
    path::Path,
    process::{Command, Output},
};

/// A command in surroundings of its own: nothing of the user's leaks in.
fn cistern(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cistern"));
    command.args(arguments).current_dir(home).env_clear().env("HOME", home);
    command.env("XDG_STATE_HOME", home.join("state")).env("XDG_CACHE_HOME", home.join("cache"));
    command.env("STATE_DIRECTORY", home.join("state")).env("CACHE_DIRECTORY", home.join("cache"));
    command.stdin(std::process::Stdio::null());
    command.output().expect("the binary runs")
}

/// Asserts the exit code and that each text is on stderr.
fn assert_fails(arguments: &[&str], code: i32, texts: &[&str]) {
    let home = tempfile::tempdir().expect("a temporary directory");
    let output = cistern(home.path(), arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    for text in texts {
        assert!(stderr.contains(text), "{arguments:?}: no '{text}' in: {stderr}");
    }
    assert!(stderr.starts_with("error: "), "{stderr}");
}

/// Help is an answer, not an error, and shows a newcomer the first steps.
#[test]
fn help_shows_the_first_steps() {
    let home = tempfile::tempdir().expect("a temporary directory");
    for arguments in [&["--help"][..], &["help"], &["-h"]] {
        let output = cistern(home.path(), arguments);
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8_lossy(&output.stdout);
        for step in ["cistern serve ./tank --create 10G", "cistern create s3://", "cistern status"] {
            assert!(text.contains(step), "no '{step}' in: {text}");
        }
    }
    assert_eq!(cistern(home.path(), &["--version"]).status.code(), Some(0));
}

/// Wrong arguments end with 2, and the text says what would be right.
#[test]
fn wrong_arguments() {
    assert_fails(&["sevre"], 2, &["serve"]);
    assert_fails(&["serve"], 2, &["<URL>"]);
    assert_fails(&["serve", "tank"], 2, &["./name"]);
    assert_fails(&["serve", "s3://bucket"], 2, &["/name"]);
    assert_fails(&["serve", "ftp://x/tank"], 2, &["s3://"]);
    assert_fails(&["serve", "./tank", "--read-only", "--create", "1G"], 2, &["--create"]);
    assert_fails(&["status", "--timeout", "5s"], 2, &["--wait-clean"]);
    assert_fails(&["status", "--wait-clean", "--timeout", "5"], 2, &["like 30s"]);
    assert_fails(&["journal", "export", "./tank"], 2, &["--output"]);
    assert_fails(&["resize", "./tank", "10GB"], 2, &["G or GiB"]);
}

/// A size that no volume can have is refused before anything is made.
#[test]
fn impossible_sizes() {
    assert_fails(&["create", "./tank", "--size", "0"], 2, &["size 0", "10G"]);
    assert_fails(&["create", "./tank", "--size", "1000"], 2, &["multiple of 512", "1024"]);
    assert_fails(&["create", "./tank", "--size", "2E"], 2, &["too large", "1 EiB"]);
    assert_fails(&["create", "./tank", "--size", "lots"], 2, &["like 10G"]);
    assert_fails(&["create", "./tank"], 2, &["--size"]);
    let home = tempfile::tempdir().expect("a temporary directory");
    cistern(home.path(), &["create", "./tank", "--size", "1000"]);
    assert!(!home.path().join("tank").exists());
}

/// A volume that is not there is named, with the way to find or make one; the code is 4.
#[test]
fn missing_volumes() {
    for verb in ["serve", "info", "check", "rm"] {
        assert_fails(&[verb, "./nowhere"], 4, &["no volume at file:///", "cistern create"]);
    }
    assert_fails(&["resize", "./nowhere", "1G"], 4, &["no volume"]);
    assert_fails(&["ls", "./nowhere"], 4, &["nowhere"]);
    assert_fails(&["key", "change", "./nowhere"], 4, &["no volume"]);
    assert_fails(&["create", "./a/b/tank", "--size", "1G"], 4, &["a/b"]);
    let id = "6f1c2f0e-3a51-4f0c-9a39-64b3c3a5a001";
    assert_fails(&["journal", "export", id, "--output", "-"], 4, &["no journal", "--state-dir"]);
}

/// Without a daemon `status` says so and where it looked, also when it should wait: "clean" is
/// never said by nobody.
#[test]
fn no_daemon() {
    assert_fails(&["status"], 4, &["no daemon", "state", "cistern serve URL"]);
    assert_fails(&["status", "--wait-clean"], 4, &["no daemon"]);
    assert_fails(&["status", "tank", "--json"], 4, &["tank"]);
}

/// Mistakes in the settings file are found before anything happens, with a suggestion.
#[test]
fn mistakes_in_the_settings_file() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let with = |text: &str| {
        std::fs::write(home.path().join("c.toml"), text).expect("writable");
        let output = cistern(home.path(), &["--config", "c.toml", "serve", "./tank", "--create", "1G"]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = with("max-dirty-agee = '5s'");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("c.toml") && text.contains("did you mean 'max-dirty-age'?"), "{text}");
    let (code, text) = with("journal-size = '1K'");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("journal-size") && text.contains("16 MiB"), "{text}");
    assert!(!home.path().join("tank").exists());
    assert_fails(&["--config", "missing.toml", "status"], 4, &["missing.toml"]);
}

/// Listening where others could connect needs TLS or insistence, and nothing is opened before.
#[test]
fn listening_beyond_this_host() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let serve = |more: &[&str]| {
        let arguments = [&["serve", "./tank", "--create", "1G"], more].concat();
        let output = cistern(home.path(), &arguments);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = serve(&["--listen", "0.0.0.0:0"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--tls-dir") && text.contains("--insecure-listen"), "{text}");
    let (code, text) = serve(&["--listen", "0.0.0.0:0", "--tls-dir", "./certificates"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("server-cert.pem"), "{text}");
    let (code, text) = serve(&["--listen", "nonsense"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("unix:PATH"), "{text}");
    let long = format!("unix:/{}", "x".repeat(120));
    let (code, text) = serve(&["--listen", &long]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("107"), "{text}");
    assert!(!home.path().join("tank").exists());
}

/// Keys: a file that is no key, a passphrase nobody can be asked for.
#[test]
fn unusable_keys() {
    let home = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(home.path().join("short"), "hush").expect("writable");
    let create = ["create", "./tank", "--size", "1G", "--encrypt"];
    let output = cistern(home.path(), &create);
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&output.stderr).contains("CISTERN_PASSPHRASE"));
    let output = cistern(home.path(), &[&create[..], &["--key-file", "short"]].concat());
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a key file"));
    assert!(!home.path().join("tank").exists());
}

/// A reader that goes away does not make a command fail or panic.
#[test]
fn closed_pipes_are_quiet() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_cistern"));
    let output =
        command.args(["help"]).current_dir(home.path()).stdout(writer).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
