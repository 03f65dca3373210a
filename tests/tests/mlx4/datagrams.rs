//! Datagrams between guests, from and to their memory.

use ib_endpoint::group_destination;
use ib_vtime::Duration;
use ib_wire::{Lid, PortNum, Psn, QKey, Qpn};
use mlx4_defs::cq::ArmCommand;
use mlx4_defs::cqe::Syndrome;
use mlx4_defs::eqe::EventType;
use mlx4_defs::qp::QpState;
use vhca_tests::mlx4_driver::{
    BufferKind, Bus, Destination, Driver, Event, GuestId, Heard, Lab, LabPlan, Owner, Payload,
    SendWork, StrayAccesses, Talker, TalkerSpec,
};

use super::lab;
use super::mads::{granted, group, join, resolve};

const A: GuestId = GuestId(0);
const B: GuestId = GuestId(1);
const C: GuestId = GuestId(2);
const PORT: PortNum = PortNum(1);

fn open(lab: &mut Lab, guest: GuestId, spec: &TalkerSpec) -> Talker {
    lab.on(guest, |driver, bus| Talker::open(driver, bus, spec))
        .unwrap()
}

/// The address of a guest's talker.
fn address(lab: &mut Lab, guest: GuestId, talker: &Talker) -> (Lid, Qpn, QKey) {
    let lid = lab.on(guest, |driver, _| driver.port(PORT).info.lid);
    talker.address(lid)
}

fn say(lab: &mut Lab, guest: GuestId, talker: &mut Talker, to: &Destination, message: &[u8]) {
    lab.on(guest, |driver, bus| talker.say(driver, bus, to, message))
        .unwrap();
}

/// What a talker hears within a millisecond.
fn hear(lab: &mut Lab, guest: GuestId, talker: &mut Talker) -> Vec<Heard> {
    lab.run_for(Duration::from_millis(1)).unwrap();
    lab.on(guest, |driver, _| talker.hear(driver)).unwrap()
}

fn message(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| at.to_le_bytes()[0].wrapping_mul(31).wrapping_add(seed))
        .collect()
}

fn no_stray(lab: &Lab) {
    for guest in lab.guest_ids() {
        let stray = lab.guest(guest).memory.stray_accesses();
        assert_eq!(stray, StrayAccesses::default(), "{guest:?}");
    }
}

/// All kinds of talkers.
fn specs() -> Vec<TalkerSpec> {
    let mut specs = Vec::new();
    for owner in [Owner::Kernel, Owner::User] {
        for shared in [false, true] {
            specs.push(TalkerSpec {
                owner,
                shared,
                ..TalkerSpec::default()
            });
        }
    }
    specs
}

#[test]
fn datagrams_pass_between_guests_of_one_host_and_of_two_byte_by_byte() {
    let mut lab = lab(LabPlan::new(2, 2));
    for spec in specs() {
        for (from, to) in [(A, B), (A, C), (C, B)] {
            let (mut sender, mut receiver) =
                (open(&mut lab, from, &spec), open(&mut lab, to, &spec));
            let there = address(&mut lab, to, &receiver);
            let way = sender.way_to(there);
            for (len, seed) in [0, 1, 3, 63, 64, 65, 256, 1500, 2044, 2048]
                .into_iter()
                .zip(0..)
            {
                let sent = message(len, seed);
                say(&mut lab, from, &mut sender, &way, &sent);
                let heard = hear(&mut lab, to, &mut receiver);
                assert_eq!(heard.len(), 1, "{len} bytes, {spec:?}");
                assert_eq!(heard[0].bytes, sent);
                assert_eq!(heard[0].source.qpn, sender.qpn);
                let (lid, ..) = address(&mut lab, from, &sender);
                assert_eq!(heard[0].source.slid, lid);
                assert_eq!(heard[0].grh, None);
            }
            lab.on(from, |driver, bus| sender.close(driver, bus))
                .unwrap();
            lab.on(to, |driver, bus| receiver.close(driver, bus))
                .unwrap();
        }
    }
    no_stray(&lab);
}

