//! Signals to an eventfd that the other end shares.
//!
//! A write to an eventfd whose counter is full waits, unless its file is non-blocking, and the other end can change that between any two
//! calls. The kernel signals it in its stead, as the end of an empty read of asynchronous I/O (`IOCB_FLAG_RESFD`), which never waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create, readlink};
use rustix::io::Errno;
use vmm_sys_util::aio::{IOCB_CMD_PREAD, IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

/// Reads that may have ended and not been noted; the kernel has room for more.
const ROOM: u32 = 8;

/// The means of signalling, for all trunks of a process: to end a context of asynchronous I/O waits for all processors of the host.
#[derive(Clone, Debug)]
pub struct Signals(Arc<Context>);

#[derive(Debug)]
struct Context {
    context: IoContext,
    /// An empty file.
    empty: OwnedFd,
}

impl Signals {
    /// Sets up asynchronous I/O.
    ///
    /// # Errors
    /// Errors of the system: [`io::ErrorKind::WouldBlock`] if the host has none left (`fs.aio-max-nr`).
    pub fn new() -> io::Result<Self> {
        let context = IoContext::new(ROOM)?;
        let empty = memfd_create("empty", MemfdFlags::CLOEXEC)?;
        Ok(Self(Arc::new(Context { context, empty })))
    }

    /// Adds one to the counter of an eventfd, unless it is full.
    ///
    /// # Errors
    /// Errors of the system: [`io::ErrorKind::InvalidInput`] for a file that is no eventfd.
    pub(crate) fn signal(&self, eventfd: &OwnedFd) -> io::Result<()> {
        let Context { context, empty } = &*self.0;
        let submit = || {
            let mut request = IoControlBlock {
                aio_fildes: number(empty.as_fd()),
                aio_lio_opcode: u16::try_from(IOCB_CMD_PREAD).unwrap_or(0),
                aio_flags: IOCB_FLAG_RESFD,
                aio_resfd: number(eventfd.as_fd()),
                ..IoControlBlock::default()
            };
            context.submit(&[&mut request]).map(drop)
        };
        submit().or_else(|_| {
            // Ended reads take room until they are noted.
            context.get_events(0, &mut [IoEvent::default(); 64], None)?;
            submit()
        })
    }
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

/// Checks that a descriptor is an eventfd.
///
/// # Errors
/// [`Errno::INVAL`] if it is none.
pub(crate) fn check(eventfd: &impl AsFd) -> Result<(), Errno> {
    let number = eventfd.as_fd().as_raw_fd();
    let name = readlink(format!("/proc/self/fd/{number}"), Vec::new())?;
    match name.as_bytes() {
        b"anon_inode:[eventfd]" => Ok(()),
        _ => Err(Errno::INVAL),
    }
}
