//! A night's backup of the same device by cistern and by restic, which finds out by reading what changed.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use cistern_harness::{
    fio,
    mount::{Access, FuseFile},
    scratch::Scratch,
    tool, tree,
};

use super::{Plan, report::Report};

const LIMIT: Duration = Duration::from_secs(1800);
const GIB: u64 = 2;
/// Blocks of 4 KiB that change between two nights: a thousandth.
const CHANGED: u64 = (GIB << 30) / 4096 / 1000;

/// Two nights of incompressible data, of which a thousandth changes at random in between.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let scratch = Scratch::new("bench-restic")?;
    let (here, url) = (plan.cistern.clone(), scratch.file("vol").display().to_string());
    here.run(&["create", &url, "--size", "4G"])?;
    let server = here.serve(&scratch, url.clone()).args(["--cache-size", "4G"]).start()?;
    let repository = scratch.file("repository");
    restic(&repository, &["init"])?;
    let size = format!("--size={}g", plan.gib(GIB));
    fio::nbd(scratch.path(), &server.uri(), &["--rw=write", "--bs=1m", "--refill_buffers", &size], LIMIT)?;
    let ios = format!("--number_ios={CHANGED}");
    let changes = ["--rw=randwrite", "--bs=4k", "--refill_buffers", "--randrepeat=0", &ios, &size];
    for (night, base) in [("first", None), ("second", Some("first"))] {
        if base.is_some() {
            fio::nbd(scratch.path(), &server.uri(), &changes, LIMIT)?;
        }
        server.ask(&["snapshot", &format!("{url}@{night}"), "--wait"])?;
        let shown = FuseFile::start(&scratch, &server.uri_of(&format!("vol@{night}")), Access::ReadOnly)?;
        let (before, begin) = (tree::bytes(&repository), Instant::now());
        restic(&repository, &["backup", &shown.file().display().to_string()])?;
        let (seconds, bytes) = (begin.elapsed().as_secs_f64(), tree::bytes(&repository) - before);
        drop(shown);
        let stream = scratch.file(night).display().to_string();
        let (snapshot, begin) = (format!("{url}@{night}"), Instant::now());
        let since = base.map(|base| ["--from", base]);
        let args = ["send", &snapshot, "--to", &stream];
        here.run(&[&args[..], since.as_ref().map_or(&[][..], |since| &since[..])].concat())?;
        let sent = begin.elapsed().as_secs_f64();
        report.note(format!(
            "{night} night of {} GiB: restic through nbdfuse {:.1} MiB in {seconds:.1} s, cistern send {:.1} MiB in {sent:.1} s",
            plan.gib(GIB),
            mib(bytes),
            mib(std::fs::metadata(&stream)?.len()),
        ));
    }
    server.stop()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn restic(repository: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = tool::command("restic")?;
    command.arg("--repo").arg(repository).args(["--no-cache", "--quiet"]).args(arguments);
    command.env("RESTIC_PASSWORD", "not secret");
    tool::run_command(command, LIMIT).map(drop)
}
