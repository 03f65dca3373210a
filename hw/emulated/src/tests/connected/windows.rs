//! Memory windows of type 1 and 2B.

use hca_api::{FastRegister, LKey, MwBind, MwKeys, MwType, PageList};

use super::registration::{OK, REFUSED, variant};
use super::*;

const ACCESS: CompletionStatus = CompletionStatus::RemoteAccess;
const KINDS: [MwType; 2] = [MwType::Type1, MwType::Type2];
/// Part of a region that a window opens here.
const PART: (u64, u64) = (4096, 256);

/// Returns the key of a region of all memory of an end, whose peers have no rights but by windows.
fn region(rig: &mut Rig, end: &End) -> RKey {
    region_with(rig, end, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND)
}

fn region_with(rig: &mut Rig, end: &End, access: AccessFlags) -> RKey {
    let spec = MrSpec {
        pd: end.pd,
        kind: MrKind::Virtual {
            addr: end.memory.addr,
            len: REGION as u64,
        },
        access,
        key: None,
    };
    rig.owner(end).register_mr(&spec).unwrap().rkey
}

fn window(rig: &mut Rig, end: &End, kind: MwType) -> RKey {
    rig.owner(end).alloc_mw(end.pd, kind).unwrap().rkey
}

const fn low_byte(RKey(key): RKey) -> u8 {
    key.to_le_bytes()[0]
}

/// Returns a binding to [`PART`] of a region, under the window's next key.
fn binding(end: &End, window: RKey, region: RKey) -> MwBind {
    MwBind {
        window,
        variant: low_byte(window).wrapping_add(1),
        region: LKey(region.0),
        addr: end.memory.addr + PART.0,
        len: PART.1,
        access: everything() - AccessFlags::LOCAL_WRITE,
    }
}

/// Binds, and returns the status and the key.
fn bind(rig: &mut Rig, end: &End, bind: MwBind) -> (CompletionStatus, RKey) {
    rig.post_local(end, 1, SendOp::BindWindow(bind));
    let key = variant(bind.window, bind.variant.into());
    (rig.outcome(end), key)
}

/// An end, its peer, a region and a window.
fn scene(kind: MwType) -> (Rig, [End; 2], RKey, RKey) {
    let mut rig = Rig::new();
    let ends = rig.pair(QpKind::Rc);
    let region = region(&mut rig, &ends[0]);
    let window = window(&mut rig, &ends[0], kind);
    (rig, ends, region, window)
}

/// As [`scene`], with the window bound to [`PART`].
fn bound(kind: MwType) -> (Rig, [End; 2], RKey, RKey) {
    let (mut rig, ends, region, window) = scene(kind);
    let (status, key) = bind(&mut rig, &ends[0], binding(&ends[0], window, region));
    assert_eq!(status, OK);
    (rig, ends, region, key)
}

/// An operation of `len` bytes by a peer. Returns its status.
fn access(rig: &mut Rig, peer: &End, op: SendOp<'_>, len: u32) -> CompletionStatus {
    rig.post(peer, 2, op, peer.sge(0, len)).unwrap();
    rig.outcome(peer)
}

fn write(rig: &mut Rig, peer: &End, addr: u64, rkey: RKey, len: u32) -> CompletionStatus {
    access(
        rig,
        peer,
        SendOp::RdmaWrite(RemoteAddress { addr, rkey }),
        len,
    )
}

/// Another queue pair of an end's protection domain, connected.
fn sibling(rig: &mut Rig, end: &End) -> [End; 2] {
    let [mut near, far] = [rig.end(end.host, QpKind::Rc), rig.end(1, QpKind::Rc)];
    let (qp, numbers) = rig
        .owner(end)
        .create_qp(spec(QpKind::Rc, end.pd, near.cq))
        .unwrap();
    (near.qp, near.qpn, near.pd) = (qp, numbers.external, end.pd);
    rig.modify(&near, &init()).unwrap();
    rig.join(&[near, far], QpKind::Rc);
    [near, far]
}

