//! Who uses what is mounted.

use std::{
    fs,
    io::Result,
    path::{Path, PathBuf},
};

use crate::kernel::mounts;

/// Holders that are named; of more it is said that there are.
const NAMED_MAX: usize = 10;

/// Who uses anything below some mount points: what else is mounted there, and processes that have something of it open or are in it.
///
/// Processes that end meanwhile are passed over, and so are those whose files this user may not see.
pub fn holders(points: &[PathBuf]) -> Result<Vec<String>> {
    let is_below = |path: &Path| points.iter().any(|point| path.starts_with(point));
    let mut found: Vec<String> = mounts()?
        .into_iter()
        .filter(|mount| is_below(&mount.at) && !points.contains(&mount.at))
        .map(|mount| format!("{} is mounted on {}", mount.source, mount.at.display()))
        .collect();
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(path) = used_by(&process.path()).into_iter().find(|path| is_below(path)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("process {pid} ({}) uses {}", name.trim_end(), path.display()));
        }
        if found.len() > NAMED_MAX {
            found.truncate(NAMED_MAX);
            found.push("and more".into());
            break;
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
        assert_eq!(holders(std::slice::from_ref(&point)).expect("looked"), Vec::<String>::new());
        let _held = fs::File::create(point.join("file")).expect("made");
        let found = holders(std::slice::from_ref(&point)).expect("looked");
        let own = format!("process {} (", std::process::id());
        assert!(found.len() == 1 && found[0].starts_with(&own), "{found:?}");
    }
}
