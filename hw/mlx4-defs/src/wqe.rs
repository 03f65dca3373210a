//! Work requests: segments of 16 bytes and their multiples.
//!
//! A send starts with a [`ControlSegment`], which is followed by what its opcode and the transport ask for
//! and then by data: [`DataSegment`]s, or [`InlineHeader`]s with the bytes themselves. A receive has
//! [`DataSegment`]s alone.

use ib_wire::{Gid, Lid, PortNum, QKey, Qpn, Sl, bit_fields};
use zerocopy::network_endian::{U16, U32, U64};

/// Bytes that the size of a work request counts in.
pub const SEGMENT_UNIT: usize = 16;

/// Bytes that inline data does not cross without another header (`MLX4_INLINE_ALIGN`).
pub const INLINE_ALIGN: usize = 64;

/// What the first four bytes of each 64 are overwritten with in a send that is not posted.
pub const STAMP: [u8; 4] = [0xff; 4];

/// The key in the segment behind the last one of a receive (`MLX4_INVALID_LKEY`).
pub const INVALID_LKEY: u32 = 0x100;

/// Bytes that the driver keeps free in a send queue, besides one request, so that the device comes to
/// its end: `(SQ_HEADROOM >> log_stride) + 1` requests (`MLX4_IB_SQ_HEADROOM`).
pub const SQ_HEADROOM: u32 = 2048;

/// In [`DatagramSegment::qkey`]: the queue pair's own Q_Key counts (`IB_QP_SET_QKEY`).
pub const USE_QP_QKEY: u32 = 1 << 31;

ib_wire::open_enum! {
    /// What a send does (`MLX4_OPCODE_*`).
    WqeOpcode(u8) {
        /// Nothing.
        NOP = 0x00,
        /// Send, and invalidate a key of the receiver.
        SEND_INVAL = 0x01,
        /// RDMA write.
        RDMA_WRITE = 0x08,
        /// RDMA write with immediate data.
        RDMA_WRITE_IMM = 0x09,
        /// Send.
        SEND = 0x0a,
        /// Send with immediate data.
        SEND_IMM = 0x0b,
        /// Send one packet as several.
        LSO = 0x0e,
        /// RDMA read.
        RDMA_READ = 0x10,
        /// Compare and swap.
        ATOMIC_CS = 0x11,
        /// Fetch and add.
        ATOMIC_FA = 0x12,
        /// Compare and swap of some bits.
        MASKED_ATOMIC_CS = 0x14,
        /// Fetch and add of some bits.
        MASKED_ATOMIC_FA = 0x15,
        /// Bind a memory window.
        BIND_MW = 0x18,
        /// Register memory.
        FMR = 0x19,
        /// Invalidate a local key.
        LOCAL_INVAL = 0x1b,
        /// Of the device's own queue pairs.
        CONFIG_CMD = 0x1f,
    }
}

ib_wire::impl_bits! {
    WqeOpcode, u8, WqeOpcode::new, WqeOpcode::get;
}

layout! {
    /// What a send starts with (`struct mlx4_wqe_ctrl_seg`).
    ControlSegment, 16 {
        /// See the accessors. Written last.
        0x0 pub owner_opcode: U32,
        /// Ethernet only.
        0x4 pub vlan: U16,
        /// Ethernet only.
        0x6 pub vlan_flags: u8,
        /// See [`Self::fence`] and [`Self::size`].
        0x7 pub fence_size: u8,
        /// See the accessors.
        0x8 pub flags: U32,
        /// Immediate data as it goes out, or the R_Key to invalidate.
        0xc pub immediate: [u8; 4],
    }
}

impl ControlSegment {
    /// [`Self::completion`] that asks for an entry in the completion queue.
    pub const SIGNALED: u8 = 3;

