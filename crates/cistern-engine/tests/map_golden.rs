//! Golden runs: bytes written by the first release of a format version stay readable for ever,
//! and this release still writes the same bytes.
//!
//! `cargo test -p cistern-engine --test map_golden -- --ignored` writes them anew, which is right
//! only together with a new format version.

mod map_support;

use std::{fs, path::PathBuf, sync::Arc};

use cistern_engine::{
    codec::MasterKey,
    map::{Levels, MapOptions, RunShape},
    units::{Extent, FrameRef, Mapping, Place, Seq},
};
use map_support::*;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Some of everything: frames of equal and different lengths, cut frames, moved frames, holes,
/// zeroes, the first and the last block.
fn mappings() -> Vec<Mapping> {
    let place = |seq, offset, stored, index| Place::Frame(FrameRef { seq: Seq(seq), offset, stored, index });
    let mapping =
        |start, len, birth, place| Mapping { extent: Extent::new(start, len), birth: Seq(birth), place };
    let mut out: Vec<_> =
        (0..200).map(|i| mapping(i * 37, 1, 3, place(3, 64 + 4120 * i as u32, 4120, 0))).collect();
    out.extend(
        (0..40)
            .map(|i| mapping(8000 + i * 16, 16, 4, place(4, 64 + i as u32 * 50_000, 40_000 + i as u32, 0))),
    );
    out.push(mapping(10_000, 3, 2, place(5, 1 << 24, 777, 13)));
    out.push(mapping(10_003, 1, 5, Place::Zero));
    out.push(mapping(10_004, 1 << 40, 1, Place::Hole));
    out.push(mapping((1 << 48) - 1, 1, 5, place(5, 0, 1, 15)));
    out
}

fn options() -> MapOptions {
    let shape = RunShape { chunk_mappings: 50, block_bytes: 400, section_blocks: 2, run_bytes: 64 << 10 };
    MapOptions { shape, ..MapOptions::default() }
}

/// The run of `mappings`, its entry in a checkpoint, and the key.
async fn write(encrypted: bool) -> (Vec<u8>, Levels, Option<Arc<MasterKey>>) {
    let env = plain_env();
    let key = encrypted.then(|| Arc::new(MasterKey::generate(&env)));
    let io = Arc::new(MemoryRuns::default());
    let map = open_map(&env, &io, key.clone(), options(), Levels::new(), Seq(0));
    map.insert(&mappings());
    map.freeze(Seq(5));
    map.flush().await.unwrap();
    let levels = map.take_state().levels;
    let body = io.objects.lock().unwrap()[&levels[0][0].id].to_vec();
    (body, levels, key)
}

const RUNS: [(&str, bool); 2] = [("map-run-v2", false), ("map-run-v2-sealed", true)];

/// Format version 2, with and without a key.
#[tokio::test]
async fn version_2() {
    for (name, encrypted) in RUNS {
        let (body, levels, key) = write(encrypted).await;
        let golden = fs::read(path(&format!("{name}.bin"))).unwrap();
        let entry = fs::read(path(&format!("{name}.json"))).unwrap();
        assert!(body == golden, "{name}: the bytes have changed");
        assert_eq!(serde_json::from_slice::<Levels>(&entry).unwrap(), levels);
        let io = Arc::new(MemoryRuns::default());
        io.objects.lock().unwrap().insert(levels[0][0].id, golden.into());
        let map = open_map(&plain_env(), &io, key, MapOptions::default(), levels, Seq(5));
        for m in mappings() {
            assert_eq!(map.lookup(m.extent).await.unwrap(), vec![m]);
        }
    }
}

/// Writes the golden files.
#[tokio::test]
#[ignore = "only for a new format version"]
async fn write_golden_files() {
    for (name, encrypted) in RUNS {
        let (body, levels, _) = write(encrypted).await;
        fs::write(path(&format!("{name}.bin")), body).unwrap();
        fs::write(path(&format!("{name}.json")), serde_json::to_vec_pretty(&levels).unwrap()).unwrap();
    }
}
