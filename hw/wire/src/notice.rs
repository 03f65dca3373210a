//! What the classes share: ClassPortInfo (IBA 13.4.8.1), Notice (13.4.8.2) and InformInfo
//! (13.4.8.3), with the details of the subnet management traps (14.2.5.1).
//!
//! ```
//! use ib_wire::Lid;
//! use ib_wire::notice::{LinkStateDetails, Notice, NoticeType, ProducerType, TrapNumber};
//!
//! let switch = Lid::new(3);
//! let notice = Notice::generic(
//!     NoticeType::URGENT,
//!     ProducerType::SWITCH,
//!     TrapNumber::LINK_STATE_CHANGED,
//!     switch,
//!     &LinkStateDetails { lid: switch, ..LinkStateDetails::default() },
//! );
//! assert!(notice.is_generic());
//! assert_eq!(notice.details::<LinkStateDetails>().lid, switch);
//! ```

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::mad::{AttributeId, AttributeModifier, Method};
use crate::smp::{CapabilityMask, CapabilityMask2, SmpAttribute};
use crate::{Gid, Guid, Lid, MKey, PKey, PortNum, QKey, Qpn, Sl};

layout! {
    /// How a class is managed on a port (IBA 13.4.8.1).
    ClassPortInfo, 72 {
        /// Version of the MAD base format.
        pub base_version: u8,
        /// Version of the class.
        pub class_version: u8,
        /// What the class supports; bits 0 to 7 mean the same for all classes.
        pub capability_mask: U16,
        /// CapabilityMask2 (27), RespTimeValue (5).
        pub capability_mask2_resp_time: U32,
        /// GID to redirect requests to.
        pub redirect_gid: Gid,
        /// Traffic class (8), service level (4), flow label (20) to redirect with.
        pub redirect_tc_sl_flow: U32,
        /// LID to redirect to; 0 if there is no redirection.
        pub redirect_lid: Lid,
        /// P_Key to redirect with.
        pub redirect_pkey: PKey,
        /// Reserved.
        pub reserved: u8,
        /// Queue pair to redirect to.
        pub redirect_qp: Qpn,
        /// Q_Key to redirect with.
        pub redirect_qkey: QKey,
        /// GID to send traps to.
        pub trap_gid: Gid,
        /// Traffic class (8), service level (4), flow label (20) to send traps with.
        pub trap_tc_sl_flow: U32,
        /// LID to send traps to.
        pub trap_lid: Lid,
        /// P_Key to send traps with.
        pub trap_pkey: PKey,
        /// Hop limit to send traps with.
        pub trap_hop_limit: u8,
        /// Queue pair to send traps to.
        pub trap_qp: Qpn,
        /// Q_Key to send traps with.
        pub trap_qkey: QKey,
    }
}

impl ClassPortInfo {
    /// CapabilityMask bit 0: the class sends traps.
    pub const GENERATES_TRAPS: u16 = 1;
    /// CapabilityMask bit 1: Get(Notice) and Set(Notice) are supported.
    pub const IMPLEMENTS_NOTICE: u16 = 2;

    bit_fields! {
        /// More of what the class supports, 27 bits.
        capability_mask2, set_capability_mask2: u32 = capability_mask2_resp_time >> 5, 27;
        /// How long the class takes to answer: 4.096 µs × 2^value.
        resp_time_value, set_resp_time_value: u8 = capability_mask2_resp_time >> 0, 5;
        /// Traffic class to redirect with.
        redirect_traffic_class, set_redirect_traffic_class: u8 = redirect_tc_sl_flow >> 24, 8;
        /// Service level to redirect with.
        redirect_sl, set_redirect_sl: Sl = redirect_tc_sl_flow >> 20, 4;
        /// Flow label to redirect with.
        redirect_flow_label, set_redirect_flow_label: u32 = redirect_tc_sl_flow >> 0, 20;
        /// Traffic class to send traps with.
        trap_traffic_class, set_trap_traffic_class: u8 = trap_tc_sl_flow >> 24, 8;
        /// Service level to send traps with.
        trap_sl, set_trap_sl: Sl = trap_tc_sl_flow >> 20, 4;
        /// Flow label to send traps with.
        trap_flow_label, set_trap_flow_label: u32 = trap_tc_sl_flow >> 0, 20;
    }
}

