//! Datagram queue pairs of virtual functions, each of which is one of the adapter's.

use hca_api::{
    AddressVector, AvHandle, Completion, FunctionId, GlobalRoute, Hca, HcaError, Payload,
    PortState, QpHandle, QpKind, QpModify, QpNumbers, QpSpec, QpState, ReceiveMode, RecvRequest,
    SendRequest, UdAddress, UdDestination,
};
use ib_wire::{Gid, GidIndex, Lid, PKeyIndex, PortNum, QKey, Qpn, Sl};

use crate::event::EventSource;
use crate::functions::Functions;
use crate::pair::DatagramPair;
use crate::side::FIRST_END;
use crate::vf::Vf;

impl Vf {
    /// Returns the P_Key index of the adapter for one of the function. `None` if no datagram passes: the function has no key
    /// there, or its port is not active.
    fn passage(&self, port: PortNum, index: PKeyIndex) -> Option<PKeyIndex> {
        let own = self.port(port).ok()?;
        let physical = own.physical_pkey(index)?;
        (own.view.state == PortState::Active).then_some(physical)
    }

    /// Returns an address as the adapter has it, with the source GID of the function.
    pub(crate) fn physical_vector(
        &self,
        id: FunctionId,
        vector: &AddressVector,
    ) -> Result<AddressVector, HcaError> {
        self.port(vector.port)?;
        let grh = vector.grh.map(|route| GlobalRoute {
            sgid_index: GidIndex(id.0),
            ..route
        });
        Ok(AddressVector { grh, ..*vector })
    }

    /// Rewrites a completion of the adapter to the indices of the function.
    pub(crate) fn rewrite(&self, completion: &mut Completion) {
        let Some(source) = &mut completion.source else {
            return;
        };
        if let Some(route) = &mut source.grh {
            route.sgid_index = GidIndex(0);
        }
        let pkeys = self.port(source.port).map(|own| &own.view.pkeys);
        let virtual_index = pkeys.ok().and_then(|pkeys| {
            let at = pkeys.iter().position(|at| *at == Some(source.pkey_index))?;
            u16::try_from(at).ok()
        });
        source.pkey_index = PKeyIndex(virtual_index.unwrap_or(0));
    }
}

impl DatagramPair {
    /// Returns the change of the adapter's queue pair for one of the consumer's, and the pair after it.
    fn change(
        mut self,
        vf: &Vf,
        change: &QpModify,
        barrier: QKey,
    ) -> Result<(Self, QpModify), HcaError> {
        if change.qkey.is_some_and(QKey::is_privileged) {
            return Err(HcaError::PermissionDenied);
        }
        self.port = change.port.or(self.port);
        self.pkey_index = change.pkey_index.unwrap_or(self.pkey_index);
        self.qkey = change.qkey.unwrap_or(self.qkey);
        let Some(port) = self.port else {
            return Ok((self, *change));
        };
        let table = vf.port(port)?.view.pkeys.len();
        if change.pkey_index.is_some() && usize::from(self.pkey_index.0) >= table {
            return Err(HcaError::InvalidIndex);
        }
        self.follow(vf, port, barrier);
        let mut physical = *change;
        physical.pkey_index = change.pkey_index.map(|_| self.physical);
        physical.qkey = change.qkey.map(|_| self.physical_qkey());
        // It was not taken to RTR and RTS with the view that there is now.
        match change.state {
            Some(QpState::ReadyToReceive) => {
                physical.pkey_index = Some(self.physical);
                physical.qkey = Some(self.physical_qkey());
            }
            Some(QpState::ReadyToSend) => physical.qkey = Some(self.physical_qkey()),
            _ => {}
        }
        Ok((self, physical))
    }

    /// Follows the view of its port.
    fn follow(&mut self, vf: &Vf, port: PortNum, barrier: QKey) {
        let passage = vf.passage(port, self.pkey_index);
        self.physical = passage.unwrap_or(self.physical);
        self.barrier = match passage {
            Some(_) => None,
            None => self.barrier.or(Some(barrier)),
        };
    }
}

