//! `cargo xtask guest`: real kernels and real ZFS. A guest under QEMU's software emulation, from Debian's packages, in which the cases
//! of `xtask/guest/cases` run.
//!
//! The guest is built once, under `target/guest`, and again when its script or a package has changed: some seven minutes, most of them
//! for the module of OpenZFS. A boot takes four seconds.

mod host;
mod killed;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use cistern_harness::{
    minio,
    scratch::{self, Scratch},
    tool,
};
use clap::Args;

use crate::{mutate::copy::Copy, package, setup, step};
use host::Host;
use killed::KilledDaemon;

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
/// The guest has none of its own, and clients of stores refuse to begin without.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// Of a case; one kills daemons for twice ten minutes.
const CASE_SECONDS: u64 = 1800;

#[derive(Args)]
pub struct Options {
    /// Runs these cases only, as `outlives,zfs`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
}

/// The one case of every test run: a pool that lives through stops and kills, and moves to another host.
const SHORT: &str = "zfs";

/// Builds what is missing, and runs the cases.
pub fn run(options: &Options) -> Result<()> {
    let guest = prepare()?;
    step::run(
        "release build",
        step::cargo(&["build", "--release", "--locked", "-p", "cistern"]),
        BUILD_LIMIT,
    )?;
    let binary = stripped(&built("release")?)?;
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

/// A part of the tests, with the program that they have built.
pub fn run_short() -> Result<()> {
    let guest = prepare()?;
    run_case(&guest, &stripped(&built("debug")?)?, SHORT, &files().join(format!("cases/{SHORT}.sh")))
}

/// Installs what is missing, and builds the guest.
fn prepare() -> Result<PathBuf> {
    setup::install_missing(&PACKAGES)?;
    if tool::find(QEMU).is_err() {
        setup::install_from_backports(QEMU_PACKAGE)?;
    }
    build_guest()
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

fn built(profile: &str) -> Result<PathBuf> {
    Ok(scratch::target_dir()?.join(profile).join("cistern"))
}

/// The program without what only debuggers read.
fn stripped(program: &Path) -> Result<PathBuf> {
    let stripped = program.with_extension("guest");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(program);
    ensure!(strip.status().context("strip")?.success(), "strip fails");
    Ok(stripped)
}

/// The program of this source under another version. Cargo builds it beside the first one, so that both share all that is not of this workspace.
fn other_version() -> Result<PathBuf> {
    let (target, version) = (scratch::target_dir()?, env!("CARGO_PKG_VERSION"));
    let copy = Copy::make(step::root(), &target.join("guest/other"))?;
    let manifest = copy.root().join("Cargo.toml");
    let (own, other) =
        (format!("\nversion = \"{version}\"\n"), format!("\nversion = \"{}\"\n", other_number()));
    let text = fs::read_to_string(&manifest)?;
    ensure!(text.matches(&own).count() == 1, "{} does not say once that it is {version}", manifest.display());
    fs::write(&manifest, text.replace(&own, &other))?;
    let (built, kept) = (target.join("release/cistern"), target.join("release/cistern-own"));
    fs::copy(&built, &kept)?;
    // Not --locked: the lock file has the versions of the workspace.
    let mut build = step::cargo(&["build", "--release", "--offline", "-p", "cistern", "--target-dir"]);
    build.arg(&target).current_dir(copy.root());
    let outcome = step::run("release build of another version", build, BUILD_LIMIT);
    let other = target.join("release/cistern-other");
    let moved = fs::rename(&built, &other).and_then(|()| fs::rename(&kept, &built));
    outcome.map(drop)?;
    moved.context("the two programs")?;
    Ok(other)
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

/// What is version 90.1.0 where this is 0.1.0: newer than this one.
fn other_number() -> String {
    format!("9{}", env!("CARGO_PKG_VERSION"))
}

/// How a case is run. A line `#: init=systemd disk=2G boots=2 minio` in its script says it.
struct CaseShape {
    /// What is init: `vm` runs nothing but the case, `systemd` the case as a service.
    init: String,
    /// Of a disk that all boots have, `/dev/disk/vm/disk`; as `truncate` takes it.
    disk: Option<String>,
    /// Of a disk `/dev/disk/vm/tank`, which a daemon of the host serves that is killed all the time.
    killed: Option<String>,
    /// How often the guest is booted; which one it is the script finds in `/job/boot`.
    boots: u32,
    /// The S3 server of the tests lies in `/job/minio`.
    minio: bool,
    /// What the host has for it, `/job/host` says.
    host: bool,
    /// This program under another version lies in `/job/other`.
    other: bool,
    /// Debian's packages of both lie in `/job`.
    packages: bool,
    /// So does the image for containers.
    image: bool,
}

impl CaseShape {
    fn of(script: &str) -> Result<CaseShape> {
        let mut shape = CaseShape {
            init: "vm".to_owned(),
            disk: None,
            killed: None,
            boots: 1,
            minio: false,
            host: false,
            other: false,
            packages: false,
            image: false,
        };
        let said = script.lines().find_map(|line| line.strip_prefix("#: ")).unwrap_or_default();
        for word in said.split_whitespace() {
            match word.split_once('=') {
                Some(("init", init)) => shape.init = init.to_owned(),
                Some(("disk", size)) => shape.disk = Some(size.to_owned()),
                Some(("killed", size)) => shape.killed = Some(size.to_owned()),
                Some(("boots", boots)) => shape.boots = boots.parse().context("boots")?,
                None if word == "minio" => shape.minio = true,
                None if word == "host" => shape.host = true,
                None if word == "other" => shape.other = true,
                None if word == "packages" => shape.packages = true,
                None if word == "image" => shape.image = true,
                _ => bail!("what is {word}?"),
            }
        }
        Ok(shape)
    }
}

fn run_case(guest: &Path, binary: &Path, name: &str, script: &Path) -> Result<()> {
    let scratch = Scratch::new(&format!("guest-{name}"))?;
    let job = scratch.dir("job")?;
    let case = fs::read_to_string(script)?;
    let shape = CaseShape::of(&case)?;
    fs::write(job.join("run"), format!("#!/bin/bash\n{case}"))?;
    fs::copy(files().join("cases/lib.sh"), job.join("lib.sh"))?;
    for page in ["docs/zfs.md", "docs/start/docker.md", "docs/install.md"] {
        let page = step::root().join(page);
        fs::copy(&page, job.join(page.file_name().context("a page has a name")?))?;
    }
    fs::copy(binary, job.join("cistern"))?;
    for entry in fs::read_dir(step::root().join("packaging/systemd"))? {
        let unit = entry?;
        fs::copy(unit.path(), job.join(unit.file_name()))?;
    }
    if shape.minio {
        fs::copy(minio::binary()?, job.join("minio")).context("the S3 server: run cargo xtask setup")?;
    }
    let host = shape.host.then(Host::start).transpose()?;
    if let Some(host) = &host {
        host.describe(&job.join("host"))?;
    }
    if shape.minio || shape.host {
        fs::copy(CERTIFICATES, job.join("certificates")).context(CERTIFICATES)?;
    }
    if shape.other {
        fs::copy(other_version()?, job.join("other"))?;
    }
    if shape.packages {
        package::debian(binary, env!("CARGO_PKG_VERSION"), &job)?;
        package::debian(&stripped(&other_version()?)?, &other_number(), &job)?;
    }
    if shape.image {
        package::image(&job)?;
    }
    let disk = scratch.path().join("disk");
    if let Some(size) = &shape.disk {
        let made = Command::new("truncate").arg("-s").arg(size).arg(&disk).status().context("truncate")?;
        ensure!(made.success(), "truncate fails");
    }
    let killed = shape.killed.as_deref().map(|size| KilledDaemon::start(binary, size)).transpose()?;
    println!("{name} ...");
    let begin = Instant::now();
    let boot = |boot: u32| {
        fs::write(job.join("boot"), boot.to_string())?;
        let mut run = Command::new("bash");
        run.arg(files().join("run.sh")).arg(guest).arg(&job);
        run.env("TIMEOUT", CASE_SECONDS.to_string()).env("INIT", &shape.init);
        run.env("NET", u8::from(shape.host).to_string());
        if shape.disk.is_some() {
            run.arg("-drive")
                .arg(format!("file={},format=raw,if=none,id=disk,discard=unmap", disk.display()));
            run.args(["-device", "virtio-blk-pci,drive=disk,serial=disk"]);
        }
        if let Some(killed) = &killed {
            run.args(killed.qemu_arguments());
        }
        // It has its own limit, and ends with the guest.
        ensure!(run.status().context("bash")?.success(), "{name} failed in boot {boot} of {}", shape.boots);
        Ok(())
    };
    let booted = (1..=shape.boots).try_for_each(boot);
    // Its daemon ends however the guest did.
    booted.and(killed.map_or(Ok(()), KilledDaemon::end))?;
    println!("{name}: done in {}", step::seconds(begin.elapsed()));
    Ok(())
}
