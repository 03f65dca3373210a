//! Signalling an eventfd without ever waiting.
//!
//! A write to an eventfd whose counter is full waits, unless the file is non-blocking; and that is a property of the
//! file, which the VMM that gave it shares and can change between any two of our calls. Neither `RWF_NOWAIT` nor
//! io_uring helps: eventfds have no such write (`eventfd_write` in `fs/eventfd.c` looks at the file's flags alone). So
//! the kernel signals it as the end of an empty read of asynchronous I/O (`io_submit(2)` with `IOCB_FLAG_RESFD`),
//! which never waits. There is no other way: where the host refuses asynchronous I/O, no VMM is let in.
//!
//! To end a context of asynchronous I/O waits for all processors of the host, some ten milliseconds. So one serves all
//! VMMs, for as long as the service runs: else a VMM that comes and goes would have the others wait.
//!
//! `unsafe`: the calls of asynchronous I/O, which no crate in use wraps.
#![expect(
    unsafe_code,
    reason = "the kernel is told addresses, of values that live through the call"
)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create, readlink};
use rustix::io::{Errno, read};
use thiserror::Error;
use vhca_receiver::{PassedFd, Wakeups};

use super::memory::GuestMemory;

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

/// Why eventfds cannot be signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SignalError {
    /// All contexts of asynchronous I/O that the host may have are taken.
    #[error("io_setup: the host has no asynchronous I/O left: raise fs.aio-max-nr")]
    Exhausted,
    /// The host refuses one of the calls.
    #[error("{call}: {error}: allow asynchronous I/O (io_*) in the service's seccomp filter")]
    Refused {
        /// The call.
        call: &'static str,
        /// What it says.
        error: Errno,
    },
    /// There is no descriptor left, or no memory.
    #[error("{0}")]
    System(#[from] Errno),
}

/// The means of signalling, once for a service. It is had when it is first asked for, and asked for again while the
/// host refuses.
#[derive(Clone, Debug, Default)]
pub struct Signals(Arc<Mutex<Option<Signaller>>>);

impl Signals {
    /// Returns what signals eventfds.
    ///
    /// # Errors
    /// [`SignalError`] if the host refuses that now.
    pub fn signaller(&self) -> Result<Signaller, SignalError> {
        let mut had = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(signaller) = &*had {
            return Ok(signaller.clone());
        }
        let signaller = Signaller::new()?;
        *had = Some(signaller.clone());
        Ok(signaller)
    }
}

/// Signals the eventfds of all VMMs of a service: a context of asynchronous I/O, and the empty file that it reads.
#[derive(Clone, Debug)]
pub struct Signaller {
    context: Arc<(Context, OwnedFd)>,
    /// Those of the client whose eventfds are signalled.
    wakeups: Wakeups,
    /// Memory of the client's guest, whose posted writes come before an interrupt.
    memory: Option<GuestMemory>,
}

impl Signaller {
    fn new() -> Result<Self, SignalError> {
        let empty = memfd_create("empty", MemfdFlags::CLOEXEC)?;
        let signaller = Self {
            context: Arc::new((Context::new()?, empty)),
            wakeups: Wakeups::default(),
            memory: None,
        };
        signaller.try_out()?;
        Ok(signaller)
    }

    /// Signals an eventfd of our own: that there is a context does not tell that it may be used.
    fn try_out(&self) -> Result<(), SignalError> {
        let (context, empty) = &*self.context;
        let own = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let refused = |error| SignalError::Refused {
            call: "io_submit",
            error,
        };
        context.read_nothing(empty, &own).map_err(refused)?;
        read(&own, &mut [0; 8]).map_err(refused)?;
        Ok(())
    }

    /// Checks that a descriptor can be signalled.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if it is no eventfd.
    pub(super) fn check(&self, eventfd: &impl AsFd) -> Result<(), Errno> {
        let name = readlink(
            format!("/proc/self/fd/{}", eventfd.as_fd().as_raw_fd()),
            Vec::new(),
        )?;
        if name.as_bytes() == b"anon_inode:[eventfd]" {
            Ok(())
        } else {
            Err(Errno::INVAL)
        }
    }

    /// Shares the wake-ups of a client, whose eventfds are signalled.
    #[must_use]
    pub fn with_wakeups(self, wakeups: Wakeups) -> Self {
        Self { wakeups, ..self }
    }

    /// Makes interrupts wait for the posted writes of a guest's memory.
    #[must_use]
    pub(super) fn behind(self, memory: GuestMemory) -> Self {
        let memory = Some(memory);
        Self { memory, ..self }
    }

