//! One WAN link on loopback, in front of a store: a round trip, a bandwidth, and counted requests.
//!
//! A TCP proxy. Each direction is one lane that all connections share; a byte leaves the lane when the
//! lane's rate allows and arrives half a round trip later. Conditions can change at any time. Opening a
//! connection costs one round trip more, as the handshake does; slow start and loss are not emulated.
//! The store may take its time for each HTTP request, drawn anew for each (`delay`), or fail it (`fault`).
//!
//! The queue in front of a lane is short (`QUEUE_MAX`), as that of a router with active queue
//! management: beyond it, bytes wait in the socket of their own connection and delay nobody else's.
//! The shape of this queue decides what a small request costs beside a bulk transfer, so it is part of
//! what an experiment says.

mod delay;
mod fault;
mod lane;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::requests::{Counts, Follower};
pub use delay::Delay;
pub use fault::{Fault, FaultCounts, Faults};
use lane::Lane;

/// How far ahead of a lane's rate bytes are taken from their connections.
const QUEUE_MAX: Duration = Duration::from_millis(5);
/// Bytes that one connection passes at once: at most so many, and on a limited lane what leaves
/// within `PIECE_TIME_MAX`, but at least a packet. This is how finely connections interleave.
const PIECE_BYTES_MAX: usize = 128 << 10;
const PIECE_TIME_MAX: Duration = Duration::from_micros(500);
const PACKET_BYTES: usize = 1448;
/// Pieces in flight per connection and direction: 500 ms of a limited lane.
const FLIGHT_PIECES: usize = 1000;
/// A read that took longer than this waited for its sender: the lane was not what held it up.
const IDLE_READ: Duration = Duration::from_micros(300);

/// What the link is like. The default has no limits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions {
    pub round_trip: Duration,
    /// Bytes per second of each direction; none for no limit.
    pub rate: Option<u64>,
    /// What the store takes to answer a request, at least.
    pub delay: Option<Delay>,
    /// Requests that fail.
    pub faults: Option<Faults>,
}

impl Conditions {
    /// A link by its round trip in ms and its rate in MB/s (10^6 bytes).
    pub fn wan(round_trip_ms: u64, mb_per_s: u64) -> Conditions {
        let (round_trip, rate) = (Duration::from_millis(round_trip_ms), Some(mb_per_s * 1_000_000));
        Conditions { round_trip, rate, ..Conditions::default() }
    }

    fn piece_bytes(self) -> usize {
        let at_rate = |rate: u64| (rate as f64 * PIECE_TIME_MAX.as_secs_f64()) as usize;
        self.rate.map_or(PIECE_BYTES_MAX, |rate| at_rate(rate).clamp(PACKET_BYTES, PIECE_BYTES_MAX))
    }
}

/// Bytes that left the lanes since the link was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// From clients to the store.
    pub up: u64,
    pub down: u64,
}

#[derive(Default)]
struct Shared {
    conditions: Mutex<Conditions>,
    /// Delays drawn since the conditions were set.
    drawn: AtomicU64,
    /// Requests that could have failed since the start.
    dared: AtomicU64,
    faults: Mutex<FaultCounts>,
    up: Mutex<Lane>,
    down: Mutex<Lane>,
    counts: Mutex<Counts>,
}

/// A running link. Its threads end with the connections they serve.
pub struct Link {
    port: u16,
    shared: Arc<Shared>,
}

impl Link {
    /// Listens on a free port and passes on to `upstream` on loopback, without limits at first.
    pub fn start(upstream: u16) -> Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let served = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = served.clone();
                std::thread::spawn(move || serve(client, upstream, &shared));
            }
        });
        Ok(Link { port, shared })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Changes the link from now on; what is on its way arrives as it would have. Delays are drawn
    /// from their beginning again.
    pub fn set(&self, conditions: Conditions) {
        self.shared.drawn.store(0, Relaxed);
        *self.shared.conditions.lock().expect(NO_PANIC) = conditions;
    }

    /// The requests since the last call, and starts from zero.
    pub fn take(&self) -> Counts {
        std::mem::take(&mut self.shared.counts.lock().expect(NO_PANIC))
    }

    /// The faults since the start.
    pub fn faults(&self) -> FaultCounts {
        self.shared.faults.lock().expect(NO_PANIC).clone()
    }

    pub fn carried(&self) -> Carried {
        let bytes = |lane: &Mutex<Lane>| lane.lock().expect(NO_PANIC).carried_bytes();
        Carried { up: bytes(&self.shared.up), down: bytes(&self.shared.down) }
    }
}

