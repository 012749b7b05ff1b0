//! `cistern gc`: collect garbage now, or put a volume in order, or say what either would take.
//!
//! Works in steps that a daemon does, or this process where nobody serves the volume: whoever interrupts it has stopped
//! it, and what was moved stays moved.

use cistern_engine::{
    space::SPACE_BOUND,
    volume::{Collect, CollectPlan, SpaceStatus, admin, plan_collection},
};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Context, worker::Worker},
    config::{KeySettings, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    prices::{CollectionCost, Prices, StorePrices},
    quantity::{ByteRange, ByteSize, SpaceBound, Thousands, money},
    secret,
    signals::{EndAtOnce, Signals},
    terminal::{self, Progress},
};

const BLOCK: u64 = cistern_engine::units::BLOCK_BYTES as u64;

/// Collect garbage now, or put a volume in order
///
/// While a volume is served, its daemon keeps it within --space-bound by itself: this is for less, or at once, or for a
/// volume that nobody serves. What is freed is deleted after the grace (`serve --grace`), while the volume is served.
/// Ctrl-C stops it, and what was moved stays moved.
#[derive(Args)]
pub(super) struct Gc {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Say what would be moved and freed, and what that takes, from what the store says; change nothing
    #[arg(long)]
    dry_run: bool,

    /// How much may be left: stored bytes per live byte, like 1.1. Without it, the bound that the volume is served with,
    /// or 1.3
    #[arg(long, value_name = "RATIO", conflicts_with = "defragment", value_parser = ratio_to_reach)]
    to: Option<f64>,

    /// Write the blocks of a range side by side, so that it is read in long strides: all of the volume, or FROM-TO like
    /// 0-10G, or FROM+LENGTH. Blocks that are in order are left alone
    #[arg(long, value_name = "RANGE", num_args = 0..=1, default_missing_value = "all", value_parser = part)]
    defragment: Option<Part>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// A part of a volume, or all of it.
#[derive(Clone, Copy, Debug)]
enum Part {
    All,
    Range(ByteRange),
}

fn ratio_to_reach(text: &str) -> Result<f64, String> {
    let bound: SpaceBound = text.parse()?;
    bound.ratio().ok_or_else(|| format!("'{text}' says no ratio to collect to: write one, like 1.1"))
}

fn part(text: &str) -> Result<Part, String> {
    match text {
        "all" => Ok(Part::All),
        range => range.parse().map(Part::Range),
    }
}

impl Part {
    /// Offset and length.
    fn within(self, volume: &VolumeUrl, size_bytes: u64) -> Outcome<(u64, u64)> {
        match self {
            Part::All => Ok((0, size_bytes)),
            Part::Range(range) => range.within(&volume.name, size_bytes),
        }
    }
}

/// What was done.
#[derive(Serialize)]
struct Report {
    volume: String,
    moved_bytes: u64,
    /// Of which nothing was live any more, after moving.
    vacated_segments: u64,
    before: SpaceStatus,
    after: SpaceStatus,
}

/// What would be done, and what that costs.
#[derive(Serialize)]
struct Planned {
    #[serde(flatten)]
    plan: CollectPlan,
    cost: CollectionCost,
    prices: StorePrices,
}

impl Gc {
    pub async fn run(self, context: &Context) -> Outcome {
        let at_once = EndAtOnce::listen()?;
        if self.dry_run {
            return self.plan(context).await;
        }
        let (worker, served) = Worker::open(context, &self.volume, &self.state, &self.key).await?;
        // From here on there may be something to close.
        let mut signals = Signals::listen()?;
        drop(at_once);
        let done = tokio::select! {
            biased;
            () = signals.next() => Err(interrupted()),
            done = self.collect(&worker, served.size_bytes, served.bound) => done,
        };
        let done = worker.close(done).await;
        let report = done?;
        match self.json {
            true => terminal::say_json(&report),
            false => terminal::say(describe(&report)),
        }
    }

    fn what(&self, size_bytes: u64, bound: Option<f64>) -> Outcome<Collect> {
        match self.defragment {
            Some(part) => {
                let (offset, len) = part.within(&self.volume, size_bytes)?;
                Ok(Collect::Defragment { offset, len })
            }
            None => Ok(Collect::Clean { ratio: self.to.or(bound).unwrap_or(SPACE_BOUND) }),
        }
    }

