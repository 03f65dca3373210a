//! Queue pairs: what one consists of, and how it is made and ended.

use hca_api::{
    Completion, Hca, PdHandle, QpCaps, QpHandle, QpKind, QpModify, QpSpec,
    QpState as ProviderState, ReceiveMode, SpecialQp,
};
use ib_wire::packet::Grh;
use ib_wire::{PortNum, Qpn};
use mlx4_defs::qp::{QpContext, QpMailbox, QpState, ServiceType};
use mlx4_defs::wqe::WqeOpcode;
use mlx4_defs::{Cqn, Srqn, Status, Uar};
use vf_queues::SendRing;
use zerocopy::network_endian::U16;

use super::super::capability::LOG_MAX_GSO;
use super::super::mtt::{MttPin, Mtts};
use super::super::pd::{Pds, status_of};
use super::cq::Cq;
use super::keys::LocalKeys;
use super::name::{Life, SendName, receive_index};
use super::offload::{self, Protocol};
use super::receive::{ReceiveQueue, Slots};
use super::send::SendQueue;
use super::srq::Srq;
use super::transition::{Transition, port};
use super::transport::Transport;

/// A queue pair, from its first transition to its reset.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) qpn: Qpn,
    pub(super) life: Life,
    /// As the driver gave it, transition by transition.
    pub(super) context: QpContext,
    pub(super) state: QpState,
    pub(super) transport: Transport,
    /// The provider's queue pair.
    pub(super) handle: QpHandle,
    pub(super) keys: LocalKeys,
    pub(super) sends: SendQueue,
    /// Sends that the provider has.
    pub(super) sent: SendRing<()>,
    /// Packets that were made of the next send, which is cut into several.
    pub(super) segments: u16,
    /// The send of which a packet failed, by its running count.
    failed: Option<u16>,
    /// Receives that have completed, modulo 2^16; not counted of a shared queue.
    pub(super) received: u16,
    /// Its own receives.
    slots: Option<Slots>,
    pin: MttPin,
}

/// What a queue pair is made of besides its context.
pub(super) struct Parts<'a> {
    pub(super) send_cq: &'a Cq,
    pub(super) recv_cq: &'a Cq,
    pub(super) srq: Option<&'a Srq>,
    /// Which special queue pair its number stands for.
    pub(super) proxy: Option<(SpecialQp, PortNum)>,
}

/// Requests of a connected queue pair that the provider has at a time. It keeps each until it is complete, and a peer may never
/// answer: a guest with thousands of queue pairs is not to fill the host's memory with their inline bytes. All else waits in the
/// guest's ring.
const MAX_UNDER_WAY: u32 = 32;

/// Log2 of more bytes than the headers have that the device writes checksums into.
const LOG_LONGEST_HEADERS: u8 = 7;
const _: () = assert!(offload::LONGEST_HEADERS <= 1 << LOG_LONGEST_HEADERS);

/// Log2 of the smallest stride of a queue.
const MIN_LOG_STRIDE: u8 = 4;

impl Qp {
    /// Makes a queue pair, in the reset state. What it makes or holds is given back on an error.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`], [`Status::BAD_OP`] for what a virtual function may not,
    /// [`Status::EXCEED_LIM`].
    pub(super) fn new(
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        pds: &mut Pds,
        parts: &Parts<'_>,
        (qpn, life): (Qpn, Life),
        context: &QpContext,
    ) -> Result<Self, Status> {
        let transport = check(context, parts)?;
        let (sends, slots) = queues(mtts, context)?;
        let tag = context.pd();
        let pin = mtts.pin(context.mtt_base.entry())?;
        let made = pds.acquire(hca, tag).and_then(|pd| {
            let made = local_keys(hca, pds, context).and_then(|keys| {
                let receives = slots.clone();
                let receives = receives.map(|slots| ReceiveQueue::new(slots, keys, life.name()));
                let handle = at_provider(hca, pd, parts, (qpn, context, transport), receives)?;
                Ok((keys, handle))
            });
            made.inspect_err(|_| pds.release(hca, tag))
        });
        match made {
            Ok((keys, handle)) => Ok(Self {
                qpn,
                life,
                context: *context,
                state: QpState::RST,
                transport,
                handle,
                keys,
                sends,
                sent: SendRing::default(),
                segments: 0,
                failed: None,
                received: 0,
                slots,
                pin,
            }),
            Err(status) => {
                mtts.unpin(pin);
                Err(status)
            }
        }
    }