open_enum! {
    /// How grave a notice is (IBA 13.4.8.2, Notice:Type), 7 bits.
    NoticeType(u8) {
        /// Fatal.
        FATAL = 0,
        /// Urgent.
        URGENT = 1,
        /// Security.
        SECURITY = 2,
        /// The subnet is managed.
        SUBNET_MANAGEMENT = 3,
        /// For information.
        INFORMATIONAL = 4,
        /// No notice.
        EMPTY = 0x7f,
    }
}

impl_bits! { NoticeType, u8, NoticeType::new, NoticeType::get; }

open_enum! {
    /// The number of a generic trap of the subnet management class (IBA 14.2.5.1).
    TrapNumber(u16) {
        /// A port's GID came into service.
        GID_IN_SERVICE = 64,
        /// A port's GID went out of service.
        GID_OUT_OF_SERVICE = 65,
        /// A multicast group was created.
        GROUP_CREATED = 66,
        /// A multicast group was deleted.
        GROUP_DELETED = 67,
        /// The state of a switch's ports changed.
        LINK_STATE_CHANGED = 128,
        /// The threshold of local link integrity errors was reached.
        LOCAL_LINK_INTEGRITY = 129,
        /// The threshold of excessive buffer overruns was reached.
        EXCESSIVE_BUFFER_OVERRUN = 130,
        /// The flow control watchdog expired.
        FLOW_CONTROL_UPDATE = 131,
        /// A port's capability mask or other local setting changed.
        CAPABILITY_MASK_CHANGED = 144,
        /// The system image GUID changed.
        SYSTEM_IMAGE_GUID_CHANGED = 145,
        /// An SMP had a wrong M_Key.
        BAD_MKEY = 256,
        /// A packet had a wrong P_Key.
        BAD_PKEY = 257,
        /// A packet had a wrong Q_Key.
        BAD_QKEY = 258,
        /// A switch received a packet with a wrong P_Key.
        SWITCH_BAD_PKEY = 259,
        /// In InformInfo: all traps.
        ALL = 0xffff,
    }
}

/// Bytes of a notice's details.
pub const NOTICE_DETAILS_SIZE: usize = 54;

layout! {
    /// A notice (IBA 13.4.8.2) as SMPs carry it. Other classes add [`NoticeReport::issuer_gid`].
    Notice, 64 {
        /// IsGeneric (1), Type (7).
        pub generic_type: u8,
        /// Generic: the kind of node that produced it (see [`ProducerType`]). Otherwise the
        /// vendor's OUI.
        pub producer: [u8; 3],
        /// Generic: the trap's number. Otherwise the vendor's device id.
        pub trap_number: TrapNumber,
        /// LID of the port that sent the trap.
        pub issuer_lid: Lid,
        /// NoticeToggle (1), NoticeCount (15).
        pub toggle_count: U16,
        /// The trap's own data; see [`Notice::details`].
        pub data_details: [u8; NOTICE_DETAILS_SIZE],
    }
}

impl SmpAttribute for Notice {
    const ID: AttributeId = AttributeId::NOTICE;
}

/// The kind of node that produces a generic notice (IBA 13.4.8.2, Notice:ProducerType).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerType(pub [u8; 3]);

