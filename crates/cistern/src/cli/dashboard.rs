//! `cistern dashboard`: where the dashboards of this host's daemons are.

use clap::Args;
use futures_util::future::try_join_all;
use serde::Serialize;

use crate::{
    cli::{Context, status},
    config::StateSettings,
    control::{DaemonClient, DaemonStatus, DashboardAddress},
    failure::{Failure, Kind, Outcome},
    terminal,
};

/// Print where the dashboards of the running daemons are, for a browser
///
/// One line for each: the address, and the volumes that it shows; with VOLUME the address alone. A daemon has one when it is started with
/// --dashboard.
#[derive(Args)]
pub(super) struct ShowDashboard {
    /// Only of the daemon that serves this volume: its name, URL or id
    #[arg(value_name = "VOLUME")]
    volume: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,
}

/// One dashboard.
#[derive(Serialize)]
struct Line {
    pid: u32,
    #[serde(flatten)]
    address: DashboardAddress,
    volumes: Vec<String>,
}

impl Line {
    fn of(status: DaemonStatus) -> Option<Line> {
        let volumes = status.volumes.into_iter().map(|served| served.name).collect();
        Some(Line { pid: status.pid, address: status.dashboard?, volumes })
    }
}

impl ShowDashboard {
    pub async fn run(self, context: &Context) -> Outcome {
        let state_dir = self.state.resolve(&context.file)?;
        let daemons = status::asked(&state_dir, self.volume.as_deref()).await?;
        let all = try_join_all(daemons.iter().map(DaemonClient::status)).await?;
        let lines: Vec<Line> = all.into_iter().filter_map(Line::of).collect();
        if lines.is_empty() {
            let text = match &self.volume {
                Some(volume) => format!("the daemon that serves {volume} has no dashboard"),
                None => "no running daemon has a dashboard".to_owned(),
            };
            return Err(Failure::new(Kind::NotFound, text).hint(
                "start it with --dashboard 127.0.0.1:9810; `cistern status` shows the same figures, as they are now",
            ));
        }
        for file in lines.iter().filter_map(|line| line.address.token_file.as_ref()) {
            let file = file.display();
            terminal::remark(format!(
                "it asks for the token in {file}: open it once with ?token=TOKEN behind it"
            ));
        }
        match (self.json, &self.volume) {
            (true, _) => terminal::say_json(&lines),
            (false, Some(_)) => terminal::say(&lines[0].address.url),
            (false, None) => {
                let row = |line: &Line| vec![line.address.url.clone(), line.volumes.join(", ")];
                terminal::say(terminal::table(&lines.iter().map(row).collect::<Vec<_>>()))
            }
        }
    }
}