#[test]
fn a_datagram_with_a_grh_shows_both_gids() {
    let mut lab = lab(LabPlan::new(2, 1));
    let spec = TalkerSpec::default();
    let (mut sender, mut receiver) = (open(&mut lab, A, &spec), open(&mut lab, B, &spec));
    let path = resolve(&mut lab, A, B).with_grh();
    let way = path.destination(receiver.qpn, TalkerSpec::QKEY);
    let way = Destination::of_datagram(sender.pd, &way).unwrap();
    say(&mut lab, A, &mut sender, &way, b"routed");
    let heard = hear(&mut lab, B, &mut receiver);
    let grh = heard[0].grh.unwrap();
    let [a, b] = [A, B].map(|guest| lab.on(guest, |driver, _| driver.port(PORT).gid()));
    assert_eq!((&grh[8..24], &grh[24..40]), (&a.0[..], &b.0[..]));
    assert_eq!(heard[0].bytes, b"routed");
}

#[test]
fn immediate_data_arrives_as_it_was_given() {
    let mut lab = lab(LabPlan::new(1, 2));
    let spec = TalkerSpec::default();
    let (mut sender, mut receiver) = (open(&mut lab, A, &spec), open(&mut lab, B, &spec));
    let way = sender.way_to(address(&mut lab, B, &receiver));
    lab.on(A, |driver, bus| {
        let mut work = sender.request(driver, &way, b"now").unwrap();
        work.immediate = Some([1, 2, 3, 4]);
        driver.post_sends(bus, sender.qpn, &[work]).unwrap();
    });
    let heard = hear(&mut lab, B, &mut receiver);
    assert_eq!(heard[0].immediate, Some([1, 2, 3, 4]));
}

#[test]
fn a_wrong_q_key_is_not_heard_and_the_right_one_after_a_change_is() {
    let mut lab = lab(LabPlan::new(1, 2));
    let spec = TalkerSpec::default();
    let (mut sender, mut receiver) = (open(&mut lab, A, &spec), open(&mut lab, B, &spec));
    let (lid, qpn, _) = address(&mut lab, B, &receiver);
    let way = sender.way_to((lid, qpn, QKey::new(0x77)));
    say(&mut lab, A, &mut sender, &way, b"wrong");
    assert_eq!(hear(&mut lab, B, &mut receiver), []);
    lab.on(B, |driver, bus| {
        driver.set_qkey(bus, receiver.qpn, QKey::new(0x77)).unwrap();
        assert_eq!(
            driver.query_qp(bus, receiver.qpn).unwrap().qkey,
            QKey::new(0x77)
        );
    });
    say(&mut lab, A, &mut sender, &way, b"right");
    assert_eq!(hear(&mut lab, B, &mut receiver)[0].bytes, b"right");
}

#[test]
fn the_members_of_a_group_on_both_hosts_hear_what_one_of_them_says_and_nobody_else() {
    let mut lab = lab(LabPlan::new(2, 3));
    let spec = TalkerSpec::default();
    let guests: Vec<GuestId> = lab.guest_ids().collect();
    let (members, outsider) = guests.split_at(5);
    let mut talkers: Vec<(GuestId, Talker)> = guests
        .iter()
        .map(|guest| (*guest, open(&mut lab, *guest, &spec)))
        .collect();
    let mut record = None;
    for (guest, talker) in &talkers[..members.len()] {
        let standing = join(&mut lab, *guest, group(9));
        record = Some(granted(&mut lab, *guest, standing));
        lab.on(*guest, |driver, bus| {
            driver.set_attached(bus, talker.qpn, group(9), true, true)
        })
        .unwrap();
    }
    // A join is granted before the switch knows of it.
    lab.run_for(Duration::from_secs(2)).unwrap();
    let way = group_destination(PORT, &record.unwrap());
    let way = Destination::of_datagram(talkers[0].1.pd, &way).unwrap();
    let (guest, speaker) = &mut talkers[0];
    say(&mut lab, *guest, speaker, &way, b"to all");
    for (at, (guest, talker)) in talkers.iter_mut().enumerate() {
        let heard = hear(&mut lab, *guest, talker);
        let expected = usize::from(at != 0 && !outsider.contains(guest));
        assert_eq!(heard.len(), expected, "{guest:?}");
        assert!(
            heard
                .iter()
                .all(|heard| heard.bytes == b"to all" && heard.grh.is_some())
        );
    }
    // Detached, a member hears nothing any more.
    let (guest, talker) = &mut talkers[1];
    lab.on(*guest, |driver, bus| {
        driver.set_attached(bus, talker.qpn, group(9), false, false)
    })
    .unwrap();
    let (guest, speaker) = &mut talkers[0];
    say(&mut lab, *guest, speaker, &way, b"again");
    let (guest, talker) = &mut talkers[1];
    assert_eq!(hear(&mut lab, *guest, talker), []);
    no_stray(&lab);
}

