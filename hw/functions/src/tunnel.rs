//! Tunnels: the verbs of their ends, and the way of a message between them.

use hca_api::{
    AccessFlags, Cause, Completion, CompletionFlags, CompletionOp, CompletionStatus, FunctionId,
    Hca, HcaError, Payload, QpCaps, QpHandle, QpKind, QpModify, QpNumbers, QpSpec, QpState,
    ReceiveMode, RecvRequest, SendFlags, SendOp, SendRequest, Sge, SourceAddress, SpecialQp,
};
use ib_wire::{Lid, PKeyIndex, PortNum, Qpn, Sl};

use crate::end::TunnelEnd;
use crate::event::EventSource;
use crate::functions::Functions;
use crate::receive_queue::total_len;
use crate::side::{FLUSHED, Failure};

/// Bytes in front of a received message that are for a GRH (IBA 11.4.1.2). Messages of tunnels have none.
const NO_GRH: [u8; 40] = [0; 40];

/// The longest message: one packet of the largest MTU.
const MAX_MESSAGE: u64 = 4096;

/// Largest work queues of an end.
pub(crate) const MAX_WR: u32 = 1 << 14;

/// Most gather or scatter entries of a request of an end.
pub(crate) const MAX_SGE: u32 = 32;

/// Most bytes that are given with a send of an end.
pub(crate) const MAX_INLINE: u32 = 1024;

/// Facts about a message of a tunnel besides its bytes.
#[derive(Clone, Copy, Debug)]
struct Header {
    immediate: Option<u32>,
    is_solicited: bool,
}

impl Functions {
    /// Makes an end of a tunnel.
    pub(crate) fn create_end(
        &mut self,
        function: FunctionId,
        spec: QpSpec,
    ) -> Result<(QpHandle, QpNumbers), HcaError> {
        self.check_kind(function, &spec.kind)?;
        if spec.srq.is_some() {
            return Err(HcaError::Unsupported);
        }
        let is_physical = function == FunctionId::PF;
        if is_physical && matches!(spec.receives, ReceiveMode::Pulled(_)) {
            return Err(HcaError::Unsupported);
        }
        if !fits(&spec.caps) {
            return Err(HcaError::InvalidParameter);
        }
        self.check_quota(function, |counts| counts.qps)?;
        let side = self.side_mut(function)?;
        for cq in [spec.send_cq, spec.recv_cq] {
            side.cq_mut(cq)?;
        }
        if !side.pds.contains_key(&spec.pd) {
            return Err(HcaError::InvalidHandle);
        }
        let handle = QpHandle(side.draw_handle()?);
        let real = self.numbers.choose(function, spec.qpn)?;
        let external = match spec.kind {
            QpKind::Proxy { special, .. } => special.wire_qpn(),
            _ => real,
        };
        let numbers = QpNumbers { external, real };
        let kind = spec.kind;
        let end = TunnelEnd::new(spec, numbers)?;
        self.numbers.insert(real);
        let side = self.side_mut(function)?;
        side.hold_pd(end.pd)?;
        for cq in [end.send_cq, end.recv_cq] {
            side.cq_mut(cq)?.users += 1;
        }
        side.ends.insert(handle, end);
        self.bind(function, &kind, Some(handle));
        Ok((handle, numbers))
    }

    fn check_kind(&self, function: FunctionId, kind: &QpKind) -> Result<(), HcaError> {
        let taken = match *kind {
            QpKind::Proxy { special, port } => {
                let vf = self.vf(function).map_err(|_| HcaError::InvalidParameter)?;
                vf.port(port)?.special(special).is_some()
            }
            QpKind::Tunnel {
                function: vf,
                special,
                port,
            } => {
                if function != FunctionId::PF {
                    return Err(HcaError::PermissionDenied);
                }
                let vf = self.vf(vf).map_err(|_| HcaError::InvalidParameter)?;
                vf.port(port)?.tunnel(special).is_some()
            }
            _ => return Err(HcaError::InvalidQpKind),
        };
        if taken {
            Err(HcaError::SpecialQpTaken)
        } else {
            Ok(())
        }
    }

    /// Notes which queue pair is an end of a tunnel.
    fn bind(&mut self, function: FunctionId, kind: &QpKind, handle: Option<QpHandle>) {
        let (vf, special, port) = match *kind {
            QpKind::Proxy { special, port } => (function, special, port),
            QpKind::Tunnel {
                function,
                special,
                port,
            } => (function, special, port),
            _ => return,
        };
        if let Ok(vf) = self.vf_mut(vf)
            && let Ok(port) = vf.port_mut(port)
        {
            match kind {
                QpKind::Proxy { .. } => port.set_special(special, handle),
                _ => port.set_tunnel(special, handle),
            }
        }
    }

