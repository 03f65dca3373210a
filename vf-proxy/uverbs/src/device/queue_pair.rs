//! Queue pairs: making and destroying them.

use std::sync::Arc;

use hca_api::{
    Hca, HcaError, QpAttributes, QpCaps, QpHandle, QpKind, QpSpec, QpState, ReceiveMode,
};
use ib_wire::Qpn;
use verbs_link::abi::AnsweredHandleCommand;
use verbs_link::abi::completion_queue::EventsReported;
use verbs_link::abi::queue_pair::{
    Caps, CreateQp, CreateQpAnswer, CreateQpAttributes, ExtendedCreateQp, ExtendedCreateQpAnswer,
    RxeCreateQpAnswer,
};
use verbs_link::abi::ring::{MappedRing, SGE_SIZE};
use verbs_link::budget::cost;
use verbs_link::{Answer, Command, Errno, Reply, RetiredEvents};
use vf_queues::SendRing;

use super::{ContextId, Owned, ProcessDevice};
use crate::ring::{ReceiveRing, ReceiveSource, Ring, receive_element};
use crate::send::SendShape;

/// `enum ibv_qp_type`.
const RC: u8 = 2;
const UC: u8 = 3;
const UD: u8 = 4;

/// A request that the provider has.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentRequest {
    pub(super) wr_id: u64,
    pub(super) signaled: bool,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) provider: QpHandle,
    qpn: Qpn,
    pub(super) kind: QpKind,
    pub(super) user_handle: u64,
    pub(super) caps: Caps,
    pub(super) send_cq: u32,
    recv_cq: u32,
    srq: Option<u32>,
    pub(super) send: Ring,
    pub(super) shape: SendShape,
    /// The request to be taken next.
    pub(super) next_send: u32,
    /// Requests that were taken and are not complete.
    pub(super) sent: SendRing<SentRequest>,
    /// A request failed that the provider did not get: the queue pair, which needs no acknowledgements, is in SQE.
    pub(super) send_error: bool,
    pub(super) receive: Option<Arc<ReceiveRing>>,
    pub(super) signal_all: bool,
    pub(super) async_events: u32,
}

impl Qp {
    /// Returns the attributes at the provider, in the state that the program sees.
    pub(super) fn query(&self, hca: &dyn Hca) -> Result<QpAttributes, HcaError> {
        let mut is = hca.query_qp(self.provider)?;
        if self.send_error && is.state == QpState::ReadyToSend {
            is.state = QpState::SendQueueError;
        }
        Ok(is)
    }

    /// Number that completions carry.
    pub(super) const fn number(&self) -> Qpn {
        self.qpn
    }

    /// Returns `true` if one of its queues completes at a completion queue.
    pub(super) const fn completes_at(&self, cq: u32) -> bool {
        self.send_cq == cq || self.recv_cq == cq
    }
}

