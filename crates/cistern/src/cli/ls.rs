//! `cistern ls`: the volumes in a place.

use std::time::Duration;

use cistern_engine::{
    Error,
    codec::KeySource,
    env::Env,
    store::StoreUrl,
    units::utc,
    volume::{
        admin::{self, VolumeInfo},
        trash::{self, InTrash},
    },
};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use crate::{
    cli::{Context, info::writer},
    failure::{Failure, Outcome},
    place::{self, place_url},
    quantity::{ByteSize, Span},
    terminal,
};

/// Volumes looked at in parallel.
const PARALLEL: usize = 8;

/// List the volumes in a bucket, below a prefix, or in a directory
#[derive(Args)]
pub(super) struct Ls {
    /// URL of the place, like s3://bucket/ or /srv/volumes
    #[arg(value_name = "URL", value_parser = place_url)]
    place: StoreUrl,

    /// List what is in the trash instead, and how long it can be restored at least
    #[arg(long)]
    trash: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// One volume of the list.
#[derive(Serialize)]
struct Line {
    name: String,
    url: String,
    /// Absent when the volume cannot be looked at.
    info: Option<VolumeInfo>,
    error: Option<String>,
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
        let looks = children(context, &self.place).await?.into_iter().map(|child| child.look(context));
        let found: Vec<Option<Line>> = stream::iter(looks).buffered(PARALLEL).try_collect().await?;
        let lines: Vec<Line> = found.into_iter().flatten().collect();
        if self.json {
            return terminal::say_json(&lines);
        }
        if lines.is_empty() {
            terminal::remark(format!("no volumes in {}", self.place));
            return Ok(());
        }
        let header = ["NAME", "SIZE", "ENCRYPTED", "WRITER"].map(str::to_owned).to_vec();
        let rows: Vec<_> = std::iter::once(header).chain(lines.iter().map(Line::row)).collect();
        terminal::say(terminal::table(&rows))
    }

    async fn list_trash(&self, context: &Context) -> Outcome {
        let lines = in_trash(context, &self.place).await?;
        if self.json {
            return terminal::say_json(&lines);
        }
        if lines.is_empty() {
            terminal::remark(format!("nothing is in the trash of {}", self.place));
            return Ok(());
        }
        let header = ["NAME", "REMOVED", "BY", "LEFT"].map(str::to_owned).to_vec();
        let rows = lines.iter().map(|line| line.row(&context.env));
        terminal::say(terminal::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>()))?;
        if lines.iter().any(|line| line.info.is_over(&context.env)) {
            terminal::remark(format!(
                "what is over stays until somebody deletes it: `cistern rm --expired {}`",
                self.place
            ));
        }
        Ok(())
    }
}

/// What is in the trash of a place.
pub async fn in_trash(context: &Context, place: &StoreUrl) -> Outcome<Vec<TrashLine>> {
    let looks = children(context, place).await?.into_iter().map(|child| child.in_trash(context));
    let found: Vec<Option<TrashLine>> = stream::iter(looks).buffered(PARALLEL).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
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
            Err(Error::NotFound(_) | Error::InTrash { .. }) => return Ok(None),
            Err(e @ (Error::Unreachable(_) | Error::Refused(_))) => {
                return Err(Failure::from(e).context(&self.url));
            }
            Err(e) => (None, Some(e.to_string())), // one broken volume does not hide the others
        };
        Ok(Some(Line { name: self.name, url: self.url.to_string(), info, error }))
    }

    /// Looks whether it is in the trash.
    async fn in_trash(self, context: &Context) -> Outcome<Option<TrashLine>> {
        let Ok(store) = place::browse(&self.url, &context.env).await else { return Ok(None) };
        match trash::look(&store).await {
            Ok(Some(info)) => Ok(Some(TrashLine { name: self.name, url: self.url.to_string(), info })),
            Err(e @ (Error::Unreachable(_) | Error::Refused(_))) => Err(Failure::from(e).context(&self.url)),
            Ok(None) | Err(_) => Ok(None), // what is broken shows among the others
        }
    }
}

impl Line {
    fn row(&self) -> Vec<String> {
        let Some(info) = &self.info else {
            let error = self.error.clone().unwrap_or_default();
            return vec![self.name.clone(), "?".into(), "?".into(), error];
        };
        let size =
            info.state.as_ref().map_or("sealed".to_owned(), |state| ByteSize(state.size_bytes).to_string());
        let encrypted = if info.encrypted { "yes" } else { "no" };
        vec![self.name.clone(), size, encrypted.into(), info.state.as_ref().map(writer).unwrap_or_default()]
    }
}

impl TrashLine {
    fn row(&self, env: &Env) -> Vec<String> {
        let InTrash { removed_ms, until_ms, host, deleting, .. } = &self.info;
        let left_s = until_ms.saturating_sub(env.wall_ms()).div_ceil(1000);
        let left = match (deleting, left_s) {
            (true, _) => "being deleted".to_owned(),
            (false, 0) => "over".to_owned(),
            (false, seconds) => Span(Duration::from_secs(seconds)).to_string(),
        };
        vec![self.name.clone(), utc(*removed_ms), host.clone(), left]
    }
}
