//! What a virtual function sees and may do of a port (`mad-paravirt` statements 174 to 179, E).

use hca_api::{AsyncEvent, HcaEvent, LocalMad, MadView, PortChange, PortModify};
use ib_wire::mad::{AttributeModifier, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{
    CapabilityMask, DirectedRouteSmp, GuidInfo, LidRoutedSmp, NodeInfo, PKeyTable, PortInfo,
    PortState as WirePortState, SmpAttribute,
};

use ib_wire::MKey;

use super::*;

const ALIAS: Guid = Guid::new(0xaaaa);

/// An adapter with VF 1, which has a GUID and the P_Key map 0 → 2, 1 → nothing.
fn with_vf(state: PortState) -> Device {
    let mut device = device(5);
    add_vf(&mut device, VF1);
    set_alias_guid(&mut device, 1, ALIAS);
    set_pkeys(&mut device, [0xffff, 0x8001, 0x8002]);
    let view = VirtualPort {
        state,
        pkeys: vec![Some(PKeyIndex(2)), None],
        smi_enabled: false,
    };
    let mut pf = device.function(PF).unwrap();
    pf.set_virtual_port(VF1, PORT, view).unwrap();
    device
}

fn ask<A: SmpAttribute + Copy>(device: &mut Device, modifier: u32) -> (MadStatus, A) {
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_LID_ROUTED,
        Method::GET,
        A::ID,
    ));
    mad.header.attribute_modifier = AttributeModifier::new(modifier);
    let mut vf = device.function(VF1).unwrap();
    let Ok(LocalMad::Reply(reply)) = vf.process_local_mad(PORT, MadView::Host, &mad) else {
        panic!("no reply");
    };
    assert_eq!(reply.header.attribute_modifier.get(), modifier);
    let smp: &LidRoutedSmp = reply.view();
    (reply.header.status, *smp.attribute::<A>())
}

#[test]
fn c174_a_vf_reads_its_virtual_pkey_table_and_nothing_beyond_it() {
    let mut device = with_vf(PortState::Active);
    let (status, table) = ask::<PKeyTable>(&mut device, 0);
    assert_eq!(status, MadStatus::OK);
    assert_eq!(
        table.pkeys[..3],
        [PKey::new(0x8002), PKey::INVALID, PKey::INVALID]
    );
    for block in [1, 0xffff, u32::MAX] {
        let (_, table) = ask::<PKeyTable>(&mut device, block);
        assert_eq!(table, PKeyTable::default(), "block {block}");
    }
    let vf = device.function(VF1).unwrap();
    assert_eq!(vf.query_pkey(PORT, PKeyIndex(0)), Ok(PKey::new(0x8002)));
    assert_eq!(vf.query_pkey(PORT, PKeyIndex(1)), Ok(PKey::INVALID));
    assert_eq!(
        vf.query_pkey(PORT, PKeyIndex(2)),
        Err(HcaError::InvalidIndex)
    );
}

#[test]
fn c175_a_vf_reads_the_state_and_the_capabilities_of_its_virtual_port() {
    let mut device = with_vf(PortState::Down);
    let change = PortModify {
        set_capabilities: CapabilityMask::IS_VENDOR_CLASS_SUPPORTED.get(),
        ..PortModify::default()
    };
    let mut vf = device.function(VF1).unwrap();
    vf.modify_port(PORT, &change).unwrap();
    let (_, info) = ask::<PortInfo>(&mut device, 0);
    assert_eq!(info.port_state(), WirePortState::DOWN);
    assert!(
        info.capability_mask
            .contains(CapabilityMask::IS_VENDOR_CLASS_SUPPORTED)
    );
    assert_eq!(info.lid, Lid::new(5));
    let physical = device.node().port(PORT).unwrap().capabilities;
    assert!(physical.contains(CapabilityMask::IS_VENDOR_CLASS_SUPPORTED));
    device.function(PF).unwrap().reset_function(VF1).unwrap();
    let physical = device.node().port(PORT).unwrap().capabilities;
    assert!(!physical.contains(CapabilityMask::IS_VENDOR_CLASS_SUPPORTED));
    let (_, info) = ask::<PortInfo>(&mut with_vf(PortState::Active), 0);
    assert_eq!(info.port_state(), WirePortState::ACTIVE);
}

