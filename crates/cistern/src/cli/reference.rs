//! `cistern reference`, hidden: writes the generated pages of the documentation, and what packages carry.

mod carried;
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

    /// Write manual pages, completions and a settings file instead
    #[arg(long)]
    package: bool,
}

impl Reference {
    pub fn run(self) -> Outcome {
        let files = match self.package {
            true => carried::carried(),
            false => pages().into_iter().map(|(name, page)| (name.to_owned(), page.into_bytes())).collect(),
        };
        for (name, content) in files {
            let path = self.directory.join(name);
            let dir = path.parent().unwrap_or(&self.directory);
            std::fs::create_dir_all(dir)
                .and_then(|()| std::fs::write(&path, content))
                .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))?;
        }
        Ok(())
    }
}
