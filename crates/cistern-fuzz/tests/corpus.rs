//! Replays what fuzzing found worth keeping, and a little more around it.

use std::{fs, path::PathBuf};

use cistern_fuzz::TARGETS;

/// Changed inputs per kept input: a second of fuzzing in every test run.
const MUTATIONS: u64 = 2000;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("the corpus is readable").path())
        .collect();
    files.sort();
    files.iter().map(|file| fs::read(file).expect("the corpus is readable")).collect()
}

/// The next number of splitmix64 (Steele, Lea and Flood 2014): the same in every run.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A few bytes changed, cut, doubled or replaced by numbers that decoders get wrong.
fn mutate(input: &[u8], state: &mut u64) -> Vec<u8> {
    const EDGES: [u64; 6] = [0, 1, u32::MAX as u64, u64::MAX, 1 << 60, 1 << 31];
    let mut out = input.to_vec();
    for _ in 0..1 + draw(state) % 4 {
        let at = (draw(state) % (out.len() as u64 + 1)) as usize;
        match draw(state) % 5 {
            0 => out.truncate(at),
            1 => out.insert(at, draw(state) as u8),
            2 => out.extend_from_within(at..),
            3 => {
                let edge = EDGES[(draw(state) % 6) as usize].to_le_bytes();
                let end = (at + 8).min(out.len());
                out[at..end].copy_from_slice(&edge[..end - at]);
            }
            _ if at < out.len() => out[at] ^= 1 << (draw(state) % 8),
            _ => {}
        }
        out.truncate(1 << 16);
    }
    out
}

/// No kept input, and nothing close to one, makes a decoder panic.
#[test]
fn no_input_panics() {
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for (n, input) in inputs.iter().enumerate() {
            target(input);
            let mut state = n as u64;
            (0..MUTATIONS).for_each(|_| target(&mutate(input, &mut state)));
        }
    }
}

/// Every target of cargo-fuzz is in the list that is replayed, and the other way round.
#[test]
fn every_target_is_built() {
    let manifest = include_str!("../../../fuzz/Cargo.toml");
    let built: Vec<&str> =
        manifest.lines().filter_map(|l| l.strip_prefix("name = \"")?.strip_suffix('"')).collect();
    let mut listed: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    listed.insert(0, "fuzz"); // the package itself
    assert_eq!(built, listed);
}
