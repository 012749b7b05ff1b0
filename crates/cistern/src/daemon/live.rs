//! The settings of served volumes that change while they are served.
//!
//! What was set wins over the command line, that over the settings file, that over the defaults: the
//! last thing somebody decided about this volume counts, also after a restart with an old command
//! line. A change is kept durably before it takes effect.

use std::{path::PathBuf, sync::Arc};

use cistern_engine::{
    space::Cleaning,
    store::Rates,
    volume::{LiveSettings, Mode, Volume},
};

use crate::{
    config::{LiveBase, ModeSetting, SettingSource},
    failure::Outcome,
    live::{Change, Kept, SettingStatus},
    quantity::{ByteSize, SpaceBound, Span},
    schedule::Schedule,
};

/// The settings of one volume.
pub struct Live {
    /// The volume's state directory.
    directory: PathBuf,
    base: LiveBase,
    /// Held over the writing of the file: one change at a time.
    changing: tokio::sync::Mutex<()>,
    kept: std::sync::Mutex<Kept>,
}

impl Live {
    /// Reads what is kept in the volume's state directory.
    pub fn load(directory: PathBuf, base: LiveBase) -> Outcome<Live> {
        let kept = std::sync::Mutex::new(Kept::load(&directory)?);
        Ok(Live { directory, base, changing: tokio::sync::Mutex::new(()), kept })
    }

    pub fn kept(&self) -> Kept {
        self.kept.lock().expect("nothing panics under this lock").clone()
    }

    /// What the volume is to be opened with.
    pub fn settings(&self) -> LiveSettings {
        self.effective(&self.kept())
    }

    fn effective(&self, kept: &Kept) -> LiveSettings {
        LiveSettings {
            mode: Some(kept.mode.unwrap_or(self.base.mode).into()),
            dirty_age_max: Some(kept.max_dirty_age().unwrap_or(self.base.dirty_age_max)),
            dirty_bytes_max: Some(kept.max_dirty_bytes.unwrap_or(self.base.dirty_bytes_max)),
            paused: Some(kept.paused_since_ms.is_some()),
            cleaning: Some(Cleaning {
                bound: kept.space_bound.map_or(self.base.space_bound, |bound| bound.0),
                rate: kept.gc_rate,
            }),
        }
    }

    /// Makes changes: checked, kept, then in effect. What was acknowledged before a switch to
    /// `writethrough` may still be on its way: [`Volume::drain`] waits for it.
    pub async fn change(&self, volume: &Arc<Volume>, changes: &[Change], wall_ms: u64) -> Outcome {
        let _one_at_a_time = self.changing.lock().await;
        let kept = self.kept().after(changes, wall_ms);
        let settings = self.effective(&kept);
        volume.may_set(&settings)?;
        let (directory, saved) = (self.directory.clone(), kept.clone());
        let saving = tokio::task::spawn_blocking(move || saved.save(&directory));
        saving.await.expect("saving does not panic")?;
        *self.kept.lock().expect("nothing panics under this lock") = kept;
        Ok(volume.set(settings)?)
    }

    /// The rates this volume asks for.
    pub fn rates(&self) -> Rates {
        let kept = self.kept();
        Rates { upload: kept.upload_rate, download: kept.download_rate }
    }

    /// What is in effect, and where it comes from.
    pub fn show(&self) -> Vec<SettingStatus> {
        let (kept, base, from) = (self.kept(), &self.base, &self.base.sources);
        let rate = |rate: Option<u64>| rate.map_or("unlimited".to_owned(), |r| format!("{}/s", ByteSize(r)));
        let row = |name: &str, value: String, set: bool, from: SettingSource| SettingStatus {
            name: name.to_owned(),
            value,
            from: if set { SettingSource::Set } else { from },
        };
        let mode: ModeSetting = kept.mode.unwrap_or(base.mode);
        let age = kept.max_dirty_age().unwrap_or(base.dirty_age_max);
        let bytes = kept.max_dirty_bytes.unwrap_or(base.dirty_bytes_max);
        let bound = kept.space_bound.unwrap_or(SpaceBound(base.space_bound));
        let rates = self.rates();
        vec![
            row("mode", mode.name().to_owned(), kept.mode.is_some(), from.mode),
            row("upload-rate", rate(rates.upload), kept.upload_rate.is_some(), SettingSource::Default),
            row("download-rate", rate(rates.download), kept.download_rate.is_some(), SettingSource::Default),
            row(
                "max-dirty-bytes",
                ByteSize(bytes).to_string(),
                kept.max_dirty_bytes.is_some(),
                from.max_dirty_bytes,
            ),
            row("max-dirty-age", Span(age).to_string(), kept.max_dirty_age_ms.is_some(), from.max_dirty_age),
            row("space-bound", bound.to_string(), kept.space_bound.is_some(), from.space_bound),
            row("gc-rate", rate(kept.gc_rate), kept.gc_rate.is_some(), SettingSource::Default),
            row(
                "auto-snapshot",
                kept.auto_snapshot.as_ref().map_or("none".to_owned(), Schedule::to_string),
                kept.auto_snapshot.is_some(),
                SettingSource::Default,
            ),
        ]
    }
}

/// The rates of a daemon: its volumes share one link, so the least that is asked for counts.
pub fn least<'a>(lives: impl Iterator<Item = &'a Live>) -> Rates {
    let min = |a: Option<u64>, b: Option<u64>| [a, b].into_iter().flatten().min();
    lives.map(Live::rates).fold(Rates::default(), |sum, rates| Rates {
        upload: min(sum.upload, rates.upload),
        download: min(sum.download, rates.download),
    })
}

/// Whether a change ends with a wait for the store.
pub fn reaches_the_store(changes: &[Change], now: Mode) -> bool {
    now == Mode::Writethrough && changes.iter().any(|change| matches!(change, Change::Mode(_)))
}