    /// What died becomes known first; what was freed is retired in the end.
    async fn collect(&self, worker: &Worker, size_bytes: u64, bound: Option<f64>) -> Outcome<Report> {
        let mut what = self.what(size_bytes, bound)?;
        let progress = Progress::spinning("finding out what is dead");
        let mut steps = worker.steps(&progress);
        steps.step(Collect::Retire).await?;
        let before = worker.space().await?;
        let (mut moved_bytes, mut vacated_segments, mut last_retired) = (0, 0, 0);
        loop {
            let step = steps.step(what).await?;
            (moved_bytes, vacated_segments) =
                (moved_bytes + step.moved_bytes, vacated_segments + step.vacated_segments);
            let Some(next) = step.next else {
                progress.message("retiring what is free".to_owned());
                steps.step(Collect::Retire).await?;
                // What that has found out may leave more to do.
                match std::mem::replace(&mut last_retired, vacated_segments) < vacated_segments {
                    true => continue,
                    false => break,
                }
            };
            let moved = ByteSize(moved_bytes);
            match &mut what {
                Collect::Defragment { offset, len } => {
                    let end = *offset + *len;
                    (*offset, *len) = (next, end - next);
                    let (at, end) = (ByteSize(next), ByteSize(end));
                    progress.message(format!("putting in order: {at} of {end}, {moved} moved"));
                }
                _ => {
                    progress.message(format!("collecting: {moved} moved, {vacated_segments} segments freed"));
                }
            }
        }
        let after = worker.space().await?;
        Ok(Report { volume: self.volume.name.clone(), moved_bytes, vacated_segments, before, after })
    }

    async fn plan(&self, context: &Context) -> Outcome {
        let prices = Prices::load(&context.file.prices.clone().unwrap_or_default())?.of(&self.volume.url);
        let open = self.volume.open(&context.env, COMMAND_PATIENCE).await?;
        let key = self.key.clone().or(&context.file);
        let known = secret::unlocking(&key, &self.volume.name, |key| {
            let (env, store) = (&context.env, &open.store);
            async move { admin::info(env, store, &key).await }
        });
        let (info, key) = known.await.map_err(|failure| failure.context(&self.volume.url))?;
        let size_bytes = info.state.map_or(0, |state| state.size_bytes);
        let what = self.what(size_bytes, context.file.space_bound.and_then(SpaceBound::ratio))?;
        let progress = Progress::counting("blocks");
        let show = |done, of| progress.set(done, of);
        let planned = plan_collection(&context.env, &open.stores, &key, what, &show).await;
        drop(progress);
        let plan = planned.map_err(|e| self.volume.explain(e))?;
        let cost = prices.collection(&plan);
        let plan = Planned { plan, cost, prices };
        match self.json {
            true => terminal::say_json(&plan),
            false => terminal::say(describe_plan(&self.volume.name, &plan)),
        }
    }
}

fn interrupted() -> Failure {
    Failure::new(Kind::Interrupted, "interrupted; what was moved stays moved, and nothing is lost")
}

fn ratio(stored_bytes: u64, live_bytes: u64) -> String {
    match live_bytes {
        0 => "nothing is live".to_owned(),
        live => format!("{:.2} stored per live byte", stored_bytes as f64 / live as f64),
    }
}

fn describe_plan(name: &str, planned: &Planned) -> String {
    let Planned { plan, cost, prices } = planned;
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let row = |what: &str, text: String| vec![what.to_owned(), text];
    let rows = [
        row(
            "now",
            format!(
                "{} in {} segments, {}",
                size(plan.stored_bytes),
                Thousands(plan.segments),
                ratio(plan.stored_bytes, plan.live_bytes)
            ),
        ),
        row(
            "unread",
            format!(
                "{} segments of which nothing is live, {}",
                Thousands(plan.dead_segments),
                size(plan.dead_bytes)
            ),
        ),
        row(
            "moved",
            match plan.victims {
                0 => size(plan.moved_blocks * BLOCK),
                n => format!(
                    "{} out of {} segments of {}",
                    size(plan.moved_blocks * BLOCK),
                    Thousands(n),
                    size(plan.victim_bytes)
                ),
            },
        ),
        row(
            "takes",
            format!(
                "{} GET of {}, {} PUT of {}",
                Thousands(plan.gets),
                size(plan.fetched_bytes),
                Thousands(plan.puts),
                size(plan.put_bytes)
            ),
        ),
        row(
            "costs",
            format!(
                "{} {} for requests and transfer; what is stored then costs {} a month, now {} (prices of {}, {})",
                money(cost.once),
                cost.currency,
                money(cost.rent_after),
                money(cost.rent_now),
                prices.kind,
                prices.how.explain()
            ),
        ),
        row("then", format!("{}, {}", size(plan.after_bytes), ratio(plan.after_bytes, plan.live_bytes))),
    ];
    format!("{name}: nothing was changed\n{}", terminal::table(&rows))
}

fn describe(report: &Report) -> String {
    let Report { volume, moved_bytes, vacated_segments, before, after } = report;
    let shown = |space: &SpaceStatus| match (&space.segments, space.ratio) {
        (Some(known), Some(ratio)) => format!("{} ({ratio:.2} per live byte)", ByteSize(known.stored_bytes)),
        (Some(known), None) => ByteSize(known.stored_bytes).to_string(),
        (None, _) => "unknown".to_owned(),
    };
    let (moved, grace) = (ByteSize(*moved_bytes), ByteSize(after.grace_bytes));
    let (before, after) = (shown(before), shown(after));
    format!(
        "{volume}: {moved} moved, {vacated_segments} segments freed; {before} -> {after}, {grace} in grace: deleted when it \
         is over, while the volume is served"
    )
}
