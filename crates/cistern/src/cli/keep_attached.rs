//! `cistern keep-attached`: who gives attached devices new connections when theirs die.
//!
//! Each device has a task of its own, so that one whose daemon is gone for long holds up no other. A new connection counts once a block
//! was read through it: the kernel says yes to one also where it did nothing with it.

use std::{
    collections::BTreeSet,
    io::{Error, Result},
    path::Path,
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
    control::{self, ServedStatus},
    daemon,
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, DeadLinks, Device, Keeper, KernelNbd, Link, keep_connections},
    stack::StackRecord,
    terminal,
};

/// How often the list of attachments is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often a device of ublk is asked whether anybody serves it; of the others the kernel tells.
const LOOK_ORPHANED: Duration = Duration::from_millis(100);
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
        if let Err(e) = keep_connections(&state_dir) {
            terminal::remark(format!(
                "devices get new connections when a daemon stops, and cannot keep theirs: {e}"
            ));
        }
        daemon::notify_ready();
        let mut nbd: Option<NbdClient> = None;
        let mut known = BTreeSet::new();
        let mut tasks = JoinSet::new();
        loop {
            for attachment in attachments::all(&state_dir)?.into_iter().filter(Attachment::holds) {
                if !known.insert(attachment.device) {
                    continue;
                }
                let link = match (attachment.device, &nbd) {
                    (Device::Ublk(_), _) => None,
                    (Device::Nbd(_), Some(nbd)) => Some(nbd.link()),
                    (Device::Nbd(_), None) => Some(nbd.insert(NbdClient::listen()?).link()),
                };
                let device = KeptDevice { state_dir: state_dir.clone(), attachment };
                tasks.spawn(device.keep(link));
            }
            if self.until_detached && known.is_empty() {
                return Ok(());
            }
            let deaf = async {
                match &mut nbd {
                    Some(nbd) => drop((&mut nbd.deaf).await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    known.remove(&ended.expect("it does not panic and is never cancelled"));
                }
                () = deaf => {
                    return Err(Failure::new(Kind::Other, "the kernel tells nothing any more").hint("start it again"));
                }
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

/// The kernel's NBD client, and what it tells of connections that die.
struct NbdClient {
    kernel: Arc<KernelNbd>,
    events: broadcast::Sender<Option<u32>>,
    deaf: oneshot::Receiver<()>,
}

/// What one device of it needs.
struct NbdLink {
    kernel: Arc<KernelNbd>,
    events: broadcast::Receiver<Option<u32>>,
}

impl NbdClient {
    fn listen() -> Outcome<NbdClient> {
        let kernel = Arc::new(attachments::nbd::kernel()?);
        let listening =
            kernel.dead_links().map_err(|e| attachments::explain("cannot listen to the kernel", &e))?;
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let deaf = tell_of(listening, events.clone());
        Ok(NbdClient { kernel, events, deaf })
    }

    fn link(&self) -> NbdLink {
        NbdLink { kernel: self.kernel.clone(), events: self.events.subscribe() }
    }
}

impl NbdLink {
    /// Whether the connection of a device may have died since; true at once when the kernel says so.
    async fn may_be_dead(&mut self, device: Device) -> bool {
        tokio::select! {
            event = self.events.recv() => match event {
                Ok(of) => of.is_none_or(|of| Device::Nbd(of) == device),
                Err(RecvError::Lagged(_)) => true,
                Err(RecvError::Closed) => std::future::pending().await, // whoever has this task ends
            },
            () = tokio::time::sleep(LOOK) => false,
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

/// Whether nobody serves a device of ublk any more, now or until it is time to look at everything.
async fn is_orphaned_soon(device: Device) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < LOOK {
        tokio::time::sleep(LOOK_ORPHANED).await;
        if device.is_orphaned() {
            return true;
        }
    }
    false
}

/// A device that is looked after.
struct KeptDevice {
    state_dir: Arc<Path>,
    attachment: Attachment,
}

impl KeptDevice {
    /// Until it is attached no more; gives which it was. One of the NBD client has a link to that.
    async fn keep(self, mut link: Option<NbdLink>) -> Device {
        let device = self.attachment.device;
        let mut is_due = true; // it may have died before anybody listened
        while self.attachment.holds() {
            if is_due {
                self.renew(link.as_ref()).await;
            }
            is_due = match &mut link {
                Some(link) => link.may_be_dead(device).await,
                None => is_orphaned_soon(device).await,
            };
        }
        device
    }

    /// Tries until it has a connection that works, or is attached no more.
    async fn renew(&self, link: Option<&NbdLink>) {
        let (began, mut told, mut reading) = (Instant::now(), String::new(), None);
        let mut starting = None;
        let device = self.attachment.device;
        while self.attachment.holds() {
            match self.try_renew(link, &mut reading, &mut starting).await {
                Ok(()) => {
                    let after = began.elapsed().as_millis();
                    terminal::remark(format!(
                        "{device} is served as {} (after {after} ms)",
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
        link: Option<&NbdLink>,
        reading: &mut Option<JoinHandle<Result<()>>>,
        starting: &mut Option<(Instant, Child)>,
    ) -> Result<()> {
        let Attachment { url, backend, .. } = &self.attachment;
        let served =
            control::serving(&self.state_dir, url).await.map_err(|failure| Error::other(failure.text))?;
        let Some((daemon, served)) = served else {
            self.start_daemon(starting)?;
            return Err(Error::other("nobody serves it"));
        };
        if attachments::backend(&served) != *backend {
            return Err(Error::other(
                "it is not what it was (another host had it in between, it was rolled back, or another one is in its place): `cistern detach --force` \
                 the device, and attach it again",
            ));
        }
        match (self.attachment.device, link) {
            (Device::Nbd(number), Some(link)) => self.reconnect(number, &link.kernel, &served).await?,
            (Device::Nbd(_), None) => unreachable!("it is kept with one"),
            (Device::Ublk(number), _) => {
                attachments::ublk::renew(number, (&daemon, &served), &self.attachment).await?;
            }
        }
        // What waits for an older connection is kept: it goes on with this one.
        let device = self.attachment.device;
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

    async fn reconnect(&self, number: u32, kernel: &Arc<KernelNbd>, served: &ServedStatus) -> Result<()> {
        let (kernel, Attachment { name, backend, socket, .. }) = (kernel.clone(), self.attachment.clone());
        let socket = served.socket.clone().unwrap_or(socket);
        let reconnect = move || kernel.reconnect(number, &Link::open(&socket, &name)?, &backend);
        tokio::task::spawn_blocking(reconnect).await.expect("it does not panic")
    }
}
