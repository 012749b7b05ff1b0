//! A real daemon in surroundings of its own, driven by real NBD clients.

#![allow(dead_code)] // each test binary uses a part

use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio},
};

use cistern_harness::tool;
use tempfile::TempDir;

/// What a command printed with --json.
pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

/// Directories of one test: stores, state, cache, sockets.
pub struct Home {
    dir: TempDir,
}

/// A small filesystem of its own (tmpfs; mounting one needs root), as long as this lives.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// With options as `mount` takes them, `size=64m`.
    pub fn mount(place: PathBuf, options: &str) -> SmallDisk {
        std::fs::create_dir_all(&place).expect("made");
        let disk = SmallDisk(place);
        disk.mounted(&["-t", "tmpfs", "-o", options, "tmpfs"]);
        disk
    }

    pub fn remount(&self, options: &str) {
        self.mounted(&["-o", &format!("remount,{options}")]);
    }

    fn mounted(&self, arguments: &[&str]) {
        let mounted = Command::new("mount").args(arguments).arg(&self.0).status();
        assert!(mounted.expect("it is installed").success(), "{arguments:?}: these tests need root");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A running daemon that has told it is ready.
pub struct Daemon {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Kept open, so that it does not write into a closed pipe.
    stdout: BufReader<ChildStdout>,
    /// The first URI it told.
    pub uri: String,
}

/// How a daemon ended.
pub struct Ended {
    pub code: Option<i32>,
    pub stderr: String,
}

impl Home {
    pub fn new() -> Home {
        Home { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of a volume's own objects, in a directory store.
    pub fn own(&self, volume: &str) -> PathBuf {
        let entries = std::fs::read_dir(self.path(volume)).expect("a directory store").flatten();
        let mut own = entries.filter(|entry| entry.file_name().len() == 32).map(|entry| entry.path());
        own.next().expect("it was written to")
    }

    /// A command with the directories of this home.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cistern"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        for (name, place) in
            [("STATE_DIRECTORY", "state"), ("CACHE_DIRECTORY", "cache"), ("RUNTIME_DIRECTORY", "run")]
        {
            command.env(name, self.path(place));
        }
        for name in [
            "CISTERN_PASSPHRASE",
            "CISTERN_CONFIG",
            "NOTIFY_SOCKET",
            "LISTEN_FDS",
            "CISTERN_LOG",
            "AWS_CA_BUNDLE",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// Runs a command that must succeed; gives what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {:?}: {stderr}", output.status);
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Runs a command that must fail with `code`; gives what it complained about. Within a limit: a daemon that should have refused serves.
    pub fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let (status, output) = tool::finish(self.command(arguments), tool::RUN_LIMIT).expect("it ends");
        assert_eq!(status.code(), Some(code), "{arguments:?}: {}", output.stderr);
        output.stderr
    }

    /// The arguments of every daemon here: small files, and no upload by age unless asked for.
    pub fn serve(&self, arguments: &[&str]) -> Command {
        let small = ["serve", "--journal-size", "128M", "--cache-size", "16M", "--max-dirty-age", "1h"];
        self.command(&[&small, arguments].concat())
    }

    /// Starts a daemon and waits until it is ready.
    pub fn start(&self, arguments: &[&str]) -> Daemon {
        Daemon::start(self.serve(arguments))
    }

    /// The snapshots that `ls` lists, oldest first: names, and those of bookmarks in brackets.
    pub fn listed(&self, url: &str) -> Vec<String> {
        let all = json(&self.ok(&["ls", url, "--json"]));
        let one = |one: &serde_json::Value| {
            let name = one["name"].as_str().expect("a name");
            if one["is_bookmark"] == true { format!("[{name}]") } else { name.to_owned() }
        };
        all.as_array().expect("a list").iter().map(one).collect()
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.ok(&["status", "--json"])).expect("JSON")
    }
}

/// A test that fails leaves no daemon behind.
impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    pub fn start(mut command: Command) -> Daemon {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("UTF-8");
        let uri = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        // The rest of its output is few lines, which fit into the pipe.
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let daemon = Daemon { child, stderr, stdout, uri };
        if line.starts_with("serving ") && daemon.uri.starts_with("nbd") {
            return daemon;
        }
        let ended = daemon.wait();
        panic!("did not start: {:?} {line}{}", ended.code, ended.stderr);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: i32) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: a signal to a child that was not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Waits until it says something with `text` in it; gives that line.
    pub fn wait_to_say(&mut self, text: &str) -> String {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.stderr.read_line(&mut line).expect("UTF-8") > 0, "ended without saying '{text}'");
        }
        line
    }

    /// What follows `name` at the beginning of a line that it tells once it is ready.
    pub fn told(&mut self, name: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.stdout.read_line(&mut line).expect("UTF-8") > 0, "ended without telling {name}");
            if let Some(rest) = line.strip_prefix(name) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Ended {
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).expect("UTF-8");
        Ended { code: self.child.wait().expect("a child").code(), stderr }
    }

    /// Stops it in an orderly way; it must end with 0.
    pub fn stop(self) -> String {
        self.signal(libc::SIGTERM);
        let ended = self.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr
    }

    /// Stops it in an orderly way while not everything can be in the store; the exit code says so.
    pub fn stop_unclean(self) -> String {
        self.signal(libc::SIGTERM);
        let ended = self.wait();
        assert_eq!(ended.code, Some(8), "{}", ended.stderr);
        ended.stderr
    }

    /// The power goes.
    pub fn kill(self) {
        self.signal(libc::SIGKILL);
        self.wait();
    }

    /// Does something with libnbd's shell: `h` is connected. Gives what it printed.
    pub fn nbdsh(&self, script: &str) -> String {
        let output = self.try_nbdsh(script);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {stderr}");
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    }

    pub fn try_nbdsh(&self, script: &str) -> Output {
        nbdsh(&self.uri, script)
    }

    /// Writes one byte value over a range and flushes.
    pub fn fill(&self, value: u8, offset: u64, len: u64) {
        self.nbdsh(&format!("h.pwrite(b'\\x{value:02x}' * {len}, {offset}); h.flush()"));
    }

    /// Asserts that a range has one byte value.
    pub fn assert_filled(&self, value: u8, offset: u64, len: u64) {
        self.nbdsh(&format!("assert h.pread({len}, {offset}) == b'\\x{value:02x}' * {len}"));
    }
}

/// Does something with libnbd's shell, connected to a daemon. Within a limit: what should be answered may wait for ever.
pub fn nbdsh(uri: &str, script: &str) -> Output {
    // nbdsh runs whatever python3 comes first; libnbd's module belongs to the system's.
    let path = format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default());
    let mut nbdsh = Command::new("nbdsh");
    nbdsh.args(["-u", uri, "-c", script]).env("PATH", path);
    let (status, output) = tool::finish(nbdsh, tool::RUN_LIMIT).expect("it ends");
    Output { status, stdout: output.stdout.into_bytes(), stderr: output.stderr.into_bytes() }
}
