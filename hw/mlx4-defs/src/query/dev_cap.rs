//! The device's limits.

use ib_wire::bit_fields;
use zerocopy::network_endian::{U16, U32, U64};

layout! {
    /// The output of [`crate::Opcode::QUERY_DEV_CAP`] (`mlx4_QUERY_DEV_CAP`). Counts that are said to be log2
    /// are so in the byte's low bits.
    mailbox QueryDevCap, 256 {
        /// Reserved.
        0x00 pub reserved0: [u8; 16],
        /// Log2 of the receives that a shared queue can have.
        0x10 pub log_max_srq_size: u8,
        /// Log2 of the work requests that a queue can have.
        0x11 pub log_max_qp_size: u8,
        /// Log2 of the queue pairs that are not for drivers.
        0x12 pub log_reserved_qps: u8,
        /// Log2 of the number of queue pairs.
        0x13 pub log_max_qps: u8,
        /// Bits 7..4: log2 of the shared receive queues that are not for drivers.
        0x14 pub log_reserved_srqs: u8,
        /// Log2 of the number of shared receive queues.
        0x15 pub log_max_srqs: u8,
        /// Reliable datagram only.
        0x16 pub log_reserved_eecs: u8,
        /// Reliable datagram only.
        0x17 pub log_max_eecs: u8,
        /// Reserved.
        0x18 pub reserved1: u8,
        /// Log2 of the entries that a completion queue can have.
        0x19 pub log_max_cq_size: u8,
        /// Log2 of the completion queues that are not for drivers.
        0x1a pub log_reserved_cqs: u8,
        /// Log2 of the number of completion queues.
        0x1b pub log_max_cqs: u8,
        /// Reserved.
        0x1c pub reserved2: u8,
        /// Log2 of the number of memory regions.
        0x1d pub log_max_mpts: u8,
        /// Log2 of the event queues that are not for drivers.
        0x1e pub log_reserved_eqs: u8,
        /// Log2 of the number of event queues.
        0x1f pub log_max_eqs: u8,
        /// Bits 7..4: log2 of the page addresses that are not for drivers.
        0x20 pub log_reserved_mtts: u8,
        /// Log2 of the size of the largest region.
        0x21 pub log_max_mrw_size: u8,
        /// Log2 of the memory regions that are not for drivers.
        0x22 pub log_reserved_mrws: u8,
        /// Log2 of the number of segments of page addresses.
        0x23 pub log_max_mtt_segments: u8,
        /// Reserved.
        0x24 pub reserved3: [u8; 2],
        /// Event queues of the system; zero for virtual functions.
        0x26 pub sys_eqs: U16,
        /// Reserved.
        0x28 pub reserved4: u8,
        /// Log2 of the RDMA reads and atomics outstanding as requester.
        0x29 pub log_max_initiator_depth: u8,
        /// Reserved.
        0x2a pub reserved5: u8,
        /// Log2 of the RDMA reads and atomics outstanding as responder.
        0x2b pub log_max_responder_depth: u8,
        /// Reserved.
        0x2c pub reserved6: u8,
        /// Log2 of the bytes of a segmented packet; 0 is none.
        0x2d pub log_max_gso: u8,
        /// Ethernet only.
        0x2e pub rss: u8,
        /// Log2 of the RDMA reads and atomics of all queue pairs.
        0x2f pub log_max_rdma: u8,
        /// Reserved.
        0x30 pub reserved7: [u8; 3],
        /// Bit 0: shared receive queues can be resized.
        0x33 pub resize_srq: u8,
        /// Bit 7: the port has a beacon.
        0x34 pub port_beacon: u8,
        /// Local CA ACK delay.
        0x35 pub ack_delay: u8,
        /// Old drivers only.
        0x36 pub mtu_width: u8,
        /// Bits 3..0: number of ports. Bits 7..4: VLs, for old drivers.
        0x37 pub vl_ports: u8,
        /// Log2 of the bytes of the longest message.
        0x38 pub log_max_message: u8,
        /// Reserved.
        0x39 pub reserved8: [u8; 2],
        /// Old drivers only.
        0x3b pub log_max_gids: u8,
        /// Bit n + 5 is set if the IBA rate of value n is supported.
        0x3c pub rates: U16,
        /// Bit 7: completions can carry a time stamp.
        0x3e pub cq_timestamp: u8,
        /// Old drivers only.
        0x3f pub log_max_pkeys: u8,
        /// Bits 63..32 of [`Self::flags`].
        0x40 pub flags_high: U32,
        /// Bits 31..0 of [`Self::flags`].
        0x44 pub flags_low: U32,
        /// Bits 7..4: UARs that are not for drivers, besides [`crate::bar::RESERVED_UARS`].
        0x48 pub reserved_uars: u8,
        /// Log2 of the size of BAR 2 in MiB.
        0x49 pub log_uar_bar_size: u8,
        /// Reserved.
        0x4a pub reserved9: u8,
        /// Log2 of the bytes of the smallest page.
        0x4b pub log_min_page_size: u8,
        /// Bit 7: work requests can be written into the doorbell page.
        0x4c pub blueflame: u8,
        /// Log2 of the bytes of a BlueFlame register.
        0x4d pub log_blueflame_size: u8,
        /// Log2 of the BlueFlame registers in a page.
        0x4e pub log_blueflame_per_page: u8,
        /// Reserved.
        0x4f pub reserved10: [u8; 2],
        /// Data segments of a send.
        0x51 pub max_sq_segments: u8,
        /// Bytes of a send request.
        0x52 pub max_sq_wqe_size: U16,
        /// Reserved.
        0x54 pub reserved11: u8,
        /// Data segments of a receive.
        0x55 pub max_rq_segments: u8,
        /// Bytes of a receive request.
        0x56 pub max_rq_wqe_size: U16,
        /// Reserved.
        0x58 pub reserved12: [u8; 4],
        /// Ethernet only.
        0x5c pub user_mac: u8,
        /// Ethernet only.
        0x5d pub svlan_by_qp: u8,
        /// Reserved.
        0x5e pub reserved13: [u8; 3],
        /// Log2 of the queue pairs of a multicast group.
        0x61 pub log_max_qps_per_mcg: u8,
        /// Bits 3..0: multicast groups that are not for drivers.
        0x62 pub reserved_mcgs: u8,
        /// Log2 of the number of multicast groups.
        0x63 pub log_max_mcgs: u8,
        /// See [`Self::reserved_pds`].
        0x64 pub pd_bits: u8,
        /// Log2 of the number of protection domains.
        0x65 pub log_max_pds: u8,
        /// Extended reliable connections only.
        0x66 pub log_reserved_xrcds: u8,
        /// Extended reliable connections only.
        0x67 pub log_max_xrcds: u8,
        /// Number of counters. The last one takes what nobody counts.
        0x68 pub max_counters: U32,
        /// Reserved.
        0x6c pub reserved14: [u8; 4],
        /// More features, see the kernel's `MLX4_DEV_CAP_FLAG2_*`.
        0x70 pub flags2: U32,
        /// Flow steering only.
        0x74 pub flow_steering_ipoib: u8,
        /// Reserved.
        0x75 pub reserved15: u8,
        /// Flow steering only.
        0x76 pub flow_steering: u8,
        /// Flow steering only.
        0x77 pub flow_steering_max_qps: u8,
        /// Bit 5: changes of the SL to VL table make events.
        0x78 pub sl2vl_event: u8,
        /// Reserved.
        0x79 pub reserved16: u8,
        /// Ethernet, and sizes of queue entries other than 32.
        0x7a pub entry_strides: u8,
        /// Ethernet only.
        0x7b pub ecn_qcn: u8,
        /// Reserved.
        0x7c pub reserved17: [u8; 4],
        /// Bytes of a context, of no use to a virtual function.
        0x80 pub rdmarc_entry_size: U16,
        /// Bytes of a context, of no use to a virtual function.
        0x82 pub qpc_entry_size: U16,
        /// Bytes of a context, of no use to a virtual function.
        0x84 pub auxc_entry_size: U16,
        /// Bytes of a context, of no use to a virtual function.
        0x86 pub altc_entry_size: U16,
        /// Bytes of a context, of no use to a virtual function.
        0x88 pub eqc_entry_size: U16,
        /// Bytes of a context, of no use to a virtual function.
        0x8a pub cqc_entry_size: U16,
        /// Bytes of a context, of no use to a virtual function.
        0x8c pub srqc_entry_size: U16,
        /// Bytes of a context, of no use to a virtual function.
        0x8e pub cmpt_entry_size: U16,
        /// Bytes of a page address, by which addresses in contexts count.
        0x90 pub mtt_entry_size: U16,
        /// Bytes of a context, of no use to a virtual function.
        0x92 pub dmpt_entry_size: U16,
        /// Features of memory regions.
        0x94 pub memory_flags: MemoryFlags,
        /// The key that stands for all memory in local accesses.
        0x98 pub reserved_lkey: U32,
        /// Ethernet, and events of the hardware.
        0x9c pub flags3: U32,
        /// Memory of the device, of no use to a virtual function.
        0xa0 pub max_icm_size: U64,
        /// Flow steering only.
        0xa8 pub dmfs_high_rate_base: U32,
        /// Flow steering only.
        0xac pub dmfs_high_rate_range: U32,
        /// PF only.
        0xb0 pub mad_demux: U32,
        /// Reserved.
        0xb4 pub reserved18: [u8; 13],
        /// Bit 7: the clock can be mapped; never for virtual functions.
        0xc1 pub map_clock: u8,
        /// Reserved.
        0xc2 pub reserved19: [u8; 10],
        /// Ethernet only.
        0xcc pub rate_limits: U16,
        /// Reserved.
        0xce pub reserved20: [u8; 2],
        /// Ethernet only.
        0xd0 pub rate_limit_max: U16,
        /// Ethernet only.
        0xd2 pub rate_limit_min: U16,
        /// Reserved.
        0xd4 pub reserved21: [u8; 16],
        /// PF only.
        0xe4 pub health_buffer: U32,
        /// Reserved.
        0xe8 pub reserved22: [u8; 24],
    }
}

