//! The thread that serves a device: it takes requests as the kernel has them, runs them all at once, and answers each when it is done.
//!
//! The kernel wants all commands of a queue from one thread, so that has an event loop of its own. A request's future is polled where it
//! was found; answers leave together, and each asks for the next request of its tag. Whoever stops serving begins nothing more, brings what
//! was begun to its end and answers it; what was not begun is the next server's, to whom the kernel sends it again.

use std::{
    fs::File,
    future::{Future, poll_fn},
    io::{Error, ErrorKind, Result},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    pin::{Pin, pin},
    ptr::NonNull,
    sync::{Arc, mpsc},
    task::{Context, Poll},
    thread,
    time::Duration,
};

use cistern_nbd::{Errno, Export};
use futures_util::{Stream, stream::FuturesUnordered};
use io_uring::{IoUring, opcode, types::Fd};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
};

use crate::{
    DEPTH, buffer,
    request::{UblkRequest, judge},
    wire::{DESCRIPTORS_AT, Descriptor, IoCommand, data_at, io},
};

/// Answers that the kernel is told of at once. More, and it and this thread take turns.
const ANSWERS_MAX: usize = 8;
/// Turns of the loop after which the thread looks at everything else it has to do.
const TURNS_MAX: usize = 16;

/// A device that is served. Dropped, it goes on.
pub struct Serving {
    device: u32,
    stop: watch::Sender<bool>,
    /// Closed once the device is let go.
    alive: watch::Receiver<()>,
}

impl Serving {
    /// Its number.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Begins no further request.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Whether its last request was answered, and the kernel may look for another server.
    pub fn has_ended(&self) -> bool {
        self.alive.has_changed().is_err()
    }

    /// When it has.
    pub async fn ended(mut self) {
        while self.alive.changed().await.is_ok() {}
    }
}

/// Serves a device that was made or readied for another server. Returns when the
/// kernel can start it. Ends when the device does, when it is told to, and at the latest `limit` behind that, whatever still runs.
///
/// # Errors
/// `ResourceBusy` while somebody else serves it.
pub fn serve(
    device: u32,
    export: Arc<dyn Export>,
    on_thread_start: fn(),
    limit: Duration,
) -> Result<Serving> {
    let (stop, stopped) = watch::channel(false);
    let (tell, begun) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name("ublk".into()).spawn(move || {
        on_thread_start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let open = runtime.and_then(|runtime| {
            let inside = runtime.enter();
            let queue = Queue::open(device, export)?;
            drop(inside);
            Ok((runtime, queue))
        });
        let (runtime, mut queue) = match open {
            Ok(open) => open,
            Err(error) => {
                let _ = tell.send(Err(error)); // who asked waits for it
                return None;
            }
        };
        let _ = tell.send(Ok(()));
        match runtime.block_on(queue.run(stopped, limit)) {
            Ok(()) => tracing::info!(device, "a device is served no more"),
            Err(error) => tracing::error!(device, %error, "a device cannot be served any more"),
        }
        Some(queue.leave())
    })?;
    let (lives, alive) = watch::channel(());
    thread::Builder::new().name("ublk end".into()).spawn(move || {
        let _lives = lives; // beyond what the thread leaves
        drop(thread.join()); // a panic was reported
    })?;
    begun.recv().map_err(|_| Error::other("the thread has ended"))??;
    Ok(Serving { device, stop, alive })
}

/// A request under way: its tag, and what the kernel is told.
type Running = Pin<Box<dyn Future<Output = (u16, i32)> + Send>>;

struct Queue {
    /// Readable when there is something to take.
    ready: AsyncFd<OwnedFd>,
    ring: IoUring,
    device: Arc<File>,
    descriptors: Descriptors,
    export: Arc<dyn Export>,
    running: FuturesUnordered<Running>,
    /// Answers in the submission queue.
    unsubmitted: usize,
    /// Tags that the kernel asks for nothing any more.
    gone: u16,
    stopping: bool,
}

