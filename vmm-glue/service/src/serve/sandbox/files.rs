//! The files that are left: those of the service's own sockets.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    PathFdError, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::Needs;

/// The kernel's interface that this was tried with. Later ones confine more, which is not asked for.
const TRIED: ABI = ABI::V6;

/// Folders in which the service makes and removes files.
#[derive(Debug, Default)]
pub(in crate::serve) struct Folders(Vec<(PathBuf, BitFlags<AccessFs>)>);

impl Folders {
    /// The folder of a socket that is removed at the end.
    pub(in crate::serve) fn add_socket(&mut self, path: &Path) {
        self.add(parent(path), AccessFs::RemoveFile.into());
    }

    /// A folder in which sockets are made, with their locks.
    pub(in crate::serve) fn add_folder_of_sockets(&mut self, path: &Path) {
        let lock = AccessFs::MakeReg | AccessFs::WriteFile;
        self.add(path, lock | AccessFs::MakeSock | AccessFs::RemoveFile);
    }

    /// A folder of trees of empty files, which is removed at the end.
    pub(in crate::serve) fn add_folder_of_trees(&mut self, path: &Path) {
        let make = AccessFs::MakeDir | AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::Truncate;
        let remove = AccessFs::ReadDir | AccessFs::RemoveDir | AccessFs::RemoveFile;
        self.add(path, make | remove);
        self.add(parent(path), AccessFs::RemoveDir.into());
    }

    fn add(&mut self, path: &Path, access: BitFlags<AccessFs>) {
        self.0.push((path.to_owned(), access));
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        parent => parent.unwrap_or(path),
    }
}

/// Confines this thread, and those that it starts, as far as the kernel can.
pub(super) fn confine(needs: &Needs) -> Result<(), RulesetError> {
    let mut scope = BitFlags::from(Scope::Signal);
    if !needs.abstract_sockets {
        scope |= Scope::AbstractUnixSocket;
    }
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(TRIED))?
        .handle_access(AccessNet::from_all(TRIED))?
        .scope(scope)?
        .create()?;
    for (path, access) in &needs.folders.0 {
        match PathFd::new(path) {
            Ok(folder) => ruleset = ruleset.add_rule(PathBeneath::new(folder, *access))?,
            Err(PathFdError::OpenCall { source, path, .. }) => {
                log::warn!("sandbox: {}: {source}; it is left out", path.display());
            }
            Err(error) => log::warn!("sandbox: {error}"),
        }
    }
    let status = ruleset.restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        log::warn!("sandbox: this kernel has no Landlock, so files are not confined");
    }
    Ok(())
}
