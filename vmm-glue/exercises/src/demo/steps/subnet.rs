//! The subnet as a whole: it comes up, loses a link, gets it back, and loses its manager.

use emulated_hca::{LinkId, LinkState};
use hca_api::PortChange;
use ib_endpoint::{EndPortEvent, SaEvent};
use ib_wire::smp::PortState;
use ib_wire::{Lid, Lmc};
use subnet_lite::SubnetConfig;
use subnet_lite::sm::SmEvent;
use vhca_control::Facts;

use super::{datagrams, queries};
use crate::demo::stage::{Stage, Standing, StepError, StepResult, ensure};
use vhca::world::{HostId, HostPortId, World};

/// Two LIDs for each port of a host: a connection can have an alternate path.
const LMC: Lmc = Lmc::from_low_bits(1);

fn start_manager(stage: &mut Stage) -> StepResult<()> {
    let config = SubnetConfig {
        lmc: LMC,
        ..SubnetConfig::default()
    };
    let at = stage.network.manager.at;
    Ok(stage.world()?.start_manager(at, config)?)
}

/// Waits until the manager serves and every port of a host is active, as the hosts see it.
fn wait_until_up(stage: &mut Stage) -> StepResult<()> {
    let manager = stage.network.manager.at.host;
    let ports = ports(stage);
    let up = |world: &mut World| {
        let serving = world.manager(manager).is_some_and(|m| m.sm().is_serving());
        let active = ports.iter().all(|(_, at)| {
            let view = world.port(*at).view();
            view.state == PortState::ACTIVE && view.sa_address().is_some()
        });
        (serving && active).then_some(())
    };
    stage.wait_for("all ports active and the SA serving", up)
}

/// The hosts' ports, by name.
fn ports(stage: &Stage) -> Vec<(String, HostPortId)> {
    let network = &stage.network;
    let mut ports = vec![(network.manager.name.to_owned(), network.manager.at)];
    for host in network.hosts {
        ports.extend([1, 2].map(|port| (format!("{}/{port}", host.name), host.id.port(port))));
    }
    ports
}

/// The LIDs of the hosts' ports.
fn lids(stage: &mut Stage) -> StepResult<Vec<Lid>> {
    let ports = ports(stage);
    let world = stage.world()?;
    let lids = ports.iter().map(|(_, at)| world.port(*at).view().lid);
    Ok(lids.collect())
}

/// How often the manager has completed a sweep.
fn sweeps(stage: &mut Stage) -> StepResult<usize> {
    let manager = stage.network.manager.at.host;
    Ok(completed_sweeps(stage.world()?, manager))
}

fn completed_sweeps(world: &World, manager: HostId) -> usize {
    let events = world.host(manager).subnet_events();
    let is_up = |event: &&SmEvent| **event == SmEvent::SubnetUp;
    events.iter().filter(is_up).count()
}

/// Waits until the manager has completed more sweeps than `before` and has nothing left to do.
fn wait_for_sweep(stage: &mut Stage, before: usize) -> StepResult<()> {
    let manager = stage.network.manager.at.host;
    stage.wait_for("a sweep of the subnet", |world| {
        let settled = world.manager(manager).is_some_and(|m| m.sm().is_settled());
        (settled && completed_sweeps(world, manager) > before).then_some(())
    })
}

pub(super) fn comes_up(stage: &mut Stage) -> StepResult {
    start_manager(stage)?;
    wait_until_up(stage)?;
    let ports = ports(stage);
    let manager = stage.network.manager;
    let world = stage.world()?;
    let running = world
        .manager(manager.at.host)
        .ok_or_else(|| StepError::failed("the manager is gone"))?;
    let view = |at: HostPortId| world.port(at).view();
    Ok(Facts::new()
        .with("nodes", world.fabric().nodes().count())
        .with("links", world.fabric().links().count())
        .show("sm_lid", view(manager.at).sm_lid)
        .with("smps", running.sm().mad_counters().sent)
        .list(
            "lids",
            ports
                .iter()
                .map(|(name, at)| format!("{name}:{}", view(*at).lid)),
        ))
}

pub(super) fn link_fails(stage: &mut Stage) -> StepResult {
    let (a, b) = (stage.network.a(1), stage.network.b(1));
    let before = sweeps(stage)?;
    let link = stage.network.direct_link;
    let unplugged = stage.now()?;
    stage.world()?.fabric_mut().set_link(link, LinkState::Down);
    // The forwarding tables still lead over the dead link.
    datagrams::send(stage, a, b, b"lost")?;
    wait_for_sweep(stage, before)?;
    let rerouted = stage.now()? - unplugged;
    let crossed = stage.world()?.socket_mut(b.socket).receive();
    ensure(crossed.is_none(), || {
        "a datagram crossed a link without a cable".to_owned()
    })?;
    datagrams::exchange(stage, a, b, b"around")?;
    Ok(Facts::new()
        .show("failed_link", describe(stage, link)?)
        .with("lost_datagrams", 1)
        .millis("rerouted_after_ms", rerouted)
        .with("delivered_around", true))
}

