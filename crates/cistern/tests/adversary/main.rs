//! Runs every verb that reads, lists or changes a store against every wrong answer of one. Each cell of that table ends in
//! bounded time and requests. A verb that succeeds has the right result; a verb that fails says why, and the volume is sound.
//!
//! By default a sample runs, in which an answer that is tried again is wrong a few times only. The whole table, with wrong
//! answers for as long as the verb runs, takes about 13 minutes and prints what docs/design/answers.md shows:
//!
//! ```text
//! CISTERN_ADVERSARY=table cargo test --workspace --test adversary -- --nocapture
//! ```
//!
//! `CISTERN_ADVERSARY=deep` gives the answers to requests for parts of the names only (the log, the map, ...), so that a verb gets
//! further before it meets one. `CISTERN_ADVERSARY_ONLY=BodyOther/export` runs only cells whose name contains the text.

mod rows;
mod verbs;
mod world;

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    adversary::{Adversary, AdverseAnswer, Switch},
    scratch::Scratch,
};
use rows::{Row, deep_rows, rows};
use verbs::{Cell, Ended, VERBS, Verb};
use world::world;

/// Names of a page: listings have several.
const PAGE_NAMES: usize = 3;
/// Cells at once: those that work, and those that wait.
const WORKING: usize = 3;
const WAITING: usize = 48;
/// Requests of one cell: a probe makes up to 11,000; a listing without end is given up after 1000 pages, and a verb begins eight of them at most.
const REQUESTS_MAX: u64 = 20_000;
/// How often a wrong answer is given in the sample, where it is tried again.
const PASSING: u32 = 2;
/// Of so many cells the sample takes one.
const SAMPLE: usize = 11;

/// Cells of every sample: what they show was wrong once.
const ALWAYS: &[&str] = &[
    "BodyFlipped/backup ls",
    "BodyFlipped/ls --trash",
    "BodyFlipped/ls PLACE",
    "DeletionVoid/rm --now",
    "EndClaimed/export",
    "EndClaimed/serve --read-only",
    "ListingVoid/check --space",
    "ListingVoid/info",
];

/// What came of a cell.
struct Outcome {
    row: usize,
    verb: usize,
    result: Result<Ended>,
    requests: u64,
    adverse: u64,
}

/// One cell of the table, in a store and directories of its own.
fn run(
    store: &Adversary,
    row: &Row,
    verb: &Verb,
    honest: Option<&str>,
    times: Option<u32>,
) -> (Result<Ended>, u64, u64) {
    let run = || {
        let scratch = Scratch::new("adversary-cell")?;
        verb.prepare(store);
        store.take_counts();
        match times {
            Some(times) => store.switch(row.switch().times(times)),
            None => store.switch(row.switch()),
        }
        verb.run(&Cell { store, dir: scratch.path().to_owned(), honest })
    };
    let result = run();
    store.honest();
    let counts = store.take_counts();
    (result, counts.total(), counts.adverse)
}

/// What each verb prints where nothing is wrong.
fn honest() -> Result<Vec<String>> {
    let store = Adversary::start()?;
    store.page_names(PAGE_NAMES);
    let outputs = VERBS.iter().map(|verb| {
        let scratch = Scratch::new("adversary-honest")?;
        verb.prepare(&store);
        let ended = verb.run(&Cell { store: &store, dir: scratch.path().to_owned(), honest: None });
        let ended = ended.with_context(|| format!("{}, of a correct store", verb.name))?;
        ensure!(verb.is_right(&ended), "{}, of a correct store: {ended:?}", verb.name);
        Ok(ended.stdout)
    });
    outputs.collect()
}

/// Runs cells, several at once.
fn run_all(rows: &[Row], cells: Vec<(usize, usize)>, outputs: &[String], times: Option<u32>) -> Vec<Outcome> {
    let outcomes = Mutex::new(Vec::new());
    let slow = |cell: &(usize, usize)| times.is_none() && rows[cell.0].is_retried();
    let (slow, fast): (Vec<_>, Vec<_>) = cells.into_iter().partition(slow);
    for (cells, workers) in [(fast, WORKING), (slow, WAITING)] {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..workers.min(cells.len()) {
                scope.spawn(|| {
                    let store = Adversary::start().expect("a port");
                    store.page_names(PAGE_NAMES);
                    while let Some(&(row, verb)) = cells.get(next.fetch_add(1, Relaxed)) {
                        let times = times.filter(|_| rows[row].is_retried());
                        let (result, requests, adverse) =
                            run(&store, &rows[row], &VERBS[verb], Some(&outputs[verb]), times);
                        let outcome = Outcome { row, verb, result, requests, adverse };
                        println!("{}", line(rows, &outcome));
                        outcomes.lock().expect("no panic").push(outcome);
                    }
                });
            }
        });
    }
    outcomes.into_inner().expect("no panic")
}

/// Columns of the table, and the verbs of each.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "`info`, `ls`, `backup ls`",
        &["info", "ls PLACE", "ls --trash", "ls VOLUME", "ls --space", "backup ls"],
    ),
    ("`check`", &["check", "check --data", "check --space", "check, damaged"]),
    (
        "`export`, `send`, `diff`, `backup verify`, reads of `serve`",
        &["export", "export CLONE", "export, damaged", "send", "diff", "backup verify", "serve --read-only"],
    ),
    (
        "`copy`, `receive`, `import`, `backup`, `backup restore`",
        &["copy", "copy, bucket", "receive", "import", "backup", "backup restore"],
    ),
    (
        "`create`, `clone`, `snapshot`, `rollback`, `resize`, `gc`, `serve`, ...",
        &[
            "create",
            "create, taken",
            "clone",
            "snapshot",
            "rm SNAPSHOT",
            "restore",
            "flatten",
            "rollback",
            "hold",
            "key change",
            "resize",
            "gc",
            "serve",
        ],
    ),
    ("`rm`", &["rm", "rm --now", "rm --expired"]),
    ("`probe`", &["probe"]),
];
/// From here on a command has tried again.
const TRIED_AGAIN: Duration = Duration::from_secs(20);

