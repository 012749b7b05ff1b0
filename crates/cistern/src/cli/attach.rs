//! `cistern attach`: a served volume as a block device of this host.

use std::{
    fs::File,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::Args;
use serde::Serialize;

use crate::{
    cli::{
        Context,
        attachments::{self, nbd, ublk},
        program,
    },
    config::{Settings, StateSettings},
    control::ServedStatus,
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, Device, DeviceDriver, Keeper},
    quantity::ByteSize,
    terminal,
};

/// Make a block device of a volume that a daemon of this host serves
///
/// By the kernel's own NBD client, without any other program: /dev/nbdN, and /dev/cistern/NAME as a link to it. Its blocks have 4096
/// bytes. The device outlives the daemon: when that ends, is killed or replaced by a newer one, requests wait for the next one (for a
/// week) and none fails. A small process sees to that, `cistern keep-attached`, which is started if it does not run.
///
/// With --ublk by the kernel's userspace block driver instead: /dev/ublkbN, whose requests wait without a limit. It takes Linux 6.5 or
/// newer, and a resize shows when it is attached again; `cistern doctor` says whether this kernel is good for it.
///
/// It takes root. `cistern detach` ends it.
#[derive(Args)]
pub(super) struct Attach {
    /// URL or name of the volume as it is served, or URL@NAME of a snapshot that is
    #[arg(value_name = "URL")]
    volume: String,

    /// The device [default: the first that is free]
    #[arg(value_name = "DEVICE")]
    device: Option<PathBuf>,

    /// By the userspace block driver of the kernel
    #[arg(long, conflicts_with = "device")]
    ublk: bool,

    /// Start no `keep-attached`: a service does that
    #[arg(long)]
    no_keeper: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,
}

/// A device that was attached.
#[derive(Serialize)]
struct Attached {
    device: PathBuf,
    link: PathBuf,
    url: String,
    size_bytes: u64,
    read_only: bool,
}

impl Attach {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let state_dir = &settings.state_dir;
        let wanted = match self.device.as_deref().map(attachments::device).transpose()? {
            Some(Device::Nbd(number)) => Wanted::Nbd(Some(number)),
            Some(device) => {
                return Err(Failure::usage(format!("{device} cannot be chosen"))
                    .hint("--ublk takes the first number that is free"));
            }
            None if self.ublk => Wanted::Ublk,
            None => Wanted::Nbd(None),
        };
        let served = attachments::served(state_dir, &self.volume).await?;
        let attachment = attach(state_dir, &served, wanted, !self.no_keeper).await?;
        let (device, link) = (attachment.device.path(), attachment.link());
        let (size_bytes, read_only) = (served.status.size_bytes, served.status.read_only);
        if self.json {
            return terminal::say_json(&Attached { device, link, url: served.url, size_bytes, read_only });
        }
        let access = if read_only { ", read-only" } else { "" };
        terminal::say(format!("{} is {} ({}{access})", link.display(), served.url, ByteSize(size_bytes)))?;
        terminal::say(format!("device:  {}", device.display()))?;
        terminal::say(format!("end:     cistern detach {}", served.name))
    }
}

/// By which driver of the kernel.
pub(super) enum Wanted {
    /// A device of that number, or the first that is free.
    Nbd(Option<u32>),
    Ublk,
}

impl From<DeviceDriver> for Wanted {
    fn from(driver: DeviceDriver) -> Wanted {
        match driver {
            DeviceDriver::Nbd => Wanted::Nbd(None),
            DeviceDriver::Ublk => Wanted::Ublk,
        }
    }
}

/// Makes a device of what is served, and sees that somebody keeps it when its daemon ends.
pub(super) async fn attach(
    state_dir: &Path,
    served: &ServedStatus,
    wanted: Wanted,
    keeper: bool,
) -> Outcome<Attachment> {
    let Some(socket) = served.socket.clone() else {
        let failure = Failure::usage(format!("{} is served, but not on a unix socket", served.name));
        return Err(failure.hint("serve it with --listen unix:PATH as well"));
    };
    let backend = attachments::backend(served);
    refuse_twice(state_dir, served)?;
    let attachment = |device: Device| Attachment {
        device,
        name: served.name.clone(),
        url: served.url.clone(),
        socket: socket.clone(),
        backend: backend.clone(),
    };
    let attachment = match wanted {
        Wanted::Nbd(wanted) => nbd::make(state_dir, (&socket, &served.name), wanted, attachment).await?,
        Wanted::Ublk => ublk::make(state_dir, served, attachment).await?,
    };
    if let Err(failure) = finish(&attachment, served.status.size_bytes).await {
        // Nobody uses it yet.
        let _ = attachments::end(attachment.device).await;
        let _ = attachment.forget(state_dir);
        return Err(failure);
    }
    if keeper {
        start_keeper(state_dir)?;
    }
    Ok(attachment)
}

/// A volume has one device: two would not know of each other's writes.
fn refuse_twice(state_dir: &Path, served: &ServedStatus) -> Outcome {
    let own = format!("cistern:{}:", served.status.volume);
    let end = format!(":{}", served.name);
    let is_it = |backend: &str| backend.starts_with(&own) && backend.ends_with(&end);
    // Also those that another state directory knows of.
    let all = Device::all_nbd().unwrap_or_default();
    let shown = |device: &Device| device.is_attached() && device.backend().is_some_and(|shown| is_it(&shown));
    let known = attachments::all(state_dir)?;
    let kept = |known: Attachment| (is_it(&known.backend) && known.holds()).then_some(known.device);
    match all.into_iter().find(shown).or_else(|| known.into_iter().find_map(kept)) {
        None => Ok(()),
        Some(device) => {
            let failure =
                Failure::new(Kind::Exists, format!("{} is attached already: {device}", served.name));
            Err(failure.hint(format!("`cistern detach {device}` ends that")))
        }
    }
}

/// Sets what the queue needs, and looks whether the device really shows the volume.
async fn finish(attachment: &Attachment, size_bytes: u64) -> Outcome {
    let device = attachment.device;
    device.tune().map_err(|e| Failure::io(format!("cannot set up {device}"), &e))?;
    let read = tokio::task::spawn_blocking(move || device.read_block()).await.expect("it does not panic");
    read.map_err(|e| Failure::io(format!("{device} was attached and cannot be read"), &e))?;
    let size = device.size_bytes().map_err(|e| Failure::io(format!("cannot look at {device}"), &e))?;
    if size != size_bytes {
        let (size, wanted) = (ByteSize(size), ByteSize(size_bytes));
        return Err(Failure::new(Kind::Other, format!("{device} has {size}, and the volume {wanted}")));
    }
    let linked = attachment.make_link();
    linked.map_err(|e| Failure::io(format!("cannot make {}", attachment.link().display()), &e))
}

/// Starts the process that gives devices new connections, unless there is one.
pub(super) fn start_keeper(state_dir: &Path) -> Outcome {
    let failed = |e: &std::io::Error| {
        Failure::io("the device is attached, but who gives it new connections cannot be started", e)
            .hint("run `cistern keep-attached` as a service: without it requests wait when the daemon ends")
    };
    if !Keeper::is_free(state_dir).map_err(|e| failed(&e))? {
        return Ok(());
    }
    let start = || {
        let log = File::options().create(true).append(true).open(Keeper::log(state_dir))?;
        Command::new(program::program()?)
            .args(["keep-attached", "--until-detached", "--state-dir"])
            .arg(state_dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .current_dir("/")
            .spawn()
    };
    start().map(drop).map_err(|e| failed(&e))
}
