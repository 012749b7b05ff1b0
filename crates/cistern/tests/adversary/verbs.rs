//! The verbs of the table: how each is run, and what is right when it ends well and when it does not.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use cistern_harness::{
    adversary::Adversary,
    nbd::{Client, Dialect},
    process::Guard,
    serve::Cistern,
    tool::{self, Output},
};

use crate::world::{KEY, NEW_KEY, cistern, world};

/// The longest that a command may take: opening two volumes one after the other, each tried for a minute, on a busy machine.
pub const VERB_LIMIT: Duration = Duration::from_secs(200);
const TANK: &str = "s3://adverse/tank";
const TWIN: &str = "s3://adverse/twin";
const SEALED: &str = "s3://adverse/sealed";
const VAULT: &str = "s3://adverse/vault";
const PIECE_BYTES: u32 = 1 << 20;

/// One cell: a verb that is run against a store.
pub struct Cell<'a> {
    pub store: &'a Adversary,
    pub dir: PathBuf,
    /// What the verb says where nothing is wrong.
    pub honest: Option<&'a str>,
}

impl Cell<'_> {
    pub fn cistern(&self) -> Cistern {
        cistern(self.store, &self.dir)
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Files that commands name.
    fn put_files(&self, args: &[&str]) -> Result<()> {
        let world = world();
        let files: [(&str, &[u8]); 4] =
            [("key", &KEY), ("new-key", &NEW_KEY), ("whole", &world.whole), ("image", &world.head)];
        for (name, bytes) in files {
            if args.contains(&format!("{{dir}}/{name}").as_str()) {
                std::fs::write(self.file(name), bytes)?;
            }
        }
        Ok(())
    }

    fn run(&self, args: &[&str]) -> Result<(ExitStatus, Output)> {
        self.put_files(args)?;
        let mut command = self.cistern().command();
        command.args(args.iter().map(|arg| arg.replace("{dir}", &self.dir.display().to_string())));
        tool::finish(command, VERB_LIMIT)
    }

    /// The same, on a correct store, and well.
    fn ok(&self, args: &[&str]) -> Result<String> {
        self.store.honest();
        let (status, output) = self.run(args)?;
        ensure!(status.success(), "afterwards, {args:?}: {status}\n{}{}", output.stdout, output.stderr);
        Ok(output.stdout)
    }

    /// Afterwards a volume holds one of these.
    fn holds(&self, url: &str, images: &[&[u8]]) -> Result<()> {
        self.holds_with(url, &[], images)
    }

    /// The same, of one that is opened with these arguments.
    fn holds_with(&self, url: &str, args: &[&str], images: &[&[u8]]) -> Result<()> {
        self.ok(&[&["export", url, "{dir}/after", "--force"], args].concat())?;
        let found = std::fs::read(self.file("after"))?;
        std::fs::remove_file(self.file("after"))?;
        ensure!(images.contains(&&found[..]), "afterwards, {url} holds something else");
        Ok(())
    }

    fn names_below(&self, prefix: &str) -> usize {
        self.store.objects().keys().filter(|name| name.starts_with(prefix)).count()
    }
}

