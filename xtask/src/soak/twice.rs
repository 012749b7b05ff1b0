//! Two daemons that start at once over one state directory, which each sees by a mount of its own.

use anyhow::{Context, Result, ensure};
use cistern_harness::{serve::Cistern, stacked::Layer, twice::Twice};

/// Starts both so often over each kind of mount.
pub fn run(rounds: u64, cistern: &Cistern) -> Result<()> {
    for layer in Layer::ALL {
        let twice = Twice::new(layer, [cistern.clone(), cistern.clone()])?;
        let served = twice.start_both(rounds).with_context(|| format!("{layer:?}"))?;
        println!(
            "{layer:?}: {rounds} starts of two daemons at once; {served} times one of them served; nothing flushed is missing"
        );
        ensure!(served > 0, "{layer:?}: no daemon ever started\n{}", twice.daemons[0].log_tail());
    }
    Ok(())
}
