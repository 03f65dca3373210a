//! As much of three VMMs as their adapters meet.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Instant;

use event_manager::{EventManager, MutEventSubscriber, SubscriberOps};
use vhca::device::MsixMessage;
use vhca::device::event::EventLoop;
use vhca::world::{HostFunction, World};

use crate::cloud_hypervisor::{
    self, BusDeviceSync, InterruptSourceConfig, Pausable, PciDevice as _,
};
use crate::firecracker::{self, BusDevice, PciDevice as _};
use crate::openvmm::{
    self, ChangeDeviceState, MmioIntercept, PciConfigSpace, PollDevice, SignalMsi,
};

/// A VM, as its guest and its operator see it.
pub(crate) trait Machine {
    fn config_read(&mut self, register: u16) -> u32;
    fn config_write(&mut self, at: u16, bytes: &[u8]);
    fn mmio_read(&mut self, address: u64, data: &mut [u8]);
    fn mmio_write(&mut self, address: u64, data: &[u8]);
    fn set_paused(&mut self, paused: bool);
    /// Runs what the VMM has on other threads, for a moment.
    fn run(&mut self);
    /// Takes the messages that the VMM has sent to its interrupt controller.
    fn take_interrupts(&mut self) -> Vec<MsixMessage>;
}

/// Vectors as a VMM knows them, and the messages that it sent.
#[derive(Default)]
struct Vectors {
    known: Mutex<BTreeMap<u32, MsixMessage>>,
    sent: Mutex<Vec<MsixMessage>>,
}

impl Vectors {
    fn take(&self) -> Vec<MsixMessage> {
        core::mem::take(&mut self.sent.lock().unwrap())
    }

    fn know(&self, index: u32, config: Option<MsixMessage>) {
        let mut known = self.known.lock().unwrap();
        match config {
            Some(message) => known.insert(index, message),
            None => known.remove(&index),
        };
    }

    fn send(&self, index: u32) {
        let message = self.known.lock().unwrap()[&index];
        self.sent.lock().unwrap().push(message);
    }
}

impl cloud_hypervisor::InterruptSourceGroup for Vectors {
    fn update(
        &self,
        index: u32,
        config: InterruptSourceConfig,
        masked: bool,
        _: bool,
    ) -> io::Result<()> {
        let InterruptSourceConfig::MsiIrq(config) = config;
        let address = u64::from(config.high_addr) << 32 | u64::from(config.low_addr);
        let data = config.data;
        assert_eq!(config.devid, 8);
        self.know(index, (!masked).then_some(MsixMessage { address, data }));
        Ok(())
    }

    fn set_gsi(&self) -> io::Result<()> {
        Ok(())
    }

    fn trigger(&self, index: u32) -> io::Result<()> {
        self.send(index);
        Ok(())
    }
}

impl firecracker::MsixGroup for Vectors {
    fn update(&self, index: u32, config: Option<MsixMessage>) {
        self.know(index, config);
    }

    fn trigger(&self, index: u32) {
        self.send(index);
    }
}

impl SignalMsi for Vectors {
    fn signal_msi(&self, address: u64, data: u32) {
        self.sent
            .lock()
            .unwrap()
            .push(MsixMessage { address, data });
    }
}

/// Cloud Hypervisor refuses to move registers beyond its address space, and puts them back.
pub(crate) const REFUSED: u64 = 1 << 46;

fn split(at: u16) -> (usize, u64) {
    (usize::from(at / 4), u64::from(at % 4))
}

pub(crate) struct CloudHypervisor {
    hca: cloud_hypervisor::VirtualHca,
    bus: BTreeMap<u64, cloud_hypervisor::Register>,
    event_loop: EventLoop<World>,
    vectors: Arc<Vectors>,
}

impl CloudHypervisor {
    pub(crate) fn new(world: World, at: HostFunction) -> Result<Self, Box<dyn Error>> {
        let event_loop = EventLoop::new(world)?;
        let vectors = Arc::new(Vectors::default());
        let allocated = (0xc000_0000..).step_by(16 << 20);
        let backend = event_loop.backend();
        let (hca, registers) =
            cloud_hypervisor::VirtualHca::new(backend, at, vectors.clone(), allocated)?;
        Ok(Self {
            hca,
            bus: registers.into_iter().collect(),
            event_loop,
            vectors,
        })
    }
}

impl Machine for CloudHypervisor {
    fn config_read(&mut self, register: u16) -> u32 {
        self.hca.read_config_register(split(register).0)
    }

    fn config_write(&mut self, at: u16, bytes: &[u8]) {
        let (register, offset) = split(at);
        let (moved, _) = self.hca.write_config_register(register, offset, bytes);
        for moved in moved {
            assert!(moved.len.is_power_of_two());
            if moved.new_base >= REFUSED {
                self.hca.restore_bar_addr(&moved);
                continue;
            }
            let register = self.bus.remove(&moved.old_base).unwrap();
            self.bus.insert(moved.new_base, register);
        }
    }

