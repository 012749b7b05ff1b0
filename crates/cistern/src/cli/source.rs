//! A snapshot that is sent, and with what it is compared: what streams and copies are made of.
//!
//! Opened as any reader on another host opens it: no claim, no daemon asked.

use std::sync::Arc;

use cistern_engine::{
    codec::KeySource,
    share::Share,
    stream::{ResumeToken, StreamHeader, StreamState},
    volume::{SentSince, SnapshotStatus, Volume, admin},
};

use crate::{
    cli::{Context, read_rate::ReadRate, snapshots},
    config::Resolved,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, SnapshotUrl},
};

/// With what a snapshot is compared.
#[derive(Clone, Copy)]
pub(super) enum Base<'a> {
    Nothing,
    /// An older one of its volume, or a bookmark.
    Name(&'a str),
    /// What a stream began with that broke.
    Token(&'a ResumeToken),
}

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
        base: Base<'_>,
        rate: Option<&ReadRate>,
    ) -> Outcome<Source> {
        let SnapshotUrl { volume, name } = snapshot;
        let shown = snapshots::open_behind(context, settings, volume, Some(name), rate).await?;
        let to = find(&shown, name).ok_or_else(|| made_now(snapshot))?;
        let whole = Source { shown, to, base: None, since: SentSince::Beginning };
        whole.since(context, settings, snapshot, base, rate).await
    }

    /// The same by what it differs from another one.
    pub async fn since(
        self,
        context: &Context,
        settings: &Resolved,
        snapshot: &SnapshotUrl,
        base: Base<'_>,
        rate: Option<&ReadRate>,
    ) -> Outcome<Source> {
        let (volume, to) = (&snapshot.volume, &self.to);
        let (base, said) = match base {
            Base::Nothing => return Ok(self),
            Base::Name(name) => (find(&self.shown, name), name.to_owned()),
            Base::Token(token) if token.to != to.id => {
                let text =
                    format!("what broke was not {snapshot}, but the snapshot with the id {}", token.to);
                return Err(
                    Failure::usage(text).hint(format!("`cistern ls {} --json` shows ids", volume.url))
                );
            }
            Base::Token(token) => match token.base {
                None => return Ok(self),
                Some(id) => {
                    let found = self.shown.snapshots().into_iter().find(|base| base.id == id);
                    (found, id.to_string())
                }
            },
        };
        let Some(base) = base else {
            let failure =
                Failure::new(Kind::NotFound, format!("{}@{said}: no such snapshot or bookmark", volume.url));
            return Err(failure.hint(format!("`cistern ls {}` lists them", volume.url)));
        };
        let from = &base.name;
        let (Some(at), Some(to_at)) = (base.at, to.at) else { return Err(made_now(snapshot)) };
        if base.id == to.id || at > to_at {
            let failure = Failure::usage(format!("{from} is not older than {}", to.name));
            return Err(failure.hint("--from is the snapshot that whoever receives has"));
        }
        let aside = match self.shown.goes_on_from(at) {
            true => None,
            false if base.is_bookmark => {
                let text =
                    format!("a rollback came between {from} and {}, and {from} is a bookmark", to.name);
                return Err(Failure::usage(text).hint("send from a snapshot, or all of it"));
            }
            false => Some(snapshots::open_behind(context, settings, volume, Some(from), rate).await?),
        };
        Ok(Source { base: Some(base), since: SentSince::Position(at, aside), ..self })
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
            share: Share::ALL,
            from: 0,
        })
    }
}

fn find(shown: &Volume, name: &str) -> Option<SnapshotStatus> {
    shown.snapshots().into_iter().find(|snapshot| snapshot.name == name)
}

fn made_now(snapshot: &SnapshotUrl) -> Failure {
    Failure::usage(format!("{snapshot} was made just now: ask again"))
}
