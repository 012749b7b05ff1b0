//! A client that remembers what it wrote, and judges what a volume shows after a crash.
//!
//! One connection, one request at a time, so that the order of the writes is known. Every block it
//! writes names the write it came from, so what is visible tells how far the history got, and must
//! then be the state after exactly that many writes: a prefix.

use std::{path::Path, sync::mpsc};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    fixture::random_bytes,
    nbd::{Client, Dialect},
    serve::Server,
};

const BLOCK_BYTES: usize = 4096;
/// Blocks of the longest request.
const RUN_BLOCKS_MAX: u64 = 32;

/// One request that changed the volume. The n-th of a history has the number n, from 1.
#[derive(Clone, Copy, Debug)]
struct Change {
    block: u64,
    count: u64,
    is_trim: bool,
}

/// What was asked so far, and what was promised.
#[derive(Debug)]
pub struct History {
    seed: u64,
    /// The number of the write that each block showed after the first `settled` requests, which a check found; 0 for zeroes.
    base: Vec<u64>,
    settled: usize,
    /// What was asked since.
    changes: Vec<Change>,
    /// Requests up to this number were replied to before a FLUSH that was replied to.
    flushed: usize,
    written_bytes: u64,
}

impl History {
    /// Of a fresh volume whose first `blocks` blocks are used.
    pub fn new(blocks: u64, seed: u64) -> History {
        let base = vec![0; blocks as usize];
        History { seed, base, settled: 0, changes: Vec::new(), flushed: 0, written_bytes: 0 }
    }

    /// Bytes that a check reads.
    pub fn bytes(&self) -> u64 {
        self.base.len() as u64 * BLOCK_BYTES as u64
    }

    /// Bytes of the writes that were replied to.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// How many requests there are, those that got no reply included.
    fn len(&self) -> usize {
        self.settled + self.changes.len()
    }

    /// How many requests are promised to survive.
    pub fn flushed(&self) -> usize {
        self.flushed
    }

    fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(1);
        u64::from_le_bytes(random_bytes(8, self.seed).try_into().expect("eight bytes"))
    }

    /// Sends changes and flushes until one fails.
    pub fn write_until_failure(&mut self, socket: &Path) -> Result<()> {
        self.write_on(socket, || ())
    }

    /// Sends changes and flushes, and kills the server between two of them, once so many were flushed.
    ///
    /// # Errors
    /// Also where the server ends before that.
    pub fn write_until_killed(&mut self, server: Server, flushes: usize) -> Result<()> {
        let socket = server.socket().to_owned();
        let (flushed, count) = mpsc::channel();
        std::thread::scope(|scope| {
            // It has the only sender: where it ends early, nothing is waited for.
            let writer = scope.spawn(move || {
                self.write_on(&socket, || {
                    let _ = flushed.send(());
                })
            });
            for _ in 0..flushes {
                count.recv()?;
            }
            server.kill();
            writer.join().expect("the writer does not panic")
        })
    }

    /// Calls `flushed` after each FLUSH.
    fn write_on(&mut self, socket: &Path, mut flushed: impl FnMut()) -> Result<()> {
        let mut client = Client::connect(socket, "", Dialect::Simple)?;
        while self.change(&mut client).is_ok() {
            if self.draw().is_multiple_of(16) {
                let promised = self.len();
                if client.flush().is_err() {
                    break;
                }
                self.flushed = promised;
                flushed();
            }
        }
        Ok(())
    }

    /// Sends `count` changes and one FLUSH; all must succeed.
    pub fn write(&mut self, socket: &Path, count: usize) -> Result<()> {
        let mut client = Client::connect(socket, "", Dialect::Simple)?;
        for _ in 0..count {
            self.change(&mut client)?;
        }
        client.flush()?;
        self.flushed = self.len();
        client.close()
    }

    /// One change. It is remembered before it is sent: it may take effect without a reply.
    fn change(&mut self, client: &mut Client) -> Result<()> {
        let count = 1 + self.draw() % RUN_BLOCKS_MAX;
        let block = self.draw() % (self.base.len() as u64 - count + 1);
        let is_trim = self.draw().is_multiple_of(8);
        self.changes.push(Change { block, count, is_trim });
        let (offset, bytes) = (block * BLOCK_BYTES as u64, count * BLOCK_BYTES as u64);
        if is_trim {
            return client.trim(offset, bytes);
        }
        let number = self.len() as u64;
        let data: Vec<u8> = (block..block + count).flat_map(|block| content(number, block)).collect();
        client.write(offset, &data)?;
        self.written_bytes += bytes;
        Ok(())
    }

    /// Judges what the server at `socket` shows: a prefix of the history that holds at least
    /// `least` requests. Gives its length, and forgets what is not in it. What it shows is flushed, and counts from then on.
    ///
    /// If the server dies meanwhile the error is one of IO, and the same check can be made of the next one.
    pub fn check(&mut self, socket: &Path, least: usize) -> Result<usize> {
        let shown = self.read(socket)?;
        let newest = shown.iter().copied().max().unwrap_or(0) as usize;
        ensure!(newest <= self.len(), "a block names the write {newest}, which never was");
        let newest = newest.max(self.settled);
        // Trims leave no name: those right behind the newest visible write may have happened or not.
        let behind = &self.changes[newest - self.settled..];
        let trims = behind.iter().take_while(|change| change.is_trim).count();
        let mut fault = None;
        for length in (newest..=newest + trims).rev() {
            match self.first_difference(&shown, length) {
                None if length >= least => {
                    self.base = shown;
                    self.settled = length;
                    self.changes.clear();
                    self.flushed = length;
                    return Ok(length);
                }
                None => bail!("the volume shows {length} requests, {least} were promised to be there"),
                difference => fault = difference,
            }
        }
        let (block, expected) = fault.context("at least one length was tried")?;
        bail!(
            "not a prefix: the newest write visible is {newest}, but block {block} shows write {} where {expected} \
             belongs (of {} sent, {} flushed)",
            shown[block],
            self.len(),
            self.flushed
        )
    }

    /// The number of the write that every block shows, 0 for zeroes; then a FLUSH.
    fn read(&self, socket: &Path) -> Result<Vec<u64>> {
        const READ_BLOCKS: u64 = 256;
        let mut client = Client::connect(socket, "", Dialect::Simple)?;
        let blocks = self.base.len() as u64;
        let mut shown = Vec::with_capacity(self.base.len());
        for first in (0..blocks).step_by(READ_BLOCKS as usize) {
            let count = READ_BLOCKS.min(blocks - first);
            let data = client.read(first * BLOCK_BYTES as u64, (count * BLOCK_BYTES as u64) as u32)?;
            for (block, bytes) in (first..).zip(data.chunks_exact(BLOCK_BYTES)) {
                let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                let expected = if number == 0 { vec![0; BLOCK_BYTES] } else { content(number, block) };
                ensure!(bytes == expected, "block {block} holds bytes that were never written there");
                shown.push(number);
            }
        }
        client.flush()?;
        client.close()?;
        Ok(shown)
    }

    /// The first block that differs from the state after `length` requests, and what belongs there.
    fn first_difference(&self, shown: &[u64], length: usize) -> Option<(usize, u64)> {
        let mut state = self.base.clone();
        for (number, change) in (self.settled as u64 + 1..).zip(&self.changes[..length - self.settled]) {
            let value = if change.is_trim { 0 } else { number };
            state[change.block as usize..(change.block + change.count) as usize].fill(value);
        }
        (0..state.len()).find(|&block| state[block] != shown[block]).map(|block| (block, state[block]))
    }
}

/// What write `number` puts into `block`: its number, then noise that only this pair has.
fn content(number: u64, block: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(random_bytes(BLOCK_BYTES - 8, number.wrapping_mul(1 << 32) ^ block));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only prefixes pass: a lost write in the middle is told from a lost end.
    #[test]
    fn a_hole_in_the_history_is_seen() {
        let change = |block| Change { block, count: 1, is_trim: false };
        let mut history = History::new(4, 0);
        history.changes = vec![change(0), change(1), change(0)];
        assert_eq!(history.first_difference(&[3, 2, 0, 0], 3), None);
        assert_eq!(history.first_difference(&[1, 2, 0, 0], 2), None);
        assert_eq!(history.first_difference(&[3, 0, 0, 0], 3), Some((1, 2)));
    }

    /// What a check settled counts as before: a block that falls back behind it is seen.
    #[test]
    fn what_was_settled_stays() {
        let change = |block| Change { block, count: 1, is_trim: false };
        let mut history = History::new(3, 0);
        (history.base, history.settled) = (vec![1, 2, 0], 2);
        history.changes = vec![change(2), change(0)];
        assert_eq!(history.first_difference(&[1, 2, 0], 2), None);
        assert_eq!(history.first_difference(&[4, 2, 3], 4), None);
        assert_eq!(history.first_difference(&[4, 0, 3], 4), Some((1, 2)));
    }
}
