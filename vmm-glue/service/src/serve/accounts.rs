//! Users and groups of this machine, by name or number.
//!
//! `unsafe`: the calls of the C library, which knows where they are kept.
#![expect(unsafe_code, reason = "no crate in use wraps these calls")]

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::process::{Gid, Uid};

/// Bytes for the strings of an entry: a group with thousands of members needs most of them.
const MAX_STRINGS: usize = 1 << 20;

/// Looks a user up. Returns `None` if there is no such user.
///
/// # Errors
/// What the system says: the directory of users may be on another host.
pub(super) fn user(text: &str) -> io::Result<Option<Uid>> {
    if let Ok(number) = text.parse::<u32>() {
        // The last number stands for no change in chown(2).
        return Ok((number != u32::MAX).then(|| Uid::from_raw(number)));
    }
    let uid = look_up(text, |name, strings| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: All pointers are to live objects of this frame, and the length is that of `strings`.
        let error = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                strings.as_mut_ptr(),
                strings.len(),
                &raw mut found,
            )
        };
        if found.is_null() {
            return (error, None);
        }
        // SAFETY: A pointer that is set is to `entry`, which is filled then.
        (error, Some(unsafe { entry.assume_init_ref() }.pw_uid))
    });
    Ok(uid?.map(Uid::from_raw))
}

/// Looks a group up. Returns `None` if there is no such group.
///
/// # Errors
/// As [`user`].
pub(super) fn group(text: &str) -> io::Result<Option<Gid>> {
    if let Ok(number) = text.parse::<u32>() {
        return Ok((number != u32::MAX).then(|| Gid::from_raw(number)));
    }
    let gid = look_up(text, |name, strings| {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: All pointers are to live objects of this frame, and the length is that of `strings`.
        let error = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                strings.as_mut_ptr(),
                strings.len(),
                &raw mut found,
            )
        };
        if found.is_null() {
            return (error, None);
        }
        // SAFETY: A pointer that is set is to `entry`, which is filled then.
        (error, Some(unsafe { entry.assume_init_ref() }.gr_gid))
    });
    Ok(gid?.map(Gid::from_raw))
}

/// Calls a look-up with room for the strings of its entry, and with more where that was too little.
fn look_up(
    name: &str,
    mut call: impl FnMut(&CString, &mut [libc::c_char]) -> (libc::c_int, Option<u32>),
) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else {
        return Ok(None);
    };
    let mut strings = vec![0; 1 << 12];
    loop {
        match call(&name, &mut strings) {
            (_, Some(id)) => return Ok(Some(id)),
            (libc::ERANGE, None) if strings.len() < MAX_STRINGS => {
                strings.resize(strings.len() * 4, 0);
            }
            // getpwnam(3) lists what systems say instead of nothing.
            (0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM, None) => return Ok(None),
            (error, None) => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        assert_eq!(user("root").unwrap(), Some(Uid::ROOT));
        assert_eq!(group("root").unwrap(), Some(Gid::ROOT));
        assert_eq!(user("4711").unwrap(), Some(Uid::from_raw(4711)));
        assert_eq!(group("4711").unwrap(), Some(Gid::from_raw(4711)));
        for none in ["", "no such account", "a\0b", "4294967295"] {
            assert_eq!(user(none).unwrap(), None, "{none:?}");
            assert_eq!(group(none).unwrap(), None, "{none:?}");
        }
    }
}
