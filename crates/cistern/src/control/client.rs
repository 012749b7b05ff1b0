//! The commands' end of the control socket: finds the daemons of a state directory, and asks them.
//!
//! One connection for each request. Answers are bounded. A daemon of a build that does not speak HTTP yet can be looked at and stopped, so that
//! `cistern up --restart` can put this one in its place, and nothing else.

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
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use super::{API, DIRECTORY, DaemonStatus, REQUEST_BYTES_MAX, Reply, Request, ServedStatus, short_name};
use crate::{
    failure::{Failure, Kind, Outcome},
    history::{HistoryQuery, HistoryReply},
    observe::Observed,
};

/// Bytes of the longest answer: room for the status of some thousand volumes, or all of the history of one.
const REPLY_BYTES_MAX: usize = 8 << 20;
/// Time for a daemon to answer a request that does not wait for anything.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// What a daemon before HTTP takes for the question how it is, and for the command to stop.
const STATUS_LINE: &str = r#"{"request":"status"}"#;

/// A daemon that can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonClient {
    directory: PathBuf,
    socket: String,
}

/// Why there is no answer over HTTP.
enum NoAnswer {
    /// It speaks in lines of JSON, as daemons did before.
    Lines,
    Failed(Failure),
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
        match self.get("status").await {
            Err(NoAnswer::Lines) => self.within(Some(ANSWER_LIMIT), self.in_lines(STATUS_LINE)).await,
            done => done.map_err(Failure::from),
        }
    }

    /// What clients ask, and what that takes.
    pub async fn observed(&self) -> Outcome<Observed> {
        Ok(self.get("io").await?)
    }

    /// What was in the last 48 hours, as far as the daemon noted it.
    pub async fn history(&self, query: &HistoryQuery) -> Outcome<HistoryReply> {
        Ok(self.get(&format!("history{}", query.in_path())).await?)
    }

    /// Asks, and waits for the answer for at most `limit`. A daemon that ended meanwhile is
    /// `NotFound`.
    pub async fn ask<T: DeserializeOwned>(&self, request: &Request, limit: Option<Duration>) -> Outcome<T> {
        let (verb, body) = request.parts();
        let body = body.to_string();
        debug_assert!(body.len() <= REQUEST_BYTES_MAX);
        let asked = async {
            match (self.exchange(Method::POST, &verb, body).await, request) {
                (Err(NoAnswer::Lines), Request::Stop { .. }) => {
                    let line = serde_json::to_string(request).expect("requests have string keys");
                    self.in_lines(&line).await
                }
                (Err(e), _) => Err(e.into()),
                (Ok((_, answer)), _) => match parse(&answer)? {
                    Reply::Done(done) => Ok(done),
                    Reply::Failed(failure) => Err(failure),
                },
            }
        };
        self.within(limit, asked).await
    }

    /// Gets a document.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, NoAnswer> {
        let asked = async { Ok(self.exchange(Method::GET, path, String::new()).await) };
        match self.within(Some(ANSWER_LIMIT), asked).await?? {
            (StatusCode::OK, answer) => Ok(parse(&answer)?),
            (_, answer) => match parse::<Reply<()>>(&answer)? {
                Reply::Failed(failure) => Err(failure.into()),
                Reply::Done(()) => Err(unreadable("it is no document").into()),
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
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<(StatusCode, Bytes), NoAnswer> {
        let failed = |e: hyper::Error| match e.is_parse() {
            true => NoAnswer::Lines,
            false => self.gone(e).into(),
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

    /// One request to a daemon that speaks in lines.
    async fn in_lines<T: DeserializeOwned>(&self, line: &str) -> Outcome<T> {
        let exchange = async {
            let mut stream = self.connect().await?;
            stream.write_all(format!("{line}\n").as_bytes()).await?;
            let mut reply = Vec::new();
            BufReader::new(stream.take(REPLY_BYTES_MAX as u64)).read_until(b'\n', &mut reply).await?;
            Ok(reply)
        };
        let reply = exchange.await.map_err(|e: std::io::Error| self.gone(e))?;
        match parse(&reply)? {
            Reply::Done(done) => Ok(done),
            Reply::Failed(failure) => Err(failure),
        }
    }
}

fn parse<T: DeserializeOwned>(answer: &[u8]) -> Outcome<T> {
    serde_json::from_slice(answer).map_err(unreadable)
}

fn unreadable(why: impl std::fmt::Display) -> Failure {
    let failure = Failure::new(Kind::Other, format!("the daemon's answer cannot be read: {why}"));
    failure.hint("is the daemon of another version? Restart it")
}

impl From<NoAnswer> for Failure {
    fn from(none: NoAnswer) -> Failure {
        match none {
            NoAnswer::Lines => unreadable("it is not HTTP"),
            NoAnswer::Failed(failure) => failure,
        }
    }
}

impl From<Failure> for NoAnswer {
    fn from(failure: Failure) -> NoAnswer {
        NoAnswer::Failed(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon that ends while somebody connects resets him: it is gone, as one that ended before.
    #[test]
    fn who_ends_is_gone() {
        for code in [libc::ECONNREFUSED, libc::ECONNRESET, libc::ENOENT] {
            assert!(is_gone(&std::io::Error::from_raw_os_error(code)), "{code}");
        }
        assert!(!is_gone(&std::io::Error::from_raw_os_error(libc::EACCES)));
    }

    /// A daemon that speaks in lines, as builds before HTTP did, can be looked at and stopped; whatever else is asked of it, it is to be
    /// restarted.
    #[tokio::test]
    async fn a_daemon_of_lines_can_be_replaced() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join(DIRECTORY)).expect("writable");
        let listener =
            tokio::net::UnixListener::bind(dir.path().join(DIRECTORY).join("1.sock")).expect("bindable");
        let served = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("accepted");
                let (input, mut output) = stream.split();
                let mut lines = BufReader::new(input).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let reply = match line.as_str() {
                        STATUS_LINE => {
                            r#"{"done":{"pid":1,"version":"0.1.0","stopping":false,"cache":null,"volumes":[]}}"#
                        }
                        r#"{"request":"stop","drain":false}"# => r#"{"done":null}"#,
                        _ => r#"{"failed":{"kind":"usage","text":"the request cannot be read"}}"#,
                    };
                    let _ = output.write_all(format!("{reply}\n").as_bytes()).await;
                }
            }
        });
        let daemons = daemons(dir.path()).await.expect("readable");
        assert_eq!(daemons[0].status().await.expect("an answer").version, "0.1.0");
        daemons[0].ask::<()>(&Request::Stop { drain: false }, None).await.expect("it stops");
        let drain = Request::Drain { volume: None, limit_ms: None };
        let refused = daemons[0].ask::<()>(&drain, None).await.expect_err("it cannot be asked");
        assert!(refused.hint.expect("a hint").contains("Restart it"));
        let refused = daemons[0].observed().await.expect_err("it cannot be asked");
        assert!(refused.hint.expect("a hint").contains("Restart it"));
        served.abort();
    }
}
