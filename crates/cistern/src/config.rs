//! Settings: flags of the command line over one TOML file over the defaults.
//!
//! A setting is one field here: its flag, its key in the file, its help and its place in the
//! reference come from it. Unknown keys of the file are errors. Nothing here opens a store or
//! touches the disk, but for reading the file.

use std::{
    fmt,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_engine::{
    log::{GRACE, GRACE_ALONE},
    space::Bound,
    volume::Mode,
};
use clap::{Args, CommandFactory, Parser, ValueEnum};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    failure::{Failure, Kind, Outcome},
    prices::PriceSettings,
    quantity::{ByteSize, SpaceBound, Span},
};

mod hooks;
pub mod paths;

pub use hooks::HookDefaults;

/// Bytes of a journal unless the user or a small disk says otherwise: minutes of a fast link.
pub const JOURNAL_BYTES_DEFAULT: u64 = 4 << 30;
/// Bytes of the smallest journal by default: a few full segments, so that uploading can overlap with writing.
const JOURNAL_BYTES_LEAST: u64 = 128 << 20;
/// Bytes of the smallest journal: several of the smallest segments, for many volumes on one disk.
const JOURNAL_BYTES_MIN: u64 = 16 << 20;
/// Bytes of the chunk cache unless the user or a small disk says otherwise.
pub const CACHE_BYTES_DEFAULT: u64 = 10 << 30;
/// Bytes of the smallest chunk cache by default: the map of a small volume, and some of its data.
const CACHE_BYTES_LEAST: u64 = 64 << 20;
/// Share of the free space that a journal or a cache of default size may take.
const FREE_SHARE: u64 = 4;
/// Age at which a partly filled segment is uploaded: the loss window on an idle volume.
const DIRTY_AGE_DEFAULT: Duration = Duration::from_secs(30);
/// Bytes of buffers and caches of a daemon.
const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;
/// Bytes below which uploads could not overlap.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Reads that are under way need some time.
const GRACE_MIN: Duration = Duration::from_secs(10);
/// Stays below the 90 s that systemd waits before it kills.
const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// The sections of the file.
const SECTIONS: [&str; 2] = ["prices", "hooks"];

/// Where the daemon and the commands that talk to it meet.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct StateSettings {
    /// Directory of the journals and of the daemon's control socket
    ///
    /// A journal holds data that was acknowledged and is not in the store yet: keep this
    /// directory on a disk you trust, and never delete it. Every volume has its own
    /// subdirectory, named by its id.
    /// [default: /var/lib/cistern for root, else $XDG_STATE_HOME/cistern]
    #[arg(long, value_name = "DIR", help_heading = "Settings")]
    pub state_dir: Option<PathBuf>,
}

/// Where the secret of an encrypted volume comes from.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct KeySettings {
    /// File whose bytes are the key of the encrypted volume
    ///
    /// Without it the passphrase is taken from CISTERN_PASSPHRASE, or asked for on the terminal.
    /// The file should hold at least 16 random bytes, like `head -c 32 /dev/urandom` makes them.
    #[arg(long, value_name = "FILE", help_heading = "Settings")]
    pub key_file: Option<PathBuf>,
}

/// How far a flush reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeSetting {
    /// A flush waits for the local disk; uploading follows
    #[default]
    Writeback,
    /// A flush waits for the store: slow, but the loss of this host loses nothing
    Writethrough,
    /// As writeback, but what is written does not enter the chunk cache: for bulk writes
    Writearound,
}

impl ModeSetting {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            ModeSetting::Writeback => "writeback",
            ModeSetting::Writethrough => "writethrough",
            ModeSetting::Writearound => "writearound",
        }
    }
}

/// Where the value of a setting comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingSource {
    /// `cistern set`.
    Set,
    CommandLine,
    SettingsFile,
    Default,
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SettingSource::Set => "cistern set",
            SettingSource::CommandLine => "command line",
            SettingSource::SettingsFile => "settings file",
            SettingSource::Default => "default",
        })
    }
}

/// Where the settings come from that can be set while serving.
#[derive(Clone, Copy, Debug)]
pub struct LiveSources {
    pub mode: SettingSource,
    pub max_dirty_bytes: SettingSource,
    pub max_dirty_age: SettingSource,
    pub space_bound: SettingSource,
}

/// What holds for a volume for which nothing was set.
#[derive(Clone, Copy, Debug)]
pub struct LiveBase {
    pub mode: ModeSetting,
    pub dirty_age_max: Duration,
    pub dirty_bytes_max: u64,
    pub space_bound: Bound,
    pub sources: LiveSources,
}

