//! Who talks: the addresses, identities and policies that come with every message.

use ib_wire::{Gid, Guid, Lid, PKey, PortNum, Qpn, Sl};
use vf_tunnel::VfId;

use crate::ingress::Exchange;

/// The other end of a packet on the wire: its destination on the way out, its source on the way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The PF's own port that the packet leaves or came by.
    pub port: PortNum,
    /// The peer's LID, or the router's.
    pub lid: Lid,
    /// The peer's QP.
    pub qpn: Qpn,
    /// The service level.
    pub sl: Sl,
    /// The peer's GID, if the packet has a GRH.
    pub gid: Option<Gid>,
}

/// How claims of a VF about itself are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityCheck {
    /// A claim that is not true ends the message.
    #[default]
    Strict,
    /// A claim that is not true is counted and passes.
    Compat,
}

/// What a VF may claim to be, as the PF knows it.
#[derive(Clone, Copy, Debug)]
pub struct VfIdentity<'a> {
    /// The VF's GIDs on all ports, under every prefix that is valid for them.
    pub gids: &'a [Gid],
    /// The GUID of the VF's CA, if the PF gave it one; else it is not checked.
    pub ca_guid: Option<Guid>,
    /// The P_Keys in the VF's table. Which of the two membership bits a message carries does not
    /// matter.
    pub pkeys: &'a [PKey],
    /// What happens to a claim that is not true.
    pub check: IdentityCheck,
}

impl VfIdentity<'_> {
    pub(crate) fn owns_gid(&self, gid: &Gid) -> bool {
        self.gids.contains(gid)
    }

    pub(crate) fn owns_pkey(&self, pkey: PKey) -> bool {
        pkey.is_valid() && self.pkeys.iter().any(|own| own.base() == pkey.base())
    }
}

/// Whose a GID of the PF's ports is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidOwner {
    /// A VF that can receive.
    Vf(VfId),
    /// A VF that cannot receive now.
    VfDown(VfId),
    /// The PF itself.
    Pf,
    /// Nobody.
    Unknown,
}

/// What becomes of a message on its way to the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Egress {
    /// It goes out, rewritten in place.
    Forward,
    /// It ends here.
    Drop(vf_tunnel::DropReason),
}

/// What becomes of a message from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ingress {
    /// It is for a VF: to be accepted or refused.
    Vf(Named),
    /// The buffer holds an answer that goes back where the message came from.
    Answer,
    /// It is for the PF's own software.
    ToPf,
    /// It ends here.
    Drop(vf_tunnel::DropReason),
}

impl Ingress {
    pub(crate) const fn to(vf: VfId, exchange: Exchange) -> Self {
        Self::Vf(Named { vf, exchange })
    }
}

/// A message that is for a VF, found by [`CmParavirt::find`](crate::CmParavirt::find) and not noted
/// yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The VF that it is for.
    pub vf: VfId,
    pub(crate) exchange: Exchange,
}

/// What the peers of a VF that is reset are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetPolicy {
    /// Nothing; they find out by themselves.
    Silent,
    /// DREQ or REJ, once, as the state demands. `ca_guid` is the VF's, which a REJ of an abandoned
    /// REQ must name.
    Signal {
        /// The GUID of the VF's CA.
        ca_guid: Guid,
    },
}
