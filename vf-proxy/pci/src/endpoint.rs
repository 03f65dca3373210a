//! The part of a function that is the same whatever adapter it shows: configuration space, the MSI-X table
//! and the interrupts that have not been signalled yet.

use std::collections::BTreeSet;

use hca_api::Hca;

use super::config_space::{ConfigSpace, Identity};
use super::msix::{self, MsiX};
use crate::{Bar, MsixMessage, PciEvent};

/// A PCI Express endpoint. A personality holds one and adds its own registers.
#[derive(Debug)]
pub struct Endpoint {
    bars: Vec<Bar>,
    /// The register with the MSI-X table.
    msix_bar: u8,
    config_space: ConfigSpace,
    msix: MsiX,
    /// Vectors to signal.
    interrupts: BTreeSet<u16>,
    /// Vectors whose messages changed.
    changed_vectors: BTreeSet<u16>,
    /// The addresses of the base address registers as they were last told, in the order of these.
    seen_addresses: Vec<Option<u64>>,
    are_bars_changed: bool,
}

impl Endpoint {
    /// Makes an endpoint as it is after power-on: a personality's own registers, and one more with an MSI-X
    /// table of `vectors` entries. The table has 1 to 256; another number is taken to the next of these.
    pub fn new(identity: &Identity, own: &[Bar], msix_bar: u8, vectors: u16) -> Self {
        let vectors = vectors.clamp(1, msix::MAX_VECTORS);
        let mut bars = own.to_vec();
        bars.push(Bar {
            index: msix_bar,
            size: msix::BAR_SIZE,
            prefetchable: false,
        });
        Self {
            config_space: ConfigSpace::new(identity, &bars, msix_bar, vectors),
            seen_addresses: vec![None; bars.len()],
            bars,
            msix_bar,
            msix: MsiX::new(vectors),
            interrupts: BTreeSet::new(),
            changed_vectors: BTreeSet::new(),
            are_bars_changed: false,
        }
    }

    /// The base address registers.
    pub fn bars(&self) -> &[Bar] {
        &self.bars
    }

    /// Entries of the MSI-X table.
    pub fn vectors(&self) -> u16 {
        self.msix.vectors()
    }

    /// Returns the message that signals a vector, as [`crate::PciFunction::message`] does.
    pub fn message(&self, vector: u16) -> Option<MsixMessage> {
        self.msix.message(vector)
    }

    /// Returns the address of a base address register, as [`crate::PciFunction::bar_address`] does.
    pub fn bar_address(&self, bar: u8) -> Option<u64> {
        self.config_space.bar_address(bar)
    }

    /// Reads configuration space. Bytes beyond it read as zeros.
    pub fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.config_space.read(offset, out);
    }

    /// Writes configuration space and applies what it says. Returns `true` if the write asks for a
    /// function-level reset; then nothing is applied, and the personality calls [`Endpoint::reset`] and
    /// resets itself.
    #[must_use]
    pub fn config_write(&mut self, hca: &mut dyn Hca, offset: u16, bytes: &[u8]) -> bool {
        let resets = self.config_space.write(offset, bytes).reset;
        if !resets {
            self.apply_config(hca);
        }
        resets
    }

    /// Reads behind a base address register what is not the personality's: ones while memory space is off, and
    /// the MSI-X table. Returns `false` for every other register; then `out` is as it was.
    #[must_use]
    pub fn bar_read(&self, bar: u8, offset: u64, out: &mut [u8]) -> bool {
        if !self.config_space.answers() {
            out.fill(0xff);
        } else if bar == self.msix_bar {
            self.msix.read(offset, out);
        } else {
            return false;
        }
        true
    }

    /// Writes behind a base address register what is not the personality's, as [`Endpoint::bar_read`]
    /// reads it. Returns `false` for every other register.
    #[must_use]
    pub fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) -> bool {
        if !self.config_space.answers() {
            return true;
        }
        if bar != self.msix_bar {
            return false;
        }
        let released = self.msix.write(offset, bytes);
        self.interrupts.extend(released);
        self.note_changes();
        true
    }

    /// Raises an interrupt: it is signalled, or waits in the pending bits until it is no longer masked.
    pub fn raise(&mut self, vector: u16) {
        if self.msix.raise(vector) {
            self.interrupts.insert(vector);
        }
    }

    /// Takes what the VMM is to be told next: what changed comes before the interrupts that depend on it. Poll until
    /// `None` after every call that takes `&mut self`.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<PciEvent> {
        if let Some(vector) = self.changed_vectors.pop_first() {
            return Some(PciEvent::VectorChanged { vector });
        }
        if core::mem::take(&mut self.are_bars_changed) {
            return Some(PciEvent::BarsChanged);
        }
        let vector = self.interrupts.pop_first()?;
        Some(PciEvent::Interrupt { vector })
    }

    /// Notes which messages and addresses are others now, and holds back what was raised and is masked by now.
    fn note_changes(&mut self) {
        for vector in self.msix.changes() {
            self.changed_vectors.insert(vector);
            if self.msix.message(vector).is_none() && self.interrupts.remove(&vector) {
                self.raise(vector);
            }
        }
        for (bar, seen) in self.bars.iter().zip(&mut self.seen_addresses) {
            let address = self.config_space.bar_address(bar.index);
            self.are_bars_changed |= *seen != address;
            *seen = address;
        }
    }

    /// Forgets interrupts that were raised, signalled or not.
    pub fn forget_interrupts(&mut self) {
        self.msix.forget_pending();
        self.interrupts.clear();
    }

    /// Puts every register back to its value after power-on.
    pub fn reset(&mut self, hca: &mut dyn Hca) {
        self.config_space.reset();
        self.msix.reset();
        self.interrupts.clear();
        self.apply_config(hca);
    }

    /// What configuration space says holds from now on.
    fn apply_config(&mut self, hca: &mut dyn Hca) {
        let bus_master = self.config_space.is_bus_master();
        hca.set_bus_master(bus_master);
        let passes = self.config_space.msix_passes();
        let released = self.msix.set_passes(bus_master, passes);
        self.interrupts.extend(released);
        self.note_changes();
    }
}

#[cfg(test)]
mod tests;
