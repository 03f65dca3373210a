//! Receive queues: doorbell records and work requests. See [`crate::wqe::DataSegment`] for what a request
//! consists of.

use ib_wire::bit_fields;
use zerocopy::network_endian::{U16, U32};

layout! {
    /// The doorbell record of a receive queue, shared or not, in guest memory. There is no other sign of
    /// a posted receive.
    DoorbellRecord, 4 {
        /// See [`Self::posted`].
        0x0 pub word: U32,
    }
}

impl DoorbellRecord {
    bit_fields! {
        /// Receives posted since the queue was made, modulo 2^16.
        posted, set_posted: u16 = word >> 0, 16;
    }
}

layout! {
    /// What a receive in a shared queue starts with (`struct mlx4_wqe_srq_next_seg`).
    SrqNextSegment, 16 {
        /// Reserved.
        0x0 pub reserved0: U16,
        /// Slot of the receive that comes after this one. Valid when this one is taken.
        0x2 pub next: U16,
        /// Reserved.
        0x4 pub reserved1: [u8; 12],
    }
}
