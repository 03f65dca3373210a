//! Trees of files that look like sysfs and the devices: programs list their folders, follow their links and test their files for
//! existence. The preload library asks the service for the text of each file that a program opens. Programs without the library
//! read the files here, whose texts are at most [`AGE`] old.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ib_vtime::{Duration, Instant};
use linux_abi::sysfs::{Entry, View};
use rustix::fs::{AtFlags, CWD, linkat, renameat, symlinkat};
use rustix::process::Uid;
use umad_link::{TreeId, TreeRequest};

use crate::serve::access::Access;

/// Trees at one time. A tree has some hundred files.
const MAX_TREES: usize = 1024;

/// Trees that programs of one user had made first: a program chooses its adapters and the name of its device, and so makes trees at
/// will.
const MAX_OF_USER: usize = MAX_TREES / 4;

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
    /// User whose program asked for it first.
    user: Uid,
    /// Time at which its texts are compared with the devices.
    due: Instant,
    /// Hashes of the texts, by hashes of the paths: the service holds some ten kilobytes for a tree.
    texts: BTreeMap<u64, u64>,
    /// Entries that are not made yet, with their texts, the next one last.
    missing: Vec<(Entry, String)>,
    /// The last file that was made without a text.
    empty: Option<PathBuf>,
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

    /// Begins a tree for a user's program, unless there is one.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        user: Uid,
        request: TreeRequest,
    ) -> io::Result<()> {
        if self.trees.contains_key(&request.id) {
            return Ok(());
        }
        let of_user = self.trees.values().filter(|tree| tree.user == user);
        if self.trees.len() >= MAX_TREES || of_user.count() >= MAX_OF_USER {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let path = self.root.join(request.id.to_string());
        std::fs::create_dir(&path)?;
        let text = |entry: &Entry| stored(&request.view, &entry.path);
        let entries = request.view.entries().into_iter().rev();
        let tree = Tree {
            path,
            user,
            due: now + AGE,
            texts: BTreeMap::new(),
            missing: entries.map(|entry| (entry.clone(), text(&entry))).collect(),
            empty: None,
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
                None => self.make_file(&entry, &place, &text)?,
            }
            if entry.target.is_none() {
                self.texts.insert(hash(&entry.path), hash(&text));
            }
        }
        Ok(())
    }

    /// Makes a file. Those without a text in a folder are one file: of some hundred entries of an adapter's tables few are used, and
    /// names are made in a fraction of the time of files.
    fn make_file(&mut self, entry: &Entry, place: &Path, text: &str) -> io::Result<()> {
        if !text.is_empty() {
            return create(entry, place, text);
        }
        let empty = self.empty.take();
        let beside = empty.filter(|empty| empty.parent() == place.parent());
        let linked = beside.is_some_and(|empty| {
            let linked = linkat(CWD, &empty, CWD, place, AtFlags::empty());
            linked.is_ok()
        });
        self.empty = Some(place.to_owned());
        // A file has so many names at most, and a kernel may refuse them.
        if linked {
            Ok(())
        } else {
            create(entry, place, text)
        }
    }

    /// Puts files with new texts in the places of those whose texts have changed: a reader sees the old text or the new one.
    fn write(&mut self, view: &View) -> io::Result<()> {
        let files = view.entries().into_iter();
        for entry in files.filter(|entry| entry.target.is_none()) {
            let text = stored(view, &entry.path);
            let hashed = hash(&text);
            let known = self.texts.get_mut(&hash(&entry.path));
            if let Some(known) = known.filter(|known| **known != hashed) {
                let place = self.path.join(&entry.path);
                let next = place.with_file_name(".next");
                // One that could not be moved would be in the way.
                let _ = std::fs::remove_file(&next);
                create(&entry, &next, &text)?;
                renameat(CWD, &next, CWD, &place)?;
                *known = hashed;
            }
        }
        Ok(())
    }
}

/// Returns the text that a file of the tree holds: none for an empty entry of a table, since a file with a text takes a page, and an
/// adapter has some hundred such entries.
fn stored(view: &View, path: &str) -> String {
    let text = view.text(path).unwrap_or_default();
    let is_of_table = path.contains("/gids/") || path.contains("/pkeys/");
    let is_empty = is_of_table && text.bytes().all(|byte| b"0x:\n".contains(&byte));
    if is_empty { String::new() } else { text }
}

