//! Somebody who asks for collections of garbage, and for blocks side by side, while clients work.

use std::{sync::Arc, time::Duration};

use cistern_engine::{Error, volume::Collect};

use super::{Line, Mood};
use crate::{device::Device, plan::Theme};

/// The longest time between two demands.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Demands of one life.
const DEMANDS_MAX: u64 = 12;
/// Steps of letting go at once.
const LET_GO_STEPS_MAX: u64 = 12;

/// Asks now and then, and expects an answer to everything.
pub async fn collect(line: Arc<Line>, device: Arc<dyn Device>) {
    for _ in 0..line.sim.range(0, DEMANDS_MAX) {
        line.sim.sleep(line.sim.time(Duration::ZERO, PAUSE_MAX)).await;
        let what = draw(&line, device.size_bytes());
        line.sim.note(format_args!("collection: {what:?}"));
        let done = match what {
            Collect::LetGo => let_go(&line, &*device).await,
            what => device.collect(what).await.map(drop),
        };
        match done {
            Ok(()) => {}
            // The volume has become smaller, or is paused; or a snapshot is of before it was flattened.
            Err(Error::Invalid(_)) => {}
            Err(error) => match line.complain("a collection", &error) {
                Mood::Content => {}
                Mood::Done => return,
            },
        }
    }
}

/// Steps on the way to needing nothing of other volumes; and what was kept for clones that need nothing is let go of.
async fn let_go(line: &Line, device: &dyn Device) -> Result<(), Error> {
    device.forget_removed_clones().await?;
    for _ in 0..line.sim.range(0, LET_GO_STEPS_MAX) {
        device.collect(Collect::LetGo).await?;
    }
    Ok(())
}

fn draw(line: &Line, size_bytes: u64) -> Collect {
    let kinds = if matches!(line.plan.theme, Theme::ClonedVolumes | Theme::RolledBack) { 5 } else { 3 };
    match line.sim.range(0, kinds) {
        0 => Collect::Retire,
        1 => Collect::Clean { ratio: 1.0 + line.sim.range(0, 3) as f64 / 10.0 },
        3 => Collect::Adopt { offset: 0, len: size_bytes },
        4 => Collect::LetGo,
        _ => {
            let offset = line.sim.range(0, size_bytes.max(1));
            Collect::Defragment { offset, len: line.sim.range(0, size_bytes - offset + 1) }
        }
    }
}
