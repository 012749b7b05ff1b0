//! The pages of docs/start, run as they stand there: a directory, S3 with exactly the policy of its page, another S3 server, a
//! service, QEMU by itself and as libvirt starts it.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
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
    // MinIO answers requests for objects before it has read who its users are, and until it has it refuses this one with 400.
    curl.args(["--retry", "20", "--retry-delay", "1", "--retry-all-errors"]);
    curl.args([
        "--silent",
        "--show-error",
        "--fail-with-body",
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
        let other = if action == "s3:ListBucket" { "s3:GetBucketLocation" } else { "s3:GetObjectTagging" };
        let less = policy.replace(action, other);
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
    to: Box<dyn Write>,
    from: std::io::Lines<BufReader<Box<dyn Read>>>,
    /// How it calls the device.
    disk: &'static str,
    /// What it says of a command lands where we read.
    tells: bool,
}

impl Qemu {
    fn start(reader: &Reader, command: &str) -> Result<Qemu> {
        let command = command.trim().replace("-monitor stdio", "-qmp stdio");
        let mut command = reader.shell(&format!("exec {command} -S"));
        let (from, out) = std::io::pipe()?;
        let (input, to) = std::io::pipe()?;
        command.stdin(input).stdout(out);
        let (process, from) = (Guard::spawn(command)?, BufReader::new(Box::new(from) as _).lines());
        Qemu { _process: process, to: Box::new(to), from, disk: "disk", tells: true }.greet()
    }

    fn greet(mut self) -> Result<Qemu> {
        self.ask(r#"{"execute":"qmp_capabilities"}"#)?;
        Ok(self)
    }

    /// As libvirt starts a domain with this disk, and asked on a socket beside libvirt's own. Not as root: then libvirt wants a user that the package of its
    /// daemon makes. Among processes of its own, of which the first buries what others leave: so the machine dies with who started it.
    fn by_libvirt(reader: &Reader, disk: &str) -> Result<Qemu> {
        let root = reader.here.join("libvirt");
        std::fs::create_dir_all(root.join("etc"))?;
        // Its own log daemon does not run here.
        std::fs::write(root.join("etc/qemu.conf"), "stdio_handler = \"file\"\n")?;
        let (socket, domain) = (root.join("qmp"), root.join("domain.xml"));
        std::fs::write(
            &domain,
            DOMAIN.replace("DISK", disk).replace("SOCKET", &socket.display().to_string()),
        )?;
        let own = format!("chown -R {NOBODY}:{NOBODY} {}", root.display());
        reader.run(&own)?;
        std::fs::set_permissions(&reader.here, PermissionsExt::from_mode(0o755))?;
        let mut command = reader.shell(&format!(
            "exec unshare --pid --fork --kill-child --mount-proc dash -c '
             setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {} --verbose --root={} {} & wait'",
            tool::find("virt-qemu-run")?.display(),
            root.display(),
            domain.display()
        ));
        command.env("HOME", &root).env("XDG_RUNTIME_DIR", &root);
        let (out, write) = std::io::pipe()?;
        command.stdout(write.try_clone()?).stderr(write);
        let process = Guard::spawn(command)?;
        let mut said = String::new();
        let mut lines = BufReader::new(out).lines();
        while !said.contains("guest running") {
            said += &lines.next().with_context(|| format!("libvirt started nothing: {said}"))??;
        }
        // What it says later is for nobody, and has to go somewhere.
        std::thread::spawn(move || lines.for_each(drop));
        let stream = UnixStream::connect(&socket)?;
        let from = BufReader::new(Box::new(stream.try_clone()?) as _).lines();
        Qemu { _process: process, to: Box::new(stream), from, disk: "virtio-disk0", tells: false }.greet()
    }

    fn send(&mut self, request: &str) -> Result<()> {
        Ok(writeln!(self.to, "{request}")?)
    }

    /// What it says of its disk, and then that it is done.
    fn answer(&mut self) -> Result<String> {
        let mut said = String::new();
        loop {
            let line = self.from.next().context("QEMU ended")??;
            match serde_json::from_str::<serde_json::Value>(&line) {
                Ok(json) if json.get("error").is_some() => anyhow::bail!("{json}"),
                Ok(json) if json.get("return").is_some() => return Ok(said + &json["return"].to_string()),
                Ok(_) => {}
                Err(_) => said += &line,
            }
        }
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        self.send(request)?;
        self.answer()
    }

    /// What its disk is asked to do, through the device's own way to it.
    fn io(&self, command: &str) -> String {
        let line = format!("qemu-io -d /machine/peripheral/{}/virtio-backend \"{command}\"", self.disk);
        serde_json::json!({"execute": "human-monitor-command", "arguments": {"command-line": line}})
            .to_string()
    }

    fn done(&self, answer: &str) -> Result<()> {
        let done = answer.contains("1048576/1048576 bytes") && !answer.contains("failed");
        ensure!(done || !self.tells, "{answer}");
        Ok(())
    }

    /// A MiB of its disk as the machine reads it, and as somebody else does.
    fn shows(&mut self, uri: &str, pattern: u64, at_mib: u64) -> Result<()> {
        let read = format!("read -P {pattern} {at_mib}M 1M");
        let answer = self.ask(&self.io(&read))?;
        self.done(&answer)?;
        let seen = tool::run("qemu-io", ["-r", "-f", "raw", "-c", &read, uri])?.stdout;
        ensure!(seen.contains("1048576/1048576 bytes") && !seen.contains("failed"), "{seen}");
        Ok(())
    }

    /// Its daemon is killed and started again, while it writes: to the machine that is a pause, and what was flushed is there.
    fn outlives(mut self, reader: &Reader, serve: &str, mut daemon: Guard) -> Result<()> {
        let uri = format!("nbd+unix:///tank?socket={}", reader.here.join("tank.sock").display());
        let written = self.ask(&self.io("write -P 165 0 1M"))?;
        self.done(&written)?;
        let flushed = self.ask(&self.io("flush"))?;
        ensure!(!flushed.contains("rror"), "{flushed}");
        for round in 1..=3 {
            daemon.kill();
            // It waits from here on: nobody answers yet.
            self.send(&self.io(&format!("write -f -P {round} {round}M 1M")))?;
            daemon = reader.serve(serve)?;
            let written = self.answer()?;
            self.done(&written)?;
            self.shows(&uri, 165, 0)?;
            self.shows(&uri, round, round)?;
        }
        drop(self);
        daemon.signal(libc::SIGINT);
        ensure!(daemon.wait(STOP_LIMIT)?.success(), "it stopped in order");
        Ok(())
    }
}

/// Who has nothing.
const NOBODY: u32 = 65534;

/// A machine around a disk of the page.
const DOMAIN: &str = r"<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>machine</name>
  <memory unit='MiB'>64</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <features><acpi/></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    DISK
  </devices>
  <qemu:commandline><qemu:arg value='-qmp'/><qemu:arg value='unix:SOCKET,server=on,wait=off'/></qemu:commandline>
</domain>";

/// The fifth page: a machine's disk goes on through a kill of the daemon, which it does not see as an error; what was
/// flushed is there.
#[test]
fn qemu_waits_for_its_daemon() -> Result<()> {
    let reader = Reader::new("start-qemu")?;
    let page = blocks("qemu.md", "sh")?;
    let [serve, machine] = &page[..] else { anyhow::bail!("the page has a daemon and a machine") };
    let daemon = reader.serve(serve)?;
    Qemu::start(&reader, machine)?.outlives(&reader, serve, daemon)
}

/// The disk of the same page, as libvirt understands it: what libvirt gives QEMU outlives a daemon as well.
#[test]
fn libvirt_starts_a_machine_on_it() -> Result<()> {
    let reader = Reader::new("start-libvirt")?;
    let (page, disk) = (blocks("qemu.md", "sh")?, blocks("qemu.md", "xml")?);
    let [disk] = &disk[..] else { anyhow::bail!("the page has one disk") };
    let socket = reader.here.join("tank.sock");
    let disk = disk.replace("/run/cistern-tank/nbd.sock", &socket.display().to_string());
    // Whoever runs the machine may use the socket, as the page has it.
    let serve = format!("bash -c 'umask 0000; exec {}'", page[0].trim());
    let daemon = reader.serve(&serve)?;
    Qemu::by_libvirt(&reader, &disk)?.outlives(&reader, &serve, daemon)
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