    /// Ends a queue pair that is attached to no group. Nothing completes any more.
    pub(super) fn end(self, hca: &mut dyn Hca, mtts: &mut Mtts, pds: &mut Pds) {
        let reset = QpModify {
            state: Some(ProviderState::Reset),
            ..QpModify::default()
        };
        let gone = hca.modify_qp(self.handle, &reset);
        let gone = gone.and_then(|()| hca.destroy_qp(self.handle));
        debug_assert_eq!(gone, Ok(()), "it is attached to nothing");
        pds.release(hca, self.context.pd());
        mtts.unpin(self.pin);
    }

    /// The UAR whose doorbell starts it.
    pub(super) const fn uar(&self) -> Uar {
        self.context.uar
    }

    /// The completion queue of sends or of receives.
    pub(super) const fn cqn(&self, receive: bool) -> Cqn {
        if receive {
            self.context.receive_cqn
        } else {
            self.context.send_cqn
        }
    }

    /// The shared receive queue.
    pub(super) fn srqn(&self) -> Option<Srqn> {
        self.context.has_srq().then_some(self.context.srqn)
    }

    /// Whether it belongs to the guest's kernel.
    pub(super) fn is_kernel(&self) -> bool {
        self.context.reserved_lkey()
    }

    /// Takes the next send, and gives its running count.
    pub(super) const fn take_send(&mut self) -> u16 {
        self.segments = 0;
        let index = self.sends.index();
        self.sends.take();
        index
    }

    /// Notes that a send failed, or a packet of it. Returns `true` if one that is cut into packets had failed before: it
    /// completes once, whatever becomes of the rest.
    pub(super) fn has_failed(&mut self, send: SendName) -> bool {
        if send.opcode != WqeOpcode::LSO {
            return false;
        }
        if self.segments != 0 && self.sends.index() == send.index {
            self.take_send();
        }
        self.failed.replace(send.index) == Some(send.index)
    }

    /// Returns the protocol of a received IPoIB packet with right checksums. The device looks at packets of queue pairs that the
    /// driver made for IPoIB: with messages as long as the device cuts.
    pub(super) fn verified(
        &self,
        hca: &dyn Hca,
        completion: &Completion,
        packet: &mut Vec<u8>,
    ) -> Option<Protocol> {
        let slots = self.slots.as_ref()?;
        let of_ipoib = self.transport == Transport::Datagram
            && self.is_kernel()
            && self.context.log_max_message() == LOG_MAX_GSO;
        if !of_ipoib {
            return None;
        }
        let index = receive_index(completion.wr_id);
        slots
            .read_message(hca, index, self.keys, completion.byte_len, packet)
            .then_some(())?;
        offload::verified(packet.get(size_of::<Grh>()..)?)
    }

    /// Takes over the state that the provider put the queue pair into by itself. Whether that is another
    /// one.
    pub(super) fn follow_provider(&mut self, hca: &dyn Hca) -> bool {
        let Ok(queue_pair) = hca.query_qp(self.handle) else {
            return false;
        };
        let state = match queue_pair.state {
            ProviderState::Error => QpState::ERR,
            ProviderState::SendQueueError => QpState::SQER,
            _ => return false,
        };
        core::mem::replace(&mut self.state, state) != state
    }

