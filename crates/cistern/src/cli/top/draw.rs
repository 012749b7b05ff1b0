//! How it is drawn: a list of volumes, and below it the panels of the one that is looked at.
//!
//! Every state is a word; colours only underline it, and there are none where NO_COLOR is set.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, Sparkline},
};

use super::{
    panels::{PanelText, bytes, count},
    view::{ListedVolume, TopState, TopView},
};

/// The least that has room for all panels.
pub const WIDTH_MIN: u16 = 80;
pub const HEIGHT_MIN: u16 = 24;
/// Panels beside each other, and below each other.
const PANEL_COLUMNS: usize = 2;
const PANEL_ROWS: u16 = 5;
/// Lines of the least panel: title, text, and one of the picture.
const PANEL_LINES_MIN: u16 = 3;
/// Cells between the columns of panels.
const GAP: u16 = 2;
/// Steps of a picture's scale.
const SCALE: f32 = 10_000.0;

const HELP: [&str; 10] = [
    "up, down, k, j       another volume",
    "Home, End            the first, the last one",
    "left, right, h, l    the time of a column: a second, ten, a minute",
    "?                    this, and away with it",
    "q, Esc, Ctrl-C       end",
    "",
    "r read, w write, f flush. Pictures: 1 dirty bytes, 2 bytes of clients, 3 requests,",
    "4 p99 of writes, 5 journal in use, 6 hits, 7 live + dead + grace, 8 money an hour,",
    "9 p99 of puts, 10 write amplification. What is unknown is a dash, or no bar.",
    "Without a terminal: cistern status --io --watch",
];

