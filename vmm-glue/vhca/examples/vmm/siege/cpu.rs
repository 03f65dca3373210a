//! A processor for the payload's driver without a VM: a thread of the VMM that makes the driver's accesses itself.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vhca::device::Device;
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::vm::{Bus, MEMORY, PCI_ADDRESS};

struct Cpu {
    bus: Bus,
    memory: GuestMemoryAtomic<GuestMemoryMmap>,
    next_page: u64,
    is_over: Arc<AtomicBool>,
}

thread_local! {
    static CPU: RefCell<Option<Cpu>> = const { RefCell::new(None) };
}

fn with<T>(call: impl FnOnce(&mut Cpu) -> T) -> T {
    CPU.with_borrow_mut(|cpu| call(cpu.as_mut().expect("the thread is a driver's")))
}

/// Sets this thread up as the processor of a driver, which ends when the flag is set.
pub(crate) fn start(
    device: Device,
    memory: GuestMemoryAtomic<GuestMemoryMmap>,
    is_over: Arc<AtomicBool>,
) {
    CPU.set(Some(Cpu {
        bus: Bus::new(device),
        memory,
        next_page: 0x1000,
        is_over,
    }));
}

/// Yields to other threads. Unwinds if the driver's time is over, wherever it is in its work.
pub(crate) fn relax() {
    if with(|cpu| cpu.is_over.load(Ordering::Relaxed)) {
        resume_unwind(Box::new("the end"));
    }
    thread::yield_now();
}

pub(crate) fn allocate(pages: u64) -> u64 {
    with(|cpu| {
        cpu.next_page += pages * 4096;
        cpu.next_page - pages * 4096
    })
}

fn out(port: u16, bytes: &[u8]) {
    with(|cpu| match <[u8; 4]>::try_from(bytes) {
        Ok(value) if port == PCI_ADDRESS => cpu.bus.selected = u32::from_le_bytes(value),
        _ => cpu.bus.config_write(port, bytes),
    });
}

pub(crate) fn out32(port: u16, value: u32) {
    out(port, &value.to_le_bytes());
}

pub(crate) fn out16(port: u16, value: u16) {
    out(port, &value.to_le_bytes());
}

pub(crate) fn in32(_: u16) -> u32 {
    let mut data = [0; 4];
    with(|cpu| cpu.bus.config_read(&mut data));
    u32::from_le_bytes(data)
}

pub(crate) fn read<T: FromBytes>(address: u64) -> T {
    let mut bytes = vec![0; size_of::<T>()];
    with(|cpu| match address < MEMORY as u64 {
        true => {
            let read = cpu
                .memory
                .memory()
                .read_slice(&mut bytes, GuestAddress(address));
            read.expect("it is within the memory");
        }
        false => cpu.bus.read(address, &mut bytes),
    });
    T::read_from_bytes(&bytes).expect("it has the length")
}

pub(crate) fn write<T: IntoBytes + Immutable>(address: u64, value: T) {
    let bytes = value.as_bytes();
    with(|cpu| match address < MEMORY as u64 {
        true => {
            let written = cpu
                .memory
                .memory()
                .write_slice(bytes, GuestAddress(address));
            written.expect("it is within the memory");
        }
        false => cpu.bus.write(address, bytes),
    });
}
