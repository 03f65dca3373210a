//! Queue pairs and multicast groups.

use linux_abi::abi_layout;
use zerocopy::native_endian::{U16, U32, U64};

use super::ring::MappedRing;

abi_layout! {
    /// CREATE_QP.
    pub CreateQp, 56 {
        /// Address of the answer.
        pub response: U64,
        /// Attributes that both forms have.
        pub attributes: CreateQpAttributes,
    }
}

abi_layout! {
    /// Attributes of a queue pair to be made.
    pub CreateQpAttributes, 48 {
        /// The program's name for the queue pair, which events carry.
        pub user_handle: U64,
        /// Protection domain.
        pub pd_handle: U32,
        /// Completion queue of sends.
        pub send_cq_handle: U32,
        /// Completion queue of receives.
        pub recv_cq_handle: U32,
        /// Shared receive queue.
        pub srq_handle: U32,
        /// Sizes.
        pub caps: Caps,
        /// Every send completes.
        pub sq_sig_all: u8,
        /// `enum ibv_qp_type`.
        pub qp_type: u8,
        /// Not 0 to have a shared receive queue.
        pub is_srq: u8,
        /// Reserved.
        pub reserved: u8,
    }
}

abi_layout! {
    /// Sizes of a queue pair's queues.
    pub Caps, 20 {
        /// Send requests.
        pub max_send_wr: U32,
        /// Receive requests.
        pub max_recv_wr: U32,
        /// Entries of a send's list.
        pub max_send_sge: U32,
        /// Entries of a receive's list.
        pub max_recv_sge: U32,
        /// Inline bytes of a send.
        pub max_inline_data: U32,
    }
}

abi_layout! {
    /// The extended CREATE_QP.
    pub ExtendedCreateQp, 64 {
        /// Attributes that both forms have.
        pub attributes: CreateQpAttributes,
        /// Fields behind that are given.
        pub comp_mask: U32,
        /// Flags.
        pub create_flags: U32,
        /// Table of work queues; of other devices.
        pub rwq_ind_tbl_handle: U32,
        /// Source number; of other devices.
        pub source_qpn: U32,
    }
}

abi_layout! {
    /// Answer of CREATE_QP.
    pub CreateQpAnswer, 32 {
        /// Handle.
        pub qp_handle: U32,
        /// Number.
        pub qpn: U32,
        /// Sizes.
        pub caps: Caps,
        /// Reserved.
        pub reserved: U32,
    }
}

abi_layout! {
    /// Answer of the extended CREATE_QP.
    pub ExtendedCreateQpAnswer, 40 {
        /// Answer of the other form.
        pub base: CreateQpAnswer,
        /// Reserved.
        pub comp_mask: U32,
        /// Bytes of the answer.
        pub response_length: U32,
    }
}

abi_layout! {
    /// The provider's part of the answer of CREATE_QP.
    pub RxeCreateQpAnswer, 32 {
        /// Place of the receive ring; none with a shared receive queue.
        pub receive: MappedRing,
        /// Place of the send ring.
        pub send: MappedRing,
    }
}

abi_layout! {
    /// A path (`struct ib_uverbs_qp_dest`).
    pub QpDestination, 32 {
        /// Destination GID.
        pub dgid: [u8; 16],
        /// Flow label.
        pub flow_label: U32,
        /// Destination LID.
        pub dlid: U16,
        /// Reserved.
        pub reserved: U16,
        /// Index of the local GID.
        pub sgid_index: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Service level.
        pub sl: u8,
        /// Low bits of the source LID.
        pub src_path_bits: u8,
        /// Rate code; 0 is the port's.
        pub static_rate: u8,
        /// Not 0 to send a GRH.
        pub is_global: u8,
        /// Local port.
        pub port_num: u8,
    }
}

abi_layout! {
    /// MODIFY_QP.
    pub ModifyQp, 112 {
        /// Primary path.
        pub dest: QpDestination,
        /// Alternate path.
        pub alt_dest: QpDestination,
        /// Queue pair.
        pub qp_handle: U32,
        /// Attributes that are given (`enum ibv_qp_attr_mask`).
        pub attr_mask: U32,
        /// Q_Key.
        pub qkey: U32,
        /// First PSN to expect.
        pub rq_psn: U32,
        /// First PSN to send.
        pub sq_psn: U32,
        /// Peer.
        pub dest_qp_num: U32,
        /// Remote rights.
        pub qp_access_flags: U32,
        /// Index of the P_Key.
        pub pkey_index: U16,
        /// Index of the P_Key on the alternate path.
        pub alt_pkey_index: U16,
        /// Next state.
        pub qp_state: u8,
        /// State that the program believes the queue pair to be in.
        pub cur_qp_state: u8,
        /// Path MTU code.
        pub path_mtu: u8,
        /// Migration state.
        pub path_mig_state: u8,
        /// Not 0 to be told when the send queue has drained.
        pub en_sqd_async_notify: u8,
        /// Reads and atomics as initiator.
        pub max_rd_atomic: u8,
        /// Reads and atomics as responder.
        pub max_dest_rd_atomic: u8,
        /// RNR NAK timer code.
        pub min_rnr_timer: u8,
        /// Port.
        pub port_num: u8,
        /// ACK timeout code.
        pub timeout: u8,
        /// Retries.
        pub retry_cnt: u8,
        /// RNR retries.
        pub rnr_retry: u8,
        /// Port of the alternate path.
        pub alt_port_num: u8,
        /// ACK timeout code of the alternate path.
        pub alt_timeout: u8,
        /// Reserved.
        pub reserved: [u8; 2],
    }
}

