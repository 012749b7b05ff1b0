//! The end of a daemon: upload what can be uploaded in time, close, and tell what remains.
//!
//! The first signal brought us here; the second ends the uploading, the third ends everything.
//! The result is an error if something acknowledged is not in the store, and another one if it is not
//! in a journal either.

use std::{path::Path, sync::Arc, time::Duration};

use cistern_engine::volume::{CloseReport, VolumeStatus};
use futures_util::future::join_all;

use crate::{
    daemon::{Daemon, closed::ALL_STORED, host},
    failure::{Failure, Kind, Outcome},
    quantity::{ByteSize, Span},
    signals::{ONE_REQUEST, Signals},
    terminal::{Progress, remark},
};

/// For the last checkpoint and the release of volumes that are drained.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// How often the progress is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(200);

/// Stops all volumes.
pub async fn stop(
    daemon: &Arc<Daemon>,
    state_dir: &Path,
    drain_limit: Duration,
    signals: &mut Signals,
) -> Outcome {
    host::notify_stop_takes(drain_limit + 4 * CLOSE_LIMIT);
    // A rollback under way opens its volume anew, and no other begins.
    let _none_under_way = tokio::select! {
        biased;
        guard = daemon.rolling_back.lock() => Some(guard),
        () = signals.next() => None,
    };
    let undrained = drain(daemon, drain_limit, signals).await;
    // A volume that is not drained has had its time.
    let limit = if undrained.iter().all(Option::is_none) { CLOSE_LIMIT } else { Duration::ZERO };
    let all = daemon.served();
    let closing = join_all(all.iter().map(|served| served.volume.close(limit)));
    let reports = tokio::select! {
        biased;
        reports = closing => Some(reports),
        () = signals.next() => None,
    };
    conclude(daemon, state_dir, &undrained, reports.as_deref())?;
    if drain_limit.is_zero() {
        return Ok(()); // the user waits for no store
    }
    all_released(daemon, reports.as_deref())
}

