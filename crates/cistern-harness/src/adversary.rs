//! An object store that answers wrongly on demand: S3's protocol over real HTTP, on loopback, in memory.
//!
//! Without a switch it is a correct store: `cistern probe` accepts it. [`Adversary::switch`] makes it give one
//! [`AdverseAnswer`], to every request that the answer concerns, or to some of them. It counts what it was asked, so that a
//! test can prove that a client stops, and it lends and takes its objects, so that one prepared volume serves many tests.
//! Signatures are not checked, and nothing is ever deleted from memory but by requests.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{Arc, Mutex, MutexGuard},
    thread::JoinHandle,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::sync::oneshot;

mod answer;
mod exchange;
mod holdings;
mod listing;
mod object;
mod xml;

pub use answer::{AdverseAnswer, Concern};
use holdings::Holdings;

/// The only bucket of the server.
pub const BUCKET: &str = "adverse";
/// Names of one page, unless [`Adversary::page_names`] says otherwise: what S3 gives at most.
const PAGE_NAMES_MAX: usize = 1000;
const NO_PANIC: &str = "no thread panics while it holds this";

/// The objects of a server by name. Clones share the bytes.
pub type Objects = BTreeMap<String, Bytes>;

/// A wrong answer, and which requests get it.
#[derive(Clone, Debug)]
pub struct Switch {
    answer: AdverseAnswer,
    method: Option<&'static str>,
    name_part: Option<String>,
    left: Option<u32>,
}

impl Switch {
    /// Every request that the answer concerns, from now on.
    pub fn every(answer: AdverseAnswer) -> Switch {
        Switch { answer, method: None, name_part: None, left: None }
    }

    /// Of these, those of one kind, as [`Counts`] names it.
    pub fn only(mut self, kind: &'static str) -> Switch {
        self.method = Some(kind);
        self
    }

    /// Of these, those whose object or prefix has this in its name.
    pub fn within(mut self, name_part: &str) -> Switch {
        self.name_part = Some(name_part.to_owned());
        self
    }

    /// Of these, the first few.
    pub fn times(mut self, times: u32) -> Switch {
        self.left = Some(times);
        self
    }
}

/// What a server was asked, by kind: LIST, GET, HEAD, PUT, CREATE (a PUT that must not overwrite), DELETE, BULK and OTHER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub requests: BTreeMap<&'static str, u64>,
    /// Requests that got the adverse answer.
    pub adverse: u64,
    /// Names that several requests at once tried to create, and those of them of which two were told that they had.
    pub races: u64,
    pub races_broken: u64,
}

impl Counts {
    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }

    pub fn of(&self, kind: &str) -> u64 {
        self.requests.get(kind).copied().unwrap_or(0)
    }
}

/// A running server, which ends with this.
pub struct Adversary {
    port: u16,
    holdings: Arc<Mutex<Holdings>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Adversary {
    /// Starts a correct and empty store on a free port.
    pub fn start() -> Result<Adversary> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let holdings = Arc::new(Mutex::new(Holdings::new(PAGE_NAMES_MAX)));
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let served = holdings.clone();
        let thread = std::thread::Builder::new()
            .name("adversary".into())
            .spawn(move || runtime.block_on(exchange::serve(listener, served, stopped)))
            .context("a thread")?;
        Ok(Adversary { port, holdings, stop: Some(stop), thread: Some(thread) })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The variables by which a client finds it.
    pub fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "adverse"),
            ("AWS_SECRET_ACCESS_KEY", "adverse-secret"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// Gives at most so many names in a page of a listing.
    pub fn page_names(&self, names_max: usize) {
        self.held().page_names = names_max.max(1);
    }

    /// Gives this answer from now on, instead of the one before.
    pub fn switch(&self, switch: Switch) {
        self.held().switch = Some(switch);
    }

    /// Refuses a PUT with which more than so many bytes would be stored, whether its object is there or not: Ceph's radosgw answers so. What
    /// is on its way does not count.
    pub fn quota(&self, bytes: Option<u64>) {
        self.held().quota_bytes = bytes;
    }

    /// Names this version of every object that is put or read: a bucket with versioning names one for each, and `null` where that is suspended. Nothing is
    /// kept.
    pub fn version(&self, version: Option<&'static str>) {
        self.held().version = version;
    }

    /// Bytes that are stored.
    pub fn stored_bytes(&self) -> u64 {
        self.held().stored_bytes()
    }

    /// Gives correct answers again.
    pub fn honest(&self) {
        self.held().switch = None;
    }

    /// What is stored now.
    pub fn objects(&self) -> Objects {
        self.held().objects.clone()
    }

    /// Stores exactly this.
    pub fn restore(&self, objects: Objects) {
        self.held().objects = objects;
    }

    /// What was asked since the last call.
    pub fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.held().counts)
    }

    fn held(&self) -> MutexGuard<'_, Holdings> {
        self.holdings.lock().expect(NO_PANIC)
    }
}

