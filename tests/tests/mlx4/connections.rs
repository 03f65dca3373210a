//! Connected queue pairs of two guests' drivers, on two hosts and on one.

use ib_vtime::Duration;
use ib_wire::Psn;
use mlx4_defs::cqe::{CqeOpcode, Syndrome};
use mlx4_defs::qp::QpState;
use mlx4_defs::wqe::WqeOpcode;
use vhca_tests::mlx4_driver::{
    Bus, Connection, ConnectionSpec, GuestId, Lab, LabPlan, Operation, Owner, Payload, QpUse,
    Remote, Rights, SendWork, StrayAccesses, WorkCompletion,
};

use super::lab;

const A: GuestId = GuestId(0);
const B: GuestId = GuestId(1);

/// Two guests, on two hosts and on one.
fn labs() -> [Lab; 2] {
    [lab(LabPlan::new(2, 1)), lab(LabPlan::new(1, 2))]
}

fn open(lab: &mut Lab, guest: GuestId, spec: &ConnectionSpec) -> Connection {
    lab.on(guest, |driver, bus| {
        Connection::open(driver, bus, spec).unwrap()
    })
}

/// Opens a connection between the guests. The ends begin with different PSNs.
fn connected(lab: &mut Lab, spec: &ConnectionSpec) -> [Connection; 2] {
    let other = ConnectionSpec {
        psn: Psn::from_low_bits(0x12_3456),
        ..*spec
    };
    let ends = [open(lab, A, spec), open(lab, B, &other)];
    join(lab, &ends);
    ends
}

fn join(lab: &mut Lab, [a, b]: &[Connection; 2]) {
    let addresses =
        [(A, a), (B, b)].map(|(guest, end)| lab.on(guest, |driver, _| end.address(driver)));
    for (guest, own, peer) in [(A, a, addresses[1]), (B, b, addresses[0])] {
        lab.on(guest, |driver, bus| own.connect(driver, bus, &peer))
            .unwrap();
    }
}

/// Posts requests, lets time pass, and returns what has completed at the guest.
fn carry_out(
    lab: &mut Lab,
    guest: GuestId,
    end: &Connection,
    works: &[SendWork],
) -> Vec<WorkCompletion> {
    lab.on(guest, |driver, bus| end.post(driver, bus, works))
        .unwrap();
    lab.run_for(Duration::from_millis(10)).unwrap();
    completions(lab, guest, end)
}

fn completions(lab: &mut Lab, guest: GuestId, end: &Connection) -> Vec<WorkCompletion> {
    lab.on(guest, |driver, _| end.completions(driver)).unwrap()
}

fn well(done: &[WorkCompletion]) -> Vec<u8> {
    assert!(done.iter().all(|one| one.error.is_none()), "{done:?}");
    done.iter().map(|one| one.opcode).collect()
}

