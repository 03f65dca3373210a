//! Connections of ids, and datagram services.

use hca_api::AddressVector;
use ib_endpoint::cm::{CmEvent, CmEventKind, ConnId, Rendezvous};
use ib_endpoint::{MadAddress, MadTransport};
use ib_vtime::Duration;
use ib_wire::cm::{CmRej, CmRep, CmReq, CmSidrRep, CmSidrReq, CmTransport, RejReason, SidrStatus};
use ib_wire::{Gid, GidIndex, Mtu, PortNum, Psn, QKey, Qpn, ServiceId};
use zerocopy::IntoBytes;

use super::address::{Address, IP_HEADER, IbAddress, SocketAddress, ip_header, read_ip_header};
use super::attributes::ah_attr;
use super::{CmHost, CmId, RdmaCm, read, read_padded};
use crate::abi::rdma_cm::{
    Accept, ConnParam, Connect, Disconnect, IdArgument, MAX_PRIVATE_DATA, Reject, UdParam, cm_event,
};
use crate::budget::cost;
use crate::{ChannelId, Errno};

/// Time to wait for the answer of a datagram service, and attempts.
const SIDR_WAIT: Duration = Duration::from_secs(2);
const SIDR_RETRIES: u8 = 7;

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) address: AddressVector,
    pub(super) mtu: Mtu,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    /// Reads and atomics that the own side serves.
    pub(super) responder_resources: u8,
    /// Reads and atomics that the own side may have outstanding.
    pub(super) initiator_depth: u8,
    pub(super) ack_timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
}

/// A request for a connection, or for a datagram service, as far as addresses go.
#[derive(Debug)]
struct Asked<'d> {
    service: ServiceId,
    pkey: u16,
    /// Own GID and the peer's, which a request for a datagram service does not have.
    gids: Option<(Gid, Gid)>,
    private_data: &'d [u8],
}

impl<'d> Asked<'d> {
    /// Returns `true` if an id that listens at an address takes the request.
    fn is_for(&self, bound: &SocketAddress, is_family_only: bool) -> bool {
        let called = read_ip_header(self.private_data).map(|(_, own)| own.to_canonical());
        match (bound, called) {
            (SocketAddress::Ib(_), _) => true,
            (SocketAddress::Ip(_), None) => false,
            (SocketAddress::Ip(_), Some(_)) if bound.is_any() && !is_family_only => true,
            (SocketAddress::Ip(bound), Some(called)) => {
                let is_same = bound.ip.is_unspecified() || bound.ip == called;
                bound.ip.is_ipv4() == called.is_ipv4() && (is_same || called.is_loopback())
            }
        }
    }

    /// Returns the addresses of the id that a request makes for one that listens at `bound`, own and peer's, and the private
    /// data that is the program's.
    fn addresses(&self, bound: &SocketAddress) -> Option<(SocketAddress, SocketAddress, &'d [u8])> {
        match bound {
            SocketAddress::Ip(_) => {
                let (peer, own) = read_ip_header(self.private_data)?;
                let local = SocketAddress::Ip(Address {
                    ip: own,
                    port: bound.port(),
                });
                let data = self.private_data.get(IP_HEADER..)?;
                Some((local, SocketAddress::Ip(peer), data))
            }
            SocketAddress::Ib(listening) => {
                let (own, peer) = self.gids.unwrap_or((listening.gid, Gid::NONE));
                let local = IbAddress {
                    pkey: self.pkey,
                    gid: own,
                    service: self.service.get(),
                    mask: u64::MAX,
                    ..*listening
                };
                let remote = IbAddress {
                    pkey: self.pkey,
                    gid: peer,
                    ..IbAddress::default()
                };
                let [local, remote] = [local, remote].map(SocketAddress::Ib);
                Some((local, remote, self.private_data))
            }
        }
    }
}

/// Returns the private data that a program gives.
fn given(data: &[u8; MAX_PRIVATE_DATA], length: u8) -> &[u8] {
    &data[..usize::from(length)]
}

