//! Queue pairs.

use std::collections::VecDeque;

use hca_api::{
    CompletionOp, CqHandle, HcaError, Limits, MigrationState, PdHandle, QpAttributes, QpCaps,
    QpKind, QpNumbers, QpSpec, QpState, SendRequest, SrqHandle,
};
use hca_functions::ReceiveQueue;
use ib_wire::packet::TransportService;
use ib_wire::{Lid, PKeyIndex, PortNum, Psn, QKey};

use super::connected::{Attributes, Connected};
use super::work_queue::WaitingSend;

/// How a queue pair carries messages.
#[derive(Debug)]
pub(super) enum Transport {
    /// As packets that are on their own: each is built and gone within the call.
    Datagram,
    /// From function to function, without a packet.
    Tunnel,
    /// As packets of a connection, which end when the peer has answered or the last one has left.
    Connected(Box<Connected>),
}

impl Transport {
    fn of(spec: &QpSpec) -> Self {
        let service = match spec.kind {
            QpKind::Rc => TransportService::Rc,
            QpKind::Uc => TransportService::Uc,
            QpKind::Ud | QpKind::Special { .. } => return Self::Datagram,
            QpKind::Proxy { .. } | QpKind::Tunnel { .. } => return Self::Tunnel,
        };
        Self::Connected(Box::new(Connected::new(service, spec.srq.is_some())))
    }
}

/// A queue pair: what all services have, and the transport.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) kind: QpKind,
    transport: Transport,
    pub(super) numbers: QpNumbers,
    pub(super) pd: PdHandle,
    pub(super) send_cq: CqHandle,
    pub(super) recv_cq: CqHandle,
    pub(super) srq: Option<SrqHandle>,
    caps: QpCaps,
    pub(super) signal_all: bool,
    pub(super) block_multicast_loopback: bool,
    pub(super) state: QpState,
    pub(super) port: Option<PortNum>,
    pub(super) pkey_index: PKeyIndex,
    pub(super) qkey: QKey,
    pub(super) sq_psn: Psn,
    /// Sends that wait, of datagrams and tunnels.
    pub(super) sends: VecDeque<WaitingSend>,
    pub(super) receives: ReceiveQueue,
    /// Multicast groups that it is attached to.
    pub(super) attachments: u32,
    /// It stands in its port's queue of those with waiting sends.
    pub(super) in_backlog: bool,
    /// End of its packets in the backlog's time.
    pub(super) sent_until: u64,
}

impl Qp {
    /// Makes a queue pair in the reset state. The caller has checked handles and privileges.
    pub(super) fn new(spec: QpSpec, numbers: QpNumbers) -> Self {
        let caps = spec.caps;
        let port = fixed_port(&spec.kind);
        Self {
            transport: Transport::of(&spec),
            kind: spec.kind,
            numbers,
            pd: spec.pd,
            send_cq: spec.send_cq,
            recv_cq: spec.recv_cq,
            srq: spec.srq,
            caps,
            signal_all: spec.signal_all,
            block_multicast_loopback: spec.block_multicast_loopback,
            state: QpState::Reset,
            port,
            pkey_index: PKeyIndex(0),
            qkey: QKey::default(),
            sq_psn: Psn::default(),
            sends: VecDeque::new(),
            receives: ReceiveQueue::new(spec.receives, caps.max_recv_wr, caps.max_recv_sge),
            attachments: 0,
            in_backlog: false,
            sent_until: 0,
        }
    }

    /// Whether it is an end of a tunnel.
    pub(super) const fn is_tunnelled(&self) -> bool {
        matches!(self.transport, Transport::Tunnel)
    }

    /// Returns the transport of an RC or UC queue pair.
    pub(super) const fn connected(&self) -> Option<&Connected> {
        match &self.transport {
            Transport::Connected(own) => Some(own),
            Transport::Datagram | Transport::Tunnel => None,
        }
    }

    pub(super) const fn connected_mut(&mut self) -> Option<&mut Connected> {
        match &mut self.transport {
            Transport::Connected(own) => Some(own),
            Transport::Datagram | Transport::Tunnel => None,
        }
    }