fn end(lab: &mut Lab, [a, b]: [Connection; 2]) {
    for (guest, end) in [(A, a), (B, b)] {
        lab.on(guest, |driver, bus| end.close(driver, bus)).unwrap();
        assert_eq!(
            lab.guest(guest).memory.stray_accesses(),
            StrayAccesses::default(),
            "{guest:?}"
        );
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[test]
fn two_guests_write_read_and_count_in_each_others_memory() {
    for mut lab in labs() {
        for owner in [Owner::User, Owner::Kernel] {
            let spec = ConnectionSpec {
                owner,
                ..ConnectionSpec::reliable()
            };
            let ends = connected(&mut lab, &spec);
            for (guest, own, peer) in [(A, &ends[0], &ends[1]), (B, &ends[1], &ends[0])] {
                own.region.write(3, &pattern(20_000));
                peer.region.write(0, &[0; 30_000]);
                let works = [
                    SendWork::to_peer(1, own.part(3, 20_000), Operation::Write(peer.remote(5))),
                    SendWork::to_peer(
                        2,
                        Payload::Gather(vec![
                            own.region.sge(40_000, 300),
                            own.region.sge(40_300, 19_700),
                        ]),
                        Operation::Read(peer.remote(5)),
                    ),
                    SendWork::to_peer(
                        3,
                        own.part(32, 8),
                        Operation::FetchAdd {
                            remote: peer.remote(25_600),
                            add: 7,
                        },
                    ),
                    SendWork::to_peer(
                        4,
                        own.part(40, 8),
                        Operation::CompareSwap {
                            remote: peer.remote(25_600),
                            compare: 7,
                            swap: 9,
                        },
                    ),
                    // The value is another one by now.
                    SendWork::to_peer(
                        5,
                        own.part(48, 8),
                        Operation::CompareSwap {
                            remote: peer.remote(25_600),
                            compare: 7,
                            swap: 1,
                        },
                    ),
                ];
                let done = carry_out(&mut lab, guest, own, &works);
                let opcodes = [
                    WqeOpcode::RDMA_WRITE,
                    WqeOpcode::RDMA_READ,
                    WqeOpcode::ATOMIC_FA,
                    WqeOpcode::ATOMIC_CS,
                    WqeOpcode::ATOMIC_CS,
                ];
                assert_eq!(well(&done), opcodes.map(WqeOpcode::get));
                assert_eq!(peer.region.read(5, 20_000), pattern(20_000));
                assert_eq!(own.region.read(40_000, 20_000), pattern(20_000));
                assert_eq!(own.region.read(32, 8), 0_u64.to_ne_bytes());
                assert_eq!(own.region.read(40, 8), 7_u64.to_ne_bytes());
                assert_eq!(own.region.read(48, 8), 9_u64.to_ne_bytes());
                assert_eq!(peer.region.read(25_600, 8), 9_u64.to_ne_bytes());
            }
            end(&mut lab, ends);
        }
    }
}

#[test]
fn a_send_and_a_write_with_immediate_data_take_receives_by_rc_and_by_uc() {
    for mut lab in labs() {
        for purpose in [QpUse::Reliable, QpUse::Unreliable] {
            let spec = ConnectionSpec {
                purpose,
                ..ConnectionSpec::reliable()
            };
            let ends = connected(&mut lab, &spec);
            let [a, b] = &ends;
            for n in 0..3 {
                let into = b.region.sge(1000 * n, 1000);
                lab.on(B, |driver, _| b.post_receive(driver, n as u64, into))
                    .unwrap();
            }
            a.region.write(0, &pattern(3000));
            let mut works = [
                SendWork::to_peer(1, Payload::Inline(b"short".to_vec()), Operation::Send),
                SendWork::to_peer(2, a.part(0, 1000), Operation::Write(b.remote(5000))),
                SendWork::to_peer(3, a.part(0, 600), Operation::Send),
                SendWork::to_peer(4, a.part(0, 3000), Operation::Write(b.remote(6000))),
            ];
            for work in &mut works[..2] {
                work.immediate = Some([1, 2, 3, 4]);
            }
            let sent = carry_out(&mut lab, A, a, &works);
            let opcodes = [
                WqeOpcode::SEND_IMM,
                WqeOpcode::RDMA_WRITE_IMM,
                WqeOpcode::SEND,
                WqeOpcode::RDMA_WRITE,
            ];
            assert_eq!(well(&sent), opcodes.map(WqeOpcode::get));
            let received = completions(&mut lab, B, b);
            let opcodes = [
                CqeOpcode::RECV_SEND_IMM,
                CqeOpcode::RECV_RDMA_WRITE_IMM,
                CqeOpcode::RECV_SEND,
            ];
            assert_eq!(well(&received), opcodes.map(CqeOpcode::get));
            let immediate: Vec<_> = received.iter().map(|one| one.immediate).collect();
            let given = Some([1, 2, 3, 4]);
            assert_eq!(immediate, [given, given, None]);
            let lengths: Vec<_> = received.iter().map(|one| one.byte_len).collect();
            assert_eq!(lengths, [5, 1000, 600]);
            assert_eq!(b.region.read(0, 5), b"short");
            assert_eq!(b.region.read(2000, 600), pattern(600));
            assert_eq!(b.region.read(5000, 1000), pattern(1000));
            assert_eq!(b.region.read(6000, 3000), pattern(3000));
            let sender = lab
                .on(A, |driver, bus| driver.query_qp(bus, a.qpn))
                .unwrap();
            let receiver = lab
                .on(B, |driver, bus| driver.query_qp(bus, b.qpn))
                .unwrap();
            // Three packets of one request each, and three of 1024 bytes at most.
            assert_eq!(sender.next_send_psn, Psn::from_low_bits(spec.psn.get() + 6));
            assert_eq!(receiver.next_receive_psn, sender.next_send_psn);
            end(&mut lab, ends);
        }
    }
}

#[test]
fn a_wrong_key_or_right_fails_the_connection_and_touches_nothing() {
    for mut lab in labs() {
        let read_only = ConnectionSpec {
            rights: Rights {
                remote_read: true,
                ..Rights::default()
            },
            ..ConnectionSpec::reliable()
        };
        type Wrong = fn(&Connection) -> Operation;
        let wrong: [(Wrong, Syndrome); 5] = [
            (
                |peer| {
                    Operation::Write(Remote {
                        rkey: peer.remote(0).rkey + 1,
                        ..peer.remote(0)
                    })
                },
                Syndrome::REMOTE_ACCESS,
            ),
            (
                |peer| {
                    Operation::Read(Remote {
                        rkey: 0xffff_ff00,
                        ..peer.remote(0)
                    })
                },
                Syndrome::REMOTE_ACCESS,
            ),
            (
                |peer| Operation::Read(peer.remote(65_536 - 4)),
                Syndrome::REMOTE_ACCESS,
            ),
            // The region permits reads alone.
            (
                |peer| Operation::Write(peer.remote(0)),
                Syndrome::REMOTE_ACCESS,
            ),
            (
                |peer| Operation::FetchAdd {
                    remote: peer.remote(0),
                    add: 1,
                },
                Syndrome::REMOTE_ACCESS,
            ),
        ];
        for (operation, syndrome) in wrong {
            let ends = [
                open(&mut lab, A, &ConnectionSpec::reliable()),
                open(&mut lab, B, &read_only),
            ];
            join(&mut lab, &ends);
            let [a, b] = &ends;
            a.region.write(0, &[1; 64]);
            b.region.write(0, &[2; 64]);
            let into = b.region.sge(0, 64);
            lab.on(B, |driver, _| b.post_receive(driver, 9, into))
                .unwrap();
            let works = [
                SendWork::to_peer(1, a.part(0, 8), operation(b)),
                SendWork::to_peer(2, a.part(0, 8), Operation::Read(b.remote(0))),
            ];
            let done = carry_out(&mut lab, A, a, &works);
            let errors: Vec<_> = done.iter().map(|one| one.error).collect();
            assert_eq!(errors, [Some(syndrome), Some(Syndrome::FLUSHED)]);
            assert_eq!(b.region.read(0, 64), [2; 64]);
            assert_eq!(a.region.read(0, 64), [1; 64]);
            let flushed = completions(&mut lab, B, b);
            assert_eq!(
                (flushed.len(), flushed[0].error),
                (1, Some(Syndrome::FLUSHED))
            );
            for (guest, end) in [(A, a), (B, b)] {
                let context = lab.on(guest, |driver, bus| driver.query_qp(bus, end.qpn));
                assert_eq!(context.unwrap().state(), QpState::ERR);
            }
            end(&mut lab, ends);
        }
    }
}

#[test]
fn a_request_that_no_connection_carries_ends_it_or_stops_its_sends() {
    for (purpose, state) in [
        (QpUse::Reliable, QpState::ERR),
        (QpUse::Unreliable, QpState::SQER),
    ] {
        let mut lab = lab(LabPlan::new(1, 2));
        let spec = ConnectionSpec {
            purpose,
            ..ConnectionSpec::reliable()
        };
        let ends = connected(&mut lab, &spec);
        let a = &ends[0];
        let work = |wr_id| {
            let zeros = Payload::Inline(vec![0; 44]);
            SendWork::to_peer(wr_id, zeros, Operation::Send)
        };
        lab.on(A, |driver, _| {
            a.post_receive(driver, 9, a.region.sge(0, 64)).unwrap();
            let registration = |bytes: &mut [u8]| {
                bytes[3] = WqeOpcode::FMR.get();
                bytes[16..].fill(0);
            };
            driver.write_changed(a.qpn, &work(1), registration).unwrap();
        });
        let done = carry_out(&mut lab, A, a, &[work(2)]);
        let (sends, receives): (Vec<&WorkCompletion>, Vec<_>) =
            done.iter().partition(|one| one.is_send);
        let errors: Vec<_> = sends.iter().map(|one| one.error.unwrap()).collect();
        assert_eq!(errors, [Syndrome::LOCAL_QP_OP, Syndrome::FLUSHED]);
        assert_eq!(receives.len(), usize::from(state == QpState::ERR));
        let context = lab.on(A, |driver, bus| driver.query_qp(bus, a.qpn));
        assert_eq!(context.unwrap().state(), state);
        end(&mut lab, ends);
    }
}

#[test]
fn a_connected_queue_pair_in_error_drains() {
    for purpose in [QpUse::Reliable, QpUse::Unreliable] {
        let mut lab = lab(LabPlan::new(1, 2));
        let spec = ConnectionSpec {
            purpose,
            ..ConnectionSpec::reliable()
        };
        let ends = connected(&mut lab, &spec);
        let a = &ends[0];
        lab.on(A, |driver, bus| {
            a.post_receive(driver, 1, a.region.sge(0, 64)).unwrap();
            driver.to_error(bus, a.qpn).unwrap();
            a.post_receive(driver, 2, a.region.sge(0, 64)).unwrap();
        });
        let work = SendWork::to_peer(3, a.part(0, 0), Operation::Send);
        let done = carry_out(&mut lab, A, a, &[work]);
        let errors: Vec<_> = done.iter().map(|one| one.error).collect();
        assert_eq!(errors, [Some(Syndrome::FLUSHED); 3]);
        end(&mut lab, ends);
    }
}

#[test]
fn a_reset_ends_a_peers_writes_with_an_error_and_the_queue_pair_connects_anew() {
    for mut lab in labs() {
        let ends = connected(&mut lab, &ConnectionSpec::reliable());
        let [a, b] = &ends;
        let works: Vec<SendWork> = (0..16)
            .map(|n| SendWork::to_peer(n, a.part(0, 60_000), Operation::Write(b.remote(0))))
            .collect();
        lab.on(A, |driver, bus| {
            a.post(driver, bus, &works).unwrap();
            bus.wait(Duration::from_nanos(1));
        });
        lab.on(B, |driver, bus| b.disconnect(driver, bus)).unwrap();
        // Eight times an ACK timeout of at most 4 x 67 ms.
        lab.run_for(Duration::from_secs(3)).unwrap();
        let done = completions(&mut lab, A, a);
        let errors: Vec<_> = done.iter().filter_map(|one| one.error).collect();
        assert_eq!(done.len(), works.len());
        assert!(
            errors.is_empty() || errors[0] == Syndrome::RETRY_EXCEEDED,
            "{errors:?}"
        );
        assert!(errors.iter().skip(1).all(|one| *one == Syndrome::FLUSHED));

        lab.on(A, |driver, bus| a.disconnect(driver, bus)).unwrap();
        join(&mut lab, &ends);
        let work = SendWork::to_peer(1, a.part(0, 1000), Operation::Write(b.remote(0)));
        well(&carry_out(&mut lab, A, a, &[work]));
        end(&mut lab, ends);
    }
}

#[test]
fn a_guest_that_is_reset_leaves_its_peer_an_error_and_nothing_else() {
    for mut lab in labs() {
        let [a, b] = connected(&mut lab, &ConnectionSpec::reliable());
        let works: Vec<SendWork> = (0..8)
            .map(|n| SendWork::to_peer(n, a.part(0, 60_000), Operation::Read(b.remote(0))))
            .collect();
        lab.on(A, |driver, bus| a.post(driver, bus, &works))
            .unwrap();
        lab.bus(B).reset();
        lab.abandon(B);
        lab.run_for(Duration::from_secs(3)).unwrap();
        let done = completions(&mut lab, A, &a);
        assert_eq!(done.len(), works.len());
        assert_eq!(
            done.last().and_then(|one| one.error),
            Some(Syndrome::FLUSHED)
        );
        lab.on(A, |driver, bus| a.close(driver, bus)).unwrap();
        assert_eq!(
            lab.guest(B).memory.stray_accesses(),
            StrayAccesses::default()
        );
        b.region.abandon();
    }
}
