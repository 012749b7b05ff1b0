//! `cistern bench`: how fast a volume is, and what the disk and the store below it do alone.
//!
//! Writes into no volume but one that it has made, unless it is told to.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use cistern_engine::{codec::KeySource, store::SharedStore, units::SECTOR_BYTES};
use clap::{Args, ValueEnum};

use crate::{
    cli::{Context, snapshots},
    config::{KeySettings, Resolved, StateSettings},
    control::{self, DaemonClient, Drained, Request, ServedStatus},
    creation::check_size,
    daemon,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    quantity::{ByteSize, Span},
    signals::{EndAtOnce, Interruption},
    terminal,
};

pub(super) mod alone;
mod limits;
mod load;
mod report;
mod scratch;
mod subject;

use alone::{DiskAlone, SEGMENT_BYTES, StoreAlone};
use load::{LoadBounds, LoadOrder, LoadResult, LoadShape, run_load};
use report::{BenchReport, BenchRow, BenchedWork};
use scratch::ScratchVolume;
use subject::BenchedVolume;

/// Requests at once at most: each is a connection to a daemon.
const DEPTH_MAX: u32 = 128;
/// Bytes of the largest request.
const REQUEST_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a request, where nothing else is said: what copies ask, and what databases do.
const SEQUENTIAL_BYTES: u64 = 1 << 20;
const RANDOM_BYTES: u64 = 4 << 10;
/// Segments that are put at once, as write-back does on a good link.
const PUTS_AT_ONCE: u32 = 4;
/// Bytes behind which the disk is synced when it is written in one go.
const SYNC_BYTES: u64 = 16 << 20;
/// Steps in which random bytes are taken.
const CHANCE_BYTES: usize = 64 << 10;

/// Measure how fast a volume is, and what limits it: the local disk, or the store
///
/// Makes a scratch volume beside URL (URL.bench-XXXXXXXX), which need not exist itself, writes and reads that, and removes it at the end, also after
/// Ctrl-C. What is left after a kill -9, `cistern rm URL.bench-XXXXXXXX --now --force` removes. No other volume is touched, unless --overwrite says so.
///
/// Beside it: what the disk of the state directory does alone, written and synced as a journal is, and what the store does alone, with
/// objects of the size of a segment and ranged GETs of the size of the reads. The last sentence says which of them the volume comes near.
///
/// What is written does not compress. Reads come from the store: nothing of it is in a cache, but with a daemon that serves the volume and has it
/// there. The store is asked as much as --bytes allows: with the default some 768 MiB up and up to 1 GiB down, some
/// thousand requests in all, at its price.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cistern bench s3://bucket/tank                        all of it, about half a minute
  cistern bench s3://bucket/tank --only flush           how long a commit of a database takes
  cistern bench s3://bucket/tank --only random-read --depth 64 --request-size 16K
  cistern bench s3://bucket/tank --read-only            reads what the volume holds, and writes nothing")]
pub(super) struct Bench {
    /// URL of a volume, existing or not
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// What to measure; all of it if nothing is said. Several are separated by commas
    #[arg(long, value_name = "WORK", value_enum, value_delimiter = ',')]
    only: Vec<BenchWork>,

    /// Bytes of a request [default: 1M one behind the other, 4K at random]
    #[arg(long, value_name = "SIZE")]
    request_size: Option<ByteSize>,

    /// Requests at once; writes that are followed by a flush are one at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    depth: u32,

    /// How long each measurement takes at most
    #[arg(long, value_name = "TIME", default_value = "3s")]
    time: Span,

    /// How much each measurement moves at most
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    bytes: ByteSize,

    /// Size of the scratch volume [default: 1G]
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["read_only", "overwrite"])]
    size: Option<ByteSize>,

    /// Measure reads of the volume itself, and write nothing, neither there nor beside it
    ///
    /// Through its daemon where one of this host serves it, else opened here without claiming it.
    #[arg(long, conflicts_with = "overwrite")]
    read_only: bool,

    /// Measure on the volume itself, and overwrite what it holds with random data
    ///
    /// Through its daemon where one of this host serves it, else opened here as `cistern serve` does.
    #[arg(long)]
    overwrite: bool,

    /// Do not ask, with --overwrite
    #[arg(long, short, requires = "overwrite")]
    yes: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// What can be measured of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BenchWork {
    /// One request behind the other, and how long it takes until that is in the store
    SequentialWrite,
    RandomWrite,
    /// A write of 4 KiB and a flush, one at a time: the commit of a database
    Flush,
    SequentialRead,
    RandomRead,
}

