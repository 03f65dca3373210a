//! The layouts that Linux' uverbs shares with programs (`rdma/ib_user_verbs.h`, `rdma/rdma_user_rxe.h`). Integers are in the
//! host's byte order unless their type says otherwise.

pub mod completion_queue;
pub mod device;
pub mod memory;
mod path;
pub mod queue_pair;
pub mod rdma_cm;
pub mod ring;
pub mod shared_receive_queue;

use linux_abi::abi_layout;
use zerocopy::native_endian::{U16, U32, U64};

/// Version of the provider's part: rxe with queues in mapped memory.
pub const RXE_ABI_VERSION: u32 = 2;

/// Identifies rxe among the kernel's drivers (`RDMA_DRIVER_RXE`).
pub const RXE_DRIVER_ID: u32 = 14;

/// Marks the extended form of a command.
pub const EXTENDED: u32 = 1 << 31;

/// Bits of a command word that number the command.
pub const COMMAND_MASK: u32 = 0xff;

abi_layout! {
    /// Header of each command (`struct ib_uverbs_cmd_hdr`).
    pub CommandHeader, 8 {
        /// Number of the command, and [`EXTENDED`].
        pub command: U32,
        /// Length of the command: in words of 4 bytes with this header, of the extended form in words of 8 bytes without.
        pub in_words: U16,
        /// Length of the answer, in the same words.
        pub out_words: U16,
    }
}

abi_layout! {
    /// Second header of the extended form (`struct ib_uverbs_ex_cmd_hdr`).
    pub ExtendedHeader, 16 {
        /// Address of the answer in the program.
        pub response: U64,
        /// Length of the provider's part, in words of 8 bytes.
        pub provider_in_words: U16,
        /// Length of the provider's part of the answer, in words of 8 bytes.
        pub provider_out_words: U16,
        /// Reserved.
        pub reserved: U32,
    }
}

/// Numbers of commands.
pub mod command {
    /// Opens the context of a file.
    pub const GET_CONTEXT: u32 = 0;
    /// Reads the device's attributes; also extended.
    pub const QUERY_DEVICE: u32 = 1;
    /// Reads a port's attributes.
    pub const QUERY_PORT: u32 = 2;
    /// Creates a protection domain.
    pub const ALLOC_PD: u32 = 3;
    /// Destroys a protection domain.
    pub const DEALLOC_PD: u32 = 4;
    /// Creates an address handle.
    pub const CREATE_AH: u32 = 5;
    /// Destroys an address handle.
    pub const DESTROY_AH: u32 = 8;
    /// Registers memory.
    pub const REG_MR: u32 = 9;
    /// Deregisters memory.
    pub const DEREG_MR: u32 = 13;
    /// Allocates a memory window.
    pub const ALLOC_MW: u32 = 14;
    /// Deallocates a memory window.
    pub const DEALLOC_MW: u32 = 16;
    /// Opens a completion channel.
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    /// Creates a completion queue; also extended.
    pub const CREATE_CQ: u32 = 18;
    /// Resizes a completion queue.
    pub const RESIZE_CQ: u32 = 19;
    /// Destroys a completion queue.
    pub const DESTROY_CQ: u32 = 20;
    /// Arms a completion queue.
    pub const REQ_NOTIFY_CQ: u32 = 23;
    /// Creates a queue pair; also extended.
    pub const CREATE_QP: u32 = 24;
    /// Reads a queue pair.
    pub const QUERY_QP: u32 = 25;
    /// Changes a queue pair; also extended.
    pub const MODIFY_QP: u32 = 26;
    /// Destroys a queue pair.
    pub const DESTROY_QP: u32 = 27;
    /// Rings the doorbell of a send queue.
    pub const POST_SEND: u32 = 28;
    /// Attaches a queue pair to a multicast group.
    pub const ATTACH_MCAST: u32 = 30;
    /// Detaches a queue pair from a multicast group.
    pub const DETACH_MCAST: u32 = 31;
    /// Creates a shared receive queue.
    pub const CREATE_SRQ: u32 = 32;
    /// Changes a shared receive queue.
    pub const MODIFY_SRQ: u32 = 33;
    /// Reads a shared receive queue.
    pub const QUERY_SRQ: u32 = 34;
    /// Destroys a shared receive queue.
    pub const DESTROY_SRQ: u32 = 35;
    /// Creates an extended shared receive queue, of which only the basic type is offered.
    pub const CREATE_XSRQ: u32 = 39;
}

abi_layout! {
    /// Commands that name one object and whose answer is empty: DEALLOC_PD, DESTROY_AH, DEREG_MR, DEALLOC_MW.
    pub HandleCommand, 4 {
        /// Handle of the object.
        pub handle: U32,
    }
}

abi_layout! {
    /// Commands that name one object and have an answer: DESTROY_CQ, DESTROY_QP, DESTROY_SRQ, QUERY_SRQ.
    pub AnsweredHandleCommand, 16 {
        /// Address of the answer.
        pub response: U64,
        /// Handle of the object.
        pub handle: U32,
        /// Reserved, or the mask of attributes.
        pub reserved: U32,
    }
}
