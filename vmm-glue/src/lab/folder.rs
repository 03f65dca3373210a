//! The folder of a lab.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::LabError;

/// A new folder that only this user can use, and that is removed with all that is in it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new() -> Result<Self, LabError> {
        let name = format!("vhca-lab-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| LabError::Folder(path.clone(), error))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is in the folder of temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}
