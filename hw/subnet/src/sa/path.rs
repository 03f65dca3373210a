//! PathRecord and MultiPathRecord: how packets get from one port to another.

use ib_wire::mad::MadStatus;
use ib_wire::sa::{ComponentMask, MultiPathRecord, PathRecord, Selector};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, Rate, Sl, SubnetPrefix};
use zerocopy::FromBytes;

use super::Sa;
use super::request::{Found, Refusal, Request};
use super::search::{Inside, Place, Search};
use crate::rate;
use crate::topology::{Port, PortId, Topology};

/// Most switches on a path.
const MAX_SWITCHES: usize = 64;

/// Work of a path, which follows forwarding tables there and back.
const PATH: usize = 4;

/// One end of a path: a GUID, an alias or not, and its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    guid: Guid,
    port: PortId,
}

/// The ends that a query selects.
#[derive(Clone, Debug)]
enum Ends {
    All,
    /// In the order of their GUIDs.
    These(Vec<End>),
}

/// What a query asks for.
#[derive(Clone, Copy, Debug)]
struct Query {
    record: PathRecord,
    mask: ComponentMask,
    /// Most paths for each pair of ports; `None` for all.
    per_pair: Option<usize>,
    /// Stop at the first path at all.
    first_only: bool,
}

impl Query {
    fn has(&self, mask: ComponentMask) -> bool {
        self.mask.contains(mask)
    }
}

/// What a path can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameters {
    mtu: Mtu,
    rate: Rate,
    life_time: u8,
    pkey: PKey,
    sl: Sl,
}

