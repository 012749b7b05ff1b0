//! A snapshot that is sent, and with what it is compared: what streams and copies are made of.
//!
//! Opened as any reader on another host opens it: no claim, no daemon asked. What it reads is read behind everything else.

use std::sync::Arc;

use cistern_engine::{
    codec::KeySource,
    stream::{StreamHeader, StreamState},
    volume::{SentSince, SnapshotStatus, Volume, admin},
};

use crate::{
    cli::{Context, snapshots},
    config::Resolved,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, SnapshotUrl},
};

/// What is read.
pub(super) struct Source {
    pub shown: Arc<Volume>,
    pub to: SnapshotStatus,
    pub base: Option<SnapshotStatus>,
    pub since: SentSince,
}

impl Source {
    /// Opens a snapshot, all of it or by what it differs from another one of its volume. At most so many bytes per second are read.
    pub async fn open(
        context: &Context,
        settings: &Resolved,
        snapshot: &SnapshotUrl,
        from: Option<&str>,
        rate: Option<u64>,
    ) -> Outcome<Source> {
        let shown =
            snapshots::open_behind(context, settings, &snapshot.volume, Some(&snapshot.name), rate).await?;
        let to = find(&shown, &snapshot.name).ok_or_else(|| made_now(snapshot))?;
        let whole = Source { shown, to, base: None, since: SentSince::Beginning };
        match from {
            None => Ok(whole),
            Some(from) => whole.since(context, settings, snapshot, from, rate).await,
        }
    }

    /// The same by what it differs from another one.
    pub async fn since(
        self,
        context: &Context,
        settings: &Resolved,
        snapshot: &SnapshotUrl,
        from: &str,
        rate: Option<u64>,
    ) -> Outcome<Source> {
        let (volume, Source { shown, to, .. }) = (&snapshot.volume, self);
        let Some(base) = find(&shown, from) else {
            let failure =
                Failure::new(Kind::NotFound, format!("{}@{from}: no such snapshot or bookmark", volume.url));
            return Err(failure.hint(format!("`cistern ls {}` lists them", volume.url)));
        };
        let (Some(at), Some(to_at)) = (base.at, to.at) else { return Err(made_now(snapshot)) };
        if base.id == to.id || at > to_at {
            let failure = Failure::usage(format!("{from} is not older than {}", to.name));
            return Err(failure.hint("--from is the snapshot that whoever receives has"));
        }
        let aside = match shown.goes_on_from(at) {
            true => None,
            false if base.is_bookmark => {
                let text =
                    format!("a rollback came between {from} and {}, and {from} is a bookmark", to.name);
                return Err(Failure::usage(text).hint("send from a snapshot, or all of it"));
            }
            false => Some(snapshots::open_behind(context, settings, volume, Some(from), rate).await?),
        };
        Ok(Source { shown, to, base: Some(base), since: SentSince::Position(at, aside) })
    }

    /// What a stream of it begins with.
    pub async fn header(&self, context: &Context, snapshot: &SnapshotUrl) -> Outcome<StreamHeader> {
        let volume = &snapshot.volume;
        let stores = volume.open(&context.env, COMMAND_PATIENCE).await?.stores;
        let info = admin::info(&context.env, &stores.read, &KeySource::None).await;
        let compression = info.map_err(|e| volume.explain(e))?.compression;
        let state = |snapshot: &SnapshotStatus| StreamState { id: snapshot.id, name: snapshot.name.clone() };
        Ok(StreamHeader {
            volume: self.shown.id(),
            to: state(&self.to),
            base: self.base.as_ref().map(state),
            size_bytes: self.shown.size_bytes(),
            made_ms: self.to.made_ms,
            compression,
        })
    }
}

fn find(shown: &Volume, name: &str) -> Option<SnapshotStatus> {
    shown.snapshots().into_iter().find(|snapshot| snapshot.name == name)
}

fn made_now(snapshot: &SnapshotUrl) -> Failure {
    Failure::usage(format!("{snapshot} was made just now: ask again"))
}
