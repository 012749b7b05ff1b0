//! Commands of the user around the instant of a snapshot, given by flags or in the settings file.
//!
//! The second one always runs: also where the first one fails, the snapshot fails or the user interrupts. None runs longer than its time:
//! then it is killed with everything that it started.

use std::{
    os::fd::AsFd,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use clap::Args;
use tokio::process::{Child, Command};

use crate::{
    config::{HookDefaults, Settings},
    failure::{Failure, Kind, Outcome},
    place::SnapshotUrl,
    quantity::Span,
    signals::Interruption,
};

/// How long a hook may take unless somebody says otherwise.
const TIMEOUT_DEFAULT: Span = Span(Duration::from_secs(60));

#[derive(Args)]
pub(super) struct HookSettings {
    /// Command to run before the snapshot, by `sh -c`; if it fails, no snapshot is made
    ///
    /// It finds URL@NAME of each snapshot in CISTERN_SNAPSHOTS, a line each. What it starts in the background goes on until --post. An empty one is none, whatever the
    /// settings file says. [default: `pre` of [hooks] there]
    #[arg(long, value_name = "COMMAND", help_heading = "Hooks")]
    pre: Option<String>,

    /// Command to run when the snapshot is made, by `sh -c`; always, also where --pre or the snapshot failed
    ///
    /// CISTERN_MADE is yes if the snapshot was made, else no. An empty one is none. [default: `post` of [hooks]]
    #[arg(long, value_name = "COMMAND", help_heading = "Hooks")]
    post: Option<String>,

    /// How long each of them may take; then it is killed, and has failed. So long the snapshot between them may take, too
    ///
    /// [default: `timeout` of [hooks], or 60s]
    #[arg(long, value_name = "TIME", help_heading = "Hooks")]
    hook_timeout: Option<Span>,
}

/// The commands that are run.
pub(super) struct Hooks {
    pre: Option<String>,
    post: Option<String>,
    timeout: Span,
}

/// What was made, and what became of --post.
pub(super) struct Hooked<T> {
    pub made: T,
    pub post: Outcome,
}

impl HookSettings {
    /// The flags, or what the file says.
    pub fn or(&self, file: &Settings) -> Hooks {
        let HookDefaults { pre, post, timeout } = file.hooks.clone().unwrap_or_default();
        let command = |flag: &Option<String>, file| flag.clone().or(file).filter(|text| !text.is_empty());
        let timeout = self.hook_timeout.or(timeout).unwrap_or(TIMEOUT_DEFAULT);
        Hooks { pre: command(&self.pre, pre), post: command(&self.post, post), timeout }
    }
}

impl Hooks {
    /// No commands.
    pub fn none() -> Hooks {
        Hooks { pre: None, post: None, timeout: TIMEOUT_DEFAULT }
    }

    pub fn are_set(&self) -> bool {
        self.pre.is_some() || self.post.is_some()
    }

    /// How long a daemon may take for the snapshot. Whoever waits for the second command is not kept waiting for good: a file system that the
    /// first one froze may be the one that the daemon writes its journal to.
    pub fn limit(&self) -> Option<Duration> {
        self.are_set().then_some(self.timeout.0)
    }

    /// Makes snapshots between the two commands.
    pub async fn around<T>(
        &self,
        snapshots: &[SnapshotUrl],
        stop: &Interruption,
        make: impl Future<Output = Outcome<T>>,
    ) -> Outcome<Hooked<T>> {
        let urls = snapshots.iter().map(SnapshotUrl::to_string).collect::<Vec<_>>().join("\n");
        let before = async {
            if let Some(pre) = &self.pre {
                let ran = self.run("--pre", pre, &[("CISTERN_SNAPSHOTS", &urls)]).await;
                ran.map_err(|failure| {
                    let text = format!("{}: no snapshot was made", failure.text);
                    Failure { text, ..failure }
                })?;
            }
            make.await
        };
        let made = stop.or(before).await;
        let post = match &self.post {
            Some(post) => {
                let is_made = if made.is_ok() { "yes" } else { "no" };
                let variables = [("CISTERN_SNAPSHOTS", urls.as_str()), ("CISTERN_MADE", is_made)];
                self.run("--post", post, &variables).await
            }
            None => Ok(()),
        };
        match (made, post) {
            (Ok(made), post) => Ok(Hooked { made, post }),
            (Err(failure), Ok(())) => Err(failure),
            (Err(failure), Err(post)) => {
                let text = format!("{}; and {}", failure.text, post.text);
                Err(Failure { text, ..failure })
            }
        }
    }

    async fn run(&self, which: &str, command: &str, variables: &[(&str, &str)]) -> Outcome {
        let failed = |why: String| Failure::new(Kind::Hook, format!("{which} failed ({why})"));
        // Standard output is for what this command tells.
        let out = std::io::stderr().as_fd().try_clone_to_owned();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).envs(variables.iter().copied()).stdin(Stdio::null());
        shell.stdout(out.map_err(|e| failed(e.to_string()))?).process_group(0);
        let mut group = Group(shell.spawn().map_err(|e| failed(e.to_string()))?);
        match tokio::time::timeout(self.timeout.0, group.0.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(failed(said(status))),
            Ok(Err(e)) => Err(failed(e.to_string())),
            Err(_) => {
                Err(failed(format!("not done after {}", self.timeout))
                    .hint("--hook-timeout gives it more time"))
            }
        }
    }
}

fn said(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}

/// A command with all it starts. Dropped before it ended, all of that is killed.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // None once it was waited for: then the number may be another's.
        let Some(pid) = self.0.id().and_then(|id| libc::pid_t::try_from(id).ok()) else { return };
        // SAFETY: signals a group that we made, whose leader was not waited for.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
    }
}
