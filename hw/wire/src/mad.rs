//! The management datagram (IBA 13.4.2): 256 bytes that start with a common 24-byte header.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Tid;

/// Bytes in every MAD.
pub const MAD_SIZE: usize = 256;

open_enum! {
    /// A management class (IBA 13.4.4).
    MgmtClass(u8) {
        /// Subnet management, LID routed.
        SUBN_LID_ROUTED = 0x01,
        /// Subnet administration.
        SUBN_ADM = 0x03,
        /// Performance management.
        PERF = 0x04,
        /// Baseboard management.
        BM = 0x05,
        /// Device management.
        DEV_MGT = 0x06,
        /// Communication management.
        COM_MGT = 0x07,
        /// SNMP tunneling.
        SNMP = 0x08,
        /// Congestion control.
        CONG_CTRL = 0x21,
        /// Subnet management, directed route.
        SUBN_DIRECTED_ROUTE = 0x81,
    }
}

impl MgmtClass {
    /// Whether MADs of this class are SMPs, which travel on QP0 and VL15.
    #[must_use]
    pub const fn is_smp(self) -> bool {
        matches!(self, Self::SUBN_LID_ROUTED | Self::SUBN_DIRECTED_ROUTE)
    }

    /// Whether the class is a vendor's own (IBA 13.4.4): 0x09 to 0x0F, or [`Self::is_vendor_oui`].
    #[must_use]
    pub const fn is_vendor(self) -> bool {
        matches!(self.0, 0x09..=0x0f) || self.is_vendor_oui()
    }

    /// Whether the class is in the second vendor range, whose MADs carry an OUI and may use RMPP
    /// (IBA 16.5.3): 0x30 to 0x4F.
    #[must_use]
    pub const fn is_vendor_oui(self) -> bool {
        matches!(self.0, 0x30..=0x4f)
    }

    /// The class version that this code speaks (IBA 13.4.4 and the class chapters).
    #[must_use]
    pub const fn supported_version(self) -> u8 {
        match self {
            Self::SUBN_ADM | Self::COM_MGT | Self::CONG_CTRL => 2,
            _ => 1,
        }
    }
}

open_enum! {
    /// A management method; the top bit marks responses (IBA 13.4.5).
    Method(u8) {
        /// Get an attribute.
        GET = 0x01,
        /// Set an attribute.
        SET = 0x02,
        /// An unacknowledged message, such as those of the CM.
        SEND = 0x03,
        /// An unsolicited notification to the SM.
        TRAP = 0x05,
        /// A forwarded notice.
        REPORT = 0x06,
        /// The answer to a trap: stop repeating it.
        TRAP_REPRESS = 0x07,
        /// Get a table of records.
        GET_TABLE = 0x12,
        /// Get a trace table.
        GET_TRACE_TABLE = 0x13,
        /// Get with a multi-packet request.
        GET_MULTI = 0x14,
        /// Delete a record.
        DELETE = 0x15,
        /// Response to Get and Set.
        GET_RESP = 0x81,
        /// Response to Report.
        REPORT_RESP = 0x86,
        /// Response to GetTable.
        GET_TABLE_RESP = 0x92,
        /// Response to GetMulti.
        GET_MULTI_RESP = 0x94,
        /// Response to Delete.
        DELETE_RESP = 0x95,
    }
}

impl Method {
    /// The bit that marks responses.
    pub const RESPONSE_BIT: u8 = 0x80;

    /// Whether this is a response method. TrapRepress answers a Trap but has the bit clear.
    #[must_use]
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE_BIT != 0
    }

    /// Whether a MAD of this method answers another: a response, or TrapRepress (IBA 13.4.5).
    #[must_use]
    pub const fn is_answer(self) -> bool {
        self.is_response() || self.0 == Self::TRAP_REPRESS.0
    }

    /// The method that answers this one: the response bit set, GetResp for Set (IBA 13.4.5), and GetTableResp for
    /// GetTraceTable, which has no response of its own (IBA 15.2.2).
    #[must_use]
    pub const fn response(self) -> Self {
        match self {
            Self::SET => Self::GET_RESP,
            Self::TRAP => Self::TRAP_REPRESS,
            Self::GET_TRACE_TABLE => Self::GET_TABLE_RESP,
            Self(other) => Self(other | Self::RESPONSE_BIT),
        }
    }
}

