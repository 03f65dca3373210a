//! Fast registration, local invalidates and sends that invalidate.

use hca_api::{FastRegister, LKey, PageList};

use super::*;

const PAGE: u64 = 4096;
/// Where the regions begin, in their own count: in the middle of a page.
const START: u64 = 0x7000_0000_0010;
pub(super) const REFUSED: CompletionStatus = CompletionStatus::MwBind;
pub(super) const OK: CompletionStatus = CompletionStatus::Success;

/// Rights that a registration may give to the regions of these tests.
fn rights() -> AccessFlags {
    everything() | AccessFlags::REMOTE_INVALIDATE
}

impl End {
    /// Returns the address of a page of the end's memory.
    const fn page(&self, index: u64) -> u64 {
        self.memory.addr + index * PAGE
    }
}

/// Returns an entry of a gather list in a region that begins at [`START`].
const fn local(key: RKey, offset: u64, len: u32) -> Sge {
    Sge {
        addr: START + offset,
        len,
        lkey: LKey(key.0),
    }
}

const fn remote(key: RKey, offset: u64) -> RemoteAddress {
    RemoteAddress {
        addr: START + offset,
        rkey: key,
    }
}

/// Returns the key with another low byte.
pub(super) const fn variant(RKey(key): RKey, low: u32) -> RKey {
    RKey(key & !0xff | low)
}

fn registration(key: RKey, len: u64, pages: PageList<'_>) -> FastRegister<'_> {
    FastRegister {
        key,
        iova: START,
        len,
        pages,
        page_shift: 12,
        access: everything(),
    }
}

impl Rig {
    /// Makes a region for fast registration of an end.
    fn empty_region(&mut self, end: &End, max_pages: u32) -> RKey {
        self.region_with(end, max_pages, rights())
    }

    pub(super) fn region_with(&mut self, end: &End, max_pages: u32, access: AccessFlags) -> RKey {
        let spec = MrSpec {
            pd: end.pd,
            kind: MrKind::FastRegister { max_pages },
            access,
            key: None,
        };
        self.owner(end).register_mr(&spec).unwrap().rkey
    }

    pub(super) fn post_local(&mut self, end: &End, wr_id: u64, op: SendOp<'_>) {
        let request = SendRequest {
            wr_id,
            op,
            payload: Payload::Gather(&[]),
            flags: SendFlags::SIGNALED,
            destination: None,
        };
        self.owner(end).post_send(end.qp, &request).unwrap();
    }

    fn register(&mut self, end: &End, wr_id: u64, given: FastRegister<'_>) {
        self.post_local(end, wr_id, SendOp::FastRegister(given));
    }

    pub(super) fn invalidate(&mut self, end: &End, wr_id: u64, key: RKey) {
        self.post_local(end, wr_id, SendOp::LocalInvalidate(key));
    }

    /// Returns the only completion's status.
    pub(super) fn outcome(&mut self, end: &End) -> CompletionStatus {
        self.run(10);
        let done = self.outcomes(end);
        assert_eq!(done.len(), 1, "{done:?}");
        done[0].1
    }

    /// Writes 8 bytes into a region that begins at [`START`], as [`Self::write_anew`].
    fn probe(&mut self, owner: &End, key: RKey, offset: u64) -> CompletionStatus {
        self.write_anew(owner, remote(key, offset))
    }

    /// Writes 8 bytes from a peer, over a connection of its own. Returns the status at the peer.
    pub(super) fn write_anew(&mut self, owner: &End, to: RemoteAddress) -> CompletionStatus {
        let [mut near, far] = [self.end(owner.host, QpKind::Rc), self.end(1, QpKind::Rc)];
        let spec = spec(QpKind::Rc, owner.pd, near.cq);
        let (qp, numbers) = self.owner(owner).create_qp(spec).unwrap();
        (near.qp, near.qpn) = (qp, numbers.external);
        self.modify(&near, &init()).unwrap();
        self.join(&[near, far], QpKind::Rc);
        self.post(&far, 1, SendOp::RdmaWrite(to), far.sge(0, 8))
            .unwrap();
        self.outcome(&far)
    }
}

#[test]
fn t069_a_registration_opens_its_pages_in_their_order_before_the_next_request_starts() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 4);
    let pages = [a.page(9), a.page(3), a.page(5)];
    let bytes = pattern(9000, 1);
    // The pages in the order of the region; its first byte is 16 bytes into the first page.
    rig.write(&a, 9 * 4096 + 16, &bytes[..4080]);
    rig.write(&a, 3 * 4096, &bytes[4080..8176]);
    rig.write(&a, 5 * 4096, &bytes[8176..]);
    rig.register(&a, 1, registration(key, 9000, PageList::Given(&pages)));
    rig.post(&a, 2, SendOp::RdmaWrite(b.remote(64)), local(key, 0, 9000))
        .unwrap();
    rig.run(10);
    let done = rig.done(&a);
    let ops: Vec<_> = done
        .iter()
        .map(|done| (done.wr_id, done.status, done.op))
        .collect();
    let expected = [
        (1, OK, CompletionOp::FastRegister),
        (2, OK, CompletionOp::RdmaWrite),
    ];
    assert_eq!(ops, expected);
    assert_eq!(rig.read(&b, 64, 9000), bytes);
    // And the way back.
    rig.write(&b, 64, &pattern(9000, 2));
    rig.post(&b, 3, SendOp::RdmaWrite(remote(key, 0)), b.sge(64, 9000))
        .unwrap();
    assert_eq!(rig.outcome(&b), OK);
    assert_eq!(rig.read(&a, 9 * 4096 + 16, 4080), pattern(9000, 2)[..4080]);
    assert_eq!(rig.read(&a, 3 * 4096, 4096), pattern(9000, 2)[4080..8176]);
    assert_eq!(rig.read(&a, 5 * 4096, 824), pattern(9000, 2)[8176..]);
    // One byte more is outside.
    assert_eq!(rig.probe(&a, key, 9000 - 7), CompletionStatus::RemoteAccess);
}

