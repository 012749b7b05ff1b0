//! The shape of the engine: modules import strictly downward, and what must be absent is absent.
//!
//! The layers are read from the table in `src/lib.rs`, so the page and the proof cannot differ.
//! Sources are read as text with comments and literals blanked; modules of tests are left out
//! where the claim is about the product.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// One source file of the engine.
struct Source {
    /// Path below `src`, such as `map/run.rs`.
    name: String,
    /// The module of the crate that it belongs to, `map` for `map/run.rs`.
    module: String,
    /// Names between the crate's root and this file: 1 for `map.rs`, 2 for `map/run.rs`.
    depth: usize,
    /// The text with comments, strings and characters blanked.
    code: String,
    /// As `code`, without what is compiled for tests only.
    product: String,
    /// The text as it is.
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    files.iter().map(|file| Source::read(&root, file)).collect()
}

fn collect(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("src is readable") {
        let path = entry.expect("src is readable").path();
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

impl Source {
    fn read(root: &Path, file: &Path) -> Source {
        let text = fs::read_to_string(file).expect("sources are UTF-8");
        let name = file.strip_prefix(root).expect("below src").to_string_lossy().into_owned();
        let parts: Vec<&str> = name.trim_end_matches(".rs").split('/').collect();
        let code = blank(&text);
        let is_test_file = parts.last().is_some_and(|last| *last == "tests" || last.ends_with("_tests"));
        let product = if is_test_file { String::new() } else { without_tests(&code) };
        Source { module: parts[0].to_owned(), depth: parts.len(), name: name.clone(), code, product, text }
    }

    fn is_root(&self) -> bool {
        self.module == "lib"
    }
}

/// Replaces comments and the contents of literals by spaces; lines stay where they are.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let end = match bytes[i] {
            b'/' if bytes[i..].starts_with(b"//") => find(bytes, i, b"\n"),
            b'/' if bytes[i..].starts_with(b"/*") => find(bytes, i + 2, b"*/") + 2,
            b'r' if is_raw_string(bytes, i) => end_of_raw_string(bytes, i),
            b'"' => end_of_string(bytes, i),
            b'\'' => end_of_char(bytes, i),
            _ => i + 1,
        };
        let end = end.min(bytes.len());
        if end > i + 1 {
            out[i..end].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        }
        i = end;
    }
    String::from_utf8(out).expect("only whole characters are blanked")
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    bytes[from.min(bytes.len())..]
        .windows(what.len())
        .position(|w| w == what)
        .map_or(bytes.len(), |n| from + n)
}

fn is_raw_string(bytes: &[u8], i: usize) -> bool {
    let before = i.checked_sub(1).map(|n| bytes[n]);
    let inside_word = before.is_some_and(|b| b.is_ascii_alphanumeric() && b != b'b' || b == b'_');
    let hashes = bytes[i + 1..].iter().take_while(|b| **b == b'#').count();
    !inside_word && bytes.get(i + 1 + hashes) == Some(&b'"')
}

fn end_of_raw_string(bytes: &[u8], i: usize) -> usize {
    let hashes = bytes[i + 1..].iter().take_while(|b| **b == b'#').count();
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    find(bytes, i + hashes + 2, &close) + close.len()
}

fn end_of_string(bytes: &[u8], i: usize) -> usize {
    let mut end = i + 1;
    while end < bytes.len() && bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    end + 1
}

/// The end of a character literal; one byte on where the quote begins a lifetime.
fn end_of_char(bytes: &[u8], i: usize) -> usize {
    match bytes.get(i + 1) {
        Some(b'\\') => find(bytes, i + 3, b"'") + 1,
        _ => match bytes[i + 1..].iter().take(5).position(|b| *b == b'\'') {
            Some(n) if n == 1 || bytes[i + 1] >= 0x80 => i + n + 2,
            _ => i + 1,
        },
    }
}

/// Cuts out every item behind `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::new();
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        out.push_str(&rest[..at]);
        let item = &rest[at + MARK.len()..];
        rest = &item[end_of_item(item)..];
    }
    out + rest
}

