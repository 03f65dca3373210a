//! Reasons for which two ports, or VFs on them, cannot talk.

use core::fmt;

use hca_api::PortState;
use ib_wire::{Gid, PKey, PortNum};
use serde::{Deserialize, Serialize};

use crate::commands;
use crate::diagnosis::why;
use crate::fault::Fault;
use crate::known::{Code, code};
use crate::links;
use crate::partitions::{list, valid};
use crate::snapshot::{RECENT, Snapshot};
use crate::subnet::{Dropped, PortAt, Subnet};

/// Faults of a VF that is up which still keep it from talking to others.
const SILENCING: &[Code] = &[
    "link_faulty",
    "duplicate_guid",
    "duplicate_lid",
    "no_vmm",
    "no_driver",
    "driver_lost_track",
    "guest_not_responding",
    "memory_not_shared",
    "no_pkey",
    "pkey_missing",
];

/// Two ports, or VFs on them, and facts of the two together.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Both of them.
    pub ends: [End; 2],
    /// The IPoIB broadcast groups of partitions that a PF of one of the two knows.
    pub groups: Vec<PairGroup>,
    /// Queue pairs of the one that are connected to the other, and their states, in words.
    pub connections: Vec<String>,
    /// Packets of either that were dropped lately, in words that have the reason and the place of each.
    pub drops: Vec<(String, Dropped)>,
}

/// A port, or a VF on it.
#[derive(Clone, Debug)]
pub struct End {
    /// Its name: `HOST/VF`, or `NODE/PORT`.
    pub name: String,
    /// Its physical port.
    pub at: PortAt,
    /// Its host and number, if it is a VF.
    pub vf: Option<(String, u16)>,
}

/// A multicast group, as two ports use it.
#[derive(Clone, Debug)]
pub struct PairGroup {
    /// Its address.
    pub mgid: Gid,
    /// `true` if the end of a [`Pair`] is a member, for both.
    pub members: [bool; 2],
    /// `true` if the group's packets from one end arrive at the other, as multicast forwarding tables are: from the first end, and
    /// from the second.
    pub arrive: [bool; 2],
}

/// The reasons for which two ports, or VFs on them, cannot talk; none if they can.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairDiagnosis {
    /// The name of the first.
    pub from: String,
    /// The name of the second.
    pub to: String,
    /// The fault to be mended first in a stable word; `ok` if nothing keeps them from talking.
    #[serde(deserialize_with = "code")]
    pub verdict: Code,
    /// All faults of the two and between them, that of the verdict at the start.
    pub reasons: Vec<Fault>,
    /// Facts that are no faults by themselves: queue pairs between the two, their packets that were dropped lately, and groups.
    pub seen: Vec<String>,
    /// Ports that packets to the second pass, in order, as far as they get.
    pub path: Vec<String>,
    /// Ports that packets to the first pass.
    pub path_back: Vec<String>,
}

/// Returns why two ports, or VFs on them, cannot talk. The snapshot has the ways between their ports and the PFs of their VFs.
#[must_use]
pub fn why_pair(snapshot: &Snapshot, pair: &Pair) -> PairDiagnosis {
    let subnet = &snapshot.subnet;
    let [a, b] = &pair.ends;
    let (mut faults, mut lesser) = (Vec::new(), Vec::new());
    for end in &pair.ends {
        let (silencing, other) = of_end(snapshot, end);
        faults.extend(silencing);
        lesser.extend(other);
    }
    faults.extend(links::planned_on(
        subnet,
        links::between(subnet, a.at, b.at).into_iter(),
    ));
    faults.extend(no_common_partition(snapshot, pair));
    faults.extend(no_route(subnet, a, b));
    faults.extend(no_route(subnet, b, a));
    let groups = pair.groups.iter();
    faults.extend(groups.filter_map(|group| no_multicast_route(subnet, pair, group)));
    let verdict = faults.first().map_or("ok", Fault::code);
    faults.extend(lesser);
    let mut seen: Vec<String> = Vec::new();
    seen.extend(pair.connections.iter().cloned());
    seen.extend(dropped(snapshot, pair));
    for group in &pair.groups {
        let missing = pair.ends.iter().zip(group.members);
        let missing = missing.filter(|(_, member)| !member);
        let mgid = group.mgid;
        seen.extend(
            missing
                .map(|(end, _)| format!("{} is not in the IPoIB broadcast group {mgid}", end.name)),
        );
    }
    PairDiagnosis {
        from: a.name.clone(),
        to: b.name.clone(),
        verdict,
        reasons: faults,
        seen,
        path: path(subnet, a.at, b.at),
        path_back: path(subnet, b.at, a.at),
    }
}

