//! Registrations and invalidations by work requests of a guest's queue pairs.

use hca_api::Cause;
use ib_wire::{Lid, Mtu, Psn, Qpn};
use mlx4_defs::cqe::{Cqe, CqeOpcode, ErrorCqe, Syndrome};
use mlx4_defs::mpt::{MptEntry, STATUS_FREE};
use mlx4_defs::mtt::MTT_ENTRY_SIZE;
use mlx4_defs::qp::{OptionalFields, QpContext, QpState, ServiceType};
use mlx4_defs::wqe::{
    ControlSegment, LocalInvalidateSegment, RegisterSegment, RemoteAddressSegment, WqeOpcode,
};
use mlx4_defs::{MptIndex, Pdn};

use super::super::capability::RESERVED_LKEY;
use super::queue_scene::*;
use super::regions::{create, destroy, mapped};
use super::*;

/// Where the registered pages begin, in the region's own count.
pub(super) const START: u64 = 0x7000_0000_0010;
/// Page of a page list.
const LIST: u64 = 30;
/// Page of memory that both sides use.
pub(super) const SHARED: u64 = 31;

/// A guest with two queue pairs of its kernel that are connected to each other.
pub(super) struct Scene {
    pub(super) guest: Guest,
    /// Completion queue and queue pair of either side.
    sides: [(DriverCq, DriverQp); 2],
    pub(super) index: u32,
    entry: MptEntry,
}

/// The rights of a registration: all.
pub(super) fn segment(key: u32, len: u64, list: u64) -> RegisterSegment {
    let mut segment = RegisterSegment {
        key: U32::new(key),
        page_list: U64::new(list),
        start: U64::new(START),
        length: U64::new(len),
        log_page_size: U32::new(12),
        ..RegisterSegment::default()
    };
    segment.set_local_read(true);
    segment.set_local_write(true);
    segment.set_remote_read(true);
    segment.set_remote_write(true);
    segment.set_atomic(true);
    segment
}

fn quiet(opcode: WqeOpcode) -> ControlSegment {
    let mut control = control(opcode);
    control.set_completion(0);
    control
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::with(|_| (), |_| ())
    }

    /// As [`Scene::new`], with other contexts of the queue pairs and another entry of the region.
    pub(super) fn with(change: impl Fn(&mut QpContext), spoil: impl FnOnce(&mut MptEntry)) -> Self {
        let mut guest = Guest::online();
        let mut sides = [10_u64, 20].map(|page| {
            let cq = guest.make_cq(page);
            let qpn = guest.reserve_qpn();
            let qp = guest.prepare_qp(page + 2, qpn);
            (cq, qp)
        });
        let numbers = [sides[0].1.qpn, sides[1].1.qpn];
        for ((cq, qp), peer) in sides.iter_mut().zip([numbers[1], numbers[0]]) {
            let mut context = guest.context(qp, cq);
            context.set_service_type(ServiceType::RC);
            context.set_fast_register(true);
            context.set_mtu(Mtu::MTU_1024);
            context.remote_qpn = Qpn::from_low_bits(peer);
            (context.next_send_psn, context.next_receive_psn) =
                (Psn::from_low_bits(7), Psn::from_low_bits(7));
            context.primary_path.dlid = Lid::new(LID);
            context.set_remote_read(true);
            context.set_remote_write(true);
            context.set_remote_atomic(true);
            context.set_log_initiator_depth(2);
            context.set_log_responder_depth(2);
            context.set_retry_count(7);
            context.set_rnr_retry(7);
            change(&mut context);
            for (opcode, optional) in RELIABLE {
                guest.ok_transition(opcode, qp.qpn, &context, optional());
            }
        }
        let (index, mut entry) = mapped(&mut guest);
        let first = guest.map_pages(40, 2);
        entry.set_status(STATUS_FREE);
        entry.set_fast_register(true);
        entry.set_remote_access(true);
        entry.set_enable_invalidate(3);
        entry.set_local_write(false);
        entry.set_pd(Pdn(3));
        entry.mtt_addr.set(first * MTT_ENTRY_SIZE);
        entry.mtt_size.set(4);
        spoil(&mut entry);
        assert_eq!(create(&mut guest, index, &entry), Status::OK);
        Self {
            guest,
            sides,
            index,
            entry,
        }
    }

    pub(super) fn key(&self, variant: u32) -> u32 {
        self.index << 8 | variant
    }

    pub(super) fn post(&mut self, side: usize, control: ControlSegment, segments: &[u8]) {
        let qp = &mut self.sides[side].1;
        self.guest.post_send(qp, control, segments);
    }

    /// Rings both doorbells, and takes the completions of both sides.
    pub(super) fn run(&mut self) -> [Vec<Cqe>; 2] {
        for (_, qp) in &self.sides {
            self.guest.ring(qp);
        }
        self.guest.settle();
        [0, 1].map(|side| self.guest.poll_all(&mut self.sides[side].0))
    }

    /// Writes a page list, whose pages are the guest's by number.
    pub(super) fn list(&mut self, pages: &[u64]) -> u64 {
        let at = self.guest.page(LIST);
        for (offset, page) in (0..).step_by(8).zip(pages) {
            let entry = MttEntry::new(self.guest.page(*page));
            self.guest.write(at + offset, entry.as_bytes());
        }
        at
    }

    /// Writes 8 bytes from side 1 by a key. Returns the status.
    pub(super) fn write_remotely(&mut self, key: u32, offset: u64) -> Option<Syndrome> {
        let remote = RemoteAddressSegment {
            address: U64::new(START + offset),
            rkey: U32::new(key),
            ..RemoteAddressSegment::default()
        };
        let from = data(self.guest.page(SHARED), 8, RESERVED_LKEY);
        let segments = [remote.as_bytes(), from.as_bytes()].concat();
        self.post(1, control(WqeOpcode::RDMA_WRITE), &segments);
        let [_, done] = self.run();
        assert_eq!(done.len(), 1, "{done:?}");
        syndrome(&done[0])
    }

    fn state(&mut self, side: usize) -> QpState {
        let (_, qp) = &self.sides[side];
        self.guest.state(qp)
    }

    /// Takes everything back; nothing is left at the adapter.
    pub(super) fn end(mut self) {
        for (_, qp) in &self.sides {
            self.guest.reset_qp(qp);
        }
        assert_eq!(destroy(&mut self.guest, self.index), Status::OK);
        let input = |modifier| Input {
            modifier,
            variant: 1,
            ..Input::default()
        };
        for (cq, _) in &self.sides {
            self.guest.ok(Opcode::HW2SW_CQ, input(cq.cqn));
        }
        let owned = self.guest.owned();
        assert_eq!((owned.mrs, owned.qps, owned.pds), (0, 0, 0));
    }
}

