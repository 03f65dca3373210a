//! The functions that take the place of those of the C library.
//!
//! Variadic functions (`open`, `ioctl`) are defined with the arguments that they can have: on the
//! machines of Linux that this is built for a caller passes them in the same registers.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use libc::{FILE, mode_t, off64_t, size_t, ssize_t};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::io::{Errno, FdFlags};
use umad_link::Purpose;

use crate::descriptors::{FileKind, OpenFile};
use crate::paths::{DeviceFile, Place};
use crate::real::{fail, guarded, real};
use crate::umad_file::UmadFile;
use crate::{client, interface_requests, open_files, rdma_cm, tree, verbs};

/// How long to wait before asking again for an `issmN` that another program has open.
const ISSM_PAUSE: Duration = Duration::from_millis(50);

/// Opens a place.
fn open_place(place: &Place, flags: c_int) -> Result<c_int, Errno> {
    let wanted = OFlags::from_bits_retain(flags.unsigned_abs());
    let keeps_on_exec = !wanted.contains(OFlags::CLOEXEC);
    let path = match place {
        Place::Tree(path) => path,
        Place::Host(path) => {
            let mode = rustix::fs::Mode::empty();
            return rustix::fs::open(path.as_slice(), wanted, mode).map(OwnedFd::into_raw_fd);
        }
    };
    let device = DeviceFile::at(path);
    let fd = match device {
        Some(DeviceFile::Uverbs(number)) => {
            return verbs::open(number, wanted).map(OwnedFd::into_raw_fd);
        }
        Some(DeviceFile::RdmaCm) => return rdma_cm::open(wanted).map(OwnedFd::into_raw_fd),
        Some(DeviceFile::Umad(number)) => client::ask(Purpose::Umad(number))?.0,
        Some(DeviceFile::IsSm(number)) => open_is_sm(number, wanted)?,
        None if wanted.intersects(OFlags::WRONLY | OFlags::RDWR) => return Err(Errno::ACCESS),
        None if wanted.intersects(OFlags::DIRECTORY | OFlags::PATH) => tree::open(path, wanted)?,
        None => match tree::text(path) {
            Ok(text) => {
                let fd = attribute(&text)?;
                let kind = FileKind::Attribute(path.clone());
                let file = Arc::new(OpenFile::new(&fd, kind)?);
                open_files::insert(fd.as_raw_fd(), file);
                fd
            }
            // A folder, or an attribute that the kernel does not let be read.
            Err(Errno::NOENT) => tree::open(path, wanted)?,
            Err(error) => return Err(error),
        },
    };
    if keeps_on_exec {
        rustix::io::fcntl_setfd(&fd, FdFlags::empty())?;
    }
    if !matches!(device, Some(DeviceFile::Umad(_))) {
        return Ok(fd.into_raw_fd());
    }
    if wanted.contains(OFlags::NONBLOCK) {
        rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)?;
    }
    let file = Arc::new(OpenFile::new(&fd, FileKind::Umad(UmadFile::new()))?);
    let fd = fd.into_raw_fd();
    open_files::insert(fd, file);
    Ok(fd)
}

/// The text of an attribute as a file: what it was when it was opened, as in sysfs it is when it is
/// first read.
fn attribute(text: &[u8]) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create(c"vhca-sysfs", MemfdFlags::CLOEXEC)?;
    replace_text(file.as_fd(), text)?;
    Ok(file)
}

/// Replaces the text of an attribute's file. Its position stays.
fn replace_text(file: BorrowedFd<'_>, text: &[u8]) -> Result<(), Errno> {
    let (mut rest, mut offset) = (text, 0);
    while !rest.is_empty() {
        let written = rustix::io::pwrite(file, rest, offset)?;
        rest = rest.get(written..).unwrap_or_default();
        offset += u64::try_from(written).map_err(|_| Errno::PROTO)?;
    }
    rustix::fs::ftruncate(file, offset)
}

/// Defines the functions that read at an offset: at the start of an attribute they give its text as it is now, as in sysfs.
macro_rules! readers_at {
    ($($name:ident, $text:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t
        ) -> ssize_t {
            if offset == 0
                && let Some((file, borrowed)) = ours(fd)
                && let Some(path) = file.attribute()
            {
                // A program that may no longer ask the service reads the last text.
                let _ = guarded(|| replace_text(borrowed, &tree::text(path)?));
            }
            real!($text, fn(
                fd => c_int, buffer => *mut c_void, count => size_t, offset => off64_t
            ) -> ssize_t, -1)
        }
    )*};
}

readers_at! {
    pread, c"pread";
    pread64, c"pread64";
}