fn create(entry: &Entry, place: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(entry.mode());
    file.open(place)?.write_all(text.as_bytes())
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

    use ib_wire::smp::{NodeType, PortInfo};
    use ib_wire::{Gid, Guid, PKey, PortNum};
    use umad_link::sysfs::{Ca, CaPort};
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
    fn made(trees: &mut Trees, request: TreeRequest) -> PathBuf {
        let id = request.id.clone();
        trees.begin(Instant::ZERO, Uid::ROOT, request).unwrap();
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
        let one = made(&mut trees, request(&[1]));
        let two = made(&mut trees, request(&[1, 0]));
        assert_ne!(one, two);
        let version = "sys/class/infiniband_verbs/abi_version";
        assert!(one.join("dev/infiniband/rdma_cm").is_file());
        let through_link = two.join("sys/class/misc/rdma_cm/dev");
        assert_eq!(std::fs::read_to_string(through_link).unwrap(), "10:122\n");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&one), mode(&one.join("sys/class"))), (0o755, 0o755));
        assert_eq!(mode(&one.join(version)), 0o444);
        assert_eq!(made(&mut trees, request(&[1])), one);
        drop(trees);
        assert!(!root.exists());
    }

    /// Returns a view with one adapter, whose port has a partition key and empty places.
    fn view(pkey: PKey) -> View {
        let port = CaPort {
            number: PortNum(1),
            info: PortInfo::default(),
            gids: vec![Gid::NONE; 2],
            pkeys: vec![pkey, PKey::INVALID],
            counters: Vec::new(),
        };
        let adapter = Ca {
            node_type: NodeType::CA,
            node_guid: Guid::new(1),
            system_image_guid: Guid::new(1),
            description: "H-1".to_owned(),
            firmware: "1".to_owned(),
            revision: 0,
            device_id: 4099,
            ports: vec![port],
        };
        View {
            devices: umad_link::sysfs::devices(&[adapter]),
            has_verbs: true,
        }
    }

    #[test]
    fn a_text_that_has_changed_is_written_when_its_tree_is_due() {
        let directory = tempfile::tempdir().unwrap();
        let mut trees = Trees::new(directory.path().join("sys"), Access::default()).unwrap();
        let mut request = request(&[0]);
        request.view = view(PKey::DEFAULT_FULL);
        let path = made(&mut trees, request);
        let read = |file: &str| {
            let port = "sys/class/infiniband/vhca0/ports/1";
            std::fs::read_to_string(path.join(port).join(file)).unwrap()
        };
        assert_eq!(read("pkeys/0"), "0xffff\n");
        for empty in ["pkeys/1", "gids/0", "gid_attrs/types/0"] {
            assert_eq!(read(empty), "", "an empty place takes no page: {empty}");
        }
        let due = trees.poll_timeout().unwrap();
        assert_eq!(due, Instant::ZERO + AGE);
        trees.advance(Instant::ZERO, |_| unreachable!()).unwrap();
        trees
            .advance(due, |_| Some(view(PKey::new(0x8001))))
            .unwrap();
        assert_eq!(read("pkeys/0"), "0x8001\n");
        assert_eq!(read("lid"), "0x0\n");
        assert_eq!(trees.poll_timeout(), Some(due + AGE));
    }

    #[test]
    fn empty_places_of_a_table_are_one_file_until_one_has_a_text() {
        let directory = tempfile::tempdir().unwrap();
        let mut trees = Trees::new(directory.path().join("sys"), Access::default()).unwrap();
        let mut request = request(&[0]);
        let with_gids = |gids: [Gid; 3]| {
            let mut view = view(PKey::DEFAULT_FULL);
            view.devices[0].ports[0].1.gids = gids.to_vec();
            view
        };
        request.view = with_gids([Gid::NONE; 3]);
        let gids = made(&mut trees, request).join("sys/class/infiniband/vhca0/ports/1/gids");
        let inode = |entry: &str| std::fs::metadata(gids.join(entry)).unwrap().ino();
        assert_eq!((inode("0"), inode("0")), (inode("1"), inode("2")));
        let gid = Gid([0xfe; 16]);
        let view = with_gids([Gid::NONE, gid, Gid::NONE]);
        trees.advance(Instant::ZERO + AGE, |_| Some(view)).unwrap();
        let text = |entry: &str| std::fs::read_to_string(gids.join(entry)).unwrap();
        assert!(text("1").starts_with("fefe:"), "{}", text("1"));
        assert_eq!((text("0"), text("2")), (String::new(), String::new()));
        let names = std::fs::read_dir(&gids).unwrap().count();
        assert_eq!(names, 3, "nothing is left of the change");
    }

    #[test]
    fn the_programs_of_a_user_do_not_use_all_trees_up() {
        let directory = tempfile::tempdir().unwrap();
        let mut trees = Trees::new(directory.path().join("sys"), Access::default()).unwrap();
        let mut begin = |user, number| {
            let begun = trees.begin(Instant::ZERO, user, request(&[number]));
            begun.map_err(|error| error.kind())
        };
        let most = u32::try_from(MAX_OF_USER).unwrap();
        for number in 0..most {
            assert_eq!(begin(Uid::ROOT, number), Ok(()));
        }
        assert_eq!(begin(Uid::ROOT, most), Err(io::ErrorKind::StorageFull));
        assert_eq!(begin(Uid::ROOT, 0), Ok(()), "it is there");
        assert_eq!(begin(Uid::from_raw(1), most), Ok(()));
    }
}