    /// Returns `true` if it may have something to send.
    pub(super) fn has_work(&self) -> bool {
        match self.connected() {
            Some(own) => own.is_live(),
            None => self.state == QpState::ReadyToSend && !self.sends.is_empty(),
        }
    }

    /// Whether packets may reach its receive queue (IBA 10.3.1).
    pub(super) const fn can_receive(&self) -> bool {
        matches!(
            self.state,
            QpState::ReadyToReceive
                | QpState::ReadyToSend
                | QpState::SendQueueDrain
                | QpState::SendQueueError
        )
    }

    /// Checks what a send request says of itself (IBA 11.4.1.1).
    pub(super) fn check_send(&self, request: &SendRequest<'_>) -> Result<(), HcaError> {
        use hca_api::SendOp;

        let connected = self.connected();
        let datagram = matches!(request.op, SendOp::Send | SendOp::SendImmediate(_));
        if connected.is_none() && !datagram {
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
        let waiting = connected.map_or(self.sends.len(), Connected::outstanding);
        if waiting >= self.caps.max_send_wr as usize {
            return Err(HcaError::QueueFull);
        }
        Ok(())
    }

    /// Goes back to what it was when it was made; nothing completes (IBA 10.3.1, "Reset").
    pub(super) fn reset(&mut self) {
        self.state = QpState::Reset;
        self.port = fixed_port(&self.kind);
        self.pkey_index = PKeyIndex(0);
        self.qkey = QKey::default();
        self.sq_psn = Psn::default();
        self.sends.clear();
        self.receives.clear();
        if let Some(own) = self.connected_mut() {
            own.reset();
        }
    }

    /// The queue pair as its consumer sees it. The key of a tunnel belongs to the provider.
    pub(super) fn attributes(&self) -> QpAttributes {
        let (connection, (sq_psn, rq_psn), draining) = match self.connected() {
            Some(own) => (own.attributes, own.psns(), own.is_draining()),
            None => (Attributes::default(), (self.sq_psn, Psn::default()), false),
        };
        QpAttributes {
            kind: self.kind,
            numbers: self.numbers,
            state: self.state,
            caps: self.caps,
            port: self.port,
            pkey_index: self.pkey_index,
            qkey: self.qkey,
            sq_psn,
            rq_psn,
            dest_qpn: connection.dest_qpn,
            dest_lid: connection.primary.map_or(Lid::NONE, |path| path.dlid),
            primary: connection.primary,
            path_mtu: connection.path_mtu,
            access: connection.access,
            timeout: connection.timeout,
            retry_count: connection.retry_count,
            rnr_retry: connection.rnr_retry,
            min_rnr_timer: connection.min_rnr_timer,
            max_rd_atomic: connection.max_rd_atomic,
            max_dest_rd_atomic: connection.max_dest_rd_atomic,
            draining,
            migration: MigrationState::default(),
        }
    }
}

/// Which of a queue pair's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Send,
    Receive,
}

impl Side {
    pub(super) const fn op(self) -> CompletionOp {
        match self {
            Self::Send => CompletionOp::Send,
            Self::Receive => CompletionOp::Recv,
        }
    }
}

/// The port that a kind of queue pair is bound to by its making.
pub(super) const fn fixed_port(kind: &QpKind) -> Option<PortNum> {
    match *kind {
        QpKind::Special { port, .. } | QpKind::Proxy { port, .. } | QpKind::Tunnel { port, .. } => {
            Some(port)
        }
        QpKind::Ud | QpKind::Rc | QpKind::Uc => None,
    }
}

/// Checks the sizes that a consumer asks for.
pub(super) fn check_caps(caps: &QpCaps, limits: &Limits) -> Result<(), HcaError> {
    let fits = caps.max_send_wr <= limits.max_qp_wr
        && caps.max_recv_wr <= limits.max_qp_wr
        && caps.max_send_sge <= limits.max_sge
        && caps.max_recv_sge <= limits.max_sge
        && caps.max_inline <= limits.max_inline;
    if fits {
        Ok(())
    } else {
        Err(HcaError::InvalidParameter)
    }
}
