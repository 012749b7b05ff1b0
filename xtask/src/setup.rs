//! `cargo xtask setup`: what the tests and benchmarks need on Debian 12, from apt and from source.
//!
//! Changes nothing that is there already, and takes a second when all is there.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use cistern_harness::{azurite, gcs, minio, tool, versitygw};

use crate::step;

const APT_LIMIT: Duration = Duration::from_secs(900);
/// Building MinIO takes three to six minutes on two cores, and a slow network comes on top.
const SERVER_LIMIT: Duration = Duration::from_secs(1800);
/// Half a minute each, and a slow network.
const EMULATOR_LIMIT: Duration = Duration::from_secs(900);
/// Go from this version on fetches the version that a module asks for by itself.
const GO_MINOR_MIN: u32 = 21;
/// Where the Go of bookworm-backports is.
const GO_BACKPORTS: &str = "/usr/lib/go-1.23/bin/go";
const GO_BACKPORTS_PACKAGE: &str = "golang-1.23-go";
/// qemu from this version on speaks the extended headers of NBD; Debian 12 itself has 7.2.
const QEMU_MIN: (u32, u32) = (8, 2);
const QEMU_PACKAGE: &str = "qemu-utils";
const QEMU_SYSTEM: &str = "qemu-system-x86_64";
const QEMU_SYSTEM_PACKAGE: &str = "qemu-system-x86";
/// libvirt up to some version takes the delay with which a disk reconnects, and does nothing with it: 9.0, which Debian 12 has, is one.
const LIBVIRT_MIN: (u32, u32) = (11, 3);
const LIBVIRT_PACKAGE: &str = "libvirt-daemon-driver-qemu";
pub const BACKPORTS_LIST: &str = "/etc/apt/sources.list.d/cistern-test-backports.list";

/// Brings the machine to where every test can run.
pub fn run() -> Result<()> {
    let missing = missing_packages();
    if !missing.is_empty() {
        install(&missing.into_iter().collect::<Vec<_>>())?;
    }
    if !is_new_enough_qemu() {
        install_from_backports(QEMU_PACKAGE)?;
    }
    if tool::find(QEMU_SYSTEM).is_err() {
        install_from_backports(QEMU_SYSTEM_PACKAGE)?;
    }
    if !is_new_enough_libvirt() {
        install_from_backports(LIBVIRT_PACKAGE)?;
    }
    build_by_go("MinIO (several minutes)", minio::MODULE, &minio::binary()?)?;
    build_by_go("versitygw", versitygw::MODULE, &versitygw::binary()?)?;
    build_gcs()?;
    install_azurite()?;
    check_kernel()?;
    println!("setup: everything is there");
    Ok(())
}

/// What has no program of its own: its package, and a command that fails without it.
const LIBRARIES: &[(&str, &str, &[&str])] = &[
    ("python3-libnbd", "/usr/bin/python3", &["-c", "import nbd"]),
    ("postgresql", "/usr/lib/postgresql/15/bin/postgres", &["--version"]),
    ("python3-boto3", "/usr/bin/python3", &["-c", "import boto3"]),
    ("nbdkit-plugin-python", "nbdkit", &["S3", "--version"]),
];

/// Packages of what is not here.
fn missing_packages() -> BTreeSet<&'static str> {
    let programs = tool::PACKAGES.iter().filter(|(program, _)| tool::find(program).is_err());
    let libraries = LIBRARIES.iter().filter(|(_, program, args)| {
        !tool::command(program)
            .and_then(|mut c| Ok(c.args(*args).output()?))
            .is_ok_and(|o| o.status.success())
    });
    programs
        .map(|(_, package)| *package)
        .filter(|package| ![QEMU_PACKAGE, QEMU_SYSTEM_PACKAGE, LIBVIRT_PACKAGE].contains(package))
        .chain(libraries.map(|(package, ..)| *package))
        .collect()
}

/// Installs the packages of those programs that are not here.
pub fn install_missing(packages: &[(&str, &str)]) -> Result<()> {
    let missing = packages.iter().filter(|(program, _)| tool::find(program).is_err());
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => install(&missing),
    }
}

fn install(packages: &[&str]) -> Result<()> {
    require_root(&format!("apt-get install {}", packages.join(" ")))?;
    step::run("apt-get update", apt(&["update"]), APT_LIMIT)?;
    let mut args = vec!["install", "-y", "--no-install-recommends"];
    args.extend(packages);
    step::run(&format!("apt-get install {}", packages.join(" ")), apt(&args), APT_LIMIT)?;
    Ok(())
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(args);
    command
}

fn require_root(what: &str) -> Result<()> {
    // SAFETY: a system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        bail!("this needs root once: run `cargo xtask setup` as root, or by hand: {what}");
    }
    Ok(())
}

/// A server of a module's program, at the version that the module is named with. Its file has the program's name.
fn build_by_go(what: &str, module: &str, binary: &Path) -> Result<()> {
    if binary.is_file() {
        return Ok(());
    }
    let go = go()?;
    let bin = binary.parent().context("the binary lies in a directory")?;
    std::fs::create_dir_all(bin)?;
    let mut command = Command::new(go);
    command.args(["install", module]).env("GOBIN", bin).env("GOTOOLCHAIN", "auto").env("CGO_ENABLED", "0");
    step::run(&format!("build {what}"), command, SERVER_LIMIT)?;
    Ok(())
}

