//! The commands' end of the control socket: finds the daemons of a state directory, and asks them.
//!
//! One connection for each request. Answers are bounded.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{Method, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::{API, DIRECTORY, DaemonStatus, REQUEST_BYTES_MAX, Reply, Request, ServedStatus};
use crate::{
    failure::{Failure, Kind, Outcome},
    history::{HistoryQuery, HistoryReply},
    observe::Observed,
    short_name::short_name,
};

/// Bytes of the longest answer: room for the status of some thousand volumes, or all of the history of one.
const REPLY_BYTES_MAX: usize = 8 << 20;
/// Time for a daemon to answer a request that does not wait for anything.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A daemon that can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonClient {
    directory: PathBuf,
    socket: String,
}

/// All daemons that live in a state directory. Sockets that nobody listens on are skipped.
pub async fn daemons(state_dir: &Path) -> Outcome<Vec<DaemonClient>> {
    let directory = state_dir.join(DIRECTORY);
    let failed =
        |e: &std::io::Error| Failure::io(format!("cannot look for daemons in {}", directory.display()), e);
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(&e).hint("ask as the user who runs the daemon, or as root")),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| failed(&e))?.file_name();
        let Some(socket) = name.to_str().filter(|name| name.ends_with(".sock")) else { continue };
        let daemon = DaemonClient { directory: directory.clone(), socket: socket.to_owned() };
        match daemon.connect().await {
            Ok(_) => found.push(daemon),
            Err(e) if is_gone(&e) => {}
            Err(e) => return Err(failed(&e)),
        }
    }
    found.sort_by(|a, b| a.socket.cmp(&b.socket));
    Ok(found)
}

/// Whether nobody listens: not any more, or not from this moment on.
fn is_gone(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::NotFound)
}

/// The daemon that serves a volume (by name, URL or id) and the volume's state, if there is one.
pub async fn serving(state_dir: &Path, volume: &str) -> Outcome<Option<(DaemonClient, ServedStatus)>> {
    for daemon in daemons(state_dir).await? {
        let status = match daemon.status().await {
            Ok(status) => status,
            Err(gone) if gone.kind == Kind::NotFound => continue,
            Err(failure) => return Err(failure),
        };
        // A volume comes before a snapshot of it that is served beside it.
        let found = status.volumes.into_iter().filter(|served| served.is(volume));
        if let Some(served) = found.min_by_key(|served| served.status.read_only) {
            return Ok(Some((daemon, served)));
        }
    }
    Ok(None)
}

impl DaemonClient {
    /// The state of the daemon's volumes.
    pub async fn status(&self) -> Outcome<DaemonStatus> {
        self.get("status").await
    }

    /// What clients ask, and what that takes.
    pub async fn observed(&self) -> Outcome<Observed> {
        self.get("io").await
    }

    /// What was in the last 48 hours, as far as the daemon noted it.
    pub async fn history(&self, query: &HistoryQuery) -> Outcome<HistoryReply> {
        self.get(&format!("history{}", query.in_path())).await
    }

    /// Asks, and waits for the answer for at most `limit`. A daemon that ended meanwhile is
    /// `NotFound`.
    pub async fn ask<T: DeserializeOwned>(&self, request: &Request, limit: Option<Duration>) -> Outcome<T> {
        let (verb, body) = request.parts();
        let body = body.to_string();
        debug_assert!(body.len() <= REQUEST_BYTES_MAX);
        let asked = async {
            let (_, answer) = self.exchange(Method::POST, &verb, body).await?;
            match parse(&answer)? {
                Reply::Done(done) => Ok(done),
                Reply::Failed(failure) => Err(failure),
            }
        };
        self.within(limit, asked).await
    }

