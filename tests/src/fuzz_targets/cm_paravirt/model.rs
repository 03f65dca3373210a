//! A simple model of communication ids: maps from wire ids to the VF and the peer that use them.

use std::collections::{BTreeMap, BTreeSet};

use cm_paravirt::PeerAddress;
use ib_wire::mad::{AttributeId, Mad};
use vf_tunnel::VfId;

use crate::fuzz_targets::cm_messages::{ids, is_sidr};

/// The exchange of a wire id, from the first message with it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Owner {
    vf: VfId,
    guest: u32,
    is_sidr: bool,
    lid: u16,
}

#[derive(Default)]
pub(super) struct Model {
    owners: BTreeMap<u32, Owner>,
    /// The ids of the owners' peers, as their REPs and MRAs said, or as their REQs did.
    remotes: BTreeMap<u32, u32>,
    /// Wire ids of VFs that were reset.
    dead: BTreeSet<u32>,
    /// Peers' requests that VFs got: VF, LID, id.
    asked: BTreeSet<(VfId, u16, u32)>,
}

impl Model {
    /// A VF's message left: it must show a wire id that is this VF's and this id's alone. Returns that.
    pub(super) fn sent(
        &mut self,
        vf: VfId,
        asked: &Mad,
        sent: &Mad,
        to: &PeerAddress,
    ) -> Option<u32> {
        let attribute = sent.header.attribute_id;
        let ((wire, remote), (guest, _)) = (ids(sent), ids(asked));
        let shows_none = attribute == AttributeId::CM_SIDR_REP
            || (attribute == AttributeId::CM_REJ && wire == guest);
        if shows_none {
            return None;
        }
        assert!(wire != 0 && wire != u32::MAX);
        assert!(
            !self.dead.contains(&wire),
            "a wire id of a VF that was reset"
        );
        let owner = Owner {
            vf,
            guest,
            is_sidr: is_sidr(sent),
            lid: to.lid.get(),
        };
        if attribute == AttributeId::CM_REJ {
            // A REJ of a REQ shows the wire id that is reserved, whatever the VF says, and binds
            // it to nothing.
            assert!(self.owners.get(&wire).is_none_or(|known| known.vf == vf));
            return Some(wire);
        }
        let known = *self.owners.entry(wire).or_insert(owner);
        assert_eq!(
            (known.vf, known.is_sidr, known.guest),
            (vf, owner.is_sidr, guest)
        );
        if !owner.is_sidr && remote != 0 {
            assert_eq!(*self.remotes.entry(wire).or_insert(remote), remote);
        }
        Some(wire)
    }

    /// A VF got a message of a peer: it must be for the VF that is party to it.
    pub(super) fn delivered(&mut self, vf: VfId, said: &Mad, got: &Mad, from: &PeerAddress) {
        let lid = from.lid.get();
        let (local, remote) = ids(said);
        match said.header.attribute_id {
            AttributeId::CM_REQ => {
                assert_eq!(got, said);
                self.asked.insert((vf, lid, local));
            }
            AttributeId::CM_SIDR_REQ => assert_eq!(got, said),
            AttributeId::CM_SIDR_REP => self.check_party(local, vf, ids(got).0, lid, true),
            AttributeId::CM_REJ if remote == 0 => {
                assert_eq!(got, said);
                assert!(self.asked.contains(&(vf, lid, local)));
            }
            attribute => {
                assert_eq!(ids(got).0, local);
                self.check_party(remote, vf, ids(got).1, lid, false);
                if [AttributeId::CM_REP, AttributeId::CM_MRA].contains(&attribute) {
                    self.remotes.entry(remote).or_insert(local);
                }
                if attribute != AttributeId::CM_REJ {
                    // An id of 0 is as good as none: see `sent`.
                    let known = self.remotes.get(&remote).copied().unwrap_or(0);
                    assert_eq!(known, local, "a stranger's id");
                }
            }
        }
    }

    fn check_party(&self, wire: u32, vf: VfId, guest: u32, lid: u16, is_sidr: bool) {
        assert!(!self.dead.contains(&wire), "delivered after a reset");
        let owner = Owner {
            vf,
            guest,
            is_sidr,
            lid,
        };
        assert_eq!(self.owners.get(&wire), Some(&owner));
    }

    pub(super) fn reset(&mut self, vf: VfId) {
        let own = self.owners.iter().filter(|(_, owner)| owner.vf == vf);
        self.dead.extend(own.map(|(wire, _)| *wire));
        self.asked.retain(|(asked, ..)| *asked != vf);
    }

    /// A signal of a reset names an id that its VF had, or none.
    pub(super) fn check_signal(&self, signal: &Mad) {
        let (local, _) = ids(signal);
        assert!(local == 0 || self.dead.contains(&local));
    }

    /// The wire ids that were shown.
    pub(super) fn wires(&self) -> impl Iterator<Item = u32> {
        self.owners.keys().copied()
    }
}
