//! Subnet administration (IBA chapter 15): the SA MAD and the records it carries.
//!
//! A request names the fields it means by a [`ComponentMask`]; each record type has a constant for
//! every component. A table comes back over RMPP as records at a stride of AttributeOffset × 8
//! bytes: see [`records`].

mod mcast;
mod path;
mod service;
mod subnet;
mod tables;

pub use mcast::{JoinState, McMemberRecord};
pub use path::{MultiPathRecord, PathRecord};
pub use service::ServiceRecord;
pub use subnet::{InformInfoRecord, NodeRecord, PortInfoRecord, SmInfoRecord, SwitchInfoRecord};
pub use tables::{
    GuidInfoRecord, LftRecord, LinkRecord, MftRecord, PKeyTableRecord, SlToVlRecord, VlArbRecord,
};

use core::ops::BitOr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::SmKey;
use crate::mad::{AttributeId, MadHeader, Method, MgmtClass};
use crate::rmpp::RmppHeader;

/// Attribute ids of class subnet administration (IBA 15.2.5, table of SA attributes).
impl AttributeId {
    /// NodeRecord.
    pub const NODE_RECORD: Self = Self::new(0x0011);
    /// PortInfoRecord.
    pub const PORT_INFO_RECORD: Self = Self::new(0x0012);
    /// SLtoVLMappingTableRecord.
    pub const SL_TO_VL_RECORD: Self = Self::new(0x0013);
    /// SwitchInfoRecord.
    pub const SWITCH_INFO_RECORD: Self = Self::new(0x0014);
    /// LinearForwardingTableRecord.
    pub const LFT_RECORD: Self = Self::new(0x0015);
    /// RandomForwardingTableRecord.
    pub const RFT_RECORD: Self = Self::new(0x0016);
    /// MulticastForwardingTableRecord.
    pub const MFT_RECORD: Self = Self::new(0x0017);
    /// SMInfoRecord.
    pub const SM_INFO_RECORD: Self = Self::new(0x0018);
    /// LinkRecord.
    pub const LINK_RECORD: Self = Self::new(0x0020);
    /// GUIDInfoRecord.
    pub const GUID_INFO_RECORD: Self = Self::new(0x0030);
    /// ServiceRecord.
    pub const SERVICE_RECORD: Self = Self::new(0x0031);
    /// P_KeyTableRecord.
    pub const PKEY_TABLE_RECORD: Self = Self::new(0x0033);
    /// PathRecord.
    pub const PATH_RECORD: Self = Self::new(0x0035);
    /// VLArbitrationTableRecord.
    pub const VL_ARB_RECORD: Self = Self::new(0x0036);
    /// MCMemberRecord.
    pub const MC_MEMBER_RECORD: Self = Self::new(0x0038);
    /// TraceRecord.
    pub const TRACE_RECORD: Self = Self::new(0x0039);
    /// MultiPathRecord.
    pub const MULTI_PATH_RECORD: Self = Self::new(0x003a);
    /// ServiceAssociationRecord.
    pub const SERVICE_ASSOCIATION_RECORD: Self = Self::new(0x003b);
    /// InformInfoRecord.
    pub const INFORM_INFO_RECORD: Self = Self::new(0x00f3);
}

be_newtype! {
    /// Which components of a record a request means (IBA 15.2.1.1): one bit each, the first
    /// component in bit 0.
    ComponentMask(u64, 8), "0x{:016x}"
}

impl ComponentMask {
    /// No component.
    pub const NONE: Self = Self::new(0);

    /// Both masks together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self::new(self.get() | other.get())
    }

    /// Whether all components of `other` are meant.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.get() & other.get() == other.get()
    }

    /// Whether any component of `other` is meant.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.get() & other.get() != 0
    }
}

impl BitOr for ComponentMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

