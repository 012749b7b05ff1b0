//! The addresses on which strangers may ask: of the metrics, and of the dashboard.

use std::{io::ErrorKind, net::SocketAddr, path::PathBuf, sync::Arc, task::Context};

use tokio::net::TcpListener;

use super::{
    Door, METRICS_PATH,
    guard::{Guard, Token},
    talk,
};
use crate::{
    config::Resolved,
    control::DashboardAddress,
    daemon::{Daemon, accept::accept_all, listen::is_loopback},
    failure::{Failure, Kind, Outcome},
};

/// Connections at once to the metrics: collectors are few. Further ones wait in the system's queue.
const METRICS_CONNECTIONS_MAX: usize = 8;
/// Connections at once to the dashboard: its viewers, and what they load.
const DASHBOARD_CONNECTIONS_MAX: usize = 64;

/// A bound address.
pub struct TcpDoor {
    what: &'static str,
    connections_max: usize,
    listener: TcpListener,
    address: SocketAddr,
    door: Door,
    token_file: Option<PathBuf>,
}

impl TcpDoor {
    /// The address of the metrics, if there is to be one.
    pub async fn metrics(settings: &Resolved) -> Outcome<Option<TcpDoor>> {
        let Some(address) = &settings.metrics else { return Ok(None) };
        let (listener, address) = bind("metrics", address, 9809).await?;
        let connections_max = METRICS_CONNECTIONS_MAX;
        let door = Door::Metrics;
        Ok(Some(TcpDoor { what: "metrics", connections_max, listener, address, door, token_file: None }))
    }

    /// The address of the dashboard, if there is to be one.
    pub async fn dashboard(settings: &Resolved) -> Outcome<Option<TcpDoor>> {
        let Some(wanted) = &settings.dashboard else { return Ok(None) };
        let token_file = settings.dashboard_token_file.clone();
        let guard = match &token_file {
            Some(path) => Guard::Token(Token::read(path)?),
            None => Guard::Loopback,
        };
        let unusable = |e| unusable("dashboard", wanted, 9810, &e);
        let is_guarded = token_file.is_some() || is_loopback(wanted).await.map_err(unusable)?;
        if !is_guarded {
            let failure = Failure::usage(format!("a dashboard at {wanted} would be for everybody there"));
            return Err(failure.hint(
                "give a token with --dashboard-token-file, or listen on 127.0.0.1 and reach it by `ssh -L`",
            ));
        }
        let (listener, address) = bind("dashboard", wanted, 9810).await?;
        let (connections_max, door) = (DASHBOARD_CONNECTIONS_MAX, Door::Dashboard(guard));
        Ok(Some(TcpDoor { what: "dashboard", connections_max, listener, address, door, token_file }))
    }

    /// Where collectors find the metrics.
    pub fn metrics_url(&self) -> String {
        format!("http://{}{METRICS_PATH}", self.address)
    }

    /// Where people find the dashboard.
    pub fn dashboard_address(&self) -> DashboardAddress {
        DashboardAddress { url: format!("http://{}/", self.address), token_file: self.token_file.clone() }
    }

    /// Answers until dropped, and its connections with it.
    pub async fn serve(self, daemon: Arc<Daemon>) {
        let TcpDoor { what, connections_max, listener, door, .. } = self;
        let door = Arc::new(door);
        let accept = |cx: &mut Context<'_>| listener.poll_accept(cx);
        accept_all(what, connections_max, accept, |(stream, _)| talk(stream, door.clone(), daemon.clone()))
            .await;
    }
}

async fn bind(what: &str, address: &str, port: u16) -> Outcome<(TcpListener, SocketAddr)> {
    let failed = |e| unusable(what, address, port, &e);
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Why an address is not to be had; `port` is the usual one.
fn unusable(what: &str, address: &str, port: u16, error: &std::io::Error) -> Failure {
    let failure = Failure::io(format!("cannot listen on {address} for the {what}"), error);
    match error.kind() {
        ErrorKind::AddrInUse => Failure::new(Kind::InUse, failure.text)
            .hint(format!("another program listens there: choose another port with --{what}")),
        ErrorKind::InvalidInput => Failure::new(Kind::Usage, failure.text)
            .hint(format!("write HOST:PORT, for instance --{what} 127.0.0.1:{port}")),
        _ => failure,
    }
}