    pub(crate) fn modify_end(
        &mut self,
        hca: &mut dyn Hca,
        function: FunctionId,
        qp: QpHandle,
        change: &QpModify,
    ) -> Result<(), HcaError> {
        let (side, memory) = self.parts(function, hca)?;
        let end = side.end_mut(qp)?;
        match end.modify(change)? {
            QpState::Reset => end.reset(),
            QpState::Error => side.enter_error(qp, &memory),
            to => end.state = to,
        }
        Ok(())
    }

    /// Destroys an end. Its receives complete as flushed first.
    pub(crate) fn destroy_end(
        &mut self,
        hca: &mut dyn Hca,
        function: FunctionId,
        qp: QpHandle,
    ) -> Result<(), HcaError> {
        let (side, memory) = self.parts(function, hca)?;
        if side.end(qp)?.state != QpState::Reset {
            side.enter_error(qp, &memory);
        }
        let end = side.ends.remove(&qp).ok_or(HcaError::InvalidHandle)?;
        side.release_pd(end.pd);
        for cq in [end.send_cq, end.recv_cq] {
            if let Ok(queue) = side.cq_mut(cq) {
                queue.users -= 1;
            }
        }
        side.events.forget(EventSource::Qp(qp));
        self.numbers.remove(end.numbers.real);
        self.bind(function, &end.kind, None);
        Ok(())
    }

    pub(crate) fn post_receive(
        &mut self,
        function: FunctionId,
        qp: QpHandle,
        request: &RecvRequest<'_>,
    ) -> Result<(), HcaError> {
        let side = self.side_mut(function)?;
        let end = side.end_mut(qp)?;
        match end.state {
            QpState::Reset => Err(HcaError::InvalidQpState),
            QpState::Error => {
                end.receives.check(request)?;
                side.complete_failed(qp, CompletionOp::Recv, request.wr_id, FLUSHED);
                Ok(())
            }
            _ => end.receives.post(request),
        }
    }

    /// Carries a send of an end out: copies the message into the other one's receive, and completes both.
    pub(crate) fn send_through_tunnel(
        &mut self,
        hca: &mut dyn Hca,
        function: FunctionId,
        qp: QpHandle,
        request: &SendRequest<'_>,
    ) -> Result<(), HcaError> {
        let side = self.side_mut(function)?;
        let end = side.end(qp)?;
        end.check_send(request)?;
        if matches!(end.state, QpState::SendQueueError | QpState::Error) {
            side.complete_failed(qp, CompletionOp::Send, request.wr_id, FLUSHED);
            return Ok(());
        }
        let mut message = core::mem::take(&mut self.message);
        message.clear();
        let gathered = self.gather(hca, function, qp, request.payload, &mut message);
        if gathered.is_ok()
            && let Some((to, peer)) = self.peer(function, qp)
        {
            let header = Header {
                immediate: match request.op {
                    SendOp::SendImmediate(data) => Some(data),
                    _ => None,
                },
                is_solicited: request.flags.contains(SendFlags::SOLICITED),
            };
            let from = self.side_mut(function)?.end(qp)?.numbers.real;
            self.deposit(hca, (to, peer), from, header, &message)?;
        }
        let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
        self.message = message;
        let side = self.side_mut(function)?;
        let end = side.end_mut(qp)?;
        match gathered {
            Ok(()) if end.signal_all || request.flags.contains(SendFlags::SIGNALED) => {
                let completion = Completion {
                    wr_id: request.wr_id,
                    qpn: end.numbers.external,
                    byte_len: len,
                    ..Completion::BLANK
                };
                let cq = end.send_cq;
                side.complete(cq, completion);
            }
            Ok(()) => {}
            Err(failure) => {
                // It stops sending, and goes on receiving (IBA 10.3.1.6).
                end.state = QpState::SendQueueError;
                side.complete_failed(qp, CompletionOp::Send, request.wr_id, failure);
            }
        }
        Ok(())
    }

