//! Receives in memory of a virtual function, which are read ahead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use hca_api::{
    AddressSpace, CompletionOp, CompletionStatus, CqHandle, PulledReceives, QpHandle, QpNumbers,
    SrqHandle, SrqSpec,
};
use ib_vtime::Duration;
use proptest::prelude::*;

use super::*;

/// Bytes of a datagram of the tests, and the space for its GRH.
const LEN: u32 = 256 + 40;

/// A receive of a consumer: its name, and the entries of its list.
type Listed = (u64, Vec<Sge>);

/// Receives of a consumer.
#[derive(Clone, Debug, Default)]
struct Ring(Arc<Mutex<VecDeque<Listed>>>);

impl Ring {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn add(&self, wr_id: u64, list: &[Sge]) {
        self.0.lock().unwrap().push_back((wr_id, list.to_vec()));
    }
}

impl PulledReceives for Ring {
    fn pull(&mut self, _: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        let (wr_id, list) = self.0.lock().unwrap().pop_front()?;
        scatter.extend(list);
        Some(wr_id)
    }

    fn pending(&self, _: &dyn AddressSpace) -> usize {
        self.len()
    }
}

/// A datagram queue pair of a function whose receives are in a ring.
struct Pulled {
    id: FunctionId,
    ring: Ring,
    qp: QpHandle,
    numbers: QpNumbers,
    cq: CqHandle,
    srq: Option<SrqHandle>,
    place: Sge,
    next: u64,
}

impl Pulled {
    /// Makes a queue pair in the reset state with room for `max_wr` receives, which are of a shared queue with a limit if there is
    /// one.
    fn open(rig: &mut Rig, id: FunctionId, max_wr: u32, limit: Option<u32>) -> Self {
        let ring = Ring::default();
        let source = || ReceiveMode::Pulled(Box::new(ring.clone()));
        let made: Result<_, HcaError> = rig.on(id, |hca| {
            let addr = hca.allocate_dma(LEN as usize)?.addr;
            let pd = hca.alloc_pd()?;
            let lkey = hca
                .register_mr(&MrSpec {
                    pd,
                    kind: MrKind::Virtual {
                        addr,
                        len: LEN.into(),
                    },
                    access: AccessFlags::LOCAL_WRITE,
                    key: None,
                })?
                .lkey;
            let cq = hca.create_cq(4096)?;
            let srq = limit.map(|limit| {
                hca.create_srq(SrqSpec {
                    pd,
                    max_wr,
                    max_sge: 2,
                    limit,
                    receives: source(),
                })
            });
            let srq = srq.transpose()?;
            let (qp, numbers) = hca.create_qp(QpSpec {
                kind: QpKind::Ud,
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq,
                caps: QpCaps {
                    max_send_wr: 4,
                    max_recv_wr: max_wr,
                    max_send_sge: 1,
                    max_recv_sge: 2,
                    max_inline: 0,
                },
                signal_all: true,
                receives: source(),
                qpn: None,
                block_multicast_loopback: false,
            })?;
            let place = Sge {
                addr,
                len: LEN,
                lkey,
            };
            Ok((qp, numbers, cq, srq, place))
        });
        let (qp, numbers, cq, srq, place) = made.unwrap();
        Self {
            id,
            ring,
            qp,
            numbers,
            cq,
            srq,
            place,
            next: 0,
        }
    }

    fn init(&self, rig: &mut Rig) {
        let init = QpModify {
            state: Some(QpState::Init),
            port: Some(PORT),
            pkey_index: Some(PKeyIndex(0)),
            qkey: Some(QKEY),
            ..QpModify::default()
        };
        rig.on(self.id, |hca| hca.modify_qp(self.qp, &init))
            .unwrap();
    }

    fn start(&self, rig: &mut Rig) {
        self.init(rig);
        self.bring(rig, QpState::ReadyToReceive);
    }

    fn bring(&self, rig: &mut Rig, state: QpState) {
        let change = to_state(state, None);
        rig.on(self.id, |hca| hca.modify_qp(self.qp, &change))
            .unwrap();
    }

    /// Adds receives to the ring, named by their running number.
    fn add(&mut self, count: u64) {
        for wr_id in self.next..self.next + count {
            self.ring.add(wr_id, &[self.place]);
        }
        self.next += count;
    }

