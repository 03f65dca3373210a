//! An RC or UC queue pair of a VF's program.

use hca_api::{
    AccessFlags, AddressVector, ArmKind, Completion, CqHandle, GlobalRoute, Hca, HcaError, Payload,
    PdHandle, QpAttributes, QpCaps, QpHandle, QpKind, QpModify, QpSpec, QpState, RKey, ReceiveMode,
    RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Sge,
};
use ib_endpoint::PortPath;
use ib_wire::{Gid, GidIndex, Lid, Mtu, PKeyIndex, PortNum, Psn, Qpn, Sl};
use vf_queues::fail;

use super::{Partition, TransferLimits};

/// Names a connected queue pair of a port. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectedQpId(pub(super) u64);

/// Attributes that a connected queue pair is made from. The names are those of `ibv_qp_init_attr` and `ibv_qp_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedQpSpec {
    /// [`QpKind::Rc`] or [`QpKind::Uc`].
    pub kind: QpKind,
    /// Partition.
    pub partition: Partition,
    /// First PSN to send. The peer must be told it; random, so that packets of an earlier connection are not taken for
    /// those of this one.
    pub sq_psn: Psn,
    /// Sizes of the queues.
    pub caps: QpCaps,
    /// Every send request completes, and not only those with [`SendFlags::SIGNALED`].
    pub sq_sig_all: bool,
    /// Operations that the peer may request.
    pub qp_access_flags: AccessFlags,
    /// ACK timeout of RC, as the IBA code `4.096 us x 2^n`; 0 waits for ever.
    pub timeout: u8,
    /// Transport retries of RC, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries of RC, 0 to 7; 7 retries for ever.
    pub rnr_retry: u8,
    /// RNR NAK timer of RC, as the IBA code (IBA 9.7.5.2.8).
    pub min_rnr_timer: u8,
    /// RDMA reads and atomics of RC that are outstanding at most, as requester. Not more than the peer serves.
    pub max_rd_atomic: u8,
    /// RDMA reads and atomics of RC that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
}

impl ConnectedQpSpec {
    /// Returns the spec of a reliable connection: 64 requests each way, all signalled, an ACK timeout of 67 ms, 7 retries,
    /// and all that a peer may do to a region with the rights for it.
    #[must_use]
    pub const fn rc(partition: Partition) -> Self {
        Self::new(QpKind::Rc, partition)
    }

    /// Returns the spec of an unreliable connection: sizes as [`Self::rc`], and a peer may write. Attributes of RC alone are ignored.
    #[must_use]
    pub const fn uc(partition: Partition) -> Self {
        Self::new(QpKind::Uc, partition)
    }

    const fn new(kind: QpKind, partition: Partition) -> Self {
        Self {
            kind,
            partition,
            sq_psn: Psn::from_low_bits(0),
            caps: QpCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 64,
            },
            sq_sig_all: true,
            qp_access_flags: AccessFlags::REMOTE_WRITE
                .union(AccessFlags::REMOTE_READ)
                .union(AccessFlags::REMOTE_ATOMIC)
                .union(AccessFlags::FLUSH_GLOBAL),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
        }
    }

    fn is_reliable(&self) -> bool {
        self.kind == QpKind::Rc
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Path to the peer's port. VFs share their LID, so to and from a VF it has a GRH.
    pub address: AddressVector,
    /// Path MTU, the same at both ends.
    pub path_mtu: Mtu,
    /// QP number there.
    pub qpn: Qpn,
    /// First PSN that the peer sends.
    pub psn: Psn,
}

impl Peer {
    /// Returns the peer at a LID and GID of the subnet, as seen from a local port: by service level 0, with a path MTU of
    /// 1024 bytes, which every link has. A subnet with other needs has them in its paths.
    #[must_use]
    pub const fn on_subnet(port: PortNum, lid: Lid, gid: Gid, qpn: Qpn, psn: Psn) -> Self {
        let route = GlobalRoute {
            remote_gid: gid,
            sgid_index: GidIndex(0),
            flow_label: 0,
            hop_limit: 1,
            traffic_class: 0,
        };
        Self {
            address: AddressVector {
                port,
                dlid: lid,
                sl: Sl::from_low_bits(0),
                path_bits: 0,
                static_rate: None,
                grh: Some(route),
            },
            path_mtu: Mtu::MTU_1024,
            qpn,
            psn,
        }
    }

    /// Returns the peer at the end of a path, as [`VfPort::resolve`](super::VfPort::resolve) finds it.
    #[must_use]
    pub fn new(path: &PortPath, qpn: Qpn, psn: Psn) -> Self {
        Self {
            address: path.address_vector(),
            path_mtu: path.record().mtu_value(),
            qpn,
            psn,
        }
    }
}

