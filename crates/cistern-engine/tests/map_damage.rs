//! Damaged, foreign and invented run objects: a lookup gives what was written or an error that
//! names run and offset, never anything else, and never panics.

mod map_support;

use std::sync::Arc;

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::MasterKey,
    env::Env,
    map::{Levels, Map, MapOptions},
    units::{Extent, Mapping, Seq},
};
use map_support::*;
use proptest::prelude::*;

const ALL: Extent = Extent::new(0, 10_000);

/// A map of two levels in a store: where it lives, its levels and what it holds.
struct Written {
    env: Env,
    io: Arc<MemoryRuns>,
    key: Option<Arc<MasterKey>>,
    levels: Levels,
    expected: Vec<Mapping>,
}

async fn write(options: MapOptions, encrypted: bool) -> Written {
    let env = plain_env();
    let key = encrypted.then(|| Arc::new(MasterKey::generate(&env)));
    let io = Arc::new(MemoryRuns::default());
    let map = open_map(&env, &io, key.clone(), options, Levels::new(), Seq(0));
    let below: Vec<_> = (0..600).map(|i| frame(i * 16, 1 + i % 16, 1 + i % 7, i as u32 * 5000)).collect();
    let above: Vec<_> = (0..100).map(|i| hole(i * 90, 1 + i % 5, 9)).collect();
    for (seq, batch) in [(8, below), (9, above)] {
        map.insert(&batch);
        map.freeze(Seq(seq));
        map.flush().await.unwrap();
    }
    let expected = map.lookup(ALL).await.unwrap();
    let levels = map.take_state().levels;
    assert_eq!(levels.len(), 2);
    Written { env, io, key, levels, expected }
}

impl Written {
    fn reopen(&self, key: Option<Arc<MasterKey>>) -> Arc<Map> {
        open_map(&self.env, &self.io, key, MapOptions::default(), self.levels.clone(), Seq(9))
    }

    /// Everything read anew, whole and by single blocks, and merged.
    async fn read(&self) -> Result<()> {
        let map = self.reopen(self.key.clone());
        for block in [0, 89, 5000, 9999] {
            let found = map.lookup(Extent::new(block, 1)).await?;
            let at = self.expected.partition_point(|m| m.extent.end() <= block);
            assert_eq!(found, vec![self.expected[at].slice(Extent::new(block, 1))]);
        }
        let found = map.lookup(ALL).await?;
        assert_eq!(found, self.expected);
        while map.merge_step().await? {}
        let found = map.lookup(ALL).await?;
        assert_eq!(by_block(&found), by_block(&self.expected));
        Ok(())
    }

    fn damage(&self, change: impl Fn(&mut Vec<u8>)) {
        let id = self.levels[1][0].id;
        let mut objects = self.io.objects.lock().unwrap();
        let mut body = objects[&id].to_vec();
        change(&mut body);
        objects.insert(id, Bytes::from(body));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn refused(outcome: Result<()>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(Error::Corrupt { what, detail }) => {
            assert!(what.starts_with("run ") && detail.contains("offset"), "{what}: {detail}");
            true
        }
        Err(Error::Version { .. }) => true,
        Err(other) => panic!("not an error about damage: {other}"),
    }
}

proptest! {
    /// One flipped bit anywhere is noticed by whoever reads it, or changes nothing.
    #[test]
    fn a_flipped_bit_is_noticed(at in any::<prop::sample::Index>(), bit in 0u8..8, encrypted in any::<bool>(), tiny in any::<bool>()) {
        block_on(async {
            let written = write(if tiny { tiny_runs() } else { MapOptions::default() }, encrypted).await;
            written.damage(|body| {
                let at = at.index(body.len());
                body[at] ^= 1 << bit;
            });
            assert!(refused(written.read().await));
        });
    }

    /// An object of arbitrary bytes, of any length, is refused.
    #[test]
    fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..4000), keep in 0usize..100) {
        block_on(async {
            let written = write(tiny_runs(), false).await;
            written.damage(|body| {
                let tail = body.split_off(body.len() - keep);
                *body = bytes.clone();
                body.extend_from_slice(&tail);
            });
            assert!(refused(written.read().await));
        });
    }
}

/// A run opens with its volume's key only.
#[tokio::test]
async fn another_key_does_not_open_a_run() {
    let written = write(MapOptions::default(), true).await;
    written.read().await.unwrap();
    let other = Arc::new(MasterKey::generate(&written.env));
    for key in [None, Some(other)] {
        let error = written.reopen(key).lookup(ALL).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}

/// One run's bytes under the name of another are refused, even within a volume.
#[tokio::test]
async fn a_swapped_run_is_refused() {
    let written = write(MapOptions::default(), false).await;
    let newer = written.io.objects.lock().unwrap()[&written.levels[0][0].id].clone();
    written.damage(|body| *body = newer.to_vec());
    assert!(refused(written.read().await));
}

/// With a key, nothing of what the same run holds in the clear is found in its bytes.
#[tokio::test]
async fn nothing_is_readable_without_the_key() {
    let id_bytes = |w: &Written| w.io.objects.lock().unwrap().values().cloned().collect::<Vec<_>>();
    let (clear, sealed) = (write(tiny_runs(), false).await, write(tiny_runs(), true).await);
    for body in id_bytes(&sealed) {
        let (body, mark) = body.split_at(body.len() - 8);
        assert_eq!(&mark[..7], b"cistern");
        for plain in id_bytes(&clear) {
            for part in plain[..plain.len() - 8].windows(8) {
                let telling = part.iter().any(|&b| b != part[0]);
                assert!(!telling || !body.windows(8).any(|w| w == part));
            }
        }
    }
}
