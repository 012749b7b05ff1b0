//! What one ranged GET of a real S3 server costs this client: `get_bench [BYTES [SECONDS]]`.
//!
//! A MinIO of its own behind a link of 20 ms and 30 MB/s, 64 objects of 2 MiB, 32 GETs at once of BYTES (4096) each at random places. Prints GETs a
//! second, the processor time of this process for each, and the same of a client that writes a fixed request to a socket.

#![allow(clippy::disallowed_methods)] // a measuring program, not the engine

use std::time::{Duration, Instant};

use cistern_engine::{
    env::real::RealEnv,
    store::{CloudStore, Store, StoreUrl, Variables},
};
use cistern_harness::{
    link::{Conditions, Link},
    minio::{BUCKET, Minio},
    plain,
    scratch::Scratch,
};
use futures_util::future::join_all;

const OBJECTS: usize = 64;
const OBJECT_BYTES: usize = 2 << 20;
const AT_ONCE: u64 = 32;
const WORKERS: usize = 2;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize| arguments.get(n).map(|text| text.parse::<u64>().expect("a number"));
    let (bytes, seconds) = (number(0).unwrap_or(4096), number(1).unwrap_or(10));
    let scratch = Scratch::new("get-bench").expect("a directory");
    let minio = Minio::start(&scratch).expect("a server");
    let link = Link::start(minio.port()).expect("a link");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let inside = runtime.enter();
    let env = RealEnv::start();
    let mut variables = Variables::default();
    for (name, value) in Minio::environment(link.port()) {
        variables = variables.with(&name, &value);
    }
    let url = StoreUrl::parse(&format!("s3://{BUCKET}/bench")).expect("a URL");
    let store = CloudStore::open(&url, &variables, &env).expect("a store");
    let keys: Vec<String> = (0..OBJECTS).map(|n| format!("log/{n:05}")).collect();
    runtime.block_on(async {
        for key in &keys {
            store.put(key, vec![7; OBJECT_BYTES].into()).await.expect("a PUT");
        }
    });
    link.set(Conditions::wan(20, 30));
    drop(inside);
    let (cpu, begin) = (cpu_seconds(), Instant::now());
    let limit = Duration::from_secs(seconds);
    // Whoever reads runs on a thread of its own, as the connections of clients do.
    let readers = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let done: u64 = readers.block_on(async {
        let clients = (0..AT_ONCE).map(|n| {
            let (store, keys) = (store.clone(), keys.clone());
            tokio::spawn(async move {
                let (mut done, mut draw) = (0, n * 0x9E37_79B9 + 1);
                while begin.elapsed() < limit {
                    draw =
                        draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let key = &keys[(draw >> 33) as usize % keys.len()];
                    let from = (draw >> 20) % (OBJECT_BYTES as u64 / 2);
                    let got = store.get_range(key, from..from + bytes).await.expect("a GET");
                    assert_eq!(got.len() as u64, bytes, "all of it");
                    done += 1;
                }
                done
            })
        });
        join_all(clients).await.into_iter().map(|done| done.expect("no panic")).sum()
    });
    let (cpu, took) = (cpu_seconds() - cpu, begin.elapsed().as_secs_f64());
    println!(
        "this client: {:.0} GET/s, {:.0} us of processor time each",
        done as f64 / took,
        cpu * 1e6 / done as f64
    );
    minio.open_to_all().expect("a policy");
    let keys: Vec<String> = keys.iter().map(|key| format!("bench/{key}")).collect();
    let cpu = cpu_seconds();
    let rate = plain::ranged_gets(link.port(), &keys, bytes, AT_ONCE as usize, limit).expect("GETs");
    let each = (cpu_seconds() - cpu) * 1e6 / (rate * seconds as f64);
    println!("a plain client: {rate:.0} GET/s, {each:.0} us each");
}

/// Of all threads of this process.
fn cpu_seconds() -> f64 {
    // SAFETY: an all-zero timespec is valid, and the call writes to it.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
        time
    };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
