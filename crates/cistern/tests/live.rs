//! Settings that change while a volume is served, and what stays of them.

mod daemon;

use std::{io::Write, os::unix::net::UnixStream};

use cistern::{config::ModeSetting, control::Request, live::Change};
use daemon::Home;

const CREATE: [&str; 3] = ["./tank", "--create", "1G"];
const MIB: u64 = 1 << 20;

fn volume(home: &Home) -> serde_json::Value {
    home.status()["daemons"][0]["volumes"][0].clone()
}

fn setting(home: &Home, name: &str) -> (String, String) {
    let volume = volume(home);
    let found = volume["settings"].as_array().expect("a list").iter().find(|s| s["name"] == name).cloned();
    let found = found.expect("a setting");
    let text = |key: &str| found[key].as_str().expect("a string").to_owned();
    (text("value"), text("from"))
}

/// A mode that was set holds at once and after a crash, whatever the command line says, and status
/// says who chose it.
#[test]
fn a_mode_that_was_set_stays() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(7, 0, MIB);
    assert_eq!(setting(&home, "mode"), ("writeback".into(), "default".into()));
    let told = home.ok(&["set", "./tank", "mode=writethrough", "upload-rate=100M"]);
    assert!(told.contains("mode=writethrough (cistern set)"), "{told}");
    assert_eq!(volume(&home)["dirty_bytes"], 0, "what was acknowledged before is in the store");
    daemon.fill(8, MIB, MIB);
    assert_eq!(volume(&home)["dirty_bytes"], 0, "and what was flushed since");
    daemon.kill();

    let daemon = home.start(&["./tank", "--mode", "writeback"]);
    assert_eq!(setting(&home, "mode"), ("writethrough".into(), "set".into()));
    assert_eq!(setting(&home, "upload-rate"), ("100 MiB/s".into(), "set".into()));
    home.ok(&["set", "./tank", "mode=default", "upload-rate=default"]);
    assert_eq!(setting(&home, "mode"), ("writeback".into(), "command-line".into()));
    assert!(daemon.stop().contains("mode=writethrough"), "the start said what was set");
}

/// A bound of space is set like any other setting: at once, and over a restart; what can be none is refused.
#[test]
fn a_bound_of_space_that_was_set_stays() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    assert_eq!(setting(&home, "space-bound"), ("auto".into(), "default".into()));
    let begins = volume(&home)["space"]["bound"].as_f64().expect("a number");
    assert!((begins - 1.3).abs() < 1e-6 && volume(&home)["space"]["bound_is_auto"] == true, "{begins}");
    home.ok(&["set", "./tank", "space-bound=none"]);
    assert_eq!(volume(&home)["space"]["bound"], serde_json::Value::Null);
    assert!(home.ok(&["set", "./tank", "space-bound=1.5"]).contains("space-bound=1.5 (cistern set)"));
    assert_eq!(volume(&home)["space"]["bound"], 1.5);
    assert_eq!(volume(&home)["space"]["bound_is_auto"], false);
    daemon.kill();
    let daemon = home.start(&["./tank", "--space-bound", "2"]);
    assert_eq!(setting(&home, "space-bound"), ("1.5".into(), "set".into()));
    assert_eq!(volume(&home)["space"]["bound"], 1.5);
    let refused = home.fails(2, &["set", "./tank", "space-bound=1"]);
    assert!(refused.contains("at least 1.05"), "{refused}");
    home.ok(&["set", "./tank", "space-bound=default"]);
    assert_eq!(volume(&home)["space"]["bound"], 2.0);
    daemon.stop();
}

/// Whoever asks for a change and hangs up leaves no half of it: what is kept for the next start is in
/// effect now.
#[test]
fn a_change_outlives_whoever_asked() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    let control = std::fs::read_dir(home.path("state/control")).expect("a directory");
    let socket = control.map(|entry| entry.expect("an entry").path());
    let socket = socket.filter(|path| path.extension().is_some_and(|e| e == "sock")).last().expect("one");
    let mut asking = UnixStream::connect(socket).expect("connected");
    let changes = vec![Change::Mode(Some(ModeSetting::Writethrough))];
    let request = Request::Set { volume: "tank".into(), changes };
    let (verb, body) = request.parts();
    let body = body.to_string();
    let head = format!("POST /api/v1/{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    asking.write_all((head + &body).as_bytes()).expect("sent");
    // It is kept, and whoever asked waits for the store: then he hangs up.
    while setting(&home, "mode").1 != "set" {}
    drop(asking);
    home.ok(&["set", "./tank", "upload-rate=100M"]);
    assert_eq!(setting(&home, "mode"), ("writethrough".into(), "set".into()));
    assert_eq!(volume(&home)["mode"], "writethrough");
    daemon.kill();
    let daemon = home.start(&["./tank"]);
    assert_eq!(setting(&home, "mode"), ("writethrough".into(), "set".into()));
    daemon.stop();
}