/// Only one program has a port's `issmN` open; as in the kernel the next one waits, unless it said
/// that it does not want to.
fn open_is_sm(number: u32, flags: OFlags) -> Result<OwnedFd, Errno> {
    loop {
        match client::ask(Purpose::IsSm(number)) {
            Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => {
                std::thread::sleep(ISSM_PAUSE);
            }
            other => return other.map(|(connection, _)| connection),
        }
    }
}

/// What the functions around `open` do with a path below a folder.
///
/// # Safety
/// `path` is null or a string that ends with a zero byte.
unsafe fn opened(directory: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    let follows = flags & libc::O_NOFOLLOW == 0;
    // SAFETY: by this function's contract.
    let mut place = unsafe { tree::place(directory, path, follows) };
    if place.is_none() && directory == libc::AT_FDCWD {
        // SAFETY: as above.
        place = unsafe { tree::place_from_tree(path) }.map(Ok);
    }
    let place = place?;
    let result = guarded(|| {
        let opened = open_place(&place?, flags);
        if opened.is_err() {
            // SAFETY: by this function's contract; without a path there is no place.
            verbs::note_opened(unsafe { CStr::from_ptr(path) }.to_bytes());
        }
        opened
    });
    Some(result.unwrap_or_else(|error| fail(error.raw_os_error(), -1)))
}

/// Defines functions that open a path.
macro_rules! openers {
    ($($name:ident, $text:literal, $below:expr, ($($before:ident: $before_ty:ty),*), ($($after:ident: $after_ty:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $before_ty,)* path: *const c_char, flags: c_int, $($after: $after_ty),*
        ) -> c_int {
            // SAFETY: the caller passes a string, as the C library's function demands.
            match unsafe { opened($below, path, flags) } {
                Some(fd) => fd,
                None => real!($text, fn(
                    $($before => $before_ty,)* path => *const c_char, flags => c_int
                    $(, $after => $after_ty)*
                ) -> c_int, -1),
            }
        }
    )*};
}

openers! {
    open, c"open", libc::AT_FDCWD, (), (mode: mode_t);
    open64, c"open64", libc::AT_FDCWD, (), (mode: mode_t);
    __open_2, c"__open_2", libc::AT_FDCWD, (), ();
    __open64_2, c"__open64_2", libc::AT_FDCWD, (), ();
    openat, c"openat", directory, (directory: c_int), (mode: mode_t);
    openat64, c"openat64", directory, (directory: c_int), (mode: mode_t);
    __openat_2, c"__openat_2", directory, (directory: c_int), ();
    __openat64_2, c"__openat64_2", directory, (directory: c_int), ();
}

/// The flags of `open` that a stream's mode asks for.
///
/// # Safety
/// `mode` is null or a string that ends with a zero byte.
unsafe fn stream_flags(mode: *const c_char) -> c_int {
    if mode.is_null() {
        return libc::O_RDONLY;
    }
    // SAFETY: by this function's contract.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    match mode {
        _ if mode.contains(&b'+') => libc::O_RDWR,
        [b'w' | b'a', ..] => libc::O_WRONLY,
        _ => libc::O_RDONLY,
    }
}

/// Makes a stream of a descriptor, which it owns from here. Without a stream the descriptor is closed.
///
/// # Safety
/// `mode` is null or a string that ends with a zero byte, and nobody else has the descriptor.
unsafe fn stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: by this function's contract.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.is_null() {
        open_files::remove(fd);
        // SAFETY: by this function's contract.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    stream
}

/// Defines functions that open a path as a stream.
macro_rules! stream_openers {
    ($($name:ident, $text:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: the caller passes two strings, as the C library's function demands.
            match unsafe { opened(libc::AT_FDCWD, path, stream_flags(mode)) } {
                None => real!($text, fn(
                    path => *const c_char, mode => *const c_char
                ) -> *mut FILE, std::ptr::null_mut()),
                Some(fd) if fd < 0 => std::ptr::null_mut(),
                // SAFETY: the descriptor was opened for this stream.
                Some(fd) => unsafe { stream(fd, mode) },
            }
        }
    )*};
}

stream_openers! {
    fopen, c"fopen";
    fopen64, c"fopen64";
}

/// Returns the file of ours that a descriptor is, and the descriptor.
pub(crate) fn ours(fd: c_int) -> Option<(Arc<OpenFile>, BorrowedFd<'static>)> {
    let file = open_files::get(fd)?;
    // SAFETY: the table has the file under this number, so it is not negative; if the program
    // closes it meanwhile, calls on it fail as those of its own would.
    Some((file, unsafe { BorrowedFd::borrow_raw(fd) }))
}

