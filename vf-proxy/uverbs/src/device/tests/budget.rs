//! The budget of a process, against a model that adds up what exists.

use std::collections::BTreeSet;

use emulated_hca::HcaConfig;
use emulated_hca::hca::Device;
use ib_wire::Guid;
use verbs_link::budget::cost;

use super::*;

const PAGE: u64 = 4096;

/// Bytes for rings.
const BYTES: usize = 1 << 20;

/// Bytes that an asynchronous event costs while it waits.
const EVENT: u64 = 128 + 16;

/// An object of the model, with the commands that destroy it.
#[derive(Clone, Copy, Debug)]
struct Object {
    handle: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Domain,
    Region,
    Queue,
    Pair,
    Channel,
}

impl Kind {
    const fn cost(self) -> u64 {
        match self {
            Self::Domain => cost::PROTECTION_DOMAIN,
            Self::Region => cost::REGION,
            Self::Queue => cost::COMPLETION_QUEUE,
            Self::Pair => cost::QUEUE_PAIR,
            Self::Channel => cost::CHANNEL,
        }
    }

    const fn rings(self) -> u64 {
        match self {
            Self::Queue => 1,
            Self::Pair => 2,
            _ => 0,
        }
    }
}

/// A process, and what its objects are to cost.
struct Modelled {
    process: Process,
    /// The domain and the completion queue that others use.
    pd: u32,
    cq: u32,
    objects: Vec<Object>,
    /// Bytes of objects that are not rings.
    plain: u64,
    /// Bytes of rings that are charged: their pages when one last came or went.
    ring_bytes: u64,
    events: u64,
    lost: u64,
}

impl Modelled {
    fn new(most: u64) -> Self {
        let mut process = Process::with_budget(Budget::new(most, None), BYTES);
        let (pd, ()): (HandleAnswer, ()) = process.ask(command::ALLOC_PD, &0_u64);
        let mut modelled = Self {
            process,
            pd: pd.handle.get(),
            cq: 0,
            objects: Vec::new(),
            plain: cost::CHANNEL + cost::PROTECTION_DOMAIN,
            ring_bytes: 0,
            events: 0,
            lost: 0,
        };
        modelled.create(Kind::Queue, 3);
        modelled.cq = modelled.objects.pop().unwrap().handle;
        modelled
    }

    fn used(&self) -> u64 {
        self.plain + self.ring_bytes + self.events * EVENT
    }

    fn left(&self) -> u64 {
        self.process.budget.most() - self.used()
    }

    /// Makes an object, which is refused only where it has no room.
    fn create(&mut self, kind: Kind, entries: u32) {
        let budget = self.process.budget.clone();
        let pages = match kind.rings() {
            0 => 0,
            rings => self.process.rings.resident() + rings * PAGE,
        };
        let others = self.plain + self.events * EVENT;
        match self.ask(kind, entries) {
            Some(handle) => {
                self.plain += kind.cost();
                self.objects.push(Object { handle, kind });
                self.take_ring_bytes(pages);
            }
            None => {
                let wanted = others + kind.cost() + pages.max(self.ring_bytes);
                assert!(wanted > budget.most(), "{kind:?} has room");
                // The pages of a queue pair's first ring came and went.
                self.take_ring_bytes(pages);
            }
        }
    }

    /// Returns the handle of the object, unless there is no memory for it.
    fn ask(&mut self, kind: Kind, entries: u32) -> Option<u32> {
        let process = &mut self.process;
        let pd_handle = self.pd.into();
        let reply = match kind {
            Kind::Domain => process.command(command::ALLOC_PD, &0_u64, 4),
            Kind::Channel => process.command(command::CREATE_COMP_CHANNEL, &0_u64, 4),
            Kind::Region => {
                let register = RegMr {
                    length: u64::from(entries).into(),
                    pd_handle,
                    ..RegMr::default()
                };
                process.command(command::REG_MR, &register, 12)
            }
            Kind::Queue => {
                let create = CreateCq {
                    cqe: entries.into(),
                    comp_channel: (-1).into(),
                    ..CreateCq::default()
                };
                process.command(command::CREATE_CQ, &create, 24)
            }
            Kind::Pair => {
                let create = CreateQp {
                    attributes: CreateQpAttributes {
                        pd_handle,
                        send_cq_handle: self.cq.into(),
                        recv_cq_handle: self.cq.into(),
                        caps: Caps {
                            max_send_wr: entries.into(),
                            max_recv_wr: entries.into(),
                            max_send_sge: 1.into(),
                            max_recv_sge: 1.into(),
                            max_inline_data: 0.into(),
                        },
                        qp_type: 4,
                        ..CreateQpAttributes::default()
                    },
                    ..CreateQp::default()
                };
                process.command(command::CREATE_QP, &create, 64)
            }
        };
        match reply {
            Ok(reply) => Some(u32::read_from_prefix(&reply.answer).unwrap().0),
            Err(error) => {
                assert_eq!(error, Errno::ENOMEM);
                None
            }
        }
    }

