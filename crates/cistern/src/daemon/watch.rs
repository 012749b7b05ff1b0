//! Looks at the volumes now and then, and says when something changed that people should know.

use std::time::Duration;

use cistern_engine::volume::VolumeStatus;

use crate::{daemon::Daemon, daemon::host, quantity::ByteSize};

/// How often to look.
const INTERVAL: Duration = Duration::from_secs(1);
/// A store that gave an error so recently counts as away: longer than the waits between tries.
const AWAY_MS: u64 = 15_000;

/// What is worth a line in the log when it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Health {
    #[default]
    Fine,
    StoreAway(String),
    Stopped(String),
}

impl Health {
    fn of(status: &VolumeStatus) -> Health {
        if let Some(why) = &status.latched {
            return Health::Stopped(why.clone());
        }
        match &status.store_error {
            Some(error) if status.store_error_age_ms.is_some_and(|age| age <= AWAY_MS) => {
                Health::StoreAway(error.clone())
            }
            _ => Health::Fine,
        }
    }
}

/// Watches until dropped.
pub async fn watch(daemon: &Daemon) {
    let mut known = vec![Health::default(); daemon.served.len()];
    let mut told = String::new();
    let mut clock = tokio::time::interval(INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let mut dirty_bytes = 0;
        for (served, known) in daemon.served.iter().zip(&mut known) {
            let status = served.volume.status();
            dirty_bytes += status.dirty_bytes;
            note(&served.name, known, Health::of(&status));
        }
        let text = summary(&known, dirty_bytes);
        if text != told {
            host::notify_status(&text);
            told = text;
        }
    }
}

fn note(name: &str, known: &mut Health, now: Health) {
    match (&*known, &now) {
        (Health::Fine, Health::StoreAway(error)) => {
            tracing::warn!(volume = name, error, "the store does not answer; writes go on into the journal");
        }
        (Health::StoreAway(_), Health::Fine) => tracing::info!(volume = name, "the store answers again"),
        (Health::Fine | Health::StoreAway(_), Health::Stopped(why)) => {
            tracing::error!(volume = name, why, "the volume has stopped");
        }
        _ => {}
    }
    *known = now;
}

fn summary(health: &[Health], dirty_bytes: u64) -> String {
    let stopped = health.iter().filter(|h| matches!(h, Health::Stopped(_))).count();
    let away = health.iter().any(|h| matches!(h, Health::StoreAway(_)));
    let volumes = health.len();
    match (stopped, away, dirty_bytes) {
        (0, false, 0) => format!("{volumes} volumes, everything is in the store"),
        (0, false, bytes) => format!("{volumes} volumes, {} to upload", ByteSize(bytes)),
        (0, true, bytes) => format!("the store does not answer, {} to upload", ByteSize(bytes)),
        (n, ..) => format!("{n} of {volumes} volumes have stopped, see the log"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The service manager's line says the worst thing first.
    #[test]
    fn the_worst_comes_first() {
        let away = || Health::StoreAway("time-out".into());
        let stopped = || Health::Stopped("fenced".into());
        assert_eq!(summary(&[Health::Fine], 0), "1 volumes, everything is in the store");
        assert_eq!(summary(&[Health::Fine], 1 << 20), "1 volumes, 1 MiB to upload");
        assert!(summary(&[Health::Fine, away()], 1).contains("does not answer"));
        assert!(summary(&[away(), stopped()], 1).contains("1 of 2 volumes have stopped"));
    }
}
