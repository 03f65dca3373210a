//! Objects of virtual functions that were reset, which the adapter still has.

use std::collections::VecDeque;

use hca_api::{AvHandle, CqHandle, Hca, MrHandle, MwHandle, PdHandle, SrqHandle};

/// Objects that a call destroys: each may be a system call.
const AT_ONCE: usize = 256;

/// An object without users.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remain {
    Srq(SrqHandle),
    Window(MwHandle),
    Av(AvHandle),
    Region(MrHandle),
    Cq(CqHandle),
    Pd(PdHandle),
}

/// Objects, in the order in which they can be destroyed.
#[derive(Debug, Default)]
pub(crate) struct Remains(VecDeque<Remain>);

impl Remains {
    /// Adds objects of which each one's users come before it.
    pub(crate) fn extend(&mut self, remains: impl Iterator<Item = Remain>) {
        self.0.extend(remains);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Destroys as many objects as a call may, and returns them.
    pub(crate) fn destroy(&mut self, hca: &mut dyn Hca) -> impl Iterator<Item = Remain> {
        let destroyed = self.0.drain(..self.0.len().min(AT_ONCE));
        destroyed.inspect(|remain| {
            // An adapter refuses none of them, unless it has failed.
            let _ = match *remain {
                Remain::Srq(srq) => hca.destroy_srq(srq),
                Remain::Window(window) => hca.dealloc_mw(window),
                Remain::Av(av) => hca.destroy_av(av),
                Remain::Region(region) => hca.deregister_mr(region),
                Remain::Cq(cq) => hca.destroy_cq(cq),
                Remain::Pd(pd) => hca.dealloc_pd(pd),
            };
        })
    }
}
