//! Where the control socket is.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::getuid;

const NAME: &str = "control.sock";

/// Where the control socket is if nothing else is said: in `$XDG_RUNTIME_DIR/vhca`, or else in
/// `/tmp/vhca-UID`, which is made if it is missing and must be this user's alone.
///
/// # Errors
/// If the directory cannot be made, or is another user's.
pub fn default_path() -> io::Result<PathBuf> {
    let directory = match env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if Path::new(&runtime).is_dir() => Path::new(&runtime).join("vhca"),
        _ => PathBuf::from(format!("/tmp/vhca-{}", getuid().as_raw())),
    };
    own_directory(&directory)?;
    Ok(directory.join(NAME))
}

/// Makes a directory that only this user can use, or sees that it is such a one.
fn own_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() && found.uid() == getuid().as_raw() && found.mode() & 0o077 == 0 {
        Ok(())
    } else {
        let reason = format!("{} is not this user's alone", path.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_is_made_private_and_one_that_is_not_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("vhca");
        own_directory(&path).unwrap();
        own_directory(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert!(own_directory(&path).is_err());
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(parent.path(), &link).unwrap();
        assert!(own_directory(&link).is_err());
    }
}