be_newtype! {
    /// A MAD's status field (IBA 13.4.7): bit 0 busy, bit 1 redirect, bits 2..4 invalid-field code,
    /// bits 8..14 class specific. Bit 15 is the direction bit of directed-route SMPs.
    MadStatus(u16, 2), "0x{:04x}"
}

impl MadStatus {
    /// Success.
    pub const OK: Self = Self::new(0);
    /// The receiver is busy and discarded the MAD.
    pub const BUSY: Self = Self::new(0x0001);
    /// The request should go elsewhere, as the ClassPortInfo in the data says.
    pub const REDIRECT: Self = Self::new(0x0002);
    /// Base or class version not supported.
    pub const BAD_VERSION: Self = Self::new(0x0004);
    /// Method not supported.
    pub const UNSUPPORTED_METHOD: Self = Self::new(0x0008);
    /// Method and attribute combination not supported.
    pub const UNSUPPORTED_METHOD_ATTRIBUTE: Self = Self::new(0x000c);
    /// A field of the attribute or its modifier is invalid.
    pub const INVALID_FIELD: Self = Self::new(0x001c);

    /// SA: no resources (IBA 15.4.1.1, table of SA-specific status values).
    pub const SA_NO_RESOURCES: Self = Self::new(0x0100);
    /// SA: request invalid.
    pub const SA_REQ_INVALID: Self = Self::new(0x0200);
    /// SA: no matching records.
    pub const SA_NO_RECORDS: Self = Self::new(0x0300);
    /// SA: more than one record matches a Get.
    pub const SA_TOO_MANY_RECORDS: Self = Self::new(0x0400);
    /// SA: invalid GID in the request.
    pub const SA_INVALID_GID: Self = Self::new(0x0500);
    /// SA: components missing from the request.
    pub const SA_INSUFFICIENT_COMPONENTS: Self = Self::new(0x0600);
    /// SA: request denied.
    pub const SA_DENIED: Self = Self::new(0x0700);
    /// SA: the priority asked for is not the one to use; the answer suggests another.
    pub const SA_PRIO_SUGGESTED: Self = Self::new(0x0800);

    /// The D bit of a directed-route SMP (IBA 14.2.1.2): set on the way back.
    pub const DIRECTION: u16 = 0x8000;

    /// The status without the D bit of directed-route SMPs.
    #[must_use]
    pub const fn without_direction(self) -> Self {
        Self::new(self.get() & !Self::DIRECTION)
    }

    /// Returns the status as a MAD of a class has it, which is displayed by name: `NO_RECORDS (0x0300)`.
    #[must_use]
    pub const fn of(self, class: MgmtClass) -> ClassStatus {
        ClassStatus {
            class,
            status: self,
        }
    }

    /// Returns the name of the code in bits 2 to 4 (IBA 13.4.7).
    const fn invalid_field_name(self) -> Option<&'static str> {
        Some(match self.get() >> 2 & 7 {
            1 => "BAD_VERSION",
            2 => "UNSUPPORTED_METHOD",
            3 => "UNSUPPORTED_METHOD_ATTRIBUTE",
            7 => "INVALID_FIELD",
            _ => return None,
        })
    }

    /// Returns the name of the SA's own part (IBA 15.4.1.1), without the `ERR_` that most of them begin with.
    const fn sa_name(self) -> Option<&'static str> {
        Some(match Self::new(self.get() & 0x7f00) {
            Self::SA_NO_RESOURCES => "NO_RESOURCES",
            Self::SA_REQ_INVALID => "REQ_INVALID",
            Self::SA_NO_RECORDS => "NO_RECORDS",
            Self::SA_TOO_MANY_RECORDS => "TOO_MANY_RECORDS",
            Self::SA_INVALID_GID => "REQ_INVALID_GID",
            Self::SA_INSUFFICIENT_COMPONENTS => "REQ_INSUFFICIENT_COMPONENTS",
            Self::SA_DENIED => "REQ_DENIED",
            Self::SA_PRIO_SUGGESTED => "PRIO_SUGGESTED",
            _ => return None,
        })
    }
}

