//! The archive for any Linux: the static program, and what goes with it.

use std::path::Path;

use anyhow::Result;

use super::{Making, binary::Binary, contents::Contents, copy, files, name, put};
use crate::setup::debian_architecture;

/// `cistern_VERSION_ARCHITECTURE_static.tar.xz`, with everything in one directory.
pub(super) fn make(making: &Making, binary: &Binary, contents: &Contents) -> Result<()> {
    let carried = making.carried(&binary.program)?;
    let stage = making.stage("archive")?;
    let root = stage.join(format!("cistern-{}", making.version()));
    copy(&binary.program, &root.join("cistern"), 0o755)?;
    for page in files(&carried.join("man"))? {
        copy(&page, &root.join("man").join(name(&page)), 0o644)?;
    }
    for script in files(&carried.join("completions"))? {
        copy(&script, &root.join("completions").join(name(&script)), 0o644)?;
    }
    for unit in files(&making.tree.join("packaging/systemd"))? {
        copy(&unit, &root.join("systemd").join(name(&unit)), 0o644)?;
    }
    copy(&carried.join("cistern.toml"), &root.join("cistern.toml"), 0o644)?;
    for page in ["LICENSE", "CHANGELOG.md"] {
        copy(&making.tree.join(page), &root.join(page), 0o644)?;
    }
    put(&root.join("THIRD-PARTY"), contents.licences()?, 0o644)?;
    let to = format!("cistern_{}_{}_static.tar", making.version(), debian_architecture()?);
    tar(making, &stage, &making.out().join(&to))?;
    xz(&making.out().join(&to), &making.out().join(format!("{to}.xz")))?;
    std::fs::remove_file(making.out().join(&to))?;
    Ok(())
}

/// Archives all of a directory, so that the same files give the same bytes.
pub(super) fn tar(making: &Making, dir: &Path, to: &Path) -> Result<()> {
    let line = format!(
        "tar --sort=name --mtime=@$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner --format=gnu -cf '{}' *",
        to.display()
    );
    making.shell(dir, &line).map(drop)
}

/// Compresses a file; in one thread, as with several it would depend on the machine.
pub(super) fn xz(from: &Path, to: &Path) -> Result<()> {
    let mut shell = cistern_harness::tool::command("bash")?;
    shell.args(["-euc", "xz -T1 -6 < \"$0\" > \"$1\""]).arg(from).arg(to);
    cistern_harness::tool::run_command(shell, crate::step::LONG).map(drop)
}
