//! What comes from others, and what the compiler does not check: licences, the least Rust, unsafe code.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

/// Those that ask for nothing but to be named.
const LICENCES: [&str; 6] = ["Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "Unicode-3.0", "Zlib"];

/// In two versions, as those who need them have not met. Nobody's bytes are read by both.
const TWICE: [&str; 8] =
    ["crypto-common", "darling", "darling_core", "darling_macro", "digest", "itertools", "syn", "untrusted"];

/// What would be a second one of its kind.
const BANNED: &[(&str, &str)] = &[
    ("native-tls", "rustls"),
    ("openssl-sys", "rustls"),
    ("ring", "aws-lc-rs"),
    ("async-std", "tokio"),
    ("jemallocator", "mimalloc"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout").to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    rust_version: Option<String>,
    source: Option<String>,
}

/// Everything that could be built here, tools and tests too.
fn packages() -> Vec<Package> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let out = cargo(&["metadata", "--format-version", "1", "--filter-platform", &platform]);
    serde_json::from_slice::<Metadata>(&out).expect("cargo says what it knows").packages
}

/// What cargo says, which asks nobody.
fn cargo(args: &[&str]) -> Vec<u8> {
    let mut cargo = Command::new(env!("CARGO"));
    let out =
        cargo.args(args).args(["--locked", "--offline"]).current_dir(root()).output().expect("cargo runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}(`cargo fetch --locked` gets what is missing)");
    out.stdout
}

/// Whether an expression of licences can be kept to with those that are allowed: `AND` binds more than `OR`.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let fits = any(&words, &mut at, allowed);
    fits && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let mut fits = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        fits |= all(words, at, allowed);
    }
    fits
}

fn all(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let mut fits = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        fits &= one(words, at, allowed);
    }
    fits
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let word = words.get(*at).copied().unwrap_or_default();
    *at += 1;
    if word == "(" {
        let fits = any(words, at, allowed);
        *at += 1; // what closes it
        return fits;
    }
    // An exception allows more than the licence does.
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    allowed.contains(word)
}

/// Every dependency may be used under a licence that is allowed, and every licence that is allowed is one of a dependency.
#[test]
fn every_licence_is_allowed() {
    let allowed = BTreeSet::from(LICENCES);
    let packages = packages();
    let fits = |package: &&Package| is_allowed(package.license.as_deref().unwrap_or_default(), &allowed);
    let wrong: Vec<String> = packages
        .iter()
        .filter(|package| !fits(package))
        .map(|package| format!("{} {}: {:?}", package.name, package.version, package.license))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let named: String = packages.iter().filter_map(|package| package.license.clone()).collect();
    let idle: Vec<&&str> = allowed.iter().filter(|licence| !named.contains(**licence)).collect();
    assert!(idle.is_empty(), "nobody needs {idle:?}");
}

/// Nothing is built in two versions but what is known to be; and nothing at all that does what something else does here.
#[test]
fn nothing_is_there_twice() {
    // Unlike the metadata, the tree has nothing that no feature asks for.
    let tree =
        cargo(&["tree", "--workspace", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"]);
    let tree = String::from_utf8_lossy(&tree).into_owned();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, version) in tree.lines().filter_map(|line| line.split_once(" v")) {
        versions.entry(name).or_default().insert(version.split(' ').next().unwrap_or_default());
    }
    let twice: BTreeSet<&str> =
        versions.iter().filter(|(_, versions)| versions.len() > 1).map(|(name, _)| *name).collect();
    assert_eq!(twice, BTreeSet::from(TWICE));
    for (name, instead) in BANNED {
        assert!(!versions.contains_key(*name), "{name} is built, and we have {instead}");
    }
}

/// Licences are read as they are meant.
#[test]
fn expressions_of_licences_are_understood() {
    let allowed = BTreeSet::from(["MIT", "ISC"]);
    for (expression, fits) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("ISC AND (GPL-3.0 OR MIT)", true),
        ("MIT OR ISC AND GPL-3.0", true),
        ("(MIT OR ISC) AND GPL-3.0", false),
        ("MIT WITH something", true),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), fits, "{expression}");
    }
}

/// All that is built comes from the registry or from this checkout.
#[test]
fn everything_comes_from_the_registry() {
    for package in packages() {
        let from = package.source.unwrap_or_else(|| "registry+ours".to_owned());
        assert!(from.starts_with("registry+"), "{} comes from {from}", package.name);
    }
}

/// No dependency asks for a newer Rust than this workspace says it needs.
#[test]
fn no_dependency_needs_a_newer_rust() {
    let numbers = |version: &str| -> Vec<u32> { version.split('.').map_while(|n| n.parse().ok()).collect() };
    let manifest = read("Cargo.toml");
    let ours =
        manifest.split_once("rust-version = \"").expect("it is there").1.split('"').next().expect("it ends");
    for package in packages() {
        let theirs = package.rust_version.unwrap_or_default();
        assert!(numbers(&theirs) <= numbers(ours), "{} needs Rust {theirs}, and we say {ours}", package.name);
    }
}

/// Rust files below a directory.
fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("the checkout is readable") {
        let path = entry.expect("the checkout is readable").path();
        match path.is_dir() {
            true => rust_files(&path, out),
            false if path.extension().is_some_and(|e| e == "rs") => out.push(path),
            false => {}
        }
    }
}

/// Files of a crate with unsafe code, as the page calls them.
fn with_unsafe(place: &Path) -> BTreeSet<String> {
    let mut files = Vec::new();
    rust_files(&place.join("src"), &mut files);
    let is_code = |line: &str| !line.trim_start().starts_with("//") && !line.contains('"');
    let has = |text: &str| {
        text.lines()
            .filter(|line| is_code(line))
            .any(|line| ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|what| line.contains(what)))
    };
    let name = |path: &PathBuf| {
        path.strip_prefix(root().join("crates")).expect("it lies there").display().to_string()
    };
    files.iter().filter(|path| has(&fs::read_to_string(path).expect("it is text"))).map(name).collect()
}

/// A crate without unsafe code forbids it; of those that are shipped the others list each file that has some, with the reason.
/// That every block says why it is sound is a lint of the workspace.
#[test]
fn unsafe_code_is_where_the_page_says() {
    let page = read("docs/design/unsafe.md");
    let listed: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect();
    let mut found = BTreeSet::new();
    let crates = fs::read_dir(root().join("crates")).expect("the checkout is readable");
    for place in crates.map(|entry| entry.expect("the checkout is readable").path()) {
        let files = with_unsafe(&place);
        let lib = fs::read_to_string(place.join("src/lib.rs")).expect("every crate has one");
        assert_eq!(lib.contains("#![forbid(unsafe_code)]"), files.is_empty(), "{}", place.display());
        if !place.ends_with("cistern-harness") {
            found.extend(files);
        }
    }
    assert_eq!(found, listed);
}
