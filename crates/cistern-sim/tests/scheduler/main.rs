//! The scheduler over a store behind a link, in simulated time: what is promised of reads,
//! rates, outages and slots.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use cistern_engine::{
    env::Env,
    store::{Priority, Rates, Scheduler, SharedStore, StoreError, Stores},
};
use cistern_sim::{env::SimEnv, runtime::Sim};
use futures_util::future::join_all;

mod far;

use far::Far;

const MIB: usize = 1 << 20;
const ROUND_TRIP: Duration = Duration::from_millis(20);
const LINK_BYTES_PER_S: u64 = 30_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells the script a few times, each time with another order of what happens at the same moment.
fn simulate<F: Future<Output = ()> + Send + 'static>(script: impl Fn(Env) -> F) {
    for seed in 0..4 {
        let sim = Sim::new(seed, false);
        let env = SimEnv::of(&sim, sim.incarnate());
        let outcome = sim.run(script(env));
        assert_eq!(outcome.failure, None, "seed {seed}");
    }
}

struct World {
    env: Env,
    far: Arc<Far>,
    scheduler: Arc<Scheduler>,
    stores: Stores,
}

impl World {
    async fn new(env: Env, bytes_per_s: u64) -> World {
        let far = Far::new(&env, "s3://bucket/tank", ROUND_TRIP, bytes_per_s);
        let scheduler = Scheduler::new(env.clone());
        let shared: SharedStore = far.clone();
        let stores = scheduler.stores(&shared, PATIENCE);
        far.plant("log/1", body(64 * MIB)).await;
        World { env, far, scheduler, stores }
    }

    /// Does `step` again and again, beside everything else.
    fn keep<F: Future<Output = ()> + Send + 'static>(
        &self,
        store: &SharedStore,
        step: impl Fn(SharedStore, u64) -> F + Send + 'static,
    ) {
        let store = store.clone();
        drop(self.env.spawn("keeps on", async move {
            for n in 0.. {
                step(store.clone(), n).await;
            }
        }));
    }

    /// Latencies of 4 KiB reads, one after the other, for so long.
    async fn read_for(&self, time: Duration) -> Vec<Duration> {
        let end = self.env.now() + time;
        let mut latencies = Vec::new();
        while self.env.now() < end {
            let began = self.env.now();
            let at = latencies.len() as u64 * 4096 % (60 << 20);
            self.stores.read.get_range("log/1", at..at + 4096).await.expect("a read");
            latencies.push(self.env.now() - began);
        }
        latencies.sort_unstable();
        latencies
    }

    fn in_use(&self) -> (u64, u64) {
        let place = &self.scheduler.stats().places[0];
        let (up, down) = (&place.uploads, &place.downloads);
        let queued = |d: &cistern_engine::store::DirectionStats| {
            d.queued_read + d.queued_write_back + d.queued_ahead + d.queued_background
        };
        (up.in_use + down.in_use, queued(up) + queued(down))
    }
}

fn body(len: usize) -> Bytes {
    (0..len).map(|i| (i / 4096 + i * 7) as u8).collect()
}

