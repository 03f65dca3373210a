//! Doorbell pages as the VMM sees them, and doorbells without values.

use mlx4_defs::Cqn;
use mlx4_defs::cq::{ArmCommand, CqDoorbell};
use mlx4_defs::cqe::Cqe;
use mlx4_defs::eqe::{Eqe, NumberEvent};
use mlx4_defs::wqe::WqeOpcode;
use proptest::prelude::*;

use super::queue_scene::{DriverCq, DriverQp, UAR, control, datagram, inline};
use super::*;

/// Another page than that of the scene.
const OTHER: u32 = 131;

const fn sends(uar: u32) -> Doorbell {
    Doorbell {
        bar: 2,
        offset: uar as u64 * 4096 + 0x14,
        len: 4,
    }
}

const fn cqs(uar: u32) -> Doorbell {
    Doorbell {
        bar: 2,
        offset: uar as u64 * 4096 + 0x20,
        len: 8,
    }
}

impl Guest {
    fn ring_without_value(&mut self, doorbell: Doorbell) {
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        self.function.ring(NOW, &mut hca, doorbell);
    }

    /// Returns `true` if the doorbells changed since the last call.
    fn doorbells_changed(&mut self) -> bool {
        let events: Vec<_> = std::iter::from_fn(|| self.function.poll_event()).collect();
        let changes = events
            .iter()
            .filter(|event| **event == PciEvent::DoorbellsChanged);
        let count = changes.count();
        assert!(count < 2, "told once");
        count == 1
    }

    fn free_cq(&mut self, cq: &DriverCq) {
        let input = Input {
            modifier: cq.cqn,
            ..Input::default()
        };
        self.ok(Opcode::HW2SW_CQ, input);
    }
}

#[test]
fn doorbell_pages_come_with_the_first_queue_that_names_them_and_go_with_the_last() {
    let mut guest = Guest::online();
    assert!(!guest.doorbells_changed());
    let cq = guest.make_cq(10);
    assert!(guest.doorbells_changed());
    assert_eq!(guest.function.doorbells(), [cqs(UAR)]);
    let qpn = guest.reserve_qpn();
    let qp = guest.make_qp_with(12, &cq, qpn, |context| {
        context.uar = Uar::from_low_bits(OTHER);
    });
    assert!(guest.doorbells_changed());
    assert_eq!(guest.function.doorbells(), [cqs(UAR), sends(OTHER)]);
    let second = guest.make_cq(14);
    assert!(!guest.doorbells_changed(), "on a page that there was");
    guest.reset_qp(&qp);
    assert!(guest.doorbells_changed());
    guest.free_cq(&cq);
    assert!(!guest.doorbells_changed());
    guest.free_cq(&second);
    assert!(guest.doorbells_changed());
    assert_eq!(guest.function.doorbells(), []);
}

#[test]
fn a_reset_takes_the_doorbells_away() {
    let mut guest = Guest::online();
    let _ = guest.make_cq(10);
    assert!(guest.doorbells_changed());
    guest.write_config(0x68, &[0, 0x80]);
    assert_eq!(guest.function.poll_event(), Some(PciEvent::ResetWanted));
    assert!(guest.doorbells_changed());
    assert_eq!(guest.function.doorbells(), []);
}

#[test]
fn a_page_that_no_store_reaches_has_no_doorbell() {
    for (page, uar) in [(10, 0), (14, 127), (18, 2048), (22, 0xff_ffff)] {
        let mut guest = Guest::online();
        let cq = guest.make_cq(page);
        let qpn = guest.reserve_qpn();
        let _ = guest.make_qp_with(page + 1, &cq, qpn, |context| {
            context.uar = Uar::from_low_bits(uar);
        });
        assert_eq!(guest.function.doorbells(), [cqs(UAR)], "page {uar}");
        for doorbell in [sends(uar), cqs(uar), sends(u32::MAX), cqs(OTHER)] {
            guest.ring_without_value(doorbell);
        }
        let foreign = Doorbell {
            bar: 4,
            ..sends(UAR)
        };
        guest.ring_without_value(foreign);
        assert_eq!(guest.function.poll_timeout(), None);
    }
}

/// An action of a driver on one of its queues.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// Posts so many sends on a queue pair, to another.
    Send { from: usize, to: usize, count: u8 },
    /// Takes the completions of a queue, and has itself woken for what comes.
    Take { cq: usize, solicited: bool },
    /// Takes completions without being woken for more.
    Drain { cq: usize },
}

