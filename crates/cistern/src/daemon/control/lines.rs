//! What programs of builds before HTTP ask: a line of JSON each way.
//!
//! `keep-attached` goes on when the daemon below its devices is replaced by one of this build, and is itself replaced later: it can find its
//! volume and have a device of ublk served. `up --restart` of such a build can stop this daemon, to go back. Nothing else can be asked.

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::timeout,
};

use crate::{
    control::{REQUEST_BYTES_MAX, Reply},
    daemon::{Daemon, http::REQUEST_LIMIT},
    failure::{Failure, Outcome},
};

/// What can be asked.
#[derive(Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
enum Line {
    Status,
    ServeDevice { export: String, device: u32 },
    Stop { drain: bool },
}

/// Whether that is how somebody begins who speaks in lines.
pub fn begins(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'{')
}

/// Serves one connection until the client closes it or takes too long.
pub async fn talk(mut stream: BufReader<UnixStream>, daemon: &Daemon) {
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut stream).take(REQUEST_BYTES_MAX as u64);
        match timeout(REQUEST_LIMIT, bounded.read_until(b'\n', &mut line)).await {
            Ok(Ok(_)) if line.ends_with(b"\n") => {}
            _ => return,
        }
        let reply = match serde_json::from_slice(&line) {
            Ok(Line::Status) => encode(Ok(daemon.status())),
            Ok(Line::ServeDevice { export, device }) => encode(daemon.serve_device(&export, device).await),
            Ok(Line::Stop { drain }) => {
                daemon.ask_to_stop(drain);
                encode(Ok(()))
            }
            Err(_) => {
                let failure = Failure::usage("the daemon is of another version than this command");
                encode::<()>(Err(failure.hint("use the program that the daemon was started from")))
            }
        };
        if !matches!(timeout(REQUEST_LIMIT, stream.write_all(&reply)).await, Ok(Ok(()))) {
            return;
        }
    }
}

fn encode<T: Serialize>(outcome: Outcome<T>) -> Vec<u8> {
    let reply = match outcome {
        Ok(done) => Reply::Done(done),
        Err(failure) => Reply::Failed(failure),
    };
    let mut line = serde_json::to_vec(&reply).expect("replies have string keys");
    line.push(b'\n');
    line
}
