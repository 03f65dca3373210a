//! The functions of the C library for sockets, as far as RDMA netlink is concerned.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

use libc::{msghdr, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};
use rustix::io::FdFlags;

use crate::descriptors::{FileKind, OpenFile};
use crate::netlink::NetlinkSocket;
use crate::real::{fail, guarded, real};
use crate::{open_files, setting, verbs};

/// The protocol of RDMA (`NETLINK_RDMA`).
const NETLINK_RDMA: c_int = 20;

/// Returns the file if a descriptor is a netlink socket of ours.
fn netlink(fd: c_int) -> Option<Arc<OpenFile>> {
    open_files::get(fd).filter(|file| file.netlink().is_some())
}

/// `socket` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_rdma = domain == libc::AF_NETLINK && protocol == NETLINK_RDMA;
    if !is_rdma || setting::verbs_socket().is_none() {
        if is_rdma {
            let _ = guarded(|| {
                verbs::note_asked();
                Ok(())
            });
        }
        return real!(c"socket", fn(
            domain => c_int, kind => c_int, protocol => c_int
        ) -> c_int, -1);
    }
    let opened = guarded(|| {
        let (program, socket) = NetlinkSocket::open()?;
        if kind & libc::SOCK_CLOEXEC == 0 {
            rustix::io::fcntl_setfd(&program, FdFlags::empty())?;
        }
        let file = OpenFile::new(&program, FileKind::Netlink(socket))?;
        open_files::insert(program.as_raw_fd(), Arc::new(file));
        Ok(program.into_raw_fd())
    });
    opened.unwrap_or_else(|error| fail(error.raw_os_error(), -1))
}

/// `bind` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    if netlink(fd).is_some() {
        return 0;
    }
    real!(c"bind", fn(
        fd => c_int, address => *const sockaddr, length => socklen_t
    ) -> c_int, -1)
}

/// `setsockopt` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if level == libc::SOL_NETLINK && netlink(fd).is_some() {
        return 0;
    }
    real!(c"setsockopt", fn(
        fd => c_int, level => c_int, name => c_int, value => *const c_void, length => socklen_t
    ) -> c_int, -1)
}

/// Returns the address of a netlink socket: that of the kernel has the port 0.
fn address(port: u32) -> sockaddr_nl {
    // SAFETY: the structure is integers only, for which zero is a value.
    let mut address: sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or_default();
    address.nl_pid = port;
    address
}

/// Bytes of such an address.
const ADDRESS_SIZE: usize = size_of::<sockaddr_nl>();

/// `getsockname` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(
    fd: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    if netlink(fd).is_none() {
        return real!(c"getsockname", fn(
            fd => c_int, to => *mut sockaddr, length => *mut socklen_t
        ) -> c_int, -1);
    }
    if to.is_null() || length.is_null() {
        return fail(libc::EFAULT, -1);
    }
    let own = address(std::process::id());
    // SAFETY: the caller has `length` bytes at `to`, and a length at `length`; no more than that is written.
    unsafe {
        let room = usize::try_from(*length).unwrap_or(0).min(ADDRESS_SIZE);
        std::ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), to.cast::<u8>(), room);
        *length = socklen_t::try_from(ADDRESS_SIZE).unwrap_or(0);
    }
    0
}

/// Sends a message of netlink.
fn sent(file: &OpenFile, message: &[u8]) -> ssize_t {
    let Some(socket) = file.netlink() else {
        return fail(libc::EBADF, -1);
    };
    match guarded(|| socket.send(message)) {
        Ok(()) => ssize_t::try_from(message.len()).unwrap_or(ssize_t::MAX),
        Err(error) => fail(error.raw_os_error(), -1),
    }
}

/// `sendmsg` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(file) = netlink(fd).filter(|_| !message.is_null()) else {
        return real!(c"sendmsg", fn(
            fd => c_int, message => *const msghdr, flags => c_int
        ) -> ssize_t, -1);
    };
    let mut bytes = Vec::new();
    // SAFETY: the caller has a message with as many parts as it says, each as long as it says.
    unsafe {
        let parts = (*message).msg_iov;
        for index in 0..(*message).msg_iovlen {
            let part = &*parts.add(index);
            if part.iov_len > 0 {
                let part = std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len);
                bytes.extend_from_slice(part);
            }
        }
    }
    sent(&file, &bytes)
}

/// `sendto` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    let Some(file) = netlink(fd).filter(|_| !buffer.is_null()) else {
        return real!(c"sendto", fn(
            fd => c_int, buffer => *const c_void, length => size_t, flags => c_int,
            to => *const sockaddr, to_length => socklen_t
        ) -> ssize_t, -1);
    };
    // SAFETY: the caller has `length` bytes at `buffer`.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) };
    sent(&file, bytes)
}

/// `recvmsg` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let is_ours = netlink(fd).is_some() && !message.is_null();
    let (mut name, mut room) = (std::ptr::null_mut::<c_void>(), 0);
    if is_ours {
        // SAFETY: the caller has a message there.
        unsafe {
            (name, room) = ((*message).msg_name, (*message).msg_namelen);
            (*message).msg_name = std::ptr::null_mut();
            (*message).msg_namelen = 0;
        }
    }
    let received = real!(c"recvmsg", fn(
        fd => c_int, message => *mut msghdr, flags => c_int
    ) -> ssize_t, -1);
    if is_ours {
        let kernel = address(0);
        let size = usize::try_from(room).unwrap_or(0).min(ADDRESS_SIZE);
        // SAFETY: the caller has `room` bytes at `name`, if it has a name at all.
        unsafe {
            (*message).msg_name = name;
            if !name.is_null() {
                std::ptr::copy_nonoverlapping((&raw const kernel).cast::<u8>(), name.cast(), size);
                (*message).msg_namelen = socklen_t::try_from(size).unwrap_or(0);
            }
        }
    }
    received
}
