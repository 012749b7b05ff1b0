//! `cistern freeze` and `thaw`: around the sleep of a host that has attached devices.
//!
//! The kernel stops all processes before it sleeps, the daemon among them, and gives up when one cannot be stopped because it waits for a
//! device: for the daemon, that is. So whoever uses our devices is frozen first, while the daemon lives, and nothing is under way then.

use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Result},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{
    atomic_file::replace_file,
    cli::{Context, attachments, stacks},
    config::{Settings, StateSettings},
    control,
    failure::{Failure, Kind, Outcome},
    kernel::{Attachment, Cgroup, Device, Keeper},
    quantity::Span,
    stack::{self, Holder},
    terminal,
};

const LOOK: Duration = Duration::from_millis(20);
/// Of the state directory; there while something is frozen.
const FILE: &str = "frozen.json";

/// Freeze whoever uses attached devices, before the host sleeps
///
/// Freezes the control groups of all processes that use a filesystem or a device of ours, and waits until no request is under way, so that
/// nothing waits for the daemon when the kernel stops it. If that is not so in time, everything is let go again, and it says who waits
/// for what: a read of what is not cached waits for the network. `cistern-sleep.service` does it before every sleep, and `thaw` after it.
///
/// Nothing has to be uploaded for that: what is not in the store is in the journal. The control group of this command itself is not frozen.
#[derive(Args)]
pub(super) struct Freeze {
    /// How long to wait for requests under way
    #[arg(long, value_name = "TIME", default_value = "3s")]
    wait: Span,

    #[command(flatten)]
    state: StateSettings,
}

/// Let go on whoever `cistern freeze` froze
#[derive(Args)]
pub(super) struct Thaw {
    #[command(flatten)]
    state: StateSettings,
}

/// Who is frozen, written down before he is.
#[derive(Default, Serialize, Deserialize)]
struct Frozen {
    cgroups: BTreeSet<Cgroup>,
}

impl Frozen {
    fn load(state_dir: &Path) -> Outcome<Frozen> {
        match fs::read(state_dir.join(FILE)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Frozen::default()),
            Err(e) => Err(Failure::io("cannot read who is frozen", &e)),
            Ok(text) => serde_json::from_slice(&text).map_err(|e| {
                let path = state_dir.join(FILE);
                Failure::new(Kind::Corrupt, format!("{}: {e}", path.display()))
                    .hint("`echo 0 > /sys/fs/cgroup/.../cgroup.freeze` lets a control group go; then remove that file")
            }),
        }
    }

    fn save(&self, state_dir: &Path) -> Result<()> {
        replace_file(&state_dir.join(FILE), &serde_json::to_vec_pretty(self)?)
    }

    /// Lets all go; those that could not be stay written down.
    fn thaw(mut self, state_dir: &Path) -> Outcome<usize> {
        let (all, mut failed) = (self.cgroups.len(), None);
        self.cgroups.retain(|cgroup| match cgroup.set_frozen(false) {
            Ok(()) => false,
            Err(e) => {
                failed = Some(Failure::io(format!("cannot let {cgroup} go"), &e));
                true
            }
        });
        match failed {
            None if all == 0 => Ok(0),
            None => {
                let removed = fs::remove_file(state_dir.join(FILE));
                removed.map(|()| all).map_err(|e| Failure::io("cannot forget who was frozen", &e))
            }
            Some(failure) => {
                self.save(state_dir).map_err(|e| Failure::io("cannot write down who is frozen", &e))?;
                Err(failure)
            }
        }
    }
}

impl Thaw {
    pub async fn run(self, context: &Context) -> Outcome {
        let state_dir = state_dir(self.state, context)?;
        match Frozen::load(&state_dir)?.thaw(&state_dir)? {
            0 => terminal::say("nobody was frozen"),
            n => terminal::say(format!("{n} control groups go on")),
        }
    }
}

impl Freeze {
    pub async fn run(self, context: &Context) -> Outcome {
        let state_dir = state_dir(self.state, context)?;
        let attached: Vec<Attachment> =
            attachments::all(&state_dir)?.into_iter().filter(Attachment::holds).collect();
        let devices: Vec<Device> = attached.iter().map(|attachment| attachment.device).collect();
        let places = places(&state_dir, &attached)?;
        let ours = vital(&state_dir).await?;
        let mut frozen = Frozen::load(&state_dir)?;
        match frozen.settle(&state_dir, &places, &devices, &ours, self.wait.0).await {
            Ok(kept) => {
                for cgroup in kept {
                    terminal::remark(format!("{cgroup} is not frozen: this command or a daemon is in it"));
                }
                let (frozen, devices) = (frozen.cgroups.len(), devices.len());
                terminal::say(format!(
                    "{frozen} control groups are frozen, nothing is under way on {devices} devices: `cistern thaw` ends that"
                ))
            }
            Err(failure) => frozen.thaw(&state_dir).and(Err(failure)),
        }
    }
}