/// An RC or UC queue pair, with a completion queue of its own or on one that others share.
///
/// Keeps handles only; every call takes the HCA that they belong to.
#[derive(Debug)]
pub struct ConnectedQp {
    spec: ConnectedQpSpec,
    qp: QpHandle,
    qpn: Qpn,
    cq: CqHandle,
    owns_cq: bool,
}

impl ConnectedQp {
    /// Makes a queue pair in INIT: receives can be posted, and the first completion raises an event.
    ///
    /// # Errors
    /// [`HcaError::InvalidQpKind`] unless it is RC or UC, and those of [`Hca::create_cq`], [`Hca::create_qp`] and
    /// [`Hca::modify_qp`]. Nothing is left behind.
    pub fn create(
        hca: &mut dyn Hca,
        pd: PdHandle,
        port: PortNum,
        pkey_index: PKeyIndex,
        spec: &ConnectedQpSpec,
    ) -> Result<Self, HcaError> {
        let caps = spec.caps;
        let cq = hca.create_cq(caps.max_send_wr.saturating_add(caps.max_recv_wr))?;
        let made = hca.arm_cq(cq, ArmKind::Next);
        let made = made.and_then(|_| Self::create_on(hca, pd, port, pkey_index, spec, cq));
        match made {
            Ok(made) => Ok(Self {
                owns_cq: true,
                ..made
            }),
            Err(error) => {
                // It was made a moment ago, and nothing uses it.
                let _ = hca.destroy_cq(cq);
                Err(error)
            }
        }
    }

    /// Makes a queue pair in INIT on a completion queue that is not its own.
    pub(super) fn create_on(
        hca: &mut dyn Hca,
        pd: PdHandle,
        port: PortNum,
        pkey_index: PKeyIndex,
        spec: &ConnectedQpSpec,
        cq: CqHandle,
    ) -> Result<Self, HcaError> {
        if !matches!(spec.kind, QpKind::Rc | QpKind::Uc) {
            return Err(HcaError::InvalidQpKind);
        }
        let (qp, numbers) = hca.create_qp(QpSpec {
            kind: spec.kind,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: spec.caps,
            signal_all: spec.sq_sig_all,
            receives: ReceiveMode::Posted,
            qpn: None,
            block_multicast_loopback: false,
        })?;
        let this = Self {
            spec: *spec,
            qp,
            qpn: numbers.external,
            cq,
            owns_cq: false,
        };
        let init = QpModify {
            state: Some(QpState::Init),
            port: Some(port),
            pkey_index: Some(pkey_index),
            access: Some(spec.qp_access_flags),
            ..QpModify::default()
        };
        match hca.modify_qp(qp, &init) {
            Ok(()) => Ok(this),
            Err(error) => {
                this.destroy(hca);
                Err(error)
            }
        }
    }

