//! What a newcomer does wrong on the first day, and the whole text that he gets: what is wrong, and what to do next.
//!
//! Texts are compared as they are; only this test's directory, its ports and what the system says of times are replaced by names.

mod daemon;

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use cistern_harness::{
    minio::{self, Minio},
    scratch::Scratch,
    tool,
};
use daemon::{Home, SmallDisk};

/// Runs a command to its end; gives its exit code and what it says from `error:` on.
fn said(home: &Home, mut command: Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    let here = home.path("x").parent().expect("a directory").display().to_string();
    let stderr = String::from_utf8_lossy(&output.stderr).replace(&here, "HOME");
    let from = stderr.find("error:").unwrap_or_default();
    (output.status.code(), stderr[from..].trim_end().to_owned())
}

/// Without anything of the user's that could help.
fn alone(home: &Home, arguments: &[&str]) -> Command {
    let mut command = home.command(arguments);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|cloud| name.starts_with(cloud))
            || name.ends_with("_PROXY")
        {
            command.env_remove(name);
        }
    }
    command.env("HOME", home.path("")).env("XDG_RUNTIME_DIR", home.path("run"));
    command
}

#[track_caller]
fn mistake(home: &Home, command: Command, code: i32, text: &str) {
    let (ended, said) = said(home, command);
    assert_eq!(said, text);
    assert_eq!(ended, Some(code), "{said}");
}

/// Names of volumes and stores.
#[test]
fn names() {
    let home = Home::new();
    for (url, text) in [
        (
            "s3:/bucket/tank",
            "\"s3:/bucket/tank\" is not a store URL. Write s3://bucket/name, gs://bucket/name, az://container/name, or \
             for a directory /path/name or ./name",
        ),
        (
            "tank",
            "\"tank\" is not a store URL. Write s3://bucket/name, gs://bucket/name, az://container/name, or for a \
             directory /path/name or ./name",
        ),
        ("s3://bucket", "s3://bucket names no volume: add /name"),
        ("s3://bucket/", "s3://bucket names no volume: add /name"),
        ("s4://bucket/tank", "unknown kind of store s4:// (s3://, gs://, az:// and file:// are known)"),
        (
            "https://s3.example/bucket/tank",
            "https:// is the address of a server, not of a volume: write s3://bucket/name, and the server's address into \
             AWS_ENDPOINT_URL",
        ),
        ("s3://Bucket/tank", "\"Bucket\" cannot be a bucket: write s3://bucket/name"),
        (
            "s3://key:secret@bucket/tank",
            "a s3:// URL must not contain credentials: give them in the environment",
        ),
        (
            "s3://bucket/my tank",
            "\"my tank\" cannot be a part of s3://bucket/..: use letters, digits, '.', '_' and '-'",
        ),
        ("file://tank", "write file:///path with three slashes"),
    ] {
        let whole = format!(
            "error: invalid value '{url}' for '<URL>': {text}\n\nFor more information, try '--help'."
        );
        mistake(&home, alone(&home, &["create", url, "--size", "1G"]), 2, &whole);
    }
}

/// Sizes, and a volume that is there or not.
#[test]
fn volumes() {
    let home = Home::new();
    let run = |arguments: &[&str], code, text: &str| mistake(&home, alone(&home, arguments), code, text);
    run(
        &["serve", "./tank"],
        4,
        "error: there is no volume at file://HOME/tank: the directory HOME/tank not found\n  \
         hint: `cistern ls file://HOME` lists what is there, `cistern create` makes a new one",
    );
    run(
        &["create", "./tank"],
        2,
        "error: the following required arguments were not provided:\n  --size <SIZE>\n\n\
         Usage: cistern create --size <SIZE> <URL>\n\nFor more information, try '--help'.",
    );
    run(
        &["create", "./tank", "--size", "10"],
        2,
        "error: a volume's size is a multiple of 512 bytes, not 10\n  hint: 512 is the next one",
    );
    home.ok(&["create", "./tank", "--size", "1G"]);
    run(
        &["create", "./tank", "--size", "1G"],
        11,
        "error: there is a volume at file://HOME/tank already\n  \
         hint: serve it with `cistern serve file://HOME/tank`, or choose another name",
    );
    run(
        &["create", "./nowhere/tank", "--size", "1G"],
        4,
        "error: there is no volume at file://HOME/nowhere/tank: the directory HOME/nowhere (is it mounted?) not found\n  \
         hint: `cistern ls file://HOME/nowhere` lists what is there, `cistern create` makes a new one",
    );
    let identity = home.path("tank/volume.json");
    let sound = fs::read_to_string(&identity).expect("readable");
    let format = cistern_engine::log::identity::FORMAT;
    fs::write(&identity, sound.replace(&format!("\"format\": {format}"), "\"format\": 4000"))
        .expect("writable");
    run(
        &["serve", "./tank"],
        5,
        &format!(
            "error: file://HOME/tank: volume.json has format version 4000, this cistern knows {format}: use a newer cistern"
        ),
    );
    fs::write(&identity, sound.replace("lz4", "lz5")).expect("writable");
    let (code, text) = said(&home, alone(&home, &["serve", "./tank"]));
    assert!(text.contains("volume.json") && text.contains("corrupt"), "{text}");
    assert!(text.contains("hint: `cistern check URL --data` finds out what else is affected"), "{text}");
    assert_eq!(code, Some(5));
}

