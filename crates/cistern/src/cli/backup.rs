//! `cistern backup`: the newest state of volumes, kept as snapshots of volumes in another place.
//!
//! A backup is a volume like any other. What each file here does: `run` makes backups, `making` each of them, `earlier` finishes what was begun before, `compare` reads both ends,
//! `browse` finds and lists them, `verify` reads them back, `restore` makes a volume of one.

mod browse;
mod compare;
mod earlier;
mod making;
mod restore;
mod run;
mod verify;

use clap::{Args, Subcommand};

use crate::{
    cli::Context,
    failure::Outcome,
    signals::{EndAtOnce, Interruption},
};

/// Back up volumes into another place: one command for cron or a timer
///
/// Makes a snapshot of all of them, of one instant, whether a daemon of this host serves them or nobody does. What changed since the last backup is
/// copied into a volume of the same name in the place --to; that volume is the backup. Each backup is a snapshot of it, backup-TIME, and is
/// shown, served, cloned or copied like any other. What was copied is read back from the store and verified. Then --keep says which older backups stay.
///
/// On the volume itself a bookmark is left of the snapshot, which takes no space, and from which the next backup goes on. If there was a rollback
/// since, everything is read and compared, and what differs is written. Whatever is interrupted or killed, the same command finishes: what came is
/// kept and not brought again, and what nobody had verified is verified first. `cistern receive --abort PLACE/NAME` goes back instead.
///
/// Of several volumes those that fail keep nobody else from being backed up.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Backup {
    #[command(subcommand)]
    verb: Option<BackupVerb>,

    #[command(flatten)]
    run: run::Run,
}

#[derive(Subcommand)]
enum BackupVerb {
    Ls(browse::List),
    Verify(verify::Verify),
    Restore(restore::RestoreBackup),
}

impl Backup {
    pub async fn run(self, context: &Context) -> Outcome {
        match self.verb {
            None => Interruption::on_signal(async |stop| self.run.run(context, &stop).await).await?,
            Some(BackupVerb::Restore(verb)) => {
                Interruption::on_signal(async |stop| verb.run(context, &stop).await).await?
            }
            Some(BackupVerb::Ls(verb)) => {
                let _at_once = EndAtOnce::listen()?;
                verb.run(context).await
            }
            Some(BackupVerb::Verify(verb)) => {
                let _at_once = EndAtOnce::listen()?;
                verb.run(context).await
            }
        }
    }
}