#[test]
fn c176_c177_a_vf_reads_its_own_guids_only() {
    let mut device = with_vf(PortState::Active);
    let (_, table) = ask::<GuidInfo>(&mut device, 0);
    assert_eq!(table.guids[0], ALIAS);
    assert_eq!(table.guids[1..], [Guid::NONE; 7]);
    assert_eq!(ask::<GuidInfo>(&mut device, 1).1, GuidInfo::default());
    let (_, info) = ask::<NodeInfo>(&mut device, 0);
    let vf = device.function(VF1).unwrap();
    assert_eq!(info.node_guid, vf.attributes().node_guid);
    assert_eq!(
        vf.query_gid(PORT, GidIndex(0)).unwrap().interface_id(),
        ALIAS
    );
    assert_eq!(vf.query_gid(PORT, GidIndex(1)), Err(HcaError::InvalidIndex));
}

#[test]
fn c178_c179_a_vf_changes_nothing_that_is_not_its_own() {
    let mut device = with_vf(PortState::Active);
    let mut vf = device.function(VF1).unwrap();
    for (class, method) in [
        (MgmtClass::SUBN_LID_ROUTED, Method::SET),
        (MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET),
        (MgmtClass::PERF, Method::SET),
    ] {
        let mad = Mad::new(MadHeader::new(class, method, PortInfo::ID));
        let answer = vf.process_local_mad(PORT, MadView::Host, &mad);
        let Ok(LocalMad::Reply(reply)) = answer else {
            panic!("{answer:?}");
        };
        assert_ne!(reply.header.status, MadStatus::OK, "{class} {method}");
    }
    let set = |mask: CapabilityMask| PortModify {
        set_capabilities: mask.get(),
        ..PortModify::default()
    };
    let shutdown = PortModify {
        shutdown: Some(true),
        ..PortModify::default()
    };
    for change in [
        set(CapabilityMask::IS_SM),
        set(CapabilityMask::IS_DEVICE_MANAGEMENT_SUPPORTED),
        shutdown,
    ] {
        assert_eq!(
            vf.modify_port(PORT, &change),
            Err(HcaError::PermissionDenied)
        );
    }
    let device_change = hca_api::DeviceModify::default();
    assert_eq!(
        vf.modify_device(&device_change),
        Err(HcaError::PermissionDenied)
    );
    let mut pf = device.function(PF).unwrap();
    pf.modify_port(PORT, &set(CapabilityMask::IS_SM)).unwrap();
    let mask = pf.query_port(PORT).unwrap().capability_mask;
    assert_ne!(mask & CapabilityMask::IS_SM.get(), 0);
    let vf = device.function(VF1).unwrap();
    let mask = vf.query_port(PORT).unwrap().capability_mask;
    assert_eq!(mask & CapabilityMask::IS_SM.get(), 0);
}

#[test]
fn a_vf_that_may_send_smps_is_answered_as_the_subnet_is_and_needs_the_key() {
    let mut device = with_vf(PortState::Active);
    let view = VirtualPort {
        state: PortState::Active,
        pkeys: vec![Some(PKeyIndex(2)), None],
        smi_enabled: true,
    };
    let mut pf = device.function(PF).unwrap();
    pf.set_virtual_port(VF1, PORT, view).unwrap();
    let ask = |device: &mut Device, class, method| {
        let mad = Mad::new(MadHeader::new(class, method, PortInfo::ID));
        let mut vf = device.function(VF1).unwrap();
        vf.process_local_mad(PORT, MadView::Host, &mad).unwrap()
    };
    let directed = MgmtClass::SUBN_DIRECTED_ROUTE;
    let LocalMad::Reply(reply) = ask(&mut device, directed, Method::GET) else {
        panic!("no reply");
    };
    assert_eq!(reply.header.status.get(), MadStatus::DIRECTION);
    let info = *reply.view::<DirectedRouteSmp>().attribute::<PortInfo>();
    assert_eq!(info.local_port, PORT);

    let port = device.node_mut().port_mut(PORT).unwrap();
    (port.m_key, port.m_key_protect) = (MKey::new(7), 1);
    let refused = ask(&mut device, MgmtClass::SUBN_LID_ROUTED, Method::SET);
    assert_eq!(refused, LocalMad::Consumed);
    // What a port shows of itself to its host stays the VF's own view.
    let LocalMad::Reply(own) = ask(&mut device, MgmtClass::SUBN_LID_ROUTED, Method::GET) else {
        panic!("no reply");
    };
    let info = *own.view::<LidRoutedSmp>().attribute::<PortInfo>();
    assert_eq!(info.mkey, MKey::default());
}

