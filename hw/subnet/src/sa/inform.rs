//! InformInfo and InformInfoRecord: subscriptions to notices, and the reports that follow.

use ib_endpoint::MadAddress;
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::notice::{
    GidDetails, InformInfo, Notice, NoticeReport, NoticeType, ProducerType, TrapNumber,
};
use ib_wire::sa::{InformInfoRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, Qpn};
use zerocopy::IntoBytes;

use super::Sa;
use super::request::{Found, Outcome, Records, Refusal, Request, SubnetView};
use super::search::{Place, Search};
use crate::topology::Port;

/// Most subscriptions that are kept.
pub const MAX_SUBSCRIPTIONS: usize = 16 * 1024;

/// Most reports that wait to be sent; more are dropped and counted.
pub const MAX_REPORTS: usize = 64 * 1024;

/// "All" in the fields of a subscription.
const ANY: u16 = 0xffff;

/// A subscription.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscription {
    /// Where reports go: the whole address that the subscription came from.
    address: MadAddress,
    subscriber: Gid,
    info: InformInfo,
    /// Where it stands in tables: a number of its own, lower than those of all older ones.
    place: Place,
}

/// A report to send: a request that the subscriber answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The subscriber.
    pub to: MadAddress,
    /// The Report(Notice), without transaction id.
    pub mad: Mad,
}

impl Sa {
    pub(super) fn inform_info(&mut self, request: &Request<'_>) -> Outcome {
        if request.method() != Method::SET {
            return Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE.into());
        }
        let invalid = Refusal::Status(MadStatus::SA_REQ_INVALID);
        let info: InformInfo = request.record();
        let Ok((_, asking)) = request.requester() else {
            return Err(invalid);
        };
        if info.subscribe > 1 || (!request.is_trusted() && is_security(&info)) {
            return Err(invalid);
        }
        let mut wanted = Subscription {
            address: *request.from,
            subscriber: asking.gid(),
            info,
            place: 0,
        };
        if info.subscribe == 1 {
            // Kept by the QP that subscribed, so that an unsubscription can name it.
            wanted.info.qpn = request.from.qpn;
        }
        let held = self
            .subscriptions
            .iter()
            .position(|held| is_same(held, &wanted));
        match (info.subscribe == 1, held) {
            (true, _) if !may_hear(request, &info, asking) => return Err(invalid),
            (true, Some(at)) => {
                wanted.place = self.subscriptions[at].place;
                self.subscriptions[at] = wanted;
            }
            (true, None) if self.subscriptions.len() >= MAX_SUBSCRIPTIONS => {
                return Err(MadStatus::SA_NO_RESOURCES.into());
            }
            (true, None) => {
                let newest = self.subscriptions.front();
                wanted.place = newest.map_or(Place::MAX, |held| held.place) - 1;
                self.subscriptions.push_front(wanted);
            }
            (false, Some(at)) => {
                self.subscriptions.remove(at);
            }
            (false, None) => return Err(invalid),
        }
        Records::one(&info)
    }

    pub(super) fn inform_info_records(&self, request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: InformInfoRecord = request.record();
        let asking = request.requester()?.1;
        // The newest comes first, with the lowest place.
        let next = |place| {
            let first = self
                .subscriptions
                .partition_point(|held| held.place < place);
            let held = self.subscriptions.get(first)?;
            Some((held.place, held))
        };
        while let Some((_, held)) = search.next(next) {
            let topology = request.topology();
            let port = topology.port_by_guid(held.subscriber.interface_id());
            let Some(port) = port.and_then(|id| topology.port(id)) else {
                continue;
            };
            let mut record = InformInfoRecord {
                subscriber_gid: held.subscriber,
                inform_info: held.info,
                ..InformInfoRecord::default()
            };
            if !request.is_trusted() {
                record.inform_info.qpn = Qpn::default();
            }
            let subscriber = InformInfoRecord::SUBSCRIBER_GID;
            let fits = request.matches(subscriber, wanted.subscriber_gid, record.subscriber_gid)
                && request.matches(InformInfoRecord::ENUMERATION, wanted.enumeration, 0.into());
            if fits && asking.shares_pkey(port) {
                search.push(&record)?;
            }
        }
        Ok(())
    }

    /// Reports a trap that a port sent to the subscribers that may hear of the port.
    pub fn handle_trap(&mut self, view: &SubnetView<'_>, report: &NoticeReport) {
        let source = view.topology.port_by_guid(report.issuer_gid.interface_id());
        let Some(source) = source.and_then(|id| view.topology.port(id)) else {
            return;
        };
        self.publish(view, report, &|subscriber| subscriber.shares_pkey(source));
    }

    /// Reports that a port came into service (trap 64).
    pub fn handle_port_appeared(&mut self, view: &SubnetView<'_>, guid: Guid) {
        let Some(port) = view
            .topology
            .port_by_guid(guid)
            .and_then(|id| view.topology.port(id))
        else {
            return;
        };
        let trap = TrapNumber::GID_IN_SERVICE;
        self.notify_gid(view, trap, port.gid(), &|subscriber| {
            subscriber.shares_pkey(port)
        });
    }

    /// Forgets a port that went out of service, with its memberships, aliases and subscriptions, and
    /// reports it (trap 65). The port's partitions are gone with it, so every subscriber hears it.
    pub fn handle_port_vanished(&mut self, view: &SubnetView<'_>, guid: Guid) {
        self.subscriptions
            .retain(|held| held.subscriber.interface_id() != guid);
        for (record, lifecycle) in self.groups.remove_port(guid) {
            self.changed_groups.insert(record.mlid);
            if lifecycle == super::groups::Lifecycle::Destroyed {
                let (trap, pkey) = (TrapNumber::GROUP_DELETED, record.pkey);
                self.notify_gid(view, trap, record.mgid, &|port| port.has_partition(pkey));
            }
        }
        self.aliases.remove_port(guid);
        self.changed_guids.retain(|(port, _)| *port != guid);
        let gid = Gid::from_parts(view.topology.prefix(), guid);
        self.notify_gid(view, TrapNumber::GID_OUT_OF_SERVICE, gid, &|_| true);
    }

    /// Reports a notice of the SM itself about a GID (traps 64 to 67).
    pub(super) fn notify_gid(
        &mut self,
        view: &SubnetView<'_>,
        trap: TrapNumber,
        gid: Gid,
        may_hear: &dyn Fn(&Port) -> bool,
    ) {
        let issuer = view.topology.port_by_guid(view.manager.guid);
        let issuer = issuer.and_then(|id| view.topology.port(id));
        let details = GidDetails {
            gid,
            ..GidDetails::default()
        };
        let notice = Notice::generic(
            NoticeType::SUBNET_MANAGEMENT,
            ProducerType::CLASS_MANAGER,
            trap,
            issuer.map_or(Lid::NONE, |port| port.info.lid),
            &details,
        );
        let issuer_gid = Gid::from_parts(view.topology.prefix(), view.manager.guid);
        self.publish(view, &NoticeReport { notice, issuer_gid }, may_hear);
    }

    /// Queues a report for every subscription that matches.
    fn publish(
        &mut self,
        view: &SubnetView<'_>,
        report: &NoticeReport,
        may_hear: &dyn Fn(&Port) -> bool,
    ) {
        for held in &self.subscriptions {
            let port = view.topology.port_by_lid(held.address.lid);
            let Some(port) = port.and_then(|id| view.topology.port(id)) else {
                continue;
            };
            if !held.info.covers(report) || !may_hear(port) {
                continue;
            }
            if self.reports.len() >= MAX_REPORTS {
                self.stats.overflows += 1;
                return;
            }
            self.reports.push_back(Report {
                to: held.address,
                mad: report_mad(report),
            });
        }
    }

    /// The next report to send, as a request that is repeated until it is answered.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }
}

