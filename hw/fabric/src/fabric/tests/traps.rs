//! What nodes tell the SM, which sits at host A of a chain.

use core::time::Duration;

use ib_wire::notice::{
    CapabilityDetails, LinkErrorDetails, LinkStateDetails, LocalChanges, Notice,
    SystemImageGuidDetails, TrapNumber,
};
use ib_wire::smp::{CapabilityMask, LidRoutedSmp};

use super::bring_up::{Chain, LID_A, LID_B, PATHS};
use super::*;
use crate::{LinkState, LinkTrouble};

/// PortInfo:SubnetTimeOut of the chain: 4.096 µs × 2^18.
const SUBNET_TIMEOUT: Duration = Duration::from_nanos(4096 << 18);

fn traps(chain: &mut Chain) -> Vec<Mad> {
    let frames = chain.bench.received(chain.a.node);
    let mads = frames.into_iter().filter_map(|mut frame| frame.smp());
    mads.filter(|mad| mad.header.method == Method::TRAP)
        .collect()
}

fn notice(mad: &Mad) -> &Notice {
    mad.view::<LidRoutedSmp>().attribute()
}

/// Answers a trap as an SM does.
fn repress(chain: &mut Chain, trap: &Mad) {
    let mut answer = *trap;
    answer.header.method = Method::TRAP_REPRESS;
    let issuer = notice(trap).issuer_lid;
    let frame = Frame::of_smp(&answer, Lid::new(LID_A), issuer, Sl::default()).unwrap();
    chain.bench.send(chain.a, frame);
    chain.bench.run();
}

fn pull_last_cable(chain: &mut Chain) {
    let cable = chain.links[3];
    chain.bench.fabric.set_link(cable, LinkState::Down);
    chain.bench.run();
}

#[test]
fn a_switch_tells_of_a_link_that_went_down_until_it_is_answered() {
    let mut chain = Chain::up(LinkConfig::default());
    pull_last_cable(&mut chain);
    let told = traps(&mut chain);
    assert_eq!(told.len(), 1);
    assert_eq!(notice(&told[0]).trap_number, TrapNumber::LINK_STATE_CHANGED);
    assert_eq!(notice(&told[0]).issuer_lid, Lid::new(5));
    let details: &LinkStateDetails = notice(&told[0]).details();
    assert_eq!(details.lid, Lid::new(5));

    let at = chain.bench.fabric.poll_timeout().unwrap();
    assert_eq!(at - chain.bench.fabric.now(), SUBNET_TIMEOUT);
    chain.bench.run_until(at);
    let repeated = traps(&mut chain);
    assert_eq!(repeated, told);

    repress(&mut chain, &told[0]);
    assert_eq!(chain.bench.fabric.poll_timeout(), None);
}

#[test]
fn an_answer_to_another_trap_does_not_stop_the_repetition() {
    let mut chain = Chain::up(LinkConfig::default());
    pull_last_cable(&mut chain);
    let mut told = traps(&mut chain);
    told[0].header.tid = Tid::new(0x7777);
    repress(&mut chain, &told[0]);
    assert!(chain.bench.fabric.poll_timeout().is_some());
}

#[test]
fn a_port_sends_no_more_than_one_trap_in_a_subnet_timeout() {
    let mut chain = Chain::up(LinkConfig::default());
    let at = chain.switches[1].port(2);
    let fabric = &mut chain.bench.fabric;
    fabric.raise_link_trouble(at, LinkTrouble::LocalLinkIntegrity);
    fabric.raise_link_trouble(at, LinkTrouble::BufferOverrun);
    fabric.raise_link_trouble(at, LinkTrouble::FlowControl);
    let mut numbers = Vec::new();
    for _ in 0..3 {
        chain.bench.run();
        let told = traps(&mut chain);
        assert_eq!(told.len(), 1);
        numbers.push(notice(&told[0]).trap_number.get());
        let details: &LinkErrorDetails = notice(&told[0]).details();
        assert_eq!((details.lid, details.port), (Lid::new(4), PortNum(2)));
        repress(&mut chain, &told[0]);
        let next = chain.bench.fabric.now() + SUBNET_TIMEOUT;
        chain.bench.run_until(next);
    }
    assert_eq!(numbers, [129, 130, 131]);
    let counters = chain.bench.port(at).counters;
    assert_eq!(counters.local_link_integrity_errors, 1);
    assert_eq!(counters.excessive_buffer_overruns, 1);
}

