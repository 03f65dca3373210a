//! A queue pair of the host.

use std::collections::BTreeSet;
use std::sync::Arc;

use hca_api::{
    Completion, CompletionOp, CompletionStatus, CqHandle, GlobalRoute, HcaError, Payload, PdHandle,
    QpAttributes, QpHandle, QpKind, QpModify, QpSpec, QpState, ReceiveMode, RecvRequest,
    RemoteAddress, SendFlags, SendOp, SendRequest, Sge, SourceAddress, SrqHandle,
};
use ib_wire::packet::Grh;
use ib_wire::{Gid, GidIndex, Lid, PKeyIndex, Qpn, Sl};
use zerocopy::FromBytes;

use crate::attributes::{
    PORT, attributes, caps, completion_flags, host_caps, host_change, qp_type, refused,
    refused_request, status,
};
use crate::gsi::{MAX_SGE, MAX_WR};
use crate::outstanding::Outstanding;
use crate::shared_receives::Received;
use crate::sys::abi::{self, WC_RECV_RDMA_WITH_IMM, Wc, opcode, send_flags};
use crate::sys::{self, AddressHandle, Parts, QueuePair, Remote, User};

/// A send that the host has.
#[derive(Debug)]
struct Sent {
    wr_id: u64,
    op: CompletionOp,
    /// Its destination, which the host may look at until the request is complete.
    _address: Option<Arc<AddressHandle>>,
}

/// A queue pair of the host.
///
/// Requests have names of this type's making there: the handle of the queue pair, the number of the request, and its queue.
#[derive(Debug)]
pub(crate) struct Pair {
    qp: QueuePair,
    _users: Vec<User>,
    handle: QpHandle,
    kind: QpKind,
    pub(crate) pd: PdHandle,
    pub(crate) send_cq: CqHandle,
    pub(crate) recv_cq: CqHandle,
    caps: hca_api::QpCaps,
    /// The state that it was brought to last; the host alone knows of errors.
    state: QpState,
    sent: Outstanding<Sent>,
    received: Outstanding<Received>,
    has_srq: bool,
    pub(crate) groups: BTreeSet<(Gid, Lid)>,
    list: Vec<abi::Sge>,
}

/// Bit of a name of a shared receive queue's, whose handle is in place of the queue pair's.
const SHARED: u64 = 1 << 63;

/// The owner of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The queue pair.
    Pair(QpHandle),
    /// The shared receive queue, with the number of the request there.
    Shared(SrqHandle, u32),
}

/// Returns the owner of a request by its name.
pub(crate) fn owner(wr_id: u64) -> Owner {
    let handle = u32::try_from((wr_id & !SHARED) >> 32).unwrap_or(0);
    let number = u32::try_from(wr_id & 0xffff_ffff).unwrap_or(0);
    match wr_id & SHARED {
        0 => Owner::Pair(QpHandle(handle)),
        _ => Owner::Shared(SrqHandle(handle), number),
    }
}

/// Returns the name of a request of a shared receive queue.
pub(crate) fn shared_name(srq: SrqHandle, number: u32) -> u64 {
    SHARED | u64::from(srq.0) << 32 | u64::from(number)
}

impl Pair {
    /// Makes a queue pair.
    pub(crate) fn new(handle: QpHandle, spec: &QpSpec, parts: Parts) -> Result<Self, HcaError> {
        let number = qp_type(spec.kind).ok_or(HcaError::Unsupported)?;
        let is_posted = matches!(spec.receives, ReceiveMode::Posted);
        if !is_posted || spec.qpn.is_some() || spec.block_multicast_loopback {
            return Err(HcaError::Unsupported);
        }
        let asked = &spec.caps;
        if asked.max_send_wr.max(asked.max_recv_wr) > MAX_WR
            || asked.max_send_sge.max(asked.max_recv_sge) > MAX_SGE
        {
            return Err(HcaError::InvalidParameter);
        }
        let sizes = (host_caps(asked), spec.signal_all);
        let users = parts.users();
        let made = QueuePair::new(parts, number, sizes, handle.0);
        let (qp, given) = made.map_err(|error| refused(&error))?;
        Ok(Self {
            qp,
            _users: users,
            handle,
            kind: spec.kind,
            pd: spec.pd,
            send_cq: spec.send_cq,
            recv_cq: spec.recv_cq,
            caps: caps(&given),
            state: QpState::Reset,
            sent: Outstanding::default(),
            received: Outstanding::default(),
            has_srq: spec.srq.is_some(),
            groups: BTreeSet::new(),
            list: Vec::new(),
        })
    }

