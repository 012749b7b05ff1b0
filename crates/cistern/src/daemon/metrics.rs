//! The server of the metrics: HTTP, `GET /metrics` and nothing else.
//!
//! Anybody who reaches the address may ask, so everything is bounded: connections, the bytes of a
//! request, and its time. One request per connection. It can read counters and change nothing, and what it
//! tells are figures and the names of volumes and buckets.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, task::Context, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    daemon::{Daemon, accept::accept_all},
    failure::{Failure, Kind, Outcome},
    metrics,
};

/// Where the metrics are.
const PATH: &str = "/metrics";
/// Connections at once: collectors are few. Further ones wait in the system's queue.
const CONNECTIONS_MAX: usize = 8;
/// Time for a connection from its first byte to its last.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// The bound address of the metrics.
pub struct MetricsDoor {
    listener: TcpListener,
    address: SocketAddr,
}

impl MetricsDoor {
    pub async fn bind(address: &str) -> Outcome<MetricsDoor> {
        let failed = |e: std::io::Error| {
            let failure = Failure::io(format!("cannot listen on {address} for metrics"), &e);
            match e.kind() {
                std::io::ErrorKind::AddrInUse => Failure::new(Kind::InUse, failure.text)
                    .hint("another program listens there: choose another port with --metrics"),
                std::io::ErrorKind::InvalidInput => Failure::new(Kind::Usage, failure.text)
                    .hint("write HOST:PORT, for instance --metrics 127.0.0.1:9809"),
                _ => failure,
            }
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(MetricsDoor { listener, address })
    }

    /// Where collectors find the metrics.
    pub fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Answers until dropped, and its connections with it.
    pub async fn serve(self, daemon: Arc<Daemon>) {
        let accept = |cx: &mut Context<'_>| self.listener.poll_accept(cx);
        accept_all("metrics", CONNECTIONS_MAX, accept, |(stream, _)| talk(stream, daemon.clone())).await;
    }
}

async fn talk(stream: TcpStream, daemon: Arc<Daemon>) {
    let daemon = &*daemon;
    let answer =
        service_fn(|request: Request<Incoming>| async move { Ok::<_, Infallible>(answer(&request, daemon)) });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(CONNECTION_LIMIT);
    server.keep_alive(false).max_buf_size(REQUEST_BYTES_MAX);
    let connection = server.serve_connection(TokioIo::new(stream), answer);
    match tokio::time::timeout(CONNECTION_LIMIT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a client of the metrics went away or spoke no HTTP"),
        Err(_) => tracing::debug!("a client of the metrics was too slow"),
    }
}

fn answer(request: &Request<Incoming>, daemon: &Daemon) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, PATH) => {
            respond(StatusCode::OK, metrics::CONTENT_TYPE, metrics::exposition(&daemon.observe()))
        }
        (&Method::GET | &Method::HEAD, _) => {
            respond(StatusCode::NOT_FOUND, "text/plain", format!("the metrics are at {PATH}\n"))
        }
        _ => respond(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".to_owned()),
    }
}

fn respond(status: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
