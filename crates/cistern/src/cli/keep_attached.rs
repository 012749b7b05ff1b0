//! `cistern keep-attached`: who gives attached devices new connections when theirs die.
//!
//! Each device has a task of its own, so that one whose daemon is gone for long holds up no other. A new connection counts once a block
//! was read through it: the kernel says yes to one also where it did nothing with it.

use std::{
    collections::BTreeSet,
    io::{Error, Result},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use clap::Args;
use tokio::{
    process::{Child, Command},
    sync::{
        broadcast::{self, error::RecvError},
        oneshot,
    },
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use crate::{
    cli::{Context, attachments, program},
    config::{Settings, StateSettings},
    control, daemon,
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, DeadLinks, Keeper, KernelNbd, Link},
    stack::StackRecord,
    terminal,
};

/// How often the list of attachments is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Between two attempts, at first and later.
const SOON: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_millis(500);
const SOON_LIMIT: Duration = Duration::from_secs(60);
/// How long a read through a new connection may take before another one is tried.
const READ_LIMIT: Duration = Duration::from_secs(3);
/// Between two attempts to start a daemon again.
const START_AGAIN: Duration = Duration::from_secs(5);
/// Dead connections that are told of before somebody listens; who misses some looks at all.
const EVENTS_MAX: usize = 64;

/// Give attached devices new connections when theirs die
///
/// A daemon that `cistern up` started is started again when it is gone while its device is there; another one by whoever started it.
///
/// Runs until it is stopped, one for each state directory; `cistern attach` starts it where no service does, with --until-detached, and that
/// one makes way for a service. Stopping it does no harm:
/// requests wait in the kernel until the next one is started, which looks at all devices first.
#[derive(Args)]
pub(super) struct KeepAttached {
    /// End when nothing is attached any more
    #[arg(long)]
    until_detached: bool,

    #[command(flatten)]
    state: StateSettings,
}

impl KeepAttached {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let state_dir: Arc<Path> = settings.state_dir.into();
        let _keeper = Keeper::claim(&state_dir, self.until_detached).map_err(|e| match e.kind() {
            std::io::ErrorKind::ResourceBusy => {
                Failure::new(Kind::InUse, "another `cistern keep-attached` runs for this state directory")
            }
            _ => Failure::io("cannot begin", &e),
        })?;
        let kernel = Arc::new(attachments::kernel()?);
        let listening =
            kernel.dead_links().map_err(|e| attachments::explain("cannot listen to the kernel", &e))?;
        daemon::notify_ready();
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let mut deaf = tell_of(listening, events.clone());
        let mut known = BTreeSet::new();
        let mut tasks = JoinSet::new();
        loop {
            for attachment in attachments::all(&state_dir)?.into_iter().filter(Attachment::holds) {
                if known.insert(attachment.device) {
                    let device =
                        KeptDevice { kernel: kernel.clone(), state_dir: state_dir.clone(), attachment };
                    tasks.spawn(device.keep(events.subscribe()));
                }
            }
            if self.until_detached && known.is_empty() {
                return Ok(());
            }
            tokio::select! {
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    known.remove(&ended.expect("it does not panic and is never cancelled"));
                }
                _ = &mut deaf => {
                    return Err(Failure::new(Kind::Other, "the kernel tells nothing any more").hint("start it again"));
                }
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

/// Passes on what the kernel tells, from a thread that ends with the process. Should it have nothing more to tell, the receiver ends.
fn tell_of(mut links: DeadLinks, events: broadcast::Sender<Option<u32>>) -> oneshot::Receiver<()> {
    let (listens, deaf) = oneshot::channel();
    std::thread::spawn(move || {
        while let Some(device) = links.wait() {
            let _ = events.send(device); // nothing is attached, if nobody listens
        }
        drop(listens);
    });
    deaf
}

/// A device that is looked after.
struct KeptDevice {
    kernel: Arc<KernelNbd>,
    state_dir: Arc<Path>,
    attachment: Attachment,
}

impl KeptDevice {
    /// Until it is attached no more; gives its number.
    async fn keep(self, mut events: broadcast::Receiver<Option<u32>>) -> u32 {
        let number = self.attachment.device;
        let mut is_due = true; // it may have died before anybody listened
        while self.attachment.holds() {
            if is_due {
                self.renew().await;
            }
            is_due = tokio::select! {
                event = events.recv() => match event {
                    Ok(of) => of.is_none_or(|of| of == number),
                    Err(RecvError::Lagged(_)) => true,
                    Err(RecvError::Closed) => return number,
                },
                () = tokio::time::sleep(LOOK) => false,
            };
        }
        number
    }

    /// Tries until it has a connection that works, or is attached no more.
    async fn renew(&self) {
        let (began, mut told, mut reading) = (Instant::now(), String::new(), None);
        let mut starting = None;
        let device = self.attachment.device();
        while self.attachment.holds() {
            match self.try_renew(&mut reading, &mut starting).await {
                Ok(()) => {
                    let after = began.elapsed().as_millis();
                    terminal::remark(format!(
                        "{device} has a connection to {} (after {after} ms)",
                        self.attachment.url
                    ));
                    return;
                }
                Err(e) => {
                    let why = e.to_string();
                    if why != told {
                        terminal::remark(format!("{device} waits for {}: {why}", self.attachment.url));
                        told = why;
                    }
                }
            }
            tokio::time::sleep(if began.elapsed() < SOON_LIMIT { SOON } else { LATER }).await;
        }
    }

    async fn try_renew(
        &self,
        reading: &mut Option<JoinHandle<Result<()>>>,
        starting: &mut Option<(Instant, Child)>,
    ) -> Result<()> {
        let Attachment { url, backend, .. } = &self.attachment;
        let served =
            control::serving(&self.state_dir, url).await.map_err(|failure| Error::other(failure.text))?;
        let Some((_, served)) = served else {
            self.start_daemon(starting)?;
            return Err(Error::other("nobody serves it"));
        };
        if attachments::backend(&served) != *backend {
            return Err(Error::other(
                "it is not what it was (another host had it in between, it was rolled back, or another one is in its place): `cistern detach --force` \
                 the device, and attach it again",
            ));
        }
        let socket = served.socket.unwrap_or_else(|| self.attachment.socket.clone());
        self.reconnect(socket).await?;
        // What waits for an older connection is kept: it goes on with this one.
        let device = self.attachment.device();
        let read = reading.get_or_insert_with(|| tokio::task::spawn_blocking(move || device.read_block()));
        let done = tokio::time::timeout(READ_LIMIT, read).await;
        let done = done.map_err(|_| Error::other("a read through its new connection takes too long"))?;
        *reading = None;
        done.expect("it does not panic")
    }

    /// Starts the daemon again that `up` started; not while the last attempt to do so goes on, nor soon after it.
    fn start_daemon(&self, starting: &mut Option<(Instant, Child)>) -> Result<()> {
        if let Some((began, last)) = starting
            && (began.elapsed() < START_AGAIN || last.try_wait()?.is_none())
        {
            return Ok(());
        }
        let is_it = |record: &StackRecord| record.url == self.attachment.url && record.starts_daemon;
        if let Some(record) = StackRecord::all(&self.state_dir).into_iter().find(is_it) {
            let mut up = Command::new(program::program()?);
            up.args(["up", &record.name, "--daemon-only", "--state-dir"]).arg(&*self.state_dir);
            *starting = Some((Instant::now(), up.stdin(Stdio::null()).spawn()?));
        }
        Ok(())
    }

    async fn reconnect(&self, socket: PathBuf) -> Result<()> {
        let (kernel, Attachment { device, name, backend, .. }) =
            (self.kernel.clone(), self.attachment.clone());
        let reconnect = move || kernel.reconnect(device, &Link::open(&socket, &name)?, &backend);
        tokio::task::spawn_blocking(reconnect).await.expect("it does not panic")
    }
}
