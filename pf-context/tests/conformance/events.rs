//! Events of the port and resets of VFs: statements 167 to 173 and 190.

use ib_vtime::Duration;
use ib_wire::mad::Method;
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppMad, RmppType};
use ib_wire::{Lid, PKey, Sl, SubnetPrefix};
use pf_context::{
    AddVfError, Cause, Output, PortEvent, Sizes, VfConfig, VfEvent, VfPKeyEntry, WireSource,
};
use vf_tunnel::DropReason;

use crate::harness::*;

#[test]
fn c154_c165_a_guid_in_hardware_is_told_before_the_port_comes_up() {
    let pending = VfConfig {
        guid: None,
        ..vf_config(2)
    };
    let mut port = Port::with(config(), [vf_config(1), pending]);
    let mut set = |guid| {
        let result = port.mux.set_guid(Cause(0), vf(2), guid);
        let outputs = core::iter::from_fn(|| port.mux.poll_output());
        (result, told(outputs.map(|(_, output)| output).collect()))
    };
    let taken = AddVfError::BadGuid(vf_guid(1));
    assert_eq!(set(Some(vf_guid(1))), (Err(taken), vec![]));
    let up = vec![(2, VfEvent::GidChange), (2, VfEvent::PortUp)];
    assert_eq!(set(Some(vf_guid(2))), (Ok(()), up));
    assert_eq!(set(Some(vf_guid(2))), (Ok(()), vec![]));
    let moved = vec![(2, VfEvent::GidChange)];
    assert_eq!(set(Some(vf_guid(3))), (Ok(()), moved));
    let down = vec![(2, VfEvent::GidChange), (2, VfEvent::PortDown)];
    assert_eq!(set(None), (Ok(()), down));
    let global = global_frame(PEER, peer_gid(), path_query(1));
    assert_eq!(dropped(port.vf_sends(2, &global)), DropReason::NoGuid);
}

#[test]
fn c167_a_port_that_goes_down_tells_once_those_that_were_up() {
    let pending = VfConfig {
        guid: None,
        ..vf_config(2)
    };
    let mut port = Port::with(config(), [vf_config(1), pending]);
    let outputs = port.event(PortEvent::PortDown);
    assert_eq!(told(outputs), [(1, VfEvent::PortDown)]);
    assert!(port.event(PortEvent::PortDown).is_empty());
    let outputs = port.event(PortEvent::PortUp);
    assert_eq!(told(outputs), [(1, VfEvent::PortUp)]);
    assert!(port.event(PortEvent::PortUp).is_empty());
}

#[test]
fn c168_c169_changes_of_the_port_reach_every_vf_once() {
    let mut port = Port::new();
    let both = |event| [(1, event), (2, event)];
    let prefix = SubnetPrefix::new(0xfec0_0000_0000_0007);
    for (input, event) in [
        (PortEvent::ClientReregister, VfEvent::ClientReregister),
        (PortEvent::LidChange(Lid::new(9)), VfEvent::LidChange),
        (PortEvent::GidPrefix(prefix), VfEvent::GidChange),
        (
            PortEvent::SmChange {
                lid: Lid::new(2),
                sl: Sl::default(),
            },
            VfEvent::SmChange,
        ),
        (
            PortEvent::SmChange {
                lid: Lid::new(2),
                sl: Sl::from_low_bits(3),
            },
            VfEvent::SmChange,
        ),
    ] {
        assert_eq!(told(port.event(input.clone())), both(event));
        if input != PortEvent::ClientReregister {
            assert!(port.event(input).is_empty(), "nothing changed");
        }
    }
    let out = sent(port.vf_sends(1, &global_frame(PEER, peer_gid(), path_query(1))));
    assert_eq!(out.grh.unwrap().sgid.prefix(), prefix);
}

#[test]
fn c171_a_pkey_change_reaches_those_that_map_a_changed_index() {
    let mapping = |indices: &[u16], number| VfConfig {
        pkeys: indices.iter().map(|&index| physical(index)).collect(),
        ..vf_config(number)
    };
    let mut port = Port::with(
        config(),
        [mapping(&[0], 1), mapping(&[0, 1], 2), mapping(&[9], 3)],
    );
    let mut table = PKEYS.to_vec();
    assert!(port.event(PortEvent::PKeyTable(table.clone())).is_empty());
    table[1] = PKey::new(0x8777);
    let outputs = port.event(PortEvent::PKeyTable(table.clone()));
    assert_eq!(told(outputs), [(2, VfEvent::PKeyChange)]);
    table.resize(10, PKey::new(0x8999));
    let outputs = port.event(PortEvent::PKeyTable(table));
    assert_eq!(told(outputs), [(3, VfEvent::PKeyChange)]);
}

