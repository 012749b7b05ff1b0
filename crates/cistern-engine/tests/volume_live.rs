//! A volume whose store answers or does not, and whose settings change while it is open.

#[path = "store_support/own_time.rs"]
mod own_time;
mod volume_support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::KeySource,
    env::{Env, real::RealEnv},
    store::{MemoryStore, Store, StoreResult},
    volume::{ClientId, LiveSettings, Mode, OpenOptions, Volume},
};
use futures_util::future::poll_immediate;
use own_time::env_to_stop;
use tokio::sync::watch;
use volume_support::{
    Host, MIB, close, noise,
    passing::{Passing, Through},
    read,
};

/// A store in memory behind a gate: while it is closed, requests hang for ever.
struct Gated {
    inner: MemoryStore,
    open: watch::Sender<bool>,
}

impl Gated {
    fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

#[async_trait]
impl Passing for Gated {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        Ok(())
    }
}

/// A host whose store has a gate.
async fn gated_host() -> (Host, Arc<Through<Gated>>) {
    gated_host_of(RealEnv::start()).await
}

async fn gated_host_of(env: Env) -> (Host, Arc<Through<Gated>>) {
    let store = Through::new(Gated { inner: MemoryStore::new(), open: watch::Sender::new(true) });
    let host = Host::with_volume(env, store.clone(), 1 << 30, KeySource::None).await;
    (host, store)
}

fn data(len: u64) -> Bytes {
    Bytes::from(vec![7; len as usize])
}

fn mode(mode: Mode) -> LiveSettings {
    LiveSettings { mode: Some(mode), ..LiveSettings::default() }
}

fn paused(paused: bool) -> LiveSettings {
    LiveSettings { paused: Some(paused), ..LiveSettings::default() }
}

/// The store hangs for ever. Flushes, and writes with FUA, are answered all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_store_delays_no_flush() {
    let (host, store) = gated_host().await;
    let volume = host.open().await;
    store.set_open(false);
    for n in 0..32 {
        volume.write(n * MIB, data(MIB), n % 2 == 0).await.expect("written");
        volume.flush().await.expect("flushed");
    }
    let status = volume.status();
    assert_eq!((status.durable, status.committed), (status.acknowledged, 0));
}

/// The store hangs and the journal is filling: a flood of writes waits for its turn, and flushes
/// pass by it. The turns come with time, so it stands still until that was seen. How many writes get a turn before that depends on how busy the machine was: as many
/// follow as it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_passes_writes_that_wait() {
    let (env, clock) = env_to_stop();
    let (host, store) = gated_host_of(env).await;
    let volume = host.open().await;
    store.set_open(false);
    clock.stop();
    let waiting = || volume.status().write_back.expect("a writer").throttle.waiting;
    let (mut flood, answered) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
    while waiting() < 100 {
        let under_way = flood.len() - answered.load(Ordering::Relaxed);
        if under_way <= waiting() as usize + 8 {
            let (volume, answered, n) = (volume.clone(), answered.clone(), flood.len() as u64);
            flood.push(host.env.spawn("write", async move {
                let written = volume.write_as(ClientId(n % 4), n % 240 * MIB, data(MIB), false).await;
                answered.fetch_add(1, Ordering::Relaxed);
                written
            }));
        }
        tokio::task::yield_now().await;
    }
    for _ in 0..10 {
        volume.flush().await.expect("flushed");
        assert!(waiting() > 0, "writes still wait");
    }
    clock.go_on();
    store.set_open(true);
    for write in flood {
        write.await.expect("no panic").expect("written in the end");
    }
}