/// What this host has no room or right for: the port, the socket, the state directory, the journal.
#[test]
fn this_host() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    mistake(
        &home,
        alone(&home, &["serve", "./tank", "--create", "1G", "--listen", &address]),
        3,
        &format!(
            "error: cannot listen on {address}: Address already in use (os error 98)\n  \
             hint: another server listens there: stop it, or choose another address with --listen"
        ),
    );
    let mut command = alone(&home, &["serve", "./tank", "--create", "1G"]);
    command.env("STATE_DIRECTORY", "/proc/nowhere");
    let (code, text) = said(&home, command);
    assert!(
        text.starts_with("error: cannot open file://HOME/tank: cannot make the directory /proc/nowhere/"),
        "{text}"
    );
    assert!(
        text.ends_with("hint: name places where this user may write with --state-dir and --cache-dir"),
        "{text}"
    );
    assert_eq!(code, Some(4));
    let daemon = home.start(&["./tank", "--create", "1G"]);
    let (code, text) = said(&home, alone(&home, &["serve", "./tank", "--listen", "unix:second.sock"]));
    assert!(text.contains("is in use by another process\n  hint: `cistern status` shows which"), "{text}");
    assert_eq!(code, Some(3));
    daemon.stop();
}

/// A server that speaks S3, of another region than people expect.
struct Server {
    minio: Minio,
    _scratch: Scratch,
}

impl Server {
    fn start() -> Server {
        let scratch = Scratch::new("mistakes").expect("a scratch directory");
        let minio = Minio::start_in(&scratch, "eu-central-1").expect("a real S3 server");
        Server { minio, _scratch: scratch }
    }

    /// A command that is right but for what the caller changes.
    fn command(&self, home: &Home, url: &str) -> Command {
        let mut command = alone(home, &["create", url, "--size", "1G"]);
        command.envs(Minio::environment(self.minio.port())).env("AWS_REGION", "eu-central-1");
        command
    }
}

