//! The end of a daemon: upload what can be uploaded in time, close, and tell what remains.
//!
//! The first signal brought us here; the second ends the uploading, the third ends everything.
//! The result is an error only if something acknowledged is neither in the store nor in a journal.

use std::{path::Path, sync::Arc, time::Duration};

use cistern_engine::volume::{CloseReport, VolumeStatus};
use futures_util::future::join_all;

use crate::{
    daemon::{Daemon, Served, host, signals::Signals},
    failure::{Failure, Kind, Outcome},
    quantity::{ByteSize, Span},
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
    signals.settle().await;
    let drained = drain(daemon, drain_limit, signals).await;
    // A volume that is not drained has had its time.
    let limit = if drained { CLOSE_LIMIT } else { Duration::ZERO };
    let closing = join_all(daemon.served.iter().map(|served| served.volume.close(limit)));
    tokio::select! {
        biased;
        reports = closing => conclude(daemon, state_dir, Some(&reports)),
        () = signals.next() => conclude(daemon, state_dir, None),
    }
}

/// Uploads until everything is committed: true; or the time is over or a signal comes: false.
async fn drain(daemon: &Arc<Daemon>, limit: Duration, signals: &mut Signals) -> bool {
    let dirty_bytes = || daemon.served.iter().map(|served| served.volume.status().dirty_bytes).sum::<u64>();
    if dirty_bytes() > 0 {
        let size = ByteSize(dirty_bytes());
        remark(format!("uploading {size} for at most {}; Ctrl-C leaves it in the journal", Span(limit)));
    }
    let progress = Progress::spinning("uploading");
    let all = async {
        let results = join_all(daemon.served.iter().map(|served| served.volume.drain())).await;
        results.iter().all(Result::is_ok)
    };
    let show = async {
        loop {
            progress.message(format!("{} to upload", ByteSize(dirty_bytes())));
            tokio::time::sleep(SHOW_INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        () = signals.next() => false,
        drained = tokio::time::timeout(limit, all) => drained.unwrap_or(false),
        () = show => unreachable!("shows until the others end"),
    }
}

/// Says for every volume where its data is.
fn conclude(daemon: &Daemon, state_dir: &Path, reports: Option<&[CloseReport]>) -> Outcome {
    let mut missing_bytes = 0;
    for (i, served) in daemon.served.iter().enumerate() {
        let status = served.volume.status();
        let missing = bytes_nowhere(&status);
        missing_bytes += missing;
        remark(farewell(served, &status, reports.map(|reports| &reports[i]), missing));
    }
    if missing_bytes == 0 {
        return stopped(daemon, state_dir);
    }
    let text =
        format!("{} of acknowledged data are neither in the store nor in a journal", ByteSize(missing_bytes));
    Err(Failure::new(Kind::NotClean, text).hint("the log above says why; none of it had been flushed"))
}

/// The failure of the first volume that had stopped before it was told to: what it had acknowledged may be in its
/// journal alone.
fn stopped(daemon: &Daemon, state_dir: &Path) -> Outcome {
    for served in &daemon.served {
        if let Some(why) = served.volume.status().latched {
            let id = served.volume.id();
            return Err(Failure::new(Kind::Stopped, format!("{}: {why}", served.name)).hint(format!(
                "its journal is in {}: `cistern journal export {id} --output FILE` saves what it holds, \
                 without the store",
                state_dir.join(id.to_string()).display()
            )));
        }
    }
    Ok(())
}

/// Acknowledged bytes that are not durable anywhere.
fn bytes_nowhere(status: &VolumeStatus) -> u64 {
    let safe = status.durable.max(status.committed);
    status.acknowledged.saturating_sub(safe) * cistern_engine::units::BLOCK_BYTES as u64
}

fn farewell(served: &Served, status: &VolumeStatus, report: Option<&CloseReport>, missing: u64) -> String {
    let name = &served.name;
    if status.read_only {
        return format!("{name}: closed");
    }
    if missing > 0 {
        return format!("{name}: {} are missing", ByteSize(missing));
    }
    if let Some(why) = &status.latched {
        return format!("{name}: stopped: {why}");
    }
    let left = report.map_or(status.dirty_bytes, |report| report.journal_bytes_left);
    let why = match report {
        Some(CloseReport { clean: true, .. }) => {
            return format!("{name}: everything is in the store; released");
        }
        Some(report) => report.reason.as_deref().map(|why| format!(" ({why})")).unwrap_or_default(),
        None => " (interrupted)".to_owned(),
    };
    match left {
        0 => format!("{name}: everything is in the store, but the volume is still claimed by this host{why}"),
        left => format!(
            "{name}: {} stay in the journal{why}; the next start on this host uploads them",
            ByteSize(left)
        ),
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
            latched: None,
            write_back: None,
        }
    }

    /// Only what is neither in the journal nor in the store is missing.
    #[test]
    fn what_counts_as_missing() {
        assert_eq!(bytes_nowhere(&status(9, 9, 2)), 0);
        assert_eq!(bytes_nowhere(&status(9, 5, 9)), 0);
        assert_eq!(bytes_nowhere(&status(9, 5, 2)), 4 * 4096);
    }
}