impl Drop for Adversary {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    use super::*;

    /// One exchange on a connection of its own: the status, and the rest of the reply as it came.
    fn ask(store: &Adversary, request: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", store.port())).expect("it listens");
        let len = body.len();
        let head = format!(
            "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len}\r\n{headers}"
        );
        write!(stream, "{head}\r\n{body}").expect("it reads");
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or(0), reply)
    }

    /// Objects are stored, listed in pages, read in parts and deleted; what is there is not created again.
    #[test]
    fn without_a_switch_it_is_a_store() {
        let store = Adversary::start().expect("it starts");
        let create = "If-None-Match: *\r\n";
        for name in ["a/1", "a/2", "a/b/3", "c"] {
            assert_eq!(ask(&store, &format!("PUT /adverse/{name}"), create, name).0, 200);
        }
        assert_eq!(ask(&store, "PUT /adverse/a/1", create, "other").0, 412);
        assert_eq!(ask(&store, "PUT /elsewhere/a", "", "other").0, 404);
        let (status, part) = ask(&store, "GET /adverse/a/b/3", "Range: bytes=2-9\r\n", "");
        assert!(
            status == 206 && part.contains("content-range: bytes 2-4/5") && part.ends_with("b/3"),
            "{part}"
        );
        assert_eq!(ask(&store, "GET /adverse/a/b/3", "Range: bytes=5-9\r\n", "").0, 416);
        store.page_names(2);
        let (_, page) = ask(&store, "GET /adverse?list-type=2&prefix=a%2F&delimiter=%2F", "", "");
        assert!(
            page.contains("<IsTruncated>true") && page.contains("<Key>a/2") && !page.contains("a/b"),
            "{page}"
        );
        let next = "GET /adverse?list-type=2&prefix=a%2F&delimiter=%2F&continuation-token=behind:a%2F2";
        let (_, page) = ask(&store, next, "", "");
        assert!(page.contains("<IsTruncated>false") && page.contains("<Prefix>a/b/</Prefix>"), "{page}");
        let keys = "<Delete><Object><Key>a/1</Key></Object><Object><Key>c</Key></Object></Delete>";
        let (_, deleted) = ask(&store, "POST /adverse?delete", "", keys);
        assert!(deleted.contains("<Deleted><Key>c</Key>"), "{deleted}");
        assert_eq!(store.objects().keys().collect::<Vec<_>>(), ["a/2", "a/b/3"]);
        let counts = store.take_counts();
        assert_eq!((counts.of("CREATE"), counts.of("BULK"), counts.of("OTHER")), (5, 1, 1));
        assert_eq!((counts.total(), counts.adverse), (11, 0));
    }

    /// A switch changes what it names, as often as it says, and nothing else.
    #[test]
    fn a_switch_is_for_what_it_names() {
        let store = Adversary::start().expect("it starts");
        store.restore([("a/1".into(), "one".into()), ("b/1".into(), "two".into())].into());
        store.switch(Switch::every(AdverseAnswer::Status(503, "SlowDown")).only("GET").within("a/").times(1));
        let get = |name: &str| ask(&store, &format!("GET /adverse/{name}"), "", "").0;
        assert_eq!([get("b/1"), get("a/1"), get("a/1")], [200, 503, 200]);
        store.switch(Switch::every(AdverseAnswer::BodyBroken));
        let (_, broken) = ask(&store, "GET /adverse/a/1", "", "");
        assert!(broken.contains("content-length: 3") && broken.ends_with("\r\n\r\no"), "{broken}");
        store.honest();
        assert_eq!(get("a/1"), 200);
        assert_eq!(store.take_counts().adverse, 2);
    }

    /// Of so many races one has two winners, and what is alone is no race.
    #[test]
    fn a_race_is_broken_once() {
        let store = Adversary::start().expect("it starts");
        store.switch(Switch::every(AdverseAnswer::RaceBroken(3)));
        let create = |name: &str| ask(&store, &format!("PUT /adverse/{name}"), "If-None-Match: *\r\n", "x").0;
        let winners = |name: String| {
            std::thread::scope(|scope| {
                let writers: Vec<_> = (0..4).map(|_| scope.spawn(|| create(&name))).collect();
                writers.into_iter().map(|w| w.join().expect("no panic")).filter(|s| *s == 200).count()
            })
        };
        assert_eq!((0..3).map(|race| winners(format!("race/{race}"))).collect::<Vec<_>>(), [1, 1, 2]);
        assert_eq!([create("alone"), create("alone")], [200, 412]);
        let counts = store.take_counts();
        assert_eq!((counts.races, counts.races_broken), (3, 1));
    }
}
