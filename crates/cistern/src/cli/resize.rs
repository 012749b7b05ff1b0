//! `cistern resize`: set the size of a volume, served or not.

use clap::Args;

use crate::{
    cli::{Context, attachments},
    config::{KeySettings, Resolved, Settings, StateSettings},
    control::{self, Request, Resized},
    daemon,
    failure::{Failure, Outcome},
    kernel::Device,
    place::{VolumeUrl, volume_url},
    quantity::ByteSize,
    terminal,
};

/// Set the size of a volume, also while it is served by a daemon of this host
///
/// A device that `cistern attach` made has the new size at once (one of ublk when it is attached again). Most other clients see it only when they connect again (QEMU:
/// block_resize).
#[derive(Args)]
pub(super) struct Resize {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// The new size, like 200G
    #[arg(value_name = "SIZE")]
    size: ByteSize,

    /// Make the volume smaller, and give up the data behind its new end
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

impl Resize {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), key: self.key.clone(), ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let url = self.volume.url.to_string();
        let resized = match control::serving(&settings.state_dir, &url).await? {
            Some((daemon, served)) => {
                self.refuse_shrinking(served.status.size_bytes)?;
                let request = Request::Resize { volume: url, size_bytes: self.size.0, force: self.force };
                daemon.ask::<Resized>(&request, None).await?
            }
            None => self.resize_offline(context, &settings).await?,
        };
        let (old, new) = (ByteSize(resized.old_bytes), ByteSize(resized.size_bytes));
        terminal::say(format!("{}: {old} -> {new}", self.volume.name))?;
        tell_device(&settings, &self.volume.url.to_string(), resized.size_bytes)
    }

    /// Opens the volume as a daemon would, and closes it again.
    async fn resize_offline(&self, context: &Context, settings: &Resolved) -> Outcome<Resized> {
        let volume = daemon::open_once(&context.env, settings, &self.volume).await?;
        let old_bytes = volume.size_bytes();
        let resized = match self.refuse_shrinking(old_bytes) {
            Ok(()) => volume.resize(self.size.0, self.force).await.map_err(|e| self.volume.explain(e)),
            Err(refused) => Err(refused),
        };
        let closed = daemon::close_once(&volume, "resized").await;
        resized?;
        closed?;
        Ok(Resized { old_bytes, size_bytes: self.size.0 })
    }

    fn refuse_shrinking(&self, old_bytes: u64) -> Outcome {
        if self.size.0 >= old_bytes || self.force {
            return Ok(());
        }
        let (old, new) = (ByteSize(old_bytes), self.size);
        let failure = Failure::usage(format!("{} has {old}: {new} would cut off its end", self.volume.name));
        Err(failure.hint(
            "shrink the filesystem on it first; then --force cuts off what lies behind the new end, for good",
        ))
    }
}

/// The device to which the volume is attached, if it is, has its new size from now on.
fn tell_device(settings: &Resolved, url: &str, size_bytes: u64) -> Outcome {
    let all = attachments::all(&settings.state_dir)?;
    let Some(attachment) = all.iter().find(|known| known.url == url && known.holds()) else { return Ok(()) };
    let device = attachment.device;
    let again = "`cistern detach` and `cistern attach` again do";
    let Device::Nbd(number) = device else {
        terminal::remark(format!("{device} keeps its old size until it is attached again: {again}"));
        return Ok(());
    };
    let told = attachments::nbd::kernel()?.resize(number, size_bytes, &attachment.backend);
    told.map_err(|e| {
        attachments::explain(&format!("the volume has its new size, and {device} cannot be told"), &e)
            .hint(again)
    })
}
