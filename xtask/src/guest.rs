//! `cargo xtask guest`: real kernels and real ZFS. A guest under QEMU's software emulation, from Debian's packages, in which the cases
//! of `xtask/guest/cases` run.
//!
//! The guest is built once, under `target/guest`, and again when its script or a package has changed: some seven minutes, most of them
//! for the module of OpenZFS. A boot takes four seconds.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    scratch::{self, Scratch},
    tool,
};
use clap::Args;

use crate::{setup, step};

/// Programs with their packages, beside those of the tests.
const PACKAGES: [(&str, &str); 5] = [
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
    ("depmod", "kmod"),
    ("zstd", "zstd"),
    ("strip", "binutils"),
];
const QEMU: &str = "qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// Of a case.
const CASE_SECONDS: u64 = 900;

#[derive(Args)]
pub struct Options {
    /// Runs these cases only, as `outlives,zfs`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
}

/// Builds what is missing, and runs the cases.
pub fn run(options: &Options) -> Result<()> {
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(program, _)| tool::find(program).is_err())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        setup::install(&missing)?;
    }
    if tool::find(QEMU).is_err() {
        setup::install_from_backports(QEMU_PACKAGE)?;
    }
    let guest = build_guest()?;
    let binary = build_binary()?;
    let all = cases()?;
    let unknown = options.only.iter().find(|name| !all.iter().any(|(known, _)| known == *name));
    ensure!(unknown.is_none(), "there is no case {}", unknown.map_or("", String::as_str));
    for (name, script) in
        all.iter().filter(|(name, _)| options.only.is_empty() || options.only.contains(name))
    {
        run_case(&guest, &binary, name, script)?;
    }
    Ok(())
}

fn files() -> PathBuf {
    step::root().join("xtask/guest")
}

fn build_guest() -> Result<PathBuf> {
    let guest = scratch::target_dir()?.join("guest");
    fs::create_dir_all(&guest)?;
    let mirror = setup::debian_mirror()?;
    setup::add_backports("main", setup::BACKPORTS_LIST)?;
    setup::add_backports("contrib", "/etc/apt/sources.list.d/cistern-guest-backports.list")?;
    let sources = guest.join("sources.list");
    let lines = ["bookworm main contrib", "bookworm-updates main", "bookworm-backports main contrib"];
    fs::write(&sources, lines.map(|line| format!("deb {mirror} {line}\n")).concat())?;
    let mut build = Command::new("bash");
    build.arg(files().join("build.sh")).arg(&guest).env("SOURCES", &sources);
    step::run("build the guest (some minutes, once)", build, BUILD_LIMIT)?;
    Ok(guest)
}

/// The program as it ships, without what only debuggers read.
fn build_binary() -> Result<PathBuf> {
    let build = step::cargo(&["build", "--release", "--locked", "-p", "cistern"]);
    step::run("release build", build, BUILD_LIMIT)?;
    let release = scratch::target_dir()?.join("release");
    let stripped = release.join("cistern-guest");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(release.join("cistern"));
    ensure!(strip.status().context("strip")?.success(), "strip fails");
    Ok(stripped)
}

/// All cases by name.
fn cases() -> Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(files().join("cases"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name != "lib" {
            all.push((name, path));
        }
    }
    all.sort();
    Ok(all)
}

fn run_case(guest: &Path, binary: &Path, name: &str, script: &Path) -> Result<()> {
    let scratch = Scratch::new(&format!("guest-{name}"))?;
    let job = scratch.dir("job")?;
    let case = fs::read_to_string(script)?;
    fs::write(job.join("run"), format!("#!/bin/bash\n{case}"))?;
    fs::copy(files().join("cases/lib.sh"), job.join("lib.sh"))?;
    fs::copy(step::root().join("docs/zfs.md"), job.join("zfs.md"))?;
    fs::copy(binary, job.join("cistern"))?;
    let mut run = Command::new("bash");
    run.arg(files().join("run.sh")).arg(guest).arg(&job).env("TIMEOUT", CASE_SECONDS.to_string());
    println!("{name} ...");
    let begin = Instant::now();
    // It has its own limit, and ends with the guest.
    ensure!(run.status().context("bash")?.success(), "{name} failed");
    println!("{name}: done in {}", step::seconds(begin.elapsed()));
    Ok(())
}
