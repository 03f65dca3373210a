//! Tunnels between virtual functions and the physical one.

use hca_api::SpecialQp::{self, Gsi, Smi};

use super::*;

fn proxy(special: SpecialQp) -> QpKind {
    QpKind::Proxy {
        special,
        port: PORT,
    }
}

fn tunnel(function: FunctionId, special: SpecialQp) -> QpKind {
    QpKind::Tunnel {
        function,
        special,
        port: PORT,
    }
}

/// A message of more than the MTU passes, both ways, whatever the port's state.
#[test]
fn a_proxy_and_its_tunnel_exchange_messages_with_the_port_down() {
    let mut device = device(5);
    add_vf(&mut device, VF1);
    let p = open(&mut device, VF1, proxy(Gsi));
    let t = open(&mut device, PF, tunnel(VF1, Gsi));
    device.node_mut().port_mut(PORT).unwrap().state = PortState::Down;
    assert_eq!(p.numbers.external, Qpn::GSI);
    assert_ne!(p.numbers.real, p.numbers.external);

    t.post_recv(&mut device, 1);
    p.send(&mut device, None, &[7; 312]).unwrap();
    assert_eq!(p.poll_one(&mut device).qpn, Qpn::GSI);
    let done = t.poll_one(&mut device);
    assert_eq!((done.byte_len, done.qpn), (352, t.numbers.real));
    assert_eq!(done.source.unwrap().src_qpn, p.numbers.real);
    assert_eq!(t.received(&mut device, 1, 352)[40..], [7; 312]);

    p.post_recv(&mut device, 2);
    t.send(&mut device, None, &[8; 312]).unwrap();
    let done = p.poll_one(&mut device);
    assert_eq!((done.wr_id, done.qpn), (2, Qpn::GSI));
    assert_eq!(done.source.unwrap().src_qpn, t.numbers.real);
}

/// A guest's driver has the header of a tunnelled MAD inline and the MAD in memory, named by the key of
/// a region that is all of its memory.
#[test]
fn a_proxy_sends_an_inline_header_and_behind_it_what_it_gathers() {
    let mut device = device(5);
    add_vf(&mut device, VF1);
    let p = open(&mut device, VF1, proxy(Gsi));
    let t = open(&mut device, PF, tunnel(VF1, Gsi));
    t.post_recv(&mut device, 1);
    let mut hca = device.function(VF1).unwrap();
    let whole = MrSpec {
        pd: PdHandle(0),
        kind: MrKind::WholeSpace,
        access: AccessFlags::LOCAL_WRITE,
        key: Some(0x7fff_ff01),
    };
    let lkey = hca.register_mr(&whole).unwrap().lkey;
    hca.dma_write(p.memory.addr, &[8; 256]).unwrap();
    let gather = [Sge {
        lkey,
        ..p.send_slot(256)
    }];
    let send = SendRequest {
        payload: Payload::Headed(&[7; 56], &gather),
        ..request(&[], None)
    };
    hca.post_send(p.qp, &send).unwrap();
    assert_eq!(p.poll_one(&mut device).byte_len, 312);
    assert_eq!(t.poll_one(&mut device).byte_len, 352);
    let bytes = t.received(&mut device, 1, 352);
    assert_eq!(
        (&bytes[40..96], &bytes[96..]),
        (&[7; 56][..], &[8; 256][..])
    );
}

/// Statement 6: a message that is too long costs a receive, and the tunnel goes on.
#[test]
fn a_guest_cannot_stop_its_tunnel_with_a_message_that_is_too_long() {
    let mut device = device(5);
    add_vf(&mut device, VF1);
    let p = open(&mut device, VF1, proxy(Gsi));
    let t = open(&mut device, PF, tunnel(VF1, Gsi));
    t.post_recv(&mut device, 1);
    t.post_recv(&mut device, 2);
    p.send(&mut device, None, &[7; 4096]).unwrap();
    assert_eq!(
        t.outcomes(&mut device),
        [(1, CompletionStatus::LocalLength)]
    );
    assert_eq!(t.state(&mut device), QpState::ReadyToSend);
    p.send(&mut device, None, &[7; 312]).unwrap();
    assert_eq!(t.outcomes(&mut device), [(2, CompletionStatus::Success)]);
}

