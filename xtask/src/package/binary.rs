//! The program for packages: optimized as a whole, without paths of this machine, what debuggers read in a file beside it.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};
use cistern_harness::tool;

use super::Making;
use crate::step;

/// How the program finds the C library.
#[derive(Clone, Copy)]
pub(super) enum Linkage {
    /// That of the system it runs on.
    Dynamic,
    /// It has its own: it runs on any Linux, and in an image that holds nothing else.
    Static,
}

impl Linkage {
    pub(super) fn name(self) -> &'static str {
        match self {
            Linkage::Dynamic => "dynamic",
            Linkage::Static => "static",
        }
    }
}

/// As `.cargo/config.toml` has it, in whose place the flags for C come here.
const ALLOCATOR: &str = "-DMI_ENABLE_LARGE_PAGES=0";

pub(super) struct Binary {
    pub linkage: Linkage,
    /// Without symbols.
    pub program: PathBuf,
    /// What debuggers read; they find it by the build id.
    pub debug: PathBuf,
}

impl Binary {
    pub(super) fn build(making: &Making, linkage: Linkage) -> Result<Binary> {
        let (target_dir, triple) = (making.work.join("build"), triple()?);
        let mut build =
            step::cargo(&["rustc", "--profile", "dist", "--locked", "-p", "cistern", "--bin", "cistern"]);
        // With a target named, the flags below are not for build scripts and macros, which run here.
        build.current_dir(&making.tree).args(["--target", &triple, "--target-dir"]).arg(&target_dir);
        if let Linkage::Static = linkage {
            // For the program alone: the libraries are the same in both, and so are built once.
            build.args(["--", "-Ctarget-feature=+crt-static"]);
        }
        let shown_as = [(making.tree.clone(), "/usr/src/cistern"), (cargo_home()?, "/usr/src/cargo")];
        let mut flags = vec!["-Clink-arg=-Wl,--build-id".to_owned()];
        let mut c_flags = vec![ALLOCATOR.to_owned()];
        for (path, shown) in shown_as {
            flags.push(format!("--remap-path-prefix={}={shown}", path.display()));
            c_flags.push(format!("-ffile-prefix-map={}={shown}", path.display()));
        }
        build.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env("CFLAGS", c_flags.join(" "));
        build.env("SOURCE_DATE_EPOCH", making.epoch.to_string());
        step::run(&format!("build, {}", linkage.name()), build, step::LONG)?;

        let built = target_dir.join(&triple).join("dist/cistern");
        let dir = making.stage(linkage.name())?;
        let (program, debug) = (dir.join("cistern"), dir.join("cistern.debug"));
        let run = |what: &str, args: &[&str], files: [&PathBuf; 2]| {
            let mut command = tool::command(what)?;
            command.args(args).args(files);
            tool::run_command(command, tool::RUN_LIMIT)
        };
        run("objcopy", &["--only-keep-debug"], [&built, &debug])?;
        run("objcopy", &["--strip-all"], [&built, &program])?;
        Ok(Binary { linkage, program, debug })
    }
}

/// Of this machine, as rustc names it.
pub(super) fn triple() -> Result<String> {
    let mut rustc = Command::new("rustc");
    rustc.arg("-vV");
    let said = tool::run_command(rustc, tool::RUN_LIMIT)?.stdout;
    said.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc names no host")
}

/// Where cargo keeps the sources of dependencies.
fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    fs::canonicalize(home.context("neither CARGO_HOME nor HOME is set")?).context("cargo's directory")
}
