//! What can be seen of a running daemon is what its clients did.

mod daemon;

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
};

use daemon::Home;
use serde_json::Value;

const CREATE: [&str; 3] = ["./tank", "--create", "1G"];

/// A kind of request in what `status --io --json` prints.
fn kind<'a>(shown: &'a Value, volume: usize, kind: &str) -> &'a Value {
    let kinds = shown["daemons"][0]["volumes"][volume]["io"]["kinds"].as_array().expect("a list");
    kinds.iter().find(|entry| entry["kind"] == kind).expect("every kind is listed")
}

/// Requests, bytes and errors of a kind.
fn counts(shown: &Value, name: &str) -> [u64; 3] {
    let kind = kind(shown, 0, name);
    ["requests", "bytes", "errors"].map(|field| kind[field].as_u64().expect("a number"))
}

fn io(home: &Home) -> Value {
    serde_json::from_str(&home.ok(&["status", "--io", "--json"])).expect("JSON")
}

/// A client's requests arrive in the counters one for one, with their bytes, sizes and alignments; a
/// refused one never reaches the volume. What the store was asked stands beside.
#[test]
fn the_counters_are_what_the_client_did() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.nbdsh(
        "for i in range(10): h.pwrite(b'x' * 65536, i << 20)\n\
         for i in range(7): h.pread(4096, i << 20)\n\
         h.pwrite(b'y' * 512, 512)\n\
         for i in range(3): h.flush()\n\
         h.trim(3 << 20, 1 << 29)\n\
         h.zero(8192, 4096)\n\
         h.cache(65536, 0)",
    );
    daemon.try_nbdsh("h.set_strict_mode(0); h.pread(4096, h.get_size())");
    home.ok(&["status", "--wait-clean"]);
    let shown = io(&home);
    assert_eq!(counts(&shown, "write"), [11, 10 * 65536 + 512, 0]);
    assert_eq!(counts(&shown, "read"), [7, 7 * 4096, 0]);
    assert_eq!(counts(&shown, "flush"), [3, 0, 0]);
    assert_eq!(counts(&shown, "trim"), [1, 3 << 20, 0]);
    assert_eq!(counts(&shown, "write_zeroes"), [1, 8192, 0]);
    assert_eq!(counts(&shown, "cache"), [1, 65536, 0]);
    let write = kind(&shown, 0, "write");
    let sizes = serde_json::json!([{"up_to_bytes": 512, "count": 1}, {"up_to_bytes": 65536, "count": 10}]);
    assert_eq!(write["sizes"], sizes);
    let alignments = serde_json::json!([{"bytes": 512, "count": 1}, {"bytes": 65536, "count": 10}]);
    assert_eq!(write["alignments"], alignments);
    assert_eq!(write["latency"]["count"], 11);
    assert_eq!(write["in_flight"], 0);
    let store = shown["daemons"][0]["volumes"][0]["store"]["kinds"].as_array().expect("a list");
    let puts = store.iter().find(|entry| entry["kind"] == "put_if_absent").expect("listed");
    assert!(puts["requests"].as_u64() >= Some(2), "a claim and a segment: {puts}");
    let text = home.ok(&["status", "--io", "--histograms", "tank"]);
    for word in ["write zeroes", "p99.9", "SIZE UP TO", "ALIGNED TO", "put if absent", "cache of process"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    daemon.stop();
}