impl ProducerType {
    /// A channel adapter.
    pub const CA: Self = Self([0, 0, 1]);
    /// A switch.
    pub const SWITCH: Self = Self([0, 0, 2]);
    /// A router.
    pub const ROUTER: Self = Self([0, 0, 3]);
    /// A class manager, such as the subnet manager.
    pub const CLASS_MANAGER: Self = Self([0, 0, 4]);
    /// In InformInfo: all of them.
    pub const ALL: Self = Self([0xff; 3]);
}

impl Notice {
    bit_fields! {
        /// Whether the notice is one of the standard's.
        is_generic, set_is_generic: bool = generic_type >> 7, 1;
        /// How grave it is.
        notice_type, set_notice_type: NoticeType = generic_type >> 0, 7;
        /// Alternates between notices that a reader fetches with Get.
        toggle, set_toggle: bool = toggle_count >> 15, 1;
        /// Notices queued.
        count, set_count: u16 = toggle_count >> 0, 15;
    }

    /// A generic notice with details.
    #[must_use]
    pub fn generic<D: NoticeDetails>(
        notice_type: NoticeType,
        producer: ProducerType,
        trap_number: TrapNumber,
        issuer_lid: Lid,
        details: &D,
    ) -> Self {
        let mut notice = Self {
            producer: producer.0,
            trap_number,
            issuer_lid,
            ..Self::default()
        };
        notice.set_is_generic(true);
        notice.set_notice_type(notice_type);
        *notice.details_mut() = *details;
        notice
    }

    /// The trap's own data in the layout of some trap; the trap's number is not looked at.
    #[must_use]
    pub fn details<D: NoticeDetails>(&self) -> &D {
        const { assert!(size_of::<D>() == NOTICE_DETAILS_SIZE) };
        match D::ref_from_bytes(&self.data_details) {
            Ok(details) => details,
            Err(_) => unreachable!("size and alignment are checked at compile time"),
        }
    }

    /// The trap's own data, for writing.
    #[must_use]
    pub fn details_mut<D: NoticeDetails>(&mut self) -> &mut D {
        const { assert!(size_of::<D>() == NOTICE_DETAILS_SIZE) };
        match D::mut_from_bytes(&mut self.data_details) {
            Ok(details) => details,
            Err(_) => unreachable!("size and alignment are checked at compile time"),
        }
    }
}

layout! {
    /// A notice as all classes but subnet management carry it, such as SA's Report.
    NoticeReport, 80 {
        /// The notice.
        pub notice: Notice,
        /// GID of the port that sent the trap.
        pub issuer_gid: Gid,
    }
}

/// The 54 bytes of a trap's own data.
pub trait NoticeDetails:
    FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy
{
}

layout! {
    /// Details of traps 64 to 67: a port or group came or went.
    GidDetails, 54 {
        /// Reserved.
        pub reserved1: [u8; 6],
        /// The port's or the group's GID.
        pub gid: Gid,
        /// Unused.
        pub reserved2: [u8; 32],
    }
}

layout! {
    /// Details of trap 128: the state of a switch's ports changed.
    LinkStateDetails, 54 {
        /// The switch's LID.
        pub lid: Lid,
        /// Unused.
        pub reserved: [u8; 52],
    }
}

layout! {
    /// Details of traps 129 to 131: link trouble.
    LinkErrorDetails, 54 {
        /// Reserved.
        pub reserved1: [u8; 2],
        /// LID of the port's node.
        pub lid: Lid,
        /// The port.
        pub port: PortNum,
        /// Unused.
        pub reserved2: [u8; 49],
    }
}

layout! {
    /// Details of trap 144: a port's abilities or settings changed.
    CapabilityDetails, 54 {
        /// Reserved.
        pub reserved1: [u8; 2],
        /// The port's LID.
        pub lid: Lid,
        /// Reserved.
        pub reserved2: u8,
        /// Reserved (7), OtherLocalChanges (1).
        pub local_changes: u8,
        /// The port's CapabilityMask.
        pub capability_mask: CapabilityMask,
        /// What else changed, if OtherLocalChanges is set.
        pub changes: LocalChanges,
        /// The port's CapabilityMask2, if the change says so.
        pub capability_mask2: CapabilityMask2,
        /// Unused.
        pub reserved3: [u8; 40],
    }
}

