//! The sources of a crate as text, for the tests that prove its shape.
//!
//! Every crate has a table of its layers on its root page: rows that begin with the number of a layer, the modules in
//! the second column. What the page says and what is proven cannot differ.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// One source file of a crate.
pub struct Source {
    /// Path below `src`, such as `map/run.rs`.
    pub name: String,
    /// The module of the crate that it belongs to, `map` for `map/run.rs`.
    pub module: String,
    /// Names between the crate's root and this file: 1 for `map.rs`, 2 for `map/run.rs`.
    pub depth: usize,
    /// The text with comments, strings and characters blanked.
    pub code: String,
    /// As `code`, without what is compiled for tests only.
    pub product: String,
    /// The text as it is.
    pub text: String,
}

/// A type, by its name: struct, enum, union, trait or alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    pub reach: Reach,
}

/// Who can know a type, as its definition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Its own module.
    Module,
    /// Others of its crate.
    Crate,
    /// Other crates too.
    World,
}

/// The sources of one crate.
pub struct Sources {
    /// The crate's directory, such as `crates/cistern-nbd`.
    pub place: PathBuf,
    pub files: Vec<Source>,
}

impl Sources {
    /// Reads the crate in a directory.
    pub fn of(place: impl AsRef<Path>) -> Sources {
        let place = place.as_ref().to_owned();
        let root = place.join("src");
        let mut paths = Vec::new();
        collect(&root, &mut paths);
        paths.sort();
        Sources { files: paths.iter().map(|path| Source::read(&root, path)).collect(), place }
    }

    /// The table of the root page: module -> layer.
    pub fn layers(&self) -> BTreeMap<String, u32> {
        let page = self.files.iter().find(|s| s.is_root()).expect("there is a root");
        let mut layers = BTreeMap::new();
        for line in page.text.lines().filter_map(|line| line.strip_prefix("//! |")) {
            let Some(layer) = line.split_whitespace().next().and_then(|word| word.parse::<u32>().ok()) else {
                continue;
            };
            let modules = line.split('|').nth(1).unwrap_or("");
            for name in modules.split('`').skip(1).step_by(2) {
                assert_eq!(layers.insert(name.to_owned(), layer), None, "{name} stands in two layers");
            }
        }
        layers
    }

    /// The modules that there are.
    pub fn modules(&self) -> Vec<&str> {
        let mut modules: Vec<&str> =
            self.files.iter().filter(|s| !s.is_root()).map(|s| s.module.as_str()).collect();
        modules.sort();
        modules.dedup();
        modules
    }

    /// Imports that do not lead to a lower layer.
    pub fn upward(&self) -> Vec<String> {
        let layers = self.layers();
        let mut faults = Vec::new();
        for source in self.files.iter().filter(|s| !s.is_root()) {
            let Some(own) = layers.get(&source.module) else {
                faults.push(format!("{}: the module stands in no layer", source.name));
                continue;
            };
            for name in imports(source) {
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
        faults
    }
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

    /// The types that the product defines here; not those within functions.
    pub fn types(&self) -> Vec<Named> {
        self.product.lines().filter_map(named).collect()
    }

    pub fn is_root(&self) -> bool {
        self.module == "lib" || self.module == "main"
    }
}

/// The type that a line defines. Items of a file begin in the first column.
fn named(line: &str) -> Option<Named> {
    let (reach, item) = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => (Reach::Crate, rest.split_once(") ")?.1),
        Some(rest) => (Reach::World, rest.strip_prefix(' ')?),
        None => (Reach::Module, line),
    };
    let item = item.strip_prefix("unsafe ").unwrap_or(item);
    let (kind, rest) = item.split_once(' ')?;
    let is_type = ["struct", "enum", "union", "trait", "type"].contains(&kind);
    is_type.then(|| Named { name: heads(rest).remove(0), reach })
}

/// The names of the crate's root that a piece of code refers to.
fn imports(source: &Source) -> Vec<String> {
    let code = &source.code;
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

pub fn continues_word(code: &str, at: usize) -> bool {
    code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$')
}

/// The first names of a path, or of each path in a group: `{a::b, c::{d, e}}` gives a and c.
pub fn heads(path: &str) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(imports(&source(1)), ["log", "map", "Error", "cache", "store"]);
        assert_eq!(imports(&source(2)), ["log", "map", "Error", "cache"]);
        let product = without_tests(&code);
        assert!(!product.contains("cache") && product.contains("after"));
        assert_eq!(text.lines().count(), code.lines().count());
    }

    /// Types are seen with their reach, and nothing else is taken for one.
    #[test]
    fn types_are_seen() {
        let lines = [
            "pub struct A<T>(T);",
            "pub(in crate::x) enum B {",
            "unsafe trait C: D {",
            "type E = u8;",
            "    pub struct Inner;",
            "pub fn struct_of() {}",
            "pub use a::struct_b;",
            "}",
        ];
        let seen: Vec<(String, Reach)> =
            lines.into_iter().filter_map(named).map(|Named { name, reach }| (name, reach)).collect();
        let expected = [("A", Reach::World), ("B", Reach::Crate), ("C", Reach::Module), ("E", Reach::Module)];
        assert_eq!(seen, expected.map(|(name, reach)| (name.to_owned(), reach)));
    }
}
