//! The IP interface of the process's VF, which comes behind the interfaces that the process has of the kernel.

use std::ffi::{c_char, c_int, c_uint};
use std::net::Ipv4Addr;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libc::{in_addr, sockaddr_in};
use verbs_link::InterfaceLayout;

use crate::real::{guarded, real};
use crate::{setting, verbs};

/// Bytes of a name with the zero byte at its end (`IFNAMSIZ`).
pub(crate) const NAME_SIZE: usize = libc::IFNAMSIZ;

/// Index of the interface, unless the kernel has another interface there: the next lower one that is free then.
const INDEX: c_uint = c_int::MAX.unsigned_abs();

/// Lowest index that is tried.
const LOWEST_INDEX: c_uint = INDEX - 16;

/// Time after which the service is asked anew: another process may have taken the VF that this one saw.
const AGE: Duration = Duration::from_secs(1);

/// Name of an interface, and zero bytes.
pub(crate) type Name = [u8; NAME_SIZE];

/// An interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interface {
    /// Name of the VF's device.
    pub(crate) name: Name,
    /// Number that no interface of the kernel has.
    pub(crate) index: c_uint,
    layout: InterfaceLayout,
}

/// An answer of the service.
#[derive(Clone, Copy)]
struct Known {
    layout: Option<InterfaceLayout>,
    pid: u32,
    /// The process had a VF. With it, it sees another interface.
    has_vf: bool,
    since: Instant,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// Returns the service's answer, which may be as old as [`AGE`].
fn ask() -> Option<InterfaceLayout> {
    let (pid, has_vf) = (std::process::id(), verbs::had_session());
    let known = *KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_valid = |known: &Known| (known.pid, known.has_vf) == (pid, has_vf);
    if let Some(known) = known.filter(|known| is_valid(known) && known.since.elapsed() < AGE) {
        return known.layout;
    }
    let layout = guarded(|| Ok(verbs::ask_interface())).ok().flatten();
    let known = Known {
        layout,
        pid,
        has_vf,
        since: Instant::now(),
    };
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    layout
}

/// Returns a name with the zero bytes behind it. `None` if it is too long for an interface.
fn padded(text: &[u8]) -> Option<Name> {
    let mut name = [0; NAME_SIZE];
    let place = name[..NAME_SIZE - 1].get_mut(..text.len())?;
    place.copy_from_slice(text);
    Some(name)
}

/// Returns the name that an interface of this process has, if there may be one. No service is asked.
fn own_name() -> Option<Name> {
    setting::verbs_socket()?;
    guarded(|| Ok(padded(verbs::device_name().as_bytes())))
        .ok()
        .flatten()
}

/// Returns `true` if the kernel has an interface of this name.
fn is_name_of_kernel(name: &Name) -> bool {
    let name = name.as_ptr().cast::<c_char>();
    real!(c"if_nametoindex", fn(name => *const c_char) -> c_uint, else 0) != 0
}

/// Returns `true` if the kernel has an interface of this index.
fn is_index_of_kernel(index: c_uint) -> bool {
    let mut name: Name = [0; NAME_SIZE];
    let found = real!(c"if_indextoname", fn(
        index => c_uint, name.as_mut_ptr().cast() => *mut c_char
    ) -> *mut c_char, else ptr::null_mut());
    !found.is_null()
}

impl Interface {
    /// Returns the interface of the VF that the process has, or sees. `None` without one, and if the kernel has one of its name.
    pub(crate) fn find() -> Option<Self> {
        let name = own_name()?;
        let layout = ask()?;
        if is_name_of_kernel(&name) {
            return None;
        }
        let mut indices = (LOWEST_INDEX..=INDEX).rev();
        let index = indices.find(|index| !is_index_of_kernel(*index))?;
        Some(Self {
            name,
            index,
            layout,
        })
    }

    /// The same if its name is this one, which ends with a zero byte or with its place. Other names cost no question.
    pub(crate) fn named(text: &[u8]) -> Option<Self> {
        let text = text.split(|byte| *byte == 0).next()?;
        own_name().filter(|name| padded(text) == Some(*name))?;
        Self::find()
    }

    /// The same if its index is this one.
    pub(crate) fn numbered(index: c_uint) -> Option<Self> {
        if !(LOWEST_INDEX..=INDEX).contains(&index) {
            return None;
        }
        Self::find().filter(|interface| interface.index == index)
    }

    /// Returns the address.
    pub(crate) const fn address(&self) -> sockaddr_in {
        let [a, b, c, d] = self.layout.address;
        socket_address(Ipv4Addr::new(a, b, c, d))
    }

    /// Returns the mask of the network.
    pub(crate) fn netmask(&self) -> sockaddr_in {
        socket_address(self.layout.netmask())
    }

    /// Returns the broadcast address of the network.
    pub(crate) fn broadcast(&self) -> sockaddr_in {
        socket_address(self.layout.broadcast())
    }

    /// Returns the hardware address.
    pub(crate) const fn hardware(&self) -> &[u8; 20] {
        &self.layout.hardware
    }

    /// Returns the bytes of the longest IP packet.
    pub(crate) fn mtu(&self) -> c_int {
        c_int::try_from(self.layout.mtu.get()).unwrap_or(c_int::MAX)
    }

    /// Returns the flags (`IFF_*`).
    pub(crate) const fn flags(&self) -> c_int {
        let up = libc::IFF_UP | libc::IFF_BROADCAST | libc::IFF_MULTICAST;
        match self.layout.is_running {
            0 => up,
            _ => up | libc::IFF_RUNNING | libc::IFF_LOWER_UP,
        }
    }
}

/// Returns an address for the C library.
const fn socket_address(address: Ipv4Addr) -> sockaddr_in {
    sockaddr_in {
        sin_family: AF_INET,
        sin_port: 0,
        sin_addr: in_addr {
            s_addr: address.to_bits().to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// The family of IPv4 as addresses have it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the constant is 2, and constants are not converted otherwise"
)]
pub(crate) const AF_INET: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An interface with the address 10.77.3.2/16.
    pub(crate) fn interface() -> Interface {
        Interface {
            name: padded(b"vhca1").unwrap(),
            index: INDEX,
            layout: InterfaceLayout {
                address: [10, 77, 3, 2],
                prefix: 16,
                is_running: 1,
                mtu: 2044.into(),
                hardware: [7; 20],
                ..InterfaceLayout::default()
            },
        }
    }

    #[test]
    fn names_leave_room_for_their_zero_byte() {
        assert_eq!(padded(b"123456789012345").unwrap()[15], 0);
        assert_eq!(padded(b"1234567890123456"), None);
    }

    #[test]
    fn an_interface_runs_while_its_port_is_in_the_broadcast_group() {
        let mut interface = interface();
        assert_ne!(interface.flags() & libc::IFF_RUNNING, 0);
        interface.layout.is_running = 0;
        assert_eq!(interface.flags() & libc::IFF_RUNNING, 0);
        assert_ne!(interface.flags() & libc::IFF_UP, 0);
    }

    #[test]
    fn the_kernel_has_the_loopback_interface_and_not_the_highest_index() {
        assert!(is_name_of_kernel(&padded(b"lo").unwrap()));
        assert!(!is_name_of_kernel(&interface().name));
        assert!(!is_index_of_kernel(INDEX));
    }
}
