//! A gateway on loopback that shows a directory as S3: another server than MinIO, with code of its own.
//!
//! It is versitygw over plain files. It closes every connection after one answer, as it does unless it is told otherwise.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Result, bail};

use crate::{
    port::free_port,
    process::{Guard, Limit},
    scratch::Scratch,
    tool,
};

/// The module and version that `cargo xtask setup` builds.
pub const MODULE: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
/// The bucket that every server here has.
pub const BUCKET: &str = "tank";

const USER: &str = "cistern";
const SECRET: &str = "cistern-secret";
const REGION: &str = "us-east-1";
const READY_LIMIT: Duration = Duration::from_secs(60);
const READY_PAUSE: Duration = Duration::from_millis(50);

/// A running server.
pub struct Versitygw {
    _process: Guard,
    port: u16,
}

/// Where the program is installed for tests.
pub fn binary() -> Result<PathBuf> {
    Ok(tool::built_directory()?.join("bin/versitygw"))
}

impl Versitygw {
    /// Starts a server on a free port over a new directory of `scratch`.
    pub fn start(scratch: &Scratch) -> Result<Versitygw> {
        let binary = binary()?;
        if !binary.is_file() {
            bail!("{} is missing: run cargo xtask setup", binary.display());
        }
        scratch.dir(&format!("versitygw/{BUCKET}"))?;
        let log = std::fs::File::create(scratch.file("versitygw.log"))?;
        let port = free_port()?;
        let mut command = Command::new(binary);
        command
            .args(["--quiet", "--port", &format!("127.0.0.1:{port}"), "--region", REGION])
            .args(["--access", USER, "--secret", SECRET, "posix"])
            .arg(scratch.file("versitygw"))
            .stdout(log.try_clone()?)
            .stderr(log);
        let server = Versitygw { _process: Guard::spawn(command)?, port };
        server.await_ready()?;
        Ok(server)
    }

    fn await_ready(&self) -> Result<()> {
        let mut limit = Limit::new(READY_LIMIT);
        loop {
            let mut curl = tool::command("curl")?;
            curl.args(["--silent", "--show-error", "--fail", "--aws-sigv4"])
                .arg(format!("aws:amz:{REGION}:s3"))
                .args(["--user", &format!("{USER}:{SECRET}"), "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
                .arg(format!("http://127.0.0.1:{}/{BUCKET}?list-type=2", self.port));
            match tool::run_command(curl, tool::RUN_LIMIT) {
                Ok(_) => return Ok(()),
                Err(e) if limit.next_wait().is_none() => {
                    return Err(e.context("versitygw does not become ready"));
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
        [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}").as_str()),
            ("AWS_REGION", REGION),
            ("AWS_ACCESS_KEY_ID", USER),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }
}
