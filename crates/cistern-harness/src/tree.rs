//! Trees of files: a real one of many, found on the machine, and what lies in any.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::tool;

/// Directories that hold many small files on a developer's Debian machine, the most usual first.
const CANDIDATES: &[&str] =
    &["/usr/share", "/usr/include", "~/.cargo/registry/src", "/usr/lib/python3", "/usr/lib", "~/.rustup"];

/// Directories, none inside another, that hold at least `files_min` files together.
pub fn find(files_min: usize) -> Result<Vec<PathBuf>> {
    let home = std::env::var("HOME").unwrap_or_default();
    let mut found: Vec<PathBuf> = Vec::new();
    let mut files = 0;
    for name in CANDIDATES {
        let dir = PathBuf::from(name.replacen('~', &home, 1));
        if !dir.is_dir() || found.iter().any(|other| dir.starts_with(other)) {
            continue;
        }
        found.retain(|other| !other.starts_with(&dir));
        found.push(dir);
        files = found.iter().map(|dir| count_files(dir)).sum();
        if files >= files_min {
            return Ok(found);
        }
    }
    bail!("only {files} files in {CANDIDATES:?}, {files_min} are needed");
}

/// Files and links below `dir`, without its directories.
pub fn count_files(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => count_files(&entry.path()),
            _ => 1,
        })
        .sum()
}

/// Bytes of all files below `dir`; what is deleted meanwhile does not count.
pub fn bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let bytes_of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(of) if of.is_dir() => bytes(&entry.path()),
        Ok(of) => of.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes_of).sum()
}

/// Copies trees with everything they have into `to`, each under its number.
pub fn copy(trees: &[PathBuf], to: &Path) -> Result<()> {
    for (n, tree) in trees.iter().enumerate() {
        tool::run("cp", ["-a".as_ref(), tree.as_os_str(), to.join(n.to_string()).as_os_str()])?;
    }
    Ok(())
}

/// Compares the copies with their originals: names, links and every byte.
pub fn compare(trees: &[PathBuf], copy: &Path) -> Result<()> {
    for (n, tree) in trees.iter().enumerate() {
        let copied = copy.join(n.to_string());
        tool::run(
            "diff",
            ["-r".as_ref(), "--no-dereference".as_ref(), tree.as_os_str(), copied.as_os_str()],
        )?;
    }
    Ok(())
}
