//! `cistern attach`: a served volume as a block device of this host.

use std::{
    fs::File,
    io::ErrorKind,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use clap::Args;
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    cli::{Context, attachments, program},
    config::{Settings, StateSettings},
    control::ServedStatus,
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, Device, Keeper, KernelNbd, Link},
    quantity::ByteSize,
    terminal,
};

/// How long a device is tried that somebody has open: who looks at new devices, like udev, lets go soon.
const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(50);

/// Make a block device of a volume that a daemon of this host serves
///
/// By the kernel's own NBD client, without any other program: /dev/nbdN, and /dev/cistern/NAME as a link to it. Its blocks have 4096
/// bytes. The device outlives the daemon: when that ends, is killed or replaced by a newer one, requests wait for the next one (for a
/// week) and none fails. A small process sees to that, `cistern keep-attached`, which is started if it does not run.
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
        let wanted = self.device.as_deref().map(attachments::device).transpose()?;
        let served = attachments::served(state_dir, &self.volume).await?;
        let keeper = !self.no_keeper;
        let (attachment, link) = attach(state_dir, &served, wanted, keeper).await?;
        let (device, link_path) = (attachment.device().path(), attachment.link());
        if self.json {
            return terminal::say_json(&Attached {
                device,
                link: link_path,
                url: served.url,
                size_bytes: link.size_bytes(),
                read_only: link.is_read_only(),
            });
        }
        let size = ByteSize(link.size_bytes());
        let access = if link.is_read_only() { ", read-only" } else { "" };
        terminal::say(format!("{} is {} ({size}{access})", link_path.display(), served.url))?;
        terminal::say(format!("device:  {}", device.display()))?;
        terminal::say(format!("end:     cistern detach {}", served.name))
    }
}

/// Makes a device of what is served, and sees that somebody gives it new connections.
pub(super) async fn attach(
    state_dir: &Path,
    served: &ServedStatus,
    wanted: Option<Device>,
    keeper: bool,
) -> Outcome<(Attachment, Link)> {
    let Some(socket) = served.socket.clone() else {
        let failure = Failure::usage(format!("{} is served, but not on a unix socket", served.name));
        return Err(failure.hint("serve it with --listen unix:PATH as well"));
    };
    let backend = attachments::backend(served);
    refuse_twice(served)?;
    let kernel = attachments::kernel()?;
    let link = open_link(&socket, &served.name)?;
    let attachment = |device: Device| Attachment {
        device: device.0,
        name: served.name.clone(),
        url: served.url.clone(),
        socket: socket.clone(),
        backend: backend.clone(),
    };
    let attachment = connect(&kernel, state_dir, &link, wanted, attachment).await?;
    finish(&attachment, &link).await.inspect_err(|_| {
        // Nobody uses it yet.
        let _ = kernel.disconnect(attachment.device);
        let _ = attachment.forget(state_dir);
    })?;
    if keeper {
        start_keeper(state_dir)?;
    }
    Ok((attachment, link))
}

/// A volume has one device: two would not know of each other's writes.
fn refuse_twice(served: &ServedStatus) -> Outcome {
    let all = Device::all().unwrap_or_default();
    let own = format!("cistern:{}:", served.status.volume);
    let end = format!(":{}", served.name);
    let is_it = |device: &Device| {
        device.is_attached()
            && device.backend().is_some_and(|backend| backend.starts_with(&own) && backend.ends_with(&end))
    };
    match all.into_iter().find(is_it) {
        None => Ok(()),
        Some(device) => {
            let failure =
                Failure::new(Kind::Exists, format!("{} is attached already: {device}", served.name));
            Err(failure.hint(format!("`cistern detach {device}` ends that")))
        }
    }
}

fn open_link(socket: &Path, export: &str) -> Outcome<Link> {
    Link::open(socket, export).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => Failure::usage(format!("{export} cannot be attached: {e}"))
            .hint("`cistern resize` gives it a size that can"),
        _ => Failure::io(format!("cannot connect to {export} at {}", socket.display()), &e),
    })
}

/// Makes a device of a connection: the one that is wanted, or the first that is free. It is written down before, so that a crash leaves no
/// device that nobody keeps.
async fn connect(
    kernel: &KernelNbd,
    state_dir: &Path,
    link: &Link,
    wanted: Option<Device>,
    attachment: impl Fn(Device) -> Attachment,
) -> Outcome<Attachment> {
    let begin = Instant::now();
    loop {
        let device = match wanted {
            Some(wanted) => wanted,
            None => first_free()?,
        };
        if device.is_attached() {
            return Err(Failure::new(Kind::InUse, format!("{device} is attached to something else")));
        }
        let attachment = attachment(device);
        let saved = attachment.save(state_dir);
        saved.map_err(|e| Failure::io("cannot write down what is attached", &e))?;
        let Err(e) = kernel.connect(device.0, link, &attachment.backend) else { return Ok(attachment) };
        let _ = attachment.forget(state_dir);
        if e.kind() != ErrorKind::ResourceBusy || begin.elapsed() > OPEN_LIMIT {
            return Err(attachments::explain(&format!("cannot attach {device}"), &e));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn first_free() -> Outcome<Device> {
    let all = Device::all().map_err(|e| Failure::io("cannot look for devices", &e))?;
    let free = all.into_iter().find(|device| !device.is_attached());
    free.ok_or_else(|| {
        Failure::new(Kind::InUse, "no device of the kernel's NBD client is free")
            .hint("`modprobe -r nbd && modprobe nbd nbds_max=64` makes more, while none is in use")
    })
}

/// Sets what the queue needs, and looks whether the device really shows the volume.
async fn finish(attachment: &Attachment, link: &Link) -> Outcome {
    let device = attachment.device();
    device.tune().map_err(|e| Failure::io(format!("cannot set up {device}"), &e))?;
    let read = tokio::task::spawn_blocking(move || device.read_block()).await.expect("it does not panic");
    read.map_err(|e| Failure::io(format!("{device} was attached and cannot be read"), &e))?;
    let size = device.size_bytes().map_err(|e| Failure::io(format!("cannot look at {device}"), &e))?;
    if size != link.size_bytes() {
        let (size, wanted) = (ByteSize(size), ByteSize(link.size_bytes()));
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