/// Features of the device (`MLX4_DEV_CAP_FLAG_*`), as bits of [`QueryDevCap::flags`].
pub mod dev_cap_flags {
    /// Reliable connections.
    pub const RC: u64 = 1 << 0;
    /// Unreliable connections.
    pub const UC: u64 = 1 << 1;
    /// Unreliable datagrams.
    pub const UD: u64 = 1 << 2;
    /// Extended reliable connections.
    pub const XRC: u64 = 1 << 3;
    /// Shared receive queues.
    pub const SRQ: u64 = 1 << 6;
    /// Checksums of IPoIB packets.
    pub const IPOIB_CSUM: u64 = 1 << 7;
    /// A counter of P_Key violations.
    pub const BAD_PKEY_COUNTER: u64 = 1 << 8;
    /// A counter of Q_Key violations.
    pub const BAD_QKEY_COUNTER: u64 = 1 << 9;
    /// Ports of different types.
    pub const DPDP: u64 = 1 << 12;
    /// Big headers of segmented packets.
    pub const BLH: u64 = 1 << 15;
    /// Memory windows.
    pub const MEMORY_WINDOW: u64 = 1 << 16;
    /// Automatic path migration.
    pub const APM: u64 = 1 << 17;
    /// Atomic operations.
    pub const ATOMIC: u64 = 1 << 18;
    /// Raw multicast.
    pub const RAW_MULTICAST: u64 = 1 << 19;
    /// Address vectors name a port.
    pub const UD_AV_PORT: u64 = 1 << 20;
    /// Multicast of unreliable datagrams.
    pub const UD_MULTICAST: u64 = 1 << 21;
    /// InfiniBand over Ethernet.
    pub const IBOE: u64 = 1 << 30;
    /// Counters.
    pub const COUNTERS: u64 = 1 << 48;
    /// Sensing of the link type.
    pub const SENSE: u64 = 1 << 55;
    /// Events of type [`crate::eqe::EventType::PORT_MNG_CHG_EVENT`].
    pub const PORT_MANAGEMENT_EVENTS: u64 = 1 << 59;
    /// Event queue entries of 64 bytes.
    pub const EQE_64: u64 = 1 << 61;
    /// Completion queue entries of 64 bytes.
    pub const CQE_64: u64 = 1 << 62;
}