#[test]
fn rings_wrap_many_times_with_unsignalled_sends_between() {
    let mut lab = lab(LabPlan::new(1, 2));
    for spec in specs() {
        let (mut sender, mut receiver) = (open(&mut lab, A, &spec), open(&mut lab, B, &spec));
        let way = sender.way_to(address(&mut lab, B, &receiver));
        for round in 0..100_u8 {
            lab.on(A, |driver, bus| {
                let works: Vec<SendWork> = (0..3)
                    .map(|n| {
                        let mut work = sender.request(driver, &way, &[round, n]).unwrap();
                        work.signaled = true;
                        work
                    })
                    .collect();
                driver.post_sends(bus, sender.qpn, &works).unwrap();
            });
            let heard = hear(&mut lab, B, &mut receiver);
            let bytes: Vec<&[u8]> = heard.iter().map(|heard| &heard.bytes[..]).collect();
            assert_eq!(bytes, [[round, 0], [round, 1], [round, 2]]);
        }
        lab.on(A, |driver, bus| {
            // Of ten requests only the last has an entry, which completes all.
            sender.take_sent(driver).unwrap();
            let works: Vec<SendWork> = (0..10)
                .map(|n| {
                    let payload = Payload::Gather(Vec::new());
                    let mut work = SendWork::new(n, payload, way);
                    work.signaled = n == 9;
                    work
                })
                .collect();
            driver.post_sends(bus, sender.qpn, &works).unwrap();
            bus.wait(Duration::from_millis(1));
            let done = driver.poll_cq(sender.send_cq, 100).unwrap();
            assert_eq!(done.iter().map(|done| done.wr_id).collect::<Vec<_>>(), [9]);
            assert_eq!(driver.outstanding_sends(sender.qpn), 0);
        });
        lab.on(A, |driver, bus| sender.close(driver, bus)).unwrap();
        lab.on(B, |driver, bus| receiver.close(driver, bus))
            .unwrap();
    }
}

#[test]
fn a_queue_that_is_resized_with_completions_in_it_loses_none() {
    let mut lab = lab(LabPlan::new(1, 2));
    let spec = TalkerSpec::default();
    let (mut sender, mut receiver) = (open(&mut lab, A, &spec), open(&mut lab, B, &spec));
    let way = sender.way_to(address(&mut lab, B, &receiver));
    let mut expected = 0_u8;
    let mut said = 0_u8;
    for entries in [200, 31, 1000, 40, 63] {
        for _ in 0..7 {
            say(&mut lab, A, &mut sender, &way, &[said]);
            said += 1;
        }
        lab.run_for(Duration::from_millis(1)).unwrap();
        lab.on(B, |driver, bus| {
            let memory = BufferKind::User { shift: 13 };
            driver
                .resize_cq(bus, receiver.recv_cq, entries, memory)
                .unwrap();
        });
        for _ in 0..3 {
            say(&mut lab, A, &mut sender, &way, &[said]);
            said += 1;
        }
        for heard in hear(&mut lab, B, &mut receiver) {
            assert_eq!(heard.bytes, [expected]);
            expected += 1;
        }
        assert_eq!(expected, said, "{entries} entries");
    }
    no_stray(&lab);
}

#[test]
fn an_armed_queue_tells_once_and_a_solicited_one_only_of_what_asks_for_it() {
    let mut lab = lab(LabPlan::new(1, 2));
    let spec = TalkerSpec::default();
    let (mut sender, mut receiver) = (open(&mut lab, A, &spec), open(&mut lab, B, &spec));
    let way = sender.way_to(address(&mut lab, B, &receiver));
    let cqn = receiver.recv_cq;
    let mut told = |lab: &mut Lab, solicited: bool| {
        lab.on(A, |driver, bus| {
            let mut work = sender.request(driver, &way, b"x").unwrap();
            work.solicited = solicited;
            driver.post_sends(bus, sender.qpn, &[work]).unwrap();
        });
        lab.run_for(Duration::from_millis(1)).unwrap();
        lab.on(B, |driver, _| driver.notifications(cqn))
    };
    assert_eq!(told(&mut lab, true), 0, "not armed");
    let arm =
        |lab: &mut Lab, command| lab.on(B, |driver, bus| driver.arm_cq(bus, cqn, command).unwrap());
    // There is something already.
    arm(&mut lab, ArmCommand::NEXT);
    lab.run_for(Duration::from_millis(1)).unwrap();
    assert_eq!(lab.on(B, |driver, _| driver.notifications(cqn)), 1);
    lab.on(B, |driver, _| receiver.hear(driver)).unwrap();
    arm(&mut lab, ArmCommand::NEXT);
    assert_eq!(told(&mut lab, false), 2);
    assert_eq!(told(&mut lab, false), 2, "once");
    lab.on(B, |driver, _| receiver.hear(driver)).unwrap();
    arm(&mut lab, ArmCommand::SOLICITED);
    assert_eq!(told(&mut lab, false), 2);
    assert_eq!(told(&mut lab, true), 3);
}

