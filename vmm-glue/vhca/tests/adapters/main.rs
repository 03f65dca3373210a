//! The adapters for VMMs of three shapes: a driver drives a VF through each.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod bus;
mod machines;
#[path = "../../examples/vmm/siege/ram.rs"]
mod ram;

#[path = "../../examples/adapter_cloud_hypervisor.rs"]
mod cloud_hypervisor;
#[path = "../../examples/adapter_firecracker.rs"]
mod firecracker;
#[path = "../../examples/adapter_openvmm.rs"]
mod openvmm;

use std::sync::Arc;

use mlx4_defs::Opcode;
use mlx4_driver::{Bus, Command, Driver};
use vhca::emulated::{Duration, PortNum, VfOptions};
use vhca::world::{HostFunction, World};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use bus::MachineBus;
use machines::{CloudHypervisor, Firecracker, Machine, OpenVmm, REFUSED};
use ram::Ram;

/// Addresses of the registers, and those that they move to.
const FIRST: [u64; 2] = [0xd000_0000, 0xe000_0000];
const SECOND: [u64; 2] = [0xd100_0000, 0xe010_0000];
/// Bytes of the guest's memory, from address 0 on.
const MEMORY: usize = 4 << 20;
const PORT: PortNum = PortNum(1);
/// The MSI-X vector of commands.
const VECTOR: u16 = 0;
const COMMANDS: usize = 20;

/// The guest's firmware or kernel places the registers so often.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    /// Never: it takes the VMM's addresses.
    None,
    Once,
    Twice,
}

/// Boots a guest as far as commands that end by interrupt.
fn conforms(places: Places, make: fn(World, HostFunction) -> Box<dyn Machine>) {
    let memory: GuestMemoryMmap =
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let memory = Arc::new(memory);
    let (world, at) = World::with_one_vf(Arc::clone(&memory), &VfOptions::default()).unwrap();
    let first = (places != Places::None).then_some(FIRST);
    let mut bus = MachineBus::new(make(world, at), first);
    assert_eq!(bus.bar_size(2), Some(8 << 20));
    if places == Places::Twice {
        bus.place(SECOND);
    }
    let mut driver = Driver::probe(&mut bus, Ram::new(memory)).unwrap();
    assert_eq!(driver.capabilities().firmware.0, 2);
    while !driver.port(PORT).is_active() {
        bus.wait(Duration::ZERO);
        driver.serve(&mut bus).unwrap();
    }

    let core = driver.core();
    let nop = Command::new(Opcode::NOP, 0x1f);
    let before = bus.interrupts();
    for nth in 1..=COMMANDS {
        core.execute(&mut bus, &nop).unwrap();
        assert_eq!(bus.interrupts(), before + nth);
    }

    core.set_masked(&mut bus, VECTOR, true);
    core.post(&mut bus, &nop).unwrap();
    while !core.is_answered(&mut bus).unwrap() {
        bus.wait(Duration::ZERO);
    }
    assert!(bus.interrupts() == before + COMMANDS && core.is_pending(&mut bus, VECTOR));
    core.set_masked(&mut bus, VECTOR, false);
    core.finish(&mut bus, &nop).unwrap();

    bus.machine.set_paused(true);
    core.post(&mut bus, &nop).unwrap();
    bus.wait(Duration::ZERO);
    assert!(bus.interrupts() == before + COMMANDS + 1 && !core.is_answered(&mut bus).unwrap());
    bus.machine.set_paused(false);
    core.finish(&mut bus, &nop).unwrap();
    assert_eq!(bus.interrupts(), before + COMMANDS + 2);
    driver.remove(&mut bus).unwrap();
}

#[test]
fn a_guest_drives_the_vf_in_a_vmm_of_cloud_hypervisor_s_shape() {
    for places in [Places::None, Places::Twice] {
        conforms(places, |world, at| {
            Box::new(CloudHypervisor::new(world, at).unwrap())
        });
    }
}

#[test]
fn a_register_whose_move_the_vmm_refuses_stays_where_it_was() {
    let memory: GuestMemoryMmap =
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let (world, at) = World::with_one_vf(Arc::new(memory), &VfOptions::default()).unwrap();
    let machine = CloudHypervisor::new(world, at).unwrap();
    let mut bus = MachineBus::new(Box::new(machine), None);
    let before = bus.address(2);
    assert_ne!(before, 0);
    bus.config_write(0x1c, &(REFUSED >> 32).to_le_bytes()[..4]);
    assert_eq!(bus.address(2), before);
}

#[test]
fn a_guest_drives_the_vf_in_a_vmm_of_firecracker_s_shape() {
    conforms(Places::Once, |world, at| {
        Box::new(Firecracker::new(world, at).unwrap())
    });
}

#[test]
fn a_guest_drives_the_vf_in_a_vmm_of_openvmm_s_shape() {
    conforms(Places::Twice, |world, at| {
        Box::new(OpenVmm::new(world, at).unwrap())
    });
}

#[test]
fn the_examples_run_and_are_short() {
    let examples = [
        (
            cloud_hypervisor::main(),
            include_str!("../../examples/adapter_cloud_hypervisor.rs"),
        ),
        (
            firecracker::main(),
            include_str!("../../examples/adapter_firecracker.rs"),
        ),
        (
            openvmm::main(),
            include_str!("../../examples/adapter_openvmm.rs"),
        ),
    ];
    for (run, source) in examples {
        run.unwrap();
        let lines = source.lines().map(str::trim);
        let code = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
        // The traits of the VMM included.
        assert!(code.count() < 240);
    }
}
