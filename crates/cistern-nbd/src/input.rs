//! What a connection has received and not yet consumed.
//!
//! Small requests arrive many at a time in one batch buffer, and their payloads are slices of it;
//! a large payload that is not there yet gets a buffer of its own into which the socket is read
//! directly. Never holds more than one batch and one payload; payload lengths were judged before.

use std::{
    io,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes of the first batch buffer; idle connections keep no more.
const BATCH_BYTES_MIN: usize = 16 << 10;
/// Bytes of the largest batch buffer: sixty-odd requests of 4 KiB with one system call.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// A buffer with less room than this is replaced: reading into a rest costs a call per request.
const ROOM_BYTES_MIN: usize = 4 << 10;
/// Bytes of the largest payload that waits for its rest in the batch buffer.
const SMALL_PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Bytes read ahead behind a large payload: the next is probably large too, and whatever of it
/// lands in the batch buffer is copied once more.
const AHEAD_OF_LARGE_BYTES: usize = 512;

const _: () = assert!(SMALL_PAYLOAD_BYTES_MAX + ROOM_BYTES_MIN < BATCH_BYTES_MAX);

/// The receiving side of one connection.
pub(crate) struct Input {
    batch: BytesMut,
    /// Bytes of the next batch buffer; grows while reads fill it.
    batch_bytes: usize,
    /// Bytes that the batch must hold before the session can go on.
    wanted: usize,
    /// A large payload on its way, and its length.
    large: Option<(BytesMut, usize)>,
    /// The last payload was a large one.
    after_large: bool,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self {
            batch: BytesMut::new(),
            batch_bytes: BATCH_BYTES_MIN,
            wanted: 0,
            large: None,
            after_large: false,
        }
    }

    /// The next `N` bytes without consuming them, if they have arrived.
    pub(crate) fn peek<const N: usize>(&mut self) -> Option<&[u8; N]> {
        debug_assert!(self.large.is_none(), "a payload is taken before the next header");
        self.wanted = N;
        self.batch.first_chunk()
    }

    /// Consumes what was peeked.
    pub(crate) fn consume(&mut self, len: usize) {
        self.batch.advance(len);
    }

    /// Throws away up to `len` bytes that have arrived; returns how many are still to come.
    pub(crate) fn skip(&mut self, len: u64) -> u64 {
        let here = (self.batch.len() as u64).min(len);
        self.batch.advance(here as usize);
        self.wanted = 1;
        len - here
    }

    /// The payload of `len` bytes that comes next, once it has arrived as a whole. Until then
    /// this is called again with the same length after each fill.
    pub(crate) fn payload(&mut self, len: usize) -> Option<Bytes> {
        if let Some((large, _)) = self.large.take_if(|(large, _)| large.len() == len) {
            return Some(large.freeze());
        }
        if self.large.is_some() {
            return None;
        }
        self.after_large = len > SMALL_PAYLOAD_BYTES_MAX;
        if self.batch.len() >= len {
            return Some(self.batch.split_to(len).freeze());
        }
        if self.after_large {
            let mut large = BytesMut::with_capacity(len);
            large.extend_from_slice(&self.batch);
            self.batch.clear();
            self.large = Some((large, len));
        }
        self.wanted = len;
        None
    }

    /// How many of the next `len` bytes have not arrived.
    pub(crate) fn missing(&self, len: u64) -> usize {
        let here = self.large.as_ref().map_or(self.batch.len(), |(large, _)| large.len());
        usize::try_from(len.saturating_sub(here as u64)).unwrap_or(usize::MAX)
    }

    /// Nothing has arrived that is not consumed.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.large.is_none()
    }

    /// Reads once from the socket. `Ok(0)` is the end of the stream.
    pub(crate) fn poll_fill<S>(&mut self, cx: &mut Context<'_>, stream: &mut S) -> Poll<io::Result<usize>>
    where
        S: AsyncRead + Unpin,
    {
        self.poll_fill_limited(cx, stream, usize::MAX)
    }

    /// As `poll_fill`, but nothing behind the `owed` bytes that are still to come of the request at hand.
    pub(crate) fn poll_fill_limited<S>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        owed: usize,
    ) -> Poll<io::Result<usize>>
    where
        S: AsyncRead + Unpin,
    {
        if let Some((large, len)) = &mut self.large {
            let missing = *len - large.len();
            let mut room = large.limit(missing);
            return pin!(stream.read_buf(&mut room)).poll(cx);
        }
        self.make_room();
        let room = self.batch.capacity() - self.batch.len();
        let limit = if self.after_large { AHEAD_OF_LARGE_BYTES.min(room) } else { room }.min(owed);
        let read = ready!(pin!(stream.read_buf(&mut (&mut self.batch).limit(limit))).poll(cx))?;
        if read == self.batch_bytes {
            self.batch_bytes = (self.batch_bytes * 4).min(BATCH_BYTES_MAX);
        }
        Poll::Ready(Ok(read))
    }

    /// Sees to it that the batch buffer can take what is wanted, and more where that is cheap.
    fn make_room(&mut self) {
        debug_assert!(self.wanted <= BATCH_BYTES_MAX - ROOM_BYTES_MIN);
        let room = self.batch.capacity() - self.batch.len();
        if room >= self.batch_bytes {
            return;
        }
        // Free when no payload that was cut from this buffer is in use any more.
        if self.batch.is_empty() && self.batch.try_reclaim(self.batch_bytes) {
            return;
        }
        let missing = self.wanted.saturating_sub(self.batch.len()).max(ROOM_BYTES_MIN);
        if room < missing {
            let bytes = self.batch_bytes.max(self.wanted + ROOM_BYTES_MIN);
            let mut fresh = BytesMut::with_capacity(bytes);
            fresh.extend_from_slice(&self.batch);
            self.batch = fresh;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::poll_fn, task::Poll};
    use tokio::io::AsyncWriteExt;

    /// Headers, small and large payloads and skipped bytes come out of the stream as they went in,
    /// however the bytes are cut up on the way.
    #[tokio::test]
    async fn cuts_do_not_matter() {
        let sizes = [4096, 0, 200_000, 70_000, 512, 65_536, 65_537, 300_000, 1];
        for cut in [1000, 4124, 65_000, 1 << 20] {
            let (mut there, mut here) = tokio::io::duplex(cut);
            let sent = tokio::spawn(async move {
                for (n, size) in sizes.into_iter().enumerate() {
                    there.write_all(&[n as u8; 28]).await.expect("open");
                    there.write_all(&vec![!(n as u8); size]).await.expect("open");
                    there.write_all(&[0xee; 700]).await.expect("open");
                }
            });
            let mut input = Input::new();
            for (n, size) in sizes.into_iter().enumerate() {
                while input.peek::<28>().is_none() {
                    poll_fn(|cx| input.poll_fill(cx, &mut here)).await.expect("open");
                }
                assert_eq!(input.peek::<28>(), Some(&[n as u8; 28]));
                input.consume(28);
                let payload = loop {
                    match input.payload(size) {
                        Some(payload) => break payload,
                        None => poll_fn(|cx| input.poll_fill(cx, &mut here)).await.expect("open"),
                    };
                };
                assert!(payload.len() == size && payload.iter().all(|b| *b == !(n as u8)));
                let mut left = input.skip(700);
                while left > 0 {
                    poll_fn(|cx| input.poll_fill(cx, &mut here)).await.expect("open");
                    left = input.skip(left);
                }
            }
            sent.await.expect("the sender has sent all");
            assert!(input.is_empty());
            let end = poll_fn(|cx| Poll::Ready(input.poll_fill(cx, &mut here))).await;
            assert!(matches!(end, Poll::Ready(Ok(0))));
        }
    }
}
