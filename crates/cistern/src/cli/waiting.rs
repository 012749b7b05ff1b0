//! Requests to a daemon that are answered when something is in the store: what a store says that takes nothing is told meanwhile.

use std::{collections::BTreeMap, time::Duration};

use crate::{control::DaemonClient, failure::Outcome, place::VolumeUrl, terminal};

/// How often a request that takes long is looked after.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// What `asked` comes to, which asks a daemon for something of these volumes.
pub async fn telling<T>(
    daemon: &DaemonClient,
    volumes: &[&VolumeUrl],
    asked: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    let urls: Vec<String> = volumes.iter().map(|volume| volume.url.to_string()).collect();
    tokio::select! {
        biased;
        done = asked => done,
        () = tell(daemon, &urls) => unreachable!("tells until the request is answered"),
    }
}

/// Tells on stderr what their stores say, each time that it changes.
async fn tell(daemon: &DaemonClient, urls: &[String]) {
    let mut told = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let Ok(status) = daemon.status().await else { continue };
        let ours = status.volumes.iter().filter(|served| urls.iter().any(|url| served.is(url)));
        for served in ours {
            let Some(now) = served.store_refusal() else { continue };
            if told.get(&served.name) != Some(&now) {
                terminal::remark(format!(
                    "waiting for the store of {}: {now}. It is tried again",
                    served.name
                ));
                told.insert(served.name.clone(), now);
            }
        }
    }
}
