//! The metrics of a running daemon: valid text, the same figures as `status --io --json`, and a server
//! that bounds what strangers can do.

mod daemon;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::TcpStream,
};

use cistern::metrics::{MetricKind, TABLE};
use daemon::{Daemon, Home};
use serde_json::Value;

const SERVE: [&str; 5] = ["./tank", "--create", "1G", "--metrics", "127.0.0.1:0"];

/// Series (name and labels as written) with their values.
type Series = BTreeMap<String, f64>;

/// Asks over HTTP; gives head and body.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("listening");
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server ends the connection");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

fn scrape(address: &str) -> Series {
    let (head, body) = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.to_lowercase().contains("content-type: text/plain; version=0.0.4"), "{head}");
    parse(&body)
}

/// The grammar of the format, stricter than any collector: each metric of the table once, in its order,
/// with help and type before its samples; no series twice; labels as the table says; whole histograms.
fn parse(text: &str) -> Series {
    let mut series = Series::new();
    assert!(text.ends_with('\n'));
    let mut lines = text.lines().peekable();
    for metric in TABLE {
        let name = metric.name;
        assert_eq!(lines.next(), Some(format!("# HELP {name} {}.", metric.help).as_str()));
        assert_eq!(lines.next(), Some(format!("# TYPE {name} {}", metric.kind.name()).as_str()));
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (key, value) = line.rsplit_once(' ').expect("a value");
            let value: f64 = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let (base, labels) = split(key);
            let mut expected: Vec<&str> = metric.labels.to_vec();
            match (metric.kind, base.strip_prefix(name)) {
                (MetricKind::Histogram, Some("_bucket")) => expected.push("le"),
                (MetricKind::Histogram, Some("_sum" | "_count")) => {}
                (MetricKind::Counter | MetricKind::Gauge, Some("")) => {}
                _ => panic!("{line} does not belong to {name}"),
            }
            assert_eq!(
                labels.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>(),
                expected,
                "{line}"
            );
            assert_eq!(series.insert(key.to_owned(), value), None, "{line} stands twice");
        }
    }
    assert_eq!(lines.next(), None, "something stands behind the last metric");
    check_histograms(&series);
    series
}

/// A name and its labels; the values in this test have no escapes.
fn split(key: &str) -> (&str, Vec<(String, String)>) {
    let Some((name, rest)) = key.split_once('{') else { return (key, Vec::new()) };
    let labels = rest.strip_suffix('}').expect("closed");
    let pair = |text: &str| {
        let (label, value) = text.split_once('=').expect("a label has a value");
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).expect("quoted");
        (label.to_owned(), value.to_owned())
    };
    (name, labels.split(',').map(pair).collect())
}

/// Buckets grow with their bound, and the last is the count.
fn check_histograms(series: &Series) {
    let mut histograms: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (key, value) in series.iter().filter(|(key, _)| key.contains("_bucket{")) {
        let (name, mut labels) = split(key);
        let (_, le) = labels.pop().expect("le comes last");
        let le = if le == "+Inf" { f64::INFINITY } else { le.parse().expect("a bound is a number") };
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let whole = format!("{}_count{{{}}}", name.trim_end_matches("_bucket"), labels.join(","));
        histograms.entry(whole).or_default().push((le, *value));
    }
    assert!(!histograms.is_empty());
    for (count, mut buckets) in histograms {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.windows(2).all(|w| w[0].1 <= w[1].1), "{count}: {buckets:?}");
        let last = buckets.last().expect("not empty");
        assert_eq!((last.0, Some(&last.1)), (f64::INFINITY, series.get(&count)), "{count}");
    }
}

fn start(home: &Home) -> (Daemon, String) {
    let mut daemon = home.start(&SERVE);
    let url = daemon.told("metrics: ");
    let address = url.strip_prefix("http://").and_then(|url| url.strip_suffix("/metrics"));
    let address = address.expect("a URL").to_owned();
    (daemon, address)
}

