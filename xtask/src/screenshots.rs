//! `cargo xtask screenshots`: the pictures of the dashboard in the documentation, of a real daemon under a real load.
//!
//! They are for the looks: the binary is the one that tests use, not an optimized one. Prints what the page weighs and when it had drawn
//! its first chart, as the browser measured it.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    browser::{Looks, Page},
    fixture::random_bytes,
    minio::{BUCKET, Minio},
    nbd::{Client, Dialect},
    scratch::{self, Scratch},
    serve::{Cistern, Server},
    tool,
};

use crate::step;

const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// How long the load goes on before pictures are taken.
const LOAD: Duration = Duration::from_secs(110);
/// The load comes in waves of this length.
const WAVE: Duration = Duration::from_secs(30);
const SHOWS: Duration = Duration::from_secs(60);
const PIECE_BYTES: usize = 128 << 10;
/// Writes and reads go to the first so many pieces.
const PIECES: u64 = 4096;
/// Of a picture; they are loaded with the pages that show them.
const PICTURE_BYTES_MAX: u64 = 150 << 10;
const COLOURS: &str = "64";

/// File, looks, and whether the whole page is shown or only what fits on the screen.
const PICTURES: [(&str, Looks, bool); 3] = [
    ("dashboard-light.png", Looks { width: 1280, ..Looks::LIGHT }, true),
    ("dashboard-dark.png", Looks { width: 1280, ..Looks::DARK }, true),
    ("dashboard-phone.png", Looks { height: 800, ..Looks::PHONE }, false),
];

/// Serves a volume, works on it for two minutes, and takes the pictures.
pub fn run() -> Result<()> {
    tool::find("pngquant")?;
    step::run("build", step::cargo(&["build", "--locked", "-p", "cistern"]), BUILD_LIMIT)?;
    let cistern = Cistern::new(scratch::target_dir()?.join("debug/cistern"));
    let scratch = Scratch::new("screenshots")?;
    let settings = scratch.file("settings.toml");
    std::fs::write(&settings, "[prices]\nkind = \"s3-standard\"\n")?;
    // The disk of a store is not the one of this host.
    let far = Scratch::in_memory("store")?;
    let minio = Minio::start(&far)?;
    let cistern = cistern.with_environment(Minio::environment(minio.port()));
    let url = format!("s3://{BUCKET}/volume");
    let serve = cistern.serve(&scratch, &url).args(["--create", "20G", "--dashboard", "127.0.0.1:0"]);
    let serve = serve.args(["--max-dirty-age", "15s", "--journal-size", "1G", "--cache-size", "192M"]);
    let serve = serve.args(["--config".into(), settings.into_os_string()]);
    // Opened anew, what is read first comes from the store and the chunk cache.
    let server = serve.start()?;
    fill(&server)?;
    server.stop()?;
    let server = serve.start()?;
    let page = server.ask(&["dashboard", "volume"])?.stdout.trim().to_owned();
    println!("{page} is under load for {} s ...", LOAD.as_secs());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads = [scope.spawn(|| write(&server, &is_over)), scope.spawn(|| read(&server, &is_over))];
        let taken = take_all(&server, &url, &page);
        is_over.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().expect("a load does not panic")?;
        }
        taken
    })?;
    server.stop()
}

fn take_all(server: &Server, volume: &str, url: &str) -> Result<()> {
    for name in ["monday", "tuesday", "wednesday"] {
        std::thread::sleep(LOAD / 4);
        server.ask(&["snapshot", &format!("{volume}@{name}")])?;
    }
    std::thread::sleep(LOAD / 4);
    let directory = step::root().join("docs/images");
    std::fs::create_dir_all(&directory)?;
    for (file, looks, whole) in PICTURES {
        let mut page = Page::open(looks)?;
        page.go(url)?;
        page.wait_for("performance.getEntriesByName('first-picture').length > 0", SHOWS)?;
        // The legends know more once the next figures have come.
        page.wait_for(
            "!document.querySelector('#throughput .figures dd').textContent.startsWith('–')",
            SHOWS,
        )?;
        let picture = directory.join(file);
        page.screenshot(&picture, whole)?;
        shrink(&picture)?;
        let bytes: u64 =
            page.asked()?.iter().filter(|a| !a.url.contains("/api/")).map(|a| a.received_bytes).sum();
        let first = page.eval("performance.getEntriesByName('first-picture')[0].startTime")?;
        let first = first.as_f64().context("a time")?;
        println!(
            "docs/images/{file}: the page has {} KiB, its first picture came after {first:.0} ms",
            bytes >> 10
        );
    }
    Ok(())
}

/// Fewer colours, which nobody sees, make a third of the file.
fn shrink(picture: &Path) -> Result<()> {
    let mut command = tool::command("pngquant")?;
    command.args(["--force", "--strip", "--speed", "1", "--output"]).arg(picture).arg(COLOURS).arg(picture);
    tool::run_command(command, tool::RUN_LIMIT)?;
    let bytes = std::fs::metadata(picture)?.len();
    ensure!(bytes <= PICTURE_BYTES_MAX, "{} has {bytes} bytes", picture.display());
    Ok(())
}

fn fill(server: &Server) -> Result<()> {
    let mut client = Client::connect(server.socket(), "", Dialect::Simple)?;
    for n in 0..PIECES {
        client.write(n * PIECE_BYTES as u64, &random_bytes(PIECE_BYTES, n + 1))?;
    }
    client.flush()?;
    client.close()
}

/// Between 0 and 1, up and down with time.
fn wave(since: Instant, shift: f64) -> f64 {
    let turns = since.elapsed().as_secs_f64() / WAVE.as_secs_f64() + shift;
    (turns * std::f64::consts::TAU).sin().mul_add(0.5, 0.5)
}

/// Waits so long that a piece a call makes a rate that goes up and down.
fn pace(since: Instant, shift: f64, per_second_max: f64) {
    std::thread::sleep(Duration::from_secs_f64(1.0 / (2.0 + per_second_max * wave(since, shift))));
}

fn write(server: &Server, is_over: &AtomicBool) -> Result<()> {
    let mut client = Client::connect(server.socket(), "", Dialect::Simple)?;
    let since = Instant::now();
    for n in 0u64.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let at = n.wrapping_mul(0x9E37_79B9) % PIECES * PIECE_BYTES as u64;
        client.write(at, &random_bytes(PIECE_BYTES, n))?;
        if n % 8 == 0 {
            client.flush()?;
        }
        if n % 64 == 0 {
            client.trim((PIECES + n) * PIECE_BYTES as u64, PIECE_BYTES as u64)?;
        }
        pace(since, 0.0, 300.0);
    }
    client.close()
}

fn read(server: &Server, is_over: &AtomicBool) -> Result<()> {
    let mut client = Client::connect(server.socket(), "", Dialect::Simple)?;
    let since = Instant::now();
    for n in 0u64.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let at = n.wrapping_mul(0x85EB_CA6B) % PIECES * PIECE_BYTES as u64;
        client.read(at, PIECE_BYTES as u32)?;
        pace(since, 0.4, 400.0);
    }
    client.close()
}
