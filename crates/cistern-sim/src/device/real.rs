//! The engine under test behind the simulator's traits: no logic, only shapes.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    cache::ChunkCache,
    codec::KeySource,
    env::Env,
    gc,
    journal::Recoveries,
    price::Tariff,
    snapshot::is_hidden,
    space::Bound,
    store::{OtherPlaces, Rates, Retry, Scheduler, SharedStore, Stores, Within},
    units::VolumeId,
    volume::{
        CloseReport, Collect, CreateOptions, LiveSettings, Mode, OpenOptions, Piece, RangeKind,
        ReadOnlyOptions, Volume, VolumeStatus,
        admin::{self, JournalItem},
        begin_clone, finish_clone,
    },
};

use super::{Device, Engine, Errand, Exported, Settings, Site};

mod backup;

/// The engine that ships.
pub struct RealEngine;

/// That of S3, but for a thousand times the rent: cleaning pays within the minutes of a run.
const TARIFF: Tariff = Tariff {
    storage_per_gib_month: 23.0,
    put_per_1000: 0.005,
    get_per_1000: 0.0004,
    upload_per_gib: 0.0,
    download_per_gib: 0.0,
    free_download_multiple: 0.0,
    min_days: 0.0,
    min_object_bytes: 0,
};

/// How long an operation of the store is tried again, as in production.
const RETRY_DEADLINE: Duration = Duration::from_secs(60);

/// The store with the decorators of production, for an operation that nothing competes with.
fn store(site: &Site) -> SharedStore {
    Arc::new(Retry::new(site.store.clone(), site.env.clone(), RETRY_DEADLINE))
}

/// The same, with the way to others.
fn place(site: &Site) -> Stores {
    Stores::same(store(site)).with_others(Beside::of(site))
}

/// The store as a daemon on this host uses it.
fn stores(site: &Site, scheduler: &Arc<Scheduler>) -> Stores {
    scheduler.stores(&site.store, RETRY_DEADLINE).with_others(Beside::of(site))
}

/// The volumes of a bucket.
struct Beside {
    env: Env,
    bucket: SharedStore,
}

impl Beside {
    fn of(site: &Site) -> Arc<dyn OtherPlaces> {
        Arc::new(Beside { env: site.env.clone(), bucket: site.bucket.clone() })
    }
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "beside {:?}", self.bucket)
    }
}

#[async_trait]
impl OtherPlaces for Beside {
    async fn stores(&self, way: &str) -> Result<Stores> {
        let name = way.strip_prefix("../").expect("all lie side by side");
        let store = Arc::new(Within::new(self.bucket.clone(), name));
        let stores = Stores::same(Arc::new(Retry::new(store, self.env.clone(), RETRY_DEADLINE)));
        Ok(stores.with_others(Arc::new(Beside { env: self.env.clone(), bucket: self.bucket.clone() })))
    }
}

/// The cache, if there is to be one and it can be had: as in production, serving goes on without.
async fn cache(site: &Site, settings: &Settings) -> Option<Arc<ChunkCache>> {
    if settings.cache_bytes == 0 {
        return None;
    }
    ChunkCache::open(site.env.clone(), site.cache.clone(), settings.cache_bytes).await.ok()
}

async fn options(
    site: &Site,
    settings: &Settings,
    scheduler: &Arc<Scheduler>,
    take_over: bool,
) -> OpenOptions {
    OpenOptions {
        env: site.env.clone(),
        stores: stores(site, scheduler),
        state: site.state.clone(),
        cache: cache(site, settings).await,
        key: settings.key.clone(),
        mode: settings.mode,
        journal_bytes: settings.journal_bytes,
        dirty_age_max: settings.dirty_age_max,
        dirty_bytes_max: settings.dirty_bytes_max,
        paused: false,
        memory_bytes: settings.memory_bytes,
        recoveries: Recoveries::new(1),
        host: site.host.clone(),
        take_over,
        grace: settings.grace,
        grace_alone: settings.grace_alone,
        cleaning: settings.space_bound.into(),
        tariff: TARIFF,
    }
}

fn read_only_options(
    site: &Site,
    settings: &Settings,
    scheduler: &Arc<Scheduler>,
    snapshot: Option<String>,
) -> ReadOnlyOptions {
    ReadOnlyOptions {
        env: site.env.clone(),
        stores: stores(site, scheduler),
        cache: None,
        key: settings.key.clone(),
        memory_bytes: settings.memory_bytes,
        snapshot,
    }
}

#[async_trait]
impl Engine for RealEngine {
    async fn create(&self, site: &Site, settings: &Settings) -> Result<()> {
        let options = CreateOptions {
            size_bytes: settings.size_bytes,
            compression: settings.compression,
            key: settings.key.clone(),
        };
        Volume::create_with_slot_grace(&site.env, &store(site), options, settings.slot_grace)
            .await
            .map(|_| ())
    }

    async fn remove(&self, site: &Site) -> Result<()> {
        gc::remove_volume(&store(site), &|_, _| ()).await
    }

    async fn open(&self, site: &Site, settings: &Settings, take_over: bool) -> Result<Arc<dyn Device>> {
        let scheduler = Scheduler::new(site.env.clone());
        let options = options(site, settings, &scheduler, take_over).await;
        Ok(Arc::new(RealDevice(Volume::open(options).await?, scheduler)))
    }

    async fn open_read_only(
        &self,
        site: &Site,
        settings: &Settings,
        snapshot: Option<String>,
    ) -> Result<Arc<dyn Device>> {
        let scheduler = Scheduler::new(site.env.clone());
        let options = read_only_options(site, settings, &scheduler, snapshot);
        Ok(Arc::new(RealDevice(Volume::open_read_only(options).await?, scheduler)))
    }

