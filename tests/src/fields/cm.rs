//! The fields of the layouts of communication management.

use ib_wire::cm::{
    CmApr, CmDrep, CmDreq, CmLap, CmMra, CmPath, CmRej, CmRep, CmReq, CmRtu, CmSidrRep, CmSidrReq,
};

fields! {
    CmPath {
        fields: local_lid, remote_lid, local_gid, remote_gid, traffic_class, hop_limit;
        bits: flow_label/set_flow_label, rate/set_rate, sl/set_sl, subnet_local/set_subnet_local,
            local_ack_timeout/set_local_ack_timeout, sap_supported/set_sap_supported;
        reserved: flow_label_and_rate & 0xfc0, sl_and_scope & 0x7, ack_timeout & 0x3;
    }
    CmReq {
        fields: header, local_comm_id, reserved1, vendor_id, service_id, local_ca_guid, reserved2,
            local_qkey, local_qpn, responder_resources, local_eecn, initiator_depth, remote_eecn,
            starting_psn, pkey, primary, alternate, private_data;
        bits: remote_cm_response_timeout/set_remote_cm_response_timeout, transport/set_transport,
            end_to_end_flow_control/set_end_to_end_flow_control,
            local_cm_response_timeout/set_local_cm_response_timeout, retry_count/set_retry_count,
            mtu/set_mtu, rdc_exists/set_rdc_exists, rnr_retry_count/set_rnr_retry_count,
            max_cm_retries/set_max_cm_retries, srq/set_srq,
            extended_transport/set_extended_transport;
    }
    CmRep {
        fields: header, local_comm_id, remote_comm_id, local_qkey, local_qpn, vendor_id_high,
            local_eecn, vendor_id_middle, starting_psn, vendor_id_low, responder_resources,
            initiator_depth, local_ca_guid, private_data;
        bits: target_ack_delay/set_target_ack_delay, failover_accepted/set_failover_accepted,
            end_to_end_flow_control/set_end_to_end_flow_control,
            rnr_retry_count/set_rnr_retry_count, srq/set_srq;
        reserved: rnr_and_srq & 0xf;
    }
    CmRtu {
        fields: header, local_comm_id, remote_comm_id, private_data;
    }
    CmDreq {
        fields: header, local_comm_id, remote_comm_id, remote_qpn, reserved, private_data;
    }
    CmDrep {
        fields: header, local_comm_id, remote_comm_id, private_data;
    }
    CmLap {
        fields: header, local_comm_id, remote_comm_id, reserved1, remote_qpn, reserved2,
            alternate_local_lid, alternate_remote_lid, alternate_local_gid, alternate_remote_gid,
            hop_limit, private_data;
        bits: remote_cm_response_timeout/set_remote_cm_response_timeout, flow_label/set_flow_label,
            traffic_class/set_traffic_class, rate/set_rate, sl/set_sl,
            subnet_local/set_subnet_local, local_ack_timeout/set_local_ack_timeout;
        reserved: timeout & 0x7, flow_label_and_class & 0xf00, packet_rate & 0xc0,
            sl_and_scope & 0x7, ack_timeout & 0x7;
    }
    CmApr {
        fields: header, local_comm_id, remote_comm_id, info_length, ap_status, reserved, info,
            private_data;
    }
    CmMra {
        fields: header, local_comm_id, remote_comm_id, private_data;
        bits: message_mraed/set_message_mraed, service_timeout/set_service_timeout;
        reserved: message & 0x3f, timeout & 0x7;
    }
    CmRej {
        fields: header, local_comm_id, remote_comm_id, reason, ari, private_data;
        bits: message_rejected/set_message_rejected, ari_length/set_ari_length;
        reserved: message & 0x3f, info_length & 0x1;
    }
    CmSidrReq {
        fields: header, request_id, pkey, reserved, service_id, private_data;
    }
    CmSidrRep {
        fields: header, request_id, status, info_length, vendor_id_high, qpn, vendor_id_low,
            service_id, qkey, info, private_data;
    }
}
