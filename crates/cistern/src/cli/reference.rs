//! `cistern reference`, hidden: writes the generated pages of the documentation.

mod pages;

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Outcome};

pub use pages::pages;

/// Write the generated reference pages of the documentation
#[derive(Args)]
pub(super) struct Reference {
    /// Directory for the pages
    directory: PathBuf,
}

impl Reference {
    pub fn run(self) -> Outcome {
        for (name, content) in pages() {
            let path = self.directory.join(name);
            std::fs::write(&path, content)
                .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))?;
        }
        Ok(())
    }
}
