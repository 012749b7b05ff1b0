//! Flushing: a frozen table becomes the runs of a new level.

use std::sync::Arc;

use super::{
    RunMeta,
    names::Writing,
    runs::Runs,
    table::Table,
    version::Version,
    writer::{RunShape, RunWriter},
};
use crate::{Result, env::Env};

/// Mappings that are encoded per step on a worker: a few milliseconds.
const STEP_MAPPINGS: usize = 32 << 10;

/// Writes all mappings of `table`; the runs ascend.
pub(super) async fn write_table(
    env: &Env,
    runs: &Runs,
    shape: RunShape,
    table: &Arc<Table>,
    writing: &mut Writing,
) -> Result<Vec<RunMeta>> {
    let mut start_run = || {
        let id = writing.draw(env);
        RunWriter::new(id, runs.sealer(id), shape)
    };
    let mut level = Vec::new();
    let mut next = (!table.is_empty()).then_some(0);
    let mut writer = start_run();
    while let Some(from) = next {
        let table = table.clone();
        (writer, next) = env
            .compute(move || {
                let next = fill(&mut writer, &table, from);
                (writer, next)
            })
            .await;
        if next.is_none_or(|next| writer.ends_before(next)) {
            let full = std::mem::replace(&mut writer, start_run());
            if let Some((meta, body)) = env.compute(move || full.finish(0)).await {
                runs.write(meta.id, body).await?;
                level.push(meta);
            }
        }
    }
    debug_assert_eq!(
        level.iter().map(|run| run.mapped_blocks).sum::<u64>(),
        table.starting_at(0).map(|m| m.extent.len).sum::<u64>(),
        "every block of a table comes into a run"
    );
    Ok(level)
}

/// Pushes the next mappings, from block `from` on. Returns where to go on, `None` at the end.
fn fill(writer: &mut RunWriter, table: &Table, from: u64) -> Option<u64> {
    let mut left = STEP_MAPPINGS;
    for m in table.starting_at(from) {
        if left == 0 || writer.ends_before(m.extent.start) {
            return Some(m.extent.start);
        }
        writer.push(Version::new(m));
        left -= 1;
    }
    None
}
