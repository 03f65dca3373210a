//! Cables: links that are plugged in and out, and their planned faults.

use core::time::Duration;
use std::collections::BTreeMap;

use emulated_hca::{Endpoint, Fault, FaultPlan, LinkConfig, LinkId, LinkState, PacketFilter, When};
use ib_wire::smp::{LinkSpeed, LinkSpeedExt, LinkWidth};
use vhca_control::{FaultySpeed, FaultyWidth, LinkFaults, Refusal};

use super::inventory::{End, Inventory};

/// Parts in all.
const MILLION: u32 = 1_000_000;

/// Longest delay: timeouts of managers and connections are shorter.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Returns the widths up to a faulty one.
const fn widths(of: FaultyWidth) -> LinkWidth {
    let narrow = LinkWidth::X1.0;
    LinkWidth(match of {
        FaultyWidth::X1 => narrow,
        FaultyWidth::X2 => narrow | LinkWidth::X2.0,
        FaultyWidth::X4 => narrow | LinkWidth::X2.0 | LinkWidth::X4.0,
        FaultyWidth::X8 => narrow | LinkWidth::X2.0 | LinkWidth::X4.0 | LinkWidth::X8.0,
    })
}

/// Returns the speeds up to a faulty one.
const fn speeds(of: FaultySpeed) -> (LinkSpeed, LinkSpeedExt) {
    let all = LinkSpeed::ALL_SUPPORTED;
    match of {
        FaultySpeed::Sdr => (LinkSpeed::SDR, LinkSpeedExt::NONE),
        FaultySpeed::Ddr => (LinkSpeed::from_low_bits(3), LinkSpeedExt::NONE),
        FaultySpeed::Qdr => (LinkSpeed::from_low_bits(7), LinkSpeedExt::NONE),
        FaultySpeed::Fdr => (all, LinkSpeedExt::FDR),
        FaultySpeed::Edr => (all, LinkSpeedExt::from_low_bits(3)),
        FaultySpeed::Hdr => (all, LinkSpeedExt::from_low_bits(7)),
    }
}

/// Returns the plan of a direction, or `None` if nothing goes wrong.
fn plan(of: &LinkFaults, seed: u64) -> Option<FaultPlan> {
    let rules = [
        (of.loss, Fault::Drop),
        (of.duplicate, Fault::Duplicate),
        (of.corrupt, Fault::CorruptOnWire { bits: 1 }),
    ];
    let plan = FaultPlan::new(seed);
    let plan = rules
        .into_iter()
        .filter(|(parts, _)| *parts > 0)
        .fold(plan, |plan, (parts, fault)| {
            plan.rule(PacketFilter::default(), When::PerMillion(parts), fault)
        });
    (!plan.rules().is_empty()).then_some(plan)
}

/// Returns the configuration of a link with these faults.
fn cable(of: &LinkFaults, sound: LinkConfig) -> LinkConfig {
    let widths = of.width.map_or(LinkWidth::ALL_SUPPORTED, widths);
    let all = (LinkSpeed::ALL_SUPPORTED, LinkSpeedExt::ALL_SUPPORTED);
    let (speeds, extended) = of.speed.map_or(all, speeds);
    LinkConfig {
        widths: LinkWidth(sound.widths.0 & widths.0),
        speeds: LinkSpeed::from_low_bits(sound.speeds.get() & speeds.get()),
        extended_speeds: LinkSpeedExt::from_low_bits(sound.extended_speeds.get() & extended.get()),
        latency: sound
            .latency
            .saturating_add(Duration::from_nanos(of.delay_ns)),
        ..sound
    }
}

/// Returns the reason for which faults cannot be planned.
fn check(of: &LinkFaults) -> Result<(), String> {
    let parts = [of.loss, of.duplicate, of.corrupt];
    if parts.iter().any(|parts| *parts > MILLION) {
        return Err(format!(
            "a fault strikes at most {MILLION} packets in a million"
        ));
    }
    if Duration::from_nanos(of.delay_ns) > MAX_DELAY {
        return Err(format!("a delay is at most {} s", MAX_DELAY.as_secs()));
    }
    Ok(())
}

/// The links of a fabric, as an administrator changes them.
#[derive(Debug, Default)]
pub(super) struct Cables {
    /// Links as they were before they had faults.
    sound: BTreeMap<LinkId, LinkConfig>,
    /// Faults that strike packets, of the links that have some.
    planned: BTreeMap<LinkId, LinkFaults>,
}

impl Cables {
    /// Returns a link as it was before it had faults, if it has had some.
    pub(super) fn sound(&self, link: LinkId) -> Option<&LinkConfig> {
        self.sound.get(&link)
    }

    /// Returns `true` if faults are planned that strike packets.
    pub(super) fn has_planned(&self) -> bool {
        !self.planned.is_empty()
    }

    /// Returns the faults of a link that strike packets, if there are some.
    pub(super) fn planned(&self, link: LinkId) -> Option<&LinkFaults> {
        self.planned.get(&link)
    }

