//! Performance management (IBA 16.1): counters of packets, bytes and errors of each port.
//!
//! ```
//! use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
//! use ib_wire::PortNum;
//! use ib_wire::perf::{PerfAttribute, PerfMad, PortCounters};
//!
//! // Clear the count of damaged packets (bit 3) of port 1.
//! let mut mad = Mad::new(MadHeader::new(MgmtClass::PERF, Method::SET, PortCounters::ID));
//! let request: &mut PortCounters = mad.view_mut::<PerfMad>().attribute_mut();
//! request.port_select = PortNum(1);
//! request.counter_select = (1 << 3).into();
//!
//! let mut stored = PortCounters { port_rcv_errors: 9.into(), ..PortCounters::default() };
//! stored.apply_set(mad.view::<PerfMad>().attribute());
//! assert_eq!(stored.port_rcv_errors.get(), 0);
//! ```

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::PortNum;
use crate::mad::{AttributeId, MadHeader};
use crate::notice::ClassPortInfo;

/// Copies those fields whose condition holds.
macro_rules! write_selected {
    ($to:expr, $from:expr, $($condition:expr => $field:ident,)*) => {
        $(if $condition {
            $to.$field = $from.$field;
        })*
    };
}

/// Bytes of attribute data in a performance management MAD.
pub const PERF_DATA_SIZE: usize = 192;

layout! {
    /// A MAD of the performance management class (IBA 16.1.1, class 0x04).
    mad PerfMad {
        /// The common header.
        pub header: MadHeader,
        /// Reserved.
        pub reserved: [u8; 40],
        /// The attribute; see [`PerfMad::attribute`].
        pub data: [u8; PERF_DATA_SIZE],
    }
}

/// An attribute of the performance management class, of at most 192 bytes.
pub trait PerfAttribute: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {
    /// Its attribute id.
    const ID: AttributeId;
}

impl PerfMad {
    /// The attribute data as an attribute's layout; the id in the header is not looked at.
    #[must_use]
    pub fn attribute<T: PerfAttribute>(&self) -> &T {
        const { assert!(size_of::<T>() <= PERF_DATA_SIZE) };
        match T::ref_from_prefix(&self.data) {
            Ok((attribute, _)) => attribute,
            Err(_) => unreachable!("size and alignment are checked at compile time"),
        }
    }

    /// The attribute data as an attribute's layout, for writing.
    #[must_use]
    pub fn attribute_mut<T: PerfAttribute>(&mut self) -> &mut T {
        const { assert!(size_of::<T>() <= PERF_DATA_SIZE) };
        match T::mut_from_prefix(&mut self.data) {
            Ok((attribute, _)) => attribute,
            Err(_) => unreachable!("size and alignment are checked at compile time"),
        }
    }
}

impl PerfAttribute for ClassPortInfo {
    const ID: AttributeId = AttributeId::CLASS_PORT_INFO;
}
impl PerfAttribute for PortSamplesControl {
    const ID: AttributeId = AttributeId::new(0x0010);
}
impl PerfAttribute for PortSamplesResult {
    const ID: AttributeId = AttributeId::new(0x0011);
}
impl PerfAttribute for PortCounters {
    const ID: AttributeId = AttributeId::new(0x0012);
}
impl PerfAttribute for PortCountersExtended {
    const ID: AttributeId = AttributeId::new(0x001d);
}

/// The port number that selects all ports of a node (with AllPortSelect).
pub const ALL_PORTS: PortNum = PortNum(0xff);

/// Bits of the performance class's ClassPortInfo:CapabilityMask (IBA 16.1.3.1).
pub mod capability {
    /// PortSelect 0xFF counts all ports together.
    pub const ALL_PORT_SELECT: u16 = 1 << 8;
    /// PortCountersExtended with the four multicast and unicast counters.
    pub const EXTENDED_WIDTH: u16 = 1 << 9;
    /// PortCountersExtended without those four.
    pub const EXTENDED_WIDTH_NO_IETF: u16 = 1 << 10;
    /// SamplesOnlyOptionMask is supported.
    pub const SAMPLES_ONLY: u16 = 1 << 11;
    /// PortCounters has PortXmitWait.
    pub const XMIT_WAIT: u16 = 1 << 12;
    /// PortCounters has QP1Dropped.
    pub const QP1_DROPPED: u16 = 1 << 15;
}

/// Bits of the performance class's ClassPortInfo:CapabilityMask2.
pub mod capability2 {
    /// PortCountersExtended has the counters of errors (IsAdditionalPortCountersExtendedSupported).
    pub const ERROR_COUNTERS_EXTENDED: u32 = 1 << 1;
}