#[test]
fn t057_an_empty_region_opens_nothing() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 4);
    assert_eq!(rig.probe(&a, key, 0), CompletionStatus::RemoteAccess);
    for addr in [0, START] {
        let sge = Sge {
            addr,
            ..local(key, 0, 1)
        };
        let [a, b] = rig.pair(QpKind::Rc);
        rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), sge)
            .unwrap();
        assert_eq!(rig.outcome(&a), CompletionStatus::LocalProtection);
    }
    assert_eq!(rig.state(&b), QpState::ReadyToSend);
}

#[test]
fn t069_the_low_byte_of_the_key_is_the_consumers_and_only_the_latest_opens_the_region() {
    let mut rig = Rig::new();
    let [a, _] = rig.pair(QpKind::Rc);
    let first = rig.empty_region(&a, 4);
    let pages = [a.page(1)];
    let mut key = first;
    for round in 0..4 {
        let next = variant(first, (first.0 + round) & 0xff);
        rig.register(&a, 1, registration(next, 100, PageList::Given(&pages)));
        assert_eq!(rig.outcome(&a), OK);
        assert_eq!(rig.probe(&a, next, 0), OK);
        if next != key {
            assert_eq!(rig.probe(&a, key, 0), CompletionStatus::RemoteAccess);
        }
        key = next;
        rig.invalidate(&a, 2, key);
        assert_eq!(rig.outcome(&a), OK);
    }
}

