//! The engine as the simulator drives it: what a client can do to a device, and how one is opened.
//!
//! [`RealEngine`] is the engine under test. The traits exist because the checker itself is tested
//! with devices that lie (`tests/lies.rs`) and with a small engine that can be broken (`toy`).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::{Compression, KeySource},
    disk::Disk,
    env::Env,
    space::Bound,
    store::{Rates, SharedStore},
    units::{SECTOR_BYTES, VolumeId},
    volume::{CloseReport, Collect, Mode, RangeKind, VolumeStatus},
};

use crate::model::BLOCK_SECTORS;

mod real;

pub use real::RealEngine;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Whether a trim makes all of its range zero. If not, parts of blocks at its ends stay as they are.
const TRIMS_TO_THE_BYTE: bool = true;

/// Where an engine runs: one incarnation of one host.
#[derive(Clone)]
pub struct Site {
    pub env: Env,
    /// The volume's name in the bucket.
    pub place: &'static str,
    /// Where the volume lies, in the bucket.
    pub store: SharedStore,
    pub bucket: SharedStore,
    pub state: Arc<dyn Disk>,
    pub cache: Arc<dyn Disk>,
    pub host: String,
}

/// What a volume of this run is like, and how it is opened.
#[derive(Clone, Debug)]
pub struct Settings {
    pub size_bytes: u64,
    pub compression: Compression,
    pub key: KeySource,
    pub mode: Mode,
    pub journal_bytes: u64,
    pub dirty_age_max: Duration,
    pub dirty_bytes_max: u64,
    pub memory_bytes: u64,
    /// Bytes of the chunk cache; 0 for none.
    pub cache_bytes: u64,
    pub grace: Duration,
    pub grace_alone: Duration,
    pub slot_grace: Duration,
    pub space_bound: Bound,
}

/// One acknowledged change that a journal holds, in sectors.
#[derive(Clone, Debug)]
pub enum Exported {
    Write { offset: u64, data: Bytes },
    Zero { offset: u64, len: u64 },
    Resize { size_bytes: u64 },
}

/// How a snapshot is to be brought into another volume.
pub struct Errand {
    /// Which of those that are there, from the oldest (0) to the newest (1), unless one is to be completed.
    pub which: f64,
    pub shares: u32,
    /// How much of the stream comes, if it breaks.
    pub cut: Option<f64>,
    /// What breaks is kept to go on from there, and what was kept is gone on with.
    pub resumes: bool,
    pub compares: bool,
    /// The host that received before is gone.
    pub take_over: bool,
    /// Told of a snapshot that may be there as a whole from now on.
    pub ends: Box<dyn Fn(&str) + Send + Sync>,
    /// Told of one that is in the store.
    pub stored: Box<dyn Fn(&str) + Send + Sync>,
}

/// Makes and opens volumes.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    async fn create(&self, site: &Site, settings: &Settings) -> Result<()>;
    /// Removes every object of the volume.
    async fn remove(&self, site: &Site) -> Result<()>;
    async fn open(&self, site: &Site, settings: &Settings, take_over: bool) -> Result<Arc<dyn Device>>;
    /// Opens the newest committed state, or a snapshot of this name.
    async fn open_read_only(
        &self,
        site: &Site,
        settings: &Settings,
        snapshot: Option<String>,
    ) -> Result<Arc<dyn Device>>;
    /// Makes a clone of a snapshot of a volume that is open, which lies beside it.
    async fn clone_volume(
        &self,
        _from: &Site,
        _to: &Site,
        _settings: &Settings,
        _device: &dyn Device,
        _snapshot: &str,
    ) -> Result<()> {
        Err(Error::Invalid("it has no clones".into()))
    }
    /// Brings a snapshot of a volume into another one.
    async fn back_up(&self, _from: &Site, _to: &Site, _settings: &Settings, _errand: &Errand) -> Result<()> {
        Err(Error::Invalid("it has no snapshots".into()))
    }
    /// Faults found in the committed state, one line each.
    async fn check(&self, site: &Site, settings: &Settings) -> Result<Vec<String>>;
    /// How many objects are in the store that nothing names.
    async fn orphans(&self, _site: &Site, _settings: &Settings) -> Result<u64> {
        Ok(0)
    }
    /// What the journal of this host holds, in order.
    async fn export(&self, site: &Site, settings: &Settings) -> Result<Vec<Exported>>;
    /// Removes the journal of this host.
    async fn discard(&self, site: &Site) -> Result<()>;
    /// Whether volumes can have secrets at all.
    fn has_secrets(&self) -> bool {
        true
    }
    /// Exchanges the secret of a volume.
    async fn change_key(&self, _site: &Site, _old: &KeySource, _new: &KeySource) -> Result<()> {
        Ok(())
    }
    /// Whether a secret is that of the volume; changes nothing.
    async fn unlock(&self, _site: &Site, _secret: &KeySource) -> Result<()> {
        Ok(())
    }
}