/// The size of a scratch volume.
const SCRATCH_BYTES: u64 = 1 << 30;

impl Bench {
    pub async fn run(self, context: &Context) -> Outcome {
        let at_once = EndAtOnce::listen()?;
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        self.check()?;
        let served = match self.is_scratch() {
            true => None,
            false => control::serving(&settings.state_dir, &self.volume.url.to_string()).await?,
        };
        match self.is_scratch() {
            true => self.tell_others(context).await,
            false => self.check_volume(context, served.as_ref().map(|(_, status)| status)).await?,
        }
        std::fs::create_dir_all(&settings.state_dir)
            .map_err(|e| Failure::io(format!("cannot make {}", settings.state_dir.display()), &e))?;
        drop(at_once);
        let json = self.json;
        let report = Interruption::on_signal(async |stop| {
            let progress = terminal::Progress::spinning("measuring");
            let mut bencher = Bencher {
                bench: &self,
                context,
                settings: &settings,
                stop: &stop,
                progress: &progress,
                random: random(context),
                rows: Vec::new(),
            };
            bencher.run(served).await
        });
        report.await??.say(json)
    }

    fn is_scratch(&self) -> bool {
        !self.read_only && !self.overwrite
    }

    fn measures(&self, work: BenchWork) -> bool {
        let is_read = matches!(work, BenchWork::SequentialRead | BenchWork::RandomRead);
        (self.only.is_empty() || self.only.contains(&work)) && (is_read || !self.read_only)
    }

    fn measures_reads(&self) -> bool {
        self.measures(BenchWork::SequentialRead) || self.measures(BenchWork::RandomRead)
    }

    fn check(&self) -> Outcome {
        if let Some(size) = self.request_size {
            let sector = SECTOR_BYTES as u64;
            if size.0 == 0 || size.0 > REQUEST_BYTES_MAX || !size.0.is_multiple_of(sector) {
                let most = ByteSize(REQUEST_BYTES_MAX);
                return Err(Failure::usage(format!("a request cannot have {size}")).hint(format!(
                    "--request-size takes a multiple of {sector} bytes, up to {most}, like 4K"
                )));
            }
        }
        if self.time.0.is_zero() || self.bytes.0 == 0 {
            return Err(Failure::usage("nothing can be measured in no time, or with no bytes")
                .hint("--time takes a time like 3s, --bytes a size like 256M"));
        }
        if self.read_only && !self.measures_reads() {
            return Err(Failure::usage("--read-only measures reads, and --only names none of them")
                .hint("--only sequential-read,random-read"));
        }
        check_size(self.scratch_size())?;
        if self.scratch_size() < ByteSize(REQUEST_BYTES_MAX) {
            return Err(Failure::usage(format!("{} is too small for a scratch volume", self.scratch_size()))
                .hint(format!("--size takes at least {}", ByteSize(REQUEST_BYTES_MAX))));
        }
        Ok(())
    }

    fn scratch_size(&self) -> ByteSize {
        self.size.unwrap_or(ByteSize(SCRATCH_BYTES))
    }

    /// Names what other benches left: what cannot be looked for is no reason to stop.
    async fn tell_others(&self, context: &Context) {
        for url in scratch::others(context, &self.volume).await.unwrap_or_default() {
            let how = scratch::how_to_remove(&url);
            terminal::remark(format!("{url} is there: of a bench that was killed (`{how}`), or runs now"));
        }
    }

    /// That the volume is there, and may be overwritten if it shall be.
    async fn check_volume(&self, context: &Context, served: Option<&ServedStatus>) -> Outcome {
        let url = &self.volume.url;
        if served.is_none() {
            let open = self.volume.open(&context.env, COMMAND_PATIENCE).await?;
            let info = cistern_engine::volume::admin::info(&context.env, &open.store, &KeySource::None).await;
            info.map_err(|e| self.volume.explain(e))?;
        }
        if !self.overwrite {
            return Ok(());
        }
        if served.is_some_and(|served| served.status.read_only) {
            let failure = Failure::usage(format!("{url} is served read-only"));
            return Err(failure.hint("--read-only measures it; or stop the daemon and serve it for writing"));
        }
        let warning = format!("This overwrites {url} with random data. What it holds is lost.");
        terminal::confirm(&warning, &self.volume.name, self.yes)
    }
}

/// Bytes that nothing on the way can shrink.
fn random(context: &Context) -> Bytes {
    let mut out = Vec::with_capacity(SEGMENT_BYTES as usize);
    while out.len() < SEGMENT_BYTES as usize {
        out.extend_from_slice(&context.env.random_bytes::<CHANCE_BYTES>());
    }
    out.into()
}