impl Frozen {
    /// Freezes who uses some places, until nothing is under way; gives those that were let be, for what is `ours` is in them.
    async fn settle(
        &mut self,
        state_dir: &Path,
        places: &[PathBuf],
        devices: &[Device],
        ours: &[Cgroup],
        wait: Duration,
    ) -> Outcome<Vec<Cgroup>> {
        let deadline = Instant::now() + wait;
        loop {
            // Others may have come while some were being frozen.
            let users = stack::holders(places).map_err(|e| Failure::io("cannot look who uses them", &e))?;
            let cgroups: BTreeSet<Cgroup> =
                users.iter().filter_map(|user| user.pid).filter_map(Cgroup::of).collect();
            let (kept, chosen): (Vec<Cgroup>, Vec<Cgroup>) = cgroups
                .into_iter()
                .partition(|cgroup| cgroup.is_vital() || ours.iter().any(|own| cgroup.contains(own)));
            let before = self.cgroups.len();
            self.cgroups.extend(chosen);
            if self.cgroups.len() > before {
                self.save(state_dir).map_err(|e| Failure::io("cannot write down who is frozen", &e))?;
                for cgroup in &self.cgroups {
                    let set = cgroup.set_frozen(true);
                    set.map_err(|e| Failure::io(format!("cannot freeze {cgroup}"), &e))?;
                }
            } else if is_quiet(self, devices).map_err(|e| Failure::io("cannot look what is under way", &e))? {
                return Ok(kept);
            }
            if Instant::now() > deadline {
                let why = waiting(self, &users, devices);
                return Err(Failure::new(Kind::InUse, format!("not now: {why}")).hint(
                    "everything goes on as it was. `cistern status` shows whether the store answers; --wait gives it longer",
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn state_dir(state: StateSettings, context: &Context) -> Outcome<PathBuf> {
    let flags = Settings { state, ..Settings::default() };
    Ok(flags.resolve(context.file.clone())?.state_dir)
}

/// Where attached devices are seen: themselves, and what is mounted from them.
fn places(state_dir: &Path, attached: &[Attachment]) -> Outcome<Vec<PathBuf>> {
    let mut places = Vec::new();
    for attachment in attached {
        places.push(attachment.device.path());
        places.extend(stacks::mounted_from(state_dir, attachment)?);
    }
    Ok(places)
}

/// Where this process, the daemons and who keeps devices are: they have to go on.
async fn vital(state_dir: &Path) -> Outcome<Vec<Cgroup>> {
    let mut pids = vec![std::process::id()];
    for daemon in control::daemons(state_dir).await? {
        match daemon.status().await {
            Ok(status) => pids.push(status.pid),
            Err(ended) if ended.kind == Kind::NotFound => {}
            Err(failure) => return Err(failure),
        }
    }
    pids.extend(Keeper::pid(state_dir));
    Ok(pids.into_iter().filter_map(Cgroup::of).collect())
}

fn is_quiet(frozen: &Frozen, devices: &[Device]) -> Result<bool> {
    for cgroup in &frozen.cgroups {
        if !cgroup.is_frozen()? {
            return Ok(false);
        }
    }
    for device in devices {
        if device.in_flight()? > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What is still under way.
fn waiting(frozen: &Frozen, users: &[Holder], devices: &[Device]) -> String {
    let in_group = |user: &&Holder, cgroup: &Cgroup| user.pid.and_then(Cgroup::of).as_ref() == Some(cgroup);
    let mut why: Vec<String> = Vec::new();
    for cgroup in frozen.cgroups.iter().filter(|cgroup| !cgroup.is_frozen().unwrap_or(false)) {
        let who = users
            .iter()
            .find(|user| in_group(user, cgroup))
            .map_or_else(String::new, |user| format!(": {user}"));
        why.push(format!("a process of {cgroup} waits{who}"));
    }
    for device in devices {
        match device.in_flight() {
            Ok(0) => {}
            Ok(n) => why.push(format!("{n} requests to {device} are under way")),
            Err(e) => why.push(format!("{device}: {e}")),
        }
    }
    match why.is_empty() {
        true => "others began to use a device all the time".to_owned(),
        false => why.join("; "),
    }
}
