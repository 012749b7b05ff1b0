//! The pages of docs/start, run as they stand there: a directory, S3 with exactly the policy of its page, another S3 server, a
//! service, QEMU.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    minio::{self, Minio},
    process::Guard,
    scratch::Scratch,
    serve::Cistern,
    tool,
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
/// A daemon of a page is told to stop as by Ctrl-C, and uploads what is left.
const STOP_LIMIT: Duration = Duration::from_secs(120);

/// The blocks of a page in one language, in order.
fn blocks(page: &str, language: &str) -> Result<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/start").join(page);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let blocks = text.split("\n```").skip(1).step_by(2);
    let ours = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n').map(str::to_owned));
    Ok(ours.collect())
}

/// The surroundings of somebody who reads a page: an empty directory, in which everything is.
struct Reader {
    scratch: Scratch,
    /// Sockets have to have short paths.
    here: PathBuf,
    environment: BTreeMap<String, String>,
    /// What stands for a name of the page.
    names: Vec<(String, String)>,
}

impl Reader {
    fn new(name: &str) -> Result<Reader> {
        let scratch = Scratch::new(name)?;
        let here = scratch.socket("x").parent().context("a directory")?.to_owned();
        let binary = std::env::var("CISTERN_TEST_BINARY").unwrap_or_else(|_| CISTERN.to_owned());
        std::os::unix::fs::symlink(binary, here.join("cistern"))?;
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", here.display());
        let small = concat!(env!("CARGO_MANIFEST_DIR"), "/../cistern-harness/small.toml");
        let environment = [
            ("PATH", path.as_str()),
            ("HOME", &here.display().to_string()),
            ("CISTERN_CONFIG", small),
            ("STATE_DIRECTORY", &scratch.file("state").display().to_string()),
            ("CACHE_DIRECTORY", &scratch.file("cache").display().to_string()),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Ok(Reader { scratch, here, environment, names: Vec::new() })
    }

    fn with(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Reader {
        self.environment.extend(variables);
        self
    }

    fn shell(&self, commands: &str) -> Command {
        let commands =
            self.names.iter().fold(commands.to_owned(), |text, (name, ours)| text.replace(name, ours));
        let mut command = Command::new("bash");
        command.args(["-eu", "-c", &commands]).current_dir(&self.here);
        command.env_clear().envs(&self.environment);
        command
    }

    fn run(&self, commands: &str) -> Result<String> {
        Ok(tool::run_command(self.shell(commands), tool::RUN_LIMIT)?.stdout)
    }

    /// Runs a command that serves, until it says how to stop it.
    fn serve(&self, command: &str) -> Result<Guard> {
        let log = self.scratch.file("serve.log");
        let mut command = self.shell(&format!("exec {}", command.trim()));
        let (mut read, write) = std::io::pipe()?;
        command.stdout(write).stderr(std::fs::File::options().create(true).append(true).open(&log)?);
        let guard = Guard::spawn(command)?;
        let mut lines = BufReader::new(&mut read).lines();
        let told = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("stop:")));
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        told.with_context(|| format!("it ended: {said}"))??;
        // What it says at its end is for nobody.
        std::thread::spawn(move || std::io::copy(&mut read, &mut std::io::sink()));
        Ok(guard)
    }

    /// Runs the blocks of a page: one that serves runs beside the next, and is then told to stop.
    fn follow(&self, page: &str) -> Result<()> {
        let mut serving: Option<Guard> = None;
        for block in blocks(page, "sh")? {
            if block.starts_with("cistern serve") {
                serving = Some(self.serve(&block)?);
                continue;
            }
            self.run(&block)?;
            if let Some(mut daemon) = serving.take() {
                daemon.signal(libc::SIGINT);
                ensure!(daemon.wait(STOP_LIMIT)?.success(), "it did not stop cleanly");
            }
        }
        Ok(())
    }
}

/// The first page, from the empty directory to the removed volume.
#[test]
fn a_directory() -> Result<()> {
    let reader = Reader::new("start")?;
    ensure!(blocks("directory.md", "sh")?.len() == 4);
    reader.follow("directory.md")?;
    ensure!(!reader.here.join("tank").exists(), "nothing is left");
    Ok(())
}

/// Keys of MinIO's that allow what a policy says and nothing else.
fn keys_with(minio: &Minio, policy: &str) -> Result<Vec<(String, String)>> {
    let form = format!(
        "Action=AssumeRole&Version=2011-06-15&DurationSeconds=3600&Policy={}",
        policy.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>()
    );
    let mut curl = tool::command("curl")?;
    curl.args([
        "--silent",
        "--show-error",
        "--fail",
        "--aws-sigv4",
        "aws:amz:us-east-1:sts",
        "--data",
        &form,
    ])
    .args(["--user", &format!("{}:{}", minio::USER, minio::SECRET)])
    .arg(format!("http://127.0.0.1:{}/", minio.port()));
    let answer = tool::run_command(curl, tool::RUN_LIMIT)?.stdout;
    let get = |name: &str| -> Result<String> {
        let rest =
            answer.split(&format!("<{name}>")).nth(1).with_context(|| format!("{name} in {answer}"))?;
        Ok(rest.split('<').next().unwrap_or_default().to_owned())
    };
    let mut environment = Minio::environment(minio.port());
    environment.extend([
        ("AWS_ACCESS_KEY_ID".to_owned(), get("AccessKeyId")?),
        ("AWS_SECRET_ACCESS_KEY".to_owned(), get("SecretAccessKey")?),
        ("AWS_SESSION_TOKEN".to_owned(), get("SessionToken")?),
    ]);
    Ok(environment)
}

fn policy() -> Result<String> {
    let blocks = blocks("s3.md", "json")?;
    ensure!(blocks.len() == 1, "the page has one policy");
    Ok(blocks[0].replace("bucket", minio::BUCKET))
}

/// The second page, with keys that have exactly its policy.
#[test]
fn s3_with_the_least_that_is_allowed() -> Result<()> {
    let mut reader = Reader::new("start-s3")?;
    let minio = Minio::start(&reader.scratch)?;
    reader.names = vec![("s3://bucket".to_owned(), format!("s3://{}", minio::BUCKET))];
    reader = reader.with(keys_with(&minio, &policy()?)?);
    reader.follow("s3.md")?;
    ensure!(minio.keys("")?.is_empty(), "nothing is left");
    Ok(())
}

/// Each of the permissions of that policy is needed: without it a volume cannot even be created.
#[test]
fn each_permission_is_needed() -> Result<()> {
    let reader = Reader::new("start-policy")?;
    let minio = Minio::start(&reader.scratch)?;
    let policy = policy()?;
    for action in ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"] {
        ensure!(policy.contains(action), "{action} is not in the policy");
        let less = policy.replace(action, "s3:GetBucketLocation");
        let cistern = Cistern::under_test(CISTERN).with_environment(keys_with(&minio, &less)?);
        let url = format!("s3://{}/{}", minio::BUCKET, action.replace(':', "-"));
        let (output, code) = cistern.run_failing(&["create", &url, "--size", "1G"])?;
        ensure!(code == 7 && output.stderr.contains("403"), "{action}: {code}: {}", output.stderr);
    }
    Ok(())
}

/// The third page's server that speaks S3.
#[test]
fn another_server() -> Result<()> {
    let mut reader = Reader::new("start-minio")?;
    let minio = Minio::start(&reader.scratch)?;
    reader.names = vec![
        ("s3://bucket".to_owned(), format!("s3://{}", minio::BUCKET)),
        ("http://127.0.0.1:9000".to_owned(), format!("http://127.0.0.1:{}", minio.port())),
        ("AWS_ACCESS_KEY_ID=minioadmin".to_owned(), format!("AWS_ACCESS_KEY_ID={}", minio::USER)),
        ("AWS_SECRET_ACCESS_KEY=minioadmin".to_owned(), format!("AWS_SECRET_ACCESS_KEY={}", minio::SECRET)),
    ];
    let page = blocks("other-stores.md", "sh")?;
    ensure!(page.len() == 2);
    reader.run(&page[1])?;
    reader.with(Minio::environment(minio.port())).run(&page[0]).map(drop)
}

/// The fourth page's unit: its command, with its files and directories, says that it is ready and stops in order.
#[test]
fn a_service() -> Result<()> {
    let reader = Reader::new("start-service")?;
    let units = blocks("service.md", "ini")?;
    let [unit, file] = &units[..] else { anyhow::bail!("the page has a unit and its file") };
    let line = |text: &str, name: &str| -> Result<String> {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        Ok(found.with_context(|| format!("no {name} in the unit"))?.to_owned())
    };
    ensure!(line(unit, "Type")? == "notify" && line(unit, "EnvironmentFile")? == "/etc/cistern/%i.env");
    let url = format!("file://{}", reader.here.join("tank").display());
    ensure!(line(file, "URL")? == "s3://bucket/tank");
    ensure!(line(unit, "RuntimeDirectory")? == "cistern-%i");
    let command = line(unit, "ExecStart")?.replace("/run/cistern-%i", &reader.here.display().to_string());
    let command = command.replace("/usr/bin/cistern ", "cistern ").replace("${URL}", &url);
    let words: Vec<&str> = command.split_whitespace().collect();
    let ["cistern", "serve", served, "--listen", address] = words[..] else {
        anyhow::bail!("another command than this test knows: {command}")
    };
    reader.run(&format!("cistern create {url} --size 1G"))?;
    let cistern = Cistern::under_test(CISTERN).with_environment(reader.environment.clone());
    let socket = address.strip_prefix("unix:").context("a socket")?;
    let server = cistern.serve(&reader.scratch, served).socket(socket.into()).start()?;
    tool::run("nbdinfo", [format!("nbd+unix:///tank?socket={socket}")])?;
    server.stop()?;
    // systemd itself finds nothing to complain of.
    let written = reader.here.join("cistern-serve@.service");
    std::fs::write(&written, unit.replace("/usr/bin/cistern", "/bin/true"))?;
    let checked = tool::run("systemd-analyze", ["verify", &written.display().to_string()])?;
    ensure!(!checked.stderr.contains("cistern-serve@"), "{}", checked.stderr);
    Ok(())
}

/// A real QEMU that is asked by its own protocol.
struct Qemu {
    _process: Guard,
    to: std::io::PipeWriter,
    from: std::io::Lines<BufReader<std::io::PipeReader>>,
}

impl Qemu {
    fn start(reader: &Reader, command: &str) -> Result<Qemu> {
        let command = command.trim().replace("-monitor stdio", "-qmp stdio");
        let mut command = reader.shell(&format!("exec {command} -S"));
        let (from, out) = std::io::pipe()?;
        let (input, to) = std::io::pipe()?;
        command.stdin(input).stdout(out);
        let process = Guard::spawn(command)?;
        let mut qemu = Qemu { _process: process, to, from: BufReader::new(from).lines() };
        qemu.ask(r#"{"execute":"qmp_capabilities"}"#)?;
        Ok(qemu)
    }

    fn send(&mut self, request: &str) -> Result<()> {
        Ok(writeln!(self.to, "{request}")?)
    }

    fn answer(&mut self) -> Result<serde_json::Value> {
        loop {
            let line = self.from.next().context("QEMU ended")??;
            let json: serde_json::Value = serde_json::from_str(&line)?;
            if json.get("return").is_some() || json.get("error").is_some() {
                return Ok(json);
            }
        }
    }

    fn ask(&mut self, request: &str) -> Result<serde_json::Value> {
        self.send(request)?;
        self.answer()
    }

    /// What its disk is asked to do, through the device's own way to it.
    fn io(command: &str) -> String {
        let line = format!("qemu-io -d /machine/peripheral/disk/virtio-backend \"{command}\"");
        serde_json::json!({"execute": "human-monitor-command", "arguments": {"command-line": line}})
            .to_string()
    }

    fn done(answer: &serde_json::Value, bytes: &str) -> Result<()> {
        let text = answer["return"].as_str().unwrap_or_default();
        ensure!(text.contains(bytes) && !text.contains("failed"), "{answer}");
        Ok(())
    }
}

/// The fifth page: a machine's disk goes on through a kill of the daemon, which it does not see as an error; what was
/// flushed is there.
#[test]
fn qemu_waits_for_its_daemon() -> Result<()> {
    let reader = Reader::new("start-qemu")?;
    let page = blocks("qemu.md", "sh")?;
    let [serve, machine] = &page[..] else { anyhow::bail!("the page has a daemon and a machine") };
    let mut daemon = reader.serve(serve)?;
    let mut qemu = Qemu::start(&reader, machine)?;
    Qemu::done(&qemu.ask(&Qemu::io("write -P 0xa5 0 1M"))?, "1048576/1048576")?;
    let flushed = qemu.ask(&Qemu::io("flush"))?;
    ensure!(flushed["return"].is_string(), "{flushed}");
    for round in 1..=3u64 {
        daemon.kill();
        // It waits from here on: nobody answers yet.
        qemu.send(&Qemu::io(&format!("write -f -P {round} {round}M 1M")))?;
        daemon = reader.serve(serve)?;
        Qemu::done(&qemu.answer()?, "1048576/1048576")?;
        Qemu::done(&qemu.ask(&Qemu::io("read -P 0xa5 0 1M"))?, "1048576/1048576")?;
        Qemu::done(&qemu.ask(&Qemu::io(&format!("read -P {round} {round}M 1M")))?, "1048576/1048576")?;
    }
    drop(qemu);
    daemon.signal(libc::SIGINT);
    ensure!(daemon.wait(STOP_LIMIT)?.success(), "it stopped in order");
    Ok(())
}

/// Every variable that the help tells of is on the page of its store.
#[test]
fn the_pages_tell_all_variables() -> Result<()> {
    let pages: String = ["s3.md", "other-stores.md"]
        .map(|page| {
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/start").join(page))
        })
        .into_iter()
        .collect::<Result<_, _>>()?;
    let help = tool::run_command(
        {
            let mut command = Command::new(CISTERN);
            command.args(["create", "--help"]);
            command
        },
        tool::RUN_LIMIT,
    )?;
    let words = help.stdout.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
    let variables: Vec<&str> = words
        .filter(|word| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|cloud| word.starts_with(cloud)))
        .collect();
    ensure!(variables.len() > 10, "{variables:?}");
    let missing: Vec<&&str> = variables.iter().filter(|name| !pages.contains(**name)).collect();
    ensure!(missing.is_empty(), "{missing:?}");
    Ok(())
}
