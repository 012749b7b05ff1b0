//! What commands can have a daemon do, each verb by the part of the daemon that does it.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use serde_json::Value;

use crate::{control::Request, daemon::Daemon, failure::Outcome};

/// Does what a command asks for.
pub async fn perform(daemon: &Arc<Daemon>, request: Request) -> Outcome<Value> {
    match request {
        Request::Drain { volume, limit_ms } => {
            let limit = limit_ms.map(Duration::from_millis);
            done(daemon.drain(volume.as_deref(), limit).await)
        }
        Request::Warm { volume, what, from } => done(daemon.warm(&volume, what, from).await),
        Request::Collect { volume, what } => done(daemon.collect(&volume, what).await),
        Request::Snapshots { volume } => done(daemon.snapshots(&volume)),
        Request::Snapshot { snapshots, wait } => done(daemon.clone().snapshot(snapshots, wait).await),
        Request::ChangeSnapshot { snapshot, change } => {
            done(daemon.clone().change_snapshot(snapshot, change).await)
        }
        Request::RollBack { snapshot, leave, force } => {
            done(daemon.clone().roll_back(snapshot, leave, force).await)
        }
        Request::Resize { volume, size_bytes, force } => {
            done(daemon.resize(&volume, size_bytes, force).await)
        }
        Request::ServeDevice { export, device } => done(daemon.serve_device(&export, device).await),
        Request::Stop { drain } => {
            daemon.ask_to_stop(drain);
            done(Ok(()))
        }
        Request::Set { volume, changes } => done(daemon.set(&volume, &changes).await),
    }
}

fn done(outcome: Outcome<impl Serialize>) -> Outcome<Value> {
    Ok(serde_json::to_value(outcome?).expect("answers have string keys"))
}
