//! A file that has its name when it is whole. Until then it lies beside, and is removed if it does not come to that.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use cistern_engine::disk::rename_new;

/// A file beside its place; removed unless it is put there.
pub(super) struct NewFile {
    place: PathBuf,
    beside: PathBuf,
    file: File,
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Put in its place, it is not there.
        let _ = fs::remove_file(&self.beside);
    }
}

impl NewFile {
    /// Begins it, as `NAME.unfinished`.
    pub fn create(place: &Path) -> io::Result<NewFile> {
        let mut beside = place.to_owned().into_os_string();
        beside.push(".unfinished");
        let beside = PathBuf::from(beside);
        let file = File::create(&beside)?;
        Ok(NewFile { place: place.to_owned(), beside, file })
    }

    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Where it lies until it is whole.
    pub fn beside(&self) -> &Path {
        &self.beside
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes it durable, and gives it its name.
    pub fn put(&self) -> io::Result<()> {
        self.file.sync_all()?;
        // Does not replace what came there meanwhile.
        rename_new(&self.beside, &self.place)
    }
}
