//! `cistern probe`: does a store keep the rules, and how fast is it?

use cistern_engine::{
    env::Env,
    store::{self, ProbeReport, SharedStore, Verdict, remove_store},
};
use clap::Args;

use crate::{
    cli::Context,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    quantity::ByteSize,
    terminal,
};

/// Find out whether a store keeps the rules that a volume relies on, and how fast it is
///
/// Writes some small objects and 32 MiB of large ones below URL/probe/, reads them, and deletes
/// them again. Existing volumes are not touched.
#[derive(Args)]
pub struct Probe {
    /// URL of a volume, existing or not
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Probe {
    pub async fn run(self, context: &Context) -> Outcome {
        let env = &context.env;
        let (open, made) = match self.volume.open(env, COMMAND_PATIENCE).await {
            Ok(open) => (open, false),
            Err(missing) if missing.kind == Kind::NotFound => {
                (self.volume.create(env, COMMAND_PATIENCE).await?, true)
            }
            Err(failure) => return Err(failure),
        };
        let probed = run(env, &open.store).await;
        if made {
            // Refuses where the probe left something behind, which the report says.
            let _ = remove_store(&self.volume.url, env).await;
        }
        let report = probed?;
        match self.json {
            true => terminal::say_json(&report)?,
            false => show(&report),
        }
        judge(&report)
    }
}

/// Probes a store, with a spinner.
pub async fn run(env: &Env, store: &SharedStore) -> Outcome<ProbeReport> {
    let _progress = terminal::Progress::spinning("probing the store");
    store::probe(env, store).await.map_err(|error| Failure::from(error).context("probing the store"))
}

/// Shows what a probe found, on stderr: it is a remark of `create` as well.
pub fn show(report: &ProbeReport) {
    terminal::remark(format!("probed {}", report.url));
    let rows: Vec<Vec<String>> = report
        .checks
        .iter()
        .map(|check| {
            let kept = if check.kept { "yes" } else { "NO" };
            vec![format!("  {}", check.rule), kept.to_owned(), check.detail.clone()]
        })
        .collect();
    terminal::remark(terminal::table(&rows));
    let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
    if let (Some(put), Some(get)) = (report.put_us, report.get_us) {
        terminal::remark(format!("  4 KiB object    write {}, read {}", ms(put), ms(get)));
    }
    if let (Some(up), Some(down)) = (report.up_bytes_per_s, report.down_bytes_per_s) {
        terminal::remark(format!("  bandwidth       up {}/s, down {}/s", ByteSize(up), ByteSize(down)));
    }
    for key in &report.left_behind {
        terminal::remark(format!("  could not delete {key}"));
    }
}

/// Turns a refusal into a failure.
pub fn judge(report: &ProbeReport) -> Outcome {
    match &report.verdict {
        Verdict::Ok => Ok(()),
        Verdict::Refused { reason, advice } => {
            let failure = Failure::new(Kind::Store, format!("this store cannot hold a volume: {reason}"));
            Err(failure.hint(advice))
        }
    }
}