impl CapabilityDetails {
    bit_fields! {
        /// Whether [`CapabilityDetails::changes`] counts.
        other_local_changes, set_other_local_changes: bool = local_changes >> 0, 1;
    }
}

be_newtype! {
    /// What changed besides the capability mask (IBA 14.2.5.1, trap 144).
    LocalChanges(u16, 2), "0x{:04x}"
}

flags! {
    LocalChanges(u16) {
        /// The node description.
        NODE_DESCRIPTION = 0,
        /// LinkWidthEnabled.
        LINK_WIDTH_ENABLED = 1,
        /// LinkSpeedEnabled.
        LINK_SPEED_ENABLED = 2,
        /// The subnet manager's priority.
        SM_PRIORITY = 3,
        /// The hierarchy information.
        HIERARCHY_INFO = 4,
        /// CapabilityMask2.
        CAPABILITY_MASK2 = 5,
    }
}

layout! {
    /// Details of trap 145: the system image GUID changed.
    SystemImageGuidDetails, 54 {
        /// Reserved.
        pub reserved1: [u8; 2],
        /// The port's LID.
        pub lid: Lid,
        /// Reserved.
        pub reserved2: [u8; 2],
        /// The new GUID.
        pub system_image_guid: Guid,
        /// Unused.
        pub reserved3: [u8; 40],
    }
}

layout! {
    /// Details of trap 256: an SMP with a wrong M_Key.
    MKeyDetails, 54 {
        /// Reserved.
        pub reserved1: [u8; 2],
        /// LID of the port that noticed.
        pub lid: Lid,
        /// The SMP's DrSLID.
        pub dr_slid: Lid,
        /// The SMP's method.
        pub method: Method,
        /// Reserved.
        pub reserved2: u8,
        /// The SMP's attribute.
        pub attribute_id: AttributeId,
        /// The SMP's modifier.
        pub attribute_modifier: AttributeModifier,
        /// The SMP's M_Key.
        pub mkey: MKey,
        /// Reserved.
        pub reserved3: u8,
        /// DRNotice (1), DRPathTruncated (1), DRHopCount (6).
        pub dr_path_flags: u8,
        /// The SMP's return path as far as it fits.
        pub dr_return_path: [u8; 30],
    }
}

impl MKeyDetails {
    bit_fields! {
        /// Whether the SMP was a directed-route one.
        dr_notice, set_dr_notice: bool = dr_path_flags >> 7, 1;
        /// Whether the return path did not fit.
        dr_path_truncated, set_dr_path_truncated: bool = dr_path_flags >> 6, 1;
        /// The SMP's hop count.
        dr_hop_count, set_dr_hop_count: u8 = dr_path_flags >> 0, 6;
    }
}

layout! {
    /// Details of traps 257 and 258: a packet with a wrong P_Key or Q_Key.
    KeyDetails, 54 {
        /// Reserved.
        pub reserved1: [u8; 2],
        /// The packet's source LID.
        pub lid1: Lid,
        /// The packet's destination LID.
        pub lid2: Lid,
        /// The packet's P_Key (in the lower half) or Q_Key.
        pub key: U32,
        /// The packet's service level (4), reserved (4).
        pub sl_reserved: u8,
        /// The packet's source queue pair.
        pub qp1: Qpn,
        /// Reserved.
        pub reserved2: u8,
        /// The packet's destination queue pair.
        pub qp2: Qpn,
        /// The packet's source GID, if it had one.
        pub gid1: Gid,
        /// The packet's destination GID, if it had one.
        pub gid2: Gid,
        /// Unused.
        pub reserved3: [u8; 4],
    }
}