/// What is read again comes from decoded frames in memory and counts there, before the chunk cache; a
/// stream is fetched ahead, and what became of that adds up.
#[test]
fn reads_are_counted_where_they_are_answered() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.nbdsh("import os; h.pwrite(os.urandom(16 << 20), 0); h.flush()");
    daemon.stop();
    std::fs::remove_dir_all(home.path("cache")).expect("removed");
    let daemon = home.start(&["./tank"]);
    let volume = || io(&home)["daemons"][0]["volumes"][0].clone();
    let decoded = || ["hits", "misses"].map(|name| volume()["decoded"][name].as_u64().expect("a number"));
    daemon.nbdsh("h.pread(4096, 8 << 20)");
    assert_eq!(decoded(), [0, 1]);
    daemon.nbdsh("for i in range(5): h.pread(4096, 8 << 20)");
    assert_eq!(decoded(), [5, 1]);
    assert_eq!(volume()["ahead"]["fetched_bytes"], 0, "one place is no stream");
    daemon.nbdsh("for i in range(256): h.pread(65536, i << 16)");
    let ahead = volume()["ahead"].clone();
    let [fetched, used, wasted] =
        ["fetched_bytes", "used_bytes", "wasted_bytes"].map(|name| ahead[name].as_u64().expect("a number"));
    assert!(used > 8 << 20 && used + wasted <= fetched, "{ahead}");
    let text = home.ok(&["status", "--io"]);
    assert!(text.contains("decoded frames in memory: ") && text.contains("read ahead: "), "{text}");
    daemon.stop();
}

