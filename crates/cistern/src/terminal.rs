//! The terminal: output that survives a closed pipe, questions, progress.
//!
//! Results go to stdout, everything else to stderr. Nothing is asked where nobody can answer.

use std::{
    io::{BufRead, ErrorKind, IsTerminal, Write},
    process::ExitCode,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// Writes a result and a line end to stdout. A reader that went away (`| head`) ends the process
/// quietly, as it does with other tools.
pub fn say(text: impl AsRef<str>) -> Outcome {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(text.as_ref().as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
    match written {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(Failure::io("cannot write to standard output", &e)),
    }
}

/// Writes a line to stdout that nobody may be reading: a daemon goes on without listeners.
pub fn tell(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout(), "{}", text.as_ref());
}

/// Writes a result as JSON, indented for the eye.
pub fn say_json(value: &impl Serialize) -> Outcome {
    say(serde_json::to_string_pretty(value).expect("our results have string keys"))
}

/// Writes a result as JSON in one line: one of several, for programs.
pub fn say_json_line(value: &impl Serialize) -> Outcome {
    say(serde_json::to_string(value).expect("our results have string keys"))
}

/// Empties the terminal, for [`redraw`].
pub fn clear() -> Outcome {
    say("\x1b[2J")
}

/// Shows a text in place of what was on the terminal, as far as it has lines for it. Overwrites line
/// by line, so that nothing flickers.
pub fn redraw(text: &str) -> Outcome {
    let lines: Vec<&str> = text.lines().take(height().saturating_sub(1)).collect();
    // To the top; behind every line the rest of it is cleared, and in the end what is below.
    say(format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\n")))
}

/// Lines of the terminal behind stdout.
fn height() -> usize {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call fills in a winsize, which lives through it, and fails harmlessly elsewhere.
    match unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) } {
        0 if size.ws_row > 0 => usize::from(size.ws_row),
        _ => usize::MAX,
    }
}

/// Writes a remark to stderr; one that cannot be written is not worth failing for.
pub fn remark(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr(), "{}", text.as_ref());
}

/// Shows why the command failed; gives the process's exit code.
pub fn report(failure: &Failure) -> ExitCode {
    remark(format!("error: {}", failure.text));
    if let Some(hint) = &failure.hint {
        remark(format!("  hint: {hint}"));
    }
    ExitCode::from(failure.kind.exit_code())
}

/// Whether somebody sits there who can be asked.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Goes on only if the user types `expected`, or said --yes before.
pub fn confirm(warning: &str, expected: &str, yes: bool) -> Outcome {
    if yes {
        return Ok(());
    }
    if !can_ask() {
        let failure = Failure::usage(format!("{warning} This needs a confirmation"));
        return Err(failure.hint("add --yes if that is what you want"));
    }
    eprint!("{warning}\nType '{expected}' to go on: ");
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|e| Failure::io("cannot read the answer", &e))?;
    if answer.trim() == expected {
        return Ok(());
    }
    Err(Failure::new(crate::failure::Kind::Other, "not confirmed; nothing was done"))
}

/// Whether progress is seen.
pub fn shows_progress() -> bool {
    std::io::stderr().is_terminal()
}

/// A progress bar on a terminal, nothing elsewhere.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of counted things, such as "objects".
    pub fn counting(what: &'static str) -> Progress {
        Self::with_template(&format!("{{spinner}} {{bar:32}} {{pos}}/{{len}} {what} ({{eta}} left)"))
    }

    /// A spinner with a changing text.
    pub fn spinning(what: &'static str) -> Progress {
        let progress = Self::with_template("{spinner} {msg}");
        progress.0.set_message(what);
        progress.0.enable_steady_tick(std::time::Duration::from_millis(120));
        progress
    }

    fn with_template(template: &str) -> Progress {
        let target = match shows_progress() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(ProgressStyle::with_template(template).expect("the templates above are valid"));
        Progress(bar)
    }

    pub fn set(&self, done: u64, of: u64) {
        self.0.set_length(of);
        self.0.set_position(done);
    }

    pub fn message(&self, text: String) {
        self.0.set_message(text);
    }

    /// A remark that stays, above what changes.
    pub fn remark(&self, text: impl AsRef<str>) {
        self.0.suspend(|| remark(text));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Lines of columns, each as wide as its widest cell; the last is not padded.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(i, cell)| format!("{cell:<width$}", width = widths[i]));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// As [`table`], for numbers: all columns but the first are aligned at their right.
pub fn right_aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, width))| match i {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    /// Columns line up and no line ends in blanks.
    #[test]
    fn tables_line_up() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = super::table(&[row(["NAME", "SIZE"]), row(["a-long-name", "1"]), row(["x", ""])]);
        assert_eq!(text, "NAME         SIZE\na-long-name  1\nx");
    }
}
