//! Making a volume: its size is checked, its store probed, and nothing is left behind where it fails.

use std::path::Path;

use cistern_engine::{
    Error,
    codec::KeySource,
    env::Env,
    store::remove_store,
    units::{SECTOR_BYTES, VOLUME_BYTES_MAX},
    volume::{CreateOptions, Volume, admin},
};

use crate::{
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, OpenStore, VolumeUrl},
    probing::ensure,
    quantity::ByteSize,
};

/// Refuses a size that no volume can have, before anything is written.
pub fn check_size(size: ByteSize) -> Outcome {
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

/// Makes a volume. Leaves nothing behind when that fails. What a probe finds is known in `state_dir`.
pub async fn make(
    env: &Env,
    volume: &VolumeUrl,
    options: CreateOptions,
    probing: Probing,
    state_dir: Option<&Path>,
) -> Outcome<OpenStore> {
    check_size(ByteSize(options.size_bytes))?;
    let there_before = volume.open(env, COMMAND_PATIENCE).await.is_ok();
    let open = volume.create(env, COMMAND_PATIENCE).await?;
    let made = fill(env, volume, &open, options, probing, state_dir).await;
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
    state_dir: Option<&Path>,
) -> Outcome {
    match admin::info(env, &open.store, &KeySource::None).await {
        Err(Error::NotFound(_)) => {}
        Ok(_) => return Err(volume.explain(Error::Exists(volume.name.clone()))),
        Err(e @ Error::InTrash { .. }) => return Err(Failure { kind: Kind::Exists, ..volume.explain(e) }),
        Err(other) => return Err(volume.explain(other)),
    }
    if probing == Probing::Always || volume.url.path().is_none() {
        ensure(env, open, volume, state_dir).await?;
    }
    Volume::create(env, &open.store, options).await.map_err(|error| volume.explain(error))?;
    Ok(())
}
