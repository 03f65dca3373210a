//! The adapters for VMMs of three shapes: the driver of the example `vmm`'s guest drives a VF through each.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod cpu;
#[path = "../../examples/vmm/payload/src/hca.rs"]
#[expect(
    clippy::cast_possible_truncation,
    reason = "it is of a package of its own"
)]
mod hca;
mod machines;
#[path = "../../examples/vmm/payload/src/pci.rs"]
#[expect(
    clippy::cast_possible_truncation,
    reason = "it is of a package of its own"
)]
mod pci;

#[path = "../../examples/adapter_cloud_hypervisor.rs"]
mod cloud_hypervisor;
#[path = "../../examples/adapter_firecracker.rs"]
mod firecracker;
#[path = "../../examples/adapter_openvmm.rs"]
mod openvmm;

use std::sync::Arc;

use mlx4_defs::Opcode;
use mlx4_defs::query::QueryFirmware;
use vhca::emulated::VfOptions;
use vhca::world::{HostFunction, World};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use hca::{EventQueue, Hca};
use machines::{CloudHypervisor, Firecracker, Machine, OpenVmm};
use pci::Function;

/// Addresses of the registers, and those that they move to.
const FIRST: [u64; 2] = [0xd000_0000, 0xe000_0000];
const SECOND: [u64; 2] = [0xd100_0000, 0xe010_0000];
/// The processor's interrupt vector of MSI-X vector 0.
const INTERRUPT: u8 = 0x40;
const COMMANDS: u32 = 20;

/// Boots a guest as far as commands that end by interrupt.
fn conforms(moves: bool, make: fn(World, HostFunction) -> Box<dyn Machine>) {
    let memory: GuestMemoryMmap =
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), cpu::MEMORY)]).unwrap();
    let memory = Arc::new(memory);
    let (world, at) = World::with_one_vf(Arc::clone(&memory), &VfOptions::default()).unwrap();
    cpu::start(make(world, at), memory);

    let function = Function::find().unwrap();
    assert_eq!(function.size(2), 8 << 20);
    function.place(FIRST);
    let mut hca = Hca::new(function);
    assert!(hca.is_online());
    if moves {
        hca.move_to(SECOND);
        assert!(hca.is_online());
    }
    hca.function.enable_interrupts(INTERRUPT);
    hca.reset();
    hca.set_block();
    let firmware: QueryFirmware = hca.query(Opcode::QUERY_FW);
    assert_eq!(firmware.major.get(), 2);

    let mut events = EventQueue::new(&mut hca);
    let mut interrupts = 0;
    let mut ends = |hca: &Hca| {
        interrupts += 1;
        while cpu::interrupts(INTERRUPT) < interrupts {
            cpu::relax();
        }
        assert!(events.take_command() && hca.is_idle() && !events.take_command());
        events.arm(hca);
        assert_eq!(cpu::interrupts(INTERRUPT), interrupts);
    };
    for _ in 0..COMMANDS {
        hca.post_nop();
        ends(&hca);
    }

    hca.function.set_masked(true);
    hca.post_nop();
    hca.wait();
    assert!(cpu::interrupts(INTERRUPT) == COMMANDS && hca.function.is_pending());
    hca.function.set_masked(false);
    ends(&hca);

    cpu::with_machine(|machine| machine.set_paused(true));
    hca.post_nop();
    cpu::relax();
    assert!(cpu::interrupts(INTERRUPT) == COMMANDS + 1 && !hca.is_idle());
    cpu::with_machine(|machine| machine.set_paused(false));
    ends(&hca);
    hca.reset();
}

#[test]
fn a_guest_drives_the_vf_in_a_vmm_of_cloud_hypervisor_s_shape() {
    conforms(true, |world, at| {
        Box::new(CloudHypervisor::new(world, at).unwrap())
    });
}

#[test]
fn a_guest_drives_the_vf_in_a_vmm_of_firecracker_s_shape() {
    conforms(false, |world, at| {
        Box::new(Firecracker::new(world, at).unwrap())
    });
}

#[test]
fn a_guest_drives_the_vf_in_a_vmm_of_openvmm_s_shape() {
    conforms(true, |world, at| Box::new(OpenVmm::new(world, at).unwrap()));
}

#[test]
fn the_examples_run_and_have_less_than_150_lines_of_code() {
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
        assert!(code.count() < 150);
    }
}
