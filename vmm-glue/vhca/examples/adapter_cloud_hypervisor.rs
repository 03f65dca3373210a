//! A virtual HCA in Cloud Hypervisor: a bus of devices with locks of their own, registers that have addresses from the start and that
//! the guest moves, a group of interrupts, pause. `cargo run -p vhca --example adapter_cloud_hypervisor`.

use std::any::Any;
use std::error::Error;
use std::io;
use std::sync::{Arc, Barrier};

use vhca::device::event::EventLoop;
use vhca::device::{AttachError, Backend, Device, Interrupts, MsixMessage, TrappedDoorbells};
use vhca::emulated::VfOptions;
use vhca::world::{HostFunction, World};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The VMM's traits, with the signatures that they have in its crates vm-device, pci and vm-migration.
pub(crate) trait BusDeviceSync: Send + Sync {
    fn read(&self, base: u64, offset: u64, data: &mut [u8]);
    fn write(&self, base: u64, offset: u64, data: &[u8]) -> Option<Arc<Barrier>>;
}

#[derive(Clone, Copy)]
pub(crate) enum PciBarRegionType {
    Memory64BitRegion = 0x04,
}

pub(crate) struct BarReprogrammingParams {
    pub(crate) old_base: u64,
    pub(crate) new_base: u64,
    pub(crate) len: u64,
    pub(crate) region_type: PciBarRegionType,
}

type Moved = (Vec<BarReprogrammingParams>, Option<Arc<Barrier>>);

pub(crate) trait PciDevice: Send {
    fn write_config_register(&mut self, reg_idx: usize, offset: u64, data: &[u8]) -> Moved;
    fn read_config_register(&mut self, reg_idx: usize) -> u32;
    fn restore_bar_addr(&mut self, params: &BarReprogrammingParams);
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn id(&self) -> Option<String>;
}

#[derive(Clone, Copy)]
pub(crate) struct MsiIrqSourceConfig {
    pub(crate) high_addr: u32,
    pub(crate) low_addr: u32,
    pub(crate) data: u32,
    pub(crate) devid: u32,
}

#[derive(Clone, Copy)]
pub(crate) enum InterruptSourceConfig {
    MsiIrq(MsiIrqSourceConfig),
}

pub(crate) trait InterruptSourceGroup: Send + Sync {
    fn trigger(&self, index: u32) -> io::Result<()>;
    /// Changes one source; with `set_gsi` the routes of the VM, too.
    fn update(
        &self,
        index: u32,
        config: InterruptSourceConfig,
        masked: bool,
        set_gsi: bool,
    ) -> io::Result<()>;
    fn set_gsi(&self) -> io::Result<()>;
}

pub(crate) trait Pausable {
    fn pause(&mut self) -> io::Result<()>;
    fn resume(&mut self) -> io::Result<()>;
}

/// The adapter: the function, with the place of each register on the bus. One whose memory space is off stays there.
pub(crate) struct VirtualHca {
    device: Device,
    /// Index and address of each.
    placed: Vec<(u8, u64)>,
}

impl VirtualHca {
    /// Attaches the function, and gives its registers addresses, as from the VMM's allocators: a guest without firmware finds them
    /// there. Returns it with the devices on the bus.
    pub(crate) fn new(
        backend: &Backend<World>,
        at: HostFunction,
        group: Arc<dyn InterruptSourceGroup>,
        allocated: impl Iterator<Item = u64>,
    ) -> Result<(Self, Vec<(u64, Register)>), AttachError> {
        // The device's requester ID on segment 0.
        let vectors = Vectors { group, devid: 8 };
        let device = backend.attach(at, Arc::new(vectors), Arc::new(TrappedDoorbells))?;
        let bars = device.bars().iter().map(|bar| bar.index);
        let placed: Vec<_> = bars.zip(allocated).collect();
        for (bar, base) in &placed {
            // Memory space is off, so nothing moves.
            let _ = device.restore_bar(*bar, *base);
        }
        let registers = placed.iter();
        let registers = registers.map(|(bar, base)| (*base, Register(device.clone(), *bar)));
        let registers = registers.collect();
        Ok((Self { device, placed }, registers))
    }
}

impl PciDevice for VirtualHca {
    fn write_config_register(&mut self, reg_idx: usize, offset: u64, data: &[u8]) -> Moved {
        let at = u16::try_from(4 * reg_idx as u64 + offset).unwrap_or(u16::MAX);
        let effect = self.device.config_write(at, data);
        let moved = effect.moved.iter().filter_map(|moved| {
            let mut placed = self.placed.iter_mut();
            let (_, base) = placed.find(|(bar, _)| *bar == moved.bar)?;
            let new_base = moved.to?;
            let old_base = core::mem::replace(base, new_base);
            (old_base != new_base).then_some(BarReprogrammingParams {
                old_base,
                new_base,
                len: moved.size,
                region_type: PciBarRegionType::Memory64BitRegion,
            })
        });
        (moved.collect(), None)
    }

