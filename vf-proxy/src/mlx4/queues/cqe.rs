//! Completions as the driver reads them.

use hca_api::{Cause, Completion, CompletionFlags, CompletionOp, CompletionStatus};
use ib_wire::Qpn;
use mlx4_defs::cqe::{Cqe, CqeOpcode, ErrorCqe, OwnerOpcode, Syndrome};
use vf_queues::is_receive;
use zerocopy::network_endian::{U16, U32};

use super::name::{SendName, receive_index};
use super::offload::Protocol;

/// An entry that is ready but for its owner's bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) cqe: Cqe,
    /// Whether it wakes a driver that waits for solicited completions.
    pub(super) solicited: bool,
}

impl Entry {
    /// The entry for a completion of a queue pair.
    pub(super) fn new(qpn: Qpn, completion: &Completion) -> Self {
        let send = !is_receive(completion.op);
        if completion.status != CompletionStatus::Success {
            let index = receive_index(completion.wr_id);
            return Self::failed(
                qpn,
                send,
                index,
                syndrome(completion.status),
                completion.cause,
            );
        }
        let cqe = if send {
            sent(qpn, completion)
        } else {
            received(qpn, completion)
        };
        Self {
            cqe,
            solicited: completion.flags.contains(CompletionFlags::SOLICITED),
        }
    }

    /// The checksums of its packet, which carries this protocol, are right (`mlx4_ib_ipoib_csum_ok`).
    pub(super) fn set_verified(&mut self, protocol: Protocol) {
        let carries = match protocol {
            Protocol::Tcp => Cqe::TCP,
            Protocol::Udp => Cqe::UDP,
        };
        self.cqe.status = U16::new(Cqe::IPV4 | Cqe::IP_OK | carries);
        self.cqe.checksum = U16::new(Cqe::CHECKSUM_OK);
    }

    /// The entry for a request that failed.
    pub(super) fn failed(
        qpn: Qpn,
        send: bool,
        index: u16,
        syndrome: Syndrome,
        cause: Cause,
    ) -> Self {
        let opcode = CqeOpcode::ERROR;
        let entry = ErrorCqe {
            qpn,
            wqe_index: U16::new(index),
            vendor_syndrome: cause as u8,
            syndrome,
            owner_opcode: if send {
                OwnerOpcode::send(opcode.get())
            } else {
                OwnerOpcode::receive(opcode)
            },
            ..ErrorCqe::default()
        };
        Self {
            cqe: zerocopy::transmute!(entry),
            solicited: true,
        }
    }

    /// The last entry of a buffer before the queue goes on in another.
    pub(super) fn resize() -> Self {
        Self {
            cqe: Cqe {
                owner_opcode: OwnerOpcode::receive(CqeOpcode::RESIZE),
                ..Cqe::default()
            },
            solicited: false,
        }
    }
}

fn sent(qpn: Qpn, completion: &Completion) -> Cqe {
    let name = SendName::of(completion.wr_id);
    Cqe {
        qpn,
        byte_count: U32::new(completion.byte_len),
        wqe_index: U16::new(name.index),
        owner_opcode: OwnerOpcode::send(name.opcode.get()),
        ..Cqe::default()
    }
}

fn received(qpn: Qpn, completion: &Completion) -> Cqe {
    let flags = completion.flags;
    let opcode = if completion.op == CompletionOp::RecvRdmaImm {
        CqeOpcode::RECV_RDMA_WRITE_IMM
    } else if flags.contains(CompletionFlags::IMMEDIATE) {
        CqeOpcode::RECV_SEND_IMM
    } else if flags.contains(CompletionFlags::INVALIDATED) {
        CqeOpcode::RECV_SEND_INVAL
    } else {
        CqeOpcode::RECV_SEND
    };
    let mut cqe = Cqe {
        qpn,
        byte_count: U32::new(completion.byte_len),
        wqe_index: U16::new(receive_index(completion.wr_id)),
        owner_opcode: OwnerOpcode::receive(opcode),
        ..Cqe::default()
    };
    if flags.intersects(CompletionFlags::IMMEDIATE | CompletionFlags::INVALIDATED) {
        cqe.immediate = completion.immediate.to_be_bytes();
    } else if let Some(source) = &completion.source {
        cqe.immediate = u32::from(source.pkey_index.0).to_be_bytes();
    }
    if let Some(source) = &completion.source {
        cqe.set_grh(flags.contains(CompletionFlags::GRH));
        cqe.set_path_bits(source.dlid_path_bits);
        cqe.remote_qpn = source.src_qpn;
        cqe.set_sl(source.sl);
        cqe.slid = source.slid;
    }
    cqe
}

