//! What is shown: which volumes there are, which one is looked at, and what a key does to that. Pure.

use super::{
    look::{SeenDaemon, WantedPast},
    panels::{PanelFigures, newest},
};
use crate::{control::ServedStatus, failure::Failure, history::RingReply};

/// Milliseconds of a column, and what people call all of them.
const SPANS: [(u64, &str); 3] = [(1_000, "seconds"), (10_000, "10 seconds"), (60_000, "minutes")];

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopAction {
    Up,
    Down,
    First,
    Last,
    Longer,
    Shorter,
    Help,
    Back,
    Quit,
}

/// How the daemons are.
pub enum TopState {
    /// Nobody was asked yet.
    Looking,
    Seen,
    /// There was one, and there is none now.
    Gone,
    /// There is none.
    Nobody,
    Failed(Failure),
}

/// A volume in the list.
pub struct ListedVolume<'a> {
    pub served: &'a ServedStatus,
    pub version: &'a str,
    pub stopping: bool,
    newest: Option<&'a RingReply>,
    past: Option<&'a RingReply>,
}

impl<'a> ListedVolume<'a> {
    pub fn figures(&self) -> PanelFigures<'a> {
        PanelFigures { served: self.served, newest: self.newest, past: self.past }
    }

    /// The newest figure of a series.
    pub fn now(&self, series: &str) -> Option<f32> {
        newest(self.newest?.volumes.get(&self.served.name)?.get(series)?)
    }

    /// How it is, in one word or three.
    pub fn state(&self) -> &'static str {
        let status = &self.served.status;
        match status {
            _ if status.latched.is_some() => "STOPPED",
            _ if status.read_only => "read-only",
            _ if self.stopping => "stopping",
            _ if status.journal_waits.is_some() => "DISK FULL",
            _ if self.served.store_away_ms.is_some() => "STORE AWAY",
            _ if status.dirty_bytes == 0 => "clean",
            _ if self.served.paused_since_ms.is_some() => "paused",
            _ => "uploading",
        }
    }
}

/// What is shown.
pub struct TopView {
    pub state: TopState,
    pub help: bool,
    daemons: Vec<SeenDaemon>,
    /// By name, so that it is the same one when others come and go.
    selected: Option<String>,
    span: usize,
}

impl TopView {
    pub fn new() -> TopView {
        TopView { state: TopState::Looking, help: false, daemons: Vec::new(), selected: None, span: 0 }
    }

    /// Takes what was seen. What was seen last stays while nobody is there.
    pub fn see(&mut self, seen: Result<Vec<SeenDaemon>, Failure>) {
        match seen {
            Err(failure) => self.state = TopState::Failed(failure),
            Ok(daemons) if daemons.is_empty() => {
                self.state = match self.daemons.is_empty() {
                    true => TopState::Nobody,
                    false => TopState::Gone,
                }
            }
            Ok(daemons) => (self.daemons, self.state) = (daemons, TopState::Seen),
        }
    }

    /// All volumes, in the order of their names.
    pub fn volumes(&self) -> Vec<ListedVolume<'_>> {
        let mut all: Vec<ListedVolume<'_>> = self.daemons.iter().flat_map(list).collect();
        all.sort_by(|a, b| a.served.name.cmp(&b.served.name));
        all
    }

    pub fn daemons(&self) -> usize {
        self.daemons.len()
    }

    /// Which of the volumes is looked at.
    pub fn selected(&self) -> usize {
        let volumes = self.volumes();
        let is_it = |volume: &ListedVolume<'_>| Some(&volume.served.name) == self.selected.as_ref();
        volumes.iter().position(is_it).unwrap_or(0)
    }

    pub fn span_name(&self) -> &'static str {
        SPANS[self.span].1
    }

    /// The past that is to be asked for, where so many columns can be drawn.
    pub fn wanted(&self, columns: u64) -> WantedPast {
        let volumes = self.volumes();
        let volume = volumes.get(self.selected()).map(|volume| volume.served.name.clone());
        WantedPast { volume, step_ms: SPANS[self.span].0, columns }
    }

    /// Does what a key asks; false: it is over.
    pub fn act(&mut self, action: TopAction) -> bool {
        let (at, count) = (self.selected(), self.volumes().len());
        let to = match action {
            TopAction::Quit => return false,
            TopAction::Back if self.help => {
                self.help = false;
                return true;
            }
            TopAction::Back => return false,
            TopAction::Help => {
                self.help = !self.help;
                return true;
            }
            TopAction::Longer => {
                self.span = (self.span + 1).min(SPANS.len() - 1);
                return true;
            }
            TopAction::Shorter => {
                self.span = self.span.saturating_sub(1);
                return true;
            }
            TopAction::Up => at.saturating_sub(1),
            TopAction::Down => (at + 1).min(count.saturating_sub(1)),
            TopAction::First => 0,
            TopAction::Last => count.saturating_sub(1),
        };
        self.selected = self.volumes().get(to).map(|volume| volume.served.name.clone());
        true
    }
}

fn list(daemon: &SeenDaemon) -> Vec<ListedVolume<'_>> {
    let listed = |served| ListedVolume {
        served,
        version: &daemon.status.version,
        stopping: daemon.status.stopping,
        newest: daemon.newest.as_ref(),
        past: daemon.past.as_ref().filter(|past| past.volumes.contains_key(&served.name)),
    };
    daemon.status.volumes.iter().map(listed).collect()
}
