//! Queue pairs: contexts, paths, and which of their fields a transition takes.

use ib_wire::{Gid, Lid, Mtu, Psn, QKey, Qpn, Sl, bit_fields};
use zerocopy::network_endian::{U16, U32};

use crate::mtt::MttBase;
use crate::{CounterIndex, Cqn, DoorbellRecordAddr, LogPageSize, Pdn, Srqn, Uar};

layout! {
    /// A path (`struct mlx4_qp_path`).
    QpPath, 44 {
        /// Flags of Ethernet, and 0x80 for special queue pairs; without meaning here.
        0x00 pub flags: u8,
        /// Ethernet only.
        0x01 pub vlan_control: u8,
        /// 0x40 for special queue pairs of virtual functions.
        0x02 pub disable_pkey_check: u8,
        /// See [`Self::pkey_index`].
        0x03 pub pkey_index_byte: u8,
        /// The counter to count in.
        0x04 pub counter_index: CounterIndex,
        /// See [`Self::grh`] and [`Self::path_bits`].
        0x05 pub grh_path_bits: u8,
        /// Destination LID.
        0x06 pub dlid: Lid,
        /// See [`Self::ack_timeout`].
        0x08 pub ack_timeout_byte: u8,
        /// Index of the source GID in the function's table.
        0x09 pub sgid_index: u8,
        /// 0, or 5 more than the value of IBA's static rate.
        0x0a pub static_rate: u8,
        /// Hop limit.
        0x0b pub hop_limit: u8,
        /// See [`Self::traffic_class`] and [`Self::flow_label`].
        0x0c pub tclass_flow: U32,
        /// Destination GID.
        0x10 pub dgid: Gid,
        /// See [`Self::port_bit`] and [`Self::sl`].
        0x20 pub sched_queue: u8,
        /// Ethernet only.
        0x21 pub vlan_index: u8,
        /// Ethernet only.
        0x22 pub feup: u8,
        /// Ethernet only.
        0x23 pub fvl_rx: u8,
        /// Reserved.
        0x24 pub reserved: [u8; 2],
        /// Ethernet only.
        0x26 pub dmac: [u8; 6],
    }
}

impl QpPath {
    bit_fields! {
        /// Index in the function's P_Key table.
        pkey_index, set_pkey_index: u8 = pkey_index_byte >> 0, 7;
        /// Packets have a GRH.
        grh, set_grh: bool = grh_path_bits >> 7, 1;
        /// Low bits of the source LID.
        path_bits, set_path_bits: u8 = grh_path_bits >> 0, 7;
        /// Local ACK timeout.
        ack_timeout, set_ack_timeout: u8 = ack_timeout_byte >> 3, 5;
        /// 0 for InfiniBand.
        link_type, set_link_type: u8 = ack_timeout_byte >> 0, 3;
        /// Traffic class.
        traffic_class, set_traffic_class: u8 = tclass_flow >> 20, 8;
        /// Flow label.
        flow_label, set_flow_label: u32 = tclass_flow >> 0, 20;
        /// Set for port 2.
        port_bit, set_port_bit: bool = sched_queue >> 6, 1;
        /// Service level.
        sl, set_sl: Sl = sched_queue >> 2, 4;
    }
}

