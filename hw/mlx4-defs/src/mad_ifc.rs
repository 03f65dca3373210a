//! Asking a port's management agent: parameters of [`crate::Opcode::MAD_IFC`] (`mlx4_MAD_IFC`).
//!
//! Both mailboxes start with a MAD of 256 bytes.

use ib_wire::mad::Mad;
use ib_wire::packet::Grh;
use ib_wire::{Lid, PortNum, Qpn, Sl, bit_fields};
use zerocopy::network_endian::{U16, U32};

layout! {
    /// The op modifier.
    MadIfcOp, 1 {
        /// The bits.
        0x0 pub bits: u8,
    }
}

impl MadIfcOp {
    bit_fields! {
        /// The MAD is answered whatever its M_Key.
        ignore_mkey, set_ignore_mkey: bool = bits >> 0, 1;
        /// The MAD is answered whatever its B_Key.
        ignore_bkey, set_ignore_bkey: bool = bits >> 1, 1;
        /// The input has [`MadIfcInput::packet`]: the MAD came from the network.
        has_packet, set_has_packet: bool = bits >> 2, 1;
        /// The answer is that to the network, not that to the host.
        network_view, set_network_view: bool = bits >> 3, 1;
    }
}

layout! {
    /// The input modifier.
    MadIfcModifier, 4 {
        /// LID of the sender, if the MAD came from the network.
        0x0 pub slid: Lid,
        /// Reserved.
        0x2 pub reserved: u8,
        /// The port's number.
        0x3 pub port: u8,
    }
}

impl MadIfcModifier {
    /// The modifier for a MAD of the host itself.
    #[must_use]
    pub fn new(port: PortNum) -> Self {
        Self {
            port: port.0,
            ..Self::default()
        }
    }
}

layout! {
    /// The input.
    mailbox MadIfcInput, 360 {
        /// The MAD.
        0x000 pub mad: Mad,
        /// How it came, with [`MadIfcOp::has_packet`].
        0x100 pub packet: MadIfcPacket,
    }
}

layout! {
    /// The output.
    mailbox MadIfcOutput, 256 {
        /// The answer.
        0x000 pub mad: Mad,
    }
}

layout! {
    /// How a MAD came from the network.
    MadIfcPacket, 104 {
        /// Reserved.
        0x00 pub reserved0: u8,
        /// The queue pair that received it.
        0x01 pub local_qpn: Qpn,
        /// Reserved.
        0x04 pub reserved1: U32,
        /// Reserved.
        0x08 pub reserved2: u8,
        /// The queue pair that sent it.
        0x09 pub remote_qpn: Qpn,
        /// See [`Self::sl`].
        0x0c pub sl_byte: u8,
        /// See [`Self::grh_present`] and [`Self::path_bits`].
        0x0d pub grh_path_bits: u8,
        /// Reserved.
        0x0e pub reserved3: [u8; 4],
        /// Index of its P_Key.
        0x12 pub pkey_index: U16,
        /// Reserved.
        0x14 pub reserved4: [u8; 44],
        /// Its GRH.
        0x40 pub grh: Grh,
    }
}

impl MadIfcPacket {
    bit_fields! {
        /// Service level.
        sl, set_sl: Sl = sl_byte >> 4, 4;
        /// [`Self::grh`] counts.
        grh_present, set_grh_present: bool = grh_path_bits >> 7, 1;
        /// Low bits of the DLID.
        path_bits, set_path_bits: u8 = grh_path_bits >> 0, 7;
    }
}