    bit_fields! {
        /// Whose the request is: request `n` of the running count is the device's if this equals
        /// `n & requests != 0`.
        owner, set_owner: bool = owner_opcode >> 31, 1;
        /// The header of a segmented packet is longer than 64 bytes.
        big_header, set_big_header: bool = owner_opcode >> 6, 1;
        /// What to do.
        opcode, set_opcode: WqeOpcode = owner_opcode >> 0, 5;
        /// Wait until earlier reads and atomics are complete.
        fence, set_fence: bool = fence_size >> 6, 1;
        /// Size of the request in units of [`SEGMENT_UNIT`], this segment included.
        size, set_size: u8 = fence_size >> 0, 6;
        /// Upper 24 bits: buffer or queue at the remote end.
        remote_buffer, set_remote_buffer: u32 = flags >> 8, 24;
        /// Later requests see the effects of this one.
        strong_order, set_strong_order: bool = flags >> 7, 1;
        /// Checksum of TCP or UDP.
        l4_checksum, set_l4_checksum: bool = flags >> 5, 1;
        /// Checksum of IP.
        ip_checksum, set_ip_checksum: bool = flags >> 4, 1;
        /// [`Self::SIGNALED`], or 0.
        completion, set_completion: u8 = flags >> 2, 2;
        /// The receiver is to be woken.
        solicited, set_solicited: bool = flags >> 1, 1;
        /// The packet does not leave the port.
        force_loopback, set_force_loopback: bool = flags >> 0, 1;
    }
}

layout! {
    /// The sizes of a message that the device cuts into packets; its headers follow (`struct mlx4_wqe_lso_seg`).
    SegmentationHeader, 4 {
        /// Bytes of each packet behind the headers; the last one may have fewer.
        0x0 pub mss: U16,
        /// Bytes of the headers, which all packets have.
        0x2 pub header_length: U16,
    }
}

layout! {
    /// Where a datagram goes (`struct mlx4_av`).
    AddressVector, 32 {
        /// See [`Self::port`] and [`Self::force_loopback`].
        0x00 pub flags_port: u8,
        /// The protection domain.
        0x01 pub pd: [u8; 3],
        /// Reserved.
        0x04 pub reserved0: u8,
        /// See [`Self::grh`] and [`Self::path_bits`].
        0x05 pub grh_path_bits: u8,
        /// Destination LID.
        0x06 pub dlid: Lid,
        /// Reserved.
        0x08 pub reserved1: u8,
        /// Index of the source GID in the function's table.
        0x09 pub sgid_index: u8,
        /// 0, or 5 more than the value of IBA's static rate.
        0x0a pub static_rate: u8,
        /// Hop limit.
        0x0b pub hop_limit: u8,
        /// See [`Self::sl`], [`Self::traffic_class`] and [`Self::flow_label`].
        0x0c pub sl_tclass_flow: U32,
        /// Destination GID.
        0x10 pub dgid: Gid,
    }
}

impl AddressVector {
    bit_fields! {
        /// The packet does not leave the port.
        force_loopback, set_force_loopback: bool = flags_port >> 7, 1;
        /// The port's number.
        port_number, set_port_number: u8 = flags_port >> 0, 7;
        /// Packets have a GRH.
        grh, set_grh: bool = grh_path_bits >> 7, 1;
        /// Low bits of the source LID.
        path_bits, set_path_bits: u8 = grh_path_bits >> 0, 7;
        /// Service level.
        sl, set_sl: Sl = sl_tclass_flow >> 28, 4;
        /// Traffic class.
        traffic_class, set_traffic_class: u8 = sl_tclass_flow >> 20, 8;
        /// Flow label.
        flow_label, set_flow_label: u32 = sl_tclass_flow >> 0, 20;
    }

    /// The port, as the guest numbers it.
    #[must_use]
    pub fn port(&self) -> PortNum {
        PortNum(self.port_number())
    }
}

layout! {
    /// Destination of a datagram (`struct mlx4_wqe_datagram_seg`).
    DatagramSegment, 48 {
        /// Where it goes.
        0x00 pub av: AddressVector,
        /// Reserved.
        0x20 pub reserved: u8,
        /// The remote queue pair.
        0x21 pub remote_qpn: Qpn,
        /// The remote Q_Key, or one with [`USE_QP_QKEY`].
        0x24 pub qkey: QKey,
        /// Ethernet only.
        0x28 pub vlan: U16,
        /// Ethernet only.
        0x2a pub mac: [u8; 6],
    }
}

layout! {
    /// Remote memory (`struct mlx4_wqe_raddr_seg`).
    RemoteAddressSegment, 16 {
        /// Address.
        0x0 pub address: U64,
        /// Its key.
        0x8 pub rkey: U32,
        /// Reserved.
        0xc pub reserved: U32,
    }
}

