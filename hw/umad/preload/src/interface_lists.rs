//! The functions of the C library that list interfaces, and that name them.
//!
//! Memory that the C library allocated goes back to the C library alone. Entries and arrays of this library are known by the address
//! that a program frees.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{if_nameindex as NameIndex, ifaddrs, sockaddr, sockaddr_in, sockaddr_ll};

use crate::interface::{Interface, NAME_SIZE, Name};
use crate::real::{fail, real};

/// Words of the statistics of an interface (`struct rtnl_link_stats`), which count nothing here.
const STATISTICS: usize = 24;

/// An address of `AF_PACKET` with room for a hardware address of InfiniBand, as the C library's lists have it.
#[repr(C)]
struct LinkAddress {
    start: sockaddr_ll,
    rest: [u8; 12],
}

/// The entries of a list that are of this library, with everything that they point to.
#[repr(C)]
struct Entries {
    link: ifaddrs,
    inet: ifaddrs,
    name: Name,
    hardware: LinkAddress,
    statistics: [u32; STATISTICS],
    address: sockaddr_in,
    netmask: sockaddr_in,
    broadcast: sockaddr_in,
}

/// Entries at the end of a list that a program has.
struct Owned(*mut Entries);

// SAFETY: the entries are the program's until it frees the list, which it may do in any thread.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the pointer is that of the box in `Owned::new`, which nothing else frees.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// An array of names that a program has.
struct Names {
    array: Box<[NameIndex]>,
    /// The names to which the array points.
    _names: Box<[Name]>,
}

// SAFETY: the array is the program's until it frees it, which it may do in any thread.
unsafe impl Send for Names {}

/// Ends of lists by the addresses of the first entries of the lists.
static LISTS: Mutex<BTreeMap<usize, Owned>> = Mutex::new(BTreeMap::new());

/// Arrays by their addresses.
static ARRAYS: Mutex<BTreeMap<usize, Names>> = Mutex::new(BTreeMap::new());

fn locked<T>(map: &'static Mutex<T>) -> MutexGuard<'static, T> {
    // The map is whole whatever happened to the thread that held it.
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Owned {
    fn new(interface: &Interface) -> Self {
        let hardware = interface.hardware();
        let (start, rest) = hardware.split_at(8);
        let mut link = LinkAddress {
            start: sockaddr_ll {
                sll_family: u16::try_from(libc::AF_PACKET).unwrap_or_default(),
                sll_protocol: 0,
                sll_ifindex: interface.index.cast_signed(),
                sll_hatype: libc::ARPHRD_INFINIBAND,
                sll_pkttype: 0,
                sll_halen: u8::try_from(hardware.len()).unwrap_or_default(),
                sll_addr: [0; 8],
            },
            rest: [0; 12],
        };
        link.start.sll_addr.copy_from_slice(start);
        link.rest.copy_from_slice(rest);
        let entry = || ifaddrs {
            ifa_next: ptr::null_mut(),
            ifa_name: ptr::null_mut(),
            ifa_flags: interface.flags().unsigned_abs(),
            ifa_addr: ptr::null_mut(),
            ifa_netmask: ptr::null_mut(),
            ifa_ifu: ptr::null_mut(),
            ifa_data: ptr::null_mut(),
        };
        let entries = Box::into_raw(Box::new(Entries {
            link: entry(),
            inet: entry(),
            name: interface.name,
            hardware: link,
            statistics: [0; STATISTICS],
            address: interface.address(),
            netmask: interface.netmask(),
            broadcast: interface.broadcast(),
        }));
        // SAFETY: the box was made above, and these are the first pointers to its parts.
        unsafe {
            let name = (&raw mut (*entries).name).cast::<c_char>();
            (*entries).link.ifa_next = &raw mut (*entries).inet;
            (*entries).link.ifa_name = name;
            (*entries).link.ifa_addr = (&raw mut (*entries).hardware).cast::<sockaddr>();
            (*entries).link.ifa_data = (&raw mut (*entries).statistics).cast();
            (*entries).inet.ifa_name = name;
            (*entries).inet.ifa_addr = (&raw mut (*entries).address).cast::<sockaddr>();
            (*entries).inet.ifa_netmask = (&raw mut (*entries).netmask).cast::<sockaddr>();
            (*entries).inet.ifa_ifu = (&raw mut (*entries).broadcast).cast::<sockaddr>();
        }
        Self(entries)
    }

    /// Returns the first entry.
    const fn first(&self) -> *mut ifaddrs {
        // The entries begin with it.
        self.0.cast()
    }
}

/// Puts an interface behind a list. Returns the list.
///
/// # Safety
/// `list` is null or a list of interfaces that nothing else uses.
unsafe fn chain(list: *mut ifaddrs, interface: &Interface) -> *mut ifaddrs {
    let owned = Owned::new(interface);
    let first = owned.first();
    let head = if list.is_null() { first } else { list };
    let mut last = list;
    // SAFETY: by this function's contract each entry is there, or null.
    unsafe {
        while !last.is_null() && !(*last).ifa_next.is_null() {
            last = (*last).ifa_next;
        }
        if !last.is_null() {
            (*last).ifa_next = first;
        }
    }
    // An entry that is replaced is of a list that the program freed past this library.
    locked(&LISTS).insert(head.addr(), owned);
    head
}

/// Takes the end of this library off a list, and frees it. Returns the C library's part, which may be null.
///
/// # Safety
/// `list` is null or a list of interfaces that nothing else uses.
unsafe fn unchain(list: *mut ifaddrs) -> *mut ifaddrs {
    let Some(owned) = locked(&LISTS).remove(&list.addr()) else {
        return list;
    };
    let first = owned.first();
    if list == first {
        return ptr::null_mut();
    }
    let mut last = list;
    // SAFETY: by this function's contract each entry is there, or null.
    unsafe {
        while !last.is_null() && (*last).ifa_next != first {
            last = (*last).ifa_next;
        }
        if !last.is_null() {
            (*last).ifa_next = ptr::null_mut();
        }
    }
    list
}

/// `getifaddrs` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getifaddrs(list: *mut *mut ifaddrs) -> c_int {
    let result = real!(c"getifaddrs", fn(list => *mut *mut ifaddrs) -> c_int, -1);
    if result == 0
        && let Some(interface) = Interface::find()
    {
        // SAFETY: the C library has stored a list there, which is the caller's from its return on.
        unsafe { *list = chain(*list, &interface) };
    }
    result
}

/// `freeifaddrs` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freeifaddrs(list: *mut ifaddrs) {
    // SAFETY: the caller gives a list back, which it uses no longer.
    let list = unsafe { unchain(list) };
    if !list.is_null() {
        real!(c"freeifaddrs", fn(list => *mut ifaddrs) -> (), else ());
    }
}