layout! {
    /// Controls sampling (IBA 16.1.3.2).
    PortSamplesControl, 80 {
        /// Which operation; 0 unless the vendor defines more.
        pub op_code: u8,
        /// The port.
        pub port_select: PortNum,
        /// The length of a sampling tick.
        pub tick: u8,
        /// Reserved (5), CounterWidth (3).
        pub reserved_width: u8,
        /// Reserved (2), CounterMask0 (3), CounterMasks1to9 (27).
        pub masks0_to_9: U32,
        /// Reserved (1), CounterMasks10to14 (15).
        pub masks10_to_14: U16,
        /// How samples can be started.
        pub sample_mechanisms: u8,
        /// Reserved (6), SampleStatus (2).
        pub reserved_status: u8,
        /// Optional counters that can be sampled.
        pub option_mask: U64,
        /// The vendor's counters that can be sampled.
        pub vendor_mask: U64,
        /// Ticks until the sample starts.
        pub sample_start: U32,
        /// Ticks that the sample lasts.
        pub sample_interval: U32,
        /// The sample's name.
        pub tag: U16,
        /// What each of the counters counts.
        pub counter_select: [U16; 15],
        /// Reserved.
        pub reserved: [u8; 4],
        /// Optional counters that can only be sampled.
        pub samples_only_option_mask: U64,
    }
}

impl PortSamplesControl {
    bit_fields! {
        /// Bits of a counter: 16 plus 4 times this.
        counter_width, set_counter_width: u8 = reserved_width >> 0, 3;
        /// What counter 0 can count.
        counter_mask0, set_counter_mask0: u8 = masks0_to_9 >> 27, 3;
        /// What counters 1 to 9 can count, 3 bits each.
        counter_masks1_to_9, set_counter_masks1_to_9: u32 = masks0_to_9 >> 0, 27;
        /// What counters 10 to 14 can count, 3 bits each.
        counter_masks10_to_14, set_counter_masks10_to_14: u16 = masks10_to_14 >> 0, 15;
        /// 0 done, 1 about to start, 2 running.
        sample_status, set_sample_status: u8 = reserved_status >> 0, 2;
    }
}

layout! {
    /// A finished or running sample (IBA 16.1.3.4).
    PortSamplesResult, 64 {
        /// The sample's name.
        pub tag: U16,
        /// Reserved (14), SampleStatus (2).
        pub reserved_status: U16,
        /// The counters.
        pub counters: [U32; 15],
    }
}

impl PortSamplesResult {
    bit_fields! {
        /// 0 done, 1 about to start, 2 running.
        sample_status, set_sample_status: u8 = reserved_status >> 0, 2;
    }
}

layout! {
    /// A port's basic counters, which stick at their largest value (IBA 16.1.3.5).
    PortCounters, 44 {
        /// Reserved.
        pub reserved: u8,
        /// The port.
        pub port_select: PortNum,
        /// In a Set: the counters to write, SymbolErrorCounter in the lowest bit.
        pub counter_select: U16,
        /// Minor link errors.
        pub symbol_error_counter: U16,
        /// Successful link error recoveries.
        pub link_error_recovery_counter: u8,
        /// Failed link error recoveries.
        pub link_downed_counter: u8,
        /// Damaged packets received.
        pub port_rcv_errors: U16,
        /// Packets received that were marked bad on the way.
        pub port_rcv_remote_physical_errors: U16,
        /// Packets received that the switch could not forward.
        pub port_rcv_switch_relay_errors: U16,
        /// Packets dropped because the port was down or congested.
        pub port_xmit_discards: U16,
        /// Packets not sent because of partition or raw filters.
        pub port_xmit_constraint_errors: u8,
        /// Packets discarded on arrival because of partition or raw filters.
        pub port_rcv_constraint_errors: u8,
        /// In a Set: more counters to write, PortXmitWait in the lowest bit.
        pub counter_select2: u8,
        /// LocalLinkIntegrityErrors (4), ExcessiveBufferOverrunErrors (4).
        pub integrity_overrun_errors: u8,
        /// Packets to QP1 dropped for lack of a receive buffer.
        pub qp1_dropped: U16,
        /// Packets on VL15 dropped for lack of a buffer.
        pub vl15_dropped: U16,
        /// Data sent, in units of 4 bytes, without link overhead.
        pub port_xmit_data: U32,
        /// Data received, in units of 4 bytes, without link overhead.
        pub port_rcv_data: U32,
        /// Packets sent.
        pub port_xmit_pkts: U32,
        /// Packets received.
        pub port_rcv_pkts: U32,
        /// Ticks during which data waited for the link.
        pub port_xmit_wait: U32,
    }
}