    /// Adds one to the counter of an eventfd, unless it is full: now, or in its turn behind posted writes or where the client's
    /// wake-ups are slow.
    pub(super) fn signal(&self, eventfd: &Arc<PassedFd>) {
        if let Some(memory) = self.memory.as_ref().filter(|memory| memory.is_guarded()) {
            let (signaller, eventfd) = (self.clone(), eventfd.clone());
            let now = memory.signal(move || signaller.wake(&eventfd));
            if let Some(signal) = now {
                signal();
            }
            return;
        }
        self.wake(eventfd);
    }

    fn wake(&self, eventfd: &Arc<PassedFd>) {
        if !self.wakeups.are_slow() {
            return self.wakeups.make(|| self.signal_now(eventfd));
        }
        let (signaller, eventfd) = (self.clone(), eventfd.clone());
        let left = self.wakeups.leave(move || signaller.signal_now(&eventfd));
        if left.is_err() {
            log::warn!("vfio-user: an interrupt is lost, since too many of its VMM wait");
        }
    }

    fn signal_now(&self, eventfd: &PassedFd) {
        let (context, empty) = &*self.context;
        if let Err(error) = context.read_nothing(empty, eventfd) {
            log::error!("vfio-user: an interrupt cannot be signalled: io_submit: {error}");
        }
    }
}

/// Requests under way (`aio_context_t`).
#[derive(Debug)]
struct Context(libc::c_ulong);

impl Context {
    fn new() -> Result<Self, SignalError> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number, for which there is room.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, ROOM, &raw mut context) };
        if made == 0 {
            return Ok(Self(context));
        }
        Err(match last_error() {
            Errno::AGAIN => SignalError::Exhausted,
            Errno::NOMEM => Errno::NOMEM.into(),
            error => SignalError::Refused {
                call: "io_setup",
                error,
            },
        })
    }

    /// Reads nothing from a file, at whose end the eventfd is signalled.
    fn read_nothing(&self, file: &OwnedFd, eventfd: &impl AsFd) -> Result<(), Errno> {
        let number = |fd: BorrowedFd<'_>| fd.as_raw_fd().unsigned_abs();
        let mut request = Request {
            opcode: READ,
            file: number(file.as_fd()),
            flags: SIGNAL_AT_END,
            signalled: number(eventfd.as_fd()),
            ..Request::default()
        };
        let mut requests = [&raw mut request];
        let mut submit = || {
            let one: libc::c_long = 1;
            // SAFETY: the list has one pointer to a request that lives through the call. A read of an empty file ends
            // in the call, and no byte of a buffer is touched.
            let taken =
                unsafe { libc::syscall(libc::SYS_io_submit, self.0, one, requests.as_mut_ptr()) };
            (taken == 1).then_some(()).ok_or_else(last_error)
        };
        submit().or_else(|_| {
            self.note_ended();
            submit()
        })
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

/// What the last call that failed said.
fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::io::write;
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    use super::*;

    /// Asks for the means of signalling on a thread that may not make a call.
    fn without(call: libc::c_long, errno: Errno, signals: &Signals) -> SignalError {
        let error = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let rules = [(call, Vec::new())].into();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, error, arch).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        let ask = || {
            apply_filter(&program).unwrap();
            signals.signaller().unwrap_err()
        };
        std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
    }

    fn signaller() -> Signaller {
        Signals::default().signaller().unwrap()
    }

    fn signalled() -> Arc<PassedFd> {
        Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap().into())
    }

    fn count(fd: &PassedFd) -> u64 {
        let mut bytes = [0; 8];
        read(fd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn signals_are_counted_however_many_there_are() {
        let signaller = signaller();
        let fd = signalled();
        signaller.check(&fd).unwrap();
        for _ in 0..10_000 {
            signaller.signal(&fd);
        }
        assert_eq!(count(&fd), 10_000);
    }

    #[test]
    fn a_full_counter_of_a_file_that_the_vmm_made_blocking_is_not_waited_for() {
        let signaller = signaller();
        let fd = signalled();
        signaller.check(&fd).unwrap();
        write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl_setfl(&fd, OFlags::empty()).unwrap();
        signaller.signal(&fd);
        signaller.signal(&fd);
        assert!(count(&fd) >= u64::MAX - 1);
    }

    #[test]
    fn a_host_that_refuses_asynchronous_io_is_asked_again() {
        let signals = Signals::default();
        let refused = without(libc::SYS_io_setup, Errno::AGAIN, &signals);
        assert_eq!(refused, SignalError::Exhausted);
        for (name, call) in [
            ("io_setup", libc::SYS_io_setup),
            ("io_submit", libc::SYS_io_submit),
        ] {
            let refused = without(call, Errno::PERM, &signals);
            let error = Errno::PERM;
            assert_eq!(refused, SignalError::Refused { call: name, error });
        }
        let fd = signalled();
        signals.signaller().unwrap().signal(&fd);
        assert_eq!(count(&fd), 1);
    }

    #[test]
    fn only_eventfds_are_signalled() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert_eq!(signaller().check(&file), Err(Errno::INVAL));
    }
}