/// The transitions of a reliable connection, with the fields that the driver gives.
const RELIABLE: [(Opcode, fn() -> u32); 3] = [
    (Opcode::RST2INIT_QP, || {
        let mut given = OptionalFields::default();
        given.set_pkey_index(true);
        given.set_remote_read(true);
        given.set_remote_write(true);
        given.set_remote_atomic(true);
        given.word.get()
    }),
    (Opcode::INIT2RTR_QP, || {
        let mut given = OptionalFields::default();
        given.set_primary_path(true);
        given.set_responder_depth(true);
        given.set_rnr_timer(true);
        given.word.get()
    }),
    (Opcode::RTR2RTS_QP, || {
        let mut given = OptionalFields::default();
        given.set_initiator_depth(true);
        given.set_retry_count(true);
        given.set_rnr_retry(true);
        given.set_ack_timeout(true);
        given.word.get()
    }),
];

/// Returns the opcode of a send completion and the count of its request.
pub(super) fn names(done: &[Cqe]) -> Vec<(u8, u16)> {
    let name = |cqe: &Cqe| (cqe.owner_opcode.opcode(), cqe.wqe_index.get());
    done.iter().map(name).collect()
}

#[test]
fn t069_t070_a_kernels_queue_pair_registers_pages_and_invalidates_them_and_its_peer_writes_between()
{
    let mut scene = Scene::new();
    let list = scene.list(&[34, 32]);
    for variant in [1, 2, 2] {
        let key = scene.key(variant);
        let register = segment(key, 8000, list);
        scene.post(0, control(WqeOpcode::FMR), register.as_bytes());
        let [done, _] = scene.run();
        let count = done[0].wqe_index.get();
        assert_eq!(names(&done), [(WqeOpcode::FMR.get(), count)]);
        let (first, second) = (scene.guest.page(34), scene.guest.page(32));
        let shared = scene.guest.page(SHARED);
        scene
            .guest
            .write(shared, &[0xa0 + u8::try_from(variant).unwrap(); 8]);
        assert_eq!(scene.write_remotely(key, 0), None);
        assert_eq!(scene.write_remotely(key, 4080 - 4), None);
        let stored: [u8; 8] = scene.guest.read(shared);
        assert_eq!(scene.guest.read::<8>(first + 16), stored);
        assert_eq!(scene.guest.read::<4>(first + 4092), stored[..4]);
        assert_eq!(scene.guest.read::<4>(second), stored[4..]);
        let invalidate = LocalInvalidateSegment {
            key: U32::new(key),
            ..LocalInvalidateSegment::default()
        };
        scene.post(0, quiet(WqeOpcode::LOCAL_INVAL), invalidate.as_bytes());
        assert_eq!(
            scene.run(),
            [vec![], vec![]],
            "a success that is not signalled"
        );
        scene.post(0, control(WqeOpcode::LOCAL_INVAL), invalidate.as_bytes());
        let [done, _] = scene.run();
        assert_eq!(names(&done), [(WqeOpcode::LOCAL_INVAL.get(), count + 2)]);
    }
    // The connection carried nothing of the requests: it fails by the peer's write alone.
    let key = scene.key(2);
    assert_eq!(scene.write_remotely(key, 0), Some(Syndrome::REMOTE_ACCESS));
    scene.end();
}

