//! A VM with one processor and one VF, on KVM.

use std::error::Error;
use std::sync::Arc;

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_dtable, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Error as Errno, Kvm, VcpuExit, VcpuFd, VmFd};
use vhca::device::{BarMove, ConfigEffect, Device};
use vm_memory::{
    Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend, GuestMemoryMmap,
    GuestRegionMmap,
};

use crate::console::{Access, Console};
use crate::payload::Payload;

/// Memory of a guest, from address 0 on, but for those of the tour.
pub(crate) const MEMORY: usize = 8 << 20;

/// Memory that is plugged in and out.
pub(crate) const PLUGGED: GuestAddress = GuestAddress(0x1000_0000);
const PLUGGED_SIZE: usize = 2 << 20;

/// Where the guest's tables are, and the top of its stack.
const PAGE_TABLES: u64 = 0x1000;
const GDT: u64 = 0x8000;
const STACK: u64 = 0x1f_fff8;

/// Ports: the bus's address and data, and the payload's wishes for memory and for a reset. All others are the console's.
const PCI_ADDRESS: u16 = 0xcf8;
const PCI_DATA: u16 = 0xcfc;
const WISH: u16 = 0xf0;
const RESET: u16 = 0xf8;

/// The slot of the function on the bus.
const SLOT: u32 = 3;

pub(crate) struct Vm {
    pub(crate) fd: Arc<VmFd>,
    vcpu: VcpuFd,
    memory: GuestMemoryAtomic<GuestMemoryMmap>,
}

impl Vm {
    /// Makes a VM whose processor is in long mode, at the payload's first instruction.
    pub(crate) fn new(
        kvm: &Kvm,
        memory: GuestMemoryAtomic<GuestMemoryMmap>,
        payload: &Payload,
        arguments: [u64; 2],
    ) -> Result<Self, Box<dyn Error>> {
        let vm = kvm.create_vm()?;
        vm.create_irq_chip()?;
        let ram = memory.memory();
        let size = usize::try_from(ram.last_addr().0)? + 1;
        set_region(&vm, 0, 0, size, ram.get_host_address(GuestAddress(0))?)?;
        let vcpu = vm.create_vcpu(0)?;
        vcpu.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
        let entry = payload.load(&ram)?;
        enter_long_mode(&vcpu, &ram)?;
        let mut regs = vcpu.get_regs()?;
        (regs.rip, regs.rsp, regs.rflags) = (entry, STACK, 2);
        [regs.rdi, regs.rsi] = arguments;
        (regs.rdx, regs.rcx) = (vcpu.get_tsc_khz()?.into(), size as u64);
        vcpu.set_regs(&regs)?;
        let fd = Arc::new(vm);
        Ok(Self { fd, vcpu, memory })
    }

    /// Plugs memory in, or out. The VF sees it at once.
    fn set_plugged(&self, plugged: bool) -> Result<(), Box<dyn Error>> {
        let mut memory = (*self.memory.memory()).clone();
        if plugged {
            let region = GuestRegionMmap::from_range(PLUGGED, PLUGGED_SIZE, None)?;
            memory = memory.insert_region(Arc::new(region))?;
        }
        let size = usize::from(plugged) * PLUGGED_SIZE;
        let host = memory.get_host_address(PLUGGED)?;
        set_region(&self.fd, 1, PLUGGED.0, size, host)?;
        if !plugged {
            memory = memory.remove_region(PLUGGED, PLUGGED_SIZE as u64)?.0;
        }
        self.memory
            .lock()
            .map_err(|_| "a thread failed")?
            .replace(memory);
        Ok(())
    }

    /// Runs the processor until the payload ends. Returns what it measured, in nanoseconds.
    pub(crate) fn run(
        &mut self,
        device: Device,
        console: &mut Console,
    ) -> Result<u64, Box<dyn Error>> {
        let khz = u64::from(self.vcpu.get_tsc_khz()?);
        let mut bus = Bus::new(device);
        loop {
            match self.vcpu.run()? {
                VcpuExit::MmioRead(address, data) => {
                    console.time(Access::Read, || bus.read(address, data));
                }
                VcpuExit::MmioWrite(address, data) => {
                    console.time(Access::Write, || bus.write(address, data));
                }
                VcpuExit::IoIn(PCI_DATA..=0xcff, data) => bus.config_read(data),
                VcpuExit::IoIn(port, data) => console.read(port, data)?,
                VcpuExit::IoOut(port @ PCI_DATA..=0xcff, data) => {
                    bus.config_write(port, data);
                }
                VcpuExit::IoOut(port, data) => {
                    let value = u32::from_le_bytes(data.try_into()?);
                    match port {
                        PCI_ADDRESS => bus.selected = value,
                        WISH => self.set_plugged(value != 0)?,
                        RESET => bus.reset(),
                        _ if console.write(port, value, &self.memory.memory())? => {
                            return Ok(u64::from(console.reported) * 1_000_000 / khz);
                        }
                        _ => (),
                    }
                }
                other => return Err(format!("the processor stopped: {other:?}").into()),
            }
        }
    }
}

