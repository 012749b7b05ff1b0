//! Hundreds of kills under a client that reconnects by itself, as QEMU, nbdkit and programs with libnbd do: what was acknowledged is there,
//! without a FLUSH before the kill.

use anyhow::{Result, ensure};
use cistern_harness::{scratch::Scratch, serve::Cistern, stays};

/// Requests in flight, in turn.
const DEPTHS: [usize; 3] = [1, 32, 128];

pub fn run(kills: u64, seed: u64, cistern: &Cistern, scratch: &Scratch) -> Result<()> {
    let url = scratch.file("tank").display().to_string();
    let arguments = ["--create", "64M", "--journal-size", "64M", "--cache-size", "64M"];
    let serve = cistern.serve(scratch, url).args(arguments);
    let seen = stays::kill_under_a_client_that_stays(&serve, kills, &DEPTHS, seed)?;
    println!(
        "{} kills, {} acknowledgements, {} blocks older than acknowledged",
        seen.kills,
        seen.acknowledged,
        seen.lost.len()
    );
    seen.lost.iter().for_each(|lost| println!("{lost}"));
    ensure!(seen.lost.is_empty(), "what was acknowledged is gone");
    Ok(())
}
