//! `cistern ls`: the volumes in a place.

use cistern_engine::{
    Error,
    codec::KeySource,
    store::StoreUrl,
    volume::admin::{self, VolumeInfo},
};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use crate::{
    cli::{Context, info::writer},
    failure::{Failure, Outcome},
    place::{self, place_url},
    quantity::ByteSize,
    terminal,
};

/// Volumes looked at in parallel.
const PARALLEL: usize = 8;

/// List the volumes in a bucket, below a prefix, or in a directory
#[derive(Args)]
pub struct Ls {
    /// URL of the place, like s3://bucket/ or /srv/volumes
    #[arg(value_name = "URL", value_parser = place_url)]
    place: StoreUrl,

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

impl Ls {
    pub async fn run(self, context: &Context) -> Outcome {
        let store = place::browse(&self.place, &context.env).await?;
        let names = store.list_dirs("").await.map_err(|e| Failure::from(e).context(&self.place))?;
        let looks = names.into_iter().map(|name| self.look(context, name));
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

    /// Looks at one directory; `None` if it is not a volume.
    async fn look(&self, context: &Context, name: String) -> Outcome<Option<Line>> {
        let Ok(url) = self.place.child(&name) else { return Ok(None) };
        let store = match place::browse(&url, &context.env).await {
            Ok(store) => store,
            Err(_) => return Ok(None),
        };
        let (info, error) = match admin::info(&context.env, &store, &KeySource::None).await {
            Ok(info) => (Some(info), None),
            Err(Error::NotFound(_)) => return Ok(None),
            Err(e @ (Error::Unreachable(_) | Error::Refused(_))) => {
                return Err(Failure::from(e).context(&url));
            }
            Err(e) => (None, Some(e.to_string())), // one broken volume does not hide the others
        };
        Ok(Some(Line { name, url: url.to_string(), info, error }))
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
