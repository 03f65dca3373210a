//! The fields of the layouts of subnet management.

use ib_wire::smp::{
    DirectedRouteSmp, GuidInfo, LedInfo, LidRoutedSmp, LinearForwardingTable, MlnxExtPortInfo,
    MulticastForwardingTable, NodeDescription, NodeInfo, PKeyTable, PortInfo, SlToVlMappingTable,
    SmInfo, SwitchInfo, VlArbitrationEntry, VlArbitrationTable,
};

fields! {
    LidRoutedSmp {
        fields: header, mkey, reserved1, data, reserved2;
    }
    DirectedRouteSmp {
        fields: header, mkey, dr_slid, dr_dlid, reserved, data, initial_path, return_path;
    }
    NodeDescription {
        fields: text;
    }
    NodeInfo {
        fields: base_version, class_version, node_type, num_ports, system_image_guid, node_guid,
            port_guid, partition_cap, device_id, revision, local_port, vendor_id, reserved;
    }
    SwitchInfo {
        fields: linear_fdb_cap, random_fdb_cap, multicast_fdb_cap, linear_fdb_top, default_port,
            default_multicast_primary_port, default_multicast_not_primary_port, lids_per_port,
            partition_enforcement_cap, reserved1, multicast_fdb_top, reserved2;
        bits: life_time_value/set_life_time_value, port_state_change/set_port_state_change,
            optimized_sl_to_vl/set_optimized_sl_to_vl,
            inbound_enforcement_cap/set_inbound_enforcement_cap,
            outbound_enforcement_cap/set_outbound_enforcement_cap,
            filter_raw_inbound_cap/set_filter_raw_inbound_cap,
            filter_raw_outbound_cap/set_filter_raw_outbound_cap,
            enhanced_port0/set_enhanced_port0;
        reserved: enforcement & 0x7;
    }
    PortInfo {
        fields: mkey, gid_prefix, lid, master_sm_lid, capability_mask, diag_code,
            mkey_lease_period, local_port, link_width_enabled, link_width_supported,
            link_width_active, vl_high_limit, vl_arbitration_high_cap, vl_arbitration_low_cap,
            mkey_violations, pkey_violations, qkey_violations, guid_cap, max_credit_hint,
            capability_mask2;
        bits: link_speed_supported/set_link_speed_supported, port_state/set_port_state,
            phys_state/set_phys_state, link_down_default/set_link_down_default,
            mkey_protect/set_mkey_protect, lmc/set_lmc, link_speed_active/set_link_speed_active,
            link_speed_enabled/set_link_speed_enabled, neighbor_mtu/set_neighbor_mtu,
            master_sm_sl/set_master_sm_sl, vl_cap/set_vl_cap, init_type/set_init_type,
            init_type_reply/set_init_type_reply, mtu_cap/set_mtu_cap,
            vl_stall_count/set_vl_stall_count, hoq_life/set_hoq_life,
            operational_vls/set_operational_vls,
            partition_enforcement_inbound/set_partition_enforcement_inbound,
            partition_enforcement_outbound/set_partition_enforcement_outbound,
            filter_raw_inbound/set_filter_raw_inbound, filter_raw_outbound/set_filter_raw_outbound,
            client_reregister/set_client_reregister,
            multicast_pkey_trap_suppression/set_multicast_pkey_trap_suppression,
            subnet_timeout/set_subnet_timeout, resp_time_value/set_resp_time_value,
            local_phy_errors/set_local_phy_errors, overrun_errors/set_overrun_errors,
            link_round_trip_latency/set_link_round_trip_latency,
            link_speed_ext_active/set_link_speed_ext_active,
            link_speed_ext_supported/set_link_speed_ext_supported,
            link_speed_ext_enabled/set_link_speed_ext_enabled;
        reserved: mkey_protect_lmc & 0x38, resp_time & 0xe0, round_trip_latency & 0xff000000,
            speed_ext_enabled & 0xe0;
    }
    GuidInfo {
        fields: guids;
    }
    PKeyTable {
        fields: pkeys;
    }
    SlToVlMappingTable {
        fields: pairs, reserved;
    }
    VlArbitrationEntry {
        fields: weight;
        bits: vl/set_vl;
        reserved: reserved_vl & 0xf0;
    }
    VlArbitrationTable {
        fields: entries;
    }
    LinearForwardingTable {
        fields: ports;
    }
    MulticastForwardingTable {
        fields: masks;
    }
    SmInfo {
        fields: guid, sm_key, act_count, reserved;
        bits: priority/set_priority, state/set_state;
    }
    LedInfo {
        fields: reserved;
        bits: led_on/set_led_on;
        reserved: led_mask & 0x7fffffff;
    }
    MlnxExtPortInfo {
        fields: reserved1, state_change_enable, reserved2, link_speed_supported, reserved3,
            link_speed_enabled, reserved4, link_speed_active, reserved5;
    }
}
