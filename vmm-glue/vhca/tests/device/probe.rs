//! A PCI function that notes what its guest does, in a world.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emulated_hca::Topology;
use hca_api::{Hca, HcaEvent};
use ib_vtime::Instant;
use ib_wire::Guid;
use pf_context::context::PfConfig;
use vf_pci::{PciEvent, PciFunction};
use vf_tunnel::VfId;
use vhca::device::{Bar, Doorbell, MsixMessage};
use vhca::world::{HostFunction, World, vf_spec};

pub(crate) const VF: VfId = VfId::new(1).expect("VFs are numbered from 1");
pub(crate) const DOORBELL: Doorbell = Doorbell {
    bar: 2,
    offset: 0x14,
    len: 4,
};

/// Register writes of a guest to a [`Probe`], and the number of doorbells.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) writes: Vec<Vec<u8>>,
    pub(crate) rings: u32,
}

/// A function that notes writes. Four bytes into BAR 2 raise the vector that they name, and the word `PANIC` is a
/// fault of the device.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    pub(crate) seen: Arc<Mutex<Seen>>,
    events: Vec<PciEvent>,
    /// Last value written to configuration space: the address of BAR 2, in pages.
    page: u8,
}

pub(crate) const PANIC: [u8; 4] = *b"boom";

pub(crate) const fn message(vector: u16) -> MsixMessage {
    MsixMessage {
        address: 0xfee0_0000,
        data: vector as u32,
    }
}

impl PciFunction for Probe {
    fn bars(&self) -> &[Bar] {
        &[Bar {
            index: 2,
            size: 4096,
            prefetchable: true,
        }]
    }

    fn interrupt_vectors(&self) -> u16 {
        8
    }

    fn message(&self, vector: u16) -> Option<MsixMessage> {
        (self.page != 0 && vector < 8).then_some(message(vector))
    }

    fn bar_address(&self, bar: u8) -> Option<u64> {
        (bar == 2 && self.page != 0).then_some(u64::from(self.page) * 4096)
    }

    fn doorbells(&self) -> Vec<Doorbell> {
        vec![DOORBELL]
    }

    fn ring(&mut self, _: Instant, _: &mut dyn Hca, _: Doorbell) {
        self.seen.lock().unwrap().rings += 1;
    }

    fn has_driver(&self) -> bool {
        true
    }

    fn config_read(&self, _: u16, out: &mut [u8]) {
        out.fill(self.page);
    }

    fn config_write(&mut self, _: Instant, _: &mut dyn Hca, _: u16, bytes: &[u8]) {
        if let [page] = bytes {
            self.page = *page;
            self.events.push(PciEvent::VectorChanged { vector: 1 });
            self.events.push(PciEvent::BarsChanged);
        }
    }

    fn bar_read(&mut self, _: u8, _: u64, out: &mut [u8]) {
        out.fill(u8::try_from(self.seen.lock().unwrap().writes.len() % 256).unwrap());
    }

    fn bar_write(&mut self, _: Instant, _: &mut dyn Hca, _: u8, _: u64, bytes: &[u8]) {
        assert_ne!(bytes, PANIC, "a fault of the device");
        self.seen.lock().unwrap().writes.push(bytes.to_vec());
        if let Ok(vector) = bytes.try_into().map(u32::from_le_bytes) {
            let vector = u16::try_from(vector).unwrap();
            self.events.push(PciEvent::Interrupt { vector });
        }
    }

    fn handle_hca_event(&mut self, _: Instant, _: &mut dyn Hca, _: &HcaEvent) {}

    fn poll(&mut self, _: Instant, _: &mut dyn Hca) -> bool {
        false
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<PciEvent> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    fn reset(&mut self, _: Instant, _: &mut dyn Hca) {
        self.page = 0;
        self.events.push(PciEvent::BarsChanged);
    }
}

pub(crate) fn world_with(function: Box<dyn PciFunction>) -> (World, HostFunction) {
    let (fabric, built) = Topology::two_switches(1).build(1);
    let mut world = World::new(fabric, 1);
    let host = world.add_pf_host(built.hcas[0], &PfConfig::new(1)).unwrap();
    world
        .add_idle_vf(host, VF, vf_spec(Guid::new(0x0014_0500_0000_0001)))
        .unwrap();
    let at = world.add_device(host, VF, function).unwrap();
    world.run_for(Duration::from_secs(2));
    (world, at)
}
