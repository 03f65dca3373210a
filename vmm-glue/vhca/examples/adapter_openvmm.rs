//! A virtual HCA in a VMM of OpenVMM's shape: a device that is polled with a waker, that finds its own registers by address, and
//! knows no descriptor. `cargo run -p vhca --example adapter_openvmm`.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use vhca::device::{AttachError, Backend, Device, Interrupts, MsixMessage, TrappedDoorbells, Wake};
use vhca::emulated::VfOptions;
use vhca::world::{HostFunction, World};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The VMM's traits, in outline.
pub(crate) trait PciConfigSpace {
    fn pci_cfg_read(&mut self, offset: u16, value: &mut u32);
    /// Writes the enabled bytes of a word.
    fn pci_cfg_write(&mut self, offset: u16, value: u32, enabled: Range<usize>);
}

pub(crate) trait MmioIntercept {
    fn mmio_read(&mut self, address: u64, data: &mut [u8]);
    fn mmio_write(&mut self, address: u64, data: &[u8]);
}

pub(crate) trait PollDevice {
    /// Does what is due. The device is polled again when it wakes the context's waker.
    fn poll_device(&mut self, context: &mut Context<'_>);
}

pub(crate) trait ChangeDeviceState {
    fn start(&mut self);
    fn stop(&mut self);
}

pub(crate) trait SignalMsi: Send + Sync {
    fn signal_msi(&self, address: u64, data: u32);
}

/// Wakes a task in some time, as its driver does.
pub(crate) type Timer = Box<dyn FnMut(Duration, &Waker)>;

/// The adapter.
pub(crate) struct VirtualHca {
    backend: Backend<World>,
    device: Device,
    /// Indices of the registers that have an address, by that.
    placed: BTreeMap<u64, u8>,
    sleeper: Arc<Sleeper>,
    timer: Timer,
}

/// The task that polls the device.
#[derive(Default)]
struct Sleeper(Mutex<Option<Waker>>);

impl Wake for Sleeper {
    fn wake(&self) {
        if let Some(waker) = self.0.lock().ok().and_then(|mut waker| waker.take()) {
            waker.wake();
        }
    }
}

struct Messages(Arc<dyn SignalMsi>);

impl Interrupts for Messages {
    fn trigger(&self, _: u16, message: MsixMessage) {
        self.0.signal_msi(message.address, message.data);
    }
}

impl VirtualHca {
    pub(crate) fn new(
        world: World,
        at: HostFunction,
        msi: Arc<dyn SignalMsi>,
        timer: Timer,
    ) -> Result<Self, AttachError> {
        let sleeper = Arc::new(Sleeper::default());
        let backend = Backend::new(world, sleeper.clone());
        let device = backend.attach(at, Arc::new(Messages(msi)), Arc::new(TrappedDoorbells))?;
        Ok(Self {
            backend,
            device,
            placed: BTreeMap::new(),
            sleeper,
            timer,
        })
    }

    /// Returns the register at an address, with the offset behind it.
    fn find(&self, address: u64) -> Option<(u8, u64)> {
        let (base, bar) = self.placed.range(..=address).next_back()?;
        Some((*bar, address - base))
    }
}

impl PciConfigSpace for VirtualHca {
    fn pci_cfg_read(&mut self, offset: u16, value: &mut u32) {
        let mut bytes = [0; 4];
        self.device.config_read(offset, &mut bytes);
        *value = u32::from_le_bytes(bytes);
    }

    fn pci_cfg_write(&mut self, offset: u16, value: u32, enabled: Range<usize>) {
        let at = offset + u16::try_from(enabled.start).unwrap_or(0);
        let bytes = value.to_le_bytes();
        let effect = self
            .device
            .config_write(at, bytes.get(enabled).unwrap_or(&[]));
        for moved in effect.moved {
            self.placed.retain(|_, bar| *bar != moved.bar);
            self.placed.extend(moved.to.map(|base| (base, moved.bar)));
        }
    }
}

impl MmioIntercept for VirtualHca {
    fn mmio_read(&mut self, address: u64, data: &mut [u8]) {
        match self.find(address) {
            Some((bar, offset)) => self.device.bar_read(bar, offset, data),
            None => data.fill(0xff),
        }
    }

    fn mmio_write(&mut self, address: u64, data: &[u8]) {
        if let Some((bar, offset)) = self.find(address) {
            self.device.bar_write(bar, offset, data);
        }
    }
}

impl PollDevice for VirtualHca {
    fn poll_device(&mut self, context: &mut Context<'_>) {
        if let Ok(mut waker) = self.sleeper.0.lock() {
            *waker = Some(context.waker().clone());
        }
        // A backend that has failed is polled no more: its device answers as a detached one.
        if self.backend.step().is_ok()
            && let Ok(Some(time)) = self.backend.sleep_time()
        {
            (self.timer)(time, context.waker());
        }
    }
}

impl ChangeDeviceState for VirtualHca {
    fn start(&mut self) {
        self.device.resume();
    }

    fn stop(&mut self) {
        self.device.pause();
    }
}

struct Printed;

impl SignalMsi for Printed {
    fn signal_msi(&self, address: u64, data: u32) {
        println!("{data:x} to {address:x}");
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 20)])?;
    let (world, at) = World::with_one_vf(Arc::new(memory), &VfOptions::default())?;
    let timer = Box::new(|time, _: &_| println!("to be polled in {time:?}"));
    let mut hca = VirtualHca::new(world, at, Arc::new(Printed), timer)?;
    let (mut identity, mut flags) = (0, [0; 4]);
    hca.pci_cfg_read(0, &mut identity);
    println!("vendor and device: {identity:x}");
    hca.pci_cfg_write(0x18, 0xd000_0000, 0..4);
    hca.pci_cfg_write(4, 6, 0..2);
    hca.mmio_write(0xd000_0000, &[0; 4]);
    hca.stop();
    hca.start();
    hca.poll_device(&mut Context::from_waker(Waker::noop()));
    hca.mmio_read(0xd000_0008, &mut flags);
    println!("flags: {flags:x?}");
    Ok(())
}
