//! The command line: the verbs, one file each, and what all of them share.

use std::{path::PathBuf, time::Duration};

use cistern_engine::env::{Env, real::RealEnv};
use clap::{Parser, Subcommand};

use crate::{
    config::{self, Settings},
    failure::Outcome,
    memory,
    signals::EndAtOnce,
};

mod attach;
mod attachments;
mod backup;
mod bench;
mod check;
mod clone;
mod completions;
mod copy;
mod copying;
mod cost;
mod create;
mod dashboard;
mod detach;
mod diff;
mod docker;
mod doctor;
mod down;
mod drain;
mod export;
mod flatten;
mod freeze;
mod gc;
mod hold;
mod hooks;
mod import;
mod info;
mod journal;
mod keep_attached;
mod key;
mod local_disk;
mod ls;
mod marks;
mod new_file;
mod probe;
mod program;
mod qemu;
mod read_rate;
mod receive;
pub mod reference;
mod resize;
mod restore;
mod rm;
mod rollback;
mod send;
mod serve;
mod set;
mod snapshot;
mod snapshots;
mod source;
mod stacks;
mod status;
mod stores;
mod taken;
mod target;
mod top;
mod transfer;
mod up;
mod waiting;
mod warm;
mod worker;

/// How long a command waits at its end for what its readers have to put right in the store.
const PARTING_LIMIT: Duration = Duration::from_secs(2);

const FIRST_STEPS: &str = "\
First steps:
  cistern serve ./tank --create 10G               a volume in a directory, to try it out
  cistern create s3://bucket/tank --size 90T      a volume in a bucket
  cistern serve s3://bucket/tank                  serve it over NBD, until Ctrl-C
  cistern status                                  is everything uploaded?
  cistern snapshot s3://bucket/tank@monday        keep what it holds now
  cistern up tank --on s3://bucket/tank --size 2T a ZFS pool on it, mounted on /tank (as root)

Stores: s3://bucket/name, gs://bucket/name, az://container/name, /directory/name, ./name.
Credentials come from the environment, profiles and the machine: see cistern create --help.";

/// Network block devices (NBD) on object storage: at the latency of the local disk, with the data
/// in S3, Google Cloud Storage, Azure or a directory.
#[derive(Parser)]
#[command(name = "cistern", version, after_help = FIRST_STEPS, max_term_width = 100)]
pub struct Cli {
    /// File with settings, in TOML; a flag wins over it [default: /etc/cistern/cistern.toml for root, else cistern/cistern.toml in $XDG_CONFIG_HOME, if it is there]
    #[arg(long, global = true, value_name = "FILE", env = "CISTERN_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    // By far the largest: it has all settings.
    Serve(Box<serve::Serve>),
    Create(create::Create),
    Status(status::Status),
    Top(top::Top),
    Dashboard(dashboard::ShowDashboard),
    Set(set::Set),
    Pause(set::Pause),
    Resume(set::Resume),
    Drain(drain::Drain),
    Up(up::Up),
    Down(down::Down),
    Docker(docker::Docker),
    Doctor(doctor::Doctor),
    Attach(attach::Attach),
    Detach(detach::Detach),
    KeepAttached(keep_attached::KeepAttached),
    Freeze(freeze::Freeze),
    Thaw(freeze::Thaw),
    Ls(ls::Ls),
    Snapshot(snapshot::Snapshot),
    Hold(hold::Hold),
    Release(hold::Release),
    Clone(clone::Clone),
    Flatten(flatten::Flatten),
    Rollback(rollback::Rollback),
    Diff(diff::Diff),
    Send(send::Send),
    Receive(receive::Receive),
    Copy(copy::Copy),
    Backup(Box<backup::Backup>),
    Import(import::Import),
    Export(export::ExportImage),
    AutoSnapshot(set::AutoSnapshot),
    Info(info::Info),
    Check(check::Check),
    Probe(probe::Probe),
    Bench(bench::Bench),
    Resize(resize::Resize),
    Warm(warm::Warm),
    Gc(gc::Gc),
    Cost(cost::ShowCost),
    Rm(rm::Rm),
    Restore(restore::Restore),
    Key(key::Key),
    Journal(journal::Journal),
    Completions(completions::Completions),
    #[command(hide = true)]
    Reference(reference::Reference),
}

/// What every verb gets.
pub struct Context {
    pub env: Env,
    /// The settings file's content.
    pub file: Settings,
    /// The file, where one was named.
    pub config: Option<PathBuf>,
}

impl Cli {
    /// Whether this process is a daemon.
    pub fn serves(&self) -> bool {
        matches!(self.verb, Verb::Serve(_))
    }

