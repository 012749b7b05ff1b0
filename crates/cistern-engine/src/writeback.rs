//! Write-back: journal ranges become segments, which are offered to the log.
//!
//! Owns the decision when to seal and what. Only durable journal positions are packed, so a crash never finds the
//! store ahead of the journal. Never decides what is dirty, and never commits: the log does
//! ([`crate::log::Publisher`]). What is dirty, the journal knows ([`Journal::dirty_blocks`]).

mod age;
mod bases;
pub mod budget;
mod control;
mod flow;
mod loads;
mod overtake;
mod pack;
pub mod pi;
pub mod policy;
mod range;

use std::sync::Arc;

pub use bases::Bases;
pub use control::{Control, ControlShown, LEFT_BY_DATA, Tuning};
pub use loads::Loads;

use crate::{
    codec::Compression,
    courtesy::Courtesy,
    env::{Env, Running},
    journal::Journal,
    log::{LogWriter, Offerer},
    units::Mark,
};

/// A running write-back.
pub struct WriteBack {
    flow: Running,
}

/// What a write-back works with.
pub struct WritebackParts {
    pub env: Env,
    pub journal: Arc<Journal>,
    /// Among those who use the journal's file system.
    pub courtesy: Arc<Courtesy>,
    /// What sectors are completed over.
    pub bases: Arc<dyn Bases>,
    pub log: LogWriter,
    pub offerer: Offerer,
    pub compression: Compression,
    pub loads: Arc<Loads>,
    /// Where in the journal packing begins, and the volume's size there.
    pub packed: Mark,
    pub size_bytes: u64,
}

impl WriteBack {
    /// Starts packing. `control` was made for the same journal.
    pub fn start(parts: WritebackParts, control: Arc<Control>) -> WriteBack {
        debug_assert_eq!(parts.packed.pos, control.committed(), "packing begins where commits ended");
        let stop = control.stop().clone();
        let env = parts.env.clone();
        let flow = async { flow::Flow::new(parts, control).run().await };
        WriteBack { flow: Running::start(&env, "write-back", stop, flow) }
    }

    /// Stops packing at once. What was offered is on its way; what is not committed stays in the journal.
    pub async fn stop(self) {
        self.flow.stop().await;
    }
}
