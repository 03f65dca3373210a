//! Faults of links that are down, go down again and again, or are below what both their ends support.

use std::collections::BTreeSet;

use hca_api::{PhysicalState, PortState};
use ib_wire::PortNum;

use crate::commands;
use crate::fault::Fault;
use crate::rates::Shortfall;
use crate::shell::quoted;
use crate::snapshot::{ERRORS_COUNT, OnPort};
use crate::subnet::{Extent, PortAt, Subnet};

/// Times that a link goes down within a minute at least to be flapping: more than an administrator takes it down by hand.
const FLAPPING: u64 = 10;

/// Errors of a link within ten minutes at least to be a fault: a sound link has one in hours.
const ERRONEOUS: u64 = 10;

/// Returns the reason for which the link of a port is down, if it is down. A switch's port 0 has none.
pub(crate) fn down(subnet: &Subnet, at: PortAt) -> Option<Fault> {
    let is_port0 = subnet.is_switch(at.node) && at.port == PortNum::SWITCH_MANAGEMENT;
    let port = subnet.port(at).filter(|_| !is_port0)?;
    if port.physical_state == PhysicalState::LinkUp {
        return None;
    }
    let name = subnet.port_name(at);
    let Some(peer) = subnet.peer(at) else {
        return Some(match subnet.extent {
            Extent::Whole | Extent::Near => {
                Fault::new("no_cable", "nothing is plugged into the physical port")
                    .seen(format!("{name} has no link in the topology"))
                    .next("give the port a link in the topology file, and start the service anew")
            }
            Extent::Adapters if port.physical_state == PhysicalState::Disabled => {
                // So is a RoCE port whose netdev is down.
                disabled(subnet, at, at)
                    .remark("for a RoCE port, as root: ip link set its netdev up")
            }
            Extent::Adapters => Fault::new("link_down", "the physical link is down")
                .seen(format!("{name} is {:?}", port.physical_state))
                .next("see the cable, and the port at its other end"),
        });
    };
    let other = subnet.port_name(peer);
    if subnet.is_gateway(peer.node) {
        return Some(
            Fault::new("not_attached", "the simulator's node is not attached")
                .seen(format!("{name} leads to {other}, which is not there"))
                .next("start the simulator, or see its log; vhca attaches as soon as it can"),
        );
    }
    for end in [at, peer] {
        let state = subnet.port(end).map(|port| port.physical_state);
        if state == Some(PhysicalState::Disabled) {
            return Some(disabled(subnet, at, end));
        }
    }
    Some(
        Fault::new("link_down", "the physical link is down")
            .seen(format!("{name} is {:?}", port.physical_state))
            .seen(format!("its link leads to {other}"))
            .next(format!("vhca set link {} up", quoted(&name))),
    )
}

/// A port whose link is down because it, or the one at the other end, was disabled.
fn disabled(subnet: &Subnet, at: PortAt, disabled: PortAt) -> Fault {
    let name = subnet.port_name(disabled);
    let summary = "a management program has disabled the port at one end of the link";
    let fault = Fault::new("port_disabled", summary).seen(format!(
        "the link of {} is down, since {name} is disabled",
        subnet.port_name(at)
    ));
    // On the node itself: nothing passes the link.
    fault.next(commands::port(subnet, disabled, "enable"))
}

/// Returns a link that is down between the ports that are reachable from one end port and the rest, beyond which the other is.
pub(crate) fn cut_between(subnet: &Subnet, at: PortAt, far: PortAt) -> Option<Fault> {
    let near = subnet.reachable(at);
    let beyond = subnet.reachable(far);
    if near.contains(&far) {
        return None;
    }
    let crosses = |a: PortAt, b: PortAt| {
        near.contains(&subnet.end_port(a)) && beyond.contains(&subnet.end_port(b))
    };
    let one = subnet.links.iter().find_map(|[a, b]| {
        (crosses(*a, *b).then_some(*a)).or_else(|| crosses(*b, *a).then_some(*b))
    })?;
    down(subnet, one)
}

/// Returns the fault of a port whose link goes down again and again, whether it is up at the moment or not.
pub(crate) fn flapping(on: OnPort<'_>) -> Option<Fault> {
    const SUMMARY: &str = "the physical link goes down again and again";
    let times = on.facts()?.losses;
    if times < FLAPPING {
        return None;
    }
    let (subnet, at) = (on.subnet(), on.at());
    let fault = match down(subnet, at) {
        Some(down) => down.called("link_flapping", SUMMARY),
        None => Fault::new("link_flapping", SUMMARY).next(
            "stop what takes the link down and up (vhca set link, ibportstate), then wait a minute",
        ),
    };
    Some(fault.seen(format!(
        "the link of {} went down {times} times in the last minute",
        subnet.port_name(at)
    )))
}

