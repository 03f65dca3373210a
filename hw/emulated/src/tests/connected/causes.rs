//! The checks that completions with errors name.

use hca_api::{Cause, LKey, MwBind, MwType};

use super::*;

/// A scene up to the request, and the end whose completion names the check.
type Scene = fn(&mut Rig, [End; 2]) -> End;

/// Posts a request of `a` and returns it.
fn post(rig: &mut Rig, a: End, op: SendOp<'_>, sge: Sge) -> End {
    rig.post(&a, 1, op, sge).unwrap();
    a
}

/// Registers the memory of an end with some rights.
fn register(rig: &mut Rig, end: &End, kind: MrKind<'_>, access: AccessFlags) -> MrKeys {
    let spec = MrSpec {
        pd: end.pd,
        kind,
        access,
        key: None,
    };
    rig.owner(end).register_mr(&spec).unwrap()
}

fn own(end: &End) -> MrKind<'static> {
    MrKind::Virtual {
        addr: end.memory.addr,
        len: 64,
    }
}

/// Sends an invalidation of a key to `b`, whose receive is in use when the key is checked.
fn invalidate(rig: &mut Rig, [a, b]: [End; 2], key: RKey) -> End {
    rig.receive(&b, 2, b.sge(0, 64));
    post(rig, a, SendOp::SendInvalidate(key), a.sge(0, 8));
    b
}

/// Binds a window of `by` by another queue pair of its protection domain, or of another one.
fn bound(rig: &mut Rig, by: &End, pd: Option<PdHandle>) -> RKey {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let mut other = rig.end(by.host, QpKind::Rc);
    let owner = pd.unwrap_or(other.pd);
    let (qp, numbers) = (rig.owner(by).create_qp(spec(QpKind::Rc, owner, other.cq))).unwrap();
    (other.qp, other.qpn, other.pd) = (qp, numbers.external, owner);
    rig.modify(&other, &init()).unwrap();
    let peer = rig.end(1 - by.host, QpKind::Rc);
    rig.join(&[other, peer], QpKind::Rc);
    let region = register(rig, &other, own(&other), access);
    let window = rig.owner(by).alloc_mw(owner, MwType::Type2).unwrap().rkey;
    let bind = MwBind {
        window,
        variant: window.0.to_le_bytes()[0],
        region: region.lkey,
        addr: other.memory.addr,
        len: 64,
        access: AccessFlags::empty(),
    };
    rig.post_local(&other, 9, SendOp::BindWindow(bind));
    rig.run(1);
    let done = rig.done(&other);
    assert_eq!(
        (done[0].status, done[0].cause),
        (CompletionStatus::Success, Cause::None)
    );
    window
}

/// The start of an end's memory, under another key.
fn under(end: &End, lkey: LKey) -> Sge {
    Sge {
        lkey,
        ..end.sge(0, 8)
    }
}