const NO_PANIC: &str = "no thread panics while it holds this";

/// Bytes, and when they arrive.
struct Piece {
    bytes: Vec<u8>,
    at: Instant,
}

/// What is to happen to the answer of the newest request of a connection. Clients of HTTP/1.1 do not ask
/// again before they are answered.
#[derive(Default)]
struct Answer {
    /// When it comes, at the earliest.
    due: Option<Instant>,
    fault: Option<Fault>,
}

/// What is special to one direction of a connection.
struct Way<'a> {
    lane: &'a Mutex<Lane>,
    /// Delays its first bytes.
    handshake: Duration,
    answer: &'a Mutex<Answer>,
    /// None in the direction of the answers.
    requests: Option<Requests>,
}

/// What is special to the direction of the requests.
#[derive(Default)]
struct Requests {
    follower: Follower,
    /// The connection ends once so little of a body is yet to come.
    cut: Option<u64>,
}

/// One connection of a client. An error of either side ends both, as on a real link.
fn serve(client: TcpStream, upstream: u16, shared: &Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (Ok(answers), Ok(back)) = (server.try_clone(), client.try_clone()) else { return };
    let answer = Arc::new(Mutex::new(Answer::default()));
    let (for_answers, answer_there) = (shared.clone(), answer.clone());
    std::thread::spawn(move || {
        let lane = &for_answers.down;
        let way = Way { lane, handshake: Duration::ZERO, answer: &answer_there, requests: None };
        pass(answers, back, &for_answers, way);
    });
    let handshake = shared.conditions.lock().expect(NO_PANIC).round_trip;
    let requests = Some(Requests::default());
    pass(client, server, shared, Way { lane: &shared.up, handshake, answer: &answer, requests });
}

/// Carries one direction of a connection to its end.
fn pass(mut from: TcpStream, to: TcpStream, shared: &Shared, mut way: Way<'_>) {
    let (send, receive) = sync_channel(FLIGHT_PIECES);
    let source = from.try_clone();
    let deliver = std::thread::spawn(move || deliver(&receive, to, source.ok()));
    let mut buffer = vec![0; PIECE_BYTES_MAX];
    let mut throttled_until = None;
    loop {
        let conditions = *shared.conditions.lock().expect(NO_PANIC);
        let piece = conditions.piece_bytes();
        let begin = Instant::now();
        let Ok(read @ 1..) = from.read(&mut buffer[..piece]) else { break };
        let mut bytes = buffer[..read].to_vec();
        let mut begun = 0;
        let mut is_last = false;
        if let Some(Requests { follower, cut }) = &mut way.requests {
            begun = count(follower, &bytes, shared);
            match (begun > 0).then(|| draw_fault(conditions, shared)).flatten() {
                Some(fault @ (Fault::Unavailable | Fault::Internal | Fault::Unheard)) => {
                    refuse(fault, follower, &mut from);
                    break;
                }
                Some(Fault::Half) => *cut = Some(follower.body_left() / 2),
                Some(later) => way.answer.lock().expect(NO_PANIC).fault = Some(later),
                None => {}
            }
            is_last = cut.is_some_and(|cut| follower.body_left() <= cut);
            if is_last {
                // Before the store hears of it: what it answers must not be faster.
                let _ = from.shutdown(Shutdown::Both); // may be gone already
            }
        } else if let Some(fault) = await_store(way.answer) {
            bytes = spoiled(fault, bytes);
            is_last = true;
        }
        let now = Instant::now();
        // Waking late must not cost the lane's time when the bytes had been waiting all along.
        let ready = throttled_until.filter(|_| now - begin < IDLE_READ).unwrap_or(now);
        let leaves = way.lane.lock().expect(NO_PANIC).reserve(now, ready, read as u64, conditions.rate);
        let at = leaves + conditions.round_trip / 2 + std::mem::take(&mut way.handshake);
        if let Some(delay) = conditions.delay.filter(|_| begun > 0) {
            let draw = delay.draw(shared.drawn.fetch_add(1, Relaxed));
            way.answer.lock().expect(NO_PANIC).due = Some(at + draw);
        }
        if !enqueue(&send, Piece { bytes, at }) {
            break;
        }
        if is_last {
            let _ = from.shutdown(Shutdown::Both); // may be gone already
            break;
        }
        throttled_until = leaves.checked_sub(QUEUE_MAX).filter(|until| *until > now);
        if let Some(until) = throttled_until {
            sleep_until(until);
        }
    }
    drop(send);
    let _ = deliver.join();
}

