//! `cistern diff`: what was written or discarded between two states of a volume.

use cistern_engine::volume::{ChangedRange, RangeKind, Volume};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Context, snapshots},
    config::{KeySettings, StateSettings},
    failure::{Failure, Outcome},
    place::{SnapshotUrl, StateUrl, snapshot_url, state_url},
    quantity::ByteSize,
    terminal,
};

/// Show what was written or discarded since a snapshot
///
/// Compares the snapshot with a later one of the same volume, or with the newest state that is in the store, by their maps alone: no data is
/// read, and of the maps only the parts in which something changed. A range that was written with what it held before counts as
/// written. Ctrl-C at any time: nothing is changed.
#[derive(Args)]
pub(super) struct Diff {
    /// URL of the volume, @, and the name of the older snapshot
    #[arg(value_name = "URL@NAME", value_parser = snapshot_url)]
    from: SnapshotUrl,

    /// The later one; without it, the newest state in the store
    #[arg(value_name = "URL[@NAME]", value_parser = state_url)]
    to: Option<StateUrl>,

    /// Print the result as JSON: the ranges, and then the totals
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// Bytes of all ranges, by what became of them.
#[derive(Clone, Copy, Default, Serialize)]
struct Totals {
    ranges: u64,
    /// Hold data now.
    data_bytes: u64,
    /// Were zeroed, and stay allocated.
    zero_bytes: u64,
    /// Were discarded.
    hole_bytes: u64,
    /// Of the volume then and now.
    from_size_bytes: u64,
    to_size_bytes: u64,
}

impl Totals {
    fn add(&mut self, change: &ChangedRange) {
        self.ranges += 1;
        *match change.kind {
            RangeKind::Data => &mut self.data_bytes,
            RangeKind::Zero => &mut self.zero_bytes,
            RangeKind::Hole => &mut self.hole_bytes,
        } += change.len;
    }
}

/// The state that is looked at, and the older one: its position, and itself if it does not lead there.
struct Compared<'a> {
    to: &'a Volume,
    since: u64,
    aside: Option<&'a Volume>,
}

impl Diff {
    pub async fn run(self, context: &Context) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let snapshot = self.to.as_ref().and_then(|to| to.snapshot.as_deref());
        if let Some(to) = self.to.as_ref().filter(|to| to.volume.url != self.from.volume.url) {
            let (from, to) = (&self.from.volume.url, &to.volume.url);
            return Err(Failure::usage(format!(
                "{from} and {to} are different volumes: nothing is known in common"
            )));
        }
        let to = snapshots::open(context, &settings, &self.from.volume, snapshot).await?;
        let all = to.known_snapshots().map_err(|e| self.from.volume.explain(e))?;
        let find = |name: &str| all.iter().find(|snapshot| snapshot.name == name);
        let Some(from) = find(&self.from.name) else {
            // Says what is wrong with it.
            snapshots::open(context, &settings, &self.from.volume, Some(&self.from.name)).await?;
            return Err(Failure::usage(format!("{} was made just now: ask again", self.from)));
        };
        let since = from.at.unwrap_or(u64::MAX);
        if let Some(later) = snapshot.and_then(find).filter(|to| to.at.is_some_and(|at| at < since)) {
            let (from, to) = (&self.from.name, &later.name);
            let failure = Failure::usage(format!("{to} is older than {from}"));
            return Err(failure.hint("give the older one first"));
        }
        let mut totals =
            Totals { from_size_bytes: from.size_bytes, to_size_bytes: to.size_bytes(), ..Totals::default() };
        // A rollback left the one, and the other goes on from before it.
        let aside = match to.goes_on_from(since) {
            true => None,
            false => {
                Some(snapshots::open(context, &settings, &self.from.volume, Some(&self.from.name)).await?)
            }
        };
        let states = Compared { to: &to, since, aside: aside.as_deref() };
        match self.json {
            true => self.say_json(states, &mut totals).await,
            false => self.say(states, &mut totals).await,
        }
    }

    async fn say(&self, states: Compared<'_>, totals: &mut Totals) -> Outcome {
        let progress = terminal::Progress::counting("bytes");
        let mut said_header = false;
        let tell = |change: &ChangedRange| -> Outcome {
            totals.add(change);
            if !std::mem::replace(&mut said_header, true) {
                terminal::say(format!("{:>20}  {:>16}  KIND", "OFFSET", "LENGTH"))?;
            }
            let ChangedRange { offset, len, kind } = *change;
            terminal::say(format!("{offset:>20}  {len:>16}  {}", name(kind)))
        };
        states.to.changes_since(states.since, states.aside, tell, &|done, of| progress.set(done, of)).await?;
        drop(progress);
        let Totals { ranges, data_bytes, zero_bytes, hole_bytes, from_size_bytes, to_size_bytes } = *totals;
        let [data, zero, hole] = [data_bytes, zero_bytes, hole_bytes].map(ByteSize);
        terminal::remark(format!("{ranges} ranges: {data} written, {zero} zeroed, {hole} discarded"));
        if from_size_bytes != to_size_bytes {
            let (from, to) = (ByteSize(from_size_bytes), ByteSize(to_size_bytes));
            terminal::remark(format!("the volume had {from}, and has {to}"));
        }
        Ok(())
    }

    /// Range by range: there may be more than fit into memory.
    async fn say_json(&self, states: Compared<'_>, totals: &mut Totals) -> Outcome {
        let progress = terminal::Progress::counting("bytes");
        let mut comma = "";
        terminal::say("{\"ranges\": [")?;
        let tell = |change: &ChangedRange| -> Outcome {
            totals.add(change);
            let range = serde_json::to_string(change).expect("plain fields always serialize");
            terminal::say(format!("{}{range}", std::mem::replace(&mut comma, ",")))
        };
        states.to.changes_since(states.since, states.aside, tell, &|done, of| progress.set(done, of)).await?;
        let totals = serde_json::to_string(totals).expect("plain fields always serialize");
        terminal::say(format!("], \"totals\": {totals}}}"))
    }
}

fn name(kind: RangeKind) -> &'static str {
    match kind {
        RangeKind::Data => "data",
        RangeKind::Zero => "zero",
        RangeKind::Hole => "hole",
    }
}
