//! Completion queues, shared receive queues and handles, as the verbs work them.

use hca_api::{
    AddressSpace, ArmKind, AsyncEvent, HcaEvent, PulledReceives, ResourceCounts, SrqSpec,
};

use super::*;

/// Receives that the consumer keeps.
#[derive(Debug)]
struct Ring(Vec<(u64, Vec<Sge>)>);

impl PulledReceives for Ring {
    fn pull(&mut self, _: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        let (wr_id, sges) = self.0.pop()?;
        scatter.extend(sges);
        Some(wr_id)
    }

    fn pending(&self, _: &dyn AddressSpace) -> usize {
        self.0.len()
    }
}

/// Receives in the consumer's memory: the number posted so far stands at `counter`, and the buffers
/// behind it.
#[derive(Debug)]
struct MemoryRing {
    counter: u64,
    taken: u64,
    lkey: LKey,
}

impl MemoryRing {
    fn posted(&self, memory: &dyn AddressSpace) -> u64 {
        let mut posted = [0; 8];
        memory.read(self.counter, &mut posted).unwrap();
        u64::from_ne_bytes(posted)
    }
}

impl PulledReceives for MemoryRing {
    fn pull(&mut self, memory: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        if self.posted(memory) == self.taken {
            return None;
        }
        self.taken += 1;
        scatter.push(Sge {
            addr: self.counter + SLOT as u64,
            len: 512,
            lkey: self.lkey,
        });
        Some(self.taken)
    }

    fn pending(&self, memory: &dyn AddressSpace) -> usize {
        usize::try_from(self.posted(memory) - self.taken).unwrap()
    }
}

fn events(device: &mut Device) -> Vec<HcaEvent> {
    let mut hca = device.function(PF).unwrap();
    core::iter::from_fn(|| hca.poll_event()).collect()
}

/// IBA 11.4.2.2: one event per arming; the return value closes the race with what waits already.
#[test]
fn an_armed_completion_queue_raises_one_event() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let destination = Some(to(vector(5), Qpn::MAX, QKEY));
    let mut hca = device.function(PF).unwrap();
    assert_eq!(hca.arm_cq(a.cq, ArmKind::Next), Ok(false));
    a.send(&mut device, destination, b"1").unwrap();
    a.send(&mut device, destination, b"2").unwrap();
    assert_eq!(events(&mut device), [HcaEvent::Completion(a.cq)]);
    let mut hca = device.function(PF).unwrap();
    assert_eq!(hca.peek_cq(a.cq, 8), Ok(2));
    assert_eq!(hca.arm_cq(a.cq, ArmKind::Next), Ok(true));
    assert_eq!(a.poll(&mut device).len(), 2);
}

/// IBA 11.6.3.1, 11.6.3.2: an overrun fails the completion queue and the queue pair that could not
/// report.
#[test]
fn a_completion_queue_overrun_fails_the_queue_pair_too() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let mut hca = device.function(PF).unwrap();
    hca.resize_cq(a.cq, 1).unwrap();
    a.post_recv(&mut device, 1);
    let destination = Some(to(vector(5), Qpn::MAX, QKEY));
    for _ in 0..2 {
        a.send(&mut device, destination, b"x").unwrap();
    }
    assert_eq!(
        events(&mut device),
        [
            HcaEvent::Async(AsyncEvent::CqError(a.cq)),
            HcaEvent::Async(AsyncEvent::QpFatal(a.qp))
        ]
    );
    assert_eq!(a.state(&mut device), QpState::Error);
    assert_eq!(a.poll(&mut device).len(), 1);
}

