//! Devices of the kernel's NBD client: it gets a connection to a daemon's socket, and another one when that dies.

use std::{io::ErrorKind, path::Path, time::Duration};

use tokio::time::Instant;

use super::{explain, load_module};
use crate::{
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, Device, KernelNbd, Link},
};

/// How long a device is tried that somebody has open: who looks at new devices, like udev, lets go soon.
const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(50);

/// The kernel's NBD client; its module is loaded if it is not.
pub fn kernel() -> Outcome<KernelNbd> {
    let first = KernelNbd::open();
    let opened = match first {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            load_module("nbd");
            KernelNbd::open()
        }
        opened => opened,
    };
    opened.map_err(|e| {
        Failure::io("cannot use the kernel's NBD client", &e).hint(
            "it is a module of the kernel: `modprobe nbd` as root loads it, on the host itself if this is a container. Without it \
             nbdfuse and QEMU use a served volume, see `cistern serve`",
        )
    })
}

/// Makes a device of a connection: the one that is wanted, or the first that is free. It is written down before, so that a crash leaves no
/// device that nobody keeps.
pub async fn make(
    state_dir: &Path,
    (socket, export): (&Path, &str),
    wanted: Option<u32>,
    attachment: impl Fn(Device) -> Attachment,
) -> Outcome<Attachment> {
    let kernel = kernel()?;
    let link = open_link(socket, export)?;
    let begin = Instant::now();
    loop {
        let number = match wanted {
            Some(wanted) => wanted,
            None => first_free()?,
        };
        let device = Device::Nbd(number);
        if device.is_attached() {
            return Err(Failure::new(Kind::InUse, format!("{device} is attached to something else")));
        }
        let attachment = attachment(device);
        let saved = attachment.save(state_dir);
        saved.map_err(|e| Failure::io("cannot write down what is attached", &e))?;
        let Err(e) = kernel.connect(number, &link, &attachment.backend) else { return Ok(attachment) };
        let _ = attachment.forget(state_dir);
        if e.kind() != ErrorKind::ResourceBusy || begin.elapsed() > OPEN_LIMIT {
            return Err(explain(&format!("cannot attach {device}"), &e));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn open_link(socket: &Path, export: &str) -> Outcome<Link> {
    Link::open(socket, export).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => Failure::usage(format!("{export} cannot be attached: {e}"))
            .hint("`cistern resize` gives it a size that can"),
        _ => Failure::io(format!("cannot connect to {export} at {}", socket.display()), &e),
    })
}

fn first_free() -> Outcome<u32> {
    let all = Device::all_nbd().map_err(|e| Failure::io("cannot look for devices", &e))?;
    let number = |device: Device| match device {
        Device::Nbd(number) if !device.is_attached() => Some(number),
        _ => None,
    };
    let free = all.into_iter().find_map(number);
    free.ok_or_else(|| {
        Failure::new(Kind::InUse, "no device of the kernel's NBD client is free")
            .hint("`modprobe -r nbd && modprobe nbd nbds_max=64` makes more, while none is in use")
    })
}

/// Frees a device. What still waits in it fails.
pub fn end(number: u32) -> Outcome {
    kernel()?.disconnect(number).map_err(|e| explain(&format!("cannot free {}", Device::Nbd(number)), &e))
}
