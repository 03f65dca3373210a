//! Polls of completion queues that find nothing give the processor away: the service, and the peer, may wait for it.
//!
//! Programs call `ibv_poll_cq` inline, by a pointer in their context of libibverbs, so the pointer is replaced there. It is found
//! by the address of the queue, which libibverbs passes to the kernel as the queue's name, when the first queue pair is made on
//! it: then the queue has its context. An extended queue has pointers of its own.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs_link::Command;
use verbs_link::abi::command;
use verbs_link::abi::completion_queue::{CreateCq, ExtendedCreateCq};
use verbs_link::abi::memory::HandleAnswer;
use verbs_link::abi::queue_pair::{CreateQp, ExtendedCreateQp};
use zerocopy::FromBytes;

/// Offset of `ops.poll_cq` in `struct ibv_context`.
const POLL_AT: usize = 96;

/// Offset of `cmd_fd` there.
const FILE_AT: usize = 264;

/// Offset of `handle` in `struct ibv_cq`.
const HANDLE_AT: usize = 24;

/// Offset of `start_poll` in `struct ibv_cq_ex`.
const START_POLL_AT: usize = 144;

/// The provider's `poll_cq`.
static POLL_OF_PROVIDER: AtomicUsize = AtomicUsize::new(0);

/// The provider's `start_poll`.
static START_POLL_OF_PROVIDER: AtomicUsize = AtomicUsize::new(0);

/// A completion queue that no queue pair has been made on.
#[derive(Clone, Copy, Debug)]
struct Queue {
    name: u64,
    is_extended: bool,
}

/// Completion queues of a file.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    /// By their handles.
    queues: BTreeMap<u32, Queue>,
    is_replaced: bool,
}

