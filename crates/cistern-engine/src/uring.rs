//! Reads of local files without a second thread: an io_uring per thread that asked for one.
//!
//! A thread with an event loop of its own (one that serves connections) submits its reads to its ring
//! and sleeps in its event loop until they are done, so no read costs a switch to another thread.
//! What one turn of the loop asks for is submitted in batches of [`BATCH_READS`]: the disk works on one
//! while the next is put together. Where the kernel has no io_uring or forbids it, [`start`] gives
//! nothing and callers read with threads as before.
//!
//! Invariants: the memory and the file of a read stay until the kernel is done with them, whoever
//! stopped waiting; as long as anybody waits, one of them (the *driver*) watches the ring or has been
//! woken to do so; at most [`READS_MAX`] reads are under way, so completions are never lost.

use std::{
    cell::RefCell,
    fs::File,
    future::Future,
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use io_uring::{IoUring, opcode, types};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    aligned::AlignedBuf,
    rank::{Locked, Rank, Ranked},
};

/// Reads under way in one ring. Whoever wants more reads with threads.
const READS_MAX: usize = 256;
/// Reads that the kernel is told of at once. Fewer cost a system call and a kick of the device each; many
/// more, and disk and thread take turns.
const BATCH_READS: usize = 8;

thread_local! {
    static RING: RefCell<ThreadRing> = const { RefCell::new(ThreadRing::Off) };
}

/// What a thread has.
enum ThreadRing {
    /// It did not ask for a ring, or cannot have one.
    Off,
    /// Made at the first read, inside of its event loop.
    Wanted,
    On(Arc<ReadRing>),
}

/// From now on reads that begin on the calling thread use a ring. The thread must run one tokio event
/// loop (current-thread, with IO enabled), and no read may outlive it.
pub fn use_ring_on_this_thread() {
    RING.with_borrow_mut(|slot| *slot = ThreadRing::Wanted);
}

/// Starts a read of `len` bytes at `offset`, both fit for the file; `None` if this thread has no ring
/// or its ring is full.
pub(crate) fn start(file: &Arc<File>, offset: u64, len: usize) -> Option<Reading> {
    let ring = RING.with_borrow_mut(|slot| {
        if matches!(slot, ThreadRing::Wanted) {
            *slot = match ReadRing::new() {
                Ok(ring) => ThreadRing::On(Arc::new(ring)),
                Err(error) => {
                    tracing::info!(%error, "no io_uring here: cached data is read with threads");
                    ThreadRing::Off
                }
            };
        }
        match slot {
            ThreadRing::On(ring) => Some(ring.clone()),
            _ => None,
        }
    })?;
    let id = ring.state().push(file, offset, len)?;
    Some(Reading { ring, id, polled: false, over: false })
}

struct ReadRing {
    /// Readable when reads are done.
    ready: AsyncFd<OwnedFd>,
    state: Ranked<State>,
}

struct State {
    ring: IoUring,
    ops: Vec<Option<Op>>,
    free: Vec<usize>,
    /// Reads in the submission queue that the kernel has not been told of.
    unsubmitted: usize,
    /// Somebody was woken to submit them and to watch the ring.
    submitter_woken: bool,
    /// Reads the kernel has been told of and has not completed.
    in_flight: usize,
    /// The read whose future watches the ring.
    driver: Option<usize>,
}

struct Op {
    buf: AlignedBuf,
    /// Keeps the descriptor from being closed and given to another file.
    _file: Arc<File>,
    /// The kernel's answer.
    done: Option<i32>,
    /// Of who waits for it; gone when it is done or abandoned.
    waker: Option<Waker>,
    /// Nobody waits for it any more.
    abandoned: bool,
}

/// A read under way: gives the bytes read, which may be fewer than asked for, and the memory.
pub(crate) struct Reading {
    ring: Arc<ReadRing>,
    id: usize,
    polled: bool,
    over: bool,
}

impl ReadRing {
    fn new() -> io::Result<ReadRing> {
        let entries = READS_MAX as u32;
        let ring =
            IoUring::builder().setup_coop_taskrun().build(entries).or_else(|_| IoUring::new(entries))?;
        // A descriptor of its own: it leaves the event loop before it is closed, whatever goes first.
        // SAFETY: the ring's descriptor is open.
        let watched = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) }.try_clone_to_owned()?;
        // SAFETY: an owned descriptor stays open and the same for as long as it is registered.
        let ready = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) }
            .map_err(io::Error::from)?;
        let state = State {
            ring,
            ops: Vec::new(),
            free: Vec::new(),
            unsubmitted: 0,
            submitter_woken: false,
            in_flight: 0,
            driver: None,
        };
        Ok(ReadRing { ready, state: Ranked::new(Rank::File, state) })
    }

    fn state(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    /// Takes what is done, and sees to it that the caller, if it is the driver, hears of the rest.
    fn drive(&self, id: usize, cx: &mut Context<'_>, woken: &mut Vec<Waker>) -> io::Result<()> {
        loop {
            {
                let mut state = self.state();
                state.reap(Some(id), woken);
                if state.is_done(id) || state.driver.is_some_and(|driver| driver != id) {
                    return Ok(());
                }
                state.driver = Some(id);
            }
            match self.ready.poll_read_ready(cx) {
                Poll::Ready(guard) => guard?.clear_ready(),
                // What completed before the event loop began to watch is seen here.
                Poll::Pending if self.state().is_idle() => return Ok(()),
                Poll::Pending => {}
            }
        }
    }
}

