//! Context, device and port.

use ib_wire::Guid;
use linux_abi::abi_layout;
use zerocopy::native_endian::{U16, U32, U64};

abi_layout! {
    /// Answer of GET_CONTEXT.
    pub GetContextAnswer, 8 {
        /// Descriptor of asynchronous events; the machine puts the channel's number here.
        pub async_fd: U32,
        /// Completion vectors.
        pub num_comp_vectors: U32,
    }
}

abi_layout! {
    /// Answer of QUERY_DEVICE.
    pub QueryDeviceAnswer, 176 {
        /// Firmware version.
        pub fw_ver: U64,
        /// Node GUID.
        pub node_guid: Guid,
        /// System image GUID.
        pub sys_image_guid: Guid,
        /// Bytes of the largest region.
        pub max_mr_size: U64,
        /// Page sizes, one bit each.
        pub page_size_cap: U64,
        /// Vendor.
        pub vendor_id: U32,
        /// Part number.
        pub vendor_part_id: U32,
        /// Hardware revision.
        pub hw_ver: U32,
        /// Queue pairs.
        pub max_qp: U32,
        /// Requests of a work queue.
        pub max_qp_wr: U32,
        /// `IBV_DEVICE_*`.
        pub device_cap_flags: U32,
        /// Entries of a scatter or gather list.
        pub max_sge: U32,
        /// Entries of the scatter list of a read.
        pub max_sge_rd: U32,
        /// Completion queues.
        pub max_cq: U32,
        /// Entries of a completion queue.
        pub max_cqe: U32,
        /// Memory regions.
        pub max_mr: U32,
        /// Protection domains.
        pub max_pd: U32,
        /// Reads and atomics outstanding at a queue pair as responder.
        pub max_qp_rd_atom: U32,
        /// Reserved (EE contexts).
        pub max_ee_rd_atom: U32,
        /// Reads and atomics outstanding at the device as responder.
        pub max_res_rd_atom: U32,
        /// Reads and atomics outstanding at a queue pair as initiator.
        pub max_qp_init_rd_atom: U32,
        /// Reserved (EE contexts).
        pub max_ee_init_rd_atom: U32,
        /// 1: atomic among the queue pairs of the device.
        pub atomic_cap: U32,
        /// Reserved (EE contexts).
        pub max_ee: U32,
        /// Reserved (reliable datagrams).
        pub max_rdd: U32,
        /// Memory windows.
        pub max_mw: U32,
        /// Raw queue pairs.
        pub max_raw_ipv6_qp: U32,
        /// Raw queue pairs.
        pub max_raw_ethy_qp: U32,
        /// Multicast groups.
        pub max_mcast_grp: U32,
        /// Queue pairs of a multicast group.
        pub max_mcast_qp_attach: U32,
        /// Attachments of all groups.
        pub max_total_mcast_qp_attach: U32,
        /// Address handles.
        pub max_ah: U32,
        /// Reserved (fast memory regions).
        pub max_fmr: U32,
        /// Reserved (fast memory regions).
        pub max_map_per_fmr: U32,
        /// Shared receive queues.
        pub max_srq: U32,
        /// Requests of a shared receive queue.
        pub max_srq_wr: U32,
        /// Entries of a scatter list of a shared receive queue.
        pub max_srq_sge: U32,
        /// Entries of the P_Key table.
        pub max_pkeys: U16,
        /// ACK delay code.
        pub local_ca_ack_delay: u8,
        /// Ports.
        pub phys_port_cnt: u8,
        /// Reserved.
        pub reserved: [u8; 4],
    }
}

abi_layout! {
    /// Answer of the extended QUERY_DEVICE. Fields behind the length are about abilities that the device lacks.
    pub ExtendedQueryDeviceAnswer, 304 {
        /// Attributes.
        pub base: QueryDeviceAnswer,
        /// Reserved.
        pub comp_mask: U32,
        /// Bytes of the answer.
        pub response_length: U32,
        /// On-demand paging: none.
        pub odp: [u8; 24],
        /// Timestamps: none.
        pub timestamp_mask: U64,
        /// Core clock: none.
        pub hca_core_clock: U64,
        /// `device_cap_flags` again, with those that fit into no 32 bits.
        pub device_cap_flags_ex: U64,
        /// Receive side scaling, raw packets, tag matching, moderation, device memory: none.
        pub others: [u8; 72],
    }
}

abi_layout! {
    /// QUERY_PORT.
    pub QueryPort, 16 {
        /// Address of the answer.
        pub response: U64,
        /// Port.
        pub port_num: u8,
        /// Reserved.
        pub reserved: [u8; 7],
    }
}

abi_layout! {
    /// Answer of QUERY_PORT.
    pub QueryPortAnswer, 40 {
        /// PortInfo:CapabilityMask.
        pub port_cap_flags: U32,
        /// Bytes of the longest message.
        pub max_msg_sz: U32,
        /// Packets with a wrong P_Key.
        pub bad_pkey_cntr: U32,
        /// Packets with a wrong Q_Key.
        pub qkey_viol_cntr: U32,
        /// Entries of the GID table.
        pub gid_tbl_len: U32,
        /// Entries of the P_Key table.
        pub pkey_tbl_len: U16,
        /// LID.
        pub lid: U16,
        /// LID of the subnet manager.
        pub sm_lid: U16,
        /// Logical state.
        pub state: u8,
        /// MTU code that the port supports.
        pub max_mtu: u8,
        /// MTU code of the link.
        pub active_mtu: u8,
        /// LID mask count.
        pub lmc: u8,
        /// Virtual lanes code.
        pub max_vl_num: u8,
        /// Service level of the subnet manager.
        pub sm_sl: u8,
        /// Subnet timeout code.
        pub subnet_timeout: u8,
        /// InitTypeReply.
        pub init_type_reply: u8,
        /// Width code of the link.
        pub active_width: u8,
        /// Speed code of the link.
        pub active_speed: u8,
        /// Physical state.
        pub phys_state: u8,
        /// 1: InfiniBand.
        pub link_layer: u8,
        /// Flags.
        pub flags: u8,
        /// Reserved.
        pub reserved: u8,
    }
}

/// `link_layer` of InfiniBand.
pub const LINK_LAYER_INFINIBAND: u8 = 1;
