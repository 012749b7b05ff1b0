//! Watches what a server really answered, beneath the client library.
//!
//! The library folds many answers into few errors: 409 and 412 become one, a status behind a
//! failed listing cannot be asked for. So every HTTP exchange of an operation notes its outcome
//! here, and `sort` decides from that. Bodies of errors and listings are read here with a bound,
//! since the library reads them without one; bodies of objects pass through as streams.

use std::{
    cell::Cell,
    error::Error,
    io,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};

use super::{listing::PageEnd, standstill};

/// Bytes of an error's body that are looked at.
const ERROR_BYTES_MAX: usize = 16 << 10;
/// Bytes of a page of a listing: 1000 keys of 1024 bytes, five-fold escaped, with their tags.
const PAGE_BYTES_MAX: usize = 8 << 20;

/// The last outcome of an operation's HTTP exchanges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Success, and a body that is not known to be broken.
    Fine {
        /// When it was, by the server's clock: seconds since 1970, if it said so.
        date_s: Option<i64>,
    },
    /// A page of a listing, and what it says of what follows it.
    Page { date_s: Option<i64>, end: PageEnd },
    /// Success of a bulk delete: of these, with the prefix of the store, but not of those.
    Deletion { date_s: Option<i64>, deleted: Vec<String>, faults: Vec<DeleteFault> },
    /// An answer with another status.
    Status {
        status: u16,
        /// The machine-readable reason, such as `NoSuchKey`; empty if there was none.
        code: String,
        /// The reason for people, bounded; empty if there was none.
        message: String,
        /// The body is a page for browsers: something between us and the store answered.
        html: bool,
    },
    /// A document longer than any of ours can be.
    TooLong,
    /// Success where a document was asked for, and something else in the body. The library would
    /// read a web page as an empty listing.
    NoListing,
    /// No answer: what failed, and at which host.
    Broken { host: String, cause: String },
    /// The host speaks TLS where it was asked in the clear, or the other way round.
    OtherScheme { host: String, tls_there: bool },
    /// The host shows a certificate that this one does not accept.
    Distrusted { host: String, fault: CertificateFault },
    /// No keys for the store from whoever was asked for them: a service of this machine, or a token service elsewhere.
    NoKeys { host: String, is_machine: bool, fault: KeysFault },
}

impl Answer {
    /// When it was, by the server's clock: seconds since 1970, if it said so.
    pub fn date_s(&self) -> Option<i64> {
        match self {
            Answer::Fine { date_s } | Answer::Page { date_s, .. } | Answer::Deletion { date_s, .. } => {
                *date_s
            }
            _ => None,
        }
    }

    /// The same, where a 404 needs no code to mean that there is no such object.
    pub fn with_code(self, has_codes: bool) -> Answer {
        match self {
            Answer::Status { status: 404, code, message, html: false } if !has_codes && code.is_empty() => {
                Answer::Status { status: 404, code: "NotFound".to_owned(), message, html: false }
            }
            answer => answer,
        }
    }
}

/// What is wrong with a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CertificateFault {
    UnknownAuthority,
    /// It is marked as an authority's own.
    Authority,
    OtherName,
    Expired,
    NotYetValid,
    Other(String),
}

/// Why there are no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeysFault {
    Status {
        status: u16,
        code: String,
        message: String,
    },
    /// No answer, and whether there was one before.
    Broken {
        cause: String,
        answered_before: bool,
    },
}

/// What S3 and GCS, and Azure, call a listing.
const LISTINGS: &[&str] = &["ListBucketResult", "EnumerationResults"];

/// An object that a bulk delete did not delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeleteFault {
    /// With the prefix of the store.
    pub key: String,
    pub code: String,
    pub message: String,
}

/// What the library gets for the answer to a bulk delete: it would take a key that it did not ask about for a
/// reason to panic.
const DELETED: &[u8] = b"<DeleteResult><Deleted><Key>-</Key></Deleted></DeleteResult>";

tokio::task_local! {
    static ANSWER: Cell<Option<Answer>>;
}

/// Runs an operation and tells the last outcome of its exchanges; `None` if there was none.
pub(super) async fn watched<T>(operation: impl Future<Output = T>) -> (T, Option<Answer>) {
    let watched = async {
        let out = operation.await;
        (out, ANSWER.with(Cell::take))
    };
    ANSWER.scope(Cell::new(None), watched).await
}

fn note(answer: Answer) {
    // Outside of an operation (the library's own background work) nobody asks.
    let _ = ANSWER.try_with(|cell| cell.set(Some(answer)));
}

