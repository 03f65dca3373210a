//! A VF held by a program, on a subnet with a manager: tables, queue pairs, peers, connections, events,
//! and what is left of it in the end.

use hca_api::{PortChange, ResourceCounts};
use ib_endpoint::cm::{CmEventKind, ConnId, State};
use ib_endpoint::{PortPath, SaError};
use ib_wire::cm::{CmRep, CmSidrRep};
use ib_wire::mad::MadStatus;
use ib_wire::{Gid, Guid, PKey, PKeyIndex, QKey, Qpn, ServiceId, SubnetPrefix};
use vf_proxy::native::{
    Partition, ResolveError, UdQpId, UdQpSpec, VfPortError, VfPortEvent, VirtualHcaEvent,
};
use vf_tunnel::VfId;
use vhca_tests::vf_subnet::{PORT, SECOND_PKEY, VfAt, node_guid};

use super::{VfSubnet, start};

const QKEY: QKey = QKey::new(0x1234);
const SERVICE: ServiceId = ServiceId::new(0x4242);

const A1: VfAt = VfAt { host: 0, vf: 1 };
const A2: VfAt = VfAt { host: 0, vf: 2 };
const B1: VfAt = VfAt { host: 1, vf: 1 };

fn subnet() -> VfSubnet {
    start(1, 2, 2)
}

fn open_qp(subnet: &mut VfSubnet, at: VfAt, partition: Partition) -> UdQpId {
    let spec = UdQpSpec::new(partition, QKEY);
    subnet
        .on_port(at, |_, port, hca| port.open_qp(hca, &spec))
        .expect("a queue pair")
}

fn default_qp(subnet: &mut VfSubnet, at: VfAt) -> UdQpId {
    open_qp(subnet, at, Partition::Key(PKey::DEFAULT_FULL))
}

fn qpn(subnet: &VfSubnet, at: VfAt, qp: UdQpId) -> Qpn {
    subnet.port(at).qp(qp).expect("a queue pair").qpn()
}

fn gid(subnet: &VfSubnet, at: VfAt) -> Gid {
    subnet.port(at).gid().expect("a GID")
}

fn try_resolve(
    subnet: &mut VfSubnet,
    from: VfAt,
    to: Gid,
    pkey: Option<PKey>,
) -> Result<PortPath, ResolveError> {
    let asked = subnet.on_port(from, |now, port, _| port.resolve(now, to, pkey));
    let asked = asked.expect("a query");
    subnet.wait(from, |event| match event {
        VfPortEvent::Resolved { query, result } if *query == asked => Some(*result),
        _ => None,
    })
}

fn resolve(subnet: &mut VfSubnet, from: VfAt, to: VfAt, pkey: Option<PKey>) -> PortPath {
    let to = gid(subnet, to);
    try_resolve(subnet, from, to, pkey).expect("a path")
}

/// Sends a message along a path, and gives what arrives.
fn exchange(
    subnet: &mut VfSubnet,
    (from, sender): (VfAt, UdQpId),
    (to, receiver): (VfAt, UdQpId),
    pkey: PKey,
) -> Option<Vec<u8>> {
    let path = resolve(subnet, from, to, Some(pkey));
    let destination = path.destination(qpn(subnet, to, receiver), QKEY);
    subnet
        .on_port(from, |_, port, hca| {
            port.send(hca, sender, &destination, b"hello")
        })
        .expect("it is sent");
    subnet.run_for(std::time::Duration::from_millis(1));
    let received = subnet.on_port(to, |_, port, hca| port.receive(hca, receiver));
    received.map(|datagram| {
        assert_eq!(
            datagram.source.grh.map(|route| route.remote_gid),
            Some(gid(subnet, from))
        );
        datagram.bytes
    })
}

#[test]
fn a_vf_sees_its_adapter_its_port_and_its_tables() {
    let mut subnet = subnet();
    for at in [A1, A2, B1] {
        let guid = subnet.on_vf(at, |_, hca, _| {
            hca.as_ref().map(|hca| hca.attributes().node_guid)
        });
        assert_eq!(guid, Some(node_guid(at)));
        let view = subnet.port(at).view();
        assert_eq!(view.pkeys, [PKey::DEFAULT_FULL, SECOND_PKEY]);
        assert_eq!(view.guids.len(), 1);
        assert_eq!(view.sm_lid, subnet.port(A1).view().sm_lid);
    }
    let [a1, a2, b1] = [A1, A2, B1].map(|at| (subnet.port(at).view().lid, gid(&subnet, at)));
    assert_eq!(a1.0, a2.0, "VFs of a port share its LID");
    assert_ne!(a1.0, b1.0);
    assert!(a1.1 != a2.1 && a1.1 != b1.1 && a2.1 != b1.1);
}