/// A bench that runs.
struct Bencher<'a> {
    bench: &'a Bench,
    context: &'a Context,
    settings: &'a Resolved,
    stop: &'a Interruption,
    progress: &'a terminal::Progress,
    random: Bytes,
    rows: Vec<BenchRow>,
}

impl Bencher<'_> {
    async fn run(&mut self, served: Option<(DaemonClient, ServedStatus)>) -> Outcome<BenchReport> {
        if [BenchWork::SequentialWrite, BenchWork::RandomWrite, BenchWork::Flush]
            .into_iter()
            .any(|work| self.bench.measures(work))
        {
            self.stop.or(self.disk()).await?;
        }
        match (self.bench.read_only, served) {
            (true, served) => {
                let store = self.bench.volume.open(&self.context.env, COMMAND_PATIENCE);
                if let Some(store) = tell_away(self.stop.or(store).await, served.is_some())? {
                    self.stop.or(self.found_store(&store.store)).await?;
                }
                self.measure_volume(served).await
            }
            (false, served) => {
                let bench = self.bench;
                let size = bench.scratch_size();
                let made = ScratchVolume::make(self.context, self.settings, &bench.volume, size.0).await;
                let mut scratch = match tell_away(made, served.is_some())? {
                    Some(scratch) => scratch,
                    None => return self.measure_volume(served).await,
                };
                let measured = match bench.overwrite {
                    false => self.measure_scratch(&mut scratch).await,
                    true => match self.stop.or(self.own_store(&scratch.store.store)).await {
                        Ok(()) => self.measure_volume(served).await,
                        Err(failure) => Err(failure),
                    },
                };
                match (measured, scratch.remove().await) {
                    (Ok(report), Ok(())) => Ok(report),
                    (Ok(_), Err(failure)) => Err(failure),
                    (Err(failure), Ok(())) => Err(failure),
                    (Err(failure), Err(also)) => {
                        let text = format!("{}. And {}", failure.text, also.text);
                        Err(Failure { text, hint: also.hint, ..failure })
                    }
                }
            }
        }
    }

    async fn measure_scratch(&mut self, scratch: &mut ScratchVolume<'_>) -> Outcome<BenchReport> {
        let size = self.bench.scratch_size().0;
        self.stop.or(self.own_store(&scratch.store.store)).await?;
        let volume = scratch.open().await?;
        let subject = Arc::new(BenchedVolume::Here(volume));
        let written = self.stop.or(self.writes(&subject, size, None)).await?;
        if self.bench.measures_reads() {
            self.progress.message("closing the volume".to_owned());
            self.stop.or(scratch.close()).await?;
            self.stop.or(self.reads_here(&scratch.place, written)).await?;
        }
        let url = scratch.place.url.to_string();
        Ok(self.report(url, false, size))
    }

    /// Measures the volume that was named.
    async fn measure_volume(&mut self, served: Option<(DaemonClient, ServedStatus)>) -> Outcome<BenchReport> {
        let place = &self.bench.volume;
        let through_daemon = served.is_some();
        let size = match served {
            Some((daemon, status)) => {
                let size = status.status.size_bytes;
                let subject = Arc::new(BenchedVolume::connect(&status, self.bench.depth)?);
                if self.bench.overwrite {
                    self.stop.or(self.writes(&subject, size, Some(&daemon))).await?;
                }
                self.stop.or(self.reads(&subject, size)).await?;
                size
            }
            None if self.bench.overwrite => {
                let volume = daemon::open_once(&self.context.env, self.settings, place).await?;
                let size = volume.size_bytes();
                let subject = Arc::new(BenchedVolume::Here(volume.clone()));
                let written = self.stop.or(self.writes(&subject, size, None)).await;
                self.progress.message("closing the volume".to_owned());
                let closed = daemon::close_once(&volume, "written").await;
                let written = written?;
                closed?;
                self.stop.or(self.reads_here(place, written)).await?;
                size
            }
            None => self.stop.or(self.reads_here(place, u64::MAX)).await?,
        };
        Ok(self.report(place.url.to_string(), through_daemon, size))
    }

    fn report(&mut self, volume: String, through_daemon: bool, size_bytes: u64) -> BenchReport {
        BenchReport {
            url: self.bench.volume.url.to_string(),
            volume,
            scratch: self.bench.is_scratch(),
            through_daemon,
            size_bytes,
            state_dir: self.settings.state_dir.display().to_string(),
            rows: std::mem::take(&mut self.rows),
            limits: Vec::new(),
        }
    }

    fn bounds(&self) -> LoadBounds {
        LoadBounds { time: self.bench.time.0, bytes: self.bench.bytes.0 }
    }

    fn sequential(&self) -> LoadShape {
        let request_bytes = self.bench.request_size.map_or(SEQUENTIAL_BYTES, |size| size.0);
        LoadShape { depth: self.bench.depth, request_bytes }
    }

    fn random_shape(&self) -> LoadShape {
        let request_bytes = self.bench.request_size.map_or(RANDOM_BYTES, |size| size.0);
        LoadShape { depth: self.bench.depth, request_bytes }
    }

    fn random_order(&self) -> LoadOrder {
        LoadOrder::Random { seed: u64::from_le_bytes(self.context.env.random_bytes()) }
    }

    fn begin(&self, what: &str, shape: LoadShape) {
        let LoadShape { depth, request_bytes } = shape;
        self.progress.message(format!("measuring {what}: {} x {depth}", ByteSize(request_bytes)));
    }

    fn note(&mut self, work: BenchedWork, shape: LoadShape, result: &LoadResult) {
        self.rows.push(BenchRow::new(work, shape, result));
    }

    async fn disk(&mut self) -> Outcome {
        let alone = |request_bytes| LoadShape { depth: 1, request_bytes };
        let (large, small) = (alone(SEQUENTIAL_BYTES), alone(RANDOM_BYTES));
        self.begin("the local disk", large);
        let name = format!("bench-{}", self.context.env.uuid().simple());
        let data = self.random.slice(..SEQUENTIAL_BYTES as usize);
        let disk = DiskAlone::make(&self.settings.state_dir, name, data).await?;
        let result = disk.write(large.request_bytes, SYNC_BYTES, self.bounds()).await?;
        self.note(BenchedWork::DiskWrite, large, &result);
        self.begin("the local disk", small);
        let result = disk.write(small.request_bytes, 0, self.bounds()).await?;
        self.note(BenchedWork::DiskWriteSync, small, &result);
        Ok(())
    }

    /// The store alone, where something may be written.
    async fn own_store(&mut self, store: &SharedStore) -> Outcome {
        let put = LoadShape { depth: PUTS_AT_ONCE, request_bytes: SEGMENT_BYTES };
        self.begin("the store", put);
        // What lies below `probe/` goes with the volume.
        let prefix = format!("probe/{}/", self.context.env.uuid().simple());
        let (bounds, body) = (self.bounds(), self.random.clone());
        let (alone, small, large) = StoreAlone::put(store, &prefix, bounds, PUTS_AT_ONCE, body).await?;
        self.note(BenchedWork::StorePut, put, &large);
        self.note(BenchedWork::StorePutSmall, LoadShape { depth: 1, request_bytes: RANDOM_BYTES }, &small);
        self.gets(&alone).await
    }

    /// The store alone, where nothing may be written.
    async fn found_store(&mut self, store: &SharedStore) -> Outcome {
        let bytes_min = self.sequential().request_bytes.max(self.random_shape().request_bytes);
        match StoreAlone::find(store, bytes_min).await? {
            Some(found) => self.gets(&found).await,
            None => {
                self.progress.remark("the store holds no object that is large enough to be read alone");
                Ok(())
            }
        }
    }

    async fn gets(&mut self, alone: &StoreAlone) -> Outcome {
        for (wanted, work, shape, order) in [
            (BenchWork::SequentialRead, BenchedWork::StoreGet, self.sequential(), LoadOrder::Sequential),
            (BenchWork::RandomRead, BenchedWork::StoreGetRandom, self.random_shape(), self.random_order()),
        ] {
            if self.bench.measures(wanted) {
                self.begin("the store", shape);
                let result = alone.get(shape, order, self.bounds()).await?;
                self.note(work, shape, &result);
            }
        }
        Ok(())
    }

    /// Writes, and gives how many bytes from the first on are written.
    async fn writes(
        &mut self,
        subject: &Arc<BenchedVolume>,
        size: u64,
        daemon: Option<&DaemonClient>,
    ) -> Outcome<u64> {
        let mut written = 0;
        let (sequential, random) = (self.sequential(), self.random_shape());
        let has_all = self.bench.measures(BenchWork::SequentialWrite);
        // Who only reads needs something to read.
        if has_all || self.bench.measures_reads() {
            let result = self.write(subject, sequential, LoadOrder::Sequential, size).await?;
            written = result.bytes.min(size);
            if has_all {
                self.note(BenchedWork::SequentialWrite, sequential, &result);
            }
            let draining = Instant::now();
            self.progress.message("waiting until it is in the store".to_owned());
            self.drain(subject, daemon).await?;
            if has_all {
                let time = result.time + draining.elapsed();
                let upload = LoadResult { time, latency: Default::default(), ..result };
                self.note(BenchedWork::Upload, sequential, &upload);
            }
        }
        if self.bench.measures(BenchWork::RandomWrite) {
            let order = self.random_order();
            let result = self.write(subject, random, order, size).await?;
            self.note(BenchedWork::RandomWrite, random, &result);
            self.progress.message("waiting until it is in the store".to_owned());
            self.drain(subject, daemon).await?;
        }
        if self.bench.measures(BenchWork::Flush) {
            let shape = LoadShape { depth: 1, request_bytes: RANDOM_BYTES };
            self.begin("writes with a flush", shape);
            let (subject, data, order) = (subject.clone(), self.random.clone(), self.random_order());
            let result = run_load(shape, self.bounds(), move |request| {
                let (subject, data) = (subject.clone(), piece(&data, request.number, shape.request_bytes));
                let offset = order.offset(request.number, shape.request_bytes, size);
                async move {
                    subject.write(request.slot, offset, data).await?;
                    subject.flush(request.slot).await
                }
            });
            let result = result.await?;
            self.note(BenchedWork::WriteFlush, shape, &result);
        }
        Ok(written)
    }

    async fn write(
        &self,
        subject: &Arc<BenchedVolume>,
        shape: LoadShape,
        order: LoadOrder,
        size: u64,
    ) -> Outcome<LoadResult> {
        self.begin("writes", shape);
        let (subject, data) = (subject.clone(), self.random.clone());
        let written = run_load(shape, self.bounds(), move |request| {
            let (subject, data) = (subject.clone(), piece(&data, request.number, shape.request_bytes));
            let offset = order.offset(request.number, shape.request_bytes, size);
            async move { subject.write(request.slot, offset, data).await }
        });
        written.await
    }

    async fn drain(&self, subject: &BenchedVolume, daemon: Option<&DaemonClient>) -> Outcome {
        match (subject, daemon) {
            (BenchedVolume::Here(volume), _) => Ok(volume.drain().await?),
            (BenchedVolume::Served(_), Some(daemon)) => {
                let volume = Some(self.bench.volume.url.to_string());
                let drained: Outcome<Drained> =
                    daemon.ask(&Request::Drain { volume, limit_ms: None }, None).await;
                drained.map(drop)
            }
            (BenchedVolume::Served(_), None) => unreachable!("whoever writes knows the daemon"),
        }
    }

    /// Reads what is written from the first byte on, as a reader on another host. Gives the size of the volume.
    async fn reads_here(&mut self, place: &VolumeUrl, written: u64) -> Outcome<u64> {
        self.progress.message("opening the volume".to_owned());
        let shown = snapshots::open_behind(self.context, self.settings, place, None, None).await?;
        let size = shown.size_bytes();
        self.reads(&Arc::new(BenchedVolume::Here(shown)), written.min(size)).await?;
        Ok(size)
    }

    /// Reads so many bytes from the first on.
    async fn reads(&mut self, subject: &Arc<BenchedVolume>, span: u64) -> Outcome {
        for (wanted, work, shape, order) in [
            (
                BenchWork::SequentialRead,
                BenchedWork::SequentialRead,
                self.sequential(),
                LoadOrder::Sequential,
            ),
            (BenchWork::RandomRead, BenchedWork::RandomRead, self.random_shape(), self.random_order()),
        ] {
            if self.bench.measures(wanted) {
                self.begin("reads", shape);
                let subject = subject.clone();
                let read = run_load(shape, self.bounds(), move |request| {
                    let subject = subject.clone();
                    let offset = order.offset(request.number, shape.request_bytes, span);
                    async move { subject.read(request.slot, offset, shape.request_bytes).await }
                });
                let result = read.await?;
                self.note(work, shape, &result);
            }
        }
        Ok(())
    }
}

/// Another piece of the random bytes for each request.
fn piece(random: &Bytes, number: u64, len: u64) -> Bytes {
    let places = (random.len() as u64 - len) / SECTOR_BYTES as u64 + 1;
    let begin = (number % places) as usize * SECTOR_BYTES;
    random.slice(begin..begin + len as usize)
}

/// Behind a daemon the store may be out of reach of this user: then it is not measured alone.
fn tell_away<T>(opened: Outcome<T>, served: bool) -> Outcome<Option<T>> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(failure) if served && failure.kind != Kind::Interrupted => {
            terminal::remark(format!("the store is not measured alone: {}", failure.text));
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}
