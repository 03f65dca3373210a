//! Facts of two ports, or VFs on them, for the diagnosis of why they cannot talk.

use emulated_hca::hca::QpRow;
use emulated_hca::{Endpoint, Fabric};
use hca_api::FunctionId;
use ib_wire::{Gid, PKey, PortNum};
use pf_context::inspect::Inspect;
use vhca_control::Refusal;
use vhca_diagnosis::{Dropped, End, Pair, PairDiagnosis, PairGroup, why_pair};

use crate::serve::inventory::{LabHost, NamedVf};
use crate::serve::lab::Lab;
use crate::serve::snapshot::Survey;

/// An end of a pair, as its name was resolved.
#[derive(Clone, Debug)]
pub(in crate::serve) struct NamedEnd {
    name: String,
    at: Endpoint,
    vf: Option<NamedVf>,
}

impl NamedEnd {
    /// Returns the host whose PF shares the port, if the end is a VF.
    pub(in crate::serve) fn vf(&self) -> Option<&NamedVf> {
        self.vf.as_ref()
    }

    const fn function(&self) -> FunctionId {
        match &self.vf {
            Some(vf) => FunctionId(vf.vf.get()),
            None => FunctionId::PF,
        }
    }
}

/// Returns the VF or the port that a name stands for: `HOST/N` is the VF of a host with VFs, and `NODE/PORT` the port of another
/// node; `port` is the port of VFs.
///
/// # Errors
/// A refusal that has the reason.
pub(in crate::serve) fn named_end(
    lab: &Lab,
    text: &str,
    port: Option<PortNum>,
) -> Result<NamedEnd, Refusal> {
    let (node, number) = text.rsplit_once('/').unwrap_or((text, "1"));
    let is_of_vfs = lab.inventory.pf_host(node).is_ok();
    if text.contains('/') && !is_of_vfs && lab.inventory.node(node).is_some() {
        let (node, port) = lab.inventory.end(text)?;
        let port = port.map_or_else(|| number.parse().map(PortNum), Ok);
        let port = port.map_err(|_| no_such_end(text))?;
        let at = node.port(port.0);
        if lab.world().fabric().port(at).is_none() {
            return Err(no_such_end(text));
        }
        let name = lab.inventory.port_name(at);
        return Ok(NamedEnd { name, at, vf: None });
    }
    let vf = lab.inventory.vf(text, None)?;
    let vf = lab.inventory.existing(&vf)?.clone();
    let port = port.unwrap_or(PortNum(1));
    lab.inventory.check_port(&vf, port)?;
    Ok(NamedEnd {
        name: format!("{}/{}", vf.host_name, vf.vf.get()),
        at: lab.world().host(vf.host).node().port(port.0),
        vf: Some(vf),
    })
}

/// Returns why two VFs (`HOST/N`), or ports of nodes without VFs (`NODE/PORT`), cannot talk; `port` is the port of VFs. Whether SAs
/// answer is known as far as ports asked before.
///
/// # Errors
/// A refusal if there is no such VF or port.
pub(in crate::serve) fn why(
    lab: &Lab,
    ends: [&str; 2],
    port: Option<PortNum>,
) -> Result<PairDiagnosis, Refusal> {
    let [a, b] = ends.map(|end| named_end(lab, end, port));
    let ends = [a?, b?];
    let is_of = |host: &&LabHost| {
        let mut vfs = ends.iter().filter_map(NamedEnd::vf);
        vfs.any(|vf| vf.host == host.id)
    };
    let hosts: Vec<&LabHost> = lab.inventory.pf_hosts().filter(is_of).collect();
    let fabric = lab.world().fabric();
    let mut survey = lab.survey(fabric, &hosts, None);
    let places = ends.clone().map(|end| survey.place(end.at));
    if let [Some(a), Some(b)] = places {
        survey.add_ways(a, b);
    }
    for end in &ends {
        survey.add_partitions(end.at);
    }
    let pair = Pair {
        groups: groups_of(lab, &ends),
        connections: connections(fabric, &ends),
        drops: ends.iter().flat_map(|end| drops(fabric, end)).collect(),
        ends: ends.map(|end| named(&survey, end)),
    };
    Ok(why_pair(&lab.facts(&hosts, survey), &pair))
}

