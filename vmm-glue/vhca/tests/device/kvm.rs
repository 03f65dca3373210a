//! Interrupts and doorbells by KVM. Where there is no `/dev/kvm` this prints "not run", and why.
#![expect(unsafe_code, reason = "KVM is told where the guest's memory is")]

use std::sync::{Arc, Mutex};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vhca::device::event::EventLoop;
use vhca::device::{Device, Interrupts, MsixMessage};
use vhca::kvm::{Doorbells, Msi};
use vhca::world::World;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::probe::{DOORBELL, Probe, Seen, world_with};

const CODE: u64 = 0x1000;

/// A VM with a processor in real mode, and 4 KiB of memory for its code.
struct Vm {
    vm: Arc<VmFd>,
    vcpu: VcpuFd,
    memory: GuestMemoryMmap,
}

impl Vm {
    /// Makes a VM. `None` if that is not possible here, which it prints.
    fn new(test: &str) -> Option<Self> {
        let kvm = match Kvm::new() {
            Ok(kvm) => kvm,
            Err(error) => {
                println!("{test}: not run: /dev/kvm: {error}");
                return None;
            }
        };
        let vm = kvm.create_vm().unwrap();
        vm.create_irq_chip().unwrap();
        let ranges = [(GuestAddress(CODE), 0x1000)];
        let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
        let host = memory.get_host_address(GuestAddress(CODE)).unwrap();
        let region = kvm_userspace_memory_region {
            guest_phys_addr: CODE,
            memory_size: 0x1000,
            userspace_addr: host as u64,
            ..kvm_userspace_memory_region::default()
        };
        // SAFETY: the mapping lives as long as the VM does, in the same struct, and nothing else is done with it but by
        // vm-memory.
        unsafe { vm.set_user_memory_region(region) }.unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        Some(Self {
            vm: Arc::new(vm),
            vcpu,
            memory,
        })
    }

