//! A look at a program's file before it is run: whether the preload library can be loaded into it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::{getegid, geteuid};

use crate::elf::Elf;

/// Folders in which the dynamic loader looks for libraries without being given any.
const FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// Reason for which a program does not see the VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blind {
    /// It has no dynamic loader.
    Static,
    /// It is a Go program that has no dynamic loader.
    Go,
    /// Its C library is musl, whose loader ends the program if the library is to be loaded.
    Musl,
    /// It runs with rights that its user does not have, and the loader ignores the library.
    Secure(&'static str),
}

impl Blind {
    /// Returns the reason in words.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Static => "is linked statically",
            Self::Go => "is a Go program built without cgo",
            Self::Musl => "is linked with musl",
            Self::Secure(reason) => reason,
        }
    }
}

/// Properties of a program's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramFile {
    /// Reason for which it does not see the VF, if there is one.
    pub(crate) blind: Option<Blind>,
    /// `true` if it needs the runtime of AddressSanitizer, which demands to be the first library.
    pub(crate) needs_asan: bool,
}

impl ProgramFile {
    /// Looks at a program as the system would find it in a search path. A file that cannot be read has no properties, and
    /// `exec` names its error.
    pub(crate) fn look(program: &OsStr, search_path: Option<&OsStr>) -> Self {
        let found = find(program, search_path);
        found.and_then(|path| Self::of(&path)).unwrap_or_default()
    }

    fn of(path: &Path) -> Option<Self> {
        let secure = path
            .metadata()
            .ok()
            .and_then(|status| secure(path, &status));
        let blind = secure.map(Blind::Secure);
        let Some(elf) = read(path) else {
            // A program may be run that cannot be read, and a script.
            return Some(Self {
                blind,
                needs_asan: false,
            });
        };
        let without_loader = || {
            let is_loader = elf.soname.is_some();
            let kind = if elf.is_go { Blind::Go } else { Blind::Static };
            (!elf.has_interpreter && !is_loader).then_some(kind)
        };
        // The second is the name where musl is not the system's own.
        let is_musl = |name: &String| name.starts_with("libc.musl-") || name == "libc.so";
        let of_musl = || elf.needed.iter().any(is_musl).then_some(Blind::Musl);
        Some(Self {
            blind: blind.or_else(without_loader).or_else(of_musl),
            needs_asan: needs_asan(path, &elf),
        })
    }
}

/// Returns the file that the system runs.
fn find(program: &OsStr, search_path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let folders = std::env::split_paths(search_path?);
    let mut files = folders.map(|folder| folder.join(program));
    files.find(|file| {
        let status = file.metadata();
        status.is_ok_and(|status| status.is_file() && status.mode() & 0o111 != 0)
    })
}

fn read(path: &Path) -> Option<Elf> {
    let file = File::open(path).ok()?;
    Elf::read(&|offset, buffer| file.read_exact_at(buffer, offset).ok())
}

/// Returns the reason if a program runs in secure execution (`AT_SECURE`).
fn secure(path: &Path, status: &Metadata) -> Option<&'static str> {
    // The system gives no rights by a program then.
    if rustix::thread::no_new_privs() == Ok(true) {
        return None;
    }
    let mode = status.mode();
    if mode & 0o4000 != 0 && status.uid() != geteuid().as_raw() {
        return Some("is set-user-ID");
    }
    // Without the group's right to run it that bit means something else.
    if mode & 0o2010 == 0o2010 && status.gid() != getegid().as_raw() {
        return Some("is set-group-ID");
    }
    let capabilities = rustix::fs::getxattr(path, c"security.capability", &mut [0_u8; 64][..]);
    let has_capabilities = capabilities.is_ok_and(|length| length > 0);
    (has_capabilities && !geteuid().is_root()).then_some("has file capabilities")
}

/// Returns `true` if a program or one of the libraries that it names needs the runtime of AddressSanitizer.
fn needs_asan(path: &Path, elf: &Elf) -> bool {
    let is_asan =
        |name: &String| name.starts_with("libasan.") || name.starts_with("libclang_rt.asan");
    if elf.needed.iter().any(is_asan) {
        return true;
    }
    let folders = library_folders(path, elf);
    let library = |name: &String| {
        let mut places = folders.iter().map(|folder| folder.join(name));
        places.find_map(|place| read(&place))
    };
    let mut libraries = elf.needed.iter().filter_map(library);
    libraries.any(|library| library.needed.iter().any(is_asan))
}

/// Returns the folders in which the loader looks for a program's libraries.
fn library_folders(path: &Path, elf: &Elf) -> BTreeSet<PathBuf> {
    let origin = path.canonicalize().unwrap_or_default();
    let origin = origin
        .parent()
        .unwrap_or_else(|| Path::new("/"))
        .to_string_lossy();
    let named = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let run_path = elf.run_path.iter().flat_map(|folders| folders.split(':'));
    let run_path = run_path.map(|folder| {
        let folder = folder.replace("${ORIGIN}", &origin);
        folder.replace("$ORIGIN", &origin)
    });
    let others = FOLDERS.iter().copied().chain(named.split(':'));
    let all = others.map(str::to_owned).chain(run_path);
    all.filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .collect()
}
