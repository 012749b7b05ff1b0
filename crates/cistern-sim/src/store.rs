//! The object store of the simulated world, shared by all hosts.
//!
//! The store itself is linearizable: every request takes effect at one moment. What is unreliable is
//! the way there and back: a request may arrive late, twice, or never, its reply may be lost, the
//! store may be away or answer with errors. Requests travel on their own: they take effect after
//! their client died as well.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::store::{DiskRoom, Listed, Put, Store, StoreError, StoreResult};
use tokio::sync::oneshot;

use crate::runtime::{Sim, WORLD};

mod objects;

pub use objects::{LISTING_AGE_MAX, Objects};
use objects::{Reply, Request};

/// How a request to the store fares: chances per request. All off by default.
#[derive(Clone, Debug)]
pub struct StoreFaults {
    /// Refused with an error that may pass (409, 429, 5xx), without effect.
    pub refuse: f64,
    /// Never arrives.
    pub lose_request: f64,
    /// Takes effect; the client never learns.
    pub lose_reply: f64,
    /// Takes effect minutes or hours after the client gave up.
    pub late: f64,
    /// Takes effect now and once more, minutes or hours later.
    pub twice: f64,
    /// Takes seconds.
    pub slow: f64,
    /// A body that is read comes with a flipped bit or cut short.
    pub damage: f64,
    /// A listing is as old as it can be, or younger.
    pub old_listing: f64,
    /// The longest way of a late request.
    pub late_max: Duration,
}

impl Default for StoreFaults {
    fn default() -> StoreFaults {
        StoreFaults {
            refuse: 0.0,
            lose_request: 0.0,
            lose_reply: 0.0,
            late: 0.0,
            twice: 0.0,
            slow: 0.0,
            damage: 0.0,
            old_listing: 0.0,
            late_max: LATE_MAX,
        }
    }
}

/// After so long without a reply a client gives up.
const CLIENT_PATIENCE: Duration = Duration::from_secs(30);
/// The longest way of a late request, where a plan says nothing else.
pub const LATE_MAX: Duration = Duration::from_secs(8 * 3600);

struct State {
    objects: Objects,
    faults: StoreFaults,
    away: bool,
    /// Bytes of the disk on which it lies, if that has an end.
    disk_bytes: Option<u64>,
    /// What it takes at most, which it does not tell.
    quota_bytes: Option<u64>,
    /// A put that should find its key absent finds it so.
    overwrites: bool,
    /// Per host: cut off from the store.
    cut_off: BTreeMap<usize, bool>,
    /// When a fault last could have kept somebody from the store.
    troubled_at: Duration,
    requests: u64,
}

/// The one store.
#[derive(Clone)]
pub struct SimStore {
    sim: Sim,
    state: Arc<Mutex<State>>,
}

impl SimStore {
    /// On a disk of so many bytes, if it has an end.
    pub fn new(sim: &Sim, disk_bytes: Option<u64>) -> SimStore {
        let state = State {
            objects: Objects::default(),
            faults: StoreFaults::default(),
            away: false,
            disk_bytes,
            quota_bytes: None,
            overwrites: false,
            cut_off: BTreeMap::new(),
            troubled_at: Duration::ZERO,
            requests: 0,
        };
        SimStore { sim: sim.clone(), state: Arc::new(Mutex::new(state)) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().expect("no panic under this lock"))
    }

    /// The store as a host reaches it.
    pub fn from_host(&self, host: usize) -> Arc<dyn Store> {
        Arc::new(Line { store: self.clone(), host })
    }

    /// Changes how requests fare from now on.
    pub fn set_faults(&self, faults: StoreFaults) {
        self.with(|s| s.faults = faults);
    }

    /// Takes the store away from everybody, or brings it back.
    pub fn set_away(&self, away: bool) {
        self.sim.note(format_args!("store: away={away}"));
        let now = self.sim.now();
        self.with(|s| {
            s.away = away;
            s.troubled_at = now;
        });
    }

    /// Begins to overwrite what it should keep, or keeps it again.
    pub fn set_overwrites(&self, overwrites: bool) {
        self.sim.note(format_args!("store: overwrites={overwrites}"));
        self.with(|s| s.overwrites = overwrites);
    }

    /// Puts find room for so many bytes more, or for any number.
    pub fn set_room(&self, bytes: Option<u64>) {
        let quota_bytes = self.with(|s| {
            s.quota_bytes = bytes.map(|bytes| s.objects.bytes() + bytes);
            s.quota_bytes
        });
        self.sim.note(format_args!("store: quota of {quota_bytes:?} bytes"));
        self.trouble();
    }