impl From<ModeSetting> for Mode {
    fn from(mode: ModeSetting) -> Mode {
        match mode {
            ModeSetting::Writeback => Mode::Writeback,
            ModeSetting::Writethrough => Mode::Writethrough,
            ModeSetting::Writearound => Mode::Writearound,
        }
    }
}

/// Everything that can be set about a daemon.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Settings {
    /// Address to listen on: unix:PATH or HOST:PORT; may be given several times
    ///
    /// Beyond the local host TLS is required, see --tls-dir. The port of NBD is 10809.
    /// [default: a unix socket named after the first volume, in /run/cistern for root, else in
    /// $XDG_RUNTIME_DIR/cistern]
    #[arg(long, value_name = "ADDRESS", help_heading = "Settings")]
    #[serde(deserialize_with = "one_or_many")]
    pub listen: Vec<String>,

    #[command(flatten)]
    #[serde(flatten)]
    pub state: StateSettings,

    /// Directory of the chunk cache; may be deleted at any time
    ///
    /// Holds copies of what was read from the store, compressed and sealed as there.
    /// [default: /var/cache/cistern for root, else $XDG_CACHE_HOME/cistern]
    #[arg(long, value_name = "DIR", help_heading = "Settings")]
    pub cache_dir: Option<PathBuf>,

    /// Size of a volume's journal: how much may be written faster than it is uploaded
    ///
    /// The space is reserved on the disk of the state directory. When the journal is full, writes
    /// go at the speed of the upload. An existing journal keeps its size.
    /// [default: 4G, but at most the volume's size (unless it is encrypted; 128M for smaller ones), and a
    /// quarter of the free space for all volumes of the daemon together, and at least 16M]
    #[arg(long, value_name = "SIZE", help_heading = "Settings")]
    pub journal_size: Option<ByteSize>,

    /// Size of the chunk cache, shared by all volumes of the daemon; 0 for none
    ///
    /// Give it the size of what is read again and again: metadata, and the hot part of the data.
    /// [default: 10G, but at most 5/4 of the volumes' size (unless one is encrypted) and a quarter of
    /// the free space. Volumes in a directory on the file system of the cache do without, unless a size is set]
    #[arg(long, value_name = "SIZE", help_heading = "Settings")]
    pub cache_size: Option<ByteSize>,

    /// How far a flush reaches: `writeback` waits for the local disk, `writethrough` for the store
    ///
    /// `writearound` is as writeback, but what is written does not enter the chunk cache.
    /// `cistern set` changes it while the volume is served.
    /// [default: writeback]
    #[arg(long, value_name = "MODE", value_enum, help_heading = "Settings")]
    pub mode: Option<ModeSetting>,

    /// Longest time that written data waits for the upload to begin
    ///
    /// This bounds what is missing if this host and its disk are lost. Shorter costs more
    /// requests: at most one per interval while something is being written.
    /// [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    pub max_dirty_age: Option<Span>,

    /// Most bytes that may be acknowledged and not yet in the store; writes slow down before it
    ///
    /// The other bound of what is missing if this host and its disk are lost.
    /// [default: three quarters of the journal]
    #[arg(long, value_name = "SIZE", help_heading = "Settings")]
    pub max_dirty_bytes: Option<ByteSize>,

    /// Memory for buffers and caches, shared by all volumes of the daemon
    ///
    /// Requests of clients on their way in and out take at most half as much beside it (42 MiB at
    /// least), and up to 400 KiB for each connection. Below 256M segments are smaller, down to
    /// 4 MiB at 64M, which costs more requests, and fewer of them are uploaded at once. What is
    /// set in the settings file holds for other commands too, for each volume that they read or
    /// write.
    /// [default: 256M]
    #[arg(long, value_name = "SIZE", help_heading = "Settings")]
    pub memory: Option<ByteSize>,

    /// Longest time that a stop waits for uploads; what remains stays in the journal
    ///
    /// Nothing is lost either way: the next start on this host uploads it. A second Ctrl-C ends
    /// the wait at once.
    /// [default: 60s]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    pub drain_timeout: Option<Span>,

    /// Stored bytes per live byte that are let be: what is more is cleaned in the background
    ///
    /// Overwritten and trimmed data leaves garbage between what is live. The closer to 1, the more live data
    /// has to be moved to get rid of it: at 1.3 a volume that is overwritten at random uploads about two and
    /// a half times what is written, at 1.5 one and three quarters. `auto` is what costs least by the prices of the store
    /// (`cistern cost`) and the rate at which the volume was overwritten in the last day or so, between 1.05 and 1.5; it
    /// begins at 1.3. `none` cleans nothing; what is garbage through and through is deleted all the same.
    /// [default: auto]
    #[arg(long, value_name = "auto|RATIO|none", help_heading = "Settings")]
    pub space_bound: Option<SpaceBound>,

    /// How long what is not needed any more stays in the store before it is deleted
    ///
    /// Readers on other hosts and in other processes show the state that they opened: what that needs may be deleted after this time.
    /// In a directory they make themselves known; without this setting it is 5 s there while none is known, and while the disk is nearly full
    /// (not where the volume has clones). One that may not write to the directory cannot make itself known: set this to 15m while it reads.
    /// [default: 15m, in a directory as short as 5s]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    pub grace: Option<Span>,

    /// Directory with certificates: TLS on every address but unix sockets
    ///
    /// It holds server-cert.pem, server-key.pem, and ca-cert.pem: the authority that must have
    /// signed the certificate that each client shows. The names are those of libnbd, nbdkit and
    /// qemu.
    #[arg(long, value_name = "DIR", help_heading = "Settings")]
    pub tls_dir: Option<PathBuf>,

    /// Listen beyond the local host without TLS
    ///
    /// Whoever reaches the port can then read and overwrite the volumes. Only for networks where
    /// something else (WireGuard, a VPC) protects the traffic.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        help_heading = "Settings")]
    pub insecure_listen: Option<bool>,

    /// Address for metrics in the text format of Prometheus: HOST:PORT, answered at /metrics
    ///
    /// Without encryption or a password: whoever reaches the port sees the figures of
    /// docs/reference/metrics.md and the names of volumes and buckets, and can change nothing. Give
    /// 127.0.0.1:PORT unless the collector is on another host.
    /// [default: no metrics]
    #[arg(long, value_name = "ADDRESS", help_heading = "Settings")]
    pub metrics: Option<String>,

    /// Address of the dashboard, for browsers: HOST:PORT, as 127.0.0.1:9810
    ///
    /// Shows what `cistern status` and `cistern status --io` show, live and of the last 48 hours, and can change nothing. Beyond the local
    /// host a token is required, see --dashboard-token-file. Without encryption: from elsewhere `ssh -L 9810:127.0.0.1:9810 HOST` is
    /// the simplest way.
    /// [default: no dashboard]
    #[arg(long, value_name = "ADDRESS", help_heading = "Settings")]
    pub dashboard: Option<String>,

    /// File with a token without which nobody sees the dashboard, on this host as well
    ///
    /// Browsers show it once, as http://ADDRESS/?token=TOKEN, programs as `Authorization: Bearer TOKEN`. At least 16 characters, as
    /// `head -c 24 /dev/urandom | base64` makes them. Read once, at the start.
    /// [default: no token, and nobody but this host]
    #[arg(long, value_name = "FILE", help_heading = "Settings")]
    pub dashboard_token_file: Option<PathBuf>,

    #[command(flatten)]
    #[serde(flatten)]
    pub key: KeySettings,

    /// A section of the file, without a flag.
    #[arg(skip)]
    pub prices: Option<PriceSettings>,

    /// Another one; flags of the commands that make snapshots win over it.
    #[arg(skip)]
    pub hooks: Option<HookDefaults>,
}

