//! The functions of the C library that stand behind the ones here.

use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::io::Errno;

/// A function that was looked up once, or not yet.
#[derive(Debug)]
pub(crate) struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Where the function is, after this library in the order of symbols; null if nowhere.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with a zero byte; `dlsym` has no other demands.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Sets `errno` and gives the value by which functions of the C library tell of it.
pub(crate) fn fail<T>(errno: i32, value: T) -> T {
    // SAFETY: the C library gives each thread a valid place for `errno`.
    unsafe { *libc::__errno_location() = errno };
    value
}

/// Runs our part of a call. A mistake of ours must not unwind into a program, nor end it.
pub(crate) fn guarded<T>(ours: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(ours)).unwrap_or(Err(Errno::IO))
}

/// Calls a function of the C library as `fn(args) -> result`. If there is none, fails with ENOSYS, or has the value behind `else`.
macro_rules! real {
    ($name:literal, fn($($arg:expr => $ty:ty),*) -> $result:ty, else $otherwise:expr) => {{
        static SYMBOL: $crate::real::Symbol = $crate::real::Symbol::new($name);
        let address = SYMBOL.address();
        if address.is_null() {
            $otherwise
        } else {
            // SAFETY: the C library's function of that name has this signature (variadic ones are
            // called with the same registers on the machines of Linux that this is built for), and
            // the arguments are those with which a caller meant to call it.
            unsafe {
                let function: unsafe extern "C" fn($($ty),*) -> $result =
                    core::mem::transmute(address);
                function($($arg),*)
            }
        }
    }};
    ($name:literal, fn($($arg:expr => $ty:ty),*) -> $result:ty, $failed:expr) => {
        $crate::real::real!(
            $name,
            fn($($arg => $ty),*) -> $result,
            else $crate::real::fail(libc::ENOSYS, $failed)
        )
    };
}
pub(crate) use real;
