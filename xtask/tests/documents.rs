//! The pages of the project agree with the project.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout").to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Files of the checkout with this extension, without what is built.
fn files(dir: &Path, extension: &str, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("the checkout is readable") {
        let path = entry.expect("the checkout is readable").path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, extension, out);
        } else if path.extension().is_some_and(|e| e == extension) {
            out.push(path);
        }
    }
}

fn all(extension: &str) -> Vec<PathBuf> {
    let mut out = Vec::new();
    files(&root(), extension, &mut out);
    out
}

/// Names of the direct dependencies of every crate, without our own.
fn dependencies() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for manifest in all("toml").iter().filter(|path| path.ends_with("Cargo.toml")) {
        let mut inside = false;
        for line in read(manifest).lines() {
            if line.starts_with('[') {
                inside = line.ends_with("dependencies]");
            } else if let Some((name, _)) = line.split_once(" = ").filter(|_| inside) {
                names.insert(name.trim_end_matches(".workspace").to_owned());
            }
        }
    }
    names.retain(|name| !name.starts_with("cistern-"));
    names
}

/// Every direct dependency has a reason in ARCHITECTURE.md, and no reason is left of one that went.
#[test]
fn every_dependency_has_a_reason() {
    let page = read("ARCHITECTURE.md");
    let table = page.split_once("| dependency |").expect("there is a table").1;
    let listed: BTreeSet<String> = table
        .lines()
        .skip(2)
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .flat_map(|cell| cell.split(", "))
        .map(str::to_owned)
        .collect();
    assert_eq!(dependencies(), listed);
}

/// Every relative link of every page leads to something.
#[test]
fn links_lead_somewhere() {
    // What lies beside the code is part of a generated page, and its links are those of the page.
    for page in all("md").iter().filter(|page| !page.components().any(|part| part.as_os_str() == "src")) {
        for link in read(page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or("");
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = page.parent().expect("a page lies in a directory").join(target);
            assert!(path.exists(), "{}: {link} leads nowhere", page.display());
        }
    }
}

/// The tests that GUARANTEES.md calls as witnesses exist.
#[test]
fn witnesses_exist() {
    let page = read("docs/GUARANTEES.md");
    let sources: String = all("rs").iter().map(read).collect();
    let table = page.split_once("| | promise |").expect("there is a table of promises").1;
    for word in
        table.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| w.matches('_').count() >= 2)
    {
        assert!(sources.contains(&format!("fn {word}(")), "there is no test {word}");
    }
    for file in
        table.split('`').filter(|w| ["crash_", "fs_", "interop_", "s3_"].iter().any(|p| w.starts_with(p)))
    {
        assert!(root().join(format!("crates/cistern/tests/{file}.rs")).exists(), "there is no {file}.rs");
    }
}