    /// Returns the names of the receives that completed, and the status of the last one.
    fn poll(&self, rig: &mut Rig) -> (Vec<u64>, Option<CompletionStatus>) {
        let mut done = [Completion::BLANK; 1024];
        let count = rig.on(self.id, |hca| hca.poll_cq(self.cq, &mut done));
        let done = &done[..count.unwrap()];
        assert!(done.iter().all(|done| done.op == CompletionOp::Recv));
        let names = done.iter().map(|done| done.wr_id).collect();
        (names, done.last().map(|done| done.status))
    }

    fn event(&self, rig: &mut Rig) -> Option<HcaEvent> {
        rig.on(self.id, |hca| hca.poll_event())
    }
}

impl Rig {
    /// Sends datagrams from VF 1 to a queue pair.
    fn flood(&mut self, from: &mut DatagramQp, to: &Pulled, count: usize) {
        let destination = at_port(to.numbers.real);
        for _ in 0..count {
            self.on(VF1, |hca| from.send(hca, Some(&destination), &[1; 256]))
                .unwrap();
            self.on(VF1, |hca| assert!(from.poll(hca).is_none()));
        }
    }

    fn tick(&mut self, now: Instant) {
        let mut hca = self.device.function(PF).unwrap();
        self.functions.handle_timeout(&mut hca, now);
    }
}

fn list(range: core::ops::Range<u64>) -> Vec<u64> {
    range.collect()
}

/// IBA 10.3.1: RESET forgets, ERR flushes.
#[test]
fn receives_in_memory_fill_the_adapters_queue_are_flushed_and_forgotten() {
    let mut rig = Rig::new();
    let mut to = Pulled::open(&mut rig, VF2, 8, None);
    to.add(40);
    assert_eq!(to.ring.len(), 40, "nothing is read in the reset state");
    to.init(&mut rig);
    assert_eq!(to.ring.len(), 32);
    let posted = RecvRequest {
        wr_id: 1,
        scatter: &[],
    };
    let refused = rig.on(VF2, |hca| hca.post_recv(to.qp, &posted));
    assert_eq!(refused, Err(HcaError::InvalidParameter));
    to.bring(&mut rig, QpState::Error);
    let flushed = Some(CompletionStatus::Flushed);
    assert_eq!(to.poll(&mut rig), (list(0..16), flushed));
    assert_eq!(to.poll(&mut rig), (vec![], None));
    to.bring(&mut rig, QpState::Error);
    assert_eq!(to.poll(&mut rig), (list(16..24), flushed));
    to.bring(&mut rig, QpState::Reset);
    to.init(&mut rig);
    assert_eq!(to.ring.len(), 8);
    to.bring(&mut rig, QpState::Reset);
    assert_eq!(to.poll(&mut rig), (vec![], None), "24 to 31 are forgotten");
    to.start(&mut rig);
    let mut from = rig.open_ud(VF1);
    rig.flood(&mut from, &to, 8);
    let success = Some(CompletionStatus::Success);
    assert_eq!(to.poll(&mut rig), (list(32..40), success));
}

/// IBA 10.3.1.5: the receive fails with the message that was to go there, and the queue pair with it.
#[test]
fn a_list_that_the_adapter_cannot_take_fails_in_its_turn() {
    let mut rig = Rig::new();
    let mut from = rig.open_ud(VF1);
    let good = 2;
    let nowhere = Sge {
        addr: 0,
        len: LEN,
        lkey: LKey(1),
    };
    for bad in [vec![nowhere; 300], vec![nowhere]] {
        let mut to = Pulled::open(&mut rig, VF2, 8, None);
        to.add(good);
        to.ring.add(good, &bad);
        to.next += 1;
        to.add(10);
        to.start(&mut rig);
        rig.flood(&mut from, &to, 4);
        let mut done = [Completion::BLANK; 16];
        let count = rig.on(VF2, |hca| hca.poll_cq(to.cq, &mut done)).unwrap();
        let names: Vec<u64> = done[..count].iter().map(|done| done.wr_id).collect();
        assert_eq!(names[..3], [0, 1, 2]);
        assert_eq!(done[2].status, CompletionStatus::LocalProtection);
        assert_eq!(done[3].status, CompletionStatus::Flushed);
        let state = rig.on(VF2, |hca| hca.query_qp(to.qp)).unwrap().state;
        assert_eq!(state, QpState::Error);
        let (more, status) = to.poll(&mut rig);
        assert_eq!([names, more].concat(), list(0..13));
        assert_eq!(status, Some(CompletionStatus::Flushed));
        rig.pf(|pf| pf.reset_function(VF2)).unwrap();
        rig.on(VF2, |hca| while hca.poll_event().is_some() {});
    }
    assert_eq!(rig.functions.poll_timeout(), None);
}