/// Only the tunnel partner reaches a proxy, and nobody else a tunnel QP, whatever
/// number and key a sender writes.
#[test]
fn c004_c077_nobody_but_the_partner_reaches_a_proxy_or_a_tunnel_queue_pair() {
    let mut device = device(5);
    add_vf(&mut device, VF1);
    add_vf(&mut device, VF2);
    let p = open(&mut device, VF1, proxy(Gsi));
    let t = open(&mut device, PF, tunnel(VF1, Gsi));
    let ends = [p, t];
    let rogue = open(&mut device, VF2, QpKind::Ud);
    for end in ends {
        end.post_recv(&mut device, 1);
        for qkey in [QKey::default(), QKEY, QKey::GSI, QKey::new(0xffff_0000)] {
            let destination = to(vector(5), end.numbers.real, qkey);
            rogue
                .send(&mut device, Some(destination), &[0; 312])
                .unwrap();
        }
    }
    // A proxy's own destination is not looked at either.
    let other = open(&mut device, VF2, proxy(Gsi));
    let destination = to(vector(5), t.numbers.real, QKey::GSI);
    other
        .send(&mut device, Some(destination), &[0; 312])
        .unwrap();
    for end in ends {
        assert_eq!(end.poll(&mut device), []);
    }
    assert_eq!(device.drops().get(DropReason::NoQp), 8);
    assert_eq!(device.drops().get(DropReason::NoTunnelPeer), 1);
}

/// Statement 173 and the rules of `VirtualPort`: QP0 works only for a VF that may manage.
#[test]
fn a_proxy_qp0_is_dead_until_it_is_enabled() {
    let mut device = device(5);
    add_vf(&mut device, VF1);
    let p = open(&mut device, VF1, proxy(Smi));
    let t = open(&mut device, PF, tunnel(VF1, Smi));
    t.post_recv(&mut device, 1);
    p.send(&mut device, None, &[0; 312]).unwrap();
    assert_eq!(t.poll(&mut device), []);
    let view = VirtualPort {
        smi_enabled: true,
        ..VirtualPort::default()
    };
    let mut pf = device.function(PF).unwrap();
    pf.set_virtual_port(VF1, PORT, view).unwrap();
    p.send(&mut device, None, &[0; 312]).unwrap();
    assert_eq!(t.poll_one(&mut device).status, CompletionStatus::Success);
}

#[test]
fn special_queue_pairs_exist_once_and_need_privileges() {
    let mut device = device(5);
    add_vf(&mut device, VF1);
    let special = QpKind::Special {
        special: Gsi,
        port: PORT,
    };
    let mut make = |function, kind| {
        open_with(&mut device, function, QKey::GSI, |pd, cq| {
            spec(kind, pd, cq)
        })
        .map(|_| ())
    };
    assert_eq!(make(VF1, special), Err(HcaError::PermissionDenied));
    assert_eq!(make(PF, special), Ok(()));
    assert_eq!(make(PF, special), Err(HcaError::SpecialQpTaken));
    assert_eq!(make(VF1, tunnel(VF1, Gsi)), Err(HcaError::PermissionDenied));
    assert_eq!(make(PF, tunnel(VF2, Gsi)), Err(HcaError::InvalidParameter));
    assert_eq!(make(PF, tunnel(VF1, Gsi)), Ok(()));
    assert_eq!(make(PF, tunnel(VF1, Gsi)), Err(HcaError::SpecialQpTaken));
    assert_eq!(make(VF1, proxy(Gsi)), Ok(()));
    assert_eq!(make(VF1, proxy(Gsi)), Err(HcaError::SpecialQpTaken));
    assert_eq!(make(PF, proxy(Gsi)), Err(HcaError::InvalidParameter));
}

/// A function that is reset owns nothing, and its tunnel stays with the physical function.
#[test]
fn a_reset_releases_everything_and_the_function_starts_again() {
    let mut device = device(5);
    add_vf(&mut device, VF1);
    let p = open(&mut device, VF1, proxy(Gsi));
    let u = open(&mut device, VF1, QpKind::Ud);
    let t = open(&mut device, PF, tunnel(VF1, Gsi));
    let group = Gid([0xff; 16]);
    let mut vf = device.function(VF1).unwrap();
    vf.attach_multicast(u.qp, group, Lid::new(0xc001)).unwrap();
    u.post_recv(&mut device, 1);
    let mut pf = device.function(PF).unwrap();
    assert_eq!(pf.resources(VF1).unwrap().qps, 2);
    assert!(pf.proxy_qp(VF1, Gsi, PORT).unwrap().is_some());
    pf.reset_function(VF1).unwrap();
    assert_eq!(pf.resources(VF1), Ok(hca_api::ResourceCounts::default()));
    assert_eq!(pf.proxy_qp(VF1, Gsi, PORT), Ok(None));

    let mut vf = device.function(VF1).unwrap();
    let reset = hca_api::HcaEvent::Async(hca_api::AsyncEvent::FunctionReset);
    assert_eq!(vf.poll_event(), Some(reset));
    assert_eq!(vf.poll_event(), None);
    assert_eq!(vf.query_qp(p.qp), Err(HcaError::InvalidHandle));
    t.send(&mut device, None, &[0; 312]).unwrap();
    assert_eq!(device.drops().get(DropReason::NoTunnelPeer), 1);

    let p = open(&mut device, VF1, proxy(Gsi));
    t.post_recv(&mut device, 1);
    p.send(&mut device, None, &[0; 312]).unwrap();
    assert_eq!(t.poll(&mut device).len(), 2, "its own send and the message");
}