const QUEUES: usize = 4;

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let queue = 0..QUEUES;
    let deed = prop_oneof![
        (queue.clone(), queue.clone(), 1..4_u8).prop_map(|(from, to, count)| Deed::Send {
            from,
            to,
            count
        }),
        (queue.clone(), any::<bool>()).prop_map(|(cq, solicited)| Deed::Take { cq, solicited }),
        queue.prop_map(|cq| Deed::Drain { cq }),
    ];
    prop::collection::vec(deed, 1..24)
}

/// A driver with queues on two pages. It rings with values, or has them lost.
struct Driver {
    guest: Guest,
    cqs: Vec<(DriverCq, u32)>,
    qps: Vec<(DriverQp, u32)>,
    /// Events that each completion queue has had, by which it numbers its doorbells.
    serials: [u8; QUEUES],
    events: u64,
    is_lossy: bool,
}

impl Driver {
    fn new(is_lossy: bool) -> Self {
        let mut guest = Guest::online();
        let pages = [UAR, OTHER, UAR, OTHER];
        let mut cqs = Vec::new();
        let mut qps = Vec::new();
        for (uar, page) in pages.into_iter().zip((10..).step_by(4)) {
            let cq = guest.make_cq_on(page, uar);
            let qpn = guest.reserve_qpn();
            let mut qp = guest.make_qp_with(page + 1, &cq, qpn, |context| {
                context.uar = Uar::from_low_bits(uar);
            });
            for _ in 0..32 {
                let at = guest.page(60);
                guest.receive(&mut qp, at, 2048);
            }
            cqs.push((cq, uar));
            qps.push((qp, uar));
        }
        guest.settle();
        let events = guest.eqes_from(0).len() as u64;
        Self {
            guest,
            cqs,
            qps,
            serials: [0; QUEUES],
            events,
            is_lossy,
        }
    }

    /// Does it; returns the completions that it took, and the events that came of it.
    fn act(&mut self, deed: Deed) -> (Vec<Cqe>, Vec<Eqe>) {
        let mut taken = Vec::new();
        match deed {
            Deed::Send { from, to, count } => {
                let to = self.qps[to].0.qpn;
                let (qp, uar) = &mut self.qps[from];
                for byte in 0..count {
                    let mut segments = datagram(to).as_bytes().to_vec();
                    segments.extend(inline(&[byte; 16]));
                    self.guest
                        .post_send(qp, control(WqeOpcode::SEND), &segments);
                }
                if self.is_lossy {
                    self.guest.ring_without_value(sends(*uar));
                } else {
                    let mut word = [0; 4];
                    word[..3].copy_from_slice(&qp.qpn.to_be_bytes()[1..]);
                    self.guest.write_bar(2, sends(*uar).offset, &word);
                }
            }
            Deed::Take { cq, solicited } => {
                taken = self.guest.poll_all(&mut self.cqs[cq].0);
                let command = if solicited {
                    ArmCommand::SOLICITED
                } else {
                    ArmCommand::NEXT
                };
                self.arm(cq, command);
            }
            Deed::Drain { cq } => taken = self.guest.poll_all(&mut self.cqs[cq].0),
        }
        self.guest.settle();
        let events = self.guest.eqes_from(self.events);
        self.events += events.len() as u64;
        for event in &events {
            let cq = self
                .cqs
                .iter()
                .position(|(cq, _)| event.view::<NumberEvent>().get() == cq.cqn);
            let serial = &mut self.serials[cq.expect("one of its queues")];
            *serial = (*serial + 1) % 4;
        }
        (taken, events)
    }

    fn arm(&mut self, index: usize, command: ArmCommand) {
        let (cq, uar) = &self.cqs[index];
        let cqn = Cqn::from_low_bits(cq.cqn);
        let doorbell = CqDoorbell::new(cqn, command, self.serials[index], cq.taken & 0xff_ffff);
        let mut record = doorbell.as_bytes()[..4].to_vec();
        record[1..].copy_from_slice(&doorbell.as_bytes()[5..]);
        let (at, uar) = (cq.record + 4, *uar);
        self.guest.write(at, &record);
        if self.is_lossy {
            self.guest.ring_without_value(cqs(uar));
        } else {
            self.guest
                .write_bar(2, cqs(uar).offset, doorbell.as_bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a driver does, it makes no difference that the values of its doorbells are lost.
    #[test]
    fn a_doorbell_without_its_value_does_what_the_value_says(deeds in deeds()) {
        let (mut trapped, mut lossy) = (Driver::new(false), Driver::new(true));
        for deed in deeds {
            prop_assert_eq!(trapped.act(deed), lossy.act(deed), "{:?}", deed);
        }
    }
}