impl KeyDetails {
    bit_fields! {
        /// The packet's service level.
        sl, set_sl: Sl = sl_reserved >> 4, 4;
    }
}

layout! {
    /// Details of trap 259: a switch received a packet with a wrong P_Key.
    SwitchPKeyDetails, 54 {
        /// Which of the fields hold data, lid1 in the lowest bit.
        pub data_valid: U16,
        /// The packet's source LID.
        pub lid1: Lid,
        /// The packet's destination LID.
        pub lid2: Lid,
        /// The packet's P_Key.
        pub pkey: PKey,
        /// The packet's service level (4), reserved (4).
        pub sl_reserved: u8,
        /// The packet's source queue pair.
        pub qp1: Qpn,
        /// Reserved.
        pub reserved1: u8,
        /// The packet's destination queue pair.
        pub qp2: Qpn,
        /// The packet's source GID, if it had one.
        pub gid1: Gid,
        /// The packet's destination GID, if it had one.
        pub gid2: Gid,
        /// The switch's LID.
        pub switch_lid: Lid,
        /// The switch's port.
        pub port: PortNum,
        /// Unused.
        pub reserved2: [u8; 3],
    }
}

impl SwitchPKeyDetails {
    bit_fields! {
        /// The packet's service level.
        sl, set_sl: Sl = sl_reserved >> 4, 4;
    }
}

impl NoticeDetails for GidDetails {}
impl NoticeDetails for LinkStateDetails {}
impl NoticeDetails for LinkErrorDetails {}
impl NoticeDetails for CapabilityDetails {}
impl NoticeDetails for SystemImageGuidDetails {}
impl NoticeDetails for MKeyDetails {}
impl NoticeDetails for KeyDetails {}
impl NoticeDetails for SwitchPKeyDetails {}

layout! {
    /// A subscription to notices (IBA 13.4.8.3).
    InformInfo, 36 {
        /// Notices from the port with this GID; zero for the LID range instead.
        pub gid: Gid,
        /// The first LID that notices shall come from; 0xFFFF for all.
        pub lid_range_begin: Lid,
        /// The last one.
        pub lid_range_end: Lid,
        /// Reserved.
        pub reserved1: U16,
        /// 1 for generic notices, 0 for vendors' ones.
        pub is_generic: u8,
        /// 1 to subscribe, 0 to unsubscribe.
        pub subscribe: u8,
        /// [`NoticeType`] to be told of; 0xFFFF for all.
        pub notice_type: U16,
        /// The trap's number, or the vendor's device id; 0xFFFF for all.
        pub trap_number: TrapNumber,
        /// Of an unsubscription: the queue pair that subscribed.
        pub qpn: Qpn,
        /// Reserved (3), RespTimeValue (5).
        pub resp_time: u8,
        /// Reserved.
        pub reserved2: u8,
        /// [`ProducerType`], or the vendor's OUI; 0xFFFFFF for all.
        pub producer: [u8; 3],
    }
}

impl InformInfo {
    /// The value of [`InformInfo::notice_type`] for notices of every type.
    pub const ALL_TYPES: u16 = 0xffff;

    bit_fields! {
        /// How long the subscriber takes to answer a report: 4.096 µs × 2^value.
        resp_time_value, set_resp_time_value: u8 = resp_time >> 0, 5;
    }

