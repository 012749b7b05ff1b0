//! What the tests of formats share: an environment without chance, fixed identities, and the
//! comparison with the files in this directory.
#![allow(dead_code)] // each test file uses its part

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use cistern_engine::{
    Error, Result,
    codec::MasterKey,
    env::{BoxFuture, Env, Environment},
    segment::{Entry, EntryHead, JournalRange, Slot, Tail, read_tail},
    units::{Chain, Epoch, JournalId, JournalPos, Mark, Salt, SealNonce, Seq, VolumeId},
};
use uuid::Uuid;

/// Randomness that is the same in every run. Formats need nothing else of an environment.
struct FixedEnv(Mutex<u64>);

impl Environment for FixedEnv {
    fn now(&self) -> Duration {
        unreachable!("formats do not read the clock")
    }
    fn wall_ms(&self) -> u64 {
        unreachable!("formats do not read the clock")
    }
    fn random(&self, out: &mut [u8]) {
        let mut state = self.0.lock().unwrap();
        out.copy_from_slice(&noise(&mut state, out.len()));
    }
    fn sleep(&self, _: Duration) -> BoxFuture<()> {
        unreachable!("formats do not wait")
    }
    fn spawn(&self, _: &'static str, _: BoxFuture<()>) {
        unreachable!("formats have no tasks")
    }
    fn dedicated(&self, _: &'static str, _: BoxFuture<()>) {
        unreachable!("formats have no tasks")
    }
    fn blocking(&self, _: BoxFuture<()>) {
        unreachable!("formats have no tasks")
    }
    fn compute(&self, _: Box<dyn FnOnce() + Send + 'static>) {
        unreachable!("formats have no tasks")
    }
}

/// So many cases of a property. A failure prints its input; nothing is written beside the source.
pub fn cases(count: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        failure_persistence: None,
        ..proptest::test_runner::Config::with_cases(count)
    }
}

/// An environment whose random bytes follow from `seed`.
pub fn env(seed: u64) -> Env {
    Env::new(Arc::new(FixedEnv(Mutex::new(seed))))
}

/// A key that follows from `seed`.
pub fn key(seed: u64) -> MasterKey {
    MasterKey::generate(&env(seed))
}

pub fn volume(number: u128) -> VolumeId {
    VolumeId(Uuid::from_u128(0xc157_e400_0000_4000_8000_0000_0000_0000 + number))
}

pub fn journal() -> JournalId {
    JournalId(Uuid::from_u128(0x1047_4a1b_5c6d_4e7f_8091_a2b3_c4d5_e6f7))
}

pub fn salt(byte: u8) -> Salt {
    Salt([byte; 16])
}

/// Bytes that do not compress: splitmix64.
pub fn noise(state: &mut u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    out.truncate(len);
    out
}

pub fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// The golden file `name`. With `CISTERN_GOLDEN=new` a missing one is made of `fresh`; an existing
/// one is never changed: it stands for objects in users' stores.
pub fn stored(name: &str, fresh: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if !path.exists() && std::env::var("CISTERN_GOLDEN").is_ok_and(|v| v == "new") {
        std::fs::write(&path, fresh).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e} (CISTERN_GOLDEN=new makes it)", path.display()))
}

/// The place in the log that the tests' objects are made for.
pub fn slot(of: u128, seq: u64) -> Slot {
    let nonce = SealNonce(*b"a nonce!");
    let checkpoint = Some((Epoch(2), Seq(4)));
    Slot { volume: volume(of), epoch: Epoch(3), seq: Seq(seq), salt: salt(0x5a), nonce, checkpoint }
}

pub fn mark(pos: u64) -> Mark {
    Mark { pos: JournalPos(pos), chain: Chain(pos << 32 | 0x33) }
}

pub fn range() -> JournalRange {
    JournalRange { journal: journal(), from: mark(0x1111_2222), to: mark(0x1111_2299) }
}

/// What a log object holds, all of its bytes being given.
pub fn whole(key: Option<&MasterKey>, slot: &Slot, object: &[u8]) -> Result<(EntryHead, Entry)> {
    match read_tail(key, slot.volume, slot.seq, object.len() as u64, object)? {
        Tail::Whole(head, entry) => Ok((head, entry)),
        Tail::NeedMore { from } => panic!("the whole object was given, {from} is wanted"),
        Tail::Foreign(theirs) => panic!("it is of volume {theirs}"),
    }
}

/// The text of an error that must be one of corruption.
pub fn corrupt<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(error @ Error::Corrupt { .. }) => error.to_string(),
        other => panic!("not found corrupt: {other:?}"),
    }
}