    /// Carries out a transition.
    ///
    /// # Errors
    /// [`Status::BAD_QP_STATE`], [`Status::BAD_PARAM`], [`Status::BAD_OP`]; then nothing has changed.
    pub(super) fn transit(
        &mut self,
        hca: &mut dyn Hca,
        transition: Transition,
        given: &QpMailbox,
        drained_event: bool,
    ) -> Result<(), Status> {
        self.follow_provider(hca);
        if !transition.starts_in(self.state) {
            return Err(Status::BAD_QP_STATE);
        }
        let optional = &given.optional;
        if given.context.rate_limit.get() != 0 {
            return Err(Status::BAD_OP);
        }
        let context = transition.merge(&self.context, &given.context, optional);
        if transition == Transition::InitToRtr && self.transport != Transport::Tunnel {
            choose_port(hca, self.handle, &context)?;
        }
        let change = transition.change(self.transport, &context, optional, drained_event);
        hca.modify_qp(self.handle, &change).map_err(status_of)?;
        self.context = context;
        self.failed = None;
        self.state = transition.target();
        Ok(())
    }

    /// The queue pair as the driver asks for it, with the sequence numbers of the moment.
    pub(super) fn query(&self, hca: &dyn Hca) -> QpMailbox {
        let mut context = self.context;
        context.set_state(self.state);
        context.local_qpn = self.qpn;
        context.sq_wqe_counter = U16::new(self.sends.index());
        context.rq_wqe_counter = U16::new(self.received);
        if self.transport.is_connected()
            && let Ok(now) = hca.query_qp(self.handle)
        {
            context.next_send_psn = now.sq_psn;
            context.next_receive_psn = now.rq_psn;
            if now.draining && self.state == QpState::SQD {
                context.set_state(QpState::SQ_DRAINING);
            }
        }
        QpMailbox {
            context,
            ..QpMailbox::default()
        }
    }
}

/// Which keys the work requests of a queue pair may use.
fn local_keys(hca: &mut dyn Hca, pds: &mut Pds, context: &QpContext) -> Result<LocalKeys, Status> {
    let whole_space = context
        .reserved_lkey()
        .then(|| pds.reserved_lkey(hca, context.pd()))
        .transpose()?;
    Ok(LocalKeys { whole_space })
}

/// Makes the provider's queue pair.
fn at_provider(
    hca: &mut dyn Hca,
    pd: PdHandle,
    parts: &Parts<'_>,
    (qpn, context, transport): (Qpn, &QpContext, Transport),
    receives: Option<ReceiveQueue>,
) -> Result<QpHandle, Status> {
    let kind = match (transport, parts.proxy) {
        (_, Some((special, port))) => QpKind::Proxy { special, port },
        (Transport::Rc, None) => QpKind::Rc,
        (Transport::Uc, None) => QpKind::Uc,
        (Transport::Datagram | Transport::Tunnel, None) => QpKind::Ud,
    };
    let spec = QpSpec {
        kind,
        pd,
        send_cq: parts.send_cq.handle,
        recv_cq: parts.recv_cq.handle,
        srq: parts.srq.map(|srq| srq.handle),
        caps: caps(hca, context, transport),
        signal_all: true,
        receives: receives.map_or(ReceiveMode::Posted, |receives| {
            ReceiveMode::Pulled(Box::new(receives))
        }),
        qpn: Some(qpn),
        block_multicast_loopback: false,
    };
    let (handle, _) = hca.create_qp(spec).map_err(status_of)?;
    Ok(handle)
}

/// The port stands in the path of the second transition; until then it was the first one.
fn choose_port(hca: &mut dyn Hca, handle: QpHandle, context: &QpContext) -> Result<(), Status> {
    let port = port(&context.primary_path);
    let now = hca.query_qp(handle).map_err(status_of)?.port;
    if now == Some(port) {
        return Ok(());
    }
    let change = QpModify {
        port: Some(port),
        ..QpModify::default()
    };
    hca.modify_qp(handle, &change).map_err(status_of)
}

/// Refuses what the function does not offer, and returns the transport.
fn check(context: &QpContext, parts: &Parts<'_>) -> Result<Transport, Status> {
    let transport = match (context.service_type(), parts.proxy) {
        (ServiceType::UD, None) => Transport::Datagram,
        (ServiceType::UD, Some(_)) => Transport::Tunnel,
        (ServiceType::RC, None) => Transport::Rc,
        (ServiceType::UC, None) => Transport::Uc,
        _ => return Err(Status::BAD_PARAM),
    };
    let plain = !context.rss() && !context.inline_receive() && context.page_offset() == 0;
    // The stand-in of a special queue pair has receives of its own.
    let own = transport != Transport::Tunnel || !context.has_srq();
    if context.rate_limit.get() != 0 {
        Err(Status::BAD_OP)
    } else if plain && own {
        Ok(transport)
    } else {
        Err(Status::BAD_PARAM)
    }
}

