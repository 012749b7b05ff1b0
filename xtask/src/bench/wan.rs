//! A volume in a real S3 server behind one emulated link, and what everybody's CPU did meanwhile.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use anyhow::Result;
use cistern_harness::{
    authority::Authority,
    link::{Conditions, Link},
    minio::{BUCKET, Minio},
    process,
    scratch::Scratch,
    serve::{Cistern, Serve},
};

use super::{Plan, calibration, report::Report};

/// A link of 20 ms and 30 MB/s: a good line to a region near by.
pub const GOOD: (u64, u64) = (20, 30);
/// A link of 20 ms and 1 MB/s, on which people published how long walks take.
pub const NARROW: (u64, u64) = (20, 1);

/// Where a volume lives. Dropped in this order.
pub struct Wan {
    pub link: Link,
    pub minio: Minio,
    pub url: String,
    pub scratch: Scratch,
    /// Where the store is.
    _objects: Scratch,
    plain: Cistern,
    /// By the port through which it is reached.
    environment: fn(u16) -> Vec<(String, String)>,
    /// What the link was checked under already.
    checked: RefCell<Vec<(u64, u64)>>,
}

impl Wan {
    /// Creates a volume of `size`; the link has no limits yet.
    pub fn start(plan: &Plan, size: &str) -> Result<Wan> {
        Wan::start_on(plan, size, 1, Scratch::new("bench-store")?)
    }

    /// The same with a store that writes past the page cache, so that the disk is its own for less long at a time:
    /// for what waits for the disk.
    pub fn start_gentle(plan: &Plan, size: &str) -> Result<Wan> {
        Wan::start_on(plan, size, 2, Scratch::new("bench-store")?)
    }

    /// The same with a store that needs no disk: what it stores fits into memory, and the disk is the client's.
    pub fn start_apart(plan: &Plan, size: &str) -> Result<Wan> {
        Wan::start_on(plan, size, 1, Scratch::in_memory("bench-store")?)
    }

    /// The same with a store that speaks TLS.
    pub fn start_secure(plan: &Plan, size: &str) -> Result<Wan> {
        let (scratch, objects) = (Scratch::new("bench-wan")?, Scratch::new("bench-store")?);
        let authority = Authority::make(&scratch.dir("authority")?)?;
        authority.sign("server", "IP:127.0.0.1", "serverAuth")?;
        let (certificate, key) = (authority.file("server-cert.pem"), authority.file("server-key.pem"));
        let minio = Minio::start_tls(&objects, &certificate, &key)?;
        let trusted = [("AWS_CA_BUNDLE".to_owned(), authority.file("ca-cert.pem"))];
        let plain = plan.cistern.clone().with_environment(trusted);
        Wan::new(plain, size, minio, Minio::tls_environment, (scratch, objects))
    }

    fn start_on(plan: &Plan, size: &str, directories: usize, objects: Scratch) -> Result<Wan> {
        let minio = Minio::start_on(&objects, directories)?;
        let scratches = (Scratch::new("bench-wan")?, objects);
        Wan::new(plan.cistern.clone(), size, minio, Minio::environment, scratches)
    }

    fn new(
        plain: Cistern,
        size: &str,
        minio: Minio,
        environment: fn(u16) -> Vec<(String, String)>,
        (scratch, objects): (Scratch, Scratch),
    ) -> Result<Wan> {
        let link = Link::start(minio.port())?;
        let (url, checked) = (format!("s3://{BUCKET}/vol"), RefCell::default());
        let wan = Wan { link, minio, url, scratch, _objects: objects, plain, environment, checked };
        wan.cistern().run(&["create", &wan.url, "--size", size])?;
        Ok(wan)
    }

    /// The program, with the store at the far end of the link.
    pub fn cistern(&self) -> Cistern {
        self.plain.clone().with_environment((self.environment)(self.link.port()))
    }

    /// The program, with the store beside it.
    pub fn cistern_beside(&self) -> Cistern {
        self.plain.clone().with_environment((self.environment)(self.minio.port()))
    }

    /// A server on the host `host`: one that was used before has its journal and cache there.
    pub fn host(&self, cistern: &Cistern, host: &str) -> Serve {
        let dir = |what: &str| self.scratch.file(&format!("{what}-{host}"));
        cistern.serve(&self.scratch, &self.url).state_dir(dir("state")).cache_dir(dir("cache"))
    }

    /// The volume's objects of a kind, by their names in the bucket.
    pub fn objects(&self, kind: &str) -> Result<Vec<String>> {
        let of_kind = format!("/{kind}/");
        let mut keys = self.minio.keys("vol/")?;
        keys.retain(|key| key.contains(&of_kind));
        Ok(keys)
    }

    /// Removes the local directories of a host that is not needed any more.
    pub fn forget(&self, host: &str) {
        for what in ["state", "cache"] {
            let _ = std::fs::remove_dir_all(self.scratch.file(&format!("{what}-{host}"))); // may not exist
        }
    }

    /// Makes the link this slow; the first time, what it measures then is noted.
    pub fn limit(&self, limits: (u64, u64), report: &mut Report) -> Result<()> {
        let (round_trip_ms, mb_per_s) = limits;
        let conditions = Conditions::wan(round_trip_ms, mb_per_s);
        if !self.checked.borrow().contains(&limits) {
            let measured = calibration::run(conditions)?;
            report.note(format!("link of {round_trip_ms} ms and {mb_per_s} MB/s: {measured}"));
            self.checked.borrow_mut().push(limits);
        }
        self.link.set(conditions);
        Ok(())
    }

    /// Takes all limits away.
    pub fn widen(&self) {
        self.link.set(Conditions::default());
    }
}

/// CPU time of processes between two moments: a figure that was limited by CPU says little.
pub struct Cpu {
    begin: Instant,
    servers: Vec<(&'static str, u32, Duration)>,
    own: (Duration, Duration),
}

impl Cpu {
    pub fn begin(servers: &[(&'static str, u32)]) -> Cpu {
        let servers = servers.iter().map(|&(name, pid)| (name, pid, cpu_of(pid))).collect();
        Cpu { begin: Instant::now(), servers, own: process::own_cpu() }
    }

    /// Percent of one processor for each; clients count once they have ended.
    pub fn shown(&self) -> String {
        let seconds = self.begin.elapsed().as_secs_f64();
        let percent =
            |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() * 100.0 / seconds;
        let (own, children) = process::own_cpu();
        let mut parts: Vec<String> = self
            .servers
            .iter()
            .map(|&(name, pid, then)| format!("{name} {:.0} %", percent(cpu_of(pid), then)))
            .collect();
        parts.push(format!("clients {:.0} %", percent(children, self.own.1)));
        parts.push(format!("link {:.0} %", percent(own, self.own.0)));
        format!("CPU over {seconds:.0} s: {}", parts.join(", "))
    }
}

/// A process that has ended used no more.
fn cpu_of(pid: u32) -> Duration {
    process::usage(pid).map_or(Duration::ZERO, |usage| usage.cpu)
}
