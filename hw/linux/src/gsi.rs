//! The function's one queue pair, QP1.

use std::collections::VecDeque;

use hca_api::{
    AccessFlags, Cause, Completion, CompletionOp, CompletionStatus, CqHandle, HcaError,
    MigrationState, PdHandle, QpAttributes, QpCaps, QpHandle, QpKind, QpModify, QpNumbers, QpSpec,
    QpState, ReceiveMode, RecvRequest, Sge, SpecialQp,
};
use ib_wire::{Lid, Mtu, PKeyIndex, PortNum, Psn, QKey, Qpn};

/// Requests that each queue of the pair may hold.
pub(crate) const MAX_WR: u32 = 1 << 14;

/// Entries of a scatter or gather list.
pub(crate) const MAX_SGE: u32 = 16;

/// Bytes of a MAD, all that a request gives inline.
pub(crate) const MAX_INLINE: u32 = 256;

/// A receive that waits for a MAD.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    pub(crate) scatter: Vec<Sge>,
}

/// QP1.
#[derive(Debug)]
pub(crate) struct Gsi {
    pub(crate) handle: QpHandle,
    pub(crate) pd: PdHandle,
    pub(crate) send_cq: CqHandle,
    pub(crate) recv_cq: CqHandle,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) state: QpState,
    pub(crate) pkey_index: PKeyIndex,
    pub(crate) receives: VecDeque<Posted>,
    port: Option<PortNum>,
}

impl Gsi {
    /// Makes the queue pair of a port.
    pub(crate) fn new(handle: QpHandle, port: PortNum, spec: &QpSpec) -> Result<Self, HcaError> {
        match spec.kind {
            QpKind::Special {
                special: SpecialQp::Gsi,
                port: asked,
            } if asked == port => {}
            QpKind::Special {
                special: SpecialQp::Gsi,
                ..
            } => return Err(HcaError::InvalidPort),
            _ => return Err(HcaError::Unsupported),
        }
        let is_posted = matches!(spec.receives, ReceiveMode::Posted);
        if !is_posted || spec.srq.is_some() || spec.qpn.is_some() {
            return Err(HcaError::Unsupported);
        }
        let caps = &spec.caps;
        if caps.max_send_wr.max(caps.max_recv_wr) > MAX_WR
            || caps.max_send_sge.max(caps.max_recv_sge) > MAX_SGE
            || caps.max_inline > MAX_INLINE
        {
            return Err(HcaError::InvalidParameter);
        }
        Ok(Self {
            handle,
            pd: spec.pd,
            send_cq: spec.send_cq,
            recv_cq: spec.recv_cq,
            caps: spec.caps,
            signal_all: spec.signal_all,
            state: QpState::Reset,
            pkey_index: PKeyIndex(0),
            receives: VecDeque::new(),
            port: None,
        })
    }

    /// Changes the queue pair of a port with so many P_Keys. Receives that are to be flushed stay, and the state says so.
    pub(crate) fn modify(
        &mut self,
        port: PortNum,
        pkeys: usize,
        change: &QpModify,
    ) -> Result<(), HcaError> {
        let next = change.state.unwrap_or(self.state);
        let believed = change.current_state.unwrap_or(self.state);
        if believed != self.state || change.state.is_some() && !leads_to(self.state, next) {
            return Err(HcaError::InvalidQpState);
        }
        if change.port.is_some_and(|asked| asked != port) {
            return Err(HcaError::InvalidPort);
        }
        let is_beyond = |index: PKeyIndex| usize::from(index.0) >= pkeys;
        if change.pkey_index.is_some_and(is_beyond) {
            return Err(HcaError::InvalidIndex);
        }
        self.port = change.port.or(self.port);
        self.pkey_index = change.pkey_index.unwrap_or(self.pkey_index);
        self.state = next;
        if next == QpState::Reset {
            self.receives.clear();
        }
        Ok(())
    }

    pub(crate) fn attributes(&self, port: PortNum) -> QpAttributes {
        QpAttributes {
            kind: QpKind::Special {
                special: SpecialQp::Gsi,
                port,
            },
            numbers: NUMBERS,
            state: self.state,
            caps: self.caps,
            port: self.port,
            pkey_index: self.pkey_index,
            qkey: QKey::GSI,
            sq_psn: Psn::default(),
            rq_psn: Psn::default(),
            dest_qpn: Qpn::default(),
            dest_lid: Lid::NONE,
            primary: None,
            path_mtu: Mtu::MTU_256,
            access: AccessFlags::empty(),
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            draining: false,
            migration: MigrationState::default(),
        }
    }

    /// Adds a receive.
    pub(crate) fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        if self.state == QpState::Reset {
            return Err(HcaError::InvalidQpState);
        }
        if self.receives.len() >= self.caps.max_recv_wr as usize {
            return Err(HcaError::QueueFull);
        }
        if request.scatter.len() > self.caps.max_recv_sge as usize {
            return Err(HcaError::TooManySges);
        }
        self.receives.push_back(Posted {
            wr_id: request.wr_id,
            scatter: request.scatter.to_vec(),
        });
        Ok(())
    }
}

/// The numbers of QP1.
pub(crate) const NUMBERS: QpNumbers = QpNumbers {
    external: Qpn::GSI,
    real: Qpn::GSI,
};

/// Returns a completion of a request on QP1, without a message.
pub(crate) fn completion(wr_id: u64, op: CompletionOp, failure: Option<Failure>) -> Completion {
    let (status, cause) = failure.unwrap_or((CompletionStatus::Success, Cause::None));
    Completion {
        wr_id,
        op,
        status,
        cause,
        qpn: Qpn::GSI,
        ..Completion::BLANK
    }
}

/// Why a request failed.
pub(crate) type Failure = (CompletionStatus, Cause);

/// The end of a request on a queue pair in the error state.
pub(crate) const FLUSHED: Option<Failure> = Some((CompletionStatus::Flushed, Cause::None));

/// Returns `true` if a state leads to another (IBA 11.2.4.2), or may be set again.
const fn leads_to(from: QpState, to: QpState) -> bool {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain};
    matches!(
        (from, to),
        (_, Reset | Error)
            | (Reset | Init, Init)
            | (Init, ReadyToReceive)
            | (ReadyToReceive | ReadyToSend | SendQueueDrain, ReadyToSend)
            | (ReadyToSend | SendQueueDrain, SendQueueDrain)
    )
}
