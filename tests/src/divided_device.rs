//! An emulated adapter of which one function is used: its virtual functions are `hca_functions`'.

use core::ops::{Deref, DerefMut};

use std::time::Duration;

use emulated_hca::hca::{self, Device};
use emulated_hca::{ChannelAdapter, EndNode, Frame, HcaConfig, Lanes, Node, RunHead};
use hca_api::{Adapter, FunctionId};
use hca_functions::{Function, Functions};
use ib_vtime::{Instant, Secret};
use ib_wire::PortNum;

/// One of its functions.
pub type DividedFunction<'a> = Function<'a, hca::Function<'a>>;

/// An emulated adapter with virtual functions in software over its physical one.
#[derive(Debug)]
pub struct DividedDevice {
    device: Device,
    functions: Functions,
}

impl DividedDevice {
    /// Returns an adapter as [`Device::new`] makes it, with as many virtual functions.
    #[must_use]
    pub fn new(config: &HcaConfig, secret: impl Into<Secret>) -> Self {
        let secret = secret.into();
        let functions = Functions::new(config.max_functions, secret);
        Self {
            device: Device::with_memory(config, secret, functions.memory()),
            functions,
        }
    }

    /// Lends a function. `None` if there is none of this number.
    pub fn function(&mut self, id: FunctionId) -> Option<DividedFunction<'_>> {
        let physical = self.device.function(FunctionId::PF)?;
        self.functions.function(physical, id)
    }
}

/// The adapter below.
impl Deref for DividedDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl DerefMut for DividedDevice {
    fn deref_mut(&mut self) -> &mut Device {
        &mut self.device
    }
}

impl Adapter for DividedDevice {
    type Function<'a> = DividedFunction<'a>;

    fn function(&mut self, id: FunctionId) -> Option<Self::Function<'_>> {
        self.function(id)
    }

    fn poll_ready(&mut self) -> Option<FunctionId> {
        let mut physical = self.device.function(FunctionId::PF)?;
        self.functions.poll_ready(&mut physical)
    }
}

/// The node is the adapter below.
impl EndNode for DividedDevice {
    fn node(&self) -> &Node {
        self.device.node()
    }

    fn node_mut(&mut self) -> &mut Node {
        self.device.node_mut()
    }

    fn receive(&mut self, now: Instant, port: PortNum, frame: Frame) {
        self.device.receive(now, port, frame);
    }

    fn poll_transmit_on(&mut self, now: Instant, port: PortNum, lanes: Lanes) -> Option<Frame> {
        self.device.poll_transmit_on(now, port, lanes)
    }

    fn poll_run(&mut self, now: Instant, port: PortNum) -> Option<RunHead> {
        self.device.poll_run(now, port)
    }

    fn run_arrived(&mut self, port: PortNum, taken: Duration) {
        self.device.run_arrived(port, taken);
    }

    fn receive_run(&mut self, now: Instant, port: PortNum, from: (&Self, PortNum)) -> bool {
        let (sender, leaves_by) = from;
        self.device
            .receive_run(now, port, (&sender.device, leaves_by))
    }

    fn ports_changed(&mut self, now: Instant) {
        self.device.ports_changed(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.device.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.device.handle_timeout(now);
    }

    fn take_delivered(&mut self) -> u32 {
        self.device.take_delivered()
    }
}

impl ChannelAdapter for DividedDevice {
    fn from_config(config: &HcaConfig, secret: Secret) -> Self {
        Self::new(config, secret)
    }
}