/// Returns the faults of an end that keep it from talking, and its others.
fn of_end(snapshot: &Snapshot, end: &End) -> (Vec<Fault>, Vec<Fault>) {
    let subnet = &snapshot.subnet;
    if let Some((host, vf)) = &end.vf {
        let found = why(snapshot, host, *vf, end.at.port);
        let named = found.reasons.into_iter().map(|fault| {
            let summary = format!("{}: {}", end.name, fault.summary);
            let code = fault.code();
            fault.called(code, summary)
        });
        return named.partition(|fault| !found.up || SILENCING.contains(&fault.code()));
    }
    let down = links::down(subnet, end.at).or_else(|| {
        let port = subnet.port(end.at)?;
        let is_switch = subnet.is_switch(end.at.node);
        (port.state != PortState::Active && !is_switch).then(|| {
            let summary = format!(
                "{}: the subnet manager has not activated the port",
                end.name
            );
            let fault = Fault::new("port_not_active", summary);
            let fault = fault.seen(format!("{} is {:?}", end.name, port.state));
            fault.next(commands::sweep(subnet, end.at))
        })
    });
    (Vec::from_iter(down), Vec::new())
}

/// Returns the P_Keys of an end.
fn keys(snapshot: &Snapshot, end: &End) -> Option<Vec<PKey>> {
    let own = snapshot.subnet.partitions.get(&end.at)?;
    let Some((host, vf)) = &end.vf else {
        return Some(valid(own));
    };
    let pf = snapshot.pfs.iter().find(|pf| pf.host == *host)?;
    let row = pf.vfs.get(vf)?.ports.get(&end.at.port)?;
    Some(match &row.pkeys {
        Some(table) => valid(&table.keys.iter().map(|(_, key)| *key).collect::<Vec<_>>()),
        None => valid(own.get(..1).unwrap_or_default()),
    })
}

fn no_common_partition(snapshot: &Snapshot, pair: &Pair) -> Option<Fault> {
    let [a, b] = &pair.ends;
    let [of_a, of_b] = [keys(snapshot, a)?, keys(snapshot, b)?];
    let matching = |key: &&PKey| of_b.iter().any(|other| key.matches(*other));
    // An end without any has a fault of its own.
    if of_a.iter().any(|key| matching(&key)) || of_a.is_empty() || of_b.is_empty() {
        return None;
    }
    let summary = "the two share no partition in which one is a full member";
    let mut fault = Fault::new("no_common_partition", summary)
        .seen(format!("P_Keys of {}: {}", a.name, list(&of_a)))
        .seen(format!("P_Keys of {}: {}", b.name, list(&of_b)));
    let limited = of_a.iter().find(|key| of_b.contains(key));
    if let Some(key) = limited {
        fault = fault.seen(format!(
            "both are limited members of {key}, who do not talk to each other"
        ));
    }
    let shared = || {
        let partitions = &snapshot.subnet.partitions;
        let [of_a, of_b] = [partitions.get(&a.at)?, partitions.get(&b.at)?];
        valid(of_a)
            .into_iter()
            .find(|key| valid(of_b).iter().any(|other| key.matches(*other)))
    };
    let vf = pair.ends.iter().find_map(|end| end.vf.as_ref());
    Some(match (shared(), vf) {
        (Some(_), Some(_)) => {
            let vfs = pair.ends.iter().filter_map(|end| Some((end, end.vf.as_ref()?)));
            let commands = vfs.filter_map(|(end, (host, vf))| {
                let own = valid(snapshot.subnet.partitions.get(&end.at)?);
                let keys: Vec<String> = own.iter().take(16).map(ToString::to_string).collect();
                let set = commands::set_vf(host, *vf, end.at.port);
                Some(format!("{set} pkeys {}", keys.join(" ")))
            });
            let commands: Vec<String> = commands.collect();
            fault
                .next(commands.join(" && "))
                .remark("gives each VF all partitions of its port")
        }
        _ => fault.next(
            "have the subnet manager make one of the two ports a full member of a partition of both ([[partition]], or OpenSM's \
             partitions.conf and then kill -HUP)",
        ),
    })
}

