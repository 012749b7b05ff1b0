//! The files of the dashboard, which are part of the binary.

use std::sync::OnceLock;

use crc_fast::{CrcAlgorithm, checksum};
use hyper::{
    Response, StatusCode,
    header::{self, HeaderValue},
    http::request::Parts,
};

use super::{HttpBody, full, text, whole};

const HTML: &str = "text/html; charset=utf-8";

/// A file under its path.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

/// One row of the table: path, type, and the file in `crates/cistern/dashboard`.
macro_rules! assets {
    ($(($path:literal, $content_type:expr, $file:literal),)*) => {
        &[$(Asset {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../../../dashboard/", $file)),
        },)*]
    };
}

const ASSETS: &[Asset] = assets![("/", HTML, "index.html"),];

/// A file, or that the client has it already.
pub fn answer(path: &str, head: &Parts) -> Response<HttpBody> {
    let Some(at) = ASSETS.iter().position(|asset| asset.path == path) else {
        return text(StatusCode::NOT_FOUND, "there is no such page: the dashboard is at /\n");
    };
    let (asset, tag) = (&ASSETS[at], &tags()[at]);
    let known = head.headers.get_all(header::IF_NONE_MATCH).iter();
    let is_known = known.filter_map(|value| value.to_str().ok()).any(|value| value.contains(tag.as_str()));
    let mut response = whole(asset.content_type, asset.bytes);
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.body_mut() = full("");
    }
    let headers = response.headers_mut();
    headers.insert(header::ETAG, HeaderValue::from_str(tag).expect("digits"));
    // Kept, and asked for anew each time: the next daemon may be of another version.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// What tells the contents of files apart, in the order of the table.
fn tags() -> &'static [String] {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    let tag = |asset: &Asset| format!("\"{:016x}\"", checksum(CrcAlgorithm::Crc64Nvme, asset.bytes));
    TAGS.get_or_init(|| ASSETS.iter().map(tag).collect())
}