/// Copies private data into a message.
fn fill(place: &mut [u8], parts: &[&[u8]]) -> Result<(), Errno> {
    let all = parts.concat();
    place
        .get_mut(..all.len())
        .ok_or(Errno::EINVAL)?
        .copy_from_slice(&all);
    Ok(())
}

/// Returns the parameters of an event with private data.
fn conn_param(param: ConnParam, data: &[u8]) -> ConnParam {
    let mut param = param;
    let length = data.len().min(usize::from(u8::MAX));
    param.private_data[..length].copy_from_slice(&data[..length]);
    param.private_data_len = u8::try_from(length).unwrap_or(u8::MAX);
    param
}

impl RdmaCm {
    pub(super) fn listen<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: IdArgument = read(payload)?;
        let number = asked.id.get();
        if self.get(channel, number)?.local.is_none() {
            self.bind_anywhere(channel, number)?;
        }
        let id = self.get(channel, number)?;
        let bound = id.local.filter(|_| id.is_bound_only());
        let (Some(local), Some(space)) = (bound, id.holds_port_in) else {
            return Err(Errno::EINVAL);
        };
        let service = id.service(&local);
        if id.options.reuses_address {
            self.check_port(number, space, &local, false)?;
        }
        let mut others = self.ids.values();
        let shared = others.find_map(|other| {
            let listener = other.listener?;
            (other.service(&other.local?) == service).then_some(listener)
        });
        let listener = match shared {
            Some(listener) => listener,
            None => {
                let listener = host.port.cm().listen(service, u64::MAX);
                listener.map_err(|_| Errno::EADDRINUSE)?
            }
        };
        let id = self.get(channel, number)?;
        id.options.reuses_address = false;
        id.listener = Some(listener);
        Ok(())
    }

    pub(super) fn connect<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let least = size_of::<ConnParam>() + size_of::<u32>();
        let asked: Connect = read_padded(payload, least)?;
        let number = asked.id.get();
        let psn = self.fresh_psn();
        let id = self.get(channel, number)?;
        let path = id.path.ok_or(Errno::EINVAL)?;
        let (Some(local), Some(remote)) = (id.local, id.remote) else {
            return Err(Errno::EINVAL);
        };
        if id.connection.is_some() {
            return Err(Errno::EINVAL);
        }
        let param = &asked.param;
        let data = given(&param.private_data, param.private_data_len);
        let header = match (&local, &remote) {
            (SocketAddress::Ip(local), SocketAddress::Ip(remote)) => {
                ip_header(local, remote).to_vec()
            }
            _ => Vec::new(),
        };
        let service = id.service(&remote);
        let connection = if id.is_datagram() {
            let mut req = path.sidr_request(service);
            fill(&mut req.private_data, &[&header, data])?;
            let cm = host.port.cm();
            cm.send_sidr_req(host.now, &path.gsi(), &req, SIDR_WAIT, SIDR_RETRIES)
        } else {
            let mut req = path.request(service, Qpn::from_low_bits(param.qp_num.get()));
            req.starting_psn = Psn::from_low_bits(psn);
            req.responder_resources = param.responder_resources;
            req.initiator_depth = param.initiator_depth;
            req.set_transport(CmTransport::RC);
            req.set_end_to_end_flow_control(param.flow_control != 0);
            req.set_retry_count(param.retry_count.min(7));
            req.set_rnr_retry_count(param.rnr_retry_count.min(7));
            req.set_srq(param.srq != 0);
            fill(&mut req.private_data, &[&header, data])?;
            id.psn = psn;
            id.peer = Some(Peer {
                address: path.address_vector(),
                mtu: path.record().mtu_value(),
                qpn: Qpn::default(),
                psn: Psn::default(),
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                ack_timeout: req.primary.local_ack_timeout(),
                retry_count: req.retry_count(),
                rnr_retry_count: req.rnr_retry_count(),
            });
            let cm = host.port.cm();
            cm.send_req(host.now, &path.gsi(), &req, Rendezvous::ClientServer)
        };
        let connection = connection.map_err(|_| Errno::ENOMEM)?;
        id.connection = Some(connection);
        self.by_connection.insert(connection, number);
        Ok(())
    }

    pub(super) fn accept<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let least = size_of::<u64>() + size_of::<ConnParam>() + size_of::<u32>();
        let asked: Accept = read_padded(payload, least)?;
        let id = self.get(channel, asked.id.get())?;
        let connection = id.connection.ok_or(Errno::EINVAL)?;
        let param = &asked.param;
        let cm = host.port.cm();
        if param.valid == 0 {
            // The active side has moved its queue pair on.
            let sent = cm.send_rtu(host.now, connection, &[]);
            return sent.map_err(|_| Errno::EINVAL);
        }
        let data = given(&param.private_data, param.private_data_len);
        id.uid = asked.uid.get();
        let sent = if id.is_datagram() {
            let qkey = match (id.local, param.qkey.get()) {
                (Some(SocketAddress::Ib(_)), qkey) if qkey != 0 => QKey::new(qkey),
                _ => id.qkey().ok_or(Errno::EADDRNOTAVAIL)?,
            };
            let mut rep = CmSidrRep {
                status: SidrStatus::OK,
                qpn: Qpn::from_low_bits(param.qp_num.get()),
                qkey,
                ..CmSidrRep::default()
            };
            fill(&mut rep.private_data, &[data])?;
            cm.send_sidr_rep(host.now, connection, &rep)
        } else {
            let mut rep = CmRep {
                local_qpn: Qpn::from_low_bits(param.qp_num.get()),
                starting_psn: Psn::from_low_bits(id.psn),
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                ..CmRep::default()
            };
            rep.set_rnr_retry_count(param.rnr_retry_count.min(7));
            rep.set_end_to_end_flow_control(param.flow_control != 0);
            rep.set_srq(param.srq != 0);
            fill(&mut rep.private_data, &[data])?;
            if let Some(peer) = &mut id.peer {
                peer.responder_resources = param.responder_resources;
                peer.initiator_depth = param.initiator_depth;
            }
            cm.send_rep(host.now, connection, &rep)
        };
        sent.map_err(|_| Errno::EINVAL)
    }

    pub(super) fn reject<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: Reject = read(payload)?;
        let id = self.get(channel, asked.id.get())?;
        let connection = id.connection.ok_or(Errno::EINVAL)?;
        let data = given(&asked.private_data, asked.private_data_len);
        let cm = host.port.cm();
        let sent = if id.is_datagram() {
            let mut rep = CmSidrRep {
                status: SidrStatus::REJECTED,
                ..CmSidrRep::default()
            };
            fill(&mut rep.private_data, &[data])?;
            cm.send_sidr_rep(host.now, connection, &rep)
        } else {
            let reason = RejReason::CONSUMER;
            cm.send_rej(host.now, connection, reason, &[], data)
        };
        sent.map_err(|_| Errno::EINVAL)
    }

    pub(super) fn disconnect<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: Disconnect = read(payload)?;
        let id = self.get(channel, asked.id.get())?;
        let connection = id.connection.ok_or(Errno::EINVAL)?;
        let cm = host.port.cm();
        if core::mem::take(&mut id.answers_dreq) {
            let sent = cm.send_drep(host.now, connection, &[]);
            return sent.map_err(|_| Errno::EINVAL);
        }
        // Of a connection that is over there is nothing to end: as in the kernel that is no error.
        let _ = cm.send_dreq(host.now, connection, &[]);
        Ok(())
    }

    pub(super) fn handle_cm_event<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        event: CmEvent,
    ) {
        let connection = event.conn;
        match event.kind {
            CmEventKind::ReqReceived {
                listener,
                from,
                req,
            } => self.req_received(host, listener, connection, &from, &req),
            CmEventKind::SidrReqReceived {
                listener,
                from,
                req,
            } => self.sidr_req_received(host, listener, connection, &from, &req),
            kind => {
                if let Some(number) = self.by_connection.get(&connection).copied() {
                    self.advanced(number, kind);
                }
            }
        }
    }

    /// Takes an event of a connection that an id has.
    fn advanced(&mut self, number: u32, kind: CmEventKind) {
        let unreachable = (cm_event::UNREACHABLE, Errno::ETIMEDOUT.status());
        let (event, status) = match kind {
            CmEventKind::RepReceived(rep) => return self.rep_received(number, &rep),
            CmEventKind::SidrRepReceived { rep, .. } => {
                return self.sidr_rep_received(number, &rep);
            }
            CmEventKind::RejReceived(rej) => return self.rej_received(number, &rej),
            CmEventKind::RtuReceived(_) => (cm_event::ESTABLISHED, 0),
            CmEventKind::DreqReceived(_) => {
                if let Some(id) = self.ids.get_mut(&number) {
                    id.answers_dreq = true;
                }
                (cm_event::DISCONNECTED, 0)
            }
            CmEventKind::DrepReceived(_) => (cm_event::DISCONNECTED, 0),
            CmEventKind::DreqError => (cm_event::DISCONNECTED, Errno::ETIMEDOUT.status()),
            CmEventKind::ReqError | CmEventKind::RepError | CmEventKind::SidrReqError => {
                unreachable
            }
            CmEventKind::TimeWaitExit => (cm_event::TIMEWAIT_EXIT, 0),
            _ => return,
        };
        self.tell(number, event, status, &[]);
    }

    fn rep_received(&mut self, number: u32, rep: &CmRep) {
        let Some(id) = self.ids.get_mut(&number) else {
            return;
        };
        if let Some(peer) = &mut id.peer {
            peer.qpn = rep.local_qpn;
            peer.psn = rep.starting_psn;
            peer.rnr_retry_count = rep.rnr_retry_count();
            // Not more than the peer serves, nor than it asks for.
            peer.initiator_depth = peer.initiator_depth.min(rep.responder_resources);
            peer.responder_resources = peer.responder_resources.max(rep.initiator_depth);
        }
        let param = ConnParam {
            qp_num: rep.local_qpn.get().into(),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.end_to_end_flow_control().into(),
            rnr_retry_count: rep.rnr_retry_count(),
            srq: rep.srq().into(),
            ..ConnParam::default()
        };
        let param = conn_param(param, &rep.private_data);
        self.tell(number, cm_event::CONNECT_RESPONSE, 0, param.as_bytes());
    }

    fn rej_received(&mut self, number: u32, rej: &CmRej) {
        let param = conn_param(ConnParam::default(), &rej.private_data);
        let reason = i32::from(rej.reason.get());
        self.tell(number, cm_event::REJECTED, reason, param.as_bytes());
    }

    fn sidr_rep_received(&mut self, number: u32, rep: &CmSidrRep) {
        let Some(id) = self.ids.get(&number) else {
            return;
        };
        if rep.status != SidrStatus::OK {
            let param = conn_param(ConnParam::default(), &rep.private_data);
            let status = i32::from(rep.status.get());
            self.tell(number, cm_event::UNREACHABLE, status, param.as_bytes());
            return;
        }
        let mut param = UdParam {
            qp_num: rep.qpn.get().into(),
            qkey: rep.qkey.get().into(),
            ..UdParam::default()
        };
        if let Some(path) = &id.path {
            param.path = ah_attr(&path.address_vector());
        }
        let data = &rep.private_data;
        param.private_data[..data.len()].copy_from_slice(data);
        param.private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        self.tell(number, cm_event::ESTABLISHED, 0, param.as_bytes());
    }

    /// Adds the id of a connection that a peer asks for. Returns the listening id, and the new one, with the private data that
    /// is the program's.
    fn requested<'d>(
        &mut self,
        listener: ConnId,
        connection: ConnId,
        asked: &Asked<'d>,
    ) -> Option<(u32, u32, &'d [u8])> {
        let mut ids = self.ids.iter();
        let (by, listening) = ids.find(|(_, id)| {
            let bound = id.local.filter(|_| id.listener == Some(listener));
            bound.is_some_and(|bound| asked.is_for(&bound, id.is_family_only(&bound)))
        })?;
        let (by, bound) = (*by, listening.local?);
        let (local, remote, data) = asked.addresses(&bound)?;
        let charge = self.charge(cost::CM_ID).ok()?;
        let mut id = CmId::new(
            listening.channel,
            listening.uid,
            listening.port_space,
            listening.qp_type,
            charge,
        );
        id.options = listening.options;
        id.local = Some(local);
        id.remote = Some(remote);
        id.connection = Some(connection);
        id.broadcast = listening.broadcast.settled();
        id.psn = self.fresh_psn();
        let number = self.add(id).ok()?;
        self.by_connection.insert(connection, number);
        Some((by, number, data))
    }

    fn req_received<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        listener: ConnId,
        connection: ConnId,
        from: &MadAddress,
        req: &CmReq,
    ) {
        let path = &req.primary;
        let asked = Asked {
            service: req.service_id,
            pkey: req.pkey.get(),
            gids: Some((path.remote_gid, path.local_gid)),
            private_data: &req.private_data,
        };
        let Some((listening, number, data)) = self.requested(listener, connection, &asked) else {
            let _ = host.port.cm().destroy(host.now, connection);
            return;
        };
        let port = host.port.port();
        let mut address = reply_address(from, port);
        address.dlid = path.local_lid;
        address.sl = path.sl();
        if let Some(id) = self.ids.get_mut(&number) {
            id.remote_gid = Some(path.local_gid);
            id.peer = Some(Peer {
                address,
                mtu: req.mtu(),
                qpn: req.local_qpn,
                psn: req.starting_psn,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                ack_timeout: path.local_ack_timeout(),
                retry_count: req.retry_count(),
                rnr_retry_count: req.rnr_retry_count(),
            });
        }
        let param = ConnParam {
            qp_num: req.local_qpn.get().into(),
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.end_to_end_flow_control().into(),
            retry_count: req.retry_count(),
            rnr_retry_count: req.rnr_retry_count(),
            srq: req.srq().into(),
            ..ConnParam::default()
        };
        let param = conn_param(param, data);
        self.tell_request(host, listening, number, param.as_bytes());
    }

    fn sidr_req_received<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        listener: ConnId,
        connection: ConnId,
        from: &MadAddress,
        req: &CmSidrReq,
    ) {
        let asked = Asked {
            service: req.service_id,
            pkey: req.pkey.get(),
            gids: None,
            private_data: &req.private_data,
        };
        let Some((listening, number, data)) = self.requested(listener, connection, &asked) else {
            let _ = host.port.cm().destroy(host.now, connection);
            return;
        };
        let mut param = UdParam {
            path: ah_attr(&reply_address(from, host.port.port())),
            ..UdParam::default()
        };
        param.private_data[..data.len()].copy_from_slice(data);
        param.private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        self.tell_request(host, listening, number, param.as_bytes());
    }

    /// Queues the event of a request, which is the listener's. A request whose event is lost is refused: the program would never
    /// know its id.
    fn tell_request<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        listening: u32,
        number: u32,
        param: &[u8],
    ) {
        let Some(id) = self.ids.get(&listening) else {
            return;
        };
        let (channel, uid) = (id.channel, id.uid);
        if !self.tell_as(channel, uid, number, cm_event::CONNECT_REQUEST, 0, param) {
            self.end(host, number);
        } else if let Some(id) = self.ids.get_mut(&listening) {
            id.events += 1;
        }
    }
}

/// Returns the way back to the sender of a message.
fn reply_address(from: &MadAddress, port: PortNum) -> AddressVector {
    AddressVector {
        port,
        dlid: from.lid,
        sl: from.sl,
        path_bits: from.path_bits,
        static_rate: None,
        grh: from.grh.map(|route| hca_api::GlobalRoute {
            sgid_index: GidIndex(0),
            hop_limit: u8::MAX,
            ..route
        }),
    }
}