/// The settings of a daemon with defaults filled in; what depends on the disk is still open.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub listen: Vec<String>,
    pub state_dir: PathBuf,
    pub cache_dir: PathBuf,
    /// `None`: [`journal_bytes_wanted`] if the disk has room.
    pub journal_bytes: Option<u64>,
    /// `None`: [`cache_bytes_wanted`] if the disk has room.
    pub cache_bytes: Option<u64>,
    pub mode: ModeSetting,
    pub dirty_age_max: Duration,
    /// `None`: three quarters of the journal.
    pub dirty_bytes_max: Option<u64>,
    pub sources: LiveSources,
    pub memory_bytes: u64,
    pub drain_timeout: Duration,
    pub space_bound: Bound,
    pub grace: Duration,
    /// Where no reader is known.
    pub grace_alone: Duration,
    pub tls_dir: Option<PathBuf>,
    pub insecure_listen: bool,
    pub metrics: Option<String>,
    pub dashboard: Option<String>,
    pub dashboard_token_file: Option<PathBuf>,
    pub key: KeySettings,
    pub prices: PriceSettings,
}

impl Settings {
    /// These settings, and those of `file` where these say nothing.
    fn or(self, file: Settings) -> Settings {
        Settings {
            listen: if self.listen.is_empty() { file.listen } else { self.listen },
            state: StateSettings { state_dir: self.state.state_dir.or(file.state.state_dir) },
            cache_dir: self.cache_dir.or(file.cache_dir),
            journal_size: self.journal_size.or(file.journal_size),
            cache_size: self.cache_size.or(file.cache_size),
            mode: self.mode.or(file.mode),
            max_dirty_age: self.max_dirty_age.or(file.max_dirty_age),
            max_dirty_bytes: self.max_dirty_bytes.or(file.max_dirty_bytes),
            memory: self.memory.or(file.memory),
            drain_timeout: self.drain_timeout.or(file.drain_timeout),
            space_bound: self.space_bound.or(file.space_bound),
            grace: self.grace.or(file.grace),
            tls_dir: self.tls_dir.or(file.tls_dir),
            insecure_listen: self.insecure_listen.or(file.insecure_listen),
            metrics: self.metrics.or(file.metrics),
            dashboard: self.dashboard.or(file.dashboard),
            dashboard_token_file: self.dashboard_token_file.or(file.dashboard_token_file),
            key: KeySettings { key_file: self.key.key_file.or(file.key.key_file) },
            prices: self.prices.or(file.prices),
            hooks: self.hooks.or(file.hooks),
        }
    }

