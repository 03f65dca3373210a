//! A device without a host, for tests.

use core::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use super::abi::{CompChannel, Context, Mr, Opaque};
use super::library::Library;
use super::resources::Device;

static LIBRARY: Library = Library {
    ibv_close_device: close_device,
    ibv_destroy_comp_channel: destroy_comp_channel,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr_iova: reg_mr_iova,
    ibv_dereg_mr: dereg_mr,
    ..Library::of_tests()
};

impl Device {
    /// Returns a device with protection domains and regions, and nothing else.
    pub(crate) fn fake() -> Self {
        Self {
            library: &LIBRARY,
            context: NonNull::dangling(),
            channel: NonNull::dangling(),
        }
    }
}

extern "C" fn close_device(_: *mut Context) -> c_int {
    0
}

extern "C" fn destroy_comp_channel(_: *mut CompChannel) -> c_int {
    0
}

extern "C" fn alloc_pd(_: *mut Context) -> *mut Opaque {
    NonNull::dangling().as_ptr()
}

extern "C" fn dealloc_pd(_: *mut Opaque) -> c_int {
    0
}

extern "C" fn reg_mr_iova(
    pd: *mut Opaque,
    addr: *mut c_void,
    length: usize,
    _: u64,
    _: c_int,
) -> *mut Mr {
    static KEYS: AtomicU32 = AtomicU32::new(0x100);

    let key = KEYS.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(Box::new(Mr {
        context: null_mut(),
        pd,
        addr,
        length,
        handle: 0,
        lkey: key,
        rkey: key,
    }))
}

extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: it was made above, and is deregistered once.
    drop(unsafe { Box::from_raw(mr) });
    0
}