/// Under load every scrape is valid and no counter goes back; afterwards the figures are those of
/// `status --io --json`, one for one, and those of the client.
#[test]
fn metrics_are_valid_and_agree_with_status() {
    let home = Home::new();
    let (daemon, address) = start(&home);
    let counters: BTreeSet<&str> =
        TABLE.iter().filter(|m| m.kind == MetricKind::Counter).map(|m| m.name).collect();
    let scrapes = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            daemon.nbdsh(
                "for i in range(2000): h.pwrite(b'x' * 16384, i << 14); i % 100 or h.flush()\n\
                 for i in range(500): h.pread(4096, i << 14)",
            )
        });
        let mut scrapes = vec![scrape(&address)];
        while !load.is_finished() {
            scrapes.push(scrape(&address));
        }
        load.join().expect("the load ends");
        scrapes
    });
    for pair in scrapes.windows(2) {
        for (key, before) in pair[0].iter().filter(|(key, _)| counters.contains(split(key).0)) {
            assert!(pair[1].get(key) >= Some(before), "{key} went back");
        }
    }
    home.ok(&["status", "--wait-clean"]);
    let shown: Value = serde_json::from_str(&home.ok(&["status", "--io", "--json"])).expect("JSON");
    let series = scrape(&address);
    let of = |name: &str, kind: &str| series[&format!("{name}{{volume=\"tank\",kind=\"{kind}\"}}")];
    let volume = &shown["daemons"][0]["volumes"][0];
    for (group, requests, bytes, latency) in [
        (
            &volume["io"],
            "cistern_requests_total",
            "cistern_request_bytes_total",
            "cistern_request_latency_seconds_count",
        ),
        (
            &volume["store"],
            "cistern_store_requests_total",
            "cistern_store_bytes_total",
            "cistern_store_request_latency_seconds_count",
        ),
    ] {
        for entry in group["kinds"].as_array().expect("a list") {
            let kind = entry["kind"].as_str().expect("a name");
            assert_eq!(entry["requests"].as_f64(), Some(of(requests, kind)), "{kind}");
            assert_eq!(entry["bytes"].as_f64(), Some(of(bytes, kind)), "{kind}");
            assert_eq!(entry["latency"]["count"].as_f64(), Some(of(latency, kind)), "{kind}");
        }
    }
    assert_eq!(of("cistern_requests_total", "write"), 2000.0);
    assert_eq!(of("cistern_request_bytes_total", "read"), 500.0 * 4096.0);
    assert_eq!(of("cistern_requests_total", "flush"), 20.0);
    let of_volume = |name: &str, labels: &str| Some(series[&format!("{name}{{volume=\"tank\"{labels}}}")]);
    for name in ["hits", "misses"] {
        let shown = volume["decoded"][name].as_f64();
        assert_eq!(shown, of_volume(&format!("cistern_decoded_{name}_total"), ""), "{name}");
    }
    for name in ["fetched", "used", "wasted"] {
        let shown = volume["ahead"][format!("{name}_bytes")].as_f64();
        let labels = format!(",outcome=\"{name}\"");
        assert_eq!(shown, of_volume("cistern_read_ahead_bytes_total", &labels), "{name}");
    }
    assert_eq!(volume["ahead"]["waits"].as_f64(), of_volume("cistern_read_ahead_waits_total", ""));
    assert_eq!(of_volume("cistern_dirty_bytes", ""), Some(0.0));
    let counters = &volume["status"]["space"]["counters"];
    let written = of_volume("cistern_space_written_bytes_total", "");
    assert!(written > Some(0.0) && counters["written_bytes"].as_f64() == written, "{counters}");
    assert_eq!(of_volume("cistern_space_deletes_refused", ""), Some(0.0));
    daemon.stop();
}

/// Only GET of one path; nonsense and endless heads are refused, and the daemon goes on.
#[test]
fn the_server_of_metrics_is_bounded() {
    let home = Home::new();
    let (daemon, address) = start(&home);
    let status = |request: &str| ask(&address, request).0[..12].to_owned();
    assert_eq!(status("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1 404");
    assert_eq!(status("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"), "HTTP/1.1 405");
    assert_eq!(status("nonsense\r\n\r\n"), "HTTP/1.1 400");
    let mut stream = TcpStream::connect(&address).expect("listening");
    let endless = "GET /metrics HTTP/1.1\r\n".to_owned() + &"x: y\r\n".repeat(20_000);
    let _ = stream.write_all(endless.as_bytes()); // it may hang up on us
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
    // Whoever connects and says nothing keeps nobody out.
    let silent: Vec<_> = (0..4).map(|_| TcpStream::connect(&address).expect("listening")).collect();
    scrape(&address);
    drop(silent);
    daemon.stop();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bindable");
    let address = taken.local_addr().expect("bound").to_string();
    let refused = home.fails(3, &["serve", "./tank", "--journal-size", "128M", "--metrics", &address]);
    assert!(refused.contains("--metrics"), "{refused}");
    home.fails(2, &["serve", "./tank", "--journal-size", "128M", "--metrics", "here"]);
}
