//! The checker on an engine whose bugs are known: the sound one passes, each bug is found.

use std::sync::Arc;

use cistern_sim::{
    plan::Theme,
    toy::{Bug, ToyEngine},
    world::Run,
};

/// Seeds within which a bug must be found.
const SEEDS_MAX: u64 = 150;

/// What the small engine is up to. It paces nobody, recognises no rotten journal and fetches nothing twice.
const THEMES: [Theme; 9] = [
    Theme::Crashes,
    Theme::TakeOvers,
    Theme::Outages,
    Theme::BadDisk,
    Theme::BadCache,
    Theme::Damage,
    Theme::Calm,
    Theme::Merges,
    Theme::Stragglers,
];

fn fails(seed: u64, theme: Theme, bug: Bug) -> Option<String> {
    Run { theme: Some(theme), ..Run::of(seed, Arc::new(ToyEngine(bug))) }.go().failure
}

fn must_find(theme: Theme, bug: Bug) {
    let found = (0..SEEDS_MAX).find_map(|seed| fails(seed, theme, bug).map(|why| (seed, why)));
    let (seed, why) = found.unwrap_or_else(|| panic!("{bug:?} is not found in {SEEDS_MAX} seeds"));
    println!("{bug:?}: seed {seed}: {why}");
}

/// A sound engine is not accused.
#[test]
fn no_false_alarm() {
    for seed in 0..8 {
        for theme in THEMES {
            assert_eq!(fails(seed, theme, Bug::None), None, "seed {seed}, {theme:?}");
        }
    }
}

/// Bugs of journal and recovery show after crashes.
#[test]
fn bugs_of_the_journal() {
    for bug in [
        Bug::FlushTooEarly,
        Bug::AcknowledgeTooEarly,
        Bug::ReplayBehindGap,
        Bug::TornReplay,
        Bug::ForgetZeroes,
        Bug::StaleReads,
    ] {
        must_find(Theme::Crashes, bug);
    }
}

/// Bugs of log and fence show when volumes move.
#[test]
fn bugs_of_the_log() {
    for bug in [Bug::DrainTooEarly, Bug::MergeStale, Bug::IgnoreFence] {
        must_find(Theme::TakeOvers, bug);
    }
}

/// A failed sync that is tried again shows when the disk fails.
#[test]
fn a_sync_that_is_tried_again() {
    must_find(Theme::BadDisk, Bug::RetrySync);
}
