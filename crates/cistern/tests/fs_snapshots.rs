//! Filesystems in snapshots: taken in the middle of load, all at one instant, they come up as from a power cut.

use std::path::Path;

use anyhow::{Result, ensure};
use cistern_harness::{
    filesystem::Kind,
    fixture,
    fsyncs::{Promises, Writers},
    mount::{Access, BlockDevice, Mounted},
    scratch::Scratch,
    serve::Cistern,
    tool,
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];
const SECTOR_BYTES: u32 = 4096;
/// Snapshots, and files that are fsynced before each.
const SNAPSHOTS: usize = 3;
const FILES: usize = 40;

/// A filesystem under load, and what it had promised when each snapshot was made.
struct Busy {
    kind: Kind,
    scratch: Scratch,
    mounted: Mounted,
    writers: Writers,
    promises: Promises,
    at_snapshots: Vec<Promises>,
}

/// ext4, XFS and btrfs on three volumes of one daemon, written all the time, in snapshots of one instant: of each snapshot the journal is
/// replayed by mounting, every file that was fsynced before is there, and nothing else is to be repaired.
#[test]
fn filesystems_come_up_from_snapshots_under_load() -> Result<()> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/fsync_writer.py");
    let (scratch, cistern) = (Scratch::new("fssnap")?, Cistern::under_test(CISTERN));
    let store = scratch.dir("store")?;
    let urls = KINDS.map(|kind| store.join(kind.name()).display().to_string());
    for url in &urls {
        cistern.run(&["create", url, "--size", "1G"])?;
    }
    let server =
        cistern.serve(&scratch, &urls[0]).args(["--journal-size", "512M"]).args(&urls[1..]).start()?;
    let mut busy = Vec::new();
    for kind in KINDS {
        let scratch = Scratch::new(&format!("fssnap-{}", kind.name()))?;
        let device = BlockDevice::attach(&scratch, &server.uri_of(kind.name()), SECTOR_BYTES)?;
        kind.make(&device)?;
        let mounted = kind.mount(&scratch, device)?;
        let writers = Writers::start(&program, mounted.dir(), "load", 2)?;
        let (promises, at_snapshots) = (Promises::default(), Vec::new());
        busy.push(Busy { kind, scratch, mounted, writers, promises, at_snapshots });
    }
    for n in 0..SNAPSHOTS {
        for busy in &mut busy {
            busy.writers.await_files(
                FILES + fixture::random_bytes(1, n as u64)[0] as usize % FILES,
                &mut busy.promises,
            )?;
            busy.at_snapshots.push(busy.promises.clone());
        }
        let names: Vec<String> = urls.iter().map(|url| format!("{url}@s{n}")).collect();
        let mut arguments = vec!["snapshot"];
        arguments.extend(names.iter().map(String::as_str));
        server.ask(&arguments)?;
    }
    // Filesystems are told apart by their ids: no copy is mounted beside its original.
    for Busy { kind, scratch, mounted, writers, mut promises, at_snapshots } in busy {
        writers.finish(&mut promises);
        mounted.unmount()?.detach()?;
        for (n, promises) in at_snapshots.into_iter().enumerate() {
            let copy = scratch.file(&format!("copy-{n}")).display().to_string();
            tool::run("nbdcopy", [&server.uri_of(&format!("{}@s{n}", kind.name())), &copy])?;
            let mounted = kind
                .mount(&scratch, BlockDevice::of_file(Path::new(&copy), SECTOR_BYTES, Access::ReadWrite)?)?;
            promises.verify(mounted.dir())?;
            ensure!(promises.len() >= FILES * (n + 1), "only {} files were fsynced", promises.len());
            let device = mounted.unmount()?;
            kind.check(&device)?;
            device.detach()?;
        }
    }
    server.stop()
}