    pub(crate) const fn is_datagram(&self) -> bool {
        self.kind.is_datagram()
    }

    /// Returns the number, which is the host's.
    pub(crate) fn number(&self) -> Qpn {
        Qpn::from_low_bits(self.qp.number())
    }

    /// Changes it, on a port of the host.
    pub(crate) fn modify(&mut self, port: u8, change: &QpModify) -> Result<(), HcaError> {
        let (attributes, mask) = host_change(port, change)?;
        if mask == 0 {
            return Ok(());
        }
        let modified = self.qp.modify(attributes, mask);
        modified.map_err(|error| match refused(&error) {
            HcaError::InvalidParameter => HcaError::InvalidAttribute,
            other => other,
        })?;
        self.state = change.state.unwrap_or(self.state);
        if self.state == QpState::Reset {
            self.sent.take();
            self.received.take();
        }
        Ok(())
    }

    /// Brings the queue pair of the host out of its peers' reach: none of them reaches memory by it from now on. Returns `false` if the host
    /// refuses it.
    pub(crate) fn stop(&self) -> bool {
        let reset = QpModify {
            state: Some(QpState::Reset),
            ..QpModify::default()
        };
        let change = host_change(0, &reset);
        let modify = |(attributes, mask)| self.qp.modify(attributes, mask).is_ok();
        self.state == QpState::Reset || change.is_ok_and(modify)
    }

    /// Returns the queue pair of the host, for its end. Its parts are no longer in use.
    pub(crate) fn into_host(self) -> QueuePair {
        self.qp
    }

    pub(crate) fn query(&self) -> Result<QpAttributes, HcaError> {
        let found = self.qp.query().map_err(|error| refused(&error))?;
        Ok(attributes((self.kind, self.number(), self.caps), &found))
    }

    fn name(&self, number: u32, is_receive: bool) -> u64 {
        u64::from(self.handle.0) << 32 | u64::from(number) << 1 | u64::from(is_receive)
    }

    fn set_list(&mut self, list: &[Sge], most: u32) -> Result<(), HcaError> {
        if list.len() > most as usize {
            return Err(HcaError::TooManySges);
        }
        self.list.clear();
        self.list.extend(list.iter().map(abi::Sge::from));
        Ok(())
    }

    pub(crate) fn receive(&mut self, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        if self.state == QpState::Reset {
            return Err(HcaError::InvalidQpState);
        }
        if self.has_srq {
            return Err(HcaError::InvalidParameter);
        }
        if self.received.len() >= self.caps.max_recv_wr as usize {
            return Err(HcaError::QueueFull);
        }
        self.set_list(request.scatter, self.caps.max_recv_sge)?;
        let name = self.name(self.received.next(), true);
        let posted = self.qp.post_recv(name, &self.list);
        posted.map_err(|error| refused_request(&error))?;
        let is_datagram = self.kind.is_datagram();
        let scatter = if is_datagram { request.scatter } else { &[] };
        self.received.push(Received {
            wr_id: request.wr_id,
            scatter: scatter.to_vec(),
        });
        Ok(())
    }

