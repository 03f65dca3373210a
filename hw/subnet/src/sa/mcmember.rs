//! MCMemberRecord: joining, leaving and looking up multicast groups.

use ib_wire::ipoib::{LINK_LOCAL, SIGNATURE_IPV4, SIGNATURE_IPV6, broadcast_mgid};
use ib_wire::mad::{MadStatus, Method};
use ib_wire::notice::TrapNumber;
use ib_wire::sa::{JoinState, McMemberRecord, Selector};
use ib_wire::{Gid, Guid, Mtu, PKey, Rate, SubnetPrefix};

use super::Sa;
use super::groups::{Group, Lifecycle, Member, exact_selectors};
use super::request::{Found, Outcome, Records, Refusal, Request, SubnetView};
use super::search::{Inside, Place, Search};
use crate::partition::Partition;
use crate::rate;
use crate::topology::{Port, PortId};

/// The SA's own signature in bytes 2 and 3 of an MGID.
const SA_ASSIGNED: u16 = 0xa01b;

const INVALID: Refusal = Refusal::Status(MadStatus::SA_REQ_INVALID);

impl Sa {
    pub(super) fn change_membership(&mut self, request: &Request<'_>) -> Outcome {
        let mut record: McMemberRecord = request.record();
        match request.method() {
            Method::SET | Method::DELETE if !request.has(McMemberRecord::JOIN) => {
                Err(MadStatus::SA_INSUFFICIENT_COMPONENTS.into())
            }
            Method::SET | Method::DELETE if !has_legal_values(request, &record) => Err(INVALID),
            Method::SET => self.join(request, &mut record),
            Method::DELETE => self.leave(request, &mut record),
            _ => Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE.into()),
        }
    }

    fn join(&mut self, request: &Request<'_>, record: &mut McMemberRecord) -> Outcome {
        let topology = request.topology();
        let asked_prefix = record.port_gid.prefix();
        let guid = record.port_gid.interface_id();
        record.port_gid = own_prefix(request, record.port_gid)?;
        let id = self.port_of_guid(topology, guid).ok_or(INVALID)?;
        let port = topology.port(id).ok_or(INVALID)?;
        let (requester, asking) = request.requester()?;
        let proxy = id != requester;
        if proxy && !port.shares_pkey(asking) {
            return Err(INVALID);
        }
        if request.has(McMemberRecord::PKEY) && !record.pkey.is_valid() {
            return Err(INVALID);
        }
        let is_new = self.groups.get(record.mgid).is_none();
        if is_new {
            record.mgid = self.create_group(request, record, (id, port))?;
        }
        let wanted = Member {
            port_gid: record.port_gid,
            port_guid: port.guid,
            join_state: record.join_state(),
            proxy,
        };
        if let Err(refusal) = self.check_join(request, record, (id, port), is_new) {
            self.groups.remove_unused(record.mgid);
            return Err(refusal);
        }
        let Some((held, lifecycle)) = self.groups.join(record.mgid, wanted) else {
            self.groups.remove_unused(record.mgid);
            return Err(MadStatus::SA_NO_RESOURCES.into());
        };
        if let Some(group) = self.groups.get(record.mgid) {
            copy_group(record, &group.record);
            self.changed_groups.insert(group.record.mlid);
        }
        record.set_join_state(held);
        if lifecycle == Lifecycle::Created {
            self.notify_group(
                &request.view,
                TrapNumber::GROUP_CREATED,
                record.mgid,
                record.pkey,
            );
        }
        record.port_gid = Gid::from_parts(asked_prefix, guid);
        exact_selectors(record);
        Records::one(record)
    }

    /// What a join to a group, new or not, must fulfil.
    fn check_join(
        &self,
        request: &Request<'_>,
        record: &McMemberRecord,
        (id, port): (PortId, &Port),
        is_new: bool,
    ) -> Result<(), Refusal> {
        let group = self.groups.get(record.mgid).ok_or(INVALID)?;
        let held = &group.record;
        if !is_new && self.config.join_validation && !same_parameters(request, record, held) {
            return Err(INVALID);
        }
        let extended = request.topology().node(id.node).extended_speeds(id.port);
        let able = port.info.neighbor_mtu() >= held.mtu_value()
            && rate::speed(port.rate(extended)) >= rate::speed(held.rate_value());
        let sound = selectors_fit(request, record, held)
            && able
            && !record.join_state().is_empty()
            && port.has_partition(held.pkey);
        if !sound || (!is_new && !may_modify(request, group, record.port_gid)?) {
            return Err(INVALID);
        }
        Ok(())
    }

    /// Makes the group that a join asks for, and gives its MGID.
    fn create_group(
        &mut self,
        request: &Request<'_>,
        record: &McMemberRecord,
        (id, port): (PortId, &Port),
    ) -> Result<Gid, Refusal> {
        if !record.join_state().is_full() {
            return Err(INVALID);
        }
        if !request.has(McMemberRecord::CREATE) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS.into());
        }
        let mut group = *record;
        if group.mgid.is_none() {
            let asked = request.has(McMemberRecord::SCOPE);
            let scope = if asked { group.scope() } else { LINK_LOCAL };
            group.mgid = self.groups.new_mgid(scope, request.topology().prefix());
        } else if self.config.ipoib_validation {
            self.check_mgid(request, &group)?;
        }
        let extended = request.topology().node(id.node).extended_speeds(id.port);
        choose_mtu(request, &mut group, port.info.neighbor_mtu()).ok_or(INVALID)?;
        choose_rate(request, &mut group, port.rate(extended)).ok_or(INVALID)?;
        match self.groups.create(&group, false) {
            Ok(created) => Ok(created.record.mgid),
            Err(_) => Err(MadStatus::SA_NO_RESOURCES.into()),
        }
    }

    /// Which MGIDs a client may choose (IBA 4.1.1 and 15.2.5.17; for IPoIB, RFC 4391).
    fn check_mgid(&self, request: &Request<'_>, group: &McMemberRecord) -> Result<(), Refusal> {
        let mgid = group.mgid;
        let (flags, scope) = (mgid.0[1] >> 4, mgid.0[1] & 0xf);
        let signature = u16::from_be_bytes([mgid.0[2], mgid.0[3]]);
        if !mgid.is_multicast() {
            return Err(INVALID);
        }
        if matches!(signature, SIGNATURE_IPV4 | SIGNATURE_IPV6) {
            let broadcast =
                broadcast_mgid(scope, PKey::new(u16::from_be_bytes([mgid.0[4], mgid.0[5]])));
            if mgid == broadcast {
                return Ok(());
            }
            let held = &self.groups.get(broadcast).ok_or(INVALID)?.record;
            return same_parameters(request, group, held)
                .then_some(())
                .ok_or(INVALID);
        }
        let reserved_flags = flags & 0b1110 != 0;
        if reserved_flags || (signature == SA_ASSIGNED && scope == LINK_LOCAL) {
            return Err(INVALID);
        }
        Ok(())
    }

    fn leave(&mut self, request: &Request<'_>, record: &mut McMemberRecord) -> Outcome {
        let asked_prefix = record.port_gid.prefix();
        let guid = record.port_gid.interface_id();
        record.port_gid = own_prefix(request, record.port_gid)?;
        let leaving = record.join_state();
        let group = self.groups.get(record.mgid).ok_or(INVALID)?;
        let (mlid, scope, pkey) = (group.record.mlid, group.record.scope(), group.record.pkey);
        let held = group.members.get(&guid).ok_or(INVALID)?.join_state;
        if leaving.is_empty() || !held.contains(leaving) {
            return Err(INVALID);
        }
        if !may_modify(request, group, record.port_gid)? {
            return Err(INVALID);
        }
        let left = self
            .groups
            .leave(record.mgid, guid, leaving)
            .ok_or(INVALID)?;
        self.changed_groups.insert(mlid);
        if left.lifecycle == Lifecycle::Destroyed {
            self.notify_group(&request.view, TrapNumber::GROUP_DELETED, record.mgid, pkey);
        }
        record.set_scope(scope);
        record.set_join_state(left.remaining);
        record.port_gid = Gid::from_parts(asked_prefix, guid);
        exact_selectors(record);
        Records::one(record)
    }

    pub(super) fn query_groups(&self, request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: McMemberRecord = request.record();
        if !has_legal_values(request, &wanted) {
            return Err(INVALID);
        }
        let asking = request.requester()?.1;
        let asked = request.has(McMemberRecord::MGID).then_some(wanted.mgid);
        let next = |place| {
            let group = match asked {
                Some(mgid) => self.groups.get(mgid).filter(|_| place <= place_of(mgid)),
                None => self.groups.first_from(Gid(Place::to_be_bytes(place))),
            };
            group.map(|group| (place_of(group.record.mgid), group))
        };
        while let Some((place, group)) = search.next(next) {
            let held = &group.record;
            let fits = request.matches(McMemberRecord::MLID, wanted.mlid, held.mlid)
                && asking.has_partition(held.pkey)
                && same_parameters(request, &wanted, held)
                && selectors_fit(request, &wanted, held)
                && request.matches(McMemberRecord::SCOPE, wanted.scope(), held.scope());
            if fits {
                add_members(request, &wanted, place, group, search)?;
            }
        }
        Ok(())
    }

    /// Makes the IPoIB broadcast groups of the partitions, if they are not there.
    pub(super) fn create_broadcast_groups(&mut self) {
        let partitions: Vec<Partition> = self.config.partitions.iter().cloned().collect();
        for partition in partitions {
            let Some(ipoib) = partition.ipoib else {
                continue;
            };
            let pkey = PKey::new(partition.pkey.base() | 0x8000);
            let mgid = broadcast_mgid(LINK_LOCAL, pkey);
            let mut group = McMemberRecord {
                mgid,
                qkey: ipoib.qkey,
                pkey,
                ..McMemberRecord::default()
            };
            group.set_mtu_value(ipoib.mtu);
            group.set_rate_value(ipoib.rate);
            group.set_packet_life_time_value(self.config.subnet_timeout);
            group.set_sl(partition.sl);
            group.set_scope(LINK_LOCAL);
            if self.groups.get(mgid).is_none() && self.groups.create(&group, true).is_err() {
                self.stats.overflows += 1;
            }
        }
    }

    fn notify_group(&mut self, view: &SubnetView<'_>, trap: TrapNumber, mgid: Gid, pkey: PKey) {
        self.notify_gid(view, trap, mgid, &|port| port.has_partition(pkey));
    }
}