/// Names the components of a record by their bit numbers.
macro_rules! components {
    ($record:ident { $($name:ident = $bit:literal $(| $more:literal)*, $doc:literal;)* }) => {
        /// Component mask bits of the record.
        impl $record {
            $(
                #[doc = concat!("Component mask of ", $doc, ".")]
                pub const $name: crate::sa::ComponentMask =
                    crate::sa::ComponentMask::new(1 << $bit $(| 1 << $more)*);
            )*
        }
    };
}
pub(crate) use components;

open_enum! {
    /// How a record's MTU, rate or packet life time is meant (IBA 15.2.5.16). Two bits.
    Selector(u8) {
        /// Larger than the value.
        GREATER = 0,
        /// Smaller than the value.
        LESS = 1,
        /// The value.
        EXACTLY = 2,
        /// The best there is: largest MTU or rate, smallest life time. The value is ignored.
        BEST = 3,
    }
}

impl_bits! {
    Selector, u8, Selector::new, Selector::get;
}

layout! {
    /// A MAD of class subnet administration (IBA 15.2.1.1).
    mad SaMad {
        /// The common header.
        pub header: MadHeader,
        /// The RMPP header.
        pub rmpp: RmppHeader,
        /// SM_Key: 0, or a trusted requester's key.
        pub sm_key: SmKey,
        /// AttributeOffset: the stride of a table's records in units of 8 bytes.
        pub attribute_offset: U16,
        /// Reserved.
        pub reserved: [u8; 2],
        /// ComponentMask.
        pub component_mask: ComponentMask,
        /// The record, or a segment of a table.
        pub data: [u8; SA_DATA_SIZE],
    }
}

/// Bytes of data in an SA MAD.
pub const SA_DATA_SIZE: usize = 200;

impl SaMad {
    /// A MAD without RMPP whose data is one record; everything not named is zero.
    #[must_use]
    pub fn new<R: SaRecord>(method: Method, component_mask: ComponentMask, record: &R) -> Self {
        let mut mad = Self {
            header: MadHeader::new(MgmtClass::SUBN_ADM, method, R::ATTRIBUTE_ID),
            component_mask,
            ..Self::default()
        };
        mad.set_record(record);
        mad
    }

    /// The record in the data.
    #[must_use]
    pub fn record<R: SaRecord>(&self) -> R {
        const { assert!(size_of::<R>() <= SA_DATA_SIZE) };
        match R::read_from_prefix(&self.data) {
            Ok((record, _)) => record,
            Err(_) => unreachable!("size is checked at compile time"),
        }
    }

    /// The record in the data, to be changed where it lies.
    pub fn record_mut<R: SaRecord>(&mut self) -> &mut R {
        const { assert!(size_of::<R>() <= SA_DATA_SIZE) };
        match R::mut_from_prefix(&mut self.data) {
            Ok((record, _)) => record,
            Err(_) => unreachable!("size is checked at compile time"),
        }
    }

    /// Writes a record into the data and zeros behind it, and sets AttributeOffset.
    pub fn set_record<R: SaRecord>(&mut self, record: &R) {
        const { assert!(size_of::<R>() <= SA_DATA_SIZE) };
        let (front, back) = self.data.split_at_mut(size_of::<R>());
        front.copy_from_slice(record.as_bytes());
        back.zero();
        self.attribute_offset = U16::new(R::ATTRIBUTE_OFFSET);
    }
}

/// A record of the SA, with the attribute that names it.
///
/// Layouts include the padding to a multiple of eight bytes that tables put between records.
pub trait SaRecord: Sized + FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {
    /// The attribute id.
    const ATTRIBUTE_ID: AttributeId;

    /// AttributeOffset: the record's size in units of 8 bytes.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "records are at most 200 bytes"
    )]
    const ATTRIBUTE_OFFSET: u16 = size_of::<Self>().div_ceil(8) as u16;
}

