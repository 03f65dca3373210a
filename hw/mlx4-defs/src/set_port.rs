//! Changing a port: the input of [`crate::Opcode::SET_PORT`].

use ib_wire::bit_fields;
use zerocopy::network_endian::U32;

layout! {
    /// The input for an InfiniBand port, op modifier 0 (`mlx4_ib_SET_PORT`).
    mailbox SetPort, 8 {
        /// Reserved.
        0x0 pub reserved: [u8; 3],
        /// See [`Self::reset_qkey_violations`].
        0x3 pub flags: u8,
        /// The new capability mask.
        0x4 pub capability_mask: U32,
    }
}

impl SetPort {
    bit_fields! {
        /// The counter of Q_Key violations starts at zero.
        reset_qkey_violations, set_reset_qkey_violations: bool = flags >> 0, 1;
    }
}
