//! HTTP: from a request to its reply. Owns the connections.

use std::{
    collections::HashMap,
    io,
    net::TcpListener,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Method, Request, Response,
    body::{Body, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use super::{
    AdverseAnswer, BUCKET, NO_PANIC,
    holdings::Holdings,
    listing::{self, Question},
    object,
    xml::{escaped, texts},
};

/// How long a creation waits for others of the same name, where races are to be broken: writers at once arrive within it.
const RACE_TIME: Duration = Duration::from_millis(10);

/// Serves connections until it is told to stop; those under way end then.
pub(super) async fn serve(
    listener: TcpListener,
    holdings: Arc<Mutex<Holdings>>,
    mut stopped: oneshot::Receiver<()>,
) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener of this runtime");
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let holdings = holdings.clone();
                connections.spawn(async move {
                    let answer = service_fn(|request| respond(request, &holdings));
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        }
    }
}

/// An answer on its way to HTTP.
pub(super) struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    pub body: Bytes,
    /// The connection ends behind so many bytes of the body.
    broken_at: Option<usize>,
    is_chunked: bool,
}

impl Reply {
    pub fn ok(body: Bytes) -> Reply {
        Reply { status: 200, headers: Vec::new(), body, broken_at: None, is_chunked: false }
    }

    pub fn status(status: u16, code: &str) -> Reply {
        let document = match code {
            "" => String::new(),
            code => {
                format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>adverse</Message></Error>")
            }
        };
        Reply { status, ..Reply::ok(document.into()) }
    }

    pub fn html(status: u16) -> Reply {
        let page = "<!DOCTYPE html><html><body><h1>Welcome</h1><p>Please log in.</p></body></html>";
        Reply { status, ..Reply::ok(Bytes::from_static(page.as_bytes())) }
            .with("content-type", "text/html".into())
    }

    pub fn with(mut self, name: &'static str, value: String) -> Reply {
        self.headers.push((name, value));
        self
    }

    pub fn partial(self) -> Reply {
        Reply { status: 206, ..self }
    }

    pub fn broken_at(self, bytes: usize) -> Reply {
        Reply { broken_at: Some(bytes), ..self }
    }

    pub fn chunked(self) -> Reply {
        Reply { is_chunked: true, ..self }
    }
}

/// A body that may break off.
struct Sent {
    data: Option<Bytes>,
    end: BodyEnd,
}

