//! The copy of the checkout that mutants are applied to.
//!
//! Files whose content has not changed are not written again, so that cargo builds only what has. Never writes
//! outside the directory it was given.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::mutants::Mutant;

/// A copy of the checkout.
pub struct Copy {
    root: PathBuf,
}

/// A mutant in the copy; dropping this takes it back.
pub struct Applied(Vec<(PathBuf, String)>);

impl Drop for Applied {
    fn drop(&mut self) {
        for (path, text) in &self.0 {
            // If this fails, the next copy puts it right.
            let _ = fs::write(path, text);
        }
    }
}

impl Copy {
    /// Brings the copy below `dir` up to date.
    pub fn make(checkout: &Path, dir: &Path) -> Result<Copy> {
        let root = dir.join("tree");
        let wanted = files(checkout)?;
        fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
        for gone in files(&root)?.difference(&wanted) {
            fs::remove_file(root.join(gone))?;
        }
        for file in &wanted {
            let (from, to) = (checkout.join(file), root.join(file));
            let content = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
            if fs::read(&to).is_ok_and(|there| there == content) {
                continue;
            }
            fs::create_dir_all(to.parent().expect("a file lies in a directory"))?;
            fs::write(&to, content).with_context(|| format!("cannot write {}", to.display()))?;
        }
        Ok(Copy { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Applies a mutant until the result is dropped.
    pub fn apply(&self, mutant: &Mutant) -> Result<Applied> {
        let mut applied = Applied(Vec::new());
        for (file, text) in patched(&self.root, mutant)? {
            let path = self.root.join(file);
            applied.0.push((path.clone(), fs::read_to_string(&path)?));
            fs::write(path, text)?;
        }
        Ok(applied)
    }
}

/// Every file that a mutant changes, and its new text.
///
/// # Errors
/// When a text that is to be replaced is not in its file, or is there more than once.
pub fn patched(root: &Path, mutant: &Mutant) -> Result<Vec<(&'static str, String)>> {
    let mut out: Vec<(&str, String)> = Vec::new();
    for change in mutant.changes {
        let path = root.join(change.file);
        if !out.iter().any(|(file, _)| *file == change.file) {
            let text =
                fs::read_to_string(&path).with_context(|| format!("{}: {}", mutant.name, change.file))?;
            out.push((change.file, text));
        }
        let (_, text) = out.iter_mut().find(|(file, _)| *file == change.file).expect("it was just pushed");
        let times = text.matches(change.old).count();
        ensure!(
            times == 1,
            "{}: {} has this text {times} times instead of once:\n{}",
            mutant.name,
            change.file,
            change.old
        );
        *text = text.replacen(change.old, change.new, 1);
    }
    Ok(out)
}

/// All files below `root`, relative to it, without what is built and what is hidden, but for `.cargo`.
fn files(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut out = BTreeSet::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == "target" || name == "results" || (name.starts_with('.') && name != ".cargo") {
                continue;
            }
            let path = dir.join(&*name);
            match entry.file_type()?.is_dir() {
                true => dirs.push(path),
                false => _ = out.insert(path),
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::mutants;

    /// Every mutant still fits the source: each text that it replaces is there, once.
    #[test]
    fn every_mutant_applies() {
        let faults: Vec<String> = mutants::all()
            .filter_map(|m| patched(crate::step::root(), m).err().map(|e| format!("{e:#}")))
            .collect();
        assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    }

    /// A copy follows the checkout: what changed is written, what went is gone, a mutant is taken back.
    #[test]
    fn a_copy_follows_the_checkout() {
        let dir = cistern_harness::scratch::Scratch::new("mutate").expect("a directory");
        let (from, to) = (dir.dir("from").expect("made"), dir.file("to"));
        fs::write(from.join("a"), "one two").expect("written");
        fs::write(from.join("b"), "b").expect("written");
        Copy::make(&from, &to).expect("copied");
        fs::remove_file(from.join("b")).expect("removed");
        fs::write(from.join("a"), "one two three").expect("written");
        let copy = Copy::make(&from, &to).expect("copied again");
        let read = || fs::read_to_string(copy.root().join("a")).expect("readable");
        assert_eq!(read(), "one two three");
        assert!(!copy.root().join("b").exists());
        let change = |old| mutants::Change { file: "a", old, new: "2" };
        let mutant = |changes| Mutant { changes, ..*mutants::all().next().expect("there are some") };
        let two: &'static [_] = Box::leak(Box::new([change("two")]));
        {
            let _applied = copy.apply(&mutant(two)).expect("applied");
            assert_eq!(read(), "one 2 three");
        }
        assert_eq!(read(), "one two three");
        let twice: &'static [_] = Box::leak(Box::new([change("e")]));
        assert!(copy.apply(&mutant(twice)).is_err(), "not once but more often");
    }
}
