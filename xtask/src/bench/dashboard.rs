//! What the dashboard costs the daemon while ten look at it, and how soon a browser shows it.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    browser::{Looks, Page},
    process::Guard,
    scratch::Scratch,
    serve::Server,
    tool,
};

use super::{
    Plan, many_volumes,
    report::{Bound, Report, median},
};

const VIEWERS: usize = 10;
/// Of one processor, in percent.
const VIEWERS_PERCENT_MAX: f64 = 1.0;
const FIRST_PICTURE_MS_MAX: f64 = 300.0;
const PAGE_KIB_MAX: f64 = 150.0;
const SHOWS: Duration = Duration::from_secs(60);

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    for volumes in [1, 200] {
        let scratch = Scratch::new("bench-dashboard")?;
        let server = start(plan, &scratch, volumes)?;
        let url = server.ask(&["dashboard", many_volumes::name(0).as_str()])?.stdout.trim().to_owned();
        watched(plan, report, &server, &url, volumes)?;
        if volumes == 1 {
            shown(plan, report, &url)?;
        }
        server.stop()?;
    }
    Ok(())
}

fn start(plan: &Plan, scratch: &Scratch, volumes: usize) -> Result<Server> {
    let store = scratch.dir("store")?;
    let urls: Vec<String> =
        (0..volumes).map(|n| store.join(many_volumes::name(n)).display().to_string()).collect();
    let more = ["--create", many_volumes::VOLUME, "--dashboard", "127.0.0.1:0"];
    Ok(many_volumes::start(&plan.cistern, scratch, &urls, &more)?.0)
}

/// The daemon's processor time with and without viewers, who take what is sent.
fn watched(plan: &Plan, report: &mut Report, server: &Server, url: &str, volumes: usize) -> Result<()> {
    let time = Duration::from_secs(plan.seconds(60));
    let alone = percent(server, time)?;
    let viewers = (0..VIEWERS)
        .map(|_| {
            let mut curl = tool::command("curl")?;
            curl.args(["--silent", "--show-error", "--no-buffer", &format!("{url}api/v1/events")]);
            curl.stdout(Stdio::null());
            Guard::spawn(curl)
        })
        .collect::<Result<Vec<_>>>()?;
    let watched = percent(server, time)?;
    for mut viewer in viewers {
        ensure!(!viewer.has_ended(), "a viewer was sent away");
    }
    report.row(
        &format!("ten viewers of a daemon with {volumes} idle volumes"),
        format!("{watched:.2} % of a processor"),
        format!("without viewers {alone:.2} %; each for {} s", time.as_secs()),
        watched,
        Bound::AtMost(VIEWERS_PERCENT_MAX),
    );
    Ok(())
}

fn percent(server: &Server, time: Duration) -> Result<f64> {
    let before = server.usage()?.cpu;
    std::thread::sleep(time); // the time is what is measured
    Ok((server.usage()?.cpu - before).as_secs_f64() / time.as_secs_f64() * 100.0)
}

/// A new browser each time, with nothing of the page.
fn shown(plan: &Plan, report: &mut Report, url: &str) -> Result<()> {
    let (mut firsts, mut kib) = (Vec::new(), 0.0);
    for _ in 0..plan.rounds() {
        let mut page = Page::open(Looks::LIGHT)?;
        page.go(url)?;
        page.wait_for("performance.getEntriesByName('first-picture').length > 0", SHOWS)?;
        let first = page.eval("performance.getEntriesByName('first-picture')[0].startTime")?;
        firsts.push(first.as_f64().context("a time")?);
        let parts = page.asked()?.iter().filter(|asked| !asked.url.contains("/api/"));
        kib = parts.map(|asked| asked.received_bytes).sum::<u64>() as f64 / 1024.0;
    }
    report.row(
        "the dashboard in a new browser: until its first picture",
        format!("{:.0} ms", median(firsts.clone())),
        format!("{firsts:.0?}"),
        median(firsts),
        Bound::AtMost(FIRST_PICTURE_MS_MAX),
    );
    report.row(
        "bytes of the page, without figures",
        format!("{kib:.0} KiB"),
        "-".into(),
        kib,
        Bound::AtMost(PAGE_KIB_MAX),
    );
    Ok(())
}
