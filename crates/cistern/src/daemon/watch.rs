//! Looks at the volumes now and then, and says when something changed that people should know.

use std::time::Duration;

use cistern_engine::volume::{Mode, VolumeStatus};

use crate::{
    daemon::{Daemon, Served, host},
    quantity::{ByteSize, Span},
};

/// How often to look.
const INTERVAL: Duration = Duration::from_secs(1);

/// What is worth a line in the log when it changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Health {
    #[default]
    Fine,
    /// Since this time.
    StoreAway(Duration),
    Stopped,
}

impl Health {
    /// `away`: for how long the store has not been reached, as `status` shows it.
    fn of(status: &VolumeStatus, away: Option<Duration>, now: Duration) -> Health {
        match away {
            _ if status.latched.is_some() => Health::Stopped,
            Some(away) => Health::StoreAway(now.saturating_sub(away)),
            None => Health::Fine,
        }
    }
}

/// Watches until dropped.
pub async fn watch(daemon: &Daemon) {
    let mut known = vec![Health::default(); daemon.served().len()];
    let mut told = String::new();
    let mut clock = tokio::time::interval(INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let mut dirty_bytes = 0;
        for (served, known) in daemon.served().iter().zip(&mut known) {
            let status = served.volume.status();
            dirty_bytes += status.dirty_bytes;
            note(served, &status, known, daemon.env.now());
        }
        let text = summary(&known, dirty_bytes);
        if text != told {
            host::notify_status(&text);
            told = text;
        }
    }
}

/// Logs what has changed, once.
fn note(served: &Served, status: &VolumeStatus, known: &mut Health, now: Duration) {
    let volume = &served.name;
    let health = Health::of(status, served.store.meter.away_for(), now);
    match (*known, health) {
        (Health::Fine, Health::StoreAway(_)) => {
            let error = served.store.meter.snapshot().last_error.map(|error| error.text);
            let error = error.unwrap_or_default();
            tracing::warn!(volume, error, "the store does not answer, or refuses; {}", goes_on(status));
        }
        (Health::StoreAway(since), Health::Fine) => {
            let away = Span(now.saturating_sub(since));
            tracing::info!(volume, %away, "the store answers again");
        }
        (Health::Fine | Health::StoreAway(_), Health::Stopped) => {
            let why = status.latched.as_deref().unwrap_or_default();
            tracing::error!(volume, why, "the volume has stopped");
        }
        _ => {}
    }
    *known = health;
}

/// What a volume still does without its store.
fn goes_on(status: &VolumeStatus) -> String {
    let Some(write_back) = &status.write_back else {
        return "what is in the cache can be read".to_owned();
    };
    let room = ByteSize(write_back.dirty_bytes_max.saturating_sub(status.dirty_bytes));
    let flushes = match status.mode {
        Mode::Writethrough => "writes go on, flushes wait for it",
        Mode::Writeback | Mode::Writearound => "writes and flushes go on",
    };
    format!("{flushes}, with room for {room}; what is not here cannot be read")
}

fn summary(health: &[Health], dirty_bytes: u64) -> String {
    let stopped = health.iter().filter(|h| **h == Health::Stopped).count();
    let away = health.iter().any(|h| matches!(h, Health::StoreAway(_)));
    let volumes = health.len();
    match (stopped, away, dirty_bytes) {
        (0, false, 0) => format!("{volumes} volumes, everything is in the store"),
        (0, false, bytes) => format!("{volumes} volumes, {} to upload", ByteSize(bytes)),
        (0, true, bytes) => format!("the store does not answer, or refuses, {} to upload", ByteSize(bytes)),
        (n, ..) => format!("{n} of {volumes} volumes have stopped, see the log"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The service manager's line says the worst thing first.
    #[test]
    fn the_worst_comes_first() {
        let away = Health::StoreAway(Duration::ZERO);
        assert_eq!(summary(&[Health::Fine], 0), "1 volumes, everything is in the store");
        assert_eq!(summary(&[Health::Fine], 1 << 20), "1 volumes, 1 MiB to upload");
        assert!(summary(&[Health::Fine, away], 1).contains("does not answer"));
        assert!(summary(&[away, Health::Stopped], 1).contains("1 of 2 volumes have stopped"));
    }
}