/// A status of a class, displayed as its names and its digits: `BUSY (0x0001)`, or the digits alone if it has none.
///
/// Every class has the names of the low byte; of the class-specific part only the SA's have names here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStatus {
    class: MgmtClass,
    status: MadStatus,
}

impl fmt::Display for ClassStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, status } = *self;
        if status == MadStatus::OK {
            return write!(f, "OK ({status})");
        }
        let bit = |bit: MadStatus, name| (status.get() & bit.get() != 0).then_some(name);
        let names = [
            status.sa_name().filter(|_| class == MgmtClass::SUBN_ADM),
            bit(MadStatus::BUSY, "BUSY"),
            bit(MadStatus::REDIRECT, "REDIRECT"),
            status.invalid_field_name(),
        ];
        let mut named = false;
        for name in names.into_iter().flatten() {
            f.write_str(if named { "+" } else { "" })?;
            f.write_str(name)?;
            named = true;
        }
        if named {
            write!(f, " ({status})")
        } else {
            status.fmt(f)
        }
    }
}

be_newtype! {
    /// An attribute id; its meaning depends on the class.
    AttributeId(u16, 2), "0x{:04x}"
}

impl AttributeId {
    /// ClassPortInfo, of every class but subnet management.
    pub const CLASS_PORT_INFO: Self = Self::new(0x0001);
    /// Notice.
    pub const NOTICE: Self = Self::new(0x0002);
    /// InformInfo.
    pub const INFORM_INFO: Self = Self::new(0x0003);
}

be_newtype! {
    /// An attribute modifier; its meaning depends on the attribute.
    AttributeModifier(u32, 4), "0x{:08x}"
}

/// The header that all MADs share (IBA 13.4.2). 24 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct MadHeader {
    /// Version of this header: 1.
    pub base_version: u8,
    /// Management class.
    pub mgmt_class: MgmtClass,
    /// Version of the class.
    pub class_version: u8,
    /// Method.
    pub method: Method,
    /// Status; in a directed-route SMP the top bit is the direction.
    pub status: MadStatus,
    /// Class specific; in a directed-route SMP the hop pointer and hop count.
    pub class_specific: [u8; 2],
    /// Transaction id.
    pub tid: Tid,
    /// Attribute id.
    pub attribute_id: AttributeId,
    /// Reserved.
    pub reserved: [u8; 2],
    /// Attribute modifier.
    pub attribute_modifier: AttributeModifier,
}

const _: () = assert!(size_of::<MadHeader>() == 24 && align_of::<MadHeader>() == 1);

/// The base version of every MAD.
pub const BASE_VERSION: u8 = 1;

impl MadHeader {
    /// A header of the class's supported version; everything not named is zero.
    #[must_use]
    pub const fn new(mgmt_class: MgmtClass, method: Method, attribute_id: AttributeId) -> Self {
        Self {
            base_version: BASE_VERSION,
            mgmt_class,
            class_version: mgmt_class.supported_version(),
            method,
            status: MadStatus::OK,
            class_specific: [0; 2],
            tid: Tid::new(0),
            attribute_id,
            reserved: [0; 2],
            attribute_modifier: AttributeModifier::new(0),
        }
    }
}

/// A whole MAD: the header and 232 bytes that belong to its class.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Mad {
    /// The common header.
    pub header: MadHeader,
    /// Everything behind it. Class layouts view it through [`Mad::view`].
    pub data: [u8; MAD_SIZE - 24],
}

const _: () = assert!(size_of::<Mad>() == MAD_SIZE && align_of::<Mad>() == 1);

impl Mad {
    /// A MAD of zeros under the given header.
    #[must_use]
    pub const fn new(header: MadHeader) -> Self {
        Self {
            header,
            data: [0; MAD_SIZE - 24],
        }
    }