/// E.3, E.5: the virtual index is bounded and translated; a controlled key needs the privilege.
#[test]
fn a_vf_queue_pair_takes_virtual_pkey_indices_and_ordinary_queue_keys() {
    let (mut left, mut right) = (with_vf(PortState::Active), device(6));
    set_pkeys(&mut right, [0x8002]);
    let peer = open(&mut right, PF, QpKind::Ud);
    peer.post_recv(&mut right, 1);
    let guest = open(&mut left, VF1, QpKind::Ud);
    let destination = to(global(6, Gid::NONE), peer.numbers.real, QKEY);
    guest.send(&mut left, Some(destination), b"x").unwrap();
    let frame = left.poll_transmit(Instant::ZERO, PORT).unwrap();
    assert_eq!(frame.bth().unwrap().pkey, PKey::new(0x8002));
    let sgid = Gid::from_parts(ib_wire::SubnetPrefix::DEFAULT, ALIAS);
    assert_eq!(frame.bytes()[16..32], sgid.0, "its own GID, not index 0's");

    let mut vf = left.function(VF1).unwrap();
    let qp = {
        let (pd, cq) = (vf.alloc_pd().unwrap(), vf.create_cq(4).unwrap());
        vf.create_qp(spec(QpKind::Ud, pd, cq)).unwrap().0
    };
    let init = |index, qkey| QpModify {
        port: Some(PORT),
        pkey_index: Some(PKeyIndex(index)),
        qkey: Some(qkey),
        ..to_state(QpState::Init)
    };
    assert_eq!(
        vf.modify_qp(qp, &init(2, QKEY)),
        Err(HcaError::InvalidIndex)
    );
    assert_eq!(
        vf.modify_qp(qp, &init(0, QKey::GSI)),
        Err(HcaError::PermissionDenied)
    );
    vf.modify_qp(qp, &init(1, QKEY)).unwrap();
    ready(&mut vf, qp);
    let send = SendRequest {
        payload: Payload::Inline(b"x"),
        ..request(&[], Some(destination))
    };
    vf.post_send(qp, &send).unwrap();
    assert_eq!(left.drops().get(DropReason::NoPKey), 1);
}

#[test]
fn the_datagrams_of_a_vf_whose_virtual_port_is_down_are_discarded() {
    let mut device = with_vf(PortState::Down);
    let guest = open(&mut device, VF1, QpKind::Ud);
    let host = open(&mut device, PF, QpKind::Ud);
    guest.post_recv(&mut device, 1);
    for (from, to_peer) in [(guest, host), (host, guest)] {
        let destination = to(vector(5), to_peer.numbers.real, QKEY);
        from.send(&mut device, Some(destination), b"x").unwrap();
        assert_eq!(from.poll_one(&mut device).status, CompletionStatus::Success);
    }
    assert_eq!(device.drops().get(DropReason::PortNotActive), 2);
    let of_vf = device.drops().of(PORT, VF1, DropReason::PortNotActive);
    assert_eq!(
        of_vf.unwrap().packets,
        2,
        "what it sent, and what was for it"
    );
}

#[test]
fn a_datagram_for_which_a_vf_has_no_receive_counts_for_the_vf() {
    let mut device = with_vf(PortState::Active);
    let guest = open(&mut device, VF1, QpKind::Ud);
    let sender = open(&mut device, VF1, QpKind::Ud);
    let destination = to(vector(5), guest.numbers.real, QKEY);
    sender.send(&mut device, Some(destination), b"x").unwrap();
    let counted: Vec<_> = device.drops().iter().collect();
    let [(PORT, Some(VF1), DropReason::NoReceive, dropped)] = counted[..] else {
        panic!("{counted:?}");
    };
    assert_eq!(dropped.packets, 1);
}

#[test]
fn port_changes_reach_the_pf_and_a_vf_hears_what_the_pf_tells_it() {
    let mut device = with_vf(PortState::Active);
    device
        .node_mut()
        .port_mut(PORT)
        .unwrap()
        .note(PortChange::LID);
    device.ports_changed(Instant::ZERO);
    let event = AsyncEvent::Port {
        port: PORT,
        change: PortChange::LID,
    };
    let mut pf = device.function(PF).unwrap();
    assert_eq!(pf.poll_event(), Some(HcaEvent::Async(event)));
    let far = AsyncEvent::Port {
        port: PortNum(9),
        change: PortChange::LID,
    };
    assert_eq!(pf.notify(VF1, far), Err(HcaError::InvalidPort));
    pf.notify(VF1, event).unwrap();
    let mut vf = device.function(VF1).unwrap();
    assert_eq!(vf.poll_event(), Some(HcaEvent::Async(event)));
    assert_eq!(vf.notify(VF1, event), Err(HcaError::PermissionDenied));
    assert_eq!(vf.reset_function(VF1), Err(HcaError::PermissionDenied));
}
