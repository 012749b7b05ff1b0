//! `cistern check`: verify what lies in the store.

use cistern_engine::volume::{SpaceReport, Sum, admin};
use clap::Args;

use crate::{
    cli::Context,
    config::KeySettings,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, VERSIONS, VolumeUrl, volume_url},
    quantity::{ByteSize, Thousands},
    secret, terminal,
};

/// Verify a volume in the store: its map, its log, and with --data every byte
///
/// Only reads, and can be done while the volume is being served: it looks at the committed state.
/// Exit code 5 if anything is damaged.
#[derive(Args)]
pub(super) struct Check {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Read and verify all data as well: as much traffic as the volume has data
    #[arg(long)]
    data: bool,

    /// Account for every object in the store: live, garbage, to be deleted, left by nobody
    #[arg(long)]
    space: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    key: KeySettings,
}

impl Check {
    pub async fn run(self, context: &Context) -> Outcome {
        let open = self.volume.open(&context.env, COMMAND_PATIENCE).await?;
        let progress = terminal::Progress::counting("blocks");
        let show = |done, of| progress.set(done, of);
        let key = self.key.clone().or(&context.file);
        let checked = secret::unlocking(&key, &self.volume.name, |key| {
            let (env, stores, show) = (&context.env, &open.stores, &show);
            let checked = admin::Checked { data: self.data, space: self.space };
            async move { admin::check(env, stores, &key, checked, show).await }
        });
        let checked = checked.await.map_err(|failure| failure.context(&self.volume.url));
        drop(progress);
        let (report, _) = checked?;
        if self.json {
            terminal::say_json(&report)?;
        } else {
            report.faults.iter().try_for_each(terminal::say)?;
            report.findings.iter().for_each(|finding| terminal::remark(format!("no damage: {finding}")));
            let read =
                if self.data { format!(", {} read", ByteSize(report.bytes_read)) } else { String::new() };
            terminal::remark(format!("{} log objects, {} extents{read}", report.objects, report.extents));
            report.space.iter().try_for_each(say_space)?;
            if self.space && open.store.keeps_versions() {
                terminal::remark(VERSIONS);
            }
        }
        match report.faults.len() {
            0 if !self.json => terminal::say(format!("{}: no fault found", self.volume.name)),
            0 => Ok(()),
            n => {
                let failure = Failure::new(Kind::Corrupt, format!("{}: {n} faults found", self.volume.url));
                Err(failure.hint("what is not listed can be read; copy it with nbdcopy before anything else"))
            }
        }
    }
}

/// A line for each sort of objects.
fn say_space(space: &SpaceReport) -> Outcome {
    let line = |name: &str, sum: Sum, more: String| {
        let (bytes, objects) = (ByteSize(sum.bytes).to_string(), Thousands(sum.objects).to_string());
        terminal::say(format!("{name:<10} {bytes:>10} {objects:>9} objects{more}"))
    };
    let garbage_bytes = space.segments.bytes.saturating_sub(space.live_bytes);
    let parts = format!(": {} live, {} garbage", ByteSize(space.live_bytes), ByteSize(garbage_bytes));
    line("segments", space.segments, parts)?;
    let unlearned = ByteSize(space.unlearned_bytes);
    line(
        "dead",
        space.dead,
        format!(": nothing in them is live; {unlearned} of all garbage is not known to the accounts yet"),
    )?;
    line("map", space.map, String::new())?;
    line("in grace", space.grace, ": not needed any more, to be deleted".into())?;
    line("fences", space.fences, ": claims, releases and void entries, which stay".into())?;
    line("other", space.other, ": checkpoints, hot sets, identity, key".into())?;
    line("orphans", space.orphans, ": left by crashes and fenced writers".into())?;
    line("all", space.all, String::new())
}