/// From the switch to writethrough on a flush means the store, and `drain` tells when all that was
/// acknowledged before is there too.
#[tokio::test(flavor = "multi_thread")]
async fn writethrough_from_now_on() {
    let (host, store) = gated_host().await;
    let volume = host.open().await;
    store.set_open(false);
    volume.write(0, data(MIB), false).await.expect("written");
    volume.flush().await.expect("flushed, here");
    volume.set(mode(Mode::Writethrough)).expect("set");
    let flush = host.env.spawn("flush", {
        let volume = volume.clone();
        async move { volume.flush().await.map(|()| volume.status()) }
    });
    store.set_open(true);
    let status = flush.await.expect("no panic").expect("flushed");
    assert_eq!(status.committed, status.acknowledged);
    volume.write(MIB, data(MIB), true).await.expect("written through");
    let status = volume.status();
    assert_eq!((status.committed, status.mode), (status.acknowledged, Mode::Writethrough));
}

/// What counts is the mode at the moment of the reply: a flush that waits for a dead store is
/// answered once the user settles for the local disk.
#[tokio::test(flavor = "multi_thread")]
async fn back_to_writeback_lets_waiting_flushes_go() {
    let (host, store) = gated_host().await;
    let volume =
        Volume::open(OpenOptions { mode: Mode::Writethrough, ..host.options() }).await.expect("opened");
    store.set_open(false);
    volume.write(0, data(MIB), false).await.expect("written");
    let flush = host.env.spawn("flush", {
        let volume = volume.clone();
        async move { volume.flush().await }
    });
    while volume.status().durable < volume.status().acknowledged {
        tokio::task::yield_now().await;
    }
    volume.set(mode(Mode::Writeback)).expect("set");
    flush.await.expect("no panic").expect("flushed, here");
    assert_eq!(volume.status().committed, 0);
}

/// Paused, nothing is uploaded: a drain says so, a stop leaves everything in the journal, and the
/// next opening uploads it once it is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_everything_here() {
    let (host, _) = gated_host().await;
    let volume = host.open().await;
    volume.set(paused(true)).expect("paused");
    for n in 0..20 {
        volume.write(n * MIB, data(MIB), false).await.expect("written");
    }
    volume.flush().await.expect("flushed");
    let refused = volume.drain().await.expect_err("a drain would never end");
    assert!(refused.to_string().contains("paused"), "{refused}");
    let report = volume.close(Duration::from_secs(3600)).await;
    assert!(!report.clean && report.journal_bytes_left >= 20 * MIB, "{report:?}");
    assert!(report.reason.expect("a reason").contains("paused"));

    let volume = Volume::open(OpenOptions { paused: true, ..host.options() }).await.expect("opened");
    assert!(volume.status().write_back.expect("a writer").paused);
    let draining = host.env.spawn("draining", {
        let volume = volume.clone();
        async move {
            volume.set(paused(false)).expect("resumed");
            volume.drain().await
        }
    });
    draining.await.expect("no panic").expect("drained");
    close(volume).await;
}

/// What is dirty is one number, whoever shows it, while writes and commits go on; and when a drain returns, all of it is gone
/// for everybody.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_dirty_is_booked_once() {
    let (host, _) = gated_host().await;
    let volume = host.open().await;
    let agrees = || {
        let status = volume.status();
        let dirty = (status.acknowledged - status.committed) * 4096;
        let shown = status.write_back.expect("of a writer").dirty_bytes;
        assert_eq!([status.dirty_bytes, status.journal_used_bytes, shown], [dirty; 3]);
        status
    };
    for lap in 0..20 {
        for n in 0..8 {
            volume.write(n * MIB, data(MIB), false).await.expect("a write");
            agrees();
        }
        volume.write(512 * lap, data(512), true).await.expect("sectors");
        volume.trim(lap * MIB / 4, MIB, false).await.expect("a trim");
        agrees();
        if lap % 4 == 3 {
            volume.drain().await.expect("a drain");
            let status = agrees();
            assert_eq!((status.dirty_bytes, status.uploads_in_flight, status.dirty_age_ms), (0, 0, 0));
        }
    }
    close(volume).await;
}