impl Functions {
    /// Makes a datagram queue pair of a virtual function.
    pub(crate) fn create_pair(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        spec: QpSpec,
    ) -> Result<(QpHandle, QpNumbers), HcaError> {
        // The adapter does not know the memory that a source reads.
        if matches!(spec.receives, ReceiveMode::Pulled(_)) || spec.srq.is_some() {
            return Err(HcaError::Unsupported);
        }
        if spec.kind != QpKind::Ud {
            return Err(HcaError::Unsupported);
        }
        if spec.qpn.is_some() {
            return Err(HcaError::InvalidParameter);
        }
        self.check_quota(id, |counts| counts.qps)?;
        let vf = self.vf(id)?;
        let has_cqs = [spec.send_cq, spec.recv_cq]
            .iter()
            .all(|cq| vf.side.cqs.contains_key(cq));
        if !has_cqs || !vf.side.pds.contains_key(&spec.pd) {
            return Err(HcaError::InvalidHandle);
        }
        let (qp, numbers) = hca.create_qp(spec)?;
        if qp.0 >= FIRST_END {
            hca.destroy_qp(qp)?;
            return Err(HcaError::InsufficientResources);
        }
        self.qp_owners.insert(qp, id);
        self.vf_mut(id)?.pairs.insert(qp, DatagramPair::default());
        Ok((qp, numbers))
    }

    pub(crate) fn modify_pair(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        qp: QpHandle,
        change: &QpModify,
    ) -> Result<(), HcaError> {
        let barrier = self.draw_barrier();
        let vf = self.vf_mut(id)?;
        let pair = *vf.pairs.get(&qp).ok_or(HcaError::InvalidHandle)?;
        let (changed, physical) = pair.change(vf, change, barrier)?;
        hca.modify_qp(qp, &physical)?;
        let changed = match change.state {
            Some(QpState::Reset) => DatagramPair::default(),
            _ => changed,
        };
        vf.pairs.insert(qp, changed);
        Ok(())
    }

    /// Returns a Q_Key that no sender knows. Consumers of virtual functions can set no such one to send with.
    fn draw_barrier(&mut self) -> QKey {
        QKey::new(self.secrets.next_u32() & 0x7fff_ffff)
    }

    /// Makes the datagram queue pairs of a function follow its view of a port.
    pub(crate) fn follow_view(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        port: PortNum,
    ) -> Result<(), HcaError> {
        let barrier = self.draw_barrier();
        let vf = self.vf_mut(id)?;
        let mut pairs = core::mem::take(&mut vf.pairs);
        let on_port = pairs.iter_mut().filter(|(_, pair)| pair.port == Some(port));
        for (qp, pair) in on_port {
            let before = *pair;
            pair.follow(vf, port, barrier);
            let modified = refresh(hca, *qp, &before, pair);
            debug_assert_eq!(modified, Ok(()), "it is there");
        }
        vf.pairs = pairs;
        Ok(())
    }

    /// Posts a send of a datagram queue pair. While nothing may pass it completes all the same, and its message is lost.
    pub(crate) fn send_datagram(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        qp: QpHandle,
        request: &SendRequest<'_>,
    ) -> Result<(), HcaError> {
        let vf = self.vf(id)?;
        let pair = vf.pairs.get(&qp).ok_or(HcaError::InvalidHandle)?;
        let destination = request.destination.ok_or(HcaError::InvalidParameter)?;
        if destination.pkey_index.is_some() {
            return Err(HcaError::InvalidParameter);
        }
        let address = match destination.address {
            UdAddress::Vector(vector) => UdAddress::Vector(vf.physical_vector(id, &vector)?),
            UdAddress::Handle(av) => UdAddress::Handle(vf.own_av(av)?),
        };
        let destination = if pair.barrier.is_none() {
            UdDestination {
                address,
                ..destination
            }
        } else {
            nowhere(hca, pair.port)?
        };
        self.sges.clear();
        let vf = self.vfs.get(&id).ok_or(HcaError::InvalidHandle)?;
        let regions = &vf.side.regions;
        let payload = match request.payload {
            Payload::Inline(bytes) => Payload::Inline(bytes),
            Payload::Gather(sges) => {
                regions.translate(sges, &mut self.sges);
                Payload::Gather(&self.sges)
            }
            Payload::Headed(head, sges) => {
                regions.translate(sges, &mut self.sges);
                Payload::Headed(head, &self.sges)
            }
        };
        hca.post_send(
            qp,
            &SendRequest {
                destination: Some(destination),
                payload,
                ..*request
            },
        )
    }