/// Where a group stands among all.
const fn place_of(mgid: Gid) -> Place {
    Place::from_be_bytes(mgid.0)
}

/// Adds what a query shows of a group: one record for each member to the trusted, one for the group
/// to others.
fn add_members(
    request: &Request<'_>,
    wanted: &McMemberRecord,
    place: Place,
    group: &Group,
    search: &mut Search,
) -> Found {
    let fits = |state| request.matches(McMemberRecord::JOIN_STATE, wanted.join_state(), state);
    let show = |member: &Member, search: &mut Search| {
        if !fits(member.join_state) {
            return Ok(());
        }
        let mut record = group.record;
        if request.is_trusted() {
            record.port_gid = member.port_gid;
            record.set_join_state(member.join_state);
            // OpenSM shows ProxyJoin in the lowest bit of its byte.
            record.proxy = u8::from(member.proxy);
        }
        search.push(&record)
    };
    if request.has(McMemberRecord::PORT_GID) {
        return match group.members.get(&wanted.port_gid.interface_id()) {
            Some(member) => show(member, search),
            None => Ok(()),
        };
    }
    if !request.is_trusted() {
        return match fits(JoinState::NONE) {
            true => search.push(&group.record),
            false => Ok(()),
        };
    }
    let first = Guid::new(search.take_inside().part);
    for (guid, member) in group.members.range(first..) {
        if !search.spend(1) {
            let part = guid.get();
            search.stop_inside(place, Inside { part, found: 0 });
            break;
        }
        show(member, search)?;
    }
    Ok(())
}

