//! The interface of a daemon over HTTP: what the control socket and the dashboard's address answer, to whom, and that nobody hurts the
//! daemon through them.

mod daemon;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::PathBuf,
};

use cistern::history::{DAEMON, HistoryReply, RINGS, VOLUME};
use daemon::{Daemon, Home, json};
use serde_json::Value;

const CREATE: [&str; 3] = ["./tank", "--create", "1G"];
const DASHBOARD: [&str; 5] = ["./tank", "--create", "1G", "--dashboard", "127.0.0.1:0"];
const TOKEN: &str = "a-token+of/several=characters";
const MIB: u64 = 1 << 20;

/// An answer.
struct Answer {
    code: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        json(&self.body)
    }

    /// The value of a header.
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Says something to a server, and gives what it answers until it hangs up.
fn say(mut stream: impl Read + Write, bytes: &[u8]) -> Answer {
    let _ = stream.write_all(bytes); // it may hang up on us
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0);
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { joined(body) } else { body.to_owned() };
    Answer { code, head: head.to_owned(), body }
}

/// The chunks of a body together.
fn joined(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        out.push_str(&rest[..size]);
        body = &rest[(size + 2).min(rest.len())..];
    }
    out
}

/// The control socket of the only daemon.
fn socket(home: &Home) -> PathBuf {
    let entries = std::fs::read_dir(home.path("state/control")).expect("readable").flatten();
    let mut sockets = entries.map(|entry| entry.path());
    sockets.find(|path| path.extension().is_some_and(|e| e == "sock")).expect("the daemon has one")
}

fn control(home: &Home) -> UnixStream {
    UnixStream::connect(socket(home)).expect("listening")
}

