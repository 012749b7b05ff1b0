//! Deleting a volume of very many objects behind a link: how long, and how many requests.
//!
//! The objects have a volume's names and nothing in them: deleting looks at no content. They are put by a plain client
//! beside the store.

use std::time::Instant;

use anyhow::{Result, ensure};
use cistern_harness::{
    link::{Conditions, Link},
    minio::{BUCKET, Minio},
    plain,
    scratch::Scratch,
};

use super::{
    Plan,
    report::{Bound, Report},
    wan::Cpu,
};

const OBJECTS: usize = 100_000;
const OBJECTS_QUICK: usize = 5_000;
const SECONDS_MAX: f64 = 30.0;
const ROUND_TRIP_MS: u64 = 20;
const MB_PER_S: u64 = 30;
/// Connections of the plain client.
const CONNECTIONS: usize = 16;

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let objects = if plan.quick { OBJECTS_QUICK } else { OBJECTS };
    let scratch = Scratch::new("bench-remove")?;
    let minio = Minio::start(&scratch)?;
    let link = Link::start(minio.port())?;
    let cistern = plan.cistern.clone().with_environment(Minio::environment(link.port()));
    let state = scratch.file("state").display().to_string();
    let url = format!("s3://{BUCKET}/vol");
    cistern.run(&["create", &url, "--size", "1G"])?;
    minio.open_to_all()?;
    let keys: Vec<String> = (0..objects).map(|n| format!("vol/{:032x}/map/{n:032x}", 7)).collect();
    let begin = Instant::now();
    plain::puts(minio.port(), &keys, b"x", CONNECTIONS)?;
    report.note(format!("{objects} objects were put in {:.0} s", begin.elapsed().as_secs_f64()));
    link.set(Conditions::wan(ROUND_TRIP_MS, MB_PER_S));
    link.take();
    let (begin, cpu) = (Instant::now(), Cpu::begin(&[("MinIO", minio.pid())]));
    cistern.run(&["rm", &url, "--now", "--yes", "--state-dir", &state])?;
    let seconds = begin.elapsed().as_secs_f64();
    let (counts, cpu) = (link.take(), cpu.shown());
    ensure!(minio.keys("vol/")?.is_empty(), "objects are left");
    report.row(
        &format!("rm --now of a volume of {objects} objects, {ROUND_TRIP_MS} ms"),
        format!("{seconds:.1} s, {} requests", counts.total()),
        format!("{:?}", counts.requests),
        seconds,
        Bound::AtMost(SECONDS_MAX),
    );
    report.note(cpu);
    Ok(())
}