impl Sa {
    pub(super) fn path_records(&self, request: &Request<'_>, search: &mut Search) -> Found {
        let record: PathRecord = request.record();
        check_values(request, &record)?;
        let service = request.mad.component_mask.get() & PathRecord::SERVICE_ID.get();
        if service != 0 && service != PathRecord::SERVICE_ID.get() {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS.into());
        }
        let requester = request.requester()?.0;
        if request.has(PathRecord::DGID) && record.dgid.is_multicast() {
            search.complete();
            return self.multicast_path(request, &record, search);
        }
        let numb_path = usize::from(record.numb_path());
        let limited = request.has(PathRecord::NUMB_PATH);
        let query = Query {
            record,
            mask: request.mad.component_mask,
            per_pair: if request.is_get() {
                Some(1)
            } else {
                limited.then_some(numb_path)
            },
            first_only: request.is_get(),
        };
        let sources = self.ends(
            request,
            (record.sgid, PathRecord::SGID),
            (record.slid, PathRecord::SLID),
        )?;
        let targets = self.ends(
            request,
            (record.dgid, PathRecord::DGID),
            (record.dlid, PathRecord::DLID),
        )?;
        let next = |place| self.next_pair(request.topology(), &targets, &sources, place);
        while let Some((place, (target, source))) = search.next(next) {
            self.pair(request, requester, (source, target), &query, place, search)?;
            if query.first_only && search.records.len() > 0 {
                search.complete();
            }
        }
        Ok(())
    }

    pub(super) fn multi_path_records(&self, request: &Request<'_>, search: &mut Search) -> Found {
        let record = multi_path(request.data).ok_or(MadStatus::SA_REQ_INVALID)?;
        let (sources, targets) = record.endpoints().ok_or(MadStatus::SA_REQ_INVALID)?;
        let counts = MultiPathRecord::SGID_COUNT | MultiPathRecord::DGID_COUNT;
        if !request.has(counts) || sources.is_empty() || targets.is_empty() {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS.into());
        }
        let requester = request.requester()?.0;
        let ends = |gids: &[Gid]| -> Result<Vec<End>, Refusal> {
            gids.iter()
                .map(|gid| {
                    self.end_of_gid(request, *gid)
                        .ok_or(Refusal::Status(MadStatus::SA_INVALID_GID))
                })
                .collect()
        };
        let (sources, targets) = (ends(sources)?, ends(targets)?);
        let limited = request.has(MultiPathRecord::NUMB_PATH);
        let limit = limited.then_some(usize::from(record.numb_path()));
        let query = path_query(&record, request.mad.component_mask);
        let next = |place: Place| {
            let index = usize::try_from(place).ok()?;
            let source = sources.get(index / targets.len())?;
            Some((place, (*source, targets[index % targets.len()])))
        };
        while let Some((place, ends)) = search.next(next) {
            if limit.is_some_and(|limit| search.records.len() >= limit) {
                search.complete();
                break;
            }
            self.pair(request, requester, ends, &query, place, search)?;
        }
        Ok(())
    }

    /// Returns the ends that a GID or a LID selects.
    fn ends(
        &self,
        request: &Request<'_>,
        (gid, gid_mask): (Gid, ComponentMask),
        (lid, lid_mask): (Lid, ComponentMask),
    ) -> Result<Ends, Refusal> {
        let topology = request.topology();
        let by_gid = request.has(gid_mask).then(|| self.end_of_gid(request, gid));
        let by_lid = request.has(lid_mask).then(|| topology.port_by_lid(lid));
        Ok(match (by_gid, by_lid) {
            (None, None) => Ends::All,
            (Some(None), _) | (_, Some(None)) => Ends::These(Vec::new()),
            (Some(Some(end)), Some(Some(port))) if end.port != port => {
                return Err(MadStatus::SA_REQ_INVALID.into());
            }
            (Some(Some(end)), _) => Ends::These(vec![end]),
            (None, Some(Some(port))) => Ends::These(self.ends_of_port(topology, port)),
        })
    }

    /// Returns the GUID of a port and its aliases, in order.
    fn ends_of_port(&self, topology: &Topology, port: PortId) -> Vec<End> {
        let Some(own) = topology.port(port).map(|found| found.guid) else {
            return Vec::new();
        };
        let guids = core::iter::once(own).chain(self.aliases.of_port(own));
        let mut ends: Vec<End> = guids.map(|guid| End { guid, port }).collect();
        ends.sort_by_key(|end| end.guid);
        ends
    }

    /// Returns the first pair of ends at or behind a place, which is made of their GUIDs: all sources
    /// of a target come before the next target.
    fn next_pair(
        &self,
        topology: &Topology,
        targets: &Ends,
        sources: &Ends,
        place: Place,
    ) -> Option<(Place, (End, End))> {
        let mut guid = Guid::new(u64::try_from(place >> 64).ok()?);
        let mut first_source = Guid::new(u64::try_from(place & Place::from(u64::MAX)).ok()?);
        loop {
            let target = self.end_from(topology, targets, guid)?;
            if target.guid != guid {
                first_source = Guid::new(0);
            }
            if let Some(source) = self.end_from(topology, sources, first_source) {
                let place = Place::from(target.guid.get()) << 64 | Place::from(source.guid.get());
                return Some((place, (target, source)));
            }
            if first_source == Guid::new(0) {
                return None;
            }
            guid = Guid::new(target.guid.get().checked_add(1)?);
            first_source = Guid::new(0);
        }
    }

    /// Returns the first end from a GUID on.
    fn end_from(&self, topology: &Topology, ends: &Ends, guid: Guid) -> Option<End> {
        match ends {
            Ends::These(ends) => ends.iter().copied().find(|end| end.guid >= guid),
            Ends::All => {
                let own = topology.end_port_from(guid);
                let own = own.map(|(guid, port)| End { guid, port });
                let aliases = self.aliases.from(guid).find_map(|(guid, port)| {
                    let port = topology.port_by_guid(port)?;
                    Some(End { guid, port })
                });
                own.into_iter().chain(aliases).min_by_key(|end| end.guid)
            }
        }
    }

    fn end_of_gid(&self, request: &Request<'_>, gid: Gid) -> Option<End> {
        let known = [SubnetPrefix::DEFAULT, request.topology().prefix()];
        let guid = gid.interface_id();
        let port = self.port_of_guid(request.topology(), guid)?;
        known.contains(&gid.prefix()).then_some(End { guid, port })
    }

    /// Adds the paths of a pair of ends: first those between LIDs at the same distance from their
    /// bases, which overlap least, then the others with a lower preference (OpenSM's order).
    fn pair(
        &self,
        request: &Request<'_>,
        requester: PortId,
        (source, target): (End, End),
        query: &Query,
        place: Place,
        search: &mut Search,
    ) -> Found {
        let topology = request.topology();
        let ports = [requester, source.port, target.port].map(|id| topology.port(id));
        let [Some(asking), Some(from), Some(to)] = ports else {
            return Ok(());
        };
        if !asking.shares_pkey(from) || !asking.shares_pkey(to) || !from.shares_pkey(to) {
            return Ok(());
        }
        let slids = lids(from, query, query.record.slid, PathRecord::SLID);
        let dlids = lids(to, query, query.record.dlid, PathRecord::DLID);
        let limit = query.per_pair.unwrap_or(usize::MAX);
        let Inside { part, mut found } = search.take_inside();
        for part in part.. {
            if found >= limit {
                break;
            }
            let Some((slid, dlid, preference)) = lid_pair(&slids, &dlids, part) else {
                break;
            };
            if !search.spend(PATH) {
                search.stop_inside(place, Inside { part, found });
                break;
            }
            if let Some(path) = self.path(request, source, target, (slid, dlid), preference, query)
            {
                search.push(&path)?;
                found += 1;
            }
        }
        Ok(())
    }

    fn path(
        &self,
        request: &Request<'_>,
        source: End,
        target: End,
        (slid, dlid): (Lid, Lid),
        preference: u8,
        query: &Query,
    ) -> Option<PathRecord> {
        let topology = request.topology();
        let there = self.parameters(topology, source.port, target.port, dlid, query)?;
        let back = self.parameters(topology, target.port, source.port, slid, query);
        let wants_back = query.has(PathRecord::REVERSIBLE) && query.record.reversible();
        if wants_back && back.is_none() {
            return None;
        }
        let gid = |end: End| {
            Some(Gid::from_parts(
                topology.port(end.port)?.info.gid_prefix,
                end.guid,
            ))
        };
        // OpenSM repeats the SGID as it was asked and spells the DGID out.
        let asked = query.has(PathRecord::SGID).then_some(query.record.sgid);
        let mut path = PathRecord {
            sgid: match asked {
                Some(asked) => asked,
                None => gid(source)?,
            },
            dgid: gid(target)?,
            slid,
            dlid,
            pkey: there.pkey,
            preference,
            ..PathRecord::default()
        };
        path.set_sl(there.sl);
        path.set_mtu_selector(Selector::EXACTLY);
        path.set_mtu_value(there.mtu);
        path.set_rate_selector(Selector::EXACTLY);
        path.set_rate_value(there.rate);
        path.set_packet_life_time_selector(Selector::EXACTLY);
        let loopback = source.port == target.port;
        path.set_packet_life_time_value(if loopback { 0 } else { there.life_time });
        path.set_reversible(back.is_some());
        Some(path)
    }

    /// What the path can do, if it exists and does what the query asks.
    fn parameters(
        &self,
        topology: &Topology,
        from: PortId,
        to: PortId,
        dlid: Lid,
        query: &Query,
    ) -> Option<Parameters> {
        let (mtu, rate) = walk(topology, from, to, dlid)?;
        let life_time = if from == to {
            0
        } else {
            self.config.subnet_timeout
        };
        let record = &query.record;
        let mtu = if query.has(PathRecord::MTU_SELECTOR | PathRecord::MTU) {
            select_mtu(record.mtu_selector(), record.mtu_value(), mtu)?
        } else {
            mtu
        };
        let rate = if query.has(PathRecord::RATE_SELECTOR | PathRecord::RATE) {
            select_rate(record.rate_selector(), record.rate_value(), rate)?
        } else {
            rate
        };
        let life_mask = PathRecord::PACKET_LIFE_TIME_SELECTOR | PathRecord::PACKET_LIFE_TIME;
        let life_time = if query.has(life_mask) {
            let wanted = record.packet_life_time_value();
            select_number(record.packet_life_time_selector(), wanted, life_time)?
        } else {
            life_time
        };
        let (source, target) = (topology.port(from)?, topology.port(to)?);
        let pkey = if query.has(PathRecord::PKEY) {
            let held = |port: &Port| {
                port.pkeys
                    .iter()
                    .copied()
                    .find(|k| k.is_valid() && k.base() == record.pkey.base())
            };
            held(source)?
                .matches(held(target)?)
                .then_some(record.pkey)?
        } else {
            source.common_pkey(target)?
        };
        let sl = if query.has(PathRecord::SL) {
            record.sl()
        } else {
            self.config
                .partitions
                .get(pkey)
                .map_or_else(Sl::default, |p| p.sl)
        };
        let raw = query.has(PathRecord::RAW_TRAFFIC) && record.raw_traffic();
        Some(Parameters {
            mtu,
            rate,
            life_time,
            pkey: if raw { PKey::INVALID } else { pkey },
            sl,
        })
    }

    /// The path to a multicast group (IBA 15.2.5.16).
    fn multicast_path(
        &self,
        request: &Request<'_>,
        record: &PathRecord,
        search: &mut Search,
    ) -> Found {
        let Some(group) = self.groups.get(record.dgid) else {
            return Ok(());
        };
        let held = &group.record;
        let joined = |guid| group.members.contains_key(&guid);
        let by_slid = || {
            let id = request.topology().port_by_lid(record.slid)?;
            let guid = request.topology().port(id)?.guid;
            group
                .members
                .values()
                .any(|member| member.port_guid == guid)
                .then_some(())
        };
        let fits = request.matches(PathRecord::DLID, record.dlid, held.mlid)
            && (!request.has(PathRecord::SGID) || joined(record.sgid.interface_id()))
            && (!request.has(PathRecord::SLID) || by_slid().is_some())
            && request.matches(PathRecord::PKEY, record.pkey, held.pkey)
            && request.matches(PathRecord::SL, record.sl(), held.sl())
            && request.matches(
                PathRecord::FLOW_LABEL,
                record.flow_label(),
                held.flow_label(),
            )
            && request.matches(PathRecord::HOP_LIMIT, record.hop_limit(), held.hop_limit())
            && request.matches(
                PathRecord::TRAFFIC_CLASS,
                record.traffic_class,
                held.traffic_class,
            )
            && (request.is_get() || !request.has(PathRecord::NUMB_PATH) || record.numb_path() != 0);
        if !fits {
            return Ok(());
        }
        let mut path = PathRecord {
            dgid: held.mgid,
            dlid: held.mlid,
            traffic_class: held.traffic_class,
            pkey: held.pkey,
            mtu: held.mtu,
            rate: held.rate,
            packet_life_time: held.packet_life_time,
            ..*record
        };
        path.reversible_numb_path = 1;
        path.set_sl(held.sl());
        path.set_qos_class(0);
        path.raw_flow_hop = 0.into();
        path.set_flow_label(held.flow_label());
        let link_local = held.mgid.0[1] & 0xf == 2;
        path.set_hop_limit(if link_local {
            held.hop_limit()
        } else {
            u8::MAX
        });
        search.push(&path)
    }
}

