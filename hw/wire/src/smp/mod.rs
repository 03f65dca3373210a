//! Subnet management packets (IBA chapter 14): the two forms of the SMP, and its attributes.
//!
//! An SMP carries 64 bytes of attribute data at byte 64. [`LidRoutedSmp`] and [`DirectedRouteSmp`]
//! view it as an attribute by type:
//!
//! ```
//! use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
//! use ib_wire::smp::{DirectedRouteSmp, PortInfo, PortState, SmpAttribute};
//!
//! let header = MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, Method::SET, PortInfo::ID);
//! let mut mad = Mad::new(header);
//! let smp: &mut DirectedRouteSmp = mad.view_mut();
//! smp.set_path(&[1, 7]);
//! smp.attribute_mut::<PortInfo>().set_port_state(PortState::ARMED);
//!
//! let smp: &DirectedRouteSmp = mad.view();
//! assert_eq!(smp.hop_count(), 2);
//! assert_eq!(smp.initial_path[..3], [0, 1, 7]);
//! assert_eq!(smp.attribute::<PortInfo>().port_state(), PortState::ARMED);
//! ```

mod forwarding;
mod modifier;
mod node;
mod port_info;
mod port_mask;
mod sm_info;
mod switch_info;
mod tables;
mod vendor;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use forwarding::{LinearForwardingTable, MulticastForwardingTable};
pub use modifier::{
    MulticastTableModifier, PKeyTableModifier, PortInfoModifier, SlToVlModifier,
    VlArbitrationModifier,
};
pub use node::{NodeDescription, NodeInfo, NodeType};
pub use port_info::{
    CapabilityMask, CapabilityMask2, LinkDownDefaultState, LinkSpeed, LinkSpeedExt, LinkWidth,
    PortInfo, PortPhysState, PortState,
};
pub use port_mask::PortMask;
pub use sm_info::{SmInfo, SmState};
pub use switch_info::SwitchInfo;
pub use tables::{GuidInfo, PKeyTable, SlToVlMappingTable, VlArbitrationEntry, VlArbitrationTable};
pub use vendor::{LedInfo, MlnxExtPortInfo};

use crate::mad::{AttributeId, MadHeader, MadStatus};
use crate::{Lid, MKey};

/// Bytes of attribute data in an SMP.
pub const SMP_DATA_SIZE: usize = 64;

/// Bytes of each path of a directed-route SMP, entry 0 included.
pub const PATH_SIZE: usize = 64;

/// The most hops of a directed route (IBA 14.2.1.2): entry 0 of a path is not a hop.
pub const MAX_HOPS: u8 = 63;

/// An attribute of the subnet management class: 64 bytes.
pub trait SmpAttribute: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {
    /// Its attribute id.
    const ID: AttributeId;
}

/// Makes layouts the attributes of the subnet management class.
macro_rules! smp_attributes {
    ($($name:ident = $id:literal;)*) => { $(
        impl SmpAttribute for $name {
            const ID: AttributeId = AttributeId::new($id);
        }
    )* };
}

smp_attributes! {
    NodeDescription = 0x0010;
    NodeInfo = 0x0011;
    SwitchInfo = 0x0012;
    GuidInfo = 0x0014;
    PortInfo = 0x0015;
    PKeyTable = 0x0016;
    SlToVlMappingTable = 0x0017;
    VlArbitrationTable = 0x0018;
    LinearForwardingTable = 0x0019;
    MulticastForwardingTable = 0x001b;
    SmInfo = 0x0020;
    LedInfo = 0x0031;
    MlnxExtPortInfo = 0xff90;
}

/// The accessors of the attribute data, the same for both forms of the SMP.
macro_rules! attribute_accessors {
    () => {
        /// The attribute data as an attribute's layout; the id in the header is not looked at.
        #[must_use]
        pub fn attribute<T: SmpAttribute>(&self) -> &T {
            const { assert!(size_of::<T>() == SMP_DATA_SIZE) };
            match T::ref_from_bytes(&self.data) {
                Ok(attribute) => attribute,
                Err(_) => unreachable!("size and alignment are checked at compile time"),
            }
        }

        /// The attribute data as an attribute's layout, for writing.
        #[must_use]
        pub fn attribute_mut<T: SmpAttribute>(&mut self) -> &mut T {
            const { assert!(size_of::<T>() == SMP_DATA_SIZE) };
            match T::mut_from_bytes(&mut self.data) {
                Ok(attribute) => attribute,
                Err(_) => unreachable!("size and alignment are checked at compile time"),
            }
        }
    };
}

layout! {
    /// An SMP that travels by LID (IBA 14.2.1.1, class 0x01).
    mad LidRoutedSmp {
        /// The common header.
        pub header: MadHeader,
        /// The key that the port checks (IBA 14.2.4).
        pub mkey: MKey,
        /// Reserved.
        pub reserved1: [u8; 32],
        /// The attribute; see [`LidRoutedSmp::attribute`].
        pub data: [u8; SMP_DATA_SIZE],
        /// Reserved.
        pub reserved2: [u8; 128],
    }
}

impl LidRoutedSmp {
    attribute_accessors! {}
}

