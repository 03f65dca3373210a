//! The functions of the C library that give a path back: one of the tree is given as the program knows it.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use libc::size_t;
use rustix::io::Errno;

use crate::paths::Place;
use crate::real::{fail, real};
use crate::tree;

/// The folder of relative paths.
const HERE: libc::c_int = libc::AT_FDCWD;

/// Returns a path without links in it, for a path of ours.
///
/// # Safety
/// `path` is null or a string that ends with a zero byte.
unsafe fn canonical(path: *const c_char) -> Option<Result<Place, Errno>> {
    // SAFETY: by this function's contract.
    let place = unsafe { tree::place(HERE, path, true) };
    // SAFETY: as above.
    let place = place.or_else(|| unsafe { tree::place_from_tree(path) }.map(Ok))?;
    Some(match place {
        Ok(Place::Tree(path)) if !tree::exists(&path) => Err(Errno::NOENT),
        place => place,
    })
}

/// `realpath` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: the caller passes a string, as the C library's function demands.
    let place = match unsafe { canonical(path) } {
        None => None,
        Some(Err(error)) => return fail(error.raw_os_error(), ptr::null_mut()),
        Some(Ok(place)) => Some(place),
    };
    let host = match place {
        Some(Place::Tree(path)) => {
            let Ok(path) = CString::new(format!("/{path}")) else {
                return fail(libc::ENOENT, ptr::null_mut());
            };
            // SAFETY: the string ends with a zero byte.
            return unsafe { give(&path, resolved) };
        }
        Some(Place::Host(path)) => CString::new(path).ok(),
        None => None,
    };
    let path = host.as_ref().map_or(path, |host| host.as_ptr());
    real!(c"realpath", fn(
        path => *const c_char, resolved => *mut c_char
    ) -> *mut c_char, ptr::null_mut())
}

/// Copies a path to a caller's buffer, or to memory that the caller frees.
///
/// # Safety
/// `to` is null, or has room for `PATH_MAX` bytes.
unsafe fn give(path: &CStr, to: *mut c_char) -> *mut c_char {
    let bytes = path.to_bytes_with_nul();
    if bytes.len() > libc::PATH_MAX.unsigned_abs() as usize {
        return fail(libc::ENAMETOOLONG, ptr::null_mut());
    }
    if to.is_null() {
        // SAFETY: the string ends with a zero byte.
        return unsafe { libc::strdup(path.as_ptr()) };
    }
    // SAFETY: by this function's contract, and the length was compared.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len()) };
    to
}

/// `__realpath_chk` of the C library: `realpath` in programs that were built with fortification.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    resolved: *mut c_char,
    room: size_t,
) -> *mut c_char {
    // SAFETY: the caller passes a string, as the C library's function demands.
    if room >= libc::PATH_MAX.unsigned_abs() as usize && unsafe { canonical(path) }.is_some() {
        // SAFETY: as the caller's.
        return unsafe { realpath(path, resolved) };
    }
    real!(c"__realpath_chk", fn(
        path => *const c_char, resolved => *mut c_char, room => size_t
    ) -> *mut c_char, ptr::null_mut())
}

/// `canonicalize_file_name` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: as the caller's.
    unsafe { realpath(path, ptr::null_mut()) }
}

/// Replaces a path in the tree by the shorter one for which it stands.
///
/// # Safety
/// `path` is null or a string that ends with a zero byte and may be written.
unsafe fn show(path: *mut c_char) -> *mut c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: by this function's contract.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if let Some(shown) = tree::shown(bytes) {
        // SAFETY: the path was longer by the root of the tree.
        unsafe {
            ptr::copy_nonoverlapping(shown.as_ptr().cast(), path, shown.len());
            *path.add(shown.len()) = 0;
        }
    }
    path
}

/// `getcwd` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getcwd(buffer: *mut c_char, size: size_t) -> *mut c_char {
    let path = real!(c"getcwd", fn(
        buffer => *mut c_char, size => size_t
    ) -> *mut c_char, ptr::null_mut());
    // SAFETY: the C library gives a string in memory of the caller's.
    unsafe { show(path) }
}

/// `__getcwd_chk` of the C library: `getcwd` in programs that were built with fortification.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __getcwd_chk(
    buffer: *mut c_char,
    size: size_t,
    room: size_t,
) -> *mut c_char {
    let path = real!(c"__getcwd_chk", fn(
        buffer => *mut c_char, size => size_t, room => size_t
    ) -> *mut c_char, ptr::null_mut());
    // SAFETY: as above.
    unsafe { show(path) }
}

/// `get_current_dir_name` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_current_dir_name() -> *mut c_char {
    let path = real!(
        c"get_current_dir_name",
        fn() -> *mut c_char,
        ptr::null_mut()
    );
    // SAFETY: as above.
    unsafe { show(path) }
}
