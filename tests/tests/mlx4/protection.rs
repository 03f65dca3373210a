//! What programs of a guest can do to each other and to their kernel: nothing; and what a queue that is
//! misused does: fail alone.

use ib_vtime::Duration;
use ib_wire::{Lid, PortNum, QKey};
use mlx4_defs::Uar;
use mlx4_defs::bar::Register;
use mlx4_defs::cqe::Syndrome;
use mlx4_defs::eqe::{CQ_OVERRUN, EventType};
use mlx4_defs::qp::QpState;
use vhca_tests::mlx4_driver::{
    Bench, BufferKind, Bus, CqSpec, Destination, Driver, Event, GuestMemory, Owner, Payload,
    Rights, SendWork, Sge, Talker, TalkerSpec,
};

use super::bench;

const PORT: PortNum = PortNum(1);

/// A guest with one function alone.
struct Guest {
    bench: Bench,
    memory: GuestMemory,
    driver: Driver,
}

impl Guest {
    fn new() -> Self {
        let (mut bench, memory) = bench(1);
        let driver = Driver::probe(&mut bench, memory.clone()).unwrap();
        Self {
            bench,
            memory,
            driver,
        }
    }

    fn open(&mut self, spec: &TalkerSpec) -> Talker {
        Talker::open(&mut self.driver, &mut self.bench, spec).unwrap()
    }

    /// The way from one talker to another.
    fn way(&self, from: &Talker, to: &Talker) -> Destination {
        from.way_to(to.address(self.driver.port(PORT).info.lid))
    }

    fn say(&mut self, from: &mut Talker, to: &Talker, message: &[u8]) {
        let way = self.way(from, to);
        from.say(&mut self.driver, &mut self.bench, &way, message)
            .unwrap();
        self.pass();
    }

    fn hear(&mut self, talker: &mut Talker) -> Vec<Vec<u8>> {
        let heard = talker.hear(&mut self.driver).unwrap();
        heard.into_iter().map(|heard| heard.bytes).collect()
    }

    /// Lets the device do what it has to.
    fn pass(&mut self) {
        self.bench.wait(Duration::from_millis(1));
        self.driver.serve(&mut self.bench).unwrap();
    }

    fn events(&mut self) -> Vec<Event> {
        self.pass();
        core::iter::from_fn(|| self.driver.poll_event()).collect()
    }
}

#[test]
fn a_doorbell_in_the_page_of_another_program_starts_nothing() {
    let mut guest = Guest::new();
    let (mut victim, intruder) = (
        guest.open(&TalkerSpec::default()),
        guest.open(&TalkerSpec::default()),
    );
    let way = guest.way(&victim, &victim);
    let work = victim.request(&mut guest.driver, &way, b"not yet").unwrap();
    guest.driver.write_sends(victim.qpn, &[work]).unwrap();
    let kernel = guest.driver.uar();
    for uar in (128..140)
        .map(Uar::from_low_bits)
        .filter(|uar| *uar != victim.uar())
    {
        let register = Register::Send { uar };
        guest
            .bench
            .write_be32(2, register.offset(), victim.qpn.get() << 8);
    }
    assert!(kernel != victim.uar() && intruder.uar() != victim.uar());
    guest.pass();
    assert_eq!(guest.hear(&mut victim), Vec::<Vec<u8>>::new());
    guest.driver.ring(&mut guest.bench, victim.qpn).unwrap();
    guest.pass();
    assert_eq!(guest.hear(&mut victim), [b"not yet"]);
}

#[test]
fn memory_of_another_protection_domain_cannot_be_sent() {
    let mut guest = Guest::new();
    let spec = TalkerSpec::default();
    let (victim, mut intruder) = (guest.open(&spec), guest.open(&spec));
    let way = guest.way(&intruder, &intruder);
    let work = SendWork::new(0, Payload::Gather(vec![victim.own_memory(16)]), way);
    let posted = guest
        .driver
        .post_sends(&mut guest.bench, intruder.qpn, &[work]);
    posted.unwrap();
    guest.pass();
    let done = guest.driver.poll_cq(intruder.send_cq, 10).unwrap();
    assert_eq!(done[0].error, Some(Syndrome::LOCAL_PROTECTION));
    assert_eq!(guest.hear(&mut intruder), Vec::<Vec<u8>>::new());
}