/// While write-back and merges have all they can get, a read that finds nothing cached finds one piece of a merge in
/// front of it at most (once a minute a large one); and they get nearly all of the upload and two fifths of the download.
#[test]
fn reads_do_not_wait_for_write_back_and_merges() {
    simulate(|env| async move {
        let world = World::new(env, LINK_BYTES_PER_S).await;
        let segment = body(16 * MIB);
        for writer in 0..6 {
            let segment = segment.clone();
            world.keep(&world.stores.write_back, move |store, n| {
            let segment = segment.clone();
            async move { _ = store.put_if_absent(&format!("log/{writer}-{n}"), segment).await.expect("put") }
        });
        }
        for feed in 0..16u64 {
            world.keep(&world.stores.background, move |store, n| async move {
                let at = (n % 4) * 16 + feed;
                let range = at * MIB as u64..(at + 1) * MIB as u64;
                assert_eq!(store.get_range("log/1", range).await.expect("a merge reads").len(), MIB);
            });
        }
        world.read_for(Duration::from_secs(10)).await;
        let (before, time) = (world.far.carried(), Duration::from_secs(60));
        let latencies = world.read_for(time).await;
        let after = world.far.carried();
        let (p99, worst) = (latencies[latencies.len() * 99 / 100], latencies[latencies.len() - 1]);
        let piece = ROUND_TRIP + Duration::from_millis(6); // at the rate of the link, its own bytes too
        assert!(p99 <= piece && worst <= 3 * ROUND_TRIP, "{p99:?}, {worst:?}");
        let link = LINK_BYTES_PER_S * time.as_secs();
        assert!((after.0 - before.0) * 100 >= link * 95, "uploads used {} of {link}", after.0 - before.0);
        assert!((after.1 - before.1) * 10 >= link * 4, "merges got {} of {link}", after.1 - before.1);
    });
}

/// Reads that fill the link by themselves keep it: merges go on with one piece at a time.
#[test]
fn merges_leave_a_full_link_to_reads() {
    simulate(|env| async move {
        let world = World::new(env, LINK_BYTES_PER_S).await;
        for feed in 0..16u64 {
            world.keep(&world.stores.background, move |store, n| async move {
                let at = ((n % 4) * 16 + feed) << 20;
                store.get_range("log/1", at..at + MIB as u64).await.expect("a merge reads");
            });
        }
        let read_bytes = Arc::new(AtomicU64::new(0));
        for reader in 0..4u64 {
            let read_bytes = read_bytes.clone();
            world.keep(&world.stores.read, move |store, n| {
                let (at, read_bytes) = (((n * 4 + reader) % 240) << 18, read_bytes.clone());
                async move {
                    let bytes = store.get_range("log/1", at..at + (256 << 10)).await.expect("a read");
                    read_bytes.fetch_add(bytes.len() as u64, Relaxed);
                }
            });
        }
        world.read_for(Duration::from_secs(20)).await;
        let (reads, all) = (read_bytes.load(Relaxed), world.far.carried().1);
        world.read_for(Duration::from_secs(20)).await;
        let (reads, all) = (read_bytes.load(Relaxed) - reads, world.far.carried().1 - all);
        assert!(reads * 100 >= all * 85 && all > reads + all / 50, "{reads} of {all}");
    });
}

/// What is read in pieces while somebody else reads is what it would be as a whole, up to the
/// object's end.
#[test]
fn pieces_fit_together() {
    simulate(|env| async move {
        let world = World::new(env, LINK_BYTES_PER_S).await;
        let whole = body(64 * MIB);
        let end = whole.len() as u64;
        for range in [0..3 * MIB as u64, 12_345..4_000_000, end - 1_000_000..end + 500_000, end..end + 10] {
            world.stores.read.get_range("log/1", 0..10).await.expect("a read");
            world.far.take_requests();
            let got = world.stores.background.get_range("log/1", range.clone()).await.expect("a merge reads");
            let must = whole.slice(range.start as usize..(range.end.min(end)) as usize);
            assert!(got == must, "{range:?}");
            let largest = world.far.take_requests().iter().map(|r| r.1).max();
            assert!(largest <= Some(MIB as u64), "{range:?}: {largest:?}");
        }
    });
}

