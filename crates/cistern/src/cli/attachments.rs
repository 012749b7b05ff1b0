//! What the verbs about attached devices share: who serves what, what a device has to say that it shows, and what differs by driver.

pub mod nbd;
pub mod ublk;

use std::{io::ErrorKind, path::Path};

use crate::{
    continuity::identity,
    control::{self, ServedStatus},
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, Device},
    place::state_url,
};

/// What a device of a served volume says that it shows.
pub fn backend(served: &ServedStatus) -> String {
    identity(&served.status, served.continuity.as_deref(), &served.name)
}

/// What a daemon of this host serves under a name, an id or a URL.
pub async fn served(state_dir: &Path, what: &str) -> Outcome<ServedStatus> {
    let url = state_url(what).map(|state| state.to_string());
    for candidate in [Some(what), url.as_deref().ok()].into_iter().flatten() {
        if let Some((_, served)) = control::serving(state_dir, candidate).await? {
            return Ok(served);
        }
    }
    let failure = Failure::new(Kind::NotFound, format!("no daemon of this host serves {what}"));
    Err(failure.hint(format!("`cistern serve {what}` does; `cistern status` lists what is served")))
}

/// The attachment that a path of a device, a name or a URL means.
pub fn attachment(state_dir: &Path, what: &str) -> Outcome<Option<Attachment>> {
    let url = state_url(what).map(|state| state.to_string()).unwrap_or_default();
    let is_it = |known: &Attachment| {
        let path = Path::new(what);
        path == known.device.path() || path == known.link() || known.name == what || known.url == url
    };
    Ok(all(state_dir)?.into_iter().find(is_it))
}

/// The device that a path names.
pub fn device(path: &Path) -> Outcome<Device> {
    Device::at(path).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => Failure::usage(e.to_string()).hint("give one like /dev/nbd0"),
        _ => Failure::io(format!("cannot use {}", path.display()), &e),
    })
}

/// All attachments that are written down.
pub fn all(state_dir: &Path) -> Outcome<Vec<Attachment>> {
    Attachment::all(state_dir)
        .map_err(|e| Failure::io(format!("cannot look for attached devices in {}", state_dir.display()), &e))
}

/// Frees a device. What still waits in it fails.
pub async fn end(device: Device) -> Outcome {
    match device {
        Device::Nbd(number) => nbd::end(number),
        Device::Ublk(number) => ublk::end(number).await,
    }
}

/// Words for what the kernel refused.
pub fn explain(doing: &str, error: &std::io::Error) -> Failure {
    let failure = Failure::io(doing, error);
    match error.kind() {
        ErrorKind::PermissionDenied => failure.hint("it takes root, or CAP_SYS_ADMIN"),
        ErrorKind::ResourceBusy => Failure { kind: Kind::InUse, ..failure },
        _ => failure,
    }
}

/// Loads a module of the kernel, where it can be. Whether it could shows in what is there then.
fn load_module(name: &str) {
    let _ = std::process::Command::new("modprobe").arg(name).output();
}
