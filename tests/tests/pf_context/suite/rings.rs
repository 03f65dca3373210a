//! Frames that wait for queue pairs that are full or not served.

use ib_wire::Qpn;
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};
use pf_context::MadStatistics;
use pf_context::context::{PfEvent, PfPort};
use vf_tunnel::DropReason;

use super::*;

/// Builds an SA query.
pub(crate) fn query(tid: u64) -> Mad {
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_ADM,
        Method::GET,
        AttributeId::NODE_RECORD,
    ));
    mad.header.tid = Tid::new(tid);
    mad
}

/// Counts the frames of a VF that left its tunnel or were dropped.
pub(crate) fn seen(statistics: &MadStatistics) -> u64 {
    let total = statistics.total();
    total.to_wire + total.loopback + statistics.dropped()
}

/// Sends `count` SA queries from a guest.
pub(crate) fn ask(rig: &mut Rig, n: u16, count: u64) {
    for tid in 1..=count {
        send(rig, n, &MadAddress::gsi(Lid::new(9)), &query(tid));
    }
}

/// Sends a guest's join of a group.
pub(crate) fn join(rig: &mut Rig, n: u16) {
    let mut record = McMemberRecord {
        mgid: Gid([
            0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        ]),
        port_gid: Gid::from_parts(SubnetPrefix::DEFAULT, alias(n)),
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let request = SaMad::new(Method::SET, mask, &record);
    send(
        rig,
        n,
        &MadAddress::gsi(Lid::new(9)),
        &Mad::from_layout(&request),
    );
}

fn send(rig: &mut Rig, n: u16, to: &MadAddress, mad: &Mad) {
    let mut hca = rig.device.function(FunctionId(n)).expect("a VF");
    let guest = guest(&mut rig.host, usize::from(n - 1));
    let sent = guest.gsi_transport().send(&mut hca, to, mad);
    sent.expect("a proxy QP with room");
}

fn port(rig: &Rig) -> &PfPort {
    &rig.host.context().ports()[0]
}

/// Delivers the HCA's events and polls the context once. Returns `true` if more may be due.
fn poll(rig: &mut Rig) -> bool {
    let (pf, mut hca) = rig.pf();
    while let Some(event) = hca.poll_event() {
        pf.handle_hca_event(NOW, &mut hca, &event);
    }
    pf.poll(NOW, &mut hca)
}

fn datagram(n: u32) -> Mad {
    let mut mad = Mad::new(ib_wire::cm::header(AttributeId::CM_SIDR_REQ));
    let req: &mut CmSidrReq = mad.view_mut();
    req.request_id = CommId::new(n);
    req.service_id = ServiceId::new(n.into());
    req.pkey = ib_wire::PKey::DEFAULT_FULL;
    mad
}

/// Returns the service ids of the requests that a guest received, in order.
fn received(rig: &mut Rig, n: u16) -> Vec<u64> {
    let mut hca = rig.device.function(FunctionId(n)).expect("a VF");
    let guest = guest(&mut rig.host, usize::from(n - 1));
    let mads = std::iter::from_fn(|| guest.gsi_transport().poll(&mut hca));
    mads.map(|(_, mad)| mad.view::<CmSidrReq>().service_id.get())
        .collect()
}

#[test]
fn an_eighth_of_qp1s_ring_is_kept_for_the_ports_own() {
    let mut config = PfConfig::new(7);
    config.depths.special = 32;
    let mut rig = Rig::with(1, &config);
    while rig.device.poll_transmit(NOW, PORT).is_some() {}
    rig.settle();
    ask(&mut rig, 1, 50);
    while poll(&mut rig) {}
    let queued = port(&rig).mux().sizes().queued;
    let on_their_way = std::iter::from_fn(|| rig.device.poll_transmit(NOW, PORT)).count();
    assert!(!port(&rig).is_at_rest(), "sends that are not completed");
    assert_eq!((queued, on_their_way), (50 - 28, 28));
}

#[test]
fn a_call_takes_no_more_than_its_budget_and_says_that_there_is_more() {
    let mut config = PfConfig::new(7);
    config.budget = 4;
    let mut rig = Rig::with(2, &config);
    while poll(&mut rig) {}
    for n in [1, 2] {
        ask(&mut rig, n, 10);
    }
    let count = |rig: &Rig| -> u64 {
        [1, 2]
            .map(|n| seen(port(rig).mux().vf_statistics(vf(n)).expect("a VF")))
            .iter()
            .sum()
    };
    let before = count(&rig);
    for calls in 1..=5 {
        let is_busy = poll(&mut rig);
        assert_eq!(count(&rig) - before, 4 * calls);
        assert!(is_busy || calls == 5, "there is more after {calls} calls");
    }
    while poll(&mut rig) {}
    assert_eq!(count(&rig) - before, 20);
}

/// Sends six datagrams from VF 1 to VF 2. Most of them wait for the tunnel of VF 2.
fn with_frames_that_wait() -> Rig {
    let mut config = PfConfig::new(7);
    config.depths.tunnel_sends = 1;
    let mut rig = Rig::with(2, &config);
    while poll(&mut rig) {}
    assert!(port(&rig).is_at_rest());
    for n in 1..=6 {
        send(&mut rig, 1, &to_sibling(2), &datagram(n));
    }
    poll(&mut rig);
    assert_eq!(port(&rig).waiting(vf(1)), 0);
    let waiting = port(&rig).waiting(vf(2));
    assert!(waiting > 1, "{waiting}");
    assert!(!port(&rig).is_at_rest());
    rig
}

#[test]
fn frames_that_wait_for_a_tunnel_keep_their_order() {
    let mut rig = with_frames_that_wait();
    while poll(&mut rig) || port(&rig).waiting(vf(2)) > 0 {}
    assert_eq!(received(&mut rig, 2), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn frames_that_wait_for_a_tunnel_end_with_a_reset() {
    let mut rig = with_frames_that_wait();
    let (pf, mut hca) = rig.pf();
    pf.reset_vf(NOW, &mut hca, vf(2)).expect("a VF");
    assert_eq!(port(&rig).waiting(vf(2)), 0);
}

#[test]
fn a_thousand_drops_are_told_one_by_one_and_more_once_these_were_taken() {
    let mut rig = Rig::new(1);
    let bad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_LID_ROUTED,
        Method::SET,
        AttributeId::CLASS_PORT_INFO,
    ));
    for (sent, told) in [(1_040, 1_024), (40, 40)] {
        for _ in 0..sent / 20 {
            for _ in 0..20 {
                send(&mut rig, 1, &MadAddress::gsi(Lid::new(9)), &bad);
            }
            while poll(&mut rig) {}
            let mut hca = rig.device.function(FunctionId(1)).expect("a VF");
            while guest(&mut rig.host, 0)
                .gsi_transport()
                .poll(&mut hca)
                .is_some()
            {}
        }
        let events = std::iter::from_fn(|| rig.host.context_mut().poll_event());
        let drops = events.filter(|event| matches!(event, PfEvent::Dropped { .. }));
        assert_eq!(drops.count(), told);
    }
}

#[test]
fn a_vfs_global_packet_leaves_under_its_own_gid_and_shows_it_to_a_sibling() {
    let mut rig = Rig::new(3);
    while rig.device.poll_transmit(NOW, PORT).is_some() {}
    let mut far = to_sibling(1);
    far.lid = Lid::new(20);
    let route = far.grh.as_mut().expect("a route");
    route.remote_gid = Gid([7; 16]);
    send(&mut rig, 2, &far, &query(1));
    while poll(&mut rig) {}
    let frame = rig.device.poll_transmit(NOW, PORT).expect("a packet");
    let own = Gid::from_parts(SubnetPrefix::DEFAULT, alias(2));
    let bytes = frame.bytes();
    assert!(bytes.windows(16).any(|window| window == own.0));

    send(&mut rig, 2, &to_sibling(3), &datagram(5));
    while poll(&mut rig) {}
    let mut hca = rig.device.function(FunctionId(3)).expect("a VF");
    let (from, _) = guest(&mut rig.host, 2)
        .gsi_transport()
        .poll(&mut hca)
        .expect("a datagram");
    let route = from.grh.expect("a route");
    assert_eq!((route.remote_gid, route.hop_limit), (own, 1));
    assert_eq!(from.qpn, Qpn::GSI);
}

#[test]
fn nothing_is_refused_by_an_adapter_that_is_well() {
    let mut rig = Rig::new(2);
    sidr_between_siblings(&mut rig);
    assert_eq!(port(&rig).refused_sends(), 0);
    let dropped = port(&rig).mux().vf_statistics(vf(2)).expect("a VF");
    assert_eq!(dropped.drops(DropReason::Backpressure), 0);
}
