//! Where things lie on this host: state (precious), cache (may go), sockets, settings.
//!
//! Follows systemd's *_DIRECTORY variables, then the system's places for root and the XDG base
//! directories for everybody else. Decides only; creates nothing.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::failure::{Failure, Outcome};

const NAME: &str = "cistern";

/// What the choice of a place depends on.
pub struct Surroundings {
    root: bool,
    variable: fn(&str) -> Option<OsString>,
}

impl Surroundings {
    pub fn of_this_process() -> Surroundings {
        // SAFETY: geteuid has no preconditions and cannot fail.
        let root = unsafe { libc::geteuid() } == 0;
        Surroundings { root, variable: |name| std::env::var_os(name) }
    }

    /// The chosen directory, or the default for state.
    pub fn state_dir(&self, chosen: Option<PathBuf>) -> Outcome<PathBuf> {
        let default = || self.default_dir("STATE_DIRECTORY", "/var/lib", "XDG_STATE_HOME", ".local/state");
        self.absolute(chosen.or_else(default), "--state-dir")
    }

    /// The chosen directory, or the default for caches.
    pub fn cache_dir(&self, chosen: Option<PathBuf>) -> Outcome<PathBuf> {
        let default = || self.default_dir("CACHE_DIRECTORY", "/var/cache", "XDG_CACHE_HOME", ".cache");
        self.absolute(chosen.or_else(default), "--cache-dir")
    }

    /// The settings file that is read where none is named, if it is there.
    pub fn settings_file(&self) -> Option<PathBuf> {
        let dir = self.default_dir("CONFIGURATION_DIRECTORY", "/etc", "XDG_CONFIG_HOME", ".config");
        dir.map(|dir| dir.join("cistern.toml"))
    }

    /// The directory for the sockets that clients connect to.
    pub fn socket_dir(&self, state_dir: &Path) -> PathBuf {
        if let Some(dir) = self.systemd("RUNTIME_DIRECTORY") {
            return dir;
        }
        if self.root {
            return Path::new("/run").join(NAME);
        }
        self.absolute_variable("XDG_RUNTIME_DIR").map_or_else(|| state_dir.to_owned(), |dir| dir.join(NAME))
    }

    fn default_dir(&self, systemd: &str, of_root: &str, xdg: &str, of_home: &str) -> Option<PathBuf> {
        if let Some(dir) = self.systemd(systemd) {
            return Some(dir);
        }
        if self.root {
            return Some(Path::new(of_root).join(NAME));
        }
        let base =
            self.absolute_variable(xdg).or_else(|| Some(self.absolute_variable("HOME")?.join(of_home)))?;
        Some(base.join(NAME))
    }

    /// systemd separates several directories by colons; ours is the first.
    fn systemd(&self, name: &str) -> Option<PathBuf> {
        let value = (self.variable)(name)?.into_string().ok()?;
        let first = PathBuf::from(value.split(':').next()?);
        first.is_absolute().then_some(first)
    }

    /// The XDG rules say that relative values are to be ignored.
    fn absolute_variable(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    fn absolute(&self, dir: Option<PathBuf>, flag: &str) -> Outcome<PathBuf> {
        let dir = dir.ok_or_else(|| {
            Failure::usage("there is no home directory to keep state in")
                .hint(format!("say where with {flag} DIR"))
        })?;
        std::path::absolute(&dir).map_err(|e| Failure::io(format!("directory {}", dir.display()), &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<OsString> {
        None
    }
    fn home(name: &str) -> Option<OsString> {
        (name == "HOME").then(|| "/home/ann".into())
    }
    fn xdg(name: &str) -> Option<OsString> {
        match name {
            "XDG_STATE_HOME" => Some("/x/state".into()),
            "XDG_CACHE_HOME" => Some("relative".into()),
            "XDG_RUNTIME_DIR" => Some("/run/user/7".into()),
            other => home(other),
        }
    }
    fn unit(name: &str) -> Option<OsString> {
        (name == "STATE_DIRECTORY").then(|| "/var/lib/private/cistern:/second".into())
    }

    /// Root uses the system's places, a user the XDG ones, a unit what systemd prepared, and a
    /// flag wins over all.
    #[test]
    fn places() {
        let at = |root, variable| Surroundings { root, variable };
        let state = |s: Surroundings| s.state_dir(None).expect("there is a place");
        assert_eq!(state(at(true, nothing)), Path::new("/var/lib/cistern"));
        assert_eq!(state(at(false, home)), Path::new("/home/ann/.local/state/cistern"));
        assert_eq!(state(at(false, xdg)), Path::new("/x/state/cistern"));
        assert_eq!(state(at(true, unit)), Path::new("/var/lib/private/cistern"));
        let chosen = at(true, unit).state_dir(Some("/else".into())).expect("there is a place");
        assert_eq!(chosen, Path::new("/else"));
        let cache = at(false, xdg).cache_dir(None).expect("there is a place");
        assert_eq!(cache, Path::new("/home/ann/.cache/cistern"), "relative XDG values are ignored");
        let settings = |s: Surroundings| s.settings_file().expect("there is a place");
        assert_eq!(settings(at(true, nothing)), Path::new("/etc/cistern/cistern.toml"));
        assert_eq!(settings(at(false, home)), Path::new("/home/ann/.config/cistern/cistern.toml"));
        assert_eq!(at(true, nothing).socket_dir(Path::new("/s")), Path::new("/run/cistern"));
        assert_eq!(at(false, xdg).socket_dir(Path::new("/s")), Path::new("/run/user/7/cistern"));
        assert_eq!(at(false, nothing).socket_dir(Path::new("/s")), Path::new("/s"));
    }

    /// Without a home there is nothing to guess: the user has to say it.
    #[test]
    fn nowhere_to_go() {
        let failure = Surroundings { root: false, variable: nothing }.state_dir(None).expect_err("no home");
        assert_eq!(failure.hint.as_deref(), Some("say where with --state-dir DIR"));
    }
}
