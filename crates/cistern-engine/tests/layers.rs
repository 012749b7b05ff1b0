//! What holds for the engine's sources: what must be absent is absent, locks are ranked by layer, files stay readable.
//!
//! That its modules import strictly downward is proven for all crates together (`xtask/tests/layers.rs`).
//! Sources are read as text with comments and literals blanked; modules of tests are left out
//! where the claim is about the product.

use std::collections::BTreeMap;

use cistern_harness::sources::{Source, Sources, continues_word, heads};

fn engine() -> Sources {
    Sources::of(env!("CARGO_MANIFEST_DIR"))
}

/// Inside the module that fetches there is no circle either: each file knows those before it only.
#[test]
fn the_files_that_fetch_know_each_other_one_way() {
    let engine = engine();
    let files: Vec<&Source> = engine.files.iter().filter(|s| s.module == "fetch" && s.depth == 2).collect();
    let name = |source: &Source| source.name["fetch/".len()..source.name.len() - ".rs".len()].to_owned();
    let mut needs: BTreeMap<String, Vec<String>> =
        files.iter().map(|file| (name(file), siblings(&file.product))).collect();
    needs.values_mut().for_each(|names| names.retain(|other| files.iter().any(|file| name(file) == *other)));
    assert!(needs.values().any(|names| !names.is_empty()), "the files do know each other");
    while let Some(free) = needs.iter().find(|(_, names)| names.is_empty()).map(|(name, _)| name.clone()) {
        needs.remove(&free);
        needs.values_mut().for_each(|names| names.retain(|name| *name != free));
    }
    assert!(needs.is_empty(), "a circle: {needs:?}");
}

/// The names next to its file that a piece of code refers to.
fn siblings(code: &str) -> Vec<String> {
    let mark = "super::";
    let paths = code.match_indices(mark).filter(|(at, _)| !continues_word(code, *at));
    paths.flat_map(|(at, _)| heads(&code[at + mark.len()..])).collect()
}

/// What must not occur in the product's code, and the modules that are the one door to it.
const ABSENCES: &[(&str, &[&str], &str)] = &[
    ("Instant::now", &["env"], "time comes through env"),
    ("SystemTime::now", &["env"], "time comes through env"),
    ("tokio::time", &["env"], "time comes through env"),
    ("tokio::spawn", &["env"], "tasks come through env"),
    ("spawn_blocking", &["env"], "tasks come through env"),
    ("thread::spawn", &["env"], "threads come through env"),
    ("thread::Builder", &["env"], "threads come through env"),
    ("rand::", &["env"], "randomness comes through env"),
    ("getrandom", &["env"], "randomness comes through env"),
    ("Uuid::new_v4", &[], "identities come through env"),
    ("object_store::", &["store"], "no type of a cloud's client above store"),
    ("std::fs::", &["disk", "store", "uring"], "local files come through disk"),
    (".delete(", &["gc", "store"], "objects are deleted in one place"),
    ("get_range(", &["fetch", "log", "store"], "what objects hold is fetched in one place"),
    ("dirty_bytes +=", &[], "what is dirty is booked by the journal alone"),
    ("dirty_bytes -=", &[], "what is dirty is booked by the journal alone"),
    ("unbounded", &[], "every queue has a limit"),
    ("mpsc::channel()", &[], "every queue has a limit"),
    ("todo!", &[], "no stubs"),
    ("unimplemented!", &[], "no stubs"),
    ("dbg!", &[], "no traces of debugging"),
    ("println!", &[], "a library does not print"),
    ("nbd", &[], "the engine does not know the protocol"),
    ("cfg!(test)", &[], "no test hooks in bodies"),
];

/// The absences that are invariants hold.
#[test]
fn what_must_be_absent_is_absent() {
    let mut faults = Vec::new();
    for source in engine().files {
        let product = source.product.to_lowercase();
        for (word, doors, why) in ABSENCES {
            if doors.contains(&source.module.as_str()) {
                continue;
            }
            for (at, _) in product.match_indices(&word.to_lowercase()) {
                if word.starts_with(char::is_alphabetic) && continues_word(&product, at) {
                    continue;
                }
                let line = product[..at].rsplit('\n').next().unwrap_or("").trim();
                faults.push(format!("{}: {word} after `{line}`: {why}", source.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The order of locks is that of the layers: each rank is used by the layer that its table names, the ranks of a layer are
/// behind those of the layers above, and no lock is without a rank. A turn is taken before everything else.
#[test]
fn locks_are_ranked_by_layer() {
    let engine = engine();
    let (sources, layers) = (&engine.files, engine.layers());
    let table = &sources.iter().find(|s| s.name == "rank.rs").expect("there is a table").text;
    let ranks: Vec<(&str, u32)> = table
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `")?.split_once("` | "))
        .map(|(name, rest)| (name, rest.split(' ').next().unwrap_or("").parse().expect("a layer")))
        .collect();
    let order: Vec<&str> = table
        .split("pub enum Rank {")
        .nth(1)
        .and_then(|text| text.split('}').next())
        .expect("ranks")
        .split(',')
        .collect();
    let order: Vec<&str> = order.into_iter().map(str::trim).filter(|name| !name.is_empty()).collect();
    assert!(ranks.iter().map(|(name, _)| *name).eq(order), "the table has the ranks in their order");
    assert!(
        ranks[1..].is_sorted_by_key(|(_, layer)| std::cmp::Reverse(*layer)),
        "ranks go down with the layers"
    );
    for source in sources.iter().filter(|s| !["rank", "env", "lib"].contains(&s.module.as_str())) {
        for (at, mark) in source.product.match_indices("Rank::") {
            if continues_word(&source.product, at) {
                continue;
            }
            let name = heads(&source.product[at + mark.len()..]).remove(0);
            let rank = ranks.iter().find(|(rank, _)| *rank == name).map(|(_, layer)| layer);
            assert_eq!(rank, layers.get(&source.module), "{}: Rank::{name}", source.name);
        }
        let unranked = source
            .product
            .match_indices("Mutex")
            .find(|(at, _)| !source.product[..*at].ends_with("tokio::sync::"));
        assert!(unranked.is_none(), "{}: a lock without a rank", source.name);
    }
}

/// Without `biased`, tokio draws which branch goes first, and a seed would not replay.
#[test]
fn every_select_is_biased() {
    for source in engine().files {
        for (at, mark) in source.code.match_indices("select! {") {
            let first = source.code[at + mark.len()..].split_whitespace().next();
            assert_eq!(first, Some("biased;"), "{}: select! without biased", source.name);
        }
    }
}

/// Every file opens with what it owns, and stays of a size that can be read in one sitting.
#[test]
fn every_file_has_a_header_and_a_limit() {
    const LINES_MAX: usize = 640;
    for source in engine().files {
        assert!(source.text.starts_with("//! "), "{}: no header", source.name);
        let lines = source.text.lines().count();
        assert!(lines <= LINES_MAX, "{}: {lines} lines, split it by role", source.name);
    }
}
