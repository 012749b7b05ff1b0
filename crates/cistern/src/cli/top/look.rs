//! What all daemons of this host say, once a second: how their volumes are, what they do now, and the past of the one that is looked at.

use std::{path::Path, time::Duration};

use tokio::sync::{mpsc, watch};

use crate::{
    control::{self, DaemonClient, DaemonStatus},
    failure::Outcome,
    history::{HistoryQuery, HistoryReply, RingReply},
};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Columns of one second in which the newest figures are looked for: the newest one may not be there yet.
const NEWEST: u64 = 3;
/// Milliseconds of a column of the newest figures.
const SECOND_MS: u64 = 1000;

/// Of what somebody wants to see the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPast {
    pub volume: Option<String>,
    pub step_ms: u64,
    pub columns: u64,
}

/// A daemon, at one moment.
pub struct SeenDaemon {
    pub status: DaemonStatus,
    /// The last seconds of all of its volumes.
    pub newest: Option<RingReply>,
    /// The past of the volume that is wanted, if it serves that.
    pub past: Option<RingReply>,
}

/// Looks again and again until nobody listens.
pub async fn keep_looking(
    state_dir: &Path,
    mut wanted: watch::Receiver<WantedPast>,
    seen: mpsc::Sender<Outcome<Vec<SeenDaemon>>>,
) {
    loop {
        let past = wanted.borrow_and_update().clone();
        if seen.send(look(state_dir, &past).await).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

async fn look(state_dir: &Path, past: &WantedPast) -> Outcome<Vec<SeenDaemon>> {
    let mut all = Vec::new();
    for daemon in control::daemons(state_dir).await? {
        // One that ends meanwhile is not there.
        all.extend(look_at(&daemon, past).await.ok());
    }
    Ok(all)
}

async fn look_at(daemon: &DaemonClient, wanted: &WantedPast) -> Outcome<SeenDaemon> {
    let status = daemon.status().await?;
    let serves = |name: &String| status.volumes.iter().any(|served| served.name == *name);
    let newest = HistoryQuery { step_ms: Some(SECOND_MS), ..HistoryQuery::default() };
    let newest = last(daemon, newest, NEWEST).await?;
    let past = match wanted.volume.clone().filter(serves) {
        Some(volume) => {
            let query = HistoryQuery { volume: Some(volume), step_ms: Some(wanted.step_ms), since_ms: None };
            last(daemon, query, wanted.columns).await?
        }
        None => None,
    };
    Ok(SeenDaemon { status, newest, past })
}

/// The newest columns of a ring.
async fn last(daemon: &DaemonClient, query: HistoryQuery, columns: u64) -> Outcome<Option<RingReply>> {
    let step_ms = query.step_ms.unwrap_or(SECOND_MS);
    let now_ms = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis() as u64);
    let since_ms = Some(now_ms.saturating_sub(columns * step_ms));
    let HistoryReply { rings, .. } = daemon.history(&HistoryQuery { since_ms, ..query }).await?;
    Ok(rings.into_iter().next())
}
