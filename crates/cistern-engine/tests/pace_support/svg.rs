//! A run as a picture: dirty data above, rates below, over time. A small writer of SVG.

use std::fmt::Write;

use super::{MIB, Scenario, Second};

const WIDTH: f64 = 760.0;
const PANEL_HEIGHT: f64 = 170.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const GAP: f64 = 50.0;
/// Seconds that one point of a line stands for.
const POINT_S: usize = 3;

/// One line of a panel, in MiB or MiB a second.
struct Line<'a> {
    name: &'a str,
    color: &'a str,
    value: &'a dyn Fn(&Second) -> f64,
}

/// Draws a run.
pub fn draw(scenario: &Scenario, seconds: &[Second]) -> String {
    let room_mib = scenario.room_bytes as f64 / MIB;
    let height = TOP + 2.0 * PANEL_HEIGHT + GAP + 40.0;
    let total = WIDTH + LEFT + 150.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {total:.0} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
        scenario.title
    );
    let dirty = [
        Line { name: "room", color: "#999999", value: &|_| room_mib },
        Line { name: "high-water mark", color: "#d9a400", value: &|_| room_mib / 2.0 },
        Line { name: "target", color: "#2a9d4a", value: &|s| s.rate.target_bytes as f64 / MIB },
        Line { name: "dirty", color: "#c0392b", value: &|s| s.dirty_bytes / MIB },
    ];
    panel(&mut out, TOP, "MiB", room_mib, seconds, &dirty);
    let rates = [
        Line { name: "link", color: "#999999", value: &|s| s.link_bytes_per_s / MIB },
        Line { name: "rate allowed to upload", color: "#2a9d4a", value: &|s| s.rate.rate_bytes_per_s / MIB },
        Line { name: "uploaded", color: "#2471a3", value: &|s| s.uploaded_bytes / MIB },
        Line { name: "written", color: "#c0392b", value: &|s| s.written_bytes / MIB },
    ];
    let link = seconds.iter().map(|s| s.link_bytes_per_s / MIB).fold(0.0, f64::max);
    panel(&mut out, TOP + PANEL_HEIGHT + GAP, "MiB/s", 2.0 * link, seconds, &rates);
    out += "</svg>\n";
    out
}

fn panel(out: &mut String, top: f64, unit: &str, most: f64, seconds: &[Second], lines: &[Line<'_>]) {
    let bottom = top + PANEL_HEIGHT;
    let x = |second: usize| LEFT + WIDTH * second as f64 / seconds.len() as f64;
    let y = |value: f64| bottom - PANEL_HEIGHT * (value / most).clamp(0.0, 1.0);
    for tick in 0..=4 {
        let value = most * f64::from(tick) / 4.0;
        let at = y(value);
        text(out, LEFT - 6.0, at + 4.0, "end", "#000000", &format!("{value:.0}"));
        path(out, "#e5e5e5", &format!("{LEFT:.1},{at:.1} {:.1},{at:.1}", LEFT + WIDTH));
    }
    for second in (0..=seconds.len()).step_by(100) {
        text(out, x(second), bottom + 16.0, "middle", "#000000", &format!("{second} s"));
    }
    text(out, LEFT - 6.0, top - 8.0, "end", "#000000", unit);
    for (n, line) in lines.iter().enumerate() {
        let points: Vec<String> = seconds
            .chunks(POINT_S)
            .enumerate()
            .map(|(n, chunk)| {
                let mean = chunk.iter().map(|s| (line.value)(s)).sum::<f64>() / chunk.len() as f64;
                format!("{:.0},{:.1}", x(n * POINT_S), y(mean))
            })
            .collect();
        path(out, line.color, &points.join(" "));
        text(out, LEFT + WIDTH + 10.0, top + 14.0 + 18.0 * n as f64, "start", line.color, line.name);
    }
}

fn path(out: &mut String, color: &str, points: &str) {
    writeln!(out, "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.3\" points=\"{points}\"/>")
        .expect("a string takes all");
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, color: &str, text: &str) {
    writeln!(out, "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>")
        .expect("a string takes all");
}
