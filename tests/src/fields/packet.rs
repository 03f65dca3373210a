//! The fields of the layouts of packet headers.

use ib_wire::packet::{
    Aeth, AtomicAckEth, AtomicEth, AtomicMasks, Bth, Deth, Feth, Grh, Ieth, ImmDt, Lrh, Rdeth,
    Reth, Rwh, XrcEth,
};

fields! {
    Lrh {
        fields: dlid, slid;
        bits: vl/set_vl, link_version/set_link_version, sl/set_sl, lnh/set_lnh,
            length_words/set_length_words;
        reserved: sl_lnh & 0xc, reserved_length & 0xf800;
    }
    Grh {
        fields: payload_length, next_header, hop_limit, sgid, dgid;
        bits: ip_version/set_ip_version, traffic_class/set_traffic_class, flow_label/set_flow_label;
    }
    Rwh {
        fields: reserved, ethertype;
    }
    Bth {
        fields: opcode, pkey, dest_qp, psn;
        bits: solicited/set_solicited, migrated/set_migrated, pad_count/set_pad_count,
            transport_version/set_transport_version, fecn/set_fecn, becn/set_becn,
            ack_request/set_ack_request;
        reserved: congestion_reserved & 0x3f, ack_reserved & 0x7f;
    }
    Rdeth {
        fields: reserved, ee_context;
    }
    Deth {
        fields: qkey, reserved, src_qp;
    }
    XrcEth {
        fields: reserved, srq;
    }
    Feth {
        bits: placement/set_placement, selectivity/set_selectivity;
        reserved: bits & 0xffff_ffc0;
    }
    Reth {
        fields: virtual_address, rkey, dma_length;
    }
    AtomicEth {
        fields: virtual_address, rkey, swap_add, compare;
    }
    AtomicMasks {
        fields: swap_mask, compare_mask;
    }
    Aeth {
        fields: syndrome_byte, msn;
    }
    AtomicAckEth {
        fields: original;
    }
    ImmDt {
        fields: data;
    }
    Ieth {
        fields: rkey;
    }
}
