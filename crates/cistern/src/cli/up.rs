//! `cistern up`: a filesystem on a volume, with all that it stands on.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::{
    cli::{
        Context,
        stacks::{self, Stack},
    },
    config::{KeySettings, Settings, StateSettings},
    failure::{Failure, Outcome},
    kernel::DeviceDriver,
    place::{VolumeUrl, volume_url},
    quantity::ByteSize,
    stack::{Fs, OnDevice, ShareClient, StackGoal, StackRecord, StackState, Way},
    terminal,
};

/// Bring a filesystem up that lives on a volume: serve, attach, import or make it, mount
///
/// The first time --on says where the volume is; with --size it is created if it does not exist. A ZFS pool NAME is made on a volume that is
/// empty, and imported if it is there; with --fs another filesystem, for which --mount says where. What this host knows of NAME it
/// remembers: then `cistern up NAME` is enough, after a restart of the host as well. On another host give --on again, and run
/// `cistern down NAME` on this one before.
///
/// May be interrupted anywhere, and run again: it goes on with what is missing. What was there and is not as it should be is never
/// overwritten; then it says what it found. Takes root. `cistern doctor` says what is missing on this host.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cistern up tank --on s3://bucket/tank --size 2T             a pool in a bucket, mounted on /tank
  cistern up tank                                             the same, later
  cistern up tank --restart                                   after an upgrade of this program, under its users
  cistern up home --on ./vol --size 100G --fs xfs --mount /srv/home
  cistern up tank --share 10.0.0.0/24,192.168.7.5=ro          for others, over NFS
  cistern up tank --on s3://bucket/tank -- --journal-size 50G --mode writethrough")]
pub(super) struct Up {
    /// Name of the pool; for other filesystems what you want to call it
    #[arg(value_name = "NAME", value_parser = stacks::name)]
    name: String,

    /// URL of the volume [default: as it was the last time]
    #[arg(long, value_name = "URL", value_parser = volume_url)]
    on: Option<VolumeUrl>,

    /// Create the volume if it does not exist, with this size
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,

    /// Kind of filesystem [default: zfs, or as it was the last time]
    #[arg(long, value_name = "KIND", value_enum)]
    fs: Option<Fs>,

    /// Where it is mounted; of a pool only where it is made, later its own properties say it
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,

    /// Driver of the kernel that makes a device of the volume, when it is attached the next time [default: nbd, or as it was the last time]
    ///
    /// See `cistern attach`, and `cistern doctor` for whether this kernel is good for ublk.
    #[arg(long, value_name = "DRIVER", value_enum)]
    driver: Option<DeviceDriver>,

    /// Share it over NFS with these: hosts, addresses or networks, with =ro behind those that may only read [default: as it was the last time]
    ///
    /// `cistern down` ends that before it unmounts. A pool keeps it in its property `sharenfs`; without this option a pool that has one already is shared as that says. What root
    /// of a client may do is what nobody may.
    #[arg(long, value_name = "CLIENTS", value_delimiter = ',', conflicts_with = "no_share")]
    share: Vec<ShareClient>,

    /// Share it with nobody over NFS any more
    #[arg(long)]
    no_share: bool,

    /// Take volume and pool from a host that is gone and did not release them
    ///
    /// As for `cistern serve`: if that host is alive after all, its daemon is fenced. The pool is imported although it was not exported.
    #[arg(long)]
    take_over: bool,

    /// End the daemon first, and start it again: with another version of this program, or other SERVE-ARGUMENTS
    ///
    /// Nothing is uploaded for that. What uses the filesystem waits meanwhile, and sees no error.
    #[arg(long, conflicts_with = "dry_run")]
    restart: bool,

    /// Be the daemon of NAME, in the foreground, and do nothing else: for a service manager
    ///
    /// One that `up` started is ended first; devices wait meanwhile. When it is stopped it uploads nothing more: the next one does that.
    #[arg(long, conflicts_with_all = ["on", "size", "driver", "share", "no_share", "take_over", "restart", "dry_run"])]
    foreground: bool,

    /// Start the daemon if it does not run, and do nothing else: for `keep-attached`
    #[arg(long, hide = true)]
    daemon_only: bool,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,

    /// More arguments for the daemon, as of `cistern serve` [default: as they were the last time]
    #[arg(last = true, value_name = "SERVE-ARGUMENTS")]
    serve_args: Vec<String>,
}

/// What stands.
#[derive(Serialize)]
struct Standing {
    name: String,
    url: String,
    fs: Fs,
    id: Option<String>,
    device: Option<PathBuf>,
    mounted: Vec<PathBuf>,
    /// Whom the NFS server gives it to.
    shared_with: Vec<String>,
}