/// Watching gives the total first and then what came in between, one JSON object per line, until an
/// interrupt ends it in an orderly way.
#[test]
fn watching_shows_differences() {
    let home = Home::new();
    let daemon = home.start(&CREATE);
    daemon.nbdsh("for i in range(5): h.pwrite(b'x' * 4096, i << 12)");
    let mut watch = home.command(&["status", "--io", "--watch", "100ms", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("goes on until it is interrupted").expect("UTF-8");
        serde_json::from_str(&line).expect("a line is an object")
    };
    assert_eq!(counts(&next(), "write"), [5, 5 * 4096, 0]);
    assert_eq!(counts(&next(), "write"), [0, 0, 0]);
    daemon.nbdsh("for i in range(3): h.pwrite(b'x' * 8192, i << 13)");
    // The writes may fall into two intervals; none is missing and none is told twice.
    let mut seen = [0, 0, 0];
    while seen[0] < 3 {
        let counts = counts(&next(), "write");
        (0..3).for_each(|i| seen[i] += counts[i]);
    }
    assert_eq!(seen, [3, 3 * 8192, 0]);
    let pid = libc::pid_t::try_from(watch.id()).expect("a process id");
    // SAFETY: a signal to a child that was not waited for yet.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    assert_eq!(watch.wait().expect("a child").code(), Some(0));
    daemon.stop();
}

/// What requests cost stands in the text, in JSON and in the metrics, the same everywhere, by the prices of the kind that
/// the address suggests or that the user says, with the table and its date. A table or a kind that is none is one clear
/// sentence, before anything is created.
#[test]
fn prices_become_costs() {
    let home = Home::new();
    let table = "name = 'contract 7'\ndate = '2026-12-01'\n[kinds.dear]\nstorage-per-gib-month = 100\n\
                 put-per-1000 = 100\nget-per-1000 = 0.5\n";
    std::fs::write(home.path("mine.toml"), table).expect("writable");
    let set = |text: &str| std::fs::write(home.path("settings.toml"), text).expect("writable");
    let serve = [&CREATE[..], &["--config", "settings.toml"]].concat();
    for (settings, told) in [
        ("[prices]\nput-per-1000 = 1\n", "`table` or `kind`"),
        ("[prices]\nkind = 'dear'\n", "there are no prices for \"dear\""),
        ("[prices]\ntable = 'settings.toml'\n", "settings.toml: table of prices, line 1"),
    ] {
        set(settings);
        let refused = home.fails(2, &[&["serve"], &serve[..]].concat());
        assert!(refused.contains(told), "{refused}");
        assert!(!home.path("tank").exists(), "nothing is created");
    }

    set("[prices]\ntable = 'mine.toml'\nkind = 'dear'\n");
    let mut daemon = home.start(&[&serve[..], &["--metrics", "127.0.0.1:0"]].concat());
    let url = daemon.told("metrics: ");
    daemon.fill(1, 0, 1 << 20);
    home.ok(&["status", "--wait-clean"]);
    let shown = io(&home);
    let volume = &shown["daemons"][0]["volumes"][0];
    let requests = |names: &[&str]| {
        let kinds = volume["store"]["kinds"].as_array().expect("a list").iter();
        let of_these = kinds.filter(|kind| names.iter().any(|name| kind["kind"] == *name));
        of_these.map(|kind| kind["requests"].as_f64().expect("a number")).sum::<f64>()
    };
    let puts = requests(&["put", "put_if_absent", "list", "list_dirs"]);
    let expected = puts * 0.1 + requests(&["get", "get_range"]) * 0.0005;
    let total = volume["cost"]["total"].as_f64().expect("a number");
    assert!(puts > 2.0 && (total - expected).abs() < 1e-9, "{total} instead of {expected}");
    let prices = ["kind", "how", "table", "date"].map(|key| volume["prices"][key].as_str().expect("told"));
    assert_eq!(prices, ["dear", "set", "contract 7", "2026-12-01"]);
    let text = home.ok(&["status", "--io"]);
    assert!(text.contains(" USD (requests "), "{text}");
    assert!(text.contains("prices of dear, as set: contract 7, 2026-12-01"), "{text}");
    assert!(sample(&url, "cistern_store_cost_total{") >= total);
    let labels = "kind=\"dear\",how=\"set\",table=\"contract 7\",date=\"2026-12-01\"";
    assert_eq!(sample(&url, &format!("cistern_store_prices_info{{volume=\"tank\",{labels}}}")), 1.0);
    assert!(home.ok(&["cost", "--config", "settings.toml"]).contains("\ndear "), "the same table");
    daemon.stop();

    let daemon = home.start(&["./tank"]);
    let text = home.ok(&["status", "--io"]);
    assert!(text.contains("prices of own-disks, guessed from its address: shipped with cistern, "), "{text}");
    daemon.stop();
}

/// An object that is damaged in the store is named by `status`, for people and for programs, and counted in
/// the metrics; once it is put right, neither has it any more.
#[test]
fn a_damaged_object_is_named() {
    let home = Home::new();
    let mut daemon = home.start(&[&CREATE[..], &["--metrics", "127.0.0.1:0"]].concat());
    daemon.nbdsh("import os; h.pwrite(os.urandom(1 << 20), 0); h.flush()");
    home.ok(&["status", "--wait-clean"]);
    daemon.stop();
    std::fs::remove_dir_all(home.path("cache")).expect("removed");
    let log = std::fs::read_dir(home.own("tank").join("log")).expect("a directory store").flatten();
    let segment = log.max_by_key(|entry| entry.metadata().expect("there").len()).expect("a segment");
    let sound = std::fs::read(segment.path()).expect("readable");
    let mut damaged = sound.clone();
    damaged[40_000] ^= 1;
    std::fs::write(segment.path(), damaged).expect("damaged");

    daemon = home.start(&["./tank", "--metrics", "127.0.0.1:0"]);
    let url = daemon.told("metrics: ");
    daemon.try_nbdsh("h.pread(1 << 20, 0)");
    let name = format!("log/{}", segment.file_name().to_string_lossy());
    let text = home.ok(&["status"]);
    assert!(text.contains("damaged") && text.contains(&name), "{text}");
    let shown = |home: &Home| home.status()["daemons"][0]["volumes"][0]["damage"]["objects"].clone();
    assert_eq!(shown(&home)[0]["object"], name.as_str());
    assert_eq!(gauge(&url), 1.0);
    std::fs::write(segment.path(), sound).expect("put right");
    daemon.nbdsh("h.pread(1 << 20, 0)");
    assert_eq!(shown(&home), serde_json::json!([]));
    assert_eq!(gauge(&url), 0.0);
    let said = daemon.stop();
    assert_eq!(said.matches("is damaged").count(), 1, "{said}");
}

/// The number of damaged objects that the metrics show.
fn gauge(url: &str) -> f64 {
    sample(url, "cistern_damaged_objects{")
}

/// The first sample of the metrics that begins like this.
fn sample(url: &str, begins: &str) -> f64 {
    let rest = url.strip_prefix("http://").expect("a URL");
    let (address, path) = rest.split_once('/').expect("a path");
    let mut stream = std::net::TcpStream::connect(address).expect("listening");
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server ends the connection");
    let line = answer.lines().find(|line| line.starts_with(begins)).expect("listed");
    line.rsplit_once(' ').expect("a value").1.parse().expect("a number")
}