    fn read_config_register(&mut self, reg_idx: usize) -> u32 {
        let mut value = [0; 4];
        let at = u16::try_from(4 * reg_idx).unwrap_or(u16::MAX);
        self.device.config_read(at, &mut value);
        u32::from_le_bytes(value)
    }

    fn restore_bar_addr(&mut self, params: &BarReprogrammingParams) {
        let mut placed = self.placed.iter_mut();
        if let Some((bar, base)) = placed.find(|(_, base)| *base == params.new_base) {
            *base = params.old_base;
            let _ = self.device.restore_bar(*bar, params.old_base);
        }
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn id(&self) -> Option<String> {
        Some("hca0".to_owned())
    }
}

impl Pausable for VirtualHca {
    fn pause(&mut self) -> io::Result<()> {
        self.device.pause();
        Ok(())
    }

    fn resume(&mut self) -> io::Result<()> {
        self.device.resume();
        Ok(())
    }
}

/// A register of the function on the bus.
pub(crate) struct Register(Device, u8);

impl BusDeviceSync for Register {
    fn read(&self, _: u64, offset: u64, data: &mut [u8]) {
        self.0.bar_read(self.1, offset, data);
    }

    fn write(&self, _: u64, offset: u64, data: &[u8]) -> Option<Arc<Barrier>> {
        self.0.bar_write(self.1, offset, data);
        None
    }
}

struct Vectors {
    group: Arc<dyn InterruptSourceGroup>,
    devid: u32,
}

impl Interrupts for Vectors {
    fn update(&self, changes: &[(u16, Option<MsixMessage>)]) {
        for (vector, message) in changes {
            let [low_addr, high_addr] = message.map_or([0; 2], |it| halves(it.address));
            let config = InterruptSourceConfig::MsiIrq(MsiIrqSourceConfig {
                high_addr,
                low_addr,
                data: message.map_or(0, |it| it.data),
                devid: self.devid,
            });
            // Routes are set once, below.
            let updated = (self.group).update((*vector).into(), config, message.is_none(), false);
            updated.unwrap_or_else(|error| eprintln!("vector {vector}: {error}"));
        }
        let set = self.group.set_gsi();
        set.unwrap_or_else(|error| eprintln!("routes: {error}"));
    }

    fn trigger(&self, vector: u16, _: MsixMessage) {
        let triggered = self.group.trigger(vector.into());
        triggered.unwrap_or_else(|error| eprintln!("vector {vector}: {error}"));
    }
}

fn halves(address: u64) -> [u32; 2] {
    let [a, b, c, d, high @ ..] = address.to_le_bytes();
    [[a, b, c, d], high].map(u32::from_le_bytes)
}

struct Printed;

impl InterruptSourceGroup for Printed {
    fn update(
        &self,
        index: u32,
        config: InterruptSourceConfig,
        masked: bool,
        set_gsi: bool,
    ) -> io::Result<()> {
        let InterruptSourceConfig::MsiIrq(msi) = config;
        let (address, data) = ((msi.high_addr, msi.low_addr), msi.data);
        println!(
            "vector {index} of {}: {address:x?} {data:x}, masked {masked}, {set_gsi}",
            msi.devid
        );
        Ok(())
    }

    fn set_gsi(&self) -> io::Result<()> {
        Ok(())
    }

    fn trigger(&self, index: u32) -> io::Result<()> {
        println!("vector {index} fires");
        Ok(())
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 20)])?;
    let (world, at) = World::with_one_vf(Arc::new(memory), &VfOptions::default())?;
    // Its descriptor goes to the VMM's epoll loop, on a thread of its own.
    let mut event_loop = EventLoop::new(world)?;
    let bases = (0xc000_0000..).step_by(16 << 20);
    let (mut hca, registers) = VirtualHca::new(event_loop.backend(), at, Arc::new(Printed), bases)?;
    println!(
        "{:?}: vendor and device {:x}",
        hca.id(),
        hca.read_config_register(0)
    );
    let (moved, _) = hca.write_config_register(1, 0, &[6, 0]);
    assert!(moved.is_empty(), "they are on the bus");
    let (moved, _) = hca.write_config_register(6, 0, &0xc800_0000_u32.to_le_bytes());
    for params in &moved {
        let (len, kind) = (params.len, params.region_type as u8);
        println!(
            "{:x} refused: {len:#x} bytes of type {kind}",
            params.new_base
        );
        hca.restore_bar_addr(params);
    }
    assert!(hca.as_any_mut().is::<VirtualHca>());
    let (base, register) = &registers[0];
    register.write(*base, 0, &[0; 4]);
    hca.pause()?;
    hca.resume()?;
    event_loop.step()?;
    let mut flags = [0; 4];
    register.read(*base, 8, &mut flags);
    println!("flags: {flags:x?}");
    Ok(())
}
