//! An end of a tunnel: the proxy queue pair of a virtual function, or the tunnel queue pair of the physical one.

use hca_api::{
    AccessFlags, CqHandle, HcaError, MigrationState, PdHandle, QpAttributes, QpCaps, QpKind,
    QpModify, QpNumbers, QpSpec, QpState, SendOp, SendRequest,
};
use ib_wire::{Lid, Mtu, PKeyIndex, PortNum, Psn, QKey, Qpn};

use crate::qp_state::next_state;
use crate::receive_queue::ReceiveQueue;

/// A queue pair of which each message goes to one other, from memory to memory.
#[derive(Debug)]
pub(crate) struct TunnelEnd {
    pub(crate) kind: QpKind,
    pub(crate) port: PortNum,
    pub(crate) numbers: QpNumbers,
    pub(crate) pd: PdHandle,
    pub(crate) send_cq: CqHandle,
    pub(crate) recv_cq: CqHandle,
    caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) state: QpState,
    pub(crate) receives: ReceiveQueue,
    pkey_index: PKeyIndex,
    qkey: QKey,
    sq_psn: Psn,
}

impl TunnelEnd {
    /// Makes an end in the reset state.
    ///
    /// # Errors
    /// [`HcaError::InvalidQpKind`] for other kinds of queue pairs.
    pub(crate) fn new(spec: QpSpec, numbers: QpNumbers) -> Result<Self, HcaError> {
        let (QpKind::Proxy { port, .. } | QpKind::Tunnel { port, .. }) = spec.kind else {
            return Err(HcaError::InvalidQpKind);
        };
        let caps = spec.caps;
        Ok(Self {
            kind: spec.kind,
            port,
            numbers,
            pd: spec.pd,
            send_cq: spec.send_cq,
            recv_cq: spec.recv_cq,
            caps,
            signal_all: spec.signal_all,
            state: QpState::Reset,
            receives: ReceiveQueue::new(spec.receives, caps.max_recv_wr, caps.max_recv_sge),
            pkey_index: PKeyIndex(0),
            qkey: QKey::default(),
            sq_psn: Psn::default(),
        })
    }

    /// Returns `true` if the VF's end is meant.
    pub(crate) const fn is_proxy(&self) -> bool {
        matches!(self.kind, QpKind::Proxy { .. })
    }

    /// Returns `true` if messages may reach its receive queue (IBA 10.3.1).
    pub(crate) const fn can_receive(&self) -> bool {
        use QpState::{ReadyToReceive, ReadyToSend, SendQueueError};

        matches!(self.state, ReadyToReceive | ReadyToSend | SendQueueError)
    }

    /// Changes attributes, and returns the state to go to.
    pub(crate) fn modify(&mut self, change: &QpModify) -> Result<QpState, HcaError> {
        let change = QpModify {
            block_multicast_loopback: None,
            ..*change
        };
        if change == QpModify::default() {
            return Ok(self.state);
        }
        let to = next_state(&self.kind, self.state, &change)?;
        if change.port.is_some_and(|port| port != self.port) {
            return Err(HcaError::InvalidPort);
        }
        // A message is gone when its send returns, so there is nothing to drain.
        if to == QpState::SendQueueDrain {
            return Err(HcaError::Unsupported);
        }
        self.pkey_index = change.pkey_index.unwrap_or(self.pkey_index);
        self.qkey = change.qkey.unwrap_or(self.qkey);
        self.sq_psn = change.sq_psn.unwrap_or(self.sq_psn);
        Ok(to)
    }

    /// Goes back to the state that it was made in; nothing completes (IBA 10.3.1, "Reset").
    pub(crate) fn reset(&mut self) {
        self.state = QpState::Reset;
        self.receives.clear();
        self.pkey_index = PKeyIndex(0);
        self.qkey = QKey::default();
        self.sq_psn = Psn::default();
    }

    /// Checks a send request (IBA 11.4.1.1).
    pub(crate) fn check_send(&self, request: &SendRequest<'_>) -> Result<(), HcaError> {
        if !matches!(request.op, SendOp::Send | SendOp::SendImmediate(_)) {
            return Err(HcaError::InvalidQpKind);
        }
        if matches!(
            self.state,
            QpState::Reset | QpState::Init | QpState::ReadyToReceive
        ) {
            return Err(HcaError::InvalidQpState);
        }
        let (inline, gathered) = request.payload.shape();
        if gathered > self.caps.max_send_sge as usize || inline > self.caps.max_inline as usize {
            return Err(HcaError::TooManySges);
        }
        if self.caps.max_send_wr == 0 {
            return Err(HcaError::QueueFull);
        }
        Ok(())
    }

    pub(crate) fn attributes(&self) -> QpAttributes {
        QpAttributes {
            kind: self.kind,
            numbers: self.numbers,
            state: self.state,
            caps: self.caps,
            port: Some(self.port),
            pkey_index: self.pkey_index,
            qkey: self.qkey,
            sq_psn: self.sq_psn,
            rq_psn: Psn::default(),
            dest_qpn: Qpn::SMI,
            dest_lid: Lid::NONE,
            primary: None,
            path_mtu: Mtu::MTU_4096,
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
}