impl ProcessDevice {
    pub(super) fn create_qp(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
        extended: bool,
    ) -> Result<Answer, Errno> {
        let asked = if extended {
            let least = size_of::<CreateQpAttributes>();
            let asked = command.read_padded::<ExtendedCreateQp>(least)?;
            if asked.comp_mask.get() != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            if asked.create_flags.get() != 0 {
                return Err(Errno::EINVAL);
            }
            asked.attributes
        } else {
            command.read::<CreateQp>()?.0.attributes
        };
        let kind = match asked.qp_type {
            RC => QpKind::Rc,
            UC => QpKind::Uc,
            UD => QpKind::Ud,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let made = self.make_qp(hca, context, kind, &asked)?;
        let qp = self.qps.get(context, made)?;
        let base = CreateQpAnswer {
            qp_handle: made.into(),
            qpn: qp.qpn.get().into(),
            caps: qp.caps,
            reserved: 0.into(),
        };
        let rings = RxeCreateQpAnswer {
            receive: (qp.receive.as_ref()).map_or_else(MappedRing::default, |r| r.ring().place()),
            send: qp.send.place(),
        };
        let answer = if extended {
            let length = size_of::<ExtendedCreateQpAnswer>();
            Answer::new(&ExtendedCreateQpAnswer {
                base,
                comp_mask: 0.into(),
                response_length: u32::try_from(length).unwrap_or(0).into(),
            })
        } else {
            Answer::new(&base)
        };
        Ok(answer.with(&rings))
    }

    fn make_qp(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        kind: QpKind,
        asked: &CreateQpAttributes,
    ) -> Result<u32, Errno> {
        let pd = *self.pds.get(context, asked.pd_handle.get())?;
        let (send_cq, recv_cq) = (asked.send_cq_handle.get(), asked.recv_cq_handle.get());
        let send_provider = self.cqs.get(context, send_cq)?.provider;
        let recv_provider = self.cqs.get(context, recv_cq)?.provider;
        let srq = (asked.is_srq != 0).then(|| asked.srq_handle.get());
        let srq_provider = match srq {
            Some(handle) => Some(self.srqs.get(context, handle)?.provider),
            None => None,
        };
        let shape = check_caps(hca, &asked.caps, srq.is_some())?;
        let rings = self.rings()?;
        let _charge = self.charge(cost::QUEUE_PAIR)?;
        let send_wr = asked.caps.max_send_wr.get();
        let send = Ring::new(&rings, &mut self.extents, send_wr, shape.element());
        let send = send.ok_or(Errno::ENOMEM)?;
        let recv_sge = asked.caps.max_recv_sge.get();
        let max_recv_sge = usize::try_from(recv_sge).map_err(|_| Errno::EINVAL)?;
        let receive = if srq.is_some() {
            None
        } else {
            let element = receive_element(max_recv_sge);
            let entries = asked.caps.max_recv_wr.get();
            let Some(ring) = Ring::new(&rings, &mut self.extents, entries, element) else {
                send.give_back(&mut self.extents);
                return Err(Errno::ENOMEM);
            };
            Some(Arc::new(ReceiveRing::new(ring, max_recv_sge)))
        };
        let capacity = |ring: &Arc<ReceiveRing>| ring.ring().capacity();
        let max_recv_wr = receive.as_ref().map_or(0, capacity);
        let caps = Caps {
            max_send_wr: send.capacity().into(),
            max_recv_wr: max_recv_wr.into(),
            max_send_sge: u32::try_from(shape.max_sge).unwrap_or(0).into(),
            max_recv_sge: if srq.is_some() { 0 } else { recv_sge }.into(),
            max_inline_data: u32::try_from(shape.max_inline).unwrap_or(0).into(),
        };
        let receives = receive.as_ref().map_or_else(ReceiveMode::default, |ring| {
            ReceiveMode::Pulled(Box::new(ReceiveSource(ring.clone())))
        });
        let created = hca.create_qp(QpSpec {
            kind,
            pd,
            send_cq: send_provider,
            recv_cq: recv_provider,
            srq: srq_provider,
            caps: QpCaps {
                max_send_wr: send.capacity(),
                max_recv_wr,
                max_send_sge: caps.max_send_sge.get(),
                max_recv_sge: caps.max_recv_sge.get(),
                max_inline: caps.max_inline_data.get(),
            },
            // Completions that the program did not ask for free places of its ring.
            signal_all: true,
            receives,
            qpn: None,
            block_multicast_loopback: false,
        });
        let (provider, numbers) = match created {
            Ok(created) => created,
            Err(error) => {
                send.give_back(&mut self.extents);
                if let Some(receive) = receive {
                    receive.ring().give_back(&mut self.extents);
                }
                return Err(error.into());
            }
        };
        let handle = self.new_handle();
        let qpn = numbers.external;
        let object = Qp {
            provider,
            qpn,
            kind,
            user_handle: asked.user_handle.get(),
            caps,
            send_cq,
            recv_cq,
            srq,
            send,
            shape,
            next_send: 0,
            sent: SendRing::default(),
            send_error: false,
            receive,
            signal_all: asked.sq_sig_all != 0,
            async_events: 0,
        };
        let owned = Owned {
            context,
            object,
            _charge,
        };
        self.qps.0.insert(handle, owned);
        self.qp_by_number.insert(qpn, handle);
        self.use_queues(send_cq, recv_cq, srq, 1);
        Ok(handle)
    }

    /// Counts a queue pair as a user of its queues, or no longer.
    fn use_queues(&mut self, send_cq: u32, recv_cq: u32, srq: Option<u32>, by: i32) {
        for cq in [send_cq, recv_cq] {
            if let Some(cq) = self.cqs.0.get_mut(&cq) {
                cq.object.users = cq.object.users.saturating_add_signed(by);
            }
        }
        if let Some(srq) = srq.and_then(|srq| self.srqs.0.get_mut(&srq)) {
            srq.object.users = srq.object.users.saturating_add_signed(by);
        }
    }

    pub(super) fn destroy_qp(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<(Answer, Reply), Errno> {
        let (asked, _) = command.read::<AnsweredHandleCommand>()?;
        let handle = asked.handle.get();
        let qp = self.qps.get(context, handle)?;
        let answer = EventsReported {
            events_reported: qp.async_events.into(),
        };
        let reply = self.retired(context, qp.user_handle);
        let (provider, qpn) = (qp.provider, qp.qpn);
        hca.destroy_qp(provider)?;
        self.drop_qp(hca, handle, qpn);
        Ok((Answer::new(&answer), reply))
    }

    /// Returns the reply for an object whose asynchronous events are counted at the start of the answer.
    pub(super) fn retired(&self, context: ContextId, element: u64) -> Reply {
        let events = self.contexts.get(&context).and_then(|known| known.events);
        let retired = events.map(|channel| RetiredEvents {
            channel,
            element,
            offset: 0,
        });
        Reply {
            retired: retired.into_iter().collect(),
            ..Reply::default()
        }
    }

    /// Destroys a queue pair of a file that is closed, with its attachments.
    pub(super) fn end_qp(&mut self, hca: &mut dyn Hca, handle: u32) {
        let Some(qp) = self.qps.0.get(&handle).map(|qp| &qp.object) else {
            return;
        };
        let (provider, qpn) = (qp.provider, qp.qpn);
        if hca.destroy_qp(provider).is_ok() {
            self.drop_qp(hca, handle, qpn);
        }
    }

    fn drop_qp(&mut self, hca: &mut dyn Hca, handle: u32, qpn: Qpn) {
        self.qp_by_number.remove(&qpn);
        self.backlog.remove_qp(handle);
        self.starved.remove(&handle);
        let Some(owned) = self.qps.0.remove(&handle) else {
            return;
        };
        let qp = owned.object;
        self.use_queues(qp.send_cq, qp.recv_cq, qp.srq, -1);
        qp.send.give_back(&mut self.extents);
        if let Some(receive) = &qp.receive {
            receive.ring().give_back(&mut self.extents);
        }
        // What the provider flushed is nobody's, and must not be taken for that of a later one with the same number.
        self.collect(hca, qp.send_cq);
        self.collect(hca, qp.recv_cq);
    }
}

/// Checks the sizes that a program asks for. Returns those of the send queue.
fn check_caps(hca: &dyn Hca, caps: &Caps, has_srq: bool) -> Result<SendShape, Errno> {
    let limits = hca.attributes().limits;
    let within = |value: u32, most: u32| value <= most;
    let sends = within(caps.max_send_wr.get(), limits.max_qp_wr - 1)
        && within(caps.max_send_sge.get(), limits.max_sge)
        && within(caps.max_inline_data.get(), limits.max_inline);
    let receives = has_srq
        || within(caps.max_recv_wr.get(), limits.max_qp_wr - 1)
            && within(caps.max_recv_sge.get(), limits.max_sge);
    if !sends || !receives {
        return Err(Errno::EINVAL);
    }
    let usize_of = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
    // As rxe: the room for the list holds inline bytes, and the other way round.
    let list = usize_of(caps.max_send_sge.get()) * SGE_SIZE;
    let inline = usize_of(caps.max_inline_data.get());
    let room = list.max(inline).next_multiple_of(SGE_SIZE);
    Ok(SendShape {
        max_sge: (room / SGE_SIZE).min(usize_of(limits.max_sge)),
        max_inline: room.min(usize_of(limits.max_inline)),
    })
}
