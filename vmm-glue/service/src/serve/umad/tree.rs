//! Trees of files that look like sysfs and the devices, for what programs do with paths: list folders, follow links, look
//! whether a file exists. A program with the preload library asks for the text of a file when it opens the file; others read
//! the files here, which are at most [`AGE`] old.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use ib_vtime::{Duration, Instant};
use linux_abi::sysfs::{Entry, View};
use rustix::fs::{CWD, symlinkat};
use umad_link::{TreeId, TreeRequest};

use crate::serve::access::Access;

/// Trees at one time. A tree has some hundred files.
const MAX_TREES: usize = 1024;

/// Time after which a tree is compared with the devices anew.
const AGE: Duration = Duration::from_secs(1);

/// A folder with a tree for each list of devices that a program sees.
#[derive(Debug)]
pub(super) struct Trees {
    root: PathBuf,
    made: BTreeMap<TreeId, Tree>,
}

/// A tree.
#[derive(Debug)]
struct Tree {
    path: PathBuf,
    due: Instant,
    /// What was made, with a hash of each file's text.
    entries: Vec<(Entry, u64)>,
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
    pub(super) fn place(&mut self, now: Instant, request: &TreeRequest) -> io::Result<&Path> {
        if !self.made.contains_key(&request.id) {
            if self.made.len() >= MAX_TREES {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let path = self.root.join(request.id.to_string());
            let tree = Tree::make(path, now + AGE, &request.view)?;
            self.made.insert(request.id.clone(), tree);
        }
        Ok(&self.made[&request.id].path)
    }

    /// Writes the texts that have changed in a tree that is due, if one is. `view` returns the devices of a tree.
    pub(super) fn refresh(
        &mut self,
        now: Instant,
        view: impl FnOnce(&TreeId) -> Option<View>,
    ) -> io::Result<()> {
        let due = self.made.iter_mut().find(|(_, tree)| tree.due <= now);
        let Some((id, tree)) = due else { return Ok(()) };
        tree.due = now + AGE;
        view(id).map_or(Ok(()), |view| tree.write(&view))
    }

    /// Returns the time at which a tree is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.made.values().map(|tree| tree.due).min()
    }
}

impl Drop for Trees {
    fn drop(&mut self) {
        // The next server removes it.
        let _ = remove(&self.root);
    }
}

impl Tree {
    /// Makes a tree that every user can read who comes past the root: the service's umask is 022.
    fn make(path: PathBuf, due: Instant, view: &View) -> io::Result<Self> {
        std::fs::create_dir(&path)?;
        let entries = view.entries();
        for entry in &entries {
            let place = path.join(&entry.path);
            let folders = place.ancestors().skip(1);
            let missing = folders.take_while(|folder| !folder.exists());
            for folder in missing.collect::<Vec<_>>().into_iter().rev() {
                std::fs::create_dir(folder)?;
            }
            match &entry.target {
                Some(target) => symlinkat(target.as_str(), CWD, &place)?,
                None => drop(File::create(place)?),
            }
        }
        let entries = entries.into_iter().map(|entry| (entry, hash("")));
        let mut tree = Self {
            path,
            due,
            entries: entries.collect(),
        };
        tree.write(view)?;
        Ok(tree)
    }

    /// Writes the texts that have changed. A reader may see the old text, the new one, or the new one up to the old one's length.
    fn write(&mut self, view: &View) -> io::Result<()> {
        for (entry, known) in &mut self.entries {
            if entry.target.is_some() {
                continue;
            }
            let text = view.text(&entry.path).unwrap_or_default();
            let hash = hash(&text);
            if hash != *known {
                let file = OpenOptions::new()
                    .write(true)
                    .open(self.path.join(&entry.path))?;
                file.write_all_at(text.as_bytes(), 0)?;
                file.set_len(text.len() as u64)?;
                *known = hash;
            }
        }
        Ok(())
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
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

    use umad_link::{AdapterId, Verbs};

    use super::*;

    fn request(adapters: &[u32]) -> TreeRequest {
        let id = TreeId {
            adapters: adapters.iter().copied().map(AdapterId).collect(),
            verbs: Some(Verbs::default()),
        };
        let view = View {
            has_verbs: true,
            ..View::default()
        };
        TreeRequest { id, view }
    }

    #[test]
    fn each_list_of_adapters_has_a_tree_of_its_own_and_all_go_with_the_server() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("sys");
        std::fs::create_dir_all(root.join("left/over")).unwrap();
        let mut trees = Trees::new(root.clone(), Access::default()).unwrap();
        assert_eq!(std::fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
        assert!(!root.join("left").exists());
        let now = Instant::ZERO;
        let one = trees.place(now, &request(&[1])).unwrap().to_owned();
        let two = trees.place(now, &request(&[1, 0])).unwrap().to_owned();
        assert_ne!(one, two);
        let version = "sys/class/infiniband_verbs/abi_version";
        assert!(one.join("dev/infiniband/rdma_cm").is_file());
        let through_link = two.join("sys/class/misc/rdma_cm/dev");
        assert_eq!(std::fs::read_to_string(through_link).unwrap(), "10:122\n");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&one), mode(&one.join("sys/class"))), (0o755, 0o755));
        assert_eq!(mode(&one.join(version)), 0o644);
        assert_eq!(trees.place(now, &request(&[1])).unwrap(), one);
        drop(trees);
        assert!(!root.exists());
    }

    #[test]
    fn a_text_that_has_changed_is_written_when_its_tree_is_due() {
        let directory = tempfile::tempdir().unwrap();
        let mut trees = Trees::new(directory.path().join("sys"), Access::default()).unwrap();
        let path = trees
            .place(Instant::ZERO, &request(&[0]))
            .unwrap()
            .to_owned();
        let version = || {
            let path = path.join("sys/class/infiniband_verbs/abi_version");
            std::fs::read_to_string(path).unwrap()
        };
        assert_eq!(version(), "6\n");
        let due = trees.poll_timeout().unwrap();
        assert_eq!(due, Instant::ZERO + AGE);
        trees.refresh(Instant::ZERO, |_| unreachable!()).unwrap();
        trees.refresh(due, |_| Some(View::default())).unwrap();
        assert_eq!(version(), "");
        assert_eq!(trees.poll_timeout(), Some(due + AGE));
    }
}