abi_layout! {
    /// Answer of QUERY_QP.
    pub QueryQpAnswer, 128 {
        /// Primary path.
        pub dest: QpDestination,
        /// Alternate path.
        pub alt_dest: QpDestination,
        /// Sizes.
        pub caps: Caps,
        /// Q_Key.
        pub qkey: U32,
        /// Next PSN to expect.
        pub rq_psn: U32,
        /// Next PSN to send.
        pub sq_psn: U32,
        /// Peer.
        pub dest_qp_num: U32,
        /// Remote rights.
        pub qp_access_flags: U32,
        /// Index of the P_Key.
        pub pkey_index: U16,
        /// Index of the P_Key on the alternate path.
        pub alt_pkey_index: U16,
        /// State.
        pub qp_state: u8,
        /// State again.
        pub cur_qp_state: u8,
        /// Path MTU code.
        pub path_mtu: u8,
        /// Migration state.
        pub path_mig_state: u8,
        /// The send queue drains.
        pub sq_draining: u8,
        /// Reads and atomics as initiator.
        pub max_rd_atomic: u8,
        /// Reads and atomics as responder.
        pub max_dest_rd_atomic: u8,
        /// RNR NAK timer code.
        pub min_rnr_timer: u8,
        /// Port.
        pub port_num: u8,
        /// ACK timeout code.
        pub timeout: u8,
        /// Retries.
        pub retry_cnt: u8,
        /// RNR retries.
        pub rnr_retry: u8,
        /// Port of the alternate path.
        pub alt_port_num: u8,
        /// ACK timeout code of the alternate path.
        pub alt_timeout: u8,
        /// Every send completes.
        pub sq_sig_all: u8,
        /// Reserved.
        pub reserved: [u8; 5],
    }
}

abi_layout! {
    /// POST_SEND without requests: the doorbell of a send queue.
    pub PostSend, 24 {
        /// Address of the answer.
        pub response: U64,
        /// Queue pair.
        pub qp_handle: U32,
        /// Requests that follow: 0.
        pub wr_count: U32,
        /// Entries of all lists.
        pub sge_count: U32,
        /// Bytes of a request.
        pub wqe_size: U32,
    }
}

abi_layout! {
    /// ATTACH_MCAST and DETACH_MCAST.
    pub Multicast, 24 {
        /// Group.
        pub gid: [u8; 16],
        /// Queue pair.
        pub qp_handle: U32,
        /// LID of the group.
        pub mlid: U16,
        /// Reserved.
        pub reserved: U16,
    }
}

/// Attributes of MODIFY_QP (`enum ibv_qp_attr_mask`).
pub mod attr_mask {
    /// `qp_state`.
    pub const STATE: u32 = 1;
    /// `cur_qp_state`.
    pub const CUR_STATE: u32 = 1 << 1;
    /// `en_sqd_async_notify`.
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    /// `qp_access_flags`.
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    /// `pkey_index`.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// `port_num`.
    pub const PORT: u32 = 1 << 5;
    /// `qkey`.
    pub const QKEY: u32 = 1 << 6;
    /// `dest`.
    pub const AV: u32 = 1 << 7;
    /// `path_mtu`.
    pub const PATH_MTU: u32 = 1 << 8;
    /// `timeout`.
    pub const TIMEOUT: u32 = 1 << 9;
    /// `retry_cnt`.
    pub const RETRY_CNT: u32 = 1 << 10;
    /// `rnr_retry`.
    pub const RNR_RETRY: u32 = 1 << 11;
    /// `rq_psn`.
    pub const RQ_PSN: u32 = 1 << 12;
    /// `max_rd_atomic`.
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    /// `alt_dest` and what belongs to it.
    pub const ALT_PATH: u32 = 1 << 14;
    /// `min_rnr_timer`.
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    /// `sq_psn`.
    pub const SQ_PSN: u32 = 1 << 16;
    /// `max_dest_rd_atomic`.
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// `path_mig_state`.
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    /// `dest_qp_num`.
    pub const DEST_QPN: u32 = 1 << 20;
    /// All that a queue pair of this device has.
    pub const SUPPORTED: u32 = (1 << 21) - 1 - (1 << 19);
}
