//! Control packets of other managers, and traps that change what is known of a node.

use ib_wire::notice::SystemImageGuidDetails;

use super::*;

/// Sends a control packet of another manager, and returns the status of the answer with the state
/// that it shows.
fn control(world: &mut World, class: MgmtClass, modifier: u32, claimed: SmState) -> (u16, SmState) {
    let mut mad = Mad::new(MadHeader::new(class, Method::SET, AttributeId::new(0x20)));
    mad.header.attribute_modifier = AttributeModifier::new(modifier);
    let mut info = SmInfo::default();
    info.set_state(claimed);
    let (now, from) = (world.now, MadAddress::smi(world.fabric.lid(1)));
    if class == MgmtClass::SUBN_LID_ROUTED {
        *mad.view_mut::<LidRoutedSmp>().attribute_mut() = info;
    } else {
        *mad.view_mut::<DirectedRouteSmp>().attribute_mut() = info;
    }
    world.sm(0).handle_smp(now, &from, &mad);
    let answer = loop {
        let sent = world.sm(0).poll_transmit(now).expect("an answer");
        if sent.mad.header.method == Method::GET_RESP {
            break sent.mad;
        }
    };
    let info = if class == MgmtClass::SUBN_LID_ROUTED {
        *answer.view::<LidRoutedSmp>().attribute::<SmInfo>()
    } else {
        assert!(answer.view::<DirectedRouteSmp>().is_returning());
        *answer.view::<DirectedRouteSmp>().attribute::<SmInfo>()
    };
    (answer.header.status.get() & 0x7fff, info.state())
}

#[test]
fn a_control_packet_that_the_state_does_not_allow_is_answered_with_status_7() {
    const BAD: u16 = 7 << 2;
    let states = [
        SmState::NOT_ACTIVE,
        SmState::DISCOVERING,
        SmState::STANDBY,
        SmState::MASTER,
    ];
    for class in [MgmtClass::SUBN_LID_ROUTED, MgmtClass::SUBN_DIRECTED_ROUTE] {
        for own in states {
            for claimed in states {
                for modifier in 0..=6 {
                    let mut world = managed();
                    world.sm(0).state = own;
                    let (status, shown) = control(&mut world, class, modifier, claimed);
                    let is_sound = match modifier {
                        1 => claimed == SmState::MASTER && own != SmState::NOT_ACTIVE,
                        2 => claimed == SmState::STANDBY && own == SmState::STANDBY,
                        3 | 5 => claimed == SmState::MASTER && own == SmState::STANDBY,
                        4 => claimed == SmState::MASTER && own == SmState::NOT_ACTIVE,
                        _ => false,
                    };
                    let case = format!("{own:?} gets {modifier} of {claimed:?}");
                    assert_eq!(status, if is_sound { 0 } else { BAD }, "{case}");
                    let after = match modifier {
                        _ if !is_sound => own,
                        1 => SmState::MASTER,
                        3 => SmState::NOT_ACTIVE,
                        4 => SmState::STANDBY,
                        5 => SmState::DISCOVERING,
                        _ => own,
                    };
                    assert_eq!(world.sm(0).state(), after, "{case}");
                    let told = if modifier == 1 { own } else { after };
                    assert_eq!(shown, told, "{case}");
                }
            }
        }
    }
}

#[test]
fn a_control_packet_without_the_managers_m_key_is_dropped() {
    let mut world = World::new(small());
    let config = SubnetConfig {
        mkey: ib_wire::MKey::new(9),
        ..SubnetConfig::default()
    };
    world.manager(0, config);
    world.run(1);
    let id = AttributeId::new(0x20);
    let mut mad = Mad::new(MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::SET, id));
    mad.header.attribute_modifier = AttributeModifier::new(1);
    let before = world.sm(0).stats().ignored;
    let (now, from) = (world.now, MadAddress::smi(world.fabric.lid(1)));
    world.sm(0).handle_smp(now, &from, &mad);
    assert!(world.sm(0).poll_transmit(now).is_none());
    assert_eq!(world.sm(0).stats().ignored, before + 1);
}

#[test]
fn a_node_that_tells_of_a_new_system_image_guid_has_it() {
    let mut world = managed();
    let (lid, now) = (world.fabric.lid(1), world.now);
    let id = AttributeId::NOTICE;
    let mut mad = Mad::new(MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::TRAP, id));
    let details = SystemImageGuidDetails {
        lid,
        system_image_guid: Guid::new(0x5151),
        ..SystemImageGuidDetails::default()
    };
    let notice = Notice::generic(
        NoticeType::INFORMATIONAL,
        ProducerType::CA,
        TrapNumber::SYSTEM_IMAGE_GUID_CHANGED,
        lid,
        &details,
    );
    *mad.view_mut::<LidRoutedSmp>().attribute_mut() = notice;
    world.sm(0).handle_smp(now, &MadAddress::smi(lid), &mad);
    let shown = |world: &mut World, host: usize| {
        let lid = world.fabric.lid(host);
        let topology = world.sm(0).topology();
        let port = topology.port_by_lid(lid).unwrap();
        topology.node(port.node).info.system_image_guid
    };
    assert_eq!(shown(&mut world, 1), Guid::new(0x5151));
    assert_ne!(shown(&mut world, 0), Guid::new(0x5151));
}
