//! The shape of every crate: modules import strictly downward, in the order that the crate's own page gives.

use std::{fs, path::Path};

use cistern_harness::sources::Sources;

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