    /// Appends the bytes of a send to `message`, each byte of memory read once.
    fn gather(
        &mut self,
        hca: &mut dyn Hca,
        function: FunctionId,
        qp: QpHandle,
        payload: Payload<'_>,
        message: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        const GONE: Failure = (CompletionStatus::LocalQpOperation, Cause::BadRequest);

        let (head, sges): (&[u8], &[Sge]) = match payload {
            Payload::Gather(sges) => (&[], sges),
            Payload::Inline(bytes) => (bytes, &[]),
            Payload::Headed(head, sges) => (head, sges),
        };
        if head.len() as u64 + total_len(sges) > MAX_MESSAGE {
            return Err((CompletionStatus::LocalLength, Cause::TooLong));
        }
        message.extend(head);
        let (side, memory) = self.parts(function, hca).map_err(|_| GONE)?;
        let pd = side.end(qp).map_err(|_| GONE)?.pd;
        let read = |addr, len| {
            let from = message.len();
            message.resize(from + len, 0);
            let read = memory.read(addr, &mut message[from..]);
            read.map_err(|_| Cause::NoMemory)
        };
        side.regions
            .pieces(pd, AccessFlags::empty(), sges, read)
            .map_err(|cause| (CompletionStatus::LocalProtection, cause))
    }

    /// Returns the other end of a tunnel, if it can receive.
    fn peer(&self, function: FunctionId, qp: QpHandle) -> Option<(FunctionId, QpHandle)> {
        let kind = self.side(function).ok()?.end(qp).ok()?.kind;
        let (vf, special, port) = match kind {
            QpKind::Proxy { special, port } => (function, special, port),
            QpKind::Tunnel {
                function,
                special,
                port,
            } => (function, special, port),
            _ => return None,
        };
        let own = self.vf(vf).ok()?.port(port).ok()?;
        if special == SpecialQp::Smi && !own.view.smi_enabled {
            return None;
        }
        let (to, peer) = if function == vf {
            (FunctionId::PF, own.tunnel(special)?)
        } else {
            (vf, own.special(special)?)
        };
        let end = self.side(to).ok()?.end(peer).ok()?;
        end.can_receive().then_some((to, peer))
    }

    /// Copies a message into the next receive of an end. One that finds no receive is lost, as on the wire.
    fn deposit(
        &mut self,
        hca: &mut dyn Hca,
        (to, qp): (FunctionId, QpHandle),
        from: Qpn,
        header: Header,
        message: &[u8],
    ) -> Result<(), HcaError> {
        let (side, mut memory) = self.parts(to, hca)?;
        let Some(receive) = side.take_receive(qp, &memory) else {
            return Ok(());
        };
        let end = side.end(qp)?;
        let scatter = receive.scatter.as_slice();
        let len = NO_GRH.len() + message.len();
        let stored = if total_len(scatter) < len as u64 {
            Err((CompletionStatus::LocalLength, Cause::ReceiveTooShort))
        } else {
            let mut bytes = NO_GRH.iter().chain(message).copied();
            let write = |addr, room: usize| {
                let piece: Vec<u8> = bytes.by_ref().take(room).collect();
                let written = memory.write(addr, &piece);
                written.map_err(|_| Cause::NoMemory)
            };
            let stored = side
                .regions
                .pieces(end.pd, AccessFlags::LOCAL_WRITE, scatter, write);
            stored.map_err(|cause| (CompletionStatus::LocalProtection, cause))
        };
        let is_proxy = end.is_proxy();
        let completion = Completion {
            wr_id: receive.wr_id,
            op: CompletionOp::Recv,
            qpn: end.numbers.external,
            byte_len: u32::try_from(len).unwrap_or(u32::MAX),
            immediate: header.immediate.unwrap_or(0),
            flags: header.flags(),
            source: Some(source(end.port, from)),
            ..Completion::BLANK
        };
        let cq = end.recv_cq;
        match stored {
            Ok(()) => side.complete(cq, completion),
            Err(failure) => {
                side.complete_failed(qp, CompletionOp::Recv, receive.wr_id, failure);
                // A guest chooses how long a message is, and shall not stop the physical function's end.
                if is_proxy || failure.0 != CompletionStatus::LocalLength {
                    side.enter_error(qp, &memory);
                }
            }
        }
        Ok(())
    }
}

impl Header {
    fn flags(self) -> CompletionFlags {
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::SOLICITED, self.is_solicited);
        flags.set(CompletionFlags::IMMEDIATE, self.immediate.is_some());
        flags
    }
}

/// Returns the sender of a message of a tunnel.
fn source(port: PortNum, src_qpn: Qpn) -> SourceAddress {
    SourceAddress {
        port,
        slid: Lid::NONE,
        src_qpn,
        sl: Sl::default(),
        dlid_path_bits: 0,
        pkey_index: PKeyIndex(0),
        grh: None,
    }
}

const fn fits(caps: &QpCaps) -> bool {
    caps.max_send_wr <= MAX_WR
        && caps.max_recv_wr <= MAX_WR
        && caps.max_send_sge <= MAX_SGE
        && caps.max_recv_sge <= MAX_SGE
        && caps.max_inline <= MAX_INLINE
}