#[test]
fn t069_a_chain_in_one_post_registers_before_the_request_that_uses_the_key() {
    let mut scene = Scene::new();
    let list = scene.list(&[34, 32]);
    let key = scene.key(0x55);
    let (first, shared) = (scene.guest.page(34), scene.guest.page(SHARED));
    scene.guest.write(first + 16, &[7; 8]);
    scene.sides[1].1.receives = 0;
    let receive = &mut scene.sides[1].1;
    scene.guest.receive(receive, shared, 64);
    let register = segment(key, 8000, list);
    scene.post(0, quiet(WqeOpcode::FMR), register.as_bytes());
    let from = data(START, 8, key);
    scene.post(0, control(WqeOpcode::SEND), from.as_bytes());
    let invalidate = LocalInvalidateSegment {
        key: U32::new(key),
        ..LocalInvalidateSegment::default()
    };
    scene.post(0, quiet(WqeOpcode::LOCAL_INVAL), invalidate.as_bytes());
    scene.post(0, quiet(WqeOpcode::FMR), register.as_bytes());
    let [sent, received] = scene.run();
    assert_eq!(names(&sent), [(WqeOpcode::SEND.get(), 1)]);
    assert_eq!(received.len(), 1);
    assert_eq!(scene.guest.read::<8>(shared), [7; 8]);
    assert_eq!(scene.write_remotely(key, 0), None);
    scene.end();
}

#[test]
fn t071_a_send_invalidates_the_key_of_its_receiver() {
    let mut scene = Scene::new();
    let list = scene.list(&[34, 32]);
    let key = scene.key(3);
    scene.post(0, quiet(WqeOpcode::FMR), segment(key, 64, list).as_bytes());
    let shared = scene.guest.page(SHARED);
    scene.guest.receive(&mut scene.sides[0].1, shared, 64);
    assert_eq!(scene.write_remotely(key, 0), None);
    let mut control = control(WqeOpcode::SEND_INVAL);
    control.immediate = key.to_be_bytes();
    scene.post(1, control, data(shared, 8, RESERVED_LKEY).as_bytes());
    let [received, sent] = scene.run();
    assert_eq!(names(&sent), [(WqeOpcode::SEND_INVAL.get(), 1)]);
    assert_eq!(received.len(), 1);
    let opcode = received[0].owner_opcode.opcode();
    assert_eq!(opcode, CqeOpcode::RECV_SEND_INVAL.get());
    assert_eq!(received[0].immediate, key.to_be_bytes());
    assert_eq!(scene.write_remotely(key, 0), Some(Syndrome::REMOTE_ACCESS));
    scene.end();
}

#[test]
fn t071_a_region_whose_entry_does_not_allow_it_is_not_invalidated_by_a_peer() {
    let mut scene = Scene::with(|_| (), |entry| entry.set_enable_invalidate(0));
    let list = scene.list(&[34]);
    let key = scene.key(3);
    scene.post(0, quiet(WqeOpcode::FMR), segment(key, 64, list).as_bytes());
    let shared = scene.guest.page(SHARED);
    scene.guest.receive(&mut scene.sides[0].1, shared, 64);
    assert_eq!(scene.write_remotely(key, 0), None);
    let mut control = control(WqeOpcode::SEND_INVAL);
    control.immediate = key.to_be_bytes();
    scene.post(1, control, data(shared, 8, RESERVED_LKEY).as_bytes());
    let [received, sent] = scene.run();
    for (done, expected, cause) in [
        (&received[0], Syndrome::LOCAL_ACCESS, Cause::NoRight),
        (&sent[0], Syndrome::REMOTE_ACCESS, Cause::Refused),
    ] {
        assert_eq!(syndrome(done), Some(expected));
        let error: ErrorCqe = zerocopy::transmute!(*done);
        assert_eq!(error.vendor_syndrome, cause as u8);
    }
    scene.end();
}

/// Posts a request that is refused, and another behind it.
fn refused(scene: Scene, opcode: WqeOpcode, segments: &[u8], expected: Syndrome) {
    let mut scene = scene;
    scene.post(0, quiet(opcode), segments);
    scene.post(0, quiet(WqeOpcode::SEND), &[]);
    let [done, _] = scene.run();
    let syndromes: Vec<_> = done.iter().map(syndrome).collect();
    assert_eq!(syndromes, [Some(expected), Some(Syndrome::FLUSHED)]);
    assert_eq!(scene.state(0), QpState::ERR);
    scene.end();
}

