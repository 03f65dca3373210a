//! Connections between two queue pairs of the guest.

use ib_wire::{Lid, Psn, Qpn};
use mlx4_defs::Pdn;
use mlx4_defs::cqe::{Cqe, CqeOpcode, Syndrome};
use mlx4_defs::qp::{QpContext, QpState, ServiceType};
use mlx4_defs::wqe::{AtomicSegment, RemoteAddressSegment, WqeOpcode};

use super::super::capability::RESERVED_LKEY;
use super::queue_scene::*;
use super::regions::mapped;
use super::*;

const OUT: u64 = 40;
const IN: u64 = 44;
const FIRST_PSN: u32 = 0xff_fffe;

/// Primary path, rights, RNR timer and the responder's depth.
const TO_RECEIVE: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 7 | 1 << 9 | 1 << 16;
/// Timeout, retries and the requester's depth.
const TO_SEND: u32 = 1 << 8 | 1 << 12 | 1 << 13 | 1 << 14;

/// A guest with two queue pairs that are each other's peers, and a region that the peer may read and write.
struct Scene {
    guest: Guest,
    cq: DriverCq,
    left: DriverQp,
    right: DriverQp,
    key: u32,
}

impl Scene {
    fn new(service: ServiceType) -> Self {
        let mut guest = Guest::online();
        let cq = guest.make_cq(10);
        let numbers = [guest.reserve_qpn(), guest.reserve_qpn()];
        let left = connect(&mut guest, &cq, 12, service, numbers);
        let right = connect(&mut guest, &cq, 16, service, [numbers[1], numbers[0]]);
        let key = region(&mut guest);
        Self {
            guest,
            cq,
            left,
            right,
            key,
        }
    }

    /// Posts a request on the left side and gives what completes.
    fn carry_out(&mut self, opcode: WqeOpcode, segments: &[u8]) -> Vec<Cqe> {
        self.guest
            .post_send(&mut self.left, control(opcode), segments);
        self.guest.ring(&self.left);
        self.guest.settle();
        self.guest.poll_all(&mut self.cq)
    }

    fn remote(&self, page: u64) -> RemoteAddressSegment {
        RemoteAddressSegment {
            address: U64::new(self.guest.page(page)),
            rkey: U32::new(self.key),
            ..RemoteAddressSegment::default()
        }
    }
}

/// Takes a queue pair to "ready to send" as Linux does.
fn connect(
    guest: &mut Guest,
    cq: &DriverCq,
    page: u64,
    service: ServiceType,
    [qpn, peer]: [u32; 2],
) -> DriverQp {
    let qp = guest.prepare_qp(page, qpn);
    let mut context = guest.context(&qp, cq);
    context.set_service_type(service);
    guest.ok_transition(Opcode::RST2INIT_QP, qpn, &context, 1 << 4);
    let mut context = QpContext {
        remote_qpn: Qpn::from_low_bits(peer),
        next_receive_psn: Psn::from_low_bits(FIRST_PSN),
        next_send_psn: Psn::from_low_bits(FIRST_PSN),
        ..QpContext::default()
    };
    context.set_mtu(ib_wire::Mtu::MTU_256);
    context.set_remote_read(true);
    context.set_remote_write(true);
    context.set_remote_atomic(true);
    context.set_log_responder_depth(2);
    context.set_log_initiator_depth(2);
    context.set_min_rnr_timer(12);
    context.set_retry_count(7);
    context.set_rnr_retry(7);
    context.primary_path.dlid = Lid::new(LID);
    context.primary_path.sched_queue = 0x83;
    context.primary_path.set_ack_timeout(14);
    guest.ok_transition(Opcode::INIT2RTR_QP, qpn, &context, TO_RECEIVE);
    guest.ok_transition(Opcode::RTR2RTS_QP, qpn, &context, TO_SEND);
    qp
}

