//! A real S3 server on loopback, with an empty directory.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    port::free_port,
    process::{Guard, Limit},
    scratch::Scratch,
    tool,
};

/// The module and version that `cargo xtask setup` builds.
pub const MODULE: &str = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c";
/// The bucket that every server here has.
pub const BUCKET: &str = "tank";

/// Who may do everything there.
pub const USER: &str = "cistern";
pub const SECRET: &str = "cistern-secret";
/// Where clients believe it to be; it takes every region, unless it is started in one.
const REGION: &str = "us-east-1";
/// Bodies are not hashed.
const UNSIGNED: &str = "x-amz-content-sha256: UNSIGNED-PAYLOAD";
/// A first start lays out the directory.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Between two questions whether it is.
const READY_PAUSE: Duration = Duration::from_millis(50);

/// A running server.
pub struct Minio {
    process: Guard,
    port: u16,
    region: String,
    scheme: &'static str,
}

/// How one is started.
#[derive(Default)]
struct Options<'a> {
    region: Option<&'a str>,
    /// Where its certificate and its key are, with TLS.
    tls: Option<[&'a str; 2]>,
}

/// Where the program is installed for tests.
pub fn binary() -> Result<PathBuf> {
    Ok(tool::built_directory()?.join("bin/minio"))
}

impl Minio {
    /// Starts a server on a free port over a new directory of `scratch`.
    pub fn start(scratch: &Scratch) -> Result<Minio> {
        Minio::start_on(scratch, 1)
    }

    /// The same for a server that insists on being in a region.
    pub fn start_in(scratch: &Scratch, region: &str) -> Result<Minio> {
        Minio::spawn(scratch, 1, Options { region: Some(region), ..Options::default() })
    }

    /// The same for a server that speaks TLS and nothing else, with this certificate and its key.
    pub fn start_tls(scratch: &Scratch, certificate: &str, key: &str) -> Result<Minio> {
        Minio::spawn(scratch, 1, Options { tls: Some([certificate, key]), ..Options::default() })
    }

    /// Starts a server over so many new directories of `scratch`, over which it spreads objects without copies.
    ///
    /// On one directory it writes objects through the page cache and flushes each as a whole, which holds the disk
    /// for milliseconds. On more it writes past the page cache, piece by piece.
    pub fn start_on(scratch: &Scratch, directories: usize) -> Result<Minio> {
        Minio::spawn(scratch, directories, Options::default())
    }

    fn spawn(scratch: &Scratch, directories: usize, options: Options) -> Result<Minio> {
        let Options { region, tls } = options;
        let binary = binary()?;
        if !binary.is_file() {
            bail!("{} is missing: run cargo xtask setup", binary.display());
        }
        let mut data = Vec::new();
        for n in 0..directories {
            scratch.dir(&format!("minio/{n}/{BUCKET}"))?;
            data.push(scratch.file(&format!("minio/{n}")));
        }
        let certificates = scratch.dir("minio-certificates")?;
        for (from, name) in tls.iter().flatten().zip(["public.crt", "private.key"]) {
            std::fs::copy(from, certificates.join(name))?;
        }
        let log = std::fs::File::create(scratch.file("minio.log"))?;
        let port = free_port()?;
        let mut command = Command::new(binary);
        command
            .args(["server", "--quiet", "--address", &format!("127.0.0.1:{port}")])
            .arg("--certs-dir")
            .arg(certificates)
            .args(data)
            .env("MINIO_CI_CD", "1") // directories may lie on one disk
            .env("MINIO_STORAGE_CLASS_STANDARD", "EC:0")
            .env("MINIO_ROOT_USER", USER)
            .env("MINIO_ROOT_PASSWORD", SECRET)
            .env("MINIO_BROWSER", "off")
            .env("MINIO_UPDATE", "off")
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(region) = region {
            command.env("MINIO_REGION", region);
        }
        let region = region.unwrap_or(REGION).to_owned();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let server = Minio { process: Guard::spawn(command)?, port, region, scheme };
        server.await_ready()?;
        Ok(server)
    }

    /// Runs curl with a signed request on a key of the bucket, or on the bucket itself.
    fn signed(&self, key: &str, args: &[&str]) -> Result<tool::Output> {
        self.signed_through(self.port, key, args)
    }

    fn signed_through(&self, port: u16, key: &str, args: &[&str]) -> Result<tool::Output> {
        let mut curl = self.curl()?;
        curl.args(args).arg(self.address(port, key));
        tool::run_command(curl, tool::RUN_LIMIT)
    }

    fn curl(&self) -> Result<Command> {
        let mut curl = tool::command("curl")?;
        curl.args(["--silent", "--show-error", "--fail", "--insecure", "--aws-sigv4"])
            .arg(format!("aws:amz:{}:s3", self.region))
            .args(["--user", &format!("{USER}:{SECRET}")]);
        Ok(curl)
    }

