//! What the journal costs on this disk, against plain writes to a file of the same disk.
//!
//!     cargo run --release -p cistern-engine --example journal_bench -- <directory> [seconds]
//!
//! Raw and journal are measured in one run, by turns, because disks and neighbours change.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use cistern_engine::{
    disk::{AlignedBuf, Disk, DiskFile, RealDisk},
    env::{Env, real::RealEnv},
    journal::{AppendError, Journal, JournalOptions, Record, Recoveries},
    units::{BLOCK_BYTES, Extent, JournalPos, VolumeId},
};

const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(1));
const RAW_BYTES: u64 = 256 << 20;

#[allow(clippy::disallowed_methods)] // a benchmark measures the real clock
fn now() -> Instant {
    Instant::now()
}

struct Bench {
    env: Env,
    disk: Arc<dyn Disk>,
    time: Duration,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("usage: journal_bench <directory> [seconds]");
    let seconds = args.next().map_or(3, |s| s.parse().expect("a number of seconds"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(cistern_engine::env::real::prefer_latency)
        .build()
        .expect("a runtime");
    runtime
        .block_on(runtime.spawn(async move {
            let disk: Arc<dyn Disk> = Arc::new(RealDisk::create(Path::new(&dir)).expect("the directory"));
            for name in ["raw", "journal"] {
                disk.remove(name).await.expect("remove");
            }
            let bench = Bench { env: RealEnv::start(), disk, time: Duration::from_secs(seconds) };
            bench.run().await;
        }))
        .expect("the benchmark ends");
}

impl Bench {
    fn options(&self) -> JournalOptions {
        JournalOptions { bytes: 1 << 30, memory_bytes: 64 << 20 }
    }

    async fn run(&self) {
        let start = now();
        let journal = Journal::create(&self.env, &self.disk, VOLUME, JournalPos(0), self.options())
            .await
            .expect("create");
        println!("create 1 GiB: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
        self.one_by_one(&journal, "while the ring is being filled").await;
        println!("waiting for the ring to be filled");
        self.env.sleep(Duration::from_secs(8)).await;
        self.one_by_one(&journal, "steady").await;
        self.many(&journal, 8).await;
        self.many(&journal, 32).await;
        for blocks in [1, 4, 32, 256] {
            self.without_sync(&journal, blocks).await;
        }
        journal.close().await.expect("close");
        drop(journal);
        self.recover().await;
        self.disk.remove("journal").await.expect("remove");
    }

    /// A 4 KiB write made durable, raw and through the journal, by turns.
    async fn one_by_one(&self, journal: &Arc<Journal>, title: &str) {
        let raw = match self.disk.open("raw").await {
            Ok(file) => file,
            Err(_) => prepare_raw(&self.disk).await,
        };
        let block = AlignedBuf::zeroed(BLOCK_BYTES);
        let bytes = Bytes::copy_from_slice(&block);
        let (mut raw_times, mut journal_times) = (Vec::new(), Vec::new());
        let start = now();
        let mut n = 0;
        while start.elapsed() < self.time {
            let offset = n * BLOCK_BYTES as u64 % RAW_BYTES;
            let file = raw.clone();
            let at = now();
            file.write_at(offset, &block).await.expect("write");
            file.sync().await.expect("sync");
            raw_times.push(at.elapsed());
            let at = now();
            let end = append(journal, n, &bytes).await;
            journal.sync(end).await.expect("sync");
            journal_times.push(at.elapsed());
            n += 1;
        }
        println!("4 KiB one by one, {title}:");
        print_times("  raw write + fdatasync", &mut raw_times);
        print_times("  journal append + sync", &mut journal_times);
        journal.free(journal.durable());
    }

    /// Many tasks that append 4 KiB and sync it.
    async fn many(&self, journal: &Arc<Journal>, tasks: usize) {
        let count = Arc::new(AtomicU64::new(0));
        let start = now();
        let time = self.time;
        let running: Vec<_> = (0..tasks)
            .map(|_| {
                let (journal, count) = (journal.clone(), count.clone());
                self.env.spawn("client", async move {
                    let block = Bytes::from(vec![7; BLOCK_BYTES]);
                    while start.elapsed() < time {
                        let n = count.fetch_add(1, Ordering::Relaxed);
                        let end = append(&journal, n, &block).await;
                        journal.sync(end).await.expect("sync");
                        if n.is_multiple_of(1024) {
                            journal.free(journal.durable());
                        }
                    }
                })
            })
            .collect();
        for task in running {
            task.await;
        }
        let rate = count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        println!("{tasks} tasks, 4 KiB append + sync: {rate:.0}/s");
        journal.free(journal.durable());
    }

    /// One task that appends as fast as it can; a stand-in for write-back frees what is durable.
    async fn without_sync(&self, journal: &Arc<Journal>, blocks: u64) {
        let data = Bytes::from(vec![9; blocks as usize * BLOCK_BYTES]);
        let start = now();
        let mut n = 0u64;
        while start.elapsed() < self.time {
            for _ in 0..64 {
                append(journal, n * blocks, &data).await;
                n += 1;
            }
            journal.free(journal.durable());
        }
        journal.sync(journal.appended()).await.expect("sync");
        let rate = n as f64 / start.elapsed().as_secs_f64();
        let mib = rate * data.len() as f64 / (1 << 20) as f64;
        println!("appends of {:4} KiB without sync: {rate:.0}/s, {mib:.0} MiB/s", blocks * 4);
        journal.free(journal.durable());
    }

    async fn recover(&self) {
        let mut records = 0u64;
        {
            let mut count = |_: &Record, _, _| records += 1;
            let journal =
                Journal::open(&self.env, &self.disk, VOLUME, self.options(), &Recoveries::new(1), &mut count)
                    .await
                    .expect("open");
            let data = Bytes::from(vec![3; 32 * BLOCK_BYTES]);
            let mut n = 0;
            while journal.dirty_blocks() + 2048 < journal.capacity_blocks() {
                let record = Record::Write(Extent::new(n * 32, 32));
                let prepared = journal.prepare(record, data.clone()).expect("it fits");
                match journal.append(&prepared, &mut |_, _| {}) {
                    Ok(_) => n += 1,
                    Err(_) => journal.room(32).await.expect("room"),
                }
            }
            journal.close().await.expect("close");
        }
        let start = now();
        let mut count = |_: &Record, _, _| records += 1;
        let journal =
            Journal::open(&self.env, &self.disk, VOLUME, self.options(), &Recoveries::new(1), &mut count)
                .await
                .expect("open");
        let (time, used) = (start.elapsed().as_secs_f64(), journal.dirty_blocks() / 256);
        println!("open with {used} MiB, {records} records: {time:.2} s, {:.0} MiB/s", used as f64 / time);
        journal.close().await.expect("close");
    }
}

async fn append(journal: &Journal, n: u64, data: &Bytes) -> JournalPos {
    let blocks = (data.len() / BLOCK_BYTES) as u64;
    let record = Record::Write(Extent::new(n % (1 << 30), blocks));
    let prepared = journal.prepare(record, data.clone()).expect("it fits");
    loop {
        match journal.append(&prepared, &mut |_, _| {}) {
            Ok(end) => return end,
            Err(AppendError::Failed(e)) => panic!("{e}"),
            Err(AppendError::Full) => {
                journal.free(journal.durable());
                journal.room(blocks).await.expect("room");
            }
        }
    }
}

async fn prepare_raw(disk: &Arc<dyn Disk>) -> Arc<dyn DiskFile> {
    let file = disk.create("raw", RAW_BYTES).await.expect("create");
    let chunk = AlignedBuf::zeroed(1 << 20);
    for at in (0..RAW_BYTES).step_by(chunk.len()) {
        file.write_at(at, &chunk).await.expect("write");
    }
    file.sync().await.expect("sync");
    file
}

fn print_times(what: &str, times: &mut [Duration]) {
    times.sort();
    let at = |permille: usize| times[(times.len() - 1) * permille / 1000].as_secs_f64() * 1e6;
    println!(
        "{what}: p50 {:.1} us, p90 {:.1} us, p99 {:.1} us ({} times)",
        at(500),
        at(900),
        at(990),
        times.len()
    );
}
