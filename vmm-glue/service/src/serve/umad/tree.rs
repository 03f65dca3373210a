//! Trees of files that look like sysfs and the devices: programs list their folders, follow their links and test their files for
//! existence. The preload library asks the service for the text of each file that a program opens. Programs without the library
//! read the files here, whose texts are at most [`AGE`] old.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
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

/// Files and links that are made at once, before others have their turn: each takes a tenth of a millisecond on some disks.
const STEP: usize = 8;

/// A folder with a tree for each list of devices that a program sees.
#[derive(Debug)]
pub(super) struct Trees {
    root: PathBuf,
    trees: BTreeMap<TreeId, Tree>,
}

/// A tree.
#[derive(Debug)]
struct Tree {
    path: PathBuf,
    /// Time at which its texts are compared with the devices.
    due: Instant,
    /// Entries that are made, with a hash of each file's text.
    made: Vec<(Entry, u64)>,
    /// Entries that are not made yet, with their texts, the next one last.
    missing: Vec<(Entry, String)>,
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
            trees: BTreeMap::new(),
        })
    }

    /// Where all of them are.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Begins a tree, unless there is one.
    pub(super) fn begin(&mut self, now: Instant, request: TreeRequest) -> io::Result<()> {
        if self.trees.contains_key(&request.id) {
            return Ok(());
        }
        if self.trees.len() >= MAX_TREES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let path = self.root.join(request.id.to_string());
        std::fs::create_dir(&path)?;
        let text = |entry: &Entry| request.view.text(&entry.path).unwrap_or_default();
        let entries = request.view.entries().into_iter().rev();
        let tree = Tree {
            path,
            due: now + AGE,
            made: Vec::new(),
            missing: entries.map(|entry| (entry.clone(), text(&entry))).collect(),
        };
        self.trees.insert(request.id, tree);
        Ok(())
    }

    /// Returns where a tree is that is complete.
    pub(super) fn place(&self, id: &TreeId) -> Option<&Path> {
        let tree = self.trees.get(id).filter(|tree| tree.missing.is_empty())?;
        Some(&tree.path)
    }

    /// Makes the next files of a tree that is not complete, or writes the texts that have changed in one that is due. `view`
    /// returns the devices of a tree. A tree that cannot be made is forgotten, and its name is returned with the error.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        view: impl FnOnce(&TreeId) -> Option<View>,
    ) -> Result<(), (TreeId, io::Error)> {
        let mut trees = self.trees.iter_mut();
        if let Some((id, tree)) = trees.find(|(_, tree)| !tree.missing.is_empty()) {
            let Err(error) = tree.make_some() else {
                return Ok(());
            };
            let id = id.clone();
            if let Some(tree) = self.trees.remove(&id) {
                let _ = remove(&tree.path);
            }
            return Err((id, error));
        }
        let due = self.trees.iter_mut().find(|(_, tree)| tree.due <= now);
        let Some((id, tree)) = due else { return Ok(()) };
        tree.due = now + AGE;
        let written = view(id).map_or(Ok(()), |view| tree.write(&view));
        written.map_err(|error| (id.clone(), error))
    }

    /// Returns the time at which there is something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let next = |tree: &Tree| match tree.missing.is_empty() {
            true => tree.due,
            false => Instant::ZERO,
        };
        self.trees.values().map(next).min()
    }
}

impl Drop for Trees {
    fn drop(&mut self) {
        // The next server removes it.
        let _ = remove(&self.root);
    }
}

impl Tree {
    /// Makes the next entries, which every user can read who comes past the root: the service's umask is 022.
    fn make_some(&mut self) -> io::Result<()> {
        for _ in 0..STEP {
            let Some((entry, text)) = self.missing.pop() else {
                return Ok(());
            };
            let place = self.path.join(&entry.path);
            let folders = place.ancestors().skip(1);
            let missing = folders.take_while(|folder| !folder.exists());
            for folder in missing.collect::<Vec<_>>().into_iter().rev() {
                std::fs::create_dir(folder)?;
            }
            match &entry.target {
                Some(target) => symlinkat(target.as_str(), CWD, &place)?,
                None => File::create(place)?.write_all(text.as_bytes())?,
            }
            self.made.push((entry, hash(&text)));
        }
        Ok(())
    }

    /// Writes the texts that have changed. A reader may see the old text, the new one, or the new one up to the old one's length.
    fn write(&mut self, view: &View) -> io::Result<()> {
        for (entry, known) in &mut self.made {
            if entry.target.is_some() {
                continue;
            }
            let text = view.text(&entry.path).unwrap_or_default();
            let hash = hash(&text);
            if hash != *known {
                let path = self.path.join(&entry.path);
                let file = OpenOptions::new().write(true).open(path)?;
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
            name: None,
        };
        let view = View {
            has_verbs: true,
            ..View::default()
        };
        TreeRequest { id, view }
    }

    /// Makes a tree, a few files at a time.
    fn made(trees: &mut Trees, adapters: &[u32]) -> PathBuf {
        let request = request(adapters);
        let id = request.id.clone();
        trees.begin(Instant::ZERO, request).unwrap();
        while trees.place(&id).is_none() {
            assert_eq!(trees.poll_timeout(), Some(Instant::ZERO));
            trees.advance(Instant::ZERO, |_| unreachable!()).unwrap();
        }
        trees.place(&id).unwrap().to_owned()
    }

    #[test]
    fn each_list_of_adapters_has_a_tree_of_its_own_and_all_go_with_the_server() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("sys");
        std::fs::create_dir_all(root.join("left/over")).unwrap();
        let mut trees = Trees::new(root.clone(), Access::default()).unwrap();
        assert_eq!(std::fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
        assert!(!root.join("left").exists());
        let one = made(&mut trees, &[1]);
        let two = made(&mut trees, &[1, 0]);
        assert_ne!(one, two);
        let version = "sys/class/infiniband_verbs/abi_version";
        assert!(one.join("dev/infiniband/rdma_cm").is_file());
        let through_link = two.join("sys/class/misc/rdma_cm/dev");
        assert_eq!(std::fs::read_to_string(through_link).unwrap(), "10:122\n");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&one), mode(&one.join("sys/class"))), (0o755, 0o755));
        assert_eq!(mode(&one.join(version)), 0o644);
        assert_eq!(made(&mut trees, &[1]), one);
        drop(trees);
        assert!(!root.exists());
    }

    #[test]
    fn a_text_that_has_changed_is_written_when_its_tree_is_due() {
        let directory = tempfile::tempdir().unwrap();
        let mut trees = Trees::new(directory.path().join("sys"), Access::default()).unwrap();
        let path = made(&mut trees, &[0]);
        let version = || {
            let path = path.join("sys/class/infiniband_verbs/abi_version");
            std::fs::read_to_string(path).unwrap()
        };
        assert_eq!(version(), "6\n");
        let due = trees.poll_timeout().unwrap();
        assert_eq!(due, Instant::ZERO + AGE);
        trees.advance(Instant::ZERO, |_| unreachable!()).unwrap();
        trees.advance(due, |_| Some(View::default())).unwrap();
        assert_eq!(version(), "");
        assert_eq!(trees.poll_timeout(), Some(due + AGE));
    }
}