fn posting(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn getting(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\n{headers}\r\n")
}

/// A daemon, and the address of its dashboard.
fn start(home: &Home, more: &[&str]) -> (Daemon, String) {
    let mut daemon = home.start(&[&DASHBOARD[..], more].concat());
    let url = daemon.told("dashboard: ");
    let address = url.strip_prefix("http://").and_then(|url| url.strip_suffix('/')).expect("a URL");
    (daemon, address.to_owned())
}

fn get(address: &str, path: &str) -> Answer {
    let stream = TcpStream::connect(address).expect("listening");
    say(stream, getting(path, &format!("Host: {address}\r\n")).as_bytes())
}

fn history(address: &str, query: &str) -> HistoryReply {
    let answer = get(address, &format!("/api/v1/history{query}"));
    assert_eq!(answer.code, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).expect("a history")
}

/// Documents are got and verbs are posted, with the body of the documentation; what fails says so as commands hear it, with a status that
/// programs understand.
#[test]
fn the_control_socket_speaks_http() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.fill(1, 0, MIB);
    let post = |path: &str, body: &str| say(control(&home), posting(path, body).as_bytes());
    let drained = post("/api/v1/drain", r#"{"volume":"tank","limit_ms":60000}"#);
    assert_eq!(
        (drained.code, &drained.json()["done"]["clean"]),
        (200, &Value::from(true)),
        "{}",
        drained.body
    );
    let again = post("/api/v1/drain", "");
    assert_eq!(again.json()["done"]["dirty_bytes"], 0);
    let get = |path: &str| say(control(&home), getting(path, "Host: x\r\n").as_bytes());
    let status = get("/api/v1/status").json();
    assert_eq!(status["volumes"][0]["id"], home.status()["daemons"][0]["volumes"][0]["id"]);
    assert_eq!(status["pid"], daemon.pid());
    let io = get("/api/v1/io").json();
    let shown = json(&home.ok(&["status", "--io", "--json"]));
    assert_eq!(io["volumes"][0]["io"]["kinds"], shown["daemons"][0]["volumes"][0]["io"]["kinds"]);
    assert!(get("/metrics").body.contains("cistern_dirty_bytes"));

    let made = r#"{"snapshots":[{"volume":"tank","name":"monday"}],"wait":true}"#;
    assert_eq!(post("/api/v1/snapshot", made).code, 200);
    for (answer, code, kind) in [
        (post("/api/v1/snapshot", made), 409, "exists"),
        (post("/api/v1/drain", r#"{"volume":"x"}"#), 404, "not-found"),
        (post("/api/v1/resize", r#"{"volume":"tank","size_bytes":1,"force":false}"#), 400, "usage"),
        (post("/api/v1/resize", "{}"), 400, "usage"),
        (post("/api/v1/drain", r#"{"volumes":["tank"]}"#), 400, "usage"),
        (post("/api/v1/fly", "{}"), 400, "usage"),
        (post("/api/v2/drain", "{}"), 404, "usage"),
        (get("/api/v1/drain"), 404, "usage"),
        (get("/api/v1/history?step=5"), 400, "usage"),
    ] {
        assert_eq!((answer.code, &answer.json()["failed"]["kind"]), (code, &kind.into()), "{}", answer.body);
    }
    assert!(post("/api/v1/fly", "{}").body.contains("another version"));
    assert_eq!(
        say(control(&home), b"PUT /api/v1/status HTTP/1.1\r\n\r\n").header("allow"),
        Some("GET, POST")
    );
    daemon.stop();
}

/// Nonsense, endless heads and bodies that are too long get an answer or none, and the daemon goes on.
#[test]
fn the_control_socket_refuses_nonsense() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    assert_eq!(say(control(&home), b"nonsense\r\n\r\n").code, 400);
    assert_ne!(say(control(&home), &vec![b'x'; 64 << 10]).code, 200);
    let long = format!(r#"{{"volume":"{}"}}"#, "x".repeat(64 << 10));
    assert_eq!(say(control(&home), posting("/api/v1/drain", &long).as_bytes()).code, 400);
    let silent: Vec<_> = (0..32).map(|_| control(&home)).collect();
    home.status();
    drop(silent);
    daemon.fill(1, 0, MIB);
    daemon.stop();
}

/// What keeps devices attached and is of a build before HTTP finds its volume in the new daemon, and such a build can be put back in its
/// place; whatever else speaks in lines is told why it is not understood.
#[test]
fn lines_find_the_volume_and_stop_its_daemon() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    let mut stream = control(&home);
    let mut ask = |line: &str| {
        stream.write_all(format!("{line}\n").as_bytes()).expect("written");
        let mut reply = String::new();
        BufReader::new(&stream).read_line(&mut reply).expect("UTF-8");
        json(&reply)
    };
    assert_eq!(ask(r#"{"request":"status"}"#)["done"]["volumes"][0]["name"], "tank");
    let refused = ask(r#"{"request":"drain","volume":"tank","limit_ms":1}"#);
    assert!(refused["failed"]["text"].as_str().expect("told").contains("another version"), "{refused}");
    assert_eq!(ask(r#"{"request":"stop","drain":false}"#), serde_json::json!({"done": null}));
    assert_eq!(daemon.wait().code, Some(0));
}

/// Whoever hangs up while he waits for something long gives his place back at once.
#[test]
fn who_hangs_up_waits_no_longer() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    home.ok(&["set", "./tank", "upload-rate=100K"]);
    daemon.nbdsh("import os; h.pwrite(os.urandom(32 << 20), 0)");
    for _ in 0..200 {
        let asked = posting("/api/v1/drain", r#"{"volume":"tank"}"#);
        control(&home).write_all(asked.as_bytes()).expect("written");
    }
    home.status();
    home.ok(&["set", "./tank", "upload-rate=default"]);
    daemon.stop();
}

/// Through TCP everything can be seen and nothing changed; a browser that was led here under another name sees nothing, and what it gets
/// says that nothing else is to be loaded, and what it has already.
#[test]
fn the_dashboard_is_for_looking_from_this_host() {
    let home = Home::new();
    let (daemon, address) = start(&home, &[]);
    let page = get(&address, "/");
    assert_eq!((page.code, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.header("content-security-policy").is_some_and(|csp| csp.starts_with("default-src 'self';")));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    let tag = page.header("etag").expect("a tag");
    let connect = || TcpStream::connect(&address).expect("listening");
    let again =
        say(connect(), getting("/", &format!("Host: {address}\r\nIf-None-Match: {tag}\r\n")).as_bytes());
    assert_eq!((again.code, &*again.body), (304, ""));
    let status = get(&address, "/api/v1/status");
    assert_eq!(status.header("cache-control"), Some("no-store"));
    assert_eq!(status.json()["dashboard"]["url"], format!("http://{address}/"));
    assert!(get(&address, "/metrics").body.contains("cistern_dirty_bytes"));
    assert_eq!(get(&address, "/etc/passwd").code, 404);
    assert_eq!(get(&address, "/assets/../index.html").code, 404);

    let drain = say(connect(), posting("/api/v1/drain", "").as_bytes());
    assert_eq!((drain.code, drain.header("allow")), (405, Some("GET")));
    assert_eq!(say(connect(), posting("/api/v1/stop", r#"{"drain":false}"#).as_bytes()).code, 405);
    for host in [
        "Host: tank.example.org\r\n",
        "Host: 127.0.0.1.example.org\r\n",
        "",
        "Host: x\r\nHost: localhost\r\n",
    ] {
        let refused = say(connect(), getting("/api/v1/status", host).as_bytes());
        assert_eq!(refused.code, 403, "{host}");
        assert!(!refused.body.contains("volumes") && refused.body.contains("localhost"), "{}", refused.body);
    }
    assert_eq!(say(connect(), getting("/", "Host: localhost:1234\r\n").as_bytes()).code, 200);
    assert_eq!(home.ok(&["dashboard", "tank"]).trim(), format!("http://{address}/"));
    assert_eq!(json(&home.ok(&["dashboard", "--json"]))[0]["volumes"], serde_json::json!(["tank"]));
    daemon.stop();
}

/// With a token nobody sees anything without it; a browser that comes with it in the address keeps it as a cookie, and the address loses it.
#[test]
fn a_token_guards_the_dashboard() {
    let home = Home::new();
    std::fs::write(home.path("token"), format!("{TOKEN}\n")).expect("writable");
    let (daemon, address) = start(&home, &["--dashboard-token-file", "token"]);
    let ask = |path: &str, headers: &str| {
        let stream = TcpStream::connect(&address).expect("listening");
        say(stream, getting(path, &format!("Host: tank.example.org\r\n{headers}")).as_bytes())
    };
    for path in
        ["/", "/api/v1/status", "/api/v1/events", "/metrics", "/?token=wrong", "/api/v1/status?token=a"]
    {
        let refused = ask(path, "");
        assert_eq!((refused.code, refused.header("www-authenticate")), (401, Some("Bearer")), "{path}");
        assert!(!refused.body.contains("cistern_"), "{}", refused.body);
    }
    assert_eq!(ask("/", "Authorization: Bearer a-token+of/several=character\r\n").code, 401);
    assert_eq!(ask("/api/v1/status", &format!("Authorization: Bearer {TOKEN}\r\n")).code, 200);
    let welcome = ask(&format!("/?token={TOKEN}"), "");
    assert_eq!((welcome.code, welcome.header("location")), (303, Some("/")));
    let cookie = welcome.header("set-cookie").expect("a cookie");
    let (pair, rest) = cookie.split_once("; ").expect("attributes");
    assert!(rest.contains("HttpOnly") && rest.contains("SameSite=Strict"), "{cookie}");
    assert_eq!(ask("/", &format!("Cookie: other=1; {pair}\r\n")).code, 200);
    let shown = home.run(&["dashboard"]);
    let told = String::from_utf8_lossy(&shown.stderr).into_owned() + &String::from_utf8_lossy(&shown.stdout);
    assert!(told.contains("?token=TOKEN") && !told.contains(TOKEN), "{told}");
    daemon.stop();
}

/// What cannot be a dashboard says why before any volume is touched: an address beyond this host without a token, a port that is taken, a
/// token that is none; and where there is none, `cistern dashboard` says how to get one.
#[test]
fn an_unsafe_dashboard_is_refused() {
    let home = Home::new();
    std::fs::write(home.path("empty"), "\n").expect("writable");
    let listening = std::net::TcpListener::bind("127.0.0.1:0").expect("bindable");
    let taken = listening.local_addr().expect("bound").to_string();
    let refused = |code: i32, more: &[&str]| home.fails(code, &[&["serve"], &CREATE[..], more].concat());
    for (code, more, told) in [
        (2, &["--dashboard", "0.0.0.0:0"][..], "--dashboard-token-file"),
        (2, &["--dashboard", "0.0.0.0:0", "--dashboard-token-file", "empty"], "is empty"),
        (4, &["--dashboard", "127.0.0.1:0", "--dashboard-token-file", "none"], "cannot be read"),
        (2, &["--dashboard", "here"], "127.0.0.1:9810"),
    ] {
        let text = refused(code, more);
        assert!(text.contains(told), "{more:?}: {text}");
    }
    assert!(refused(3, &["--dashboard", &taken]).contains("another port with --dashboard"));
    assert!(!home.path("tank").exists(), "nothing is created");
    home.fails(4, &["dashboard"]);
    let daemon = home.start(&CREATE);
    assert!(home.fails(4, &["dashboard"]).contains("--dashboard 127.0.0.1:9810"));
    daemon.stop();
}

/// What a load did is in the history, in all rings, with the names of the documentation; a question is answered with the part that it asks
/// for; and a daemon that began to note it when it was asked first has it too.
#[test]
fn the_history_shows_a_load() {
    let home = Home::new();
    let (daemon, address) = start(&home, &[]);
    daemon.nbdsh("for i in range(64): h.pwrite(b'x' * 65536, i << 16)\nh.flush()\nh.pread(65536, 0)");
    let status = get(&address, "/api/v1/status").json();
    let volume = &status["volumes"][0];
    let shows = |reply: &HistoryReply| {
        reply.rings.iter().all(|ring| {
            let Some(tank) = ring.volumes.get("tank") else { return false }; // nothing was sampled yet
            let grew = |name: &str| tank[name].iter().flatten().sum::<f32>();
            let seen = ["client_write_bytes_per_second", "writes_per_second", "write_p99_seconds"].map(grew);
            seen.iter().all(|sum| *sum > 0.0) && grew("reads_per_second") > 0.0
        })
    };
    let reply = loop {
        let reply = history(&address, "");
        if shows(&reply) {
            break reply;
        }
    };
    assert_eq!(
        reply.rings.iter().map(|ring| ring.step_ms).collect::<Vec<_>>(),
        RINGS.map(|(step_ms, _)| step_ms)
    );
    for ring in &reply.rings {
        let lens = |series: &std::collections::BTreeMap<String, Vec<Option<f32>>>| {
            series.values().map(Vec::len).collect::<std::collections::BTreeSet<_>>()
        };
        let columns = ring.daemon["memory_bytes"].len();
        assert_eq!(lens(&ring.daemon), [columns].into());
        assert_eq!(lens(&ring.volumes["tank"]), [columns].into());
        assert_eq!((ring.daemon.len(), ring.volumes["tank"].len()), (DAEMON.len(), VOLUME.len()));
        let last_ms = ring.first_ms + ring.step_ms * columns as u64;
        assert!(ring.first_ms % ring.step_ms == 0 && last_ms + ring.step_ms > reply.now_ms, "{ring:?}");
        let last = |name: &str| ring.volumes["tank"][name].last().copied().flatten().map(f64::from);
        assert_eq!(last("journal_size_bytes"), volume["journal_bytes"].as_f64());
        assert_eq!(last("dirty_bytes"), volume["dirty_bytes"].as_f64());
        assert!(ring.daemon["memory_bytes"].last().copied().flatten() > Some(1e6));
    }
    let since_ms = reply.rings[0].first_ms + 1999;
    let part = loop {
        let part = history(&address, &format!("?step=1000&volume=tank&since={since_ms}"));
        if part.rings[0].daemon["clients"].len() > 1 {
            break part;
        }
    };
    assert_eq!((part.rings.len(), part.rings[0].first_ms), (1, since_ms - 999));
    assert!(history(&address, "?volume=other").rings.iter().all(|ring| ring.volumes.is_empty()));
    daemon.stop();

    let daemon = home.start(&["./tank"]);
    let asked = || {
        let answer = say(control(&home), getting("/api/v1/history?step=1000", "Host: x\r\n").as_bytes());
        serde_json::from_str::<HistoryReply>(&answer.body).expect("a history")
    };
    assert!(asked().rings[0].daemon["memory_bytes"].is_empty(), "nobody wanted it before");
    while asked().rings[0].daemon["memory_bytes"].len() < 2 {}
    daemon.stop();
}

/// A stream of events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn watch(address: &str) -> Events {
        let mut stream = TcpStream::connect(address).expect("listening");
        let asked = getting("/api/v1/events", &format!("Host: {address}\r\n"));
        stream.write_all(asked.as_bytes()).expect("written");
        Events(BufReader::new(stream))
    }

    /// The next event of a name: its data as they stand there.
    fn next(&mut self, name: &str) -> String {
        let (mut line, wanted) = (String::new(), format!("event: {name}\n"));
        while line != wanted {
            line.clear();
            assert!(self.0.read_line(&mut line).expect("UTF-8") > 0, "ended without {name}");
        }
        line.clear();
        self.0.read_line(&mut line).expect("UTF-8");
        line.strip_prefix("data: ").expect("data").trim_end().to_owned()
    }
}

/// Whoever watches is told at once how the daemon is, and then every second what was; what a client does is in the next samples. All
/// viewers are sent the same bytes.
#[test]
fn events_tell_what_happens() {
    let home = Home::new();
    let (daemon, address) = start(&home, &[]);
    let (mut one, mut other) = (Events::watch(&address), Events::watch(&address));
    assert_eq!(json(&one.next("status"))["volumes"][0]["name"], "tank");
    let at = |text: &str| json(text)["at_ms"].as_u64().expect("a time");
    let (first, second) = (one.next("sample"), one.next("sample"));
    assert!(at(&second) > at(&first) && json(&one.next("status"))["pid"] == daemon.pid());
    let mut same = other.next("sample");
    while at(&same) < at(&second) {
        same = other.next("sample");
    }
    assert_eq!(same, second);
    daemon.fill(1, 0, 4 * MIB);
    let wrote = |text: &str| json(text)["volumes"]["tank"]["client_write_bytes_per_second"].as_f64();
    let mut sample = one.next("sample");
    while wrote(&sample) == Some(0.0) {
        sample = one.next("sample");
    }
    assert!(wrote(&sample) > Some(0.0), "{sample}");
    assert_eq!(json(&sample)["daemon"]["clients"], 0.0);
    daemon.stop();
}

/// As many watch as there are places; the next one is told so, and gets a place when one is free.
#[test]
fn viewers_are_bounded() {
    let home = Home::new();
    let (daemon, address) = start(&home, &[]);
    let mut viewers: Vec<Events> = (0..32).map(|_| Events::watch(&address)).collect();
    viewers.iter_mut().for_each(|viewer| assert!(viewer.next("status").contains("tank")));
    let refused = get(&address, "/api/v1/events");
    assert_eq!((refused.code, &refused.json()["failed"]["kind"]), (503, &"in-use".into()));
    assert_eq!(get(&address, "/api/v1/status").code, 200, "whoever does not watch is served");
    drop(viewers);
    let mut viewer = loop {
        let mut viewer = Events::watch(&address);
        let mut line = String::new();
        viewer.0.read_line(&mut line).expect("UTF-8");
        if line.contains(" 200 ") {
            break viewer;
        }
    };
    viewer.next("sample");
    daemon.stop();
}

/// Strangers who say nothing, or send nonsense without end, keep nobody from the dashboard, and hurt no client.
#[test]
fn strangers_do_not_hurt() {
    let home = Home::new();
    let (daemon, address) = start(&home, &[]);
    let connect = || TcpStream::connect(&address).expect("listening");
    let silent: Vec<_> = (0..32).map(|_| connect()).collect();
    assert_eq!(say(connect(), b"nonsense\r\n\r\n").code, 400);
    let endless = getting("/", &"x: y\r\n".repeat(20_000));
    assert_ne!(say(connect(), endless.as_bytes()).code, 200);
    assert_eq!(say(connect(), getting(&format!("/{}", "x".repeat(100_000)), "").as_bytes()).code / 100, 4);
    assert_eq!(get(&address, "/").code, 200);
    daemon.fill(1, 0, MIB);
    drop(silent);
    daemon.stop();
}

/// A volume that is rolled back is another one behind its name, which counts anew: its history goes on, without figures that nobody caused.
#[test]
fn a_volume_opened_again_goes_on() {
    let home = Home::new();
    let (daemon, address) = start(&home, &[]);
    home.ok(&["snapshot", "./tank@before"]);
    daemon.fill(1, 0, 4 * MIB);
    let wrote = |reply: &HistoryReply| {
        let tank = reply.rings[0].volumes.get("tank"); // none until something was sampled
        let written = tank.map(|tank| &tank["writes_per_second"]).into_iter().flatten();
        (written.clone().count(), written.flatten().sum::<f32>())
    };
    while wrote(&history(&address, "?step=1000")).1 == 0.0 {}
    home.ok(&["rollback", "./tank@before"]);
    let (columns, before) = wrote(&history(&address, "?step=1000"));
    let mut reply = history(&address, "?step=1000");
    while wrote(&reply).0 < columns + 3 {
        reply = history(&address, "?step=1000");
    }
    assert_eq!(wrote(&reply).1, before, "nobody wrote since");
    daemon.stop();
}
