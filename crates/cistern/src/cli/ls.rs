//! `cistern ls`: the volumes in a place, or the snapshots of a volume.

use std::{collections::BTreeMap, time::Duration};

use cistern_engine::{
    Error,
    codec::KeySource,
    env::Env,
    log::keys,
    snapshot::is_hidden,
    store::{SharedStore, StoreUrl},
    units::utc,
    volume::{
        SnapshotSpace, SnapshotStatus,
        admin::{self, VolumeInfo},
        snapshot_space,
        trash::{self, InTrash},
    },
};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use crate::{
    cli::{Context, info::writer, snapshots},
    config::{KeySettings, Resolved, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{self, COMMAND_PATIENCE, VolumeUrl, place_url, volume_url},
    quantity::{ByteSize, Span},
    secret, terminal,
};

/// Volumes looked at in parallel.
const PARALLEL: usize = 8;

/// List the volumes in a bucket, below a prefix, or in a directory; or the snapshots of a volume
///
/// Snapshots are listed oldest first: as the daemon of this host has them that serves the volume, or as they are in the store. What is
/// not in the store yet is "uploading". A volume that cannot be read does not hide the others; the command fails after it has listed
/// them.
#[derive(Args)]
pub(super) struct Ls {
    /// URL of the place, like s3://bucket/ or /srv/volumes, or of a volume
    #[arg(value_name = "URL", value_parser = place_url)]
    place: StoreUrl,

    /// Show what each snapshot takes, before compression: REFERENCED is what it shows; WRITTEN of that, what was written since the
    /// one before it; UNIQUE, what neither another one nor the volume shows, which is what removing it alone frees. Found in the
    /// maps that are in the store; of large volumes this reads much
    #[arg(long, conflicts_with = "trash")]
    space: bool,

    /// For scripts: no header, and one tab between columns
    #[arg(short = 'H')]
    scripted: bool,

    /// Exact numbers: bytes, and seconds since 1970
    #[arg(short = 'p')]
    parseable: bool,

    /// List what is in the trash instead, and how long it can be restored at least
    #[arg(long)]
    trash: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// One volume of the list.
#[derive(Serialize)]
struct Line {
    name: String,
    url: String,
    /// Absent when the volume cannot be looked at.
    info: Option<VolumeInfo>,
    error: Option<String>,
    #[serde(skip)]
    failure: Option<Failure>,
}

/// One volume in the trash.
#[derive(Serialize)]
pub struct TrashLine {
    pub name: String,
    pub url: String,
    #[serde(flatten)]
    pub info: InTrash,
}

impl Ls {
    pub async fn run(self, context: &Context) -> Outcome {
        if self.trash {
            return self.list_trash(context).await;
        }
        if let Some(volume) = volume_at(context, &self.place).await? {
            return self.list_snapshots(context, &volume).await;
        }
        if self.space {
            let failure = Failure::usage(format!(
                "there is no volume at {}: --space is about snapshots of one",
                self.place
            ));
            return Err(failure.hint(format!("`cistern ls {}` lists what is there", self.place)));
        }
        let looks = children(context, &self.place).await?.into_iter().map(|child| child.look(context));
        let found: Vec<Option<Line>> = stream::iter(looks).buffered(PARALLEL).try_collect().await?;
        let lines: Vec<Line> = found.into_iter().flatten().collect();
        if self.json {
            terminal::say_json(&lines)?;
        } else if lines.is_empty() {
            terminal::remark(format!("no volumes in {}", self.place));
        } else {
            let rows = lines.iter().map(|line| line.row(self.parseable)).collect();
            self.say_table(&["NAME", "SIZE", "ENCRYPTED", "WRITER"], rows)?;
        }
        all_readable(lines.into_iter().filter_map(|line| line.failure))
    }

    fn say_table(&self, header: &[&str], rows: Vec<Vec<String>>) -> Outcome {
        if self.scripted {
            return rows.iter().try_for_each(|row| terminal::say(row.join("\t")));
        }
        let header = header.iter().map(|name| (*name).to_owned()).collect();
        terminal::say(terminal::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>()))
    }

    async fn list_snapshots(&self, context: &Context, volume: &VolumeUrl) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let all = snapshots::list(context, &settings, volume).await?;
        let mut space = match self.space {
            true => self.look_at_space(context, &settings, volume).await?,
            false => BTreeMap::new(),
        };
        let line = |snapshot: SnapshotStatus| SnapshotLine {
            url: format!("{}@{}", volume.url, snapshot.name),
            space: space.remove(&snapshot.name),
            snapshot,
        };
        let lines: Vec<SnapshotLine> = all.into_iter().map(line).collect();
        if self.json {
            return terminal::say_json(&lines);
        }
        if lines.is_empty() {
            terminal::remark(format!(
                "{} has no snapshots: `cistern snapshot {}@NAME` makes one",
                volume.name, volume.url
            ));
            return Ok(());
        }
        let rows = lines.iter().map(|line| line.row(self.space, self.parseable)).collect();
        let space = ["REFERENCED", "WRITTEN", "UNIQUE"].into_iter().filter(|_| self.space);
        let header: Vec<&str> = ["NAME", "CREATED", "SIZE"]
            .into_iter()
            .chain(space)
            .chain(["STATE", "HOLDS", "CLONES"])
            .collect();
        self.say_table(&header, rows)
    }

    async fn look_at_space(
        &self,
        context: &Context,
        settings: &Resolved,
        volume: &VolumeUrl,
    ) -> Outcome<BTreeMap<String, SnapshotSpace>> {
        let stores = volume.open(&context.env, COMMAND_PATIENCE).await?.stores;
        let progress = terminal::Progress::counting("snapshots");
        let show = |done, of| progress.set(done, of);
        let looked = secret::unlocking(&settings.key, &volume.name, |key| {
            let (env, stores, show) = (&context.env, &stores, &show);
            async move { snapshot_space(env, stores, &key, show).await }
        });
        let (space, _) = looked.await.map_err(|failure| failure.context(&volume.url))?;
        Ok(space.into_iter().collect())
    }

    async fn list_trash(&self, context: &Context) -> Outcome {
        let Trash { lines, unreadable } = in_trash(context, &self.place).await?;
        if self.json {
            terminal::say_json(&lines)?;
            return all_readable(unreadable);
        }
        if lines.is_empty() && unreadable.is_empty() {
            terminal::remark(format!("nothing is in the trash of {}", self.place));
            return Ok(());
        }
        let rows = lines.iter().map(|line| line.row(&context.env, self.parseable)).collect();
        self.say_table(&["NAME", "REMOVED", "BY", "LEFT"], rows)?;
        if lines.iter().any(|line| line.info.is_over(&context.env)) {
            terminal::remark(format!(
                "what is over stays until somebody deletes it: `cistern rm --expired {}`",
                self.place
            ));
        }
        all_readable(unreadable)
    }
}