#[test]
fn t057_a_window_opens_its_own_range_with_its_own_rights() {
    let (first, last) = (PART.0, PART.0 + PART.1);
    let read_only = AccessFlags::REMOTE_READ;
    let zero_based = AccessFlags::ZERO_BASED | AccessFlags::REMOTE_WRITE;
    // Rights, bytes, place in the region or the window, and the outcome of a write.
    let cases = [
        ("first bytes", everything(), 8, first, OK),
        ("all bytes", everything(), 256, first, OK),
        ("last bytes", everything(), 8, last - 8, OK),
        ("a byte more", everything(), 257, first, ACCESS),
        ("the byte behind", everything(), 8, last - 7, ACCESS),
        ("the byte before", everything(), 8, first - 1, ACCESS),
        ("another right", read_only, 8, first, ACCESS),
        ("zero-based", zero_based, 256, 0, OK),
        ("behind zero-based", zero_based, 8, 249, ACCESS),
        ("far behind zero-based", zero_based, 8, u64::MAX, ACCESS),
        (
            "zero-based by the region's address",
            zero_based,
            8,
            first,
            ACCESS,
        ),
    ];
    for kind in KINDS {
        for (name, rights, len, at, outcome) in cases {
            let zero_based = rights.contains(AccessFlags::ZERO_BASED);
            if zero_based && kind == MwType::Type1 {
                continue;
            }
            let (mut rig, [a, b], region, window) = scene(kind);
            let given = MwBind {
                access: rights,
                ..binding(&a, window, region)
            };
            let (status, key) = bind(&mut rig, &a, given);
            assert_eq!(status, OK, "{name}");
            rig.write(&b, 0, &pattern(257, 1));
            let start = if zero_based { 0 } else { a.memory.addr };
            let addr = start.wrapping_add(at);
            assert_eq!(write(&mut rig, &b, addr, key, len), outcome, "{name}");
            if outcome == OK {
                let place = if zero_based { first + at } else { at };
                let stored = rig.read(&a, usize::try_from(place).unwrap(), len as usize);
                assert_eq!(stored, pattern(257, 1)[..len as usize], "{name}");
            }
        }
        let (mut rig, [a, b], _, key) = bound(kind);
        let remote = RemoteAddress {
            addr: a.memory.addr + first,
            rkey: key,
        };
        rig.write(&a, 4096, &7_u64.to_ne_bytes());
        let add = SendOp::FetchAdd { remote, add: 1 };
        assert_eq!(access(&mut rig, &b, add, 8), OK);
        assert_eq!(access(&mut rig, &b, SendOp::RdmaRead(remote), 8), OK);
        for len in [Some(8), None] {
            let flush = SendOp::Flush {
                remote,
                len,
                placement: FlushPlacement::GLOBAL,
            };
            assert_eq!(access(&mut rig, &b, flush, 0), OK);
        }
        assert_eq!(rig.read(&b, 0, 8), 8_u64.to_ne_bytes());
    }
}

#[test]
fn t059_the_key_of_a_window_names_no_memory_of_its_own_function() {
    for kind in KINDS {
        let (mut rig, [a, b], _, key) = bound(kind);
        let sge = Sge {
            addr: a.memory.addr + PART.0,
            len: 8,
            lkey: LKey(key.0),
        };
        rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), sge)
            .unwrap();
        assert_eq!(rig.outcome(&a), CompletionStatus::LocalProtection);
    }
}

