//! Rings that a program and its device share (`struct rxe_queue_buf`), and their elements.

use linux_abi::abi_layout;
use zerocopy::native_endian::{U16, U32, U64};

/// Bytes of a ring's header; elements follow.
pub const RING_HEADER: u64 = 384;
/// Offset of the log2 of an element's bytes.
pub const LOG2_ELEMENT_SIZE: u64 = 0;
/// Offset of the mask of indices.
pub const INDEX_MASK: u64 = 4;
/// Offset of the producer's index.
pub const PRODUCER_INDEX: u64 = 128;
/// Offset of the consumer's index.
pub const CONSUMER_INDEX: u64 = 256;

/// Bytes of a send request without its list of entries or inline bytes.
pub const SEND_HEADER: usize = size_of::<SendElement>();
/// Bytes of a receive request without its list of entries.
pub const RECEIVE_HEADER: usize = size_of::<ReceiveElement>();
/// Bytes of an entry of a list.
pub const SGE_SIZE: usize = size_of::<SgeElement>();

abi_layout! {
    /// Place of a ring in the memory file (`struct mminfo`).
    pub MappedRing, 16 {
        /// Offset.
        pub offset: U64,
        /// Bytes; 0 for none.
        pub size: U32,
        /// Padding.
        pub padding: U32,
    }
}

abi_layout! {
    /// A completion (`struct ib_uverbs_wc`).
    pub CompletionElement, 48 {
        /// The program's name for the request.
        pub wr_id: U64,
        /// `enum ibv_wc_status`.
        pub status: U32,
        /// `enum ibv_wc_opcode`.
        pub opcode: U32,
        /// The vendor's syndrome.
        pub vendor_err: U32,
        /// Bytes transferred.
        pub byte_len: U32,
        /// Immediate data in the wire's byte order, or the key that was invalidated in the host's.
        pub immediate: [u8; 4],
        /// Queue pair.
        pub qp_num: U32,
        /// Queue pair of the sender.
        pub src_qp: U32,
        /// `IBV_WC_*`.
        pub wc_flags: U32,
        /// Index of the P_Key.
        pub pkey_index: U16,
        /// LID of the sender.
        pub slid: U16,
        /// Service level.
        pub sl: u8,
        /// Low bits of the LID by which the packet was addressed.
        pub dlid_path_bits: u8,
        /// Local port.
        pub port_num: u8,
        /// Reserved.
        pub reserved: u8,
    }
}

abi_layout! {
    /// A send request up to its list of entries or inline bytes (`struct rxe_send_wqe`).
    pub SendElement, 208 {
        /// The program's name for the request.
        pub wr_id: U64,
        /// Reserved.
        pub reserved: U32,
        /// `enum ibv_wr_opcode`.
        pub opcode: U32,
        /// `IBV_SEND_*`.
        pub send_flags: U32,
        /// Immediate data in the wire's byte order, or the key to be invalidated in the host's.
        pub immediate: [u8; 4],
        /// Arguments of the opcode.
        pub arguments: [u8; 120],
        /// Status, state: the kernel's.
        pub status: [u8; 8],
        /// Address of the first byte.
        pub iova: U64,
        /// Packets: the kernel's.
        pub packets: [u8; 24],
        /// Bytes of the message, which releases up to 56 count wrongly in some calls.
        pub length: U32,
        /// Progress: the kernel's.
        pub progress: [u8; 8],
        /// Entries of the list.
        pub num_sge: U32,
        /// Progress: the kernel's.
        pub progress2: [u8; 8],
    }
}

abi_layout! {
    /// Arguments of a write or a read.
    pub RdmaArguments, 16 {
        /// Address at the peer.
        pub remote_addr: U64,
        /// Key of the peer.
        pub rkey: U32,
        /// Reserved.
        pub reserved: U32,
    }
}

