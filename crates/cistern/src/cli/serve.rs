//! `cistern serve`: volumes over NBD, in the foreground.

use clap::Args;

use crate::{
    cli::{Context, stores},
    config::Settings,
    daemon::{self, ServePlan},
    failure::Outcome,
    place::{StateUrl, state_url},
    quantity::ByteSize,
};

/// Serve volumes over NBD, in the foreground, until Ctrl-C or SIGTERM
///
/// Prints the NBD URIs under which clients find the volumes, and logs to standard error. A write
/// is acknowledged by the local journal and uploaded in the background. On Ctrl-C what is not
/// uploaded yet is uploaded, for at most --drain-timeout; what remains stays in the journal and is
/// uploaded by the next start. A second Ctrl-C leaves it there at once.
///
/// Understands systemd: readiness, status and stop notifications (Type=notify), socket activation.
#[derive(Args)]
#[command(after_long_help = stores::help())]
pub(super) struct Serve {
    /// URLs of the volumes; URL@NAME is a snapshot, which is served read-only, also beside the volume and on many hosts
    #[arg(value_name = "URL", required = true, value_parser = state_url)]
    volumes: Vec<StateUrl>,

    /// Create the volumes that do not exist, with this size; existing ones are just served
    #[arg(long, value_name = "SIZE")]
    create: Option<ByteSize>,

    /// Serve the newest committed state without claiming the volumes; writing fails
    ///
    /// Can be done while another host writes; what it writes later is not seen.
    #[arg(long, conflicts_with_all = ["create", "take_over"])]
    read_only: bool,

    /// Take the volumes from a writer that is gone and did not release them
    ///
    /// If the other writer is alive after all, it is fenced: its next contact with the store stops
    /// it. What it had acknowledged and not uploaded is then missing here, and stays in its
    /// journal for `cistern journal export`.
    #[arg(long)]
    take_over: bool,

    #[command(flatten)]
    settings: Settings,
}

impl Serve {
    pub async fn run(self, context: Context) -> Outcome {
        let plan = ServePlan {
            settings: self.settings.resolve(context.file)?,
            volumes: self.volumes,
            create_bytes: self.create.map(|size| size.0),
            read_only: self.read_only,
            take_over: self.take_over,
        };
        daemon::run(&context.env, plan).await
    }
}
