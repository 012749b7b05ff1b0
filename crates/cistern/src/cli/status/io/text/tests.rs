//! The tables of `status --io` are readable and say what the counters say.

use cistern_engine::stats::IoCounters;

use super::*;

fn some_io() -> IoStats {
    let counters = IoCounters::new(Duration::ZERO);
    for i in 0..1234u64 {
        let range = Some((i * 4096, 4096));
        counters.begin(IoKind::Read, Duration::ZERO).end(Duration::from_micros(100), range, true);
    }
    counters.begin(IoKind::Trim, Duration::ZERO).end(Duration::from_millis(12), Some((512, 1 << 30)), true);
    counters.snapshot(Duration::from_secs(2))
}

/// Totals without an interval, rates with one; kinds that were not used stay out.
#[test]
fn requests_as_totals_and_as_rates() {
    let totals = requests(&some_io(), Detail { rates: false, histograms: false });
    let read = totals.lines().find(|line| line.starts_with("  read")).expect("a line for reads");
    let words: Vec<&str> = read.split_whitespace().collect();
    assert_eq!(words[..6], ["read", "1,234", "4.8", "MiB", "0", "0"]);
    assert_eq!(words[words.len() - 5..], ["100us", "100us", "100us", "100us", "100us"]);
    assert!(totals.contains("  trim") && !totals.contains("write zeroes"), "{totals}");
    let rates = requests(&some_io(), Detail { rates: true, histograms: false });
    assert!(rates.contains("PER SECOND") && rates.contains(" 617 "), "{rates}");
}

/// Histograms have a row for each bucket in use, smallest first.
#[test]
fn histograms_list_what_occurs() {
    let text = histograms(&some_io());
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows[0].starts_with("  SIZE UP TO"), "{text}");
    assert!(rows[1].starts_with("  4 KiB") && rows[2].starts_with("  more"), "{text}");
    assert!(rows[3].starts_with("  ALIGNED TO") && rows[4].starts_with("  512 bytes"), "{text}");
    assert!(rows[1].contains("1,234"), "{text}");
}

/// Latencies have three digits and a unit.
#[test]
fn latencies_are_short() {
    let expected = [
        (0, "0us"),
        (999, "999us"),
        (1000, "1.00ms"),
        (12_345, "12.3ms"),
        (123_456, "123ms"),
        (7_000_000, "7.00s"),
    ];
    for (us, text) in expected {
        assert_eq!(microseconds(us), text);
    }
}