/// IBA 10.2.9: queue pairs share receives; the limit event comes once; a failing queue pair tells
/// that it takes no more.
#[test]
fn t073_t075_queue_pairs_share_receives_and_the_limit_is_announced_once() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let mut hca = device.function(PF).unwrap();
    let pd = hca.alloc_pd().unwrap();
    let srq_spec = SrqSpec {
        pd,
        max_wr: 4,
        max_sge: 1,
        limit: 2,
        receives: ReceiveMode::Posted,
    };
    let srq = hca.create_srq(srq_spec).unwrap();
    let whole = hca
        .register_mr(&MrSpec {
            pd,
            kind: MrKind::WholeSpace,
            access: AccessFlags::LOCAL_WRITE,
            key: None,
        })
        .unwrap();
    for wr_id in 1..=4 {
        let scatter = [Sge {
            lkey: whole.lkey,
            ..a.recv_slot(wr_id)
        }];
        let request = RecvRequest {
            wr_id,
            scatter: &scatter,
        };
        hca.post_srq_recv(srq, &request).unwrap();
    }
    let mut members = Vec::new();
    for _ in 0..2 {
        let member = open_with(&mut device, PF, QKEY, |pd, cq| QpSpec {
            srq: Some(srq),
            ..spec(QpKind::Ud, pd, cq)
        });
        members.push(member.unwrap());
    }
    for (n, member) in [0, 1, 0].into_iter().map(|m| members[m]).enumerate() {
        let destination = to(vector(5), member.numbers.real, QKEY);
        a.send(&mut device, Some(destination), b"x").unwrap();
        let done = member.poll_one(&mut device);
        assert_eq!(
            (done.wr_id, done.status),
            (n as u64 + 1, CompletionStatus::Success)
        );
    }
    let limit = HcaEvent::Async(AsyncEvent::SrqLimitReached(srq));
    assert_eq!(events(&mut device), [limit]);
    let hca = device.function(PF).unwrap();
    assert_eq!(hca.query_srq(srq).unwrap().limit, 0);
    for (armed, told) in [(1, &[][..]), (2, &[limit])] {
        let mut hca = device.function(PF).unwrap();
        hca.modify_srq(srq, armed, None).unwrap();
        let left = hca.query_srq(srq).unwrap().limit;
        assert_eq!(left, if told.is_empty() { armed } else { 0 });
        assert_eq!(events(&mut device), told, "one receive is left");
    }
    let mut hca = device.function(PF).unwrap();
    assert_eq!(hca.destroy_srq(srq), Err(HcaError::InUse));
    let request = RecvRequest {
        wr_id: 9,
        scatter: &[],
    };
    assert_eq!(
        hca.post_recv(members[0].qp, &request),
        Err(HcaError::InvalidParameter)
    );
    hca.modify_qp(members[0].qp, &to_state(QpState::Error))
        .unwrap();
    let last = HcaEvent::Async(AsyncEvent::LastWqeReached(members[0].qp));
    assert_eq!(events(&mut device), [last]);
}

/// Receives are read from the consumer when a packet needs one, and at the end flushed.
#[test]
fn pulled_receives_are_taken_one_per_message_and_flushed_with_the_queue_pair() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let ring = (1..=3).rev().map(|n| (n, vec![a.recv_slot(n)])).collect();
    let b = open_with(&mut device, PF, QKEY, |_, cq| {
        let pd = PdHandle(0);
        QpSpec {
            receives: ReceiveMode::Pulled(Box::new(Ring(ring))),
            ..spec(QpKind::Ud, pd, cq)
        }
    })
    .unwrap();
    let destination = Some(to(vector(5), b.numbers.real, QKEY));
    a.send(&mut device, destination, b"x").unwrap();
    assert_eq!(b.poll_one(&mut device).wr_id, 1);
    let mut hca = device.function(PF).unwrap();
    hca.modify_qp(b.qp, &to_state(QpState::Error)).unwrap();
    let flushed = b.outcomes(&mut device);
    assert_eq!(
        flushed,
        [
            (2, CompletionStatus::Flushed),
            (3, CompletionStatus::Flushed)
        ]
    );
}

/// IBA 10.3.1.7: what is posted to a queue pair in error completes as flushed; where nobody tells of the
/// posting, moving the queue pair to the error state again has it flushed, a queue's worth at a time.
#[test]
fn receives_pulled_from_memory_are_flushed_again_by_another_move_to_the_error_state() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let ring = MemoryRing {
        counter: a.memory.addr,
        taken: 0,
        lkey: a.lkey,
    };
    let b = open_with(&mut device, PF, QKEY, |_, cq| QpSpec {
        receives: ReceiveMode::Pulled(Box::new(ring)),
        ..spec(QpKind::Ud, PdHandle(0), cq)
    })
    .unwrap();
    let post = |device: &mut Device, total: u64| {
        let mut hca = device.function(PF).unwrap();
        hca.dma_write(a.memory.addr, &total.to_ne_bytes()).unwrap();
        hca.modify_qp(b.qp, &to_state(QpState::Error)).unwrap();
        b.poll(device).iter().map(|c| c.wr_id).collect::<Vec<_>>()
    };
    assert_eq!(post(&mut device, 2), [1, 2]);
    assert_eq!(post(&mut device, 2), []);
    assert_eq!(post(&mut device, 3), [3]);
    let most = usize::try_from(caps().max_recv_wr).unwrap();
    assert_eq!(post(&mut device, 1000).len(), most);
    let mut hca = device.function(PF).unwrap();
    hca.modify_qp(b.qp, &to_state(QpState::Reset)).unwrap();
    hca.destroy_qp(b.qp).unwrap();
    assert_eq!(b.poll(&mut device), [], "in reset nothing is posted");
}

