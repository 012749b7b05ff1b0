//! This program, for whoever starts it again.

use std::{
    io::Result,
    path::{Path, PathBuf},
};

/// What the kernel appends to the path of a program whose file is gone, or was replaced.
const GONE: &str = " (deleted)";
/// What runs, whatever became of its file.
const RUNNING: &str = "/proc/self/exe";

/// This program as it is installed now: where an upgrade has replaced its file since this process began, the new one.
pub(super) fn program() -> Result<PathBuf> {
    Ok(installed(&std::env::current_exe()?))
}

fn installed(exe: &Path) -> PathBuf {
    let replaced = exe.to_str().and_then(|path| path.strip_suffix(GONE)).map(Path::new);
    [Some(exe), replaced]
        .into_iter()
        .flatten()
        .find(|path| path.is_file())
        .unwrap_or(Path::new(RUNNING))
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose file was replaced is started again as it is now; one whose file is gone, as it runs.
    #[test]
    fn a_program_that_was_replaced() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let at = dir.path().join("cistern");
        let gone = PathBuf::from(format!("{}{GONE}", at.display()));
        assert_eq!(installed(&gone), Path::new(RUNNING));
        assert_eq!(installed(&at), Path::new(RUNNING));
        std::fs::write(&at, "").expect("written");
        assert_eq!(installed(&gone), at);
        assert_eq!(installed(&at), at);
    }
}
