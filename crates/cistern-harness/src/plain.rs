//! A client of an object store that does nothing but ranged GETs, or small PUTs: what store and link allow.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::minio::BUCKET;

/// What a server may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Requests begin so far inside an object at most.
const OFFSET_MAX: u64 = 1 << 20;

/// GETs per second of `bytes` each at random places of random objects, over so many connections. The bucket
/// must let strangers read ([`crate::minio::Minio::open_to_all`]); objects that end before the place do not count.
pub fn ranged_gets(
    port: u16,
    keys: &[String],
    bytes: u64,
    connections: usize,
    time: Duration,
) -> Result<f64> {
    ensure!(!keys.is_empty(), "there is no object to read");
    let (count, begin) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        let client = |n: usize| {
            let count = &count;
            scope.spawn(move || -> Result<()> {
                let mut connection = Connection::open(port)?;
                let mut draw = n as u64 * 0x9E37_79B9 + 1;
                while begin.elapsed() < time {
                    draw =
                        draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let key = &keys[(draw >> 33) as usize % keys.len()];
                    let offset = (draw >> 20) % OFFSET_MAX / bytes * bytes;
                    if connection.get(key, offset, bytes)? {
                        count.fetch_add(1, Relaxed);
                    }
                }
                Ok(())
            })
        };
        let clients: Vec<_> = (0..connections).map(client).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
    })?;
    Ok(count.load(Relaxed) as f64 / begin.elapsed().as_secs_f64())
}

/// Puts small objects of the same content, over so many connections. The bucket must let strangers write
/// ([`crate::minio::Minio::open_to_all`]).
pub fn puts(port: u16, keys: &[String], body: &[u8], connections: usize) -> Result<()> {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let client = |_| {
            let next = &next;
            scope.spawn(move || -> Result<()> {
                let mut connection = Connection::open(port)?;
                while let Some(key) = keys.get(next.fetch_add(1, Relaxed) as usize) {
                    connection.put(key, body)?;
                }
                Ok(())
            })
        };
        let clients: Vec<_> = (0..connections).map(client).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
    })
}

struct Connection {
    stream: BufReader<TcpStream>,
    port: u16,
}

impl Connection {
    fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        Ok(Connection { stream: BufReader::new(stream), port })
    }

    /// Whether the object has that range.
    fn get(&mut self, key: &str, offset: u64, bytes: u64) -> Result<bool> {
        let request = format!(
            "GET /{BUCKET}/{key} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nRange: bytes={offset}-{}\r\n\r\n",
            self.port,
            offset + bytes - 1
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let status = self.answer()?;
        let is_there = status.contains(" 206 ");
        ensure!(is_there || status.contains(" 416 "), "the server says {}", status.trim());
        Ok(is_there)
    }

    fn put(&mut self, key: &str, body: &[u8]) -> Result<()> {
        let head = format!(
            "PUT /{BUCKET}/{key} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        self.stream.get_mut().write_all(&[head.as_bytes(), body].concat())?;
        let status = self.answer()?;
        ensure!(status.contains(" 200 "), "the server says {}", status.trim());
        Ok(())
    }

    /// Takes an answer; gives its first line.
    fn answer(&mut self) -> Result<String> {
        let mut status = String::new();
        self.stream.read_line(&mut status)?;
        let mut length = None;
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                bail!("the server hung up");
            }
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = Some(value.trim().parse::<usize>()?);
            }
        }
        let mut body = vec![0; length.context("an answer without a length")?];
        self.stream.read_exact(&mut body)?;
        Ok(status)
    }
}