    /// Does what the arguments say. Inside a tokio runtime.
    pub async fn run(self) -> Outcome {
        let file = config::read_file(self.config.as_deref())?;
        if !self.serves() {
            tokio::spawn(memory::keep_near(file.memory_bytes()));
        }
        let context = Context { env: RealEnv::start(), file, config: self.config.clone() };
        let env = context.env.clone();
        let outcome = self.act(context).await;
        // Readers that are done take their announcements along: else the volume's writer would give them time for a quarter of an hour.
        let _ = env.timeout(PARTING_LIMIT, env.parted()).await;
        outcome
    }

    async fn act(self, context: Context) -> Outcome {
        if let Verb::Serve(verb) = self.verb {
            return verb.run(context).await;
        }
        if let Verb::Status(verb) = self.verb {
            return verb.run(&context).await; // asks no store, and ends its watching itself
        }
        if let Verb::Top(verb) = self.verb {
            return verb.run(&context).await; // gives the terminal back itself
        }
        // These close what they have opened.
        if let Verb::Gc(verb) = self.verb {
            return verb.run(&context).await;
        }
        if let Verb::Flatten(verb) = self.verb {
            return verb.run(&context).await;
        }
        if let Verb::Send(verb) = self.verb {
            return verb.run(&context).await;
        }
        if let Verb::Receive(verb) = self.verb {
            return verb.run(&context).await;
        }
        if let Verb::Backup(verb) = self.verb {
            return verb.run(&context).await;
        }
        if let Verb::Copy(verb) = self.verb {
            return verb.run(&context).await;
        }
        if let Verb::Bench(verb) = self.verb {
            return verb.run(&context).await;
        }
        if let Verb::Snapshot(verb) = self.verb {
            return verb.run(&context).await;
        }
        if let Verb::Import(verb) = self.verb {
            return verb.run(&context).await;
        }
        if let Verb::Export(verb) = self.verb {
            return verb.run(&context).await;
        }
        let _at_once = EndAtOnce::listen()?;
        match self.verb {
            Verb::Serve(_)
            | Verb::Status(_)
            | Verb::Top(_)
            | Verb::Gc(_)
            | Verb::Flatten(_)
            | Verb::Send(_)
            | Verb::Receive(_)
            | Verb::Copy(_)
            | Verb::Backup(_)
            | Verb::Snapshot(_)
            | Verb::Bench(_)
            | Verb::Import(_)
            | Verb::Export(_) => {
                unreachable!("returned above")
            }
            Verb::Create(verb) => verb.run(&context).await,
            Verb::Dashboard(verb) => verb.run(&context).await,
            Verb::Set(verb) => verb.run(&context).await,
            Verb::Pause(verb) => verb.run(&context).await,
            Verb::Resume(verb) => verb.run(&context).await,
            Verb::Drain(verb) => verb.run(&context).await,
            Verb::Up(verb) => verb.run(&context).await,
            Verb::Down(verb) => verb.run(&context).await,
            Verb::Docker(verb) => verb.run(&context).await,
            Verb::Doctor(verb) => verb.run(&context).await,
            Verb::Attach(verb) => verb.run(&context).await,
            Verb::Detach(verb) => verb.run(&context).await,
            Verb::KeepAttached(verb) => verb.run(&context).await,
            Verb::Freeze(verb) => verb.run(&context).await,
            Verb::Thaw(verb) => verb.run(&context).await,
            Verb::Ls(verb) => verb.run(&context).await,
            Verb::Hold(verb) => verb.run(&context).await,
            Verb::Release(verb) => verb.run(&context).await,
            Verb::Clone(verb) => verb.run(&context).await,
            Verb::Rollback(verb) => verb.run(&context).await,
            Verb::Diff(verb) => verb.run(&context).await,
            Verb::AutoSnapshot(verb) => verb.run(&context).await,
            Verb::Info(verb) => verb.run(&context).await,
            Verb::Check(verb) => verb.run(&context).await,
            Verb::Probe(verb) => verb.run(&context).await,
            Verb::Resize(verb) => verb.run(&context).await,
            Verb::Warm(verb) => verb.run(&context).await,
            Verb::Cost(verb) => verb.run(&context),
            Verb::Rm(verb) => verb.run(&context).await,
            Verb::Restore(verb) => verb.run(&context).await,
            Verb::Key(verb) => verb.run(&context).await,
            Verb::Journal(verb) => verb.run(&context).await,
            Verb::Completions(verb) => verb.run(),
            Verb::Reference(verb) => verb.run(),
        }
    }
}