    /// Posts a send. A datagram has an address.
    pub(crate) fn send(
        &mut self,
        request: &SendRequest<'_>,
        address: Option<Arc<AddressHandle>>,
    ) -> Result<(), HcaError> {
        use QpState::{Init, ReadyToReceive, Reset};

        if matches!(self.state, Reset | Init | ReadyToReceive) {
            return Err(HcaError::InvalidQpState);
        }
        if self.sent.len() >= self.caps.max_send_wr as usize {
            return Err(HcaError::QueueFull);
        }
        let (inline, list) = match request.payload {
            Payload::Inline(bytes) => (Some(bytes), &[][..]),
            Payload::Gather(list) => (None, list),
            // A request of libibverbs has either.
            Payload::Headed(..) => return Err(HcaError::Unsupported),
        };
        if inline.is_some_and(|bytes| bytes.len() > self.caps.max_inline as usize) {
            return Err(HcaError::TooManySges);
        }
        self.set_list(list, self.caps.max_send_sge)?;
        let (op, opcode, immediate, mut remote) = operation(&request.op)?;
        if let (Some(address), Some(to)) = (&address, &request.destination) {
            remote = Remote::Datagram(address, to.qpn.get(), to.qkey.get());
        }
        let mut flags = 0;
        for (given, bit) in [
            (SendFlags::SIGNALED, send_flags::SIGNALED),
            (SendFlags::SOLICITED, send_flags::SOLICITED),
            (SendFlags::FENCE, send_flags::FENCE),
            (SendFlags::STRONG_FENCE, send_flags::FENCE),
        ] {
            flags |= bit * u32::from(request.flags.contains(given));
        }
        let posted = self.qp.post_send(&sys::Request {
            wr_id: self.name(self.sent.next(), false),
            opcode,
            flags,
            immediate,
            inline,
            list: &self.list,
            remote,
        });
        posted.map_err(|error| refused_request(&error))?;
        self.sent.push(Sent {
            wr_id: request.wr_id,
            op,
            _address: address,
        });
        Ok(())
    }

    /// Returns a completion of the host as the consumer's, with the list of its receive, which is given if it is a shared one. `None`
    /// for a request that is gone.
    pub(crate) fn complete(
        &mut self,
        wc: &Wc,
        shared: Option<Received>,
    ) -> Option<(Completion, Vec<Sge>)> {
        let number = u32::try_from(wc.wr_id & 0xffff_ffff).unwrap_or(0);
        let is_receive = shared.is_some() || number & 1 == 1;
        let (wr_id, op, scatter) = if is_receive {
            let op = match wc.opcode {
                WC_RECV_RDMA_WITH_IMM => CompletionOp::RecvRdmaImm,
                _ => CompletionOp::Recv,
            };
            let received = shared.or_else(|| self.received.complete(number >> 1))?;
            (received.wr_id, op, received.scatter)
        } else {
            let sent = self.sent.complete(number >> 1)?;
            (sent.wr_id, sent.op, Vec::new())
        };
        let (status, cause) = status(wc.status, op);
        let mut completion = Completion {
            wr_id,
            status,
            cause,
            op,
            qpn: self.number(),
            ..Completion::BLANK
        };
        if status != CompletionStatus::Success {
            return Some((completion, Vec::new()));
        }
        completion.byte_len = wc.byte_len;
        if is_receive {
            completion.flags = completion_flags(wc.wc_flags);
            completion.immediate = match wc.wc_flags & abi::wc_flags::WITH_INV {
                0 => u32::from_be(wc.imm_data),
                _ => wc.imm_data,
            };
            completion.source = self.kind.is_datagram().then(|| SourceAddress {
                port: PORT,
                slid: Lid::new(wc.slid),
                src_qpn: Qpn::from_low_bits(wc.src_qp),
                sl: Sl::from_low_bits(wc.sl),
                dlid_path_bits: wc.dlid_path_bits,
                pkey_index: PKeyIndex(wc.pkey_index),
                grh: None,
            });
        }
        Some((completion, scatter))
    }

    /// Returns the ends of the requests that the host has not completed, with their completion queues.
    pub(crate) fn flush(&mut self) -> Vec<(CqHandle, Completion)> {
        let qpn = self.number();
        let flushed = |wr_id, op| Completion {
            wr_id,
            status: CompletionStatus::Flushed,
            op,
            qpn,
            ..Completion::BLANK
        };
        let received = self.received.take().into_iter();
        let received = received.map(|request| flushed(request.wr_id, CompletionOp::Recv));
        let mut ends: Vec<_> = received.map(|end| (self.recv_cq, end)).collect();
        let sent = self.sent.take().into_iter();
        let sent = sent.map(|request| flushed(request.wr_id, request.op));
        ends.extend(sent.map(|end| (self.send_cq, end)));
        ends
    }

    /// Joins a multicast group, or leaves it.
    pub(crate) fn attach(&mut self, group: (Gid, Lid), joins: bool) -> Result<(), HcaError> {
        if self.kind != QpKind::Ud {
            return Err(HcaError::InvalidQpKind);
        }
        if self.groups.contains(&group) == joins {
            let outcome = joins.then_some(());
            return outcome.ok_or(HcaError::InvalidParameter);
        }
        let (mgid, mlid) = (&group.0.0, group.1.get());
        // The host takes LIDs of multicast alone; adapters filter by GID.
        let mlid = if mlid == 0 { 0xc000 } else { mlid };
        if joins {
            let attached = self.qp.attach(mgid, mlid);
            attached.map_err(|error| refused(&error))?;
            self.groups.insert(group);
        } else {
            let detached = self.qp.detach(mgid, mlid);
            detached.map_err(|error| refused(&error))?;
            self.groups.remove(&group);
        }
        Ok(())
    }
}

