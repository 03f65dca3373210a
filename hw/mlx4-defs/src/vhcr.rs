//! The virtual command register.

use ib_wire::bit_fields;
use zerocopy::network_endian::{U16, U32, U64};

use crate::{Opcode, Status};

/// Bytes of a [`Vhcr`].
pub const VHCR_SIZE: usize = size_of::<Vhcr>();

/// The token of every command in the register (`CMD_POLL_TOKEN`). The token of the completion event is
/// another one: it counts the commands that ended by event.
pub const TOKEN: u16 = 0xffff;

layout! {
    /// The register in guest memory that holds a command and takes its status
    /// (`struct mlx4_vhcr_cmd`).
    Vhcr, 32 {
        /// Immediate parameter, or address of the input mailbox.
        0x00 pub in_param: U64,
        /// What the command is about: a port, a number.
        0x08 pub in_modifier: U32,
        /// Reserved.
        0x0c pub reserved0: U32,
        /// Address of the output mailbox, or the immediate result.
        0x10 pub out_param: U64,
        /// [`TOKEN`].
        0x18 pub token: U16,
        /// Reserved.
        0x1a pub reserved1: U16,
        /// How the command ended. Written by the device.
        0x1c pub status: Status,
        /// See [`Self::event`].
        0x1d pub flags: u8,
        /// See [`Self::opcode`].
        0x1e pub op: U16,
    }
}

impl Vhcr {
    bit_fields! {
        /// The driver waits for an event, not for the channel's toggle alone.
        event, set_event: bool = flags >> 6, 1;
        /// Which variant of the command.
        op_modifier, set_op_modifier: u8 = op >> 12, 4;
        /// What to do.
        opcode, set_opcode: Opcode = op >> 0, 12;
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_nop_has_the_bytes_of_the_driver() {
        let mut vhcr = Vhcr {
            in_modifier: U32::new(0x1f),
            token: U16::new(TOKEN),
            ..Vhcr::default()
        };
        vhcr.set_event(true);
        vhcr.set_opcode(Opcode::NOP);
        let mut bytes = [0; VHCR_SIZE];
        bytes[0xb] = 0x1f;
        bytes[0x18..0x1a].fill(0xff);
        bytes[0x1d] = 0x40;
        bytes[0x1f] = 0x31;
        assert_eq!(vhcr.as_bytes(), bytes);
    }

    #[test]
    fn the_variant_stands_above_the_opcode() {
        let mut vhcr = Vhcr::default();
        vhcr.set_opcode(Opcode::QUERY_FUNC_CAP);
        vhcr.set_op_modifier(1);
        assert_eq!(vhcr.op.get(), 0x1f0a);
        assert_eq!(vhcr.opcode(), Opcode::QUERY_FUNC_CAP);
    }
}