    /// Has it stop, which it has begun to when this returns. One that has ended has stopped.
    pub async fn stop(&self, drain: bool, limit: Duration) -> Outcome {
        match self.ask(&Request::Stop { drain }, Some(limit)).await {
            Err(ended) if ended.kind == Kind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Gets a document.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        let asked = self.exchange(Method::GET, path, String::new());
        match self.within(Some(ANSWER_LIMIT), asked).await? {
            (StatusCode::OK, answer) => parse(&answer),
            (_, answer) => match parse::<Reply<()>>(&answer)? {
                Reply::Failed(failure) => Err(failure),
                Reply::Done(()) => Err(unreadable("it is no document")),
            },
        }
    }

    async fn within<T>(
        &self,
        limit: Option<Duration>,
        asked: impl Future<Output = Outcome<T>>,
    ) -> Outcome<T> {
        let Some(limit) = limit else { return asked.await };
        tokio::time::timeout(limit, asked).await.map_err(|_| {
            Failure::new(Kind::Other, format!("the daemon behind {} does not answer", self.socket))
        })?
    }

    async fn connect(&self) -> std::io::Result<UnixStream> {
        let (_held, directory) = short_name(&self.directory)?;
        UnixStream::connect(directory.join(&self.socket)).await
    }

    fn gone(&self, e: impl std::fmt::Display) -> Failure {
        Failure::new(Kind::NotFound, format!("the daemon behind {} has ended: {e}", self.socket))
    }

    /// One request, and its answer.
    async fn exchange(&self, method: Method, path: &str, body: String) -> Outcome<(StatusCode, Bytes)> {
        let failed = |e: hyper::Error| match e.is_parse() {
            true => unreadable("it is not HTTP"),
            false => self.gone(e),
        };
        let stream = self.connect().await.map_err(|e| self.gone(e))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let request = hyper::Request::builder()
            .method(method)
            .uri(format!("{API}{path}"))
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .expect("its parts are well-formed");
        let answered = async {
            let response = sender.send_request(request).await.map_err(failed)?;
            drop(sender); // the connection ends behind this answer
            let status = response.status();
            let body = Limited::new(response.into_body(), REPLY_BYTES_MAX).collect().await;
            let body = body.map_err(|e| match e.downcast::<LengthLimitError>() {
                Ok(_) => unreadable("it is too long"),
                Err(e) => self.gone(e),
            })?;
            Ok((status, body.to_bytes()))
        };
        // What is wrong with the connection, who waits for the answer is told too.
        let (answer, _) = futures_util::future::join(answered, connection).await;
        answer
    }
}

fn parse<T: DeserializeOwned>(answer: &[u8]) -> Outcome<T> {
    serde_json::from_slice(answer).map_err(unreadable)
}

fn unreadable(why: impl std::fmt::Display) -> Failure {
    let failure = Failure::new(Kind::Other, format!("the daemon's answer cannot be read: {why}"));
    failure.hint("is the daemon of another version? Restart it")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A daemon that ends while somebody connects resets him: it is gone, as one that ended before.
    #[test]
    fn who_ends_is_gone() {
        for code in [libc::ECONNREFUSED, libc::ECONNRESET, libc::ENOENT] {
            assert!(is_gone(&std::io::Error::from_raw_os_error(code)), "{code}");
        }
        assert!(!is_gone(&std::io::Error::from_raw_os_error(libc::EACCES)));
    }

    /// A daemon that does not speak HTTP is of another version: whoever asks it is told to restart it.
    #[tokio::test]
    async fn what_speaks_no_http_is_of_another_version() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join(DIRECTORY)).expect("writable");
        let listener =
            tokio::net::UnixListener::bind(dir.path().join(DIRECTORY).join("1.sock")).expect("bindable");
        let served = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("accepted");
                let mut request = [0; 512];
                // Whoever only looks whether somebody listens asks nothing.
                if stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                    stream.write_all(b"{\"failed\":null}\n").await.expect("it is waited for");
                }
            }
        });
        let daemons = daemons(dir.path()).await.expect("readable");
        let refused = daemons[0].status().await.expect_err("it cannot be asked");
        assert!(refused.hint.expect("a hint").contains("Restart it"));
        let refused = daemons[0].stop(false, ANSWER_LIMIT).await;
        assert!(refused.expect_err("it cannot be asked").hint.expect("a hint").contains("Restart it"));
        served.abort();
    }

    /// A daemon that ends between the moment in which it is found and that in which it is told to stop has stopped.
    #[tokio::test]
    async fn what_has_ended_has_stopped() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let socket = dir.path().join(DIRECTORY).join("1.sock");
        std::fs::create_dir(dir.path().join(DIRECTORY)).expect("writable");
        let listener = tokio::net::UnixListener::bind(&socket).expect("bindable");
        let daemons = daemons(dir.path()).await.expect("readable");
        drop(listener);
        daemons[0].stop(true, ANSWER_LIMIT).await.expect("nobody listens any more");
        std::fs::remove_file(&socket).expect("it is there");
        daemons[0].stop(true, ANSWER_LIMIT).await.expect("it has gone");
    }
}