/// Copies an array of names with an interface behind it.
///
/// # Safety
/// `array` ends with an entry whose index is 0 and whose name is null, and the names are strings.
unsafe fn extended(array: *const NameIndex, interface: &Interface) -> Names {
    let (mut indices, mut names) = (Vec::new(), Vec::new());
    let mut next = array;
    // SAFETY: by this function's contract there is an entry behind each but the last, and a name is a string, of which as
    // much is read as an interface's name may have.
    unsafe {
        while (*next).if_index != 0 && !(*next).if_name.is_null() {
            let mut name: Name = [0; NAME_SIZE];
            let len = libc::strnlen((*next).if_name, NAME_SIZE - 1);
            ptr::copy_nonoverlapping((*next).if_name.cast(), name.as_mut_ptr(), len);
            indices.push((*next).if_index);
            names.push(name);
            next = next.add(1);
        }
    }
    indices.push(interface.index);
    names.push(interface.name);
    let mut names = names.into_boxed_slice();
    let mut entries = Vec::new();
    for (if_index, name) in indices.into_iter().zip(&mut names) {
        entries.push(NameIndex {
            if_index,
            if_name: name.as_mut_ptr().cast(),
        });
    }
    entries.push(NameIndex {
        if_index: 0,
        if_name: ptr::null_mut(),
    });
    Names {
        array: entries.into_boxed_slice(),
        _names: names,
    }
}

/// `if_nameindex` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_nameindex() -> *mut NameIndex {
    let array = real!(c"if_nameindex", fn() -> *mut NameIndex, ptr::null_mut());
    if array.is_null() {
        return array;
    }
    let Some(interface) = Interface::find() else {
        return array;
    };
    // SAFETY: the C library's array is as that says.
    let mut names = unsafe { extended(array, &interface) };
    real!(c"if_freenameindex", fn(array => *mut NameIndex) -> (), else ());
    let array = names.array.as_mut_ptr();
    locked(&ARRAYS).insert(array.addr(), names);
    array
}

/// `if_freenameindex` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_freenameindex(array: *mut NameIndex) {
    if locked(&ARRAYS).remove(&array.addr()).is_none() {
        real!(c"if_freenameindex", fn(array => *mut NameIndex) -> (), else ());
    }
}

