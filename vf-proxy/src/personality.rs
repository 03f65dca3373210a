//! What a program that offers VFs needs to know of a personality.

use ib_wire::mad::Mad;

use vf_pci::PciFunction;

/// A kind of adapter that a VF shows its guest.
///
/// A program that offers VFs has a table of these and names no personality elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Personality {
    /// Makes a function as it is after power-on.
    pub make: fn() -> Box<dyn PciFunction>,
    /// Changes an answer to one that the guest's driver handles correctly. The PF calls it for each answer to
    /// the VF (`VfPortSpec::adapt_answer` of pf-context).
    pub adapt_answer: fn(&mut Mad),
}