/// An HTTP client whose outcomes are noted.
#[derive(Debug)]
pub(super) struct Watch {
    client: HttpClient,
    /// What is asked of another path or host is no request to the store.
    bucket: String,
    /// It asks a service that a machine or a container has for its keys.
    is_machine: bool,
    /// Whoever answered once speaks what it was asked in: garbage from then on is a fault that may pass.
    answered: AtomicBool,
}

impl Watch {
    pub fn new(client: HttpClient, bucket: &str, is_machine: bool) -> Watch {
        Watch { client, bucket: bucket.to_owned(), is_machine, answered: AtomicBool::new(false) }
    }

    /// Whether a request is one to the store: its address names the bucket.
    fn is_store(&self, host: &str, path: &str) -> bool {
        path.split('/').any(|part| part == self.bucket)
            || host.strip_prefix(&self.bucket).is_some_and(|rest| rest.starts_with('.'))
    }

    /// Asks for keys.
    async fn ask_for_keys(&self, host: String, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (is_machine, answered_before) = (self.is_machine, self.answered.load(Relaxed));
        let outcome = self.client.execute(request).await;
        if outcome.is_ok() {
            self.answered.store(true, Relaxed);
        }
        match outcome {
            Ok(response) if response.status().is_success() => Ok(response),
            Ok(response) => {
                let (response, Reason { status, code, message, .. }) = reason(response).await;
                note(Answer::NoKeys { host, is_machine, fault: KeysFault::Status { status, code, message } });
                Ok(response)
            }
            Err(e) => {
                // Most who have no keys are not in a cloud, whatever answers there.
                let lasts = if is_machine || answered_before { None } else { lasting(&host, &e) };
                let fault = KeysFault::Broken { cause: root_cause(&e), answered_before };
                note(lasts.unwrap_or(Answer::NoKeys { host, is_machine, fault }));
                Err(e)
            }
        }
    }
}

#[async_trait::async_trait]
impl HttpService for Watch {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        if self.is_machine || !self.is_store(&host, request.uri().path()) {
            return self.ask_for_keys(host, request).await;
        }
        let query = request.uri().query().unwrap_or_default();
        let lists = query.contains("list-type=2") || query.contains("comp=list");
        let deletes = request.method().as_str() == "POST" && query == "delete";
        let from = range_start(&request);
        let outcome = self.client.execute(request).await;
        if outcome.is_ok() {
            self.answered.store(true, Relaxed);
        }
        match outcome {
            Ok(response) if from.is_some_and(|from| begins_behind_end(&response, from)) => {
                note(Answer::Status {
                    status: 416,
                    code: String::new(),
                    message: String::new(),
                    html: false,
                });
                let (mut parts, _) = response.into_parts();
                parts.status = hyper::StatusCode::RANGE_NOT_SATISFIABLE;
                Ok(HttpResponse::from_parts(parts, Bytes::new().into()))
            }
            Ok(response) if response.status().is_success() => {
                let date_s = date_s(&response);
                note(Answer::Fine { date_s });
                match (lists, deletes) {
                    (true, _) => bounded_page(response, date_s).await,
                    (_, true) => deletion(response, date_s).await,
                    _ => Ok(response),
                }
            }
            Ok(response) => Ok(failed(response).await),
            Err(e) => {
                let lasting = if self.answered.load(Relaxed) { None } else { lasting(&host, &e) };
                note(lasting.unwrap_or_else(|| Answer::Broken { host, cause: root_cause(&e) }));
                Err(e)
            }
        }
    }
}

/// Where the range begins that a request asks for.
fn range_start(request: &HttpRequest) -> Option<u64> {
    let headers = request.headers();
    let range = headers.get("x-ms-range").or(headers.get("range"))?;
    range.to_str().ok()?.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
}

/// Whether an answer says that the object ends before the range begins: Azurite calls that a part, others refuse it.
fn begins_behind_end(response: &HttpResponse, from: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|range| range.to_str().ok());
    let bytes = range.and_then(|range| range.rsplit_once('/')?.1.parse::<u64>().ok());
    response.status().as_u16() == 206 && bytes.is_some_and(|bytes| bytes <= from)
}

fn date_s(response: &HttpResponse) -> Option<i64> {
    standstill::unix_seconds(response.headers().get("date")?.to_str().ok()?)
}

/// Notes what a page says of what follows it.
async fn bounded_page(response: HttpResponse, date_s: Option<i64>) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let body = document(body, LISTINGS).await?;
    note(Answer::Page { date_s, end: page_end(&String::from_utf8_lossy(&body)) });
    Ok(HttpResponse::from_parts(parts, body.into()))
}