/// A registration that is refused, whatever else holds.
fn refused(name: &str, change: impl FnOnce(&mut Rig, &End, &mut FastRegister<'static>)) {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 4);
    let list = a.page(60);
    for (index, page) in (0..).zip([1, 2, 3, 4]) {
        let entry = (a.page(page) | 1).to_be_bytes();
        rig.write(&a, 60 * 4096 + 8 * index, &entry);
    }
    let mut given = registration(key, 4 * PAGE - 16, PageList::InMemory(list));
    change(&mut rig, &a, &mut given);
    rig.register(&a, 1, given);
    rig.post(&a, 2, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
        .unwrap();
    rig.run(10);
    let done = rig.done(&a);
    assert_eq!(done[0].op, CompletionOp::FastRegister, "{name}");
    let statuses: Vec<_> = done.iter().map(|done| done.status).collect();
    assert_eq!(statuses, [REFUSED, CompletionStatus::Flushed], "{name}");
    assert_eq!(rig.state(&a), QpState::Error, "{name}");
    assert_eq!(
        rig.probe(&a, key, 0),
        CompletionStatus::RemoteAccess,
        "{name}"
    );
}

#[test]
fn t058_t069_a_registration_that_does_not_fit_its_region_is_a_memory_management_error() {
    refused("a page more than fits", |_, _, given| given.len += 1);
    refused("no byte", |_, _, given| given.len = 0);
    refused("all bytes", |_, _, given| given.len = u64::MAX);
    refused("more than any region", |_, _, given| {
        given.len = (1 << 48) + 1
    });
    refused("an end beyond all addresses", |_, _, given| {
        given.iova = u64::MAX - 0xfef;
    });
    refused("an end at the end of all addresses", |_, _, given| {
        (given.iova, given.len) = (u64::MAX - 8, 10);
    });
    for shift in [0, 11, 33, 63, 64, 255] {
        refused("pages of no size", |_, _, given| given.page_shift = shift);
    }
    refused("another index", |_, _, given| {
        given.key = RKey(given.key.0 ^ 0x100);
    });
    refused("remote writes without local ones", |_, _, given| {
        given.access = AccessFlags::REMOTE_WRITE;
    });
    refused("remote atomics without local writes", |_, _, given| {
        given.access = AccessFlags::REMOTE_ATOMIC | AccessFlags::REMOTE_READ;
    });
    refused("windows", |_, _, given| {
        given.access |= AccessFlags::MW_BIND;
    });
    refused("a region of another kind", |_, a, given| {
        given.key = a.keys.rkey;
    });
    refused("a region of another domain", |rig, a, given| {
        let other = rig.end(a.host, QpKind::Rc);
        given.key = rig.empty_region(&other, 4);
    });
    refused("a region of another function", |rig, a, given| {
        let vf = FunctionId(1);
        rig.add_vf(a.host, vf);
        let other = rig.end_of(a.host, vf, QpKind::Rc);
        given.key = rig.empty_region(&other, 4);
    });
}

#[test]
fn t069_a_page_list_that_is_no_list_of_pages_is_a_memory_management_error() {
    let list = |addr| PageList::InMemory(addr);
    refused("nowhere", |_, _, given| given.pages = list(1 << 60));
    refused("at the end of all addresses", |_, _, given| {
        given.pages = list(u64::MAX - 15);
    });
    refused("across the end of the memory", |_, a, given| {
        given.pages = list(a.memory.addr + a.memory.len as u64 - 24);
    });
    refused("an entry that names no page", |rig, a, _| {
        let entry = a.page(3).to_be_bytes();
        rig.write(a, 60 * 4096 + 16, &entry);
    });
    refused("no list", |_, _, given| given.pages = PageList::Given(&[]));
    refused("a list that is too short", |_, _, given| {
        given.pages = PageList::Given(&[PAGE, PAGE, PAGE]);
    });
    refused("a list that is too long", |_, _, given| {
        given.pages = PageList::Given(&[PAGE; 5]);
    });
    refused("a page that does not begin at one", |_, _, given| {
        given.pages = PageList::Given(&[PAGE, PAGE, PAGE + 8, PAGE]);
    });
}

#[test]
fn a_list_longer_than_any_region_is_not_kept() {
    let mut rig = Rig::new();
    let [a, _] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 512);
    let most = [PAGE; 513];
    let given = registration(key, PAGE, PageList::Given(&most));
    let request = SendRequest {
        wr_id: 1,
        op: SendOp::FastRegister(given),
        payload: Payload::Gather(&[]),
        flags: SendFlags::SIGNALED,
        destination: None,
    };
    let posted = rig.owner(&a).post_send(a.qp, &request);
    assert_eq!(posted, Err(HcaError::InvalidParameter));
}

#[test]
fn t069_a_page_list_in_memory_is_read_when_the_registration_has_its_turn_and_not_again() {
    let mut rig = Rig::new();
    let [a, _] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 1);
    let list = PageList::InMemory(a.page(60));
    rig.register(&a, 1, registration(key, 64, list));
    // Bits below the page size mean nothing but that it is there.
    rig.write(&a, 60 * 4096, &(a.page(7) | 0xff7).to_be_bytes());
    assert_eq!(rig.outcome(&a), OK);
    rig.write(&a, 60 * 4096, &[0; 8]);
    rig.write(&a, 7 * 4096 + 16, &[1; 16]);
    assert_eq!(rig.probe(&a, key, 4), OK);
    let mut expected = [1; 16];
    expected[4..12].fill(0);
    assert_eq!(rig.read(&a, 7 * 4096 + 16, 16), expected);
}

