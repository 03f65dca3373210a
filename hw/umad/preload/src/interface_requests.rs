//! Requests about interfaces (`ioctl`, netdevice(7)), as far as they are about the one of the process's VF.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;

use libc::{ifconf, ifreq};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use crate::interface::{AF_INET, Interface, NAME_SIZE, Name};
use crate::real::real;

/// Bytes of a request behind the name that hold the longest answer: an address.
const ANSWER_SIZE: usize = 16;

/// Bytes of a request.
const REQUEST_SIZE: usize = size_of::<ifreq>();

/// Returns `true` for a request that sockets of IPv4 alone answer.
const fn is_of_inet(request: c_ulong) -> bool {
    matches!(
        request,
        libc::SIOCGIFADDR | libc::SIOCGIFNETMASK | libc::SIOCGIFBRDADDR
    )
}

/// Returns the start of an answer, and how many of its bytes count. `None` for a request that is not answered by name.
fn answer(interface: &Interface, request: c_ulong) -> Option<([u8; ANSWER_SIZE], usize)> {
    let mut answer = [0; ANSWER_SIZE];
    let mut put = |bytes: &[u8]| {
        answer[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    };
    let address = |address: libc::sockaddr_in| {
        let mut bytes = [0; ANSWER_SIZE];
        bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
        bytes[4..8].copy_from_slice(&address.sin_addr.s_addr.to_ne_bytes());
        bytes
    };
    let len = match request {
        libc::SIOCGIFADDR => put(&address(interface.address())),
        libc::SIOCGIFNETMASK => put(&address(interface.netmask())),
        libc::SIOCGIFBRDADDR => put(&address(interface.broadcast())),
        libc::SIOCGIFFLAGS => {
            // The others have no place in a request.
            let [low, high, ..] = interface.flags().to_le_bytes();
            put(&u16::from_le_bytes([low, high]).to_ne_bytes())
        }
        libc::SIOCGIFMTU => put(&interface.mtu().to_ne_bytes()),
        libc::SIOCGIFINDEX => put(&interface.index.to_ne_bytes()),
        libc::SIOCGIFHWADDR => {
            // Of a longer hardware address there is the start, as from the kernel.
            let mut bytes = [0; ANSWER_SIZE];
            bytes[..2].copy_from_slice(&libc::ARPHRD_INFINIBAND.to_ne_bytes());
            bytes[2..].copy_from_slice(&interface.hardware()[..ANSWER_SIZE - 2]);
            put(&bytes)
        }
        _ => return None,
    };
    Some((answer, len))
}

/// Returns the result of a request about the VF's interface. `None` if the kernel has to answer it.
///
/// # Safety
/// `argument` is what the kernel's interface demands of the request.
pub(crate) unsafe fn answered(fd: c_int, request: c_ulong, argument: *mut c_void) -> Option<c_int> {
    if !(libc::SIOCGIFNAME..=libc::SIOCGIFINDEX).contains(&request) || argument.is_null() || fd < 0
    {
        return None;
    }
    if request == libc::SIOCGIFCONF {
        // SAFETY: by this function's contract.
        return Some(unsafe { list(fd, argument) });
    }
    // SAFETY: the number is not negative, and the descriptor is used for one call that fails if it is not open.
    let domain = socket_domain(unsafe { BorrowedFd::borrow_raw(fd) });
    let place = argument.cast::<u8>();
    if request == libc::SIOCGIFNAME {
        // SAFETY: by this function's contract a request is there; an index stands behind the name.
        let index = unsafe { place.add(NAME_SIZE).cast::<u32>().read_unaligned() };
        let interface = Interface::numbered(index).filter(|_| domain.is_ok())?;
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(interface.name.as_ptr(), place, NAME_SIZE) };
        return Some(0);
    }
    let is_socket = match is_of_inet(request) {
        true => domain == Ok(AddressFamily::INET),
        false => domain.is_ok(),
    };
    if !is_socket {
        return None;
    }
    // SAFETY: by this function's contract a request is there, which begins with a name.
    let name = unsafe { place.cast::<Name>().read_unaligned() };
    let interface = Interface::named(&name)?;
    let (bytes, len) = answer(&interface, request)?;
    // SAFETY: as above, and the answer is no longer than what stands behind the name.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.add(NAME_SIZE), len) };
    Some(0)
}

/// Lists the interfaces that have an address of IPv4: the kernel's, and the VF's where there is room for it.
///
/// # Safety
/// `argument` is a `struct ifconf`.
unsafe fn list(fd: c_int, argument: *mut c_void) -> c_int {
    let conf = argument.cast::<ifconf>();
    // SAFETY: by this function's contract.
    let room = unsafe { (*conf).ifc_len };
    let result = real!(c"ioctl", fn(
        fd => c_int, libc::SIOCGIFCONF => c_ulong, argument => *mut c_void
    ) -> c_int, -1);
    if result != 0 {
        return result;
    }
    let Some(interface) = Interface::find() else {
        return result;
    };
    // SAFETY: by this function's contract, and the buffer has the bytes that the caller said.
    unsafe { extend(conf, room, &interface) };
    result
}