/// A pause holds the uploads over a stop and a restart; a drain and a switch to writethrough say why
/// they cannot be; resuming uploads.
#[test]
fn a_pause_survives_a_restart() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    assert!(home.ok(&["pause", "./tank"]).contains("paused"));
    daemon.fill(5, 0, 2 * MIB);
    assert!(home.ok(&["status"]).contains("tank: paused"));
    let refused = home.fails(2, &["set", "./tank", "mode=writethrough"]);
    assert!(refused.contains("cistern resume"), "{refused}");
    let refused = home.fails(2, &["drain", "./tank"]);
    assert!(refused.contains("paused"), "{refused}");
    let farewell = daemon.stop_unclean();
    assert!(farewell.contains("stay in the journal") && farewell.contains("paused"), "{farewell}");

    let daemon = home.start(&["./tank"]);
    daemon.assert_filled(5, 0, 2 * MIB);
    assert!(volume(&home)["paused_since_ms"].as_u64().is_some());
    home.ok(&["resume", "./tank"]);
    assert!(home.ok(&["drain", "./tank", "--timeout", "2m"]).contains("in the store"));
    assert_eq!(volume(&home)["dirty_bytes"], 0);
    let farewell = daemon.stop();
    assert!(farewell.contains("write-back is paused since"), "the start said so: {farewell}");
}

/// Without a daemon a change is kept for the next one. A damaged file stops the volume instead of
/// promising less.
#[test]
fn kept_settings_are_never_guessed() {
    let home = Home::new();
    home.start(&CREATE).stop();
    assert!(home.ok(&["set", "./tank", "mode=writethrough"]).contains("kept"));
    let refused = home.fails(2, &["pause", "./tank"]);
    assert!(refused.contains("cannot be paused") && refused.contains("mode=writeback"), "{refused}");
    let daemon = home.start(&["./tank"]);
    assert_eq!(setting(&home, "mode"), ("writethrough".into(), "set".into()));
    let id = volume(&home)["volume"].as_str().expect("an id").to_owned();
    daemon.stop();
    let file = home.path("state").join(id).join("settings");
    let text = std::fs::read_to_string(&file).expect("kept");
    std::fs::write(&file, text.replace("writethrough", "writeback")).expect("written");
    let refused = home.fails(5, &["serve", "./tank"]);
    assert!(refused.contains("checksum") && refused.contains("--mode"), "{refused}");
    std::fs::remove_file(&file).expect("removed");
    home.start(&["./tank"]).stop();
}

/// What status says of the controllers has the numbers of bcache's writeback_rate_debug.
#[test]
fn status_shows_the_controllers() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(5, 0, MIB);
    let told = home.ok(&["status", "--writeback"]);
    for name in ["rate", "dirty", "target", "proportional", "integral", "change", "next"] {
        assert!(told.contains(&format!("  {name} ")), "{name}: {told}");
    }
    let shown = volume(&home)["write_back"].clone();
    assert!(shown["target_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{shown}");
    assert_eq!(shown["throttle"]["rate_bytes_per_s"], serde_json::Value::Null);
    daemon.stop();
}

/// A store that is away shows at once: since when, what it said, and how much can still be written. The log
/// says once that it is away, and what goes on, and once for how long it was.
#[test]
fn a_store_away_shows() {
    let home = Home::new();
    let mut daemon = home.start(&CREATE);
    daemon.fill(5, 0, MIB);
    std::fs::rename(home.path("tank"), home.path("away")).expect("renamed");
    let said = home.fails(8, &["drain", "./tank", "--timeout", "5s"]);
    assert!(
        said.contains("It is tried again") && said.contains("not in the store yet; the store of tank: "),
        "{said}"
    );
    let told = home.ok(&["status"]);
    assert!(told.contains("store away") && told.contains("room for more writes"), "{told}");
    let said = daemon.wait_to_say("does not answer");
    assert!(said.contains(home.path("tank").to_str().expect("UTF-8")), "{said}");
    assert!(said.contains("writes and flushes go on") && said.contains("room for"), "{said}");
    daemon.fill(6, MIB, MIB);
    std::fs::rename(home.path("away"), home.path("tank")).expect("renamed");
    home.ok(&["drain", "./tank"]);
    assert!(!home.ok(&["status"]).contains("store away"));
    assert!(daemon.wait_to_say("answers again").contains("away="));
    let said = daemon.stop();
    assert!(!said.contains("does not answer") && !said.contains("answers again"), "{said}");
}