#[test]
fn t069_a_list_may_name_a_page_again_and_pages_that_are_no_memory_fault_when_they_are_used() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 4);
    let pages = [a.page(2), a.page(2), 1 << 60, u64::MAX - 4095];
    rig.register(
        &a,
        1,
        registration(key, 4 * PAGE - 16, PageList::Given(&pages)),
    );
    rig.write(&a, 2 * 4096, &pattern(4096, 3));
    rig.post(
        &a,
        2,
        SendOp::RdmaWrite(b.remote(0)),
        local(key, 4080, 4096),
    )
    .unwrap();
    rig.run(10);
    assert_eq!(rig.outcomes(&a), [(1, OK), (2, OK)]);
    assert_eq!(rig.read(&b, 0, 4096), pattern(4096, 3));
    for page in [2, 3] {
        let end = rig.probe(&a, key, page * PAGE);
        assert_eq!(end, CompletionStatus::RemoteAccess);
    }
    let sge = local(key, 2 * PAGE, 1);
    rig.post(&a, 3, SendOp::RdmaWrite(b.remote(0)), sge)
        .unwrap();
    assert_eq!(rig.outcome(&a), CompletionStatus::LocalProtection);
}

#[test]
fn t069_a_region_that_is_not_empty_is_not_registered_anew() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 4);
    let [first, second] = [[a.page(1)], [a.page(2)]];
    rig.register(&a, 1, registration(key, 64, PageList::Given(&first)));
    for wr_id in 2..5 {
        let next = variant(key, u32::try_from(wr_id).unwrap());
        rig.register(&a, wr_id, registration(next, 64, PageList::Given(&second)));
    }
    rig.run(10);
    let flushed = CompletionStatus::Flushed;
    let expected = [(1, OK), (2, REFUSED), (3, flushed), (4, flushed)];
    assert_eq!(rig.outcomes(&a), expected);
    assert_eq!(rig.state(&a), QpState::Error);
    // The first registration stands, under its key.
    rig.write(&a, 4096 + 16, &[9; 8]);
    rig.write(&a, 2 * 4096 + 16, &[9; 8]);
    assert_eq!(rig.probe(&a, key, 0), OK);
    assert_eq!(rig.read(&a, 4096 + 16, 8), [0; 8]);
    assert_eq!(rig.read(&a, 2 * 4096 + 16, 8), [9; 8]);
    assert_eq!(rig.state(&b), QpState::ReadyToSend);
}

#[test]
fn t058_a_registration_gives_no_more_rights_than_the_region_may_have() {
    let mut rig = Rig::new();
    let [a, _] = rig.pair(QpKind::Rc);
    let key = rig.region_with(&a, 4, AccessFlags::LOCAL_WRITE);
    let pages = [a.page(1)];
    let own = FastRegister {
        access: AccessFlags::LOCAL_WRITE,
        ..registration(key, 64, PageList::Given(&pages))
    };
    rig.register(&a, 1, own);
    assert_eq!(rig.outcome(&a), OK);
    assert_eq!(rig.probe(&a, key, 0), CompletionStatus::RemoteAccess);
    rig.invalidate(&a, 2, key);
    assert_eq!(rig.outcome(&a), OK);
    let opened = FastRegister {
        access: AccessFlags::REMOTE_READ,
        ..own
    };
    rig.register(&a, 3, opened);
    assert_eq!(rig.outcome(&a), REFUSED);
}

