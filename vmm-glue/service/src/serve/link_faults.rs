//! Planned faults of links, while the service runs.

use emulated_hca::{Fault, FaultPlan, PacketFilter, When};
use serde::{Deserialize, Serialize};

use super::Lab;
use super::control::protocol::Refusal;

/// Parts in all.
const MILLION: u32 = 1_000_000;

/// Packets of a link that are lost, doubled and damaged, each way, in parts per million; what is not named is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkFaults {
    /// Packets that are lost.
    pub loss: u32,
    /// Packets that arrive twice.
    pub duplicate: u32,
    /// Packets of which a bit flips on the wire: the receiver's VCRC check fails.
    pub corrupt: u32,
}

impl LinkFaults {
    /// Returns the plan of a direction, or `None` if nothing goes wrong.
    fn plan(&self, seed: u64) -> Option<FaultPlan> {
        let rules = [
            (self.loss, Fault::Drop),
            (self.duplicate, Fault::Duplicate),
            (self.corrupt, Fault::CorruptOnWire { bits: 1 }),
        ];
        let plan = FaultPlan::new(seed);
        let plan =
            rules
                .into_iter()
                .filter(|(parts, _)| *parts > 0)
                .fold(plan, |plan, (parts, fault)| {
                    plan.rule(PacketFilter::default(), When::PerMillion(parts), fault)
                });
        (!plan.rules().is_empty()).then_some(plan)
    }
}

impl Lab {
    /// Plans faults of the link of a port (`NODE/PORT`), or of all links between two nodes, in place of those that were planned.
    /// They strike every packet, those of management too. Returns the number of links.
    ///
    /// # Errors
    /// A refusal that says why; nothing has changed then.
    pub fn set_link_faults(
        &mut self,
        a: &str,
        b: Option<&str>,
        faults: LinkFaults,
    ) -> Result<usize, Refusal> {
        let LinkFaults {
            loss,
            duplicate,
            corrupt,
        } = faults;
        if [loss, duplicate, corrupt]
            .iter()
            .any(|parts| *parts > MILLION)
        {
            let message = format!("a fault strikes at most {MILLION} packets in a million");
            return Err(Refusal::new("bad_faults", message));
        }
        let links = self.links_at(a, b)?;
        let fabric = self.world_mut().fabric_mut();
        let ends = links.iter().filter_map(|link| fabric.link_ends(*link));
        let ends: Vec<_> = ends.flatten().collect();
        for (seed, from) in (1..).zip(ends) {
            fabric.set_faults(from, faults.plan(seed).as_ref());
        }
        Ok(links.len())
    }
}

#[cfg(test)]
mod tests {
    use ib_vtime::{Duration, Instant};

    use super::*;
    use crate::serve::Options;
    use vhca::Slice;

    #[test]
    fn a_link_loses_packets_from_when_it_is_told_to_until_it_is_cleared() {
        let mut lab = Lab::build(&Options::default(), 1).unwrap();
        let node = lab.node("H1-1").unwrap();
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
        let dropped = |lab: &Lab| lab.fabric().fault_counters(node.port(1)).dropped;
        assert!(dropped(&lab) > 0, "the subnet manager asks the port");
        let none = LinkFaults::default();
        assert_eq!(lab.set_link_faults("H1-1/1", None, none), Ok(1));
        assert_eq!(dropped(&lab), 0);
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
        let refused = |code: &str| Err(code.to_owned());
        assert_eq!(code(lab.set_link_faults("S1", Some("S2"), some)), Ok(2));
        for (a, faults, expected) in [
            ("S1/7", beyond, "bad_faults"),
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