    fn mmio_read(&mut self, address: u64, data: &mut [u8]) {
        let (base, register) = self.bus.range(..=address).next_back().unwrap();
        register.read(*base, address - base, data);
    }

    fn mmio_write(&mut self, address: u64, data: &[u8]) {
        let (base, register) = self.bus.range(..=address).next_back().unwrap();
        register.write(*base, address - base, data);
    }

    fn set_paused(&mut self, paused: bool) {
        match paused {
            true => self.hca.pause().unwrap(),
            false => self.hca.resume().unwrap(),
        }
    }

    fn run(&mut self) {
        self.event_loop.step().unwrap();
    }

    fn take_interrupts(&mut self) -> Vec<MsixMessage> {
        self.vectors.take()
    }
}

pub(crate) struct Firecracker {
    hca: firecracker::VirtualHca,
    bus: BTreeMap<u64, firecracker::Register>,
    manager: EventManager<Box<dyn MutEventSubscriber>>,
    vectors: Arc<Vectors>,
}

impl Firecracker {
    pub(crate) fn new(world: World, at: HostFunction) -> Result<Self, Box<dyn Error>> {
        let event_loop = EventLoop::new(world)?;
        let backend = event_loop.backend().clone();
        let mut manager: EventManager<Box<dyn MutEventSubscriber>> = EventManager::new()?;
        manager.add_subscriber(Box::new(event_loop));
        let vectors = Arc::new(Vectors::default());
        let [first, second] = crate::FIRST;
        let allocated = [first, second].into_iter();
        let (hca, registers) =
            firecracker::VirtualHca::new(&backend, at, vectors.clone(), allocated)?;
        Ok(Self {
            hca,
            bus: registers.into_iter().collect(),
            manager,
            vectors,
        })
    }
}

impl Machine for Firecracker {
    fn config_read(&mut self, register: u16) -> u32 {
        self.hca.read_config_register(split(register).0)
    }

    fn config_write(&mut self, at: u16, bytes: &[u8]) {
        let (register, offset) = split(at);
        self.hca.write_config_register(register, offset, bytes);
    }

    fn mmio_read(&mut self, address: u64, data: &mut [u8]) {
        let (base, register) = self.bus.range_mut(..=address).next_back().unwrap();
        register.read(*base, address - base, data);
    }

    fn mmio_write(&mut self, address: u64, data: &[u8]) {
        let (base, register) = self.bus.range_mut(..=address).next_back().unwrap();
        register.write(*base, address - base, data);
    }

    fn set_paused(&mut self, paused: bool) {
        self.hca.set_paused(paused);
    }

    fn run(&mut self) {
        self.manager.run_with_timeout(0).unwrap();
    }

    fn take_interrupts(&mut self) -> Vec<MsixMessage> {
        self.vectors.take()
    }
}

/// The VMM's executor: it polls a device that woke it, or whose time has come.
struct Task {
    is_woken: AtomicBool,
    due: Mutex<Option<Instant>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
    }
}

pub(crate) struct OpenVmm {
    hca: openvmm::VirtualHca,
    task: Arc<Task>,
    vectors: Arc<Vectors>,
}

impl OpenVmm {
    pub(crate) fn new(world: World, at: HostFunction) -> Result<Self, Box<dyn Error>> {
        let task = Arc::new(Task {
            is_woken: AtomicBool::new(true),
            due: Mutex::new(None),
        });
        let vectors = Arc::new(Vectors::default());
        let its = task.clone();
        let timer = Box::new(move |time, _: &_| {
            *its.due.lock().unwrap() = Some(Instant::now() + time);
        });
        let hca = openvmm::VirtualHca::new(world, at, vectors.clone(), timer)?;
        Ok(Self { hca, task, vectors })
    }
}

impl Machine for OpenVmm {
    fn config_read(&mut self, register: u16) -> u32 {
        let mut value = 0;
        self.hca.pci_cfg_read(register, &mut value);
        value
    }

    fn config_write(&mut self, at: u16, bytes: &[u8]) {
        let first = usize::from(at % 4);
        let mut word = [0; 4];
        word[first..first + bytes.len()].copy_from_slice(bytes);
        let word = u32::from_le_bytes(word);
        self.hca
            .pci_cfg_write(at & !3, word, first..first + bytes.len());
    }

    fn mmio_read(&mut self, address: u64, data: &mut [u8]) {
        self.hca.mmio_read(address, data);
    }

    fn mmio_write(&mut self, address: u64, data: &[u8]) {
        self.hca.mmio_write(address, data);
    }

    fn set_paused(&mut self, paused: bool) {
        match paused {
            true => self.hca.stop(),
            false => self.hca.start(),
        }
    }

    fn run(&mut self) {
        let due = self
            .task
            .due
            .lock()
            .unwrap()
            .take_if(|due| *due <= Instant::now());
        if self.task.is_woken.swap(false, Ordering::SeqCst) || due.is_some() {
            let waker = Waker::from(self.task.clone());
            self.hca.poll_device(&mut Context::from_waker(&waker));
        }
    }

    fn take_interrupts(&mut self) -> Vec<MsixMessage> {
        self.vectors.take()
    }
}
