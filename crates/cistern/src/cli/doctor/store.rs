//! The store of a volume: whether it answers, and keeps the rules.

use cistern_engine::store::Verdict;

use super::Finding;
use crate::{cli::Context, cli::probe, place::VolumeUrl, probing::depth, quantity::ByteSize};

const WHAT: &str = "store";

/// Probes it.
pub async fn look(context: &Context, volume: &VolumeUrl) -> Finding {
    let url = &volume.url;
    let report = match probe::probe_at(context, volume, depth(volume)).await {
        Ok(report) => report,
        Err(failure) => {
            let hint = failure.hint.unwrap_or_else(|| format!("`cistern probe {url}` tries it again"));
            return Finding::bad(WHAT, format!("{url} does not do: {}", failure.text), hint);
        }
    };
    if let Verdict::Refused { reason, advice } = report.verdict {
        return Finding::bad(WHAT, format!("{url} cannot hold a volume: {reason}"), advice);
    }
    if let Some(key) = report.left_behind.first() {
        let text = format!("{url} keeps the rules, but {key} could not be deleted");
        return Finding::note(WHAT, text, "the credentials have to allow that objects are deleted");
    }
    let ms = |us: Option<u64>| format!("{:.1} ms", us.unwrap_or(0) as f64 / 1000.0);
    let rate = |bytes: Option<u64>| format!("{}/s", ByteSize(bytes.unwrap_or(0)));
    Finding::ok(
        WHAT,
        format!(
            "{url} keeps the rules; 4 KiB are written in {}, read in {}; up {}, down {}",
            ms(report.put_us),
            ms(report.get_us),
            rate(report.up_bytes_per_s),
            rate(report.down_bytes_per_s)
        ),
    )
}
