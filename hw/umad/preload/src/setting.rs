//! Settings of the environment, or else of the file for programs without one.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::client_file;

/// A variable of the environment that is not empty.
fn variable(name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: the name ends with a zero byte. As with every reader of the environment, the program
    // must not change it meanwhile; what was found is copied at once.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: `getenv` gives a string that ends with a zero byte.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    (!value.is_empty()).then(|| value.to_vec())
}

/// Returns `true` if the program runs with rights that its user does not have (`AT_SECURE`).
fn is_secure() -> bool {
    // SAFETY: the call has no demands.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The service's socket. Without it the library does nothing, nor in a program with rights that its user does not have: the user
/// would choose what such a program reads.
pub(crate) fn socket() -> Option<PathBuf> {
    if is_secure() {
        return None;
    }
    match variable(c"VHCA_UMAD_SOCKET") {
        Some(path) => Some(PathBuf::from(OsStr::from_bytes(&path))),
        None => client_file::get().socket.as_ref().map(PathBuf::from),
    }
}

/// Socket of the service for programs on libibverbs, if there is one.
pub(crate) fn verbs_socket() -> Option<PathBuf> {
    let path = socket()?.with_extension("verbs");
    rustix::fs::access(&path, rustix::fs::Access::EXISTS).ok()?;
    Some(path)
}

/// The adapters that the program sees, empty for the service's choice.
pub(crate) fn nodes() -> String {
    match variable(c"VHCA_UMAD_NODE") {
        Some(nodes) => String::from_utf8_lossy(&nodes).into_owned(),
        None if variable(c"VHCA_UMAD_SOCKET").is_some() => String::new(),
        None => client_file::get().node.clone().unwrap_or_default(),
    }
}

/// Name of the device of verbs, if the environment has one that sysfs can have.
pub(crate) fn device() -> Option<String> {
    let name = String::from_utf8(variable(c"VHCA_UMAD_DEVICE")?).ok()?;
    (!name.contains('/') && name != "." && name != "..").then_some(name)
}

/// Returns `true` if the program's user wants no line about devices that a program does not have.
pub(crate) fn is_quiet() -> bool {
    variable(c"VHCA_QUIET").is_some_and(|value| value == b"1")
}
