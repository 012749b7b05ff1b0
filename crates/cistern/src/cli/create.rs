//! `cistern create`: probe the store, then make a volume in it.

use cistern_engine::{
    Error,
    codec::{Compression, KeySource},
    env::Env,
    store::remove_store,
    units::{SECTOR_BYTES, VOLUME_BYTES_MAX},
    volume::{CreateOptions, Volume, admin},
};
use clap::{Args, ValueEnum};

use crate::{
    cli::{Context, probe},
    config::KeySettings,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, OpenStore, VolumeUrl, volume_url},
    quantity::ByteSize,
    secret, terminal,
};

/// How a volume's data is compressed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum CompressionChoice {
    /// Fast: costs nearly no time; zstd for what shrinks to a third. The right choice nearly always
    #[default]
    Lz4,
    /// Smaller, at several times the work
    Zstd,
    /// As it is: for data that is compressed or encrypted already
    None,
}

impl From<CompressionChoice> for Compression {
    fn from(choice: CompressionChoice) -> Compression {
        match choice {
            CompressionChoice::Lz4 => Compression::Lz4,
            CompressionChoice::Zstd => Compression::Zstd,
            CompressionChoice::None => Compression::None,
        }
    }
}

/// Create a volume, after probing whether the store keeps the rules that a volume relies on
///
/// The probe writes some small and some large objects next to the volume and deletes them. A store
/// that lets two writers create one object is refused.
#[derive(Args)]
pub struct Create {
    /// URL of the new volume; the last part is its name
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Size of the volume, like 90T: space is taken only by what is written
    #[arg(long, value_name = "SIZE")]
    size: ByteSize,

    /// How data is compressed; what does not shrink is stored as it is
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    compression: CompressionChoice,

    /// Encrypt everything in the store, with a key file or a passphrase
    ///
    /// The passphrase is asked for twice, or taken from CISTERN_PASSPHRASE. Without key or
    /// passphrase the data cannot be read again by anybody.
    #[arg(long)]
    encrypt: bool,

    #[command(flatten)]
    key: KeySettings,
}

impl Create {
    pub async fn run(self, context: &Context) -> Outcome {
        // Asked for before the probe, so that nobody has to wait for the question.
        let key = match self.encrypt {
            true => secret::fresh(&self.key.or(&context.file), secret::PASSPHRASE_VARIABLE)?,
            false => KeySource::None,
        };
        let options = CreateOptions { size_bytes: self.size.0, compression: self.compression.into(), key };
        check_size(self.size)?;
        let url = &self.volume.url;
        make(&context.env, &self.volume, options, Probing::Always).await?;
        terminal::say(format!("created {url} ({})", self.size))?;
        terminal::say(format!("next:    cistern serve {url}"))
    }
}

/// Refuses a size that no volume can have, before anything is written.
fn check_size(size: ByteSize) -> Outcome {
    let sector = SECTOR_BYTES as u64;
    if size.0 == 0 {
        return Err(Failure::usage("a volume cannot have size 0").hint("give a size like 10G"));
    }
    if size.0 > VOLUME_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{size} is too large: a volume has at most {}",
            ByteSize(VOLUME_BYTES_MAX)
        )));
    }
    if !size.0.is_multiple_of(sector) {
        let near = size.0.next_multiple_of(sector);
        let failure =
            Failure::usage(format!("a volume's size is a multiple of {sector} bytes, not {}", size.0));
        return Err(failure.hint(format!("{near} is the next one")));
    }
    Ok(())
}

/// When to probe a store before a volume is made in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Probing {
    Always,
    /// Not for directories: those are our own code.
    Clouds,
}

/// Makes a volume. Leaves nothing behind when that fails.
pub async fn make(
    env: &Env,
    volume: &VolumeUrl,
    options: CreateOptions,
    probing: Probing,
) -> Outcome<OpenStore> {
    check_size(ByteSize(options.size_bytes))?;
    let there_before = volume.open(env, COMMAND_PATIENCE).await.is_ok();
    let open = volume.create(env, COMMAND_PATIENCE).await?;
    let made = fill(env, volume, &open, options, probing).await;
    if made.is_err() && !there_before {
        // Best effort: it refuses where there is anything in it, and the first error counts.
        let _ = remove_store(&volume.url, env).await;
    }
    made.map(|()| open)
}

async fn fill(
    env: &Env,
    volume: &VolumeUrl,
    open: &OpenStore,
    options: CreateOptions,
    probing: Probing,
) -> Outcome {
    match admin::info(env, &open.store, &KeySource::None).await {
        Err(Error::NotFound(_)) => {}
        Ok(_) => return Err(volume.explain(Error::Exists(volume.name.clone()))),
        Err(e @ Error::InTrash { .. }) => return Err(Failure { kind: Kind::Exists, ..volume.explain(e) }),
        Err(other) => return Err(volume.explain(other)),
    }
    if probing == Probing::Always || volume.url.path().is_none() {
        let report = probe::run(env, &open.store).await?;
        probe::show(&report);
        probe::judge(&report)?;
    }
    Volume::create(env, &open.store, options).await.map_err(|error| volume.explain(error))?;
    Ok(())
}
