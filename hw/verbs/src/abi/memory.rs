//! Protection domains, memory regions, windows and address handles.

use linux_abi::abi_layout;
use zerocopy::native_endian::{U16, U32, U64};

abi_layout! {
    /// Answers that are one handle: ALLOC_PD, and of the core CREATE_AH.
    pub HandleAnswer, 4 {
        /// Handle of the new object.
        pub handle: U32,
    }
}

abi_layout! {
    /// REG_MR.
    pub RegMr, 40 {
        /// Address of the answer.
        pub response: U64,
        /// First byte in the program.
        pub start: U64,
        /// Bytes.
        pub length: U64,
        /// Address of the first byte as requests count it.
        pub hca_va: U64,
        /// Protection domain.
        pub pd_handle: U32,
        /// `IBV_ACCESS_*`.
        pub access_flags: U32,
    }
}

abi_layout! {
    /// Answer of REG_MR.
    pub RegMrAnswer, 12 {
        /// Handle.
        pub mr_handle: U32,
        /// Local key.
        pub lkey: U32,
        /// Remote key.
        pub rkey: U32,
    }
}

abi_layout! {
    /// ALLOC_MW.
    pub AllocMw, 16 {
        /// Address of the answer.
        pub response: U64,
        /// Protection domain.
        pub pd_handle: U32,
        /// `IBV_MW_TYPE_1` or `IBV_MW_TYPE_2`.
        pub mw_type: u8,
        /// Reserved.
        pub reserved: [u8; 3],
    }
}

abi_layout! {
    /// Answer of ALLOC_MW.
    pub AllocMwAnswer, 8 {
        /// Handle.
        pub mw_handle: U32,
        /// Remote key.
        pub rkey: U32,
    }
}

abi_layout! {
    /// CREATE_AH (`struct ib_uverbs_create_ah` with `struct ib_uverbs_ah_attr`).
    pub CreateAh, 56 {
        /// Address of the answer.
        pub response: U64,
        /// The program's name for the object.
        pub user_handle: U64,
        /// Protection domain.
        pub pd_handle: U32,
        /// Reserved.
        pub reserved: U32,
        /// Destination GID.
        pub dgid: [u8; 16],
        /// Flow label.
        pub flow_label: U32,
        /// Index of the local GID.
        pub sgid_index: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Reserved.
        pub reserved2: u8,
        /// Destination LID.
        pub dlid: U16,
        /// Service level.
        pub sl: u8,
        /// Low bits of the source LID.
        pub src_path_bits: u8,
        /// Rate code; 0 is the port's.
        pub static_rate: u8,
        /// Not 0 to send a GRH.
        pub is_global: u8,
        /// Local port.
        pub port_num: u8,
        /// Reserved.
        pub reserved3: u8,
    }
}

abi_layout! {
    /// The provider's part of the answer of CREATE_AH.
    pub RxeCreateAhAnswer, 8 {
        /// Number by which send requests name the address, from 1.
        pub ah_num: U32,
        /// Reserved.
        pub reserved: U32,
    }
}
