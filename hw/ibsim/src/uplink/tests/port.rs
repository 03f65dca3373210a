//! The adapter's port follows the simulated one.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_port_without_a_subnet_manager_waits_in_initialize() {
    let mut bench = Bench::new(GuidPolicy::Fabric);
    bench.sim.port().state = PortState::Init;
    bench.sim.port().lid = Lid::NONE;
    bench.sim.port().sm_lid = Lid::NONE;
    bench.run_for(SECOND);
    assert_eq!(bench.adapter_port().unwrap().state, PortState::Init);
    let port = bench.sim.port();
    (port.lid, port.sm_lid, port.state) = (LID, SM_LID, PortState::Armed);
    let armed = |bench: &mut Bench| bench.adapter_port().unwrap().state == PortState::Armed;
    assert!(bench.run_until(SECOND, armed));
    bench.sim.port().state = PortState::Active;
    assert!(bench.run_until(SECOND, Bench::is_up));
}

#[test]
fn addresses_keys_and_states_follow_within_a_second() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    let port = bench.sim.port();
    port.lid = Lid::new(16);
    port.lmc = ib_wire::Lmc::new(2).unwrap();
    port.sm_lid = Lid::new(2);
    port.subnet_prefix = ib_wire::SubnetPrefix::new(0xfec0_0000_0000_0001);
    let mut keys = ib_wire::smp::PKeyTable::default();
    keys.pkeys[..2].copy_from_slice(&[PKey::DEFAULT_FULL, PKey::new(0x8001)]);
    bench.sim.set(0, keys);
    bench.run_for(SECOND);
    let port = bench.adapter_port().unwrap();
    assert_eq!((port.lid, port.sm_lid), (Lid::new(16), Lid::new(2)));
    assert_eq!(port.lmc.get(), 2);
    assert_eq!(port.subnet_prefix.get(), 0xfec0_0000_0000_0001);
    assert_eq!(port.pkey(PKeyIndex(1)), Some(PKey::new(0x8001)));
    assert_eq!(port.state, PortState::Active);
    // A key that is revoked goes, too.
    keys.pkeys[1] = PKey::INVALID;
    bench.sim.set(0, keys);
    bench.run_for(SECOND);
    let port = bench.adapter_port().unwrap();
    assert_eq!(port.pkey(PKeyIndex(1)), Some(PKey::INVALID));
}

#[test]
fn a_port_that_is_said_to_manage_itself_does_not_come_up() {
    let mut bench = Bench::new(GuidPolicy::Fabric);
    bench.sim.port().sm_lid = LID;
    bench.run_for(SECOND);
    assert_eq!(bench.adapter_port().unwrap().state, PortState::Init);
    bench.sim.port().sm_lid = SM_LID;
    assert!(bench.run_until(SECOND, Bench::is_up));
}

#[test]
fn the_adapter_has_its_keys_before_it_is_up() {
    let mut bench = Bench::new(GuidPolicy::Fabric);
    let mut keys = ib_wire::smp::PKeyTable::default();
    keys.pkeys[..2].copy_from_slice(&[PKey::DEFAULT_LIMITED, PKey::new(0x8001)]);
    bench.sim.set(0, keys);
    keys.pkeys[0] = PKey::new(0x8002);
    bench.sim.set(1, keys);
    assert!(bench.run_until(SECOND, Bench::is_up));
    let port = bench.adapter_port().unwrap();
    let read = [0, 1, 32].map(|index| port.pkey(PKeyIndex(index)).unwrap().get());
    assert_eq!(read, [0x7fff, 0x8001, 0x8002]);
    // A block that loses all of its keys does so here, too.
    bench.sim.set(1, ib_wire::smp::PKeyTable::default());
    bench.run_for(SECOND);
    let port = bench.adapter_port().unwrap();
    assert_eq!(port.pkey(PKeyIndex(32)), Some(PKey::INVALID));
}

#[test]
fn a_link_that_is_cut_in_the_simulator_is_cut_here_and_comes_back() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    bench.sim.port().state = PortState::Down;
    bench.sim.port().physical_state = PhysicalState::Polling;
    bench.run_for(SECOND);
    let port = bench.adapter_port().unwrap();
    assert_eq!(port.state, PortState::Down);
    assert_eq!(port.physical_state, PhysicalState::Polling);
    bench.sim.port().state = PortState::Active;
    assert!(bench.run_until(SECOND, Bench::is_up));
}

#[test]
fn a_port_that_goes_back_to_initialize_takes_the_adapter_there() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    bench.sim.port().state = PortState::Init;
    bench.run_for(SECOND);
    assert_eq!(bench.adapter_port().unwrap().state, PortState::Init);
    assert_eq!(bench.cables, [true], "the cable stays in");
    bench.sim.port().state = PortState::Active;
    assert!(bench.run_until(SECOND, Bench::is_up));
}

/// Whether the port's clients were told to register again since the last call.
fn reregistered(bench: &mut Bench) -> bool {
    let (host, _, _) = bench.adapter.unwrap();
    let adapter = bench.fabric.device_mut(host).unwrap();
    let changes = core::mem::replace(&mut adapter.changes, PortChange::empty());
    changes.contains(PortChange::CLIENT_REREGISTER)
}

#[test]
fn a_subnet_manager_that_starts_anew_has_clients_register_again() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    bench.run_for(SECOND);
    assert!(reregistered(&mut bench), "after the cable was plugged in");
    bench.sim.sm = Some(sm(200));
    bench.run_for(SECOND);
    assert!(!reregistered(&mut bench), "one that goes on counting");
    // Restarted so fast that nobody saw it away.
    bench.sim.sm = Some(sm(50));
    bench.run_for(SECOND);
    assert!(reregistered(&mut bench));
    // Away for a while, and busier than before.
    bench.sim.sm = None;
    bench.run_for(SECOND);
    assert!(!bench.uplink.sm_answers() && bench.uplink.sm_is_silent());
    bench.sim.sm = Some(sm(500));
    bench.run_for(SECOND);
    assert!(bench.uplink.sm_answers() && !bench.uplink.sm_is_silent());
    assert!(reregistered(&mut bench));
    // Another one.
    let other = SmInfo {
        guid: Guid::new(0x6001),
        ..sm(900)
    };
    bench.sim.sm = Some(other);
    bench.run_for(SECOND);
    assert!(reregistered(&mut bench));
    assert_eq!(bench.uplink.counters().sm_changes, 3);
}

#[test]
fn traps_of_the_adapter_end_at_the_uplink_and_are_repeated_no_more() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    let (host, _, _) = bench.adapter.unwrap();
    let node = bench.fabric.device_mut(host).unwrap().node_mut();
    node.change_capabilities(PORT, ib_wire::smp::CapabilityMask::IS_SM.get(), 0);
    bench.run_for(SECOND * 20);
    assert_eq!(bench.uplink.counters().lost(Loss::Trap), 1);
    assert!(bench.sim.inbox.is_empty());
}
