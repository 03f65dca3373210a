//! A virtual HCA in a VMM of Cloud Hypervisor's shape: a bus of devices with locks of their own, registers that the guest moves,
//! a group of interrupts, pause. `cargo run -p vhca --example adapter_cloud_hypervisor`.

use std::error::Error;
use std::sync::Arc;

use vhca::device::event::EventLoop;
use vhca::device::{AttachError, Backend, Device, Interrupts, MsixMessage, TrappedDoorbells};
use vhca::emulated::VfOptions;
use vhca::world::{HostFunction, World};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The VMM's traits, in outline.
pub(crate) trait BusDeviceSync: Send + Sync {
    fn read(&self, base: u64, offset: u64, data: &mut [u8]);
    fn write(&self, base: u64, offset: u64, data: &[u8]);
}

pub(crate) struct BarReprogrammingParams {
    pub(crate) old_base: u64,
    pub(crate) new_base: u64,
}

pub(crate) trait PciDevice {
    fn write_config_register(
        &mut self,
        register: usize,
        offset: u64,
        data: &[u8],
    ) -> Vec<BarReprogrammingParams>;
    fn read_config_register(&mut self, register: usize) -> u32;
}

pub(crate) trait InterruptSourceGroup: Send + Sync {
    /// `None` while the vector is masked.
    fn update(&self, index: u32, config: Option<MsixMessage>);
    fn trigger(&self, index: u32);
}

pub(crate) trait Pausable {
    fn pause(&mut self);
    fn resume(&mut self);
}

/// The adapter: the function, with the place of each register on the bus. One whose memory space is off stays there.
pub(crate) struct VirtualHca {
    device: Device,
    /// Index and address of each.
    placed: Vec<(u8, u64)>,
}

impl VirtualHca {
    /// Attaches the function, and gives its registers addresses, as from the VMM's allocators. Returns it with what goes to
    /// them on the bus.
    pub(crate) fn new(
        backend: &Backend<World>,
        at: HostFunction,
        group: Arc<dyn InterruptSourceGroup>,
        allocated: impl Iterator<Item = u64>,
    ) -> Result<(Self, Vec<(u64, Register)>), AttachError> {
        let device = backend.attach(at, Arc::new(Vectors(group)), Arc::new(TrappedDoorbells))?;
        let bars = device.bars().iter().map(|bar| bar.index);
        let placed: Vec<_> = bars.zip(allocated).collect();
        let registers = placed.iter();
        let registers = registers.map(|(bar, base)| (*base, Register(device.clone(), *bar)));
        let registers = registers.collect();
        Ok((Self { device, placed }, registers))
    }
}

impl PciDevice for VirtualHca {
    fn write_config_register(
        &mut self,
        register: usize,
        offset: u64,
        data: &[u8],
    ) -> Vec<BarReprogrammingParams> {
        let at = u16::try_from(4 * register as u64 + offset).unwrap_or(u16::MAX);
        let effect = self.device.config_write(at, data);
        let moved = effect.moved.iter().filter_map(|moved| {
            let mut placed = self.placed.iter_mut();
            let (_, base) = placed.find(|(bar, _)| *bar == moved.bar)?;
            let new_base = moved.to?;
            let old_base = core::mem::replace(base, new_base);
            (old_base != new_base).then_some(BarReprogrammingParams { old_base, new_base })
        });
        moved.collect()
    }

    fn read_config_register(&mut self, register: usize) -> u32 {
        let mut value = [0; 4];
        let at = u16::try_from(4 * register).unwrap_or(u16::MAX);
        self.device.config_read(at, &mut value);
        u32::from_le_bytes(value)
    }
}

impl Pausable for VirtualHca {
    fn pause(&mut self) {
        self.device.pause();
    }

    fn resume(&mut self) {
        self.device.resume();
    }
}

/// A register of the function on the bus.
pub(crate) struct Register(Device, u8);

impl BusDeviceSync for Register {
    fn read(&self, _: u64, offset: u64, data: &mut [u8]) {
        self.0.bar_read(self.1, offset, data);
    }

    fn write(&self, _: u64, offset: u64, data: &[u8]) {
        self.0.bar_write(self.1, offset, data);
    }
}

struct Vectors(Arc<dyn InterruptSourceGroup>);

impl Interrupts for Vectors {
    fn update(&self, changes: &[(u16, Option<MsixMessage>)]) {
        for (vector, message) in changes {
            self.0.update((*vector).into(), *message);
        }
    }

    fn trigger(&self, vector: u16, _: MsixMessage) {
        self.0.trigger(vector.into());
    }
}

struct Printed;

impl InterruptSourceGroup for Printed {
    fn update(&self, index: u32, config: Option<MsixMessage>) {
        println!("vector {index}: {config:x?}");
    }

    fn trigger(&self, index: u32) {
        println!("vector {index} fires");
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 20)])?;
    let (world, at) = World::with_one_vf(Arc::new(memory), &VfOptions::default())?;
    // Its descriptor goes to the VMM's epoll loop, on a thread of its own.
    let mut event_loop = EventLoop::new(world)?;
    let bases = (0xc000_0000..).step_by(16 << 20);
    let (mut hca, registers) = VirtualHca::new(event_loop.backend(), at, Arc::new(Printed), bases)?;
    println!("vendor and device: {:x}", hca.read_config_register(0));
    for moved in hca.write_config_register(1, 0, &[6, 0]) {
        println!("{:x} is at {:x} now", moved.old_base, moved.new_base);
    }
    let (base, register) = &registers[0];
    register.write(*base, 0, &[0; 4]);
    hca.pause();
    hca.resume();
    event_loop.step()?;
    let mut flags = [0; 4];
    register.read(*base, 8, &mut flags);
    println!("flags: {flags:x?}");
    Ok(())
}