#[test]
fn t070_an_invalidated_region_opens_nothing_and_can_be_registered_behind_it_in_one_chain() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 4);
    let mut wr_id = 0;
    let mut quiet = |rig: &mut Rig, op: SendOp<'_>| {
        wr_id += 1;
        let request = SendRequest {
            wr_id,
            op,
            payload: Payload::Gather(&[]),
            flags: SendFlags::empty(),
            destination: None,
        };
        rig.owner(&a).post_send(a.qp, &request).unwrap();
    };
    for round in 0..40_u32 {
        let pages = [a.page(u64::from(round))];
        let key = variant(key, round);
        let list = PageList::Given(&pages);
        quiet(&mut rig, SendOp::FastRegister(registration(key, 64, list)));
        rig.write(&a, round as usize * 4096 + 16, &[1; 8]);
        let (to, sge) = (b.remote(8 * round as usize), local(key, 0, 8));
        rig.post(&a, 1000, SendOp::RdmaWrite(to), sge).unwrap();
        quiet(&mut rig, SendOp::LocalInvalidate(key));
    }
    rig.run(100);
    assert_eq!(
        rig.outcomes(&a),
        [(1000, OK); 40],
        "successes that are not signalled are silent"
    );
    assert_eq!(rig.read(&b, 0, 320), [1; 320]);
    let last = variant(key, 39);
    assert_eq!(rig.probe(&a, last, 0), CompletionStatus::RemoteAccess);
    // It is empty, and its key the right one.
    rig.invalidate(&a, 1, last);
    rig.invalidate(&a, 2, last);
    rig.run(10);
    let done: Vec<_> = rig
        .done(&a)
        .iter()
        .map(|done| (done.op, done.status))
        .collect();
    assert_eq!(done, [(CompletionOp::LocalInvalidate, OK); 2]);
}

#[test]
fn t070_keys_that_may_not_be_invalidated_are_a_memory_management_error_and_stay_valid() {
    type Choose = fn(&mut Rig, &End, RKey) -> RKey;

    let choices: [(&str, Choose); 6] = [
        ("another variant", |_, _, key| {
            variant(key, (key.0 + 1) & 0xff)
        }),
        ("another index", |_, _, key| RKey(key.0 ^ 0x100)),
        ("a region of another kind", |_, a, _| a.keys.rkey),
        ("a region of another domain", |rig, a, _| {
            let other = rig.end(a.host, QpKind::Rc);
            rig.empty_region(&other, 4)
        }),
        ("a region of another function", |rig, a, _| {
            rig.add_vf(a.host, FunctionId(1));
            let other = rig.end_of(a.host, FunctionId(1), QpKind::Rc);
            rig.empty_region(&other, 4)
        }),
        ("a window", |rig, a, _| {
            let window = rig.hca(a.host).alloc_mw(a.pd, hca_api::MwType::Type1);
            window.unwrap().rkey
        }),
    ];
    for (name, choose) in choices {
        let mut rig = Rig::new();
        let [a, _] = rig.pair(QpKind::Rc);
        let key = rig.empty_region(&a, 4);
        let pages = [a.page(1)];
        rig.register(&a, 1, registration(key, 64, PageList::Given(&pages)));
        let other = choose(&mut rig, &a, key);
        rig.invalidate(&a, 2, other);
        rig.run(10);
        assert_eq!(rig.outcomes(&a), [(1, OK), (2, REFUSED)], "{name}");
        assert_eq!(rig.state(&a), QpState::Error, "{name}");
        assert_eq!(rig.probe(&a, key, 0), OK, "{name}");
    }
}

#[test]
fn t036_t070_a_peers_write_under_way_ends_at_the_invalidation() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 60);
    let pages: Vec<_> = (1..60).map(|index| a.page(index)).collect();
    let len = 58 * 4096;
    rig.register(
        &a,
        1,
        registration(key, len.into(), PageList::Given(&pages)),
    );
    assert_eq!(rig.outcome(&a), OK);
    rig.write(&b, 0, &vec![7; len as usize]);
    rig.post(&b, 2, SendOp::RdmaWrite(remote(key, 0)), b.sge(0, len))
        .unwrap();
    while rig.read(&a, 4096 + 16, 1) != [7] {
        assert!(rig.fabric.poll(rig.now));
    }
    // Another queue pair of the domain invalidates: the order within its own queue says nothing about this one.
    let other = {
        let spec = spec(QpKind::Rc, a.pd, a.cq);
        let (qp, numbers) = rig.owner(&a).create_qp(spec).unwrap();
        End {
            qp,
            qpn: numbers.external,
            ..a
        }
    };
    rig.modify(&other, &init()).unwrap();
    let far = rig.end(1, QpKind::Rc);
    rig.join(&[other, far], QpKind::Rc);
    rig.invalidate(&other, 3, key);
    rig.register(
        &other,
        4,
        registration(key, len.into(), PageList::Given(&pages)),
    );
    rig.run(10);
    assert_eq!(rig.outcomes(&b), [(2, CompletionStatus::RemoteAccess)]);
    assert_eq!(rig.read(&a, 59 * 4096, 1), [0]);
}

