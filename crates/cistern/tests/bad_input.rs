//! What the world does to a volume: damaged and mixed-up objects, foreign formats, disks that are full, read-only
//! or gone. Each gets a clear error, and nothing that was acknowledged is lost.
//!
//! Small filesystems are real ones (tmpfs), so the tests need root.

mod daemon;

use std::{
    fs,
    path::{Path, PathBuf},
};

use cistern_engine::log::identity::FORMAT;
use daemon::{Daemon, Home, SmallDisk};

const CREATE: [&str; 3] = ["./tank", "--create", "1G"];
const MIB: u64 = 1 << 20;

/// The files of a directory store below `dir`, by name.
fn objects(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable").path()).collect();
    found.sort();
    found
}

/// The directory of the only volume's journal.
fn state_of_volume(home: &Home) -> PathBuf {
    let mut all = objects(&home.path("state")).into_iter().filter(|path| path.join("journal").is_file());
    all.next().expect("there is one")
}

/// A volume with everything in the store that one can have, in `tank`.
fn filled(home: &Home) {
    for round in 0..2u8 {
        let daemon = home.start(&CREATE);
        for i in 0..4 {
            daemon.fill(round * 4 + i + 1, u64::from(i) * 4 * MIB, MIB);
        }
        daemon.stop();
    }
    home.ok(&["check", "./tank", "--data"]);
}

/// Whether the committed state names an object: what a merge or a later checkpoint replaced lies there still.
fn is_needed(home: &Home, object: &Path) -> bool {
    let away = object.with_extension("away");
    fs::rename(object, &away).expect("renamed");
    let missing = home.run(&["check", "./tank"]);
    fs::rename(&away, object).expect("renamed");
    !missing.status.success()
}

/// Puts `damage` in the place of an object's bytes, looks what `check` says, and puts them back.
fn complaint(home: &Home, object: &Path, damage: &[u8]) -> String {
    let sound = fs::read(object).expect("readable");
    assert_ne!(sound, damage, "{}", object.display());
    fs::write(object, damage).expect("writable");
    let complaint = home.run(&["check", "./tank", "--data"]);
    let text =
        String::from_utf8_lossy(&complaint.stderr).into_owned() + &String::from_utf8_lossy(&complaint.stdout);
    assert_eq!(complaint.status.code(), Some(5), "{}: {text}", object.display());
    fs::write(object, sound).expect("writable");
    text.replace('-', "") // ids are shown with hyphens, and are names without
}

/// An object of any kind that is cut, flipped, empty, or another one's is found and named, and once the right bytes
/// are back, all is well.
#[test]
fn every_kind_of_damaged_object_is_named() {
    let home = Home::new();
    filled(&home);
    let segments = objects(&home.own("tank").join("log"));
    let largest = segments.iter().max_by_key(|path| fs::metadata(path).expect("there").len()).expect("some");
    let checkpoint = objects(&home.own("tank").join("checkpoint")).pop().expect("there is one");
    let mut victims = vec![home.path("tank/volume.json"), checkpoint, largest.clone()];
    let before = victims.len();
    victims
        .extend(objects(&home.own("tank").join("map")).into_iter().filter(|object| is_needed(&home, object)));
    assert!(
        victims.len() >= before + 2,
        "at least a run and the usage of segments are named by the checkpoint"
    );
    for object in &victims {
        let name = object.file_name().expect("a file").to_string_lossy().replace('-', "");
        let bytes = fs::read(object).expect("readable");
        // Header and footer of a segment behind a checkpoint are needed by nobody: only its frames are read.
        let edges = if object == largest { None } else { Some([0, bytes.len() - 2]) };
        for at in edges.into_iter().flatten().chain([bytes.len() / 3, bytes.len() / 2]) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            let said = complaint(&home, object, &flipped);
            assert!(said.contains(&name), "byte {at} of {name}: {said}");
        }
        for cut in [0, 1, bytes.len() / 2].into_iter().chain(edges.map(|[_, last]| last)) {
            let said = complaint(&home, object, &bytes[..cut]);
            assert!(said.contains(&name), "{name} cut to {cut}: {said}");
        }
        let other = victims.iter().find(|other| *other != object).expect("there are four");
        complaint(&home, object, &fs::read(other).expect("readable"));
    }
    home.ok(&["check", "./tank", "--data"]);
}

/// An object of one volume is not taken for one of another, even where its name fits. In the log, and among the
/// checkpoints, it is stepped over, and `check` tells of it.
#[test]
fn objects_of_two_volumes_do_not_mix() {
    let (home, other) = (Home::new(), Home::new());
    filled(&home);
    filled(&other);
    let last = |home: &Home, kind: &str| objects(&home.own("tank").join(kind)).pop().expect("there is one");
    for kind in ["checkpoint", "log"] {
        let ours = last(&home, kind);
        let (sound, theirs) = (fs::read(&ours), fs::read(last(&other, kind)).expect("readable"));
        fs::write(&ours, theirs).expect("writable");
        let checked = home.run(&["check", "./tank", "--data"]);
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{kind}: {said}");
        let name = ours.file_name().expect("a file").to_string_lossy();
        assert!(said.contains("no damage") && said.contains(&*name), "{kind}: {said}");
        fs::write(&ours, sound.expect("readable")).expect("writable");
    }
    let maps = |home: &Home| objects(&home.own("tank").join("map"));
    let theirs = fs::read(&maps(&other)[0]).expect("readable");
    for object in maps(&home).iter().filter(|object| is_needed(&home, object)) {
        complaint(&home, object, &theirs);
    }
    // A whole volume under the identity of another: nothing of it opens.
    let identity = fs::read(other.path("tank/volume.json")).expect("readable");
    complaint(&home, &home.path("tank/volume.json"), &identity);
    home.start(&["./tank"]).stop();
}

