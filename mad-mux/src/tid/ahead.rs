//! Reading ahead for MADs that are about to be judged.

use ib_wire::mad::MadHeader;
use vf_tunnel::WireTid;
use vf_tunnel::wire_id::{LANES, NEAR, Trail};

use super::{Peer, TidMap};
use crate::steering::Owner;

impl TidMap {
    /// Where the reading for a request starts that goes out; see [`TidMap::read_ahead`].
    #[must_use]
    pub fn request_trail(
        &self,
        owner: Owner,
        header: &MadHeader,
        to: impl FnOnce() -> Peer,
    ) -> Trail {
        if self.is_near() {
            return Trail::End;
        }
        self.slots.approach(self.hash_of(owner, header, &to()))
    }

    /// Reads what the answers of a batch need, if they come in this order.
    pub fn expect_answers(&mut self, tids: impl IntoIterator<Item = WireTid>) {
        let mut ids = [0; LANES];
        let mut len = 0;
        let tids = tids.into_iter();
        let known = tids.filter_map(|tid| u32::try_from(tid.0.get()).ok());
        for (place, id) in ids.iter_mut().zip(known) {
            *place = id;
            len += 1;
        }
        let is_near = self.is_near();
        for &name in self.names.expect(&ids, len) {
            if !is_near {
                self.slots.read_ahead(name);
            }
        }
    }

    fn is_near(&self) -> bool {
        self.bytes() <= NEAR
    }

    /// Reads the next place that a MAD needs, and gives what is to be read then. With several MADs at
    /// hand, take each step for all of them before the next.
    #[must_use]
    pub fn read_ahead(&self, trail: Trail) -> Trail {
        self.slots.follow(trail)
    }
}