layout! {
    /// Operands of an atomic (`struct mlx4_wqe_atomic_seg`). With [`WqeOpcode::MASKED_ATOMIC_FA`] the second one
    /// marks the bits above which no carry goes.
    AtomicSegment, 16 {
        /// What to store or to add.
        0x0 pub swap_add: U64,
        /// What to compare with.
        0x8 pub compare: U64,
    }
}

layout! {
    /// Operands of [`WqeOpcode::MASKED_ATOMIC_CS`] (`struct mlx4_wqe_masked_atomic_seg`).
    MaskedAtomicSegment, 32 {
        /// What to store.
        0x00 pub swap_add: U64,
        /// What to compare with.
        0x08 pub compare: U64,
        /// Which bits to store.
        0x10 pub swap_add_mask: U64,
        /// Which bits to compare.
        0x18 pub compare_mask: U64,
    }
}

layout! {
    /// Local memory (`struct mlx4_wqe_data_seg`).
    DataSegment, 16 {
        /// Bytes. With bit 31 this is an [`InlineHeader`].
        0x0 pub byte_count: U32,
        /// Key of the memory.
        0x4 pub lkey: U32,
        /// Address.
        0x8 pub address: U64,
    }
}

impl DataSegment {
    /// Whether the list of a receive ends before this segment.
    #[must_use]
    pub fn ends_receive(&self) -> bool {
        self.byte_count.get() == 0 && self.lkey.get() == INVALID_LKEY
    }
}

layout! {
    /// What stands before inline data (`struct mlx4_wqe_inline_seg`). The next header is at the next multiple of
    /// [`SEGMENT_UNIT`] behind the data.
    InlineHeader, 4 {
        /// See the accessors.
        0x0 pub word: U32,
    }
}

impl InlineHeader {
    /// The header of so many bytes, of which the low ten bits count.
    #[must_use]
    pub fn new(length: u16) -> Self {
        let mut header = Self::default();
        header.set_inline(true);
        header.set_length(length);
        header
    }

    bit_fields! {
        /// Data follows (`MLX4_INLINE_SEG`). Otherwise this is a [`DataSegment`].
        inline, set_inline: bool = word >> 31, 1;
        /// Bytes of data.
        length, set_length: u16 = word >> 0, 10;
    }
}

layout! {
    /// The key to invalidate (`struct mlx4_wqe_local_inval_seg`).
    LocalInvalidateSegment, 32 {
        /// Reserved.
        0x00 pub reserved0: U64,
        /// The key.
        0x08 pub key: U32,
        /// Reserved.
        0x0c pub reserved1: [u8; 20],
    }
}

layout! {
    /// The memory to register (`struct mlx4_wqe_fmr_seg`).
    RegisterSegment, 48 {
        /// See the accessors.
        0x00 pub flags: U32,
        /// The key to give the region.
        0x04 pub key: U32,
        /// DMA address of a list of [`crate::mtt::MttEntry`].
        0x08 pub page_list: U64,
        /// First address of the region.
        0x10 pub start: U64,
        /// Bytes of the region.
        0x18 pub length: U64,
        /// Offset in the first page; zero.
        0x20 pub offset: U32,
        /// Log2 of the bytes of a page.
        0x24 pub log_page_size: U32,
        /// Reserved.
        0x28 pub reserved: U64,
    }
}

impl RegisterSegment {
    bit_fields! {
        /// Remote atomic operations (`MLX4_WQE_FMR_AND_BIND_PERM_ATOMIC`).
        atomic, set_atomic: bool = flags >> 31, 1;
        /// Remote writes (`MLX4_WQE_FMR_AND_BIND_PERM_REMOTE_WRITE`).
        remote_write, set_remote_write: bool = flags >> 30, 1;
        /// Remote reads (`MLX4_WQE_FMR_AND_BIND_PERM_REMOTE_READ`).
        remote_read, set_remote_read: bool = flags >> 29, 1;
        /// Local writes (`MLX4_WQE_FMR_PERM_LOCAL_WRITE`).
        local_write, set_local_write: bool = flags >> 28, 1;
        /// Local reads (`MLX4_WQE_FMR_PERM_LOCAL_READ`).
        local_read, set_local_read: bool = flags >> 27, 1;
    }
}

