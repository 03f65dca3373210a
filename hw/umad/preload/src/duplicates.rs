//! Functions of the C library that make a descriptor from another: both are the same file.

use std::ffi::{c_int, c_ulong};
use std::sync::Arc;

use crate::descriptors::OpenFile;
use crate::open_files;
use crate::real::real;

/// Registers a copy of a descriptor, unless it was not made. Returns the copy.
fn duplicated(file: Option<Arc<OpenFile>>, copy: c_int) -> c_int {
    if let Some(file) = file.filter(|_| copy >= 0) {
        open_files::insert(copy, file);
    }
    copy
}

/// `dup` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let file = open_files::get(fd);
    duplicated(file, real!(c"dup", fn(fd => c_int) -> c_int, -1))
}

/// `dup2` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, copy: c_int) -> c_int {
    let file = open_files::get(fd);
    duplicated(
        file,
        real!(c"dup2", fn(fd => c_int, copy => c_int) -> c_int, -1),
    )
}

/// `dup3` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, copy: c_int, flags: c_int) -> c_int {
    let file = open_files::get(fd);
    duplicated(
        file,
        real!(c"dup3", fn(fd => c_int, copy => c_int, flags => c_int) -> c_int, -1),
    )
}

/// Defines the two names of `fcntl`, whose third argument a caller passes in the same register whatever its type is.
macro_rules! fcntls {
    ($($name:ident, $text:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
            let copies = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
            let file = copies.then(|| open_files::get(fd)).flatten();
            duplicated(
                file,
                real!($text, fn(fd => c_int, command => c_int, argument => c_ulong) -> c_int, -1),
            )
        }
    )*};
}

fcntls! {
    fcntl, c"fcntl";
    fcntl64, c"fcntl64";
}
