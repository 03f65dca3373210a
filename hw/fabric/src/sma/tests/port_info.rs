use hca_api::{PhysicalState, PortChange, PortState};
use ib_wire::smp::{
    self, CapabilityMask, LinkDownDefaultState, LinkSpeed, LinkSpeedExt, LinkWidth, PortPhysState,
    SwitchInfo,
};
use ib_wire::{Lmc, Mtu, SubnetPrefix};

use super::*;
use crate::node::LinkRequest;

/// A node whose port 1 has a link in some state.
fn with_state(state: PortState) -> Node {
    let mut node = adapter();
    let port = node.port_mut(PORT).unwrap();
    port.physical_state = PhysicalState::LinkUp;
    port.state = state;
    node
}

#[test]
fn a_set_stores_what_the_sm_writes_and_tells_the_functions() {
    let mut node = adapter();
    let mut info = managed(&mut node, 0);
    info.set_lmc(Lmc::from_low_bits(2));
    info.gid_prefix = SubnetPrefix::new(0xfec0_0000_0000_0000);
    info.set_master_sm_sl(Sl::from_low_bits(3));
    info.set_neighbor_mtu(Mtu::MTU_2048);
    info.set_operational_vls(2);
    info.set_subnet_timeout(15);
    info.vl_high_limit = 9;
    info.set_hoq_life(11);
    info.set_vl_stall_count(2);
    info.set_client_reregister(true);
    let answer = set(&mut node, 0, info);
    assert!(answer.client_reregister());
    let stored: PortInfo = get(&mut node, 1);
    assert!(!stored.client_reregister());
    info.set_client_reregister(false);
    info.set_port_state(smp::PortState::DOWN);
    info.set_phys_state(PortPhysState::POLLING);
    assert_eq!(stored, info);
    let (port, change) = node.take_port_change().unwrap();
    assert_eq!(port, PORT);
    assert_eq!(
        change,
        PortChange::LID | PortChange::SM | PortChange::GID_TABLE | PortChange::CLIENT_REREGISTER
    );
    let port = node.port(PORT).unwrap();
    assert!(port.owns_lid(Lid::new(11)) && !port.owns_lid(Lid::new(12)));
}

#[test]
fn reregistration_is_not_told_on_a_port_that_does_not_announce_it() {
    let mut node = adapter();
    let bit = CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED.get();
    node.change_capabilities(PORT, 0, bit);
    let info = managed(&mut node, 0);
    set(&mut node, 0, info);
    node.take_port_change();
    let mut info = managed(&mut node, 0);
    info.set_client_reregister(true);
    set(&mut node, 0, info);
    assert_eq!(node.take_port_change(), None);
}

#[test]
fn a_set_with_an_illegal_field_changes_nothing() {
    let spoil: [fn(&mut PortInfo); 13] = [
        |info| info.lid = Lid::NONE,
        |info| info.lid = Lid::FIRST_MULTICAST,
        |info| info.lid = Lid::PERMISSIVE,
        |info| info.master_sm_lid = Lid::NONE,
        |info| info.set_neighbor_mtu(Mtu::new(0)),
        |info| info.set_neighbor_mtu(Mtu::new(6)),
        |info| info.set_operational_vls(5),
        |info| info.link_width_enabled = LinkWidth::X12,
        |info| info.set_link_speed_enabled(LinkSpeed::from_low_bits(8)),
        |info| info.set_phys_state(PortPhysState::LINK_UP),
        |info| info.set_port_state(smp::PortState::INIT),
        |info| info.set_port_state(smp::PortState::ARMED),
        |info| info.set_link_down_default(LinkDownDefaultState::new(3)),
    ];
    for spoil in spoil {
        let mut node = adapter();
        let mut info = managed(&mut node, 0);
        info.vl_high_limit = 77;
        spoil(&mut info);
        let (status, _) = ask(&mut node, Method::SET, 0, info);
        assert_eq!(status, MadStatus::INVALID_FIELD, "{info:?}");
        assert_ne!(node.port(PORT).unwrap().vl_high_limit, 77);
        assert_eq!(node.take_port_change(), None);
    }
}

