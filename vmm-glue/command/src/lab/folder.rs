//! The folder of a lab.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::LabError;

/// Names that are tried.
const MOST: u32 = 100;

/// A new folder that only this user can use, and that is removed with all that is in it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new() -> Result<Self, LabError> {
        let name = format!("vhca-lab-{}", std::process::id());
        let mut path = std::env::temp_dir().join(&name);
        // A lab that was killed may have left its folder, and its number is given out again.
        for nth in 2..MOST {
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    path.set_file_name(format!("{name}-{nth}"));
                }
                Err(error) => return Err(LabError::Folder(path, error)),
            }
        }
        Err(LabError::Folder(path, io::ErrorKind::AlreadyExists.into()))
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
