//! Multicast: who gets a group's packets.

use super::*;

const GROUP: Gid = Gid([
    0xff, 0x12, 0xa0, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
]);
const MLID: u16 = 0xc001;

fn member(device: &mut Device, function: FunctionId, block_loopback: bool) -> Peer {
    let peer = open_with(device, function, QKEY, |pd, cq| QpSpec {
        block_multicast_loopback: block_loopback,
        ..spec(QpKind::Ud, pd, cq)
    })
    .unwrap();
    let mut hca = device.function(function).unwrap();
    hca.attach_multicast(peer.qp, GROUP, Lid::new(MLID))
        .unwrap();
    peer.post_recv(device, 1);
    peer
}

fn receives(peer: &Peer, device: &mut Device) -> usize {
    let all = peer.poll(device);
    all.iter().filter(|c| c.op == CompletionOp::Recv).count()
}

/// IBA 10.5.1, 10.5.2: every attached queue pair gets a copy, on this adapter and on others; the
/// sender's own only if it did not block it.
#[test]
fn every_member_gets_one_copy_and_a_blocking_sender_none() {
    let (mut left, mut right) = (device(5), device(6));
    add_vf(&mut left, VF1);
    let sender = member(&mut left, PF, true);
    let neighbour = member(&mut left, PF, true);
    let guest = member(&mut left, VF1, false);
    let far = [member(&mut right, PF, false), member(&mut right, PF, false)];
    let destination = to(global(MLID, GROUP), Qpn::MULTICAST, QKEY);
    sender.send(&mut left, Some(destination), b"all").unwrap();
    assert_eq!(pipe(&mut left, &mut right), 1);
    assert_eq!(receives(&sender, &mut left), 0);
    assert_eq!(receives(&neighbour, &mut left), 1);
    let done = guest.poll_one(&mut left);
    assert_eq!(
        done.flags,
        CompletionFlags::GRH | CompletionFlags::MULTICAST
    );
    assert_eq!(done.source.unwrap().grh.unwrap().sgid_index, GidIndex(0));
    for peer in far {
        assert_eq!(receives(&peer, &mut right), 1);
        assert_eq!(peer.received(&mut right, 1, 43)[24..40], GROUP.0);
    }

    let open_sender = member(&mut left, PF, false);
    let me_too = |device: &mut Device| {
        open_sender
            .send(device, Some(destination), b"me too")
            .unwrap();
        receives(&open_sender, device)
    };
    assert_eq!(me_too(&mut left), 1);
    let block = QpModify {
        block_multicast_loopback: Some(true),
        ..QpModify::default()
    };
    let mut hca = left.function(PF).unwrap();
    hca.modify_qp(open_sender.qp, &block).unwrap();
    open_sender.post_recv(&mut left, 1);
    assert_eq!(me_too(&mut left), 0);
}

/// IBA 9.6.1.5, 10.5.1: without a GRH there is no group; another MLID is another group.
#[test]
fn a_packet_reaches_members_only_by_group_address_and_multicast_lid_together() {
    let (mut left, mut right) = (device(5), device(6));
    let sender = open(&mut left, PF, QpKind::Ud);
    let listener = member(&mut right, PF, false);
    for address in [
        vector(MLID),
        global(MLID + 1, GROUP),
        global(MLID, Gid([0xff; 16])),
    ] {
        let destination = to(address, Qpn::MULTICAST, QKEY);
        sender.send(&mut left, Some(destination), b"x").unwrap();
    }
    assert_eq!(pipe(&mut left, &mut right), 3);
    assert_eq!(receives(&listener, &mut right), 0);
    assert_eq!(right.drops().get(DropReason::MulticastWithoutGrh), 1);
    assert_eq!(right.drops().get(DropReason::NotAttached), 2);
}

/// IBA 11.3.1: attaching twice is attaching once; an attached queue pair cannot be destroyed.
#[test]
fn attachments_are_counted_once_and_hold_the_queue_pair() {
    let mut device = device(5);
    let peer = member(&mut device, PF, false);
    let mlid = Lid::new(MLID);
    let mut hca = device.function(PF).unwrap();
    hca.attach_multicast(peer.qp, GROUP, mlid).unwrap();
    assert_eq!(hca.resources(PF).unwrap().attachments, 1);
    assert_eq!(hca.destroy_qp(peer.qp), Err(HcaError::InUse));
    assert_eq!(
        hca.attach_multicast(peer.qp, Gid([0xfe; 16]), mlid),
        Err(HcaError::InvalidParameter)
    );
    assert_eq!(
        hca.attach_multicast(peer.qp, GROUP, Lid::new(5)),
        Err(HcaError::InvalidParameter)
    );
    hca.detach_multicast(peer.qp, GROUP, mlid).unwrap();
    assert_eq!(
        hca.detach_multicast(peer.qp, GROUP, mlid),
        Err(HcaError::InvalidParameter)
    );
    assert_eq!(hca.destroy_qp(peer.qp), Ok(()));
}