#[test]
fn widths_and_speeds_are_left_alone_by_zero_and_all_supported_by_all_ones() {
    let mut node = adapter();
    let mut info = managed(&mut node, 0);
    info.link_width_enabled = LinkWidth::X1;
    info.set_link_speed_enabled(LinkSpeed::SDR);
    set(&mut node, 0, info);
    info.link_width_enabled = LinkWidth(0);
    info.set_link_speed_enabled(LinkSpeed::from_low_bits(0));
    let stored = set(&mut node, 0, info);
    assert_eq!(stored.link_width_enabled, LinkWidth::X1);
    assert_eq!(stored.link_speed_enabled(), LinkSpeed::SDR);
    info.link_width_enabled = LinkWidth::ALL_SUPPORTED;
    info.set_link_speed_enabled(LinkSpeed::ALL_SUPPORTED);
    let stored = set(&mut node, 0, info);
    assert_eq!(stored.link_width_enabled, stored.link_width_supported);
    assert_eq!(stored.link_speed_enabled(), stored.link_speed_supported());
}

#[test]
fn extended_speeds_count_only_for_an_sm_that_knows_them() {
    const KNOWS: u32 = 1 << 31;
    let mut node = adapter();
    let mut info = managed(&mut node, 0);
    info.set_link_speed_ext_enabled(LinkSpeedExt::DISABLE);
    let stored = set(&mut node, 1, info);
    assert_eq!(stored.link_speed_ext_enabled(), LinkSpeedExt::FDR);
    let stored = set(&mut node, KNOWS | 1, info);
    assert_eq!(stored.link_speed_ext_enabled(), LinkSpeedExt::NONE);
    info.set_link_speed_ext_enabled(LinkSpeedExt::ALL_SUPPORTED);
    let stored = set(&mut node, KNOWS | 1, info);
    assert_eq!(stored.link_speed_ext_enabled(), LinkSpeedExt::FDR);
    info.set_link_speed_ext_enabled(LinkSpeedExt::EDR);
    let (status, _) = ask(&mut node, Method::SET, KNOWS | 1, info);
    assert_eq!(status, MadStatus::INVALID_FIELD);
}

#[test]
fn port_states_move_as_the_state_machine_allows() {
    use smp::PortState as Wire;
    for (before, command, after) in [
        (PortState::Init, Wire::ARMED, Some(PortState::Armed)),
        (PortState::Armed, Wire::ARMED, Some(PortState::Armed)),
        (PortState::Armed, Wire::ACTIVE, Some(PortState::Active)),
        (PortState::Active, Wire::ACTIVE, Some(PortState::Active)),
        (PortState::Down, Wire::ARMED, None),
        (PortState::Down, Wire::ACTIVE, None),
        (PortState::Init, Wire::ACTIVE, None),
        (PortState::Active, Wire::ARMED, None),
        (PortState::Active, Wire::INIT, None),
        (PortState::Armed, Wire::new(9), None),
    ] {
        let mut node = with_state(before);
        let mut info = managed(&mut node, 0);
        info.set_port_state(command);
        let (status, _) = ask(&mut node, Method::SET, 0, info);
        let case = format!("{before:?} {command:?}");
        assert_eq!(status == MadStatus::OK, after.is_some(), "{case}");
        let state = node.port(PORT).unwrap().state;
        assert_eq!(state, after.unwrap_or(before), "{case}");
    }
}

