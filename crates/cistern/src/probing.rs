//! Whether a store keeps the rules that a volume relies on: asked, shown, judged.

use cistern_engine::{
    env::Env,
    store::{self, ProbeReport, SharedStore, Verdict},
};

use crate::{
    failure::{Failure, Kind, Outcome},
    quantity::ByteSize,
    terminal,
};

/// Probes a store, with a spinner.
pub async fn probe(env: &Env, store: &SharedStore) -> Outcome<ProbeReport> {
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
