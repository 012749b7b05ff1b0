//! QEMU's programs, which know the formats of images: `qemu-nbd` shows one as an export to this process alone, `qemu-img` makes one.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder},
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{DirBuilderExt, FileTypeExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use cistern_engine::env::Env;
use cistern_nbd::Remote;

use crate::failure::{Failure, Kind, Outcome};

/// A server that has one client: this process. It ends with that.
pub(super) struct QemuNbd {
    child: Child,
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An image as an export, and its server.
pub(super) type OpenImage = (Remote<UnixStream>, QemuNbd);

impl QemuNbd {
    /// Opens an image of a format by name; qemu guesses nothing.
    pub fn open(env: &Env, image: &Path, format: &str, read_only: bool) -> Outcome<OpenImage> {
        let program = program("qemu-nbd")?;
        let failed = |e: io::Error| Failure::io("cannot start qemu-nbd", &e);
        let (listener, client) = connected(env).map_err(failed)?;
        let options = options(image, format)?;
        // It gets a socket that listens as systemd hands one over: at descriptor 3, with its own number in the environment.
        let script = r#"export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@" 3<&0 </dev/null"#;
        let mut command = apart("sh");
        command
            .args(["-c", script, "sh"])
            .arg(program)
            .arg("--image-opts")
            .args(["--export-name=", "--shared=1"]);
        if read_only {
            command.arg("--read-only");
        }
        command.arg(options).stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut server = QemuNbd { child: command.spawn().map_err(failed)? };
        // This process has no copy of what listens any more, so a server that ends ends the connection.
        drop(command);
        match Remote::open(client, "") {
            Ok(remote) => Ok((remote, server)),
            Err(e) => Err(server.why(&e)),
        }
    }

    /// Why it does not serve: what it says itself, if it ended.
    fn why(&mut self, seen: &io::Error) -> Failure {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut said = String::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(4096).read_to_string(&mut said);
        }
        match said.trim() {
            "" => Failure::io("qemu-nbd does not serve the image", seen),
            said => Failure::new(Kind::Other, said.replace('\n', "; ")),
        }
    }

    /// Waits until it has ended, behind the end of its client.
    pub fn end(mut self) -> Outcome {
        let ended = self.child.wait().map_err(|e| Failure::io("qemu-nbd", &e))?;
        match ended.success() {
            true => Ok(()),
            false => Err(self.why(&io::Error::other(ended.to_string()))),
        }
    }
}

/// Makes an empty image in place of a file.
pub(super) fn make(image: &Path, format: &str, size_bytes: u64) -> Outcome {
    let program = program("qemu-img")?;
    let mut command = apart(program);
    command.args(["create", "-q", "-f", format]).arg(absolute(image)?).arg(size_bytes.to_string());
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| Failure::io("cannot start qemu-img", &e))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(Failure::new(Kind::Other, String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")))
        }
    }
}

/// A program that gets none of the credentials which are in this process's environment.
fn apart(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command
}

/// A socket that listens, in a place where nobody else can connect, and a connection to it. Its name is gone then.
fn connected(env: &Env) -> io::Result<(UnixListener, UnixStream)> {
    let directory = std::env::temp_dir().join(format!("cistern-{}", env.uuid().simple()));
    DirBuilder::new().mode(0o700).create(&directory)?;
    let socket = directory.join("nbd");
    let both = UnixListener::bind(&socket).and_then(|listener| Ok((listener, UnixStream::connect(&socket)?)));
    let _ = fs::remove_file(&socket);
    let _ = fs::remove_dir(&directory);
    both
}

/// An image as qemu's options name it, so that no name means anything else than a file.
fn options(image: &Path, format: &str) -> Outcome<String> {
    let path = absolute(image)?;
    let metadata =
        fs::metadata(image).map_err(|e| Failure::io(format!("cannot read {}", image.display()), &e))?;
    let driver = if metadata.file_type().is_block_device() { "host_device" } else { "file" };
    let name = path.to_str().ok_or_else(|| Failure::usage(format!("{} is not UTF-8", path.display())))?;
    Ok(format!("driver={format},file.driver={driver},file.filename={}", name.replace(',', ",,")))
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("{}", path.display()), &e))
}

fn program(name: &str) -> Outcome<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| {
        Failure::new(Kind::NotFound, format!("{name} is not installed, which knows this format"))
            .hint("install qemu-utils (Debian, Ubuntu) or qemu-img (Fedora, Alpine)")
    })
}