/// An open volume.
#[async_trait]
pub trait Device: Send + Sync + 'static {
    fn size_bytes(&self) -> u64;
    async fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>>;
    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<()>;
    async fn zero(&self, offset: u64, len: u64, allocated: bool, fua: bool) -> Result<()>;
    /// Gives up a range.
    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        let (first, count) = trimmed(offset / SECTOR, len / SECTOR);
        match count {
            0 => Ok(()),
            _ => self.zero(first * SECTOR, count * SECTOR, false, fua).await,
        }
    }
    async fn flush(&self) -> Result<()>;
    async fn ranges(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<(u64, RangeKind)>>;
    /// Whether it keeps what was written apart from what reads as zeroes.
    fn knows_ranges(&self) -> bool {
        true
    }
    async fn resize(&self, size_bytes: u64) -> Result<()>;
    async fn drain(&self) -> Result<()>;
    async fn close(&self, drain_limit: Duration) -> CloseReport;
    fn status(&self) -> VolumeStatus;
    /// What there is to see when it hangs.
    fn symptoms(&self) -> String {
        format!("{:?}", self.status())
    }
    /// Switches the mode while requests are under way; false where that cannot be done.
    async fn set_mode(&self, _mode: Mode) -> Result<bool> {
        Ok(false)
    }
    /// Holds the uploads, or lets them go on; false where that cannot be done.
    async fn set_paused(&self, _paused: bool) -> Result<bool> {
        Ok(false)
    }
    /// Lets so much be stored for what is live; false where that cannot be done.
    async fn set_bound(&self, _bound: Bound) -> Result<bool> {
        Ok(false)
    }
    /// One step of a collection of garbage; false where that cannot be done.
    async fn collect(&self, _what: Collect) -> Result<bool> {
        Ok(false)
    }
    /// Makes a snapshot of this name.
    async fn snapshot(&self, _name: &str) -> Result<()> {
        Ok(())
    }
    async fn remove_snapshot(&self, _name: &str) -> Result<()> {
        Ok(())
    }
    /// Keeps a snapshot for a clone.
    async fn keep_for_clone(&self, _name: &str, _clone: VolumeId, _way: &str) -> Result<()> {
        Ok(())
    }
    /// Lets go of what is kept for clones that are gone.
    async fn forget_removed_clones(&self) -> Result<()> {
        Ok(())
    }
    /// Rolls the volume back to a snapshot, and closes it.
    async fn roll_back(&self, _to: &str, _leave: &str) -> Result<()> {
        Err(Error::Invalid("it has no snapshots".into()))
    }
    /// Names of the snapshots.
    fn snapshots(&self) -> Vec<String> {
        Vec::new()
    }
    /// Limits the way to the store from now on.
    fn set_rates(&self, _rates: Rates) {}
}

/// The sectors that a trim of `count` sectors from `first` on makes zero.
pub fn trimmed(first: u64, count: u64) -> (u64, u64) {
    if TRIMS_TO_THE_BYTE {
        return (first, count);
    }
    let start = first.next_multiple_of(BLOCK_SECTORS);
    let end = (first + count) / BLOCK_SECTORS * BLOCK_SECTORS;
    (start, end.saturating_sub(start))
}

/// Whether the same call may succeed later.
pub fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Unreachable(_) | Error::NoRoom(_))
}
