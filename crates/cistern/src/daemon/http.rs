//! The daemon's HTTP: one server for the control socket, the dashboard and the metrics, which differ in what may be asked through them.
//!
//! Whatever comes is bounded: connections, the bytes of a request, and the time to ask and to take the answer. What takes its time (a
//! drain, a collection) waits as long as its client stays; who hangs up no longer waits. One request per connection. Through TCP nothing
//! can be changed.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderName, HeaderValue},
    http::request::Parts,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::Instant,
};

use crate::{
    control::{self, API, REQUEST_BYTES_MAX, Reply},
    daemon::{Daemon, control::perform},
    failure::{Failure, Kind},
    history::HistoryQuery,
    metrics,
};

mod assets;
mod guard;
mod stream;
mod tcp;

use guard::Guard;
pub use stream::{Frames, Viewer, event};
pub use tcp::TcpDoor;

/// Time for a client to send its request, and then to take the answer.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

const OTHER_VERSION: &str = "is the daemon of another version? Restart it";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// What browsers may do with an answer: nothing is fetched from elsewhere, shown inside of another page, or told to others.
const BROWSERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// What an answer consists of.
pub type HttpBody = UnsyncBoxBody<Bytes, Infallible>;

/// Where a client came in.
pub enum Door {
    /// The control socket: all there is.
    Control,
    /// Everything that can be seen, for whom the guard lets in.
    Dashboard(Guard),
    /// The metrics alone.
    Metrics,
}

/// How long a connection may go on.
#[derive(Clone)]
enum Pace {
    /// It is asking, or taking the answer.
    Until(Instant),
    /// It waits for what it asked for.
    Waits,
    /// It watches, as long as it keeps up.
    Watches(Viewer),
}

/// What answers to one connection need.
struct Visit {
    door: Arc<Door>,
    daemon: Arc<Daemon>,
    pace: watch::Sender<Pace>,
}

/// Serves one connection.
pub async fn talk<S>(stream: S, door: Arc<Door>, daemon: Arc<Daemon>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (pace, watched) = watch::channel(Pace::soon());
    let visit = &Visit { door, daemon, pace };
    let answer = service_fn(|request: Request<Incoming>| async move {
        let mut response = visit.answer(request).await;
        for (name, value) in BROWSERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        Ok::<_, Infallible>(response)
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(REQUEST_LIMIT);
    server.keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    tokio::select! {
        biased;
        ended = server.serve_connection(TokioIo::new(stream), answer) => if let Err(error) = ended {
            tracing::debug!(%error, "a client went away or spoke no HTTP");
        },
        why = Pace::is_over(watched) => tracing::debug!("a client {why}"),
    }
}

impl Pace {
    fn soon() -> Pace {
        Pace::Until(Instant::now() + REQUEST_LIMIT)
    }

    /// Waits until a connection may not go on; says why.
    async fn is_over(mut pace: watch::Receiver<Pace>) -> &'static str {
        loop {
            let now = pace.borrow_and_update().clone();
            match now {
                Pace::Watches(viewer) => {
                    viewer.falls_behind().await;
                    return "did not keep up with the events";
                }
                Pace::Until(end) => tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(end) => return "was too slow",
                    Ok(()) = pace.changed() => {}
                },
                Pace::Waits => {
                    if pace.changed().await.is_err() {
                        return "has all it wanted"; // then its connection is over too
                    }
                }
            }
        }
    }
}

impl Visit {
    async fn answer(&self, request: Request<Incoming>) -> Response<HttpBody> {
        let (head, body) = request.into_parts();
        let is_get = matches!(head.method, Method::GET | Method::HEAD);
        match &*self.door {
            Door::Dashboard(guard) => {
                if let Err(refused) = guard.admit(&head) {
                    return refused;
                }
            }
            Door::Metrics if is_get && head.uri.path() != METRICS_PATH => {
                return text(StatusCode::NOT_FOUND, format!("the metrics are at {METRICS_PATH}\n"));
            }
            Door::Metrics | Door::Control => {}
        }
        match (&*self.door, &head.method) {
            _ if is_get => self.get(&head).await,
            (Door::Control, &Method::POST) => self.post(&head, body).await,
            (Door::Control, _) => not_allowed("GET, POST"),
            _ => not_allowed("GET"),
        }
    }