/// Uploads until everything is committed, or the time is over or a signal comes; says for each volume why not
/// everything is.
async fn drain(daemon: &Arc<Daemon>, limit: Duration, signals: &mut Signals) -> Vec<Option<String>> {
    let served = daemon.served();
    let dirty_bytes = || served.iter().map(|served| served.volume.status().dirty_bytes).sum::<u64>();
    let progress = Progress::spinning("uploading");
    let began = daemon.env.now();
    let all = join_all(served.iter().map(|served| async move {
        match tokio::time::timeout(limit, served.volume.drain()).await {
            Ok(result) => result.err().map(|error| error.to_string()),
            Err(_) => Some(format!("not uploaded within {}", Span(limit))),
        }
    }));
    let show = async {
        tokio::time::sleep(ONE_REQUEST).await; // before, another signal would not count
        if dirty_bytes() > 0 {
            let size = ByteSize(dirty_bytes());
            remark(format!("uploading {size} for at most {}; Ctrl-C leaves it in the journal", Span(limit)));
        }
        loop {
            progress.message(format!("{} to upload", ByteSize(dirty_bytes())));
            tokio::time::sleep(SHOW_INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        () = signals.next() => {
            let seconds = Duration::from_secs(daemon.env.now().saturating_sub(began).as_secs());
            vec![Some(format!("interrupted after {}", Span(seconds))); served.len()]
        }
        undrained = all => undrained,
        () = show => unreachable!("shows until the others end"),
    }
}

/// Says for every volume where its data is.
fn conclude(
    daemon: &Daemon,
    state_dir: &Path,
    undrained: &[Option<String>],
    reports: Option<&[CloseReport]>,
) -> Outcome {
    let (mut missing_bytes, mut left_bytes) = (0, 0);
    for (i, (served, undrained)) in daemon.served().iter().zip(undrained).enumerate() {
        let status = served.volume.status();
        let report = reports.map(|reports| &reports[i]);
        let end = End { status: &status, undrained: undrained.as_deref(), report };
        missing_bytes += bytes_nowhere(&status);
        left_bytes += end.left_bytes();
        remark(end.describe(&served.name));
    }
    if missing_bytes > 0 {
        let text = format!(
            "{} of acknowledged data are neither in the store nor in a journal",
            ByteSize(missing_bytes)
        );
        return Err(
            Failure::new(Kind::NotClean, text).hint("the log above says why; none of it had been flushed")
        );
    }
    stopped(daemon, state_dir)?;
    if left_bytes > 0 {
        let text = format!(
            "{} of acknowledged data are not in the store, only in the journal",
            ByteSize(left_bytes)
        );
        return Err(
            Failure::new(Kind::NotClean, text).hint("nothing is lost while this host's disk is there")
        );
    }
    Ok(())
}

/// Fails for volumes that no other host can open now without taking them over.
fn all_released(daemon: &Daemon, reports: Option<&[CloseReport]>) -> Outcome {
    let served = daemon.served();
    let is_claimed = |i: usize| {
        let is_clean = reports.is_some_and(|reports| reports[i].clean);
        !served[i].volume.status().read_only && !is_clean
    };
    let claimed: Vec<&str> =
        (0..served.len()).filter(|i| is_claimed(*i)).map(|i| served[i].name.as_str()).collect();
    if claimed.is_empty() {
        return Ok(());
    }
    let failure = Failure::new(Kind::NotClean, format!("not released: {}", claimed.join(", ")));
    Err(failure.hint("the next `cistern serve` on this host goes on; another host needs --take-over"))
}

/// The failure of the first volume that had stopped before it was told to: what it had acknowledged may be in its
/// journal alone.
fn stopped(daemon: &Daemon, state_dir: &Path) -> Outcome {
    for served in daemon.served() {
        if let Some(why) = served.volume.status().latched {
            let id = served.volume.id();
            let hint = match served.volume.status().dirty_bytes {
                0 => ALL_STORED.to_owned(),
                _ => format!(
                    "its journal is in {}: `cistern journal export {id} --output FILE` saves what it holds, without the store",
                    state_dir.join(id.to_string()).display()
                ),
            };
            return Err(Failure::new(Kind::Stopped, format!("{}: {why}", served.name)).hint(hint));
        }
    }
    Ok(())
}

/// Acknowledged bytes that are not durable anywhere.
fn bytes_nowhere(status: &VolumeStatus) -> u64 {
    let safe = status.durable.max(status.committed);
    status.acknowledged.saturating_sub(safe) * cistern_engine::units::BLOCK_BYTES as u64
}

/// How one volume ended.
struct End<'a> {
    status: &'a VolumeStatus,
    /// Why it was not drained, if so.
    undrained: Option<&'a str>,
    /// Absent if the close was interrupted.
    report: Option<&'a CloseReport>,
}

impl End<'_> {
    /// Acknowledged bytes that are not in the store.
    fn left_bytes(&self) -> u64 {
        self.report.map_or(self.status.dirty_bytes, |report| report.journal_bytes_left)
    }

    fn describe(&self, name: &str) -> String {
        if self.status.read_only {
            return format!("{name}: closed");
        }
        let missing = bytes_nowhere(self.status);
        if missing > 0 {
            return format!("{name}: {} are missing", ByteSize(missing));
        }
        if self.report.is_some_and(|report| report.clean) {
            return format!("{name}: everything is in the store; released");
        }
        let left = match self.left_bytes() {
            0 => None,
            left => Some(format!("{} stay in the journal", ByteSize(left))),
        };
        if let Some(why) = &self.status.latched {
            let left = left.map(|left| format!("; {left}, `cistern journal export` reads them"));
            return format!("{name}: stopped: {why}{}", left.unwrap_or_default());
        }
        let why = self.why().map(|why| format!(" ({why})")).unwrap_or_default();
        match left {
            None if self.undrained.is_some() => format!(
                "{name}: everything was stored, but whether the store still has it was not seen; the volume is still claimed by this host{why}"
            ),
            None => format!(
                "{name}: everything is in the store, but the volume is still claimed by this host{why}"
            ),
            Some(left) => format!("{name}: {left}{why}; the next start on this host uploads them"),
        }
    }

    /// Why a volume is not clean, with what the store said last.
    fn why(&self) -> Option<String> {
        let closing = match self.report {
            Some(report) => report.reason.as_deref(),
            None => Some("interrupted"),
        };
        let why = self.undrained.or(closing)?;
        Some(match &self.status.store_error {
            Some(error) if !why.contains(error) => format!("{why}: {error}"),
            _ => why.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cistern_engine::{units::VolumeId, volume::Mode};

    fn status(acknowledged: u64, durable: u64, committed: u64) -> VolumeStatus {
        VolumeStatus {
            volume: VolumeId(uuid::Uuid::nil()),
            size_bytes: 4096,
            read_only: false,
            branch: None,
            mode: Mode::Writeback,
            epoch: 1,
            seq: 1,
            acknowledged,
            durable,
            uploaded: committed,
            committed,
            dirty_bytes: 0,
            dirty_age_ms: 0,
            journal_bytes: 0,
            journal_used_bytes: 0,
            uploads_in_flight: 0,
            store_error: None,
            store_error_age_ms: None,
            store_refuses: false,
            journal_waits: None,
            latched: None,
            damage: Default::default(),
            partial_blocks: false,
            write_back: None,
            space: None,
        }
    }

    /// Only what is neither in the journal nor in the store is missing.
    #[test]
    fn what_counts_as_missing() {
        assert_eq!(bytes_nowhere(&status(9, 9, 2)), 0);
        assert_eq!(bytes_nowhere(&status(9, 5, 9)), 0);
        assert_eq!(bytes_nowhere(&status(9, 5, 2)), 4 * 4096);
    }
    /// What stays in the journal is told with the true reason: why the drain ended, not what the close found after
    /// it, and what the store said.
    #[test]
    fn why_something_stays() {
        let report = |left| CloseReport {
            clean: false,
            journal_bytes_left: left,
            reason: Some("not drained within 0 s".to_owned()),
        };
        let mut status = status(9, 9, 2);
        status.store_error = Some("PUT log/7: 403".to_owned());
        let end =
            End { status: &status, undrained: Some("not uploaded within 1m"), report: Some(&report(4096)) };
        let told = end.describe("tank");
        assert!(
            told.contains("4 KiB stay in the journal (not uploaded within 1m: PUT log/7: 403)"),
            "{told}"
        );
        assert_eq!(end.left_bytes(), 4096);
        let cut_short = End { undrained: None, report: None, ..end };
        assert!(cut_short.describe("tank").contains("interrupted"));
    }

    /// A daemon that was clean, and whose store is gone when it stops, does not say that everything is in the store.
    #[test]
    fn what_was_not_seen_is_not_said() {
        let report = CloseReport { clean: false, journal_bytes_left: 0, reason: None };
        let status = status(9, 9, 9);
        let end = End { status: &status, undrained: Some("not uploaded within 1m"), report: Some(&report) };
        let told = end.describe("tank");
        assert!(!told.contains("everything is in the store") && told.contains("was not seen"), "{told}");
    }
}
