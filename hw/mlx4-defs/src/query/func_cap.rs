//! What the function may use.

use ib_wire::{Qpn, bit_fields};
use zerocopy::network_endian::{U32, U64};

layout! {
    /// The input modifier of [`crate::Opcode::QUERY_FUNC_CAP`] with op modifier 0. With op modifier 1 it is
    /// the port.
    FuncCapRequest, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl FuncCapRequest {
    bit_fields! {
        /// The driver can do with a number of event queues that is no power of two.
        any_eq_count, set_any_eq_count: bool = word >> 31, 1;
        /// Ethernet only.
        vst_qinq, set_vst_qinq: bool = word >> 30, 1;
    }
}

layout! {
    /// The output of [`crate::Opcode::QUERY_FUNC_CAP`] with op modifier 0 (`mlx4_QUERY_FUNC_CAP`).
    mailbox QueryFuncCap, 112 {
        /// See the accessors.
        0x00 pub flags: u8,
        /// Number of ports.
        0x01 pub ports: u8,
        /// Reserved.
        0x02 pub reserved0: [u8; 2],
        /// Zero; a driver refuses bits that it does not know.
        0x04 pub pf_behaviour: U32,
        /// Old fast registration.
        0x08 pub fmr: u8,
        /// Reserved.
        0x09 pub reserved1: [u8; 7],
        /// As below, for drivers that do not know [`Self::has_quotas`].
        0x10 pub qp_quota_deprecated: U32,
        /// As below, for drivers that do not know [`Self::has_quotas`].
        0x14 pub cq_quota_deprecated: U32,
        /// As below, for drivers that do not know [`Self::has_quotas`].
        0x18 pub srq_quota_deprecated: U32,
        /// Reserved.
        0x1c pub reserved2: U32,
        /// As below, for drivers that do not know [`Self::has_quotas`].
        0x20 pub mpt_quota_deprecated: U32,
        /// As below, for drivers that do not know [`Self::has_quotas`].
        0x24 pub mtt_quota_deprecated: U32,
        /// As below, for drivers that do not know [`Self::has_quotas`].
        0x28 pub mcg_quota_deprecated: U32,
        /// Event queues, reserved ones included (24 bits).
        0x2c pub max_eqs: U32,
        /// Event queues that are not the driver's: its first one has this number (24 bits).
        0x30 pub reserved_eqs: U32,
        /// Reserved.
        0x34 pub reserved3: [u8; 20],
        /// The key that stands for all memory in local accesses.
        0x48 pub reserved_lkey: U32,
        /// Reserved.
        0x4c pub reserved4: U32,
        /// Queue pairs.
        0x50 pub qp_quota: U32,
        /// Completion queues.
        0x54 pub cq_quota: U32,
        /// Shared receive queues.
        0x58 pub srq_quota: U32,
        /// Reserved.
        0x5c pub reserved5: U32,
        /// Memory regions.
        0x60 pub mpt_quota: U32,
        /// Page addresses.
        0x64 pub mtt_quota: U32,
        /// Multicast groups.
        0x68 pub mcg_quota: U32,
        /// Which queue pair numbers can be reserved for what.
        0x6c pub qp_alloc_flags: U32,
    }
}

impl QueryFuncCap {
    bit_fields! {
        /// Ethernet (`QUERY_FUNC_CAP_FLAG_ETH`).
        ethernet, set_ethernet: bool = flags >> 7, 1;
        /// InfiniBand (`QUERY_FUNC_CAP_FLAG_RDMA`).
        rdma, set_rdma: bool = flags >> 6, 1;
        /// The quotas from 0x50 on are valid (`QUERY_FUNC_CAP_FLAG_QUOTAS`).
        has_quotas, set_has_quotas: bool = flags >> 4, 1;
        /// The reserved L_Key is valid (`QUERY_FUNC_CAP_FLAG_RESD_LKEY`).
        has_reserved_lkey, set_has_reserved_lkey: bool = flags >> 3, 1;
        /// What is at 0x6c is valid (`QUERY_FUNC_CAP_FLAG_VALID_MAILBOX`).
        has_qp_alloc_flags, set_has_qp_alloc_flags: bool = flags >> 2, 1;
    }
}

layout! {
    /// The output of [`crate::Opcode::QUERY_FUNC_CAP`] with op modifier 1 (`mlx4_QUERY_FUNC_CAP`).
    mailbox QueryFuncCapPort, 48 {
        /// Reserved.
        0x00 pub reserved0: [u8; 3],
        /// The physical port; a driver refuses any but the one that it asks for.
        0x03 pub physical_port: u8,
        /// Q_Key of QP0's proxy; zero if the function may not send SMPs.
        0x04 pub qp0_qkey: U32,
        /// Ethernet only.
        0x08 pub flags0: u8,
        /// Reserved.
        0x09 pub reserved1: [u8; 3],
        /// See the accessors.
        0x0c pub flags1: u8,
        /// Reserved.
        0x0d pub reserved2: [u8; 4],
        /// Queue pair of the PF to which QP0's proxy sends.
        0x11 pub qp0_tunnel: Qpn,
        /// Reserved.
        0x14 pub reserved3: u8,
        /// The queue pair that stands for QP0.
        0x15 pub qp0_proxy: Qpn,
        /// Reserved.
        0x18 pub reserved4: u8,
        /// Queue pair of the PF to which QP1's proxy sends.
        0x19 pub qp1_tunnel: Qpn,
        /// Reserved.
        0x1c pub reserved5: u8,
        /// The queue pair that stands for QP1.
        0x1d pub qp1_proxy: Qpn,
        /// Reserved.
        0x20 pub reserved6: [u8; 8],
        /// Any number that tells physical ports from each other.
        0x28 pub physical_port_id: U64,
    }
}

impl QueryFuncCapPort {
    bit_fields! {
        /// The physical port's id is valid (`QUERY_FUNC_CAP_FLAGS1_NIC_INFO`).
        has_physical_port_id, set_has_physical_port_id: bool = flags1 >> 4, 1;
        /// The function may send SMPs (`QUERY_FUNC_CAP_VF_ENABLE_QP0`).
        smi_enabled, set_smi_enabled: bool = flags1 >> 3, 1;
    }
}
