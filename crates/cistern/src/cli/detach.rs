//! `cistern detach`: a block device that is no more.

use std::{path::Path, time::Duration};

use clap::Args;

use crate::{
    cli::{Context, attachments},
    config::{Settings, StateSettings},
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, Device, take_connections},
    quantity::Span,
    terminal,
};

/// How long the volume may take to make durable what was written.
const SYNC_LIMIT: Duration = Duration::from_secs(60);
/// How long the kernel may take to let go.
const FREE_LIMIT: Duration = Duration::from_secs(30);
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

/// Free a block device that `cistern attach` made
///
/// Refused while anybody uses it: unmount its file system, export its pool first. What was written to it is durable then, in the
/// journal or in the store: `cistern drain` uploads the rest.
///
/// With --force also while it is in use, and without its daemon: requests that wait fail, and so does whoever is on it.
#[derive(Args)]
pub(super) struct Detach {
    /// The device, or name or URL of its volume
    #[arg(value_name = "DEVICE|URL")]
    what: String,

    /// Also while it is in use, or its daemon is gone: what waits there fails
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    state: StateSettings,
}

impl Detach {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let known = attachments::attachment(&settings.state_dir, &self.what)?;
        let device = match &known {
            Some(known) => known.device,
            None => attachments::device(Path::new(&self.what)).map_err(|failure| {
                failure.context("nothing of that name is attached").hint("give the device, like /dev/nbd0")
            })?,
        };
        if !device.is_attached() {
            forget(known.as_ref(), &settings.state_dir)?;
            return Err(Failure::new(Kind::NotFound, format!("{device} is not attached to anything")));
        }
        free(&settings.state_dir, device, known.as_ref(), self.force).await?;
        terminal::say(format!("{device} is free"))
    }
}

/// Frees a device that is attached. With `force` whoever uses it, and whatever waits there.
pub(super) async fn free(
    state_dir: &Path,
    device: Device,
    known: Option<&Attachment>,
    force: bool,
) -> Outcome {
    if !force {
        refuse_foreign(device, known)?;
        refuse_used(device)?;
        sync(device).await?;
        settle().await;
    }
    if let Some(known) = known {
        let (state_dir, export_at) = (state_dir.to_owned(), known.export_at());
        // Where no daemon reads its connection, the kernel could not say goodbye on it. No keeper has none.
        let let_go = move || drop(take_connections(&state_dir, export_at));
        tokio::task::spawn_blocking(let_go).await.expect("it does not panic");
    }
    attachments::end(device).await?;
    wait_until_free(device).await?;
    forget(known, state_dir)
}

fn forget(known: Option<&Attachment>, state_dir: &Path) -> Outcome {
    match known {
        None => Ok(()),
        Some(known) => {
            known.forget(state_dir).map_err(|e| Failure::io("cannot take away what is written of it", &e))
        }
    }
}

/// A device that others attached is theirs.
fn refuse_foreign(device: Device, known: Option<&Attachment>) -> Outcome {
    let says_so = device.backend().is_some_and(|backend| backend.starts_with("cistern:"));
    match says_so || known.is_some_and(Attachment::holds) {
        true => Ok(()),
        false => {
            let failure = Failure::usage(format!("{device} was not attached by `cistern attach`"));
            Err(failure.hint("whoever attached it knows how to end that; --force does it all the same"))
        }
    }
}

fn refuse_used(device: Device) -> Outcome {
    let users = device.users().map_err(|e| Failure::io(format!("cannot look who uses {device}"), &e))?;
    match &users[..] {
        [] => Ok(()),
        users => {
            let failure = Failure::new(Kind::InUse, format!("{device} is in use: {}", users.join("; ")));
            Err(failure
                .hint("unmount it or export its pool, then try again; --force takes it away under them"))
        }
    }
}

/// What was written reaches the journal or the store, as `--mode` says.
async fn sync(device: Device) -> Outcome {
    let synced = tokio::task::spawn_blocking(move || device.sync());
    match tokio::time::timeout(SYNC_LIMIT, synced).await {
        Ok(synced) => synced
            .expect("it does not panic")
            .map_err(|e| Failure::io(format!("what was written to {device} cannot be made durable"), &e)),
        Err(_) => {
            let limit = Span(SYNC_LIMIT);
            let failure = Failure::new(Kind::NotClean, format!("{device} does not answer within {limit}"));
            Err(failure
                .hint("start its daemon again, `cistern serve`; --force gives up what waits in the device"))
        }
    }
}

/// Waits for who reads devices after somebody wrote to them: what he reads of one that is gone, the kernel logs as an error. Where there is no
/// udev, nobody does.
async fn settle() {
    let limit = format!("--timeout={}", SETTLE_LIMIT.as_secs());
    let _ = tokio::process::Command::new("udevadm").args(["settle", &limit]).output().await;
}

async fn wait_until_free(device: Device) -> Outcome {
    let free = async {
        while device.is_attached() {
            tokio::time::sleep(LOOK).await;
        }
    };
    match tokio::time::timeout(FREE_LIMIT, free).await {
        Ok(()) => Ok(()),
        Err(_) => Err(Failure::new(Kind::Other, format!("the kernel does not let go of {device}"))),
    }
}