#[test]
fn datagrams_pass_between_hosts_and_between_siblings_within_each_partition() {
    let mut subnet = subnet();
    for (partition, pkey) in [
        (Partition::Index(PKeyIndex(0)), PKey::DEFAULT_FULL),
        (Partition::Key(SECOND_PKEY), SECOND_PKEY),
    ] {
        let [a1, a2, b1] = [A1, A2, B1].map(|at| (at, open_qp(&mut subnet, at, partition)));
        for (from, to) in [(a1, b1), (b1, a2), (a1, a2)] {
            let got = exchange(&mut subnet, from, to, pkey);
            assert_eq!(got.as_deref(), Some(&b"hello"[..]), "{from:?} {to:?}");
        }
    }
}

#[test]
fn a_datagram_of_another_partition_does_not_arrive() {
    let mut subnet = subnet();
    let a1 = open_qp(&mut subnet, A1, Partition::Key(SECOND_PKEY));
    let b1 = default_qp(&mut subnet, B1);
    let got = exchange(&mut subnet, (A1, a1), (B1, b1), PKey::DEFAULT_FULL);
    assert_eq!(got, None);
}

#[test]
fn a_queue_pair_in_no_partition_of_the_vf_is_refused() {
    let mut subnet = subnet();
    let mut open = |partition| {
        let spec = UdQpSpec::new(partition, QKEY);
        subnet.on_port(A1, |_, port, hca| port.open_qp(hca, &spec))
    };
    let foreign = PKey::new(0x8003);
    assert_eq!(
        open(Partition::Key(foreign)),
        Err(VfPortError::NoPKey(foreign))
    );
    let beyond = open(Partition::Index(PKeyIndex(2)));
    assert_eq!(beyond, Err(hca_api::HcaError::InvalidIndex.into()));
    let before = subnet.owned(A1);
    assert_eq!((before.qps, before.cqs), (1, 1), "the proxy QP");
}

#[test]
fn a_datagram_raises_one_event_until_all_are_taken() {
    let mut subnet = subnet();
    let (a1, b1) = (default_qp(&mut subnet, A1), default_qp(&mut subnet, B1));
    let path = resolve(&mut subnet, A1, B1, None);
    let to = path.destination(qpn(&subnet, B1, b1), QKEY);
    let send = |subnet: &mut VfSubnet| {
        subnet
            .on_port(A1, |_, port, hca| port.send(hca, a1, &to, b"x"))
            .expect("it is sent");
        subnet.run_for(std::time::Duration::from_millis(1));
    };
    let readable = |subnet: &mut VfSubnet| {
        let events = std::iter::from_fn(|| subnet.poll_event(B1));
        let event = VfPortEvent::Readable(b1);
        events
            .filter(
                |told| matches!(told, VirtualHcaEvent::Port { event: told, .. } if *told == event),
            )
            .count()
    };
    for _ in 0..2 {
        send(&mut subnet);
        send(&mut subnet);
        assert_eq!(readable(&mut subnet), 1);
        let all = subnet.on_port(B1, |_, port, hca| {
            std::iter::from_fn(|| port.receive(hca, b1)).count()
        });
        assert_eq!(all, 2);
    }
}

#[test]
fn sends_beyond_the_buffers_go_on_and_what_arrived_meanwhile_is_kept() {
    let mut subnet = subnet();
    let spec = UdQpSpec {
        sends: 2,
        receives: 4,
        ..UdQpSpec::new(Partition::Index(PKeyIndex(0)), QKEY)
    };
    let a1 = subnet
        .on_port(A1, |_, port, hca| port.open_qp(hca, &spec))
        .expect("a queue pair");
    let path = resolve(&mut subnet, A1, A1, None);
    let own = path.destination(qpn(&subnet, A1, a1), QKEY);
    // To itself: each send is also something to receive.
    let got = subnet.on_port(A1, |_, port, hca| {
        for _ in 0..8 {
            port.send(hca, a1, &own, b"x").expect("it is sent");
        }
        std::iter::from_fn(|| port.receive(hca, a1)).count()
    });
    let overrun = subnet.port(A1).qp(a1).expect("a queue pair").overrun();
    assert!((4..=8).contains(&got), "{got} received");
    assert_eq!(got as u64 + overrun, 8);
}