    /// Copies a MAD out of a buffer of exactly 256 bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok()
    }

    /// The MAD as a 256-byte layout of its class.
    #[must_use]
    pub fn view<T: MadLayout>(&self) -> &T {
        const { assert!(size_of::<T>() == MAD_SIZE) };
        match T::ref_from_bytes(self.as_bytes()) {
            Ok(layout) => layout,
            Err(_) => unreachable!("size and alignment are checked at compile time"),
        }
    }

    /// The MAD as a 256-byte layout of its class, for writing.
    #[must_use]
    pub fn view_mut<T: MadLayout>(&mut self) -> &mut T {
        const { assert!(size_of::<T>() == MAD_SIZE) };
        match T::mut_from_bytes(self.as_mut_bytes()) {
            Ok(layout) => layout,
            Err(_) => unreachable!("size and alignment are checked at compile time"),
        }
    }

    /// The bytes of a 256-byte class layout as a MAD.
    #[must_use]
    pub fn from_layout<T: MadLayout>(layout: &T) -> Self {
        const { assert!(size_of::<T>() == MAD_SIZE) };
        match Self::read_from_bytes(layout.as_bytes()) {
            Ok(mad) => mad,
            Err(_) => unreachable!("size and alignment are checked at compile time"),
        }
    }
}

impl Default for Mad {
    fn default() -> Self {
        Self::new(MadHeader::default())
    }
}

impl fmt::Debug for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mad")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

/// A layout of a whole 256-byte MAD of some class, starting with [`MadHeader`].
pub trait MadLayout: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_methods_set_the_top_bit_but_set_is_answered_by_get_resp() {
        assert_eq!(Method::SET.response(), Method::GET_RESP);
        assert_eq!(Method::DELETE.response(), Method::DELETE_RESP);
        assert_eq!(Method::TRAP.response(), Method::TRAP_REPRESS);
        assert_eq!(Method::GET_TRACE_TABLE.response(), Method::GET_TABLE_RESP);
        assert!(!Method::TRAP_REPRESS.is_response());
        assert!(Method::TRAP_REPRESS.is_answer() && !Method::TRAP.is_answer());
    }

    #[test]
    fn header_fields_stand_at_their_offsets() {
        let mut header = MadHeader::new(
            MgmtClass::SUBN_ADM,
            Method::GET_TABLE,
            AttributeId::new(0x35),
        );
        header.status = MadStatus::SA_NO_RECORDS;
        header.tid = Tid::new(0x0102_0304_0506_0708);
        header.attribute_modifier = AttributeModifier::new(0x0a0b_0c0d);
        assert_eq!(
            header.as_bytes(),
            [
                1, 3, 2, 0x12, 3, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x35, 0, 0, 0xa, 0xb, 0xc,
                0xd
            ]
        );
    }

    #[test]
    fn a_status_is_displayed_by_the_names_of_its_class() {
        use std::string::ToString;
        let (sa, pm) = (MgmtClass::SUBN_ADM, MgmtClass::PERF);
        for (status, class, shown) in [
            (0x0000, sa, "OK (0x0000)"),
            (0x0100, sa, "NO_RESOURCES (0x0100)"),
            (0x0200, sa, "REQ_INVALID (0x0200)"),
            (0x0300, sa, "NO_RECORDS (0x0300)"),
            (0x0400, sa, "TOO_MANY_RECORDS (0x0400)"),
            (0x0500, sa, "REQ_INVALID_GID (0x0500)"),
            (0x0600, sa, "REQ_INSUFFICIENT_COMPONENTS (0x0600)"),
            (0x0700, sa, "REQ_DENIED (0x0700)"),
            (0x0800, sa, "PRIO_SUGGESTED (0x0800)"),
            (0x0301, sa, "NO_RECORDS+BUSY (0x0301)"),
            (0x7f00, sa, "0x7f00"),
            (0x0300, pm, "0x0300"),
            (0x0001, pm, "BUSY (0x0001)"),
            (0x0002, pm, "REDIRECT (0x0002)"),
            (0x0004, pm, "BAD_VERSION (0x0004)"),
            (0x0008, pm, "UNSUPPORTED_METHOD (0x0008)"),
            (0x000c, pm, "UNSUPPORTED_METHOD_ATTRIBUTE (0x000c)"),
            (0x001c, pm, "INVALID_FIELD (0x001c)"),
            (0x0010, pm, "0x0010"),
        ] {
            assert_eq!(MadStatus::new(status).of(class).to_string(), shown);
        }
    }

    #[test]
    fn a_mad_is_exactly_256_bytes() {
        assert!(Mad::from_bytes(&[0; 255]).is_none());
        assert!(Mad::from_bytes(&[0; 257]).is_none());
        assert!(Mad::from_bytes(&[0; 256]).is_some());
    }
}
