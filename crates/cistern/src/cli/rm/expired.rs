//! `cistern rm --expired`: delete what has been in the trash of a place for long enough.

use std::path::Path;

use cistern_engine::{store::StoreUrl, volume::trash::TrashDeletion};

use super::{delete_from_trash, forget};
use crate::{
    cli::{
        Context,
        ls::{self, Trash, all_readable},
    },
    daemon::host_name,
    failure::{Failure, Outcome},
    place::{COMMAND_PATIENCE, volume_url},
    terminal,
};

/// Deletes every volume there whose time is over, one after the other. One that cannot be deleted, or cannot
/// be read, holds up no other.
pub async fn delete(context: &Context, place: &StoreUrl, state_dir: &Path, yes: bool) -> Outcome {
    let Trash { lines, unreadable } = ls::in_trash(context, place).await?;
    let over: Vec<_> = lines.into_iter().filter(|line| line.info.is_over(&context.env)).collect();
    if over.is_empty() {
        terminal::remark(format!("nothing in the trash of {place} whose time is over"));
        return all_readable(unreadable);
    }
    let names: Vec<&str> = over.iter().map(|line| line.name.as_str()).collect();
    let warning = format!("This deletes {} with all their data, for good.", names.join(", "));
    terminal::confirm(&warning, "delete", yes)?;
    let mut failed = Vec::new();
    for line in &over {
        let deleted = async {
            let volume = volume_url(&line.url).map_err(Failure::usage)?;
            let open = volume.open(&context.env, COMMAND_PATIENCE).await?;
            let deletion = TrashDeletion { host: host_name(), only_if_over: true, untold: false };
            delete_from_trash(context, &volume, &open, deletion).await?;
            forget(context, &volume, Some(line.info.volume), state_dir).await
        };
        match deleted.await {
            Ok(()) => terminal::say(format!("removed {}", line.url))?,
            Err(failure) => {
                terminal::remark(format!("{} stays: {failure}", line.url));
                failed.push(failure);
            }
        }
    }
    match failed.into_iter().next() {
        None => all_readable(unreadable),
        Some(first) => Err(first),
    }
}
