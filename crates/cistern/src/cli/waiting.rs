//! Requests to a daemon that are answered when something is in the store: what a store says that takes nothing is told meanwhile.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{control::DaemonClient, failure::Outcome, place::VolumeUrl, terminal};

/// How often a request that takes long is looked after.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// How often something else is told at most.
const TOLD_INTERVAL: Duration = Duration::from_secs(30);

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

/// What was told of a store that takes nothing. What it says may name another object each time.
#[derive(Default)]
pub struct StoreNews(Option<(String, Instant)>);

impl StoreNews {
    /// Whether this is to be told now: it was not told just before in these words, nor anything else within half a minute.
    pub fn is_news(&mut self, said: &str) -> bool {
        let now = Instant::now();
        let is_news =
            self.0.as_ref().is_none_or(|(last, at)| last != said && now.duration_since(*at) >= TOLD_INTERVAL);
        if is_news {
            self.0 = Some((said.to_owned(), now));
        }
        is_news
    }
}

/// Tells on stderr what their stores say.
async fn tell(daemon: &DaemonClient, urls: &[String]) {
    let mut told: BTreeMap<String, StoreNews> = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let Ok(status) = daemon.status().await else { continue };
        let ours = status.volumes.iter().filter(|served| urls.iter().any(|url| served.is(url)));
        for served in ours {
            let Some(now) = served.store_refusal() else { continue };
            if told.entry(served.name.clone()).or_default().is_news(&now) {
                terminal::remark(format!(
                    "waiting for the store of {}: {now}. It is tried again",
                    served.name
                ));
            }
        }
    }
}