#[test]
fn the_reserved_key_works_for_the_kernel_alone() {
    let mut guest = Guest::new();
    let page = guest.memory.allocate_page();
    guest.memory.write(page, b"of the kernel");
    let lkey = guest.driver.capabilities().reserved_lkey.unwrap();
    for owner in [Owner::Kernel, Owner::User] {
        let spec = TalkerSpec {
            owner,
            ..TalkerSpec::default()
        };
        let mut talker = guest.open(&spec);
        let way = guest.way(&talker, &talker);
        let sge = Sge {
            addr: page,
            len: 13,
            lkey,
        };
        let work = SendWork::new(0, Payload::Gather(vec![sge]), way);
        let posted = guest
            .driver
            .post_sends(&mut guest.bench, talker.qpn, &[work]);
        posted.unwrap();
        guest.pass();
        let done = guest.driver.poll_cq(talker.send_cq, 10).unwrap();
        let error = (owner == Owner::User).then_some(Syndrome::LOCAL_PROTECTION);
        assert_eq!(done[0].error, error);
        let heard = guest.hear(&mut talker);
        assert_eq!(heard.len(), usize::from(owner == Owner::Kernel));
    }
}

#[test]
fn a_region_of_all_memory_and_one_whose_rights_change_do_what_they_say() {
    let mut guest = Guest::new();
    let mut talker = guest.open(&TalkerSpec::default());
    let page = guest.memory.allocate_page();
    guest.memory.write(page, b"physical");
    let key = guest
        .driver
        .register_all(&mut guest.bench, talker.pd)
        .unwrap();
    let way = guest.way(&talker, &talker);
    let sge = Sge {
        addr: page,
        len: 8,
        lkey: key,
    };
    let work = SendWork::new(0, Payload::Gather(vec![sge]), way);
    let posted = guest
        .driver
        .post_sends(&mut guest.bench, talker.qpn, &[work]);
    posted.unwrap();
    guest.pass();
    assert_eq!(guest.hear(&mut talker), [b"physical"]);
    guest.driver.deregister_all(&mut guest.bench, key).unwrap();

    let rights = Rights::default();
    let region = guest
        .driver
        .register(&mut guest.bench, talker.pd, 0x10, 9000, rights)
        .unwrap();
    region.write(4000, b"across pages");
    let sge = region.sge(4000, 12);
    let work = SendWork::new(0, Payload::Gather(vec![sge]), way);
    let posted = guest
        .driver
        .post_sends(&mut guest.bench, talker.qpn, &[work]);
    posted.unwrap();
    guest.pass();
    assert_eq!(guest.hear(&mut talker), [b"across pages"]);
    guest
        .driver
        .set_rights(&mut guest.bench, &region, Rights::ALL)
        .unwrap();
    guest.driver.deregister(&mut guest.bench, region).unwrap();
}

#[test]
fn memory_unmapped_under_a_send_fails_that_send_and_its_queue_pair() {
    let mut guest = Guest::new();
    let spec = TalkerSpec::default();
    let (mut victim, mut other) = (guest.open(&spec), guest.open(&spec));
    let region = guest
        .driver
        .register(&mut guest.bench, victim.pd, 0, 4096, Rights::default())
        .unwrap();
    guest.memory.set_mapped(region.pages()[0], false);
    let way = guest.way(&victim, &other);
    let work = SendWork::new(0, Payload::Gather(vec![region.sge(0, 64)]), way);
    let posted = guest
        .driver
        .post_sends(&mut guest.bench, victim.qpn, &[work]);
    posted.unwrap();
    guest.pass();
    let done = guest.driver.poll_cq(victim.send_cq, 10).unwrap();
    assert!(done[0].error.is_some(), "{done:?}");
    let own = other.qpn;
    let way = guest.way(&other, &other);
    other
        .say(&mut guest.driver, &mut guest.bench, &way, b"well")
        .unwrap();
    guest.pass();
    assert_eq!(guest.hear(&mut other), [b"well"]);
    assert_eq!(
        guest
            .driver
            .query_qp(&mut guest.bench, own)
            .unwrap()
            .state(),
        QpState::RTS
    );
    drop(victim.failed.drain(..));
}

