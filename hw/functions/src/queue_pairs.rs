//! Queue pairs of virtual functions, each of which is one of the adapter's.

use hca_api::{
    AddressVector, AsyncEvent, AvHandle, Completion, FunctionId, GlobalRoute, Hca, HcaError,
    MwBind, Payload, PortState, QpHandle, QpModify, QpNumbers, QpSpec, QpState, ReceiveMode,
    RecvRequest, SendOp, SendRequest, SrqHandle,
};
use ib_wire::{GidIndex, PKeyIndex, PortNum, QKey};

use crate::connections::follow_connection;
use crate::datagrams::refresh;
use crate::event::EventSource;
use crate::functions::Functions;
use crate::pair::Pair;
use crate::pulled::{PulledQueue, QueueId};
use crate::side::FIRST_END;
use crate::vf::Vf;

impl Vf {
    /// Returns the P_Key index of the adapter for one of the function. `None` if nothing passes: the function has no key
    /// there, or its port is not active.
    pub(crate) fn passage(&self, port: PortNum, index: PKeyIndex) -> Option<PKeyIndex> {
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

    pub(crate) fn own_av(&self, av: AvHandle) -> Result<AvHandle, HcaError> {
        let is_own = self.avs.contains(&av);
        is_own.then_some(av).ok_or(HcaError::InvalidHandle)
    }

    pub(crate) fn own_srq(&self, srq: SrqHandle) -> Result<SrqHandle, HcaError> {
        let is_own = self.srqs.contains(&srq);
        is_own.then_some(srq).ok_or(HcaError::InvalidHandle)
    }

    /// Returns an operation with the keys of the adapter. Keys of windows are the adapter's, which refuses another protection
    /// domain's.
    fn physical_op<'a>(&self, op: SendOp<'a>) -> Result<SendOp<'a>, HcaError> {
        match op {
            SendOp::BindWindow(bind) => Ok(SendOp::BindWindow(MwBind {
                region: self.side.regions.physical(bind.region),
                ..bind
            })),
            // Its pages are addresses of the function.
            SendOp::FastRegister(_) => Err(HcaError::Unsupported),
            _ => Ok(op),
        }
    }
}

impl Functions {
    /// Makes a queue pair of a virtual function.
    pub(crate) fn create_pair(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        mut spec: QpSpec,
    ) -> Result<(QpHandle, QpNumbers), HcaError> {
        // The adapter does not know the memory that a source reads.
        let receives = core::mem::take(&mut spec.receives);
        let (srq, caps) = (spec.srq, spec.caps);
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
        spec.srq.map(|srq| vf.own_srq(srq)).transpose()?;
        let pair = Pair::new(spec.kind);
        let (qp, numbers) = hca.create_qp(spec)?;
        if qp.0 >= FIRST_END {
            hca.destroy_qp(qp)?;
            return Err(HcaError::InsufficientResources);
        }
        self.qp_owners.insert(qp, id);
        let vf = self.vf_mut(id)?;
        vf.pairs.insert(qp, pair);
        let own = QueueId::Own(qp);
        if let (ReceiveMode::Pulled(source), None) = (receives, srq) {
            let queue = PulledQueue::new(source, caps.max_recv_wr, caps.max_recv_sge);
            vf.pulled.insert(own, queue);
        }
        let queue = srq.map_or(own, QueueId::Shared);
        vf.pulled.insert_pair(qp, numbers.external, queue);
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
        let (changed, physical) = if pair.is_connected() {
            let state = change
                .state
                .map_or_else(|| hca.query_qp(qp).map(|qp| qp.state), Ok)?;
            pair.change_connection((vf, id), change, state)?
        } else {
            pair.change(vf, change, barrier)?
        };
        hca.modify_qp(qp, &physical)?;
        let changed = match change.state {
            Some(QpState::Reset) => pair.reset(),
            _ => changed,
        };
        vf.pairs.insert(qp, changed);
        if let Some(state) = change.state {
            self.follow_state(hca, id, qp, state);
        }
        Ok(())
    }

