//! Devices of the kernel's userspace block driver: a daemon serves their requests itself, and the next one when it ends. What takes a privilege is
//! done here: the daemon has none.

use std::{
    io::{Error, ErrorKind, Result},
    path::Path,
};

use cistern_ublk::{Shape, UblkControl, UblkState};

use super::{explain, load_module};
use crate::{
    control::{self, DaemonClient, DeviceServed, Request, ServedStatus},
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, BLOCK_BYTES, Device, UblkFitness, ublk_mark},
    quantity::ByteSize,
};

/// Numbers that are tried.
const DEVICES_MAX: u32 = 64;

/// The driver; its module is loaded if it is not. Not one that crashes its kernel.
pub fn driver() -> Outcome<UblkControl> {
    if UblkFitness::here() == UblkFitness::Crashes {
        return Err(Failure::new(Kind::Other, "the userspace block driver of this kernel crashes it").hint(
            "a newer build of the kernel has that mended, `cistern doctor` says more; `cistern attach` without --ublk uses the NBD client",
        ));
    }
    let opened = match UblkControl::open() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            load_module("ublk_drv");
            UblkControl::open()
        }
        opened => opened,
    };
    opened.map_err(|e| {
        explain("cannot use the kernel's userspace block driver", &e).hint(
            "it takes root, Linux 6.5 or newer and its module: `modprobe ublk_drv`, on the host itself if this is a container. `cistern attach` \
             without --ublk uses the NBD client",
        )
    })
}

/// Makes a device that a daemon serves. It is written down before, so that a crash leaves no device that nobody knows.
pub async fn make(
    state_dir: &Path,
    served: &ServedStatus,
    attachment: impl Fn(Device) -> Attachment,
) -> Outcome<Attachment> {
    let (size_bytes, read_only) = (served.status.size_bytes, served.status.read_only);
    if size_bytes % BLOCK_BYTES != 0 {
        let text = format!(
            "{} cannot be attached: its size of {} is not a multiple of {BLOCK_BYTES} bytes",
            served.name,
            ByteSize(size_bytes)
        );
        return Err(Failure::usage(text).hint("`cistern resize` gives it a size that can"));
    }
    let shape = Shape { size_bytes, block_bytes: BLOCK_BYTES as u32, read_only };
    drop(driver()?);
    let mut made = None;
    for number in 0..DEVICES_MAX {
        let attachment = attachment(Device::Ublk(number));
        if attachment.device.is_attached() {
            continue;
        }
        attachment.save(state_dir).map_err(|e| Failure::io("cannot write down what is attached", &e))?;
        let mark = ublk_mark(&attachment.backend);
        match privileged(move |control| control.make(number, mark, shape)).await {
            Ok(()) => {
                made = Some((number, attachment));
                break;
            }
            Err(e) => {
                let _ = attachment.forget(state_dir);
                if e.kind() != ErrorKind::AlreadyExists {
                    return Err(explain("cannot make a device", &e));
                }
            }
        }
    }
    let Some((number, attachment)) = made else {
        return Err(Failure::new(Kind::InUse, format!("there are {DEVICES_MAX} devices of ublk already")));
    };
    let started = async {
        let pid = serve(state_dir, &attachment).await?;
        let started = privileged(move |control| control.start(number, pid)).await;
        started.map_err(|e| explain(&format!("cannot start {}", attachment.device), &e))
    };
    if let Err(failure) = started.await {
        let _ = privileged(move |control| control.delete(number)).await;
        let _ = attachment.forget(state_dir);
        return Err(failure);
    }
    Ok(attachment)
}

/// Has the daemon of the volume serve a device; its process.
async fn serve(state_dir: &Path, attachment: &Attachment) -> Outcome<u32> {
    let Some((daemon, _)) = control::serving(state_dir, &attachment.url).await? else {
        return Err(Failure::new(Kind::NotFound, format!("nobody serves {} any more", attachment.url)));
    };
    ask(&daemon, attachment).await
}

async fn ask(daemon: &DaemonClient, attachment: &Attachment) -> Outcome<u32> {
    let Device::Ublk(device) = attachment.device else { unreachable!("it is a device of ublk") };
    let request = Request::ServeDevice { export: attachment.name.clone(), device };
    let served: DeviceServed = daemon.ask(&request, Some(control::ANSWER_LIMIT)).await?;
    Ok(served.pid)
}

/// Sees that the daemon serves the device, which another one may have served.
///
/// # Errors
/// Where that one has not let go yet, or the new one cannot: to be tried again.
pub async fn renew(
    number: u32,
    (daemon, served): (&DaemonClient, &ServedStatus),
    attachment: &Attachment,
) -> Result<()> {
    let info = privileged(move |control| control.info(number)).await?;
    let is_served = served.devices.contains(&number);
    match info.state {
        UblkState::Live if is_served => return Ok(()),
        UblkState::Orphaned => {}
        UblkState::Dead => {
            return Err(Error::other("it was never started: `cistern detach` it, and attach it again"));
        }
        _ => return Err(Error::other("who served it has not let go of it yet")),
    }
    // The kernel readies a device once. Whoever was here before may have ended between these steps.
    let status = daemon.status().await.map_err(|failure| Error::other(failure.text))?;
    if status.stopping {
        return Err(Error::other("the daemon that serves it is stopping"));
    }
    if !is_served {
        privileged(move |control| control.begin_recovery(number)).await?;
    }
    let pid = ask(daemon, attachment).await.map_err(|failure| Error::other(failure.text))?;
    privileged(move |control| control.end_recovery(number, pid)).await
}

/// Frees a device, started or not. What still waits in it fails.
pub async fn end(number: u32) -> Outcome {
    let ended = privileged(move |control| {
        control.stop(number)?;
        control.delete(number)
    });
    ended.await.map_err(|e| explain(&format!("cannot free {}", Device::Ublk(number)), &e))
}

/// Commands wait for the kernel, and some for who serves a device: on a thread of their own.
async fn privileged<T: Send + 'static>(
    command: impl FnOnce(&mut UblkControl) -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(move || command(&mut UblkControl::open()?));
    done.await.expect("it does not panic")
}
