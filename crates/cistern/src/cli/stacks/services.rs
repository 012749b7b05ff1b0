//! Stacks that systemd runs: `cistern@NAME.service` is the daemon, `cistern-pool@NAME.service` what is on it.
//!
//! The units are in `packaging/systemd`. Whoever never enabled or started one for a stack is not bothered by them.

use std::path::Path;

use tokio::process::Command;

use super::programs;
use crate::failure::{Failure, Outcome};

/// There where systemd is init.
const SYSTEMD: &str = "/run/systemd/system";
/// The state directory of the units.
const STATE: &str = "/var/lib/cistern";

/// The services of a stack.
pub(super) struct Services {
    daemon: String,
    pool: String,
    /// A stack of another state directory has none, whatever its name.
    can_be: bool,
}

impl Services {
    pub(super) fn of(name: &str, state_dir: &Path) -> Services {
        let can_be = state_dir == Path::new(STATE) && Path::new(SYSTEMD).exists();
        let (daemon, pool) = (format!("cistern@{name}.service"), format!("cistern-pool@{name}.service"));
        Services { daemon, pool, can_be }
    }

    /// Whether its daemon is systemd's to start.
    pub(super) async fn have_daemon(&self) -> bool {
        let running = |state: &str| matches!(state, "active" | "activating" | "reloading");
        match self.states().await {
            Some([daemon, pool, enabled]) => running(&daemon) || running(&pool) || enabled == "enabled",
            None => false,
        }
    }

    /// Starts the daemon, and waits until it serves.
    pub(super) async fn start_daemon(&self) -> Outcome {
        let started = programs::output(Command::new("systemctl").args(["start", &self.daemon]), None).await;
        started.map(drop).map_err(|failure| {
            let hint = format!(
                "`journalctl -u {}` says why; what the store needs goes into /etc/cistern/*.env",
                self.daemon
            );
            Failure::new(failure.kind, format!("{} does not start", self.daemon)).hint(hint)
        })
    }

    /// Tells systemd that the stack was taken down by somebody else: it would not start it again, being started.
    pub(super) async fn forget_pool(&self) {
        if self.states().await.is_some_and(|[_, pool, _]| pool == "active") {
            let stop = ["stop", "--no-block", &self.pool];
            let _ = programs::output(Command::new("systemctl").args(stop), None).await; // then it is restarted by hand
        }
    }

    /// How daemon and pool are, and whether the pool is started at boot. Nothing where there are no services.
    async fn states(&self) -> Option<[String; 3]> {
        if !self.can_be {
            return None;
        }
        let daemon = show("ActiveState", &self.daemon).await?;
        let pool = show("ActiveState", &self.pool).await?;
        Some([daemon, pool, show("UnitFileState", &self.pool).await?])
    }
}

async fn show(property: &str, unit: &str) -> Option<String> {
    let mut ask = Command::new("systemctl");
    let said = programs::ask(ask.args(["show", "--value", "--property", property, unit])).await.ok()?;
    Some(said.trim().to_owned())
}