/// Returns the LIDs of a port that a query allows: the asked one, or all.
fn lids(port: &Port, query: &Query, wanted: Lid, mask: ComponentMask) -> core::ops::Range<u32> {
    let base = u32::from(port.info.lid.get());
    if query.has(mask) {
        let wanted = u32::from(wanted.get());
        wanted..wanted + 1
    } else if base == 0 {
        0..0
    } else {
        base..(base | u32::from(port.info.lmc().mask())) + 1
    }
}

/// Returns the `n`th pair of LIDs with its preference: those at the same distance from the first
/// come before all others, which are in the order of the source's LIDs.
fn lid_pair(
    slids: &core::ops::Range<u32>,
    dlids: &core::ops::Range<u32>,
    n: u64,
) -> Option<(Lid, Lid, u8)> {
    let n = u32::try_from(n).ok()?;
    let (sources, targets) = (slids.end - slids.start, dlids.end - dlids.start);
    let even = sources.min(targets);
    let (source, target, preference) = if n < even {
        (n, n, 0)
    } else {
        let (mut source, mut left) = (0, n - even);
        // A source has as many others as there are targets, less the one at its own distance.
        loop {
            let others = targets - u32::from(source < even);
            if source == sources {
                return None;
            }
            if left < others {
                break;
            }
            left -= others;
            source += 1;
        }
        (source, left + u32::from(source < even && left >= source), 2)
    };
    let lid = |lid: u32| u16::try_from(lid).ok().map(Lid::new);
    Some((
        lid(slids.start + source)?,
        lid(dlids.start + target)?,
        preference,
    ))
}

