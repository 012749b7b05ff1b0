//! Who uses what is mounted.

use std::{
    fmt, fs,
    io::Result,
    path::{Path, PathBuf},
};

use crate::kernel::mounts;

/// Something or somebody that uses a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Of a process.
    pub pid: Option<u32>,
    text: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Who uses anything below some places, mount points or devices: what else is mounted there, and processes that have something of it open or
/// are in it.
///
/// Processes that end meanwhile are passed over, and so are those whose files this user may not see.
pub fn holders(places: &[PathBuf]) -> Result<Vec<Holder>> {
    let is_below = |path: &Path| places.iter().any(|place| path.starts_with(place));
    let mut found: Vec<Holder> = mounts()?
        .into_iter()
        .filter(|mount| is_below(&mount.at) && !places.contains(&mount.at))
        .map(|mount| Holder {
            pid: None,
            text: format!("{} is mounted on {}", mount.source, mount.at.display()),
        })
        .collect();
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(path) = used_by(&process.path()).into_iter().find(|path| is_below(path)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let text = format!("process {pid} ({}) uses {}", name.trim_end(), path.display());
            found.push(Holder { pid: Some(pid), text });
        }
    }
    Ok(found)
}

/// What a process is in, and has open or mapped.
fn used_by(process: &Path) -> Vec<PathBuf> {
    let mut links: Vec<PathBuf> = ["cwd", "root", "exe"].map(|link| process.join(link)).into();
    for directory in ["fd", "map_files"] {
        let entries = fs::read_dir(process.join(directory)).into_iter().flatten().flatten();
        links.extend(entries.map(|entry| entry.path()));
    }
    links.iter().filter_map(|link| fs::read_link(link).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has a file open below a mount point is named; one beside it is not, whatever its name begins with.
    #[test]
    fn who_has_a_file_open_is_named() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (point, beside) = (dir.path().join("tank"), dir.path().join("tank2"));
        fs::create_dir_all(&point).expect("made");
        fs::create_dir_all(&beside).expect("made");
        let _beside = fs::File::create(beside.join("file")).expect("made");
        assert_eq!(holders(std::slice::from_ref(&point)).expect("looked"), []);
        let _held = fs::File::create(point.join("file")).expect("made");
        let found = holders(std::slice::from_ref(&point)).expect("looked");
        let own = format!("process {} (", std::process::id());
        assert!(found.len() == 1 && found[0].to_string().starts_with(&own), "{found:?}");
        assert_eq!(found[0].pid, Some(std::process::id()));
    }
}
