//! `rm`, `restore` and `ls --trash` of a real volume.

mod daemon;

use daemon::Home;

const MIB: u64 = 1 << 20;
const CREATE: [&str; 3] = ["./tank", "--create", "1G"];

/// A volume in the trash is opened by nothing and listed apart; restored, it has what it had. Nobody is asked, for
/// nothing is lost.
#[test]
fn what_is_removed_comes_back() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(7, 0, MIB);
    let served = home.fails(3, &["rm", "./tank"]);
    assert!(served.contains("is being served"), "{served}");
    daemon.stop();
    let said = home.ok(&["rm", "./tank", "--keep", "3d"]);
    assert!(said.contains("is in the trash") && said.contains("cistern restore"), "{said}");
    for (code, verb) in [
        (4, &["serve", "./tank"][..]),
        (4, &["serve", "./tank", "--read-only"]),
        (4, &["info", "./tank"]),
        (4, &["check", "./tank"]),
        (4, &["resize", "./tank", "2G"]),
        (11, &["create", "./tank", "--size", "1G"]),
        (11, &["serve", "./tank", "--create", "1G"]),
    ] {
        let refused = home.fails(code, verb);
        assert!(
            refused.contains("is in the trash") && refused.contains("cistern restore"),
            "{verb:?}: {refused}"
        );
    }
    assert!(!home.ok(&["ls", "."]).contains("tank"));
    let listed = home.ok(&["ls", ".", "--trash"]);
    assert!(listed.contains("3d") || listed.contains("3.0d"), "{listed}");
    home.ok(&["restore", "./tank"]);
    assert_eq!(home.ok(&["ls", ".", "--trash"]), "");
    assert!(home.ok(&["ls", "."]).contains("tank"));
    assert!(home.ok(&["restore", "./tank"]).contains("was not in the trash"));
    let daemon = home.start(&["./tank"]);
    daemon.assert_filled(7, 0, MIB);
    daemon.stop();
}

/// Only what is over is deleted by `--expired`, after asking; `--now` deletes from the trash at once.
#[test]
fn what_is_over_is_deleted_when_somebody_asks() {
    let home = Home::new();
    for name in ["./old", "./new", "./kept"] {
        home.ok(&["create", name, "--size", "1G"]);
    }
    home.ok(&["rm", "./old", "--keep", "1ms"]);
    home.ok(&["rm", "./new"]);
    let listed: serde_json::Value =
        serde_json::from_str(&home.ok(&["ls", ".", "--trash", "--json"])).expect("JSON");
    let names: Vec<_> = listed.as_array().expect("a list").iter().map(|line| line["name"].clone()).collect();
    assert_eq!(names, ["new", "old"]);
    assert_eq!(
        listed[0]["until_ms"].as_u64().unwrap() - listed[0]["removed_ms"].as_u64().unwrap(),
        86_400_000
    );
    assert_eq!(listed[0]["deleting"], false);
    let asked = home.fails(2, &["rm", "--expired", "."]);
    assert!(asked.contains("--yes") && asked.contains("old") && !asked.contains("new"), "{asked}");
    assert!(home.ok(&["rm", "--expired", ".", "--yes"]).contains("old"));
    assert!(!home.path("old").exists() && home.path("new").exists() && home.path("kept").exists());
    assert_eq!(home.ok(&["rm", "--expired", ".", "--yes"]), "");
    let asked = home.fails(2, &["rm", "./new", "--now"]);
    assert!(asked.contains("--yes"), "{asked}");
    home.ok(&["rm", "./new", "--now", "--yes"]);
    assert!(!home.path("new").exists());
    home.fails(4, &["restore", "./new"]);
    home.ok(&["info", "./kept"]);
}

/// What was asked for and cannot be meant is refused.
#[test]
fn impossible_removals() {
    let home = Home::new();
    home.ok(&["create", "./tank", "--size", "1G"]);
    for verb in [
        &["rm", "./tank", "--keep", "0"][..],
        &["rm", "./tank", "--keep", "1000000d"],
        &["rm", "./tank", "--keep", "soon"],
        &["rm", "./tank", "--keep", "1d", "--now"],
        &["rm", "./tank", "--expired", "--force"],
    ] {
        home.fails(2, verb);
    }
    home.ok(&["info", "./tank"]);
}

