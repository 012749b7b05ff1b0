//! The table of mutants in docs/design/simulation.md.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use super::mutants;

const PAGE: &str = "docs/design/simulation.md";
const BEGIN: &str = "<!-- mutants: written by `cargo xtask mutate --table` -->\n";
const END: &str = "<!-- end of mutants -->";

/// The table as it should be.
fn table() -> String {
    let mut out = String::from("| mutant | breaks | what goes wrong | found by |\n|---|---|---|---|\n");
    for m in mutants::all() {
        out += &format!("| {} | {} | {} | {} |\n", m.name, m.promise, m.story, m.found_by());
    }
    out
}

/// The page, with the table between its marks as it should be.
fn page(root: &Path) -> Result<(String, String)> {
    let now = fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let (before, rest) = now.split_once(BEGIN).context("the page has no place for the table")?;
    let (_, after) = rest.split_once(END).context("the table on the page has no end")?;
    let wanted = format!("{before}{BEGIN}{}{END}{after}", table());
    Ok((now, wanted))
}

/// Writes the table into the page.
pub fn write(root: &Path) -> Result<()> {
    let (_, wanted) = page(root)?;
    fs::write(root.join(PAGE), wanted).context(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page lists the mutants that there are.
    #[test]
    fn the_page_lists_every_mutant() {
        let (now, wanted) = page(crate::step::root()).expect("a page with a table");
        assert!(now == wanted, "run `cargo xtask mutate --table`");
    }
}