impl PortCounters {
    bit_fields! {
        /// Times the threshold of local physical errors was exceeded.
        local_link_integrity_errors, set_local_link_integrity_errors: u8 = integrity_overrun_errors >> 4, 4;
        /// Times buffers overran in consecutive flow control periods.
        excessive_buffer_overrun_errors, set_excessive_buffer_overrun_errors: u8 = integrity_overrun_errors >> 0, 4;
    }

    /// Does what a Set asks of the stored counters: those that `request` selects take its values
    /// (zero clears them), the others stay (IBA 16.1.3.5).
    pub fn apply_set(&mut self, request: &Self) {
        let select = request.counter_select.get();
        let select2 = request.counter_select2;
        let first = |bit: u32| select >> bit & 1 != 0;
        let second = |bit: u32| select2 >> bit & 1 != 0;
        write_selected! { self, request,
            first(0) => symbol_error_counter,
            first(1) => link_error_recovery_counter,
            first(2) => link_downed_counter,
            first(3) => port_rcv_errors,
            first(4) => port_rcv_remote_physical_errors,
            first(5) => port_rcv_switch_relay_errors,
            first(6) => port_xmit_discards,
            first(7) => port_xmit_constraint_errors,
            first(8) => port_rcv_constraint_errors,
            first(11) => vl15_dropped,
            first(12) => port_xmit_data,
            first(13) => port_rcv_data,
            first(14) => port_xmit_pkts,
            first(15) => port_rcv_pkts,
            second(0) => port_xmit_wait,
            second(1) => qp1_dropped,
        }
        if first(9) {
            self.set_local_link_integrity_errors(request.local_link_integrity_errors());
        }
        if first(10) {
            self.set_excessive_buffer_overrun_errors(request.excessive_buffer_overrun_errors());
        }
    }
}

layout! {
    /// A port's counters of 64 bits (IBA 16.1.4.11).
    PortCountersExtended, 184 {
        /// Reserved.
        pub reserved: u8,
        /// The port.
        pub port_select: PortNum,
        /// In a Set: the counters to write, PortXmitData in the lowest bit.
        pub counter_select: U16,
        /// In a Set: more counters to write, SymbolErrorCounter in the lowest bit.
        pub counter_select2: U32,
        /// Data sent, in units of 4 bytes, without link overhead.
        pub port_xmit_data: U64,
        /// Data received, in units of 4 bytes, without link overhead.
        pub port_rcv_data: U64,
        /// Packets sent.
        pub port_xmit_pkts: U64,
        /// Packets received.
        pub port_rcv_pkts: U64,
        /// Unicast packets sent.
        pub port_unicast_xmit_pkts: U64,
        /// Unicast packets received.
        pub port_unicast_rcv_pkts: U64,
        /// Multicast packets sent.
        pub port_multicast_xmit_pkts: U64,
        /// Multicast packets received.
        pub port_multicast_rcv_pkts: U64,
        /// Minor link errors.
        pub symbol_error_counter: U64,
        /// Successful link error recoveries.
        pub link_error_recovery_counter: U64,
        /// Failed link error recoveries.
        pub link_downed_counter: U64,
        /// Damaged packets received.
        pub port_rcv_errors: U64,
        /// Packets received that were marked bad on the way.
        pub port_rcv_remote_physical_errors: U64,
        /// Packets received that the switch could not forward.
        pub port_rcv_switch_relay_errors: U64,
        /// Packets dropped because the port was down or congested.
        pub port_xmit_discards: U64,
        /// Packets not sent because of partition or raw filters.
        pub port_xmit_constraint_errors: U64,
        /// Packets discarded on arrival because of partition or raw filters.
        pub port_rcv_constraint_errors: U64,
        /// Times the threshold of local physical errors was exceeded.
        pub local_link_integrity_errors: U64,
        /// Times buffers overran in consecutive flow control periods.
        pub excessive_buffer_overrun_errors: U64,
        /// Packets on VL15 dropped for lack of a buffer.
        pub vl15_dropped: U64,
        /// Ticks during which data waited for the link.
        pub port_xmit_wait: U64,
        /// Packets to QP1 dropped for lack of a receive buffer.
        pub qp1_dropped: U64,
    }
}

