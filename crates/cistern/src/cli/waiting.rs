//! Work that is done when something is in the store: what a store says that takes nothing is told meanwhile.

use std::time::{Duration, Instant};

use crate::{control::DaemonClient, failure::Outcome, place::VolumeUrl, terminal};

/// How often work that takes long is looked after.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How often something else is told at most.
const TOLD_INTERVAL: Duration = Duration::from_secs(30);

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

    /// What `work` comes to. What `refusal` says meanwhile is told by `tell`.
    pub async fn telling<T>(
        &mut self,
        work: impl Future<Output = T>,
        refusal: impl AsyncFn() -> Option<String>,
        tell: impl Fn(String),
    ) -> T {
        let telling = async {
            loop {
                tokio::time::sleep(LOOK_INTERVAL).await;
                if let Some(said) = refusal().await.filter(|said| self.is_news(said)) {
                    tell(said);
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = telling => unreachable!("tells until the work ends"),
        }
    }
}

/// What `asked` comes to, which asks a daemon for something of these volumes. What their stores say meanwhile is told on stderr.
pub async fn telling<T>(
    daemon: &DaemonClient,
    volumes: &[&VolumeUrl],
    asked: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    let urls: Vec<String> = volumes.iter().map(|volume| volume.url.to_string()).collect();
    let refusal = async || {
        let status = daemon.status().await.ok()?;
        let mut ours = status.volumes.iter().filter(|served| urls.iter().any(|url| served.is(url)));
        ours.find_map(|served| Some(format!("{}: {}", served.name, served.store_refusal()?)))
    };
    let tell = |said| terminal::remark(format!("waiting for the store of {said}. It is tried again"));
    StoreNews::default().telling(asked, refusal, tell).await
}
