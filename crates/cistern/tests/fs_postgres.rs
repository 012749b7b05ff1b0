//! PostgreSQL on three volumes, backed up under load by the recipe of docs/recipes.md, and started again from the backups.

mod recipes;

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use cistern_harness::{
    filesystem::Kind,
    mount::{BlockDevice, Mounted},
    process::Guard,
    scratch::Scratch,
    serve::{Cistern, Server},
    tool,
};
use recipes::{Host, block, with};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
/// Data, write-ahead log, and a tablespace.
const VOLUMES: [&str; 3] = ["data", "wal", "space"];
/// Where Debian has the server's programs.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
/// Transactions that are committed before the backup begins.
const COMMITS: u64 = 200;

/// The user as whom the server runs.
fn user() -> Result<(u32, u32)> {
    let id = |flag| -> Result<u32> { Ok(tool::run("id", [flag, "postgres"])?.stdout.trim().parse()?) };
    Ok((id("-u")?, id("-g")?))
}

/// Three filesystems, each in a directory that does not change.
struct Disks {
    scratches: Vec<Scratch>,
}

impl Disks {
    fn new() -> Result<Disks> {
        let scratches = VOLUMES.map(|name| {
            let scratch = Scratch::new(&format!("pg-{name}"))?;
            // The server is another user.
            std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755))?;
            Ok(scratch)
        });
        Ok(Disks { scratches: scratches.into_iter().collect::<Result<_>>()? })
    }

    fn mount(&self, server: &Server, make: bool) -> Result<Vec<Mounted>> {
        let each = self.scratches.iter().zip(VOLUMES).map(|(scratch, name)| {
            let device = BlockDevice::attach(scratch, &server.uri_of(name), 4096)?;
            if make {
                Kind::Ext4.make(&device)?;
            }
            Kind::Ext4.mount(scratch, device)
        });
        each.collect()
    }
}

/// A running server.
struct Postgres {
    process: Guard,
    sockets: PathBuf,
}

impl Postgres {
    fn init(mounted: &[Mounted]) -> Result<()> {
        let (uid, gid) = user()?;
        for mounted in mounted {
            chown(mounted.dir(), Some(uid), Some(gid))?;
        }
        let mut command = tool::command(&format!("{PROGRAMS}/initdb"))?;
        command.args(["-A", "trust", "-U", "postgres", "--data-checksums", "-X"]);
        command
            .arg(mounted[1].dir().join("log"))
            .arg("-D")
            .arg(mounted[0].dir().join("db"))
            .uid(uid)
            .gid(gid);
        command.current_dir("/");
        tool::run_command(command, tool::RUN_LIMIT).map(drop)
    }

    fn start(mounted: &[Mounted], sockets: &Path, log: &Path) -> Result<Postgres> {
        let (uid, gid) = user()?;
        let mut command = tool::command(&format!("{PROGRAMS}/postgres"))?;
        command.arg("-D").arg(mounted[0].dir().join("db")).arg("-k").arg(sockets);
        command.args(["-c", "listen_addresses=", "-c", "shared_buffers=32MB"]).uid(uid).gid(gid);
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
        let mut postgres = Postgres { process: Guard::spawn(command)?, sockets: sockets.to_owned() };
        while postgres.ask("SELECT 1").is_err() {
            ensure!(!postgres.process.has_ended(), "the server ended");
            std::thread::yield_now();
        }
        Ok(postgres)
    }

    fn psql(&self) -> Result<std::process::Command> {
        let mut command = tool::command("psql")?;
        command
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-h"])
            .arg(&self.sockets);
        Ok(command)
    }

    fn ask(&self, sql: &str) -> Result<String> {
        let mut command = self.psql()?;
        command.args(["-c", sql]);
        Ok(tool::run_command(command, tool::RUN_LIMIT)?.stdout.trim().to_owned())
    }

    fn stop(mut self) -> Result<()> {
        self.process.signal(libc::SIGINT); // a fast shutdown
        let status = self.process.wait(Duration::from_secs(60))?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }
}

