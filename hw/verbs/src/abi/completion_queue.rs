//! Completion channels and queues, and the records of events.

use linux_abi::abi_layout;
use zerocopy::native_endian::{I32, U32, U64};

use super::ring::MappedRing;

abi_layout! {
    /// Answer of CREATE_COMP_CHANNEL.
    pub CreateCompChannelAnswer, 4 {
        /// Descriptor; the machine puts the channel's number here.
        pub fd: U32,
    }
}

abi_layout! {
    /// CREATE_CQ.
    pub CreateCq, 32 {
        /// Address of the answer.
        pub response: U64,
        /// The program's name for the queue, which events carry.
        pub user_handle: U64,
        /// Entries.
        pub cqe: U32,
        /// Completion vector.
        pub comp_vector: U32,
        /// Channel, or −1: of a program its descriptor, of the machine its number.
        pub comp_channel: I32,
        /// Reserved.
        pub reserved: U32,
    }
}

abi_layout! {
    /// The extended CREATE_CQ.
    pub ExtendedCreateCq, 32 {
        /// The program's name for the queue, which events carry.
        pub user_handle: U64,
        /// Entries.
        pub cqe: U32,
        /// Completion vector.
        pub comp_vector: U32,
        /// Channel, or −1: of a program its descriptor, of the machine its number.
        pub comp_channel: I32,
        /// Reserved.
        pub comp_mask: U32,
        /// Flags.
        pub flags: U32,
        /// Reserved.
        pub reserved: U32,
    }
}

abi_layout! {
    /// Answer of CREATE_CQ.
    pub CreateCqAnswer, 8 {
        /// Handle.
        pub cq_handle: U32,
        /// Entries.
        pub cqe: U32,
    }
}

abi_layout! {
    /// Answer of the extended CREATE_CQ.
    pub ExtendedCreateCqAnswer, 16 {
        /// Answer of the other form.
        pub base: CreateCqAnswer,
        /// Reserved.
        pub comp_mask: U32,
        /// Bytes of the answer.
        pub response_length: U32,
    }
}

abi_layout! {
    /// The provider's part of the answers of CREATE_CQ and RESIZE_CQ.
    pub RxeCqAnswer, 16 {
        /// Place of the ring.
        pub ring: MappedRing,
    }
}

abi_layout! {
    /// RESIZE_CQ.
    pub ResizeCq, 16 {
        /// Address of the answer.
        pub response: U64,
        /// Queue.
        pub cq_handle: U32,
        /// Entries.
        pub cqe: U32,
    }
}

abi_layout! {
    /// Answer of RESIZE_CQ.
    pub ResizeCqAnswer, 8 {
        /// Entries.
        pub cqe: U32,
        /// Reserved.
        pub reserved: U32,
    }
}

abi_layout! {
    /// REQ_NOTIFY_CQ.
    pub ReqNotifyCq, 8 {
        /// Queue.
        pub cq_handle: U32,
        /// Not 0 for solicited completions only.
        pub solicited_only: U32,
    }
}

abi_layout! {
    /// Answer of DESTROY_CQ: events that the program must acknowledge.
    pub DestroyCqAnswer, 8 {
        /// Completion events that were read.
        pub comp_events_reported: U32,
        /// Asynchronous events that were read.
        pub async_events_reported: U32,
    }
}

abi_layout! {
    /// Answer of DESTROY_QP and DESTROY_SRQ: events that the program must acknowledge.
    pub EventsReported, 4 {
        /// Asynchronous events that were read.
        pub events_reported: U32,
    }
}

abi_layout! {
    /// Record of a completion event.
    pub CompletionRecord, 8 {
        /// The program's name for the queue.
        pub cq_handle: U64,
    }
}

abi_layout! {
    /// Record of an asynchronous event.
    pub AsyncRecord, 16 {
        /// The program's name for the object, or the port.
        pub element: U64,
        /// `enum ib_event_type`.
        pub event_type: U32,
        /// Reserved.
        pub reserved: U32,
    }
}

/// Numbers of asynchronous events (`enum ib_event_type`).
pub mod event_type {
    /// A completion queue failed.
    pub const CQ_ERR: u32 = 0;
    /// A queue pair failed.
    pub const QP_FATAL: u32 = 1;
    /// A queue pair refused a request.
    pub const QP_REQ_ERR: u32 = 2;
    /// A queue pair refused an access.
    pub const QP_ACCESS_ERR: u32 = 3;
    /// The first packet of a connection came.
    pub const COMM_EST: u32 = 4;
    /// A send queue drained.
    pub const SQ_DRAINED: u32 = 5;
    /// A path migrated.
    pub const PATH_MIG: u32 = 6;
    /// A path could not migrate.
    pub const PATH_MIG_ERR: u32 = 7;
    /// The device failed.
    pub const DEVICE_FATAL: u32 = 8;
    /// A port became active.
    pub const PORT_ACTIVE: u32 = 9;
    /// A port left the active state.
    pub const PORT_ERR: u32 = 10;
    /// The LID changed.
    pub const LID_CHANGE: u32 = 11;
    /// The P_Key table changed.
    pub const PKEY_CHANGE: u32 = 12;
    /// The subnet manager changed.
    pub const SM_CHANGE: u32 = 13;
    /// A shared receive queue failed.
    pub const SRQ_ERR: u32 = 14;
    /// A shared receive queue fell below its limit.
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    /// A queue pair in error took its last receive of a shared queue.
    pub const QP_LAST_WQE_REACHED: u32 = 16;
    /// The subnet manager asks for registrations.
    pub const CLIENT_REREGISTER: u32 = 17;
    /// The GID table changed.
    pub const GID_CHANGE: u32 = 18;
}