/// What is wrong with the way to a store is said by name.
#[test]
fn the_way_to_a_store() {
    let (home, server) = (Home::new(), Server::start());
    let port = server.minio.port();
    let url = format!("s3://{}/tank", minio::BUCKET);
    let with = |name: &str, value: &str| {
        let mut command = server.command(&home, &url);
        command.env(name, value);
        command
    };
    let run = |command: Command, text: &str| {
        mistake(&home, command, 7, &format!("error: {url}: the store refuses: {text}"));
    };
    run(
        with("AWS_REGION", "us-east-1"),
        "GET volume.json: 400 AuthorizationHeaderMalformed: The authorization header is malformed; the region is wrong; \
         expecting 'eu-central-1'. Set AWS_REGION to the region of the bucket",
    );
    run(
        with("AWS_SECRET_ACCESS_KEY", "wrong"),
        "GET volume.json: 403 SignatureDoesNotMatch: The request signature we calculated does not match the signature you \
         provided. Check your key and signing method. Check the credentials: AWS_SECRET_ACCESS_KEY does not belong to the key",
    );
    run(
        with("AWS_ACCESS_KEY_ID", "wrong"),
        "GET volume.json: 403 InvalidAccessKeyId: The Access Key Id you provided does not exist in our records. Check the \
         credentials: AWS_ACCESS_KEY_ID is no key of this store",
    );
    run(
        with("AWS_ENDPOINT_URL", &format!("127.0.0.1:{port}")),
        "AWS_ENDPOINT_URL is no address. Write it like https://host or http://host:port",
    );
    run(
        with("AWS_ENDPOINT_URL", &format!("https://127.0.0.1:{port}")),
        "GET volume.json: 127.0.0.1 speaks no TLS: does its address begin with http://?",
    );
    let mut command = server.command(&home, &url);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    run(
        command,
        &format!(
            "no credentials for http://127.0.0.1:{port}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        ),
    );
    let mut command = server.command(&home, &url);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY").env("AWS_PROFILE", "work");
    run(
        command,
        "AWS_PROFILE names the profile \"work\", which is not in ~/.aws/config or ~/.aws/credentials (no profile at all)",
    );
    mistake(
        &home,
        server.command(&home, "s3://no-such-bucket/tank"),
        7,
        "error: s3://no-such-bucket/tank: the store refuses: GET volume.json: 404 NoSuchBucket: The specified bucket does \
         not exist. Make the bucket first, or correct its name in the URL",
    );
    let mut command = alone(&home, &["serve", &url]);
    command.envs(Minio::environment(port)).env("AWS_REGION", "eu-central-1");
    mistake(
        &home,
        command,
        4,
        &format!(
            "error: there is no volume at {url}\n  \
             hint: `cistern ls s3://{}` lists what is there, `cistern create` makes a new one",
            minio::BUCKET
        ),
    );
    let (code, text) = said(&home, with("AWS_ENDPOINT_URL", "http://no.such.host.invalid"));
    assert!(
        text.starts_with(&format!(
            "error: {url}: the store does not answer: GET volume.json: no.such.host.invalid: "
        )) && text.contains("hint: check the network and the endpoint"),
        "{text}"
    );
    assert_eq!(code, Some(7));
}

/// A clock that is two hours behind is the clock's fault, and not that of the keys.
#[test]
fn a_wrong_clock() {
    let (home, server) = (Home::new(), Server::start());
    let url = format!("s3://{}/tank", minio::BUCKET);
    let right = server.command(&home, &url);
    let mut command = tool::command("faketime").expect("it is installed");
    command.args(["-f", "-2h"]).arg(right.get_program()).args(right.get_args()).current_dir(home.path(""));
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    for (name, value) in right.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    mistake(
        &home,
        command,
        7,
        &format!(
            "error: {url}: the store refuses: GET volume.json: 403 RequestTimeTooSkewed: The difference between the request \
             time and the server's time is too large. Set the clock of this machine"
        ),
    );
}

/// No keys anywhere, and no cloud around: said at once, and where keys may come from.
#[test]
fn no_keys_at_all() {
    let home = Home::new();
    let mut command = alone(&home, &["create", "s3://bucket/tank", "--size", "1G"]);
    // In the place of a cloud's metadata service, which a test must not ask: nobody is there either.
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    command.env("AWS_METADATA_ENDPOINT", format!("http://{nobody}"));
    mistake(
        &home,
        command,
        7,
        "error: s3://bucket/tank: the store refuses: GET volume.json: no credentials were given, and nobody on this machine \
         gives some (127.0.0.1: Connection refused (os error 111)). `cistern create --help` says how to give some",
    );
}

/// A disk that is too small for the journal that is asked for.
#[test]
fn no_room_for_the_journal() {
    let home = Home::new();
    let _disk = SmallDisk::mount(home.path("state"), "size=64m");
    let (code, text) =
        said(&home, alone(&home, &["serve", "./tank", "--create", "1G", "--journal-size", "128M"]));
    let (begins, ends) = text.split_once("state/").expect("it names the file");
    let (_, ends) = ends.split_once("/journal.new-").expect("the volume has a directory");
    let (_, ends) = ends.split_once(' ').expect("the file is unfinished");
    assert_eq!(
        format!("{begins}state/ID/journal.new-TOKEN {ends}"),
        "error: cannot open file://HOME/tank: no space: HOME/state/ID/journal.new-TOKEN needs 134217728 bytes, 67108864 are free\n  \
         hint: make room there or name another place; a journal may be smaller (--journal-size)"
    );
    assert_eq!(code, Some(9));
}

/// A directory in which this user may not write (as another user than root).
#[test]
fn a_directory_of_somebody_else() {
    let home = Home::new();
    fs::set_permissions(home.path(""), fs::Permissions::from_mode(0o755)).expect("changed");
    // Where he may run it.
    let (binary, tank) = (home.path("cistern"), home.path("tank"));
    fs::copy(env!("CARGO_BIN_EXE_cistern"), &binary).expect("copied");
    let script = format!("exec {} create {} --size 1G", binary.display(), tank.display());
    let mut command = tool::command("setpriv").expect("it is installed");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &script]);
    command.env("HOME", home.path(""));
    mistake(
        &home,
        command,
        7,
        "error: file://HOME/tank: the store refuses: cannot make the directory HOME/tank: permission denied (check its owner \
         and mode)",
    );
}