/// An hour without a store, with many who wait: few requests are sent. When it is back, they do
/// not all come at once, reads do not wait behind uploads, and everything is done.
#[test]
fn an_outage_ends_without_a_stampede() {
    simulate(|env| async move {
        let world = World::new(env, LINK_BYTES_PER_S).await;
        world.far.set_away(true);
        let segment = body(MIB);
        let upload = |n: usize| {
            let (store, segment, env) = (world.stores.write_back.clone(), segment.clone(), world.env.clone());
            async move {
                while store.put_if_absent(&format!("log/up-{n}"), segment.clone()).await.is_err() {
                    env.sleep(Duration::from_secs(1)).await;
                }
            }
        };
        let uploads = world.env.spawn("uploads", join_all((0..200).map(upload)));
        world.env.sleep(Duration::from_secs(60)).await;
        world.far.take_requests();
        world.env.sleep(Duration::from_secs(3600)).await;
        let sent = world.far.take_requests().len();
        assert!((360..1500).contains(&sent), "{sent} requests in an hour without an answer");
        let reads = world.env.spawn("reads", {
            let (store, env) = (world.stores.read.clone(), world.env.clone());
            async move {
                let read = |n: u64| {
                    let (store, env) = (store.clone(), env.clone());
                    async move {
                        store.get_range("log/1", n * 4096..(n + 1) * 4096).await.expect("back in time");
                        env.now()
                    }
                };
                join_all((0..50).map(read)).await
            }
        });
        world.env.sleep(Duration::from_secs(10)).await;
        world.far.set_away(false);
        world.far.take_in_use_max();
        let back = world.env.now();
        let answered = reads.await.expect("they end");
        let last = answered.into_iter().max().expect("there are some") - back;
        assert!(last < Duration::from_secs(12), "the last read was answered {last:?} after the return");
        uploads.await.expect("they end");
        assert!(world.far.take_in_use_max() <= 24, "too many at once");
        let began = world.far.take_requests().into_iter().filter(|r| r.0 >= back && r.2).count();
        assert!((200..220).contains(&began), "{began} uploads were sent for 200");
        assert!(world.scheduler.stats().places[0].away_ms.is_none());
    });
}

/// A store that takes nothing more still gives: reads do not wait for it to take again.
#[test]
fn reads_go_on_while_uploads_fail() {
    simulate(|env| async move {
        let world = World::new(env, LINK_BYTES_PER_S).await;
        world.far.set_full(true);
        for writer in 0..6 {
            world.keep(&world.stores.write_back, move |store, n| async move {
                _ = store.put(&format!("log/{writer}-{n}"), body(MIB)).await.expect_err("full");
            });
        }
        world.env.sleep(Duration::from_secs(100)).await;
        for _ in 0..100 {
            let latencies = world.read_for(Duration::from_millis(1)).await;
            assert!(latencies[0] < 2 * ROUND_TRIP, "{latencies:?}");
            world.env.sleep(Duration::from_secs(1)).await;
        }
        assert!(world.scheduler.stats().places[0].away_ms.is_some());
    });
}

/// A read of a store that is away fails within its deadline, with what the store said last.
#[test]
fn reads_fail_in_time_and_say_why() {
    simulate(|env| async move {
        let world = World::new(env, LINK_BYTES_PER_S).await;
        world.far.set_away(true);
        for _ in 0..3 {
            let began = world.env.now();
            let error = world.stores.read.get_range("log/1", 0..10).await.expect_err("away");
            assert!(world.env.now() - began <= PATIENCE);
            let text = error.to_string();
            assert!(
                matches!(error, StoreError::Unreachable(_)) && text.contains("connection refused"),
                "{text}"
            );
        }
        assert!(world.scheduler.stats().places[0].away_ms.is_some_and(|ms| ms >= 100_000));
        world.far.set_away(false);
        world.stores.read.get_range("log/1", 0..10).await.expect("it is back");
    });
}

/// Requests that nobody waits for any more give back their slots and their places in the queue.
#[test]
fn dropped_requests_leave_nothing_behind() {
    simulate(|env| async move {
        let world = World::new(env, LINK_BYTES_PER_S).await;
        let of_classes =
            [&world.stores.read, &world.stores.ahead, &world.stores.write_back, &world.stores.background];
        let all = join_all((0..400).map(|n| of_classes[n % 4].get_range("log/1", 0..(MIB as u64))));
        let puts = join_all((0..50).map(|n| of_classes[n % 4].put("log/2", body(MIB))));
        let both = futures_util::future::join(all, puts);
        assert!(world.env.timeout(Duration::from_millis(70), both).await.is_none());
        assert_eq!(world.in_use(), (0, 0));
        world.stores.background.get_range("log/1", 0..10).await.expect("slots are there");
    });
}