impl Up {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let known = stacks::load(&settings.state_dir, &self.name)?;
        let record = self.record(context, known)?;
        let goal = StackGoal::of(&record, self.take_over, Way::Up);
        let create_bytes = self.size.map(|size| size.0);
        let key = KeySettings { key_file: record.key_file.clone() }.or(&context.file);
        let mut stack = Stack::new(context, settings.state_dir, record, goal, key, create_bytes);
        if self.dry_run {
            return stack.show_plan(self.json).await;
        }
        if self.foreground {
            return stack.become_daemon().await;
        }
        if self.daemon_only {
            return stack.start_daemon().await;
        }
        // What was seen once stays as it is known until something else was seen.
        if stack.record().id.is_none() {
            stack.save()?;
        }
        let seen = match self.restart {
            true => stack.restart().await?,
            false => stack.go().await?,
        };
        stack.save()?;
        self.say(stack.record(), seen)
    }

    /// What is wanted, by what was said now and what is known.
    fn record(&self, context: &Context, known: Option<StackRecord>) -> Outcome<StackRecord> {
        let name = &self.name;
        let url = match (&self.on, &known) {
            (Some(on), _) => on.url.to_string(),
            (None, Some(known)) => known.url.clone(),
            (None, None) => {
                let failure = Failure::usage(format!("nothing is known of {name} on this host"));
                return Err(failure.hint(format!(
                    "`cistern up {name} --on URL` says where it is; with --size SIZE the volume is created if need be"
                )));
            }
        };
        let was = known.as_ref();
        let fs = self.fs.or(was.map(|was| was.fs)).unwrap_or(Fs::Zfs);
        if let Some(was) = was.filter(|was| was.id.is_some() && was.fs != fs) {
            let failure = Failure::usage(format!("{name} is known here as {}, and not {fs}", was.fs));
            return Err(failure.hint("give another one another name"));
        }
        let mount = self.mount.clone().or_else(|| was?.mount.clone());
        if let Some(mount) = mount.as_ref().filter(|mount| !mount.is_absolute()) {
            return Err(Failure::usage(format!("--mount {}: it has to begin with /", mount.display())));
        }
        if fs != Fs::Zfs && mount.is_none() {
            return Err(Failure::usage(format!("where is {name} to be mounted?")).hint("--mount DIR says it"));
        }
        let serve_args = match (&self.serve_args[..], was) {
            ([], Some(was)) => was.serve_args.clone(),
            (given, _) => given.to_vec(),
        };
        let key_file = self.key.key_file.as_deref().map(stacks::absolute).or_else(|| was?.key_file.clone());
        Ok(StackRecord {
            name: name.clone(),
            url,
            fs,
            mount,
            id: was.and_then(|was| was.id.clone()),
            driver: self.driver.or(was.map(|was| was.driver)).unwrap_or_default(),
            share: match self.no_share {
                true => Some(Vec::new()),
                false if self.share.is_empty() => was.and_then(|was| was.share.clone()),
                false => Some(self.share.clone()),
            },
            config: context.config.as_deref().map(stacks::absolute).or_else(|| was?.config.clone()),
            key_file,
            serve_args,
            starts_daemon: was.is_some_and(|was| was.starts_daemon),
        })
    }

    fn say(&self, record: &StackRecord, seen: StackState) -> Outcome {
        let StackRecord { name, url, fs, id, .. } = record;
        let mut shared_with: Vec<String> =
            seen.sharing.exports.into_iter().map(|export| export.client).collect();
        shared_with.sort();
        shared_with.dedup();
        if self.json {
            let (name, url, id) = (name.clone(), url.clone(), id.clone());
            let StackState { device, mounted, .. } = seen;
            return terminal::say_json(&Standing { name, url, fs: *fs, id, device, mounted, shared_with });
        }
        let device = seen.device.iter().map(|device| device.display().to_string()).collect::<String>();
        let mounted: Vec<String> = seen.mounted.iter().map(|at| at.display().to_string()).collect();
        let what = match seen.content {
            Some(OnDevice::Pool(label)) => label.to_string(),
            _ => fs.to_string(),
        };
        terminal::say(format!("{name} is up: {what} on {url}"))?;
        terminal::say(format!("device:  {device}"))?;
        terminal::say(match &mounted[..] {
            [] => "mounted: nowhere, as its properties say".to_owned(),
            [first] => format!("mounted: {first}"),
            [first, more @ ..] => format!("mounted: {first} and {} below or beside it", more.len()),
        })?;
        match &shared_with[..] {
            [] if seen.sharing.missing.is_empty() => {}
            [] => terminal::say("shared:  with nobody, as there is no NFS server that runs")?,
            clients => terminal::say(format!("shared:  over NFS with {}", clients.join(", ")))?,
        }
        terminal::say(format!("end:     cistern down {name}"))
    }
}
