//! Signalling an eventfd without ever waiting.
//!
//! A write to an eventfd whose counter is full waits, unless the file is non-blocking; and that is a property of the
//! file, which the VMM that gave it shares and can change between any two of our calls. So where the host has
//! asynchronous I/O (`io_submit(2)`), the kernel signals it as the end of an empty read (`IOCB_FLAG_RESFD`), which
//! never waits.
//!
//! To end a context of asynchronous I/O waits for all processors of the host, some ten milliseconds. So one serves all
//! VMMs, for as long as the service runs: else a VMM that comes and goes would have the others wait.
//!
//! `unsafe`: the calls of asynchronous I/O, which no crate in use wraps.
#![expect(
    unsafe_code,
    reason = "the kernel is told addresses, of values that live through the call"
)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create, readlink};
use rustix::io::{Errno, write};

/// `IOCB_CMD_PREAD` (`linux/aio_abi.h`).
const READ: u16 = 0;

/// `IOCB_FLAG_RESFD`.
const SIGNAL_AT_END: u32 = 1;

/// Reads that may have ended and not been noted; the kernel has room for more.
const ROOM: libc::c_long = 8;

/// A request (`struct iocb`), as a little-endian host has it.
#[derive(Debug, Default)]
#[repr(C)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    signalled: u32,
}

/// The end of a request (`struct io_event`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Ended {
    data: u64,
    request: u64,
    result: i64,
    second_result: i64,
}

const _: () = {
    assert!(size_of::<Request>() == 64);
    assert!(size_of::<Ended>() == 32);
};

/// What signals the eventfds of all VMMs of a service.
#[derive(Clone, Debug)]
pub struct Signals(Arc<Signaller>);

impl Default for Signals {
    fn default() -> Self {
        Self(Arc::new(Signaller::new()))
    }
}

impl Signals {
    pub(super) fn signaller(&self) -> &Signaller {
        &self.0
    }
}

/// How eventfds are signalled.
#[derive(Debug)]
pub(super) enum Signaller {
    /// By asynchronous I/O on an empty file.
    Kernel(Context, OwnedFd),
    /// By writes, where there is none.
    Writes,
}

impl Signaller {
    pub(super) fn new() -> Self {
        let empty = memfd_create("empty", MemfdFlags::CLOEXEC);
        match (Context::new(), empty) {
            (Some(context), Ok(empty)) => Self::Kernel(context, empty),
            _ => Self::Writes,
        }
    }

    /// Sees to it that a descriptor can be signalled.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if it is no eventfd: of others, who knows what a write does.
    pub(super) fn prepare(&self, eventfd: &OwnedFd) -> Result<(), Errno> {
        let name = readlink(format!("/proc/self/fd/{}", eventfd.as_raw_fd()), Vec::new())?;
        if name.as_bytes() != b"anon_inode:[eventfd]" {
            return Err(Errno::INVAL);
        }
        match self {
            Self::Kernel(..) => Ok(()),
            Self::Writes => fcntl_setfl(eventfd, fcntl_getfl(eventfd)? | OFlags::NONBLOCK),
        }
    }

    /// Adds one to the counter of an eventfd, unless it is full.
    pub(super) fn signal(&self, eventfd: &OwnedFd) {
        match self {
            Self::Kernel(context, empty) => context.read_nothing(empty, eventfd),
            Self::Writes => {
                // The one error is that the counter is full, and the VMM not lacking a signal.
                let _ = write(eventfd.as_fd(), &1_u64.to_ne_bytes());
            }
        }
    }
}

/// Requests under way (`aio_context_t`).
#[derive(Debug)]
pub(super) struct Context(libc::c_ulong);

impl Context {
    fn new() -> Option<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number, for which there is room.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, ROOM, &raw mut context) };
        (made == 0).then_some(Self(context))
    }

    /// Reads nothing from a file, at whose end the eventfd is signalled.
    fn read_nothing(&self, file: &OwnedFd, eventfd: &OwnedFd) {
        let number = |fd: &OwnedFd| fd.as_raw_fd().unsigned_abs();
        let mut request = Request {
            opcode: READ,
            file: number(file),
            flags: SIGNAL_AT_END,
            signalled: number(eventfd),
            ..Request::default()
        };
        let mut requests = [&raw mut request];
        for _ in 0..2 {
            let one: libc::c_long = 1;
            // SAFETY: the list has one pointer to a request that lives through the call. A read of an empty file ends
            // in the call, and no byte of a buffer is touched.
            let taken =
                unsafe { libc::syscall(libc::SYS_io_submit, self.0, one, requests.as_mut_ptr()) };
            if taken == 1 {
                return;
            }
            self.note_ended();
        }
        log::error!("vfio-user: an interrupt cannot be signalled");
    }

    /// Makes room for more.
    fn note_ended(&self) {
        let mut ended = [Ended::default(); 64];
        let none = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let least: libc::c_long = 0;
        let most: libc::c_long = 64;
        // SAFETY: there is room for as many ends as are asked for, and the time lives through the call.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.0,
                least,
                most,
                ended.as_mut_ptr(),
                &raw const none,
            );
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nobody else has the context, and nothing of it is under way.
        unsafe {
            libc::syscall(libc::SYS_io_destroy, self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::read;

    use super::*;

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        read(fd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn signals_are_counted_however_many_there_are() {
        for signaller in [Signaller::new(), Signaller::Writes] {
            let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            signaller.prepare(&fd).unwrap();
            for _ in 0..10_000 {
                signaller.signal(&fd);
            }
            assert_eq!(count(&fd), 10_000);
        }
    }

    #[test]
    fn a_full_counter_of_a_blocking_file_is_not_waited_for() {
        let signaller = Signaller::new();
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        signaller.prepare(&fd).unwrap();
        if matches!(signaller, Signaller::Kernel(..)) {
            // In the worst case the VMM changes the file back.
            fcntl_setfl(&fd, OFlags::empty()).unwrap();
        }
        signaller.signal(&fd);
        signaller.signal(&fd);
        assert!(count(&fd) >= u64::MAX - 1);
    }

    #[test]
    fn only_eventfds_are_signalled() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert_eq!(Signaller::new().prepare(&file), Err(Errno::INVAL));
    }
}
