//! Reading ahead for MADs that are about to be judged.

use core::hint::black_box;

use ib_wire::mad::MadHeader;
use vf_tunnel::WireTid;
use vf_tunnel::wire_id::{NEAR, Trail};

use super::slots::Slots;
use super::{Peer, TidMap};
use crate::steering::Owner;

impl TidMap {
    /// Where the reading for a request starts that goes out; see [`TidMap::read_ahead`].
    #[must_use]
    pub fn request_trail(&self, owner: Owner, header: &MadHeader, to: &Peer) -> Trail {
        if self.is_near() {
            return Trail::End;
        }
        Trail::Hash(self.hash_of(owner, header, to))
    }

    /// The same for an answer from the wire.
    #[must_use]
    pub fn answer_trail(&self, tid: WireTid) -> Trail {
        if self.is_near() {
            return Trail::End;
        }
        let name = self.name_of(tid.0);
        name.map_or(Trail::End, |name| Trail::Slot(Slots::place_of(name)))
    }

    fn is_near(&self) -> bool {
        self.bytes() <= NEAR
    }

    /// Reads the next place that a MAD needs, and gives what is to be read then. With several MADs at
    /// hand, take each step for all of them before the next.
    #[must_use]
    pub fn read_ahead(&self, trail: Trail) -> Trail {
        match self.index.follow(trail) {
            Trail::Slot(slot) => {
                black_box(self.slots.peek(slot));
                Trail::End
            }
            trail => trail,
        }
    }
}