#[test]
fn t065_a_binding_that_fails_a_check_is_a_memory_management_error_and_opens_nothing() {
    type Change = fn(&mut Rig, &End, &mut MwBind);

    let both: [(&str, Change); 17] = [
        ("no window", |_, _, given| given.window.0 ^= 0x100),
        ("another variant", |_, _, given| given.window.0 ^= 1),
        ("a region as window", |_, a, given| {
            given.window = a.keys.rkey
        }),
        ("a window as region", |_, _, given| {
            given.region = LKey(given.window.0);
        }),
        ("no region", |_, _, given| given.region.0 ^= 0x100),
        ("another variant of the region", |_, _, given| {
            given.region.0 ^= 1
        }),
        ("a window of another domain", |rig, a, given| {
            let other = rig.end(a.host, QpKind::Rc);
            given.window = window(rig, &other, MwType::Type1);
        }),
        ("a region of another domain", |rig, a, given| {
            let other = End {
                pd: rig.end(a.host, QpKind::Rc).pd,
                ..*a
            };
            given.region = LKey(region(rig, &other).0);
        }),
        ("keys of another function", |rig, a, given| {
            rig.add_vf(a.host, FunctionId(1));
            let other = rig.end_of(a.host, FunctionId(1), QpKind::Rc);
            given.window = window(rig, &other, MwType::Type1);
            given.region = LKey(region(rig, &other).0);
        }),
        ("a region without the right", |_, a, given| {
            given.region = a.keys.lkey;
        }),
        ("a zero-based region", |rig, a, given| {
            let rights = everything() | AccessFlags::MW_BIND | AccessFlags::ZERO_BASED;
            given.region = LKey(region_with(rig, a, rights).0);
            given.addr = 0;
        }),
        ("writes to a region that is only read", |rig, a, given| {
            given.region = LKey(region_with(rig, a, AccessFlags::MW_BIND).0);
            given.access = AccessFlags::REMOTE_WRITE;
        }),
        ("atomics in a region that is only read", |rig, a, given| {
            given.region = LKey(region_with(rig, a, AccessFlags::MW_BIND).0);
            given.access = AccessFlags::REMOTE_ATOMIC;
        }),
        ("an empty region", |rig, a, given| {
            let rights = everything() | AccessFlags::MW_BIND;
            given.region = LKey(rig.region_with(a, 4, rights).0);
            (given.addr, given.len) = (0, 1);
        }),
        ("a byte behind the region", |_, a, given| {
            given.len = REGION as u64 - PART.0 + 1;
            given.addr = a.memory.addr + PART.0;
        }),
        ("a byte before the region", |_, a, given| {
            given.addr = a.memory.addr - 1;
        }),
        ("an end beyond all addresses", |_, _, given| {
            given.len = u64::MAX
        }),
    ];
    let type_1: [(&str, Change); 1] = [("zero-based", |_, _, given| {
        given.access |= AccessFlags::ZERO_BASED;
    })];
    let type_2: [(&str, Change); 2] = [
        ("no byte", |_, _, given| given.len = 0),
        ("zero-based and outside", |_, a, given| {
            given.access |= AccessFlags::ZERO_BASED;
            given.addr = a.memory.addr + REGION as u64 - 8;
        }),
    ];
    for (kind, own) in [(MwType::Type1, &type_1[..]), (MwType::Type2, &type_2[..])] {
        for (name, change) in both.iter().chain(own) {
            let (mut rig, [a, _], region, window) = scene(kind);
            let mut given = binding(&a, window, region);
            change(&mut rig, &a, &mut given);
            rig.post_local(&a, 1, SendOp::BindWindow(given));
            rig.post_local(&a, 2, SendOp::LocalInvalidate(window));
            rig.run(10);
            let done = rig.done(&a);
            assert_eq!(done[0].op, CompletionOp::BindWindow, "{name}");
            let statuses: Vec<_> = done.iter().map(|done| done.status).collect();
            assert_eq!(statuses, [REFUSED, CompletionStatus::Flushed], "{name}");
            assert_eq!(rig.state(&a), QpState::Error, "{name}");
            for rkey in [given.window, variant(given.window, given.variant.into())] {
                let addr = a.memory.addr + PART.0;
                if rkey != a.keys.rkey {
                    let to = RemoteAddress { addr, rkey };
                    assert_eq!(rig.write_anew(&a, to), ACCESS, "{name}");
                }
            }
        }
    }
}

