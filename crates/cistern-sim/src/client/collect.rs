//! Somebody who asks for collections of garbage, and for blocks side by side, while clients work.

use std::{sync::Arc, time::Duration};

use cistern_engine::{Error, volume::Collect};

use super::{Line, Mood};
use crate::device::Device;

/// The longest time between two demands.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Demands of one life.
const DEMANDS_MAX: u64 = 12;

/// Asks now and then, and expects an answer to everything.
pub async fn collect(line: Arc<Line>, device: Arc<dyn Device>) {
    for _ in 0..line.sim.range(0, DEMANDS_MAX) {
        line.sim.sleep(line.sim.time(Duration::ZERO, PAUSE_MAX)).await;
        let what = draw(&line, device.size_bytes());
        line.sim.note(format_args!("collection: {what:?}"));
        match device.collect(what).await {
            Ok(_) => {}
            // The volume has become smaller, or is paused.
            Err(Error::Invalid(_)) => {}
            Err(error) => match line.complain("a collection", &error) {
                Mood::Content => {}
                Mood::Done => return,
            },
        }
    }
}

fn draw(line: &Line, size_bytes: u64) -> Collect {
    match line.sim.range(0, 3) {
        0 => Collect::Retire,
        1 => Collect::Clean { ratio: 1.0 + line.sim.range(0, 3) as f64 / 10.0 },
        _ => {
            let offset = line.sim.range(0, size_bytes.max(1));
            Collect::Defragment { offset, len: line.sim.range(0, size_bytes - offset + 1) }
        }
    }
}
