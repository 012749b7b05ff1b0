//! Connections of attached devices, from one daemon to the next by way of the keeper (`docs/design/attach.md`).
//!
//! Nothing depends on it: a connection that cannot be handed on dies, and the keeper gives its device another one.

use std::io::{Error, ErrorKind, Result};

use cistern_nbd::HandedOn;

use crate::{
    daemon::{Daemon, Served},
    kernel::{ExportAt, keep_connection, take_connections},
};

impl Daemon {
    /// Those that the daemon before left to what is served now; whether it is still the same is seen when they are served.
    pub(super) async fn take_connections(&self) -> Vec<HandedOn> {
        let (state_dir, served) = (self.state_dir.clone(), self.served());
        let take = move || {
            let mut taken = Vec::new();
            for served in served {
                match take_connections(&state_dir, export_at(&served)) {
                    Ok(all) => taken.extend(all.into_iter().map(|(identity, socket)| HandedOn {
                        export: served.name.clone(),
                        identity,
                        socket,
                    })),
                    Err(error) => {
                        tell(&error);
                        break;
                    }
                }
            }
            taken
        };
        let taken = tokio::task::spawn_blocking(take).await.expect("it does not panic");
        if !taken.is_empty() {
            tracing::info!(connections = taken.len(), "attached devices keep the connections that they had");
        }
        taken
    }

    /// Leaves connections to the next daemon.
    pub(super) async fn hand_on(&self, connections: Vec<HandedOn>) {
        if connections.is_empty() {
            return;
        }
        let (state_dir, served) = (self.state_dir.clone(), self.served());
        let give = move || -> Result<()> {
            for HandedOn { export, identity, socket } in connections {
                if let Some(served) = served.iter().find(|served| served.name == export) {
                    keep_connection(&state_dir, export_at(served), identity, &socket)?;
                }
            }
            Ok(())
        };
        match tokio::task::spawn_blocking(give).await.expect("it does not panic") {
            Ok(()) => tracing::info!("attached devices keep their connections for the next daemon"),
            Err(error) => tell(&error),
        }
    }
}

fn export_at(served: &Served) -> ExportAt {
    ExportAt { url: served.url.clone(), name: served.name.clone() }
}

/// That there is no keeper is usual: nothing is attached.
fn tell(error: &Error) {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            tracing::debug!("nobody keeps connections of attached devices");
        }
        _ => tracing::warn!(%error, "the keeper of attached devices cannot be asked"),
    }
}