#[test]
fn t071_a_send_invalidates_a_region_of_its_receiver_and_the_receive_names_the_key() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 4);
    let pages = [a.page(1)];
    for round in 0..3 {
        let key = variant(key, round);
        rig.register(&a, 1, registration(key, 64, PageList::Given(&pages)));
        assert_eq!(rig.outcome(&a), OK);
        rig.receive(&a, 2, a.sge(0, 64));
        rig.post(&b, 3, SendOp::RdmaWrite(remote(key, 0)), b.sge(0, 8))
            .unwrap();
        rig.post(&b, 4, SendOp::SendInvalidate(key), b.sge(0, 8))
            .unwrap();
        rig.run(10);
        let sent: Vec<_> = rig
            .done(&b)
            .iter()
            .map(|done| (done.wr_id, done.op))
            .collect();
        assert_eq!(
            sent,
            [(3, CompletionOp::RdmaWrite), (4, CompletionOp::Send)]
        );
        let received = rig.done(&a);
        assert_eq!(received.len(), 1);
        assert_eq!(
            (received[0].status, received[0].op),
            (OK, CompletionOp::Recv)
        );
        assert_eq!(received[0].flags, CompletionFlags::INVALIDATED);
        assert_eq!(received[0].immediate, key.0);
        assert_eq!(rig.probe(&a, key, 0), CompletionStatus::RemoteAccess);
    }
}

#[test]
fn t038_t071_keys_that_a_peer_may_not_invalidate_are_refused_and_stay_valid() {
    type Choose = fn(&mut Rig, &End, RKey) -> RKey;

    let choices: [(&str, Choose); 5] = [
        ("another variant", |_, _, key| {
            variant(key, (key.0 + 1) & 0xff)
        }),
        ("a region of another kind", |_, a, _| a.keys.rkey),
        ("a region without the right", |rig, a, _| {
            rig.region_with(a, 4, everything())
        }),
        ("a region of another domain", |rig, a, _| {
            let other = rig.end(a.host, QpKind::Rc);
            rig.empty_region(&other, 4)
        }),
        ("a region of another function", |rig, a, _| {
            rig.add_vf(a.host, FunctionId(1));
            let other = rig.end_of(a.host, FunctionId(1), QpKind::Rc);
            rig.empty_region(&other, 4)
        }),
    ];
    for (name, choose) in choices {
        let mut rig = Rig::new();
        let [a, b] = rig.pair(QpKind::Rc);
        let key = rig.empty_region(&a, 4);
        let pages = [a.page(1)];
        rig.register(&a, 1, registration(key, 64, PageList::Given(&pages)));
        assert_eq!(rig.outcome(&a), OK);
        let other = choose(&mut rig, &a, key);
        rig.receive(&a, 2, a.sge(0, 64));
        rig.post(&b, 3, SendOp::SendInvalidate(other), b.sge(0, 8))
            .unwrap();
        rig.run(10);
        assert_eq!(
            rig.outcomes(&b),
            [(3, CompletionStatus::RemoteAccess)],
            "{name}"
        );
        let received = rig.outcomes(&a);
        assert!(
            matches!(received[..], [(2, status)] if status != OK),
            "{name}"
        );
        assert_eq!(rig.probe(&a, key, 0), OK, "{name}");
    }
}

#[test]
fn a_long_queue_of_local_requests_is_carried_out_to_its_end_and_others_send() {
    let mut rig = Rig::new();
    let ends = rig.pair(QpKind::Rc);
    let [a, b] = rig.pair(QpKind::Rc);
    let key = rig.empty_region(&a, 1);
    for round in 0..120 {
        let list = PageList::Given(&[PAGE]);
        rig.register(&a, round, registration(key, 64, list));
        rig.invalidate(&a, round, key);
    }
    let to = ends[1].remote(0);
    rig.post(&ends[0], 1, SendOp::RdmaWrite(to), ends[0].sge(0, 8))
        .unwrap();
    rig.run(1);
    assert_eq!(rig.outcomes(&ends[0]), [(1, OK)]);
    assert_eq!(rig.outcomes(&a).len(), 240);
    assert_eq!(rig.state(&b), QpState::ReadyToSend);
}
