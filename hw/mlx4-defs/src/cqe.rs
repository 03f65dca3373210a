//! Completion queue entries.

use ib_wire::{Lid, Qpn, Sl, bit_fields};
use zerocopy::network_endian::{U16, U32};

/// Bytes of an entry.
pub const CQE_SIZE: usize = size_of::<Cqe>();

layout! {
    /// An entry (`struct mlx4_cqe`). With [`CqeOpcode::ERROR`] it is a [`ErrorCqe`].
    Cqe, 32 {
        /// Ethernet only.
        0x00 pub vlan_flags: u8,
        /// The queue pair.
        0x01 pub qpn: Qpn,
        /// Immediate data as it came, or the invalidated R_Key, or, in a datagram without immediate data, the
        /// index of its P_Key.
        0x04 pub immediate: [u8; 4],
        /// See [`Self::grh`] and [`Self::path_bits`].
        0x08 pub grh_path_bits: u8,
        /// The remote queue pair of a datagram.
        0x09 pub remote_qpn: Qpn,
        /// See [`Self::sl`].
        0x0c pub sl_vid: U16,
        /// The remote port of a datagram.
        0x0e pub slid: Lid,
        /// Results of the checks of the payload, such as [`Self::IP_OK`].
        0x10 pub status: U16,
        /// Ethernet only.
        0x12 pub ipv6_ext_mask: u8,
        /// Ethernet only.
        0x13 pub badfcs_enc: u8,
        /// Bytes that arrived. Those of a datagram count the space for the GRH.
        0x14 pub byte_count: U32,
        /// The work request: the running count of a send, the slot in a shared receive queue.
        0x18 pub wqe_index: U16,
        /// Checksum of the payload: [`Self::CHECKSUM_OK`] if its own is right.
        0x1a pub checksum: U16,
        /// Reserved.
        0x1c pub reserved: [u8; 3],
        /// See [`OwnerOpcode`].
        0x1f pub owner_opcode: OwnerOpcode,
    }
}

impl Cqe {
    /// [`Self::status`]: the packet is one of IPv4.
    pub const IPV4: u16 = 1 << 6;
    /// [`Self::status`]: it carries TCP.
    pub const TCP: u16 = 1 << 10;
    /// [`Self::status`]: it carries UDP.
    pub const UDP: u16 = 1 << 11;
    /// [`Self::status`]: the checksum of its IPv4 header is right.
    pub const IP_OK: u16 = 1 << 12;
    /// [`Self::checksum`] where that of TCP or UDP is right.
    pub const CHECKSUM_OK: u16 = 0xffff;

    bit_fields! {
        /// The packet had a GRH.
        grh, set_grh: bool = grh_path_bits >> 7, 1;
        /// Low bits of the DLID by which the packet came.
        path_bits, set_path_bits: u8 = grh_path_bits >> 0, 7;
        /// Service level.
        sl, set_sl: Sl = sl_vid >> 12, 4;
    }
}

layout! {
    /// An entry for work that failed (`struct mlx4_err_cqe`).
    ErrorCqe, 32 {
        /// Reserved.
        0x00 pub reserved0: u8,
        /// The queue pair.
        0x01 pub qpn: Qpn,
        /// Reserved.
        0x04 pub reserved1: [u8; 20],
        /// As in [`Cqe`].
        0x18 pub wqe_index: U16,
        /// More about the error, for the vendor.
        0x1a pub vendor_syndrome: u8,
        /// The error.
        0x1b pub syndrome: Syndrome,
        /// Reserved.
        0x1c pub reserved2: [u8; 3],
        /// See [`OwnerOpcode`].
        0x1f pub owner_opcode: OwnerOpcode,
    }
}

ib_wire::open_enum! {
    /// Why work failed (`MLX4_CQE_SYNDROME_*`). Any other value is `IB_WC_GENERAL_ERR` to the driver.
    Syndrome(u8) {
        /// The message does not fit.
        LOCAL_LENGTH = 0x01,
        /// The work request is inconsistent, or not for this queue pair.
        LOCAL_QP_OP = 0x02,
        /// A local key does not cover the memory.
        LOCAL_PROTECTION = 0x04,
        /// The queue pair left the states that work is done in.
        FLUSHED = 0x05,
        /// A memory window could not be bound.
        MW_BIND = 0x06,
        /// The response was malformed.
        BAD_RESPONSE = 0x10,
        /// A remote access to local memory failed.
        LOCAL_ACCESS = 0x11,
        /// The remote queue pair found the request invalid.
        REMOTE_INVALID_REQUEST = 0x12,
        /// The remote key does not cover the memory.
        REMOTE_ACCESS = 0x13,
        /// The remote queue pair failed.
        REMOTE_OPERATION = 0x14,
        /// No acknowledgement came.
        RETRY_EXCEEDED = 0x15,
        /// The remote queue pair had no receive posted.
        RNR_RETRY_EXCEEDED = 0x16,
        /// The remote operation was aborted.
        REMOTE_ABORTED = 0x22,
    }
}