layout! {
    /// The word of the send doorbell, and of nothing else.
    SendDoorbell, 4 {
        /// The queue pair whose send queue has something.
        0x0 pub qpn: Qpn,
        /// Zero.
        0x3 pub reserved: u8,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_doorbell_has_its_number_in_the_upper_bytes() {
        let doorbell = SendDoorbell {
            qpn: Qpn::from_low_bits(0x4a1),
            reserved: 0,
        };
        assert_eq!(doorbell.as_bytes(), [0, 4, 0xa1, 0]);
    }

    #[test]
    fn a_signaled_send_has_the_bits_of_the_driver() {
        let mut control = ControlSegment::default();
        control.set_opcode(WqeOpcode::SEND);
        control.set_owner(true);
        control.set_size(9);
        control.set_fence(true);
        control.set_completion(ControlSegment::SIGNALED);
        control.set_solicited(true);
        assert_eq!(
            control.as_bytes(),
            [0x80, 0, 0, 0x0a, 0, 0, 0, 0x49, 0, 0, 0, 0x0e, 0, 0, 0, 0]
        );
    }

    #[test]
    fn a_header_of_inline_data_is_told_from_a_data_segment() {
        let header = InlineHeader::new(56);
        assert_eq!(header.as_bytes(), [0x80, 0, 0, 0x38]);
        assert_eq!((header.inline(), header.length()), (true, 56));
        let end = DataSegment {
            lkey: U32::new(INVALID_LKEY),
            ..DataSegment::default()
        };
        assert!(end.ends_receive());
        assert!(!DataSegment::default().ends_receive());
    }

    fn words<const N: usize>(words: [u32; N]) -> std::vec::Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn remote_operations_have_the_bytes_of_the_driver() {
        let remote = RemoteAddressSegment {
            address: U64::new(0x1_0000_2000),
            rkey: U32::new(0x4001),
            ..RemoteAddressSegment::default()
        };
        assert_eq!(remote.as_bytes(), words([1, 0x2000, 0x4001, 0]));
        let add = AtomicSegment {
            swap_add: U64::new(7),
            compare: U64::new(1 << 63),
        };
        assert_eq!(add.as_bytes(), words([0, 7, 1 << 31, 0]));
        let swap = MaskedAtomicSegment {
            swap_add: U64::new(1),
            compare: U64::new(2),
            swap_add_mask: U64::new(3),
            compare_mask: U64::new(4),
        };
        assert_eq!(swap.as_bytes(), words([0, 1, 0, 2, 0, 3, 0, 4]));
    }

    #[test]
    fn memory_operations_have_the_bytes_of_the_driver() {
        type Set = fn(&mut RegisterSegment);

        let gone = LocalInvalidateSegment {
            key: U32::new(0x4001),
            ..LocalInvalidateSegment::default()
        };
        assert_eq!(gone.as_bytes(), words([0, 0, 0x4001, 0, 0, 0, 0, 0]));
        let mut register = RegisterSegment {
            key: U32::new(0x4002),
            page_list: U64::new(0x1_0000_3000),
            start: U64::new(0x1_0000_2004),
            length: U64::new(0x2000),
            log_page_size: U32::new(12),
            ..RegisterSegment::default()
        };
        let flags: [(Set, u32); 5] = [
            (|r| r.set_atomic(true), 1 << 31),
            (|r| r.set_remote_write(true), 3 << 30),
            (|r| r.set_remote_read(true), 7 << 29),
            (|r| r.set_local_write(true), 15 << 28),
            (|r| r.set_local_read(true), 31 << 27),
        ];
        for (set, bits) in flags {
            set(&mut register);
            let expected = [bits, 0x4002, 1, 0x3000, 1, 0x2004, 0, 0x2000, 0, 12, 0, 0];
            assert_eq!(register.as_bytes(), words(expected));
        }
    }

    #[test]
    fn an_address_vector_has_the_bits_of_the_driver() {
        let mut av = AddressVector::default();
        av.set_port_number(1);
        av.set_force_loopback(true);
        av.set_grh(true);
        av.set_path_bits(3);
        av.set_sl(Sl::from_low_bits(3));
        av.set_traffic_class(0xab);
        av.set_flow_label(0x1_2345);
        assert_eq!(av.as_bytes()[..8], [0x81, 0, 0, 0, 0, 0x83, 0, 0]);
        assert_eq!(av.sl_tclass_flow.get(), 0x3ab1_2345);
        assert_eq!(av.port(), PortNum(1));
    }
}