/// A volume of a later version is refused by a text that says what to do, and is left as it is.
#[test]
fn a_newer_format_is_refused() {
    let home = Home::new();
    filled(&home);
    let identity = home.path("tank/volume.json");
    let text = fs::read_to_string(&identity).expect("readable");
    let newer = text.replace(&format!("\"format\": {FORMAT}"), "\"format\": 4000");
    assert_ne!(newer, text);
    fs::write(&identity, &newer).expect("writable");
    for verb in
        [&["serve", "./tank"][..], &["info", "./tank"], &["check", "./tank"], &["resize", "./tank", "2G"]]
    {
        let said = home.fails(5, verb);
        assert!(said.contains("use a newer cistern"), "{verb:?}: {said}");
    }
    assert_eq!(fs::read_to_string(&identity).expect("readable"), newer);
    fs::write(&identity, text).expect("writable");
    home.start(&["./tank"]).stop();
}

/// The journal of one volume in the directory of another is refused, not replayed and not overwritten.
#[test]
fn the_journal_of_another_volume_is_refused() {
    let (home, other) = (Home::new(), Home::new());
    filled(&home);
    let theirs = other.start(&CREATE);
    theirs.fill(9, 0, MIB);
    theirs.kill();
    let (ours, theirs) = (state_of_volume(&home).join("journal"), state_of_volume(&other).join("journal"));
    let (own, foreign) = (fs::read(&ours).expect("readable"), fs::read(&theirs).expect("readable"));
    fs::write(&ours, &foreign).expect("writable");
    let said = home.fails(5, &["serve", "./tank"]);
    assert!(said.contains("belongs to volume"), "{said}");
    assert!(fs::read(&ours).expect("readable") == foreign, "it is left as it was");
    fs::write(&ours, own).expect("writable");
    home.start(&["./tank"]).stop();
}

/// A journal that rots while nobody has it open: what has rotted is never returned, the volume stops where it would be uploaded, and what
/// lies before it can be exported.
#[test]
fn a_journal_that_rots_is_never_uploaded() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    home.ok(&["pause", "./tank"]);
    for n in 1..4 {
        daemon.fill(n, u64::from(n) * MIB, MIB);
    }
    daemon.stop_unclean();
    let path = state_of_volume(&home).join("journal");
    let mut journal = fs::read(&path).expect("readable");
    let rots =
        journal.chunks(4096).position(|block| block.iter().all(|&byte| byte == 2)).expect("it is there");
    journal[4096 * rots + 1234] ^= 1;
    fs::write(&path, journal).expect("writable");
    // What was staged last may be a sound copy still, of which the next start but one would make use.
    fs::remove_file(path.with_file_name("staging")).expect("it was there");

    let daemon = home.start(&["./tank"]);
    daemon.assert_filled(1, MIB, MIB);
    daemon.assert_filled(3, 3 * MIB, MIB);
    assert!(!daemon.try_nbdsh(&format!("h.pread({MIB}, {})", 2 * MIB)).status.success());
    home.ok(&["resume", "./tank"]);
    let said = home.fails(5, &["drain", "./tank"]);
    assert!(said.contains("not what was written") && said.contains("journal export"), "{said}");
    assert!(!daemon.try_nbdsh("h.pwrite(b'x' * 4096, 0); h.flush()").status.success(), "it has stopped");
    daemon.kill();
    let said = home.fails(5, &["serve", "./tank"]);
    assert!(said.contains("can be exported"), "{said}");
    let said = home.fails(5, &["journal", "export", "./tank", "--apply-to", "image"]);
    assert!(said.contains("what lies behind is lost"), "{said}");
    let image = fs::read(home.path("image")).expect("readable");
    assert!(image[MIB as usize..2 * MIB as usize].iter().all(|&byte| byte == 1));
}

/// A journal that does not fit the disk is refused before anything is claimed.
#[test]
fn a_journal_must_fit_its_disk() {
    let home = Home::new();
    let state = SmallDisk::mount(home.path("state"), "size=64m");
    let serve = ["serve", "./tank", "--create", "1G", "--journal-size", "128M"];
    let said = home.fails(9, &serve);
    assert!(said.contains("are free"), "{said}");
    let said = home.fails(2, &["serve", "./tank", "--create", "1G", "--journal-size", "1M"]);
    assert!(said.contains("journal-size"), "{said}");
    state.remount("ro");
    let said = home.fails(1, &serve);
    assert!(said.contains("Read-only"), "{said}");
    state.remount("rw,size=256m");
    home.start(&["./tank"]).stop();
}

