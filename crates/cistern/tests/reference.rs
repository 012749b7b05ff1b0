//! The reference pages are generated; this keeps the committed ones up to date.

use std::path::Path;

/// Each committed page is what the definitions of the command line say today.
#[test]
fn the_reference_is_up_to_date() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    for (name, content) in cistern::cli::reference::pages() {
        let committed = std::fs::read_to_string(directory.join(name)).unwrap_or_default();
        assert!(
            committed == content,
            "docs/reference/{name} is out of date. Regenerate: cargo run -p cistern -- reference docs/reference"
        );
    }
}
