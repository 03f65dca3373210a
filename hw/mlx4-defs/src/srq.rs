//! Shared receive queues: contexts.

use ib_wire::bit_fields;
use zerocopy::network_endian::{U16, U32};

use crate::mtt::MttBase;
use crate::{Cqn, DoorbellRecordAddr, LogPageSize, Srqn};

layout! {
    /// The input of [`crate::Opcode::SW2HW_SRQ`] and the output of [`crate::Opcode::QUERY_SRQ`]
    /// (`struct mlx4_srq_context`).
    mailbox SrqContext, 48 {
        /// See the accessors.
        0x00 pub state_log_size: u8,
        /// The queue's number.
        0x01 pub srqn: Srqn,
        /// See [`Self::log_stride`].
        0x04 pub log_stride_byte: u8,
        /// Reserved.
        0x05 pub reserved0: u8,
        /// Extended reliable connections only.
        0x06 pub xrcd: U16,
        /// Where the queue begins in its first page, in units of 64 bytes.
        0x08 pub page_offset: u8,
        /// Extended reliable connections only.
        0x09 pub cqn: Cqn,
        /// Reserved.
        0x0c pub reserved1: U32,
        /// Size of the pages.
        0x10 pub log_page_size: LogPageSize,
        /// Reserved.
        0x11 pub reserved2: [u8; 2],
        /// The pages.
        0x13 pub mtt_base: MttBase,
        /// The protection domain (17 bits).
        0x18 pub pd: U32,
        /// The number of receives below which there is an event. Written by the device.
        0x1c pub limit_watermark: U16,
        /// Receives that are posted. Written by the device.
        0x1e pub wqe_count: U16,
        /// Reserved.
        0x20 pub reserved3: U16,
        /// Running count. Written by the device.
        0x22 pub wqe_counter: U16,
        /// Reserved.
        0x24 pub reserved4: U32,
        /// Address of the doorbell record ([`crate::receive::DoorbellRecord`]).
        0x28 pub doorbell_record: DoorbellRecordAddr,
    }
}

impl SrqContext {
    bit_fields! {
        /// The queue's state. Written by the device.
        state, set_state: u8 = state_log_size >> 4, 4;
        /// Log2 of the number of receives.
        log_entries, set_log_entries: u8 = state_log_size >> 0, 4;
        /// Log2 of the bytes of a receive, less 4.
        log_stride, set_log_stride: u8 = log_stride_byte >> 0, 3;
    }
}
