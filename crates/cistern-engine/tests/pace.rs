//! How the two controllers behave together, in a model of writer, room and link.

mod pace_support;

use pace_support::{MIB, SCENARIOS, Second, run, svg::draw};

fn seconds(name: &str) -> Vec<Second> {
    run(SCENARIOS.iter().find(|scenario| scenario.name == name).expect("a scenario"))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
}

fn dirty(seconds: &[Second]) -> impl Iterator<Item = f64> {
    seconds.iter().map(|s| s.dirty_bytes)
}

/// After a step dirty data settles at the target, and stays within two segments of it: it does not
/// oscillate. After the step back it is below the target again.
#[test]
fn a_step_settles_without_ringing() {
    let seconds = seconds("step");
    let target = seconds[0].rate.target_bytes as f64;
    for s in &seconds[400..500] {
        assert!((s.dirty_bytes - target).abs() <= 48.0 * MIB, "{} MiB", s.dirty_bytes / MIB);
    }
    let peak = dirty(&seconds).fold(0.0, f64::max);
    assert!(peak <= 3.0 * target, "{} MiB at most", peak / MIB);
    assert!(dirty(&seconds[600..900]).all(|bytes| bytes <= target + 32.0 * MIB));
}

/// While more is dirty than the target and writes outrun the link, at least 95 % of it is used.
#[test]
fn the_link_is_used() {
    for name in ["flood", "faster", "slower"] {
        let seconds = seconds(name);
        let over = seconds[30..].iter().filter(|s| s.dirty_bytes > s.rate.target_bytes as f64);
        let (used, carried) = over
            .fold((0.0, 0.0), |(used, carried), s| (used + s.uploaded_bytes, carried + s.link_bytes_per_s));
        assert!(used >= 0.95 * carried, "{name}: {:.1} %", 100.0 * used / carried);
    }
}

/// A flood is slowed to the speed of the link, evenly: no second, and no tenth of one, is below half
/// of the mean.
#[test]
fn a_flood_is_slowed_evenly() {
    let seconds = seconds("flood");
    let settled = &seconds[60..];
    let rate = mean(settled.iter().map(|s| s.written_bytes));
    assert!((rate - 30.0 * MIB).abs() < MIB, "{} MiB/s", rate / MIB);
    for s in settled {
        assert!((s.written_bytes - rate).abs() < 0.2 * rate, "{} MiB/s", s.written_bytes / MIB);
        assert!(s.tenth_least_bytes > 0.5 * rate / 10.0);
    }
    assert!(seconds.iter().all(|s| s.written_bytes >= 0.5 * rate), "also on the way there");
}

/// A link that is suddenly ten times slower, or faster, stops no write and fills no room.
#[test]
fn a_link_that_changes_stops_nothing() {
    for (name, after) in [("faster", 100.0), ("slower", 10.0)] {
        let seconds = seconds(name);
        assert!(seconds.iter().all(|s| s.tenth_least_bytes > 0.0), "{name}");
        let rate = mean(seconds[450..].iter().map(|s| s.written_bytes)) / MIB;
        assert!((rate - after).abs() < 0.05 * after, "{name}: {rate} MiB/s");
    }
}

/// An outage leaves nothing behind: no integral that grew meanwhile, and dirty data falls without
/// a pause until it is at the target.
#[test]
fn an_outage_leaves_nothing_behind() {
    let seconds = seconds("outage");
    let (before, during) = (seconds[195].rate.integral_bytes_per_s, seconds[495].rate.integral_bytes_per_s);
    assert!(during - before <= 4.0 * MIB, "{} then {} MiB/s", before / MIB, during / MIB);
    let target = seconds[0].rate.target_bytes as f64;
    let back = (500..900).find(|n| seconds[*n].dirty_bytes <= target).expect("it comes back");
    assert!(back <= 560, "after {} s", back - 500);
    assert!(dirty(&seconds[back..]).all(|bytes| bytes <= target + 64.0 * MIB), "and stays there");
}

/// Whatever happens, the room is never exceeded and the rate is never below the least one.
#[test]
fn bounds_hold_everywhere() {
    for scenario in SCENARIOS {
        for s in run(scenario) {
            assert!(s.dirty_bytes <= scenario.room_bytes as f64, "{}", scenario.title);
            let least = scenario.room_bytes as f64 / 8.0 / scenario.age_max.as_secs_f64();
            assert!(s.rate.rate_bytes_per_s >= least - 1.0);
            assert!(s.rate.integral_bytes_per_s <= 200.0 * MIB);
        }
    }
}

/// The plots in the documentation show what the controllers do today.
#[test]
fn the_plots_are_up_to_date() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/writeback");
    for scenario in SCENARIOS {
        let name = format!("{}.svg", scenario.name);
        let committed = std::fs::read_to_string(directory.join(&name)).unwrap_or_default();
        assert!(
            committed == draw(scenario, &run(scenario)),
            "{name} is out of date. Regenerate: cargo run -p cistern-engine --example pace_plots"
        );
    }
}
