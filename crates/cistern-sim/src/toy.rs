//! A small engine with the shape of the real one, kept to test the checker: it holds all promises,
//! unless it is given a [`Bug`].
//!
//! Holds the whole volume in memory; one journal record per request, one log object per batch, a
//! take-over by claim. It shares no code with the engine under test, so that the world and the checker
//! can be tried without it, and its bugs are ones that no lying layer around an engine can imitate.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    units::VolumeId,
    volume::{CloseReport, Mode, RangeKind, VolumeStatus},
};
use tokio::sync::Notify;

use crate::device::{Device, Engine, Exported, Settings, Site};

mod journal;
mod log;
mod record;

use journal::Journal;
use log::{Log, Walked};
use record::Record;

/// What may be wrong with the toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// FLUSH does not wait for the journal.
    FlushTooEarly,
    /// A drain does not wait for the store.
    DrainTooEarly,
    /// Recovery goes on behind a record that is not valid.
    ReplayBehindGap,
    /// Recovery does not look at a record's checksum.
    TornReplay,
    /// Recovery forgets zeroes.
    ForgetZeroes,
    /// The journal of a fenced writer is replayed.
    MergeStale,
    /// A writer that finds a claim in its way goes on behind it.
    IgnoreFence,
    /// A failed sync is tried again.
    RetrySync,
    /// Reads do not see writes that are not committed yet.
    StaleReads,
    /// A write is acknowledged while it is in memory alone.
    AcknowledgeTooEarly,
}

/// Requests' bytes that may wait for the journal.
const QUEUE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a batch for the store.
const BATCH_BYTES_MAX: u64 = 256 << 10;

/// Makes and opens toy volumes.
pub struct ToyEngine(pub Bug);

struct State {
    data: Vec<u8>,
    /// Acknowledged and not committed, by number.
    records: VecDeque<(u64, Record, Duration)>,
    acknowledged: u64,
    journaled: u64,
    durable: u64,
    committed: u64,
    sync_wanted: u64,
    drain_wanted: u64,
    latched: Option<Error>,
    /// No new requests.
    closing: bool,
    closed: bool,
}

struct Toy {
    site: Site,
    settings: Settings,
    bug: Bug,
    read_only: bool,
    epoch: u64,
    state: Mutex<State>,
    changed: Notify,
    _lock: Option<Box<dyn Send + Sync>>,
}

#[async_trait]
impl Engine for ToyEngine {
    fn has_secrets(&self) -> bool {
        false
    }

    async fn create(&self, site: &Site, settings: &Settings) -> Result<()> {
        Log::create(site, settings.size_bytes).await
    }

    async fn remove(&self, _: &Site) -> Result<()> {
        Err(Error::Invalid("the small engine removes nothing".into()))
    }

    async fn open(&self, site: &Site, settings: &Settings, take_over: bool) -> Result<Arc<dyn Device>> {
        let lock = site.state.lock("lock")?;
        let (journal, held) = Journal::open(site, settings.journal_bytes, self.0).await?;
        let (mut log, mut walked) = Log::claim(site, journal.id(), &held, take_over, self.0).await?;
        let mut last = walked.committed;
        for (number, record) in held {
            if number > last {
                log.append(&[(number, record.clone())], self.0).await?;
                record.apply(&mut walked.data);
                last = number;
            }
        }
        let toy = Toy::new(site, settings, self.0, walked, Some(lock), last);
        let toy = Arc::new(toy);
        let journal = journal.restart(last).await?;
        drop(site.env.dedicated("toy journal", journal_loop(toy.clone(), journal)));
        drop(site.env.spawn("toy upload", upload_loop(toy.clone(), log)));
        Ok(toy)
    }

    async fn open_read_only(
        &self,
        site: &Site,
        settings: &Settings,
        _snapshot: Option<String>,
    ) -> Result<Arc<dyn Device>> {
        let walked = log::walk(site).await?;
        let last = walked.committed;
        Ok(Arc::new(Toy::new(site, settings, self.0, walked, None, last)))
    }

    async fn check(&self, site: &Site, _settings: &Settings) -> Result<Vec<String>> {
        log::walk(site).await.map(|_| Vec::new())
    }

    async fn export(&self, site: &Site, _settings: &Settings) -> Result<Vec<Exported>> {
        let records = Journal::records(site, self.0).await?;
        Ok(records.into_iter().map(|(_, record)| record.exported()).collect())
    }

    async fn discard(&self, site: &Site) -> Result<()> {
        site.state.remove(journal::NAME).await
    }
}