/// Returns the IPoIB broadcast groups that the PFs of ends know.
fn groups_of(lab: &Lab, ends: &[NamedEnd; 2]) -> Vec<PairGroup> {
    let fabric = lab.world().fabric();
    let mut groups: Vec<PairGroup> = Vec::new();
    for end in ends {
        let Some(vf) = end.vf() else { continue };
        for row in Inspect::groups(lab.world().context(vf.host)) {
            let is_known = groups.iter().any(|group| group.mgid == row.mgid);
            if is_known || !is_broadcast(row.mgid, row.pkey) || row.port != end.at.port {
                continue;
            }
            let [a, b] = ends;
            let arrives = |from: &NamedEnd, to: &NamedEnd| {
                // Between functions of one port packets need no switch.
                from.at == to.at || fabric.spread_mlid(from.at, row.mlid).contains(&to.at)
            };
            groups.push(PairGroup {
                mgid: row.mgid,
                members: [a, b].map(|end| is_member(lab, end, row.mgid)),
                arrive: [arrives(a, b), arrives(b, a)],
            });
        }
    }
    groups
}

fn is_member(lab: &Lab, end: &NamedEnd, mgid: Gid) -> bool {
    end.vf().is_some_and(|vf| {
        let mut rows = Inspect::groups(lab.world().context(vf.host));
        let is_of_port = |port| port == end.at.port;
        rows.any(|row| {
            let mut members = row.members.iter();
            row.mgid == mgid && is_of_port(row.port) && members.any(|(of, _)| *of == vf.vf)
        })
    })
}

fn no_such_end(text: &str) -> Refusal {
    let message = format!("there is no VF and no port {text:?}: say HOST/VF, or NODE/PORT");
    Refusal::new("no_such_port", message)
}

fn named(survey: &Survey<'_>, end: NamedEnd) -> End {
    End {
        at: survey.place(end.at).unwrap_or(vhca_diagnosis::PortAt {
            node: usize::MAX,
            port: end.at.port,
        }),
        name: end.name,
        vf: end.vf.map(|vf| (vf.host_name, vf.vf.get())),
    }
}

/// Returns `true` for the broadcast group of IPoIB in a partition (RFC 4391, section 4).
fn is_broadcast(mgid: Gid, pkey: PKey) -> bool {
    const SIGNATURE: [u8; 2] = [0x40, 0x1b];
    let bytes = mgid.0;
    let key = u16::from_be_bytes([bytes[4], bytes[5]]);
    bytes[0] == 0xff
        && bytes[2..4] == SIGNATURE
        && PKey::new(key).base() == pkey.base()
        && bytes[6..12] == [0; 6]
        && bytes[12..] == [0xff; 4]
}

/// Returns the queue pairs of two ends that are connected with each other.
fn connections(fabric: &Fabric, ends: &[NamedEnd; 2]) -> Vec<String> {
    let of = |end: &NamedEnd| -> Vec<QpRow> {
        let device = fabric.device(end.at.node).into_iter();
        let rows = device.flat_map(|device| device.queue_pairs());
        rows.filter(|row| row.function == end.function()).collect()
    };
    let [a, b] = ends;
    let lids = ends
        .each_ref()
        .map(|end| fabric.port(end.at).map(|port| port.lid));
    let peers = of(b);
    let mut found = Vec::new();
    for qp in of(a) {
        let (Some(path), Some(lid)) = (qp.attributes.primary, lids[1]) else {
            continue;
        };
        if path.dlid != lid {
            continue;
        }
        let is_peer = |peer: &&QpRow| peer.attributes.numbers.real == qp.attributes.dest_qpn;
        let Some(peer) = peers.iter().find(is_peer) else {
            continue;
        };
        let [own, other] = [&qp, peer].map(|qp| &qp.attributes);
        found.push(format!(
            "queue pair {} of {} is {:?}, its peer {} of {} is {:?}",
            own.numbers.real, a.name, own.state, other.numbers.real, b.name, other.state
        ));
    }
    found
}

/// Returns the packets that the node of an end dropped for it.
fn drops(fabric: &Fabric, end: &NamedEnd) -> Vec<(String, Dropped)> {
    let node = fabric.node(end.at.node);
    let rows = node.into_iter().flat_map(|node| node.drops().iter());
    let of_end = rows.filter(|(port, function, ..)| {
        *port == end.at.port && function.is_none_or(|function| function == end.function())
    });
    let drops = of_end.map(|(_, _, reason, dropped)| {
        let dropped = Dropped {
            packets: dropped.packets,
            last: dropped.last,
        };
        (format!("{} at {}", reason.as_str(), end.name), dropped)
    });
    drops.collect()
}