/// Registers all of the guest's memory with all rights, and gives its key.
fn region(guest: &mut Guest) -> u32 {
    let (index, mut entry) = mapped(guest);
    entry.set_physical(true);
    entry.set_remote_read(true);
    entry.set_remote_write(true);
    entry.set_atomic(true);
    entry.set_pd(Pdn(3));
    entry.length.set(u64::MAX);
    let mut input = guest.put(&entry);
    input.modifier = index;
    guest.ok(Opcode::SW2HW_MPT, input);
    index << 8
}

fn is_receive(cqe: &&Cqe) -> bool {
    !cqe.owner_opcode.is_send()
}

#[test]
fn sends_and_writes_arrive_in_order_on_either_service_and_psns_are_live() {
    for service in [ServiceType::RC, ServiceType::UC] {
        let mut scene = Scene::new(service);
        let (out, into) = (scene.guest.page(OUT), scene.guest.page(IN));
        let text: Vec<u8> = (0..=255).cycle().take(600).collect();
        scene.guest.write(out, &text);
        scene.guest.receive(&mut scene.right, into, 600);
        let memory = data(out, 600, RESERVED_LKEY);
        let all = scene.carry_out(WqeOpcode::SEND, memory.as_bytes());
        assert_eq!(all.len(), 2, "{all:?}");
        let received = all.iter().find(is_receive).unwrap();
        assert_eq!(received.owner_opcode.opcode(), CqeOpcode::RECV_SEND.get());
        assert_eq!(
            (received.byte_count.get(), received.qpn.get()),
            (600, scene.right.qpn)
        );
        assert_eq!(scene.guest.read::<600>(into), text[..]);

        let remote = scene.remote(IN + 1);
        let write = [remote.as_bytes(), memory.as_bytes()].concat();
        let all = scene.carry_out(WqeOpcode::RDMA_WRITE, &write);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].owner_opcode.opcode(), WqeOpcode::RDMA_WRITE.get());
        let there = scene.guest.page(IN + 1);
        assert_eq!(scene.guest.read::<600>(there), text[..]);

        scene.guest.receive(&mut scene.right, into, 0);
        let all = scene.carry_out(WqeOpcode::RDMA_WRITE_IMM, &write);
        let received = all.iter().find(is_receive).unwrap();
        let opcode = CqeOpcode::RECV_RDMA_WRITE_IMM.get();
        assert_eq!(
            (received.owner_opcode.opcode(), received.byte_count.get()),
            (opcode, 600)
        );

        let left = scene.guest.query_qp(&scene.left);
        let right = scene.guest.query_qp(&scene.right);
        assert_eq!(left.next_send_psn, Psn::from_low_bits(FIRST_PSN + 9));
        assert_eq!(right.next_receive_psn, left.next_send_psn);
    }
}

#[test]
fn reads_and_atomics_bring_what_the_peer_has() {
    let mut scene = Scene::new(ServiceType::RC);
    let (there, into) = (scene.guest.page(OUT), scene.guest.page(IN));
    scene.guest.write(there, &[7; 1000]);
    let list = [
        data(into, 300, RESERVED_LKEY),
        data(into + 300, 700, RESERVED_LKEY),
    ];
    let read = [scene.remote(OUT).as_bytes(), list.as_bytes()].concat();
    let all = scene.carry_out(WqeOpcode::RDMA_READ, &read);
    assert_eq!((all.len(), all[0].byte_count.get()), (1, 1000));
    assert_eq!(scene.guest.read::<1000>(into), [7; 1000]);

    scene.guest.write(there, &40_u64.to_ne_bytes());
    for (opcode, swap_add, compare, after) in [
        (WqeOpcode::ATOMIC_FA, 2, 0, 42),
        (WqeOpcode::ATOMIC_CS, 9, 42, 9),
        (WqeOpcode::ATOMIC_CS, 1, 42, 9),
    ] {
        let before = scene.guest.read::<8>(there);
        let operands = AtomicSegment {
            swap_add: U64::new(swap_add),
            compare: U64::new(compare),
        };
        let remote = scene.remote(OUT);
        let old = data(into, 8, RESERVED_LKEY);
        let atomic = [remote.as_bytes(), operands.as_bytes(), old.as_bytes()].concat();
        let all = scene.carry_out(opcode, &atomic);
        assert_eq!((all.len(), all[0].owner_opcode.opcode()), (1, opcode.get()));
        assert_eq!(scene.guest.read::<8>(into), before);
        assert_eq!(u64::from_ne_bytes(scene.guest.read::<8>(there)), after);
    }
}

