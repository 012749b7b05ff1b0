//! The table of metrics keeps the conventions that Prometheus expects of names and texts.

use std::collections::BTreeSet;

use super::*;

/// Names are unique, ours, made of the letters allowed; units and `_total` stand where they belong.
#[test]
fn names_follow_the_conventions() {
    let mut seen = BTreeSet::new();
    for metric in TABLE {
        let name = metric.name;
        assert!(seen.insert(name), "{name} stands twice");
        assert!(
            name.starts_with("cistern_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{name}"
        );
        assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
        assert!(
            name.split('_').all(|word| !["ms", "us", "kib", "percent"].contains(&word)),
            "{name}: base units"
        );
        assert!(
            !metric.help.ends_with('.') && !metric.help.contains('\n') && !metric.help.contains('\\'),
            "{name}"
        );
        assert!(metric.help.starts_with(|c: char| c.is_uppercase() || c.is_numeric()), "{name}");
        let labels: BTreeSet<_> = metric.labels.iter().collect();
        assert!(labels.len() == metric.labels.len() && !labels.contains(&"le"), "{name}");
    }
}

/// What a label says arrives unchanged, whatever it is made of.
#[test]
fn labels_are_escaped() {
    assert_eq!(label("volume", "a\"b\\c\nd"), r#"volume="a\"b\\c\nd""#);
}

/// A histogram ends in +Inf, its sum and its count, as the format wants it.
#[test]
fn histograms_are_whole() {
    let buckets = Buckets { up_to: vec![(0.000016, 1), (0.5, 3)], count: 4, sum: 2.25 };
    let mut out = String::new();
    buckets.write("x_seconds", &[label("volume", "v")], &mut out).expect("a string grows");
    let lines = [
        r#"x_seconds_bucket{volume="v",le="0.000016"} 1"#,
        r#"x_seconds_bucket{volume="v",le="0.5"} 3"#,
        r#"x_seconds_bucket{volume="v",le="+Inf"} 4"#,
        r#"x_seconds_sum{volume="v"} 2.25"#,
        r#"x_seconds_count{volume="v"} 4"#,
    ];
    assert_eq!(out.lines().collect::<Vec<_>>(), lines);
}
