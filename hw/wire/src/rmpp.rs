//! The reliable multi-packet protocol's header and its arithmetic (IBA 13.6).
//!
//! RMPP carries a payload in segments: each a MAD whose class-specific header repeats and whose
//! data area holds the next piece. Segments are counted from 1.

use zerocopy::network_endian::U32;

use crate::mad::MadHeader;

/// The version of RMPP in every header (IBA 13.6.2.1).
pub const RMPP_VERSION: u8 = 1;

open_enum! {
    /// What an RMPP packet is (IBA 13.6.2.1, RMPPType).
    RmppType(u8) {
        /// Not RMPP: the header does not apply.
        NONE = 0,
        /// A segment of data.
        DATA = 1,
        /// An acknowledgement that opens the window further.
        ACK = 2,
        /// The receiver or sender ran out of resources; the transfer ends.
        STOP = 3,
        /// The transfer ends because of a protocol error.
        ABORT = 4,
    }
}

open_enum! {
    /// Why a transfer ended (IBA 13.6.2.1, RMPPStatus).
    RmppStatus(u8) {
        /// No error.
        NORMAL = 0,
        /// STOP: resources exhausted.
        RESOURCES_EXHAUSTED = 1,
        /// ABORT: the whole transfer took too long.
        TOTAL_TIME_TOO_LONG = 118,
        /// ABORT: last segment's PayloadLength is inconsistent with the count of segments.
        INCONSISTENT_LAST_AND_LENGTH = 119,
        /// ABORT: the First flag does not agree with the segment number.
        INCONSISTENT_FIRST_AND_SEGMENT = 120,
        /// ABORT: illegal RMPPType.
        BAD_TYPE = 121,
        /// ABORT: NewWindowLast is below SegmentNumber.
        NEW_WINDOW_TOO_SMALL = 122,
        /// ABORT: SegmentNumber is beyond the window.
        SEGMENT_TOO_BIG = 123,
        /// ABORT: illegal status code.
        ILLEGAL_STATUS = 124,
        /// ABORT: RMPP version not supported.
        UNSUPPORTED_VERSION = 125,
        /// ABORT: too many retries.
        TOO_MANY_RETRIES = 126,
        /// ABORT: unspecified; from here on codes are the vendor's.
        UNSPECIFIED = 127,
    }
}

/// Bits of the RMPPFlags field (IBA 13.6.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RmppFlags(u8);

impl RmppFlags {
    /// RMPP is in use in this MAD.
    pub const ACTIVE: Self = Self(1);
    /// The first segment.
    pub const FIRST: Self = Self(2);
    /// The last segment.
    pub const LAST: Self = Self(4);

    /// Makes flags from the field's three bits.
    #[must_use]
    pub const fn from_low_bits(bits: u8) -> Self {
        Self(bits & 7)
    }

    /// The field's three bits.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl_bits! { RmppFlags, u8, RmppFlags::from_low_bits, RmppFlags::get; }

layout! {
    /// The RMPP header (IBA 13.6.2.1), at byte 24 of a MAD whose class uses RMPP. 12 bytes.
    RmppHeader, 12 {
        /// RMPPVersion: [`RMPP_VERSION`] when the Active flag is set.
        pub version: u8,
        /// RMPPType.
        pub rmpp_type: RmppType,
        /// RRespTime in the upper five bits, RMPPFlags in the lower three.
        pub resp_time_and_flags: u8,
        /// RMPPStatus.
        pub status: RmppStatus,
        /// Data1: the segment number (DATA), or the last segment received in order (ACK).
        pub segment_number: U32,
        /// Data2: PayloadLength (DATA), or NewWindowLast (ACK).
        pub data2: U32,
    }
}

impl RmppHeader {
    /// RRespTime when the sender of an ACK or DATA does not give one (IBA 13.6.2.1).
    pub const NO_RESP_TIME: u8 = 0x1f;

    bit_fields! {
        /// RRespTime: the sender's response time as 4.096 µs × 2^value; 31 for "none given".
        resp_time, set_resp_time: u8 = resp_time_and_flags >> 3, 5;
        /// RMPPFlags.
        flags, set_flags: RmppFlags = resp_time_and_flags >> 0, 3;
    }