    /// Plans faults of the link of a port (`NODE/PORT`), or of all links between two nodes, in place of all former faults.
    /// They strike every packet, those of management too. A link that gets another width or speed goes down for it. Returns
    /// the links.
    ///
    /// # Errors
    /// A refusal that says why; nothing has changed then.
    pub(super) fn plan_faults(
        &mut self,
        inventory: &mut Inventory,
        a: &str,
        b: Option<&str>,
        faults: LinkFaults,
    ) -> Result<Vec<LinkId>, Refusal> {
        let bad = |message: String| Refusal::new("bad_faults", message);
        check(&faults).map_err(bad)?;
        let links = links_at(inventory, a, b)?;
        let mut changed: Vec<(LinkId, [Endpoint; 2], LinkConfig)> = Vec::new();
        for link in &links {
            let fabric = inventory.fabric();
            let Some((ends, now)) = fabric.link_ends(*link).zip(fabric.link_config(*link)) else {
                continue;
            };
            let sound = self.sound.get(link).copied().unwrap_or(now);
            let cable = cable(&faults, sound);
            if let Some(why) = nothing_in_common(inventory, ends, &cable).filter(|_| {
                // Ports that had nothing in common before are not the fault's matter.
                faults.width.is_some() || faults.speed.is_some()
            }) {
                return Err(bad(why));
            }
            changed.push((*link, ends, cable));
        }
        let mut seed = 0;
        for (link, ends, cable) in changed {
            let fabric = inventory.world_mut().fabric_mut();
            if let Some(sound) = fabric.link_config(link) {
                self.sound.entry(link).or_insert(sound);
            }
            for end in ends {
                seed += 1;
                fabric.set_faults(end, plan(&faults, seed).as_ref());
                fabric.count_symbol_errors(end, faults.symbol_errors);
            }
            fabric.set_link_config(link, cable);
            if faults.strike_packets() {
                self.planned.insert(link, faults);
            } else {
                self.planned.remove(&link);
            }
        }
        Ok(links)
    }
}

/// Returns why the ends of a link would not come up with a cable, if they would not.
fn nothing_in_common(
    inventory: &Inventory,
    ends: [Endpoint; 2],
    cable: &LinkConfig,
) -> Option<String> {
    let [a, b] = ends.map(|end| inventory.physical_port(end));
    let (a, b) = a.zip(b)?;
    let what = if a.width_enabled.0 & b.width_enabled.0 & cable.widths.0 == 0 {
        "width"
    } else if a.speed_enabled.get() & b.speed_enabled.get() & cable.speeds.get() == 0 {
        "speed"
    } else {
        return None;
    };
    let [a, b] = ends.map(|end| inventory.port_name(end));
    Some(format!(
        "{a} and {b} have no such {what} in common: the link would stay down, as with vhca set link {a} down"
    ))
}

/// Plugs cables in or out: that of a port (`NODE/PORT`), or all between two nodes. Returns their
/// number.
///
/// # Errors
/// A refusal that says why; nothing has changed then.
pub(super) fn set_link(
    inventory: &mut Inventory,
    a: &str,
    b: Option<&str>,
    up: bool,
) -> Result<usize, Refusal> {
    let links = links_at(inventory, a, b)?;
    let state = if up { LinkState::Up } else { LinkState::Down };
    for link in &links {
        inventory.world_mut().fabric_mut().set_link(*link, state);
    }
    Ok(links.len())
}

/// Returns the link of a port (`NODE/PORT`), or all between two nodes.
///
/// # Errors
/// A refusal if there is none, or `a` alone may be any of several.
fn links_at(inventory: &Inventory, a: &str, b: Option<&str>) -> Result<Vec<LinkId>, Refusal> {
    let ends = [Some(a), b].map(|end| end.map(|end| inventory.end(end)).transpose());
    let [a_end, b_end] = ends;
    let (Some(a_end), b_end) = (a_end?, b_end?) else {
        return Err(Refusal::new("bad_link", "a link has an end"));
    };
    if a_end.1.is_none() && b_end.is_none() {
        let message = format!("say NODE/PORT, or two nodes: {a} may have several links");
        return Err(Refusal::new("bad_link", message));
    }
    let links = links_between(inventory, a_end, b_end);
    if links.is_empty() {
        return Err(no_such_link(inventory, a_end, b_end));
    }
    Ok(links)
}

/// Returns why no link is between two ends, or at a port.
fn no_such_link(inventory: &Inventory, a: End, b: Option<End>) -> Refusal {
    let name = |(node, port): End| match port {
        Some(port) => inventory.port_name(Endpoint { node, port }),
        None => inventory.node_name(node),
    };
    let is_missing = |(node, port): &End| {
        port.is_some_and(|port| {
            port.0 == 0
                || inventory
                    .physical_port(Endpoint { node: *node, port })
                    .is_none()
        })
    };
    let ends = [Some(a), b].into_iter().flatten();
    let message = match (ends.into_iter().find(is_missing), b) {
        (Some(missing), _) => format!("there is no port {}", name(missing)),
        (None, None) => format!("{} has no cable", name(a)),
        (None, Some(b)) => format!("no cable is between {} and {}", name(a), name(b)),
    };
    let message = format!("{message}: vhca show fabric lists the links of all ports");
    Refusal::new("no_such_link", message)
}

