//! An emulated adapter of which one function is used: its virtual functions are `hca_functions`'.

use core::ops::{Deref, DerefMut};

use emulated_hca::HcaConfig;
use emulated_hca::hca::{self, Device};
use hca_api::{Adapter, FunctionId};
use hca_functions::{Function, Functions};

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
    pub fn new(config: &HcaConfig, seed: u64) -> Self {
        let functions = Functions::new(config.max_functions, seed);
        Self {
            device: Device::with_memory(config, seed, functions.memory()),
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
