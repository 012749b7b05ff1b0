//! TCP and TLS: the same clients over the network, and who is turned away.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cistern_harness::{authority::Authority, fixture::Fixture, port::free_port, tool};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");

/// Copies a file in and out by `uri` and compares.
fn round_trip(volume: &Fixture, uri: &str) -> Result<()> {
    let original = volume.random_file("original", 64 << 20, 8)?.display().to_string();
    let back = volume.scratch.file("back").display().to_string();
    tool::run("nbdcopy", ["--flush", "--connections=3", &original, uri])?;
    tool::run("nbdcopy", ["--connections=3", uri, &back])?;
    tool::run("cmp", [&original, &back]).map(drop)
}

/// TCP on loopback works beside the unix socket.
#[test]
fn tcp_on_loopback() -> Result<()> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let volume = Fixture::start(CISTERN, "tcp", "64M", &["--listen", &address])?;
    round_trip(&volume, &format!("nbd://{address}/vol"))?;
    tool::run("nbdinfo", [volume.uri()]).map(drop)
}

/// Beyond loopback and without TLS nothing is served: the start fails and names the way out.
#[test]
fn plain_tcp_beyond_loopback_is_refused() -> Result<()> {
    let volume = Fixture::start(CISTERN, "tcp-open", "64M", &[])?;
    let Fixture { server, serve, .. } = volume;
    server.stop()?;
    let address = format!("0.0.0.0:{}", free_port()?);
    let log = serve.args(["--listen".to_owned(), address]).start_failing()?;
    ensure!(log.contains("--tls-dir") || log.contains("TLS"), "{log}");
    Ok(())
}

/// A certificate authority, the server's certificate for localhost and a client's.
fn certificates(dir: &Path) -> Result<()> {
    let authority = Authority::make(dir)?;
    for (who, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
        authority.sign(who, "DNS:localhost,IP:127.0.0.1", usage)?;
    }
    Ok(())
}

/// A directory with some of the files of another.
fn only(volume: &Fixture, from: &Path, name: &str, files: &[&str]) -> Result<PathBuf> {
    let dir = volume.scratch.dir(name)?;
    for file in files {
        std::fs::copy(from.join(file), dir.join(file)).with_context(|| format!("copy {file}"))?;
    }
    Ok(dir)
}

/// With client certificates required: libnbd and qemu get in, strangers and plaintext do not.
#[test]
fn tls_with_client_certificates() -> Result<()> {
    let volume = Fixture::start(CISTERN, "tls", "64M", &[])?;
    let all = volume.scratch.dir("certificates")?;
    certificates(&all)?;
    let server_dir =
        only(&volume, &all, "tls-server", &["ca-cert.pem", "server-cert.pem", "server-key.pem"])?;
    let client_dir =
        only(&volume, &all, "tls-client", &["ca-cert.pem", "client-cert.pem", "client-key.pem"])?;
    let bare_dir = only(&volume, &all, "tls-bare", &["ca-cert.pem"])?;
    let Fixture { server, serve, cistern, url, scratch } = volume;
    server.stop()?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let serve = serve.args([
        "--listen".into(),
        address.clone(),
        "--tls-dir".into(),
        server_dir.display().to_string(),
    ]);
    let server = serve.start()?;
    let volume = Fixture { server, serve, cistern, url, scratch };
    let port = address.rsplit_once(':').context("an address has a port")?.1;

    let uri = |dir: &Path| format!("nbds://localhost:{port}/vol?tls-certificates={}", dir.display());
    round_trip(&volume, &uri(&client_dir))?;
    tool::run(
        "qemu-img",
        [
            "info",
            "--object",
            &format!("tls-creds-x509,id=tls0,dir={},endpoint=client", client_dir.display()),
            "--image-opts",
            &format!("driver=nbd,host=localhost,port={port},export=vol,tls-creds=tls0"),
        ],
    )?;

    tool::run_failing("nbdinfo", [uri(&bare_dir)])?; // no certificate of its own
    let strangers = volume.scratch.dir("strangers")?;
    certificates(&strangers)?;
    let mixed = volume.scratch.dir("tls-mixed")?;
    for (from, file) in
        [(&all, "ca-cert.pem"), (&strangers, "client-cert.pem"), (&strangers, "client-key.pem")]
    {
        std::fs::copy(from.join(file), mixed.join(file))?;
    }
    tool::run_failing("nbdinfo", [uri(&mixed)])?; // signed by another authority
    tool::run_failing("nbdinfo", [uri(&strangers)])?; // trusts another authority than the server's
    tool::run_failing("nbdinfo", [format!("nbd://localhost:{port}/vol")])?; // no TLS at all
    tool::run("nbdinfo", [uri(&client_dir)]).map(drop)
}