fn links_between(inventory: &Inventory, a: End, b: Option<End>) -> Vec<LinkId> {
    let is = |end: Endpoint, wanted: End| {
        end.node == wanted.0 && wanted.1.is_none_or(|port| port == end.port)
    };
    let fabric = inventory.fabric();
    let links = fabric.links().filter(|link| {
        let Some([one, other]) = fabric.link_ends(*link) else {
            return false;
        };
        let joins = |one, other| is(one, a) && b.is_none_or(|b| is(other, b));
        joins(one, other) || joins(other, one)
    });
    links.collect()
}

#[cfg(test)]
mod tests {
    use ib_vtime::Instant;

    use super::*;
    use crate::serve::{Lab, Options};
    use vhca::Slice;

    #[test]
    fn a_link_loses_packets_from_when_it_is_told_to_until_it_is_cleared() {
        let mut lab = Lab::build(&Options::default(), 1).unwrap();
        let node = lab.inventory.node("H1-1").unwrap();
        let half = LinkFaults {
            loss: 500_000,
            ..LinkFaults::default()
        };
        assert_eq!(lab.set_link_faults("H1-1/1", None, half), Ok(1));
        for ms in 0..500 {
            lab.poll(
                Instant::ZERO + Duration::from_millis(ms),
                &mut Slice::endless(),
            );
        }
        let dropped = |lab: &Lab| lab.world().fabric().fault_counters(node.port(1)).dropped;
        assert!(dropped(&lab) > 0, "the subnet manager asks the port");
        let none = LinkFaults::default();
        assert_eq!(lab.set_link_faults("H1-1/1", None, none), Ok(1));
        assert_eq!(dropped(&lab), 0);
    }

    #[test]
    fn a_link_is_narrow_slow_and_late_until_it_is_cleared() {
        let mut lab = Lab::build(&Options::default(), 1).unwrap();
        let at = lab.inventory.node("H1-1").unwrap().port(1);
        let rate = |lab: &Lab| {
            let port = lab.world().fabric().port(at).unwrap();
            let speed = (port.speed_active, port.extended_speed_active);
            (port.width_active, speed, port.counters.symbol_errors)
        };
        let sound = rate(&lab);
        let link = lab.world().fabric().link_at(at).unwrap();
        let cable = lab.world().fabric().link_config(link).unwrap();
        let faults = LinkFaults {
            width: Some(FaultyWidth::X1),
            speed: Some(FaultySpeed::Sdr),
            delay_ns: 10_000,
            symbol_errors: 7,
            ..LinkFaults::default()
        };
        assert_eq!(lab.set_link_faults("H1-1/1", None, faults), Ok(1));
        let slow = (LinkSpeed::SDR, LinkSpeedExt::NONE);
        assert_eq!(rate(&lab), (LinkWidth::X1, slow, 7));
        let latency = |lab: &Lab| lab.world().fabric().link_config(link).unwrap().latency;
        assert_eq!(latency(&lab), Duration::from_micros(10));
        // A second fault is no worse for the first one.
        let later = LinkFaults {
            delay_ns: 20_000,
            ..LinkFaults::default()
        };
        assert_eq!(lab.set_link_faults("H1-1/1", None, later), Ok(1));
        assert_eq!(latency(&lab), Duration::from_micros(20));
        assert_eq!(rate(&lab), (sound.0, sound.1, 7));
        let none = LinkFaults::default();
        assert_eq!(lab.set_link_faults("H1-1/1", None, none), Ok(1));
        assert_eq!(lab.world().fabric().link_config(link), Some(cable));
    }

    #[test]
    fn faults_beyond_all_packets_and_links_that_do_not_exist_are_refused() {
        let mut lab = Lab::build(&Options::default(), 1).unwrap();
        let code = |set: Result<usize, Refusal>| set.map_err(|refusal| refusal.code);
        let some = LinkFaults {
            corrupt: MILLION,
            ..LinkFaults::default()
        };
        let beyond = LinkFaults {
            corrupt: MILLION + 1,
            ..some
        };
        let late = LinkFaults {
            delay_ns: 10_000_000_001,
            ..some
        };
        let refused = |code: &str| Err(code.to_owned());
        assert_eq!(code(lab.set_link_faults("S1", Some("S2"), some)), Ok(2));
        for (a, faults, expected) in [
            ("S1/7", beyond, "bad_faults"),
            ("S1/7", late, "bad_faults"),
            ("S1", some, "bad_link"),
            ("S1/5", some, "no_such_link"),
            ("X/1", some, "no_such_node"),
        ] {
            assert_eq!(
                code(lab.set_link_faults(a, None, faults)),
                refused(expected)
            );
        }
    }
}