impl State {
    fn push(&mut self, file: &Arc<File>, offset: u64, len: usize) -> Option<usize> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.ops.len() < READS_MAX => {
                self.ops.push(None);
                self.ops.len() - 1
            }
            None => return None,
        };
        let mut buf = AlignedBuf::for_reading(len);
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), buf.as_mut_ptr(), len as u32)
            .offset(offset)
            .build()
            .user_data(id as u64);
        // SAFETY: the memory and the file lie in `ops` until the kernel has completed the read.
        let pushed = unsafe { self.ring.submission().push(&read) };
        assert!(pushed.is_ok(), "the queue has as many entries as there are reads");
        self.ops[id] = Some(Op { buf, _file: file.clone(), done: None, waker: None, abandoned: false });
        self.unsubmitted += 1;
        if self.unsubmitted >= BATCH_READS {
            // An error comes again when a read is polled, which reports it.
            let _ = self.enter();
        }
        Some(id)
    }

    /// As [`enter`](Self::enter), for whoever was woken to do so.
    fn submit(&mut self) -> io::Result<()> {
        self.submitter_woken = false;
        self.enter()
    }

    /// Tells the kernel of the reads that were pushed.
    fn enter(&mut self) -> io::Result<()> {
        while self.unsubmitted > 0 {
            match self.ring.submit() {
                Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(taken) => {
                    self.unsubmitted -= taken;
                    self.in_flight += taken;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// No completion waits to be taken.
    fn is_idle(&mut self) -> bool {
        self.ring.completion().is_empty()
    }

    fn is_done(&self, id: usize) -> bool {
        self.ops[id].as_ref().is_some_and(|op| op.done.is_some())
    }

    /// Takes completions; whom to wake (besides `caller`) is added to `woken`, for when the lock is released.
    fn reap(&mut self, caller: Option<usize>, woken: &mut Vec<Waker>) {
        for completion in self.ring.completion() {
            let id = completion.user_data() as usize;
            self.in_flight -= 1;
            let Some(op) = self.ops[id].as_mut() else { unreachable!("a read stays until it is done") };
            op.done = Some(completion.result());
            let waker = op.waker.take();
            woken.extend(waker.filter(|_| caller != Some(id)));
            if op.abandoned {
                self.ops[id] = None;
                self.free.push(id);
            }
        }
    }

    /// Passes the watch from `id`, which stops waiting, to somebody who goes on: the waker is to be woken.
    /// Does nothing while another one watches. Who was never polled needs no watch yet.
    fn hand_over(&mut self, id: usize) -> Option<Waker> {
        if self.driver.is_some_and(|driver| driver != id) {
            return None;
        }
        let waiting = |n: usize| Some((n, self.ops[n].as_ref()?.waker.clone()?));
        let others = (id + 1..self.ops.len()).chain(0..id);
        let next = others.into_iter().find_map(waiting);
        self.driver = next.as_ref().map(|(n, _)| *n);
        next.map(|(_, waker)| waker)
    }
}

impl Drop for State {
    /// The kernel writes into memory that is about to be freed: waits until it is done.
    fn drop(&mut self) {
        let mut nobody = Vec::new();
        let mut alive = self.submit().is_ok();
        while alive && self.in_flight > 0 {
            match self.ring.submit_and_wait(1) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => alive = false,
                _ => self.reap(None, &mut nobody),
            }
        }
        if !alive {
            // Better lost than written to by the kernel when it has become something else.
            self.ops.drain(..).for_each(std::mem::forget);
        }
    }
}

impl Future for Reading {
    type Output = io::Result<(usize, AlignedBuf)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (id, first) = (self.id, !std::mem::replace(&mut self.polled, true));
        let mut woken = Vec::new();
        {
            let mut state = self.ring.state();
            if first && !state.submitter_woken {
                // Others may join before the next poll, which submits all of them at once.
                state.submitter_woken = true;
                cx.waker().wake_by_ref();
            } else if !first {
                state.submit()?;
            }
            let op = state.ops[id].as_mut().expect("it is not over");
            if !op.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                op.waker = Some(cx.waker().clone());
            }
        }
        if first {
            return Poll::Pending;
        }
        let driven = self.ring.drive(id, cx, &mut woken);
        let mut state = self.ring.state();
        let outcome = state.is_done(id).then(|| state.ops[id].take().expect("it is done"));
        if let Some(op) = &outcome {
            debug_assert!(op.done.is_some());
            state.free.push(id);
            woken.extend(state.hand_over(id));
        }
        drop(state);
        self.over = outcome.is_some();
        woken.into_iter().for_each(Waker::wake);
        match outcome {
            Some(Op { buf, done: Some(read), .. }) if read >= 0 => Poll::Ready(Ok((read as usize, buf))),
            Some(op) => Poll::Ready(Err(io::Error::from_raw_os_error(-op.done.unwrap_or(-libc::EIO)))),
            None => driven.map_or_else(|e| Poll::Ready(Err(e)), |()| Poll::Pending),
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.ring.state();
        // An error comes again at the next read, which reports it.
        let _ = state.submit();
        let id = self.id;
        if state.is_done(id) {
            state.ops[id] = None;
            state.free.push(id);
        } else if let Some(op) = &mut state.ops[id] {
            (op.abandoned, op.waker) = (true, None);
        }
        let next = state.hand_over(id);
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}