/// Somebody who commits transactions over both tablespaces, one after the other, and counts them.
struct Committer {
    committed: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Committer {
    fn start(postgres: &Postgres) -> Result<Committer> {
        let (committed, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut command = postgres.psql()?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let (count, end) = (committed.clone(), stop.clone());
        let mut child = command.spawn()?;
        let thread = std::thread::spawn(move || {
            let mut ask = child.stdin.take().context("a pipe")?;
            let mut told = BufReader::new(child.stdout.take().context("a pipe")?).lines();
            let mut n: u64 = 0;
            while !end.load(SeqCst) {
                n += 1;
                writeln!(
                    ask,
                    "BEGIN; INSERT INTO near VALUES ({n}, repeat(md5('{n}'), 40)); INSERT INTO far VALUES ({n}, repeat(md5('{n}'), 40)); COMMIT;\n\\echo {n}"
                )?;
                let line = told.next().context("psql ended")??;
                ensure!(line == n.to_string(), "{line}");
                count.store(n, SeqCst);
            }
            drop(ask);
            child.wait()?;
            Ok(())
        });
        Ok(Committer { committed, stop, thread })
    }

    /// Waits until so many are committed.
    fn await_commits(&self, count: u64) -> Result<u64> {
        loop {
            let now = self.committed.load(SeqCst);
            if now >= count {
                return Ok(now);
            }
            if self.thread.is_finished() {
                bail!("it ended after {now} transactions");
            }
            std::thread::yield_now();
        }
    }

    fn finish(self) -> Result<u64> {
        self.stop.store(true, SeqCst);
        self.thread.join().expect("it does not panic")?;
        Ok(self.committed.load(SeqCst))
    }
}

/// PostgreSQL is backed up in the middle of load, in backup mode, and again; its host and volumes go, and what is restored starts: with every
/// transaction that was committed before the backup, and none in part, in both tablespaces.
#[test]
fn postgresql_comes_back_with_all_that_was_committed() -> Result<()> {
    let (scratch, disks, cistern) = (Scratch::new("pg")?, Disks::new()?, Cistern::under_test(CISTERN));
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755))?;
    let host = Host::new(&scratch, "host")?;
    let (store, vault, log) = (scratch.dir("store")?, scratch.dir("vault")?, scratch.file("postgres.log"));
    let sockets = tempfile::tempdir()?;
    std::fs::set_permissions(sockets.path(), PermissionsExt::from_mode(0o777))?;
    let urls = VOLUMES.map(|name| store.join(name).display().to_string());
    for url in &urls {
        cistern.run(&["create", url, "--size", "2G"])?;
    }
    let serve = |host: &Host, urls: &[String; 3]| {
        cistern.serve(&scratch, &urls[0]).state_dir(host.state()).args(&urls[1..]).start()
    };
    let server = serve(&host, &urls)?;
    let mounted = disks.mount(&server, true)?;
    Postgres::init(&mounted)?;
    let postgres = Postgres::start(&mounted, sockets.path(), &log)?;
    let space = mounted[2].dir().join("far");
    std::fs::create_dir(&space)?;
    let (uid, gid) = user()?;
    chown(&space, Some(uid), Some(gid))?;
    postgres.ask(&format!("CREATE TABLESPACE far LOCATION '{}'", space.display()))?;
    postgres.ask("CREATE TABLE near (n bigint PRIMARY KEY, filler text)")?;
    postgres.ask("CREATE TABLE far (n bigint PRIMARY KEY, filler text) TABLESPACE far")?;