    fn destroy(&mut self, object: Object) {
        let pages = self.process.rings.resident();
        let Object { handle, kind } = object;
        let handle = handle.into();
        let plain = HandleCommand { handle };
        let answered = AnsweredHandleCommand {
            handle,
            ..AnsweredHandleCommand::default()
        };
        let process = &mut self.process;
        let done = match kind {
            Kind::Domain => process.command(command::DEALLOC_PD, &plain, 0),
            Kind::Region => process.command(command::DEREG_MR, &plain, 0),
            Kind::Queue => process.command(command::DESTROY_CQ, &answered, 8),
            Kind::Pair => process.command(command::DESTROY_QP, &answered, 4),
            Kind::Channel => {
                process.device.close_channel(ChannelId(handle.get()));
                Ok(Reply::default())
            }
        };
        done.unwrap();
        self.plain -= kind.cost();
        self.take_ring_bytes(pages);
    }

    /// Adopts the bytes charged for rings: pages that the program touched itself are charged when the next ring is made or
    /// destroyed.
    fn take_ring_bytes(&mut self, pages: u64) {
        let others = self.plain + self.events * EVENT;
        let bytes = self.process.budget.used().checked_sub(others).unwrap();
        assert!(bytes <= pages.max(self.ring_bytes));
        self.ring_bytes = bytes;
    }

    /// Delivers a port event to the process.
    fn notify(&mut self) {
        let event = HcaEvent::Async(AsyncEvent::Port {
            port: ib_wire::PortNum(1),
            change: hca_api::PortChange::SM,
        });
        self.process
            .with(|device, hca| device.handle_hca_event(Instant::ZERO, hca, &event));
        if EVENT <= self.left() {
            self.events += 1;
        } else {
            self.lost += 1;
        }
    }

