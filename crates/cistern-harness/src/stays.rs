//! A client that stays: it reconnects to the next daemon when one is killed, and compares what it was told with what it finds.
//!
//! Knows nothing of cistern's own option: it negotiates as QEMU, nbdkit and libnbd do. It sends no FLUSH before a kill, so what it
//! counts on is the acknowledgement alone. It never has two requests for one block in flight, so each block has one newest
//! acknowledged state.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    nbd::{Client, Dialect},
    serve::{Serve, Server},
};

const BLOCK_BYTES: usize = 4096;
/// Blocks that are written: few, so that most of them are overwritten many times.
const BLOCKS: u64 = 2000;
/// Acknowledgements before a kill, at least and less than. With few, the journal writes each request by itself; with many, the
/// stream is so long that small writes gather.
const ACKNOWLEDGED: (u64, u64) = (20, 6000);
/// One request in so many is a TRIM or a WRITE_ZEROES.
const ZEROES_PART: u64 = 8;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const GOOD_REPLY: [u8; 8] = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0];
const CMD_WRITE: u16 = 1;
const CMD_TRIM: u16 = 4;
const CMD_WRITE_ZEROES: u16 = 6;

/// What the client saw, over all lives of the daemon.
#[derive(Debug, Default)]
pub struct Seen {
    pub kills: u64,
    pub acknowledged: u64,
    /// One line for each acknowledged block that was found older than acknowledged.
    pub lost: Vec<String>,
}

/// A request for a block; its number is its cookie, and what a write puts there.
#[derive(Clone, Copy, Debug)]
struct Op {
    number: u64,
    is_write: bool,
}

impl Op {
    /// What the block shows once this took place.
    fn shows(self) -> u64 {
        if self.is_write { self.number } else { 0 }
    }
}

/// The client.
struct Staying {
    seed: u64,
    ops: u64,
    /// Newest acknowledged request of each block.
    acknowledged: BTreeMap<u64, Op>,
    /// Sent and not answered, by block.
    in_flight: BTreeMap<u64, Op>,
}

/// Kills the daemon again and again while a client writes that stays, with so many requests in flight in turn; every other time the client
/// sends a FLUSH after it has reconnected. Reads all that was acknowledged after each kill.
pub fn kill_under_a_client_that_stays(
    serve: &Serve,
    kills: u64,
    depths: &[usize],
    seed: u64,
) -> Result<Seen> {
    let mut client = Staying { seed, ops: 0, acknowledged: BTreeMap::new(), in_flight: BTreeMap::new() };
    let mut seen = Seen::default();
    let mut server = serve.start()?;
    for kill in 0..kills {
        let depth = depths[kill as usize % depths.len()];
        let flushes = (kill / depths.len() as u64).is_multiple_of(2);
        seen.acknowledged += client.write_until_killed(&mut server, depth)?;
        seen.kills += 1;
        server = serve.start()?;
        let lost = client.look(server.socket(), flushes)?;
        let when = format!("kill {kill}, depth {depth}, FLUSH after it: {flushes}");
        seen.lost.extend(lost.into_iter().map(|block| format!("{when}: {block}")));
    }
    server.stop()?;
    Ok(seen)
}

impl Staying {
    /// In `[0, below)`.
    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    /// Keeps `depth` requests in flight, kills the daemon after some acknowledgements, and takes what it had sent by then; gives
    /// how many acknowledgements there were.
    fn write_until_killed(&mut self, server: &mut Server, depth: usize) -> Result<u64> {
        let mut stream = Client::connect(server.socket(), "", Dialect::Simple)?.into_stream();
        let wanted = ACKNOWLEDGED.0 + self.draw(ACKNOWLEDGED.1 - ACKNOWLEDGED.0);
        let mut by_number = BTreeMap::new();
        let mut answered = 0;
        for _ in 0..depth {
            self.send(&mut stream, &mut by_number).context("a request")?;
        }
        while let Some(number) = reply(&mut stream)? {
            let block = by_number.remove(&number).context("a reply to no request")?;
            let op = self.in_flight.remove(&block).context("a reply to a block that has none in flight")?;
            self.acknowledged.insert(block, op);
            answered += 1;
            match answered < wanted {
                true => self.send(&mut stream, &mut by_number).context("a request")?,
                false if answered == wanted => server.kill_now(),
                false => {} // what the daemon had answered before it was killed
            }
        }
        ensure!(answered >= wanted, "the daemon ended by itself after {answered} replies");
        Ok(answered)
    }

    fn send(&mut self, stream: &mut UnixStream, by_number: &mut BTreeMap<u64, u64>) -> std::io::Result<()> {
        let block = loop {
            let block = self.draw(BLOCKS);
            if !self.in_flight.contains_key(&block) {
                break block;
            }
        };
        self.ops += 1;
        let op = Op { number: self.ops, is_write: self.draw(ZEROES_PART) > 0 };
        let command = match (op.is_write, self.draw(2)) {
            (true, _) => CMD_WRITE,
            (false, 0) => CMD_TRIM,
            (false, _) => CMD_WRITE_ZEROES,
        };
        self.in_flight.insert(block, op);
        by_number.insert(op.number, block);
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend([0; 2]);
        request.extend(command.to_be_bytes());
        request.extend(op.number.to_be_bytes());
        request.extend((block * BLOCK_BYTES as u64).to_be_bytes());
        request.extend((BLOCK_BYTES as u32).to_be_bytes());
        if op.is_write {
            request.extend(op.number.to_be_bytes().repeat(BLOCK_BYTES / 8));
        }
        stream.write_all(&request)
    }

    /// Reconnects and reads every block that was acknowledged: gives a line for each that is older, and goes on from what is there.
    fn look(&mut self, socket: &Path, flushes: bool) -> Result<Vec<String>> {
        let mut client = Client::connect(socket, "", Dialect::Simple)?;
        if flushes {
            client.flush()?;
        }
        let mut lost = Vec::new();
        let blocks: BTreeSet<u64> = self.acknowledged.keys().chain(self.in_flight.keys()).copied().collect();
        for block in blocks {
            let found = client.read(block * BLOCK_BYTES as u64, BLOCK_BYTES as u32)?;
            let value = u64::from_be_bytes(found[..8].try_into().expect("eight bytes"));
            ensure!(found.chunks(8).all(|part| part == value.to_be_bytes()), "block {block} is torn");
            let states = [self.acknowledged.get(&block).copied(), self.in_flight.get(&block).copied()];
            match states.into_iter().flatten().find(|op| op.shows() == value) {
                Some(op) => drop(self.acknowledged.insert(block, op)),
                None if self.acknowledged.contains_key(&block) => {
                    lost.push(format!("block {block} shows {value}, acknowledged was {states:?}"));
                    self.acknowledged.insert(block, Op { number: value, is_write: value != 0 });
                }
                None => ensure!(value == 0, "block {block} shows {value}, which nobody wrote"),
            }
        }
        self.in_flight.clear();
        client.close()?;
        Ok(lost)
    }
}

/// The number of the request that the next reply answers; `None` once the daemon is gone.
fn reply(stream: &mut UnixStream) -> Result<Option<u64>> {
    let mut head = [0; 16];
    if stream.read_exact(&mut head).is_err() {
        return Ok(None);
    }
    if head[..8] != GOOD_REPLY {
        bail!("an error: {head:02x?}");
    }
    Ok(Some(u64::from_be_bytes(head[8..].try_into().expect("eight bytes"))))
}