    /// Posts a receive of a datagram queue pair.
    pub(crate) fn receive_datagrams(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        qp: QpHandle,
        request: &RecvRequest<'_>,
    ) -> Result<(), HcaError> {
        let vf = self.vfs.get(&id).ok_or(HcaError::InvalidHandle)?;
        if !vf.pairs.contains_key(&qp) {
            return Err(HcaError::InvalidHandle);
        }
        self.sges.clear();
        let regions = &vf.side.regions;
        regions.translate(request.scatter, &mut self.sges);
        let request = RecvRequest {
            scatter: &self.sges,
            ..*request
        };
        hca.post_recv(qp, &request)
    }

    /// Forgets a datagram queue pair, which the adapter destroyed.
    pub(crate) fn forget_pair(&mut self, id: FunctionId, qp: QpHandle) -> Result<(), HcaError> {
        self.qp_owners.remove(&qp);
        let vf = self.vf_mut(id)?;
        vf.pairs.remove(&qp);
        vf.side.events.forget(EventSource::Qp(qp));
        Ok(())
    }

    pub(crate) fn attach(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        attachment: (QpHandle, Gid, Lid),
    ) -> Result<(), HcaError> {
        let vf = self.vf(id)?;
        if vf.attachments.contains(&attachment) {
            return Ok(());
        }
        let (qp, mgid, mlid) = attachment;
        if !vf.pairs.contains_key(&qp) {
            vf.side.end(qp)?;
            return Err(HcaError::InvalidQpKind);
        }
        self.check_quota(id, |counts| counts.attachments)?;
        hca.attach_multicast(qp, mgid, mlid)?;
        self.vf_mut(id)?.attachments.insert(attachment);
        Ok(())
    }

    pub(crate) fn detach(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        attachment: (QpHandle, Gid, Lid),
    ) -> Result<(), HcaError> {
        let vf = self.vf_mut(id)?;
        if !vf.attachments.contains(&attachment) {
            return Err(HcaError::InvalidParameter);
        }
        let (qp, mgid, mlid) = attachment;
        hca.detach_multicast(qp, mgid, mlid)?;
        vf.attachments.remove(&attachment);
        Ok(())
    }
}

/// Makes a pair of the adapter as its consumer's stands now.
fn refresh(
    hca: &mut dyn Hca,
    qp: QpHandle,
    before: &DatagramPair,
    pair: &DatagramPair,
) -> Result<(), HcaError> {
    let state = hca.query_qp(qp)?.state;
    let is_rekeyed = pair.physical_qkey() != before.physical_qkey();
    if matches!(state, QpState::Init | QpState::ReadyToSend) && is_rekeyed {
        let change = QpModify {
            qkey: Some(pair.physical_qkey()),
            ..QpModify::default()
        };
        hca.modify_qp(qp, &change)?;
    }
    if pair.physical == before.physical {
        return Ok(());
    }
    let repartition = QpModify {
        pkey_index: Some(pair.physical),
        ..QpModify::default()
    };
    let to = |state| QpModify {
        state: Some(state),
        ..QpModify::default()
    };
    match state {
        QpState::Init => hca.modify_qp(qp, &repartition),
        // The P_Key of a queue pair that sends can be changed while it drains alone.
        QpState::ReadyToSend => {
            hca.modify_qp(qp, &to(QpState::SendQueueDrain))?;
            hca.modify_qp(qp, &repartition)?;
            hca.modify_qp(qp, &to(QpState::ReadyToSend))
        }
        _ => Ok(()),
    }
}

/// Returns a destination at which nothing is: the port itself, and a number that no queue pair has.
fn nowhere(hca: &dyn Hca, port: Option<PortNum>) -> Result<UdDestination, HcaError> {
    let port = port.ok_or(HcaError::InvalidQpState)?;
    let vector = AddressVector {
        port,
        dlid: hca.query_port(port)?.lid,
        sl: Sl::default(),
        path_bits: 0,
        static_rate: None,
        grh: None,
    };
    Ok(UdDestination {
        address: UdAddress::Vector(vector),
        qpn: Qpn::from_low_bits(0xff_fffe),
        qkey: QKey::default(),
        pkey_index: None,
    })
}

impl Vf {
    pub(crate) fn own_av(&self, av: AvHandle) -> Result<AvHandle, HcaError> {
        let is_own = self.avs.contains(&av);
        is_own.then_some(av).ok_or(HcaError::InvalidHandle)
    }
}