/// The server of Google Cloud Storage's protocol; built anew when its source is newer.
fn build_gcs() -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("gcs");
    let binary = gcs::binary()?;
    let changed = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified());
    if changed(&binary).is_ok_and(|built| changed(&source.join("main.go")).is_ok_and(|at| at <= built)) {
        return Ok(());
    }
    let mut command = Command::new(go()?);
    command.current_dir(&source).args(["build", "-o"]).arg(&binary).arg(".");
    command.env("GOTOOLCHAIN", "auto").env("CGO_ENABLED", "0");
    step::run("build fake-gcs-server", command, EMULATOR_LIMIT)?;
    // Nothing is linked anew where only comments changed, and then the file keeps its time.
    std::fs::File::options().write(true).open(&binary)?.set_modified(std::time::SystemTime::now())?;
    Ok(())
}

/// The server of Azure's protocol.
fn install_azurite() -> Result<()> {
    if azurite::script()?.is_file() {
        return Ok(());
    }
    let mut command = tool::command("npm")?;
    command.args(["install", "--no-audit", "--no-fund", "--omit=dev", "--omit=optional", "--prefix"]);
    command.arg(azurite::directory()?).arg(azurite::PACKAGE);
    step::run("install Azurite", command, EMULATOR_LIMIT)?;
    Ok(())
}

/// A Go that is new enough; installed from backports if there is none.
fn go() -> Result<PathBuf> {
    let candidates = [tool::find("go").ok(), Some("/usr/local/go/bin/go".into()), Some(GO_BACKPORTS.into())];
    if let Some(go) = candidates.into_iter().flatten().find(|go| is_new_enough(go)) {
        return Ok(go);
    }
    install_from_backports(GO_BACKPORTS_PACKAGE)?;
    Ok(GO_BACKPORTS.into())
}

pub fn install_from_backports(package: &str) -> Result<()> {
    require_root(&format!("apt-get install -t bookworm-backports {package}"))?;
    step::run("apt-get update", apt(&["update"]), APT_LIMIT)?;
    add_backports("main", BACKPORTS_LIST)?;
    let args = ["install", "-y", "--no-install-recommends", "-t", "bookworm-backports", package];
    let mut command = apt(&args);
    command.arg("ca-certificates"); // Go and others fetch by TLS
    step::run(&format!("apt-get install {package} from backports"), command, APT_LIMIT)?;
    Ok(())
}

fn is_new_enough_qemu() -> bool {
    let Ok(out) = tool::run("qemu-img", ["--version"]) else { return false };
    version(out.stdout.split("version ").nth(1).unwrap_or_default()) >= QEMU_MIN
}

fn is_new_enough_libvirt() -> bool {
    let installed = tool::run("dpkg-query", ["--show", "--showformat=${Version}", LIBVIRT_PACKAGE]);
    tool::find("virt-qemu-run").is_ok() && installed.is_ok_and(|out| version(&out.stdout) >= LIBVIRT_MIN)
}

/// The first two numbers of a version.
fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn is_new_enough(go: &Path) -> bool {
    let Ok(out) = Command::new(go).arg("version").output() else { return false };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let minor = text.split("go1.").nth(1).and_then(|rest| rest.split(['.', ' ']).next()?.parse::<u32>().ok());
    minor.is_some_and(|minor| minor >= GO_MINOR_MIN)
}

/// The mirror from which this machine has its Debian.
pub fn debian_mirror() -> Result<String> {
    let out = Command::new("apt-get")
        .args(["indextargets", "--format", "$(SITE) $(CODENAME) $(COMPONENT)", "Created-By: Packages"])
        .output()
        .context("apt-get indextargets")?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mirror = text.lines().find_map(|line| line.strip_suffix(" bookworm main"));
    mirror.map(str::to_owned).context("apt has no source of bookworm main: this is for Debian 12")
}

/// What Debian calls the processors of this machine.
pub fn debian_architecture() -> Result<String> {
    Ok(tool::run("dpkg", ["--print-architecture"])?.stdout.trim().to_owned())
}

/// Makes a component of bookworm-backports known to apt, if it is not.
pub fn add_backports(component: &str, list: &str) -> Result<()> {
    let out = Command::new("apt-get")
        .args(["indextargets", "--format", "$(CODENAME) $(COMPONENT)", "Created-By: Packages"])
        .output();
    let wanted = format!("bookworm-backports {component}");
    if out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).lines().any(|line| line == wanted)) {
        return Ok(());
    }
    let source = format!("deb {} bookworm-backports {component}\n", debian_mirror()?);
    std::fs::write(list, source).context("apt's sources")?;
    step::run("apt-get update with backports", apt(&["update"]), APT_LIMIT)?;
    Ok(())
}

/// Loop devices and FUSE are the kernel's: nothing to install, but worth a clear message.
fn check_kernel() -> Result<()> {
    for (device, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
        if !Path::new(device).exists() {
            let _ = Command::new("modprobe").arg(module).status();
        }
        if !Path::new(device).exists() {
            bail!("{device} is missing: the tests of real filesystems need it (modprobe {module})");
        }
    }
    Ok(())
}