/// A PortGID by the default prefix means the subnet's own; any other prefix is unknown.
fn own_prefix(request: &Request<'_>, gid: Gid) -> Result<Gid, Refusal> {
    let prefix = request.topology().prefix();
    if gid.prefix() != SubnetPrefix::DEFAULT && gid.prefix() != prefix {
        return Err(MadStatus::SA_INVALID_GID.into());
    }
    Ok(Gid::from_parts(prefix, gid.interface_id()))
}

fn has_legal_values(request: &Request<'_>, record: &McMemberRecord) -> bool {
    let mtu = McMemberRecord::MTU_SELECTOR | McMemberRecord::MTU;
    let rate = McMemberRecord::RATE_SELECTOR | McMemberRecord::RATE;
    (!request.has(mtu) || record.mtu_value().bytes().is_some())
        && (!request.has(rate) || record.rate_value().megabits().is_some())
}

/// Whether the components that a request names agree with the group's.
fn same_parameters(request: &Request<'_>, wanted: &McMemberRecord, held: &McMemberRecord) -> bool {
    let pkey =
        wanted.pkey.base() == held.pkey.base() && (wanted.pkey.is_full() || held.pkey.is_full());
    request.matches(McMemberRecord::QKEY, wanted.qkey, held.qkey)
        && (!request.has(McMemberRecord::PKEY) || pkey)
        && request.matches(
            McMemberRecord::TRAFFIC_CLASS,
            wanted.traffic_class,
            held.traffic_class,
        )
        && request.matches(McMemberRecord::SL, wanted.sl(), held.sl())
        && request.matches(
            McMemberRecord::FLOW_LABEL,
            wanted.flow_label(),
            held.flow_label(),
        )
        && request.matches(
            McMemberRecord::HOP_LIMIT,
            wanted.hop_limit(),
            held.hop_limit(),
        )
}

