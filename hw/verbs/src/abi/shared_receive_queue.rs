//! Shared receive queues.

use linux_abi::abi_layout;
use zerocopy::native_endian::{U32, U64};

use super::ring::MappedRing;

abi_layout! {
    /// CREATE_SRQ.
    pub CreateSrq, 32 {
        /// Address of the answer.
        pub response: U64,
        /// The program's name for the queue, which events carry.
        pub user_handle: U64,
        /// Protection domain.
        pub pd_handle: U32,
        /// Requests.
        pub max_wr: U32,
        /// Entries of a list.
        pub max_sge: U32,
        /// Limit below which an event is raised; 0 for none.
        pub srq_limit: U32,
    }
}

abi_layout! {
    /// CREATE_XSRQ.
    pub CreateXsrq, 48 {
        /// Address of the answer.
        pub response: U64,
        /// The program's name for the queue, which events carry.
        pub user_handle: U64,
        /// Type; 0 is the basic one.
        pub srq_type: U32,
        /// Protection domain.
        pub pd_handle: U32,
        /// Requests.
        pub max_wr: U32,
        /// Entries of a list.
        pub max_sge: U32,
        /// Limit below which an event is raised; 0 for none.
        pub srq_limit: U32,
        /// Tags; of other types.
        pub max_num_tags: U32,
        /// XRC domain; of other types.
        pub xrcd_handle: U32,
        /// Completion queue; of other types.
        pub cq_handle: U32,
    }
}

abi_layout! {
    /// Answer of CREATE_SRQ and CREATE_XSRQ.
    pub CreateSrqAnswer, 16 {
        /// Handle.
        pub srq_handle: U32,
        /// Requests.
        pub max_wr: U32,
        /// Entries of a list.
        pub max_sge: U32,
        /// Number, of the XRC type.
        pub srqn: U32,
    }
}

abi_layout! {
    /// The provider's part of the answer.
    pub RxeCreateSrqAnswer, 24 {
        /// Place of the ring.
        pub ring: MappedRing,
        /// Number of the queue.
        pub srq_num: U32,
        /// Reserved.
        pub reserved: U32,
    }
}

abi_layout! {
    /// MODIFY_SRQ.
    pub ModifySrq, 16 {
        /// Queue.
        pub srq_handle: U32,
        /// 1: the size, 2: the limit.
        pub attr_mask: U32,
        /// Requests.
        pub max_wr: U32,
        /// Limit.
        pub srq_limit: U32,
    }
}

abi_layout! {
    /// The provider's part of MODIFY_SRQ (kernel `struct rxe_modify_srq_cmd`).
    pub RxeModifySrq, 8 {
        /// Address in the program's memory to which the place of the new ring is written, a
        /// [`MappedRing`]: this command has no answer.
        pub mmap_info_addr: U64,
    }
}

abi_layout! {
    /// Answer of QUERY_SRQ.
    pub QuerySrqAnswer, 16 {
        /// Requests.
        pub max_wr: U32,
        /// Entries of a list.
        pub max_sge: U32,
        /// Limit.
        pub srq_limit: U32,
        /// Reserved.
        pub reserved: U32,
    }
}