/// What came of a cell, in a word.
fn word(outcome: &Outcome) -> &'static str {
    match &outcome.result {
        Err(_) => "wrong",
        Ok(_) if outcome.adverse == 0 => "-",
        Ok(ended) if VERBS[outcome.verb].is_right(ended) => "right",
        Ok(ended) if ended.took >= TRIED_AGAIN => "gives up",
        Ok(_) => "refused",
    }
}

/// The table of docs/design/answers.md.
fn print_table(rows: &[Row], outcomes: &[Outcome]) {
    let heads: Vec<&str> = GROUPS.iter().map(|(head, _)| *head).collect();
    println!("| answer | {} |", heads.join(" | "));
    println!("|---{}|", "|---".repeat(heads.len()));
    for (number, row) in rows.iter().enumerate() {
        let cell = |verbs: &[&str]| {
            let of = outcomes.iter().filter(|o| o.row == number && verbs.contains(&VERBS[o.verb].name));
            let words: BTreeSet<&str> = of.map(word).collect();
            let asked: Vec<&str> = words.into_iter().filter(|word| *word != "-").collect();
            if asked.is_empty() { "-".to_owned() } else { asked.join(", ") }
        };
        let cells: Vec<String> = GROUPS.iter().map(|(_, verbs)| cell(verbs)).collect();
        println!("| {} | {} |", row.name, cells.join(" | "));
    }
}

/// One cell, as a person reads it who looks into it.
fn line(rows: &[Row], outcome: &Outcome) -> String {
    let (said, code, took) = match &outcome.result {
        Ok(ended) => (ended.said.clone(), ended.code, ended.took.as_secs()),
        Err(e) => (format!("{e:#}"), None, 0),
    };
    let code = code.map_or("?".to_owned(), |code| code.to_string());
    let (row, verb, word) = (&rows[outcome.row].name, VERBS[outcome.verb].name, word(outcome));
    let Outcome { requests, adverse, .. } = outcome;
    format!("{row} / {verb}: {word} ({code}, {took} s, {requests} requests, {adverse} adverse) {said}")
}

/// None of the cells ends well with a wrong result, panics, hangs, or asks without end.
#[test]
fn no_verb_believes_a_wrong_answer() -> Result<()> {
    world();
    let outputs = honest()?;
    let mode = std::env::var("CISTERN_ADVERSARY").unwrap_or_default();
    let only = std::env::var("CISTERN_ADVERSARY_ONLY").unwrap_or_default();
    let (rows, times, step) = match mode.as_str() {
        "table" => (rows(), None, 1),
        "deep" => (deep_rows(), None, 1),
        _ => (rows(), Some(PASSING), SAMPLE),
    };
    let all = (0..rows.len()).flat_map(|row| (0..VERBS.len()).map(move |verb| (row, verb)));
    let cells: Vec<_> = all
        .map(|(row, verb)| (row, verb, format!("{}/{}", rows[row].name, VERBS[verb].name)))
        .filter(|(row, verb, name)| (row * 5 + verb) % step == 0 || ALWAYS.contains(&name.as_str()))
        .filter(|(.., name)| name.contains(&only))
        .map(|(row, verb, _)| (row, verb))
        .collect();
    let outcomes = run_all(&rows, cells, &outputs, times);
    if mode == "table" {
        print_table(&rows, &outcomes);
    }
    let wrong: Vec<String> = outcomes
        .iter()
        .filter_map(|outcome| {
            let (row, verb) = (&rows[outcome.row], &VERBS[outcome.verb]);
            match &outcome.result {
                Err(e) if !row.is_believed_by(verb.name) => {
                    Some(format!("{} / {}: {e:#}", row.name, verb.name))
                }
                _ if outcome.requests > REQUESTS_MAX => {
                    Some(format!("{} / {}: {} requests", row.name, verb.name, outcome.requests))
                }
                _ => None,
            }
        })
        .collect();
    ensure!(wrong.is_empty(), "{} of {} cells:\n{}", wrong.len(), outcomes.len(), wrong.join("\n"));
    Ok(())
}

/// A store that lets two of 16 racing writers win is refused, and one that lets no two win is accepted (`honest` shows that too).
#[test]
fn a_store_that_breaks_a_race_is_refused() -> Result<()> {
    let scratch = Scratch::new("adversary-race")?;
    let store = Adversary::start()?;
    let cistern = world::cistern(&store, scratch.path());
    let probe = ["probe", "s3://adverse/tank"];
    cistern.run(&probe)?;
    store.take_counts();
    store.switch(Switch::every(AdverseAnswer::RaceBroken(1)));
    let (output, code) = cistern.run_failing(&probe)?;
    ensure!(code == 7 && output.stderr.contains("put-if-absent, raced"), "{code}: {}", output.stderr);
    let counts = store.take_counts();
    ensure!(counts.races_broken >= 1, "{counts:?}");
    ensure!(store.objects().is_empty(), "the probe left {:?}", store.objects().keys());
    Ok(())
}