impl QueryDevCap {
    bit_fields! {
        /// Number of ports.
        ports, set_ports: u8 = vl_ports >> 0, 4;
        /// Protection domains that are not for drivers: the driver's first one has this number.
        reserved_pds, set_reserved_pds: u8 = pd_bits >> 4, 4;
        /// Work requests can be written into the doorbell page.
        has_blueflame, set_has_blueflame: bool = blueflame >> 7, 1;
    }

    /// The features, see [`dev_cap_flags`].
    #[must_use]
    pub fn flags(&self) -> u64 {
        u64::from(self.flags_high.get()) << 32 | u64::from(self.flags_low.get())
    }

    /// Sets [`Self::flags`].
    pub fn set_flags(&mut self, flags: u64) {
        let [a, b, c, d, low @ ..] = flags.to_be_bytes();
        self.flags_high = U32::from_bytes([a, b, c, d]);
        self.flags_low = U32::from_bytes(low);
    }
}

layout! {
    /// Features of memory regions (`MLX4_BMME_FLAG_*`).
    MemoryFlags, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl MemoryFlags {
    bit_fields! {
        /// Memory windows of type 2B.
        windows_2b, set_windows_2b: bool = word >> 1, 1;
        /// Work requests invalidate keys.
        local_invalidate, set_local_invalidate: bool = word >> 6, 1;
        /// Messages invalidate keys.
        remote_invalidate, set_remote_invalidate: bool = word >> 7, 1;
        /// Memory windows of type 2.
        windows_2, set_windows_2: bool = word >> 9, 1;
        /// The reserved L_Key.
        reserved_lkey, set_reserved_lkey: bool = word >> 10, 1;
        /// Work requests register memory.
        fast_register, set_fast_register: bool = word >> 11, 1;
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn features_above_32_are_in_the_first_word() {
        let mut cap = QueryDevCap::default();
        let flags =
            dev_cap_flags::PORT_MANAGEMENT_EVENTS | dev_cap_flags::COUNTERS | dev_cap_flags::UD;
        cap.set_flags(flags);
        assert_eq!(cap.as_bytes()[0x40..0x48], [0x08, 0x01, 0, 0, 0, 0, 0, 4]);
        assert_eq!(cap.flags(), flags);
    }

    #[test]
    fn fast_registration_is_three_bits() {
        let mut flags = MemoryFlags::default();
        flags.set_local_invalidate(true);
        flags.set_remote_invalidate(true);
        flags.set_fast_register(true);
        flags.set_reserved_lkey(true);
        assert_eq!(flags.word.get(), 0xcc0);
    }
}