/// Bytes up to the end of the first item: its `;`, or the brace that closes its first block.
fn end_of_item(code: &str) -> usize {
    let mut depth = 0;
    for (i, c) in code.char_indices() {
        match c {
            ';' if depth == 0 => return i + 1,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return i + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// The table of `lib.rs`: module -> layer.
fn layers(sources: &[Source]) -> BTreeMap<String, u32> {
    let lib = sources.iter().find(|s| s.is_root()).expect("there is a lib.rs");
    let mut layers = BTreeMap::new();
    for line in lib.text.lines().filter_map(|line| line.strip_prefix("//! |")) {
        let Some(layer) = line.split_whitespace().next().and_then(|word| word.parse::<u32>().ok()) else {
            continue;
        };
        for name in line.split('`').skip(1).step_by(2) {
            assert_eq!(layers.insert(name.to_owned(), layer), None, "{name} stands in two layers");
        }
    }
    layers
}

/// The names of the crate's root that a piece of code refers to.
fn imports(source: &Source, code: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (at, _) in code.match_indices("crate::").filter(|(at, _)| !continues_word(code, *at)) {
        out.extend(heads(&code[at + "crate::".len()..]));
    }
    for (at, _) in code.match_indices("super::").filter(|(at, _)| !continues_word(code, *at)) {
        let chain = code[at..].split("::").take_while(|part| *part == "super").count();
        if chain >= source.depth && !code[..at].ends_with("::") {
            out.extend(heads(&code[at + chain * "super::".len()..]));
        }
    }
    out
}

fn continues_word(code: &str, at: usize) -> bool {
    code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$')
}

/// The first names of a path, or of each path in a group: `{a::b, c::{d, e}}` gives a and c.
fn heads(path: &str) -> Vec<String> {
    let word =
        |text: &str| text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let Some(group) = path.strip_prefix('{') else { return vec![word(path)] };
    let mut out = vec![word(group)];
    let mut depth = 1;
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => out.push(word(&group[i + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    out.retain(|name: &String| !name.is_empty());
    out
}

/// Every module imports from lower layers only: no circle, no knot, nothing sideways.
#[test]
fn modules_import_strictly_downward() {
    let sources = sources();
    let layers = layers(&sources);
    let mut faults = Vec::new();
    for source in sources.iter().filter(|s| !s.is_root()) {
        let own = layers.get(&source.module);
        let Some(own) = own else {
            faults.push(format!("{}: the module stands in no layer", source.name));
            continue;
        };
        for name in imports(source, &source.code) {
            let target = if name == "Error" || name == "Result" { "error" } else { name.as_str() };
            match layers.get(target) {
                _ if target == source.module => {}
                Some(layer) if layer < own => {}
                Some(layer) => {
                    faults.push(format!("{} (layer {own}) imports {target} (layer {layer})", source.name))
                }
                None => {} // a name of the file's own module, or a macro of the root
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every module of the table exists, and every module is in the table.
#[test]
fn the_table_is_complete() {
    let sources = sources();
    let mut modules: Vec<&str> = sources.iter().filter(|s| !s.is_root()).map(|s| s.module.as_str()).collect();
    modules.dedup();
    let table = layers(&sources);
    let mut listed: Vec<&str> = table.keys().map(String::as_str).collect();
    modules.sort();
    listed.sort();
    assert_eq!(modules, listed);
}

/// Inside the module that fetches there is no circle either: each file knows those before it only.
#[test]
fn the_files_that_fetch_know_each_other_one_way() {
    let sources = sources();
    let files: Vec<&Source> = sources.iter().filter(|s| s.module == "fetch" && s.depth == 2).collect();
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
    for source in sources() {
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
    let sources = sources();
    let layers = layers(&sources);
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
    for source in sources() {
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
    for source in sources() {
        assert!(source.text.starts_with("//! "), "{}: no header", source.name);
        let lines = source.text.lines().count();
        assert!(lines <= LINES_MAX, "{}: {lines} lines, split it by role", source.name);
    }
}

/// The reader of sources sees what it should see.
#[test]
fn the_reader_is_not_blind() {
    let text = "use crate::{log::{A, b}, map, Error}; // crate::gc\nlet c = '\"'; let s = \"crate::gc\"; \
                fn f<'a>(x: &'a u8) { super::store::x(); r#\"crate::gc \"quoted\" \"#; }\n\
                #[cfg(test)]\nmod tests { use crate::cache; }\nfn after() {}";
    let code = blank(text);
    let source = |depth| Source {
        name: "a.rs".into(),
        module: "a".into(),
        depth,
        product: String::new(),
        code: code.clone(),
        text: text.into(),
    };
    assert_eq!(imports(&source(1), &code), ["log", "map", "Error", "cache", "store"]);
    assert_eq!(imports(&source(2), &code), ["log", "map", "Error", "cache"]);
    let product = without_tests(&code);
    assert!(!product.contains("cache") && product.contains("after"));
    assert_eq!(text.lines().count(), code.lines().count());
}