/// Counts the requests that are complete but for their bodies with these bytes.
fn count(follower: &mut Follower, bytes: &[u8], shared: &Shared) -> u64 {
    let mut begun = 0;
    follower.feed(bytes, |request| {
        let mut counts = shared.counts.lock().expect(NO_PANIC);
        *counts.requests.entry(request.kind).or_default() += 1;
        counts.body_bytes += request.body_bytes;
        begun += 1;
    });
    begun
}

/// Holds the first bytes of an answer back until the store would have sent them, and gives what is to become of it. The
/// lane is not used meanwhile, and what follows comes at its rate.
fn await_store(answer: &Mutex<Answer>) -> Option<Fault> {
    let Answer { due, fault } = std::mem::take(&mut *answer.lock().expect(NO_PANIC));
    if let Some(due) = due {
        sleep_until(due);
    }
    fault
}

fn draw_fault(conditions: Conditions, shared: &Shared) -> Option<Fault> {
    let fault = conditions.faults?.draw(shared.dared.fetch_add(1, Relaxed))?;
    *shared.faults.lock().expect(NO_PANIC).entry(fault).or_default() += 1;
    Some(fault)
}

/// Ends a connection whose newest request the store is not to hear of.
fn refuse(fault: Fault, follower: &mut Follower, client: &mut TcpStream) {
    if let Some(answer) = fault.answer() {
        let mut rest = vec![0; PIECE_BYTES_MAX];
        while follower.body_left() > 0 {
            let Ok(read @ 1..) = client.read(&mut rest) else { break };
            follower.feed(&rest[..read], |_| ());
        }
        let _ = client.write_all(&answer); // may be gone already
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// What the client gets of the first bytes of an answer.
fn spoiled(fault: Fault, mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(if fault == Fault::HalfAnswered { bytes.len() / 2 } else { 0 });
    fault.answer().unwrap_or(bytes)
}

/// False once nobody delivers any more.
fn enqueue(send: &SyncSender<Piece>, piece: Piece) -> bool {
    send.send(piece).is_ok()
}

/// Hands pieces over when they arrive, and ends both ways of the connection after the last.
fn deliver(pieces: &Receiver<Piece>, mut to: TcpStream, source: Option<TcpStream>) {
    for piece in pieces {
        sleep_until(piece.at);
        if to.write_all(&piece.bytes).is_err() {
            let _ = source.map(|source| source.shutdown(Shutdown::Both)); // ends the reader too
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// The emulation itself: the delay is what this is for.
fn sleep_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each connection with what it was sent.
    fn echo() -> Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        Ok(port)
    }

    /// Bytes come back unchanged and in order, not before the round trip, and are counted both ways.
    #[test]
    fn bytes_pass_unchanged_and_not_too_early() -> Result<()> {
        const BYTES: usize = 3 << 20;
        let link = Link::start(echo()?)?;
        link.set(Conditions {
            round_trip: Duration::from_millis(30),
            rate: Some(1 << 30),
            ..Conditions::default()
        });
        let sent = crate::fixture::random_bytes(BYTES, 5);
        let begin = Instant::now();
        let stream = TcpStream::connect(("127.0.0.1", link.port()))?;
        let writer = stream.try_clone()?;
        let copy = sent.clone();
        let sender = std::thread::spawn(move || {
            (&writer).write_all(&copy).and_then(|()| writer.shutdown(Shutdown::Write))
        });
        let mut received = Vec::new();
        (&stream).read_to_end(&mut received)?;
        sender.join().expect("the sender does not panic")?;
        assert!(received == sent, "the bytes came back changed");
        assert!(begin.elapsed() >= Duration::from_millis(60), "a handshake and a round trip");
        assert_eq!(link.carried(), Carried { up: BYTES as u64, down: BYTES as u64 });
        Ok(())
    }

    /// Conditions of a running link change what comes next: a delay of an hour is taken back.
    #[test]
    fn conditions_change_while_running() -> Result<()> {
        let link = Link::start(echo()?)?;
        link.set(Conditions { round_trip: Duration::from_secs(3600), ..Conditions::default() });
        link.set(Conditions::default());
        let mut stream = TcpStream::connect(("127.0.0.1", link.port()))?;
        let mut answer = [0; 4];
        stream.write_all(b"ping")?;
        stream.read_exact(&mut answer)?;
        assert_eq!(&answer, b"ping");
        Ok(())
    }

    /// A server that answers every head on a connection with four bytes, in two pieces.
    fn answer_heads() -> Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = Vec::new();
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        let answered = stream.write_all(b"an").and_then(|()| stream.write_all(b"sw"));
                        answered.expect("the link takes an answer");
                    }
                }
            }
        });
        Ok(port)
    }

    /// Each request on a connection is delayed by a draw of its own, however its bytes come, and the
    /// same draws recur when the conditions are set again.
    #[test]
    fn each_request_waits_for_its_draw() -> Result<()> {
        let ms = Duration::from_millis;
        let delay = Delay { median: ms(10), p99: ms(40), seed: 3 };
        let link = Link::start(answer_heads()?)?;
        for _ in 0..2 {
            link.set(Conditions { delay: Some(delay), ..Conditions::default() });
            let mut stream = TcpStream::connect(("127.0.0.1", link.port()))?;
            for n in 0..8 {
                let begin = Instant::now();
                stream.write_all(b"GET /tank/x HTTP/1.1\r\n")?;
                stream.write_all(b"Host: here\r\n\r\n")?;
                let mut answer = [0; 4];
                stream.read_exact(&mut answer)?;
                assert_eq!(&answer, b"answ");
                assert!(begin.elapsed() >= delay.draw(n), "request {n} was answered early");
                assert_eq!(link.shared.drawn.load(Relaxed), n + 1, "one draw a request");
            }
        }
        assert_eq!(link.take().of("GET"), 16);
        Ok(())
    }

    /// One request on a connection of its own: what comes back until the connection ends or four bytes are there.
    fn ask(link: &Link) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", link.port()))?;
        stream.write_all(b"PUT /tank/x HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody")?;
        let mut answer = Vec::new();
        let mut bytes = [0; 512];
        while answer != b"answ" {
            match stream.read(&mut bytes) {
                Ok(read @ 1..) => answer.extend(&bytes[..read]),
                _ => break, // a reset is an end as well
            }
        }
        Ok(answer)
    }

    /// Every request fails in the way that was drawn for it: refused, cut off, or done and not said; and each is counted.
    #[test]
    fn requests_fail_as_drawn() -> Result<()> {
        const REQUESTS: u64 = 40;
        let faults = Faults { per_million: 900_000, seed: 1 };
        let link = Link::start(answer_heads()?)?;
        link.set(Conditions { faults: Some(faults), ..Conditions::default() });
        let mut expected = FaultCounts::new();
        for n in 0..REQUESTS {
            let answer = String::from_utf8_lossy(&ask(&link)?).into_owned();
            let drawn = faults.draw(n);
            match drawn {
                None => assert_eq!(answer, "answ"),
                Some(fault) if fault.answer().is_some() => {
                    assert!(answer.starts_with("HTTP/1.1 50"), "{n}: {answer}");
                }
                Some(fault) => assert!(answer.len() < 4, "{n}, {fault:?}: {answer}"),
            }
            drawn.into_iter().for_each(|fault| *expected.entry(fault).or_default() += 1);
        }
        assert_eq!(link.faults(), expected);
        assert!(expected.len() > 5, "{expected:?}");
        Ok(())
    }
}