impl Toy {
    fn new(
        site: &Site,
        settings: &Settings,
        bug: Bug,
        walked: Walked,
        lock: Option<Box<dyn Send + Sync>>,
        last: u64,
    ) -> Toy {
        let state = State {
            data: walked.data,
            records: VecDeque::new(),
            acknowledged: last,
            journaled: last,
            durable: last,
            committed: last,
            sync_wanted: 0,
            drain_wanted: 0,
            latched: None,
            closing: false,
            closed: false,
        };
        Toy {
            site: site.clone(),
            settings: settings.clone(),
            bug,
            read_only: lock.is_none(),
            epoch: walked.epoch,
            state: Mutex::new(state),
            changed: Notify::new(),
            _lock: lock,
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().expect("no panic under this lock"))
    }

    fn latch(&self, error: Error) {
        self.with(|s| s.latched.get_or_insert(error).clone());
        self.changed.notify_waiters();
    }

    /// Waits until `done` says so, or the volume has stopped.
    async fn until<T>(&self, mut done: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let out = self.with(|s| match (&s.latched, s.closed) {
                (Some(error @ Error::Fenced { .. }), _) => Some(Err(error.clone())),
                (Some(error), _) => Some(Err(Error::Latched(error.to_string()))),
                (None, true) => Some(Err(Error::Closed)),
                (None, false) => done(s).map(Ok),
            });
            match out {
                Some(out) => return out,
                None => changed.await,
            }
        }
    }

    async fn submit(&self, record: Record, fua: bool) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        let (bytes, now) = (record.bytes(), self.site.env.now());
        let max = self.settings.dirty_bytes_max.max(bytes);
        let number = self
            .until(|s| {
                if s.closing {
                    return Some(Err(Error::Closed));
                }
                let queued: u64 = s.queued();
                if s.dirty() + bytes > max || (queued > 0 && queued + bytes > QUEUE_BYTES_MAX) {
                    return None;
                }
                s.acknowledged += 1;
                if self.bug != Bug::StaleReads {
                    record.apply(&mut s.data);
                }
                s.records.push_back((s.acknowledged, record.clone(), now));
                Some(Ok(s.acknowledged))
            })
            .await??;
        self.changed.notify_waiters();
        match fua {
            true => self.sync_to(number).await,
            false if self.bug == Bug::AcknowledgeTooEarly => Ok(()),
            false => self.until(|s| (s.journaled >= number).then_some(())).await,
        }
    }

    async fn sync_to(&self, number: u64) -> Result<()> {
        let bug = self.bug;
        self.with(|s| s.sync_wanted = s.sync_wanted.max(number));
        self.changed.notify_waiters();
        self.until(|s| (s.durable >= number || bug == Bug::FlushTooEarly).then_some(())).await?;
        if self.settings.mode == Mode::Writethrough {
            self.commit_to(number).await?;
        }
        Ok(())
    }

    async fn commit_to(&self, number: u64) -> Result<()> {
        let bug = self.bug;
        self.with(|s| s.drain_wanted = s.drain_wanted.max(number));
        self.changed.notify_waiters();
        self.until(|s| (s.committed >= number || bug == Bug::DrainTooEarly).then_some(())).await
    }
}

impl State {
    fn dirty(&self) -> u64 {
        self.records.iter().map(|(_, r, _)| r.bytes()).sum()
    }

    fn queued(&self) -> u64 {
        self.records.iter().filter(|(n, _, _)| *n > self.journaled).map(|(_, r, _)| r.bytes()).sum()
    }
}

/// Writes what is queued; syncs where somebody waits for it.
async fn journal_loop(toy: Arc<Toy>, mut journal: Journal) {
    loop {
        let next = toy.until(|s| {
            let queued: Vec<_> = s.records.iter().filter(|(n, _, _)| *n > s.journaled).cloned().collect();
            let sync = s.sync_wanted > s.durable;
            (sync || !queued.is_empty()).then_some((queued, sync))
        });
        let Ok((queued, sync)) = next.await else { return };
        for (number, record, _) in queued {
            if !journal.fits(&record) {
                // The ring has one lap at a time: all of it must be in the store first.
                let last = number - 1;
                if toy.commit_to(last).await.is_err() {
                    return;
                }
                match journal.restart(last).await {
                    Ok(new) => journal = new,
                    Err(error) => return toy.latch(error),
                }
            }
            if let Err(error) = journal.append(number, &record).await {
                return toy.latch(error);
            }
            toy.with(|s| s.journaled = number);
            toy.changed.notify_waiters();
        }
        if sync {
            let covered = toy.with(|s| s.journaled);
            match journal.sync().await {
                Err(_) if toy.bug == Bug::RetrySync => journal = journal.reopened().await,
                Err(error) => return toy.latch(error),
                Ok(()) => {}
            }
            toy.with(|s| s.durable = s.durable.max(covered));
            toy.changed.notify_waiters();
        }
    }
}

