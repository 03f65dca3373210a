//! The functions of the C library that look at a path without opening it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{size_t, ssize_t};

use crate::descriptors::FileKind;
use crate::paths::DeviceFile;
use crate::real::real;
use crate::tree::{Instead, instead};
use crate::{open_files, status};

/// The folder of relative paths without another.
const HERE: c_int = libc::AT_FDCWD;

/// Returns `true` if flags of an `...at` function have it follow a link at the end of the path.
const fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

/// Returns the path with which the C library is asked about rights: every user may read and write a device, and the tree's files
/// are read only.
fn for_rights(instead: &Instead) -> *const c_char {
    match instead.device {
        Some(_) => c"/dev/null".as_ptr(),
        None => instead.path.as_ptr(),
    }
}

fn in_tree(instead: &Instead) -> *const c_char {
    instead.path.as_ptr()
}

/// Defines functions that look at a path below a folder.
macro_rules! lookers {
    ($($name:ident, $text:literal, ($($before:ident: $before_ty:ty),*), ($($after:ident: $after_ty:ty),*) -> $result:ty, $failed:expr, $below:expr, $follows:expr, $path:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $before_ty,)* path: *const c_char $(, $after: $after_ty)*
        ) -> $result {
            // SAFETY: the caller passes a string, as the C library's function demands.
            let instead = unsafe { instead($below, path, $follows) };
            let path = instead.as_ref().map_or(path, $path);
            real!($text, fn(
                $($before => $before_ty,)* path => *const c_char $(, $after => $after_ty)*
            ) -> $result, $failed)
        }
    )*};
}

type Entries = *mut *mut *mut c_void;
type Callback = *const c_void;

lookers! {
    scandir, c"scandir", (), (list: Entries, filter: Callback, compare: Callback) -> c_int, -1, HERE, true, in_tree;
    scandir64, c"scandir64", (), (list: Entries, filter: Callback, compare: Callback) -> c_int, -1, HERE, true, in_tree;
    chdir, c"chdir", (), () -> c_int, -1, HERE, true, in_tree;
    access, c"access", (), (mode: c_int) -> c_int, -1, HERE, true, for_rights;
    eaccess, c"eaccess", (), (mode: c_int) -> c_int, -1, HERE, true, for_rights;
    euidaccess, c"euidaccess", (), (mode: c_int) -> c_int, -1, HERE, true, for_rights;
    faccessat, c"faccessat", (directory: c_int), (mode: c_int, flags: c_int) -> c_int, -1, directory, follows(flags), for_rights;
    readlink, c"readlink", (), (buffer: *mut c_char, size: size_t) -> ssize_t, -1, HERE, false, in_tree;
    readlinkat, c"readlinkat", (directory: c_int), (buffer: *mut c_char, size: size_t) -> ssize_t, -1, directory, false, in_tree;
    __readlink_chk, c"__readlink_chk", (), (buffer: *mut c_char, size: size_t, room: size_t) -> ssize_t, -1, HERE, false, in_tree;
    __readlinkat_chk, c"__readlinkat_chk", (directory: c_int), (buffer: *mut c_char, size: size_t, room: size_t) -> ssize_t, -1, directory, false, in_tree;
    inotify_add_watch, c"inotify_add_watch", (watcher: c_int), (mask: u32) -> c_int, -1, HERE, mask & libc::IN_DONT_FOLLOW == 0, in_tree;
    getxattr, c"getxattr", (), (name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t, -1, HERE, true, in_tree;
    lgetxattr, c"lgetxattr", (), (name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t, -1, HERE, false, in_tree;
    listxattr, c"listxattr", (), (list: *mut c_char, size: size_t) -> ssize_t, -1, HERE, true, in_tree;
    llistxattr, c"llistxattr", (), (list: *mut c_char, size: size_t) -> ssize_t, -1, HERE, false, in_tree;
}

/// Fills in the status of a path by the system call, whose structure is that of `stat`: before glibc 2.33 the C library has these
/// functions under other names (`__xstat`).
fn status_of(
    directory: c_int,
    path: *const c_char,
    buffer: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the kernel checks both addresses.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, buffer, flags) };
    if result < 0 { -1 } else { 0 }
}

