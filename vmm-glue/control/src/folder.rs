//! Where the control socket is.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::getuid;
use thiserror::Error;

const NAME: &str = "control.sock";

/// Control socket of the packaged service.
const PACKAGED: &str = "/run/vhca/control.sock";

/// Why a user's own folder for sockets cannot be used.
#[derive(Debug, Error)]
pub enum OwnFolderError {
    /// It cannot be created.
    #[error("cannot create the folder {}; name a control socket elsewhere with --control", .0.display())]
    Create(PathBuf, #[source] io::Error),
    /// Something else is there.
    #[error("{} is no folder: remove it, or name a control socket elsewhere with --control", .0.display())]
    NoFolder(PathBuf),
    /// It is another user's.
    #[error(
        "the folder {} belongs to user {owner}, not to user {user}: name a control socket elsewhere with --control",
        path.display()
    )]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Number of its owner.
        owner: u32,
        /// Number of this user.
        user: u32,
    },
    /// Other users can look into it or change it.
    #[error(
        "the folder {} is open to other users (mode {mode:04o}): run chmod 700 {}, or name a control socket elsewhere \
         with --control",
        path.display(),
        path.display()
    )]
    Open {
        /// The folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

/// Returns where the control socket of a user's service is by default: in `$XDG_RUNTIME_DIR/vhca`, or else in
/// `/tmp/vhca-UID`, which is created if it is missing and must be this user's alone.
///
/// # Errors
/// [`OwnFolderError`].
pub fn default_path() -> Result<PathBuf, OwnFolderError> {
    let folder = folder();
    create_folder(&folder)?;
    Ok(folder.join(NAME))
}

/// Returns where clients look for a control socket by default: at [`default_path`], then at that of the packaged
/// service.
///
/// # Errors
/// [`OwnFolderError`] for a folder that is there and not this user's alone.
pub fn default_places() -> Result<Vec<PathBuf>, OwnFolderError> {
    let folder = folder();
    if fs::symlink_metadata(&folder).is_ok() {
        check_folder(&folder)?;
    }
    Ok(vec![folder.join(NAME), PathBuf::from(PACKAGED)])
}

fn folder() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if Path::new(&runtime).is_dir() => Path::new(&runtime).join("vhca"),
        _ => PathBuf::from(format!("/tmp/vhca-{}", getuid().as_raw())),
    }
}

/// Creates a folder that only this user can use, unless there is one.
fn create_folder(path: &Path) -> Result<(), OwnFolderError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(OwnFolderError::Create(path.to_owned(), error))
        }
        _ => check_folder(path),
    }
}

/// Checks that only this user can use a folder.
fn check_folder(path: &Path) -> Result<(), OwnFolderError> {
    let found = fs::symlink_metadata(path);
    let found = found.map_err(|error| OwnFolderError::Create(path.to_owned(), error))?;
    let (path, mode, user) = (path.to_owned(), found.mode() & 0o7777, getuid().as_raw());
    if !found.is_dir() {
        Err(OwnFolderError::NoFolder(path))
    } else if found.uid() != user {
        let owner = found.uid();
        Err(OwnFolderError::Owner { path, owner, user })
    } else if mode & 0o077 != 0 {
        Err(OwnFolderError::Open { path, mode })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_is_created_private_and_one_that_is_not_is_refused_with_what_to_do() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("vhca");
        create_folder(&path).unwrap();
        create_folder(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let error = |path: &Path| create_folder(path).unwrap_err().to_string();
        let named = path.display();
        assert_eq!(
            error(&path),
            format!(
                "the folder {named} is open to other users (mode 0755): run chmod 700 {named}, or name a control \
                 socket elsewhere with --control"
            )
        );
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(parent.path(), &link).unwrap();
        assert!(error(&link).contains("is no folder: remove it"));
        let nowhere = parent.path().join("no/folder");
        assert!(error(&nowhere).starts_with("cannot create the folder"));
        let owner = fs::metadata("/").unwrap().uid();
        if owner != getuid().as_raw() {
            assert!(error(Path::new("/")).contains(&format!("belongs to user {owner}")));
        }
    }

    #[test]
    fn clients_look_where_the_packaged_service_is() {
        let unit = include_str!("../../service/packaging/vhca.service");
        assert!(unit.contains(&format!("Environment=VHCA_CONTROL={PACKAGED}\n")));
        assert_eq!(default_places().unwrap().last(), Some(&PACKAGED.into()));
    }
}