    /// Cuts one host off from the store, or connects it again.
    pub fn set_cut_off(&self, host: usize, cut_off: bool) {
        self.sim.note(format_args!("store: host {host} cut off={cut_off}"));
        let now = self.sim.now();
        self.with(|s| {
            s.cut_off.insert(host, cut_off);
            s.troubled_at = now;
        });
    }

    /// The last moment at which the store failed somebody, or now if it may.
    pub fn troubled_at(&self) -> Duration {
        let now = self.sim.now();
        self.with(|s| {
            let troubled = s.away || s.cut_off.values().any(|&c| c);
            if troubled { now } else { s.troubled_at }
        })
    }

    /// Requests that were sent so far, by everybody.
    pub fn requests(&self) -> u64 {
        self.with(|s| s.requests)
    }

    /// Looks at, or damages, the objects behind everybody's back.
    pub fn objects<T>(&self, f: impl FnOnce(&mut Objects) -> T) -> T {
        self.with(|s| f(&mut s.objects))
    }

    /// Room on the disk, if that has an end. Who finds little may have to wait.
    fn room(&self) -> Option<DiskRoom> {
        let total_bytes = self.with(|s| s.disk_bytes)?;
        let free_bytes = self.with(|s| total_bytes.saturating_sub(s.objects.bytes()));
        if free_bytes < total_bytes / 2 {
            self.trouble();
        }
        Some(DiskRoom { free_bytes, total_bytes })
    }

    fn apply(&self, number: u64, how: &str, request: &Request) -> Reply {
        let needed = match request {
            Request::Put { body, .. } => body.len() as u64,
            _ => 0,
        };
        let is_over = |s: &mut State| s.quota_bytes.is_some_and(|quota| s.objects.bytes() + needed > quota);
        let reply = match self.room() {
            _ if needed > 0 && self.with(is_over) => {
                self.trouble();
                Reply::OverQuota
            }
            Some(room) if needed > room.free_bytes => {
                self.sim.fail(format!("#{number} finds the disk full: nothing can be cleaned any more"));
                Reply::Full
            }
            _ => {
                let (now, age) = (self.sim.now(), self.listing_age(request));
                self.with(|s| s.objects.apply(request, s.overwrites, now, now.saturating_sub(age)))
            }
        };
        self.sim.note(format_args!("store: #{number}{how} {request:?} -> {reply:?}"));
        reply
    }

    fn listing_age(&self, request: &Request) -> Duration {
        let chance = match request {
            Request::List { .. } | Request::Dirs { .. } => self.with(|s| s.faults.old_listing),
            _ => 0.0,
        };
        match self.sim.chance(chance) {
            true => self.sim.time(Duration::ZERO, LISTING_AGE_MAX),
            false => Duration::ZERO,
        }
    }

    fn trouble(&self) {
        let now = self.sim.now();
        self.with(|s| s.troubled_at = now);
    }

    fn fate(&self) -> Fate {
        let f = self.with(|s| s.faults.clone());
        let fates = [
            (f.refuse, Fate::Refused),
            (f.lose_request, Fate::RequestLost),
            (f.lose_reply, Fate::ReplyLost),
            (f.late, Fate::Late),
            (f.twice, Fate::Twice),
        ];
        fates.into_iter().find(|&(p, _)| self.sim.chance(p)).map_or(Fate::Fine, |(_, fate)| fate)
    }

    fn is_cut_off(&self, host: usize) -> bool {
        self.with(|s| s.away || s.cut_off.get(&host).copied().unwrap_or(false))
    }

    fn latency(&self) -> Duration {
        let slow = self.with(|s| s.faults.slow);
        if self.sim.chance(slow) {
            self.sim.time(Duration::from_millis(200), Duration::from_secs(20))
        } else {
            self.sim.time(Duration::from_micros(200), Duration::from_millis(30))
        }
    }

    fn lateness(&self) -> Duration {
        // Logarithmic: seconds are as likely as hours.
        let exponent = self.sim.range(0, 16);
        let late_max = self.with(|s| s.faults.late_max);
        self.sim.time(Duration::from_secs(1), Duration::from_secs(2) * (1 << exponent)).min(late_max)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    Refused,
    RequestLost,
    ReplyLost,
    Late,
    Twice,
}

/// One host's way to the store.
struct Line {
    store: SimStore,
    host: usize,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated store from host {}", self.host)
    }
}