/// Tells KVM where a region is; of no bytes, that it is gone.
fn set_region(vm: &VmFd, slot: u32, at: u64, size: usize, host: *mut u8) -> Result<(), Errno> {
    let region = kvm_userspace_memory_region {
        slot,
        guest_phys_addr: at,
        memory_size: size as u64,
        userspace_addr: host as u64,
        ..kvm_userspace_memory_region::default()
    };
    // SAFETY: `Vm` keeps the mapping for as long as KVM has it, and all other accesses are vm-memory's.
    unsafe { vm.set_user_memory_region(region) }
}

/// Puts a processor into long mode, with the first 4 GiB at their own addresses in pages of 2 MiB.
fn enter_long_mode(vcpu: &VcpuFd, memory: &GuestMemoryMmap) -> Result<(), Box<dyn Error>> {
    const PRESENT: u64 = 3;
    let word = |at: u64, value: u64| memory.write_obj(value, GuestAddress(at));
    let (directory, tables) = (PAGE_TABLES + 0x1000, PAGE_TABLES + 0x2000);
    word(PAGE_TABLES, directory | PRESENT)?;
    for gib in 0..4 {
        word(directory + 8 * gib, (tables + 0x1000 * gib) | PRESENT)?;
    }
    for page in 0..4 * 512 {
        word(tables + 8 * page, page << 21 | 0x80 | PRESENT)?;
    }
    word(GDT + 8, 0x00af_9b00_0000_ffff)?;
    word(GDT + 16, 0x00cf_9300_0000_ffff)?;
    let segment = |selector, type_, l| kvm_segment {
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        s: 1,
        l,
        db: 1 - l,
        g: 1,
        ..kvm_segment::default()
    };
    let mut sregs = vcpu.get_sregs()?;
    sregs.cs = segment(8, 0xb, 1);
    let data = segment(16, 3, 0);
    (sregs.ds, sregs.es, sregs.ss) = (data, data, data);
    sregs.gdt = kvm_dtable {
        base: GDT,
        limit: 23,
        ..kvm_dtable::default()
    };
    sregs.cr3 = PAGE_TABLES;
    // Physical address extension; paging, numeric errors and protection; long mode enabled and active.
    (sregs.cr4, sregs.cr0, sregs.efer) = (1 << 5, 1 << 31 | 0x31, 0x500);
    vcpu.set_sregs(&sregs)?;
    Ok(())
}

/// The guest's bus: the device's configuration space by ports, and its registers where the guest put them.
struct Bus {
    device: Device,
    selected: u32,
    /// The last move of each base address register.
    bars: Vec<BarMove>,
}

impl Bus {
    fn new(device: Device) -> Self {
        let (selected, bars) = (0, Vec::new());
        Self {
            device,
            selected,
            bars,
        }
    }

    /// Returns the register of the device that the guest has selected.
    fn register(&self) -> Option<u16> {
        let is_its = self.selected & 0x80ff_ff00 == 1 << 31 | SLOT << 11;
        is_its.then_some((self.selected & 0xfc) as u16)
    }

    fn config_read(&self, data: &mut [u8]) {
        match self.register() {
            Some(register) => self.device.config_read(register, data),
            None => data.fill(0xff),
        }
    }

    fn config_write(&mut self, port: u16, data: &[u8]) {
        let Some(register) = self.register() else {
            return;
        };
        let effect = self.device.config_write(register + port - PCI_DATA, data);
        self.follow(effect);
    }

    fn reset(&mut self) {
        let effect = self.device.reset();
        self.follow(effect);
    }

    fn follow(&mut self, effect: ConfigEffect) {
        for moved in effect.moved {
            self.bars.retain(|bar| bar.bar != moved.bar);
            self.bars.push(moved);
        }
    }

    /// Finds the register at an address, and the offset behind it.
    fn at(&self, address: u64) -> Option<(u8, u64)> {
        self.bars.iter().find_map(|bar| {
            let offset = address.checked_sub(bar.to?)?;
            (offset < bar.size).then_some((bar.bar, offset))
        })
    }

    fn read(&self, address: u64, data: &mut [u8]) {
        match self.at(address) {
            Some((bar, offset)) => self.device.bar_read(bar, offset, data),
            None => data.fill(0xff),
        }
    }

    fn write(&self, address: u64, data: &[u8]) {
        if let Some((bar, offset)) = self.at(address) {
            self.device.bar_write(bar, offset, data);
        }
    }
}
