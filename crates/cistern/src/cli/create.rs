//! `cistern create`: probe the store, then make a volume in it.

use cistern_engine::{
    codec::{Compression, KeySource},
    volume::CreateOptions,
};
use clap::{Args, ValueEnum};

use crate::{
    cli::{Context, stores},
    config::{KeySettings, StateSettings},
    creation::{Probing, check_size, make},
    failure::Outcome,
    place::{VolumeUrl, volume_url},
    quantity::ByteSize,
    secret, terminal,
};

/// How a volume's data is compressed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum CompressionChoice {
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
/// The probe writes small and large objects next to the volume and deletes them. A store that lets two
/// writers create one object is refused, and so is a store that does not accept the largest object that
/// a volume may write. A bucket that was accepted in the last hour is not probed again. See `cistern
/// probe --help` for what an acceptance proves, and what it does not.
#[derive(Args)]
#[command(after_long_help = stores::help())]
pub(super) struct Create {
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
        let state_dir = StateSettings::default().resolve(&context.file).ok();
        make(&context.env, &self.volume, options, Probing::Always, state_dir.as_deref()).await?;
        terminal::say(format!("created {url} ({})", self.size))?;
        terminal::say(format!("next:    cistern serve {url}"))
    }
}