enum BodyEnd {
    Whole,
    /// What came before is sent first.
    Flushes,
    Breaks,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match (self.data.take(), &self.end) {
            (Some(data), _) => Poll::Ready(Some(Ok(Frame::data(data)))),
            (None, BodyEnd::Whole) => Poll::Ready(None),
            (None, BodyEnd::Flushes) => {
                self.end = BodyEnd::Breaks;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            (None, BodyEnd::Breaks) => Poll::Ready(Some(Err(io::Error::other("it breaks off")))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && matches!(self.end, BodyEnd::Whole)
    }
}

/// What a request asks for.
struct Asked {
    kind: &'static str,
    /// Of an object, or what the names of a listing begin with.
    name: String,
    query: HashMap<String, String>,
    range: Option<(u64, Option<u64>)>,
}

impl Asked {
    /// `None` of another bucket, or what no client needs.
    fn of(request: &Request<Incoming>) -> Option<Asked> {
        let decoded = |text: &str| url::form_urlencoded::parse(text.as_bytes()).into_owned().collect();
        let query: HashMap<String, String> = decoded(request.uri().query().unwrap_or_default());
        let path = request.uri().path().trim_start_matches('/');
        let (bucket, name) = path.split_once('/').unwrap_or((path, ""));
        if bucket != BUCKET {
            return None;
        }
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let kind = match *request.method() {
            Method::GET if query.get("list-type").is_some_and(|kind| kind == "2") => "LIST",
            Method::GET if !name.is_empty() => "GET",
            Method::HEAD => "HEAD",
            Method::PUT if header("if-none-match") == Some("*") => "CREATE",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            Method::POST if query.contains_key("delete") => "BULK",
            _ => return None,
        };
        let name = match kind {
            "LIST" => query.get("prefix").cloned().unwrap_or_default(),
            _ => name.to_owned(),
        };
        Some(Asked { kind, name, query, range: header("range").and_then(object::range_of) })
    }
}

/// Answers a request; an error ends the connection.
async fn respond(
    request: Request<Incoming>,
    holdings: &Mutex<Holdings>,
) -> Result<Response<Sent>, io::Error> {
    let asked = Asked::of(&request);
    let is_head = request.method() == Method::HEAD;
    let (kind, name) = asked.as_ref().map_or(("OTHER", ""), |asked| (asked.kind, asked.name.as_str()));
    let answer = {
        let mut held = holdings.lock().expect(NO_PANIC);
        if kind == "CREATE" {
            held.creation_begins(name);
        }
        held.asked(kind, name)
    };
    let length =
        request.headers().get("content-length").and_then(|length| length.to_str().ok()?.parse().ok());
    let is_over_quota = matches!(kind, "PUT" | "CREATE")
        && holdings.lock().expect(NO_PANIC).is_over_quota(length.unwrap_or_default());
    let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    if matches!(answer, Some(AdverseAnswer::RaceBroken(_))) {
        tokio::time::sleep(RACE_TIME).await;
    }
    let Some(asked) = asked else { return Ok(sent(Reply::status(404, "NoSuchBucket"), false)) };
    let reply = match answer {
        Some(AdverseAnswer::Silence) => std::future::pending().await,
        None if is_over_quota => {
            let refused = Some(AdverseAnswer::Status(403, "QuotaExceeded"));
            reply(&asked, body, refused, &mut holdings.lock().expect(NO_PANIC))
        }
        answer => reply(&asked, body, answer, &mut holdings.lock().expect(NO_PANIC)),
    };
    let version =
        holdings.lock().expect(NO_PANIC).version.filter(|_| matches!(kind, "GET" | "PUT" | "CREATE"));
    let reply = match (reply, version) {
        (Some(reply), Some(version)) => Some(reply.with("x-amz-version-id", version.into())),
        (reply, _) => reply,
    };
    match reply {
        Some(reply) => Ok(sent(reply, is_head)),
        None => Err(io::Error::other("it hangs up")),
    }
}

/// `None` where the connection ends instead.
fn reply(asked: &Asked, body: Bytes, answer: Option<AdverseAnswer>, held: &mut Holdings) -> Option<Reply> {
    use AdverseAnswer::*;
    let is_refused = matches!(answer, Some(Status(..) | StatusHtml(_) | HangUp | PutFault | PutVoid));
    if asked.kind == "CREATE" && is_refused {
        held.creation_fails(&asked.name);
    }
    match answer {
        Some(Status(status, code)) => return Some(Reply::status(status, code)),
        Some(StatusHtml(status)) => return Some(Reply::html(status)),
        Some(HangUp) => return None,
        Some(PutFault) => return Some(Reply { status: 200, ..Reply::status(500, "InternalError") }),
        Some(PutVoid) => return Some(Reply::ok(Bytes::new()).with("etag", object::tag(&body))),
        _ => {}
    }
    let tag = object::tag(&body);
    let stored = Reply::ok(Bytes::new()).with("etag", tag);
    Some(match asked.kind {
        "LIST" => listing::page(&held.objects, &Question::of(&asked.query, held.page_names), answer),
        "GET" => object::get(&held.objects, &asked.name, asked.range, answer),
        "HEAD" => head(held, &asked.name, answer),
        "CREATE" => match held.create(&asked.name, body, answer) {
            true if answer == Some(StoredUnsaid) => return None,
            true if answer == Some(StoredRefused) => Reply::status(412, "PreconditionFailed"),
            true => stored,
            false => Reply::status(412, "PreconditionFailed"),
        },
        "PUT" => {
            held.objects.insert(asked.name.clone(), body);
            match answer {
                Some(StoredUnsaid) => return None,
                _ => stored,
            }
        }
        "DELETE" => {
            if answer != Some(DeletionVoid) {
                held.objects.remove(&asked.name);
            }
            Reply { status: 204, ..Reply::ok(Bytes::new()) }
        }
        "BULK" => bulk(held, &String::from_utf8_lossy(&body), answer),
        _ => Reply::status(400, "InvalidRequest"),
    })
}

fn head(held: &Holdings, name: &str, answer: Option<AdverseAnswer>) -> Reply {
    if name.is_empty() {
        return Reply::ok(Bytes::new());
    }
    let Some(body) = held.objects.get(name) else { return Reply::status(404, "") };
    let reply = Reply::ok(body.clone())
        .with("etag", object::tag(body))
        .with("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT".into());
    if answer == Some(AdverseAnswer::HeadUnsized) { reply.chunked() } else { reply }
}

fn bulk(held: &mut Holdings, request: &str, answer: Option<AdverseAnswer>) -> Reply {
    use AdverseAnswer::*;
    let mut told = String::new();
    for (number, name) in texts(request, "Key").into_iter().enumerate() {
        let is_other = number % 2 == 1;
        let fault = match answer {
            Some(BulkDenied) => Some("AccessDenied"),
            Some(BulkFailed) => Some("InternalError"),
            _ => None,
        };
        let stays = fault.is_some()
            || matches!(answer, Some(BulkHtml | DeletionVoid))
            || (is_other && matches!(answer, Some(BulkOmits | BulkHalf)));
        if !stays {
            held.objects.remove(&name);
        }
        let name = escaped(&name);
        match (fault, answer) {
            (Some(code), _) => {
                told +=
                    &format!("<Error><Key>{name}</Key><Code>{code}</Code><Message>adverse</Message></Error>");
            }
            (None, Some(BulkSilent)) => {}
            (None, Some(BulkOmits)) if is_other => {}
            (None, _) => told += &format!("<Deleted><Key>{name}</Key></Deleted>"),
        }
    }
    match answer {
        Some(BulkHtml) => Reply::html(200),
        _ => Reply::ok(format!("<?xml version=\"1.0\"?><DeleteResult>{told}</DeleteResult>").into()),
    }
}

fn sent(reply: Reply, is_head: bool) -> Response<Sent> {
    let mut response = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    if !reply.is_chunked && reply.status != 204 {
        response = response.header("content-length", reply.body.len());
    }
    let len = reply.broken_at.unwrap_or(reply.body.len());
    let data = Some(reply.body.slice(..len)).filter(|data| !is_head && !data.is_empty());
    let end = if reply.broken_at.is_some() { BodyEnd::Flushes } else { BodyEnd::Whole };
    let body = Sent { data, end };
    response.body(body).expect("headers of ours are valid")
}
