//! What the PF set the device up with.

use ib_wire::bit_fields;
use zerocopy::network_endian::{U16, U32, U64};

layout! {
    /// The output of [`crate::Opcode::QUERY_HCA`] (`mlx4_QUERY_HCA`). Addresses are those of the device's own
    /// memory, which is the PF's matter; a table's size stands in the last byte of its address.
    mailbox QueryHca, 304 {
        /// Reserved.
        0x000 pub reserved0: [u8; 4],
        /// Zero; a driver refuses any other value.
        0x004 pub global_caps: U64,
        /// Frequency of the device's clock, MHz.
        0x00c pub core_clock: U16,
        /// Ethernet only.
        0x00e pub phv_flags: u8,
        /// Reserved.
        0x00f pub reserved1: [u8; 5],
        /// See [`Self::flow_steering`].
        0x014 pub flags: U32,
        /// Reserved.
        0x018 pub reserved2: [u8; 24],
        /// Table of queue pairs.
        0x030 pub qpc_base: [u8; 7],
        /// See [`Self::log_qps`].
        0x037 pub log_qps_byte: u8,
        /// Reserved.
        0x038 pub reserved3: [u8; 16],
        /// Table of shared receive queues.
        0x048 pub srqc_base: [u8; 7],
        /// See [`Self::log_srqs`].
        0x04f pub log_srqs_byte: u8,
        /// Table of completion queues.
        0x050 pub cqc_base: [u8; 7],
        /// See [`Self::log_cqs`].
        0x057 pub log_cqs_byte: u8,
        /// See [`Self::eqe_64`] and [`Self::cqe_64`].
        0x058 pub entry_sizes: u8,
        /// Reserved.
        0x059 pub reserved4: [u8; 2],
        /// Sizes of completion queue entries (bits 1..0) and event queue entries (bits 5..4), as log2 less 5;
        /// zero if [`Self::eqe_64`] and [`Self::cqe_64`] say them.
        0x05b pub entry_stride: u8,
        /// Reserved.
        0x05c pub reserved5: [u8; 4],
        /// Table of alternate paths.
        0x060 pub altc_base: U64,
        /// Reserved.
        0x068 pub reserved6: [u8; 8],
        /// Table of auxiliary contexts.
        0x070 pub auxc_base: U64,
        /// Reserved.
        0x078 pub reserved7: [u8; 8],
        /// Table of event queues.
        0x080 pub eqc_base: [u8; 7],
        /// See [`Self::log_eqs`].
        0x087 pub log_eqs_byte: u8,
        /// Reserved.
        0x088 pub reserved8: [u8; 2],
        /// Event queues of the system; zero for virtual functions.
        0x08a pub sys_eqs: U16,
        /// Reserved.
        0x08c pub reserved9: [u8; 4],
        /// Table of RDMA reads and atomics.
        0x090 pub rdmarc_base: [u8; 7],
        /// See [`Self::log_rdma_per_qp`].
        0x097 pub log_rdma_byte: u8,
        /// Reserved.
        0x098 pub reserved10: [u8; 40],
        /// Table of multicast groups.
        0x0c0 pub mc_base: U64,
        /// Reserved.
        0x0c8 pub reserved11: [u8; 11],
        /// See [`Self::log_mc_entry_size`].
        0x0d3 pub log_mc_entry_byte: u8,
        /// Reserved.
        0x0d4 pub reserved12: [u8; 3],
        /// Log2 of the size of the multicast hash table.
        0x0d7 pub log_mc_hash: u8,
        /// See [`Self::b0_steering`].
        0x0d8 pub steering: u8,
        /// Reserved.
        0x0d9 pub reserved13: [u8; 2],
        /// Log2 of the size of the multicast table.
        0x0db pub log_mc_table: u8,
        /// Reserved.
        0x0dc pub reserved14: [u8; 20],
        /// Table of memory regions.
        0x0f0 pub dmpt_base: U64,
        /// Memory windows are enabled: 0x80.
        0x0f8 pub windows: u8,
        /// Reserved.
        0x0f9 pub reserved15: [u8; 2],
        /// See [`Self::log_mpts`].
        0x0fb pub log_mpts_byte: u8,
        /// Reserved.
        0x0fc pub reserved16: [u8; 4],
        /// Table of page addresses.
        0x100 pub mtt_base: U64,
        /// Table of the device's view of memory regions.
        0x108 pub cmpt_base: U64,
        /// Reserved.
        0x110 pub reserved17: [u8; 26],
        /// Log2 of the number of UARs.
        0x12a pub log_uars: u8,
        /// Log2 of the size of a UAR page in units of 4 KiB.
        0x12b pub uar_page_size: u8,
        /// Reserved.
        0x12c pub reserved18: [u8; 4],
    }
}

impl QueryHca {
    bit_fields! {
        /// Multicast by flow steering commands, not by attaching.
        flow_steering, set_flow_steering: bool = flags >> 6, 1;
        /// Log2 of the number of queue pairs.
        log_qps, set_log_qps: u8 = log_qps_byte >> 0, 5;
        /// Log2 of the number of shared receive queues.
        log_srqs, set_log_srqs: u8 = log_srqs_byte >> 0, 5;
        /// Log2 of the number of completion queues.
        log_cqs, set_log_cqs: u8 = log_cqs_byte >> 0, 5;
        /// Entries of event queues have 64 bytes.
        eqe_64, set_eqe_64: bool = entry_sizes >> 5, 1;
        /// Entries of completion queues have 64 bytes.
        cqe_64, set_cqe_64: bool = entry_sizes >> 6, 1;
        /// Log2 of the number of event queues.
        log_eqs, set_log_eqs: u8 = log_eqs_byte >> 0, 5;
        /// Log2 of the RDMA reads and atomics that a queue pair answers at a time.
        log_rdma_per_qp, set_log_rdma_per_qp: u8 = log_rdma_byte >> 0, 3;
        /// Log2 of the bytes of a multicast group's entry, from which the driver computes how many queue
        /// pairs a group can have.
        log_mc_entry_size, set_log_mc_entry_size: u8 = log_mc_entry_byte >> 0, 5;
        /// Unicast steering mode B0, not A0; Ethernet only.
        b0_steering, set_b0_steering: bool = steering >> 3, 1;
        /// Log2 of the number of memory regions.
        log_mpts, set_log_mpts: u8 = log_mpts_byte >> 0, 6;
    }
}