/// Appends batches to the log when they are large, old or wanted.
async fn upload_loop(toy: Arc<Toy>, mut log: Log) {
    loop {
        let env = &toy.site.env;
        let next = toy.until(|s| {
            // What the journal does not have yet must not leave a gap in it.
            let (_, _, oldest) = s.records.front().filter(|(n, _, _)| *n <= s.journaled)?;
            let old = env.now() >= *oldest + toy.settings.dirty_age_max;
            let wanted = s.drain_wanted > s.committed;
            let large = s.dirty() >= BATCH_BYTES_MAX.min(toy.settings.dirty_bytes_max / 2);
            (old || wanted || large).then(|| s.batch())
        });
        let batch = match env.timeout(Duration::from_millis(100), next).await {
            Some(Ok(batch)) => batch,
            Some(Err(_)) => return,
            None => continue,
        };
        if let Err(error) = log.append(&batch, toy.bug).await {
            return toy.latch(error);
        }
        let last = batch.last().expect("a batch is not empty").0;
        toy.with(|s| {
            s.committed = last;
            if toy.bug == Bug::StaleReads {
                batch.iter().for_each(|(_, record)| record.apply(&mut s.data));
            }
            s.records.retain(|(n, _, _)| *n > last);
        });
        toy.changed.notify_waiters();
    }
}

impl State {
    fn batch(&self) -> Vec<(u64, Record)> {
        let mut bytes = 0;
        let fits = |(_, record, _): &&(u64, Record, Duration)| {
            let first = bytes == 0;
            bytes += record.bytes();
            first || bytes <= BATCH_BYTES_MAX
        };
        let journaled = self.records.iter().take_while(|(n, _, _)| *n <= self.journaled);
        journaled.take_while(fits).map(|(n, record, _)| (*n, record.clone())).collect()
    }
}

#[async_trait]
impl Device for Toy {
    fn size_bytes(&self) -> u64 {
        self.with(|s| s.data.len() as u64)
    }

    async fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.site.env.sleep(Duration::from_micros(10)).await;
        self.with(|s| {
            let range = offset as usize..(offset + len) as usize;
            s.data.get(range).map(<[u8]>::to_vec).ok_or(Error::OutOfRange { size_bytes: s.data.len() as u64 })
        })
    }

    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<()> {
        self.submit(Record::Write { offset, data }, fua).await
    }

    async fn zero(&self, offset: u64, len: u64, _allocated: bool, fua: bool) -> Result<()> {
        self.submit(Record::Zero { offset, len }, fua).await
    }

    async fn flush(&self) -> Result<()> {
        let number = self.with(|s| s.acknowledged);
        self.sync_to(number).await
    }

    fn knows_ranges(&self) -> bool {
        false
    }

    async fn ranges(&self, _offset: u64, len: u64, _count_max: usize) -> Result<Vec<(u64, RangeKind)>> {
        Ok(vec![(len, RangeKind::Data)])
    }

    async fn resize(&self, size_bytes: u64) -> Result<()> {
        self.submit(Record::Resize { size_bytes }, false).await
    }

    async fn drain(&self) -> Result<()> {
        let number = self.with(|s| s.acknowledged);
        self.commit_to(number).await
    }

    async fn close(&self, drain_limit: Duration) -> CloseReport {
        self.with(|s| s.closing = true);
        let drained = self.site.env.timeout(drain_limit, self.drain()).await;
        let released = match drained {
            Some(Ok(())) => log::release(&self.site, self.epoch).await,
            _ => Err(Error::Unreachable("not drained".into())),
        };
        let left = self.with(|s| {
            s.closed = true;
            s.dirty()
        });
        self.changed.notify_waiters();
        CloseReport {
            clean: released.is_ok() && left == 0,
            journal_bytes_left: left,
            reason: released.err().map(|e| e.to_string()),
        }
    }

    fn status(&self) -> VolumeStatus {
        let now = self.site.env.now();
        self.with(|s| VolumeStatus {
            volume: VolumeId(uuid::Uuid::nil()),
            size_bytes: s.data.len() as u64,
            read_only: self.read_only,
            branch: None,
            mode: self.settings.mode,
            epoch: self.epoch,
            seq: 0,
            acknowledged: s.acknowledged,
            durable: s.durable,
            uploaded: s.committed,
            committed: s.committed,
            dirty_bytes: s.dirty(),
            dirty_age_ms: s.records.front().map_or(0, |(_, _, at)| (now - *at).as_millis() as u64),
            journal_bytes: self.settings.journal_bytes,
            journal_used_bytes: s.dirty().min(self.settings.journal_bytes),
            uploads_in_flight: 0,
            store_error: None,
            store_error_age_ms: None,
            store_refuses: false,
            journal_waits: None,
            latched: s.latched.as_ref().map(Error::to_string),
            damage: Default::default(),
            partial_blocks: false,
            write_back: None,
            space: None,
        })
    }
}
