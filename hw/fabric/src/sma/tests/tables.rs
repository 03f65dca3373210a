use hca_api::PortChange;
use ib_wire::smp::{
    GuidInfo, LedInfo, LinearForwardingTable, MlnxExtPortInfo, MulticastForwardingTable,
    MulticastTableModifier, NodeDescription, NodeInfo, PKeyTable, PKeyTableModifier,
    SlToVlMappingTable, SlToVlModifier, SwitchInfo, VlArbitrationModifier, VlArbitrationTable,
};
use ib_wire::{GidIndex, PKey, Vl};

use super::*;

#[test]
fn node_info_names_the_port_that_received_the_smp_and_cannot_be_set() {
    let mut node = adapter();
    let info: NodeInfo = get(&mut node, 0);
    assert_eq!(info.local_port, PORT);
    assert_eq!(info.port_guid, Guid::new(0x1001));
    assert_eq!(info.node_guid, Guid::new(0x1000));
    assert_eq!(info.partition_cap.get(), 128);
    let (status, _) = ask(&mut node, Method::SET, 0, info);
    assert_eq!(status, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
}

#[test]
fn the_node_description_can_be_set_only_where_that_is_announced() {
    let mut node = adapter();
    let text = NodeDescription::new("new name");
    let (status, _) = ask(&mut node, Method::SET, 0, text);
    assert_eq!(status, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
    node.port_mut(PORT).unwrap().capabilities2 =
        ib_wire::smp::CapabilityMask2::IS_SET_NODE_DESCRIPTION_SUPPORTED;
    assert_eq!(set(&mut node, 0, text), text);
    assert_eq!(get::<NodeDescription>(&mut node, 0), text);
}

#[test]
fn alias_guids_are_stored_and_entry_0_is_read_only() {
    let mut node = adapter();
    let mut block = GuidInfo {
        guids: core::array::from_fn(|i| Guid::new(0x500 + i as u64)),
    };
    let stored = set(&mut node, 0, block);
    block.guids[0] = Guid::new(0x1001);
    assert_eq!(stored, block);
    assert_eq!(node.take_port_change(), Some((PORT, PortChange::GID_TABLE)));
    let port = node.port(PORT).unwrap();
    let gid = port.gid(GidIndex(7)).unwrap();
    assert_eq!(gid.interface_id(), Guid::new(0x507));
    assert_eq!(port.gid_index(gid), Some(GidIndex(7)));
    set(&mut node, 0, block);
    assert_eq!(node.take_port_change(), None);
    let (status, _) = ask(&mut node, Method::GET, 32, GuidInfo::default());
    assert_eq!(status, MadStatus::INVALID_FIELD);
}

#[test]
fn pkeys_are_stored_by_block_and_per_port_of_a_switch() {
    let mut node = adapter();
    let mut block = PKeyTable::default();
    block.pkeys[1] = PKey::new(0x8001);
    let modifier = PKeyTableModifier { port: 0, block: 3 }.encode().get();
    assert_eq!(set(&mut node, modifier, block), block);
    let first: PKeyTable = get(&mut node, 0);
    assert_eq!(first.pkeys[0], PKey::DEFAULT_FULL);
    let port = node.port(PORT).unwrap();
    assert_eq!(port.matching_pkey(PKey::new(1)), Some(PKeyIndex(97)));
    let (status, _) = ask(&mut node, Method::GET, 4, block);
    assert_eq!(status, MadStatus::INVALID_FIELD);

    let mut node = switch();
    let modifier = PKeyTableModifier { port: 5, block: 0 }.encode().get();
    set(&mut node, modifier, block);
    assert_eq!(get::<PKeyTable>(&mut node, modifier), block);
    assert_ne!(get::<PKeyTable>(&mut node, 4 << 16), block);
    let (status, _) = ask(&mut node, Method::GET, 9 << 16, block);
    assert_eq!(status, MadStatus::INVALID_FIELD);
}

#[test]
fn sl_to_vl_is_per_port_of_an_adapter_and_per_pair_of_ports_of_a_switch() {
    let mut reversed = SlToVlMappingTable::default();
    for sl in 0..16 {
        reversed.set_vl(Sl::from_low_bits(sl), Vl::from_low_bits(15 - sl));
    }
    let mut node = adapter();
    assert_eq!(set(&mut node, 0, reversed), reversed);
    assert_eq!(
        node.port(PORT).unwrap().vl_for_sl(Sl::from_low_bits(5)),
        Vl::from_low_bits(10)
    );
    let pair = |input, output| {
        SlToVlModifier {
            input: PortNum(input),
            output: PortNum(output),
            ..SlToVlModifier::default()
        }
        .encode()
        .get()
    };
    let mut node = switch();
    let default: SlToVlMappingTable = get(&mut node, pair(2, 3));
    set(&mut node, pair(2, 3), reversed);
    assert_eq!(get::<SlToVlMappingTable>(&mut node, pair(2, 3)), reversed);
    assert_eq!(get::<SlToVlMappingTable>(&mut node, pair(3, 2)), default);
    let (status, _) = ask(&mut node, Method::GET, pair(2, 9), default);
    assert_eq!(status, MadStatus::INVALID_FIELD);
}

#[test]
fn arbitration_tables_are_stored_by_block() {
    let mut node = switch();
    let mut table = VlArbitrationTable::default();
    table.entries[31].weight = 255;
    let modifier = |block| VlArbitrationModifier { block, port: 8 }.encode().get();
    set(&mut node, modifier(4), table);
    assert_eq!(get::<VlArbitrationTable>(&mut node, modifier(4)), table);
    let empty = VlArbitrationTable::default();
    assert_eq!(get::<VlArbitrationTable>(&mut node, modifier(3)), empty);
    // Before a manager writes it, the first block lets all data lanes have their share.
    let first: VlArbitrationTable = get(&mut node, modifier(1));
    let shares = first.entries.map(|entry| (entry.vl().get(), entry.weight));
    assert_eq!(
        shares[..9],
        [
            (0, 4),
            (1, 4),
            (2, 4),
            (3, 4),
            (4, 4),
            (5, 4),
            (6, 4),
            (7, 4),
            (0, 0)
        ]
    );
    for block in [0, 5] {
        let (status, _) = ask(&mut node, Method::GET, modifier(block), empty);
        assert_eq!(status, MadStatus::INVALID_FIELD);
    }
}

#[test]
fn adapters_have_no_switch_attributes() {
    let mut node = adapter();
    let refused = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
    let (status, _) = ask(&mut node, Method::GET, 0, SwitchInfo::default());
    assert_eq!(status, refused);
    let (status, _) = ask(&mut node, Method::GET, 0, LinearForwardingTable::default());
    assert_eq!(status, refused);
    let (status, _) = ask(
        &mut node,
        Method::GET,
        0,
        MulticastForwardingTable::default(),
    );
    assert_eq!(status, refused);
}

#[test]
fn port_state_change_is_cleared_by_writing_one() {
    let mut node = switch();
    node.port_state_changed();
    let mut info: SwitchInfo = get(&mut node, 0);
    assert!(info.port_state_change());
    info.set_port_state_change(false);
    assert!(set(&mut node, 0, info).port_state_change());
    info.set_port_state_change(true);
    assert!(!set(&mut node, 0, info).port_state_change());
}

#[test]
fn switch_info_takes_no_top_beyond_its_tables() {
    let mut node = switch();
    let mut info: SwitchInfo = get(&mut node, 0);
    info.linear_fdb_top = Lid::new(info.linear_fdb_cap.get());
    let (status, _) = ask(&mut node, Method::SET, 0, info);
    assert_eq!(status, MadStatus::INVALID_FIELD);
    info.linear_fdb_top = Lid::new(100);
    info.multicast_fdb_top = Lid::new(0xc000 + info.multicast_fdb_cap.get());
    let (status, _) = ask(&mut node, Method::SET, 0, info);
    assert_eq!(status, MadStatus::INVALID_FIELD);
    info.multicast_fdb_top = Lid::new(0xc000);
    assert_eq!(set(&mut node, 0, info), info);
}

#[test]
fn forwarding_table_blocks_beyond_the_capacity_are_refused() {
    let mut node = switch();
    let (status, _) = ask(
        &mut node,
        Method::GET,
        768,
        LinearForwardingTable::default(),
    );
    assert_eq!(status, MadStatus::INVALID_FIELD);
    let modifier = |position, block| MulticastTableModifier { position, block }.encode().get();
    for modifier in [modifier(0, 128), modifier(1, 0)] {
        let table = MulticastForwardingTable::default();
        let (status, _) = ask(&mut node, Method::GET, modifier, table);
        assert_eq!(status, MadStatus::INVALID_FIELD);
    }
}

#[test]
fn vendor_port_info_is_answered_by_nodes_of_that_vendor_only() {
    let mut node = adapter();
    assert_eq!(
        get::<MlnxExtPortInfo>(&mut node, 1),
        MlnxExtPortInfo::default()
    );
    node.vendor_id = 0x1234;
    let (status, _) = ask(&mut node, Method::GET, 1, MlnxExtPortInfo::default());
    assert_eq!(status, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
}

#[test]
fn the_light_of_a_port_that_has_one_goes_on_and_off() {
    let mut node = adapter();
    let mut led = LedInfo::default();
    led.set_led_on(true);
    let (status, _) = ask(&mut node, Method::SET, 0, led);
    assert_eq!(status, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
    let bit = ib_wire::smp::CapabilityMask::IS_LED_INFO_SUPPORTED.get();
    node.change_capabilities(PORT, bit, 0);
    assert!(set(&mut node, 0, led).led_on());
    led.set_led_on(false);
    assert!(!set(&mut node, 0, led).led_on());
}
