//! The network namespace of this process.

use std::ffi::c_int;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::ptr;

use libc::{ifaddrs, sockaddr_in};
use verbs_link::Namespace;

use crate::real::real;

/// Returns the network namespace of this process, with the addresses of its interfaces.
pub(crate) fn network_namespace() -> Namespace {
    let number = fs::metadata("/proc/self/ns/net").map_or(0, |file| file.ino());
    let mut list: *mut ifaddrs = ptr::null_mut();
    let place = &raw mut list;
    let result = real!(c"getifaddrs", fn(place => *mut *mut ifaddrs) -> c_int, else -1);
    let mut addresses = Vec::new();
    let mut next = list;
    while result == 0 && !next.is_null() {
        // SAFETY: the C library made the list, whose entries stay as they are until it is freed below; an address of a family has its
        // layout.
        unsafe {
            let address = (*next).ifa_addr;
            if !address.is_null() && c_int::from((*address).sa_family) == libc::AF_INET {
                let address = address.cast::<sockaddr_in>().read_unaligned();
                addresses.push(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)));
            }
            next = (*next).ifa_next;
        }
    }
    if !list.is_null() {
        real!(c"freeifaddrs", fn(list => *mut ifaddrs) -> (), else ());
    }
    addresses.retain(|address| !address.is_loopback());
    Namespace { number, addresses }
}
