//! The fields of the layouts of the MAD header and of the general classes.

use ib_wire::devmgt::{DevMgtMad, IoControllerProfile, IoUnitInfo, ServiceEntries, ServiceEntry};
use ib_wire::mad::MadHeader;
use ib_wire::notice::{
    CapabilityDetails, ClassPortInfo, GidDetails, InformInfo, KeyDetails, LinkErrorDetails,
    LinkStateDetails, MKeyDetails, Notice, NoticeReport, SwitchPKeyDetails, SystemImageGuidDetails,
};
use ib_wire::perf::{
    PerfMad, PortCounters, PortCountersExtended, PortSamplesControl, PortSamplesResult,
};
use ib_wire::rmpp::{RmppHeader, RmppMad, VendorOuiMad};

fields! {
    MadHeader {
        fields: base_version, mgmt_class, class_version, method, status, class_specific, tid,
            attribute_id, reserved, attribute_modifier;
    }
    RmppHeader {
        fields: version, rmpp_type, status, segment_number, data2;
        bits: resp_time/set_resp_time, flags/set_flags;
    }
    RmppMad {
        fields: header, rmpp, payload;
    }
    VendorOuiMad {
        fields: header, rmpp, reserved, oui, data;
    }
    ClassPortInfo {
        fields: base_version, class_version, capability_mask, redirect_gid, redirect_lid,
            redirect_pkey, reserved, redirect_qp, redirect_qkey, trap_gid, trap_lid, trap_pkey,
            trap_hop_limit, trap_qp, trap_qkey;
        bits: capability_mask2/set_capability_mask2, resp_time_value/set_resp_time_value,
            redirect_traffic_class/set_redirect_traffic_class, redirect_sl/set_redirect_sl,
            redirect_flow_label/set_redirect_flow_label, trap_traffic_class/set_trap_traffic_class,
            trap_sl/set_trap_sl, trap_flow_label/set_trap_flow_label;
    }
    Notice {
        fields: producer, trap_number, issuer_lid, data_details;
        bits: is_generic/set_is_generic, notice_type/set_notice_type, toggle/set_toggle,
            count/set_count;
    }
    NoticeReport {
        fields: notice, issuer_gid;
    }
    GidDetails {
        fields: reserved1, gid, reserved2;
    }
    LinkStateDetails {
        fields: lid, reserved;
    }
    LinkErrorDetails {
        fields: reserved1, lid, port, reserved2;
    }
    CapabilityDetails {
        fields: reserved1, lid, reserved2, capability_mask, changes, capability_mask2, reserved3;
        bits: other_local_changes/set_other_local_changes;
        reserved: local_changes & 0xfe;
    }
    SystemImageGuidDetails {
        fields: reserved1, lid, reserved2, system_image_guid, reserved3;
    }
    MKeyDetails {
        fields: reserved1, lid, dr_slid, method, reserved2, attribute_id, attribute_modifier, mkey,
            reserved3, dr_return_path;
        bits: dr_notice/set_dr_notice, dr_path_truncated/set_dr_path_truncated,
            dr_hop_count/set_dr_hop_count;
    }
    KeyDetails {
        fields: reserved1, lid1, lid2, key, qp1, reserved2, qp2, gid1, gid2, reserved3;
        bits: sl/set_sl;
        reserved: sl_reserved & 0xf;
    }
    SwitchPKeyDetails {
        fields: data_valid, lid1, lid2, pkey, qp1, reserved1, qp2, gid1, gid2, switch_lid, port,
            reserved2;
        bits: sl/set_sl;
        reserved: sl_reserved & 0xf;
    }
    InformInfo {
        fields: gid, lid_range_begin, lid_range_end, reserved1, is_generic, subscribe, notice_type,
            trap_number, qpn, reserved2, producer;
        bits: resp_time_value/set_resp_time_value;
        reserved: resp_time & 0xe0;
    }
    PerfMad {
        fields: header, reserved, data;
    }
    PortSamplesControl {
        fields: op_code, port_select, tick, sample_mechanisms, option_mask, vendor_mask,
            sample_start, sample_interval, tag, counter_select, reserved,
            samples_only_option_mask;
        bits: counter_width/set_counter_width, counter_mask0/set_counter_mask0,
            counter_masks1_to_9/set_counter_masks1_to_9,
            counter_masks10_to_14/set_counter_masks10_to_14, sample_status/set_sample_status;
        reserved: reserved_width & 0xf8, masks0_to_9 & 0xc0000000, masks10_to_14 & 0x8000,
            reserved_status & 0xfc;
    }
    PortSamplesResult {
        fields: tag, counters;
        bits: sample_status/set_sample_status;
        reserved: reserved_status & 0xfffc;
    }
    PortCounters {
        fields: reserved, port_select, counter_select, symbol_error_counter,
            link_error_recovery_counter, link_downed_counter, port_rcv_errors,
            port_rcv_remote_physical_errors, port_rcv_switch_relay_errors, port_xmit_discards,
            port_xmit_constraint_errors, port_rcv_constraint_errors, counter_select2, qp1_dropped,
            vl15_dropped, port_xmit_data, port_rcv_data, port_xmit_pkts, port_rcv_pkts,
            port_xmit_wait;
        bits: local_link_integrity_errors/set_local_link_integrity_errors,
            excessive_buffer_overrun_errors/set_excessive_buffer_overrun_errors;
    }
    PortCountersExtended {
        fields: reserved, port_select, counter_select, counter_select2, port_xmit_data,
            port_rcv_data, port_xmit_pkts, port_rcv_pkts, port_unicast_xmit_pkts,
            port_unicast_rcv_pkts, port_multicast_xmit_pkts, port_multicast_rcv_pkts,
            symbol_error_counter, link_error_recovery_counter, link_downed_counter,
            port_rcv_errors, port_rcv_remote_physical_errors, port_rcv_switch_relay_errors,
            port_xmit_discards, port_xmit_constraint_errors, port_rcv_constraint_errors,
            local_link_integrity_errors, excessive_buffer_overrun_errors, vl15_dropped,
            port_xmit_wait, qp1_dropped;
    }
    DevMgtMad {
        fields: header, reserved, data;
    }
    IoUnitInfo {
        fields: change_id, max_controllers, controller_list;
        bits: option_rom/set_option_rom, diag_device_id/set_diag_device_id;
        reserved: diag_and_rom & 0x3f;
    }
    IoControllerProfile {
        fields: guid, vendor_id, reserved1, device_id, device_version, reserved2,
            subsystem_vendor_id, reserved3, subsystem_id, io_class, io_subclass, protocol,
            protocol_version, reserved4, send_message_depth, reserved5, rdma_read_depth,
            send_message_size, rdma_transfer_size, operations, reserved6, service_entries,
            reserved7, id_string;
    }
    ServiceEntry {
        fields: name, id;
    }
    ServiceEntries {
        fields: entries;
    }
}
