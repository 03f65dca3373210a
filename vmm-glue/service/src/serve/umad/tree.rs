//! Trees of empty files that look like sysfs and the devices, for what programs do with paths besides
//! reading files: list folders, look whether something exists. What the files hold they ask for when
//! they open them, and the answer is as of then.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use umad_link::{AdapterId, TreeRequest};

use crate::serve::access::Access;

/// Trees at one time. A tree has some hundred files.
const MAX_TREES: usize = 1024;

/// A folder with a tree for each list of adapters that a program sees.
#[derive(Debug)]
pub(super) struct Trees {
    root: PathBuf,
    made: BTreeMap<Vec<AdapterId>, PathBuf>,
}

impl Trees {
    /// An empty folder for those who may connect, in place of one that a dead server left.
    pub(super) fn new(root: PathBuf, access: Access) -> io::Result<Self> {
        remove(&root)?;
        DirBuilder::new().mode(0o700).create(&root)?;
        access.apply_to_folder(&root)?;
        let root = root.canonicalize()?;
        Ok(Self {
            root,
            made: BTreeMap::new(),
        })
    }

    /// Where all of them are.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where a tree is; it is made if it was not.
    pub(super) fn place(&mut self, request: &TreeRequest) -> io::Result<&Path> {
        if !self.made.contains_key(&request.adapters) {
            if self.made.len() >= MAX_TREES {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let names: Vec<String> = request.adapters.iter().map(|id| id.0.to_string()).collect();
            let tree = self.root.join(names.join("+"));
            make(&tree, &request.entries)?;
            self.made.insert(request.adapters.clone(), tree);
        }
        Ok(&self.made[&request.adapters])
    }
}

impl Drop for Trees {
    fn drop(&mut self) {
        // Nobody is left to be told; the next server removes it.
        let _ = remove(&self.root);
    }
}

/// Makes a tree that everybody can read who comes past the root: the service's umask is 022.
fn make(tree: &Path, entries: &[String]) -> io::Result<()> {
    std::fs::create_dir(tree)?;
    for entry in entries {
        let path = tree.join(entry);
        let folders: Vec<&Path> = path.ancestors().skip(1).collect();
        let missing = folders.iter().take_while(|folder| !folder.exists());
        for folder in missing.collect::<Vec<_>>().into_iter().rev() {
            std::fs::create_dir(folder)?;
        }
        File::create(path)?;
    }
    Ok(())
}

fn remove(root: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(root) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn request(adapters: &[u32]) -> TreeRequest {
        TreeRequest {
            adapters: adapters.iter().copied().map(AdapterId).collect(),
            entries: vec!["sys/a/b".to_owned(), "dev/c".to_owned()],
        }
    }

    #[test]
    fn each_list_of_adapters_has_a_tree_of_its_own_and_all_go_with_the_server() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("sys");
        std::fs::create_dir_all(root.join("left/over")).unwrap();
        let mut trees = Trees::new(root.clone(), Access::default()).unwrap();
        assert_eq!(std::fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
        assert!(!root.join("left").exists());
        let one = trees.place(&request(&[1])).unwrap().to_owned();
        let two = trees.place(&request(&[1, 0])).unwrap().to_owned();
        assert_ne!(one, two);
        assert!(one.join("sys/a/b").is_file() && two.join("dev/c").is_file());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&one), mode(&one.join("sys/a"))), (0o755, 0o755));
        assert_eq!(mode(&one.join("sys/a/b")), 0o644);
        assert_eq!(trees.place(&request(&[1])).unwrap(), one);
        drop(trees);
        assert!(!root.exists());
    }
}