#[test]
fn t066_a_window_of_type_1_is_bound_again_and_again_for_all_queue_pairs_of_its_domain() {
    let (mut rig, [a, _], region, mut key) = scene(MwType::Type1);
    for round in 0..4_u64 {
        let given = MwBind {
            addr: a.memory.addr + 64 * round,
            len: 8,
            ..binding(&a, key, region)
        };
        let (status, new) = bind(&mut rig, &a, given);
        assert_eq!(status, OK);
        let at = |rkey, round| RemoteAddress {
            addr: a.memory.addr + 64 * round,
            rkey,
        };
        assert_eq!(rig.write_anew(&a, at(new, round)), OK);
        for gone in [at(new, round + 1), at(key, round)] {
            assert_eq!(rig.write_anew(&a, gone), ACCESS);
        }
        key = new;
    }
    // No byte: not bound, whatever region is named. A further binding makes nothing of that.
    let none = MwBind {
        len: 0,
        region: LKey(0),
        ..binding(&a, key, region)
    };
    let (status, key) = bind(&mut rig, &a, none);
    assert_eq!(status, OK);
    let (addr, rkey) = (a.memory.addr + PART.0, key);
    assert_eq!(rig.write_anew(&a, RemoteAddress { addr, rkey }), ACCESS);
    let (status, rkey) = bind(&mut rig, &a, binding(&a, key, region));
    assert_eq!(status, OK);
    assert_eq!(rig.write_anew(&a, RemoteAddress { addr, rkey }), OK);
}

#[test]
fn t067_a_window_of_type_2_is_bound_when_free_and_opens_for_the_queue_pair_that_bound_it() {
    let (mut rig, [a, b], region, key) = bound(MwType::Type2);
    let (addr, rkey) = (a.memory.addr + PART.0, key);
    assert_eq!(write(&mut rig, &b, addr, key, 8), OK);
    assert_eq!(rig.write_anew(&a, RemoteAddress { addr, rkey }), ACCESS);
    // Freed, it may be bound by another queue pair, under any variant.
    rig.invalidate(&a, 3, key);
    assert_eq!(rig.outcome(&a), OK);
    let [other, far] = sibling(&mut rig, &a);
    let given = MwBind {
        variant: low_byte(key),
        ..binding(&a, key, region)
    };
    assert_eq!(bind(&mut rig, &other, given), (OK, key));
    assert_eq!(write(&mut rig, &far, addr, key, 8), OK);
    assert_eq!(write(&mut rig, &b, addr, key, 8), ACCESS);
    // Bound, it is not bound anew, and stays as it was.
    assert_eq!(bind(&mut rig, &other, given), (REFUSED, key));
    let [third, _] = sibling(&mut rig, &a);
    assert_eq!(bind(&mut rig, &third, given), (REFUSED, key));
}