/// Ends a list in which some volumes could not be read. They do not hide the others, and the list is not a whole one: the command
/// fails as it would for the first of them.
pub fn all_readable(unreadable: impl IntoIterator<Item = Failure>) -> Outcome {
    let mut unreadable = unreadable.into_iter();
    let Some(first) = unreadable.next() else { return Ok(()) };
    match unreadable.count() {
        0 => Err(first),
        more => Err(Failure { text: format!("{} (and {more} more cannot be read)", first.text), ..first }),
    }
}

/// The volume at a URL, if there is one.
pub(super) async fn volume_at(context: &Context, place: &StoreUrl) -> Outcome<Option<VolumeUrl>> {
    let Ok(volume) = volume_url(&place.to_string()) else { return Ok(None) };
    let store = place::browse(place, &context.env).await?;
    match admin::has_volume(&store).await {
        Ok(true) => Ok(Some(volume)),
        Ok(false) => refuse_hidden(&store).await.map(|()| None).map_err(|failure| failure.context(place)),
        Err(e) => Err(volume.explain(e)),
    }
}

/// A place whose listing has an identity that is not there for who asks for it is not one without a volume.
async fn refuse_hidden(store: &SharedStore) -> Outcome {
    let listed = store.list_after(keys::VOLUME, "", 1).await?;
    match listed.first().is_some_and(|listed| listed.key == keys::VOLUME) {
        false => Ok(()),
        true => Err(Failure::new(
            Kind::Store,
            format!(
                "the store lists {} there, and says that it is not there when asked for it",
                keys::VOLUME
            ),
        )
        .hint("try again: it may have been removed just now; a store that goes on so is not to be believed")),
    }
}