    /// Whether the MAD takes part in RMPP.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.flags().contains(RmppFlags::ACTIVE)
    }

    /// Whether the header asks for RMPP but nobody segmented the message: the Active flag, and neither
    /// version nor type. So programs hand messages to umad, and a link that carries umad's buffers as
    /// they are (the ibsim protocol) delivers them. Such a MAD is a whole message.
    #[must_use]
    pub fn is_unsegmented(&self) -> bool {
        self.is_active() && self.version == 0 && self.rmpp_type.get() == 0
    }

    /// A DATA header.
    #[must_use]
    pub fn data(segment_number: u32, payload_length: u32, flags: RmppFlags) -> Self {
        Self::packet(RmppType::DATA, segment_number, payload_length, flags)
    }

    /// An ACK header: everything up to `segment_number` arrived, and the sender may send up to
    /// `new_window_last`.
    #[must_use]
    pub fn ack(segment_number: u32, new_window_last: u32) -> Self {
        Self::packet(
            RmppType::ACK,
            segment_number,
            new_window_last,
            RmppFlags::ACTIVE,
        )
    }

    /// A STOP or ABORT header.
    #[must_use]
    pub fn end(rmpp_type: RmppType, status: RmppStatus) -> Self {
        Self {
            status,
            ..Self::packet(rmpp_type, 0, 0, RmppFlags::ACTIVE)
        }
    }

    fn packet(rmpp_type: RmppType, segment_number: u32, data2: u32, flags: RmppFlags) -> Self {
        let mut header = Self {
            version: RMPP_VERSION,
            rmpp_type,
            segment_number: U32::new(segment_number),
            data2: U32::new(data2),
            ..Self::default()
        };
        header.set_resp_time(Self::NO_RESP_TIME);
        header.set_flags(flags.union(RmppFlags::ACTIVE));
        header
    }
}

layout! {
    /// Any MAD that carries an RMPP header, whatever its class puts behind it.
    mad RmppMad {
        /// The common header.
        pub header: MadHeader,
        /// The RMPP header.
        pub rmpp: RmppHeader,
        /// The class's own header and data: what PayloadLength counts.
        pub payload: [u8; 220],
    }
}

layout! {
    /// A MAD of a vendor class with OUI, 0x30 to 0x4F (IBA 16.5.3).
    mad VendorOuiMad {
        /// The common header.
        pub header: MadHeader,
        /// The RMPP header.
        pub rmpp: RmppHeader,
        /// Reserved.
        pub reserved: u8,
        /// The vendor's OUI.
        pub oui: [u8; 3],
        /// The vendor's data; a segment of it under RMPP.
        pub data: [u8; 216],
    }
}

/// How a class lays a payload over RMPP segments (IBA 13.6.2.1, PayloadLength).
///
/// PayloadLength counts the class's own header of every segment besides the data. In the first
/// segment it is the length of the whole transfer, in the last the length of that segment alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// Bytes of class header that each segment repeats between the RMPP header and the data.
    pub class_header: usize,
    /// Bytes of data in each segment.
    pub data: usize,
}

impl SegmentLayout {
    /// Subnet administration: SM_Key, AttributeOffset and ComponentMask, then 200 bytes.
    pub const SA: Self = Self {
        class_header: 20,
        data: 200,
    };
    /// Vendor classes with OUI: a reserved byte and the OUI, then 216 bytes.
    pub const VENDOR_OUI: Self = Self {
        class_header: 4,
        data: 216,
    };

    /// Segments that a payload takes; an empty one still takes one.
    #[must_use]
    pub const fn segments(self, payload: usize) -> usize {
        if payload == 0 {
            1
        } else {
            payload.div_ceil(self.data)
        }
    }

    /// The bytes of the payload that segment `number` (from 1) carries: start and end.
    #[must_use]
    pub const fn range(self, payload: usize, number: usize) -> (usize, usize) {
        let start = number.saturating_sub(1).saturating_mul(self.data);
        let end = start.saturating_add(self.data);
        (
            if start < payload { start } else { payload },
            if end < payload { end } else { payload },
        )
    }

