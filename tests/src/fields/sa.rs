//! The fields of the layouts of subnet administration.

use ib_wire::sa::{
    GuidInfoRecord, InformInfoRecord, LftRecord, LinkRecord, McMemberRecord, MftRecord,
    MultiPathRecord, NodeRecord, PKeyTableRecord, PathRecord, PortInfoRecord, SaMad, ServiceRecord,
    SlToVlRecord, SmInfoRecord, SwitchInfoRecord, VlArbRecord,
};

fields! {
    McMemberRecord {
        fields: mgid, port_gid, qkey, mlid, traffic_class, pkey, reserved, pad;
        bits: mtu_selector/set_mtu_selector, mtu_value/set_mtu_value,
            rate_selector/set_rate_selector, rate_value/set_rate_value,
            packet_life_time_selector/set_packet_life_time_selector,
            packet_life_time_value/set_packet_life_time_value, sl/set_sl,
            flow_label/set_flow_label, hop_limit/set_hop_limit, scope/set_scope,
            join_state/set_join_state, proxy_join/set_proxy_join;
        reserved: proxy & 0x7f;
    }
    SaMad {
        fields: header, rmpp, sm_key, attribute_offset, reserved, component_mask, data;
    }
    PathRecord {
        fields: service_id, dgid, sgid, dlid, slid, traffic_class, pkey, preference, reserved;
        bits: raw_traffic/set_raw_traffic, flow_label/set_flow_label, hop_limit/set_hop_limit,
            reversible/set_reversible, numb_path/set_numb_path, qos_class/set_qos_class, sl/set_sl,
            mtu_selector/set_mtu_selector, mtu_value/set_mtu_value,
            rate_selector/set_rate_selector, rate_value/set_rate_value,
            packet_life_time_selector/set_packet_life_time_selector,
            packet_life_time_value/set_packet_life_time_value;
        reserved: raw_flow_hop & 0x70000000;
    }
    MultiPathRecord {
        fields: traffic_class, pkey, service_id_high, sgid_count, dgid_count, service_id_low, gids;
        bits: raw_traffic/set_raw_traffic, flow_label/set_flow_label, hop_limit/set_hop_limit,
            reversible/set_reversible, numb_path/set_numb_path, qos_class/set_qos_class, sl/set_sl,
            mtu_selector/set_mtu_selector, mtu_value/set_mtu_value,
            rate_selector/set_rate_selector, rate_value/set_rate_value,
            packet_life_time_selector/set_packet_life_time_selector,
            packet_life_time_value/set_packet_life_time_value,
            independence_selector/set_independence_selector;
        reserved: raw_flow_hop & 0x70000000, independence & 0x3f;
    }
    ServiceRecord {
        fields: service_id, service_gid, service_pkey, reserved, service_lease, service_key,
            service_name, service_data8, service_data16, service_data32, service_data64;
    }
    NodeRecord {
        fields: lid, reserved, node_info_bytes, description, pad;
    }
    PortInfoRecord {
        fields: end_port_lid, port_num, options, port_info, pad;
    }
    SwitchInfoRecord {
        fields: lid, reserved, switch_info_bytes;
    }
    SmInfoRecord {
        fields: lid, reserved, sm_info_bytes, pad;
    }
    InformInfoRecord {
        fields: subscriber_gid, enumeration, reserved, inform_info, pad;
    }
    LinkRecord {
        fields: from_lid, from_port, to_port, to_lid, pad;
    }
    GuidInfoRecord {
        fields: lid, block, reserved1, reserved2, guids;
    }
    PKeyTableRecord {
        fields: lid, block, port_num, reserved, pkeys;
    }
    SlToVlRecord {
        fields: lid, in_port, out_port, reserved, table;
    }
    VlArbRecord {
        fields: lid, out_port, block, reserved, table;
    }
    LftRecord {
        fields: lid, block, reserved, ports;
    }
    MftRecord {
        fields: lid, reserved, port_masks;
        bits: position/set_position, block/set_block;
        reserved: position_and_block & 0xe00;
    }
}