    fn check(&self) {
        assert_eq!(self.process.budget.used(), self.used());
        assert!(self.used() <= self.process.budget.most());
        assert_eq!(self.process.device.dropped_events, self.lost);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create(Kind, u32),
    Destroy(prop::sample::Index),
    /// The program touches a page of the file.
    Touch(u64),
    Notify,
    Read,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop::sample::select(vec![
        Kind::Domain,
        Kind::Region,
        Kind::Queue,
        Kind::Pair,
        Kind::Channel,
    ]);
    prop_oneof![
        4 => (kind, 1_u32..200).prop_map(|(kind, entries)| Step::Create(kind, entries)),
        2 => any::<prop::sample::Index>().prop_map(Step::Destroy),
        1 => (0_u64..24).prop_map(Step::Touch),
        1 => Just(Step::Notify),
        1 => Just(Step::Read),
    ]
}

proptest! {
    #[test]
    fn what_is_charged_is_what_exists_and_nothing_is_left(
        most in 60_000_u64..200_000,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut modelled = Modelled::new(most);
        let mut touched = BTreeSet::new();
        for step in steps {
            match step {
                Step::Create(kind, entries) => modelled.create(kind, entries),
                Step::Destroy(index) => {
                    if !modelled.objects.is_empty() {
                        let at = index.index(modelled.objects.len());
                        let object = modelled.objects.swap_remove(at);
                        modelled.destroy(object);
                    }
                }
                Step::Touch(page) => {
                    modelled.process.rings.store_at(page * PAGE + 8, &[1]);
                    touched.insert(page);
                }
                Step::Notify => modelled.notify(),
                Step::Read => {
                    let read = modelled.process.device.poll_event().is_some();
                    assert_eq!(read, modelled.events > 0);
                    modelled.events -= u64::from(read);
                }
            }
            modelled.check();
        }
        while modelled.process.device.poll_event().is_some() {}
        // Pages that the program has touched where there is no ring are its own.
        for page in touched {
            modelled.process.rings.clear(page * PAGE, PAGE);
        }
        let context = modelled.process.context;
        modelled.process.with(|device, hca| device.close(hca, context));
        prop_assert_eq!(modelled.process.budget.used(), 0);
    }
}

#[test]
fn what_is_over_budget_is_refused_until_objects_go() {
    let most = cost::CHANNEL + cost::PROTECTION_DOMAIN + cost::COMPLETION_QUEUE + PAGE;
    let mut modelled = Modelled::new(most + 2 * cost::REGION);
    modelled.create(Kind::Region, 1);
    modelled.create(Kind::Region, 1);
    for kind in [Kind::Region, Kind::Domain, Kind::Queue, Kind::Pair] {
        assert_eq!(modelled.ask(kind, 1), None);
    }
    modelled.notify();
    assert_eq!(modelled.process.device.dropped_events, 1);
    let region = modelled.objects.pop().unwrap();
    modelled.destroy(region);
    modelled.notify();
    assert!(modelled.process.device.has_events());
    modelled.check();
}

#[test]
fn a_device_that_is_reset_has_its_pages_charged_until_other_rings_take_them() {
    let mut queues = datagrams();
    let reset = HcaEvent::Async(AsyncEvent::FunctionReset);
    let process = &mut queues.process;
    process.with(|device, hca| device.handle_hca_event(Instant::ZERO, hca, &reset));
    while process.device.poll_event().is_some() {}
    let channels = 2 * cost::CHANNEL;
    assert_eq!(process.budget.used(), channels + 3 * PAGE);
    for _ in 0..2 {
        let create = CreateCq {
            cqe: 200.into(),
            comp_channel: (-1).into(),
            ..CreateCq::default()
        };
        // The ring has four pages: three of them were there, and one is again.
        let (cq, _): (CreateCqAnswer, RxeCqAnswer) = process.ask(command::CREATE_CQ, &create);
        let rest = channels + cost::COMPLETION_QUEUE;
        assert_eq!(process.budget.used(), rest + PAGE);
        let destroy = AnsweredHandleCommand {
            handle: cq.cq_handle,
            ..AnsweredHandleCommand::default()
        };
        process.command(command::DESTROY_CQ, &destroy, 8).unwrap();
        assert_eq!(process.budget.used(), channels);
    }
}

#[test]
fn a_program_that_is_gone_leaves_nothing_charged() {
    let mut queues = datagrams();
    queues.send(1, 0);
    let budget = queues.process.budget.clone();
    assert!(budget.used() > 3 * PAGE);
    queues.process.device.release();
    queues.process.adapter = Device::new(&HcaConfig::new(Guid::new(2), "other"), 7);
    assert_eq!(budget.used(), 0);
}

#[test]
fn requests_wait_for_a_page_of_their_ring_that_the_budget_has() {
    // Elements of 256 bytes behind a header of 384: the last of these reaches into the second page.
    const REQUESTS: u64 = 15;

    let mut queues = datagrams_of(60);
    let budget = queues.process.budget.clone();
    let all = budget.charge(budget.most() - budget.used()).unwrap();
    for nth in 0..REQUESTS {
        let request = SendElement {
            wr_id: (100 + nth).into(),
            opcode: 200.into(),
            ..SendElement::default()
        };
        let producer = u32::try_from(nth + 1).unwrap();
        let at = nth * 256;
        queues.write(queues.rings.send, at, request.as_bytes(), producer);
    }
    let doorbell = PostSend {
        qp_handle: queues.qp.into(),
        ..PostSend::default()
    };
    let reply = queues.process.command(command::POST_SEND, &doorbell, 4);
    reply.unwrap();
    let last = |queues: &Datagrams| {
        let ids = [REQUESTS - 2, REQUESTS - 1].map(|nth| queues.completion(nth).wr_id.get());
        (ids, queues.process.device.starved.len())
    };
    assert_eq!(last(&queues), ([98 + REQUESTS, 0], 1));
    drop(all);
    queues.process.settle();
    assert_eq!(last(&queues), ([98 + REQUESTS, 99 + REQUESTS], 0));
}