/// Returns an operation as the host has it: its completion, its number (`enum ibv_wr_opcode`), its immediate data or key, and its place.
fn operation(op: &SendOp<'_>) -> Result<(CompletionOp, u32, u32, Remote<'static>), HcaError> {
    let memory = |at: &RemoteAddress| Remote::Memory(at.addr, at.rkey.0);
    Ok(match op {
        SendOp::Send => (CompletionOp::Send, opcode::SEND, 0, Remote::Peer),
        SendOp::SendImmediate(data) => {
            let number = opcode::SEND_WITH_IMM;
            (CompletionOp::Send, number, data.to_be(), Remote::Peer)
        }
        SendOp::SendInvalidate(key) => {
            let number = opcode::SEND_WITH_INV;
            (CompletionOp::Send, number, key.0, Remote::Peer)
        }
        SendOp::RdmaWrite(at) => (CompletionOp::RdmaWrite, opcode::RDMA_WRITE, 0, memory(at)),
        SendOp::RdmaWriteImmediate(at, data) => {
            let number = opcode::RDMA_WRITE_WITH_IMM;
            (CompletionOp::RdmaWrite, number, data.to_be(), memory(at))
        }
        SendOp::RdmaRead(at) => (CompletionOp::RdmaRead, opcode::RDMA_READ, 0, memory(at)),
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            let place = Remote::Number(remote.addr, remote.rkey.0, *compare, *swap);
            let number = opcode::ATOMIC_CMP_AND_SWP;
            (CompletionOp::CompareSwap, number, 0, place)
        }
        SendOp::FetchAdd { remote, add } => {
            let place = Remote::Number(remote.addr, remote.rkey.0, *add, 0);
            let number = opcode::ATOMIC_FETCH_AND_ADD;
            (CompletionOp::FetchAdd, number, 0, place)
        }
        _ => return Err(HcaError::Unsupported),
    })
}

/// Returns the route of a datagram by the bytes in front of it: a GRH, or twenty bytes and an IPv4 header on RoCE (IBA annex A17.4.5.2,
/// `union rdma_network_hdr`).
pub(crate) fn route(bytes: &[u8]) -> Option<GlobalRoute> {
    const IPV4: usize = 20;

    let version = |at: usize| bytes.get(at).map(|byte| byte >> 4);
    if version(0) != Some(6) && version(IPV4) == Some(4) {
        let header = bytes.get(IPV4..2 * IPV4)?;
        let mut remote = [0; 16];
        remote[10..12].fill(0xff);
        remote[12..].copy_from_slice(&header[12..16]);
        return Some(GlobalRoute {
            remote_gid: Gid(remote),
            sgid_index: GidIndex(0),
            flow_label: 0,
            hop_limit: header[8],
            traffic_class: header[1],
        });
    }
    let grh = Grh::read_from_bytes(bytes).ok()?;
    Some(GlobalRoute {
        remote_gid: grh.sgid,
        sgid_index: GidIndex(0),
        flow_label: grh.flow_label(),
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class(),
    })
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn the_route_of_a_datagram_is_in_a_grh_or_in_an_ipv4_header() {
        let grh = Grh::new(Gid([7; 16]), Gid([8; 16]), 9);
        let by_grh = route(grh.as_bytes()).unwrap();
        assert_eq!((by_grh.remote_gid, by_grh.hop_limit), (Gid([7; 16]), 9));
        let mut bytes = [0; 40];
        (bytes[20], bytes[21], bytes[28]) = (0x45, 3, 64);
        bytes[32..36].copy_from_slice(&[10, 9, 0, 1]);
        let by_ipv4 = route(&bytes).unwrap();
        assert_eq!(by_ipv4.remote_gid.to_string(), "::ffff:10.9.0.1");
        assert_eq!((by_ipv4.hop_limit, by_ipv4.traffic_class), (64, 3));
    }
}
