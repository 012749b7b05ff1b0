//! Docker's volume plugin protocol, as Docker speaks it: what needs no device of the kernel. The rest is run by Docker itself, in a guest
//! (`cargo xtask guest --only docker`).

mod daemon;

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::{Child, ChildStdout, Stdio},
};

use daemon::{Home, json};
use serde_json::Value;

/// A running `cistern docker`.
struct Driver {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    home: Home,
}

impl Driver {
    fn start(home: Home, arguments: &[&str]) -> Driver {
        std::fs::create_dir_all(home.path("store")).expect("writable");
        let socket = home.path("driver.sock").display().to_string();
        let all = ["docker", "--on", "./store", "--size", "1G", "--socket", &socket];
        let mut command = home.command(&[&all[..], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("it runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it says that it is ready");
        assert!(line.starts_with("docker volumes on "), "{line:?}");
        Driver { child, _stdout: stdout, home }
    }

    /// Ends it as a power cut would, and gives what is left.
    fn kill(mut self) -> Home {
        self.end();
        std::mem::replace(&mut self.home, Home::new())
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.home.path("driver.sock")).expect("it listens");
        let _ = stream.write_all(bytes); // it may hang up on us
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    /// A call in Docker's own words; gives its code and its document.
    fn call(&self, call: &str, body: &str) -> (u16, Value) {
        let head = format!(
            "POST /{call} HTTP/1.1\r\nHost: plugin\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {}\r\n\
             Accept: application/vnd.docker.plugins.v1.2+json\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let answer = self.say(format!("{head}{body}").as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("application/vnd.docker.plugins.v1.2+json"), "{head}");
        (head[9..12].parse().expect("a code"), json(body))
    }

    fn done(&self, call: &str, body: &str) -> Value {
        let (code, document) = self.call(call, body);
        assert_eq!(code, 200, "{call} {body}: {document}");
        document
    }

    fn refused(&self, call: &str, body: &str) -> String {
        let (code, document) = self.call(call, body);
        assert!(code >= 400, "{call} {body}: {document}");
        document["Err"].as_str().expect("a sentence").to_owned()
    }

    /// Names of the volumes.
    fn listed(&self) -> Vec<String> {
        let listed = self.done("VolumeDriver.List", "{}\n");
        let volumes = listed["Volumes"].as_array().expect("a list");
        volumes.iter().map(|volume| volume["Name"].as_str().expect("a name").to_owned()).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end();
    }
}

/// A volume is created with what its options say, once; it is known after a kill; removed it lies in the trash, and what was there before
/// it was created here stays where it is.
#[test]
fn volumes_come_and_go() {
    let driver = Driver::start(Home::new(), &[]);
    assert_eq!(driver.done("Plugin.Activate", "")["Implements"], serde_json::json!(["VolumeDriver"]));
    assert_eq!(driver.done("VolumeDriver.Capabilities", "{}\n")["Capabilities"]["Scope"], "global");
    let wanted = r#"{"Name":"db","Opts":{"size":"2G","fs":"XFS"}}"#;
    driver.done("VolumeDriver.Create", wanted);
    driver.done("VolumeDriver.Create", wanted);
    assert!(driver.refused("VolumeDriver.Create", r#"{"Name":"db","Opts":{}}"#).contains("is another one"));
    driver.done("VolumeDriver.Create", "{\"Name\":\"plain\",\"Opts\":null}\n");
    let driver = Driver::start(driver.kill(), &[]);
    assert_eq!(driver.listed(), ["db", "plain"]);
    let got = driver.done("VolumeDriver.Get", r#"{"Name":"db"}"#);
    assert_eq!(got["Volume"]["Status"]["fs"], "xfs");
    assert_eq!(got["Volume"]["Mountpoint"], "", "nobody has mounted it");
    assert_eq!(driver.done("VolumeDriver.Path", r#"{"Name":"db"}"#)["Mountpoint"], "");
    let size = |url: &str| json(&driver.home.ok(&["info", url, "--json"]))["state"]["size_bytes"].clone();
    assert_eq!((size("./store/db"), size("./store/plain")), ((2u64 << 30).into(), (1u64 << 30).into()));

    driver.done("VolumeDriver.Remove", r#"{"Name":"db"}"#);
    assert_eq!(driver.listed(), ["plain"]);
    driver.home.fails(4, &["info", "./store/db"]);
    assert!(driver.home.ok(&["ls", "./store", "--trash"]).contains("db"));
    let said = driver.refused("VolumeDriver.Create", wanted);
    assert!(said.contains("trash"), "what is in the trash is not taken for a volume: {said}");
    driver.home.ok(&["restore", "./store/db"]);
    driver.done("VolumeDriver.Create", wanted);
    driver.done("VolumeDriver.Remove", r#"{"Name":"db"}"#);
    driver.home.ok(&["info", "./store/db"]);
}

/// Said when it starts, it deletes what it removes, or leaves it.
#[test]
fn what_is_removed_is_told_at_the_start() {
    let driver = Driver::start(Home::new(), &["--on-remove", "delete"]);
    driver.done("VolumeDriver.Create", r#"{"Name":"gone"}"#);
    driver.done("VolumeDriver.Remove", r#"{"Name":"gone"}"#);
    assert!(!driver.home.ok(&["ls", "./store", "--trash"]).contains("gone"));
    driver.done("VolumeDriver.Create", r#"{"Name":"gone"}"#);
    let driver = Driver::start(driver.kill(), &["--on-remove", "keep"]);
    driver.done("VolumeDriver.Remove", r#"{"Name":"gone"}"#);
    driver.home.ok(&["info", "./store/gone"]);
}

/// Whatever is wrong is said in a sentence, and changes nothing.
#[test]
fn what_is_wrong_is_said() {
    let driver = Driver::start(Home::new(), &[]);
    for (body, text) in [
        (r#"{"Name":"a/b"}"#, "cannot be the name"),
        (r#"{"Name":""}"#, "cannot be the name"),
        (r#"{"Name":"x","Opts":{"colour":"red"}}"#, "there is no option colour"),
        (r#"{"Name":"x","Opts":{"size":"much"}}"#, "size=much"),
        (r#"{"Name":"x","Opts":{"fs":"fat"}}"#, "zfs, ext4, xfs or btrfs"),
        (r#"{"Name":"x","Opts":{"url":"ftp://x/y"}}"#, "url=ftp://x/y"),
        (r#"{"Name":"x","Opts":{"size":"1"}}"#, "size"),
        (r#"{"Name":7}"#, "cannot be read"),
        ("{", "cannot be read"),
    ] {
        let said = driver.refused("VolumeDriver.Create", body);
        assert!(said.contains(text), "{body}: {said}");
    }
    for call in ["Mount", "Unmount", "Remove", "Get", "Path"] {
        let said = driver.refused(&format!("VolumeDriver.{call}"), r#"{"Name":"nobody","ID":"1"}"#);
        assert_eq!(said, "there is no volume nobody");
    }
    assert_eq!(driver.call("VolumeDriver.Dance", "{}").0, 404);
    assert!(
        driver
            .say(b"GET /VolumeDriver.List HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .contains(" 405 ")
    );
    let long = "x".repeat(1 << 20);
    assert!(driver.refused("VolumeDriver.Create", &long).contains("cannot be read"));
    assert!(driver.listed().is_empty());
    assert_eq!(
        std::fs::read_dir(driver.home.path("store")).expect("a directory").count(),
        0,
        "nothing was made"
    );

    let state = ["docker", "--on", "./store", "--socket", "other.sock"];
    assert!(driver.home.fails(3, &state).contains("another `cistern docker` has this state directory"));
}

/// Where no device can be made of a volume, a container is told why, and has nothing: the volume can be removed.
#[test]
fn a_mount_that_fails_holds_nothing() {
    let driver = Driver::start(Home::new(), &[]);
    driver.done("VolumeDriver.Create", r#"{"Name":"db"}"#);
    // Not there, and nobody is to make it.
    std::fs::rename(driver.home.path("store/db"), driver.home.path("elsewhere")).expect("a directory store");
    let said = driver.refused("VolumeDriver.Mount", r#"{"Name":"db","ID":"1"}"#);
    assert!(!said.is_empty());
    assert_eq!(driver.done("VolumeDriver.Get", r#"{"Name":"db"}"#)["Volume"]["Status"]["containers"], 0);
    // Its journal may hold what is in no store: a store that is not there is no reason to forget it.
    driver.refused("VolumeDriver.Remove", r#"{"Name":"db"}"#);
    assert_eq!(driver.listed(), ["db"]);
    std::fs::rename(driver.home.path("elsewhere"), driver.home.path("store/db")).expect("a directory store");
    driver.done("VolumeDriver.Unmount", r#"{"Name":"db","ID":"1"}"#);
    driver.done("VolumeDriver.Remove", r#"{"Name":"db"}"#);
    assert!(driver.listed().is_empty());
}

/// A volume whose place is not mounted is not removed and not forgotten: it would stay in its store without anybody here who knows of it.
#[test]
fn what_is_not_mounted_is_not_forgotten() {
    let driver = Driver::start(Home::new(), &[]);
    driver.done("VolumeDriver.Create", r#"{"Name":"db","Opts":{}}"#);
    let (place, elsewhere) = (driver.home.path("store"), driver.home.path("elsewhere"));
    std::fs::rename(&place, &elsewhere).expect("moved");
    std::fs::create_dir(&place).expect("made");
    let said = driver.refused("VolumeDriver.Remove", r#"{"Name":"db"}"#);
    assert!(said.contains("is its file system mounted?"), "{said}");
    assert_eq!(driver.listed(), ["db"]);
    std::fs::remove_dir(&place).expect("empty");
    std::fs::rename(&elsewhere, &place).expect("moved back");
    driver.done("VolumeDriver.Remove", r#"{"Name":"db"}"#);
    assert!(driver.home.ok(&["ls", "./store", "--trash"]).contains("db"));
}
