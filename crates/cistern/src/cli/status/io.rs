//! `cistern status --io`: what clients ask of the volumes, what that costs the store, and how fast.
//!
//! Asks the daemons for counters and, with --watch, again and again: what is shown then is the
//! difference. Nothing is kept in the daemon for it.

use std::{io::IsTerminal, time::Duration};

use futures_util::future::try_join_all;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    control::DaemonClient,
    failure::{Failure, Outcome},
    observe::Observed,
    terminal,
};

mod text;

/// The shortest interval: below, asking would be what is measured.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// What to show, and how often.
pub struct Io<'a> {
    pub daemons: &'a [DaemonClient],
    pub volume: Option<&'a str>,
    pub watch: Option<Duration>,
    pub histograms: bool,
    pub json: bool,
}

#[derive(Serialize)]
struct Shown<'a> {
    daemons: &'a [Observed],
}

impl Io<'_> {
    pub async fn run(&self) -> Outcome {
        let first = self.ask().await?;
        let Some(interval) = self.watch else { return self.show(&first, false) };
        let mut interrupt =
            signal(SignalKind::interrupt()).map_err(|e| Failure::io("cannot listen to signals", &e))?;
        tokio::select! {
            biased;
            _ = interrupt.recv() => Ok(()),
            failed = self.watch(first, interval.max(INTERVAL_MIN)) => failed,
        }
    }

    /// Shows what was since the beginning, and then every interval, until something fails.
    async fn watch(&self, mut last: Vec<Observed>, interval: Duration) -> Outcome {
        if std::io::stdout().is_terminal() && !self.json {
            terminal::clear()?;
        }
        self.show(&last, false)?;
        let mut clock = tokio::time::interval(interval);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        clock.tick().await; // the first is at once
        loop {
            clock.tick().await;
            let now = self.ask().await?;
            self.show(&since(&now, &last), true)?;
            last = now;
        }
    }

    async fn ask(&self) -> Outcome<Vec<Observed>> {
        let asked = self.daemons.iter().map(|daemon| daemon.observed());
        let mut observed: Vec<Observed> = try_join_all(asked).await?;
        if let Some(wanted) = self.volume {
            observed.iter_mut().for_each(|daemon| daemon.volumes.retain(|volume| volume.is(wanted)));
        }
        Ok(observed)
    }

    /// `rates`: this is an interval, not the time since the beginning.
    fn show(&self, observed: &[Observed], rates: bool) -> Outcome {
        let shown = Shown { daemons: observed };
        if self.json {
            return match self.watch {
                None => terminal::say_json(&shown),
                Some(_) => terminal::say_json_line(&shown),
            };
        }
        let detail = text::Detail { rates, histograms: self.histograms };
        let text = text::describe(observed, detail);
        match self.watch {
            Some(_) if std::io::stdout().is_terminal() => terminal::redraw(&text),
            Some(_) => terminal::say(text + "\n"),
            None => terminal::say(text),
        }
    }
}

/// The differences, daemon by daemon: the same ones are asked every time.
fn since(now: &[Observed], then: &[Observed]) -> Vec<Observed> {
    now.iter().zip(then).map(|(now, then)| now.since(then)).collect()
}