#[test]
fn a_path_to_nowhere_is_refused_by_the_sa() {
    let mut subnet = subnet();
    let nobody = Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(0xdead));
    let none = try_resolve(&mut subnet, A1, nobody, None);
    assert!(
        matches!(none, Err(ResolveError::Sa(SaError::Status(status))) if status != MadStatus::OK),
        "{none:?}"
    );
}

fn cm_event<T>(
    subnet: &mut VfSubnet,
    at: VfAt,
    mut pick: impl FnMut(&CmEventKind) -> Option<T>,
) -> (ConnId, T) {
    subnet.wait(at, |event| match event {
        VfPortEvent::Cm(event) => pick(&event.kind).map(|found| (event.conn, found)),
        _ => None,
    })
}

fn listen(subnet: &mut VfSubnet, at: VfAt) {
    subnet
        .on_port(at, |_, port, _| port.cm().listen(SERVICE, u64::MAX))
        .expect("a free service id");
}

/// Connects queue pairs of such numbers of two VFs: REQ, REP, RTU.
fn connect(subnet: &mut VfSubnet, from: VfAt, to: VfAt, qpns: [u32; 2]) {
    let [active_qpn, passive_qpn] = qpns.map(Qpn::from_low_bits);
    let path = resolve(subnet, from, to, None);
    let req = path.request(SERVICE, active_qpn);
    let active = subnet
        .on_port(from, |now, port, _| port.connect(now, &path, &req))
        .expect("a REQ");
    let (passive, asked) = cm_event(subnet, to, |kind| match kind {
        CmEventKind::ReqReceived { req, .. } => Some(req.clone()),
        _ => None,
    });
    assert_eq!(asked.primary.local_gid, gid(subnet, from));
    assert_eq!(asked.local_ca_guid, node_guid(from));
    let rep = CmRep {
        local_qpn: passive_qpn,
        ..CmRep::default()
    };
    subnet
        .on_port(to, |now, port, _| port.cm().send_rep(now, passive, &rep))
        .expect("a REP");
    cm_event(subnet, from, |kind| {
        matches!(kind, CmEventKind::RepReceived(rep) if rep.local_qpn == passive_qpn).then_some(())
    });
    subnet
        .on_port(from, |now, port, _| port.cm().send_rtu(now, active, b""))
        .expect("an RTU");
    cm_event(subnet, to, |kind| {
        matches!(kind, CmEventKind::RtuReceived(_)).then_some(())
    });
    for (at, conn) in [(from, active), (to, passive)] {
        let info = subnet.on_port(at, |_, port, _| port.cm().info(conn));
        assert_eq!(info.map(|info| info.state), Some(State::Established));
    }
}

#[test]
fn vfs_of_two_hosts_and_of_one_host_connect() {
    let mut subnet = subnet();
    for at in [A2, B1] {
        listen(&mut subnet, at);
    }
    connect(&mut subnet, A1, B1, [0x700, 0x800]);
    connect(&mut subnet, A1, A2, [0x701, 0x800]);
}

#[test]
fn a_service_of_a_vf_is_found_by_sidr_and_its_queue_pair_reached() {
    let mut subnet = subnet();
    listen(&mut subnet, B1);
    let (a1, b1) = (default_qp(&mut subnet, A1), default_qp(&mut subnet, B1));
    let path = resolve(&mut subnet, A1, B1, None);
    let asked = subnet.on_port(A1, |now, port, _| {
        let request = path.sidr_request(SERVICE);
        let timeout = std::time::Duration::from_secs(1);
        port.cm()
            .send_sidr_req(now, &path.gsi(), &request, timeout, 3)
    });
    asked.expect("a request");
    let (conn, ()) = cm_event(&mut subnet, B1, |kind| {
        matches!(kind, CmEventKind::SidrReqReceived { .. }).then_some(())
    });
    let answer = CmSidrRep {
        qpn: qpn(&subnet, B1, b1),
        qkey: QKEY,
        ..CmSidrRep::default()
    };
    subnet
        .on_port(B1, |now, port, _| {
            port.cm().send_sidr_rep(now, conn, &answer)
        })
        .expect("an answer");
    let (_, (found, qkey)) = cm_event(&mut subnet, A1, |kind| match kind {
        CmEventKind::SidrRepReceived { rep, .. } => Some((rep.qpn, rep.qkey)),
        _ => None,
    });
    let to = path.destination(found, qkey);
    subnet
        .on_port(A1, |_, port, hca| port.send(hca, a1, &to, b"found"))
        .expect("it is sent");
    subnet.wait(B1, |event| {
        (*event == VfPortEvent::Readable(b1)).then_some(())
    });
    let got = subnet.on_port(B1, |_, port, hca| port.receive(hca, b1));
    assert_eq!(got.map(|got| got.bytes).as_deref(), Some(&b"found"[..]));
}