/// Columns that a picture has in a window of this width.
pub fn columns(width: u16) -> u64 {
    u64::from(width.saturating_sub(GAP)) / PANEL_COLUMNS as u64
}

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, view: &TopView, coloured: bool) {
    let area = frame.area();
    let volumes = view.volumes();
    let has_room = area.width >= WIDTH_MIN && area.height >= HEIGHT_MIN;
    let listed_max = match has_room {
        true => area.height - 3 - PANEL_ROWS * PANEL_LINES_MIN,
        false => area.height.saturating_sub(3),
    };
    let listed = (volumes.len() as u16).clamp(1, listed_max.max(1));
    let [top, list, panels, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(listed + 1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(header(view, coloured), top);
    frame.render_widget(Paragraph::new(rows(view, &volumes, usize::from(listed), coloured)), list);
    match volumes.get(view.selected()).filter(|_| has_room) {
        Some(volume) => draw_panels(frame, panels, &volume.figures().panels(), coloured),
        None if !has_room => {
            let text = format!("{WIDTH_MIN} x {HEIGHT_MIN} cells have room for the panels");
            frame.render_widget(Paragraph::new(text), panels);
        }
        None => {}
    }
    let keys = format!("q quit  ? help  up/down volume  left/right columns: {}", view.span_name());
    frame.render_widget(Paragraph::new(keys).style(dim()), bottom);
    if view.help {
        draw_help(frame, area);
    }
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn paint(style: Style, colour: Color, coloured: bool) -> Style {
    if coloured { style.fg(colour) } else { style }
}

fn header(view: &TopView, coloured: bool) -> Line<'static> {
    let alarm = paint(bold(), Color::Red, coloured);
    let (text, style) = match &view.state {
        TopState::Looking => ("looking for daemons".to_owned(), Style::new()),
        TopState::Seen => {
            let (volumes, daemons) = (view.volumes(), view.daemons());
            let version = volumes.first().map_or("", |volume| volume.version);
            (format!("{} volumes, {daemons} daemons, version {version}", volumes.len()), Style::new())
        }
        TopState::Gone => {
            ("THE DAEMON HAS ENDED; looking for it again. Below: the last it said".to_owned(), alarm)
        }
        TopState::Nobody => ("no daemon is running: `cistern serve URL` starts one".to_owned(), alarm),
        TopState::Failed(failure) => (format!("CANNOT LOOK: {}", failure.text), alarm),
    };
    Line::from(vec![Span::styled("cistern top  ", bold()), Span::styled(text, style)])
}

/// The list, with the volume that is looked at among what is shown of it.
fn rows(view: &TopView, volumes: &[ListedVolume<'_>], height: usize, coloured: bool) -> Vec<Line<'static>> {
    let heading = format!(
        "  {:<24} {:<11} {:>7} {:>7} {:>7} {:>7} {:>7}",
        "VOLUME", "STATE", "DIRTY", "READ/s", "WRITE/s", "UP/s", "REQ/s"
    );
    let mut lines = vec![Line::styled(heading, dim())];
    let selected = view.selected();
    let first = (selected + 1).saturating_sub(height);
    for (at, volume) in volumes.iter().enumerate().skip(first).take(height) {
        let (mark, style) = match at == selected {
            true => ('>', Style::new().add_modifier(Modifier::REVERSED)),
            false => (' ', Style::new()),
        };
        let requests = ["reads_per_second", "writes_per_second", "flushes_per_second", "trims_per_second"]
            .into_iter()
            .filter_map(|series| volume.now(series))
            .reduce(|a, b| a + b);
        let name: String = volume.served.name.chars().take(24).collect();
        let state = volume.state();
        let colour = match state {
            "STOPPED" | "STORE AWAY" => Color::Red,
            "clean" | "read-only" => Color::Green,
            _ => Color::Yellow,
        };
        let figures = format!(
            " {:>7} {:>7} {:>7} {:>7} {:>7}",
            bytes(Some(volume.served.status.dirty_bytes as f32)),
            bytes(volume.now("client_read_bytes_per_second")),
            bytes(volume.now("client_write_bytes_per_second")),
            bytes(volume.now("store_write_bytes_per_second")),
            count(requests),
        );
        lines.push(Line::from(vec![
            Span::styled(format!("{mark} {name:<24} "), style),
            Span::styled(format!("{state:<11}"), paint(style, colour, coloured)),
            Span::styled(figures, style),
        ]));
    }
    lines
}

fn draw_panels(frame: &mut Frame<'_>, area: Rect, panels: &[PanelText], coloured: bool) {
    let lines = Layout::vertical([Constraint::Fill(1); PANEL_ROWS as usize]).split(area);
    for (row, line) in panels.chunks(PANEL_COLUMNS).zip(lines.iter()) {
        let cells = Layout::horizontal([Constraint::Fill(1); PANEL_COLUMNS]).spacing(GAP).split(*line);
        for (panel, cell) in row.iter().zip(cells.iter()) {
            draw_panel(frame, *cell, panel, coloured);
        }
    }
}

fn draw_panel(frame: &mut Frame<'_>, area: Rect, panel: &PanelText, coloured: bool) {
    let [title, text, picture] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(Line::styled(panel.title, bold()), title);
    frame.render_widget(Line::raw(panel.text.as_str()), text);
    let drawn = pictured(&panel.drawn, usize::from(picture.width));
    let style = paint(Style::new(), Color::Cyan, coloured);
    frame.render_widget(Sparkline::default().data(drawn).max(SCALE as u64).style(style), picture);
}

/// The newest columns, at the right, on a scale up to the largest of them.
fn pictured(series: &[Option<f32>], width: usize) -> Vec<Option<u64>> {
    let shown = &series[series.len().saturating_sub(width)..];
    let largest = shown.iter().flatten().fold(0.0_f32, |a, b| a.max(*b));
    let scaled = |value: f32| if largest > 0.0 { (value / largest * SCALE) as u64 } else { 0 };
    let missing = std::iter::repeat_n(None, width - shown.len());
    missing.chain(shown.iter().map(|value| value.map(scaled))).collect()
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let width = HELP.iter().map(|line| line.len()).max().unwrap_or(0) as u16 + 4;
    let (width, height) = (width.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::raw(format!(" {line}"))).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" help ")), place);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns that are not there yet leave their place at the left empty, and the largest one fills its height.
    #[test]
    fn pictures_end_at_the_right() {
        assert_eq!(pictured(&[Some(1.0), None, Some(4.0)], 4), [None, Some(2500), None, Some(10_000)]);
        assert_eq!(pictured(&[Some(9.0), Some(0.0)], 1), [Some(0)]);
    }
}
