//! `cistern docker`: volumes for Docker's containers (`docs/design/docker.md`).

mod api;
mod book;
mod volumes;

use std::{
    fs, io::ErrorKind, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc, task::Context as TaskContext,
};

use cistern_engine::store::StoreUrl;
use clap::{Args, ValueEnum};
use tokio::net::{UnixListener, UnixStream};

use crate::{
    cli::Context,
    config::{Settings, StateSettings},
    daemon,
    failure::{Failure, Kind, Outcome},
    kernel::DeviceDriver,
    place::place_url,
    quantity::ByteSize,
    stack::Fs,
    terminal,
};
use volumes::{VolumeDefaults, Volumes};

/// Connections served at a time; more wait. Docker asks about several volumes at once.
const CONNECTIONS_MAX: usize = 64;

/// What becomes of a volume that `docker volume rm` removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnRemove {
    /// It goes into the trash: `cistern restore` brings it back
    Trash,
    /// It is deleted at once, and for good
    Delete,
    /// It stays in the store as it is
    Keep,
}

/// Volumes for Docker's containers: what the driver `cistern` of `docker volume create` asks
///
/// Serves Docker's volume plugin API on a unix socket where Docker looks for it. A volume NAME is the volume PLACE/NAME, with a filesystem
/// on it that is brought up as by `cistern up` when the first container starts, and taken down as by `cistern down` when the last
/// has ended: then another host may have it. Options of `docker volume create`: size, fs, and url for one that lies elsewhere.
///
/// Runs until it is stopped, as root; stopping it does containers no harm, as daemons and filesystems go on without it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cistern docker --on s3://bucket/containers
  docker volume create --driver cistern --opt size=20G db
  docker run --rm --volume db:/var/lib/postgresql/data postgres")]
pub(super) struct Docker {
    /// Place of the volumes, like s3://bucket/containers or /srv/containers
    #[arg(long, value_name = "PLACE", value_parser = place_url)]
    on: StoreUrl,

    /// Size of a volume whose creation says none: space is taken only by what is written
    #[arg(long, value_name = "SIZE", default_value = "10G")]
    size: ByteSize,

    /// Kind of filesystem of a volume whose creation says none
    #[arg(long, value_name = "KIND", value_enum, default_value = "ext4")]
    fs: Fs,

    /// Driver of the kernel that makes devices of them [default: nbd]
    #[arg(long, value_name = "DRIVER", value_enum)]
    driver: Option<DeviceDriver>,

    /// What becomes of a volume that was made here, when Docker removes it; others are only forgotten
    #[arg(long, value_name = "WHAT", value_enum, default_value = "trash")]
    on_remove: OnRemove,

    /// Where Docker finds it: the name of the file is the name of the driver
    #[arg(long, value_name = "PATH", default_value = "/run/docker/plugins/cistern.sock")]
    socket: PathBuf,

    #[command(flatten)]
    state: StateSettings,

    /// More arguments for the daemons of the volumes, as of `cistern serve`
    #[arg(last = true, value_name = "SERVE-ARGUMENTS")]
    serve_args: Vec<String>,
}

impl Docker {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), ..Settings::default() };
        let state_dir = flags.resolve(context.file.clone())?.state_dir;
        let defaults = VolumeDefaults {
            place: self.on.clone(),
            size: self.size,
            fs: self.fs,
            driver: self.driver,
            on_remove: self.on_remove,
            serve_args: self.serve_args.clone(),
            config: context.config.clone(),
        };
        // The lock comes first: another one's socket is not to be taken away.
        let volumes = Arc::new(Volumes::load(state_dir, defaults)?);
        let listener = self.bind().await?;
        volumes.resume();
        terminal::say(format!("docker volumes on {} by {}", self.on, self.socket.display()))?;
        daemon::notify_ready();
        let accept = |cx: &mut TaskContext<'_>| listener.poll_accept(cx);
        daemon::accept_all("docker", CONNECTIONS_MAX, accept, |(stream, _)| {
            api::talk(stream, volumes.clone())
        })
        .await;
        Ok(())
    }

    /// The socket, for root alone; one that nobody listens at any more is replaced.
    async fn bind(&self) -> Outcome<UnixListener> {
        let path = &self.socket;
        let failed = |e| Failure::io(format!("cannot listen at {}", path.display()), &e);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        if UnixStream::connect(path).await.is_ok() {
            let failure = Failure::new(Kind::InUse, format!("another program listens at {}", path.display()));
            return Err(failure.hint("another driver takes another --socket"));
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(listener)
    }
}