pub(super) fn link_comes_back(stage: &mut Stage) -> StepResult {
    let (a, b) = (stage.network.a(1), stage.network.b(1));
    let before = sweeps(stage)?;
    let link = stage.network.direct_link;
    let plugged = stage.now()?;
    stage.world()?.fabric_mut().set_link(link, LinkState::Up);
    wait_for_sweep(stage, before)?;
    let took = stage.now()? - plugged;
    let crossed = packets_over(stage, link)?;
    datagrams::exchange(stage, a, b, b"direct")?;
    ensure(packets_over(stage, link)? > crossed, || {
        "the datagram did not take the link that came back".to_owned()
    })?;
    Ok(Facts::new()
        .show("restored_link", describe(stage, link)?)
        .millis("in_use_after_ms", took)
        .with("delivered_directly", true))
}

pub(super) fn manager_restarts(stage: &mut Stage) -> StepResult {
    let lids_before = lids(stage)?;
    let guests_up = stage.network.guests();
    let host = stage.network.manager.at.host;
    stage.world()?.stop_manager(host)?;
    // Nobody manages the subnet, and it goes on working.
    let (a, b) = (stage.network.a(1), stage.network.b(1));
    datagrams::exchange(stage, a, b, b"without a manager")?;

    start_manager(stage)?;
    let restarted = stage.now()?;
    stage.wait_event(a, "the request to register again", |event| match event {
        EndPortEvent::Port(change) => change.contains(PortChange::CLIENT_REREGISTER).then_some(()),
        _ => None,
    })?;
    wait_until_up(stage)?;
    wait_until_registered(stage)?;
    let took = stage.now()? - restarted;
    ensure(lids(stage)? == lids_before, || {
        "the new manager changed LIDs".to_owned()
    })?;
    let services = queries::count_services(stage)?;
    let members = datagrams::send_to_group(stage)?;
    let memberships = datagrams::members_at_the_sa(stage)?;
    Ok(Facts::new()
        .with("lids_kept", true)
        .with("guests_up", guests_up.len())
        .with("memberships_at_the_sa", memberships)
        .with("services", services)
        .list("group_members_reached", members)
        .millis("served_again_after_ms", took))
}

/// Waits until the SA has everything again that the guests wished for. It refuses none of them anything
/// meanwhile.
fn wait_until_registered(stage: &mut Stage) -> StepResult<()> {
    let manager = stage.network.manager.at.host;
    let hosts = stage.network.hosts.len();
    let wishes = stage.wishes.clone();
    let guests = stage.network.guests();
    let refused = stage.wait_for("everything registered again", |world| {
        for guest in &guests {
            while let Some(event) = world.poll_event(guest.at) {
                if let EndPortEvent::Sa(SaEvent::Refused { error, .. }) = event {
                    return Some(Some((guest.name, error)));
                }
            }
        }
        let granted = |wish: &Standing| world.port(wish.port.at).sa().is_granted(wish.id);
        let sa = world.manager(manager)?.sa();
        let is_back = datagrams::group_members(sa) == hosts
            && sa.service_count() == queries::SERVICES
            && wishes.iter().all(granted);
        is_back.then_some(None)
    })?;
    match refused {
        None => Ok(()),
        Some((guest, error)) => Err(StepError::Failed(format!(
            "{guest} noticed the restart: {error}"
        ))),
    }
}

/// Waits until the manager has written everything that it has to.
pub(super) fn wait_until_settled(stage: &mut Stage) -> StepResult<()> {
    let manager = stage.network.manager.at.host;
    stage.wait_for("the manager has nothing left to write", |world| {
        world.manager(manager)?.sm().is_settled().then_some(())
    })
}

/// Packets that left the two ends of a link.
fn packets_over(stage: &mut Stage, link: LinkId) -> StepResult<u64> {
    let fabric = stage.world()?.fabric();
    let ends = fabric.link_ends(link).into_iter().flatten();
    let ports = ends.filter_map(|end| fabric.port(end));
    Ok(ports.map(|port| port.counters.xmit_packets).sum())
}

/// A link by the names and ports of its ends.
fn describe(stage: &mut Stage, link: LinkId) -> StepResult<String> {
    let fabric = stage.world()?.fabric();
    let ends = fabric.link_ends(link).into_iter().flatten();
    let names: Vec<String> = ends
        .filter_map(|end| {
            let node = fabric.node(end.node)?;
            let name = String::from_utf8_lossy(node.description.trimmed()).into_owned();
            Some(format!("{name}/{}", end.port))
        })
        .collect();
    Ok(names.join("-"))
}
