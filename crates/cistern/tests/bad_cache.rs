//! What the world does to the chunk cache: files that are cut, overwritten, exchanged or in the way. A volume
//! is served all the same, with the right bytes, and a cache that is sound is used again.
//!
//! Small filesystems are real ones (tmpfs), so the tests need root.

mod daemon;

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use daemon::{Daemon, Home, SmallDisk};

const CREATE: [&str; 3] = ["./tank", "--create", "1G"];
const MIB: u64 = 1 << 20;
/// MiB of data, each with its own byte. More than one segment.
const FILLED: u8 = 18;

fn filled(home: &Home) {
    let daemon = home.start(&CREATE);
    (0..FILLED).for_each(|i| daemon.fill(i + 1, u64::from(i) * MIB, MIB));
    home.ok(&["status", "--wait-clean"]);
    daemon.stop();
}

fn all_is_right(daemon: &Daemon) {
    (0..FILLED).for_each(|i| daemon.assert_filled(i + 1, u64::from(i) * MIB, MIB));
}

fn cache_file(home: &Home, name: &str) -> PathBuf {
    home.path("cache").join("chunks").join(name)
}

/// What the daemon of a cache directory says in its life. All data is right meanwhile.
fn life_with(home: &Home, during: impl FnOnce()) -> String {
    let daemon = home.start(&["./tank"]);
    all_is_right(&daemon);
    during();
    all_is_right(&daemon);
    daemon.stop()
}

/// A cache is used again after a stop and after a kill, and without errors.
#[test]
fn a_cache_survives_its_daemon() {
    let home = Home::new();
    filled(&home);
    life_with(&home, || ());
    for round in 0..2 {
        let daemon = home.start(&["./tank"]);
        all_is_right(&daemon);
        if round == 0 {
            daemon.signal(libc::SIGKILL);
            daemon.wait();
            continue;
        }
        let said = daemon.stop();
        assert!(said.contains("usable again"), "{said}");
        assert!(!said.contains("failed"), "{said}");
    }
}

/// Files of the cache that were cut, overwritten or deleted between two lives, or are directories now.
#[test]
fn whatever_lies_in_the_cache_directory_is_survived() {
    let home = Home::new();
    filled(&home);
    let index = cache_file(&home, "chunks.index");
    let slab = cache_file(&home, "chunks");
    let noise = |path: &PathBuf| {
        let file = OpenOptions::new().write(true).open(path).expect("there");
        let bytes = vec![0x5a; MIB as usize];
        (0..4).for_each(|i| file.write_all_at(&bytes, i * 3 * MIB).expect("written"));
    };
    let cut = |path: &PathBuf| {
        OpenOptions::new().write(true).open(path).expect("there").set_len(4096 * 3).expect("cut");
    };
    let damages: [(&str, &dyn Fn()); 6] = [
        ("noise in the slab", &|| noise(&slab)),
        ("noise in the index", &|| fs::write(&index, vec![0x5a; 9000]).expect("written")),
        ("a slab that is cut", &|| cut(&slab)),
        ("an index that is cut", &|| cut(&index)),
        ("no slab", &|| fs::remove_file(&slab).expect("removed")),
        ("no index", &|| fs::remove_file(&index).expect("removed")),
    ];
    life_with(&home, || ());
    for (name, damage) in damages {
        damage();
        let said = life_with(&home, || ());
        assert!(!said.contains("ERROR"), "{name}: {said}");
    }
    fs::remove_file(&index).expect("removed");
    fs::create_dir(&index).expect("made");
    let said = life_with(&home, || ());
    assert!(said.contains("serving without a chunk cache"), "{said}");
    fs::remove_dir_all(home.path("cache")).expect("removed");
    fs::write(home.path("cache"), "in the way").expect("written");
    let said = life_with(&home, || ());
    assert!(said.contains("serving without a chunk cache"), "{said}");
}

/// A slab that is cut off under a running daemon turns reads into misses, and then switches the cache off with
/// one error that says what to do.
#[test]
fn a_slab_that_is_cut_under_the_daemon_is_left_alone() {
    let home = Home::new();
    filled(&home);
    life_with(&home, || ());
    let slab = cache_file(&home, "chunks");
    let said = life_with(&home, || {
        OpenOptions::new().write(true).open(&slab).expect("there").set_len(0).expect("cut");
    });
    let off = said.matches("switched off").count();
    assert!(off <= 1 && said.contains("the chunk cache"), "{said}");
}

/// A directory on a full disk, and on one that becomes read-only between two lives.
#[test]
fn a_cache_disk_that_is_full_or_read_only_is_done_without() {
    let home = Home::new();
    filled(&home);
    let disk = home.path("cache");
    let _ = fs::remove_dir_all(&disk);
    let small = SmallDisk::mount(disk.clone(), "size=8m");
    fs::write(disk.join("ballast"), vec![1; 7 << 20]).expect("written");
    let full = life_with(&home, || ());
    small.remount("ro");
    let read_only = life_with(&home, || ());
    drop(small);
    for said in [full, read_only] {
        assert!(said.contains("serving without a chunk cache"), "{said}");
    }
}
