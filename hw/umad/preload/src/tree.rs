//! The service's tree of files for this process, and the places in it.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use umad_link::Purpose;

use crate::paths::{DeviceFile, Place, may_be_ours, resolve};
use crate::real::guarded;
use crate::{client, setting};

/// Time after which the service is asked for the tree anew: another process may have taken the VF that this one saw.
const AGE: Duration = Duration::from_secs(1);

/// A tree that was asked for.
#[derive(Clone)]
struct Known {
    root: Vec<u8>,
    pid: u32,
    since: Instant,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// The process has another VF: it sees another tree.
pub(crate) fn forget() {
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Returns the folder of all trees: beside the service's socket, where this process finds that.
fn folder_of_trees() -> Option<Vec<u8>> {
    let mut path = setting::socket()?.as_os_str().as_bytes().to_vec();
    path.extend_from_slice(b".sys");
    Some(path)
}

/// Returns the tree's root. The service is asked for its name.
fn root() -> Result<Vec<u8>, Errno> {
    let pid = std::process::id();
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(known) = known.filter(|known| known.pid == pid && known.since.elapsed() < AGE) {
        return Ok(known.root);
    }
    let (_, place) = client::ask(Purpose::Tree)?;
    let name = place
        .rsplit(|byte| *byte == b'/')
        .next()
        .ok_or(Errno::NOENT)?;
    let root = [&folder_of_trees().ok_or(Errno::NOENT)?, &b"/"[..], name].concat();
    let known = Known {
        root: root.clone(),
        pid,
        since: Instant::now(),
    };
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    Ok(root)
}

/// Returns the path that a path in a tree stands for. `None` if it is in no tree.
pub(crate) fn shown(path: &[u8]) -> Option<Vec<u8>> {
    let inside = path
        .strip_prefix(folder_of_trees()?.as_slice())?
        .strip_prefix(b"/")?;
    let end = inside.iter().position(|byte| *byte == b'/');
    let path = end.map_or(&b"/"[..], |end| &inside[end..]);
    Some(path.to_vec())
}

/// Returns the absolute path of a folder that a descriptor is, as the program knows it.
fn folder(directory: c_int) -> Option<Vec<u8>> {
    let path = if directory == libc::AT_FDCWD {
        rustix::process::getcwd(Vec::new())
    } else {
        let link = format!("/proc/self/fd/{directory}");
        rustix::fs::readlink(link, Vec::new())
    };
    let path = path.ok()?.into_bytes();
    Some(shown(&path).unwrap_or(path))
}

/// Returns the place that a path below a folder names, if it is ours and there is a service.
///
/// # Safety
/// `path` is null or a string that ends with a zero byte.
pub(crate) unsafe fn place(
    directory: c_int,
    path: *const c_char,
    follows: bool,
) -> Option<Result<Place, Errno>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: by this function's contract.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    // Most paths of a program end here.
    if !may_be_ours(path) || setting::socket().is_none() {
        return None;
    }
    guarded(|| Ok(found(directory, path, follows)))
        .ok()
        .flatten()
}

fn found(directory: c_int, path: &[u8], follows: bool) -> Option<Result<Place, Errno>> {
    let folder = match path {
        [b'/', ..] => Vec::new(),
        _ => folder(directory)?,
    };
    let link = |path: &str| {
        let target = rustix::fs::readlink(in_tree(path).ok()?, Vec::new());
        target.ok()?.into_string().ok()
    };
    resolve(&folder, path, follows, link).transpose()
}

/// Returns the place that a relative path names in a working folder that is in a tree.
///
/// # Safety
/// As of [`place`].
pub(crate) unsafe fn place_from_tree(path: *const c_char) -> Option<Place> {
    if path.is_null() {
        return None;
    }
    // SAFETY: by this function's contract.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.starts_with(b"/") || path.is_empty() || setting::socket().is_none() {
        return None;
    }
    let found = guarded(|| {
        let folder = rustix::process::getcwd(Vec::new())?.into_bytes();
        let is_in_tree = shown(&folder).is_some();
        Ok(is_in_tree
            .then(|| found(libc::AT_FDCWD, path, true))
            .flatten())
    });
    found.ok().flatten()?.ok()
}

/// Returns the path of the file in the tree that stands for a path below the root.
pub(crate) fn in_tree(path: &str) -> Result<CString, Errno> {
    let path = [&root()?, &b"/"[..], path.as_bytes()].concat();
    CString::new(path).map_err(|_| Errno::NOENT)
}

/// Returns `true` if a place is in the tree.
pub(crate) fn exists(path: &str) -> bool {
    in_tree(path).is_ok_and(|path| rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok())
}

/// Returns the device that a place is, if the process can have it.
pub(crate) fn device(path: &str) -> Option<DeviceFile> {
    DeviceFile::at(path).filter(|_| exists(path))
}

/// Opens a file or a folder of the tree. Where the kernel has `openat2`, no link leads outside of the tree.
pub(crate) fn open(path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(
        CString::new(root()?).map_err(|_| Errno::NOENT)?,
        folder,
        Mode::empty(),
    )?;
    let flags = flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC) | OFlags::CLOEXEC;
    open_below(root.as_fd(), path, flags)
}

fn open_below(root: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(root, path, flags, Mode::empty(), inside) {
        // Linux before 5.6, or a filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(root, path, flags, Mode::empty()),
        opened => opened,
    }
}

/// Returns the text of a file as of now.
pub(crate) fn text(path: &str) -> Result<Vec<u8>, Errno> {
    client::ask(Purpose::Attribute(path)).map(|(_, text)| text)
}

/// A path to give to the C library in place of a program's.
pub(crate) struct Instead {
    /// The path.
    pub(crate) path: CString,
    /// The device that it stands for, of which the tree has an empty file.
    pub(crate) device: Option<DeviceFile>,
}

/// Returns the path to give to the C library in place of one of ours.
///
/// # Safety
/// As of [`place`].
pub(crate) unsafe fn instead(
    directory: c_int,
    path: *const c_char,
    follows: bool,
) -> Option<Instead> {
    // SAFETY: by this function's contract.
    let place = unsafe { place(directory, path, follows) }?;
    let path = guarded(|| match place? {
        Place::Host(path) => {
            let path = CString::new(path).map_err(|_| Errno::NOENT)?;
            Ok(Instead { path, device: None })
        }
        Place::Tree(path) => Ok(Instead {
            device: device(&path),
            path: in_tree(&path)?,
        }),
    });
    let absent = |_| Instead {
        path: c"/proc/vhca-umad-absent".to_owned(),
        device: None,
    };
    Some(path.unwrap_or_else(absent))
}
