//! A real S3 server on the loopback interface, for as long as its guard lives.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use cistern_engine::{env::Env, store::Variables};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SECRET: &str = "cistern-test";
/// How long the server may take to become ready.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A running server with one bucket, `bucket`. Killed and removed when dropped.
pub struct Minio {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Drop for Minio {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Minio {
    pub async fn start(env: &Env) -> Minio {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("bucket")).expect("a bucket is a directory");
        let port = free_port();
        let child = Command::new(binary())
            .args(["server", "--quiet", "--address", &format!("127.0.0.1:{port}")])
            .arg(dir.path())
            .env("MINIO_ROOT_USER", SECRET)
            .env("MINIO_ROOT_PASSWORD", SECRET)
            .env("MINIO_BROWSER", "off")
            .env("MINIO_UPDATE", "off")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server's binary runs");
        let mut minio = Minio { child, port, _dir: dir };
        minio.wait_ready(env).await;
        minio
    }

    /// The variables that lead a client to this server.
    pub fn variables(&self) -> Variables {
        Variables::default()
            .with("AWS_ENDPOINT_URL", &format!("http://127.0.0.1:{}", self.port))
            .with("AWS_REGION", "us-east-1")
            .with("AWS_ACCESS_KEY_ID", SECRET)
            .with("AWS_SECRET_ACCESS_KEY", SECRET)
    }

    async fn wait_ready(&mut self, env: &Env) {
        let begin = env.now();
        while !self.is_ready().await {
            let gone = self.child.try_wait().expect("a child can be asked");
            assert!(gone.is_none(), "the S3 server ended at once: {gone:?}");
            assert!(env.now() - begin < READY_LIMIT, "the S3 server is not ready after {READY_LIMIT:?}");
            env.sleep(Duration::from_millis(50)).await;
        }
    }

    async fn is_ready(&self) -> bool {
        let ask = async {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
            stream.write_all(b"GET /minio/health/ready HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        ask.await
            .is_ok_and(|answer| answer.starts_with(b"HTTP/1.0 200") || answer.starts_with(b"HTTP/1.1 200"))
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it has an address").port()
}

fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CISTERN_TEST_MINIO") {
        return path.into();
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let in_path = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|dir| dir.join("minio"))
        .find(|path| path.is_file());
    let path = in_path.unwrap_or_else(|| home.join(".cache/cistern-test/bin/minio"));
    assert!(
        path.is_file(),
        "this test needs the minio server: run `cargo xtask setup`, or name the binary in CISTERN_TEST_MINIO"
    );
    path
}
