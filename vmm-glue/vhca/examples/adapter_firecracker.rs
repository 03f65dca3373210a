//! A virtual HCA in a VMM of Firecracker's shape: each device behind a lock of the bus, registers that stay where the VMM puts
//! them, an event manager. `cargo run -p vhca --example adapter_firecracker`.

use std::error::Error;
use std::sync::Arc;

use event_manager::{EventManager, MutEventSubscriber, SubscriberOps};
use vhca::device::event::EventLoop;
use vhca::device::{AttachError, Backend, Device, Interrupts, MsixMessage, TrappedDoorbells};
use vhca::emulated::VfOptions;
use vhca::world::{HostFunction, World};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The VMM's traits, in outline. Its loop is an event manager of subscribers.
pub(crate) trait BusDevice: Send {
    fn read(&mut self, base: u64, offset: u64, data: &mut [u8]);
    fn write(&mut self, base: u64, offset: u64, data: &[u8]);
}

pub(crate) trait PciDevice: Send {
    fn write_config_register(&mut self, register: usize, offset: u64, data: &[u8]);
    fn read_config_register(&mut self, register: usize) -> u32;
}

pub(crate) trait MsixGroup: Send + Sync {
    /// `None` while the vector is masked.
    fn update(&self, index: u32, config: Option<MsixMessage>);
    fn trigger(&self, index: u32);
}

/// The adapter. The bus has the registers at the addresses that the VMM chose; a guest that writes others moves nothing.
pub(crate) struct VirtualHca {
    device: Device,
}

impl VirtualHca {
    /// Attaches the function, and writes the addresses of its registers into its configuration space. Returns it with what
    /// goes to them on the bus.
    pub(crate) fn new(
        backend: &Backend<World>,
        at: HostFunction,
        group: Arc<dyn MsixGroup>,
        allocated: impl Iterator<Item = u64>,
    ) -> Result<(Self, Vec<(u64, Register)>), AttachError> {
        const BAR_0: u16 = 0x10;
        let device = backend.attach(at, Arc::new(Vectors(group)), Arc::new(TrappedDoorbells))?;
        let mut registers = Vec::new();
        for (bar, base) in device.bars().iter().zip(allocated) {
            let at = BAR_0 + 4 * u16::from(bar.index);
            let [a, b, c, d, high @ ..] = base.to_le_bytes();
            for (at, half) in [(at, [a, b, c, d]), (at + 4, high)] {
                // Nothing is on the bus yet that would move.
                let _ = device.config_write(at, &half);
            }
            registers.push((base, Register(device.clone(), bar.index)));
        }
        Ok((Self { device }, registers))
    }

    /// Holds the device while the VMM stops its vCPUs, or lets it go on.
    pub(crate) fn set_paused(&mut self, paused: bool) {
        if paused {
            self.device.pause();
        } else {
            self.device.resume();
        }
    }
}

impl PciDevice for VirtualHca {
    fn write_config_register(&mut self, register: usize, offset: u64, data: &[u8]) {
        let at = u16::try_from(4 * register as u64 + offset).unwrap_or(u16::MAX);
        // The bus of this VMM follows no register.
        let _ = self.device.config_write(at, data);
    }

    fn read_config_register(&mut self, register: usize) -> u32 {
        let mut value = [0; 4];
        let at = u16::try_from(4 * register).unwrap_or(u16::MAX);
        self.device.config_read(at, &mut value);
        u32::from_le_bytes(value)
    }
}

/// A register of the function on the bus.
pub(crate) struct Register(Device, u8);

impl BusDevice for Register {
    fn read(&mut self, _: u64, offset: u64, data: &mut [u8]) {
        self.0.bar_read(self.1, offset, data);
    }

    fn write(&mut self, _: u64, offset: u64, data: &[u8]) {
        self.0.bar_write(self.1, offset, data);
    }
}

struct Vectors(Arc<dyn MsixGroup>);

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

impl MsixGroup for Printed {
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
    let event_loop = EventLoop::new(world)?;
    let backend = event_loop.backend().clone();
    let mut manager: EventManager<Box<dyn MutEventSubscriber>> = EventManager::new()?;
    manager.add_subscriber(Box::new(event_loop));
    let bases = (0xc000_0000..).step_by(16 << 20);
    let (mut hca, mut registers) = VirtualHca::new(&backend, at, Arc::new(Printed), bases)?;
    println!("vendor and device: {:x}", hca.read_config_register(0));
    hca.write_config_register(1, 0, &[6, 0]);
    let (base, register) = &mut registers[0];
    register.write(*base, 0, &[0; 4]);
    hca.set_paused(true);
    hca.set_paused(false);
    manager.run_with_timeout(0)?;
    let mut flags = [0; 4];
    register.read(*base, 8, &mut flags);
    println!("flags: {flags:x?}");
    Ok(())
}