/// Notes what a bulk delete did not delete.
async fn deletion(response: HttpResponse, date_s: Option<i64>) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let body = document(body, &["DeleteResult"]).await?;
    let xml = String::from_utf8_lossy(&body);
    let (deleted, faults) = (deleted(&xml), delete_faults(&xml));
    note(Answer::Deletion { date_s, deleted, faults });
    Ok(HttpResponse::from_parts(parts, Bytes::from_static(DELETED).into()))
}

/// S3 and GCS say it as a word, Azure by where the listing goes on.
fn page_end(xml: &str) -> PageEnd {
    match (element(xml, "IsTruncated"), element(xml, "NextMarker")) {
        (Some("true"), _) => PageEnd::More,
        (Some("false"), _) => PageEnd::Nothing,
        (None, Some(marker)) if !marker.is_empty() => PageEnd::More,
        (None, Some(_)) => PageEnd::Nothing,
        (None, None) if xml.contains("<NextMarker") => PageEnd::Nothing,
        _ => PageEnd::Unsaid,
    }
}

/// The elements of this name in an answer, which do not lie in each other.
fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&begin).skip(1).filter_map(|rest| rest.split_once(&end).map(|(inner, _)| inner)).collect()
}

fn key_of(xml: &str) -> String {
    unescaped(element(xml, "Key").unwrap_or_default())
}

fn deleted(xml: &str) -> Vec<String> {
    elements(xml, "Deleted").into_iter().map(key_of).collect()
}

fn delete_faults(xml: &str) -> Vec<DeleteFault> {
    let errors = elements(xml, "Error").into_iter();
    let text = |error, name| element(error, name).unwrap_or_default().to_owned();
    let fault = |error| DeleteFault {
        key: key_of(error),
        code: text(error, "Code"),
        message: text(error, "Message").chars().take(200).collect(),
    };
    errors.map(fault).collect()
}

/// The body of an answer, which is a document with one of these elements as a whole.
async fn document(body: HttpResponseBody, known: &[&str]) -> Result<Bytes, HttpError> {
    let (body, whole) = read_bounded(body, PAGE_BYTES_MAX).await?;
    let fault = |kind, why| Err(HttpError::new(kind, io::Error::other(why)));
    if !whole {
        note(Answer::TooLong);
        return fault(HttpErrorKind::Decode, "an answer without end");
    }
    match listing(&String::from_utf8_lossy(&body), known) {
        Listing::Whole => Ok(body),
        Listing::Cut => fault(HttpErrorKind::Interrupted, "half an answer"),
        Listing::None => {
            note(Answer::NoListing);
            fault(HttpErrorKind::Decode, "another answer")
        }
    }
}

/// What the body of an answer is that is to be a document.
#[derive(Debug, PartialEq, Eq)]
enum Listing {
    Whole,
    Cut,
    None,
}

/// Looks for the document's element, one of those that are known.
fn listing(xml: &str, known: &[&str]) -> Listing {
    match known.iter().find(|name| xml.contains(&format!("<{name}"))) {
        Some(name) if is_closed(xml.trim_end(), name) => Listing::Whole,
        Some(_) => Listing::Cut,
        None => Listing::None,
    }
}

/// Whether a document ends with the end of this element, which may be empty.
fn is_closed(xml: &str, name: &str) -> bool {
    let is_empty = || xml.rfind('<').is_some_and(|at| xml[at + 1..].starts_with(name));
    xml.ends_with(&format!("</{name}>")) || (xml.ends_with("/>") && is_empty())
}

/// What an answer that is no success says.
struct Reason {
    status: u16,
    code: String,
    message: String,
    html: bool,
}

/// Notes a failure with the reason in its body, and replaces the body by nothing.
async fn failed(response: HttpResponse) -> HttpResponse {
    let (response, Reason { status, code, message, html }) = reason(response).await;
    note(Answer::Status { status, code, message, html });
    response
}

/// Reads the reason in the body of a failure, and replaces the body by nothing.
async fn reason(response: HttpResponse) -> (HttpResponse, Reason) {
    let (parts, body) = response.into_parts();
    let body = match read_bounded(body, ERROR_BYTES_MAX).await {
        Ok((body, _)) => body,
        Err(_) => Bytes::new(), // the status alone says enough
    };
    let text = String::from_utf8_lossy(&body);
    let header = parts.headers.get("x-ms-error-code").and_then(|code| code.to_str().ok());
    let reason = Reason {
        status: parts.status.as_u16(),
        code: header.or_else(|| element(&text, "Code")).unwrap_or_default().to_owned(),
        message: unescaped(message(&text)).chars().take(200).collect(),
        html: is_html(&text),
    };
    (HttpResponse::from_parts(parts, HttpResponseBody::from(Bytes::new())), reason)
}

