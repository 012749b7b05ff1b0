//! Docker's volume plugin protocol, version 1: JSON over HTTP, one call a request
//! (<https://docs.docker.com/engine/extend/plugins_volume/>).

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use cistern_engine::units::utc;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{net::UnixStream, sync::oneshot};

use super::{
    book::Engine,
    volumes::{DockerVolume, Volumes},
};
use crate::{
    failure::{Failure, Outcome},
    terminal,
};

const DOCUMENT: &str = "application/vnd.docker.plugins.v1.2+json";
const BODY_BYTES_MAX: usize = 64 << 10;
const HEAD_BYTES_MAX: usize = 16 << 10;
/// For a client to send the head of a request, and as long between two of them: Docker keeps connections.
const HEAD_LIMIT: Duration = Duration::from_secs(60);

/// What calls say; each uses some of it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Asked {
    name: String,
    /// Of whoever mounts: the same when it unmounts.
    #[serde(rename = "ID")]
    id: String,
    opts: Option<BTreeMap<String, String>>,
}

/// Serves one connection.
pub(super) async fn talk(stream: UnixStream, volumes: Arc<Volumes>) {
    let engine = stream.peer_cred().ok().and_then(|peer| Engine::of(peer.pid()?));
    let Some(engine) = engine else { return tracing::debug!("a client went away") };
    let answer = service_fn(|request| {
        let (volumes, engine) = (volumes.clone(), engine.clone());
        async move { Ok::<_, Infallible>(answer(request, engine, &volumes).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(HEAD_BYTES_MAX);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!(%error, "a client went away or spoke no HTTP");
    }
}

async fn answer(request: Request<Incoming>, engine: Engine, volumes: &Arc<Volumes>) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        return respond(StatusCode::METHOD_NOT_ALLOWED, &refusal(&Failure::usage("calls are POSTs")));
    }
    let call = request.uri().path().to_owned();
    let asked = match read(request.into_body()).await {
        Ok(asked) => asked,
        Err(failure) => return respond(StatusCode::BAD_REQUEST, &refusal(&failure)),
    };
    match to_its_end(&call, asked, engine, volumes).await {
        Some(Ok(done)) => respond(StatusCode::OK, &done),
        Some(Err(failure)) => respond(StatusCode::INTERNAL_SERVER_ERROR, &refusal(&failure)),
        // So Docker knows that a plugin has not got something.
        None => respond(StatusCode::NOT_FOUND, &refusal(&Failure::usage(format!("there is no {call}")))),
    }
}

/// What is begun is done, also where whoever asked is gone: who was to be told of a mount then does not have it.
async fn to_its_end(
    call: &str,
    asked: Asked,
    engine: Engine,
    volumes: &Arc<Volumes>,
) -> Option<Outcome<Value>> {
    let (told, answer) = oneshot::channel();
    let (call, volumes) = (call.to_owned(), volumes.clone());
    tokio::spawn(async move {
        let (name, id) = (asked.name.clone(), asked.id.clone());
        let done = perform(&call, asked, engine, &volumes).await;
        let is_mounted = call.ends_with(".Mount") && matches!(done, Some(Ok(_)));
        if told.send(done).is_err()
            && is_mounted
            && let Err(failure) = volumes.unmount(&name, &id).await
        {
            terminal::tell(failure.text);
        }
    });
    answer.await.unwrap_or(None)
}

async fn read(body: Incoming) -> Outcome<Asked> {
    let unreadable = |e: &dyn std::fmt::Display| Failure::usage(format!("the request cannot be read: {e}"));
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|e| unreadable(&e))?.to_bytes();
    if body.trim_ascii().is_empty() {
        return Ok(Asked::default());
    }
    serde_json::from_slice(&body).map_err(|e| unreadable(&e))
}

/// Does what is asked; nothing where there is no such call.
async fn perform(call: &str, asked: Asked, engine: Engine, volumes: &Arc<Volumes>) -> Option<Outcome<Value>> {
    let Asked { name, id, opts } = asked;
    let done = match call.trim_start_matches('/') {
        // The first call of a process of Docker's.
        "Plugin.Activate" => {
            volumes.forget_the_dead();
            Ok(json!({ "Implements": ["VolumeDriver"] }))
        }
        // The same volume can be had by another host.
        "VolumeDriver.Capabilities" => Ok(json!({ "Capabilities": { "Scope": "global" } })),
        "VolumeDriver.Create" => volumes.create(&name, opts.unwrap_or_default()).await.map(|()| json!({})),
        "VolumeDriver.Remove" => volumes.remove(&name).await.map(|()| json!({})),
        "VolumeDriver.Mount" => volumes.mount(&name, &id, engine).await.map(|at| json!({ "Mountpoint": at })),
        "VolumeDriver.Unmount" => volumes.unmount(&name, &id).await.map(|()| json!({})),
        "VolumeDriver.Path" => volumes.get(&name).map(|shown| json!({ "Mountpoint": mountpoint(&shown) })),
        "VolumeDriver.Get" => volumes.get(&name).map(|shown| json!({ "Volume": volume(&shown) })),
        "VolumeDriver.List" => {
            Ok(json!({ "Volumes": volumes.list().iter().map(volume).collect::<Vec<_>>() }))
        }
        _ => return None,
    };
    Some(done)
}

fn volume(shown: &DockerVolume) -> Value {
    json!({
        "Name": shown.name,
        "Mountpoint": mountpoint(shown),
        "CreatedAt": rfc_3339(shown.entry.created_ms),
        "Status": { "url": shown.entry.url, "fs": shown.entry.fs, "containers": shown.entry.users.len() },
    })
}

/// A time as Docker reads it; another form is an error there, and the volume is not found.
fn rfc_3339(ms: u64) -> String {
    utc(ms).replacen(' ', "T", 1).replace(" UTC", "Z")
}

/// Nothing where it is not mounted.
fn mountpoint(shown: &DockerVolume) -> String {
    let at = (!shown.entry.users.is_empty()).then(|| shown.at.display().to_string());
    at.unwrap_or_default()
}

/// Docker shows the sentence as it is.
fn refusal(failure: &Failure) -> Value {
    let hint = failure.hint.iter().map(|hint| format!(" ({hint})")).collect::<String>();
    json!({ "Err": format!("{}{hint}", failure.text) })
}

fn respond(status: StatusCode, document: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(document.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(DOCUMENT));
    response
}

#[cfg(test)]
mod tests {
    /// Times are written as Go's parser of RFC 3339 takes them.
    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(super::rfc_3339(1_795_668_635_000), "2026-11-26T04:50:35Z");
    }
}
