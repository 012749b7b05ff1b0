//! `cargo xtask package`: what people install, in `target/package/out`: a Debian package, an archive with a static program, an image
//! for containers, what all of them are made of, and checksums.
//!
//! The same source gives the same bytes: times are those of the commit, paths of this machine are nowhere in it.
//! Only programs that Debian has are used beside cargo.

mod archive;
mod binary;
mod contents;
mod deb;
mod image;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use cistern_harness::tool;
use clap::Args;

use crate::{mutate::copy::Copy, setup, step};
use binary::{Binary, Linkage};

/// Programs with their packages, beside those of the tests.
const PACKAGES: [(&str, &str); 3] =
    [("dpkg-shlibdeps", "dpkg-dev"), ("objcopy", "binutils"), ("xz", "xz-utils")];

/// Of the program in the package for Debian; the static one has the C library on top.
const PROGRAM_BYTES_MAX: u64 = 25_000_000;

#[derive(Args)]
pub struct Options {
    /// Build everything again from a copy in another directory, and compare
    #[arg(long)]
    check: bool,
}

/// From which checkout something is made, and of what time its files are.
struct Making {
    tree: PathBuf,
    /// Where everything is built: below the checkout, so that its paths are cut together with those of the checkout.
    work: PathBuf,
    epoch: u64,
}

/// Makes the packages, and what the options ask beside.
pub fn run(options: &Options) -> Result<()> {
    setup::install_missing(&PACKAGES)?;
    let making = Making::of(step::root().to_owned(), epoch()?);
    let sums = making.make()?;
    println!("{sums}in {}", making.out().display());
    if options.check {
        let copy = Copy::make(step::root(), &making.work.join("again"))?;
        let again = Making::of(copy.root().to_owned(), making.epoch);
        let others = again.make()?;
        ensure!(sums == others, "built again in {} it is not the same:\n{others}", again.tree.display());
        println!("built again in {}: every byte is the same", again.tree.display());
    }
    Ok(())
}

/// Debian's package of a program that is there, of that version, in a directory.
pub fn debian(program: &Path, version: &str, into: &Path) -> Result<PathBuf> {
    setup::install_missing(&PACKAGES)?;
    let making = Making::of(step::root().to_owned(), epoch()?);
    deb::make(&making, program, &contents::Contents::of(&making)?, version, into)
}

/// The image for containers, in a directory.
pub fn image(into: &Path) -> Result<()> {
    setup::install_missing(&PACKAGES)?;
    let making = Making::of(step::root().to_owned(), epoch()?);
    let fixed = Binary::build(&making, Linkage::Static)?;
    image::make(&making, &fixed, &contents::Contents::of(&making)?, into)
}

impl Making {
    fn of(tree: PathBuf, epoch: u64) -> Making {
        let work = tree.join("target/package");
        Making { tree, work, epoch }
    }

    fn out(&self) -> PathBuf {
        self.work.join("out")
    }

    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// A new directory to put something together in.
    fn stage(&self, name: &str) -> Result<PathBuf> {
        let dir = self.work.join("stage").join(name);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Makes everything anew, and gives the checksums.
    fn make(&self) -> Result<String> {
        let out = self.out();
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        fs::create_dir_all(&out)?;
        let dynamic = Binary::build(self, Linkage::Dynamic)?;
        let fixed = Binary::build(self, Linkage::Static)?;
        let bytes_of = |binary: &Binary| -> Result<u64> { Ok(fs::metadata(&binary.program)?.len()) };
        println!("the program has {} bytes, the static one {}", bytes_of(&dynamic)?, bytes_of(&fixed)?);
        ensure!(
            bytes_of(&dynamic)? <= PROGRAM_BYTES_MAX,
            "the program is too large: at most {PROGRAM_BYTES_MAX} bytes"
        );
        let contents = contents::Contents::of(self)?;
        let name = format!("cistern_{}", self.version());
        fs::write(out.join(format!("{name}.cdx.json")), contents.bill_of_materials()?)?;
        deb::make(self, &dynamic.program, &contents, self.version(), &out)?;
        archive::make(self, &fixed, &contents)?;
        image::make(self, &fixed, &contents, &out)?;
        for binary in [&dynamic, &fixed] {
            archive::xz(&binary.debug, &out.join(format!("{name}_{}.debug.xz", binary.linkage.name())))?;
        }
        let sums = self.shell(&out, "sha256sum -- *")?;
        fs::write(out.join("SHA256SUMS"), &sums)?;
        Ok(sums)
    }

    /// What a package carries beside the program, as the program itself writes it.
    fn carried(&self, program: &Path) -> Result<PathBuf> {
        let dir = self.stage("carried")?;
        let mut command = Command::new(program);
        command.args(["reference", "--package"]).arg(&dir);
        tool::run_command(command, tool::RUN_LIMIT)?;
        Ok(dir)
    }

    /// Runs a line of the shell in a directory.
    fn shell(&self, dir: &Path, line: &str) -> Result<String> {
        let mut shell = tool::command("bash")?;
        shell.args(["-euo", "pipefail", "-c", line]).current_dir(dir).env("LC_ALL", "C");
        shell.env("SOURCE_DATE_EPOCH", self.epoch.to_string());
        Ok(tool::run_command(shell, step::LONG)?.stdout)
    }
}

/// The time that all files get: of the commit, where nobody says another.
fn epoch() -> Result<u64> {
    if let Ok(said) = std::env::var("SOURCE_DATE_EPOCH") {
        return said.parse().context("SOURCE_DATE_EPOCH is no number of seconds");
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(step::root());
    match tool::run_command(git, tool::RUN_LIMIT) {
        Ok(out) => out.stdout.trim().parse().context("git names no time"),
        Err(_) => bail!("this is no git checkout: set SOURCE_DATE_EPOCH to the time of this version"),
    }
}

/// Writes a file with this mode, and the directories above it.
fn put(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    fs::create_dir_all(path.parent().context("a file lies in a directory")?)?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Copies a file with this mode, and the directories above it.
fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    put(to, fs::read(from).with_context(|| format!("cannot read {}", from.display()))?, mode)
}

/// The files of a directory, by name.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// The name of a file without its directories.
fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