impl Polling {
    /// Takes note of a command of a file that succeeded, and its answer.
    pub(crate) fn observe(&mut self, file: RawFd, command: &Command<'_>, answer: &[u8]) {
        match command.number {
            command::CREATE_CQ => {
                let name = if command.extended {
                    command
                        .read::<ExtendedCreateCq>()
                        .map(|(create, _)| create.user_handle)
                } else {
                    command
                        .read::<CreateCq>()
                        .map(|(create, _)| create.user_handle)
                };
                if let (Ok(name), Ok((made, _))) = (name, HandleAnswer::read_from_prefix(answer)) {
                    let queue = Queue {
                        name: name.get(),
                        is_extended: command.extended,
                    };
                    self.queues.insert(made.handle.get(), queue);
                }
            }
            command::CREATE_QP => {
                let attributes = if command.extended {
                    command
                        .read::<ExtendedCreateQp>()
                        .map(|(create, _)| create.attributes)
                } else {
                    command
                        .read::<CreateQp>()
                        .map(|(create, _)| create.attributes)
                };
                let Ok(attributes) = attributes else { return };
                for handle in [attributes.send_cq_handle, attributes.recv_cq_handle] {
                    if let Some(queue) = self.queues.remove(&handle.get()) {
                        self.is_replaced = self.is_replaced || replace_poll(file, queue.name);
                        if queue.is_extended {
                            replace_start_poll(file, queue.name, handle.get());
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// Reads a word of this process. A program may have given its queue any name, so the address may be none.
fn read(address: usize) -> Option<usize> {
    let mut word = 0_usize;
    let to = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: size_of::<usize>(),
    };
    let from = libc::iovec {
        iov_base: ptr::with_exposed_provenance_mut(address),
        iov_len: size_of::<usize>(),
    };
    // SAFETY: the kernel checks both places, and writes to the word here alone.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    (usize::try_from(read) == Ok(size_of::<usize>())).then_some(word)
}

/// Reads a number of 32 bits of this process.
fn read_u32(address: usize) -> Option<u32> {
    let bytes = read(address)?.to_ne_bytes();
    bytes.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Returns the address of the context with a file, to which a queue belongs.
fn context_of(file: RawFd, queue: u64) -> Option<usize> {
    let context = read(usize::try_from(queue).ok()?)?;
    let descriptor = read_u32(context.checked_add(FILE_AT)?)?;
    (descriptor == file.cast_unsigned()).then_some(context)
}

/// Replaces the function of the context to which a queue belongs. Returns `true` if it is replaced.
fn replace_poll(file: RawFd, queue: u64) -> bool {
    let place = context_of(file, queue).and_then(|context| context.checked_add(POLL_AT));
    let own = poll as *const () as usize;
    // SAFETY: the place is in a context of libibverbs, which has this file; `poll` has the pointer's signature.
    place.is_some_and(|place| unsafe { replace(place, own, &POLL_OF_PROVIDER) })
}

/// Replaces the function of an extended queue. Returns `true` if it is replaced.
fn replace_start_poll(file: RawFd, queue: u64, handle: u32) -> bool {
    let place = || {
        context_of(file, queue)?;
        let queue = usize::try_from(queue).ok()?;
        let has_handle = read_u32(queue.checked_add(HANDLE_AT)?)? == handle;
        has_handle.then_some(queue.checked_add(START_POLL_AT)?)
    };
    let own = start_poll as *const () as usize;
    // SAFETY: the place is in an extended queue of libibverbs, which has this handle; `start_poll` has the pointer's signature.
    place().is_some_and(|place| unsafe { replace(place, own, &START_POLL_OF_PROVIDER) })
}

/// Replaces a pointer to a function of the provider, which is remembered. Returns `true` if it is replaced.
///
/// # Safety
/// There is a pointer at the place, if it can be read, and a function at `own` has its signature.
unsafe fn replace(place: usize, own: usize, of_provider: &AtomicUsize) -> bool {
    let Some(provider) = read(place).filter(|_| place.is_multiple_of(align_of::<usize>())) else {
        return false;
    };
    if provider == own {
        return true;
    }
    let known = of_provider.compare_exchange(0, provider, Ordering::AcqRel, Ordering::Acquire);
    if provider == 0 || known.is_err_and(|known| known != provider) {
        return false;
    }
    let place: *mut usize = ptr::with_exposed_provenance_mut(place);
    // SAFETY: by this function's contract; it is aligned, and other threads of the program read one pointer or the other.
    unsafe { AtomicUsize::from_ptr(place) }.store(own, Ordering::Release);
    true
}

thread_local! {
    /// The thread's last poll found nothing.
    static WAS_EMPTY: Cell<bool> = const { Cell::new(false) };
}

/// Yields the processor after the second poll in a row without a completion. A program that waits for events polls once without
/// one before it sleeps, and is not delayed.
fn polled(is_empty: bool) {
    if WAS_EMPTY.replace(is_empty) && is_empty {
        std::thread::yield_now();
    }
}

/// `poll_cq` of the provider, and a pause if it finds nothing again.
///
/// # Safety
/// As of `ibv_poll_cq`.
unsafe extern "C" fn poll(queue: *mut c_void, entries: c_int, found: *mut c_void) -> c_int {
    type Poll = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
    let provider = POLL_OF_PROVIDER.load(Ordering::Acquire);
    // SAFETY: the pointer was a provider's `poll_cq`, which has this signature; the arguments are the caller's.
    let count = unsafe {
        let provider: Poll = core::mem::transmute(provider);
        provider(queue, entries, found)
    };
    polled(count == 0);
    count
}

/// `start_poll` of the provider, and a pause if it finds nothing again.
///
/// # Safety
/// As of `ibv_start_poll`.
unsafe extern "C" fn start_poll(queue: *mut c_void, attributes: *mut c_void) -> c_int {
    type StartPoll = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
    let provider = START_POLL_OF_PROVIDER.load(Ordering::Acquire);
    // SAFETY: the pointer was a provider's `start_poll`, which has this signature; the arguments are the caller's.
    let result = unsafe {
        let provider: StartPoll = core::mem::transmute(provider);
        provider(queue, attributes)
    };
    polled(result == libc::ENOENT);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As much of `struct ibv_context` as is looked at.
    #[repr(C)]
    struct Context {
        before: [usize; POLL_AT / 8],
        poll: usize,
        between: [usize; (FILE_AT - POLL_AT) / 8 - 1],
        file: c_int,
    }

    unsafe extern "C" fn finds_nothing(_: *mut c_void, _: c_int, _: *mut c_void) -> c_int {
        0
    }

    #[test]
    fn the_function_of_a_context_with_the_file_is_replaced_and_no_other() {
        let provider = finds_nothing as *const () as usize;
        let mut context = Context {
            before: [0; POLL_AT / 8],
            poll: provider,
            between: [0; (FILE_AT - POLL_AT) / 8 - 1],
            file: 7,
        };
        let queue = [(&raw mut context).expose_provenance()];
        let name = queue.as_ptr().expose_provenance() as u64;
        for (file, name) in [(8, name), (7, 0), (7, 0x5555), (7, u64::MAX)] {
            assert!(!replace_poll(file, name), "{file} {name:#x}");
        }
        assert_eq!(context.poll, provider);
        assert!(replace_poll(7, name));
        let own = poll as *const () as usize;
        assert_eq!(context.poll, own);
        assert!(replace_poll(7, name), "it is already");
        // SAFETY: the provider's function takes any arguments.
        let found = unsafe { poll(ptr::null_mut(), 1, ptr::null_mut()) };
        assert_eq!(found, 0);
    }

    /// As much of `struct ibv_cq_ex` as is looked at.
    #[repr(C)]
    struct ExtendedQueue {
        context: usize,
        before: [usize; HANDLE_AT / 8 - 1],
        handle: u32,
        between: [usize; (START_POLL_AT - HANDLE_AT) / 8 - 1],
        start_poll: usize,
    }

    unsafe extern "C" fn is_empty(_: *mut c_void, _: *mut c_void) -> c_int {
        libc::ENOENT
    }

    #[test]
    fn the_function_of_an_extended_queue_with_the_handle_is_replaced_and_no_other() {
        let mut context = Context {
            before: [0; POLL_AT / 8],
            poll: 0,
            between: [0; (FILE_AT - POLL_AT) / 8 - 1],
            file: 7,
        };
        let mut queue = ExtendedQueue {
            context: (&raw mut context).expose_provenance(),
            before: [0; HANDLE_AT / 8 - 1],
            handle: 3,
            between: [0; (START_POLL_AT - HANDLE_AT) / 8 - 1],
            start_poll: 0,
        };
        let name = (&raw mut queue).expose_provenance() as u64;
        assert!(!replace_start_poll(7, name, 3), "without a function");
        queue.start_poll = is_empty as *const () as usize;
        for (file, handle) in [(8, 3), (7, 4)] {
            assert!(!replace_start_poll(file, name, handle));
        }
        assert!(replace_start_poll(7, name, 3));
        let own = start_poll as *const () as usize;
        assert_eq!(queue.start_poll, own);
        assert!(!replace_poll(7, name), "a context without a function");
        // SAFETY: the provider's function takes any arguments.
        let found = unsafe { start_poll(ptr::null_mut(), ptr::null_mut()) };
        assert_eq!(found, libc::ENOENT);
    }
}
