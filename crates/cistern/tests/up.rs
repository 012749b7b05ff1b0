//! `up` and `down` as far as any host goes: real devices and pools are cases of `cargo xtask guest`.

mod daemon;

use daemon::{Daemon, Home, nbdsh};

/// Ends the daemon that `up` left running, whatever becomes of the test.
struct EndsIt<'a>(&'a Home);

impl Drop for EndsIt<'_> {
    fn drop(&mut self) {
        let _ = self.0.run(&["down", "home"]);
    }
}

fn text(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// A dry run says what it would do and does nothing; a host without the kernel's NBD client is told so, once the volume is served, by the same
/// daemon when it is tried again, and by another one when that is asked for; and `down` takes down what there is, uploads what nobody else has, and says that it is safe only then.
#[test]
fn what_is_up_is_taken_down() {
    let home = Home::new();
    let (mount, key) = (home.path("mnt"), home.path("key"));
    std::fs::write(&key, [7; 32]).expect("written");
    let (mount, key) = (mount.to_str().expect("UTF-8"), key.to_str().expect("UTF-8"));
    home.ok(&["create", "./vol", "--size", "64M", "--encrypt", "--key-file", key]);
    let up = ["up", "home", "--on", "./vol", "--fs", "ext4", "--mount", mount, "--key-file", key];
    let plan = home.ok(&[&up[..], &["--dry-run"]].concat());
    assert!(plan.starts_with("1. serve") && plan.contains("2. attach"), "{plan}");
    assert!(!home.path("state").exists(), "a dry run made something");

    let _ends = EndsIt(&home);
    let daemon_args = ["--", "--journal-size", "32M", "--cache-size", "16M", "--max-dirty-age", "1h"];
    let first = home.run(&[&up[..], &daemon_args].concat());
    let said = text(&first);
    assert!(first.status.success() || said.contains("the kernel's NBD client"), "{said}");
    let pid = home.status()["daemons"][0]["pid"].clone();
    let again = text(&home.run(&["up", "home"]));
    assert!(!again.contains("serve "), "it is served already: {again}");
    assert_eq!(home.status()["daemons"][0]["pid"], pid);

    let restarted = text(&home.run(&["up", "home", "--restart"]));
    assert!(
        restarted.contains("leave the rest in the journal") && restarted.contains("serve "),
        "{restarted}"
    );
    assert_ne!(home.status()["daemons"][0]["pid"], pid);

    let volume = &home.status()["daemons"][0]["volumes"][0];
    let uri = volume["uris"][0].as_str().expect("a URI").to_owned();
    if !first.status.success() {
        let written = nbdsh(&uri, "h.pwrite(b'x' * 1048576, 16 << 20)");
        assert!(written.status.success(), "{}", text(&written));
    }
    // The store need not be there for that.
    std::fs::rename(home.path("vol"), home.path("away")).expect("renamed");
    let kept = home.ok(&["down", "home", "--keep-dirty"]);
    std::fs::rename(home.path("away"), home.path("vol")).expect("renamed");
    match first.status.success() {
        true => assert!(kept.contains("is down"), "{kept}"),
        false => assert!(kept.contains("up to 1.0 MiB are in the journal of this host alone"), "{kept}"),
    }
    let down = home.ok(&["down", "home"]);
    assert!(down.contains("everything is in") && down.contains("safe to disconnect"), "{down}");
    let again = home.ok(&["down", "home", "--json"]);
    let again: serde_json::Value = serde_json::from_str(&again).expect("JSON");
    assert_eq!(again["safe_to_disconnect"], true);
    let info = home.ok(&["info", "./vol", "--key-file", key]);
    assert!(info.contains("none; the last was"), "{info}");
}

/// A service manager's daemon goes on in the place of one that `up` left; stopped by a signal it uploads nothing, and `down` all the same ends it
/// when everything is in the store, and the volume is released.
#[test]
fn a_service_goes_on_in_its_place() {
    let home = Home::new();
    let mount = home.path("mnt");
    let up = ["up", "home", "--on", "./vol", "--size", "64M", "--fs", "ext4", "--mount"];
    let daemon_args = ["--", "--journal-size", "32M", "--cache-size", "16M", "--max-dirty-age", "1h"];
    let _ends = EndsIt(&home);
    home.run(&[&up[..], &[mount.to_str().expect("UTF-8")], &daemon_args].concat()); // attached only where the kernel can
    let left = home.status()["daemons"][0]["pid"].clone();
    let service = || Daemon::start(home.command(&["up", "home", "--foreground"]));
    let first = service();
    let now = &home.status()["daemons"];
    assert_eq!(now.as_array().map(Vec::len), Some(1), "{now}");
    assert_ne!(now[0]["pid"], left);
    assert_eq!(now[0]["pid"], first.pid());
    home.ok(&["pause", "./vol"]);
    first.fill(7, 8 << 20, 1 << 20);
    let said = first.stop_unclean();
    assert!(said.contains("in the journal"), "{said}");

    let second = service();
    home.ok(&["resume", "./vol"]);
    home.ok(&["drain", "./vol"]);
    second.kill();
    let third = service();
    let down = home.ok(&["down", "home"]);
    assert!(down.contains("safe to disconnect"), "{down}");
    let ended = third.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(home.fails(2, &["up", "home", "--foreground", "--take-over"]).contains("cannot be used with"));
    assert!(home.fails(2, &["up", "other", "--foreground"]).contains("nothing is known of other"));
}

/// Where nothing is attached nobody is frozen, and nobody has to be let go.
#[test]
fn nobody_is_frozen_for_nothing() {
    let home = Home::new();
    assert!(home.ok(&["freeze"]).starts_with("0 control groups are frozen"));
    assert!(home.ok(&["thaw"]).contains("nobody was frozen"));
    std::fs::create_dir_all(home.path("state")).expect("made");
    std::fs::write(home.path("state/frozen.json"), "{").expect("written");
    assert!(home.fails(5, &["thaw"]).contains("frozen.json"));
}

/// Wrong names, nothing known and missing volumes are told, with what to do.
#[test]
fn what_cannot_be_brought_up() {
    let home = Home::new();
    assert!(home.fails(2, &["up", "../tank"]).contains("a letter, then"));
    assert!(home.fails(2, &["up", "tank"]).contains("--on URL"));
    assert!(home.fails(4, &["down", "tank"]).contains("nothing is known of tank"));
    let relative = ["up", "home", "--on", "./vol", "--fs", "xfs", "--mount", "mnt"];
    assert!(home.fails(2, &relative).contains("has to begin with /"));
    assert!(home.fails(2, &["up", "home", "--on", "./vol", "--fs", "xfs"]).contains("--mount DIR"));
    let missing = home.fails(4, &["up", "home", "--on", "./vol", "--fs", "xfs", "--mount", "/nowhere"]);
    assert!(missing.contains("no volume at"), "{missing}");
    // Nobody shares with everybody, and what cannot be shared is refused before anything is done.
    let share =
        |clients: &'static str| [&relative[..6], &["--mount", "/nowhere", "--share", clients]].concat();
    for everybody in ["*", "0.0.0.0/0", "10.0.0.0/24,"] {
        assert!(home.fails(2, &share(everybody)).contains("not everybody"), "{everybody}");
    }
    assert!(home.fails(2, &[&share("nas")[..], &["--no-share"]].concat()).contains("cannot be used with"));
    let shared = home.run(&share("10.0.0.0/24,nas=ro"));
    let said = text(&shared);
    assert!(said.contains("NFS server") || said.contains("no volume at"), "{said}");
    assert!(!home.path("vol").exists());
}