/// A guest's driver attaches by GID alone.
#[test]
fn an_attachment_without_an_mlid_takes_the_packets_of_every_one() {
    let mut device = device(5);
    let sender = member(&mut device, PF, true);
    let member = open(&mut device, PF, QpKind::Ud);
    let mut hca = device.function(PF).unwrap();
    hca.attach_multicast(member.qp, GROUP, Lid::NONE).unwrap();
    hca.attach_multicast(member.qp, GROUP, Lid::NONE).unwrap();
    for (wr_id, mlid) in [(1, MLID), (2, MLID + 1)] {
        member.post_recv(&mut device, wr_id);
        let destination = to(global(mlid, GROUP), Qpn::MULTICAST, QKEY);
        sender.send(&mut device, Some(destination), b"x").unwrap();
        assert_eq!(member.poll_one(&mut device).wr_id, wr_id);
    }
    let mut hca = device.function(PF).unwrap();
    let exact = hca.detach_multicast(member.qp, GROUP, Lid::new(MLID));
    assert_eq!(exact, Err(HcaError::InvalidParameter));
    hca.detach_multicast(member.qp, GROUP, Lid::NONE).unwrap();
    assert_eq!(hca.destroy_qp(member.qp), Ok(()));
}

fn group(low: u16) -> Gid {
    let mut gid = GROUP;
    gid.0[14..].copy_from_slice(&low.to_be_bytes());
    gid
}

/// Every function has a share of its own: what two greedy VFs attach, in the broadcast group and in as many groups as they
/// get, takes nothing from a third one and nothing from the PF.
#[test]
fn a_function_exhausts_its_own_share_of_groups_and_of_a_groups_list_only() {
    let mut device = device(5);
    let mlid = Lid::new(MLID);
    let full = Err(HcaError::InsufficientResources);
    for function in [VF1, VF2] {
        add_vf(&mut device, function);
        let limits = device.function(function).unwrap().attributes().limits;
        let first = open(&mut device, function, QpKind::Ud);
        let mut hca = device.function(function).unwrap();
        for _ in 1..limits.max_mcast_qp_attach {
            let (pd, cq) = (hca.alloc_pd().unwrap(), hca.create_cq(1).unwrap());
            let (qp, _) = hca.create_qp(spec(QpKind::Ud, pd, cq)).unwrap();
            hca.attach_multicast(qp, GROUP, mlid).unwrap();
        }
        hca.attach_multicast(first.qp, GROUP, mlid).unwrap();
        assert_eq!(
            hca.attach_multicast(first.qp, GROUP, Lid::new(MLID + 1)),
            full
        );
        for low in 0..u16::try_from(limits.max_mcast_grp).unwrap() - 1 {
            let mgid = group(0x8000 + low);
            hca.attach_multicast(first.qp, mgid, mlid).unwrap();
        }
        assert_eq!(hca.attach_multicast(first.qp, group(0x7fff), mlid), full);
    }

    let quiet = FunctionId(3);
    add_vf(&mut device, quiet);
    let guest = member(&mut device, quiet, false);
    let mut hca = device.function(quiet).unwrap();
    let share = hca.attributes().limits.max_mcast_grp;
    for low in 1..u16::try_from(share).unwrap() {
        hca.attach_multicast(guest.qp, group(low + 1), mlid)
            .unwrap();
    }
    let sender = member(&mut device, PF, true);
    let destination = to(global(MLID, GROUP), Qpn::MULTICAST, QKEY);
    sender.send(&mut device, Some(destination), b"all").unwrap();
    assert_eq!(receives(&guest, &mut device), 1);

    // What a function gives back, by detaching or by its reset, is its own again.
    let mut pf = device.function(PF).unwrap();
    pf.reset_function(VF1).unwrap();
    let again = member(&mut device, VF1, false);
    let mut hca = device.function(VF1).unwrap();
    hca.detach_multicast(again.qp, GROUP, mlid).unwrap();
    for low in 0..u16::try_from(share).unwrap() {
        hca.attach_multicast(again.qp, group(0x8000 + low), mlid)
            .unwrap();
    }
    assert_eq!(hca.attach_multicast(again.qp, GROUP, mlid), full);
}