#[test]
fn t069_a_queue_pair_without_the_right_cannot_register_and_one_with_it_only_what_fits() {
    type Spoil = fn(&Scene, &mut RegisterSegment);

    let user = |context: &mut QpContext| context.set_fast_register(false);
    let mut scene = Scene::with(user, |_| ());
    let list = scene.list(&[34, 32]);
    let register = segment(scene.key(1), 64, list);
    refused(
        scene,
        WqeOpcode::FMR,
        register.as_bytes(),
        Syndrome::LOCAL_QP_OP,
    );
    let spoils: [Spoil; 12] = [
        |_, segment| segment.page_list.set(1 << 60),
        |_, segment| segment.page_list.set(u64::MAX - 7),
        // The entry behind the two is no page.
        |_, segment| segment.length.set(2 * 4096),
        |_, segment| segment.length.set(5 * 4096),
        |_, segment| segment.length.set(0),
        |_, segment| segment.length.set(u64::MAX),
        |_, segment| segment.start.set(u64::MAX - 0x10),
        |_, segment| segment.log_page_size.set(11),
        |_, segment| segment.log_page_size.set(0x10c),
        |_, segment| segment.set_local_write(false),
        |scene, segment| segment.key.set(scene.key(0) + 0x100),
        // The key of the whole memory, as the adapter has it.
        |_, segment| segment.key.set(0x8000_0300),
    ];
    for spoil in spoils {
        let mut scene = Scene::new();
        let list = scene.list(&[34, 32]);
        let mut register = segment(scene.key(1), 64, list);
        spoil(&scene, &mut register);
        refused(
            scene,
            WqeOpcode::FMR,
            register.as_bytes(),
            Syndrome::MW_BIND,
        );
    }
}

#[test]
fn t069_regions_of_other_domains_and_without_remote_rights_are_not_registered() {
    let spoils: [fn(&mut MptEntry); 2] = [
        |entry| entry.set_pd(Pdn(4)),
        |entry| entry.set_remote_access(false),
    ];
    for spoil in spoils {
        let mut scene = Scene::with(|_| (), spoil);
        let list = scene.list(&[34]);
        let register = segment(scene.key(1), 64, list);
        refused(
            scene,
            WqeOpcode::FMR,
            register.as_bytes(),
            Syndrome::MW_BIND,
        );
    }
}

#[test]
fn t069_a_region_is_not_registered_twice_and_the_driver_takes_a_valid_one_back() {
    let mut scene = Scene::new();
    let list = scene.list(&[34]);
    let register = segment(scene.key(1), 64, list);
    scene.post(0, quiet(WqeOpcode::FMR), register.as_bytes());
    refused(
        scene,
        WqeOpcode::FMR,
        register.as_bytes(),
        Syndrome::MW_BIND,
    );
}

#[test]
fn t070_only_the_guests_regions_for_registration_are_invalidated() {
    for key in [0x8000_0300, RESERVED_LKEY, 0xffff_ff00, 0] {
        let invalidate = LocalInvalidateSegment {
            key: U32::new(key),
            ..LocalInvalidateSegment::default()
        };
        let scene = Scene::new();
        refused(
            scene,
            WqeOpcode::LOCAL_INVAL,
            invalidate.as_bytes(),
            Syndrome::MW_BIND,
        );
    }
}

#[test]
fn an_entry_that_was_registered_reads_back_as_the_driver_wrote_it() {
    let mut scene = Scene::new();
    let list = scene.list(&[34]);
    let register = segment(scene.key(9), 64, list);
    scene.post(0, control(WqeOpcode::FMR), register.as_bytes());
    let [done, _] = scene.run();
    assert_eq!(names(&done), [(WqeOpcode::FMR.get(), 0)]);
    assert_eq!(destroy(&mut scene.guest, scene.index), Status::OK);
    let query = Input {
        modifier: scene.index,
        ..Input::default()
    };
    scene.guest.ok(Opcode::QUERY_MPT, query);
    let at = scene.guest.outbox();
    assert_eq!(scene.guest.read_layout::<MptEntry>(at), scene.entry);
    let index = MptIndex::from_low_bits(scene.index);
    assert_eq!(scene.entry.memory_key() >> 8, index.get());
    let key = scene.key(9);
    assert_eq!(scene.write_remotely(key, 0), Some(Syndrome::REMOTE_ACCESS));
    let (index, entry) = (scene.index, scene.entry);
    assert_eq!(create(&mut scene.guest, index, &entry), Status::OK);
    scene.end();
}