    /// Where each value comes from that can be set while serving, with `file` below these settings.
    fn sources(&self, file: &Settings) -> LiveSources {
        let source = |flag: bool, in_file: bool| match (flag, in_file) {
            (true, _) => SettingSource::CommandLine,
            (false, true) => SettingSource::SettingsFile,
            (false, false) => SettingSource::Default,
        };
        LiveSources {
            mode: source(self.mode.is_some(), file.mode.is_some()),
            max_dirty_bytes: source(self.max_dirty_bytes.is_some(), file.max_dirty_bytes.is_some()),
            max_dirty_age: source(self.max_dirty_age.is_some(), file.max_dirty_age.is_some()),
            space_bound: source(self.space_bound.is_some(), file.space_bound.is_some()),
        }
    }

    /// The memory that is wanted, unchecked.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.map_or(MEMORY_BYTES_DEFAULT, |size| size.0)
    }

    /// Fills in the defaults and checks the values.
    pub fn resolve(self, file: Settings) -> Outcome<Resolved> {
        let sources = self.sources(&file);
        let settings = self.or(file);
        let too_small = |name: &str, least: u64| {
            Failure::usage(format!("{name} is too small")).hint(format!("the least is {}", ByteSize(least)))
        };
        if settings.journal_size.is_some_and(|size| size.0 < JOURNAL_BYTES_MIN) {
            return Err(too_small("journal-size", JOURNAL_BYTES_MIN));
        }
        let memory_bytes = settings.memory_bytes();
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(too_small("memory", MEMORY_BYTES_MIN));
        }
        let grace = settings.grace.map_or(GRACE, |span| span.0);
        if grace < GRACE_MIN {
            return Err(
                Failure::usage("grace is too small").hint(format!("the least is {}", Span(GRACE_MIN)))
            );
        }
        let here = paths::Surroundings::of_this_process();
        Ok(Resolved {
            listen: settings.listen,
            state_dir: here.state_dir(settings.state.state_dir)?,
            cache_dir: here.cache_dir(settings.cache_dir)?,
            journal_bytes: settings.journal_size.map(|size| size.0),
            cache_bytes: settings.cache_size.map(|size| size.0),
            mode: settings.mode.unwrap_or_default(),
            dirty_age_max: settings.max_dirty_age.map_or(DIRTY_AGE_DEFAULT, |span| span.0),
            dirty_bytes_max: settings.max_dirty_bytes.map(|size| size.0),
            sources,
            memory_bytes,
            drain_timeout: settings.drain_timeout.map_or(DRAIN_TIMEOUT_DEFAULT, |span| span.0),
            space_bound: settings.space_bound.map_or(Bound::Auto, |bound| bound.0),
            grace,
            grace_alone: settings.grace.map_or(GRACE_ALONE, |span| span.0),
            tls_dir: settings.tls_dir,
            insecure_listen: settings.insecure_listen.unwrap_or(false),
            metrics: settings.metrics,
            dashboard: settings.dashboard,
            dashboard_token_file: settings.dashboard_token_file,
            key: settings.key,
            prices: settings.prices.unwrap_or_default(),
        })
    }
}

