//! Whether a store keeps the rules that a volume relies on: asked, shown, judged, and known for an hour.

use std::{path::Path, sync::Arc};

use cistern_engine::{
    env::Env,
    store::{self, Endpoints, ProbeDepth, ProbeReport, SharedStore, Verdict},
};

use crate::{
    failure::{Failure, Kind, Outcome},
    place::{OpenStore, VolumeUrl},
    quantity::{ByteSize, Span},
    terminal,
};

mod kept;

use kept::KeptVerdicts;

/// How thoroughly the place of a volume is probed before one is made in it.
pub fn depth(volume: &VolumeUrl) -> ProbeDepth {
    match volume.url.path() {
        Some(_) => ProbeDepth::Brief,
        None => ProbeDepth::Full,
    }
}

/// Probes a store, with a spinner.
pub async fn probe(env: &Env, open: &OpenStore, depth: ProbeDepth) -> Outcome<ProbeReport> {
    probe_unhurried(env, &open.unhurried(env), depth).await
}

/// Probes a store through several endpoints at once: each request goes through the next of them.
pub async fn probe_through(env: &Env, endpoints: &[OpenStore]) -> Outcome<ProbeReport> {
    let all = endpoints.iter().map(|open| open.unhurried(env)).collect();
    let store: SharedStore = Arc::new(Endpoints::new(all));
    probe_unhurried(env, &store, ProbeDepth::Full).await
}

async fn probe_unhurried(env: &Env, store: &SharedStore, depth: ProbeDepth) -> Outcome<ProbeReport> {
    let _progress = terminal::Progress::spinning("probing the store");
    let probed = store::probe(env, store, depth).await;
    probed.map_err(|error| Failure::from(error).context("probing the store"))
}

/// Makes sure that the place of a volume keeps the rules: by what was found in the last hour, or by a probe.
///
/// `state_dir` is where that is known; without one each call probes.
pub async fn ensure(env: &Env, open: &OpenStore, volume: &VolumeUrl, state_dir: Option<&Path>) -> Outcome {
    let kept = KeptVerdicts::of(state_dir, volume);
    if let Some(age) = kept.age(env.wall_ms()) {
        terminal::remark(format!("{} kept the rules when it was probed {} ago", volume.url, Span(age)));
        return Ok(());
    }
    let report = probe(env, open, depth(volume)).await?;
    show(&report);
    kept.note(env.wall_ms(), &report.verdict);
    judge(&report)
}

/// Remembers what a probe found, for those who make volumes within the hour.
pub fn remember(env: &Env, volume: &VolumeUrl, state_dir: Option<&Path>, report: &ProbeReport) {
    KeptVerdicts::of(state_dir, volume).note(env.wall_ms(), &report.verdict);
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
    if report.races > 0 {
        terminal::remark(format!("  races           {} of 16 writers, each with one winner", report.races));
    }
    let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
    if let (Some(put), Some(get)) = (report.put_us, report.get_us) {
        terminal::remark(format!("  4 KiB object    write {}, read {}", ms(put), ms(get)));
    }
    if let (Some(up), Some(down)) = (report.up_bytes_per_s, report.down_bytes_per_s) {
        terminal::remark(format!("  bandwidth       up {}/s, down {}/s", ByteSize(up), ByteSize(down)));
    }
    if let Some(bytes) = report.largest_bytes {
        terminal::remark(format!("  largest object  {}", ByteSize(bytes)));
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
