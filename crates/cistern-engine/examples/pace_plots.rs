//! Writes the plots of `docs/design/writeback.md`: how the controllers of write-back and pacing
//! behave in a model. A test compares them with what is committed.

#[path = "../tests/pace_support/mod.rs"]
mod pace_support;

use std::path::Path;

use pace_support::{SCENARIOS, run, svg::draw};

fn main() -> std::io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/writeback");
    std::fs::create_dir_all(&directory)?;
    for scenario in SCENARIOS {
        std::fs::write(directory.join(format!("{}.svg", scenario.name)), draw(scenario, &run(scenario)))?;
    }
    Ok(())
}