/// The queues in a context's buffer. The one with the longer stride comes first, the send queue if they
/// are alike; with a shared receive queue there is no other.
fn queues(mtts: &Mtts, context: &QpContext) -> Result<(SendQueue, Option<Slots>), Status> {
    let (sends, send_stride) = (context.log_sq_entries(), log_sq_stride(context));
    let (receives, receive_stride) = (context.log_rq_entries(), log_rq_stride(context));
    let send_bytes = 1_u64 << (sends + send_stride);
    let receive_bytes = if context.has_srq() {
        0
    } else {
        1_u64 << (receives + receive_stride)
    };
    let receives_first = receive_bytes != 0 && receive_stride > send_stride;
    let (send_offset, receive_offset) = if receives_first {
        (receive_bytes, 0)
    } else {
        (0, send_bytes)
    };
    let first = context.mtt_base.entry();
    let bytes = send_bytes + receive_bytes;
    let buffer = mtts.queue(first, context.log_page_size, bytes)?;
    let slots = (receive_bytes != 0).then(|| Slots {
        buffer: buffer.clone(),
        offset: receive_offset,
        log_entries: receives,
        log_stride: receive_stride,
        doorbell_record: context.doorbell_record.get(),
    });
    Ok((
        SendQueue::new(buffer, send_offset, sends, send_stride),
        slots,
    ))
}

fn log_sq_stride(context: &QpContext) -> u8 {
    context.log_sq_stride() + MIN_LOG_STRIDE
}

fn log_rq_stride(context: &QpContext) -> u8 {
    context.log_rq_stride() + MIN_LOG_STRIDE
}

/// Sizes at the provider. Where it has less room the send queue waits for it.
fn caps(hca: &dyn Hca, context: &QpContext, transport: Transport) -> QpCaps {
    let limits = hca.attributes().limits;
    let sends = if transport.is_connected() {
        MAX_UNDER_WAY
    } else {
        limits.max_qp_wr
    };
    let segments = |log_stride: u8| 1_u32 << (log_stride - MIN_LOG_STRIDE);
    let (receives, receive_segments) = if context.has_srq() {
        (0, 0)
    } else {
        (
            1 << context.log_rq_entries(),
            segments(log_rq_stride(context)),
        )
    };
    QpCaps {
        max_send_wr: (1 << context.log_sq_entries()).min(sends),
        max_recv_wr: u32::min(receives, limits.max_qp_wr),
        max_send_sge: segments(log_sq_stride(context)).min(limits.max_sge),
        max_recv_sge: receive_segments.min(limits.max_sge),
        // The headers of a packet of which the device writes the checksums come so, too.
        max_inline: (1 << log_sq_stride(context).max(LOG_LONGEST_HEADERS)).min(limits.max_inline),
    }
}

#[cfg(test)]
mod tests {
    use emulated_hca::HcaConfig;
    use emulated_hca::hca::Device;
    use hca_api::FunctionId;
    use ib_wire::Guid;

    use super::*;

    /// A peer may never answer, so what the provider keeps of a connection is bounded whatever the guest's ring holds.
    #[test]
    fn of_a_connection_the_provider_has_32_requests_at_a_time_and_the_ring_the_rest() {
        let mut device = Device::new(&HcaConfig::new(Guid::new(1), "test"), 1);
        let hca = device.function(FunctionId::PF).unwrap();
        let sends = |transport, log_entries| {
            let mut context = QpContext::default();
            context.set_log_sq_entries(log_entries);
            context.set_log_sq_stride(2);
            caps(&hca, &context, transport).max_send_wr
        };
        for transport in [Transport::Rc, Transport::Uc] {
            assert_eq!(sends(transport, 10), 32);
            assert_eq!(sends(transport, 4), 16);
        }
        assert_eq!(sends(Transport::Datagram, 10), 1 << 10);
    }
}