    async fn get(&self, head: &Parts) -> Response<HttpBody> {
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        let Some(document) = path.strip_prefix(API) else {
            return match path {
                METRICS_PATH => whole(metrics::CONTENT_TYPE, metrics::exposition(&self.daemon.observe())),
                _ => assets::answer(path, head),
            };
        };
        match document {
            "status" => json(StatusCode::OK, &self.daemon.status()),
            "io" => json(StatusCode::OK, &self.daemon.observe()),
            "history" => match HistoryQuery::of_path(query) {
                Ok(query) => respond(StatusCode::OK, JSON, stream::history(self.daemon.clone(), &query)),
                Err(why) => failed(Failure::usage(why)),
            },
            "events" => match self.daemon.recorder.watch(|| self.daemon.status()) {
                Some((viewer, body)) => {
                    self.pace.send_replace(Pace::Watches(viewer));
                    respond(StatusCode::OK, "text/event-stream", body)
                }
                None => {
                    let full = Failure::new(Kind::InUse, "as many watch this daemon as may");
                    json(
                        StatusCode::SERVICE_UNAVAILABLE,
                        &Reply::<()>::Failed(full.hint("close a dashboard")),
                    )
                }
            },
            _ => unknown(&head.method, path),
        }
    }

    /// Does what a verb says.
    async fn post(&self, head: &Parts, body: Incoming) -> Response<HttpBody> {
        let path = head.uri.path();
        let Some(verb) = path.strip_prefix(API) else { return unknown(&head.method, path) };
        let body = match Limited::new(body, REQUEST_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(e) => return failed(Failure::usage(format!("the request cannot be read: {e}"))),
        };
        let request = match control::Request::of_parts(verb, &body) {
            Ok(request) => request,
            Err(e) => {
                let failure = Failure::usage(format!("the request {verb} cannot be understood: {e}"));
                return failed(failure.hint(OTHER_VERSION));
            }
        };
        self.pace.send_replace(Pace::Waits);
        let done = perform(&self.daemon, request).await;
        self.pace.send_replace(Pace::soon());
        match done {
            Ok(done) => json(StatusCode::OK, &Reply::Done(done)),
            Err(failure) => failed(failure),
        }
    }
}

/// Where the metrics are.
pub const METRICS_PATH: &str = "/metrics";

fn respond(status: StatusCode, content_type: &'static str, body: HttpBody) -> Response<HttpBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn full(bytes: impl Into<Bytes>) -> HttpBody {
    Full::new(bytes.into()).boxed_unsync()
}

fn whole(content_type: &'static str, bytes: impl Into<Bytes>) -> Response<HttpBody> {
    respond(StatusCode::OK, content_type, full(bytes))
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<HttpBody> {
    respond(status, TEXT, full(text))
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<HttpBody> {
    respond(status, JSON, full(serde_json::to_vec(value).expect("answers have string keys")))
}

fn not_allowed(methods: &'static str) -> Response<HttpBody> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, format!("only {methods}\n"));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    response
}

fn unknown(method: &Method, path: &str) -> Response<HttpBody> {
    let failure = Failure::usage(format!("this daemon has no {method} {path}"));
    let reply = Reply::<()>::Failed(failure.hint(OTHER_VERSION));
    json(StatusCode::NOT_FOUND, &reply)
}

fn failed(failure: Failure) -> Response<HttpBody> {
    let status = match failure.kind {
        Kind::Usage => StatusCode::BAD_REQUEST,
        Kind::Key => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::InUse | Kind::NotClean | Kind::Stopped | Kind::Exists => StatusCode::CONFLICT,
        Kind::Store => StatusCode::BAD_GATEWAY,
        Kind::Full => StatusCode::INSUFFICIENT_STORAGE,
        Kind::Other | Kind::Corrupt | Kind::Hook | Kind::Interrupted => StatusCode::INTERNAL_SERVER_ERROR,
    };
    json(status, &Reply::<()>::Failed(failure))
}