    /// QP number, which the peer needs to connect.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// First PSN sent, which the peer needs to connect.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        self.spec.sq_psn
    }

    /// Handle of the queue pair.
    #[must_use]
    pub const fn handle(&self) -> QpHandle {
        self.qp
    }

    /// Completion queue of sends and receives.
    #[must_use]
    pub const fn cq(&self) -> CqHandle {
        self.cq
    }

    /// Returns the bounds of a [`Transfer`](super::Transfer) that has the send queue for itself. Messages have 1 GiB at most, the
    /// `max_msg_sz` of a ConnectX-3 port.
    #[must_use]
    pub const fn transfer_limits(&self) -> TransferLimits {
        TransferLimits {
            max_sge: self.spec.caps.max_send_sge,
            max_wr: self.spec.caps.max_send_wr,
            max_message: 1 << 30,
        }
    }

    /// Connects the queue pair to its peer, from INIT by RTR to RTS. A peer that is not ready yet does not answer: RC
    /// retries, and of UC what was sent is lost.
    ///
    /// # Errors
    /// Those of [`Hca::modify_qp`]. A queue pair that got no further than RTR receives, and can only be destroyed.
    pub fn connect(&self, hca: &mut dyn Hca, peer: &Peer) -> Result<(), HcaError> {
        let spec = &self.spec;
        let reliable = spec.is_reliable();
        let to_rtr = QpModify {
            state: Some(QpState::ReadyToReceive),
            primary: Some(peer.address),
            path_mtu: Some(peer.path_mtu),
            dest_qpn: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            max_dest_rd_atomic: reliable.then_some(spec.max_dest_rd_atomic),
            min_rnr_timer: reliable.then_some(spec.min_rnr_timer),
            ..QpModify::default()
        };
        hca.modify_qp(self.qp, &to_rtr)?;
        let to_rts = QpModify {
            state: Some(QpState::ReadyToSend),
            sq_psn: Some(spec.sq_psn),
            timeout: reliable.then_some(spec.timeout),
            retry_count: reliable.then_some(spec.retry_cnt),
            rnr_retry: reliable.then_some(spec.rnr_retry),
            max_rd_atomic: reliable.then_some(spec.max_rd_atomic),
            ..QpModify::default()
        };
        hca.modify_qp(self.qp, &to_rts)
    }

    /// Returns the attributes that it was made from (`ibv_qp_init_attr`).
    #[must_use]
    pub const fn spec(&self) -> &ConnectedQpSpec {
        &self.spec
    }

    /// Returns the queue pair as it stands (`ibv_qp_attr`): state, draining, sizes, PSNs, peer, rights, timers and retries. Next PSNs
    /// count from those of the connection.
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`] after a reset of the function.
    pub fn query(&self, hca: &dyn Hca) -> Result<QpAttributes, HcaError> {
        hca.query_qp(self.qp)
    }

    /// Moves the queue pair to ERR and posts a send request behind all others (`ib_drain_sq`). Its completion has the name `wr_id` and
    /// is [`Flushed`](hca_api::CompletionStatus::Flushed): then all requests before it have completed, and their memory is free.
    ///
    /// # Errors
    /// As [`Hca::modify_qp`] and [`Hca::post_send`]; [`HcaError::QueueFull`] if the send queue was left no room for the request.
    pub fn drain_send(&self, hca: &mut dyn Hca, wr_id: u64) -> Result<(), HcaError> {
        fail(hca, self.qp)?;
        let nowhere = RemoteAddress {
            addr: 0,
            rkey: RKey(0),
        };
        let (op, nothing) = (SendOp::RdmaWrite(nowhere), Payload::Gather(&[]));
        self.post_send(hca, wr_id, op, nothing, SendFlags::SIGNALED)
    }

    /// Moves the queue pair to ERR and posts a receive request behind all others (`ib_drain_rq`), whose completion ends the drain as
    /// in [`Self::drain_send`].
    ///
    /// # Errors
    /// As [`Hca::modify_qp`] and [`Hca::post_recv`]; [`HcaError::QueueFull`] if the receive queue was left no room for the request.
    pub fn drain_receive(&self, hca: &mut dyn Hca, wr_id: u64) -> Result<(), HcaError> {
        fail(hca, self.qp)?;
        self.post_recv(hca, wr_id, &[])
    }

    /// Posts a send request: a send, an RDMA write, an RDMA read, an atomic operation, an atomic write of 8 bytes
    /// ([`SendOp::AtomicWrite`]), a flush ([`SendOp::Flush`]), or a request about a [`FastRegion`](super::FastRegion). `payload` has the
    /// bytes to send, or takes the result of a read or an atomic operation; a flush has none. A peer flushes regions registered with
    /// [`AccessFlags::FLUSH_GLOBAL`].
    ///
    /// # Errors
    /// Those of [`Hca::post_send`]. A fault of the memory or the peer is the status of the completion.
    pub fn post_send(
        &self,
        hca: &mut dyn Hca,
        wr_id: u64,
        op: SendOp<'_>,
        payload: Payload<'_>,
        flags: SendFlags,
    ) -> Result<(), HcaError> {
        let request = SendRequest {
            wr_id,
            op,
            payload,
            flags,
            destination: None,
        };
        hca.post_send(self.qp, &request)
    }

    /// Posts a receive request, for a send or an RDMA write with immediate data of the peer.
    ///
    /// # Errors
    /// Those of [`Hca::post_recv`].
    pub fn post_recv(
        &self,
        hca: &mut dyn Hca,
        wr_id: u64,
        scatter: &[Sge],
    ) -> Result<(), HcaError> {
        hca.post_recv(self.qp, &RecvRequest { wr_id, scatter })
    }

    /// Returns the oldest completion, if any. When there is none, the next one raises an event. Completions of a queue that others
    /// share come from [`VfPort::poll_shared_completions`](super::VfPort::poll_shared_completions) alone.
    #[must_use]
    pub fn poll_cq(&self, hca: &mut dyn Hca) -> Option<Completion> {
        if !self.owns_cq {
            return None;
        }
        let mut one = [Completion::BLANK];
        loop {
            if hca.poll_cq(self.cq, &mut one).ok()? == 1 {
                return Some(one[0]);
            }
            if !hca.arm_cq(self.cq, ArmKind::Next).ok()? {
                return None;
            }
        }
    }

    /// Destroys the queue pair, and its own completion queue with the completions in it.
    pub fn destroy(self, hca: &mut dyn Hca) {
        // Only a reset can have taken them away before.
        let _ = hca.destroy_qp(self.qp);
        if self.owns_cq {
            let _ = hca.destroy_cq(self.cq);
        }
    }
}

#[cfg(test)]
mod tests;