/// Whether the group's MTU and rate are what the selectors ask for. The packet life time is never
/// looked at.
fn selectors_fit(request: &Request<'_>, wanted: &McMemberRecord, held: &McMemberRecord) -> bool {
    let fits = |selector, wanted: u32, held: u32| match selector {
        Selector::GREATER => held > wanted,
        Selector::LESS => held < wanted,
        Selector::EXACTLY => held == wanted,
        _ => true,
    };
    let mtu = |record: &McMemberRecord| u32::from(record.mtu_value().get());
    let speed = |record: &McMemberRecord| rate::speed(record.rate_value());
    let mtu_fits = fits(wanted.mtu_selector(), mtu(wanted), mtu(held));
    let rate_fits = fits(wanted.rate_selector(), speed(wanted), speed(held));
    (!request.has(McMemberRecord::MTU_SELECTOR) || mtu_fits)
        && (!request.has(McMemberRecord::RATE_SELECTOR) || rate_fits)
}

/// Whether the sender may change an existing membership (IBA 15.2.5.17.2): the port itself, or for
/// one that was made by proxy anybody in the group's partition.
fn may_modify(request: &Request<'_>, group: &Group, port_gid: Gid) -> Result<bool, Refusal> {
    let Some(member) = group.members.get(&port_gid.interface_id()) else {
        return Ok(true);
    };
    let asking = request.requester()?.1;
    Ok(if member.proxy {
        asking.has_partition(group.record.pkey)
    } else {
        asking.guid == member.port_guid
    })
}

fn copy_group(record: &mut McMemberRecord, group: &McMemberRecord) {
    let kept = *record;
    *record = McMemberRecord {
        port_gid: kept.port_gid,
        proxy: kept.proxy,
        reserved: kept.reserved,
        pad: kept.pad,
        ..*group
    };
    record.set_join_state(kept.join_state());
}

/// The MTU of a new group, within what the port can do.
fn choose_mtu(request: &Request<'_>, group: &mut McMemberRecord, port: Mtu) -> Option<()> {
    let wanted = group.mtu_value();
    let meant = request.has(McMemberRecord::MTU_SELECTOR | McMemberRecord::MTU);
    let chosen = match group.mtu_selector() {
        _ if !meant => port,
        Selector::GREATER => (wanted < port).then_some(port)?,
        Selector::LESS if wanted > port => port,
        Selector::LESS => Mtu::new(wanted.get().checked_sub(1)?),
        Selector::EXACTLY => wanted,
        _ => port,
    };
    chosen.bytes()?;
    group.set_mtu_value(chosen);
    Some(())
}

/// The rate of a new group, within what the port can do.
fn choose_rate(request: &Request<'_>, group: &mut McMemberRecord, port: Rate) -> Option<()> {
    let wanted = group.rate_value();
    let meant = request.has(McMemberRecord::RATE_SELECTOR | McMemberRecord::RATE);
    let faster = rate::speed(wanted) > rate::speed(port);
    let chosen = match group.rate_selector() {
        _ if !meant => port,
        Selector::GREATER => (rate::speed(wanted) < rate::speed(port)).then_some(port)?,
        Selector::LESS if faster => port,
        Selector::LESS => rate::next_slower(wanted)?,
        Selector::EXACTLY => wanted,
        _ => port,
    };
    group.set_rate_value(chosen);
    Some(())
}