/// The volumes in a place, also those that cannot be looked at.
pub(super) async fn volumes_in(context: &Context, place: &StoreUrl) -> Outcome<Vec<VolumeUrl>> {
    let looks = children(context, place).await?.into_iter().map(|child| child.look(context));
    let found: Vec<Option<Line>> = stream::iter(looks).buffered(PARALLEL).try_collect().await?;
    found.into_iter().flatten().map(|line| volume_url(&line.url).map_err(Failure::usage)).collect()
}

/// What is in the trash of a place.
pub async fn in_trash(context: &Context, place: &StoreUrl) -> Outcome<Trash> {
    let looks = children(context, place).await?.into_iter().map(|child| child.in_trash(context));
    let mut trash = Trash { lines: Vec::new(), unreadable: Vec::new() };
    let mut looks = stream::iter(looks).buffered(PARALLEL);
    while let Some(found) = looks.try_next().await? {
        match found {
            InTrashOrNot::Line(line) => trash.lines.push(line),
            InTrashOrNot::Unreadable(failure) => trash.unreadable.push(failure),
            InTrashOrNot::No => {}
        }
    }
    Ok(trash)
}

/// The trash of a place.
pub struct Trash {
    pub lines: Vec<TrashLine>,
    /// Of volumes that may be in it.
    pub unreadable: Vec<Failure>,
}

/// What a look into a directory found.
enum InTrashOrNot {
    Line(TrashLine),
    Unreadable(Failure),
    No,
}

/// A directory that may hold a volume.
struct Child {
    name: String,
    url: StoreUrl,
}

async fn children(context: &Context, place: &StoreUrl) -> Outcome<Vec<Child>> {
    let store = place::browse(place, &context.env).await?;
    let names = store.list_dirs("").await.map_err(|e| Failure::from(e).context(place))?;
    let child = |name: String| Some(Child { url: place.child(&name).ok()?, name });
    Ok(names.into_iter().filter_map(child).collect())
}

impl Child {
    /// Looks at it; `None` if it is not a volume, or in the trash.
    async fn look(self, context: &Context) -> Outcome<Option<Line>> {
        let Ok(store) = place::browse(&self.url, &context.env).await else { return Ok(None) };
        let (info, error) = match admin::info(&context.env, &store, &KeySource::None).await {
            Ok(info) => (Some(info), None),
            Err(Error::InTrash { .. }) => return Ok(None),
            Err(Error::NotFound(_)) => {
                refuse_hidden(&store).await.map_err(|failure| failure.context(&self.url))?;
                return Ok(None);
            }
            Err(e @ (Error::Unreachable(_) | Error::Refused(_) | Error::NoRoom(_))) => {
                return Err(Failure::from(e).context(&self.url));
            }
            Err(e) => (None, Some(e)), // one broken volume does not hide the others
        };
        let (text, url) = (error.as_ref().map(Error::to_string), self.url.to_string());
        let failure = error.map(|e| Failure::from(e).context(&url));
        Ok(Some(Line { name: self.name, url, info, error: text, failure }))
    }

