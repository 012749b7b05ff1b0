//! `cistern key`: the secret of an encrypted volume.

use std::path::PathBuf;

use cistern_engine::{Error, codec::KeySource, volume::admin};
use clap::{Args, Subcommand};

use crate::{
    cli::Context,
    config::KeySettings,
    failure::Outcome,
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    secret, terminal,
};

/// Change the secret of an encrypted volume
#[derive(Args)]
pub(super) struct Key {
    #[command(subcommand)]
    verb: KeyVerb,
}

#[derive(Subcommand)]
enum KeyVerb {
    Change(ChangeKey),
}

/// Replace the passphrase or key file of a volume; the data is not rewritten
///
/// The data stays sealed with the same master key, which is wrapped anew: whoever has copied the
/// volume's objects and knows the old secret can still read that copy.
#[derive(Args)]
struct ChangeKey {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// File whose bytes are the new key; without it a new passphrase is asked for
    ///
    /// Or taken from CISTERN_NEW_PASSPHRASE.
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,

    #[command(flatten)]
    key: KeySettings,
}

impl Key {
    pub async fn run(self, context: &Context) -> Outcome {
        match self.verb {
            KeyVerb::Change(change) => change.run(context).await,
        }
    }
}

impl ChangeKey {
    async fn run(self, context: &Context) -> Outcome {
        let open = self.volume.open(&context.env, COMMAND_PATIENCE).await?;
        let key = self.key.clone().or(&context.file);
        // The old secret is proven before a new one is asked for.
        let proven = secret::unlocking(&key, &self.volume.name, |key| {
            let (env, store) = (&context.env, &open.store);
            async move {
                let info = admin::info(env, store, &key).await?;
                match (info.encrypted, &key) {
                    (true, KeySource::None) => {
                        Err(Error::Key("the volume is encrypted: its key is needed".into()))
                    }
                    (true, _) => Ok(()),
                    (false, _) => {
                        Err(Error::Invalid("the volume is not encrypted: there is no key to change".into()))
                    }
                }
            }
        });
        let ((), old) = proven.await.map_err(|failure| failure.context(&self.volume.url))?;
        let new = KeySettings { key_file: self.new_key_file.clone() };
        let new = secret::fresh(&new, secret::NEW_PASSPHRASE_VARIABLE)?;
        let changed = admin::change_key(&context.env, &open.store, &old, &new).await;
        changed.map_err(|e| match e {
            Error::Unreachable(_) => self.volume.explain(e).hint(
                "it is not known which secret holds now: try the new one, then the old one; with the one that opens \
                 it, change the key again",
            ),
            _ => self.volume.explain(e),
        })?;
        terminal::say(format!("{}: the old secret no longer opens it", self.volume.name))
    }
}