/// A pause in writethrough would hang every flush: it is refused, from either side.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_and_writethrough_exclude_each_other() {
    let (host, _) = gated_host().await;
    let volume = host.open().await;
    let both = LiveSettings { mode: Some(Mode::Writethrough), paused: Some(true), ..LiveSettings::default() };
    assert!(matches!(volume.set(both), Err(Error::PausedWritethrough)));
    volume.set(paused(true)).expect("paused");
    assert!(matches!(volume.set(mode(Mode::Writethrough)), Err(Error::PausedWritethrough)));
    assert_eq!(volume.status().mode, Mode::Writeback);
    drop(volume);
    let options = OpenOptions { mode: Mode::Writethrough, paused: true, ..host.options() };
    assert!(matches!(Volume::open(options).await.err(), Some(Error::PausedWritethrough)));
}

/// What is written enters the chunk cache by being committed, but not in writearound: then only
/// the map does.
#[tokio::test(flavor = "multi_thread")]
async fn writearound_keeps_writes_out_of_the_cache() {
    for (mode, enters) in [(Mode::Writeback, true), (Mode::Writearound, false)] {
        let (host, _) = gated_host().await;
        let cache = host.cache("cache").await;
        let options = OpenOptions { mode, cache: Some(cache.clone()), ..host.options() };
        let volume = Volume::open(options).await.expect("opened");
        volume.write(0, noise(1, MIB as usize), false).await.expect("written");
        volume.drain().await.expect("drained");
        close(volume).await;
        cache.close().await;
        assert_eq!(cache.stats().fill_written_bytes >= MIB, enters, "{mode:?}");
    }
}

/// A host whose gated store holds a volume of 16 MiB and one sector, of which the first block is written.
async fn host_with_an_odd_end() -> (Host, Arc<Through<Gated>>) {
    let (host, store) = gated_host().await;
    let volume = host.open().await;
    volume.resize(ODD_END, true).await.expect("shrunk");
    volume.write(0, noise(1, 4096), false).await.expect("written");
    close(volume).await;
    (host, store)
}

const ODD_END: u64 = 16 * MIB + 512;

/// Zeroes up to the end of a volume wait for another write. Meanwhile the volume grows inside its last block, and
/// somebody writes there: that stays.
#[tokio::test(flavor = "multi_thread")]
async fn zeroes_to_the_end_spare_what_grows_behind_it() {
    let (host, store) = host_with_an_odd_end().await;
    let volume = host.open().await;
    store.set_open(false);
    // Bytes that are no sectors: waits for the store, and everybody else for the block.
    let mut odd = Box::pin(volume.write(1, noise(2, 3), false));
    assert!(poll_immediate(&mut odd).await.is_none());
    let mut zeroes = Box::pin(volume.zero(0, ODD_END, false, false));
    assert!(poll_immediate(&mut zeroes).await.is_none());
    volume.resize(ODD_END + 512, false).await.expect("grown");
    volume.write(ODD_END, noise(3, 512), true).await.expect("written");
    store.set_open(true);
    odd.await.expect("written");
    zeroes.await.expect("zeroed");
    assert!(read(&volume, ODD_END, 512).await == noise(3, 512));
    assert!(read(&volume, ODD_END - 512, 512).await == [0; 512]);
    close(volume).await;
}

/// Whoever shrinks a volume looks whether there is data behind the new end, and that takes long. What is
/// acknowledged meanwhile is not dropped: it is there, or the shrink is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_shrink_drops_nothing_that_comes_while_it_looks() {
    let (host, store) = host_with_an_odd_end().await;
    let volume = host.open().await;
    store.set_open(false);
    let mut shrink = Box::pin(volume.resize(8 * MIB, false));
    assert!(poll_immediate(&mut shrink).await.is_none());
    let mut write = Box::pin(volume.write(12 * MIB, noise(2, 4096), false));
    let acknowledged = poll_immediate(&mut write).await;
    store.set_open(true);
    let shrunk = shrink.await;
    let written = match acknowledged {
        Some(written) => written,
        None => (&mut write).await,
    };
    drop(write);
    assert!(shrunk.is_err() || written.is_err(), "shrunk {shrunk:?}, written {written:?}");
    close(volume).await;
}