layout! {
    /// A context (`struct mlx4_qp_context`).
    QpContext, 248 {
        /// See the accessors.
        0x00 pub flags: U32,
        /// See [`Self::pd`].
        0x04 pub pd_word: U32,
        /// See [`Self::mtu`] and [`Self::log_max_message`].
        0x08 pub mtu_msgmax: u8,
        /// See the accessors. Garbage if there is no receive queue of its own.
        0x09 pub rq_size_stride: u8,
        /// See the accessors.
        0x0a pub sq_size_stride: u8,
        /// See [`Self::reserved_lkey`].
        0x0b pub rlkey_roce_mode: u8,
        /// Reserved.
        0x0c pub reserved0: u8,
        /// The UAR whose doorbell starts the send queue.
        0x0d pub uar: Uar,
        /// Reserved.
        0x10 pub reserved1: u8,
        /// The queue pair.
        0x11 pub local_qpn: Qpn,
        /// Reserved.
        0x14 pub reserved2: u8,
        /// The remote queue pair, if connected.
        0x15 pub remote_qpn: Qpn,
        /// Primary path.
        0x18 pub primary_path: QpPath,
        /// Alternate path.
        0x44 pub alternate_path: QpPath,
        /// See the accessors.
        0x70 pub params1: U32,
        /// Reserved.
        0x74 pub reserved3: U32,
        /// Reserved.
        0x78 pub reserved4: u8,
        /// PSN of the next request to send.
        0x79 pub next_send_psn: Psn,
        /// Reserved.
        0x7c pub reserved5: u8,
        /// Completion queue of sends.
        0x7d pub send_cqn: Cqn,
        /// Ethernet only.
        0x80 pub roce_entropy: U16,
        /// Reserved.
        0x82 pub reserved6: [u8; 6],
        /// Last PSN acknowledged. Written by the device.
        0x88 pub last_acked_psn: U32,
        /// Send sequence number. Written by the device.
        0x8c pub ssn: U32,
        /// See the accessors.
        0x90 pub params2: U32,
        /// See [`Self::min_rnr_timer`].
        0x94 pub rnr_timer_byte: u8,
        /// PSN of the next request to receive.
        0x95 pub next_receive_psn: Psn,
        /// Extended reliable connections only.
        0x98 pub xrcd: U32,
        /// Reserved.
        0x9c pub reserved7: u8,
        /// Completion queue of receives.
        0x9d pub receive_cqn: Cqn,
        /// Address of the receive queue's [`crate::receive::DoorbellRecord`].
        0xa0 pub doorbell_record: DoorbellRecordAddr,
        /// Q_Key of datagrams.
        0xa8 pub qkey: QKey,
        /// See [`Self::has_srq`].
        0xac pub srq_flags: u8,
        /// The shared receive queue.
        0xad pub srqn: Srqn,
        /// Message sequence number. Written by the device.
        0xb0 pub msn: U32,
        /// Running count of receives. Written by the device.
        0xb4 pub rq_wqe_counter: U16,
        /// Running count of sends. Written by the device.
        0xb6 pub sq_wqe_counter: U16,
        /// Reserved.
        0xb8 pub reserved8: U32,
        /// Zero from a virtual function.
        0xbc pub rate_limit: U16,
        /// Reserved.
        0xbe pub reserved9: u8,
        /// Ethernet only.
        0xbf pub qos_vport: u8,
        /// See the accessors.
        0xc0 pub params3: U32,
        /// Raw packets only.
        0xc4 pub nummmcpeers_basemkey: U32,
        /// Size of the pages.
        0xc8 pub log_page_size: LogPageSize,
        /// Reserved.
        0xc9 pub reserved10: [u8; 2],
        /// The pages of both queues.
        0xcb pub mtt_base: MttBase,
        /// Reserved.
        0xd0 pub reserved11: [u8; 40],
    }
}

impl QpContext {
    bit_fields! {
        /// State.
        state, set_state: QpState = flags >> 28, 4;
        /// Transport.
        service_type, set_service_type: ServiceType = flags >> 16, 8;
        /// Receives are spread over other queue pairs; Ethernet only.
        rss, set_rss: bool = flags >> 13, 1;
        /// Path migration.
        path_migration, set_path_migration: PathMigration = flags >> 11, 2;
        /// The protection domain.
        pd, set_pd: Pdn = pd_word >> 0, 17;
        /// Path MTU.
        mtu, set_mtu: Mtu = mtu_msgmax >> 5, 3;
        /// Log2 of the bytes of the longest message.
        log_max_message, set_log_max_message: u8 = mtu_msgmax >> 0, 5;
        /// Log2 of the number of receives.
        log_rq_entries, set_log_rq_entries: u8 = rq_size_stride >> 3, 4;
        /// Log2 of the bytes of a receive, less 4.
        log_rq_stride, set_log_rq_stride: u8 = rq_size_stride >> 0, 3;
        /// The driver does not mark unused sends, so they must not be read ahead.
        sq_no_prefetch, set_sq_no_prefetch: bool = sq_size_stride >> 7, 1;
        /// Log2 of the number of sends.
        log_sq_entries, set_log_sq_entries: u8 = sq_size_stride >> 3, 4;
        /// Log2 of the bytes of a send, less 4.
        log_sq_stride, set_log_sq_stride: u8 = sq_size_stride >> 0, 3;
        /// Work requests may use the reserved L_Key.
        reserved_lkey, set_reserved_lkey: bool = rlkey_roce_mode >> 4, 1;
        /// How often the requester asks for an acknowledgement.
        ack_request_frequency, set_ack_request_frequency: u8 = params1 >> 28, 4;
        /// Log2 of the RDMA reads and atomics that may be outstanding as requester.
        log_initiator_depth, set_log_initiator_depth: u8 = params1 >> 21, 3;
        /// Retries after a lost acknowledgement.
        retry_count, set_retry_count: u8 = params1 >> 16, 3;
        /// Retries after "receiver not ready".
        rnr_retry, set_rnr_retry: u8 = params1 >> 13, 3;
        /// Work requests may register memory.
        fast_register, set_fast_register: bool = params1 >> 11, 1;
        /// Log2 of the RDMA reads and atomics that may be outstanding as responder.
        log_responder_depth, set_log_responder_depth: u8 = params2 >> 21, 3;
        /// Remote reads are permitted (`MLX4_QP_BIT_RRE`).
        remote_read, set_remote_read: bool = params2 >> 15, 1;
        /// Remote writes are permitted (`MLX4_QP_BIT_RWE`).
        remote_write, set_remote_write: bool = params2 >> 14, 1;
        /// Remote atomics are permitted (`MLX4_QP_BIT_RAE`).
        remote_atomic, set_remote_atomic: bool = params2 >> 13, 1;
        /// Where the queues begin in their first page, in units of 64 bytes.
        page_offset, set_page_offset: u8 = params2 >> 6, 6;
        /// Set with a shared receive queue (`MLX4_QP_BIT_RIC`).
        ignore_credits, set_ignore_credits: bool = params2 >> 4, 1;
        /// Fast registration through the protection table (`MLX4_QP_BIT_FPP`).
        fast_physical, set_fast_physical: bool = params2 >> 3, 1;
        /// Minimal RNR NAK timer.
        min_rnr_timer, set_min_rnr_timer: u8 = rnr_timer_byte >> 0, 5;
        /// Receives come from a shared queue.
        has_srq, set_has_srq: bool = srq_flags >> 0, 1;
        /// Short messages are stored in the work request.
        inline_receive, set_inline_receive: bool = params3 >> 25, 1;
    }
}

