//! The files that are left: those of the service's own sockets.

use std::io;
use std::os::unix::fs::FileTypeExt;
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
pub(in crate::serve) struct Folders {
    rules: Vec<(PathBuf, BitFlags<AccessFs>)>,
    /// Sockets that are removed at the end.
    sockets: Vec<PathBuf>,
}

impl Folders {
    /// A socket that is removed at the end, if its folder holds nothing but the service's own: a right to remove one file
    /// is one to remove all that is below the folder. Otherwise it stays, and the next service replaces it.
    pub(in crate::serve) fn add_socket(&mut self, path: &Path) {
        self.sockets.push(path.to_owned());
    }

    /// A folder in which sockets are made, with their locks.
    pub(in crate::serve) fn add_folder_of_sockets(&mut self, path: &Path) {
        let lock = AccessFs::MakeReg | AccessFs::WriteFile;
        self.add(path, lock | AccessFs::MakeSock | AccessFs::RemoveFile);
    }

    /// A folder of trees of files and links, which is removed at the end.
    pub(in crate::serve) fn add_folder_of_trees(&mut self, path: &Path) {
        let files = AccessFs::MakeReg | AccessFs::WriteFile;
        let make = AccessFs::MakeDir | AccessFs::MakeSym | files;
        let remove = AccessFs::ReadDir | AccessFs::RemoveDir | AccessFs::RemoveFile;
        self.add(path, make | remove);
        self.add(parent(path), AccessFs::RemoveDir.into());
    }

    fn add(&mut self, path: &Path, access: BitFlags<AccessFs>) {
        self.rules.push((path.to_owned(), access));
    }

    /// Returns the folders that stay reachable, with the rights to each.
    fn rules(&self) -> impl Iterator<Item = (&Path, BitFlags<AccessFs>)> {
        let own = self.sockets.iter().map(|socket| parent(socket));
        let own = own.filter(|folder| {
            let is_own = self.are_own(folder).unwrap_or(false);
            if !is_own {
                let folder = folder.display();
                log::info!("sandbox: {folder} holds other files, so the socket there stays when the service ends");
            }
            is_own
        });
        let own = own.map(|folder| (folder, AccessFs::RemoveFile.into()));
        let rules = self.rules.iter();
        rules.map(|(path, access)| (&**path, *access)).chain(own)
    }

    /// Returns `true` if all that is in a folder is sockets, their locks, and folders of the service.
    fn are_own(&self, folder: &Path) -> io::Result<bool> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            let is_own = kind.is_socket()
                || kind.is_file() && path.extension().is_some_and(|end| end == "lock")
                || kind.is_dir() && self.has_folder(&path)?;
            if !is_own {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn has_folder(&self, path: &Path) -> io::Result<bool> {
        let path = path.canonicalize()?;
        let mut folders = self.rules.iter().map(|(folder, _)| folder.canonicalize());
        Ok(folders.any(|folder| folder.is_ok_and(|folder| folder == path)))
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
    for (path, access) in needs.folders.rules() {
        match PathFd::new(path) {
            Ok(folder) => ruleset = ruleset.add_rule(PathBeneath::new(folder, access))?,
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
