//! The end of a daemon: upload what can be uploaded in time, close, and tell what remains.
//!
//! The first signal brought us here; the second ends the uploading, the third ends everything.
//! The result is an error if something acknowledged is not in the store, and another one if it is not
//! in a journal either.

use std::{sync::Arc, time::Duration};

use cistern_engine::volume::{CloseReport, VolumeStatus};
use futures_util::future::join_all;

use crate::{
    daemon::{Daemon, host, signals::Signals},
    failure::{Failure, Kind, Outcome},
    quantity::{ByteSize, Span},
    terminal::{Progress, remark},
};

/// For the last checkpoint and the release of volumes that are drained.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// How often the progress is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(200);

/// Stops all volumes.
pub async fn stop(daemon: &Arc<Daemon>, drain_limit: Duration, signals: &mut Signals) -> Outcome {
    host::notify_stop_takes(drain_limit + 4 * CLOSE_LIMIT);
    signals.settle().await;
    let undrained = drain(daemon, drain_limit, signals).await;
    // A volume that is not drained has had its time.
    let limit = if undrained.iter().all(Option::is_none) { CLOSE_LIMIT } else { Duration::ZERO };
    let closing = join_all(daemon.served.iter().map(|served| served.volume.close(limit)));
    let reports = tokio::select! {
        biased;
        reports = closing => Some(reports),
        () = signals.next() => None,
    };
    conclude(daemon, &undrained, reports.as_deref())
}

/// Uploads until everything is committed, or the time is over or a signal comes; says for each volume why not
/// everything is.
async fn drain(daemon: &Arc<Daemon>, limit: Duration, signals: &mut Signals) -> Vec<Option<String>> {
    let dirty_bytes = || daemon.served.iter().map(|served| served.volume.status().dirty_bytes).sum::<u64>();
    if dirty_bytes() > 0 {
        let size = ByteSize(dirty_bytes());
        remark(format!("uploading {size} for at most {}; Ctrl-C leaves it in the journal", Span(limit)));
    }
    let progress = Progress::spinning("uploading");
    let began = daemon.env.now();
    let all = join_all(daemon.served.iter().map(|served| async move {
        match tokio::time::timeout(limit, served.volume.drain()).await {
            Ok(result) => result.err().map(|error| error.to_string()),
            Err(_) => Some(format!("not uploaded within {}", Span(limit))),
        }
    }));
    let show = async {
        loop {
            progress.message(format!("{} to upload", ByteSize(dirty_bytes())));
            tokio::time::sleep(SHOW_INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        () = signals.next() => {
            let seconds = Duration::from_secs(daemon.env.now().saturating_sub(began).as_secs());
            vec![Some(format!("interrupted after {}", Span(seconds))); daemon.served.len()]
        }
        undrained = all => undrained,
        () = show => unreachable!("shows until the others end"),
    }
}

/// Says for every volume where its data is.
fn conclude(daemon: &Daemon, undrained: &[Option<String>], reports: Option<&[CloseReport]>) -> Outcome {
    let (mut missing_bytes, mut left_bytes) = (0, 0);
    for (i, (served, undrained)) in daemon.served.iter().zip(undrained).enumerate() {
        let status = served.volume.status();
        let report = reports.map(|reports| &reports[i]);
        let end = End { status: &status, undrained: undrained.as_deref(), report };
        missing_bytes += bytes_nowhere(&status);
        left_bytes += end.left_bytes();
        remark(end.describe(&served.name));
    }
    match (missing_bytes, left_bytes) {
        (0, 0) => Ok(()),
        (0, left) => {
            let text =
                format!("{} of acknowledged data are not in the store, only in the journal", ByteSize(left));
            Err(Failure::new(Kind::NotClean, text).hint("nothing is lost while this host's disk is there"))
        }
        (missing, _) => {
            let text = format!(
                "{} of acknowledged data are neither in the store nor in a journal",
                ByteSize(missing)
            );
            Err(Failure::new(Kind::NotClean, text)
                .hint("the log above says why; none of it had been flushed"))
        }
    }
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
        let why = self.why().map(|why| format!(" ({why})")).unwrap_or_default();
        let next = match self.status.latched {
            Some(_) => "`cistern journal export` reads them",
            None => "the next start on this host uploads them",
        };
        match self.left_bytes() {
            0 => format!(
                "{name}: everything is in the store, but the volume is still claimed by this host{why}"
            ),
            left => format!("{name}: {} stay in the journal{why}; {next}", ByteSize(left)),
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
            damage: Default::default(),
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
}