/// `if_nametoindex` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_nametoindex(name: *const c_char) -> c_uint {
    let index = real!(c"if_nametoindex", fn(name => *const c_char) -> c_uint, 0);
    if index != 0 || name.is_null() {
        return index;
    }
    // SAFETY: the caller passes a string, as the C library's function demands.
    let text = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes();
    match Interface::named(text) {
        Some(interface) => interface.index,
        None => fail(libc::ENODEV, 0),
    }
}

/// `if_indextoname` of the C library.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char {
    let found = real!(c"if_indextoname", fn(
        index => c_uint, name => *mut c_char
    ) -> *mut c_char, ptr::null_mut());
    if !found.is_null() || name.is_null() {
        return found;
    }
    match Interface::numbered(index) {
        Some(interface) => {
            // SAFETY: the caller has room for the name of an interface there, as the C library's function demands.
            unsafe {
                ptr::copy_nonoverlapping(interface.name.as_ptr(), name.cast(), NAME_SIZE);
            }
            name
        }
        None => fail(libc::ENXIO, ptr::null_mut()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::interface::tests::interface;

    /// Returns the names of a list's entries, and the families of their addresses.
    fn entries(list: *mut ifaddrs) -> Vec<(String, c_int)> {
        let mut entries = Vec::new();
        let mut next = list;
        while !next.is_null() {
            // SAFETY: the list is one of `getifaddrs`.
            unsafe {
                let name = CStr::from_ptr((*next).ifa_name).to_str().unwrap();
                let family = match (*next).ifa_addr.is_null() {
                    true => 0,
                    false => (*(*next).ifa_addr).sa_family.into(),
                };
                entries.push((name.to_owned(), family));
                next = (*next).ifa_next;
            }
        }
        entries
    }

    #[test]
    fn the_interface_is_behind_the_kernels_until_the_list_is_freed() {
        let mut list = ptr::null_mut();
        // SAFETY: the list is freed once, and not used afterwards.
        unsafe {
            assert_eq!(getifaddrs(&raw mut list), 0);
            let before = entries(list);
            list = chain(list, &interface());
            let mut kernel = entries(list);
            let ours = kernel.split_off(before.len());
            assert_eq!(kernel, before);
            let expected = [libc::AF_PACKET, libc::AF_INET].map(|af| ("vhca1".to_owned(), af));
            assert_eq!(ours, expected);
            list = unchain(list);
            assert_eq!(entries(list), before);
            freeifaddrs(chain(list, &interface()));
        }
    }

    #[test]
    fn a_process_without_interfaces_has_the_one_alone() {
        // SAFETY: the list is freed once, and not used afterwards.
        unsafe {
            let list = chain(ptr::null_mut(), &interface());
            assert_eq!(entries(list).len(), 2);
            assert!(unchain(list).is_null());
            freeifaddrs(ptr::null_mut());
        }
    }

    #[test]
    fn an_entry_has_the_whole_hardware_address_and_the_network() {
        let owned = Owned::new(&interface());
        // SAFETY: the entries live as long as their owner.
        unsafe {
            let link = (*owned.0).link.ifa_addr.cast::<u8>().cast_const();
            let link = std::slice::from_raw_parts(link, 12 + 20);
            assert_eq!((link[8], link[11], &link[12..]), (32, 20, &[7; 20][..]));
            let inet = &(*owned.0).inet;
            let address = |at: *mut sockaddr| (*at.cast::<sockaddr_in>()).sin_addr.s_addr;
            let found = [inet.ifa_addr, inet.ifa_netmask, inet.ifa_ifu].map(address);
            let expected = [[10, 77, 3, 2], [255, 255, 0, 0], [10, 77, 255, 255]];
            assert_eq!(found, expected.map(u32::from_ne_bytes));
        }
    }

    #[test]
    fn an_array_of_names_is_copied_with_the_interface_at_its_end() {
        // SAFETY: the C library's array is freed once, after its copy was made.
        unsafe {
            let array = if_nameindex();
            let names = extended(array, &interface());
            if_freenameindex(array);
            let (last, rest) = names.array.split_last().unwrap();
            assert!(last.if_index == 0 && last.if_name.is_null());
            let text = |entry: &NameIndex| CStr::from_ptr(entry.if_name).to_str().unwrap();
            assert!(rest.iter().any(|entry| text(entry) == "lo"));
            assert_eq!(rest.last().map(text), Some("vhca1"));
        }
    }
}
