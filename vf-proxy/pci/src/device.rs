//! A PCI function as the consumer of its VF.

use std::collections::BTreeSet;

use hca_api::{Consumer, Hca, HcaEvent};
use ib_vtime::Instant;

use crate::{PciEvent, PciFunction};

/// The PCI function of a VF that a VMM drives, as the consumer of the VF. What it wants of the VMM is kept until that takes
/// it.
#[derive(Debug)]
pub struct PciDevice {
    function: Box<dyn PciFunction>,
    /// Vectors to be signalled. One that is raised again before it was taken is one.
    interrupts: BTreeSet<u16>,
    changes: PciChanges,
    wants_reset: bool,
    resets: u64,
}

/// Changes of a device since they were last polled. A VMM that looks these things up itself need not ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciChanges {
    /// Vectors that have other messages ([`PciFunction::message`]).
    pub vectors: BTreeSet<u16>,
    /// A base address register has another address ([`PciFunction::bar_address`]).
    pub bars: bool,
    /// The doorbells are others ([`PciFunction::doorbells`]).
    pub doorbells: bool,
}

impl PciDevice {
    /// Makes a device of a function that no driver has used yet.
    #[must_use]
    pub fn new(function: Box<dyn PciFunction>) -> Self {
        Self {
            function,
            interrupts: BTreeSet::new(),
            changes: PciChanges::default(),
            wants_reset: false,
            resets: 0,
        }
    }

    /// Returns the PCI function.
    #[must_use]
    pub fn function(&self) -> &dyn PciFunction {
        self.function.as_ref()
    }

    /// Returns the PCI function, for an access of the VMM. The device is to be polled then.
    pub fn function_mut(&mut self) -> &mut dyn PciFunction {
        self.function.as_mut()
    }

    /// Returns how many resets of the VF the function asked for: by its driver or its VMM.
    #[must_use]
    pub const fn resets(&self) -> u64 {
        self.resets
    }

    /// Returns `true` if there is an MSI-X vector to be signalled.
    #[must_use]
    pub fn is_interrupting(&self) -> bool {
        !self.interrupts.is_empty()
    }

    /// Takes the next MSI-X vector that is to be signalled. To be polled after each turn of the device.
    #[must_use]
    pub fn poll_interrupt(&mut self) -> Option<u16> {
        self.interrupts.pop_first()
    }

    /// Returns `true` if [`PciDevice::take_changes`] has something.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.changes != PciChanges::default()
    }

    /// Collects what the function wants and what changed. For an owner that wants to know at once what an access did;
    /// each turn of the device does it, too.
    pub fn collect_events(&mut self) {
        while let Some(event) = self.function.poll_event() {
            match event {
                PciEvent::Interrupt { vector } => {
                    self.interrupts.insert(vector);
                }
                PciEvent::ResetWanted => self.wants_reset = true,
                PciEvent::VectorChanged { vector } => {
                    self.changes.vectors.insert(vector);
                }
                PciEvent::BarsChanged => self.changes.bars = true,
                PciEvent::DoorbellsChanged => self.changes.doorbells = true,
            }
        }
    }

    /// Takes what changed since the last call, to be followed before the interrupts that depend on it.
    #[must_use]
    pub fn take_changes(&mut self) -> PciChanges {
        core::mem::take(&mut self.changes)
    }
}

impl Consumer for PciDevice {
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        self.function.handle_hca_event(now, hca, event);
    }

    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        self.function.poll(now, hca)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.function.poll_timeout()
    }

    fn take_reset_request(&mut self) -> bool {
        self.collect_events();
        let wants_reset = core::mem::take(&mut self.wants_reset);
        self.resets += u64::from(wants_reset);
        wants_reset
    }
}