/// MTU and rate must be legal where they are meant.
fn check_values(request: &Request<'_>, record: &PathRecord) -> Result<(), Refusal> {
    let mtu = !request.has(PathRecord::MTU_SELECTOR | PathRecord::MTU)
        || record.mtu_value().bytes().is_some();
    let rate = !request.has(PathRecord::RATE_SELECTOR | PathRecord::RATE)
        || record.rate_value().megabits().is_some();
    if mtu && rate {
        Ok(())
    } else {
        Err(MadStatus::SA_REQ_INVALID.into())
    }
}

/// The MultiPathRecord of a request: the fixed part and as many GIDs as arrived.
fn multi_path(data: &[u8]) -> Option<MultiPathRecord> {
    let mut bytes = [0; size_of::<MultiPathRecord>()];
    let present = data.len().min(bytes.len());
    bytes[..present].copy_from_slice(&data[..present]);
    let record = MultiPathRecord::read_from_bytes(&bytes).ok()?;
    let gids = usize::from(record.sgid_count) + usize::from(record.dgid_count);
    (data.len() >= 24 + gids * size_of::<Gid>()).then_some(record)
}

/// The same wishes as a PathRecord query, one path for each pair.
fn path_query(multi: &MultiPathRecord, mask: ComponentMask) -> Query {
    const SAME: [(ComponentMask, ComponentMask); 11] = [
        (MultiPathRecord::RAW_TRAFFIC, PathRecord::RAW_TRAFFIC),
        (MultiPathRecord::REVERSIBLE, PathRecord::REVERSIBLE),
        (MultiPathRecord::PKEY, PathRecord::PKEY),
        (MultiPathRecord::QOS_CLASS, PathRecord::QOS_CLASS),
        (MultiPathRecord::SL, PathRecord::SL),
        (MultiPathRecord::MTU_SELECTOR, PathRecord::MTU_SELECTOR),
        (MultiPathRecord::MTU, PathRecord::MTU),
        (MultiPathRecord::RATE_SELECTOR, PathRecord::RATE_SELECTOR),
        (MultiPathRecord::RATE, PathRecord::RATE),
        (
            MultiPathRecord::PACKET_LIFE_TIME_SELECTOR,
            PathRecord::PACKET_LIFE_TIME_SELECTOR,
        ),
        (
            MultiPathRecord::PACKET_LIFE_TIME,
            PathRecord::PACKET_LIFE_TIME,
        ),
    ];
    let meant = SAME.iter().filter(|(from, _)| mask.contains(*from));
    let record = PathRecord {
        raw_flow_hop: multi.raw_flow_hop,
        traffic_class: multi.traffic_class,
        reversible_numb_path: multi.reversible_numb_path,
        pkey: multi.pkey,
        qos_class_and_sl: multi.qos_class_and_sl,
        mtu: multi.mtu,
        rate: multi.rate,
        packet_life_time: multi.packet_life_time,
        ..PathRecord::default()
    };
    let mask = meant.fold(ComponentMask::NONE, |mask, (_, to)| mask | *to);
    Query {
        record,
        mask,
        per_pair: Some(1),
        first_only: false,
    }
}

