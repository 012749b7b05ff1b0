//! nbdkit's NBD plugin as a client, with filters that rewrite requests on the way.

use anyhow::Result;
use cistern_harness::{fixture::Fixture, tool};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");

/// Runs `script` (which finds the address in `$uri`) against nbdkit in front of the volume.
fn through_nbdkit(volume: &Fixture, filters: &[&str], script: &str) -> Result<()> {
    let mut args: Vec<String> = vec!["--exit-with-parent".into(), "--unix".into(), "-".into()];
    args.extend(filters.iter().filter(|f| !f.contains('=')).map(|f| format!("--filter={f}")));
    args.push("nbd".into());
    args.push(format!("uri={}", volume.uri()));
    args.extend(filters.iter().filter(|f| f.contains('=')).map(|f| (*f).to_owned()));
    args.extend(["--run".into(), script.into()]);
    tool::run("nbdkit", args).map(drop)
}

/// A pass-through proxy: in, out, equal.
#[test]
fn as_a_proxy() -> Result<()> {
    let volume = Fixture::start(CISTERN, "nbdkit-proxy", "64M", &[])?;
    let original = volume.random_file("original", 64 << 20, 4)?;
    let back = volume.scratch.file("back");
    let script = format!(
        "nbdcopy --flush {0} \"$uri\" && nbdcopy \"$uri\" {1} && cmp {0} {1}",
        original.display(),
        back.display()
    );
    through_nbdkit(&volume, &[], &script)
}

/// Filters that split, delay, cache, retry and overlay requests see a well-behaved server below.
#[test]
fn below_filters() -> Result<()> {
    let volume = Fixture::start(CISTERN, "nbdkit-filters", "64M", &[])?;
    let original = volume.random_file("original", 64 << 20, 5)?;
    let copy = |direction: &str| match direction {
        "in" => format!("nbdcopy --flush {} \"$uri\"", original.display()),
        _ => format!("nbdcopy \"$uri\" - | cmp - {}", original.display()),
    };
    through_nbdkit(&volume, &["blocksize", "maxdata=32k", "maxlen=256k"], &copy("in"))?;
    through_nbdkit(&volume, &["blocksize", "minblock=64k"], &copy("out"))?;
    through_nbdkit(&volume, &["cache", "cache=writeback"], &copy("in"))?;
    through_nbdkit(&volume, &["retry", "retries=2"], &copy("out"))?;
    through_nbdkit(&volume, &["fua", "fuamode=force"], &copy("in"))?;
    through_nbdkit(&volume, &["nozero", "zeromode=emulate"], &copy("out"))?;
    through_nbdkit(&volume, &["multi-conn", "multi-conn-mode=emulate"], &copy("in"))?;
    through_nbdkit(&volume, &["offset", "offset=4096", "range=8M"], "nbdinfo \"$uri\"")
}

/// The overlay filter writes into itself: the volume below stays as it was.
#[test]
fn below_a_copy_on_write_overlay() -> Result<()> {
    let volume = Fixture::start(CISTERN, "nbdkit-cow", "64M", &[])?;
    let original = volume.random_file("original", 64 << 20, 6)?;
    tool::run("nbdcopy", ["--flush", &original.display().to_string(), &volume.uri()])?;
    through_nbdkit(
        &volume,
        &["cow"],
        "qemu-io -f raw -c 'write -P 1 0 8M' -c flush -c 'read -P 1 0 8M' \"$uri\"",
    )?;
    let back = volume.scratch.file("back").display().to_string();
    tool::run("nbdcopy", [&volume.uri(), &back])?;
    tool::run("cmp", [&original.display().to_string(), &back]).map(drop)
}