#[test]
fn a_completion_with_an_error_names_the_check_that_failed() {
    use CompletionStatus as S;

    let scenes: [(S, Cause, Scene); 19] = [
        (S::LocalProtection, Cause::NoSuchKey, |rig, [a, _]| {
            let lkey = LKey(a.keys.lkey.0 ^ 1);
            post(rig, a, SendOp::Send, under(&a, lkey))
        }),
        (S::LocalProtection, Cause::WrongObject, |rig, [a, _]| {
            let window = rig.hca(0).alloc_mw(a.pd, MwType::Type1).unwrap();
            let lkey = LKey(window.rkey.0);
            post(rig, a, SendOp::Send, under(&a, lkey))
        }),
        (S::LocalProtection, Cause::OtherPd, |rig, [a, _]| {
            let other = rig.end(0, QpKind::Rc);
            post(rig, a, SendOp::Send, other.sge(0, 8))
        }),
        (S::LocalProtection, Cause::OutOfBounds, |rig, [a, _]| {
            post(rig, a, SendOp::Send, a.sge(REGION - 4, 8))
        }),
        (S::LocalProtection, Cause::NoRight, |rig, [a, b]| {
            let MrKeys { lkey, .. } = register(rig, &a, own(&a), AccessFlags::empty());
            let op = SendOp::RdmaRead(b.remote(0));
            post(rig, a, op, under(&a, lkey))
        }),
        (S::LocalProtection, Cause::NotValid, |rig, [a, _]| {
            let kind = MrKind::FastRegister { max_pages: 1 };
            let MrKeys { lkey, .. } = register(rig, &a, kind, AccessFlags::LOCAL_WRITE);
            post(rig, a, SendOp::Send, under(&a, lkey))
        }),
        (S::LocalProtection, Cause::NoMemory, |rig, [a, _]| {
            let MrKeys { lkey, .. } = register(rig, &a, MrKind::WholeSpace, AccessFlags::empty());
            let sge = Sge {
                addr: u64::MAX / 2,
                lkey,
                ..a.sge(0, 8)
            };
            post(rig, a, SendOp::Send, sge)
        }),
        (S::MwBind, Cause::OtherQp, |rig, [a, _]| {
            let key = bound(rig, &a, Some(a.pd));
            rig.post_local(&a, 1, SendOp::LocalInvalidate(key));
            a
        }),
        (S::LocalLength, Cause::TooLong, |rig, [a, b]| {
            let remote = b.remote(0);
            post(rig, a, SendOp::FetchAdd { remote, add: 1 }, a.sge(0, 4))
        }),
        (S::LocalQpOperation, Cause::NoReads, |rig, [_, b]| {
            let none = QpModify {
                max_rd_atomic: Some(0),
                ..to_rts(&b, true)
            };
            let a = rig.end(0, QpKind::Rc);
            rig.modify(&a, &to_rtr(&b, true)).unwrap();
            rig.modify(&a, &none).unwrap();
            post(rig, a, SendOp::RdmaRead(b.remote(0)), a.sge(0, 8))
        }),
        (S::LocalQpOperation, Cause::BadRequest, |rig, _| {
            let [a, b] = rig.pair(QpKind::Uc);
            post(rig, a, SendOp::RdmaRead(b.remote(0)), a.sge(0, 8))
        }),
        (S::RemoteAccess, Cause::Refused, |rig, [a, b]| {
            post(rig, a, SendOp::RdmaWrite(b.remote(REGION)), a.sge(0, 8))
        }),
        (S::RetryExceeded, Cause::Retries, |rig, [a, b]| {
            rig.hca(1).destroy_qp(b.qp).unwrap();
            post(rig, a, SendOp::Send, a.sge(0, 8))
        }),
        (S::RnrRetryExceeded, Cause::RnrRetries, |rig, [_, b]| {
            let [a, b] = [rig.end(0, QpKind::Rc), rig.end(b.host, QpKind::Rc)];
            let none = QpModify {
                rnr_retry: Some(0),
                ..to_rts(&a, true)
            };
            rig.open(&b, &a, true);
            rig.modify(&a, &to_rtr(&b, true)).unwrap();
            rig.modify(&a, &none).unwrap();
            post(rig, a, SendOp::Send, a.sge(0, 8))
        }),
        (S::LocalLength, Cause::ReceiveTooShort, |rig, [a, b]| {
            rig.receive(&b, 2, b.sge(0, 4));
            post(rig, a, SendOp::Send, a.sge(0, 8));
            b
        }),
        (S::LocalProtection, Cause::OutOfBounds, |rig, [a, b]| {
            rig.receive(&b, 2, b.sge(REGION - 4, 64));
            post(rig, a, SendOp::Send, a.sge(0, 8));
            b
        }),
        (S::LocalAccess, Cause::NoSuchKey, |rig, ends| {
            invalidate(rig, ends, RKey(ends[1].keys.rkey.0 ^ 1))
        }),
        (S::LocalAccess, Cause::OtherPd, |rig, ends| {
            let key = bound(rig, &ends[1], None);
            invalidate(rig, ends, key)
        }),
        (S::LocalAccess, Cause::OtherQp, |rig, ends| {
            let key = bound(rig, &ends[1], Some(ends[1].pd));
            invalidate(rig, ends, key)
        }),
    ];
    for (status, cause, scene) in scenes {
        let mut rig = Rig::new();
        let ends = rig.pair(QpKind::Rc);
        let end = scene(&mut rig, ends);
        rig.run(1000);
        let done = rig.done(&end)[0];
        assert_eq!((done.status, done.cause), (status, cause));
    }
}
