//! Stores that do not answer, or speak something else than they are asked in: said soon, by name, and Ctrl-C ends
//! the wait.

mod daemon;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
};

use daemon::{Home, SmallDisk};

const VERBS: [&[&str]; 5] = [
    &["serve", "s3://bucket/tank"],
    &["info", "s3://bucket/tank"],
    &["ls", "s3://bucket/"],
    &["create", "s3://bucket/tank", "--size", "1G"],
    &["rm", "s3://bucket/tank", "--yes"],
];

/// A listening port, each of whose connections is handed to `serve`.
fn endpoint(serve: fn(TcpStream)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(std::thread::spawn(move || serve(stream))))
    });
    port
}

fn command(home: &Home, verb: &[&str], endpoint: &str) -> Command {
    let mut command = home.command(verb);
    command.env("AWS_ENDPOINT_URL", endpoint).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1");
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
    command
}

/// Accepts and says nothing, until the other side goes.
fn silent(mut stream: TcpStream) {
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

/// What every command says of a store that does not answer comes long before it gives up, and Ctrl-C ends it with
/// its own exit code.
#[test]
fn a_dead_endpoint_is_told_at_once() {
    let home = Home::new();
    let port = endpoint(silent);
    for verb in VERBS {
        let mut child = command(&home, verb, &format!("http://127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let said =
            lines.by_ref().map(|line| line.expect("UTF-8")).find(|line| line.contains("does not answer yet"));
        let said = said.unwrap_or_else(|| panic!("{verb:?} ended without saying so"));
        assert!(said.contains("s3://bucket") && said.contains("trying until"), "{said}");
        let pid = libc::pid_t::try_from(child.id()).expect("a process id");
        // SAFETY: a signal to a child that was not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
        assert_eq!(child.wait().expect("a child").code(), Some(130), "{verb:?}");
    }
}

/// A directory on a full disk can be read and not written. A start says so as early as of a store that does not answer at all,
/// and goes on as soon as there is room: with what only the journal has.
#[test]
fn a_full_directory_is_told_at_once() {
    const MIB: u64 = 1 << 20;
    let home = Home::new();
    let _disk = SmallDisk::mount(home.path("disk"), "size=32m");
    let daemon = home.start(&["./disk/tank", "--create", "1G"]);
    daemon.fill(7, 0, 4 * MIB);
    daemon.kill();
    let ballast = home.path("disk/ballast");
    let mut filling = std::fs::File::create(&ballast).expect("made");
    while filling.write_all(&[1; 4096]).is_ok() {}
    drop(filling);
    let mut command = home.serve(&["./disk/tank"]);
    let mut waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut said = BufReader::new(waiting.stderr.take().expect("piped")).lines();
    let mut next =
        |text: &str| said.by_ref().map(|line| line.expect("UTF-8")).find(|line| line.contains(text));
    let told = next("has no room").expect("it ended without saying so");
    assert!(told.contains("the file system is full"), "{told}");
    std::fs::remove_file(&ballast).expect("removed");
    assert!(next("opened").is_some(), "it ended although there is room");
    waiting.kill().expect("it runs");
    waiting.wait().expect("a child");
    let daemon = home.start(&["./disk/tank"]);
    daemon.assert_filled(7, 0, 4 * MIB);
    daemon.stop();
}

/// A host without CA certificates reaches an endpoint without TLS, and is told what it lacks for another one.
#[test]
fn a_host_without_certificates() {
    let home = Home::new();
    let port = endpoint(silent);
    let without = |scheme: &str| {
        let mut command = command(&home, VERBS[1], &format!("{scheme}://127.0.0.1:{port}"));
        command.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    };
    let mut plain = without("http");
    let lines = BufReader::new(plain.stderr.take().expect("piped")).lines();
    let said: Vec<String> = lines
        .map(|line| line.expect("UTF-8"))
        .take_while(|line| !line.contains("does not answer yet"))
        .collect();
    plain.kill().expect("it still tries");
    plain.wait().expect("a child");
    assert_eq!(said, Vec::<String>::new());
    let secure = without("https").wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&secure.stderr);
    assert!(said.contains("ca-certificates"), "{said}");
}

/// Plain HTTP to a port that speaks TLS is refused at once, and the text says what to change.
#[test]
fn http_to_a_tls_port_is_named() {
    /// As a TLS server answers what is no TLS: a fatal alert.
    fn alert(mut stream: TcpStream) {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(&[21, 3, 1, 0, 2, 2, 10]);
    }
    /// As servers written in Go answer it.
    fn go(mut stream: TcpStream) {
        let _ = stream.read(&mut [0; 4096]);
        let text = "Client sent an HTTP request to an HTTPS server.\n";
        let _ = write!(stream, "HTTP/1.0 400 Bad Request\r\n\r\n{text}");
    }
    let home = Home::new();
    for serve in [alert, go] {
        let endpoint = format!("http://127.0.0.1:{}", endpoint(serve));
        for verb in VERBS {
            let output = command(&home, verb, &endpoint).output().expect("the binary runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(7), "{verb:?}: {said}");
            assert!(said.to_lowercase().contains("https"), "{verb:?}: {said}");
        }
    }
}

/// TLS to a port that speaks plain HTTP is refused at once, and the text says what to change.
#[test]
fn https_to_a_plain_port_is_named() {
    fn plain(mut stream: TcpStream) {
        let _ = stream.read(&mut [0; 4096]);
        let _ =
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    let home = Home::new();
    let endpoint = format!("https://127.0.0.1:{}", endpoint(plain));
    for verb in VERBS {
        let output = command(&home, verb, &endpoint).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{verb:?}: {said}");
        assert!(said.contains("http://"), "{verb:?}: {said}");
    }
}