    async fn back_up(&self, from: &Site, to: &Site, settings: &Settings, errand: &Errand) -> Result<()> {
        Box::pin(backup::back_up(from, to, settings, errand)).await
    }

    async fn clone_volume(
        &self,
        from: &Site,
        to: &Site,
        settings: &Settings,
        device: &dyn Device,
        snapshot: &str,
    ) -> Result<()> {
        let (source, place, key) = (store(from), store(to), &settings.key);
        let clone = begin_clone(&from.env, &source, &place, key, &format!("../{}", from.place)).await?;
        device.keep_for_clone(snapshot, clone, &format!("../{}", to.place)).await?;
        finish_clone(&from.env, &source, &place, key, &from.host).await
    }

    async fn check(&self, site: &Site, settings: &Settings) -> Result<Vec<String>> {
        let report = admin::check(
            &site.env,
            &place(site),
            &settings.key,
            admin::Checked { data: true, space: true },
            &|_, _| (),
        )
        .await?;
        Ok(report.faults)
    }

    async fn orphans(&self, site: &Site, settings: &Settings) -> Result<u64> {
        let what = admin::Checked { data: false, space: true };
        let report = admin::check(&site.env, &place(site), &settings.key, what, &|_, _| ()).await?;
        Ok(report.space.map_or(0, |space| space.orphans.objects))
    }

    async fn export(&self, site: &Site, settings: &Settings) -> Result<Vec<Exported>> {
        let mut items = Vec::new();
        let mut visit = |item: JournalItem| -> Result<(), Error> {
            items.push(match item {
                JournalItem::Write { offset, data } => Exported::Write { offset, data },
                JournalItem::Zero { offset, len } => Exported::Zero { offset, len },
                JournalItem::Resize { size_bytes } => Exported::Resize { size_bytes },
            });
            Ok(())
        };
        let volume = admin::info(&site.env, &store(site), &settings.key).await?.volume;
        admin::journal_export(&site.env, &site.state, volume, &mut visit).await?;
        Ok(items)
    }

    async fn discard(&self, site: &Site) -> Result<()> {
        admin::journal_discard(&site.env, &site.state).await
    }

    async fn change_key(&self, site: &Site, old: &KeySource, new: &KeySource) -> Result<()> {
        admin::change_key(&site.env, &store(site), old, new).await
    }

    async fn unlock(&self, site: &Site, secret: &KeySource) -> Result<()> {
        admin::info(&site.env, &store(site), secret).await.map(|_| ())
    }
}

/// A volume and what schedules its requests to the store.
struct RealDevice(Arc<Volume>, Arc<Scheduler>);

#[async_trait]
impl Device for RealDevice {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    async fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(len as usize);
        for piece in self.0.read(offset, len).await? {
            match piece {
                Piece::Data(data) => out.extend_from_slice(&data),
                Piece::Zeroes(count) => out.resize(out.len() + count as usize, 0),
            }
        }
        assert_eq!(out.len() as u64, len, "the pieces of a read cover it exactly");
        Ok(out)
    }

    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<()> {
        self.0.write(offset, data, fua).await
    }

    async fn zero(&self, offset: u64, len: u64, allocated: bool, fua: bool) -> Result<()> {
        self.0.zero(offset, len, allocated, fua).await
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.0.trim(offset, len, fua).await
    }

    async fn flush(&self) -> Result<()> {
        self.0.flush().await
    }

    async fn ranges(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<(u64, RangeKind)>> {
        self.0.ranges(offset, len, count_max).await
    }

    async fn resize(&self, size_bytes: u64) -> Result<()> {
        self.0.resize(size_bytes, true).await
    }

    async fn drain(&self) -> Result<()> {
        self.0.drain().await
    }

    async fn close(&self, drain_limit: Duration) -> CloseReport {
        self.0.close(drain_limit).await
    }

    fn status(&self) -> VolumeStatus {
        self.0.status()
    }

    fn symptoms(&self) -> String {
        format!("{:?}; the scheduler: {:?}", self.status(), self.1.stats())
    }

    async fn set_mode(&self, mode: Mode) -> Result<bool> {
        self.0.set(LiveSettings { mode: Some(mode), ..LiveSettings::default() })?;
        Ok(true)
    }

    async fn set_paused(&self, paused: bool) -> Result<bool> {
        self.0.set(LiveSettings { paused: Some(paused), ..LiveSettings::default() })?;
        Ok(true)
    }

    async fn set_bound(&self, bound: Bound) -> Result<bool> {
        self.0.set(LiveSettings { cleaning: Some(bound.into()), ..LiveSettings::default() })?;
        Ok(true)
    }

    async fn collect(&self, what: Collect) -> Result<bool> {
        self.0.collect(what).await.map(|_| true)
    }

    async fn snapshot(&self, name: &str) -> Result<()> {
        self.0.snapshot(name).await
    }

    async fn remove_snapshot(&self, name: &str) -> Result<()> {
        self.0.remove_snapshot(name).await
    }

    async fn keep_for_clone(&self, name: &str, clone: VolumeId, way: &str) -> Result<()> {
        self.0.keep_for_clone(name, clone, way).await
    }

    async fn forget_removed_clones(&self) -> Result<()> {
        self.0.forget_removed_clones().await.map(drop)
    }

    async fn roll_back(&self, to: &str, leave: &str) -> Result<()> {
        self.0.roll_back(to, leave).await
    }

    fn snapshots(&self) -> Vec<String> {
        self.0.snapshots().into_iter().map(|snapshot| snapshot.name).filter(|name| !is_hidden(name)).collect()
    }

    fn set_rates(&self, rates: Rates) {
        self.1.set_rates(rates);
    }
}
