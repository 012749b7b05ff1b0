//! `cistern-sim`: runs seeds, and replays one that failed.

#![forbid(unsafe_code)]

use std::{ops::Range, process::ExitCode, sync::Arc};

use cistern_sim::{
    device::{Engine, RealEngine},
    plan::Theme,
    runtime::Outcome,
    toy::{Bug, ToyEngine},
    world::Run,
};
use clap::Parser;

/// Runs the engine in a simulated world and checks every promise.
#[derive(Parser)]
struct Args {
    /// Seeds to run, `FIRST..END`.
    #[arg(long, value_parser = parse_range, default_value = "0..100")]
    seeds: Range<u64>,
    /// Runs this seed alone.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints every event as it happens.
    #[arg(long)]
    trace: bool,
    /// Runs each seed twice and compares the histories.
    #[arg(long)]
    twice: bool,
    /// Forces the kind of trouble.
    #[arg(long, value_parser = parse_theme)]
    theme: Option<Theme>,
    /// Runs the small engine that tests the checker instead of the real one.
    #[arg(long)]
    toy: bool,
    /// Goes on after a failure.
    #[arg(long)]
    keep_going: bool,
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let (first, end) = text.split_once("..").ok_or("expected FIRST..END")?;
    let number = |t: &str| t.parse::<u64>().map_err(|e| e.to_string());
    Ok(number(first)?..number(end)?)
}

fn parse_theme(text: &str) -> Result<Theme, String> {
    Theme::ALL.into_iter().find(|t| t.name() == text).ok_or_else(|| {
        let names: Vec<&str> = Theme::ALL.iter().map(Theme::name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

impl Args {
    fn run(&self, seed: u64) -> Outcome {
        let engine: Arc<dyn Engine> =
            if self.toy { Arc::new(ToyEngine(Bug::None)) } else { Arc::new(RealEngine) };
        let run = Run { theme: self.theme, live: self.trace, ..Run::of(seed, engine) };
        let mut outcome = run.go();
        if self.twice && outcome.failure.is_none() {
            let again = run.go();
            if again.history != outcome.history {
                outcome.failure = Some("two runs of one seed went different ways".into());
            }
        }
        outcome
    }

    /// The command that replays a seed.
    fn replay(&self, seed: u64) -> String {
        let toy = if self.toy { " --toy" } else { "" };
        let theme = self.theme.map_or_else(String::new, |t| format!(" --theme {}", t.name()));
        format!("cargo run -p cistern-sim -- --seed {seed}{theme}{toy} --trace")
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.trace {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .without_time()
            .with_writer(std::io::stderr)
            .init();
    }
    let seeds = args.seed.map_or_else(|| args.seeds.clone(), |seed| seed..seed + 1);
    let (mut failed, count) = (Vec::new(), seeds.end - seeds.start);
    for seed in seeds {
        let outcome = args.run(seed);
        match &outcome.failure {
            None => println!(
                "seed {seed}: ok, history {:016x}, {} polls, {} s of virtual time",
                outcome.history,
                outcome.polls,
                outcome.virtual_time.as_secs()
            ),
            Some(why) => {
                if !args.trace && !args.keep_going {
                    outcome.tail.iter().for_each(|line| println!("{line}"));
                }
                println!("seed {seed}: FAILED: {why}\n  replay: {}", args.replay(seed));
                failed.push(seed);
                if !args.keep_going {
                    break;
                }
            }
        }
    }
    println!("{count} seeds, failed: {failed:?}");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