/// A store with little space takes nothing more: writes go on into the journal, the status says why, and once there is
/// space everything is uploaded.
#[test]
fn a_store_that_fills_loses_nothing() {
    let home = Home::new();
    let store = SmallDisk::mount(home.path("store"), "size=24m");
    let daemon = home.start(&["./store/tank", "--create", "1G"]);
    for i in 0..48u8 {
        write_noise(&daemon, i, u64::from(i) * MIB);
    }
    let volume = loop {
        let volume = home.status()["daemons"][0]["volumes"][0].clone();
        if !volume["store_error"].is_null() {
            break volume;
        }
    };
    let error = volume["store_error"].as_str().unwrap_or_default();
    assert!(error.contains("nearly full"), "{error}");
    assert!(volume["dirty_bytes"].as_u64() > Some(20 * MIB), "{volume}");
    let said = home.fails(8, &["status", "--wait-clean", "--timeout", "1ms"]);
    assert!(said.contains("not clean") && said.contains("nearly full"), "{said}");
    store.remount("size=256m");
    home.ok(&["status", "--wait-clean", "--timeout", "2m"]);
    for i in 0..48u8 {
        assert_noise(&daemon, i, u64::from(i) * MIB);
    }
    daemon.stop();
    home.ok(&["check", "./store/tank", "--data"]);
}

/// A store that cannot be written serves readers, and tells writers.
#[test]
fn a_read_only_store_can_be_read() {
    let home = Home::new();
    let store = SmallDisk::mount(home.path("store"), "size=64m");
    let daemon = home.start(&["./store/tank", "--create", "1G"]);
    daemon.fill(7, 0, MIB);
    daemon.stop();
    store.remount("ro");
    for verb in [&["serve", "./store/tank"][..], &["create", "./store/other", "--size", "1G"]] {
        let said = home.fails(7, verb);
        assert!(said.to_lowercase().contains("read-only"), "{verb:?}: {said}");
    }
    let daemon = home.start(&["./store/tank", "--read-only"]);
    daemon.assert_filled(7, 0, MIB);
    daemon.stop();
    store.remount("rw");
    home.start(&["./store/tank"]).stop();
}

/// Without a usable cache directory a volume is served all the same, and says so.
#[test]
fn the_cache_may_fail_or_vanish() {
    let home = Home::new();
    filled(&home);
    let cache = SmallDisk::mount(home.path("cache2"), "size=8m");
    let mut serve = home.serve(&["./tank"]);
    serve.env("CACHE_DIRECTORY", home.path("cache2"));
    let daemon = Daemon::start(serve);
    daemon.assert_filled(5, 0, MIB);
    let farewell = daemon.stop();
    assert!(farewell.contains("serving without a chunk cache"), "{farewell}");
    cache.remount("ro");
    let mut serve = home.serve(&["./tank"]);
    serve.env("CACHE_DIRECTORY", home.path("cache2"));
    let daemon = Daemon::start(serve);
    daemon.assert_filled(6, 4 * MIB, MIB);
    daemon.stop();

    let daemon = home.start(&["./tank"]);
    daemon.assert_filled(5, 0, MIB);
    fs::remove_dir_all(home.path("cache")).expect("removed");
    daemon.assert_filled(8, 12 * MIB, MIB);
    daemon.fill(1, 0, MIB);
    daemon.assert_filled(1, 0, MIB);
    daemon.stop();
}

/// A state directory that is deleted under a daemon takes the journal with it: the next flush fails instead of
/// confirming what would be lost, and the volume stays stopped.
#[test]
fn a_deleted_state_directory_stops_the_volume() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(1, 0, MIB);
    home.ok(&["status", "--wait-clean"]);
    fs::remove_dir_all(state_of_volume(&home)).expect("removed");
    assert!(!daemon.try_nbdsh("h.pwrite(b'x' * 4096, 0); h.flush()").status.success());
    assert!(!daemon.try_nbdsh("h.pwrite(b'x' * 4096, 0)").status.success(), "it stays stopped");
    assert!(home.ok(&["status"]).contains("stopped"));
    daemon.signal(libc::SIGTERM);
    let ended = daemon.wait();
    assert!(ended.stderr.contains("was deleted"), "{}", ended.stderr);
    let daemon = home.start(&["./tank", "--take-over"]);
    daemon.assert_filled(1, 0, MIB);
    daemon.stop();
}

fn noise_script(seed: u8) -> String {
    format!("import random; data = random.Random({seed}).randbytes({MIB})")
}

fn write_noise(daemon: &Daemon, seed: u8, offset: u64) {
    daemon.nbdsh(&format!("{}; h.pwrite(data, {offset}); h.flush()", noise_script(seed)));
}

fn assert_noise(daemon: &Daemon, seed: u8, offset: u64) {
    daemon.nbdsh(&format!("{}; assert h.pread({MIB}, {offset}) == data", noise_script(seed)));
}