abi_layout! {
    /// Arguments of a flush.
    pub FlushArguments, 24 {
        /// Address at the peer.
        pub remote_addr: U64,
        /// Reserved: programs leave it out, and rxe takes [`SendElement::length`].
        pub length: U32,
        /// Key of the peer.
        pub rkey: U32,
        /// `enum ib_placement_type`.
        pub placement: u8,
        /// `enum ib_selectivity_level`: 0 is a range, 1 the whole region.
        pub selectivity: u8,
        /// Reserved.
        pub reserved: [u8; 6],
    }
}

abi_layout! {
    /// Arguments of an atomic.
    pub AtomicArguments, 32 {
        /// Address at the peer.
        pub remote_addr: U64,
        /// Value to compare with, or to add.
        pub compare_add: U64,
        /// Value to store.
        pub swap: U64,
        /// Key of the peer.
        pub rkey: U32,
        /// Reserved.
        pub reserved: U32,
    }
}

abi_layout! {
    /// Arguments of the binding of a memory window.
    pub BindArguments, 32 {
        /// Address of the first byte, as the region counts addresses.
        pub addr: U64,
        /// Bytes.
        pub length: U64,
        /// Local key of the region.
        pub mr_lkey: U32,
        /// Key of the window.
        pub mw_rkey: U32,
        /// New key of the window, of which the low byte counts.
        pub rkey: U32,
        /// `IBV_ACCESS_*`.
        pub access: U32,
    }
}

abi_layout! {
    /// Arguments of a datagram, without the address vector behind, which stands for itself only in old releases.
    pub DatagramArguments, 16 {
        /// Queue pair of the destination.
        pub remote_qpn: U32,
        /// Q_Key.
        pub remote_qkey: U32,
        /// Index of the P_Key.
        pub pkey_index: U16,
        /// Reserved.
        pub reserved: U16,
        /// Number of the address handle.
        pub ah_num: U32,
    }
}

abi_layout! {
    /// A receive request up to its list of entries (`struct rxe_recv_wqe`).
    pub ReceiveElement, 40 {
        /// The program's name for the request.
        pub wr_id: U64,
        /// Reserved.
        pub reserved: U64,
        /// Bytes of all entries.
        pub length: U32,
        /// Progress: the kernel's.
        pub progress: [u8; 8],
        /// Entries of the list.
        pub num_sge: U32,
        /// Progress: the kernel's.
        pub progress2: [u8; 8],
    }
}

abi_layout! {
    /// An entry of a list.
    pub SgeElement, 16 {
        /// First byte.
        pub addr: U64,
        /// Bytes.
        pub length: U32,
        /// Local key.
        pub lkey: U32,
    }
}

/// Numbers of send requests (`enum ibv_wr_opcode`).
pub mod opcode {
    /// RDMA write.
    pub const RDMA_WRITE: u32 = 0;
    /// RDMA write with immediate data.
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    /// Send.
    pub const SEND: u32 = 2;
    /// Send with immediate data.
    pub const SEND_WITH_IMM: u32 = 3;
    /// RDMA read.
    pub const RDMA_READ: u32 = 4;
    /// Atomic compare and swap.
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    /// Atomic fetch and add.
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    /// Local invalidate.
    pub const LOCAL_INV: u32 = 7;
    /// Bind a memory window.
    pub const BIND_MW: u32 = 8;
    /// Send with invalidate.
    pub const SEND_WITH_INV: u32 = 9;
    /// Flush, of as many bytes as [`SendElement::length`](super::SendElement::length) says.
    pub const FLUSH: u32 = 14;
    /// Atomic write, whose 8 bytes stand in place of the list.
    pub const ATOMIC_WRITE: u32 = 15;
}

/// Flags of send requests (`enum ibv_send_flags`).
pub mod send_flags {
    /// Waits for earlier reads and atomics.
    pub const FENCE: u32 = 1;
    /// Completes on success, too.
    pub const SIGNALED: u32 = 2;
    /// Raises a solicited event at the receiver.
    pub const SOLICITED: u32 = 4;
    /// Carries its bytes.
    pub const INLINE: u32 = 8;
}
