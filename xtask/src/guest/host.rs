//! What a guest finds on its host: an S3 server behind a link that the case changes, and a peer that serves a device out of it.
//!
//! The guest reaches loopback of the host at 10.0.2.2. A case asks by one line on a connection of its own, and gets `ok` or what went
//! wrong: `link MS MB` (a round trip and 10^6 bytes a second), `link wide`, `link away` (nothing comes through until it is set again),
//! `peer start`, `peer stop` (answered once everything is in the server).

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use cistern_harness::{
    link::{Conditions, Link},
    minio::Minio,
    pidfile::PidFile,
    port::free_port,
    process::Guard,
    s3backer::S3Backer,
    scratch::Scratch,
    tool,
};

/// Of the peer's device.
const PEER_BYTES: u64 = 1 << 30;
const PEER_PREFIX: &str = "peer/";
/// A link that is away: what is sent now would arrive after the case.
const AWAY: Duration = Duration::from_secs(24 * 3600);

/// All of it, until the guest has ended.
pub struct Host {
    state: Arc<Mutex<State>>,
    link_port: u16,
    peer_port: u16,
    control_port: u16,
}

struct State {
    peer: Option<Peer>,
    peer_port: u16,
    link: Link,
    _minio: Minio,
    scratch: Scratch,
}

/// nbdkit in front of s3backer's file. Dropped in this order.
struct Peer {
    nbdkit: Guard,
    backer: S3Backer,
}

impl Host {
    pub fn start() -> Result<Host> {
        let scratch = Scratch::new("guest-host")?;
        let minio = Minio::start(&scratch)?;
        let link = Link::start(minio.port())?;
        let (link_port, peer_port) = (link.port(), free_port()?);
        let state = State { peer: None, peer_port, link, _minio: minio, scratch };
        let state = Arc::new(Mutex::new(state));
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let control_port = listener.local_addr()?.port();
        let asked = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let _ = answer(&asked, client); // a guest that is gone asks nothing more
            }
        });
        Ok(Host { state, link_port, peer_port, control_port })
    }

    /// Says to a case where everything is, as variables of its shell.
    pub fn describe(&self, to: &Path) -> Result<()> {
        let endpoint = format!("http://10.0.2.2:{}", self.link_port);
        let mut text = String::new();
        for (name, value) in Minio::environment(self.link_port) {
            let value = if name.starts_with("AWS_ENDPOINT") { &endpoint } else { &value };
            text += &format!("export {name}={value}\n");
        }
        text += &format!("peer_port={}\ncontrol_port={}\n", self.peer_port, self.control_port);
        std::fs::write(to, text).context("what the guest is told of its host")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let mut state = self.state.lock().expect("no panic");
        state.link.set(Conditions::default());
        state.peer = None;
    }
}

fn answer(state: &Mutex<State>, mut client: TcpStream) -> Result<()> {
    let mut line = String::new();
    BufReader::new(client.try_clone()?).read_line(&mut line)?;
    let said = match state.lock().expect("no panic").obey(line.trim()) {
        Ok(()) => "ok".to_owned(),
        Err(e) => format!("{e:#}").replace('\n', " "),
    };
    writeln!(client, "{said}")?;
    Ok(())
}

impl State {
    fn obey(&mut self, line: &str) -> Result<()> {
        match *line.split(' ').collect::<Vec<_>>() {
            ["link", "wide"] => self.link.set(Conditions::default()),
            ["link", "away"] => self.link.set(Conditions { round_trip: AWAY, ..Conditions::default() }),
            ["link", ms, mb] => self.link.set(Conditions::wan(ms.parse()?, mb.parse()?)),
            ["peer", "start"] => self.peer = Some(self.start_peer()?),
            ["peer", "stop"] => {
                let peer = self.peer.take().context("there is no peer")?;
                drop(peer.nbdkit);
                peer.backer.stop()?;
            }
            _ => bail!("what is {line}?"),
        }
        Ok(())
    }

    fn start_peer(&self) -> Result<Peer> {
        let backer = S3Backer::start(&self.scratch, self.link.port(), PEER_PREFIX, PEER_BYTES)?;
        let pid = PidFile::new(&self.scratch, "nbdkit-s3backer")?;
        let mut command: Command = tool::command("nbdkit")?;
        command.arg("--foreground").arg("--pidfile").arg(pid.path()).arg("--ipaddr=127.0.0.1");
        command.arg(format!("--port={}", self.peer_port)).arg("file").arg(backer.file());
        Ok(Peer { nbdkit: pid.start(&self.scratch, command)?, backer })
    }
}
