//! A subnet manager that sweeps a hostile fabric.

use ib_endpoint::MadAddress;
use ib_vtime::{Duration, Instant};
use ib_wire::mad::Mad;
use ib_wire::smp::{
    DirectedRouteSmp, LinkWidth, NodeInfo, NodeType, PortInfo, PortInfoModifier, PortPhysState,
    PortState, SmInfo, SmpAttribute, SwitchInfo,
};
use ib_wire::{Guid, Lid, Mtu, PortNum};
use subnet_lite::SubnetConfig;
use subnet_lite::sm::Sm;
use zerocopy::IntoBytes;

use super::hostile::{Input, Wire};

/// The manager's end of the wire.
const MANAGER: usize = 0;

/// Turns a request into an answer as a node would give it, with numbers out of the input, and then
/// damages it if the input says so.
fn answer(request: &Mad, input: &mut Input<'_>) -> Mad {
    let mut mad = *request;
    mad.header.method = mad.header.method.response();
    let id = mad.header.attribute_id;
    let modifier = PortInfoModifier::decode(mad.header.attribute_modifier);
    let numbers = [(); 5].map(|()| input.byte());
    let smp = mad.view_mut::<DirectedRouteSmp>();
    smp.set_returning(true);
    if id == NodeInfo::ID {
        node_info(smp.attribute_mut(), numbers);
    } else if id == PortInfo::ID {
        port_info(smp.attribute_mut(), modifier.port, numbers);
    } else if id == SwitchInfo::ID {
        let info: &mut SwitchInfo = smp.attribute_mut();
        info.linear_fdb_cap = (u16::from(numbers[0]) << 8).into();
        info.multicast_fdb_cap = u16::from(numbers[1]).into();
        info.partition_enforcement_cap = u16::from(numbers[2]).into();
        info.set_port_state_change(numbers[3] & 1 != 0);
    } else if id == SmInfo::ID {
        let info: &mut SmInfo = smp.attribute_mut();
        info.guid = Guid::new(u64::from(numbers[0]));
        info.priority_state = numbers[1];
    }
    match input.byte() {
        0 => input.fill(&mut smp.data),
        1 => {
            let byte = usize::from(input.byte());
            mad.as_mut_bytes()[byte] ^= input.byte();
        }
        2 => mad.header.status = u16::from(input.byte()).into(),
        _ => {}
    }
    mad
}

/// One of at most 8 nodes, so that the manager meets some by several ways.
fn node_info(info: &mut NodeInfo, numbers: [u8; 5]) {
    let node = numbers[0] % 8;
    let switch = node.is_multiple_of(2);
    info.base_version = 1;
    info.class_version = 1;
    info.node_type = if switch {
        NodeType::SWITCH
    } else {
        NodeType::CA
    };
    info.num_ports = if switch { 3 } else { 2 };
    info.node_guid = Guid::new(0x100 + u64::from(node));
    info.system_image_guid = info.node_guid;
    info.local_port = PortNum(1 + numbers[1] % info.num_ports);
    info.port_guid = if switch {
        info.node_guid
    } else {
        Guid::new(0x1000 + u64::from(node) * 8 + u64::from(info.local_port.0))
    };
    info.partition_cap = u16::from(numbers[2]).into();
}

fn port_info(info: &mut PortInfo, port: PortNum, numbers: [u8; 5]) {
    info.lid = Lid::new(u16::from_be_bytes([numbers[0], numbers[1]]));
    info.local_port = port;
    info.set_port_state(PortState::new(1 + numbers[2] % 4));
    info.set_phys_state(PortPhysState::LINK_UP);
    info.set_mtu_cap(Mtu::MTU_2048);
    info.set_vl_cap(1 + numbers[3] % 5);
    info.guid_cap = numbers[4];
    info.link_width_active = LinkWidth::X4;
    info.speed_active_enabled = 0x11;
}

/// What the fabric makes of one request, or of none.
fn step(sm: &mut Sm, now: &mut Instant, wire: &mut Wire, input: &mut Input<'_>) {
    let from = MadAddress::directed();
    match input.byte() % 8 {
        0 => {
            *now += Duration::from_millis(1 << (input.byte() % 16));
            sm.handle_timeout(*now);
        }
        1 => wire.lose(MANAGER, input),
        2 => {
            let mut mad = input.mad();
            if let Some(request) = wire.pass(MANAGER, input).first() {
                mad.header.tid = request.header.tid;
            }
            sm.handle_smp(*now, &from, &mad);
        }
        3 => sm.request_sweep(),
        4 => {
            let guid = Guid::new(0x1000 + u64::from(input.byte()));
            let lid = Lid::new(0xc000 + u16::from(input.byte()));
            sm.set_group(lid, [(guid, input.byte() & 1 != 0)].into());
            sm.write_guids(guid, input.byte(), &[guid; 8]);
        }
        _ => {
            for request in wire.pass(MANAGER, input) {
                let answer = answer(&request, input);
                sm.handle_smp(*now, &from, &answer);
            }
        }
    }
    transmit(sm, *now, wire);
}

fn transmit(sm: &mut Sm, now: Instant, wire: &mut Wire) {
    while let Some(transmit) = sm.poll_transmit(now) {
        wire.push(MANAGER, transmit.mad);
    }
    while sm.poll_event().is_some() {}
}

/// A manager of a fabric whose nodes answer what the input says. No input makes it panic, and when
/// the fabric falls silent every sweep comes to an end.
pub(super) fn sm(data: &[u8]) {
    let (mut sm, mut now) = play(data);
    for _ in 0..100_000 {
        if sm.is_settled() {
            break;
        }
        if let Some(next) = sm.poll_timeout() {
            now = now.max(next);
        }
        sm.handle_timeout(now);
        transmit(&mut sm, now, &mut Wire::default());
    }
    assert!(sm.is_settled(), "a sweep of a silent fabric does not end");
}

fn play(data: &[u8]) -> (Sm, Instant) {
    let mut input = Input::new(data);
    let mut now = Instant::from_millis(1);
    let mut wire = Wire::default();
    let guid = Guid::new(0x1009);
    let mut sm = Sm::new(SubnetConfig::default(), PortNum(1), guid, 1);
    transmit(&mut sm, now, &mut wire);
    while input.has_operation() {
        step(&mut sm, &mut now, &mut wire, &mut input);
    }
    (sm, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_makes_the_manager_find_nodes() {
        let (sm, _) = play(include_bytes!("../../fuzz/corpus/sm/answers"));
        assert!(sm.topology().node_count() > 3);
    }
}
