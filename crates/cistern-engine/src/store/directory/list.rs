//! Listing a directory tree as a flat space of keys, ascending by bytes, in bounded memory.
//!
//! A directory `d` stands for keys that begin with `d/`, so it sorts as `d/` among its
//! neighbours: `d-1`, `d.x`, `d/..`, `d0`. Directories come unsorted from the system and must be
//! read whole, but only the smallest names still wanted are kept.

use std::{collections::BTreeMap, fs, io};

use super::{
    super::key::{KEY_BYTES_MAX, is_component, split_prefix},
    Listed, Root, StoreError, StoreResult, fault,
};

/// Names that one directory's listing of directories may give: far above any store's volumes.
const DIRS_MAX: usize = 100_000;

/// A listing under way.
struct DirectoryListing<'a> {
    root: &'a Root,
    after: &'a str,
    count_max: usize,
    found: Vec<Listed>,
}

/// The first `count_max` objects below `prefix` and behind `after`.
pub(super) fn list_after(
    root: &Root,
    prefix: &str,
    after: &str,
    count_max: usize,
) -> StoreResult<Vec<Listed>> {
    let (dir, name) = split_prefix(prefix);
    let mut walk = DirectoryListing { root, after, count_max, found: Vec::new() };
    walk.visit(dir, name)?;
    root.check_there()?; // "nothing", or nothing more, must not come from a mount that is gone
    Ok(walk.found)
}

/// The names of the directories in `dir`.
pub(super) fn list_dirs(root: &Root, dir: &str) -> StoreResult<Vec<String>> {
    let mut names = Vec::new();
    for_each_entry(root, dir, |name, is_dir| {
        if is_dir {
            names.push(name.to_owned());
        }
        match names.len() > DIRS_MAX {
            true => Err(StoreError::Refused(format!("more than {DIRS_MAX} directories in {:?}", dir))),
            false => Ok(()),
        }
    })?;
    root.check_there()?;
    names.sort_unstable();
    Ok(names)
}

impl DirectoryListing<'_> {
    /// Adds what lies in the directory `dir` ("" or ending in `/`) and begins with `name`.
    fn visit(&mut self, dir: &str, name: &str) -> StoreResult<()> {
        let mut resume = String::new();
        while self.found.len() < self.count_max {
            let (batch, more) = self.smallest(dir, name, &resume)?;
            for (key, is_dir) in batch {
                if self.found.len() == self.count_max {
                    return Ok(());
                }
                match is_dir {
                    true => self.visit(&key, "")?,
                    false => self.add(&key)?,
                }
                resume = key;
            }
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// The smallest entries of a directory behind `resume` that may hold keys still wanted, as
    /// many as are wanted, and whether there are more. Directories are named with their `/`.
    fn smallest(&self, dir: &str, name: &str, resume: &str) -> StoreResult<(BTreeMap<String, bool>, bool)> {
        let wanted = self.count_max - self.found.len();
        let mut batch = BTreeMap::new();
        let mut more = false;
        for_each_entry(self.root, dir, |entry, is_dir| {
            let key = format!("{dir}{entry}{}", if is_dir { "/" } else { "" });
            let behind = key.as_str() > self.after || (is_dir && self.after.starts_with(&key));
            if entry.starts_with(name) && behind && key.as_str() > resume && key.len() <= KEY_BYTES_MAX {
                batch.insert(key, is_dir);
                if batch.len() > wanted {
                    batch.pop_last();
                    more = true;
                }
            }
            Ok(())
        })?;
        Ok((batch, more))
    }

    fn add(&mut self, key: &str) -> StoreResult<()> {
        debug_assert!(self.found.last().is_none_or(|last| last.key.as_str() < key));
        match fs::metadata(self.root.file(key)) {
            Ok(meta) => self.found.push(Listed { key: key.to_owned(), bytes: meta.len() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {} // deleted meanwhile
            Err(e) => return Err(fault("cannot read", &self.root.file(key), &e)),
        }
        Ok(())
    }
}

/// Calls `visit` with the name of each file and directory that can be part of a key, and whether
/// it is a directory. Whatever else lies there is none of our business. No directory: no entries.
fn for_each_entry(
    root: &Root,
    dir: &str,
    mut visit: impl FnMut(&str, bool) -> StoreResult<()>,
) -> StoreResult<()> {
    let path = root.file(dir);
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(e) => return Err(fault("cannot read", &path, &e)),
    };
    for entry in entries {
        let entry = entry.map_err(|e| fault("cannot read", &path, &e))?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_component(name)) else { continue };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() || kind.is_file() => visit(name, kind.is_dir())?,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(fault("cannot read", &entry.path(), &e)),
        }
    }
    Ok(())
}