/// The reason for people: an element of the clouds' documents, or a line of plain text.
fn message(text: &str) -> &str {
    let line =
        || text.lines().next().filter(|line| !line.trim_start().starts_with(['<', '{'])).unwrap_or_default();
    element(text, "Message").unwrap_or_else(line)
}

/// What XML writes in another way, for people.
fn unescaped(text: &str) -> String {
    let pairs = [
        ("&#39;", "'"),
        ("&apos;", "'"),
        ("&#34;", "\""),
        ("&quot;", "\""),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ];
    pairs.iter().fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

/// Reads at most `bytes_max`, and whether that was all.
pub(super) async fn read_bounded(
    body: HttpResponseBody,
    bytes_max: usize,
) -> Result<(Bytes, bool), HttpError> {
    let mut stream = body.bytes_stream();
    let mut out = BytesMut::new();
    while let Some(part) = stream.next().await {
        let part = part?;
        let room = bytes_max - out.len();
        out.extend_from_slice(&part[..part.len().min(room)]);
        if part.len() > room {
            return Ok((out.freeze(), false));
        }
    }
    Ok((out.freeze(), true))
}

/// The text of the first XML element of this name. Errors of all clouds are flat and small.
pub(super) fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let begin = xml.find(&format!("<{name}>"))? + name.len() + 2;
    let len = xml[begin..].find("</")?;
    Some(xml[begin..begin + len].trim())
}

fn is_html(text: &str) -> bool {
    let start: String = text.trim_start().chars().take(15).collect::<String>().to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html")
}

/// What of a host that never answered does not pass by itself: it speaks something else than what it was asked in, or its certificate is not
/// accepted.
fn lasting(host: &str, e: &(dyn Error + 'static)) -> Option<Answer> {
    let host = host.to_owned();
    let mut cause = Some(e);
    while let Some(e) = cause {
        if let Some(hyper) = e.downcast_ref::<hyper::Error>()
            && hyper.is_parse()
        {
            return Some(Answer::OtherScheme { host, tls_there: true });
        }
        match e.downcast_ref::<rustls::Error>() {
            Some(rustls::Error::InvalidMessage(_)) => {
                return Some(Answer::OtherScheme { host, tls_there: false });
            }
            Some(rustls::Error::InvalidCertificate(fault)) => {
                return Some(Answer::Distrusted { host, fault: CertificateFault::of(fault) });
            }
            _ => {}
        }
        // An io::Error gives its inner error's source as its own, and so hides the inner one.
        let inner: Option<&(dyn Error + 'static)> =
            match e.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                Some(inner) => Some(inner),
                None => e.source(),
            };
        cause = inner;
    }
    None
}

impl CertificateFault {
    fn of(e: &rustls::CertificateError) -> CertificateFault {
        use rustls::CertificateError as Fault;
        match e {
            // The second where an authority was made anew under its name.
            Fault::UnknownIssuer | Fault::BadSignature => CertificateFault::UnknownAuthority,
            Fault::NotValidForName | Fault::NotValidForNameContext { .. } => CertificateFault::OtherName,
            Fault::Expired | Fault::ExpiredContext { .. } => CertificateFault::Expired,
            Fault::NotValidYet | Fault::NotValidYetContext { .. } => CertificateFault::NotYetValid,
            // The error of the library below has no type that is known here.
            Fault::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
                CertificateFault::Authority
            }
            other => CertificateFault::Other(other.to_string()),
        }
    }
}

/// The innermost cause: "connection refused" instead of five layers of "error sending request".
pub(super) fn root_cause(e: &dyn Error) -> String {
    let mut cause = e;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reasons are found in the clouds' errors, and nothing is found in anything else.
    #[test]
    fn reasons_are_found_in_error_bodies() {
        let s3 = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>It is gone</Message></Error>";
        assert_eq!(element(s3, "Code"), Some("NoSuchKey"));
        assert_eq!(element(s3, "Message"), Some("It is gone"));
        for other in ["", "<Code>", "<Code>x", "{\"Code\": 1}", "<html>403</html>"] {
            assert_eq!(element(other, "Code"), None, "{other}");
        }
        assert_eq!(
            listing("\u{feff}<?xml?><EnumerationResults x=\"y\"></EnumerationResults>\n", LISTINGS),
            Listing::Whole
        );
        assert_eq!(listing("<ListBucketResult><Name>b</Name>", LISTINGS), Listing::Cut);
        assert_eq!(listing("<html>please log in</html>", LISTINGS), Listing::None);
        assert!(is_html(" \n<!DOCTYPE html><p>"));
        assert!(!is_html(s3));
    }
}
