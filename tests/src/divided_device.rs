//! An emulated adapter of which one function is used: its virtual functions are `hca_functions`'.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use std::time::Duration;

use emulated_hca::hca::{self, Device};
use emulated_hca::{ChannelAdapter, EndNode, Frame, HcaConfig, Lanes, Node, RunHead};
use hca_api::{Adapter, FunctionId, Hca};
use hca_functions::{Function, Functions};
use ib_vtime::{Instant, Secret};
use ib_wire::PortNum;

use crate::plain::Plain;

/// The part of the emulated adapter's function that the virtual ones are made from.
pub trait Lower: fmt::Debug + 'static {
    /// The function.
    type Hca<'a>: Hca;

    /// Returns this part of a function.
    fn of(function: hca::Function<'_>) -> Self::Hca<'_>;
}

/// The function with everything that it can do.
#[derive(Debug)]
pub struct Whole;

impl Lower for Whole {
    type Hca<'a> = hca::Function<'a>;

    fn of(function: hca::Function<'_>) -> Self::Hca<'_> {
        function
    }
}

/// The least that adapters of other makers do; see [`Plain`].
#[derive(Debug)]
pub struct Least;

impl Lower for Least {
    type Hca<'a> = Plain<hca::Function<'a>>;

    fn of(function: hca::Function<'_>) -> Self::Hca<'_> {
        Plain(function)
    }
}

/// One of its functions.
pub type DividedFunction<'a> = Function<'a, hca::Function<'a>>;

/// One of the functions of a [`PlainDevice`].
pub type PlainFunction<'a> = Function<'a, Plain<hca::Function<'a>>>;

/// An emulated adapter with virtual functions in software over the least of its physical one.
pub type PlainDevice = DividedDevice<Least>;

/// An emulated adapter with virtual functions in software over its physical one.
#[derive(Debug)]
pub struct DividedDevice<L = Whole> {
    device: Device,
    functions: Functions,
    lower: PhantomData<fn() -> L>,
}

impl<L: Lower> DividedDevice<L> {
    /// Returns an adapter as [`Device::new`] makes it, with as many virtual functions.
    #[must_use]
    pub fn new(config: &HcaConfig, secret: impl Into<Secret>) -> Self {
        let secret = secret.into();
        let functions = Functions::new(config.max_functions, secret);
        Self {
            device: Device::with_memory(config, secret, functions.memory()),
            functions,
            lower: PhantomData,
        }
    }

    /// Lends a function. `None` if there is none of this number.
    pub fn function(&mut self, id: FunctionId) -> Option<Function<'_, L::Hca<'_>>> {
        let physical = L::of(self.device.function(FunctionId::PF)?);
        self.functions.function(physical, id)
    }
}

/// The adapter below.
impl<L> Deref for DividedDevice<L> {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl<L> DerefMut for DividedDevice<L> {
    fn deref_mut(&mut self) -> &mut Device {
        &mut self.device
    }
}

impl<L: Lower> Adapter for DividedDevice<L> {
    type Function<'a> = Function<'a, L::Hca<'a>>;

    fn function(&mut self, id: FunctionId) -> Option<Self::Function<'_>> {
        self.function(id)
    }

    fn poll_ready(&mut self) -> Option<FunctionId> {
        let mut physical = L::of(self.device.function(FunctionId::PF)?);
        self.functions.poll_ready(&mut physical)
    }
}

/// The node is the adapter below.
impl<L: Lower> EndNode for DividedDevice<L> {
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
        let timeouts = [self.device.poll_timeout(), self.functions.poll_timeout()];
        timeouts.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.device.handle_timeout(now);
        if let Some(physical) = self.device.function(FunctionId::PF) {
            self.functions.handle_timeout(&mut L::of(physical), now);
        }
    }

    fn take_delivered(&mut self) -> u32 {
        self.device.take_delivered()
    }
}

impl<L: Lower> ChannelAdapter for DividedDevice<L> {
    fn from_config(config: &HcaConfig, secret: Secret) -> Self {
        Self::new(config, secret)
    }
}
