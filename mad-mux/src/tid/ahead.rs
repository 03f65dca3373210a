//! Reading ahead for MADs that are about to be judged.

use ib_wire::mad::MadHeader;
use vf_tunnel::WireTid;
use vf_tunnel::wire_id::LANES;

use super::{Peer, TidMap};
use crate::steering::Owner;

impl TidMap {
    /// Reads where a request is looked for that goes out. With several at hand, do it for all of them
    /// before the first goes out.
    pub fn expect_request(&self, owner: Owner, header: &MadHeader, to: &Peer) {
        self.slots.approach(self.hash_of(owner, header, to));
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
        for &name in self.names.expect(&ids, len) {
            self.slots.read_ahead(name);
        }
    }
}