layout! {
    /// An SMP that travels by a path of port numbers (IBA 14.2.1.2, class 0x81).
    mad DirectedRouteSmp {
        /// The common header. The top bit of its status is the direction, and its class specific
        /// bytes are the hop pointer and the hop count.
        pub header: MadHeader,
        /// The key that the port checks (IBA 14.2.4).
        pub mkey: MKey,
        /// Source LID of the directed part of the route, 0xFFFF if it starts at the sender.
        pub dr_slid: Lid,
        /// Destination LID of the directed part, 0xFFFF if it ends at the receiver.
        pub dr_dlid: Lid,
        /// Reserved.
        pub reserved: [u8; 28],
        /// The attribute; see [`DirectedRouteSmp::attribute`].
        pub data: [u8; SMP_DATA_SIZE],
        /// The port to leave each hop by on the way out, from entry 1.
        pub initial_path: [u8; PATH_SIZE],
        /// The port by which each hop was entered, from entry 1.
        pub return_path: [u8; PATH_SIZE],
    }
}

impl DirectedRouteSmp {
    attribute_accessors! {}

    /// How far the SMP has come along its path.
    #[must_use]
    pub const fn hop_pointer(&self) -> u8 {
        self.header.class_specific[0]
    }

    /// Writes [`Self::hop_pointer`].
    pub const fn set_hop_pointer(&mut self, hop: u8) {
        self.header.class_specific[0] = hop;
    }

    /// The hops of the directed route; more than 63 are illegal.
    #[must_use]
    pub const fn hop_count(&self) -> u8 {
        self.header.class_specific[1]
    }

    /// Writes [`Self::hop_count`].
    pub const fn set_hop_count(&mut self, hops: u8) {
        self.header.class_specific[1] = hops;
    }

    /// The direction bit: whether the SMP is on its way back.
    #[must_use]
    pub const fn is_returning(&self) -> bool {
        self.header.status.get() & MadStatus::DIRECTION != 0
    }

    /// Writes [`Self::is_returning`]; the other bits of the status stay.
    pub const fn set_returning(&mut self, returning: bool) {
        let status = self.status().get();
        let direction = if returning { MadStatus::DIRECTION } else { 0 };
        self.header.status = MadStatus::new(status | direction);
    }

    /// The status without the direction bit.
    #[must_use]
    pub const fn status(&self) -> MadStatus {
        self.header.status.without_direction()
    }

    /// Writes [`Self::status`]; the direction bit stays.
    pub const fn set_status(&mut self, status: MadStatus) {
        let direction = self.header.status.get() & MadStatus::DIRECTION;
        self.header.status = MadStatus::new(status.without_direction().get() | direction);
    }

    /// Addresses the SMP: `hops` are the ports to leave by, from the sender on, at most 63. The
    /// route is directed all the way, and no hop is made yet. Returns whether the hops fit; if
    /// not, nothing changes.
    pub fn set_path(&mut self, hops: &[u8]) -> bool {
        let Some(entries) = self.initial_path.get_mut(1..=hops.len()) else {
            return false;
        };
        let Ok(count) = u8::try_from(hops.len()) else {
            return false;
        };
        entries.copy_from_slice(hops);
        self.header.class_specific = [0, count];
        self.dr_slid = Lid::PERMISSIVE;
        self.dr_dlid = Lid::PERMISSIVE;
        true
    }

    /// The ports of the initial path, from the sender on; `None` if the hop count is illegal.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        self.initial_path.get(1..=usize::from(self.hop_count()))
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn smp_fields_stand_at_their_offsets() {
        assert_eq!(offset_of!(LidRoutedSmp, mkey), 24);
        assert_eq!(offset_of!(LidRoutedSmp, data), 64);
        assert_eq!(offset_of!(DirectedRouteSmp, dr_slid), 32);
        assert_eq!(offset_of!(DirectedRouteSmp, dr_dlid), 34);
        assert_eq!(offset_of!(DirectedRouteSmp, data), 64);
        assert_eq!(offset_of!(DirectedRouteSmp, initial_path), 128);
        assert_eq!(offset_of!(DirectedRouteSmp, return_path), 192);
    }

    #[test]
    fn direction_and_status_leave_each_other_alone() {
        let mut smp = DirectedRouteSmp::default();
        smp.set_status(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
        smp.set_returning(true);
        assert_eq!(smp.header.status, MadStatus::new(0x800c));
        smp.set_status(MadStatus::new(0x8004));
        assert_eq!(
            (smp.status(), smp.is_returning()),
            (MadStatus::new(4), true)
        );
        smp.set_returning(false);
        assert_eq!(smp.header.status, MadStatus::new(4));
    }

    #[test]
    fn a_path_of_more_than_63_hops_is_refused() {
        let mut smp = DirectedRouteSmp::default();
        assert!(!smp.set_path(&[1; 64]));
        assert_eq!(smp, DirectedRouteSmp::default());
        assert!(smp.set_path(&[1; 63]));
        assert_eq!(smp.path(), Some(&[1; 63][..]));
        smp.set_hop_count(64);
        assert_eq!(smp.path(), None);
    }

    #[test]
    fn an_empty_path_addresses_the_sender_itself() {
        let mut smp = DirectedRouteSmp::default();
        assert!(smp.set_path(&[]));
        assert_eq!(smp.path(), Some(&[][..]));
        assert_eq!(
            (smp.dr_slid, smp.dr_dlid),
            (Lid::PERMISSIVE, Lid::PERMISSIVE)
        );
    }
}
