//! libibverbs, loaded when it is first needed.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::abi::{
    AhAttr, AsyncEvent, CompChannel, Context, Cq, DeviceAttr, Mr, Opaque, PortAttr, Qp, QpAttr,
    QpInitAttr, Srq, SrqAttr, SrqInitAttr,
};

/// libibverbs cannot be loaded, or lacks a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingLibrary;

/// Returns the address of a function.
fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, MissingLibrary> {
    // SAFETY: the library is loaded and never unloaded, and the name ends with a zero byte.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    match address.is_null() {
        true => Err(MissingLibrary),
        false => Ok(address),
    }
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// Functions of libibverbs.
        #[derive(Debug)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            /// Returns functions that end a test which calls them.
            #[cfg(test)]
            pub(super) const fn of_tests() -> Self {
                Self {
                    $($name: {
                        extern "C" fn uncalled($(_: $argument),*) -> $result {
                            unreachable!()
                        }
                        uncalled
                    },)*
                }
            }

            fn load() -> Result<Self, MissingLibrary> {
                // SAFETY: the name ends with a zero byte, and the library's constructors do nothing but set it up.
                let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return Err(MissingLibrary);
                }
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let name = CStr::from_bytes_with_nul(name.as_bytes());
                        let address = symbol(library, name.map_err(|_| MissingLibrary)?)?;
                        // SAFETY: the function of this name has this type (infiniband/verbs.h).
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Opaque;
    ibv_free_device_list: fn(*mut *mut Opaque) -> ();
    ibv_get_device_name: fn(*mut Opaque) -> *const c_char;
    ibv_open_device: fn(*mut Opaque) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    ibv_ack_async_event: fn(*mut AsyncEvent) -> ();
    ibv_alloc_pd: fn(*mut Context) -> *mut Opaque;
    ibv_dealloc_pd: fn(*mut Opaque) -> c_int;
    ibv_reg_mr_iova: fn(*mut Opaque, *mut c_void, usize, u64, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_ah: fn(*mut Opaque, *mut AhAttr) -> *mut Opaque;
    ibv_destroy_ah: fn(*mut Opaque) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibv_resize_cq: fn(*mut Cq, c_int) -> c_int;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, u32) -> ();
    ibv_create_srq: fn(*mut Opaque, *mut SrqInitAttr) -> *mut Srq;
    ibv_modify_srq: fn(*mut Srq, *mut SrqAttr, c_int) -> c_int;
    ibv_query_srq: fn(*mut Srq, *mut SrqAttr) -> c_int;
    ibv_destroy_srq: fn(*mut Srq) -> c_int;
    ibv_create_qp: fn(*mut Opaque, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_query_qp: fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    ibv_attach_mcast: fn(*mut Qp, *const [u8; 16], u16) -> c_int;
    ibv_detach_mcast: fn(*mut Qp, *const [u8; 16], u16) -> c_int;
}

/// Returns libibverbs, which is never unloaded.
pub(super) fn library() -> Result<&'static Library, MissingLibrary> {
    static LIBRARY: OnceLock<Result<Library, MissingLibrary>> = OnceLock::new();
    LIBRARY
        .get_or_init(Library::load)
        .as_ref()
        .map_err(|missing| *missing)
}
