//! Reading ahead for messages that are about to be judged.

use core::hint::black_box;

use ib_wire::mad::Mad;
use vf_tunnel::wire_id::{NEAR, Trail};
use vf_tunnel::{VfCommId, VfId, WireCommId};

use crate::ids::CmIds;
use crate::machine::{CmParavirt, Kind, classify};
use crate::state::Message;
use crate::table::Space;

impl CmParavirt {
    /// Where the reading for a message of a VF starts; see [`CmParavirt::read_ahead`].
    #[must_use]
    pub fn egress_trail(&self, vf: VfId, mad: &Mad) -> Trail {
        if self.is_near() {
            return Trail::End;
        }
        let space = match classify(&mad.header) {
            Ok(Kind::Message(Message::SidrReq)) => Space::Sidr,
            // Its id is the asker's.
            Ok(Kind::Message(Message::SidrRep)) => return Trail::End,
            Ok(Kind::Message(_)) => Space::Connection,
            Ok(Kind::InfoRequest | Kind::InfoAnswer) | Err(_) => return Trail::End,
        };
        let ids: &CmIds = mad.view();
        self.table.approach_guest(vf, VfCommId(ids.local), space)
    }

    /// The same for a message from the wire.
    #[must_use]
    pub fn ingress_trail(&self, mad: &Mad) -> Trail {
        if self.is_near() {
            return Trail::End;
        }
        match classify(&mad.header) {
            Ok(Kind::Message(Message::Req | Message::SidrReq | Message::SidrRep)) => Trail::End,
            Ok(Kind::Message(_)) => {
                let ids: &CmIds = mad.view();
                Trail::Slot(self.table.store.place_of(WireCommId(ids.remote)))
            }
            Ok(Kind::InfoRequest | Kind::InfoAnswer) | Err(_) => Trail::End,
        }
    }

    const fn is_near(&self) -> bool {
        self.state_bytes() <= NEAR
    }

    /// Reads the next place that a message needs, and gives what is to be read then. With several
    /// messages at hand, take each step for all of them before the next.
    #[must_use]
    pub fn read_ahead(&self, trail: Trail) -> Trail {
        match self.table.follow_guest(trail) {
            Trail::Slot(slot) => {
                black_box(self.table.store.get(slot).map(|hot| hot.flags));
                Trail::End
            }
            trail => trail,
        }
    }
}
