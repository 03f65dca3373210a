//! KVM as the interrupts and doorbells of devices (feature `kvm`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use core::fmt;

use kvm_bindings::{KVM_MSI_VALID_DEVID, kvm_msi};
use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use vmm_sys_util::eventfd::EventFd;

use super::event::{DoorbellEvent, DoorbellEvents};
use super::{Interrupts, MsixMessage, PlacedDoorbell, SignalledDoorbell};

/// Interrupts by `KVM_SIGNAL_MSI`: no routes, descriptors or limits. The VM needs KVM's own interrupt controllers.
///
/// A VMM whose interrupt manager owns the routes of its VM implements [`Interrupts`] on that instead.
pub struct Msi {
    vm: Arc<VmFd>,
    /// Identity of the function towards the interrupt controller.
    device_id: Option<u32>,
    refused: AtomicU64,
}

impl Msi {
    /// Signals the vectors of a device in a VM.
    #[must_use]
    pub const fn new(vm: Arc<VmFd>) -> Self {
        Self {
            vm,
            device_id: None,
            refused: AtomicU64::new(0),
        }
    }

    /// Signals the vectors of a device in a VM whose interrupt controller looks the sender of a message up, as the ITS of aarch64 does
    /// (`KVM_CAP_MSI_DEVID`). `device_id` is the requester ID of the function: bus, device and function, unless the VM maps it otherwise.
    #[must_use]
    pub const fn with_device_id(vm: Arc<VmFd>, device_id: u32) -> Self {
        Self {
            vm,
            device_id: Some(device_id),
            refused: AtomicU64::new(0),
        }
    }

    fn message(&self, message: MsixMessage) -> kvm_msi {
        let [a, b, c, d, high @ ..] = message.address.to_le_bytes();
        kvm_msi {
            address_lo: u32::from_le_bytes([a, b, c, d]),
            address_hi: u32::from_le_bytes(high),
            data: message.data,
            flags: self.device_id.map_or(0, |_| KVM_MSI_VALID_DEVID),
            devid: self.device_id.unwrap_or(0),
            ..kvm_msi::default()
        }
    }