    /// Returns a Q_Key that no sender knows. Consumers of virtual functions can set no such one to send with.
    fn draw_barrier(&mut self) -> QKey {
        QKey::new(self.secrets.next_u32() & 0x7fff_ffff)
    }

    /// Makes the queue pairs of a function follow its view of a port.
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
        let mut severed = Vec::new();
        for (qp, pair) in on_port {
            let before = *pair;
            let modified = if pair.is_connected() {
                let is_severed =
                    follow_connection(hca, *qp, pair, vf.passage(port, pair.pkey_index));
                is_severed.map(|is_severed| severed.extend(is_severed.then_some(*qp)))
            } else {
                pair.follow(vf, port, barrier);
                refresh(hca, *qp, &before, pair)
            };
            debug_assert_eq!(modified, Ok(()), "it is there");
        }
        vf.pairs = pairs;
        for qp in severed {
            self.follow_state(hca, id, qp, QpState::Error);
            let events = &mut self.side_mut(id)?.events;
            events.raise(AsyncEvent::QpFatal(qp));
        }
        Ok(())
    }

    /// Posts a send. A datagram to which nothing is open completes all the same, and is lost.
    pub(crate) fn send(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        qp: QpHandle,
        request: &SendRequest<'_>,
    ) -> Result<(), HcaError> {
        // The answer may come before the next look at the receives.
        self.read_queue_of(hca, id, qp);
        let vf = self.vf(id)?;
        let pair = vf.pairs.get(&qp).ok_or(HcaError::InvalidHandle)?;
        let op = vf.physical_op(request.op)?;
        let destination = match (pair.is_connected(), request.destination) {
            (true, None) => None,
            (false, Some(given)) => Some(vf.physical_destination(hca, id, pair, given)?),
            _ => return Err(HcaError::InvalidParameter),
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
                op,
                destination,
                payload,
                ..*request
            },
        )
    }

    /// Posts a receive.
    pub(crate) fn receive(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        qp: QpHandle,
        request: &RecvRequest<'_>,
    ) -> Result<(), HcaError> {
        let vf = self.vf(id)?;
        if !vf.pairs.contains_key(&qp) {
            return Err(HcaError::InvalidHandle);
        }
        vf.pulled.check_posted(QueueId::Own(qp))?;
        hca.post_recv(qp, &self.physical_receive(id, request)?)
    }

    /// Posts a receive to a shared receive queue.
    pub(crate) fn receive_shared(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        srq: SrqHandle,
        request: &RecvRequest<'_>,
    ) -> Result<(), HcaError> {
        let vf = self.vf(id)?;
        vf.own_srq(srq)?;
        vf.pulled.check_posted(QueueId::Shared(srq))?;
        hca.post_srq_recv(srq, &self.physical_receive(id, request)?)
    }

    /// Returns a receive with the keys of the adapter.
    fn physical_receive(
        &mut self,
        id: FunctionId,
        request: &RecvRequest<'_>,
    ) -> Result<RecvRequest<'_>, HcaError> {
        let vf = self.vfs.get(&id).ok_or(HcaError::InvalidHandle)?;
        self.sges.clear();
        let regions = &vf.side.regions;
        regions.translate(request.scatter, &mut self.sges);
        Ok(RecvRequest {
            wr_id: request.wr_id,
            scatter: &self.sges,
        })
    }

    /// Forgets a queue pair, which the adapter destroyed.
    pub(crate) fn forget_pair(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        qp: QpHandle,
    ) -> Result<(), HcaError> {
        self.qp_owners.remove(&qp);
        self.forget_queue_of(hca, id, qp);
        let vf = self.vf_mut(id)?;
        vf.pairs.remove(&qp);
        vf.side.events.forget(EventSource::Qp(qp));
        Ok(())
    }
}
