//! The files of the dashboard, which are part of the binary.

use std::sync::OnceLock;

use crc_fast::{CrcAlgorithm, checksum};
use hyper::{
    Response, StatusCode,
    header::{self, HeaderValue},
    http::request::Parts,
};

use super::{HttpBody, TEXT, full, text, whole};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

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

const ASSETS: &[Asset] = assets![
    ("/", HTML, "index.html"),
    ("/assets/api.js", SCRIPT, "api.js"),
    ("/assets/chart.js", SCRIPT, "chart.js"),
    ("/assets/dom.js", SCRIPT, "dom.js"),
    ("/assets/format.js", SCRIPT, "format.js"),
    ("/assets/histograms.js", SCRIPT, "histograms.js"),
    ("/assets/history.js", SCRIPT, "history.js"),
    ("/assets/icon.svg", IMAGE, "icon.svg"),
    ("/assets/main.js", SCRIPT, "main.js"),
    ("/assets/overview.js", SCRIPT, "overview.js"),
    ("/assets/panel.js", SCRIPT, "panel.js"),
    ("/assets/panels.js", SCRIPT, "panels.js"),
    ("/assets/style.css", CSS, "style.css"),
    ("/assets/uPlot.LICENSE", TEXT, "uPlot.LICENSE"),
    ("/assets/uPlot.iife.min.js", SCRIPT, "uPlot.iife.min.js"),
    ("/assets/uPlot.min.css", CSS, "uPlot.min.css"),
    ("/assets/verdict.js", SCRIPT, "verdict.js"),
    ("/assets/volumes.js", SCRIPT, "volumes.js"),
];

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file of the dashboard is served, under its name.
    #[test]
    fn every_file_is_served() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboard");
        let entries = std::fs::read_dir(directory).expect("it is in the checkout");
        let names = entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned());
        let path = |name: String| match name.as_str() {
            "index.html" => "/".to_owned(),
            name => format!("/assets/{name}"),
        };
        let mut files: Vec<String> = names.filter(|name| name != "README.md").map(path).collect();
        files.sort();
        assert_eq!(files, ASSETS.iter().map(|asset| asset.path).collect::<Vec<_>>());
    }
}
