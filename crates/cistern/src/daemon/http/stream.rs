//! Answers that come in parts: a history, and events for as long as somebody watches.
//!
//! Events are made once a second for all viewers (`daemon::recorder`), and only the newest is kept: who does not take them is left behind,
//! and its connection is closed when it is [`BEHIND_MAX`] behind.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::HttpBody;
use crate::{daemon::Daemon, history::HistoryQuery};

/// Viewers at a time.
const VIEWERS_MAX: usize = 32;
/// Seconds of events that a viewer may be behind.
const BEHIND_MAX: u64 = 5;

/// The events of one second.
#[derive(Clone, Default)]
struct Frame {
    number: u64,
    text: Bytes,
}

/// The newest events, and the places of those who watch.
pub struct Frames {
    newest: watch::Sender<Frame>,
    places: Arc<Semaphore>,
}

/// A viewer, as its connection's end sees it.
#[derive(Clone)]
pub struct Viewer {
    frames: watch::Receiver<Frame>,
    taken: Arc<AtomicU64>,
}

/// What a viewer's answer is made of.
struct Watching {
    viewer: Viewer,
    /// Sent at once.
    first: Option<String>,
    _place: OwnedSemaphorePermit,
}

/// An event as text.
pub fn event(name: &str, data: &impl Serialize) -> String {
    let data = serde_json::to_string(data).expect("events have string keys");
    format!("event: {name}\ndata: {data}\n\n")
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { newest: watch::Sender::new(Frame::default()), places: Arc::new(Semaphore::new(VIEWERS_MAX)) }
    }
}

impl Frames {
    /// Whether anybody watches.
    pub fn are_wanted(&self) -> bool {
        self.places.available_permits() < VIEWERS_MAX
    }

    /// Gives everybody who watches the events of a second.
    pub fn send(&self, text: String) {
        self.newest.send_modify(|frame| {
            *frame = Frame { number: frame.number + 1, text: text.into() };
        });
    }

    /// A viewer and its answer, which begins with `first`; `None` while as many watch as may.
    pub fn watch(&self, first: impl FnOnce() -> String) -> Option<(Viewer, HttpBody)> {
        let _place = self.places.clone().try_acquire_owned().ok()?;
        let mut frames = self.newest.subscribe();
        let taken = Arc::new(AtomicU64::new(frames.borrow_and_update().number));
        let viewer = Viewer { frames, taken };
        let watching = Watching { viewer: viewer.clone(), first: Some(first()), _place };
        let parts = stream::unfold(watching, |mut watching| async {
            let text = watching.next().await?;
            Some((Ok::<_, Infallible>(body::Frame::data(text)), watching))
        });
        Some((viewer, StreamBody::new(parts).boxed_unsync()))
    }
}

impl Watching {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first.into());
        }
        self.viewer.frames.changed().await.ok()?;
        let frame = self.viewer.frames.borrow_and_update().clone();
        self.viewer.taken.store(frame.number, Relaxed);
        Some(frame.text)
    }
}

impl Viewer {
    /// Waits until it is too far behind.
    pub async fn falls_behind(mut self) {
        while self.frames.changed().await.is_ok() {
            let newest = self.frames.borrow_and_update().number;
            if newest > self.taken.load(Relaxed) + BEHIND_MAX {
                return;
            }
        }
    }
}

/// The history of a daemon, piece by piece.
pub fn history(daemon: Arc<Daemon>, query: &HistoryQuery) -> HttpBody {
    let pieces = daemon.recorder.history().answer(query, daemon.env.wall_ms());
    let parts = stream::unfold((daemon, pieces), |(daemon, mut pieces)| async {
        let text = pieces.next(&daemon.recorder.history())?;
        Some((Ok::<_, Infallible>(body::Frame::data(Bytes::from(text))), (daemon, pieces)))
    });
    StreamBody::new(parts).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures_util::poll;

    use super::*;

    /// Whoever takes the events gets those of the newest second, and nothing is kept for who does not: after five seconds he is left behind,
    /// and whoever kept up is not. His place is free when his answer is dropped.
    #[tokio::test]
    async fn who_does_not_take_events_is_left_behind() {
        let frames = Frames::default();
        let (one, mut taken) = frames.watch(|| "first".into()).expect("a place");
        let (other, left) = frames.watch(|| "first".into()).expect("a place");
        assert!(frames.are_wanted());
        let (mut keeps_up, mut falls_behind) = (Box::pin(one.falls_behind()), Box::pin(other.falls_behind()));
        let mut next = async || {
            let frame = taken.frame().await.expect("goes on").expect("nothing fails");
            frame.into_data().expect("data")
        };
        assert_eq!(next().await, "first");
        for second in 1..=BEHIND_MAX {
            frames.send(second.to_string());
            assert!(poll!(&mut falls_behind).is_pending());
            assert_eq!(next().await, second.to_string());
        }
        frames.send("skipped".into());
        frames.send("newest".into());
        assert_eq!(next().await, "newest");
        assert_eq!(poll!(&mut falls_behind), Poll::Ready(()));
        assert!(poll!(&mut keeps_up).is_pending());
        drop((taken, left));
        assert!(!frames.are_wanted());
    }

    /// There are as many places as there are said to be.
    #[tokio::test]
    async fn places_are_bounded() {
        let frames = Frames::default();
        let mut all: Vec<_> = (0..VIEWERS_MAX).map(|_| frames.watch(String::new).expect("a place")).collect();
        assert!(frames.watch(String::new).is_none());
        all.pop();
        assert!(frames.watch(String::new).is_some());
    }
}