fn report_mad(report: &NoticeReport) -> Mad {
    let header = MadHeader::new(MgmtClass::SUBN_ADM, Method::REPORT, AttributeId::NOTICE);
    let mut mad = SaMad {
        header,
        ..SaMad::default()
    };
    let bytes = report.as_bytes();
    mad.data[..bytes.len()].copy_from_slice(bytes);
    Mad::from_layout(&mad)
}

/// Security traps are for trusted subscribers only (IBA 15.2.4, C15-0.2-1.16).
fn is_security(info: &InformInfo) -> bool {
    let traps = TrapNumber::BAD_MKEY.get()..=TrapNumber::SWITCH_BAD_PKEY.get();
    info.is_generic != 0 && traps.contains(&info.trap_number.get())
}

/// Whether the subscriber may hear of the ports it names (IBA 13.4.11, o13-14.1.1).
fn may_hear(request: &Request<'_>, info: &InformInfo, asking: &Port) -> bool {
    let topology = request.topology();
    if !info.gid.is_none() {
        let port = topology.port_by_guid(info.gid.interface_id());
        return port
            .and_then(|id| topology.port(id))
            .is_some_and(|port| port.shares_pkey(asking));
    }
    if info.lid_range_begin.get() == ANY {
        return true;
    }
    let begin = info.lid_range_begin;
    let end = if info.lid_range_end == Lid::NONE {
        begin
    } else {
        info.lid_range_end
    };
    let end = end.min(topology.last_lid());
    begin <= topology.last_lid()
        && (begin.get()..=end.get())
            .filter_map(|lid| topology.port(topology.port_by_lid(Lid::new(lid))?))
            .all(|port| port.shares_pkey(asking))
}

/// Whether two subscriptions are the same: from one address, for the same notices.
fn is_same(held: &Subscription, wanted: &Subscription) -> bool {
    let (a, b) = (&held.info, &wanted.info);
    let ports = if b.gid.is_none() {
        a.lid_range_begin == b.lid_range_begin && a.lid_range_end == b.lid_range_end
    } else {
        a.gid == b.gid
    };
    held.address == wanted.address
        && ports
        && a.notice_type == b.notice_type
        && a.is_generic == b.is_generic
        && a.trap_number == b.trap_number
        && a.qpn == b.qpn
        && a.resp_time == b.resp_time
        && a.producer == b.producer
}