#[test]
fn a_changed_capability_mask_is_told() {
    let mut chain = Chain::up(LinkConfig::default());
    let is_sm = CapabilityMask::IS_SM.get();
    let device = chain.bench.fabric.device_mut(chain.b.node).unwrap();
    device.node_mut().change_capabilities(PortNum(1), is_sm, 0);
    chain.bench.run();
    let told = traps(&mut chain);
    let notice = notice(&told[0]);
    assert_eq!(notice.trap_number, TrapNumber::CAPABILITY_MASK_CHANGED);
    assert_eq!(notice.issuer_lid, Lid::new(LID_B));
    let details: &CapabilityDetails = notice.details();
    assert!(details.capability_mask.contains(CapabilityMask::IS_SM));
    assert!(!details.other_local_changes());
}

#[test]
fn a_changed_description_is_told() {
    let mut chain = Chain::up(LinkConfig::default());
    let device = chain.bench.fabric.device_mut(chain.b.node).unwrap();
    let text = ib_wire::smp::NodeDescription::new("renamed");
    device.node_mut().set_description(text);
    chain.bench.run();
    let told = traps(&mut chain);
    let details: &CapabilityDetails = notice(&told[0]).details();
    assert!(details.other_local_changes());
    assert_eq!(details.changes, LocalChanges::NODE_DESCRIPTION);
}

#[test]
fn changed_link_widths_are_told() {
    let mut chain = Chain::up(LinkConfig::default());
    let (a, width) = (chain.a, ib_wire::smp::LinkWidth::X1);
    chain.bench.change_port(a, PATHS[1], 2, |info| {
        info.link_width_enabled = width;
    });
    chain.bench.run();
    // The response to the Set has been taken; the trap came after it.
    let at = chain.bench.fabric.poll_timeout().unwrap();
    chain.bench.run_until(at);
    let told = traps(&mut chain);
    let details: &CapabilityDetails = notice(&told[0]).details();
    assert_eq!(details.changes, LocalChanges::LINK_WIDTH_ENABLED);
}

#[test]
fn an_adapter_whose_link_went_down_forgets_what_it_had_to_tell() {
    let mut chain = Chain::up(LinkConfig::default());
    let is_sm = CapabilityMask::IS_SM.get();
    let cable = chain.links[3];
    let device = chain.bench.fabric.device_mut(chain.b.node).unwrap();
    device.node_mut().change_capabilities(PortNum(1), is_sm, 0);
    chain.bench.fabric.set_link(cable, LinkState::Down);
    chain.bench.run();
    let told = traps(&mut chain);
    assert_eq!(told.len(), 1, "the switch's own");
    repress(&mut chain, &told[0]);
    assert_eq!(chain.bench.fabric.poll_timeout(), None);
}

/// As Linux' `qib` does it (`qib_modify_device`): each port has a subnet of its own to tell.
#[test]
fn what_changes_of_the_node_is_told_by_every_port() {
    let config = HcaConfig::new(Guid::new(0x10), "host");
    let mut node = Node::channel_adapter(&config);
    for port in [PortNum(1), PortNum(2)] {
        let port = node.port_mut(port).unwrap();
        (port.lid, port.sm_lid) = (Lid::new(7), Lid::new(1));
    }
    let told = |node: &mut Node| {
        let traps: Vec<_> = core::iter::from_fn(|| node.poll_trap()).collect();
        node.set_now(node.now() + SUBNET_TIMEOUT);
        node.forget_traps(PortNum(1));
        node.forget_traps(PortNum(2));
        traps
    };
    node.set_description(ib_wire::smp::NodeDescription::new("renamed"));
    let ports: Vec<_> = told(&mut node).iter().map(|(port, _)| port.0).collect();
    assert_eq!(ports, [1, 2]);

    let image = Guid::new(0xabc);
    node.set_system_image_guid(image);
    node.set_system_image_guid(image);
    let traps = told(&mut node);
    assert_eq!(traps.len(), 2);
    for (_, mad) in traps {
        let notice = notice(&mad);
        assert_eq!(notice.trap_number, TrapNumber::SYSTEM_IMAGE_GUID_CHANGED);
        let details: &SystemImageGuidDetails = notice.details();
        assert_eq!(
            (details.lid, details.system_image_guid),
            (Lid::new(7), image)
        );
    }
}