impl Queue {
    fn open(device: u32, export: Arc<dyn Export>) -> Result<Queue> {
        let file = File::options().read(true).write(true).open(format!("/dev/ublkc{device}"))?;
        let descriptors = Descriptors::map(&file)?;
        let entries = u32::from(DEPTH);
        let ring =
            IoUring::builder().setup_coop_taskrun().build(entries).or_else(|_| IoUring::new(entries))?;
        // SAFETY: the ring's descriptor is open.
        let watched = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) }.try_clone_to_owned()?;
        // SAFETY: an owned descriptor stays open and the same for as long as it is registered.
        let ready =
            unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) }.map_err(Error::from)?;
        let mut queue = Queue {
            ready,
            ring,
            device: Arc::new(file),
            descriptors,
            export,
            running: FuturesUnordered::new(),
            unsubmitted: 0,
            gone: 0,
            stopping: false,
        };
        for tag in 0..DEPTH {
            queue.push(io::FETCH, IoCommand { tag, ..IoCommand::default() });
        }
        queue.submit()?;
        Ok(queue)
    }

    /// What is to be closed by another thread when this one has ended. The kernel takes the commands of a thread back when that ends, and those
    /// of a ring when that is closed; where both go on at once it (6.12) uses memory that is free.
    fn leave(self) -> (IoUring, Arc<File>) {
        (self.ring, self.device)
    }

    /// Until the device has ended, or until it was told to stop and what was begun has ended.
    async fn run(&mut self, mut stop: watch::Receiver<bool>, limit: Duration) -> Result<()> {
        let mut stopped = pin!(async move {
            // Whoever could tell it may be gone: then it goes on.
            if stop.wait_for(|stop| *stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        let until_stop = poll_fn(|cx| {
            if !self.stopping && stopped.as_mut().poll(cx).is_ready() {
                self.stopping = true;
                return Poll::Ready(None);
            }
            self.poll(cx).map(Some)
        });
        if let Some(ended) = until_stop.await {
            return ended;
        }
        match tokio::time::timeout(limit, poll_fn(|cx| self.poll(cx))).await {
            Ok(ended) => ended,
            Err(_elapsed) => {
                let requests = self.running.len();
                tracing::warn!(requests, "requests did not end in time and are left to the next server");
                Ok(())
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        for _turn in 0..TURNS_MAX {
            let mut moved = self.arrivals();
            let mut answered = 0;
            while answered < ANSWERS_MAX
                && let Poll::Ready(Some((tag, result))) = Pin::new(&mut self.running).poll_next(cx)
            {
                self.push(io::COMMIT_AND_FETCH, IoCommand { tag, result, ..IoCommand::default() });
                answered += 1;
            }
            moved |= answered > 0;
            self.submit()?;
            if self.running.is_empty() && (self.stopping || self.gone == DEPTH) {
                return Poll::Ready(Ok(()));
            }
            if !moved {
                match self.ready.poll_read_ready(cx) {
                    Poll::Ready(guard) => guard?.clear_ready(),
                    Poll::Pending => return Poll::Pending,
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes what has come, and begins it unless it stops; false if there was nothing.
    fn arrivals(&mut self) -> bool {
        let come: Vec<(u64, i32)> =
            self.ring.completion().map(|done| (done.user_data(), done.result())).collect();
        for &(tag, result) in &come {
            match (u16::try_from(tag), result) {
                (Ok(tag), 0) if !self.stopping => self.begin(tag),
                (_, 0) => {} // the next server's
                (_, result) => {
                    self.gone += 1;
                    if result != -libc::ENODEV {
                        let error = Error::from_raw_os_error(-result);
                        tracing::warn!(tag, %error, "the kernel refuses an answer");
                    }
                }
            }
        }
        !come.is_empty()
    }

    fn begin(&mut self, tag: u16) {
        let verdict = judge(&self.descriptors.read(tag), self.export.size_bytes());
        let (export, device) = (self.export.clone(), self.device.clone());
        self.running.push(Box::pin(async move {
            let done = match verdict {
                Ok(request) => run(&*export, &device, data_at(tag), request).await,
                Err(errno) => Err(errno),
            };
            (tag, done.unwrap_or_else(|errno| -(errno.code() as i32)))
        }));
    }

    fn push(&mut self, op: u32, command: IoCommand) {
        let entry = opcode::UringCmd16::new(Fd(self.device.as_raw_fd()), op)
            .cmd(command.bytes())
            .build()
            .user_data(u64::from(command.tag));
        // SAFETY: the command names no memory, and the file stays open as long as the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "there are as many entries as tags");
        self.unsubmitted += 1;
    }

    fn submit(&mut self) -> Result<()> {
        while self.unsubmitted > 0 {
            match self.ring.submit() {
                Ok(taken) => self.unsubmitted -= taken.min(self.unsubmitted),
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ResourceBusy) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Does what is asked: bytes of a read or write, else 0.
async fn run(
    export: &dyn Export,
    device: &File,
    at: u64,
    request: UblkRequest,
) -> std::result::Result<i32, Errno> {
    let failed = |error: Error| {
        tracing::error!(%error, "the data of a request cannot be copied");
        Errno::Io
    };
    let done = match request {
        UblkRequest::Read { offset, len } => {
            let pieces = export.read(offset, len as u64).await.map_err(|e| e.errno)?;
            return buffer::give(device, at, &pieces).map(|()| len as i32).map_err(failed);
        }
        UblkRequest::Write { offset, len, fua } => {
            let data = buffer::take(device, at, len).map_err(failed)?;
            return export.write(offset, data, fua).await.map(|()| len as i32).map_err(|e| e.errno);
        }
        UblkRequest::Flush => export.flush().await,
        UblkRequest::Trim { offset, len } => export.trim(offset, len, false).await,
        UblkRequest::WriteZeroes { offset, len, no_hole, fua } => {
            export.write_zeroes(offset, len, no_hole, false, fua).await
        }
    };
    done.map(|()| 0).map_err(|e| e.errno)
}

/// The descriptors of a queue, where the kernel writes them.
struct Descriptors(NonNull<Descriptor>);

// SAFETY: memory that the kernel alone writes, and nobody else has.
unsafe impl Send for Descriptors {}

impl Descriptors {
    const BYTES: usize = DEPTH as usize * size_of::<Descriptor>();

    fn map(device: &File) -> Result<Descriptors> {
        // SAFETY: a new mapping at a place that the kernel chooses.
        let at = unsafe {
            let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE);
            let null = std::ptr::null_mut();
            libc::mmap(null, Self::BYTES, protection, flags, device.as_raw_fd(), DESCRIPTORS_AT)
        };
        if at == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Descriptors(NonNull::new(at.cast()).expect("a mapping has an address")))
    }

    /// What a tag asks for. The kernel has written it before it completed the command that asked for it.
    fn read(&self, tag: u16) -> Descriptor {
        assert!(tag < DEPTH);
        // SAFETY: inside the mapping, which is aligned to a page.
        unsafe { self.0.as_ptr().add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: it was mapped with these bytes, and nobody has a reference into it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Self::BYTES) };
    }
}