    let hook = scratch.file("cistern-postgres");
    std::fs::write(&hook, block("# cistern-postgres:")?)?;
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755))?;
    let held = scratch.file("held");
    let shown = |path: &Path| path.display().to_string();
    let (bucket, place, hook, held_text) = (shown(&store), shown(&vault), shown(&hook), shown(&held));
    let values = [("BUCKET", &bucket), ("PLACE", &place), ("HOOK", &hook), ("HELD", &held_text)];
    let nightly = with(&block("$HOOK begin")?, &values.map(|(name, value)| (name, value.as_str())))?;
    let environment = [("PGHOST", sockets.path().to_str().context("UTF-8")?), ("PGUSER", "postgres")];
    let committer = Committer::start(&postgres)?;
    for night in 1..=2 {
        let before = committer.await_commits(COMMITS * night)?;
        let said = host.run_with(&nightly, &environment)?;
        ensure!(said.matches("verified").count() == 3, "{said}");
        let label = std::fs::read_to_string(held.join("backup_label"))?;
        ensure!(label.contains("START WAL LOCATION") && label.contains("LABEL: cistern"), "{label}");
        ensure!(!held.join("in").exists(), "the session was ended");
        // Another backup could begin: this mode is over.
        committer.await_commits(before + 1)?;
        std::fs::write(scratch.file("before"), before.to_string())?;
    }
    let before: u64 = std::fs::read_to_string(scratch.file("before"))?.parse()?;
    committer.finish()?;
    drop((postgres, mounted));
    server.kill();
    std::fs::remove_dir_all(&store)?;

    let (other, new) = (Host::new(&scratch, "other")?, scratch.dir("new")?);
    let new_text = shown(&new);
    other.run(&with(&block("& space=$!")?, &[("PLACE", &place), ("NEW", &new_text)])?)?;
    let urls = VOLUMES.map(|name| new.join(name).display().to_string());
    let server = serve(&other, &urls)?;
    let mounted = disks.mount(&server, false)?;
    // As after a power cut: what ran it is gone.
    let postgres = Postgres::start(&mounted, sockets.path(), &log)
        .with_context(|| std::fs::read_to_string(&log).unwrap_or_default())?;
    for table in ["near", "far"] {
        let sums = postgres.ask(&format!(
            "SELECT count(*), max(n), count(*) FILTER (WHERE filler = repeat(md5(n::text), 40)) FROM {table}"
        ))?;
        let counted: Vec<u64> = sums.split('|').map(|n| n.parse()).collect::<Result<_, _>>()?;
        ensure!(counted[0] >= before, "{before} were committed before, and {table} has {sums}");
        ensure!(counted[1] == counted[0] && counted[2] == counted[0], "{table}: {sums}");
    }
    let halves =
        "SELECT count(*) FROM near FULL JOIN far USING (n) WHERE near.filler IS DISTINCT FROM far.filler";
    ensure!(postgres.ask(halves)? == "0", "a transaction is there in part");
    postgres.stop()?;
    for mounted in mounted {
        let device = mounted.unmount()?;
        Kind::Ext4.check(&device)?;
        device.detach()?;
    }
    server.stop()
}

/// Where backup mode cannot begin, there is no backup, and the command says why.
#[test]
fn without_backup_mode_there_is_no_backup() -> Result<()> {
    let (scratch, cistern) = (Scratch::new("pg-refused")?, Cistern::under_test(CISTERN));
    let host = Host::new(&scratch, "host")?;
    let (store, vault) = (scratch.dir("store")?, scratch.dir("vault")?);
    for name in VOLUMES {
        cistern.run(&["create", &store.join(name).display().to_string(), "--size", "1G"])?;
    }
    let hook = scratch.file("cistern-postgres");
    std::fs::write(&hook, block("# cistern-postgres:")?)?;
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755))?;
    let held = scratch.file("held").display().to_string();
    let (bucket, place) = (store.display().to_string(), vault.display().to_string());
    let hook = hook.display().to_string();
    let values = [("BUCKET", &bucket), ("PLACE", &place), ("HOOK", &hook), ("HELD", &held)];
    let nightly = with(&block("$HOOK begin")?, &values.map(|(name, value)| (name, value.as_str())))?;
    let nightly =
        format!("{nightly}\n").replace("\ncistern backup", "\nset +e; cistern backup") + "echo code $?";
    let said = host.run_with(&nightly, &[("PGHOST", "/nowhere"), ("PGUSER", "postgres")])?;
    ensure!(said.contains("code 12"), "{said}");
    ensure!(std::fs::read_dir(&vault)?.next().is_none(), "nothing was made");
    Ok(())
}