layout! {
    /// The input of the transitions and the output of [`crate::Opcode::QUERY_QP`].
    mailbox QpMailbox, 256 {
        /// Which fields of the context count besides those that the transition always takes.
        0x00 pub optional: OptionalFields,
        /// Reserved.
        0x04 pub reserved: U32,
        /// The context.
        0x08 pub context: QpContext,
    }
}

/// Op modifier of [`crate::Opcode::TO_RST_QP`]: there is no output mailbox.
pub const TO_RST_WITHOUT_OUTPUT: u8 = 2;

layout! {
    /// The input modifier of the transitions.
    QpModifier, 4 {
        /// See [`Self::drained_event`].
        0x0 pub flags: u8,
        /// The queue pair.
        0x1 pub qpn: Qpn,
    }
}

impl QpModifier {
    bit_fields! {
        /// With [`crate::Opcode::RTS2SQD_QP`]: there shall be an event when the queue has drained.
        drained_event, set_drained_event: bool = flags >> 7, 1;
    }
}

layout! {
    /// Which optional fields of a context count (`enum mlx4_qp_optpar`).
    OptionalFields, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl OptionalFields {
    bit_fields! {
        /// The alternate path.
        alternate_path, set_alternate_path: bool = word >> 0, 1;
        /// Remote reads.
        remote_read, set_remote_read: bool = word >> 1, 1;
        /// Remote atomics.
        remote_atomic, set_remote_atomic: bool = word >> 2, 1;
        /// Remote writes.
        remote_write, set_remote_write: bool = word >> 3, 1;
        /// The P_Key index.
        pkey_index, set_pkey_index: bool = word >> 4, 1;
        /// The Q_Key.
        qkey, set_qkey: bool = word >> 5, 1;
        /// The RNR NAK timer.
        rnr_timer, set_rnr_timer: bool = word >> 6, 1;
        /// The primary path, but for its P_Key index and timeout.
        primary_path, set_primary_path: bool = word >> 7, 1;
        /// The requester's depth.
        initiator_depth, set_initiator_depth: bool = word >> 8, 1;
        /// The responder's depth.
        responder_depth, set_responder_depth: bool = word >> 9, 1;
        /// Path migration.
        path_migration, set_path_migration: bool = word >> 10, 1;
        /// The retries after a lost acknowledgement.
        retry_count, set_retry_count: bool = word >> 12, 1;
        /// The retries after "receiver not ready".
        rnr_retry, set_rnr_retry: bool = word >> 13, 1;
        /// The local ACK timeout.
        ack_timeout, set_ack_timeout: bool = word >> 14, 1;
        /// Port and service level.
        sched_queue, set_sched_queue: bool = word >> 16, 1;
        /// The counter.
        counter_index, set_counter_index: bool = word >> 20, 1;
        /// Ethernet only.
        vlan_stripping, set_vlan_stripping: bool = word >> 21, 1;
    }
}

ib_wire::open_enum! {
    /// State of a queue pair (`enum mlx4_qp_state`).
    QpState(u8) {
        /// Reset.
        RST = 0,
        /// Initialised.
        INIT = 1,
        /// Ready to receive.
        RTR = 2,
        /// Ready to send.
        RTS = 3,
        /// Send queue error.
        SQER = 4,
        /// Send queue drained.
        SQD = 5,
        /// Error.
        ERR = 6,
        /// Send queue about to drain.
        SQ_DRAINING = 7,
    }
}

ib_wire::open_enum! {
    /// Transport of a queue pair (`MLX4_QP_ST_*`).
    ServiceType(u8) {
        /// Reliable connection.
        RC = 0,
        /// Unreliable connection.
        UC = 1,
        /// Reliable datagram.
        RD = 2,
        /// Unreliable datagram.
        UD = 3,
        /// Extended reliable connection.
        XRC = 6,
        /// Raw management packets, with headers by the driver.
        MLX = 7,
    }
}

ib_wire::open_enum! {
    /// Path migration state (`MLX4_QP_PM_*`).
    PathMigration(u8) {
        /// Armed.
        ARMED = 0,
        /// To be armed.
        REARM = 1,
        /// Migrated.
        MIGRATED = 3,
    }
}

ib_wire::impl_bits! {
    QpState, u8, QpState::new, QpState::get;
    ServiceType, u8, ServiceType::new, ServiceType::get;
    PathMigration, u8, PathMigration::new, PathMigration::get;
}

layout! {
    /// The input of [`crate::Opcode::QP_ATTACH`].
    mailbox MulticastGroup, 16 {
        /// The group.
        0x00 pub mgid: Gid,
    }
}

layout! {
    /// The input modifier of [`crate::Opcode::QP_ATTACH`] (`mlx4_QP_ATTACH`). The op modifier is 1 to
    /// attach and 0 to detach.
    AttachModifier, 4 {
        /// See the accessors.
        0x0 pub flags: u8,
        /// The queue pair.
        0x1 pub qpn: Qpn,
    }
}

impl AttachModifier {
    bit_fields! {
        /// The queue pair's own packets are not delivered to it.
        block_loopback, set_block_loopback: bool = flags >> 7, 1;
        /// 0 for InfiniBand (`enum mlx4_protocol`).
        protocol, set_protocol: u8 = flags >> 4, 3;
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn sched_queue_has_port_and_service_level() {
        let mut path = QpPath {
            sched_queue: 0x83,
            ..QpPath::default()
        };
        path.set_port_bit(true);
        path.set_sl(Sl::from_low_bits(5));
        assert_eq!(path.sched_queue, 0x83 | 1 << 6 | 5 << 2);
    }

    #[test]
    fn sizes_and_strides_are_those_of_the_driver() {
        let mut context = QpContext::default();
        context.set_log_sq_entries(8);
        context.set_log_sq_stride(8 - 4);
        context.set_sq_no_prefetch(true);
        context.set_log_rq_entries(9);
        context.set_log_rq_stride(5 - 4);
        assert_eq!(
            (context.rq_size_stride, context.sq_size_stride),
            (0x49, 0xc4)
        );
        context.set_mtu(Mtu::MTU_4096);
        context.set_log_max_message(13);
        assert_eq!(context.mtu_msgmax, 5 << 5 | 13);
        context.set_state(QpState::INIT);
        context.set_service_type(ServiceType::UD);
        context.set_path_migration(PathMigration::MIGRATED);
        assert_eq!(context.flags.get(), 0x1003_1800);
    }

    #[test]
    fn a_shared_receive_queue_is_marked_above_its_number() {
        let mut context = QpContext {
            srqn: Srqn::from_low_bits(0x45),
            ..QpContext::default()
        };
        context.set_has_srq(true);
        assert_eq!(context.as_bytes()[0xac..0xb0], [1, 0, 0, 0x45]);
    }

    #[test]
    fn a_multicast_attach_has_the_modifier_of_the_driver() {
        let mut modifier = AttachModifier {
            qpn: Qpn::from_low_bits(0x4a1),
            ..AttachModifier::default()
        };
        modifier.set_block_loopback(true);
        assert_eq!(modifier.as_bytes(), [0x80, 0, 4, 0xa1]);
    }
}
