//! Where probes of one place meet that run at the same time on several hosts.
//!
//! Each probe has names of its own, so two of them would never contend for one object. Gateways that each check a
//! condition alone would pass. Therefore every tenth of a second by the wall clock has a name that all probes of the place
//! derive alike. Each of them tries to create it; who does must find its own bytes in it when the races are over.
//!
//! An object is deleted by the probe that created it and by no other one. What a probe that was killed leaves is in nobody's
//! way: its name never comes again.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Session, read_back};
use crate::{
    Result,
    store::{Put, StoreError},
};

/// What hosts whose clocks are set have in common.
const SLOT_MS: u64 = 100;
/// Writers of each probe.
const WRITERS: usize = 4;

/// Meets until it is `over`; gives what was wrong.
pub(super) async fn run(session: &Session<'_>, over: &AtomicBool) -> Result<Option<String>> {
    let mut created: Vec<(String, Bytes)> = Vec::new();
    while !over.load(Relaxed) {
        let rest_ms = SLOT_MS - session.env.wall_ms() % SLOT_MS;
        session.env.sleep(Duration::from_millis(rest_ms)).await;
        // A sleep may end early by the wall clock.
        let slot = (session.env.wall_ms() + SLOT_MS / 2) / SLOT_MS;
        let key = format!("probe/meeting/{slot}");
        let bodies: Vec<Bytes> =
            (0..WRITERS).map(|writer| Bytes::from(format!("{} {writer}", session.id))).collect();
        let answers =
            join_all(bodies.iter().map(|body| session.store.put_if_absent(&key, body.clone()))).await;
        let won: Vec<usize> =
            (0..WRITERS).filter(|&writer| matches!(answers[writer], Ok(Put::Created))).collect();
        match won.as_slice() {
            [winner] => {
                session.delete_later(&key);
                created.push((key, bodies[*winner].clone()));
            }
            // Another probe has it, or an answer was lost and it is ours.
            [] => match read_back(session.store, &key).await {
                Ok(Some(content)) if bodies.contains(&content) => session.delete_later(&key),
                Err(e @ StoreError::Unreachable(_)) => return Err(e.into()),
                _ => {}
            },
            many => {
                session.delete_later(&key);
                return Ok(Some(format!(
                    "{} of {WRITERS} writers at once were told that they had created it",
                    many.len()
                )));
            }
        }
    }
    for (key, body) in created {
        if read_back(session.store, &key).await? != Some(body) {
            return Ok(Some(
                "another probe at the same time was told as well that it had created an object".to_owned(),
            ));
        }
    }
    Ok(None)
}
