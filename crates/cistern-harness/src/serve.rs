//! `cistern serve` as its users run it: started until it says that it is ready, stopped, or killed.
//!
//! Readiness is the service manager's protocol (`READY=1` on `NOTIFY_SOCKET`), so nothing polls and
//! nothing depends on a text. The server's log is a file that a failure shows.

use std::{
    ffi::OsString,
    fs::{File, Permissions},
    os::{
        fd::AsRawFd,
        unix::{fs::PermissionsExt, net::UnixDatagram},
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    adversary::Adversary,
    process::{self, Guard, Limit, Usage},
    scratch::Scratch,
    tool::{self, Output},
};

/// Opening may replay a full journal and walk a log.
const START_LIMIT: Duration = Duration::from_secs(120);
/// A clean stop uploads what is dirty.
const STOP_LIMIT: Duration = Duration::from_secs(180);
/// Bytes of the log that a failure shows.
const LOG_TAIL_BYTES: usize = 4000;

/// The program under test and the directories it works with.
#[derive(Clone)]
pub struct Cistern {
    binary: PathBuf,
    environment: Vec<(String, String)>,
}

impl Cistern {
    pub fn new(binary: impl Into<PathBuf>) -> Cistern {
        Cistern { binary: binary.into(), environment: Vec::new() }
    }

    /// The program that cargo built for the tests, or the one that `CISTERN_TEST_BINARY` names (a
    /// package that is to be proven before it ships).
    pub fn under_test(built: &str) -> Cistern {
        let small = concat!(env!("CARGO_MANIFEST_DIR"), "/small.toml");
        Cistern::new(std::env::var("CISTERN_TEST_BINARY").unwrap_or_else(|_| built.to_owned()))
            .with_environment([("CISTERN_CONFIG".to_owned(), small.to_owned())])
    }

    /// The same, with a store of adverse answers and with directories of its own in `dir`.
    pub fn at(self, store: &Adversary, dir: &Path) -> Cistern {
        let place = |name: &str| dir.join(name).display().to_string();
        let places =
            [("STATE_DIRECTORY", "state"), ("CACHE_DIRECTORY", "cache"), ("RUNTIME_DIRECTORY", "run")];
        self.with_environment(store.environment())
            .with_environment(places.map(|(variable, name)| (variable.to_owned(), place(name))))
    }

    /// The same, in a namespace of processes of its own: it sees no other program, nor any other it. Needs root.
    pub fn hidden(self, scratch: &Scratch) -> Result<Cistern> {
        let (script, unshare) = (scratch.file("hidden.sh"), tool::find("unshare")?);
        let run = format!("--pid --fork --mount-proc --kill-child {} \"$@\"", self.binary.display());
        std::fs::write(&script, format!("#!/bin/sh\nexec {} {run}\n", unshare.display()))?;
        std::fs::set_permissions(&script, Permissions::from_mode(0o700))?;
        Ok(Cistern { binary: script, ..self })
    }

    /// Adds variables to everything that is run from here, such as the credentials of a store.
    pub fn with_environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Cistern {
        self.environment.extend(variables);
        self
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        // Where tests run, a proxy may have to be trusted; the servers of tests are here.
        command.env_remove("AWS_CA_BUNDLE").env_remove("NOTIFY_SOCKET");
        command.envs(self.environment.iter().cloned());
        command
    }

    /// Runs one command of the program to its end; it must end well.
    pub fn run(&self, args: &[&str]) -> Result<Output> {
        let mut command = self.command();
        command.args(args);
        tool::run_command(command, tool::RUN_LIMIT)
    }

    /// Runs one command that must fail, and gives its messages and exit code.
    pub fn run_failing(&self, args: &[&str]) -> Result<(Output, i32)> {
        let mut command = self.command();
        command.args(args);
        let (status, output) = tool::finish(command, tool::RUN_LIMIT)?;
        match status.code() {
            Some(0) => bail!("{args:?} should have failed\n{}{}", output.stdout, output.stderr),
            Some(code) => Ok((output, code)),
            None => bail!("{args:?} died: {status}\n{}", output.stderr),
        }
    }

    /// Prepares a server of `url` whose directories and socket lie in `scratch`.
    pub fn serve(&self, scratch: &Scratch, url: impl Into<String>) -> Serve {
        Serve {
            cistern: self.clone(),
            url: url.into(),
            state: scratch.file("state"),
            cache: scratch.file("cache"),
            socket: scratch.socket("nbd"),
            notify: scratch.socket("notify"),
            log: scratch.file("serve.log"),
            args: Vec::new(),
        }
    }
}

/// A server that is yet to be started; the same one can be started again and again.
#[derive(Clone)]
pub struct Serve {
    cistern: Cistern,
    url: String,
    state: PathBuf,
    cache: PathBuf,
    socket: PathBuf,
    notify: PathBuf,
    log: PathBuf,
    args: Vec<OsString>,
}

impl Serve {
    pub fn state_dir(mut self, dir: PathBuf) -> Serve {
        self.state = dir;
        self
    }

    pub fn cache_dir(mut self, dir: PathBuf) -> Serve {
        self.cache = dir;
        self
    }

    pub fn socket(mut self, socket: PathBuf) -> Serve {
        self.socket = socket;
        self
    }

    /// Adds arguments of `serve`.
    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Serve {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    fn command(&self) -> Result<Command> {
        let mut command = self.cistern.command();
        let mut listen = OsString::from("unix:");
        listen.push(&self.socket);
        command.arg("serve").arg(&self.url).arg("--listen").arg(listen);
        command.arg("--state-dir").arg(&self.state).arg("--cache-dir").arg(&self.cache).args(&self.args);
        let log = File::options().create(true).append(true).open(&self.log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Runs a command with the state directory of its servers.
    pub fn ask(&self, args: &[&str]) -> Result<Output> {
        let mut command = self.cistern.command();
        command.args(args).arg("--state-dir").arg(&self.state);
        tool::run_command(command, tool::RUN_LIMIT)
    }

    /// Starts the server and returns when it is ready for clients.
    pub fn start(&self) -> Result<Server> {
        let (mut server, notify) = self.begin()?;
        server.await_ready(&notify)?;
        Ok(server)
    }

    /// Starts several at the same moment. Gives those that become ready; the others have ended.
    pub fn start_together(all: &[Serve]) -> Result<Vec<Server>> {
        let begun: Vec<_> = all.iter().map(Serve::begin).collect::<Result<_>>()?;
        let ready =
            begun.into_iter().map(|(mut server, notify)| server.await_ready(&notify).map(|()| server));
        Ok(ready.filter_map(Result::ok).collect())
    }

    /// Starts the server, and gives what tells when it is ready.
    fn begin(&self) -> Result<(Server, UnixDatagram)> {
        let _ = std::fs::remove_file(&self.notify); // left by the server before, if any
        let notify = UnixDatagram::bind(&self.notify)?;
        let mut command = self.command()?;
        command.env("NOTIFY_SOCKET", &self.notify);
        let process = Guard::spawn(command)?;
        Ok((Server { process, serve: self.clone() }, notify))
    }

    /// Starts the server and kills it so much later, ready or not; it must not end by itself.
    pub fn start_and_kill(&self, after: Duration) -> Result<()> {
        let process = Guard::spawn(self.command()?)?;
        if process::readable(&[process.ended_fd()], after)?[0] {
            bail!("the server ended while it started\n{}", self.log_tail());
        }
        Ok(())
    }

    /// Everything the servers of this `Serve` wrote.
    fn log(&self) -> String {
        std::fs::read(&self.log)
            .map_or_else(|e| format!("(no log: {e})"), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of that, as a failure shows it.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let from = (log.len().saturating_sub(LOG_TAIL_BYTES)..log.len()).find(|&i| log.is_char_boundary(i));
        format!("log of the server:\n{}", &log[from.unwrap_or(0)..])
    }

    /// Starts the server, which must end by itself with an error, and gives its log.
    pub fn start_failing(&self) -> Result<String> {
        let from = std::fs::metadata(&self.log).map_or(0, |m| m.len() as usize);
        let mut process = Guard::spawn(self.command()?)?;
        let status = process.wait(START_LIMIT)?;
        let log = std::fs::read(&self.log)?;
        let log = String::from_utf8_lossy(&log[from.min(log.len())..]).into_owned();
        if status.success() {
            bail!("the server should have refused to start\n{log}");
        }
        Ok(log)
    }
}

/// A running server; dropped, it is killed.
pub struct Server {
    process: Guard,
    serve: Serve,
}

impl Server {
    fn await_ready(&mut self, notify: &UnixDatagram) -> Result<()> {
        let mut limit = Limit::new(START_LIMIT);
        let mut message = [0; 4096];
        loop {
            let fds = [notify.as_raw_fd(), self.process.ended_fd()];
            let ready = process::readable_within(&fds, &mut limit)?;
            if ready[0] {
                let n = notify.recv(&mut message)?;
                if String::from_utf8_lossy(&message[..n]).lines().any(|line| line == "READY=1") {
                    return Ok(());
                }
            } else if ready[1] {
                bail!("the server ended while it started\n{}", self.log_tail());
            } else {
                bail!("the server was not ready after {} s\n{}", START_LIMIT.as_secs(), self.log_tail());
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The address of the only volume for NBD clients.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.serve.socket.display())
    }

    /// The address of a named volume.
    pub fn uri_of(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.serve.socket.display())
    }

    pub fn socket(&self) -> &Path {
        &self.serve.socket
    }

    pub fn usage(&self) -> Result<Usage> {
        process::usage(self.pid())
    }

    /// Runs a command that finds this server by its state directory, such as `status`.
    pub fn ask(&self, args: &[&str]) -> Result<Output> {
        self.serve.ask(args)
    }

    /// `status --json`.
    pub fn status(&self) -> Result<serde_json::Value> {
        self.ask_json(&["status", "--json"])
    }

    /// `status --io --json`.
    pub fn observed(&self) -> Result<serde_json::Value> {
        self.ask_json(&["status", "--io", "--json"])
    }

    fn ask_json(&self, args: &[&str]) -> Result<serde_json::Value> {
        let out = self.ask(args)?.stdout;
        serde_json::from_str(&out).with_context(|| format!("status printed no JSON:\n{out}"))
    }

    /// Returns when everything acknowledged is in the store.
    pub fn wait_clean(&self) -> Result<()> {
        self.ask(&["status", "--wait-clean"]).map(drop)
    }

    /// Fails if it ends within this time: nobody asked it to.
    pub fn stays_up(&mut self, time: Duration) -> Result<()> {
        if process::readable(&[self.process.ended_fd()], time)?[0] {
            bail!("the server ended by itself\n{}", self.log_tail());
        }
        Ok(())
    }

    /// SIGTERM, and waits for the end, which must be a clean one.
    pub fn stop(mut self) -> Result<()> {
        self.process.signal(libc::SIGTERM);
        let status = self.process.wait(STOP_LIMIT).with_context(|| self.log_tail())?;
        if !status.success() {
            bail!("the server did not stop cleanly: {status}\n{}", self.log_tail());
        }
        Ok(())
    }

    /// SIGTERM without an opinion about how it ends.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        self.process.signal(libc::SIGTERM);
        self.process.wait(STOP_LIMIT).with_context(|| self.log_tail())
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.kill_now();
    }

    /// The same where another server takes its place.
    pub fn kill_now(&mut self) {
        self.process.kill();
    }

    /// Everything the servers of this `Serve` wrote.
    pub fn log(&self) -> String {
        self.serve.log()
    }

    /// The end of that, as a failure shows it.
    pub fn log_tail(&self) -> String {
        self.serve.log_tail()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
    }
}
