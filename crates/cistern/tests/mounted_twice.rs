//! A state directory that is mounted twice, by file systems that know nothing of each other's locks: two daemons may find it free at the
//! same time. Only one of them writes its journal, and nothing that was flushed is lost.
//!
//! Needs root, for namespaces of their own, and FUSE.

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    scratch::Scratch,
    serve::Cistern,
    stacked::Layer,
    twice::{Twice, holds, write},
};

fn cistern() -> Cistern {
    Cistern::under_test(env!("CARGO_BIN_EXE_cistern"))
}

/// A second daemon is refused while the first one runs, though its lock is free; it starts once the first one was killed, and has what was
/// flushed to that.
#[test]
fn a_second_daemon_is_refused_and_then_goes_on() -> Result<()> {
    let twice = Twice::new(Layer::Sshfs, [cistern(), cistern()])?;
    let [first, second] = &twice.daemons;
    let server = first.start()?;
    write(&server, 0)?;
    let said = second.start_failing()?;
    ensure!(said.contains("is in use by another process"), "{said}");
    write(&server, 1)?;
    server.kill();
    let server = second.start()?;
    ensure!(holds(&server, 0)? && holds(&server, 1)?, "flushed, and gone");
    server.stop()
}

/// Both start at the same moment, again and again: never more than one is ready, and what it is told to flush stays.
#[test]
fn of_two_that_start_at_once_one_goes_on() -> Result<()> {
    const ROUNDS: u64 = 4;
    let twice = Twice::new(Layer::Sshfs, [cistern(), cistern()])?;
    let served = twice.start_both(ROUNDS)?;
    ensure!(served > 0, "none of {ROUNDS} starts succeeded\n{}", twice.daemons[0].log_tail());
    Ok(())
}

/// On a file system that takes O_DIRECT for reading alone (mergerfs) the journal goes through the page cache, and what was flushed survives a
/// kill all the same, seen by another mount too.
#[test]
fn a_journal_where_writes_past_the_page_cache_are_refused() -> Result<()> {
    let twice = Twice::new(Layer::Mergerfs, [cistern(), cistern()])?;
    let [first, second] = &twice.daemons;
    let server = first.start()?;
    write(&server, 0)?;
    let said = second.start_failing()?;
    ensure!(said.contains("is in use by another process"), "{said}");
    write(&server, 1)?;
    ensure!(server.log().contains("has no O_DIRECT"), "mergerfs takes it by now: {}", server.log_tail());
    server.kill();
    let server = second.start()?;
    ensure!(holds(&server, 0)? && holds(&server, 1)?, "flushed, and gone");
    server.stop()
}

/// A daemon that cannot see the first one, which rests, takes the journal: the first one acknowledges nothing any more, and nothing that
/// either of them had flushed is lost.
#[test]
fn one_that_rests_loses_the_journal_and_no_data() -> Result<()> {
    let place = Scratch::new("hidden")?;
    let twice = Twice::new(Layer::Sshfs, [cistern(), cistern().hidden(&place)?])?;
    let [first, second] = &twice.daemons;
    let resting = first.start()?;
    write(&resting, 0)?;
    // The first one is at work for some seconds yet, bringing its journal to rest.
    let taking = (0..10).find_map(|_| second.start().ok()).context(second.log_tail())?;
    ensure!(holds(&taking, 0)?, "flushed to the first, and gone");
    write(&taking, 1)?;
    ensure!(write(&resting, 2).is_err(), "two daemons write one journal");
    ensure!(resting.log().contains("opened by process"), "{}", resting.log_tail());
    write(&taking, 3)?;
    drop(resting);
    taking.kill();
    let server = first.start()?;
    for block in [0, 1, 3] {
        ensure!(holds(&server, block)?, "block {block} was flushed, and is gone");
    }
    server.stop()
}
