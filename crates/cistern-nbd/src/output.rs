//! What a connection has to send: small replies are gathered in one buffer, large data is queued
//! as it is and leaves by a vectored write without being copied.
//!
//! Does not bound itself: the session admits requests only while `queued` and the cost of running
//! requests stay within its budget.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;

/// Bytes of data up to which copying is cheaper than one more entry of a vectored write.
const COPY_BYTES_MAX: usize = 4 << 10;
/// Bytes of the gathering buffer after which it is queued as it is and a new one begun.
const TAIL_BYTES_MAX: usize = 256 << 10;
/// Bytes of data that is copied if it cannot leave at once: it may be a small part of a large buffer, which would
/// live as long as the client pleases.
const PINNED_BYTES_MAX: usize = 128 << 10;
/// Entries of one vectored write.
const SLICES_MAX: usize = 64;
/// What zeroes are sent from where a client has to be told them byte by byte.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The sending side of one connection.
#[derive(Default)]
pub(crate) struct Output {
    /// Full buffers and large data, in order; all of it before `tail`.
    queue: VecDeque<Bytes>,
    tail: BytesMut,
    /// Bytes in `queue` and `tail`.
    queued: usize,
    /// So many parts at the end of `queue` may be slices of larger buffers.
    pinning: usize,
}

impl Output {
    /// Bytes that wait to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Appends bytes by copying them.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.queued += bytes.len();
        if self.tail.len() >= TAIL_BYTES_MAX {
            self.queue_tail();
        }
    }

    /// Appends data, without copying it if it is large.
    pub(crate) fn put_data(&mut self, data: &Bytes) {
        if data.len() <= COPY_BYTES_MAX {
            return self.put(data);
        }
        if !self.tail.is_empty() {
            self.queue_tail();
        }
        self.queue.push_back(data.clone());
        self.pinning += 1;
        self.queued += data.len();
    }

    fn queue_tail(&mut self) {
        self.queue.push_back(self.tail.split().freeze());
        self.pinning += 1;
    }

    /// Lets go of buffers of which only a small part waits here, by copying that part.
    pub(crate) fn unpin(&mut self) {
        let first = self.queue.len().saturating_sub(std::mem::take(&mut self.pinning));
        for part in self.queue.range_mut(first..) {
            let constant = ZEROES.as_ptr_range().contains(&part.as_ptr());
            if part.len() < PINNED_BYTES_MAX && !constant {
                *part = Bytes::copy_from_slice(part);
            }
        }
    }

    /// Appends zeroes.
    pub(crate) fn put_zeroes(&mut self, mut len: u64) {
        while len > 0 {
            let part = len.min(ZEROES.len() as u64) as usize;
            self.put_data(&Bytes::from_static(&ZEROES[..part]));
            len -= part as u64;
        }
    }

    /// Drops everything: nobody is there to receive it.
    pub(crate) fn abandon(&mut self) {
        *self = Self::default();
    }

    /// Sends until nothing is left. `Pending` means that the socket takes no more for now.
    pub(crate) fn poll_send<S>(&mut self, cx: &mut Context<'_>, stream: &mut S) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        while self.queued > 0 {
            let sent = if self.queue.is_empty() {
                ready!(Pin::new(&mut *stream).poll_write(cx, &self.tail))?
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let parts = self.queue.iter().map(|part| &part[..]).chain([&self.tail[..]]);
                let mut used = 0;
                for (slice, part) in slices.iter_mut().zip(parts) {
                    *slice = IoSlice::new(part);
                    used += 1;
                }
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..used]))?
            };
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.consume(sent);
        }
        // A TLS session may still hold sealed bytes; on a plain socket this does nothing.
        Pin::new(stream).poll_flush(cx)
    }

    fn consume(&mut self, mut sent: usize) {
        debug_assert!(sent <= self.queued);
        self.queued -= sent;
        while let Some(first) = self.queue.front_mut() {
            if sent < first.len() {
                first.advance(sent);
                return;
            }
            sent -= first.len();
            self.queue.pop_front();
        }
        self.pinning = self.pinning.min(self.queue.len());
        self.tail.advance(sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::AsyncReadExt;

    /// A small part that cannot leave does not keep the large buffer it was cut from; large parts and zeroes are
    /// not copied.
    #[test]
    fn small_parts_pin_nothing() {
        let mut output = Output::default();
        let slab = Bytes::from(vec![7; 512 << 10]);
        output.put_data(&slab.slice(..8 << 10));
        output.put_zeroes(8 << 10);
        output.unpin();
        assert!(slab.is_unique());
        output.put_data(&slab.slice(..256 << 10));
        output.unpin();
        assert!(!slab.is_unique());
        let whole: Vec<u8> = output.queue.iter().flatten().copied().collect();
        assert!(whole.len() == output.queued() && whole[..8 << 10] == slab[..8 << 10]);
        assert_eq!(output.queue[1].as_ptr(), ZEROES.as_ptr());
    }

    /// Small, large and zero parts leave in the order in which they were put, through a socket
    /// that takes only a little at a time.
    #[tokio::test]
    async fn order_is_kept() {
        let (mut here, mut there) = tokio::io::duplex(777);
        let mut output = Output::default();
        let mut expected = Vec::new();
        for n in 0..40u8 {
            output.put(&[n; 20]);
            expected.extend_from_slice(&[n; 20]);
            let data = Bytes::from(vec![!n; usize::from(n) * 1000]);
            output.put_data(&data);
            expected.extend_from_slice(&data);
            output.put_zeroes(u64::from(n) * 5000);
            expected.resize(expected.len() + usize::from(n) * 5000, 0);
        }
        assert_eq!(output.queued(), expected.len());
        let reader = tokio::spawn(async move {
            let mut got = Vec::new();
            there.read_to_end(&mut got).await.expect("readable");
            got
        });
        poll_fn(|cx| output.poll_send(cx, &mut here)).await.expect("writable");
        assert_eq!(output.queued(), 0);
        drop(here);
        assert!(reader.await.expect("reads to the end") == expected);
    }
}
