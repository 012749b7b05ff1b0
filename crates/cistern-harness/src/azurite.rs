//! A server of Azure's blob protocol on loopback, with an empty container.
//!
//! It is Azurite, which Microsoft keeps for tests; nothing here says what the service itself does.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail};

use crate::{
    port::free_port,
    process::{Guard, Limit},
    scratch::Scratch,
    tool,
};

/// The package and version that `cargo xtask setup` installs: the newest for Debian's Node.js.
pub const PACKAGE: &str = "azurite@3.35.0";
/// The container that every server here has.
pub const CONTAINER: &str = "tank";

const ACCOUNT: &str = "cistern";
/// Any bytes, in base64.
const KEY: &str = "Y2lzdGVybi1zZWNyZXQ=";
const READY_LIMIT: Duration = Duration::from_secs(60);
const READY_PAUSE: Duration = Duration::from_millis(50);
/// Makes the container, as nobody else here signs requests of Azure.
const MAKE_CONTAINER: &str = include_str!("azurite/make_container.py");

/// A running server.
pub struct Azurite {
    _process: Guard,
    port: u16,
}

/// Where the program is installed for tests.
pub fn directory() -> Result<PathBuf> {
    Ok(tool::built_directory()?.join("azurite"))
}

/// What Node.js runs.
pub fn script() -> Result<PathBuf> {
    Ok(directory()?.join("node_modules/azurite/dist/src/blob/main.js"))
}

impl Azurite {
    /// Starts a server on a free port over a new directory of `scratch`.
    pub fn start(scratch: &Scratch) -> Result<Azurite> {
        let script = script()?;
        if !script.is_file() {
            bail!("{} is missing: run cargo xtask setup", script.display());
        }
        let log = std::fs::File::create(scratch.file("azurite.log"))?;
        let port = free_port()?;
        let mut command = tool::command("node")?;
        command
            .arg(script)
            .args(["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--blobHost", "127.0.0.1"])
            .args(["--blobPort", &port.to_string()])
            .arg("--location")
            .arg(scratch.dir("azurite")?)
            .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{KEY}"))
            .stdout(log.try_clone()?)
            .stderr(log);
        let server = Azurite { _process: Guard::spawn(command)?, port };
        server.make_container()?;
        Ok(server)
    }

    /// The first request that is answered says that the server is ready.
    fn make_container(&self) -> Result<()> {
        let mut limit = Limit::new(READY_LIMIT);
        loop {
            let arguments = ["-c", MAKE_CONTAINER, &self.port.to_string(), ACCOUNT, KEY, CONTAINER];
            match tool::run("python3", arguments) {
                Ok(_) => return Ok(()),
                Err(e) if limit.next_wait().is_none() => {
                    return Err(e.context("Azurite does not become ready"));
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
            ("AZURE_STORAGE_ENDPOINT", format!("http://127.0.0.1:{port}/{ACCOUNT}").as_str()),
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT),
            ("AZURE_STORAGE_ACCOUNT_KEY", KEY),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }
}
