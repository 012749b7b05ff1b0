//! A server of Google Cloud Storage's protocol on loopback, with an empty bucket.
//!
//! It is fake-gcs-server, with the uploads of the XML API in front of it (`xtask/gcs`); nothing here says what the
//! service itself does.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Result, bail};

use crate::{
    port::free_port,
    process::{Guard, Limit},
    scratch::Scratch,
    tool,
};

/// The bucket that every server here has.
pub const BUCKET: &str = "tank";

const READY_LIMIT: Duration = Duration::from_secs(60);
const READY_PAUSE: Duration = Duration::from_millis(50);

/// A running server.
pub struct Gcs {
    _process: Guard,
    port: u16,
}

/// Where `cargo xtask setup` builds the program, from what is in `xtask/gcs`.
pub fn binary() -> Result<PathBuf> {
    Ok(tool::built_directory()?.join("bin/fake-gcs"))
}

impl Gcs {
    /// Starts a server on a free port over a new directory of `scratch`.
    pub fn start(scratch: &Scratch) -> Result<Gcs> {
        let binary = binary()?;
        if !binary.is_file() {
            bail!("{} is missing: run cargo xtask setup", binary.display());
        }
        let log = std::fs::File::create(scratch.file("gcs.log"))?;
        let port = free_port()?;
        let mut command = Command::new(binary);
        command
            .args(["-address", &format!("127.0.0.1:{port}"), "-bucket", BUCKET])
            .arg("-directory")
            .arg(scratch.dir("gcs")?)
            .stdout(log.try_clone()?)
            .stderr(log);
        let server = Gcs { _process: Guard::spawn(command)?, port };
        server.await_ready()?;
        Ok(server)
    }

    fn await_ready(&self) -> Result<()> {
        let mut limit = Limit::new(READY_LIMIT);
        let url = format!("http://127.0.0.1:{}/{BUCKET}/?list-type=2", self.port);
        loop {
            match tool::run("curl", ["--silent", "--show-error", "--fail", &url]) {
                Ok(_) => return Ok(()),
                Err(e) if limit.next_wait().is_none() => {
                    return Err(e.context("fake-gcs-server does not become ready"));
                }
                Err(_) => std::thread::sleep(READY_PAUSE),
            }
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The variables by which a client finds the server at `port` (its own, or a proxy's).
    pub fn environment(port: u16) -> Vec<(String, String)> {
        // A key file for a server that wants no token.
        let account = format!(
            r#"{{"private_key":"","private_key_id":"","client_email":"","disable_oauth":true,"gcs_base_url":"http://127.0.0.1:{port}"}}"#
        );
        vec![("GOOGLE_SERVICE_ACCOUNT_KEY".to_owned(), account)]
    }
}