/// The driver's name for the way in which a request ended.
const fn syndrome(status: CompletionStatus) -> Syndrome {
    match status {
        // Not reached for a success, which has no syndrome.
        CompletionStatus::Success | CompletionStatus::LocalQpOperation => Syndrome::LOCAL_QP_OP,
        CompletionStatus::LocalLength => Syndrome::LOCAL_LENGTH,
        CompletionStatus::LocalProtection => Syndrome::LOCAL_PROTECTION,
        CompletionStatus::Flushed => Syndrome::FLUSHED,
        CompletionStatus::MwBind => Syndrome::MW_BIND,
        CompletionStatus::LocalAccess => Syndrome::LOCAL_ACCESS,
        CompletionStatus::BadResponse => Syndrome::BAD_RESPONSE,
        CompletionStatus::RemoteAccess => Syndrome::REMOTE_ACCESS,
        CompletionStatus::RemoteInvalidRequest => Syndrome::REMOTE_INVALID_REQUEST,
        CompletionStatus::RemoteOperation => Syndrome::REMOTE_OPERATION,
        CompletionStatus::RetryExceeded => Syndrome::RETRY_EXCEEDED,
        CompletionStatus::RnrRetryExceeded => Syndrome::RNR_RETRY_EXCEEDED,
        CompletionStatus::Aborted => Syndrome::REMOTE_ABORTED,
    }
}

#[cfg(test)]
mod tests {
    use hca_api::SourceAddress;
    use ib_wire::{Lid, PKeyIndex, PortNum, Sl};
    use mlx4_defs::wqe::WqeOpcode;
    use zerocopy::IntoBytes;

    use super::super::name::Life;
    use super::*;

    const QPN: Qpn = Qpn::from_low_bits(0x4a1);

    fn completion(op: CompletionOp, wr_id: u64) -> Completion {
        Completion {
            wr_id,
            op,
            byte_len: 104,
            immediate: 0x0102_0304,
            source: Some(SourceAddress {
                port: PortNum(1),
                slid: Lid::new(7),
                src_qpn: Qpn::from_low_bits(0x12_3456),
                sl: Sl::from_low_bits(5),
                dlid_path_bits: 3,
                pkey_index: PKeyIndex(9),
                grh: None,
            }),
            ..Completion::BLANK
        }
    }

    #[test]
    fn a_datagram_tells_where_it_came_from() {
        let mut done = completion(CompletionOp::Recv, Life::FIRST.name() | 6);
        done.flags = CompletionFlags::GRH;
        let words = [0x4a1_u32, 9, 0x8312_3456, 0x5000_0007, 0, 104, 6 << 16, 1];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let entry = Entry::new(QPN, &done);
        assert_eq!((entry.cqe.as_bytes(), entry.solicited), (&bytes[..], false));
        done.flags = CompletionFlags::IMMEDIATE | CompletionFlags::SOLICITED;
        let entry = Entry::new(QPN, &done);
        assert_eq!(entry.cqe.immediate, [1, 2, 3, 4]);
        assert_eq!(entry.cqe.owner_opcode, OwnerOpcode(2));
        assert!(entry.solicited);
    }

    #[test]
    fn a_send_tells_its_running_count_and_opcode() {
        let name = SendName {
            index: 0xabcd,
            opcode: WqeOpcode::SEND_IMM,
            signaled: true,
            grh: false,
        };
        let done = completion(CompletionOp::Send, name.name(Life::FIRST));
        let cqe = Entry::new(QPN, &done).cqe;
        assert_eq!(cqe.wqe_index.get(), 0xabcd);
        assert_eq!(cqe.owner_opcode, OwnerOpcode(0x4b));
    }

    #[test]
    fn a_failure_tells_the_request_the_syndrome_and_the_check() {
        let mut done = completion(CompletionOp::Send, 0x8000_0000_800a_1234);
        for (status, cause, error) in [
            (CompletionStatus::Flushed, Cause::None, 0x0005),
            (
                CompletionStatus::LocalProtection,
                Cause::OutOfBounds,
                0x0304,
            ),
            (
                CompletionStatus::RnrRetryExceeded,
                Cause::RnrRetries,
                0x2416,
            ),
        ] {
            (done.status, done.cause) = (status, cause);
            let entry = Entry::new(QPN, &done);
            let words = [0x4a1_u32, 0, 0, 0, 0, 0, 0x1234_0000 | error, 0x5e];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            assert_eq!((entry.cqe.as_bytes(), entry.solicited), (&bytes[..], true));
        }
    }
}
