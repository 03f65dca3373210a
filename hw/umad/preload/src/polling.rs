//! Polls of completion queues that find nothing give the processor away: the service, and the peer, may wait for it.
//!
//! Programs call `ibv_poll_cq` inline, by a pointer in their context of libibverbs, so the pointer is replaced there. It is found
//! by the address of the queue, which libibverbs passes to the kernel as the queue's name, when the first queue pair is made on
//! it: then the queue has its context.

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

/// The provider's function.
static PROVIDER: AtomicUsize = AtomicUsize::new(0);

/// Completion queues of a file.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    /// Their names by their handles.
    queues: BTreeMap<u32, u64>,
    is_replaced: bool,
}

impl Polling {
    /// Takes note of a command of a file that succeeded, and its answer.
    pub(crate) fn observe(&mut self, file: RawFd, command: &Command<'_>, answer: &[u8]) {
        match command.number {
            _ if self.is_replaced => {}
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
                    self.queues.insert(made.handle.get(), name.get());
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
                let queue = self.queues.get(&attributes.send_cq_handle.get());
                self.is_replaced = queue.is_some_and(|queue| replace(file, *queue));
                if self.is_replaced {
                    self.queues.clear();
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

/// Replaces the function of the context to which a queue belongs. Returns `true` if it is replaced.
fn replace(file: RawFd, queue: u64) -> bool {
    let place = || {
        let context = read(usize::try_from(queue).ok()?)?;
        let descriptor = read(context.checked_add(FILE_AT)?)?.to_ne_bytes();
        let descriptor = RawFd::from_ne_bytes(descriptor.first_chunk().copied()?);
        let place = context.checked_add(POLL_AT)?;
        let is_context = descriptor == file && context.is_multiple_of(align_of::<usize>());
        Some((place, read(place)?)).filter(|_| is_context)
    };
    let Some((place, provider)) = place() else {
        return false;
    };
    let own = poll as *const () as usize;
    if provider == own {
        return true;
    }
    let known = PROVIDER.compare_exchange(0, provider, Ordering::AcqRel, Ordering::Acquire);
    if known.is_err_and(|known| known != provider) {
        return false;
    }
    let place: *mut usize = ptr::with_exposed_provenance_mut(place);
    // SAFETY: the place is in a context of libibverbs, which has this file; it is aligned, and other threads of the program read
    // one pointer or the other.
    unsafe { AtomicUsize::from_ptr(place) }.store(own, Ordering::Release);
    true
}

/// `poll_cq` of the provider, and a pause if it finds nothing.
///
/// # Safety
/// As of `ibv_poll_cq`.
unsafe extern "C" fn poll(queue: *mut c_void, entries: c_int, found: *mut c_void) -> c_int {
    type Poll = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
    let provider = PROVIDER.load(Ordering::Acquire);
    // SAFETY: the pointer was a provider's `poll_cq`, which has this signature; the arguments are the caller's.
    let count = unsafe {
        let provider: Poll = core::mem::transmute(provider);
        provider(queue, entries, found)
    };
    if count == 0 {
        std::thread::yield_now();
    }
    count
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
            assert!(!replace(file, name), "{file} {name:#x}");
        }
        assert_eq!(context.poll, provider);
        assert!(replace(7, name));
        let own = poll as *const () as usize;
        assert_eq!(context.poll, own);
        assert!(replace(7, name), "it is already");
        // SAFETY: the provider's function takes any arguments.
        let found = unsafe { poll(ptr::null_mut(), 1, ptr::null_mut()) };
        assert_eq!(found, 0);
    }
}