transparent! {
    /// The last byte of an entry (`owner_sr_opcode`), to be written after all others.
    pub struct OwnerOpcode(pub u8);
}

impl OwnerOpcode {
    /// The byte of the completion of a send request. The opcode is that of its work request
    /// ([`crate::wqe::WqeOpcode`]), or [`CqeOpcode::ERROR`].
    #[must_use]
    pub const fn send(opcode: u8) -> Self {
        Self(opcode & OPCODE_MASK | IS_SEND)
    }

    /// The byte of the completion of a receive request.
    #[must_use]
    pub const fn receive(opcode: CqeOpcode) -> Self {
        Self(opcode.get() & OPCODE_MASK)
    }

    /// The byte with the owner's bit: entry `n` of the running count is the driver's if it equals
    /// `n & entries != 0`.
    #[must_use]
    pub const fn with_owner(self, owner: bool) -> Self {
        Self(self.0 & !OWNER | if owner { OWNER } else { 0 })
    }

    /// The owner's bit.
    #[must_use]
    pub const fn owner(self) -> bool {
        self.0 & OWNER != 0
    }

    /// Whether a send request is complete.
    #[must_use]
    pub const fn is_send(self) -> bool {
        self.0 & IS_SEND != 0
    }

    /// The opcode: for a send request that of the work request, else one of [`CqeOpcode`].
    #[must_use]
    pub const fn opcode(self) -> u8 {
        self.0 & OPCODE_MASK
    }

    /// Whether the entry is an [`ErrorCqe`].
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.opcode() == CqeOpcode::ERROR.get()
    }
}

/// `MLX4_CQE_OWNER_MASK`.
const OWNER: u8 = 0x80;
/// `MLX4_CQE_IS_SEND_MASK`.
const IS_SEND: u8 = 0x40;
/// `MLX4_CQE_OPCODE_MASK`.
const OPCODE_MASK: u8 = 0x1f;

ib_wire::open_enum! {
    /// What a receive entry tells (`MLX4_RECV_OPCODE_*`), and the two that stand for no work request's
    /// success (`MLX4_CQE_OPCODE_*`).
    CqeOpcode(u8) {
        /// An RDMA write with immediate data.
        RECV_RDMA_WRITE_IMM = 0x00,
        /// A send.
        RECV_SEND = 0x01,
        /// A send with immediate data.
        RECV_SEND_IMM = 0x02,
        /// A send that invalidated a key.
        RECV_SEND_INVAL = 0x03,
        /// The queue goes on in its new buffer.
        RESIZE = 0x16,
        /// Work failed.
        ERROR = 0x1e,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn the_last_byte_has_owner_direction_and_opcode() {
        let byte = OwnerOpcode::send(0x0a).with_owner(true);
        assert_eq!(byte, OwnerOpcode(0xca));
        assert!(byte.owner() && byte.is_send() && !byte.is_error());
        assert_eq!(byte.opcode(), 0x0a);
        let byte = OwnerOpcode::receive(CqeOpcode::RECV_SEND);
        assert_eq!(byte, OwnerOpcode(1));
        assert!(OwnerOpcode::send(CqeOpcode::ERROR.get()).is_error());
    }

    #[test]
    fn fields_of_a_datagram_are_where_the_driver_reads_them() {
        let mut cqe = Cqe {
            qpn: Qpn::from_low_bits(0x4a1),
            remote_qpn: Qpn::from_low_bits(0x12_3456),
            slid: Lid::new(7),
            byte_count: U32::new(104),
            ..Cqe::default()
        };
        cqe.set_grh(true);
        cqe.set_path_bits(3);
        cqe.set_sl(Sl::from_low_bits(5));
        let words = [0x4a1_u32, 0, 0x8312_3456, 0x5000_0007, 0, 104, 0, 0];
        let bytes: std::vec::Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(cqe.as_bytes(), bytes);
    }
}
