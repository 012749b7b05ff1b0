//! `cistern top`: what the volumes of this host do, on a terminal, as it happens.

use std::io::IsTerminal;

use clap::Args;
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use tokio::sync::{mpsc, watch};

use crate::{
    cli::Context,
    config::StateSettings,
    failure::{Failure, Outcome},
    signals::Signals,
};

mod draw;
mod look;
mod panels;
mod view;

use view::{TopAction, TopView};

/// Watch the volumes that are served on this host: are they safe, how fast, how full, at what price
///
/// On a terminal, as `cistern status --io --watch` elsewhere. A list of all volumes of all daemons, and ten panels of one of them, with its past as far back as its daemon remembers:
/// dirty bytes, throughput, requests, latencies, journal, cache, space, money, the store, snapshots. Needs 80 x 24 cells.
///
/// Keys: up and down for another volume, left and right for longer columns of time, ? for help, q to end. Where NO_COLOR is set it is without
/// colours; nothing is told by colour alone.
#[derive(Args)]
pub(super) struct Top {
    #[command(flatten)]
    state: StateSettings,
}

/// The terminal while it is ours. It is as before when this is dropped, and after a panic.
struct OwnedTerminal(DefaultTerminal);

impl OwnedTerminal {
    fn take() -> Outcome<OwnedTerminal> {
        let taken = ratatui::try_init();
        taken.map(OwnedTerminal).map_err(|e| Failure::io("cannot draw on this terminal", &e))
    }
}

impl Drop for OwnedTerminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl Top {
    pub async fn run(self, context: &Context) -> Outcome {
        if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            let failure = Failure::usage("`cistern top` draws on a terminal, and this is none");
            return Err(failure
                .hint("`cistern status --io --watch` tells the same in lines, with --json to programs"));
        }
        let state_dir = self.state.clone().resolve(&context.file)?;
        let coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut signals = Signals::listen()?;
        let mut terminal = OwnedTerminal::take()?;
        let mut view = TopView::new();
        let (want, wanted) = watch::channel(view.wanted(0));
        let (tell, mut seen) = mpsc::channel(1);
        let looking = look::keep_looking(&state_dir, wanted, tell);
        let shown = async {
            let mut events = EventStream::new();
            loop {
                let drawn = terminal.0.draw(|frame| draw::draw(frame, &view, coloured));
                let width = drawn.map_err(|e| Failure::io("cannot draw", &e))?.area.width;
                let next = view.wanted(draw::columns(width));
                want.send_if_modified(|old| {
                    let is_new = *old != next;
                    *old = next;
                    is_new
                });
                tokio::select! {
                    biased;
                    () = signals.next() => return Ok(()),
                    event = events.next() => match event {
                        Some(Ok(event)) => if !action(&event).is_none_or(|action| view.act(action)) {
                            return Ok(());
                        },
                        Some(Err(e)) => return Err(Failure::io("cannot read keys", &e)),
                        None => return Ok(()), // the terminal is gone
                    },
                    Some(seen) = seen.recv() => view.see(seen),
                }
            }
        };
        tokio::select! {
            shown = shown => shown,
            () = looking => unreachable!("it ends when nobody listens"),
        }
    }
}

/// What a key means here.
fn action(event: &Event) -> Option<TopAction> {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
        return None; // a resize is seen when it is drawn again
    };
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => TopAction::Quit,
        KeyCode::Char('q') => TopAction::Quit,
        KeyCode::Esc => TopAction::Back,
        KeyCode::Char('?') => TopAction::Help,
        KeyCode::Up | KeyCode::Char('k') => TopAction::Up,
        KeyCode::Down | KeyCode::Char('j') => TopAction::Down,
        KeyCode::Home => TopAction::First,
        KeyCode::End => TopAction::Last,
        KeyCode::Right | KeyCode::Char('l') => TopAction::Longer,
        KeyCode::Left | KeyCode::Char('h') => TopAction::Shorter,
        _ => return None,
    })
}
