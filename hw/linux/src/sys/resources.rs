//! The device, protection domains, address handles and memory regions.

use core::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::abi::{
    AhAttr, AsyncEvent, CompChannel, Context, Cq, DeviceAttr, Mr, Opaque, PortAttr, Qp, Sge, Srq,
};
use super::library::{Library, MissingLibrary, library};
use super::mapping::RegionMemory;

/// Returns an object, or why there is none.
pub(super) fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// Returns the outcome of a function that returns an error number, or -1 with the number in `errno`.
pub(super) fn done(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// An operation that this provider lacks.
pub(super) fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

/// Returns the number of entries of a list.
pub(super) fn count(list: &[Sge]) -> io::Result<i32> {
    i32::try_from(list.len()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// An asynchronous event: its type (`enum ibv_event_type`), and the number of the port, or that the object was made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RaisedEvent {
    pub(crate) kind: u32,
    pub(crate) object: u32,
}

/// Types of events whose object is a completion queue, a queue pair or a shared receive queue.
const CQ_ERR: u32 = 0;
const QP_EVENTS: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 16];
const SRQ_EVENTS: [u32; 2] = [14, 15];

/// An open device, with its channel of completions.
#[derive(Debug)]
pub(crate) struct Device {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<Context>,
    pub(super) channel: NonNull<CompChannel>,
}

// SAFETY: functions of libibverbs may be called from any thread, also at the same time.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a device by its name. Returns `Ok(None)` if libibverbs finds none of the name.
    ///
    /// # Errors
    /// [`MissingLibrary`], and errors of the library.
    pub(crate) fn open(name: &str) -> Result<io::Result<Option<Self>>, MissingLibrary> {
        let library = library()?;
        Ok(Self::open_by(library, name))
    }

    fn open_by(library: &'static Library, name: &str) -> io::Result<Option<Self>> {
        let mut count = 0;
        // SAFETY: the library writes the count.
        let list = made(unsafe { (library.ibv_get_device_list)(&raw mut count) })?;
        let count = usize::try_from(count).unwrap_or(0);
        let device = (0..count)
            // SAFETY: the list has so many devices.
            .map(|index| unsafe { *list.as_ptr().add(index) })
            .find(|device| {
                // SAFETY: the device is of the list, which is not freed yet, and its name ends with a zero byte.
                let found = unsafe { CStr::from_ptr((library.ibv_get_device_name)(*device)) };
                found.to_bytes() == name.as_bytes()
            });
        // SAFETY: as above.
        let context = device.map(|device| made(unsafe { (library.ibv_open_device)(device) }));
        // SAFETY: the list is freed once, and open devices outlive it.
        unsafe { (library.ibv_free_device_list)(list.as_ptr()) };
        let Some(context) = context.transpose()? else {
            return Ok(None);
        };
        // SAFETY: the device is open.
        let channel = made(unsafe { (library.ibv_create_comp_channel)(context.as_ptr()) });
        let channel = channel.inspect_err(|_| {
            // SAFETY: the device is open, and has no objects.
            unsafe { (library.ibv_close_device)(context.as_ptr()) };
        })?;
        let device = Self {
            library,
            context,
            channel,
        };
        for fd in device.descriptors() {
            use std::os::fd::AsRawFd;
            // SAFETY: the flags of an open descriptor are changed, and no memory.
            let set = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
            done(set)?;
        }
        Ok(Some(device))
    }

    /// Returns the descriptors of completions and of asynchronous events, which can be read if there are some.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        // SAFETY: both are open as long as the device is.
        unsafe {
            [
                BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd),
                BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd),
            ]
        }
    }

    /// Returns the attributes of the device.
    pub(crate) fn attributes(&self) -> io::Result<DeviceAttr> {
        // SAFETY: all fields are numbers, for which zero is one.
        let mut attributes: DeviceAttr = unsafe { core::mem::zeroed() };
        let (library, context) = (self.library, self.context.as_ptr());
        // SAFETY: the library fills the structure.
        done(unsafe { (library.ibv_query_device)(context, &raw mut attributes) })?;
        Ok(attributes)
    }

    /// Returns the attributes of a port.
    pub(crate) fn port(&self, port: u8) -> io::Result<PortAttr> {
        let mut attributes = PortAttr::default();
        let (library, context) = (self.library, self.context.as_ptr());
        // SAFETY: the library fills the structure, or the first part of it, which older ones have alone.
        done(unsafe { (library.ibv_query_port)(context, port, &raw mut attributes) })?;
        Ok(attributes)
    }

    /// Takes the news of a completion queue. Returns the number that the queue was made with, or `None` if there are no news.
    pub(crate) fn completion_event(&self) -> Option<u32> {
        let (mut cq, mut number): (*mut Cq, _) = (null_mut(), null_mut());
        let library = self.library;
        // SAFETY: the library writes both, and the channel does not block.
        let taken = unsafe {
            (library.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut number)
        };
        if taken != 0 {
            return None;
        }
        // SAFETY: a queue is not destroyed before its events are acknowledged.
        unsafe { (library.ibv_ack_cq_events)(cq, 1) };
        u32::try_from(number.addr()).ok()
    }

    /// Takes an asynchronous event, or `None` if there is none.
    pub(crate) fn async_event(&self) -> Option<RaisedEvent> {
        let mut event = AsyncEvent {
            element: null_mut(),
            event_type: 0,
        };
        let (library, context) = (self.library, self.context.as_ptr());
        // SAFETY: the library writes the event, and the descriptor does not block.
        if unsafe { (library.ibv_get_async_event)(context, &raw mut event) } != 0 {
            return None;
        }
        let kind = event.event_type;
        // SAFETY: an event of these types has the address of its object, which is not destroyed before the event is acknowledged.
        let number = unsafe {
            match kind {
                CQ_ERR => (*event.element.cast::<Cq>()).cq_context,
                kind if QP_EVENTS.contains(&kind) => (*event.element.cast::<Qp>()).qp_context,
                kind if SRQ_EVENTS.contains(&kind) => (*event.element.cast::<Srq>()).srq_context,
                _ => event.element,
            }
        };
        // SAFETY: the event is acknowledged once.
        unsafe { (library.ibv_ack_async_event)(&raw mut event) };
        // The number of a port fills the lower half of the union.
        let object = u32::try_from(number.addr() & 0xffff_ffff).ok()?;
        Some(RaisedEvent { kind, object })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every object keeps its device, so there are none left.
        unsafe {
            (self.library.ibv_destroy_comp_channel)(self.channel.as_ptr());
            (self.library.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// The users of an object: queue pairs and shared receive queues that have handles. A queue pair that waits for its end
/// keeps the object alive, and does not count.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<()>);

/// A user of an object.
#[derive(Debug)]
pub(crate) struct User {
    _counted: Arc<()>,
}

impl Users {
    pub(crate) fn add(&self) -> User {
        User {
            _counted: self.0.clone(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    pd: NonNull<Opaque>,
    pub(super) device: Arc<Device>,
    pub(crate) users: Users,
}

// SAFETY: as for the device.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for the device.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn new(device: &Arc<Device>) -> io::Result<Self> {
        // SAFETY: the device is open.
        let pd = made(unsafe { (device.library.ibv_alloc_pd)(device.context.as_ptr()) })?;
        Ok(Self {
            pd,
            device: device.clone(),
            users: Users::default(),
        })
    }

    /// Returns the pointer of the library.
    pub(super) fn as_ptr(&self) -> *mut Opaque {
        self.pd.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: every object in it keeps it, so there are none left.
        unsafe { (self.device.library.ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(super) ah: NonNull<Opaque>,
    pd: Arc<ProtectionDomain>,
}

// SAFETY: as for the device.
unsafe impl Send for AddressHandle {}
// SAFETY: as for the device.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, mut address: AhAttr) -> io::Result<Self> {
        let library = pd.device.library;
        // SAFETY: the library reads the address.
        let ah = made(unsafe { (library.ibv_create_ah)(pd.as_ptr(), &raw mut address) })?;
        Ok(Self { ah, pd: pd.clone() })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once.
        unsafe { (self.pd.device.library.ibv_destroy_ah)(self.ah.as_ptr()) };
    }
}

/// A memory region, which keeps its memory mapped.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    mr: NonNull<Mr>,
    pd: Arc<ProtectionDomain>,
    /// It stays mapped for good if the region cannot be deregistered.
    pub(crate) memory: ManuallyDrop<RegionMemory>,
}

// SAFETY: as for the device.
unsafe impl Send for MemoryRegion {}
// SAFETY: as for the device.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers the first bytes of memory under the address `iova`. The rights are bits of `enum ibv_access_flags`.
    pub(crate) fn new(
        pd: Arc<ProtectionDomain>,
        (memory, len): (RegionMemory, usize),
        (iova, access): (u64, i32),
    ) -> io::Result<Self> {
        let place = memory.at(0, len);
        let place = place.ok_or(io::ErrorKind::InvalidInput)?;
        let (library, addr) = (pd.device.library, place.place.as_ptr().cast());
        // SAFETY: the bytes stay mapped as long as the region is there, and are never referenced.
        let mr = unsafe { (library.ibv_reg_mr_iova)(pd.as_ptr(), addr, len, iova, access) };
        Ok(Self {
            mr: made(mr)?,
            pd,
            memory: ManuallyDrop::new(memory),
        })
    }

    /// Returns the local and the remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: the library made it, and it is there.
        let mr = unsafe { self.mr.as_ref() };
        (mr.lkey, mr.rkey)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once.
        let failed = unsafe { (self.pd.device.library.ibv_dereg_mr)(self.mr.as_ptr()) };
        if failed == 0 {
            // SAFETY: it is dropped once, and the adapter does not reach it any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