fn wait_change(subnet: &mut VfSubnet, at: VfAt, bits: PortChange) -> PortChange {
    subnet.wait(at, |event| match event {
        VfPortEvent::Changed(change) if change.contains(bits) => Some(*change),
        _ => None,
    })
}

#[test]
fn a_vf_is_told_that_the_administrator_shuts_and_opens_its_port() {
    let mut subnet = subnet();
    let vf = VfId::new(1).expect("a VF");
    for (up, told) in [(false, PortChange::DOWN), (true, PortChange::ACTIVE)] {
        subnet
            .on_pf(0, |_, pf, _| pf.set_admin_up(vf, PORT, up))
            .expect("a VF");
        wait_change(&mut subnet, A1, told);
    }
    let got = std::iter::from_fn(|| subnet.poll_event(A2)).count();
    assert_eq!(got, 0, "its sibling is told nothing");
    // It works again.
    let (a1, b1) = (default_qp(&mut subnet, A1), default_qp(&mut subnet, B1));
    assert!(exchange(&mut subnet, (A1, a1), (B1, b1), PKey::DEFAULT_FULL).is_some());
}

#[test]
fn closing_gives_back_every_object_of_a_vf() {
    let mut subnet = subnet();
    let qp = default_qp(&mut subnet, A1);
    open_qp(&mut subnet, A1, Partition::Key(SECOND_PKEY));
    assert_eq!(subnet.owned(A1).qps, 3);
    subnet
        .on_port(A1, |_, port, hca| port.close_qp(hca, qp))
        .expect("a queue pair");
    assert_eq!(subnet.owned(A1).qps, 2);
    subnet.close(A1);
    assert_eq!(subnet.owned(A1), ResourceCounts::default());
    subnet.open(A1);
    let (a1, b1) = (default_qp(&mut subnet, A1), default_qp(&mut subnet, B1));
    assert!(exchange(&mut subnet, (A1, a1), (B1, b1), PKey::DEFAULT_FULL).is_some());
}

#[test]
fn a_vf_that_is_reset_by_its_pf_is_told_and_begins_anew_at_once() {
    let mut subnet = subnet();
    listen(&mut subnet, B1);
    connect(&mut subnet, A1, B1, [0x700, 0x800]);
    default_qp(&mut subnet, A1);
    subnet.reset(A1);
    assert_eq!(subnet.owned(A1), ResourceCounts::default());
    subnet.run_for(std::time::Duration::from_millis(1));
    let told: Vec<_> = std::iter::from_fn(|| subnet.poll_event(A1)).collect();
    assert_eq!(told.last(), Some(&VirtualHcaEvent::Dead));
    subnet.on_vf(A1, |now, hca, function| {
        let hca = hca.as_mut().expect("it is still held");
        assert!(hca.is_dead());
        hca.reopen(now, function).expect("it begins anew");
        assert!(!hca.is_dead());
    });
    connect(&mut subnet, A1, B1, [0x701, 0x801]);
    let (a1, b1) = (default_qp(&mut subnet, A1), default_qp(&mut subnet, B1));
    assert!(exchange(&mut subnet, (A1, a1), (B1, b1), PKey::DEFAULT_FULL).is_some());
}

#[test]
fn a_reset_that_the_program_has_not_heard_of_does_not_end_the_next_life() {
    let mut subnet = subnet();
    subnet.reset(A1);
    subnet.on_vf(A1, |now, hca, function| {
        let hca = hca.as_mut().expect("it is held");
        hca.reopen(now, function).expect("it begins anew");
    });
    subnet.run_for(std::time::Duration::from_secs(1));
    let dead = std::iter::from_fn(|| subnet.poll_event(A1)).any(|e| e == VirtualHcaEvent::Dead);
    assert!(!dead);
    let b1 = gid(&subnet, B1);
    assert!(try_resolve(&mut subnet, A1, b1, None).is_ok());
}

#[test]
fn a_vf_that_begins_anew_by_itself_leaves_nothing_of_its_old_life() {
    let mut subnet = subnet();
    default_qp(&mut subnet, A1);
    let opened = subnet.owned(A1);
    subnet.on_vf(A1, |now, hca, function| {
        let hca = hca.as_mut().expect("it is held");
        hca.reopen(now, function).expect("it begins anew");
    });
    let again = subnet.owned(A1);
    assert_eq!((opened.qps, again.qps), (2, 1));
    let b1 = gid(&subnet, B1);
    assert!(try_resolve(&mut subnet, A1, b1, None).is_ok());
}