    /// Looks whether it is in the trash.
    async fn in_trash(self, context: &Context) -> Outcome<InTrashOrNot> {
        let Ok(store) = place::browse(&self.url, &context.env).await else { return Ok(InTrashOrNot::No) };
        let failed = |e| Failure::from(e).context(&self.url);
        match trash::look(&store).await {
            Ok(Some(info)) => {
                Ok(InTrashOrNot::Line(TrashLine { name: self.name, url: self.url.to_string(), info }))
            }
            Err(e @ (Error::Unreachable(_) | Error::Refused(_) | Error::NoRoom(_))) => Err(failed(e)),
            Ok(None) | Err(Error::NotFound(_)) => Ok(InTrashOrNot::No),
            Err(e) => Ok(InTrashOrNot::Unreadable(failed(e))), // one broken volume does not hide the others
        }
    }
}

/// One snapshot of the list.
#[derive(Serialize)]
struct SnapshotLine {
    url: String,
    #[serde(flatten)]
    snapshot: SnapshotStatus,
    /// If that was asked for, and it is in the store.
    #[serde(flatten)]
    space: Option<SnapshotSpace>,
}

impl SnapshotLine {
    fn row(&self, with_space: bool, exact: bool) -> Vec<String> {
        let SnapshotStatus { name, made_ms, size_bytes, at, holds, clones, is_bookmark, .. } = &self.snapshot;
        let created = if exact { (made_ms / 1000).to_string() } else { utc(*made_ms) };
        let mut row = vec![name.clone(), created, shown(*size_bytes, exact)];
        if with_space {
            let space = |of: fn(&SnapshotSpace) -> u64| {
                self.space.as_ref().map_or("-".to_owned(), |space| shown(of(space), exact))
            };
            row.push(space(|space| space.referenced_bytes));
            row.push(space(|space| space.written_bytes));
            row.push(space(|space| space.unique_bytes));
        }
        let state = match (is_bookmark, at) {
            _ if self.snapshot.receiving.is_some() => "before a receive",
            _ if is_hidden(name) => "removed",
            (true, _) => "bookmark",
            (false, Some(_)) => "stored",
            (false, None) => "uploading",
        };
        row.push(state.to_owned());
        row.push(if holds.is_empty() { "-".to_owned() } else { holds.join(",") });
        let ways = clones.values().map(String::as_str);
        let ways: Vec<&str> = ways.filter(|way| !way.is_empty()).collect(); // the volume itself
        row.push(if ways.is_empty() { "-".to_owned() } else { ways.join(",") });
        row
    }
}

fn shown(bytes: u64, exact: bool) -> String {
    if exact { bytes.to_string() } else { ByteSize(bytes).to_string() }
}

impl Line {
    fn row(&self, exact: bool) -> Vec<String> {
        let Some(info) = &self.info else {
            let error = self.error.clone().unwrap_or_default();
            return vec![self.name.clone(), "?".into(), "?".into(), error];
        };
        let size = info.state.as_ref().map_or("sealed".to_owned(), |state| shown(state.size_bytes, exact));
        let encrypted = if info.encrypted { "yes" } else { "no" };
        vec![self.name.clone(), size, encrypted.into(), info.state.as_ref().map(writer).unwrap_or_default()]
    }
}

impl TrashLine {
    fn row(&self, env: &Env, exact: bool) -> Vec<String> {
        let InTrash { removed_ms, until_ms, host, deleting, .. } = &self.info;
        let left_s = until_ms.saturating_sub(env.wall_ms()).div_ceil(1000);
        let left = match (deleting, left_s) {
            (true, _) => "being deleted".to_owned(),
            (false, 0) => "over".to_owned(),
            (false, seconds) if exact => seconds.to_string(),
            (false, seconds) => Span(Duration::from_secs(seconds)).to_string(),
        };
        let removed = if exact { (removed_ms / 1000).to_string() } else { utc(*removed_ms) };
        vec![self.name.clone(), removed, host.clone(), left]
    }
}
