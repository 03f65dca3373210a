//! The functions of the C library that walk below a path: they walk in the tree, and the program's function sees its own paths.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::real::{guarded, real};
use crate::tree::instead;

/// Where the name begins in a path, and how far below the start it is (`struct FTW`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Position {
    base: c_int,
    level: c_int,
}

/// A program's function.
type Visit = unsafe extern "C" fn(*const c_char, *const c_void, c_int, *mut Position) -> c_int;

/// A walk of this thread.
#[derive(Clone, Copy)]
struct Walk<'a> {
    visit: Visit,
    /// Start of the walk as the program named it.
    named: &'a [u8],
    /// Start of the walk in the tree.
    walked: &'a [u8],
}

thread_local! {
    /// The walk that calls [`visited`], which outlives the calls.
    static WALK: Cell<*const Walk<'static>> = const { Cell::new(std::ptr::null()) };
}

/// Returns the path of a place of a walk as the program names it, and how much longer it is.
fn named(walk: &Walk<'_>, path: &[u8]) -> Option<(CString, c_int)> {
    let below = path.strip_prefix(walk.walked)?;
    let longer = i64::try_from(walk.named.len()).ok()? - i64::try_from(walk.walked.len()).ok()?;
    let path = CString::new([walk.named, below].concat()).ok()?;
    Some((path, c_int::try_from(longer).ok()?))
}

/// Calls the program's function of the walk with the program's path.
///
/// # Safety
/// As of the function of `nftw`.
unsafe extern "C" fn visited(
    path: *const c_char,
    status: *const c_void,
    kind: c_int,
    position: *mut Position,
) -> c_int {
    // SAFETY: `nftw` below has set it to a walk that lives while the C library walks.
    let Some(walk) = (unsafe { WALK.get().as_ref() }) else {
        return 0;
    };
    // SAFETY: the C library passes a string.
    let place = unsafe { CStr::from_ptr(path) }.to_bytes();
    let shown = guarded(|| Ok(named(walk, place))).ok().flatten();
    let Some((shown, longer)) = shown else {
        // SAFETY: as the C library calls.
        return unsafe { (walk.visit)(path, status, kind, position) };
    };
    // SAFETY: the C library passes the position in the path; the rest as it calls.
    unsafe {
        let mut moved = Position {
            base: (*position).base + longer,
            ..*position
        };
        (walk.visit)(shown.as_ptr(), status, kind, &raw mut moved)
    }
}

/// Defines functions that walk.
macro_rules! walks {
    ($($name:ident, $text:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            path: *const c_char, visit: Visit, descriptors: c_int, flags: c_int
        ) -> c_int {
            let follows = flags & FTW_PHYS == 0;
            // SAFETY: the caller passes a string, as the C library's function demands.
            let Some(instead) = (unsafe { instead(libc::AT_FDCWD, path, follows) }) else {
                return real!($text, fn(
                    path => *const c_char, visit => Visit, descriptors => c_int, flags => c_int
                ) -> c_int, -1);
            };
            // SAFETY: as above.
            let named = unsafe { CStr::from_ptr(path) }.to_bytes();
            let walk = Walk { visit, named, walked: instead.path.as_bytes() };
            // A program's function may walk, too.
            let outer = WALK.replace((&raw const walk).cast());
            let walked = instead.path.as_ptr();
            let result = real!($text, fn(
                walked => *const c_char, visited as Visit => Visit, descriptors => c_int, flags => c_int
            ) -> c_int, -1);
            WALK.set(outer);
            result
        }
    )*};
}

/// Links are visited and not followed (`FTW_PHYS`).
const FTW_PHYS: c_int = 1;

walks! {
    nftw, c"nftw";
    nftw64, c"nftw64";
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn none(
        _: *const c_char,
        _: *const c_void,
        _: c_int,
        _: *mut Position,
    ) -> c_int {
        0
    }

    #[test]
    fn a_place_of_a_walk_has_the_name_that_the_program_knows() {
        let walk = Walk {
            visit: none,
            named: b"/sys/class/infiniband",
            walked: b"/run/vhca/sys/1/sys/class/infiniband",
        };
        let (path, longer) = named(&walk, b"/run/vhca/sys/1/sys/class/infiniband/vhca1").unwrap();
        assert_eq!(path.as_c_str(), c"/sys/class/infiniband/vhca1");
        assert_eq!(longer, -15);
        assert_eq!(
            named(&walk, b"vhca1").map(|(path, _)| path),
            None,
            "after a change of folder"
        );
    }
}