#[test]
fn c172_mapping_an_index_to_where_it_is_tells_nobody() {
    let mut port = Port::new();
    let mut map = |to| {
        port.mux.map_pkey(Cause(0), vf(1), virtual_index(0), to);
        port.mux.poll_output()
    };
    assert_eq!(map(physical(0)), None);
    let event = VfEvent::PKeyChange;
    let told = (Cause(0), Output::VfEvent { vf: vf(1), event });
    assert_eq!(map(physical(1)), Some(told));
    let out = sent(port.vf_sends(1, &frame(SM, path_query(1))));
    assert_eq!(out.pkey, OTHER);
}

#[test]
fn c172_an_index_that_is_named_by_value_now_and_means_the_same_place_tells_nobody() {
    let mut port = Port::new();
    let by_value = Some(VfPKeyEntry::Value(PKEYS[0]));
    port.mux
        .map_pkey(Cause(0), vf(1), virtual_index(0), by_value);
    assert_eq!(port.mux.poll_output(), None);
}

#[test]
fn c173_a_vf_stays_in_its_partition_when_the_sm_moves_the_key() {
    let by_value = VfConfig {
        pkeys: vec![physical(0), Some(VfPKeyEntry::Value(OTHER))],
        ..vf_config(1)
    };
    let by_index = VfConfig {
        pkeys: vec![physical(0), physical(1)],
        ..vf_config(2)
    };
    let mut port = Port::with(config(), [by_value, by_index]);
    let places = |port: &Port| {
        let places = port.mux.physical_pkeys(vf(1)).iter();
        places
            .map(|place| place.map(|place| place.0.0))
            .collect::<Vec<_>>()
    };
    assert_eq!(places(&port), [Some(0), Some(1)]);

    let third = PKey::new(0x8777);
    let moved = vec![PKEYS[0], third, PKEYS[2], OTHER];
    let outputs = port.event(PortEvent::PKeyTable(moved));
    assert_eq!(told(outputs), [(2, VfEvent::PKeyChange)]);
    assert_eq!(places(&port), [Some(0), Some(3)]);

    let mut query = frame(SM, path_query(1));
    query.header.pkey_index = 1.into();
    let out = sent(port.vf_sends(1, &query));
    assert_eq!(out.pkey, OTHER);
    let source = WireSource {
        pkey: OTHER,
        ..from(SM)
    };
    let back = got(port.wire_sends(&source, &answer(&out.mad)));
    assert_eq!((back.vf, back.pkey_index), (1, 1));
    assert_eq!(sent(port.vf_sends(2, &query)).pkey, third);

    // The key is gone: the VF hears it, and sends nothing in its name.
    let outputs = port.event(PortEvent::PKeyTable(PKEYS[..1].to_vec()));
    assert!(told(outputs).contains(&(1, VfEvent::PKeyChange)));
    assert_eq!(places(&port), [Some(0), None]);
    assert_eq!(dropped(port.vf_sends(1, &query)), DropReason::NoPKey);
}

#[test]
fn c190_a_reset_aborts_the_transfer_under_way_and_drops_its_later_segments() {
    let mut port = Port::new();
    let mut request = path_query(5);
    request.header.method = Method::GET_TABLE;
    let out = sent(port.vf_sends(1, &frame(SM, request)));
    let mut segment = answer(&out.mad);
    segment.view_mut::<RmppMad>().rmpp = RmppHeader::data(1, 0, RmppFlags::FIRST);
    assert_eq!(got(port.wire_sends(&from(SM), &segment)).vf, 1);

    let abort = sent(port.reset(1));
    assert_eq!(abort.mad.header.tid, out.mad.header.tid);
    assert_eq!(abort.mad.header.method, Method::GET_TABLE);
    assert_eq!(abort.mad.view::<RmppMad>().rmpp.rmpp_type, RmppType::ABORT);
    assert_eq!(
        dropped(port.wire_sends(&from(SM), &segment)),
        DropReason::UnknownTid
    );
    assert_eq!(port.mux.sizes(), Sizes::default());
    sent(port.vf_sends(1, &frame(SM, request)));
}

#[test]
fn a_transaction_drains_after_its_time() {
    let mut port = Port::new();
    sent(port.vf_sends(1, &frame(SM, path_query(5))));
    assert_eq!(port.mux.sizes().tids, 1);
    assert!(port.wait(Duration::from_secs(61)).is_empty());
    assert_eq!(port.mux.sizes(), Sizes::default());
}