    fn address(&self, port: u16, key: &str) -> String {
        format!("{}://127.0.0.1:{port}/{BUCKET}{key}", self.scheme)
    }

    /// Uploads a file in one request.
    pub fn put(&self, key: &str, file: &Path) -> Result<()> {
        self.put_through(self.port, key, file)
    }

    /// The same through a proxy at `port`.
    pub fn put_through(&self, port: u16, key: &str, file: &Path) -> Result<()> {
        let file = file.display().to_string();
        self.signed_through(port, &format!("/{key}"), &["-H", UNSIGNED, "--upload-file", &file]).map(drop)
    }

    /// Downloads objects into files of a directory and uploads them again under other keys, by one client with so many requests at once; gives
    /// their bytes.
    pub fn copy(&self, keys: &[String], dir: &Path, at_once: usize) -> Result<u64> {
        let list = |what: &str, prefix: &str| {
            let entry = |(n, key): (usize, &String)| {
                let (address, file) =
                    (self.address(self.port, &format!("/{prefix}{key}")), dir.join(n.to_string()));
                format!("url = \"{address}\"\n{what} = \"{}\"\n", file.display())
            };
            keys.iter().enumerate().map(entry).collect::<String>()
        };
        for (what, prefix) in [("output", ""), ("upload-file", "copied/")] {
            let config = dir.join("config");
            std::fs::write(&config, list(what, prefix))?;
            let mut curl = self.curl()?;
            curl.args([
                "--no-progress-meter",
                "-H",
                UNSIGNED,
                "--parallel",
                "--parallel-max",
                &at_once.to_string(),
            ]);
            curl.arg("--config").arg(config);
            tool::run_command(curl, tool::RUN_LIMIT)?;
        }
        (0..keys.len()).map(|n| Ok(dir.join(n.to_string()).metadata()?.len())).sum()
    }

    /// The keys that begin with `prefix`, at most a thousand.
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        let prefix = prefix.replace('/', "%2F");
        let answer = self.signed(&format!("?list-type=2&prefix={prefix}"), &[])?.stdout;
        let keys = answer.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
        Ok(keys.map(str::to_owned).collect())
    }

    /// Fetches objects one after the other and throws them away; gives their bytes together.
    pub fn fetch(&self, keys: &[String]) -> Result<u64> {
        let sizes = keys.iter().map(|key| {
            let written = "%{size_download}";
            let out = self.signed(&format!("/{key}"), &["--output", "/dev/null", "--write-out", written])?;
            out.stdout.trim().parse::<u64>().context("curl's count of bytes")
        });
        sizes.sum()
    }

    /// Lets everybody read and write every object, for clients that do not sign their requests.
    pub fn open_to_all(&self) -> Result<()> {
        let policy = format!(
            r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Principal":"*","Action":["s3:GetObject","s3:PutObject"],"Resource":"arn:aws:s3:::{BUCKET}/*"}}]}}"#
        );
        self.signed("?policy=", &["-H", UNSIGNED, "--request", "PUT", "--data-binary", &policy]).map(drop)
    }

    pub fn delete(&self, key: &str) -> Result<()> {
        self.signed(&format!("/{key}"), &["--request", "DELETE"]).map(drop)
    }

    /// Its own health check says yes too early: only a signed request that is answered counts. Until then it asks to come
    /// again in two minutes, so curl's own retries would give up.
    fn await_ready(&self) -> Result<()> {
        let mut limit = Limit::new(READY_LIMIT);
        loop {
            match self.signed("?list-type=2", &[]) {
                Ok(_) => return Ok(()),
                Err(e) if limit.next_wait().is_none() => {
                    return Err(e.context("MinIO does not become ready"));
                }
                Err(_) => std::thread::sleep(READY_PAUSE),
            }
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops answering without closing connections, as a network that drops packets does.
    pub fn freeze(&self) {
        self.process.signal(libc::SIGSTOP);
    }

    /// Answers again.
    pub fn thaw(&self) {
        self.process.signal(libc::SIGCONT);
    }

    /// The variables by which a client finds the server at `port` (its own, or a proxy's).
    pub fn environment(port: u16) -> Vec<(String, String)> {
        Minio::environment_of("http", port)
    }

    /// The same where it speaks TLS; whom the client trusts is for others to say.
    pub fn tls_environment(port: u16) -> Vec<(String, String)> {
        Minio::environment_of("https", port)
    }

    fn environment_of(scheme: &str, port: u16) -> Vec<(String, String)> {
        let endpoint = format!("{scheme}://127.0.0.1:{port}");
        [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ENDPOINT", &endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", REGION),
            ("AWS_ACCESS_KEY_ID", USER),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }
}