impl Line {
    async fn ask(&self, request: Request) -> StoreResult<Reply> {
        let (send, receive) = oneshot::channel();
        let store = self.store.clone();
        let number = store.with(|s| {
            s.requests += 1;
            s.requests
        });
        // Fates are drawn now; the journey is the world's and goes on without the client.
        let journey = travel(store, self.host, number, request, send);
        self.store.sim.spawn(WORLD, "request", Box::pin(journey));
        let patience = self.store.sim.limit(CLIENT_PATIENCE, receive).await;
        match patience {
            Some(Ok(reply)) => reply,
            _ => {
                self.store.trouble();
                self.store.sim.note(format_args!("store: #{number} no reply to host {}", self.host));
                Err(StoreError::Unreachable("timed out".into()))
            }
        }
    }
}

async fn travel(
    store: SimStore,
    host: usize,
    number: u64,
    request: Request,
    reply_to: oneshot::Sender<StoreResult<Reply>>,
) {
    let fate = store.fate();
    let sim = store.sim.clone();
    sim.sleep(store.latency()).await;
    if store.is_cut_off(host) || fate == Fate::RequestLost {
        store.trouble();
        if sim.chance(0.5) {
            let _ = reply_to.send(Err(StoreError::Unreachable("connection refused".into())));
        } else {
            sim.sleep(2 * CLIENT_PATIENCE).await; // holds `reply_to`: no reply
        }
        return;
    }
    match fate {
        Fate::Refused => {
            store.trouble();
            sim.note(format_args!("store: #{number} refused {request:?}"));
            let _ = reply_to.send(Err(StoreError::Unreachable("503 slow down".into())));
        }
        Fate::Late => {
            store.trouble();
            sim.sleep(store.lateness()).await;
            store.apply(number, " late", &request);
            drop(reply_to);
        }
        Fate::ReplyLost => {
            store.trouble();
            store.apply(number, " without reply", &request);
            sim.sleep(store.latency() * 3).await;
            drop(reply_to); // a closed connection: the client knows nothing
        }
        Fate::Twice | Fate::Fine | Fate::RequestLost => {
            let reply = store.apply(number, "", &request);
            let reply = damage(&store, reply);
            sim.sleep(store.latency()).await;
            let _ = reply_to.send(reply.into_result(&request)); // a dead client does not mind
            if fate == Fate::Twice {
                sim.sleep(store.lateness()).await;
                store.apply(number, " again", &request);
            }
        }
    }
}

/// Damages a body on its way back, as far as the faults say.
fn damage(store: &SimStore, reply: Reply) -> Reply {
    let chance = store.with(|s| s.faults.damage);
    match reply {
        Reply::Body(body) if !body.is_empty() && store.sim.chance(chance) => {
            let at = store.sim.range(0, body.len() as u64) as usize;
            let mut bytes = body.to_vec();
            if store.sim.chance(0.2) {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 1 << store.sim.range(0, 8);
            }
            store.sim.note(format_args!("store: body damaged at {at}"));
            Reply::Body(bytes.into())
        }
        other => other,
    }
}

#[async_trait]
impl Store for Line {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.ask(Request::Put { key: key.into(), body, if_absent: false }).await.map(|_| ())
    }

    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        match self.ask(Request::Put { key: key.into(), body, if_absent: true }).await? {
            Reply::Put(put) => Ok(put),
            other => unreachable!("a put is answered as one, not by {other:?}"),
        }
    }

    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        let request = Request::Get { key: key.into(), range: 0..u64::MAX };
        let body = self.ask(request).await?.body();
        if body.len() as u64 > bytes_max {
            let why = format!("is longer than {bytes_max} bytes");
            return Err(StoreError::Unusable { key: key.to_owned(), why });
        }
        Ok(body)
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        Ok(self.ask(Request::Get { key: key.into(), range }).await?.body())
    }

    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        let request = Request::Get { key: key.into(), range: 0..u64::MAX };
        match self.ask(request).await {
            Ok(reply) => Ok(Some(reply.body().len() as u64)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        let request = Request::List { prefix: prefix.into(), after: after.into(), count_max };
        match self.ask(request).await? {
            Reply::Listing(listing) => Ok(listing),
            other => unreachable!("a listing is answered as one, not by {other:?}"),
        }
    }

    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        match self.ask(Request::Dirs { prefix: prefix.into() }).await? {
            Reply::Dirs(dirs) => Ok(dirs),
            other => unreachable!("a listing is answered as one, not by {other:?}"),
        }
    }

    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.ask(Request::Delete { key: key.into() }).await.map(|_| ())
    }

    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        Ok(self.store.room())
    }

    fn url(&self) -> String {
        "sim://store".into()
    }
}
