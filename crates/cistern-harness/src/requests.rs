//! What really crosses the wire to an S3 server: requests, counted in a stream of bytes.
//!
//! Understands just enough HTTP/1.1 to find where a request ends. Only looks: the bytes stay as they
//! are, so signatures stay valid. Answers are not looked at.

use std::collections::BTreeMap;

/// Bytes of a request's head that are kept while its end is awaited; real ones have about 1 KiB.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Requests by method and kind of key (`PUT log`, `GET map`, `LIST checkpoint`), and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub requests: BTreeMap<String, u64>,
    /// Bytes of request bodies.
    pub body_bytes: u64,
}

impl Counts {
    /// How many requests had this method, whatever the key.
    pub fn of(&self, method: &str) -> u64 {
        self.requests.iter().filter(|(kind, _)| kind.split(' ').next() == Some(method)).map(|(_, n)| n).sum()
    }

    /// How many requests had this method and kind of key, like `PUT log`.
    pub fn of_kind(&self, kind: &str) -> u64 {
        self.requests.get(kind).copied().unwrap_or_default()
    }

    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }
}

/// One request that began.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub kind: String,
    pub body_bytes: u64,
}

/// Follows what one client sends on one connection.
#[derive(Default)]
pub struct Follower {
    head: Vec<u8>,
    /// Bytes of the body under way that are yet to come.
    body_left: u64,
    /// Something that is not understood came by: nothing more is counted.
    lost: bool,
}

impl Follower {
    /// Bytes of the body under way that are yet to come.
    pub fn body_left(&self) -> u64 {
        self.body_left
    }

    /// Takes the next bytes; calls `seen` for each request whose head is complete with them.
    pub fn feed(&mut self, mut bytes: &[u8], mut seen: impl FnMut(Request)) {
        while !bytes.is_empty() && !self.lost {
            if self.body_left > 0 {
                let passed = self.body_left.min(bytes.len() as u64);
                self.body_left -= passed;
                bytes = &bytes[passed as usize..];
                continue;
            }
            let known = self.head.len();
            self.head.extend_from_slice(bytes);
            let from = known.saturating_sub(3);
            let Some(at) = self.head[from..].windows(4).position(|w| w == b"\r\n\r\n") else {
                self.lost = self.head.len() > HEAD_BYTES_MAX;
                return;
            };
            let end = from + at + 4;
            bytes = &bytes[end - known..];
            match parse_head(&self.head[..end]) {
                Some(request) => {
                    self.body_left = request.body_bytes;
                    seen(request);
                }
                None => self.lost = true,
            }
            self.head.clear();
        }
    }
}

/// A head up to its empty line; none for what is no request or has no length.
fn parse_head(head: &[u8]) -> Option<Request> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines();
    let kind = kind_of(lines.next()?)?;
    let mut body_bytes = 0;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            body_bytes = value.trim().parse().ok()?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return None;
        }
    }
    Some(Request { kind, body_bytes })
}

/// `PUT /bucket/prefix/volume/log/17 HTTP/1.1` is `PUT log`; a GET with a list query is a LIST.
fn kind_of(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_list = method == "GET" && query.contains("list-type=");
    let whole = if is_list { query } else { path };
    let kind = ["log", "map", "checkpoint", "roots", "clones", "hot", "volume.json"]
        .into_iter()
        .find(|kind| {
            whole.split(['/', '=', '&']).any(|part| part == *kind || part.split("%2F").any(|p| p == *kind))
        })
        .unwrap_or("other");
    Some(format!("{} {kind}", if is_list { "LIST" } else { method }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests are sorted by what they do to which part of a volume.
    #[test]
    fn kinds_of_requests() {
        let kind = |line| kind_of(line).expect("a request line");
        assert_eq!(kind("PUT /tank/v/log/0000000000000011 HTTP/1.1"), "PUT log");
        assert_eq!(kind("GET /tank/v/map/ab-cd HTTP/1.1"), "GET map");
        assert_eq!(kind("GET /tank?list-type=2&prefix=v%2Fcheckpoint%2F HTTP/1.1"), "LIST checkpoint");
        assert_eq!(kind("DELETE /tank/v/volume.json HTTP/1.1"), "DELETE volume.json");
        assert_eq!(kind("PUT /tank/catalog HTTP/1.1"), "PUT other");
    }

    /// However the stream is cut into pieces, the same requests are seen, bodies that look like heads
    /// included.
    #[test]
    fn a_stream_in_any_pieces() {
        let stream = b"PUT /b/v/log/1 HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nGET\r\n\r\nxx\
                       GET /b/v/map/2 HTTP/1.1\r\n\r\nHEAD /b/v/volume.json HTTP/1.1\r\n\r\n";
        for piece in 1..=stream.len() {
            let mut follower = Follower::default();
            let mut seen = Vec::new();
            stream.chunks(piece).for_each(|bytes| follower.feed(bytes, |request| seen.push(request)));
            let kinds: Vec<(&str, u64)> = seen.iter().map(|r| (r.kind.as_str(), r.body_bytes)).collect();
            assert_eq!(kinds, [("PUT log", 9), ("GET map", 0), ("HEAD volume.json", 0)], "pieces of {piece}");
        }
    }
}