/// What is looked at when a verb has ended.
type Look = fn(&Cell<'_>) -> Result<()>;

/// What a verb is to give when it ends well.
pub enum Right {
    /// It prints what it prints where nothing is wrong.
    Prints,
    /// It fails with this exit code on a correct store, and may not succeed on any.
    Never(i32),
    /// It writes `{dir}/out`.
    Writes(fn() -> &'static [u8]),
    Leaves(Look),
    /// It finds out what the store is like: another test judges that.
    Anything,
}

pub struct Verb {
    pub name: &'static str,
    args: &'static [&'static str],
    pub right: Right,
    /// What has to be so when it fails.
    otherwise: Look,
    /// What is taken out of the store first.
    without: Option<&'static str>,
}

/// Afterwards `tank` is sound, and holds what it held.
fn tank_is_sound(cell: &Cell<'_>) -> Result<()> {
    cell.ok(&["check", TANK, "--data"])?;
    cell.holds(TANK, &[&world().head])
}

/// What was in the trash for long enough is gone, and nothing else is.
fn expired_is_gone(cell: &Cell<'_>) -> Result<()> {
    ensure!(cell.names_below("expired/") == 0, "{} objects are left", cell.names_below("expired/"));
    cell.ok(&["restore", "s3://adverse/old"])?;
    tank_is_sound(cell)
}

fn nothing(_: &Cell<'_>) -> Result<()> {
    Ok(())
}

impl Verb {
    const fn reads(name: &'static str, args: &'static [&'static str], right: Right) -> Verb {
        Verb { name, args, right, otherwise: nothing, without: None }
    }

    const fn changes(
        name: &'static str,
        args: &'static [&'static str],
        right: Look,
        otherwise: Look,
    ) -> Verb {
        Verb { name, args, right: Right::Leaves(right), otherwise, without: None }
    }
}

/// All of them.
pub const VERBS: &[Verb] = &[
    Verb::reads("info", &["info", TANK, "--json"], Right::Prints),
    Verb::reads("ls PLACE", &["ls", "s3://adverse/", "-H"], Right::Prints),
    Verb::reads("ls --trash", &["ls", "s3://adverse/", "--trash", "--json"], Right::Prints),
    Verb::reads("ls VOLUME", &["ls", TANK, "--json"], Right::Prints),
    Verb::reads("ls --space", &["ls", TANK, "--space", "--json"], Right::Prints),
    Verb::reads("check", &["check", TANK], Right::Prints),
    Verb::reads("check --data", &["check", TWIN, "--data"], Right::Prints),
    Verb::reads("check --space", &["check", TANK, "--space"], Right::Prints),
    Verb {
        name: "check, damaged",
        args: &["check", TANK, "--data"],
        right: Right::Never(5),
        otherwise: nothing,
        without: Some("tank/"),
    },
    Verb {
        name: "export, damaged",
        args: &["export", TANK, "{dir}/out"],
        right: Right::Never(4),
        otherwise: nothing,
        without: Some("tank/"),
    },
    Verb::reads("export", &["export", TANK, "{dir}/out"], Right::Writes(|| &world().head)),
    Verb::reads("export CLONE", &["export", TWIN, "{dir}/out"], Right::Writes(|| &world().twin)),
    Verb::reads(
        "send",
        &["send", "s3://adverse/tank@tuesday", "--from", "monday", "--to", "{dir}/out"],
        Right::Writes(|| &world().stream),
    ),
    Verb::reads(
        "diff",
        &["diff", "s3://adverse/tank@monday", "s3://adverse/tank@tuesday", "--json"],
        Right::Prints,
    ),
    Verb::reads("backup ls", &["backup", "ls", VAULT, "--json"], Right::Prints),
    Verb::reads("backup verify", &["backup", "verify", "s3://adverse/vault/tank"], Right::Prints),
    Verb::reads("serve --read-only", &[], Right::Anything),
    Verb::reads("probe", &["probe", "s3://adverse/tank"], Right::Anything),
    Verb::changes(
        "copy",
        &["copy", "s3://adverse/tank@tuesday", "{dir}/copy"],
        |cell| cell.holds("{dir}/copy", &[&world().tuesday]),
        nothing,
    ),
    Verb::changes(
        "copy, bucket",
        &["copy", "s3://adverse/tank@tuesday", "s3://adverse/new"],
        |cell| cell.holds("s3://adverse/new", &[&world().tuesday]),
        nothing,
    ),
    Verb::changes(
        "backup",
        &["backup", TANK, "--to", VAULT, "--keep", "1y:1"],
        |cell| cell.holds("s3://adverse/vault/tank", &[&world().head]),
        |cell| {
            tank_is_sound(cell)?;
            cell.ok(&["backup", "verify", "s3://adverse/vault/tank"]).map(drop)
        },
    ),
    Verb::changes(
        "backup restore",
        &["backup", "restore", "s3://adverse/vault/tank", "{dir}/back"],
        |cell| cell.holds("{dir}/back", &[&world().monday]),
        nothing,
    ),
    Verb::changes(
        "receive",
        &["receive", "s3://adverse/new@tuesday", "{dir}/whole"],
        |cell| cell.holds("s3://adverse/new@tuesday", &[&world().tuesday]),
        nothing,
    ),
    Verb::changes(
        "import",
        &["import", "{dir}/image", "s3://adverse/new", "--format", "raw"],
        |cell| cell.holds("s3://adverse/new", &[&world().head]),
        nothing,
    ),
    Verb::changes(
        "key change",
        &["key", "change", SEALED, "--key-file", "{dir}/key", "--new-key-file", "{dir}/new-key"],
        |cell| cell.holds_with(SEALED, &["--key-file", "{dir}/new-key"], &[&world().sealed]),
        |cell| {
            let opens = |key| cell.holds_with(SEALED, &["--key-file", key], &[&world().sealed]);
            opens("{dir}/key").or_else(|_| opens("{dir}/new-key"))
        },
    ),
    Verb::changes(
        "hold",
        &["hold", "s3://adverse/tank@tuesday", "tape"],
        |cell| {
            let told = cell.ok(&["ls", TANK, "--json"])?;
            ensure!(told.contains("tape"), "afterwards, {told}");
            tank_is_sound(cell)
        },
        tank_is_sound,
    ),
    Verb::changes("rm --expired", &["rm", "s3://adverse/", "--expired", "--yes"], expired_is_gone, |cell| {
        // Again finishes it.
        cell.ok(&["rm", "s3://adverse/", "--expired", "--yes"])?;
        expired_is_gone(cell)
    }),
    Verb::changes(
        "snapshot",
        &["snapshot", "s3://adverse/tank@new"],
        |cell| {
            cell.holds("s3://adverse/tank@new", &[&world().head])?;
            tank_is_sound(cell)
        },
        tank_is_sound,
    ),
    Verb::changes(
        "rm SNAPSHOT",
        &["rm", "s3://adverse/tank@tuesday"],
        |cell| {
            let listed = cell.ok(&["ls", TANK, "-H"])?;
            ensure!(!listed.contains("tuesday"), "afterwards, it is listed still: {listed}");
            tank_is_sound(cell)
        },
        tank_is_sound,
    ),
    Verb::changes(
        "rm",
        &["rm", TWIN],
        |cell| {
            let listed = cell.ok(&["ls", "s3://adverse/", "--trash", "-H"])?;
            ensure!(listed.contains("twin"), "afterwards, it is not in the trash: {listed}");
            cell.ok(&["restore", TWIN])?;
            cell.holds(TWIN, &[&world().twin])
        },
        |cell| {
            cell.ok(&["restore", TWIN])?;
            cell.holds(TWIN, &[&world().twin])
        },
    ),
    Verb::changes(
        "rm --now",
        &["rm", TWIN, "--now", "--yes"],
        |cell| {
            ensure!(cell.names_below("twin/") == 0, "{} objects are left", cell.names_below("twin/"));
            tank_is_sound(cell)
        },
        |cell| {
            // Again finishes it, whatever the first time left.
            if cell.names_below("twin/") > 0 {
                cell.ok(&["rm", TWIN, "--now", "--yes"])?;
            }
            ensure!(cell.names_below("twin/") == 0, "{} objects are left", cell.names_below("twin/"));
            tank_is_sound(cell)
        },
    ),
    Verb::changes(
        "restore",
        &["restore", "s3://adverse/old"],
        |cell| cell.ok(&["info", "s3://adverse/old"]).map(drop),
        |cell| cell.ok(&["restore", "s3://adverse/old"]).map(drop),
    ),
    Verb::changes(
        "clone",
        &["clone", "s3://adverse/tank@tuesday", "s3://adverse/new"],
        |cell| {
            cell.holds("s3://adverse/new", &[&world().tuesday])?;
            tank_is_sound(cell)
        },
        tank_is_sound,
    ),
    Verb::changes(
        "flatten",
        &["flatten", TWIN],
        |cell| cell.holds(TWIN, &[&world().twin]),
        |cell| cell.holds(TWIN, &[&world().twin]),
    ),
    Verb::changes(
        "rollback",
        &["rollback", "s3://adverse/tank@monday"],
        |cell| cell.holds(TANK, &[&world().monday]),
        |cell| cell.holds(TANK, &[&world().monday, &world().head]),
    ),
    Verb::changes(
        "resize",
        &["resize", TANK, "128M"],
        |cell| {
            let told = cell.ok(&["info", TANK, "--json"])?;
            ensure!(told.contains("134217728"), "afterwards, {told}");
            Ok(())
        },
        |cell| cell.ok(&["check", TANK, "--data"]).map(drop),
    ),
    Verb::changes("gc", &["gc", TANK], tank_is_sound, tank_is_sound),
    Verb {
        name: "create, taken",
        args: &["create", TANK, "--size", "1G"],
        right: Right::Never(11),
        otherwise: tank_is_sound,
        without: None,
    },
    Verb::changes(
        "create",
        &["create", "s3://adverse/new", "--size", "1G"],
        |cell| cell.ok(&["check", "s3://adverse/new"]).map(drop),
        nothing,
    ),
    Verb::reads("serve", &[], Right::Anything),
];

/// How a verb ended.
#[derive(Debug)]
pub struct Ended {
    /// It ended well, with the right result.
    pub is_well: bool,
    pub code: Option<i32>,
    pub stdout: String,
    /// Its last words.
    pub said: String,
    pub took: Duration,
}

impl Verb {
    /// Whether it ended as on a correct store.
    pub fn is_right(&self, ended: &Ended) -> bool {
        ended.is_well || matches!(self.right, Right::Never(code) if ended.code == Some(code))
    }

    /// Prepares the store.
    pub fn prepare(&self, store: &Adversary) {
        let mut objects = world().objects.clone();
        if let Some(prefix) = self.without {
            let log = |name: &&String| name.starts_with(prefix) && name.contains("/log/");
            let largest = objects.keys().filter(log).max_by_key(|name| objects[*name].len()).cloned();
            objects.remove(&largest.expect("a segment"));
        }
        store.restore(objects);
    }

    /// Runs it; an error says what is wrong with the result.
    pub fn run(&self, cell: &Cell<'_>) -> Result<Ended> {
        let begun = Instant::now();
        if self.name.starts_with("serve") {
            return serve(cell, self.name == "serve");
        }
        let (status, output) = cell.run(self.args)?;
        let took = begun.elapsed();
        cell.store.honest();
        let said = said(&output.stderr);
        ensure!(!output.stderr.contains("panicked"), "it panicked:\n{}", output.stderr);
        let code = status.code().with_context(|| format!("it died: {status}\n{}", output.stderr))?;
        let ended = Ended { is_well: code == 0, code: Some(code), stdout: output.stdout, said, took };
        if code != 0 {
            ensure!(
                ended.said.contains("error")
                    || self.name.starts_with("check")
                    || self.name == "probe"
                    || self.name == "backup verify",
                "it does not say why: {}",
                output.stderr
            );
            (self.otherwise)(cell).with_context(|| format!("it ended with {code}: {}", ended.said))?;
            return Ok(ended);
        }
        match &self.right {
            Right::Anything => {}
            Right::Never(_) => bail!("it ended well: {}", ended.stdout),
            Right::Prints => {
                let expected = cell.honest.unwrap_or(&ended.stdout);
                ensure!(ended.stdout == expected, "it printed\n{}instead of\n{expected}", ended.stdout);
            }
            Right::Writes(expected) => {
                ensure!(std::fs::read(cell.file("out"))? == expected(), "it wrote something else");
            }
            Right::Leaves(look) => look(cell).context("it ended well")?,
        }
        Ok(ended)
    }
}

/// The error, and what belongs to it, in one line.
fn said(stderr: &str) -> String {
    let from = stderr.find("error").unwrap_or(0);
    let lines: Vec<&str> = stderr[from..].lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" | ").chars().take(400).collect()
}

