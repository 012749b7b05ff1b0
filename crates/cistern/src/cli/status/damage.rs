//! What `status` says of damaged objects.

use std::time::Duration;

use cistern_engine::damage::{DamageReport, DamagedObject};

use crate::quantity::Span;

/// Objects shown; `--json` has all that are known.
const SHOWN_MAX: usize = 8;

/// One line for each damaged object, and one for what else there is.
pub fn lines(damage: &DamageReport) -> Vec<String> {
    let mut lines: Vec<String> = damage.objects.iter().take(SHOWN_MAX).map(line).collect();
    let more = damage.objects.len().saturating_sub(SHOWN_MAX);
    if more > 0 {
        lines.push(format!("and {more} more objects: see --json"));
    }
    if damage.further > 0 {
        lines.push(format!("and {} failed reads of objects beyond those", damage.further));
    }
    lines
}

fn line(damaged: &DamagedObject) -> String {
    let ago = |ms| Span(Duration::from_secs(ms / 1000));
    let DamagedObject { object, detail, first_ms, last_ms, failures } = damaged;
    let reads = if *failures == 1 { "read" } else { "reads" };
    format!(
        "{object}: {detail} ({failures} failed {reads}, the first {} ago, the last {} ago)",
        ago(*first_ms),
        ago(*last_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that is damaged everywhere does not flood the terminal.
    #[test]
    fn many_damaged_objects_are_summed_up() {
        let object = |n: u64| DamagedObject {
            object: format!("log/{n}"),
            detail: "it is missing".into(),
            first_ms: 61_000,
            last_ms: 2500,
            failures: n,
        };
        let lines = lines(&DamageReport { objects: (1..=20).map(object).collect(), further: 3 });
        assert_eq!(lines.len(), SHOWN_MAX + 2);
        assert!(lines[0].starts_with("log/1: it is missing (1 failed read, the first "), "{}", lines[0]);
        assert_eq!(lines[8], "and 12 more objects: see --json");
    }
}
