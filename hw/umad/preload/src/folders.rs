//! The functions of the C library that list folders. Folders of the host in which ours are missing show these at their ends.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{DIR, dirent64};

use crate::real::{guarded, real};
use crate::{setting, tree};

/// Folders of the host, with the folders of the tree that belong there.
const ADDED: [(&[u8], &[&str]); 3] = [
    (
        b"/sys/class",
        &["infiniband", "infiniband_mad", "infiniband_verbs"],
    ),
    (b"/sys/devices", &["pci7ca0:00"]),
    (b"/dev", &["infiniband"]),
];

/// Entries that a folder shows after the host's.
struct Rest {
    names: Vec<&'static str>,
    next: usize,
    entry: Box<dirent64>,
}

// SAFETY: an entry is integers only, and is reached with the lock held, or by the thread that lists the folder.
unsafe impl Send for Rest {}

/// Folders that show more than the host has, by their streams.
static OPEN: Mutex<BTreeMap<usize, Rest>> = Mutex::new(BTreeMap::new());

/// Number of these folders, so that others cost one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn open() -> MutexGuard<'static, BTreeMap<usize, Rest>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes what a folder of the host shows more.
fn note(folder: *mut DIR, path: &[u8]) {
    if folder.is_null() || setting::socket().is_none() {
        return;
    }
    let trimmed = path.strip_suffix(b"/").unwrap_or(path);
    let Some((_, names)) = ADDED.iter().find(|(path, _)| *path == trimmed) else {
        return;
    };
    let inside =
        |name: &str| [trimmed.get(1..).unwrap_or_default(), b"/", name.as_bytes()].concat();
    let is_missing = |name: &&&str| {
        let host = [&b"/"[..], &inside(name)].concat();
        rustix::fs::stat(host.as_slice()).is_err()
    };
    let is_ours = |name: &&&str| {
        let path = inside(name);
        core::str::from_utf8(&path).is_ok_and(tree::exists)
    };
    let names = guarded(|| {
        Ok(names
            .iter()
            .filter(is_missing)
            .filter(is_ours)
            .copied()
            .collect())
    });
    let names: Vec<&str> = names.unwrap_or_default();
    if names.is_empty() {
        return;
    }
    let rest = Rest {
        names,
        next: 0,
        // SAFETY: an entry is integers only, for which zero is a value.
        entry: Box::new(unsafe { std::mem::zeroed() }),
    };
    let mut all = open();
    all.insert(folder.addr(), rest);
    COUNT.store(all.len(), Ordering::Release);
}

/// Returns the next entry of a folder after the host's, or null.
fn next(folder: *mut DIR) -> *mut dirent64 {
    let mut all = open();
    let Some(rest) = all.get_mut(&folder.addr()) else {
        return ptr::null_mut();
    };
    let Some(name) = rest.names.get(rest.next) else {
        return ptr::null_mut();
    };
    rest.next += 1;
    let entry = &mut *rest.entry;
    entry.d_ino = 1;
    entry.d_type = libc::DT_DIR;
    entry.d_reclen = u16::try_from(size_of::<dirent64>()).unwrap_or(u16::MAX);
    entry.d_name = [0; 256];
    for (to, from) in entry.d_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    entry
}

/// `opendir` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: the caller passes a string, as the C library's function demands.
    let instead = unsafe { tree::instead(libc::AT_FDCWD, path, true) };
    let given = instead
        .as_ref()
        .map_or(path, |instead| instead.path.as_ptr());
    let folder = real!(c"opendir", fn(given => *const c_char) -> *mut DIR, ptr::null_mut());
    if instead.is_none() && !path.is_null() {
        // SAFETY: as above.
        note(folder, unsafe { CStr::from_ptr(path) }.to_bytes());
    }
    folder
}

/// `fdopendir` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopendir(fd: c_int) -> *mut DIR {
    let folder = real!(c"fdopendir", fn(fd => c_int) -> *mut DIR, ptr::null_mut());
    if setting::socket().is_some()
        && let Ok(path) = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new())
    {
        note(folder, path.as_bytes());
    }
    folder
}

/// Defines functions that read the next entry of a folder.
macro_rules! readers {
    ($($name:ident, $text:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(folder: *mut DIR) -> *mut dirent64 {
            let entry = real!($text, fn(folder => *mut DIR) -> *mut dirent64, ptr::null_mut());
            if entry.is_null() && COUNT.load(Ordering::Acquire) > 0 {
                return next(folder);
            }
            entry
        }
    )*};
}

readers! {
    readdir, c"readdir";
    readdir64, c"readdir64";
}

/// `rewinddir` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rewinddir(folder: *mut DIR) {
    if COUNT.load(Ordering::Acquire) > 0
        && let Some(rest) = open().get_mut(&folder.addr())
    {
        rest.next = 0;
    }
    real!(c"rewinddir", fn(folder => *mut DIR) -> (), ());
}

/// `closedir` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(folder: *mut DIR) -> c_int {
    if COUNT.load(Ordering::Acquire) > 0 {
        let mut all = open();
        all.remove(&folder.addr());
        COUNT.store(all.len(), Ordering::Release);
    }
    real!(c"closedir", fn(folder => *mut DIR) -> c_int, -1)
}

/// The structure of `glob` (`glob.h`).
#[repr(C)]
#[derive(Debug)]
pub struct Glob {
    count: libc::size_t,
    paths: *mut *mut c_char,
    offset: libc::size_t,
    flags: c_int,
    closedir: unsafe extern "C" fn(*mut DIR) -> c_int,
    readdir: unsafe extern "C" fn(*mut DIR) -> *mut dirent64,
    opendir: unsafe extern "C" fn(*const c_char) -> *mut DIR,
    lstat: unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int,
    stat: unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int,
}

/// The caller gives the functions that read folders (`GLOB_ALTDIRFUNC`).
const OWN_FUNCTIONS: c_int = 1 << 9;

type OnError = *const std::ffi::c_void;

/// Defines functions that expand a pattern: they read folders by the functions here.
macro_rules! globs {
    ($($name:ident, $text:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pattern: *const c_char, flags: c_int, on_error: OnError, found: *mut Glob
        ) -> c_int {
            let mut flags = flags;
            if flags & OWN_FUNCTIONS == 0 && !found.is_null() && setting::socket().is_some() {
                flags |= OWN_FUNCTIONS;
                // SAFETY: the caller has the structure there, in which these members count with the flag only.
                unsafe {
                    (*found).closedir = closedir;
                    (*found).readdir = readdir64;
                    (*found).opendir = opendir;
                    (*found).lstat = crate::lookers::lstat64;
                    (*found).stat = crate::lookers::stat64;
                }
            }
            real!($text, fn(
                pattern => *const c_char, flags => c_int, on_error => OnError, found => *mut Glob
            ) -> c_int, -1)
        }
    )*};
}

globs! {
    glob, c"glob";
    glob64, c"glob64";
}