/// A damaged volume has no note about it: deleting it at once must be forced.
#[test]
fn a_damaged_volume_can_be_deleted() {
    let home = Home::new();
    home.ok(&["create", "./tank", "--size", "1G"]);
    std::fs::write(home.path("tank/volume.json"), "nonsense").expect("written");
    home.fails(5, &["rm", "./tank"]);
    home.fails(5, &["rm", "./tank", "--now", "--yes"]);
    home.ok(&["rm", "./tank", "--now", "--yes", "--force"]);
    assert!(!home.path("tank").exists());
}

/// `rm --now` asks, deletes everything, and forgets the journal.
#[test]
fn remove() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(1, 0, MIB);
    daemon.stop();
    let asked = home.fails(2, &["rm", "./tank", "--now"]);
    assert!(asked.contains("--yes") && home.path("tank").exists(), "{asked}");
    home.ok(&["rm", "./tank", "--now", "--yes"]);
    assert!(!home.path("tank").exists());
    home.fails(4, &["serve", "./tank"]);
    home.ok(&["create", "./tank", "--size", "1G"]);
}

/// A removal that was interrupted has deleted the identity first: nothing is created on what is left, and removing
/// again finishes it, after asking.
#[test]
fn remove_finishes_what_was_interrupted() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(1, 0, MIB);
    daemon.stop();
    std::fs::remove_file(home.path("tank/volume.json")).expect("removed");
    for verb in [&["create", "./tank", "--size", "1G"][..], &["serve", "./tank", "--create", "1G"]] {
        let refused = home.fails(11, verb);
        assert!(refused.contains("cistern rm"), "{verb:?}: {refused}");
    }
    home.fails(4, &["serve", "./tank"]);
    let asked = home.fails(2, &["rm", "./tank"]);
    assert!(asked.contains("--yes") && home.path("tank").exists(), "{asked}");
    home.ok(&["rm", "./tank", "--yes"]);
    assert!(!home.path("tank").exists());
    home.start(&CREATE).stop();
}

/// A volume whose writer crashed is not removed by mistake, neither into the trash nor for good.
#[test]
fn remove_refuses_a_claimed_volume() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(1, 0, MIB);
    daemon.kill();
    for verb in [&["rm", "./tank"][..], &["rm", "./tank", "--now", "--yes"]] {
        let refused = home.fails(3, verb);
        assert!(refused.contains("--force"), "{refused}");
    }
    home.ok(&["rm", "./tank", "--force"]);
    home.ok(&["restore", "./tank"]);
    let daemon = home.start(&["./tank"]);
    daemon.assert_filled(1, 0, MIB);
    daemon.kill();
    home.ok(&["rm", "./tank", "--now", "--yes", "--force"]);
    assert!(!home.path("tank").exists());
}

/// A clone whose original is not there (its file system is not mounted) is not deleted, neither at once nor when its time is over: the
/// original would never hear of it, and keep for ever what it keeps for the clone. When that is back, everything goes.
#[test]
fn a_clone_is_not_deleted_behind_its_originals_back() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(1, 0, MIB);
    home.ok(&["snapshot", "./tank@base"]);
    home.ok(&["clone", "./tank@base", "./twin"]);
    daemon.stop();
    std::fs::rename(home.path("tank"), home.path("elsewhere")).expect("moved");
    let refused = home.fails(4, &["rm", "./twin", "--now", "--yes"]);
    assert!(refused.contains("of which this is a clone") && refused.contains("--force"), "{refused}");
    home.ok(&["info", "./twin"]);
    home.ok(&["rm", "./twin", "--keep", "1ms"]);
    home.fails(4, &["rm", ".", "--expired", "--yes"]);
    std::fs::rename(home.path("elsewhere"), home.path("tank")).expect("moved back");
    home.ok(&["rm", ".", "--expired", "--yes"]);
    assert!(!home.path("twin").exists());
    home.ok(&["snapshot", "./tank@after"]); // who opens it takes the note
    home.ok(&["rm", "./tank", "--now", "--yes"]);
}

/// Who knows that the original does not come back deletes the clone all the same.
#[test]
fn a_clone_without_its_original_is_deleted_by_force() {
    let home = Home::new();
    home.ok(&["create", "./tank", "--size", "1G"]);
    home.ok(&["snapshot", "./tank@base"]);
    home.ok(&["clone", "./tank@base", "./twin"]);
    std::fs::remove_dir_all(home.path("tank")).expect("gone for good");
    home.fails(4, &["rm", "./twin", "--now", "--yes"]);
    home.ok(&["rm", "./twin", "--now", "--yes", "--force"]);
    assert!(!home.path("twin").exists());
}
