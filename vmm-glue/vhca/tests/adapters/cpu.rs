//! The processor of the guest's driver: its accesses go to the machine of its thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::machines::Machine;

/// Bytes of the guest's memory, from address 0 on. What is behind it goes to the machine.
pub(crate) const MEMORY: usize = 4 << 20;

const PCI_DATA: u16 = 0xcfc;
/// Slot of the function on the bus.
const SLOT: u32 = 3;
/// A driver that waits for longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

struct Cpu {
    machine: Box<dyn Machine>,
    memory: Arc<GuestMemoryMmap>,
    /// The register of configuration space that the driver selected.
    selected: u32,
    next_page: u64,
    interrupts: Vec<u32>,
    begun: Instant,
}

thread_local! {
    static CPU: RefCell<Option<Cpu>> = const { RefCell::new(None) };
}

fn with<T>(call: impl FnOnce(&mut Cpu) -> T) -> T {
    CPU.with_borrow_mut(|cpu| call(cpu.as_mut().unwrap()))
}

/// Starts a guest on this thread.
pub(crate) fn start(machine: Box<dyn Machine>, memory: Arc<GuestMemoryMmap>) {
    let cpu = Cpu {
        machine,
        memory,
        selected: 0,
        next_page: 0x1000,
        interrupts: Vec::new(),
        begun: Instant::now(),
    };
    CPU.set(Some(cpu));
}

pub(crate) fn with_machine(call: impl FnOnce(&mut dyn Machine)) {
    with(|cpu| call(cpu.machine.as_mut()));
}

/// Lets the threads of the VMM run.
pub(crate) fn relax() {
    with(|cpu| {
        cpu.machine.run();
        assert!(cpu.begun.elapsed() < LIMIT, "the driver hangs");
    });
}

/// Returns how often a vector has interrupted.
pub(crate) fn interrupts(vector: u8) -> u32 {
    with(|cpu| {
        let messages = cpu.machine.take_interrupts();
        cpu.interrupts
            .extend(messages.iter().map(|message| message.data));
        let its = cpu
            .interrupts
            .iter()
            .filter(|data| **data == u32::from(vector));
        u32::try_from(its.count()).unwrap()
    })
}

pub(crate) fn allocate(pages: u64) -> u64 {
    with(|cpu| {
        cpu.next_page += pages * 4096;
        cpu.next_page - pages * 4096
    })
}

/// Returns the selected register of the function, if that is selected.
fn register(cpu: &Cpu) -> Option<u16> {
    let is_its = cpu.selected & 0x80ff_ff00 == 1 << 31 | SLOT << 11;
    is_its.then(|| u16::try_from(cpu.selected & 0xfc).unwrap())
}

fn out(port: u16, bytes: &[u8]) {
    with(|cpu| {
        if port < PCI_DATA {
            cpu.selected = u32::from_le_bytes(bytes.try_into().unwrap());
        } else if let Some(register) = register(cpu) {
            cpu.machine.config_write(register + port - PCI_DATA, bytes);
        }
    });
}

pub(crate) fn out32(port: u16, value: u32) {
    out(port, &value.to_le_bytes());
}

pub(crate) fn out16(port: u16, value: u16) {
    out(port, &value.to_le_bytes());
}

pub(crate) fn in32(_: u16) -> u32 {
    with(|cpu| match register(cpu) {
        Some(register) => cpu.machine.config_read(register),
        None => u32::MAX,
    })
}

pub(crate) fn read<T: FromBytes>(address: u64) -> T {
    let mut bytes = vec![0; size_of::<T>()];
    with(|cpu| match address < MEMORY as u64 {
        true => cpu
            .memory
            .read_slice(&mut bytes, GuestAddress(address))
            .unwrap(),
        false => cpu.machine.mmio_read(address, &mut bytes),
    });
    T::read_from_bytes(&bytes).unwrap()
}

pub(crate) fn write<T: IntoBytes + Immutable>(address: u64, value: T) {
    let bytes = value.as_bytes();
    with(|cpu| match address < MEMORY as u64 {
        true => cpu
            .memory
            .write_slice(bytes, GuestAddress(address))
            .unwrap(),
        false => cpu.machine.mmio_write(address, bytes),
    });
}