#[test]
fn a_completion_queue_that_overruns_tells_and_fails_its_queue_pairs() {
    let mut guest = Guest::new();
    let spec = TalkerSpec {
        receives: 16,
        ..TalkerSpec::default()
    };
    let (mut sender, mut receiver) = (guest.open(&TalkerSpec::default()), guest.open(&spec));
    // Room for three, the rest stays unread.
    let resized = guest
        .driver
        .resize_cq(&mut guest.bench, receiver.recv_cq, 3, BufferKind::Kernel);
    resized.unwrap();
    for n in 0..8 {
        guest.say(&mut sender, &receiver, &[n]);
    }
    let events = guest.events();
    let overrun = Event::CqError {
        cqn: receiver.recv_cq,
        syndrome: CQ_OVERRUN,
    };
    assert!(events.contains(&overrun), "{events:?}");
    let context = guest.driver.query_qp(&mut guest.bench, receiver.qpn);
    assert_eq!(context.unwrap().state(), QpState::ERR);
    // What fitted is there.
    let heard = guest.hear(&mut receiver);
    assert!(heard.len() >= 3 && heard.iter().zip(0..).all(|(heard, n)| *heard == [n]));
}

#[test]
fn a_drained_send_queue_sends_nothing_until_it_goes_on() {
    let mut guest = Guest::new();
    let mut talker = guest.open(&TalkerSpec::default());
    guest
        .driver
        .set_drained(&mut guest.bench, talker.qpn, true)
        .unwrap();
    let drained = Event::Qp {
        qpn: talker.qpn,
        kind: EventType::SQ_DRAINED,
    };
    assert_eq!(guest.events(), [drained]);
    let way = guest.way(&talker, &talker);
    talker
        .say(&mut guest.driver, &mut guest.bench, &way, b"waits")
        .unwrap();
    guest.pass();
    assert_eq!(guest.hear(&mut talker), Vec::<Vec<u8>>::new());
    guest
        .driver
        .set_drained(&mut guest.bench, talker.qpn, false)
        .unwrap();
    guest.pass();
    assert_eq!(guest.hear(&mut talker), [b"waits"]);
}

#[test]
fn more_than_the_quota_is_refused_and_less_is_given_again() {
    let mut guest = Guest::new();
    let spec = CqSpec {
        entries: 15,
        vector: 0,
        uar: guest.driver.uar(),
        memory: BufferKind::Kernel,
    };
    let mut queues = Vec::new();
    let refused = loop {
        match guest.driver.create_cq(&mut guest.bench, &spec) {
            Ok(cqn) => queues.push(cqn),
            Err(refused) => break refused,
        }
        assert!(queues.len() <= 64, "the quota of the function");
    };
    assert!(refused.status().is_some(), "{refused}");
    let pages = guest.memory.allocated_pages();
    for _ in 0..100 {
        let cqn = queues.pop().unwrap();
        guest.driver.destroy_cq(&mut guest.bench, cqn).unwrap();
        queues.push(guest.driver.create_cq(&mut guest.bench, &spec).unwrap());
        let again = guest.driver.create_cq(&mut guest.bench, &spec);
        assert_eq!(again, Err(refused.clone()));
    }
    assert_eq!(guest.memory.allocated_pages(), pages);
}

#[test]
fn a_datagram_to_nobody_is_lost_and_its_sender_goes_on() {
    let mut guest = Guest::new();
    let mut talker = guest.open(&TalkerSpec::default());
    let nobody = (Lid::new(0x99), talker.qpn, QKey::new(1));
    let way = talker.way_to(nobody);
    talker
        .say(&mut guest.driver, &mut guest.bench, &way, b"hello?")
        .unwrap();
    guest.pass();
    assert_eq!(talker.take_sent(&mut guest.driver), Ok(1));
    assert_eq!(talker.failed, []);
    let own = guest.way(&talker, &talker);
    talker
        .say(&mut guest.driver, &mut guest.bench, &own, b"hello")
        .unwrap();
    guest.pass();
    assert_eq!(guest.hear(&mut talker), [b"hello"]);
}