/// IBA 10.3.1.5: in the drained state sends wait; going on sends them.
#[test]
fn a_drained_queue_keeps_new_sends_until_it_goes_on() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let mut hca = device.function(PF).unwrap();
    let drain = QpModify {
        drain_event: true,
        ..to_state(QpState::SendQueueDrain)
    };
    hca.modify_qp(a.qp, &drain).unwrap();
    assert_eq!(
        hca.poll_event(),
        Some(HcaEvent::Async(AsyncEvent::SendQueueDrained(a.qp)))
    );
    let destination = Some(to(vector(5), Qpn::MAX, QKEY));
    a.send(&mut device, destination, b"x").unwrap();
    assert_eq!(a.poll(&mut device), []);
    let mut hca = device.function(PF).unwrap();
    hca.modify_qp(a.qp, &to_state(QpState::ReadyToSend))
        .unwrap();
    assert_eq!(a.poll_one(&mut device).status, CompletionStatus::Success);
}

/// IBA 10.2.2.2, 11.4.1.1: requests that make no sense are refused before they are queued; an
/// address handle of another protection domain fails the request.
#[test]
fn senseless_sends_are_refused_and_foreign_address_handles_fail() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let mut hca = device.function(PF).unwrap();
    let destination = to(vector(5), Qpn::MAX, QKEY);
    let good = SendRequest {
        payload: Payload::Inline(b"x"),
        ..request(&[], Some(destination))
    };
    let many = [a.send_slot(1); 5];
    let other_port = AddressVector {
        port: PortNum(2),
        ..vector(5)
    };
    for (bad, error) in [
        (
            SendRequest {
                op: SendOp::LocalInvalidate(hca_api::RKey(1)),
                ..good
            },
            HcaError::InvalidQpKind,
        ),
        (
            SendRequest {
                payload: Payload::Inline(&[0; 257]),
                ..good
            },
            HcaError::TooManySges,
        ),
        (
            SendRequest {
                payload: Payload::Gather(&many),
                ..good
            },
            HcaError::TooManySges,
        ),
        (
            SendRequest {
                destination: None,
                ..good
            },
            HcaError::InvalidParameter,
        ),
        (
            SendRequest {
                destination: Some(to(other_port, Qpn::MAX, QKEY)),
                ..good
            },
            HcaError::InvalidPort,
        ),
    ] {
        assert_eq!(hca.post_send(a.qp, &bad), Err(error), "{bad:?}");
    }
    let pd = hca.alloc_pd().unwrap();
    let av = hca.create_av(pd, &vector(5)).unwrap();
    assert_eq!(hca.dealloc_pd(pd), Err(HcaError::InUse));
    let foreign = UdDestination {
        address: UdAddress::Handle(av),
        ..destination
    };
    let send = SendRequest {
        destination: Some(foreign),
        ..good
    };
    hca.post_send(a.qp, &send).unwrap();
    assert_eq!(
        a.poll_one(&mut device).status,
        CompletionStatus::LocalQpOperation
    );
}

#[test]
fn a_function_cannot_own_more_than_its_quota() {
    let mut device = device(5);
    let mut pf = device.function(PF).unwrap();
    pf.create_function(FunctionSpec {
        id: VF1,
        node_guid: Guid::new(1),
        memory: Box::new(HostMemory::new()),
        quota: ResourceCounts {
            pds: 1,
            cqs: 2,
            qps: 1,
            ..ResourceCounts::default()
        },
    })
    .unwrap();
    let none = Err(HcaError::InsufficientResources);
    let mut vf = device.function(VF1).unwrap();
    assert_eq!(vf.attributes().limits.max_qp, 1);
    let pd = vf.alloc_pd().unwrap();
    assert_eq!(vf.alloc_pd().map(|_| ()), none);
    let cq = vf.create_cq(1).unwrap();
    vf.create_cq(1).unwrap();
    assert_eq!(vf.create_cq(1).map(|_| ()), none);
    let (qp, _) = vf.create_qp(spec(QpKind::Ud, pd, cq)).unwrap();
    assert_eq!(vf.create_qp(spec(QpKind::Ud, pd, cq)).map(|_| ()), none);
    assert_eq!(vf.create_av(pd, &vector(1)).map(|_| ()), none);
    assert_eq!(vf.alloc_mw(pd, hca_api::MwType::Type1).map(|_| ()), none);
    assert_eq!(vf.reserve_qpns(2, 1).map(|_| ()), none);
    let number = vf.reserve_qpns(1, 1).unwrap();
    vf.destroy_qp(qp).unwrap();
    let numbered = QpSpec {
        qpn: Some(number),
        ..spec(QpKind::Ud, pd, cq)
    };
    let (qp, numbers) = vf.create_qp(numbered).unwrap();
    assert_eq!(numbers.real, number);
    assert_eq!(vf.release_qpns(number, 1), Err(HcaError::InUse));
    vf.destroy_qp(qp).unwrap();
    assert_eq!(vf.release_qpns(number, 1), Ok(()));
}