/// Defines functions that fill in the status of a path below a folder.
macro_rules! path_stats {
    ($($name:ident, $text:literal, ($($before:ident: $before_ty:ty),*), ($($after:ident: $after_ty:ty),*), $below:expr, $follows:expr, $flags:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $before_ty,)* path: *const c_char, buffer: *mut libc::stat $(, $after: $after_ty)*
        ) -> c_int {
            // SAFETY: the caller passes a string, as the C library's function demands.
            let instead = unsafe { instead($below, path, $follows) };
            let path = instead.as_ref().map_or(path, in_tree);
            let result = real!($text, fn(
                $($before => $before_ty,)* path => *const c_char, buffer => *mut libc::stat
                $(, $after => $after_ty)*
            ) -> c_int, else status_of($below, path, buffer, $flags));
            if let Some(device) = instead.and_then(|instead| instead.device).filter(|_| result == 0) {
                // SAFETY: the C library's function has filled the status there.
                unsafe { status::show(&mut *buffer, device) };
            }
            result
        }
    )*};
}

path_stats! {
    stat, c"stat", (), (), HERE, true, 0;
    stat64, c"stat64", (), (), HERE, true, 0;
    lstat, c"lstat", (), (), HERE, false, libc::AT_SYMLINK_NOFOLLOW;
    lstat64, c"lstat64", (), (), HERE, false, libc::AT_SYMLINK_NOFOLLOW;
    fstatat, c"fstatat", (directory: c_int), (flags: c_int), directory, follows(flags), flags;
    fstatat64, c"fstatat64", (directory: c_int), (flags: c_int), directory, follows(flags), flags;
    __xstat, c"__xstat", (version: c_int), (), HERE, true, 0;
    __xstat64, c"__xstat64", (version: c_int), (), HERE, true, 0;
    __lxstat, c"__lxstat", (version: c_int), (), HERE, false, libc::AT_SYMLINK_NOFOLLOW;
    __lxstat64, c"__lxstat64", (version: c_int), (), HERE, false, libc::AT_SYMLINK_NOFOLLOW;
    __fxstatat, c"__fxstatat", (version: c_int, directory: c_int), (flags: c_int), directory, follows(flags), flags;
    __fxstatat64, c"__fxstatat64", (version: c_int, directory: c_int), (flags: c_int), directory, follows(flags), flags;
}

/// `statx` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    buffer: *mut libc::statx,
) -> c_int {
    // SAFETY: the caller passes a string, as the C library's function demands.
    let instead = unsafe { instead(directory, path, follows(flags)) };
    let path = instead.as_ref().map_or(path, in_tree);
    let result = real!(c"statx", fn(
        directory => c_int, path => *const c_char, flags => c_int, mask => c_uint,
        buffer => *mut libc::statx
    ) -> c_int, -1);
    if let Some(device) = instead
        .and_then(|instead| instead.device)
        .filter(|_| result == 0)
    {
        // SAFETY: the C library's function has filled the status there.
        unsafe { status::show_extended(&mut *buffer, device) };
    }
    result
}

/// Defines functions that fill in the status of a descriptor.
macro_rules! descriptor_stats {
    ($($name:ident, $text:literal, ($($before:ident: $before_ty:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $before_ty,)* fd: c_int, buffer: *mut libc::stat
        ) -> c_int {
            let result = real!($text, fn(
                $($before => $before_ty,)* fd => c_int, buffer => *mut libc::stat
            ) -> c_int, else status_of(fd, c"".as_ptr(), buffer, libc::AT_EMPTY_PATH));
            let device = match open_files::get(fd).as_deref().map(|file| &file.kind) {
                Some(FileKind::Uverbs(_)) => Some(DeviceFile::Uverbs(0)),
                Some(FileKind::RdmaCm(_)) => Some(DeviceFile::RdmaCm),
                _ => None,
            };
            if let Some(device) = device.filter(|_| result == 0) {
                // SAFETY: the C library's function has filled the status there.
                unsafe { status::show(&mut *buffer, device) };
            }
            result
        }
    )*};
}

descriptor_stats! {
    fstat, c"fstat", ();
    fstat64, c"fstat64", ();
    __fxstat, c"__fxstat", (version: c_int);
    __fxstat64, c"__fxstat64", (version: c_int);
}