    /// PayloadLength of the first segment: class headers and data of the whole transfer.
    #[must_use]
    pub const fn first_payload_length(self, payload: usize) -> usize {
        self.segments(payload)
            .saturating_mul(self.class_header)
            .saturating_add(payload)
    }

    /// PayloadLength of the last segment: its class header and data.
    #[must_use]
    pub const fn last_payload_length(self, payload: usize) -> usize {
        let (start, end) = self.range(payload, self.segments(payload));
        self.class_header + (end - start)
    }

    /// Data bytes in the last segment whose PayloadLength is `length`; `None` if it cannot be.
    #[must_use]
    pub const fn data_in_last(self, length: usize) -> Option<usize> {
        if length < self.class_header || length > self.class_header + self.data {
            None
        } else {
            Some(length - self.class_header)
        }
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn the_last_segment_of_a_table_is_encoded_byte_for_byte() {
        let header = RmppHeader::data(3, 0x5c, RmppFlags::LAST);
        assert_eq!(
            header.as_bytes(),
            [1, 1, 0xfd, 0, 0, 0, 0, 3, 0, 0, 0, 0x5c]
        );
        assert_eq!(header.resp_time(), RmppHeader::NO_RESP_TIME);
        assert!(header.is_active());
    }

    #[test]
    fn an_ack_opens_the_window_and_an_abort_names_its_reason() {
        assert_eq!(
            RmppHeader::ack(1, 65).as_bytes(),
            [1, 2, 0xf9, 0, 0, 0, 0, 1, 0, 0, 0, 65]
        );
        assert_eq!(
            RmppHeader::end(RmppType::ABORT, RmppStatus::TOO_MANY_RETRIES).as_bytes(),
            [1, 4, 0xf9, 126, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn vendor_fields_stand_at_their_offsets() {
        assert_eq!(offset_of!(VendorOuiMad, rmpp), 24);
        assert_eq!(offset_of!(VendorOuiMad, oui), 37);
        assert_eq!(offset_of!(VendorOuiMad, data), 40);
    }

    #[test]
    fn payload_lengths_of_a_three_segment_sa_table() {
        // Four NodeRecords of 112 bytes: 448 bytes, so 200 + 200 + 48.
        let sa = SegmentLayout::SA;
        assert_eq!(sa.segments(448), 3);
        assert_eq!(sa.first_payload_length(448), 220 * 3 - 152);
        assert_eq!(sa.last_payload_length(448), 68);
        assert_eq!(sa.range(448, 3), (400, 448));
        assert_eq!(sa.data_in_last(68), Some(48));
        assert_eq!(sa.data_in_last(19), None);
        assert_eq!(sa.data_in_last(221), None);
    }

    #[test]
    fn an_empty_payload_takes_one_segment() {
        let sa = SegmentLayout::SA;
        assert_eq!(sa.segments(0), 1);
        assert_eq!(sa.first_payload_length(0), 20);
        assert_eq!(sa.last_payload_length(0), 20);
    }

    proptest! {
        #[test]
        fn segments_cover_the_payload_without_gap(payload in 0_usize..5000, vendor: bool) {
            let layout = if vendor { SegmentLayout::VENDOR_OUI } else { SegmentLayout::SA };
            let mut at = 0;
            for number in 1..=layout.segments(payload) {
                let (start, end) = layout.range(payload, number);
                prop_assert_eq!(start, at);
                at = end;
            }
            prop_assert_eq!(at, payload);
            let last = layout.last_payload_length(payload);
            prop_assert_eq!(
                layout.first_payload_length(payload),
                (layout.segments(payload) - 1) * (layout.class_header + layout.data) + last
            );
        }

        #[test]
        fn time_and_flags_do_not_disturb_each_other(byte: u8, time in 0_u8..32, flags in 0_u8..8) {
            let mut header = RmppHeader { resp_time_and_flags: byte, ..RmppHeader::default() };
            header.set_resp_time(time);
            header.set_flags(RmppFlags::from_low_bits(flags));
            prop_assert_eq!((header.resp_time(), header.flags().get()), (time, flags));
        }
    }
}
