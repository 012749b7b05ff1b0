//! What the program is made of: a bill of materials in the format CycloneDX, and the licences of others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::tool;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Making, binary::triple, files, name};
use crate::step;

/// What cargo says about the workspace; only what is needed of it.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Clone, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    /// None of our own crates.
    source: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

/// The crates that are in the program or that its build runs.
pub(super) struct Contents {
    epoch: u64,
    version: &'static str,
    /// With the checksum of each, in the order of name and version; the program's own crate is one of them.
    crates: Vec<(Package, Option<String>)>,
    /// Which needs which, by id.
    needs: BTreeMap<String, BTreeSet<String>>,
}

impl Contents {
    pub(super) fn of(making: &Making) -> Result<Contents> {
        let target = triple()?;
        let mut cargo = step::cargo(&["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
        cargo.arg(target).current_dir(&making.tree);
        let metadata: Metadata = serde_json::from_str(&tool::run_command(cargo, tool::RUN_LIMIT)?.stdout)?;
        let packages: BTreeMap<&str, &Package> =
            metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
        let own = metadata.packages.iter().find(|package| package.name == "cistern").context("no crate")?;
        let needs = needed(&metadata.resolve, &own.id);
        let sums = checksums(&fs::read_to_string(making.tree.join("Cargo.lock"))?);
        let mut crates = Vec::new();
        for id in needs.keys() {
            let package =
                (*packages.get(id.as_str()).context("cargo knows a crate that it does not list")?).clone();
            let sum = sums.get(&(package.name.clone(), package.version.clone())).cloned();
            ensure!(sum.is_some() || package.source.is_none(), "{} has no checksum", package.name);
            crates.push((package, sum));
        }
        crates.sort_by(|(a, _), (b, _)| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        Ok(Contents { epoch: making.epoch, version: making.version(), crates, needs })
    }

    /// CycloneDX 1.5.
    pub(super) fn bill_of_materials(&self) -> Result<String> {
        let reference: BTreeMap<&str, String> =
            self.crates.iter().map(|(package, _)| (package.id.as_str(), reference(package))).collect();
        let is_program = |package: &Package| package.name == "cistern";
        let components: Vec<Value> = self
            .crates
            .iter()
            .filter(|(package, _)| !is_program(package))
            .map(|(package, sum)| component(package, sum.as_deref()))
            .collect();
        let dependencies: Vec<Value> = self
            .crates
            .iter()
            .map(|(package, _)| {
                let mut on: Vec<&String> =
                    self.needs[&package.id].iter().map(|id| &reference[id.as_str()]).collect();
                on.sort();
                json!({ "ref": reference[package.id.as_str()], "dependsOn": on })
            })
            .collect();
        let program = self.crates.iter().find(|(package, _)| is_program(package)).context("no program")?;
        let mut about = component(&program.0, None);
        about["type"] = json!("application");
        let bill = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": { "timestamp": super::image::time(self.epoch)?, "component": about },
            "components": components,
            "dependencies": dependencies,
        });
        Ok(serde_json::to_string_pretty(&bill)? + "\n")
    }

    /// Who has written what is in the program, and under which terms: every text once.
    pub(super) fn licences(&self) -> Result<String> {
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut out = format!("cistern {} contains, or was built by:\n\n", self.version);
        for (package, _) in self.crates.iter().filter(|(package, _)| package.source.is_some()) {
            let Package { name, version, license, .. } = package;
            out += &format!("  {name} {version}: {}\n", license.as_deref().unwrap_or("see below"));
            let found = licence_texts(package.manifest_path.parent().context("a manifest lies somewhere")?)?;
            ensure!(!found.is_empty(), "{name} comes without the text of its licence");
            for text in found {
                texts.entry(text).or_default().insert(format!("{name} {version}"));
            }
        }
        let mut sorted: Vec<(Vec<String>, String)> =
            texts.into_iter().map(|(text, of)| (of.into_iter().collect(), text)).collect();
        sorted.sort();
        for (of, text) in sorted {
            out += &format!("\n{}\n{}\n\n{}\n", "-".repeat(80), of.join(", "), text.trim());
        }
        Ok(out)
    }
}

/// What is reached from this crate by what is linked or run in the build, each with what it needs itself.
fn needed(resolve: &Resolve, from: &str) -> BTreeMap<String, BTreeSet<String>> {
    let nodes: BTreeMap<&str, &Node> = resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let (mut found, mut open) = (BTreeMap::new(), vec![from.to_owned()]);
    while let Some(id) = open.pop() {
        if found.contains_key(&id) {
            continue;
        }
        let is_shipped =
            |dep: &&Dependency| dep.dep_kinds.iter().any(|dep| dep.kind.as_deref() != Some("dev"));
        let deps: BTreeSet<String> =
            nodes[id.as_str()].deps.iter().filter(is_shipped).map(|dep| dep.pkg.clone()).collect();
        open.extend(deps.iter().cloned());
        found.insert(id, deps);
    }
    found
}

/// Of every crate from a registry, as the lock file has them.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |part: &str, key: &str| {
        let line = part.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.map(|rest| rest.trim_end_matches('"').to_owned())
    };
    let parts = lock.split("[[package]]");
    parts
        .filter_map(|part| Some(((value(part, "name")?, value(part, "version")?), value(part, "checksum")?)))
        .collect()
}

/// A name that says of what registry, name and version a crate is.
fn reference(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

fn component(package: &Package, sum: Option<&str>) -> Value {
    let reference = reference(package);
    let mut out = json!({
        "type": "library",
        "bom-ref": reference,
        "name": package.name,
        "version": package.version,
        "purl": reference,
    });
    if let Some(text) = &package.description {
        out["description"] = json!(text.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if let Some(license) = &package.license {
        // The slash is what cargo took for OR in its first years.
        out["licenses"] = json!([{ "expression": license.replace(" / ", "/").replace('/', " OR ") }]);
    }
    if let Some(sum) = sum {
        out["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    out
}

fn licence_texts(dir: &Path) -> Result<Vec<String>> {
    let is_licence = |path: &PathBuf| {
        let name = name(path).to_uppercase();
        let begins = |word| name.starts_with(word);
        path.is_file() && ["LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"].into_iter().any(begins)
    };
    files(dir)?
        .into_iter()
        .filter(is_licence)
        .map(|path| fs::read_to_string(&path).with_context(|| path.display().to_string()))
        .collect()
}
