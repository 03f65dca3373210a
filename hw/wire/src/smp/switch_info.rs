//! SwitchInfo (IBA 14.2.5.4).

use zerocopy::network_endian::U16;

use crate::{Lid, PortNum};

layout! {
    /// What a switch can do and how it is set up (IBA 14.2.5.4).
    SwitchInfo, 64 {
        /// Entries in the linear forwarding table, from LID 0.
        pub linear_fdb_cap: U16,
        /// Entries in the random forwarding table.
        pub random_fdb_cap: U16,
        /// Entries in the multicast forwarding table, from LID 0xC000.
        pub multicast_fdb_cap: U16,
        /// The last LID that the linear forwarding table forwards.
        pub linear_fdb_top: Lid,
        /// The port for unicast LIDs outside the random forwarding table.
        pub default_port: PortNum,
        /// The port for multicast LIDs outside the table, for packets from other ports.
        pub default_multicast_primary_port: PortNum,
        /// The port for multicast LIDs outside the table, for packets from the primary port.
        pub default_multicast_not_primary_port: PortNum,
        /// LifeTimeValue (5), PortStateChange (1), OptimizedSLtoVLMappingProgramming (2).
        pub life_time_state_change: u8,
        /// LIDs per port of the random forwarding table.
        pub lids_per_port: U16,
        /// Entries in the P_Key table of each external port.
        pub partition_enforcement_cap: U16,
        /// InboundEnforcementCap, OutboundEnforcementCap, FilterRawInboundCap,
        /// FilterRawOutboundCap, EnhancedPort0 (1 each), reserved (3).
        pub enforcement: u8,
        /// Reserved.
        pub reserved1: u8,
        /// The last multicast LID that the multicast forwarding table forwards.
        pub multicast_fdb_top: Lid,
        /// Reserved.
        pub reserved2: [u8; 44],
    }
}

impl SwitchInfo {
    bit_fields! {
        /// How long a packet may stay in the switch: 4.096 µs × 2^value; above 19 without limit.
        life_time_value, set_life_time_value: u8 = life_time_state_change >> 3, 5;
        /// Whether a port changed its state since the SM last wrote 1 here.
        port_state_change, set_port_state_change: bool = life_time_state_change >> 2, 1;
        /// Which wildcards SLtoVLMappingTable's modifier may use.
        optimized_sl_to_vl, set_optimized_sl_to_vl: u8 = life_time_state_change >> 0, 2;
        /// Whether external ports can check P_Keys of packets that they receive.
        inbound_enforcement_cap, set_inbound_enforcement_cap: bool = enforcement >> 7, 1;
        /// Whether external ports can check P_Keys of packets that they send.
        outbound_enforcement_cap, set_outbound_enforcement_cap: bool = enforcement >> 6, 1;
        /// Whether external ports can drop raw packets that they receive.
        filter_raw_inbound_cap, set_filter_raw_inbound_cap: bool = enforcement >> 5, 1;
        /// Whether external ports can drop raw packets that they send.
        filter_raw_outbound_cap, set_filter_raw_outbound_cap: bool = enforcement >> 4, 1;
        /// Whether port 0 is an enhanced one, a full CA port.
        enhanced_port0, set_enhanced_port0: bool = enforcement >> 3, 1;
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn switch_info_fields_stand_at_their_offsets() {
        assert_eq!(offset_of!(SwitchInfo, life_time_state_change), 11);
        assert_eq!(offset_of!(SwitchInfo, partition_enforcement_cap), 14);
        assert_eq!(offset_of!(SwitchInfo, multicast_fdb_top), 18);
    }
}
