//! A server in this process on three transports, and the foreign programs that talk to it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use cistern_nbd::{Address, Listener, Server, ServerSettings, TlsMode};
use tempfile::TempDir;
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};

use crate::{
    certificates,
    export::{MemoryExport, OneExport},
};

/// Size of the disk.
pub const SIZE: u64 = 64 << 20;

/// A running server with the export "disk", and a directory for files of the test.
pub struct Fixture {
    pub dir: TempDir,
    pub tcp_port: u16,
    pub tls_port: u16,
    runtime: Runtime,
    task: JoinHandle<usize>,
    stop: oneshot::Sender<()>,
}

impl Fixture {
    pub fn start() -> Fixture {
        Fixture::with(MemoryExport::new("disk", SIZE))
    }

    pub fn with(export: MemoryExport) -> Fixture {
        let dir = tempfile::tempdir().expect("temporary directory");
        certificates::write(dir.path());
        let runtime = Runtime::new().expect("runtime");
        let listen = |address: Address, tls| {
            runtime.block_on(Listener::bind(&address, tls)).expect("the address is free")
        };
        let anywhere = || Address::Tcp("127.0.0.1:0".to_owned());
        let listeners = vec![
            listen(Address::Unix(dir.path().join("socket")), TlsMode::Off),
            listen(anywhere(), TlsMode::Off),
            listen(anywhere(), TlsMode::Required(certificates::server(dir.path()))),
        ];
        let port = |n: usize| match listeners[n].address().expect("bound") {
            Address::Tcp(text) => {
                text.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port")
            }
            Address::Unix(_) => unreachable!("only the first is a Unix socket"),
        };
        let (tcp_port, tls_port) = (port(1), port(2));
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::new(Arc::new(OneExport(Arc::new(export))), ServerSettings::default());
        let task = runtime.spawn(async move {
            let stopped = async {
                // A dropped sender is a stop as well.
                let _ = stopped.await;
            };
            server.serve(listeners, Vec::new(), stopped).await.expect("threads").cut_off
        });
        Fixture { dir, tcp_port, tls_port, runtime, task, stop }
    }

    /// The export by Unix socket, TCP and TLS, as URIs.
    pub fn uris(&self) -> [String; 3] {
        let dir = self.dir.path().display();
        [
            format!("nbd+unix:///disk?socket={dir}/socket"),
            format!("nbd://127.0.0.1:{}/disk", self.tcp_port),
            format!("nbds://localhost:{}/disk?tls-certificates={dir}", self.tls_port),
        ]
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Stops the server; every connection must have ended by itself.
    pub fn stop(self) {
        self.stop.send(()).expect("the server runs");
        assert_eq!(self.runtime.block_on(self.task).expect("the server does not panic"), 0);
    }
}

/// Bytes of a disk image with data, zeroes and holes' worth of zeroes between.
pub fn image(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    let mut state = 1u32;
    for chunk in bytes.chunks_mut(1 << 20).step_by(3) {
        for byte in &mut chunk[..700_000] {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
    }
    std::fs::write(path, &bytes).expect("writable directory");
    bytes
}

/// Runs a program of a Debian package with a limit of time and returns what it did.
pub fn attempt(package: &str, program: &str, args: &[&str]) -> Output {
    // The system's own directories first: nbdsh must find the system's Python.
    let path = format!("/usr/bin:/bin:{}", std::env::var("PATH").unwrap_or_default());
    let known = path.split(':').any(|dir| Path::new(dir).join(program).exists());
    assert!(known, "{program} is missing: install the Debian package {package}");
    Command::new("timeout")
        .args(["300", program])
        .args(args)
        .env("PATH", path)
        .output()
        .expect("timeout is part of coreutils")
}

/// Like [`attempt`], must succeed, and returns what the program printed.
pub fn run(package: &str, program: &str, args: &[&str]) -> String {
    let output = attempt(package, program, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {args:?} failed ({})\n{out}\n{err}", output.status);
    out
}