/// The records of a table that arrived: a payload without headers, at a stride of
/// `attribute_offset` × 8 bytes.
///
/// A stride of zero (an empty table), or one too small for the record, gives none; what follows
/// the last whole record is left out.
pub fn records<R: SaRecord>(payload: &[u8], attribute_offset: u16) -> impl Iterator<Item = R> {
    let stride = usize::from(attribute_offset) * 8;
    let fits = stride >= size_of::<R>() && stride > 0;
    payload
        .chunks(stride.max(1))
        .take_while(move |_| fits)
        .map_while(|chunk| R::read_from_prefix(chunk).ok().map(|(record, _)| record))
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;
    use std::vec::Vec;

    use super::*;
    use crate::{Gid, Lid};

    #[test]
    fn sa_fields_stand_at_their_offsets() {
        assert_eq!(offset_of!(SaMad, rmpp), 24);
        assert_eq!(offset_of!(SaMad, sm_key), 36);
        assert_eq!(offset_of!(SaMad, attribute_offset), 44);
        assert_eq!(offset_of!(SaMad, component_mask), 48);
        assert_eq!(offset_of!(SaMad, data), 56);
    }

    #[test]
    fn attribute_offsets_are_those_that_opensm_sends() {
        for (offset, expected) in [
            (PathRecord::ATTRIBUTE_OFFSET, 8),
            (McMemberRecord::ATTRIBUTE_OFFSET, 7),
            (GuidInfoRecord::ATTRIBUTE_OFFSET, 9),
            (ServiceRecord::ATTRIBUTE_OFFSET, 22),
            (LinkRecord::ATTRIBUTE_OFFSET, 1),
            (SlToVlRecord::ATTRIBUTE_OFFSET, 2),
            (VlArbRecord::ATTRIBUTE_OFFSET, 9),
            (LftRecord::ATTRIBUTE_OFFSET, 9),
        ] {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn a_request_holds_its_record_and_mask() {
        let record = PathRecord {
            dgid: Gid([0x11; 16]),
            slid: Lid::new(7),
            ..PathRecord::default()
        };
        let mask = PathRecord::DGID | PathRecord::SLID;
        let mad = SaMad::new(Method::GET, mask, &record);
        assert_eq!(mad.as_bytes()[..4], [1, 3, 2, 1]);
        assert_eq!(mad.as_bytes()[16..18], [0, 0x35]);
        assert_eq!(
            mad.as_bytes()[44..56],
            [0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x24]
        );
        assert_eq!(mad.record::<PathRecord>(), record);
        assert!(mad.component_mask.contains(PathRecord::DGID));
        assert!(!mad.component_mask.contains(PathRecord::SGID));
    }

    #[test]
    fn a_record_overwrites_all_that_was_in_the_data() {
        let mut mad = SaMad {
            data: [0xa5; SA_DATA_SIZE],
            ..SaMad::default()
        };
        mad.set_record(&LinkRecord::default());
        assert_eq!(mad.data, [0; SA_DATA_SIZE]);
    }

    #[test]
    fn records_are_read_at_the_stride_of_the_table() {
        let mut payload = Vec::new();
        for lid in 1..=3 {
            let link = LinkRecord {
                from_lid: Lid::new(lid),
                ..LinkRecord::default()
            };
            payload.extend_from_slice(link.as_bytes());
            payload.extend_from_slice(&[0xff; 8]);
        }
        let lids: Vec<u16> = records::<LinkRecord>(&payload, 2)
            .map(|link| link.from_lid.get())
            .collect();
        assert_eq!(lids, [1, 2, 3]);
    }

    #[test]
    fn a_table_of_impossible_stride_has_no_records() {
        assert_eq!(records::<LinkRecord>(&[0; 64], 0).count(), 0);
        assert_eq!(records::<PathRecord>(&[0; 64], 7).count(), 0);
        assert_eq!(records::<PathRecord>(&[0; 63], 8).count(), 0);
        assert_eq!(records::<PathRecord>(&[], 8).count(), 0);
    }
}
