//! What the daemon asks of its host: descriptors, a log on stderr, news for the service manager.
//!
//! Nothing here is needed to serve: what fails is remarked and left.

use std::io::IsTerminal;

use sd_notify::NotifyState;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// The variable that sets how much is logged, such as `debug` or `cistern_engine=trace`.
const LOG_VARIABLE: &str = "CISTERN_LOG";

/// Logs to stderr. Under systemd the journal adds the time itself.
pub fn start_logging() {
    let wanted = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| "info".to_owned());
    let (targets, misread) = match wanted.parse::<Targets>() {
        Ok(targets) => (targets, None),
        Err(e) => (Targets::new().with_default(tracing::Level::INFO), Some(e)),
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let registry = tracing_subscriber::registry().with(targets);
    let started = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => registry.with(layer.without_time()).try_init(),
        None => registry.with(layer).try_init(),
    };
    debug_assert!(started.is_ok(), "logging is started once");
    if let Some(error) = misread {
        tracing::warn!(%error, "{LOG_VARIABLE} is not understood");
    }
}

/// Allows as many open files as the system lets us have: connections, objects being uploaded.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for both calls; they have no other effect on memory.
    let raised = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0
        }
    };
    if !raised {
        tracing::warn!(error = %std::io::Error::last_os_error(), "cannot raise the limit of open files");
    }
}

/// The name of this host, shown to whoever finds a volume claimed by it.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unknown".to_owned(),
        name => name.to_owned(),
    }
}

pub fn notify_ready() {
    notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

pub fn notify_stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Asks the service manager for patience: the stop takes up to `time` longer.
pub fn notify_stop_takes(time: std::time::Duration) {
    notify(&[NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))]);
}

pub fn notify_status(text: &str) {
    notify(&[NotifyState::Status(text)]);
}

fn notify(state: &[NotifyState<'_>]) {
    // Without a service manager this does nothing, and one that does not listen is its own problem.
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}
