//! A counting pass-through in front of an S3 server: what requests really cross the wire.
//!
//! Understands just enough HTTP/1.1 to find where a request ends. Bytes are passed on unchanged, so
//! signatures stay valid; answers are not looked at.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, bail};

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

    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }
}

/// A running proxy. Its threads end with the connections they serve.
pub struct Proxy {
    port: u16,
    counts: Arc<Mutex<Counts>>,
}

impl Proxy {
    /// Listens on a free port and passes on to `upstream` on loopback.
    pub fn start(upstream: u16) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let counts = Arc::new(Mutex::new(Counts::default()));
        let shared = counts.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let counts = shared.clone();
                std::thread::spawn(move || serve(client, upstream, &counts));
            }
        });
        Ok(Proxy { port, counts })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What was counted since the last call, and starts from zero.
    pub fn take(&self) -> Counts {
        std::mem::take(&mut self.counts.lock().expect("no thread panics while it counts"))
    }
}

/// One connection of a client. An error of either side ends both, as without a proxy.
fn serve(client: TcpStream, upstream: u16, counts: &Mutex<Counts>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (Ok(mut answers), Ok(mut back)) = (server.try_clone(), client.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut answers, &mut back);
        let _ = back.shutdown(Shutdown::Both);
    });
    let mut to = &server;
    let mut from = BufReader::with_capacity(1 << 18, &client);
    while let Ok(true) = pass_request(&mut from, &mut to, counts) {}
    let _ = server.shutdown(Shutdown::Both);
}

/// Passes one request on; false at the end of the connection.
fn pass_request(from: &mut impl BufRead, to: &mut impl Write, counts: &Mutex<Counts>) -> Result<bool> {
    let mut head = Vec::new();
    let mut body_bytes = 0;
    let mut kind = String::new();
    loop {
        let start = head.len();
        if from.read_until(b'\n', &mut head)? == 0 {
            return Ok(false);
        }
        let line = String::from_utf8_lossy(&head[start..]).trim_end().to_owned();
        if start == 0 {
            kind = kind_of(&line).with_context(|| format!("not a request: {line}"))?;
        } else if line.is_empty() {
            break;
        }
        match line.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                body_bytes = value.trim().parse()?
            }
            Some((name, _)) if name.eq_ignore_ascii_case("transfer-encoding") => bail!("chunked request"),
            _ => {}
        }
    }
    {
        let mut counts = counts.lock().expect("no thread panics while it counts");
        *counts.requests.entry(kind).or_default() += 1;
        counts.body_bytes += body_bytes;
    }
    to.write_all(&head)?;
    let passed = std::io::copy(&mut from.take(body_bytes), to)?;
    to.flush()?;
    Ok(passed == body_bytes)
}

/// `PUT /bucket/prefix/volume/log/17 HTTP/1.1` is `PUT log`; a GET with a list query is a LIST.
fn kind_of(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_list = method == "GET" && query.contains("list-type=");
    let whole = if is_list { query } else { path };
    let kind = ["log", "map", "checkpoint", "roots", "clones", "volume.json"]
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
}