    /// Whether a notice is one that this subscribes to (IBA 13.4.8.3). A GID counts instead of the
    /// LID range.
    #[must_use]
    pub fn covers(&self, report: &NoticeReport) -> bool {
        let notice = &report.notice;
        let kind = u16::from(notice.notice_type().get());
        let lids = self.lid_range_begin..=self.lid_range_end;
        (self.is_generic != 0) == notice.is_generic()
            && (self.notice_type.get() == Self::ALL_TYPES || self.notice_type.get() == kind)
            && (self.trap_number == TrapNumber::ALL || self.trap_number == notice.trap_number)
            && (self.producer == ProducerType::ALL.0 || self.producer == notice.producer)
            && if self.gid.is_none() {
                self.lid_range_begin == Lid::PERMISSIVE || lids.contains(&notice.issuer_lid)
            } else {
                self.gid == report.issuer_gid
            }
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn fields_stand_at_their_offsets() {
        assert_eq!(offset_of!(ClassPortInfo, redirect_qp), 33);
        assert_eq!(offset_of!(ClassPortInfo, trap_gid), 40);
        assert_eq!(offset_of!(ClassPortInfo, trap_qkey), 68);
        assert_eq!(offset_of!(Notice, data_details), 10);
        assert_eq!(offset_of!(CapabilityDetails, capability_mask), 6);
        assert_eq!(offset_of!(CapabilityDetails, capability_mask2), 12);
        assert_eq!(offset_of!(MKeyDetails, mkey), 14);
        assert_eq!(offset_of!(KeyDetails, gid1), 18);
        assert_eq!(offset_of!(SwitchPKeyDetails, switch_lid), 48);
        assert_eq!(offset_of!(InformInfo, is_generic), 22);
        assert_eq!(offset_of!(InformInfo, qpn), 28);
        assert_eq!(offset_of!(InformInfo, producer), 33);
    }

    #[test]
    fn a_link_state_trap_is_encoded_as_ibsim_sends_it() {
        let details = LinkStateDetails {
            lid: Lid::new(3),
            ..LinkStateDetails::default()
        };
        let notice = Notice::generic(
            NoticeType::URGENT,
            ProducerType::SWITCH,
            TrapNumber::LINK_STATE_CHANGED,
            Lid::new(3),
            &details,
        );
        assert_eq!(
            notice.as_bytes()[..12],
            [0x81, 0, 0, 2, 0, 128, 0, 3, 0, 0, 0, 3]
        );
        assert_eq!(notice.details::<LinkStateDetails>(), &details);
    }

    fn all() -> InformInfo {
        InformInfo {
            lid_range_begin: Lid::PERMISSIVE,
            is_generic: 1,
            subscribe: 1,
            notice_type: InformInfo::ALL_TYPES.into(),
            trap_number: TrapNumber::ALL,
            producer: ProducerType::ALL.0,
            ..InformInfo::default()
        }
    }

    #[test]
    fn each_field_of_a_subscription_narrows_it() {
        let in_service = NoticeReport {
            notice: Notice::generic(
                NoticeType::SUBNET_MANAGEMENT,
                ProducerType::CLASS_MANAGER,
                TrapNumber::GID_IN_SERVICE,
                Lid::new(5),
                &GidDetails::default(),
            ),
            issuer_gid: Gid([7; 16]),
        };
        assert!(all().covers(&in_service));
        let with = |change: &dyn Fn(&mut InformInfo)| {
            let mut inform = all();
            change(&mut inform);
            inform.covers(&in_service)
        };
        assert!(with(&|i| i.trap_number = TrapNumber::GID_IN_SERVICE));
        assert!(!with(&|i| i.trap_number = TrapNumber::GID_OUT_OF_SERVICE));
        assert!(with(&|i| i.notice_type = 3.into()));
        assert!(!with(&|i| i.notice_type = 4.into()));
        assert!(!with(&|i| i.is_generic = 0));
        assert!(with(&|i| i.producer = [0, 0, 4]));
        assert!(!with(&|i| i.producer = [0, 0, 1]));
        assert!(with(&|i| i.gid = Gid([7; 16])));
        assert!(!with(&|i| i.gid = Gid([8; 16])));
        let lids = |begin: u16, end: u16| {
            with(&|i| {
                i.lid_range_begin = Lid::new(begin);
                i.lid_range_end = Lid::new(end);
            })
        };
        assert!(lids(5, 5) && lids(1, 9));
        assert!(!lids(6, 9) && !lids(1, 4));
    }
}