#[test]
fn commands_to_the_link_are_passed_on() {
    for (state, physical, request) in [
        (
            smp::PortState::DOWN,
            PortPhysState::NO_CHANGE,
            LinkRequest::Reset,
        ),
        (
            smp::PortState::DOWN,
            PortPhysState::POLLING,
            LinkRequest::Poll,
        ),
        (
            smp::PortState::NO_CHANGE,
            PortPhysState::DISABLED,
            LinkRequest::Disable,
        ),
        (
            smp::PortState::NO_CHANGE,
            PortPhysState::SLEEP,
            LinkRequest::Sleep,
        ),
    ] {
        let mut node = with_state(PortState::Active);
        let mut info = managed(&mut node, 0);
        info.set_port_state(state);
        info.set_phys_state(physical);
        let told = set(&mut node, 0, info);
        let expected = match physical {
            PortPhysState::NO_CHANGE => (smp::PortState::INIT, PortPhysState::LINK_UP),
            _ => (smp::PortState::DOWN, physical),
        };
        let told = (told.port_state(), told.phys_state());
        assert_eq!(told, expected, "what the link does next");
        assert_eq!(node.take_link_request(), Some((PORT, request)));
        assert_eq!(node.take_link_request(), None);
    }
}

#[test]
fn an_adapter_sets_only_the_port_that_received_the_smp() {
    let mut node = adapter();
    let info = managed(&mut node, 0);
    let other = set(&mut node, 2, info);
    assert_eq!(other.lid, Lid::NONE);
    assert_eq!(node.port(PortNum(2)).unwrap().lid, Lid::NONE);
    let (status, _) = ask(&mut node, Method::GET, 3, PortInfo::default());
    assert_eq!(status, MadStatus::INVALID_FIELD);
}

#[test]
fn violation_counters_are_reset_by_zero_and_not_written_otherwise() {
    let mut node = adapter();
    node.port_mut(PORT).unwrap().p_key_violations = 5;
    let mut info = managed(&mut node, 0);
    info.pkey_violations = 3.into();
    assert_eq!(set(&mut node, 0, info).pkey_violations.get(), 5);
    info.pkey_violations = 0.into();
    assert_eq!(set(&mut node, 0, info).pkey_violations.get(), 0);
}

#[test]
fn external_ports_of_a_switch_enforce_partitions_and_need_no_lid() {
    let mut node = switch();
    let mut info: PortInfo = get(&mut node, 3);
    info.set_port_state(smp::PortState::NO_CHANGE);
    info.set_phys_state(PortPhysState::NO_CHANGE);
    info.set_partition_enforcement_inbound(true);
    info.set_partition_enforcement_outbound(true);
    set(&mut node, 3, info);
    let port = node.port(PortNum(3)).unwrap();
    assert!(port.partition_enforcement_in && port.partition_enforcement_out);
    assert!(!node.port(PortNum(2)).unwrap().partition_enforcement_in);
}

#[test]
fn a_base_port_0_takes_addresses_without_lmc_and_ignores_states() {
    let mut node = switch();
    let mut info = managed(&mut node, 0);
    info.set_lmc(Lmc::from_low_bits(1));
    info.set_port_state(smp::PortState::DOWN);
    info.set_neighbor_mtu(Mtu::new(0));
    let stored = set(&mut node, 0, info);
    assert_eq!(stored.lid, Lid::new(8));
    assert_eq!(stored.lmc(), Lmc::default());
    assert_eq!(stored.port_state(), smp::PortState::ACTIVE);
    assert_eq!(node.take_link_request(), None);
}

#[test]
fn an_enhanced_port_0_is_an_end_port_with_states() {
    let mut config = SwitchConfig::new(Guid::new(0x2000), "switch", 8);
    config.enhanced_port0 = true;
    let mut node = Node::switch(&config);
    assert!(get::<SwitchInfo>(&mut node, 0).enhanced_port0());
    let mut info = managed(&mut node, 0);
    assert_eq!(node.port(PortNum(0)).unwrap().state, PortState::Init);
    info.set_port_state(smp::PortState::ARMED);
    assert_eq!(set(&mut node, 0, info).port_state(), smp::PortState::ARMED);
}