/// A key that opens nothing ends the connection on both sides, and what is posted behind it is flushed.
#[test]
fn a_wrong_key_of_the_peer_ends_the_connection_and_flushes_the_rest() {
    let mut scene = Scene::new(ServiceType::RC);
    let out = scene.guest.page(OUT);
    scene.key += 1 << 8;
    let write = [
        scene.remote(IN).as_bytes(),
        data(out, 600, RESERVED_LKEY).as_bytes(),
    ]
    .concat();
    let into = scene.guest.page(IN);
    scene.guest.receive(&mut scene.right, into, 64);
    scene
        .guest
        .post_send(&mut scene.left, control(WqeOpcode::RDMA_WRITE), &write);
    let all = scene.carry_out(WqeOpcode::SEND, &[]);
    let syndromes: Vec<_> = all
        .iter()
        .map(|cqe| (cqe.qpn.get() == scene.left.qpn, syndrome(cqe).unwrap()))
        .collect();
    assert!(
        syndromes.contains(&(true, Syndrome::REMOTE_ACCESS)),
        "{syndromes:?}"
    );
    assert!(
        syndromes.contains(&(true, Syndrome::FLUSHED)),
        "{syndromes:?}"
    );
    assert!(
        syndromes.contains(&(false, Syndrome::FLUSHED)),
        "{syndromes:?}"
    );
    for qp in [&scene.left, &scene.right] {
        assert_eq!(scene.guest.state(qp), QpState::ERR);
    }
}

/// What a connection cannot carry is an error of the queue pair: RC ends, UC stops sending.
#[test]
fn a_request_that_no_connection_carries_ends_it_or_stops_its_sends() {
    for (service, state) in [
        (ServiceType::RC, QpState::ERR),
        (ServiceType::UC, QpState::SQER),
    ] {
        let mut scene = Scene::new(service);
        let into = scene.guest.page(IN);
        scene.guest.receive(&mut scene.left, into, 64);
        scene
            .guest
            .post_send(&mut scene.left, control(WqeOpcode::FMR), &[0; 48]);
        let all = scene.carry_out(WqeOpcode::SEND, &[]);
        let sends: Vec<_> = all
            .iter()
            .filter(|cqe| cqe.owner_opcode.is_send())
            .map(|cqe| syndrome(cqe).unwrap())
            .collect();
        assert_eq!(sends, [Syndrome::LOCAL_QP_OP, Syndrome::FLUSHED]);
        assert_eq!(scene.guest.state(&scene.left), state);
        let flushed = all.iter().filter(is_receive).count();
        assert_eq!(flushed, usize::from(state == QpState::ERR));
        scene.guest.reset_qp(&scene.left);
        scene.guest.reset_qp(&scene.right);
        assert_eq!(scene.guest.owned().qps, 0);
    }
}

/// A driver drains a queue pair by posting once more after it went to the error state.
#[test]
fn a_connected_queue_pair_in_error_drains() {
    for service in [ServiceType::RC, ServiceType::UC] {
        let mut scene = Scene::new(service);
        let into = scene.guest.page(IN);
        scene.guest.receive(&mut scene.left, into, 64);
        scene.guest.change_state(Opcode::TO_ERR_QP, &scene.left);
        scene.guest.receive(&mut scene.left, into, 64);
        let all = scene.carry_out(WqeOpcode::SEND, &[]);
        assert_eq!(all.len(), 3);
        let flushed = |cqe: &Cqe| syndrome(cqe) == Some(Syndrome::FLUSHED);
        assert!(all.iter().all(flushed), "{all:?}");
    }
}