impl StateSettings {
    /// The state directory for a command that talks to a daemon or to a journal.
    pub fn resolve(self, file: &Settings) -> Outcome<PathBuf> {
        let chosen = self.state_dir.or_else(|| file.state.state_dir.clone());
        paths::Surroundings::of_this_process().state_dir(chosen)
    }
}

impl KeySettings {
    /// The flag, or the file's value.
    pub fn or(self, file: &Settings) -> KeySettings {
        KeySettings { key_file: self.key_file.or_else(|| file.key.key_file.clone()) }
    }
}

/// Bytes of a journal for a volume of this size, if that is known: what is overwritten in it again and again is
/// uploaded once, so more than the volume holds is never needed.
pub fn journal_bytes_wanted(volume_bytes: Option<u64>) -> u64 {
    volume_bytes
        .map_or(JOURNAL_BYTES_DEFAULT, |bytes| bytes.clamp(JOURNAL_BYTES_LEAST, JOURNAL_BYTES_DEFAULT))
}

/// Bytes to reserve for the journal of one of `volumes` that a daemon opens: what is wanted, but all journals together
/// take at most a quarter of the free space.
pub fn journal_bytes_fitting(wanted: u64, free_bytes: u64, volumes: u64) -> u64 {
    fitting_bytes(wanted, free_bytes / volumes.max(1)).max(JOURNAL_BYTES_MIN)
}

/// Bytes of a chunk cache for volumes of this size together, if that is known: all of them, and what lies around
/// their blocks in the log.
pub fn cache_bytes_wanted(volumes_bytes: Option<u64>) -> u64 {
    let all = |bytes: u64| (bytes.saturating_add(bytes / 4)).clamp(CACHE_BYTES_LEAST, CACHE_BYTES_DEFAULT);
    volumes_bytes.map_or(CACHE_BYTES_DEFAULT, all)
}

/// Bytes to take of a disk: `wanted`, but at most a quarter of the free space.
pub fn fitting_bytes(wanted: u64, free_bytes: u64) -> u64 {
    wanted.min(free_bytes / FREE_SHARE)
}

/// Only gives the settings a command of their own, so that their names can be enumerated.
#[derive(Parser)]
#[command(name = "settings", disable_help_flag = true)]
struct SettingsOnly {
    #[command(flatten)]
    _settings: Settings,
}

/// The definitions of all settings, in the order of the reference.
pub fn definitions() -> Vec<clap::Arg> {
    SettingsOnly::command().get_arguments().cloned().collect()
}

/// Reads the settings file that was named, or the one of this system if there is one; else nothing is set.
pub fn read_file(named: Option<&Path>) -> Outcome<Settings> {
    let usual = paths::Surroundings::of_this_process().settings_file();
    let Some(path) = named.or(usual.as_deref()) else { return Ok(Settings::default()) };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if named.is_none() && e.kind() == ErrorKind::NotFound => return Ok(Settings::default()),
        Err(e) => {
            return Err(Failure::io(format!("the settings file {} cannot be read", path.display()), &e));
        }
    };
    parse(&text).map_err(|failure| failure.context(format!("settings file {}", path.display())))
}

fn parse(text: &str) -> Outcome<Settings> {
    let wrong = |e: toml::de::Error| Failure::usage(e.to_string().trim_end().to_owned());
    let table: toml::Table = toml::from_str(text).map_err(wrong)?;
    let mut known: Vec<String> =
        definitions().iter().filter_map(|arg| arg.get_long().map(str::to_owned)).collect();
    known.extend(SECTIONS.map(str::to_owned));
    for key in table.keys() {
        if !known.contains(key) {
            let failure = Failure::new(Kind::Usage, format!("there is no setting '{key}'"));
            return Err(failure.hint(suggestion(key, &known)));
        }
    }
    toml::from_str(text).map_err(wrong)
}

fn suggestion(key: &str, known: &[String]) -> String {
    /// Similarity above which a name is taken for a misspelling.
    const SIMILAR_ENOUGH: f64 = 0.75;
    let scored = known.iter().map(|name| (strsim::jaro_winkler(key, name), name));
    match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, name)) if score >= SIMILAR_ENOUGH => format!("did you mean '{name}'?"),
        _ => format!("the settings are {}", known.join(", ")),
    }
}

fn one_or_many<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(input)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}

#[cfg(test)]
mod tests;