/// Puts an interface behind a list, or counts it if there is no list.
///
/// # Safety
/// `conf` is a `struct ifconf` with a buffer of `room` bytes, or without one.
unsafe fn extend(conf: *mut ifconf, room: c_int, interface: &Interface) {
    let Ok(size) = c_int::try_from(REQUEST_SIZE) else {
        return;
    };
    // SAFETY: by this function's contract.
    let (len, buffer) = unsafe { ((*conf).ifc_len, (*conf).ifc_ifcu.ifcu_buf) };
    let Some(end) = len.checked_add(size) else {
        return;
    };
    if !buffer.is_null() {
        let at = usize::try_from(len).ok().filter(|_| end <= room);
        let Some((at, (address, count))) = at.zip(answer(interface, libc::SIOCGIFADDR)) else {
            return;
        };
        let mut entry = [0; REQUEST_SIZE];
        entry[..NAME_SIZE].copy_from_slice(&interface.name);
        entry[NAME_SIZE..NAME_SIZE + count].copy_from_slice(&address[..count]);
        // SAFETY: by this function's contract, and the room was compared.
        unsafe {
            ptr::copy_nonoverlapping(entry.as_ptr(), buffer.cast::<u8>().add(at), entry.len())
        };
    }
    // SAFETY: by this function's contract.
    unsafe { (*conf).ifc_len = end };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::tests::interface;

    #[test]
    fn each_request_has_its_answer() {
        let mut inet = [0; 16];
        inet[..2].copy_from_slice(&2_u16.to_ne_bytes());
        let address = |octets: [u8; 4]| {
            let mut bytes = inet;
            bytes[4..8].copy_from_slice(&octets);
            bytes.to_vec()
        };
        let mut hardware = [7; 16];
        hardware[..2].copy_from_slice(&32_u16.to_ne_bytes());
        let flags = libc::IFF_UP | libc::IFF_BROADCAST | libc::IFF_MULTICAST | libc::IFF_RUNNING;
        let flags = u16::try_from(flags).unwrap();
        for (request, expected) in [
            (libc::SIOCGIFADDR, address([10, 77, 3, 2])),
            (libc::SIOCGIFNETMASK, address([255, 255, 0, 0])),
            (libc::SIOCGIFBRDADDR, address([10, 77, 255, 255])),
            (libc::SIOCGIFFLAGS, flags.to_ne_bytes().to_vec()),
            (libc::SIOCGIFMTU, 2044_i32.to_ne_bytes().to_vec()),
            (libc::SIOCGIFINDEX, i32::MAX.to_ne_bytes().to_vec()),
            (libc::SIOCGIFHWADDR, hardware.to_vec()),
        ] {
            let (bytes, len) = answer(&interface(), request).unwrap();
            assert_eq!(bytes[..len], expected, "{request:#x}");
        }
        assert_eq!(answer(&interface(), libc::SIOCGIFDSTADDR), None);
    }

    #[test]
    fn a_list_is_extended_where_it_has_room_and_counted_where_there_is_none() {
        let mut buffer = [0_u8; 3 * REQUEST_SIZE];
        let size = i32::try_from(REQUEST_SIZE).unwrap();
        let mut lens = Vec::new();
        for (used, room, has_buffer) in [(1, 3, true), (1, 1, true), (0, 1, true), (2, 0, false)] {
            let mut conf = ifconf {
                ifc_len: used * size,
                ifc_ifcu: libc::__c_anonymous_ifc_ifcu {
                    ifcu_buf: match has_buffer {
                        true => buffer.as_mut_ptr().cast(),
                        false => ptr::null_mut(),
                    },
                },
            };
            // SAFETY: the buffer has room for three requests.
            unsafe { extend(&raw mut conf, room * size, &interface()) };
            lens.push(conf.ifc_len / size);
        }
        assert_eq!(lens, [2, 1, 1, 3]);
        for at in [0, REQUEST_SIZE] {
            let entry = &buffer[at..at + REQUEST_SIZE];
            assert_eq!(&entry[..6], b"vhca1\0");
            assert_eq!(entry[20..24], [10, 77, 3, 2]);
        }
        assert_eq!(buffer[2 * REQUEST_SIZE..], [0; REQUEST_SIZE]);
    }

    #[test]
    fn the_kernel_answers_other_requests() {
        let mut request = [0_u8; REQUEST_SIZE];
        let at = request.as_mut_ptr().cast();
        // SAFETY: a request is there.
        unsafe {
            assert_eq!(answered(0, libc::SIOCGIFMTU, at), None, "no socket");
            assert_eq!(answered(-1, libc::SIOCGIFMTU, at), None);
            assert_eq!(answered(0, libc::TIOCGWINSZ, at), None);
            assert_eq!(answered(0, libc::SIOCGIFMTU, ptr::null_mut()), None);
        }
    }
}