/// Follows the forwarding tables from a port to a LID of another: the smallest MTU and rate on the
/// way. `None` if they do not lead there.
fn walk(topology: &Topology, from: PortId, to: PortId, dlid: Lid) -> Option<(Mtu, Rate)> {
    let start = topology.port(from)?;
    let mut mtu = start.info.mtu_cap();
    let mut rate = start.rate(topology.node(from.node).extended_speeds(from.port));
    let mut meet = |id: PortId| {
        let port = topology.port(id)?;
        mtu = mtu.min(port.info.mtu_cap());
        rate = rate::slower(
            rate,
            port.rate(topology.node(id.node).extended_speeds(id.port)),
        );
        Some(())
    };
    let mut at = from;
    if topology.node(from.node).is_switch() {
        at = topology.route(from.node, dlid)?;
    }
    let mut switches = 0;
    while at != to {
        let next = topology.peer(at)?;
        if next == to {
            break;
        }
        meet(next)?;
        at = topology.route(next.node, dlid)?;
        meet(at)?;
        switches += 1;
        if switches > MAX_SWITCHES {
            return None;
        }
    }
    meet(to)?;
    Some((mtu, rate))
}

fn select_number(selector: Selector, wanted: u8, offered: u8) -> Option<u8> {
    match selector {
        Selector::GREATER => (offered > wanted).then_some(offered),
        Selector::LESS if offered >= wanted => wanted.checked_sub(1).filter(|v| *v > 0),
        Selector::EXACTLY => (offered >= wanted).then_some(wanted),
        _ => Some(offered),
    }
}

fn select_mtu(selector: Selector, wanted: Mtu, offered: Mtu) -> Option<Mtu> {
    select_number(selector, wanted.get(), offered.get()).map(Mtu::new)
}

fn select_rate(selector: Selector, wanted: Rate, offered: Rate) -> Option<Rate> {
    let (wants, offers) = (rate::speed(wanted), rate::speed(offered));
    match selector {
        Selector::GREATER => (offers > wants).then_some(offered),
        Selector::LESS if offers >= wants => rate::next_slower(wanted),
        Selector::EXACTLY => (offers == wants).then_some(offered),
        _ => Some(offered),
    }
}