#[test]
fn a_queue_pair_in_error_flushes_what_is_posted_and_what_comes() {
    let mut lab = lab(LabPlan::new(1, 1));
    for spec in specs() {
        let mut talker = open(&mut lab, A, &spec);
        lab.on(A, |driver, bus| driver.to_error(bus, talker.qpn))
            .unwrap();
        lab.run_for(Duration::from_millis(1)).unwrap();
        let posted = if spec.shared {
            0
        } else {
            spec.receives as usize
        };
        lab.on(A, |driver, _| talker.hear(driver)).unwrap();
        assert_eq!(talker.failed.len(), posted, "{spec:?}");
        // A receive is visible by its doorbell record alone.
        if !spec.shared {
            lab.on(A, |driver, _| {
                driver.post_receives(talker.qpn, &[(99, Vec::new())])
            })
            .unwrap();
        }
        let way = talker.way_to(talker.address(Lid::new(1)));
        say(&mut lab, A, &mut talker, &way, b"late");
        lab.run_for(Duration::from_secs(1)).unwrap();
        lab.on(A, |driver, _| {
            talker.hear(driver).unwrap();
            talker.take_sent(driver).unwrap();
        });
        let late = posted + if spec.shared { 1 } else { 2 };
        assert_eq!(talker.failed.len(), late, "{spec:?}");
        assert!(
            talker
                .failed
                .iter()
                .all(|(_, error)| *error == Syndrome::FLUSHED)
        );
        if spec.shared {
            let last = Event::Qp {
                qpn: talker.qpn,
                kind: EventType::SRQ_QP_LAST_WQE,
            };
            let events = lab.on(A, |driver, _| {
                core::iter::from_fn(|| driver.poll_event()).collect::<Vec<_>>()
            });
            assert_eq!(events, [last]);
        }
        // Back to life.
        lab.on(A, |driver, bus| {
            assert_eq!(
                driver.query_qp(bus, talker.qpn).unwrap().state(),
                QpState::ERR
            );
            driver.reset_qp(bus, talker.qpn).unwrap();
            talker.bring_up(driver, bus).unwrap();
        });
        let own = address(&mut lab, A, &talker);
        let way = talker.way_to(own);
        say(&mut lab, A, &mut talker, &way, b"again");
        assert_eq!(hear(&mut lab, A, &mut talker)[0].bytes, b"again");
        lab.on(A, |driver, bus| talker.close(driver, bus)).unwrap();
    }
    no_stray(&lab);
}

#[test]
fn a_shared_queue_below_its_limit_tells_once() {
    let mut lab = lab(LabPlan::new(1, 2));
    let spec = TalkerSpec {
        shared: true,
        receives: 8,
        ..TalkerSpec::default()
    };
    let (mut sender, mut receiver) = (open(&mut lab, A, &spec), open(&mut lab, B, &spec));
    let srqn = receiver.srq.unwrap();
    lab.on(B, |driver, bus| {
        driver.arm_srq(bus, srqn, 6).unwrap();
        assert_eq!(driver.query_srq_limit(bus, srqn).unwrap(), 6);
    });
    let way = sender.way_to(address(&mut lab, B, &receiver));
    for _ in 0..5 {
        say(&mut lab, A, &mut sender, &way, b"x");
        lab.run_for(Duration::from_millis(1)).unwrap();
    }
    let events: Vec<Event> = lab.on(B, |driver, _| {
        core::iter::from_fn(|| driver.poll_event()).collect()
    });
    let limit = Event::Srq {
        srqn,
        kind: EventType::SRQ_LIMIT,
    };
    assert_eq!(events, [limit]);
    assert_eq!(hear(&mut lab, B, &mut receiver).len(), 5);
}