/// A guest posts a receive by a store to its memory.
#[test]
fn a_queue_with_room_is_read_after_20_us_then_less_often_and_a_full_one_is_not() {
    let mut rig = Rig::new();
    let mut to = Pulled::open(&mut rig, VF2, 2, None);
    assert_eq!(rig.functions.poll_timeout(), None, "in the reset state");
    to.start(&mut rig);
    let (mut now, mut gaps) = (Instant::ZERO, Vec::new());
    while now < Instant::from_millis(2_000) {
        let due = rig.functions.poll_timeout().unwrap();
        gaps.push(due.saturating_duration_since(now));
        now = due;
        rig.tick(now);
    }
    let [us, ms] = [Duration::from_micros, Duration::from_millis];
    assert_eq!(gaps[..4], [us(20), us(20), us(40), us(80)]);
    assert_eq!(gaps[12], ms(5));
    assert_eq!(gaps.last(), Some(&ms(20)));
    to.add(1);
    rig.tick(rig.functions.poll_timeout().unwrap());
    assert_eq!(to.ring.len(), 0);
    let due = rig.functions.poll_timeout().unwrap();
    assert_eq!(due.saturating_duration_since(rig.functions.now), us(20));
    to.add(1);
    rig.tick(due);
    assert_eq!(rig.functions.poll_timeout(), None, "two are posted");
    let mut from = rig.open_ud(VF1);
    to.add(1);
    rig.flood(&mut from, &to, 1);
    assert_eq!(to.poll(&mut rig).0, [0]);
    assert_eq!(to.ring.len(), 0, "it was read when a completion was polled");
    rig.on(VF2, |hca| hca.destroy_qp(to.qp)).unwrap();
    assert_eq!(rig.functions.poll_timeout(), None);
}

#[test]
fn a_thousand_queues_without_receives_are_looked_at_fifty_times_a_second_each() {
    const QUEUES: u32 = 1000;
    const SECONDS: u64 = 10;

    let mut rig = Rig::new();
    let id = FunctionId(3);
    let quota = ResourceCounts {
        pds: QUEUES,
        cqs: QUEUES,
        qps: QUEUES,
        mrs: QUEUES,
        ..QUOTA
    };
    let spec = FunctionSpec { quota, ..spec(id) };
    rig.pf(|pf| pf.create_function(spec)).unwrap();
    rig.show(id, false);
    for _ in 0..QUEUES {
        Pulled::open(&mut rig, id, 16, None).start(&mut rig);
    }
    let idle = Instant::from_millis(5_000);
    let mut run_until = |end: Instant| {
        let mut turns = 0;
        while let Some(due) = rig.functions.poll_timeout().filter(|due| *due < end) {
            rig.tick(due);
            turns += 1;
        }
        turns
    };
    run_until(idle);
    let turns = run_until(idle + Duration::from_secs(SECONDS));
    // A turn looks at 256 queues of a function at most.
    let looks = u64::from(QUEUES) * 50 * SECONDS;
    assert!(turns >= looks / 256 / 2 && turns <= looks, "{turns}");
}

#[test]
fn a_guest_with_many_receives_takes_no_others_time() {
    let mut rig = Rig::new();
    let mut many = Pulled::open(&mut rig, VF1, 2048, None);
    many.add(2000);
    many.init(&mut rig);
    assert_eq!(many.ring.len(), 2000 - 256);
    let mut few = Pulled::open(&mut rig, VF2, 16, None);
    few.start(&mut rig);
    few.add(16);
    for round in 1..7 {
        let due = rig.functions.poll_timeout().unwrap();
        rig.tick(due);
        assert_eq!(many.ring.len(), 2000 - 256 - 256 * round);
        assert_eq!(few.ring.len(), 0);
    }
}

#[test]
fn an_adapter_that_takes_no_receive_at_all_fails_the_queue_pair() {
    let mut rig = Rig::new();
    let mut to = Pulled::open(&mut rig, VF2, 8, None);
    to.start(&mut rig);
    to.add(2);
    let reset = to_state(QpState::Reset, None);
    let mut below = rig.device.function(PF).unwrap();
    below.modify_qp(to.qp, &reset).unwrap();
    rig.tick(rig.functions.poll_timeout().unwrap());
    let failed = HcaEvent::Async(AsyncEvent::QpFatal(to.qp));
    assert_eq!(to.event(&mut rig), Some(failed));
    assert_eq!(rig.functions.poll_timeout(), None, "it is not read again");
    assert_eq!(to.ring.len(), 1);
}

