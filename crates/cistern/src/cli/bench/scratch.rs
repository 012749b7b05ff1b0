//! A volume of a bench's own, beside the one that was named: made, used, and removed at the end, whatever came of it.

use std::{sync::Arc, time::Duration};

use cistern_engine::{
    codec::{Compression, KeySource},
    store::StoreUrl,
    units::VolumeId,
    volume::{CreateOptions, Volume, admin},
};

use crate::{
    cli::{Context, rm},
    config::Resolved,
    daemon,
    failure::{Failure, Outcome},
    place::{COMMAND_PATIENCE, OpenStore, VolumeUrl, browse},
    terminal,
};

/// What follows the name of the volume that was named.
const MARK: &str = ".bench-";

/// A volume that nobody else has.
pub struct ScratchVolume<'a> {
    context: &'a Context,
    settings: &'a Resolved,
    pub place: VolumeUrl,
    pub store: OpenStore,
    id: VolumeId,
    opened: Option<Arc<Volume>>,
}

impl<'a> ScratchVolume<'a> {
    /// Makes one beside a volume, which need not be there.
    pub async fn make(
        context: &'a Context,
        settings: &'a Resolved,
        beside: &VolumeUrl,
        size_bytes: u64,
    ) -> Outcome<ScratchVolume<'a>> {
        let name = format!("{}{MARK}{:08x}", beside.name, u32::from_le_bytes(context.env.random_bytes()));
        let url = sibling(beside, &name)?;
        let place = VolumeUrl { url, name };
        let store = place.create(&context.env, COMMAND_PATIENCE).await?;
        let options = CreateOptions { size_bytes, compression: Compression::default(), key: KeySource::None };
        let id = Volume::create(&context.env, &store.store, options).await.map_err(|e| place.explain(e))?;
        Ok(ScratchVolume { context, settings, place, store, id, opened: None })
    }

    /// Opens it for writing.
    pub async fn open(&mut self) -> Outcome<Arc<Volume>> {
        let opened = daemon::open_once(&self.context.env, self.settings, &self.place).await?;
        Ok(self.opened.insert(opened).clone())
    }

    /// Closes it, with everything in the store.
    pub async fn close(&mut self) -> Outcome {
        match self.opened.take() {
            None => Ok(()),
            Some(volume) => daemon::close_once(&volume, "written").await,
        }
    }

    /// Removes it, and what it has on this host; what is not in the store yet need not get there.
    pub async fn remove(mut self) -> Outcome {
        let removed = self.try_to_remove().await;
        let url = &self.place.url;
        removed.map_err(|failure| {
            let failure = failure.context(format!("the scratch volume {url} could not be removed"));
            failure.hint(format!("`{}` does it", how_to_remove(url)))
        })
    }

    async fn try_to_remove(&mut self) -> Outcome {
        let _progress = terminal::Progress::spinning("removing the scratch volume");
        if let Some(volume) = self.opened.take() {
            volume.close(Duration::ZERO).await;
        }
        let (env, store) = (&self.context.env, &self.store.store);
        let removed = admin::remove(env, store, &KeySource::None, true, &|_, _| {}).await;
        removed.map_err(|e| self.place.explain(e))?;
        rm::forget(self.context, &self.place, Some(self.id), &self.settings.state_dir).await
    }
}

fn sibling(beside: &VolumeUrl, name: &str) -> Outcome<StoreUrl> {
    let parent = beside.url.parent().expect("a volume lies in something");
    parent.child(name).map_err(|e| Failure::usage(e.to_string()))
}

/// The command that removes a scratch volume that was left.
pub fn how_to_remove(url: &StoreUrl) -> String {
    format!("cistern rm {url} --now --force --yes")
}

/// Scratch volumes of others beside a volume: of benches that were killed, or run now.
pub async fn others(context: &Context, beside: &VolumeUrl) -> Outcome<Vec<StoreUrl>> {
    let Some(parent) = beside.url.parent() else { return Ok(Vec::new()) };
    let place = browse(&parent, &context.env).await?;
    let names = place.list_dirs("").await?;
    let ours = names.iter().filter(|name| {
        let rest = name.strip_prefix(beside.name.as_str()).and_then(|rest| rest.strip_prefix(MARK));
        rest.is_some_and(|rest| rest.len() == 8 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
    });
    ours.map(|name| sibling(beside, name)).collect()
}