/// Serves, reads everything, and, if it may, writes. While a read waits because of the answer, the store gets correct again: what is read
/// is right, or an error.
fn serve(cell: &Cell<'_>, writes: bool) -> Result<Ended> {
    const HONEST_AFTER: Duration = Duration::from_secs(4);
    let begun = Instant::now();
    let socket =
        Path::new("/tmp").join(format!("cistern-{}-{:?}", std::process::id(), std::thread::current().id()));
    let socket = socket.with_extension("sock");
    let notify = socket.with_extension("notify");
    let _ = std::fs::remove_file(&notify);
    let heard = std::os::unix::net::UnixDatagram::bind(&notify)?;
    let log = std::fs::File::create(cell.dir.join("log"))?;
    let start = |log: &std::fs::File| -> Result<Guard> {
        let mut command = cell.cistern().command();
        command.arg("serve").arg(TANK).arg("--listen").arg(format!("unix:{}", socket.display()));
        command.args([
            "--journal-size",
            "64M",
            "--cache-size",
            "16M",
            "--max-dirty-age",
            "1s",
            "--drain-timeout",
            "3s",
        ]);
        command.arg(if writes { "--take-over" } else { "--read-only" }).env("NOTIFY_SOCKET", &notify);
        command.stdout(log.try_clone()?).stderr(log.try_clone()?);
        Guard::spawn(command)
    };
    let is_ready = |daemon: &Guard| -> Result<bool> {
        use std::os::fd::AsRawFd;
        let mut limit = cistern_harness::process::Limit::new(VERB_LIMIT);
        let mut message = [0; 4096];
        loop {
            let ready = cistern_harness::process::readable_within(
                &[heard.as_raw_fd(), daemon.ended_fd()],
                &mut limit,
            )?;
            ensure!(ready.contains(&true), "it is neither ready nor at its end");
            if !ready[0] {
                return Ok(false);
            }
            let n = heard.recv(&mut message)?;
            if String::from_utf8_lossy(&message[..n]).lines().any(|line| line == "READY=1") {
                return Ok(true);
            }
        }
    };
    let log_text = || std::fs::read_to_string(cell.dir.join("log")).unwrap_or_default();
    let mut image = world().head.clone();
    let mut daemon = start(&log)?;
    if !is_ready(&daemon)? {
        let status = daemon.wait(VERB_LIMIT)?;
        cell.store.honest();
        ensure!(!log_text().contains("panicked"), "it panicked:\n{}", log_text());
        ensure!(!status.success(), "it ended well, and was not asked to");
        let _ = std::fs::remove_file(&notify);
        return Ok(Ended {
            is_well: false,
            code: status.code(),
            stdout: String::new(),
            said: said(&log_text()),
            took: begun.elapsed(),
        });
    }
    let mut failures = 0;
    let read = |image: &[u8], failures: &mut u32| -> Result<()> {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let end = Instant::now() + HONEST_AFTER;
                while Instant::now() < end && !done.load(std::sync::atomic::Ordering::Relaxed) {
                    std::thread::park_timeout(Duration::from_millis(50));
                }
                cell.store.honest();
            });
            let outcome = (|| {
                let mut client = Client::connect(&socket, "", Dialect::Simple)?;
                for (number, expected) in image.chunks(PIECE_BYTES as usize).enumerate() {
                    match client.read(number as u64 * u64::from(PIECE_BYTES), PIECE_BYTES) {
                        Ok(found) => ensure!(found == expected, "it read something else at {number} MiB"),
                        Err(_) => *failures += 1,
                    }
                }
                client.close()
            })();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            outcome
        })
    };
    if writes {
        let data = cistern_harness::fixture::random_bytes(PIECE_BYTES as usize, 77);
        let mut client = Client::connect(&socket, "", Dialect::Simple)?;
        for at in [3usize << 20, 10 << 20] {
            client.write(at as u64, &data)?;
            image[at..at + data.len()].copy_from_slice(&data);
        }
        client.flush()?;
        client.close()?;
    }
    read(&image, &mut failures).with_context(log_text)?;
    daemon.signal(libc::SIGTERM);
    let status = daemon.wait(VERB_LIMIT)?;
    ensure!(!log_text().contains("panicked"), "it panicked:\n{}", log_text());
    if writes {
        // Nothing that was acknowledged is lost: it is in the store, or in the journal.
        let mut again = start(&log)?;
        ensure!(is_ready(&again)?, "it does not start again:\n{}", log_text());
        let mut failures = 0;
        read(&image, &mut failures).with_context(log_text)?;
        ensure!(failures == 0, "{failures} reads fail of a correct store\n{}", log_text());
        again.signal(libc::SIGTERM);
        let status = again.wait(VERB_LIMIT)?;
        ensure!(status.success(), "it does not stop cleanly: {status}\n{}", log_text());
        cell.holds(TANK, &[&image])?;
    }
    let _ = std::fs::remove_file(&notify);
    let said = if failures > 0 { format!("{failures} reads failed") } else { String::new() };
    Ok(Ended {
        is_well: status.success() && failures == 0,
        code: status.code(),
        stdout: String::new(),
        said,
        took: begun.elapsed(),
    })
}