#[test]
fn without_a_receive_a_datagram_is_lost_and_the_next_one_after_posting_is_not() {
    let mut lab = lab(LabPlan::new(1, 2));
    let spec = TalkerSpec {
        receives: 2,
        ..TalkerSpec::default()
    };
    let (mut sender, mut receiver) = (
        open(&mut lab, A, &TalkerSpec::default()),
        open(&mut lab, B, &spec),
    );
    let way = sender.way_to(address(&mut lab, B, &receiver));
    for n in 0..4 {
        say(&mut lab, A, &mut sender, &way, &[n]);
    }
    let heard = hear(&mut lab, B, &mut receiver);
    assert_eq!(
        heard.iter().map(|heard| heard.bytes[0]).collect::<Vec<_>>(),
        [0, 1]
    );
    say(&mut lab, A, &mut sender, &way, &[9]);
    assert_eq!(hear(&mut lab, B, &mut receiver)[0].bytes, [9]);
}

#[test]
fn a_send_of_memory_that_the_program_has_not_registered_fails_its_queue_pair_alone() {
    let mut lab = lab(LabPlan::new(1, 2));
    let spec = TalkerSpec::default();
    let (mut victim, mut other) = (open(&mut lab, A, &spec), open(&mut lab, A, &spec));
    let mut receiver = open(&mut lab, B, &spec);
    let way = victim.way_to(address(&mut lab, B, &receiver));
    let reserved = lab.on(A, |driver, _| driver.capabilities().reserved_lkey.unwrap());
    lab.on(A, |driver, bus| {
        // The kernel's key is not for programs.
        let sge = vhca_tests::mlx4_driver::Sge {
            addr: vhca_tests::mlx4_driver::GuestMemory::BASE,
            len: 16,
            lkey: reserved,
        };
        let work = SendWork::new(0, Payload::Gather(vec![sge]), way);
        driver.post_sends(bus, victim.qpn, &[work]).unwrap();
        bus.wait(Duration::from_millis(1));
        let done = driver.poll_cq(victim.send_cq, 10).unwrap();
        assert_eq!(done[0].error, Some(Syndrome::LOCAL_PROTECTION));
    });
    let way = other.way_to(address(&mut lab, B, &receiver));
    say(&mut lab, A, &mut other, &way, b"well");
    assert_eq!(hear(&mut lab, B, &mut receiver)[0].bytes, b"well");
    drop(victim.failed.drain(..));
}

#[test]
fn connected_queue_pairs_get_to_ready_to_send_and_know_their_peer() {
    let mut lab = lab(LabPlan::new(1, 1));
    use vhca_tests::mlx4_driver::{CqSpec, DatagramAttributes, Peer, QpSpec, QpUse};
    lab.on(A, |driver: &mut Driver, bus: &mut dyn Bus| {
        let pd = driver.allocate_pd().unwrap();
        let uar = driver.uar();
        let memory = BufferKind::Kernel;
        let cq = driver
            .create_cq(
                bus,
                &CqSpec {
                    entries: 10,
                    vector: 0,
                    uar,
                    memory,
                },
            )
            .unwrap();
        for purpose in [QpUse::Reliable, QpUse::Unreliable] {
            let qpn = driver
                .create_qp(
                    bus,
                    &QpSpec {
                        purpose,
                        owner: Owner::Kernel,
                        uar,
                        memory,
                        pd,
                        send_cq: cq,
                        recv_cq: cq,
                        srq: None,
                        sends: 4,
                        receives: 4,
                        send_sges: 1,
                        receive_sges: 1,
                        inline: 0,
                        signal_all: true,
                    },
                )
                .unwrap();
            let attributes = DatagramAttributes {
                port: PORT,
                pkey_index: 0,
                qkey: QKey::new(0),
            };
            driver.to_init(bus, qpn, &attributes).unwrap();
            let peer = Peer {
                lid: Lid::new(1),
                gid: None,
                qpn,
                psn: Psn::from_low_bits(0x1234),
            };
            driver.connect_rtr(bus, qpn, &peer).unwrap();
            driver.connect_rts(bus, qpn, peer.psn).unwrap();
            let context = driver.query_qp(bus, qpn).unwrap();
            assert_eq!(context.state(), QpState::RTS);
            assert_eq!((context.remote_qpn, context.next_send_psn), (qpn, peer.psn));
            driver.destroy_qp(bus, qpn).unwrap();
        }
        driver.destroy_cq(bus, cq).unwrap();
        driver.free_pd(pd);
    });
}
