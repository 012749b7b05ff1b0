//! Whether the link is what it claims to be: measured with plain sockets, shown beside the results.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use cistern_harness::link::{Conditions, Link};

use super::report::median;

const ECHO: u8 = 0;
const SINK: u8 = 1;
const SOURCE: u8 = 2;
/// Connections that load the link, as an uploader's.
const LOADERS: usize = 4;
const PINGS: usize = 20;
/// How long the rates are measured, in seconds of what the link should carry.
const LOAD_SECONDS: u64 = 1;
const BUFFER_BYTES: usize = 64 << 10;

/// Measures an own link under `conditions`: round trip idle and beside an upload, MB/s each way.
pub fn run(conditions: Conditions) -> Result<String> {
    let link = Link::start(serve()?)?;
    link.set(conditions);
    let bytes = conditions.rate.context("an unlimited link has no rate to check")? * LOAD_SECONDS;
    let idle = ping(link.port())?;
    let up = rate(link.port(), SINK, bytes)?;
    let down = rate(link.port(), SOURCE, bytes)?;
    let port = link.port();
    let beside = std::thread::scope(|scope| {
        let load = scope.spawn(move || rate(port, SINK, bytes * 2));
        let beside = ping(port);
        load.join().expect("the load does not panic")?;
        beside
    })?;
    Ok(format!(
        "measured {idle:.1} ms idle, {beside:.1} ms beside an upload, {up:.2} MB/s up, {down:.2} MB/s down"
    ))
}

/// Answers, swallows or sends, by the first byte of each connection.
fn serve() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(port)
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let bytes = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
    match head[0] {
        SINK => {
            std::io::copy(&mut (&stream).take(bytes), &mut std::io::sink())?;
            stream.write_all(&[1])
        }
        SOURCE => {
            std::io::copy(&mut std::io::repeat(7).take(bytes), &mut stream)?;
            stream.shutdown(Shutdown::Write)
        }
        _ => std::io::copy(&mut &stream, &mut &stream).map(drop),
    }
}

fn connect(port: u16, what: u8, bytes: u64) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let mut head = [0; 9];
    head[0] = what;
    head[1..].copy_from_slice(&bytes.to_le_bytes());
    stream.write_all(&head)?;
    Ok(stream)
}

/// The median round trip of one byte, in ms; the first pays for the handshake and does not count.
fn ping(port: u16) -> Result<f64> {
    let mut stream = connect(port, ECHO, 0)?;
    let mut byte = [0];
    let mut times = Vec::new();
    for n in 0..=PINGS {
        let begin = Instant::now();
        stream.write_all(&[1])?;
        stream.read_exact(&mut byte)?;
        if n > 0 {
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(median(times))
}

/// MB/s of several connections together, without the round trips at the begin and end.
fn rate(port: u16, what: u8, bytes: u64) -> Result<f64> {
    let share = bytes / LOADERS as u64;
    let overhead = {
        let begin = Instant::now();
        transfer(port, what, 1)?;
        begin.elapsed()
    };
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..LOADERS).map(|_| scope.spawn(move || transfer(port, what, share))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a transfer does not panic"))
    })?;
    let time = begin.elapsed().saturating_sub(overhead).max(Duration::from_millis(1));
    Ok((share * LOADERS as u64) as f64 / 1e6 / time.as_secs_f64())
}

fn transfer(port: u16, what: u8, bytes: u64) -> Result<()> {
    let mut stream = connect(port, what, bytes)?;
    if what == SINK {
        let buffer = vec![3; BUFFER_BYTES];
        let mut left = bytes as usize;
        while left > 0 {
            let piece = left.min(buffer.len());
            stream.write_all(&buffer[..piece])?;
            left -= piece;
        }
        stream.read_exact(&mut [0])?;
    } else {
        std::io::copy(&mut stream, &mut std::io::sink())?;
    }
    Ok(())
}
