//! Attaching, and what happens when the simulator is not there or goes away.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn failure(bench: &Bench) -> Option<Failure> {
    match bench.uplink.state() {
        UplinkState::Waiting { failure, .. } => Some(failure),
        _ => None,
    }
}

#[test]
fn an_uplink_that_attaches_tells_who_the_node_is_and_brings_the_adapter_up() {
    let bench = Bench::up(GuidPolicy::Fabric);
    assert_eq!(bench.uplink.state(), UplinkState::Attached { slot: SLOT });
    let [identity] = bench.identities[..] else {
        panic!("one identity");
    };
    assert_eq!(identity.node_guid, Guid::new(NODE_GUID));
    assert_eq!(identity.port_guid, Guid::new(NODE_GUID + 1));
    assert_eq!((identity.guid_table_len, identity.pkey_table_len), (32, 64));
    let port = bench.adapter_port().unwrap();
    assert_eq!(
        (port.lid, port.sm_lid, port.guid),
        (LID, SM_LID, identity.port_guid)
    );
    assert_eq!(port.subnet_timeout, 17);
}

#[test]
fn without_a_simulator_attempts_become_rarer_and_the_first_that_succeeds_attaches() {
    let mut bench = Bench::new(GuidPolicy::Fabric);
    bench.is_there = false;
    let mut pauses = Vec::new();
    for _ in 0..7 {
        bench.poll();
        assert_eq!(failure(&bench), Some(Failure::Gone));
        let retry_at = bench.uplink.poll_timeout(bench.now).unwrap();
        pauses.push(retry_at - bench.now);
        bench.now = retry_at;
    }
    assert!(pauses.is_sorted());
    assert_eq!((pauses[0], pauses[6]), (SECOND / 10, SECOND * 2));
    bench.is_there = true;
    assert!(bench.run_until(SECOND * 5, Bench::is_up));
}

#[test]
fn a_simulator_that_refuses_or_says_nothing_is_asked_again_later() {
    let mut bench = Bench::new(GuidPolicy::Fabric);
    bench.sim.is_full = true;
    bench.poll();
    assert_eq!(failure(&bench), Some(Failure::Refused));
    bench.sim.is_full = false;
    bench.sim.is_silent = true;
    let silent = |bench: &mut Bench| failure(bench) == Some(Failure::Silent);
    assert!(bench.run_until(SECOND * 10, silent));
    bench.sim.is_silent = false;
    assert!(bench.run_until(SECOND * 5, Bench::is_up));
}

#[test]
fn a_simulator_that_dies_takes_the_port_down_and_one_that_comes_back_up_again() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    bench.is_there = false;
    assert!(bench.run_until(SECOND * 2, |bench| !bench.is_up()));
    assert_eq!(failure(&bench), Some(Failure::Gone));
    bench.is_there = true;
    assert!(bench.run_until(SECOND * 5, Bench::is_up));
    assert_eq!(bench.cables, [true, false, true]);
    assert_eq!(bench.identities.len(), 1);
    assert_eq!(bench.uplink.counters().attached, 2);
}

#[test]
fn a_simulator_that_falls_silent_counts_as_gone_after_some_seconds() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    bench.sim.is_silent = true;
    bench.run_for(SECOND * 3);
    assert!(bench.is_up());
    bench.run_for(SECOND * 4);
    assert!(!bench.is_up());
    assert!(matches!(failure(&bench), Some(Failure::Silent) | None));
}

#[test]
fn a_node_that_is_another_one_after_a_restart_leaves_the_port_down() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    bench.is_there = false;
    bench.run_for(SECOND * 2);
    bench.is_there = true;
    bench.sim.node.node_guid = Guid::new(0x9999);
    let other = |bench: &mut Bench| failure(bench) == Some(Failure::OtherNode);
    assert!(bench.run_until(SECOND * 5, other));
    assert!(!bench.is_up());
    bench.sim.node.node_guid = Guid::new(NODE_GUID);
    assert!(bench.run_until(SECOND * 5, Bench::is_up));
}

#[test]
fn an_uplink_that_closes_says_so() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    bench.uplink.close();
    let outputs = bench.outputs();
    let [UplinkOutput::Control(bytes), UplinkOutput::Close] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    let control = Control::parse(&bytes[..]).unwrap();
    assert_eq!(control.kind, ControlKind::DISCONNECT);
    assert_eq!(control.slot.get(), SLOT);
}

#[test]
fn sockets_that_fail_before_they_are_opened_are_asked_for_again_later() {
    let mut bench = Bench::new(GuidPolicy::Fabric);
    bench.uplink.failed(bench.now);
    let outputs = bench.outputs();
    assert!(matches!(outputs[..], [UplinkOutput::Close]), "{outputs:?}");
    bench.uplink.opened(bench.now, 77);
    assert!(bench.outputs().is_empty(), "nobody asked");
    assert!(bench.run_until(SECOND, Bench::is_up));
}