    /// Returns how many messages KVM refused: a guest's message may be of no interrupt controller.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Interrupts for Msi {
    fn trigger(&self, _: u16, message: MsixMessage) {
        if self.vm.signal_msi(self.message(message)).is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Msi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Msi")
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}

/// The eventfd of a doorbell, as its device keeps it.
trait Event {
    fn eventfd(&self) -> &EventFd;
}

impl<A: Copy + Ord + Send + Sync> Event for DoorbellEvent<A> {
    fn eventfd(&self) -> &EventFd {
        self.event()
    }
}

impl Event for Arc<EventFd> {
    fn eventfd(&self) -> &EventFd {
        self
    }
}

type Registered<E> = BTreeMap<PlacedDoorbell, E>;

/// The ioeventfds of a device in a VM.
struct IoEventFds<E> {
    vm: Arc<VmFd>,
    registered: Mutex<Registered<E>>,
    refused: AtomicU64,
}

impl<E: Event> IoEventFds<E> {
    const fn new(vm: Arc<VmFd>) -> Self {
        Self {
            vm,
            registered: Mutex::new(BTreeMap::new()),
            refused: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registered<E>> {
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Registers a doorbell whose eventfd there is. One that KVM or the host refuses stays trapped.
    fn register(
        &self,
        registered: &mut Registered<E>,
        placed: PlacedDoorbell,
        event: io::Result<E>,
    ) {
        let address = IoEventAddress::Mmio(placed.address);
        let event = event.and_then(|event| {
            self.vm
                .register_ioevent(event.eventfd(), &address, NoDatamatch)?;
            Ok(event)
        });
        match event {
            Ok(event) => {
                registered.insert(placed, event);
            }
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes an ioeventfd away, before its eventfd: what the guest stored until then is rung.
    fn give_up(&self, registered: &mut Registered<E>, placed: PlacedDoorbell) {
        if let Some(event) = registered.remove(&placed) {
            let address = IoEventAddress::Mmio(placed.address);
            // It is registered, so nothing but the end of the VM can refuse this.
            let _ = (self.vm).unregister_ioevent(event.eventfd(), &address, NoDatamatch);
        }
    }
}

/// Doorbells by ioeventfds of any length without a data match, one for the sends and one for the completion queues of a
/// page: a guest's store does not leave KVM.
///
/// One stays when its page has no queue any more, since KVM waits for all processors to take it away. It is given up when its
/// base address register moves or is off, when the device is reset or detached, and when another one needs its place: that is
/// left to a thread of the VM, and not done by the loop, for which all devices would wait.
pub struct Doorbells<A: Copy + Ord + Send + Sync> {
    eventfds: IoEventFds<DoorbellEvent<A>>,
    events: DoorbellEvents<A>,
    budget: usize,
}

impl<A: Copy + Ord + Send + Sync> Doorbells<A> {
    /// Registers the doorbells of the device of `events` in a VM, `budget` at most: each is a descriptor. Those beyond it,
    /// and those that KVM refuses, stay trapped.
    #[must_use]
    pub const fn new(vm: Arc<VmFd>, events: DoorbellEvents<A>, budget: usize) -> Self {
        Self {
            eventfds: IoEventFds::new(vm),
            events,
            budget,
        }
    }

    /// Returns how many ioeventfds there are.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.eventfds.lock().len()
    }

    /// Returns how often an ioeventfd was refused, by KVM or for want of descriptors.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.eventfds.refused()
    }

    /// Registers doorbells in place of the earlier ones. Returns `false` if one of them needs the place of an empty
    /// page and `may_replace` is `false`.
    fn place(&self, doorbells: &[PlacedDoorbell], may_replace: bool) -> bool {
        let mut registered = self.eventfds.lock();
        let registers: BTreeSet<_> = doorbells.iter().map(register_of).collect();
        let is_stale = |placed: &&PlacedDoorbell| !registers.contains(&register_of(placed));
        let stale: Vec<_> = registered.keys().filter(is_stale).copied().collect();
        for placed in stale {
            self.eventfds.give_up(&mut registered, placed);
        }
        let wanted: BTreeSet<_> = doorbells.iter().copied().collect();
        for placed in &wanted {
            if registered.contains_key(placed) {
                continue;
            }
            if registered.len() >= self.budget {
                let mut places = registered.keys();
                let Some(empty) = places.find(|place| !wanted.contains(place)).copied() else {
                    return true;
                };
                if !may_replace {
                    return false;
                }
                self.eventfds.give_up(&mut registered, empty);
            }
            let event = self.events.add(placed.doorbell);
            self.eventfds.register(&mut registered, *placed, event);
        }
        true
    }
}

/// Returns a base address register with its address.
const fn register_of(placed: &PlacedDoorbell) -> (u8, u64) {
    let doorbell = placed.doorbell;
    (doorbell.bar, placed.address.wrapping_sub(doorbell.offset))
}

impl<A: Copy + Ord + Send + Sync> super::Doorbells for Doorbells<A> {
    fn set(&self, doorbells: &[PlacedDoorbell]) {
        let _ = self.place(doorbells, true);
    }

    fn set_in_loop(&self, doorbells: &[PlacedDoorbell]) -> bool {
        self.place(doorbells, false)
    }
}

impl<A: Copy + Ord + Send + Sync> Drop for Doorbells<A> {
    fn drop(&mut self) {
        super::Doorbells::set(self, &[]);
    }
}

impl<A: Copy + Ord + Send + Sync> fmt::Debug for Doorbells<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbells")
            .field("registered", &self.registered())
            .field("refused", &self.refused())
            .finish_non_exhaustive()
    }
}

/// Doorbells of a device that another process serves, by ioeventfds of any length without a data match. That process limits their
/// number, and rings a doorbell without a thread of the VMM.
pub struct SignalledDoorbells(IoEventFds<Arc<EventFd>>);

impl SignalledDoorbells {
    /// Registers the doorbells of a device in a VM. Doorbells that KVM refuses stay trapped.
    #[must_use]
    pub const fn new(vm: Arc<VmFd>) -> Self {
        Self(IoEventFds::new(vm))
    }

    /// Returns how many ioeventfds there are.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns how often KVM refused an ioeventfd.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused()
    }
}

impl super::Doorbells for SignalledDoorbells {
    fn set(&self, _: &[PlacedDoorbell]) {}

    fn set_signalled(&self, doorbells: &[SignalledDoorbell]) {
        let mut registered = self.0.lock();
        let wanted: BTreeMap<_, _> = doorbells
            .iter()
            .map(|doorbell| (doorbell.placed, &doorbell.event))
            .collect();
        let stays = |(placed, event): &(&PlacedDoorbell, &Arc<EventFd>)| {
            let wanted = wanted.get(placed);
            wanted.is_some_and(|wanted| Arc::ptr_eq(wanted, event))
        };
        let stale = registered.iter().filter(|entry| !stays(entry));
        let stale: Vec<_> = stale.map(|(placed, _)| *placed).collect();
        for placed in stale {
            self.0.give_up(&mut registered, placed);
        }
        for (placed, event) in wanted {
            if !registered.contains_key(&placed) {
                self.0
                    .register(&mut registered, placed, Ok(Arc::clone(event)));
            }
        }
    }
}

impl Drop for SignalledDoorbells {
    fn drop(&mut self) {
        super::Doorbells::set_signalled(self, &[]);
    }
}

impl fmt::Debug for SignalledDoorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalledDoorbells")
            .field("registered", &self.registered())
            .field("refused", &self.refused())
            .finish_non_exhaustive()
    }
}
