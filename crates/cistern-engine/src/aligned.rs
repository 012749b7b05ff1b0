//! Memory aligned for O_DIRECT.
//!
//! Owns its allocation, which never moves and never grows; the address is a multiple of 4096.
//! A thread keeps a few small buffers that it let go, and [`LargeBuffers`] keep a few large ones: asking
//! the allocator for aligned memory and clearing it costs a read more than the checksum of what it brings.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    cell::RefCell,
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::Arc,
};

use crate::rank::{Rank, Ranked};

/// Alignment of the address in bytes: enough for every block device and filesystem we know.
pub const ALIGN_BYTES: usize = 4096;

/// Bytes of the buffers that are kept: most cached reads want one block, which lies across two pieces.
const KEPT_BYTES: usize = 2 * ALIGN_BYTES;
/// How many of them a thread keeps.
const KEPT_MAX: usize = 32;

/// Bytes of a large buffer that is kept: a group of the journal with its header.
const LARGE_BYTES: usize = (1 << 20) + ALIGN_BYTES;

thread_local! {
    static KEPT: RefCell<Vec<AlignedBuf>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of fixed length whose address is a multiple of 4096.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer is plain memory that it alone owns; sharing follows the borrow rules of
// `Deref` and `DerefMut`.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; `&AlignedBuf` gives only `&[u8]`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` bytes of zeroes. `len` comes from our own constants or was checked before, never
    /// from unchecked input.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let layout = layout_of(len);
        if layout.size() == 0 {
            return AlignedBuf { start: NonNull::dangling(), len: 0 };
        }
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        debug_assert_eq!(start.as_ptr() as usize % ALIGN_BYTES, 0);
        AlignedBuf { start, len }
    }

    /// `len` bytes of anything (zeroes, or what such a buffer last held), for who will write to all of it
    /// before anybody reads it. `len` is bounded as for [`zeroed`](Self::zeroed).
    pub fn for_reading(len: usize) -> AlignedBuf {
        let kept = if len == KEPT_BYTES { KEPT.with_borrow_mut(Vec::pop) } else { None };
        kept.unwrap_or_else(|| AlignedBuf::zeroed(len))
    }

    /// Gives the memory to the buffers that this thread keeps, if it is of their size and they have room. Then this
    /// buffer must not touch it any more.
    fn keep(&self) -> bool {
        let push = |kept: &RefCell<Vec<AlignedBuf>>| {
            let mut kept = kept.borrow_mut();
            let has_room = kept.len() < KEPT_MAX;
            if has_room {
                kept.push(AlignedBuf { start: self.start, len: self.len });
            }
            has_room
        };
        // A thread at its end keeps nothing.
        self.len == KEPT_BYTES && KEPT.try_with(push).unwrap_or(false)
    }
}

/// Large buffers that come back when they are let go, up to a number.
pub struct LargeBuffers {
    count_max: usize,
    kept: Ranked<Vec<AlignedBuf>>,
}

/// A buffer that goes back to where it came from.
pub struct LargeBuf {
    /// Until it is let go.
    buf: Option<AlignedBuf>,
    from: Arc<LargeBuffers>,
}

impl LargeBuffers {
    /// Keeps as many as fit into `bytes`.
    pub fn new(bytes: u64) -> Arc<LargeBuffers> {
        let count_max = usize::try_from(bytes / LARGE_BYTES as u64).unwrap_or(usize::MAX);
        Arc::new(LargeBuffers { count_max, kept: Ranked::new(Rank::Tool, Vec::new()) })
    }

    /// `len` bytes or more of anything (zeroes, or what such a buffer last held), for a caller that writes to all that
    /// it reads. `len` is bounded as for [`AlignedBuf::zeroed`].
    pub fn take(self: &Arc<Self>, len: usize) -> LargeBuf {
        let is_kept_size = (LARGE_BYTES / 2..=LARGE_BYTES).contains(&len);
        let kept = if is_kept_size { self.kept.lock_after_panic().pop() } else { None };
        let new = || AlignedBuf::zeroed(if is_kept_size { LARGE_BYTES } else { len });
        LargeBuf { buf: Some(kept.unwrap_or_else(new)), from: self.clone() }
    }
}

impl Drop for LargeBuf {
    fn drop(&mut self) {
        let Some(buf) = self.buf.take().filter(|buf| buf.len() == LARGE_BYTES) else { return };
        let mut kept = self.from.kept.lock_after_panic();
        if kept.len() < self.from.count_max {
            kept.push(buf);
        }
    }
}

impl Deref for LargeBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buf.as_ref().expect("it is there until it is let go")
    }
}

impl DerefMut for LargeBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buf.as_mut().expect("it is there until it is let go")
    }
}

impl AsRef<[u8]> for LargeBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

fn layout_of(len: usize) -> Layout {
    Layout::from_size_align(len, ALIGN_BYTES).expect("a buffer is far smaller than the address space")
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len == 0 || self.keep() {
            return;
        }
        // SAFETY: allocated in `zeroed` with the same layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), layout_of(self.len)) };
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes (dangling only when `len` is 0).
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers of every odd length are aligned, zeroed and writable to their last byte.
    #[test]
    fn aligned_zeroed_and_writable() {
        for len in [0, 1, 511, 4096, 5000, 1 << 20] {
            let mut buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.len(), len);
            assert!(buf.iter().all(|&b| b == 0));
            buf.fill(0xA5);
            assert!(buf.iter().all(|&b| b == 0xA5));
            assert!(len == 0 || (buf.as_ptr() as usize).is_multiple_of(ALIGN_BYTES));
        }
    }

    /// A thread keeps a few buffers and no more, each with one owner at a time; a buffer that must be zeroed
    /// never is one of them.
    #[test]
    fn buffers_are_kept() {
        let many = || -> Vec<AlignedBuf> {
            (0..2 * KEPT_MAX).map(|_| AlignedBuf::for_reading(KEPT_BYTES)).collect()
        };
        for _round in 0..2 {
            let mut bufs = many();
            (0u8..).zip(&mut bufs).for_each(|(n, buf)| buf.fill(n + 1));
            assert!((0u8..).zip(&bufs).all(|(n, buf)| buf.iter().all(|&b| b == n + 1)));
            drop(bufs);
            assert_eq!(KEPT.with_borrow(Vec::len), KEPT_MAX);
            assert!(AlignedBuf::zeroed(KEPT_BYTES).iter().all(|&b| b == 0));
        }
    }

    /// Large buffers are long enough, come back to the next caller, and are kept in a bounded number.
    #[test]
    fn large_buffers_are_kept() {
        let buffers = LargeBuffers::new(3 * LARGE_BYTES as u64);
        for len in [0, 1, LARGE_BYTES / 4, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 2 * LARGE_BYTES] {
            assert!(buffers.take(len).len() >= len);
        }
        let many: Vec<_> = (0..7).map(|_| buffers.take(LARGE_BYTES)).collect();
        drop(many);
        assert_eq!(buffers.kept.lock().len(), 3);
        let (first, second) = (buffers.take(LARGE_BYTES), buffers.take(LARGE_BYTES));
        assert_ne!(first.as_ptr(), second.as_ptr(), "each has one owner at a time");
        assert_eq!(buffers.kept.lock().len(), 1);
    }
}