/// `read` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    let ours = ours(fd).filter(|(file, _)| file.umad().is_some());
    let Some((file, borrowed)) = ours else {
        return real!(c"read", fn(
            fd => c_int, buffer => *mut c_void, count => size_t
        ) -> ssize_t, -1);
    };
    if buffer.is_null() {
        return fail(libc::EFAULT, -1);
    }
    let read = guarded(|| file.umad().ok_or(Errno::BADF)?.read(borrowed, count));
    let (bytes, result) = match read {
        Ok(found) => found,
        Err(error) => return fail(error.raw_os_error(), -1),
    };
    let length = bytes.len().min(count);
    // SAFETY: the caller has `count` bytes at `buffer`, and `length` is no more; the bytes are ours,
    // so the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>(), length) };
    match result {
        Ok(()) => ssize_t::try_from(length).unwrap_or(ssize_t::MAX),
        Err(error) => fail(error.raw_os_error(), -1),
    }
}

/// `__read_chk` of the C library: `read` in programs that were built with fortification.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    room: size_t,
) -> ssize_t {
    if open_files::get(fd).is_some() && count <= room {
        // SAFETY: as the caller's.
        return unsafe { read(fd, buffer, count) };
    }
    real!(c"__read_chk", fn(
        fd => c_int, buffer => *mut c_void, count => size_t, room => size_t
    ) -> ssize_t, -1)
}

/// `write` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    let is_written = |file: &OpenFile| {
        file.umad().is_some() || file.uverbs().is_some() || file.rdma_cm().is_some()
    };
    let ours = ours(fd).filter(|(file, _)| is_written(file));
    let Some((file, borrowed)) = ours else {
        return real!(c"write", fn(
            fd => c_int, buffer => *const c_void, count => size_t
        ) -> ssize_t, -1);
    };
    let Ok(written) = ssize_t::try_from(count) else {
        return fail(libc::EINVAL, -1);
    };
    if buffer.is_null() {
        return fail(libc::EFAULT, -1);
    }
    // SAFETY: the caller has `count` bytes at `buffer`, and leaves them alone during the call.
    let message = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), count) };
    let done = guarded(|| match &file.kind {
        // SAFETY: the caller's command names memory as the kernel's interface demands.
        FileKind::Uverbs(file) => unsafe { file.write(borrowed, message) },
        // SAFETY: as above.
        FileKind::RdmaCm(file) => unsafe { rdma_cm::write(file, message) },
        FileKind::Umad(file) => file.write(borrowed, message),
        FileKind::Channel(_) | FileKind::Netlink(_) | FileKind::Attribute(_) => Err(Errno::BADF),
    });
    match done {
        Ok(()) => written,
        Err(error) => fail(error.raw_os_error(), -1),
    }
}

/// `ioctl` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let ours = ours(fd);
    if ours
        .as_ref()
        .is_some_and(|(file, _)| file.uverbs().is_some())
    {
        // Programs use the other form of commands then.
        return fail(libc::ENOTTY, -1);
    }
    if ours.is_none() {
        // SAFETY: the caller passes what the kernel's interface demands of the request.
        if let Some(result) = unsafe { interface_requests::answered(fd, request, argument) } {
            return result;
        }
    }
    let Some((file, borrowed)) = ours.filter(|(file, _)| file.umad().is_some()) else {
        return real!(c"ioctl", fn(
            fd => c_int, request => c_ulong, argument => *mut c_void
        ) -> c_int, -1);
    };
    let request = u32::try_from(request).ok();
    let known = request.and_then(|request| Some((request, UmadFile::argument_size(request)?)));
    let Some((request, size)) = known else {
        return fail(libc::ENOTTY, -1);
    };
    let given = if size == 0 {
        &[]
    } else if argument.is_null() {
        return fail(libc::EFAULT, -1);
    } else {
        // SAFETY: the caller of this request has an argument of its size there.
        unsafe { std::slice::from_raw_parts(argument.cast::<u8>().cast_const(), size) }
    };
    let given = given.to_vec();
    let done = guarded(|| {
        let file = file.umad().ok_or(Errno::BADF)?;
        file.ioctl(borrowed, request, &given)
    });
    let (result, reply) = match done {
        Ok(done) => done,
        Err(error) => return fail(error.raw_os_error(), -1),
    };
    if size > 0 {
        // SAFETY: as above, and the reply has the argument's size: `UmadFile::ioctl` gives no other.
        unsafe { std::ptr::copy_nonoverlapping(reply.as_ptr(), argument.cast::<u8>(), size) };
    }
    match result {
        Ok(()) => 0,
        Err(error) => fail(error.raw_os_error(), -1),
    }
}

/// `close` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    open_files::remove(fd);
    real!(c"close", fn(fd => c_int) -> c_int, -1)
}