/// Uploads keep their rate from second to second, and a new rate counts at once.
#[test]
fn uploads_keep_their_rate() {
    simulate(|env| async move {
        let world = World::new(env, LINK_BYTES_PER_S).await;
        let rate = 2_000_000;
        world.scheduler.set_rates(Rates { upload: Some(rate), download: None });
        let small = body(50_000);
        for writer in 0..8 {
            let small = small.clone();
            world.keep(&world.stores.write_back, move |store, n| {
                let small = small.clone();
                async move { store.put(&format!("log/{writer}-{n}"), small).await.expect("put") }
            });
        }
        world.env.sleep(Duration::from_secs(20)).await;
        let begun: Vec<_> = world.far.take_requests();
        for (i, first) in begun.iter().enumerate() {
            let second = begun[i..].iter().take_while(|r| r.0 < first.0 + Duration::from_secs(1));
            let bytes: u64 = second.map(|r| r.1).sum();
            assert!(bytes <= rate * 105 / 100 + 50_000, "{bytes} in a second");
        }
        let total: u64 = begun.iter().map(|r| r.1).sum();
        assert!(total >= rate * 20 - 50_000, "{total} in 20 s");
        world.scheduler.set_rates(Rates::default());
        world.env.sleep(Duration::from_secs(10)).await;
        let total: u64 = world.far.take_requests().iter().map(|r| r.1).sum();
        assert!(total > rate * 20, "{total} in 10 s without a rate");
    });
}

/// With a download rate that others use up, reads are served first; the others go on.
#[test]
fn reads_come_first_under_a_rate() {
    simulate(|env| async move {
        let world = World::new(env, LINK_BYTES_PER_S).await;
        let rate = 1_000_000;
        world.scheduler.set_rates(Rates { upload: None, download: Some(rate) });
        for n in 0..8 {
            let store = if n % 2 == 0 { &world.stores.ahead } else { &world.stores.background };
            world.keep(store, |store, _| async move {
                _ = store.get_range("log/1", 0..4 * MIB as u64).await.expect("prefetched");
            });
        }
        let before = world.far.carried().1;
        let latencies = world.read_for(Duration::from_secs(60)).await;
        let carried = world.far.carried().1 - before;
        assert!(latencies.len() > 100, "{} reads in a minute", latencies.len());
        assert!(latencies[latencies.len() - 1] < Duration::from_secs(1), "{:?}", latencies.last());
        assert!(carried <= rate * 61 && carried >= rate * 55, "{carried}");
    });
}

/// A segment on a link on which it takes longer than the patience of one request gets there with
/// one try.
#[test]
fn slow_uploads_are_not_cut() {
    simulate(|env| async move {
        let world = World::new(env, 150_000).await;
        let puts = (0..4).map(|n| {
            let (store, body) = (world.stores.write_back.clone(), body(16 * MIB));
            async move { store.put_if_absent(&format!("log/{n}-x"), body).await.expect("it arrives") }
        });
        join_all(puts).await;
        assert_eq!(world.far.take_requests().len(), 4);
    });
}

/// Volumes of one bucket share what it bears; another bucket has limits of its own.
#[test]
fn limits_belong_to_places() {
    simulate(|env| async move {
        let scheduler = Scheduler::new(env.clone());
        for url in
            ["s3://a/x/tank", "s3://a/y", "s3://b/tank", "gs://a/tank", "file:///srv/t1", "file:///srv/t2"]
        {
            let store: SharedStore = Far::new(&env, url, ROUND_TRIP, LINK_BYTES_PER_S);
            scheduler.store(store, Priority::Read);
        }
        let places: Vec<String> = scheduler.stats().places.into_iter().map(|p| p.place).collect();
        assert_eq!(places, ["s3://a", "s3://b", "gs://a", "file:///srv"]);
    });
}
