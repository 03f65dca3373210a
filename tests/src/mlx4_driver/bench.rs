//! One function on an adapter that nothing else uses.

use std::collections::BTreeSet;

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AsyncEvent, FunctionId, FunctionManager, FunctionSpec, Hca, PortChange, PortState,
    ResourceCounts, VirtualPort,
};
use ib_vtime::{Duration, Instant};
use ib_wire::{Guid, Lid, Mtu, PKeyIndex, PortNum};
use vf_pci::{PciEvent, PciFunction};

use super::{Bus, GuestMemory};

/// The function that the bench drives.
const VF: FunctionId = FunctionId(1);

/// Node GUID of the function.
pub const NODE_GUID: Guid = Guid::new(0x0014_0500_0000_0001);

/// LID of the first port; that of the second follows.
pub const FIRST_LID: u16 = 7;

/// What the function may own.
pub const QUOTA: ResourceCounts = ResourceCounts {
    pds: 64,
    avs: 64,
    cqs: 64,
    srqs: 64,
    qps: 64,
    mrs: 128,
    mws: 0,
    attachments: 64,
};

/// A VF of an emulated adapter, and the PCI function on it. Its ports are active; what they send
/// goes nowhere, except to the function itself.
#[derive(Debug)]
pub struct Bench {
    device: Device,
    function: Box<dyn PciFunction>,
    ports: u8,
    now: Instant,
    interrupts: BTreeSet<u16>,
    resets: u64,
}

impl Bench {
    /// Puts a function on a VF of an adapter with so many ports.
    ///
    /// # Panics
    /// If the adapter refuses the VF.
    #[must_use]
    pub fn new(memory: &GuestMemory, ports: u8, function: Box<dyn PciFunction>) -> Self {
        let mut config = HcaConfig::new(Guid::new(0x0002_c903_0000_0000), "bench");
        config.ports = ports;
        let mut device = Device::new(&config, 7);
        for (number, lid) in (1..=ports).zip(FIRST_LID..) {
            let port = device.node_mut().port_mut(PortNum(number));
            let port = port.expect("a port of the adapter");
            port.state = PortState::Active;
            port.lid = Lid::new(lid);
            port.sm_lid = Lid::new(1);
            port.neighbor_mtu = Mtu::MTU_2048;
        }
        let mut bench = Self {
            device,
            function,
            ports,
            now: Instant::from_millis(1),
            interrupts: BTreeSet::new(),
            resets: 0,
        };
        bench
            .pf()
            .create_function(FunctionSpec {
                id: VF,
                node_guid: NODE_GUID,
                memory: Box::new(memory.clone()),
                quota: QUOTA,
            })
            .expect("a VF of the adapter");
        for port in 1..=ports {
            bench.set_port_state(PortNum(port), PortState::Active);
        }
        bench.settle();
        bench
    }

    fn pf(&mut self) -> impl FunctionManager + '_ {
        self.device
            .function(FunctionId::PF)
            .expect("the physical function")
    }

    /// Shows the VF a port in a state, without telling it.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn set_port_state(&mut self, port: PortNum, state: PortState) {
        let view = VirtualPort {
            state,
            pkeys: vec![Some(PKeyIndex(0)), None],
            smi_enabled: false,
        };
        self.show_port(port, view);
    }

    /// Shows the VF another port, without telling it.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn show_port(&mut self, port: PortNum, view: VirtualPort) {
        self.pf()
            .set_virtual_port(VF, port, view)
            .expect("a port of the adapter");
    }

    /// Tells the VF that something about a port changed.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn notify_port(&mut self, port: PortNum, change: PortChange) {
        self.pf()
            .notify(VF, AsyncEvent::Port { port, change })
            .expect("a port of the adapter");
        self.settle();
    }

    /// Has the PF reset the VF, whatever the function wants.
    ///
    /// # Panics
    /// Never: the VF exists.
    pub fn reset_by_pf(&mut self) {
        self.pf().reset_function(VF).expect("the VF");
        self.settle();
    }

    /// What the VF owns.
    ///
    /// # Panics
    /// Never: the VF exists.
    #[must_use]
    pub fn owned(&mut self) -> ResourceCounts {
        self.pf().resources(VF).expect("the VF")
    }

    /// Resets of the VF that the function asked for.
    #[must_use]
    pub const fn resets(&self) -> u64 {
        self.resets
    }

    /// The function.
    #[must_use]
    pub fn function(&self) -> &dyn PciFunction {
        self.function.as_ref()
    }

    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut dyn PciFunction, &mut dyn Hca, Instant) -> T,
    ) -> T {
        let mut hca = self.device.function(VF).expect("the VF");
        let result = call(self.function.as_mut(), &mut hca, self.now);
        self.settle();
        result
    }

    /// Does everything that is due, as the owner of a function does.
    fn settle(&mut self) {
        loop {
            let mut hca = self.device.function(VF).expect("the VF");
            let mut busy = false;
            while let Some(event) = hca.poll_event() {
                self.function.handle_hca_event(self.now, &mut hca, &event);
                busy = true;
            }
            busy |= self.function.poll(self.now, &mut hca);
            for port in 1..=self.ports {
                while self.device.poll_transmit(self.now, PortNum(port)).is_some() {
                    busy = true;
                }
            }
            while let Some(event) = self.function.poll_event() {
                busy = true;
                match event {
                    PciEvent::Interrupt { vector } => {
                        self.interrupts.insert(vector);
                    }
                    PciEvent::ResetWanted => {
                        self.resets += 1;
                        self.pf().reset_function(VF).expect("the VF");
                    }
                    PciEvent::VectorChanged { .. }
                    | PciEvent::BarsChanged
                    | PciEvent::DoorbellsChanged => {}
                }
            }
            if !busy {
                return;
            }
        }
    }
}

impl Bus for Bench {
    fn now(&self) -> Instant {
        self.now
    }

    fn bar_size(&self, bar: u8) -> Option<u64> {
        let mut bars = self.function.bars().iter();
        bars.find(|found| found.index == bar)
            .map(|found| found.size)
    }

    fn interrupt_vectors(&self) -> u16 {
        self.function.interrupt_vectors()
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        self.function.config_read(offset, out);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        self.call(|function, hca, now| function.config_write(now, hca, offset, bytes));
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        self.function.bar_read(bar, offset, out);
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.call(|function, hca, now| function.bar_write(now, hca, bar, offset, bytes));
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        self.interrupts.pop_first()
    }

    fn wait(&mut self, at_most: Duration) {
        let end = self.now + at_most;
        while self.interrupts.is_empty() && self.now < end {
            let next = self
                .function
                .poll_timeout()
                .map_or(end, |next| next.min(end));
            self.now = next.max(self.now + Duration::from_nanos(1));
            self.settle();
        }
    }

    fn reset(&mut self) {
        self.call(|function, hca, now| function.reset(now, hca));
    }
}