/// Returns the fault that by order the service damages packets on the port's link, or on the way between the port and its SM.
pub(crate) fn planned(on: OnPort<'_>) -> Option<Fault> {
    let (subnet, at) = (on.subnet(), on.at());
    let own = subnet.port(at)?.link;
    let sm = subnet.owner(on.physical()?.sm_lid);
    let sm = sm.or_else(|| subnet.manager_near(at));
    let links = sm.map_or_else(Vec::new, |sm| between(subnet, at, sm));
    planned_on(subnet, own.into_iter().chain(links))
}

/// Returns the links that packets between two ports cross, in one direction or the other; where no routes lead there, the links of a
/// shortest way.
pub(crate) fn between(subnet: &Subnet, at: PortAt, far: PortAt) -> Vec<usize> {
    let ways = [[at, far], [far, at]].map(|ends| subnet.ways.get(&ends));
    let hops = ways.into_iter().flatten().flat_map(|way| &way.hops);
    let crossed = hops.filter_map(|[out, _]| subnet.port(*out)?.link);
    crossed.chain(subnet.shortest(at, far)).collect()
}

/// Returns the fault that by order the service damages packets on some links.
pub(crate) fn planned_on(subnet: &Subnet, links: impl Iterator<Item = usize>) -> Option<Fault> {
    let links: BTreeSet<usize> = links.collect();
    let damaged = links.iter().filter_map(|link| {
        let [near, _] = *subnet.links.get(*link)?;
        Some((subnet.port_name(near), subnet.planned.get(link)?))
    });
    let damaged: Vec<(String, &String)> = damaged.collect();
    let summary = "by order the service damages packets on a link that the port's packets cross";
    let mut fault = Fault::new("link_faulty", summary);
    for (name, faults) in &damaged {
        fault = fault.seen(format!("the link of {name} has {faults}"));
    }
    let clear = damaged
        .iter()
        .map(|(name, _)| format!("vhca clear link {}", quoted(name)));
    let clear: Vec<String> = clear.collect();
    (!clear.is_empty()).then(|| fault.next(clear.join(" && ")))
}

/// Returns the fault that the ends of the port's link have lately counted many errors.
pub(crate) fn erroneous(on: OnPort<'_>) -> Option<Fault> {
    let errors = on.facts()?.errors;
    if errors < ERRONEOUS {
        return None;
    }
    let (subnet, at) = (on.subnet(), on.at());
    let name = subnet.port_name(at);
    let minutes = ERRORS_COUNT.as_secs() / 60;
    let fault = Fault::new("link_errors", "the ends of the physical link count errors");
    let fault = fault.seen(format!(
        "the ends of the link of {name} counted {errors} errors in the last {minutes} minutes"
    ));
    let fault = fault.next(format!("vhca clear link {}", quoted(&name)));
    Some(fault.remark("forgets them; if more follow, exchange the cable"))
}

/// Compares a link that packets pass with what both its ends support. Of a link that leaves the fabric one end is not known.
fn shortfall(subnet: &Subnet, at: PortAt) -> Option<Shortfall> {
    let (port, far) = (subnet.port(at)?, subnet.peer(at)?);
    let is_up = (port.physical_state, port.state) == (PhysicalState::LinkUp, PortState::Active);
    let leaves = subnet.is_gateway(far.node);
    (is_up && !leaves)
        .then(|| port.rates.shortfall(&subnet.port(far)?.rates))
        .flatten()
}

/// Returns the fault of a port whose link is narrower or slower than both its ends support.
pub(crate) fn below_support(on: OnPort<'_>) -> Option<Fault> {
    let (subnet, at) = (on.subnet(), on.at());
    let Shortfall { lanes, kbps } = shortfall(subnet, at)?;
    let (code, than) = match (lanes, kbps) {
        (Some(_), Some(_)) => ("link_narrow", "narrower and slower"),
        (Some(_), None) => ("link_narrow", "narrower"),
        (None, Some(_)) => ("link_slow", "slower"),
        (None, None) => return None,
    };
    let name = subnet.port_name(at);
    let mut fault = Fault::new(
        code,
        format!("the link is {than} than both its ends support"),
    );
    if let Some([has, could]) = lanes {
        fault = fault.seen(format!(
            "the link of {name} has {has}X, both ends support {could}X"
        ));
    }
    if let Some([has, could]) = kbps {
        let [has, could] = [has, could].map(|kbps| f64::from(kbps) / 1e6);
        fault = fault.seen(format!(
            "the link of {name} has {has:?} Gbps a lane, both ends support {could:?} Gbps"
        ));
    }
    Some(if on.facts()?.is_impaired {
        fault.next(format!("vhca clear link {}", quoted(&name)))
    } else {
        let query = commands::port(subnet, at, "query");
        fault.next(query).remark(
            "says which widths and speeds are enabled; ibportstate changes them, and the topology has the cable",
        )
    })
}
