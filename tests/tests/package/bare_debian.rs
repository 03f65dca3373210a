//! A bare Debian in a folder: the essential packages of this machine, and what a package depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// Database of the packages of a machine.
const DATABASE: &str = "var/lib/dpkg";

/// Files that belong to no package.
const UNOWNED: [&str; 10] = [
    "/bin",
    "/lib",
    "/lib64",
    "/sbin",
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/ld.so.cache",
    "/var/lib/dpkg/info/format",
];

/// Folders that programs expect.
const FOLDERS: [&str; 7] = [
    "dev",
    "proc",
    "root",
    "run",
    "tmp",
    "var/lib/dpkg/updates",
    "var/lib/dpkg/triggers",
];

/// Enters the root that is the first argument, in namespaces of mounts and processes that end with it.
const ENTER: &str = r#"mount --rbind /dev "$1/dev" || exit 1
mount -t proc proc "$1/proc" 2>/dev/null || mount --rbind /proc "$1/proc" || exit 1
exec chroot "$1" bash -e /story"#;

/// Packages of this machine by name, each with its entry in the database.
type Packages = BTreeMap<String, String>;

/// A root with nothing but essential packages.
#[derive(Debug)]
pub(crate) struct BareDebian {
    root: TempDir,
}

/// Returns the value of a field of an entry.
fn field<'e>(entry: &'e str, name: &str) -> &'e str {
    let value = |line: &'e str| line.strip_prefix(name)?.strip_prefix(": ");
    entry.lines().find_map(value).unwrap_or_default()
}

/// Returns the names in a list of dependencies: alternatives of each, without versions and architectures.
fn names(list: &str) -> impl Iterator<Item = Vec<String>> {
    let name = |name: &str| {
        name.split(['(', ':'])
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let named = |name: &String| !name.is_empty();
    list.split(',')
        .map(move |one| one.split('|').map(name).filter(named).collect())
}

fn installed() -> Packages {
    let status = fs::read_to_string(Path::new("/").join(DATABASE).join("status")).unwrap();
    let entries = status.split("\n\n").map(str::trim);
    let entries = entries.filter(|entry| field(entry, "Status").ends_with(" installed"));
    entries
        .map(|entry| (field(entry, "Package").to_owned(), entry.to_owned()))
        .collect()
}

/// Returns the essential packages, others by name, and all that they depend on.
fn closure(packages: &Packages, others: &str) -> BTreeSet<String> {
    let essential = packages
        .iter()
        .filter(|(_, entry)| field(entry, "Essential") == "yes");
    let mut wanted: Vec<String> = essential.map(|(name, _)| name.clone()).collect();
    let provider = |name: &String| {
        let provides =
            |entry: &String| names(field(entry, "Provides")).any(|all| all.contains(name));
        let provider = packages.iter().find(|(_, entry)| provides(entry));
        provider.map(|(name, _)| name.clone())
    };
    let first = |alternatives: Vec<String>| {
        let mut alternatives = alternatives.into_iter();
        alternatives.find_map(|name| match packages.contains_key(&name) {
            true => Some(name),
            false => provider(&name),
        })
    };
    wanted.extend(names(others).filter_map(&first));
    let mut found = BTreeSet::new();
    while let Some(name) = wanted.pop() {
        let entry = &packages[&name];
        if found.insert(name) {
            for list in ["Pre-Depends", "Depends"] {
                wanted.extend(names(field(entry, list)).filter_map(&first));
            }
        }
    }
    found
}

/// Returns the path of a file in the folder that really has it: /bin is a link to /usr/bin.
fn real(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?.canonicalize().ok()?;
    let real = folder.join(path.file_name()?);
    real.symlink_metadata().ok().map(|_| real)
}

/// Returns all files of packages, and what the database has of them.
fn files(names: &BTreeSet<String>) -> BTreeSet<PathBuf> {
    let info = Path::new("/").join(DATABASE).join("info");
    let mut found: BTreeSet<PathBuf> = UNOWNED.iter().map(PathBuf::from).collect();
    for entry in fs::read_dir(info).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if !names.contains(name.split(':').next().unwrap()) {
            continue;
        }
        if path.extension().is_some_and(|ending| ending == "list") {
            let list = fs::read_to_string(&path).unwrap();
            found.extend(list.lines().map(PathBuf::from));
        }
        found.insert(path);
    }
    found.iter().filter_map(|path| real(path)).collect()
}

impl BareDebian {
    /// Makes the root from the packages of this machine: the essential ones, those in a list of dependencies, and what
    /// they depend on. Returns the reason where that cannot be done.
    pub(crate) fn new(dependencies: &str) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can make a root of its own".to_owned());
        }
        let unshare = ["--mount", "--pid", "--fork", "true"];
        match Command::new("unshare").args(unshare).status() {
            Ok(status) if status.success() => {}
            outcome => return Err(format!("namespaces cannot be had: {outcome:?}")),
        }
        let packages = installed();
        let names = closure(&packages, dependencies);
        let root = tempfile::Builder::new()
            .prefix("vhca-debian")
            .tempdir()
            .unwrap();
        let list: Vec<u8> = files(&names)
            .iter()
            .flat_map(|path| [&path.as_os_str().as_encoded_bytes()[1..], &b"\0"[..]].concat())
            .collect();
        let list_file = root.path().join("list");
        fs::write(&list_file, list).unwrap();
        let copy = "tar -C / --null --no-recursion -T \"$1/list\" -cf - | tar -C \"$1\" -xf -";
        let copied = Command::new("bash")
            .args(["-o", "pipefail", "-c", copy, "bash"])
            .arg(root.path())
            .output()
            .unwrap();
        assert!(copied.status.success(), "{copied:?}");
        fs::remove_file(list_file).unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for folder in FOLDERS {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let entries: Vec<&str> = names.iter().map(|name| &*packages[name]).collect();
        let status = root.path().join(DATABASE).join("status");
        fs::write(status, entries.join("\n\n") + "\n").unwrap();
        Ok(Self { root })
    }

    /// Puts a file into the root.
    pub(crate) fn put(&self, file: &Path, place: &str) {
        fs::copy(file, self.root.path().join(place)).unwrap();
    }

    /// Runs a script of bash in the root, which ends at the first command that fails.
    pub(crate) fn run(&self, story: &str) -> Output {
        fs::write(self.root.path().join("story"), story).unwrap();
        Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                ENTER,
                "sh",
            ])
            .arg(self.root.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .output()
            .unwrap()
    }
}