/// IBA 10.2.9.2: fewer receives than the limit are left when the ring and the adapter's queue have fewer together.
#[test]
fn a_shared_queue_reaches_its_limit_once_its_ring_is_empty() {
    let mut rig = Rig::new();
    let mut from = rig.open_ud(VF1);
    let mut to = Pulled::open(&mut rig, VF2, 8, Some(0));
    to.add(20);
    let srq = to.srq.unwrap();
    rig.on(VF2, |hca| hca.modify_srq(srq, 4, None)).unwrap();
    assert_eq!(to.ring.len(), 12);
    to.start(&mut rig);
    let mut names = Vec::new();
    for _ in 0..3 {
        rig.flood(&mut from, &to, 5);
        assert_eq!(to.event(&mut rig), None);
        names.extend(to.poll(&mut rig).0);
    }
    assert_eq!(to.ring.len(), 0);
    rig.flood(&mut from, &to, 2);
    let reached = HcaEvent::Async(AsyncEvent::SrqLimitReached(srq));
    assert_eq!(to.event(&mut rig), Some(reached));
    assert_eq!(to.event(&mut rig), None);
    rig.flood(&mut from, &to, 3);
    names.extend(to.poll(&mut rig).0);
    assert_eq!(names, list(0..20));
    assert_eq!(to.event(&mut rig), None, "it is disarmed");
    to.add(8);
    rig.on(VF2, |hca| hca.destroy_qp(to.qp)).unwrap();
    assert_eq!(to.ring.len(), 0);
    rig.on(VF2, |hca| hca.destroy_srq(srq)).unwrap();
    assert_eq!(rig.functions.poll_timeout(), None);
}

#[derive(Clone, Debug)]
enum Step {
    Add(u64),
    Send(usize),
    Poll,
    Wait,
    /// The queue pair goes to ERR, RESET and back.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u64..12).prop_map(Step::Add),
        4 => (1_usize..6).prop_map(Step::Send),
        3 => Just(Step::Poll),
        3 => Just(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

/// A queue of 6 receives as its consumer may see it.
#[derive(Default)]
struct Model {
    ring: VecDeque<u64>,
    adapter: VecDeque<u64>,
    completed: Vec<u64>,
    is_eager: bool,
}

impl Model {
    fn read(&mut self) {
        while self.adapter.len() + self.completed.len() < 6
            && let Some(name) = self.ring.pop_front()
        {
            self.adapter.push_back(name);
        }
    }

    fn send(&mut self) {
        self.completed.extend(self.adapter.pop_front());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Receives complete in the order in which they were added, none twice, and as many as messages that found one.
    #[test]
    fn receives_in_memory_are_a_queue(steps in prop::collection::vec(step(), 0..48), shared: bool) {
        let mut rig = Rig::new();
        let mut from = rig.open_ud(VF1);
        let mut to = Pulled::open(&mut rig, VF2, 6, shared.then_some(0));
        let mut model = Model::default();
        to.start(&mut rig);
        let mut now = Instant::ZERO;
        for step in steps {
            match step {
                Step::Add(count) => {
                    model.ring.extend(to.next..to.next + count);
                    to.add(count);
                }
                Step::Send(count) => {
                    rig.flood(&mut from, &to, count);
                    (0..count).for_each(|_| model.send());
                }
                Step::Poll => {
                    let names = core::mem::take(&mut model.completed);
                    if !names.is_empty() || model.is_eager {
                        model.read();
                    }
                    model.is_eager = !names.is_empty();
                    prop_assert_eq!(to.poll(&mut rig).0, names);
                }
                Step::Wait => {
                    now += Duration::from_millis(100);
                    rig.tick(now);
                    model.read();
                }
                Step::Restart if !shared => {
                    to.bring(&mut rig, QpState::Error);
                    // The adapter's complete as flushed, and as many of the ring.
                    let more = model.ring.len().min(6);
                    model.completed.extend(model.adapter.drain(..));
                    model.completed.extend(model.ring.drain(..more));
                    prop_assert_eq!(to.poll(&mut rig).0, core::mem::take(&mut model.completed));
                    to.bring(&mut rig, QpState::Reset);
                    to.start(&mut rig);
                    model.read();
                    prop_assert_eq!(to.poll(&mut rig).0, Vec::<u64>::new());
                    model.is_eager = false;
                }
                Step::Restart => {}
            }
            prop_assert_eq!(to.ring.len(), model.ring.len());
        }
    }
}