impl PortCountersExtended {
    /// Does what a Set asks of the stored counters: those that `request` selects take its values
    /// (zero clears them), the others stay (IBA 16.1.4.11).
    pub fn apply_set(&mut self, request: &Self) {
        let select = request.counter_select.get();
        let select2 = request.counter_select2.get();
        let first = |bit: u32| select >> bit & 1 != 0;
        let second = |bit: u32| select2 >> bit & 1 != 0;
        write_selected! { self, request,
            first(0) => port_xmit_data,
            first(1) => port_rcv_data,
            first(2) => port_xmit_pkts,
            first(3) => port_rcv_pkts,
            first(4) => port_unicast_xmit_pkts,
            first(5) => port_unicast_rcv_pkts,
            first(6) => port_multicast_xmit_pkts,
            first(7) => port_multicast_rcv_pkts,
            second(0) => symbol_error_counter,
            second(1) => link_error_recovery_counter,
            second(2) => link_downed_counter,
            second(3) => port_rcv_errors,
            second(4) => port_rcv_remote_physical_errors,
            second(5) => port_rcv_switch_relay_errors,
            second(6) => port_xmit_discards,
            second(7) => port_xmit_constraint_errors,
            second(8) => port_rcv_constraint_errors,
            second(9) => local_link_integrity_errors,
            second(10) => excessive_buffer_overrun_errors,
            second(11) => vl15_dropped,
            second(12) => port_xmit_wait,
            second(13) => qp1_dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn fields_stand_at_their_offsets() {
        assert_eq!(offset_of!(PerfMad, data), 64);
        assert_eq!(offset_of!(PortSamplesControl, option_mask), 12);
        assert_eq!(offset_of!(PortSamplesControl, counter_select), 38);
        assert_eq!(offset_of!(PortSamplesControl, samples_only_option_mask), 72);
        assert_eq!(offset_of!(PortCounters, counter_select2), 18);
        assert_eq!(offset_of!(PortCounters, vl15_dropped), 22);
        assert_eq!(offset_of!(PortCounters, port_xmit_wait), 40);
        assert_eq!(
            offset_of!(PortCountersExtended, port_multicast_rcv_pkts),
            64
        );
        assert_eq!(offset_of!(PortCountersExtended, qp1_dropped), 176);
    }

    #[test]
    fn a_set_writes_the_selected_counters_only() {
        let stored = PortCounters::read_from_bytes(&[0x11; 44]).unwrap();
        for bit in 0..16 {
            let mut counters = stored;
            let request = PortCounters {
                counter_select: U16::new(1 << bit),
                ..PortCounters::default()
            };
            counters.apply_set(&request);
            let cleared = counters.as_bytes().iter().zip(stored.as_bytes());
            let cleared = cleared.filter(|(new, old)| new != old).count();
            let expected = match bit {
                0 | 3..=6 | 11 => 2,
                1 | 2 | 7..=10 => 1,
                _ => 4,
            };
            assert_eq!(cleared, expected, "bit {bit}");
        }
    }

    #[test]
    fn each_bit_of_the_extended_selection_writes_one_counter() {
        let stored = PortCountersExtended::read_from_bytes(&[0x11; 184]).unwrap();
        for bit in 0..32 {
            let select = u16::try_from(bit)
                .ok()
                .and_then(|bit| 1_u16.checked_shl(bit.into()));
            let request = PortCountersExtended {
                counter_select: U16::new(select.unwrap_or(0)),
                ..PortCountersExtended::default()
            };
            let mut counters = stored;
            counters.apply_set(&request);
            assert_eq!(
                changed(&counters, &stored),
                if bit < 8 { 8 } else { 0 },
                "bit {bit}"
            );
            let request = PortCountersExtended {
                counter_select2: U32::new(1 << bit),
                ..PortCountersExtended::default()
            };
            let mut counters = stored;
            counters.apply_set(&request);
            assert_eq!(
                changed(&counters, &stored),
                if bit < 14 { 8 } else { 0 },
                "bit {bit}"
            );
        }
    }

    fn changed(new: &PortCountersExtended, old: &PortCountersExtended) -> usize {
        let pairs = new.as_bytes().iter().zip(old.as_bytes());
        pairs.filter(|(new, old)| new != old).count()
    }

    #[test]
    fn counters_take_the_values_of_a_set() {
        let mut counters = PortCounters::default();
        let mut request = PortCounters {
            counter_select: U16::new(0x0600),
            counter_select2: 3,
            port_xmit_wait: U32::new(7),
            qp1_dropped: U16::new(8),
            ..PortCounters::default()
        };
        request.integrity_overrun_errors = 0x5a;
        counters.apply_set(&request);
        assert_eq!(counters.local_link_integrity_errors(), 5);
        assert_eq!(counters.excessive_buffer_overrun_errors(), 10);
        assert_eq!(
            (counters.port_xmit_wait.get(), counters.qp1_dropped.get()),
            (7, 8)
        );
    }
}
