//! What a context tells its owner.

use hca_api::PortChange;
use ib_endpoint::{EndPortEvent, SmaError};
use ib_wire::PortNum;
use vf_tunnel::{DropReason, VfId};

use crate::PortReason;
use crate::guids::WishRefusal;
use crate::output::VfEvent;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "pulled one by one and taken apart at once"
)]
pub enum PfEvent {
    /// For the PF's own software on a port.
    Own {
        /// Which port.
        port: PortNum,
        /// What.
        event: EndPortEvent,
    },
    /// A VF's port is up or not for another reason than before.
    VfPort {
        /// On which port.
        port: PortNum,
        /// Whose.
        vf: VfId,
        /// The reason now.
        reason: PortReason,
    },
    /// A GUID that was wanted for a VF can never be its own.
    WishRefused {
        /// On which port.
        port: PortNum,
        /// Whose.
        vf: VfId,
        /// Why.
        refusal: WishRefusal,
    },
    /// A frame went nowhere. When more end than are pulled, only the counters tell of the rest.
    Dropped {
        /// On which port.
        port: PortNum,
        /// Its sender, or whom it was for, as far as that is known.
        vf: Option<VfId>,
        /// Why.
        reason: DropReason,
    },
    /// A port could not be read anew after it changed: a fault of the provider.
    Unreadable {
        /// Which port.
        port: PortNum,
        /// Why.
        error: SmaError,
    },
}

/// What a VF is told, as the provider tells it.
pub(super) const fn port_change(event: VfEvent) -> PortChange {
    match event {
        VfEvent::PortUp => PortChange::ACTIVE,
        VfEvent::PortDown => PortChange::DOWN,
        VfEvent::LidChange => PortChange::LID,
        VfEvent::SmChange => PortChange::SM,
        VfEvent::ClientReregister => PortChange::CLIENT_REREGISTER,
        VfEvent::PKeyChange => PortChange::PKEY_TABLE,
        VfEvent::GidChange => PortChange::GID_TABLE,
    }
}
