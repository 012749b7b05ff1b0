//! Series of seconds as a picture and as a table, beside the other results.

use std::{fmt::Write, path::PathBuf};

use anyhow::{Context, Result};

use crate::step;

/// What one line shows, second by second.
pub struct Series {
    pub name: &'static str,
    pub values: Vec<f64>,
}

/// Pixels.
const WIDTH: f64 = 900.0;
const PANEL_HEIGHT: f64 = 220.0;
const MARGIN: f64 = 60.0;
const COLOUR: &str = "#1f6feb";
const GRID_LINES: usize = 4;

/// Writes `NAME.svg` and `NAME.csv` into `bench/results`, a panel and a column for each series.
pub fn save(name: &str, title: &str, series: &[Series]) -> Result<PathBuf> {
    let dir = step::root().join("bench/results");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{name}.svg"));
    std::fs::write(&path, svg(title, series)).with_context(|| path.display().to_string())?;
    std::fs::write(dir.join(format!("{name}.csv")), csv(series))?;
    Ok(path.strip_prefix(step::root()).unwrap_or(&path).to_owned())
}

fn csv(series: &[Series]) -> String {
    let names: Vec<&str> = series.iter().map(|s| s.name).collect();
    let mut text = format!("second,{}\n", names.join(","));
    let rows = series.iter().map(|s| s.values.len()).max().unwrap_or(0);
    for row in 0..rows {
        let values: Vec<String> =
            series.iter().map(|s| s.values.get(row).map_or(String::new(), |v| format!("{v:.1}"))).collect();
        let _ = writeln!(text, "{},{}", row + 1, values.join(",")); // a String takes everything
    }
    text
}

fn svg(title: &str, series: &[Series]) -> String {
    let height = MARGIN + PANEL_HEIGHT * series.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"20\" \
         font-size=\"14\">{title}</text>\n"
    );
    for (n, one) in series.iter().enumerate() {
        panel(&mut out, one, 30.0 + PANEL_HEIGHT * n as f64);
    }
    out + "</svg>\n"
}

/// One series in its own coordinates, from zero to its greatest value.
fn panel(out: &mut String, series: &Series, top: f64) {
    let seconds = series.values.len().max(2) as f64 - 1.0;
    let most = series.values.iter().copied().fold(1.0, f64::max);
    let (left, right) = (MARGIN, WIDTH - 20.0);
    let (low, high) = (top + PANEL_HEIGHT - 30.0, top + 20.0);
    let x = |n: f64| left + (right - left) * n / seconds;
    let y = |v: f64| low - (low - high) * v / most;
    let mut line = |text: String| out.push_str(&(text + "\n"));
    line(format!("<text x=\"{left}\" y=\"{}\">{}</text>", high - 6.0, series.name));
    for n in 0..=GRID_LINES {
        let value = most * n as f64 / GRID_LINES as f64;
        let at = y(value);
        line(format!("<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"));
        let label = left - 5.0;
        line(format!("<text x=\"{label}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>", at + 4.0));
        let second = seconds * n as f64 / GRID_LINES as f64;
        line(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{second:.0} s</text>",
            x(second),
            low + 15.0
        ));
    }
    let points: Vec<String> =
        series.values.iter().enumerate().map(|(n, v)| format!("{:.1},{:.1}", x(n as f64), y(*v))).collect();
    line(format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{COLOUR}\"/>", points.join(" ")));
}