#[test]
fn t068_a_region_stays_as_it_is_while_windows_are_bound_to_it() {
    type Loose = fn(&mut Rig, &End, MwKeys, RKey);

    let ways: [(&str, MwType, Loose); 5] = [
        ("deallocated", MwType::Type1, |rig, a, mw, _| {
            rig.owner(a).dealloc_mw(mw.handle).unwrap();
        }),
        ("deallocated", MwType::Type2, |rig, a, mw, _| {
            rig.owner(a).dealloc_mw(mw.handle).unwrap();
        }),
        ("bound to nothing", MwType::Type1, |rig, a, _, key| {
            let none = MwBind {
                len: 0,
                ..binding(a, key, RKey(0))
            };
            assert_eq!(bind(rig, a, none).0, OK);
        }),
        ("invalidated", MwType::Type2, |rig, a, _, key| {
            rig.invalidate(a, 1, key);
            assert_eq!(rig.outcome(a), OK);
        }),
        ("its queue pair destroyed", MwType::Type2, |rig, a, _, _| {
            rig.owner(a).destroy_qp(a.qp).unwrap();
        }),
    ];
    for (name, kind, loose) in ways {
        let mut rig = Rig::new();
        let [a, b] = rig.pair(QpKind::Rc);
        let mw = rig.owner(&a).alloc_mw(a.pd, kind).unwrap();
        let spec = MrSpec {
            pd: a.pd,
            kind: MrKind::Virtual {
                addr: a.memory.addr,
                len: REGION as u64,
            },
            access: AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND,
            key: None,
        };
        let mr = rig.owner(&a).register_mr(&spec).unwrap();
        let (status, key) = bind(&mut rig, &a, binding(&a, mw.rkey, mr.rkey));
        assert_eq!(status, OK);
        let in_use = Err(HcaError::InUse);
        assert_eq!(rig.owner(&a).deregister_mr(mr.handle), in_use, "{name}");
        let anew = rig.owner(&a).reregister_mr(mr.handle, &spec);
        assert_eq!(anew.map(|_| ()), in_use, "{name}");
        let addr = a.memory.addr + PART.0;
        assert_eq!(write(&mut rig, &b, addr, key, 8), OK, "{name}");
        loose(&mut rig, &a, mw, key);
        assert_eq!(rig.owner(&a).deregister_mr(mr.handle), Ok(()), "{name}");
        let to = RemoteAddress { addr, rkey: key };
        assert_eq!(rig.write_anew(&a, to), ACCESS, "{name}");
    }
}

#[test]
fn t068_a_registration_is_not_invalidated_while_windows_are_bound_to_it() {
    for by_peer in [false, true] {
        let (mut rig, [a, b], _, window) = scene(MwType::Type1);
        let rights = everything() | AccessFlags::MW_BIND | AccessFlags::REMOTE_INVALIDATE;
        let key = rig.region_with(&a, 4, rights);
        let given = FastRegister {
            key,
            iova: a.memory.addr,
            len: 8192,
            pages: PageList::Given(&[a.memory.addr, a.memory.addr + 4096]),
            page_shift: 12,
            access: AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND,
        };
        rig.post_local(&a, 1, SendOp::FastRegister(given));
        assert_eq!(rig.outcome(&a), OK);
        let (status, window) = bind(&mut rig, &a, binding(&a, window, key));
        assert_eq!(status, OK);
        if by_peer {
            rig.receive(&a, 2, a.sge(0, 64));
            let sent = access(&mut rig, &b, SendOp::SendInvalidate(key), 8);
            assert_eq!(sent, ACCESS);
        } else {
            rig.invalidate(&a, 2, key);
            assert_eq!(rig.outcome(&a), REFUSED);
        }
        let to = RemoteAddress {
            addr: a.memory.addr + PART.0,
            rkey: window,
        };
        assert_eq!(rig.write_anew(&a, to), OK);
    }
}

type Choose = fn(&mut Rig, &End, RKey) -> RKey;

/// Windows whose keys a queue pair may not invalidate.
const KEPT: [(&str, MwType, Choose); 4] = [
    ("type 1", MwType::Type1, |_, _, key| key),
    ("another variant", MwType::Type2, |_, _, key| {
        RKey(key.0 ^ 1)
    }),
    ("another queue pair's", MwType::Type2, |rig, a, _| {
        let [other, _] = sibling(rig, a);
        let (region, window) = (region(rig, a), window(rig, a, MwType::Type2));
        bind(rig, &other, binding(a, window, region)).1
    }),
    ("another domain's", MwType::Type2, |rig, a, _| {
        let other = rig.end(a.host, QpKind::Rc);
        window(rig, &other, MwType::Type2)
    }),
];

#[test]
fn t070_windows_that_a_queue_pair_may_not_invalidate_are_a_memory_management_error() {
    for (name, kind, choose) in KEPT {
        let (mut rig, [a, b], _, key) = bound(kind);
        let addr = a.memory.addr + PART.0;
        assert_eq!(write(&mut rig, &b, addr, key, 8), OK, "{name}");
        let other = choose(&mut rig, &a, key);
        rig.invalidate(&a, 2, other);
        assert_eq!(rig.outcome(&a), REFUSED, "{name}");
        if kind == MwType::Type1 {
            assert_eq!(rig.write_anew(&a, RemoteAddress { addr, rkey: key }), OK);
        }
    }
}

