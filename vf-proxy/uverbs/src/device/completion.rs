//! Completions as programs read them.

use hca_api::{Completion, CompletionFlags, CompletionOp, CompletionStatus};
use verbs_link::abi::ring::CompletionElement;

/// Flags of completions (`enum ibv_wc_flags`).
mod wc_flags {
    pub(super) const GRH: u32 = 1;
    pub(super) const WITH_IMM: u32 = 2;
    pub(super) const WITH_INV: u32 = 8;
}

/// Returns the element of a ring for a completion.
pub(super) fn element(completion: &Completion) -> CompletionElement {
    let flags = completion.flags;
    let mut wc_flags = 0;
    for (has, flag) in [
        (CompletionFlags::GRH, wc_flags::GRH),
        (CompletionFlags::IMMEDIATE, wc_flags::WITH_IMM),
        (CompletionFlags::INVALIDATED, wc_flags::WITH_INV),
    ] {
        if flags.contains(has) {
            wc_flags |= flag;
        }
    }
    let immediate = if flags.contains(CompletionFlags::INVALIDATED) {
        completion.immediate.to_ne_bytes()
    } else {
        completion.immediate.to_be_bytes()
    };
    let mut element = CompletionElement {
        wr_id: completion.wr_id.into(),
        status: status(completion.status).into(),
        vendor_err: u32::from(completion.cause as u8).into(),
        opcode: opcode(completion.op).into(),
        byte_len: completion.byte_len.into(),
        immediate,
        qp_num: completion.qpn.get().into(),
        wc_flags: wc_flags.into(),
        ..CompletionElement::default()
    };
    if let Some(source) = &completion.source {
        element.src_qp = source.src_qpn.get().into();
        element.pkey_index = source.pkey_index.0.into();
        element.slid = source.slid.get().into();
        element.sl = source.sl.get();
        element.dlid_path_bits = source.dlid_path_bits;
        element.port_num = source.port.0;
    }
    element
}

/// Returns the number of a status (`enum ibv_wc_status`).
const fn status(status: CompletionStatus) -> u32 {
    match status {
        CompletionStatus::Success => 0,
        CompletionStatus::LocalLength => 1,
        CompletionStatus::LocalQpOperation => 2,
        CompletionStatus::LocalProtection => 4,
        CompletionStatus::Flushed => 5,
        CompletionStatus::MwBind => 6,
        CompletionStatus::BadResponse => 7,
        CompletionStatus::LocalAccess => 8,
        CompletionStatus::RemoteInvalidRequest => 9,
        CompletionStatus::RemoteAccess => 10,
        CompletionStatus::RemoteOperation => 11,
        CompletionStatus::RetryExceeded => 12,
        CompletionStatus::RnrRetryExceeded => 13,
        CompletionStatus::Aborted => 16,
    }
}

/// Returns the number of an operation (`enum ibv_wc_opcode`).
const fn opcode(op: CompletionOp) -> u32 {
    match op {
        CompletionOp::Send | CompletionOp::FastRegister => 0,
        CompletionOp::RdmaWrite => 1,
        CompletionOp::RdmaRead => 2,
        CompletionOp::CompareSwap => 3,
        CompletionOp::FetchAdd => 4,
        CompletionOp::BindWindow => 5,
        CompletionOp::LocalInvalidate => 6,
        CompletionOp::Flush => 8,
        CompletionOp::AtomicWrite => 9,
        CompletionOp::Recv => 128,
        CompletionOp::RecvRdmaImm => 129,
    }
}
