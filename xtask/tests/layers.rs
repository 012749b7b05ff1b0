//! The shape of every crate: modules import strictly downward, in the order that the crate's own page gives, and one name
//! of a type means one thing.

use std::{collections::BTreeMap, fs, path::Path};

use cistern_harness::sources::{Reach, Sources};

/// The crates of the workspace, by directory.
fn crates() -> Vec<Sources> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
    let entries = fs::read_dir(root.join("crates")).expect("the checkout is readable");
    let mut places: Vec<_> = entries.map(|entry| entry.expect("the checkout is readable").path()).collect();
    places.push(root.join("xtask"));
    places.sort();
    places.iter().map(Sources::of).collect()
}

/// Every module imports from lower layers only: no circle, no knot, nothing sideways.
#[test]
fn modules_import_strictly_downward() {
    let faults = |sources: &Sources| {
        let at = sources.place.display().to_string();
        sources.upward().into_iter().map(move |fault| format!("{at}: {fault}")).collect::<Vec<_>>()
    };
    let faults: Vec<String> = crates().iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every module of a table exists, and every module is in the table of its crate.
#[test]
fn the_tables_are_complete() {
    for sources in crates() {
        let table = sources.layers();
        let listed: Vec<&str> = table.keys().map(String::as_str).collect();
        assert_eq!(sources.modules(), listed, "{}", sources.place.display());
    }
}

/// What is shipped.
const PRODUCT: &[&str] = &["cistern", "cistern-engine", "cistern-nbd", "cistern-ublk"];

/// Names of types that are defined twice, and why that confuses nobody.
const DEFINED_TWICE: &[(&str, &str)] = &[("Result", "a crate's result, with its own error")];

/// One name means one thing: what others of a crate know by a name, nothing else in the crate is called, and what other crates
/// know by it, nothing that another crate shows. What only its own module knows is that module's business (`State`, `Inner`).
#[test]
fn one_type_name_means_one_thing() {
    let mut faults = Vec::new();
    let mut shown: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sources in crates().iter().filter(|s| PRODUCT.iter().any(|name| s.place.ends_with(name))) {
        let crate_name = sources.place.file_name().expect("a crate has a name").display();
        let mut defined: BTreeMap<String, Vec<(String, Reach)>> = BTreeMap::new();
        for (source, named) in sources.files.iter().flat_map(|s| s.types().into_iter().map(move |t| (s, t))) {
            defined.entry(named.name).or_default().push((source.name.clone(), named.reach));
        }
        for (name, places) in defined {
            let files: Vec<String> = places.iter().map(|(file, _)| format!("{crate_name}/{file}")).collect();
            if files.len() > 1 && places.iter().any(|(_, reach)| *reach > Reach::Module) {
                faults.push(format!("{name}: {}", files.join(", ")));
            } else if places[0].1 == Reach::World {
                shown.entry(name).or_default().extend(files);
            }
        }
    }
    let twice = shown.into_iter().filter(|(_, files)| files.len() > 1);
    faults.extend(twice.map(|(name, files)| format!("{name}: {}", files.join(", "))));
    let is_allowed = |fault: &String, name: &str| fault.split(':').next() == Some(name);
    for (name, _) in DEFINED_TWICE {
        assert!(faults.iter().any(|fault| is_allowed(fault, name)), "{name} is defined once by now");
    }
    faults.retain(|fault| !DEFINED_TWICE.iter().any(|(name, _)| is_allowed(fault, name)));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