#[test]
fn t070_a_window_of_type_2_is_free_once_it_is_invalidated_and_stays_so() {
    let (mut rig, [a, b], region, mut key) = bound(MwType::Type2);
    for _ in 0..3 {
        let addr = a.memory.addr + PART.0;
        assert_eq!(write(&mut rig, &b, addr, key, 8), OK);
        for _ in 0..2 {
            rig.invalidate(&a, 2, key);
            assert_eq!(rig.outcome(&a), OK);
        }
        (_, key) = bind(&mut rig, &a, binding(&a, key, region));
    }
    rig.invalidate(&a, 2, key);
    assert_eq!(rig.outcome(&a), OK);
    let addr = a.memory.addr + PART.0;
    assert_eq!(write(&mut rig, &b, addr, key, 8), ACCESS);
}

#[test]
fn t071_a_send_frees_a_window_of_type_2_of_its_receiver_and_the_receive_names_the_key() {
    let (mut rig, [a, b], region, key) = bound(MwType::Type2);
    rig.receive(&a, 2, a.sge(0, 64));
    assert_eq!(access(&mut rig, &b, SendOp::SendInvalidate(key), 8), OK);
    let received = rig.done(&a);
    assert_eq!(received[0].flags, CompletionFlags::INVALIDATED);
    assert_eq!(received[0].immediate, key.0);
    let (status, key) = bind(&mut rig, &a, binding(&a, key, region));
    assert_eq!(status, OK);
    assert_eq!(write(&mut rig, &b, a.memory.addr + PART.0, key, 8), OK);
}

#[test]
fn t071_windows_that_a_peer_may_not_invalidate_are_refused() {
    for (name, kind, choose) in KEPT {
        let (mut rig, [a, b], _, key) = bound(kind);
        let other = choose(&mut rig, &a, key);
        rig.receive(&a, 2, a.sge(0, 64));
        let sent = access(&mut rig, &b, SendOp::SendInvalidate(other), 8);
        assert_eq!(sent, ACCESS, "{name}");
        if kind == MwType::Type1 {
            let addr = a.memory.addr + PART.0;
            assert_eq!(rig.write_anew(&a, RemoteAddress { addr, rkey: key }), OK);
        }
    }
}

#[test]
fn t036_t066_a_peers_access_under_way_ends_when_its_window_is_bound_anew_under_the_same_key() {
    for reads in [false, true] {
        let (mut rig, [a, b], region, window) = scene(MwType::Type1);
        let len = 58 * 4096;
        let whole = MwBind {
            addr: a.memory.addr,
            len: len.into(),
            ..binding(&a, window, region)
        };
        let (_, rkey) = bind(&mut rig, &a, whole);
        let [from, to] = if reads { [&a, &b] } else { [&b, &a] };
        rig.write(from, 0, &vec![7; len as usize]);
        let addr = a.memory.addr;
        let remote = RemoteAddress { addr, rkey };
        let op = if reads {
            SendOp::RdmaRead(remote)
        } else {
            SendOp::RdmaWrite(remote)
        };
        rig.post(&b, 2, op, b.sge(0, len)).unwrap();
        while rig.read(to, 0, 1) != [7] {
            assert!(rig.fabric.poll(rig.now));
        }
        let again = MwBind {
            window: rkey,
            variant: low_byte(rkey),
            ..whole
        };
        rig.post_local(&a, 3, SendOp::BindWindow(again));
        rig.run(10);
        assert_eq!(rig.outcomes(&b), [(2, ACCESS)], "reads: {reads}");
        assert_eq!(rig.read(to, len as usize - 1, 1), [0]);
    }
}