/// Returns the fault that packets from one end to the other do not arrive, as links and forwarding tables are.
fn no_route(subnet: &Subnet, from: &End, to: &End) -> Option<Fault> {
    let end = subnet.ways.get(&[from.at, to.at])?.end;
    if end == to.at {
        return None;
    }
    let way = format!(
        "packets from {} to {} end at {}",
        from.name,
        to.name,
        subnet.port_name(end)
    );
    let summary = "packets from one of the two to the other do not arrive";
    Some(match links::down(subnet, end) {
        Some(link) => link.called("no_route", summary).seen(way),
        None => Fault::new("no_route", summary)
            .seen(way)
            .next(commands::route_anew(subnet, from.at)),
    })
}

/// Returns the fault that packets of a group of which both are members do not arrive.
fn no_multicast_route(subnet: &Subnet, pair: &Pair, group: &PairGroup) -> Option<Fault> {
    if group.members.contains(&false) || group.arrive == [true; 2] {
        return None;
    }
    let mgid = group.mgid;
    let summary =
        "packets of a multicast group of both do not arrive, so that IPoIB finds no address";
    let mut fault = Fault::new("no_multicast_route", summary);
    let [a, b] = &pair.ends;
    for ((from, to), arrives) in [(a, b), (b, a)].into_iter().zip(group.arrive) {
        if !arrives {
            let [from, to] = [&from.name, &to.name];
            fault = fault.seen(format!(
                "no switch passes packets to {mgid} on from {from} to {to}"
            ));
        }
    }
    Some(fault.next(commands::route_anew(subnet, a.at)))
}

/// Returns the packets of the two that were dropped within the last minute, in words.
fn dropped<'p>(snapshot: &Snapshot, pair: &'p Pair) -> impl Iterator<Item = String> + use<'p> {
    let taken = snapshot.taken;
    pair.drops
        .iter()
        .filter_map(move |(words, Dropped { packets, last })| {
            let ago = taken.saturating_duration_since(*last);
            let seconds = ago.as_secs_f64();
            (ago <= RECENT)
                .then(|| format!("{packets} packets dropped: {words}, the last {seconds:.1} s ago"))
        })
}

fn path(subnet: &Subnet, from: PortAt, to: PortAt) -> Vec<String> {
    let way = subnet.ways.get(&[from, to]);
    let hops = way.into_iter().flat_map(|way| way.hops.iter().flatten());
    let mut ports: Vec<PortAt> = hops.copied().collect();
    if ports.is_empty() {
        ports.push(from);
    }
    // A switch that is itself the end is named by its port 0.
    if let Some(end) = way
        .map(|way| way.end)
        .filter(|end| end.port == PortNum::SWITCH_MANAGEMENT)
    {
        ports.push(end);
    }
    ports.into_iter().map(|at| subnet.port_name(at)).collect()
}

impl fmt::Display for PairDiagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, .. } = self;
        write!(f, "{from} and {to}: {}", self.verdict)?;
        let verdict = self
            .reasons
            .first()
            .filter(|fault| fault.code() == self.verdict);
        match verdict {
            Some(fault) => {
                write!(f, "\n  what:  {}", fault.summary)?;
                for seen in &fault.seen {
                    write!(f, "\n  seen:  {seen}")?;
                }
            }
            None => f.write_str("\n  what:  nothing keeps the two from talking")?,
        }
        for seen in &self.seen {
            write!(f, "\n  seen:  {seen}")?;
        }
        write!(
            f,
            "\n  path:  {}\n  back:  {}",
            self.path.join(" "),
            self.path_back.join(" ")
        )?;
        write!(
            f,
            "\n  next:  {}",
            verdict.map_or("nothing", |fault| &fault.next)
        )?;
        for also in self.reasons.iter().skip(usize::from(verdict.is_some())) {
            write!(f, "\n  also:  {}: {}", also.code(), also.summary)?;
            for seen in &also.seen {
                write!(f, "\n         {seen}")?;
            }
        }
        Ok(())
    }
}