    /// Stores a byte at an address below 64 KiB, as a guest does. Returns `true` if that left KVM.
    fn store(&mut self, address: u16) -> bool {
        let [low, high] = address.to_le_bytes();
        // mov [address], al; out 0, al
        let code = [0xa2, low, high, 0xe6, 0];
        self.memory.write_slice(&code, GuestAddress(CODE)).unwrap();
        let mut sregs = self.vcpu.get_sregs().unwrap();
        (sregs.cs.base, sregs.cs.selector) = (0, 0);
        (sregs.ds.base, sregs.ds.selector) = (0, 0);
        self.vcpu.set_sregs(&sregs).unwrap();
        let mut regs = self.vcpu.get_regs().unwrap();
        (regs.rip, regs.rflags) = (CODE, 2);
        self.vcpu.set_regs(&regs).unwrap();
        let mut has_left = false;
        loop {
            match self.vcpu.run().unwrap() {
                VcpuExit::MmioWrite(at, _) => {
                    assert_eq!(at, u64::from(address));
                    has_left = true;
                }
                VcpuExit::IoOut(0, _) => return has_left,
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn an_interrupt_is_in_the_interrupt_controller_of_the_guest() {
    let Some(vm) = Vm::new("an_interrupt") else {
        return;
    };
    const ENABLED: i8 = 1;
    let mut lapic = vm.vcpu.get_lapic().unwrap();
    lapic.regs[0xf1] = ENABLED;
    vm.vcpu.set_lapic(&lapic).unwrap();
    let msi = Msi::new(Arc::clone(&vm.vm));
    let message = |address, data| MsixMessage { address, data };
    msi.trigger(1, message(0xfee0_0000, 0x41));
    // Vectors 0x40 to 0x5f of those that were requested.
    let requested = vm.vcpu.get_lapic().unwrap().regs[0x220];
    assert_eq!(requested, 1 << 1);
    assert_eq!(msi.refused(), 0);
    // KVM ignores the sender where its interrupt controller has no use for it, or refuses the message.
    let msi = Msi::with_device_id(Arc::clone(&vm.vm), 0x18);
    msi.trigger(1, message(0xfee0_0000, 0x42));
    let requested = vm.vcpu.get_lapic().unwrap().regs[0x220];
    assert!(requested == 0b110 || msi.refused() == 1);
}

/// A device with BAR 2 at a page, and its ioeventfds.
struct Placed {
    event_loop: EventLoop<World>,
    seen: Arc<Mutex<Seen>>,
    device: Device,
    doorbells: Arc<Doorbells<vhca::world::HostFunction>>,
}

fn place(vm: &Vm, page: u8, budget: usize) -> Placed {
    let probe = Probe::default();
    let seen = Arc::clone(&probe.seen);
    let (world, at) = world_with(Box::new(probe));
    let event_loop = EventLoop::new(world).unwrap();
    let events = event_loop.doorbell_events(at);
    let doorbells = Arc::new(Doorbells::new(Arc::clone(&vm.vm), events, budget));
    let msi = Arc::new(Msi::new(Arc::clone(&vm.vm)));
    let device = event_loop.backend().attach(at, msi, doorbells.clone());
    let device = device.unwrap();
    let _ = device.config_write(0x18, &[page]);
    Placed {
        event_loop,
        seen,
        device,
        doorbells,
    }
}

impl Placed {
    /// Lets the loop take what is there. Returns how often it rang since the last time.
    fn rings(&mut self) -> u32 {
        self.event_loop.step().unwrap();
        core::mem::take(&mut self.seen.lock().unwrap().rings)
    }
}

#[test]
fn a_store_to_a_doorbell_stays_in_kvm_wherever_the_register_is() {
    let Some(mut vm) = Vm::new("a_store_to_a_doorbell") else {
        return;
    };
    let mut placed = place(&vm, 8, 16);
    assert_eq!(placed.doorbells.registered(), 1);
    let at = |page: u16| page * 0x1000 + u16::try_from(DOORBELL.offset).unwrap();
    assert!(!vm.store(at(8)));
    assert_eq!(placed.rings(), 1);
    assert!(vm.store(at(8) + 1));
    assert_eq!(placed.rings(), 0);

    // The store before the move is not lost, and the old place is nobody's.
    assert!(!vm.store(at(8)));
    let _ = placed.device.config_write(0x18, &[9]);
    assert_eq!(placed.rings(), 1);
    assert!(vm.store(at(8)));
    assert!(!vm.store(at(9)));
    assert_eq!(placed.rings(), 1);

    let _ = placed.device.config_write(0x18, &[0]);
    assert_eq!(placed.doorbells.registered(), 0);
    assert!(vm.store(at(9)));
    let _ = placed.device.config_write(0x18, &[9]);
    assert!(!vm.store(at(9)));
    assert!(placed.device.detach().is_some());
    assert_eq!(placed.doorbells.registered(), 0);
    assert!(vm.store(at(9)));
    assert_eq!(placed.doorbells.refused(), 0);
}

#[test]
fn doorbells_beyond_the_budget_and_those_that_kvm_refuses_stay_trapped() {
    let Some(mut vm) = Vm::new("doorbells_beyond_the_budget") else {
        return;
    };
    let placed = place(&vm, 8, 0);
    assert_eq!(placed.doorbells.registered(), 0);
    assert!(vm.store(0x8014));
    let first = place(&vm, 8, 1);
    let second = place(&vm, 8, 1);
    assert_eq!(first.doorbells.registered(), 1);
    assert_eq!(second.doorbells.registered(), 0, "there is one already");
    assert_eq!(second.doorbells.refused(), 1);
}

/// A page without queues keeps its ioeventfd until another one needs the place.
#[test]
fn an_ioeventfd_stays_until_its_place_is_needed() {
    use vhca::device::{Doorbells as _, PlacedDoorbell};
    let Some(mut vm) = Vm::new("an_ioeventfd_stays") else {
        return;
    };
    let placed = place(&vm, 0, 2);
    let page = |number: u64| {
        let mut doorbell = DOORBELL;
        doorbell.offset += number * 0x1000;
        PlacedDoorbell {
            address: 0x8000 + doorbell.offset,
            doorbell,
        }
    };
    let doorbells = &placed.doorbells;
    doorbells.set(&[page(0), page(1)]);
    doorbells.set(&[page(1)]);
    assert_eq!(doorbells.registered(), 2);
    assert!(!vm.store(0x8014));
    assert!(!doorbells.set_in_loop(&[page(1), page(2)]));
    assert!(!vm.store(0x8014), "the loop takes none away");
    assert!(vm.store(0xa014));
    doorbells.set(&[page(1), page(2)]);
    assert!(vm.store(0x8014) && !vm.store(0x9014) && !vm.store(0xa014));
    doorbells.set(&[page(0), page(1), page(2)]);
    assert!(vm.store(0x8014), "there is no place");
    assert!(doorbells.set_in_loop(&[page(0), page(1), page(2)]));
    doorbells.set(&[]);
    assert!(vm.store(0x9014) && vm.store(0xa014));
}
