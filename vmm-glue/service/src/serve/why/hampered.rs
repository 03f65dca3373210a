//! What hampers a VF whose port is up.

use emulated_hca::DropReason::NoReceive;
use hca_api::FunctionId;
use ib_vtime::Duration;
use ib_wire::{PKey, PKeyIndex, PortNum};
use mad_mux::tid::TransactionState;
use pf_context::VfPKeyEntry;
use pf_context::guids::GuidWish;
use pf_context::inspect::{Inspect, VfRow};
use vf_tunnel::DropReason;

use super::{Fault, set_command};
use crate::serve::set::at;
use crate::serve::{Lab, NamedVf};
use crate::shell::quoted;

/// For how long a loss counts as a fault: long enough for who noticed it to ask.
pub(super) const RECENT: Duration = Duration::from_secs(60);

impl Lab {
    /// What is wrong although the port is up.
    pub(super) fn why_hampered(&self, vf: &NamedVf, port: PortNum, row: &VfRow) -> Option<Fault> {
        self.other_guid(vf, port)
            .or_else(|| self.missing_pkeys(vf, port))
            .or_else(|| self.why_no_partition_of_vf(vf, port))
            .or_else(|| self.quota(vf, row))
            .or_else(|| rate(vf, port, row))
            .or_else(|| self.foreign_peers(vf, port))
            .or_else(|| self.no_receives(vf, port))
    }

    /// A table in which the VF has all that it may. Transactions that were answered are kept for a while to recognize repeats,
    /// and make room for new ones.
    fn quota(&self, vf: &NamedVf, row: &VfRow) -> Option<Fault> {
        let tids = row.usage.tids;
        let open = if tids.live < tids.limit {
            tids.live
        } else {
            let context = self.world().context(vf.host);
            let own = Inspect::tids(context, self.world().now());
            let open = own.filter(|tid| {
                (tid.vf, tid.port) == (row.vf, row.port)
                    && tid.transaction.state != TransactionState::Answered
            });
            open.count()
        };
        full_table(vf, row, open)
    }

    /// Packets for the VF find no receive.
    fn no_receives(&self, vf: &NamedVf, port: PortNum) -> Option<Fault> {
        let node = self.fabric().node(self.world().host(vf.host).node())?;
        let function = FunctionId(vf.vf.get());
        let lost = node.drops().of(port, function, NoReceive)?;
        let ago = self.world().now().saturating_duration_since(lost.last);
        if ago > RECENT {
            return None;
        }
        let summary = "packets for the VF are lost because its guest has no receive posted";
        let seen = format!(
            "{} packets were lost so, the last {:.1} s ago",
            lost.packets,
            ago.as_secs_f64()
        );
        Some(Fault::new("no_receives", summary).seen(seen).next(
            "give the guest more processor time or longer receive queues \
             (of IPoIB: modprobe ib_ipoib recv_queue_size=1024), or have its peers send less",
        ))
    }

    /// The VF goes on with the GUID that it had, because it does not get the one that is wanted.
    fn other_guid(&self, vf: &NamedVf, port: PortNum) -> Option<Fault> {
        let own = self.world().context(vf.host).ports();
        let view = own.get(port.index().checked_sub(1)?)?.guid_view(vf.vf);
        let GuidWish::Admin(wanted) = view.wish else {
            return None;
        };
        if view.hardware == wanted || view.hardware.is_none() {
            return None;
        }
        if view.declines == 0 {
            let since = self.history.since(at(vf, port), self.world().now());
            let waiting = self.why_waiting(vf.host.port(port.0), since);
            return Some(waiting.seen(format!("the VF has {}, wanted is {wanted}", view.hardware)));
        }
        let summary = "the VF has another GUID than the one that was set";
        Some(
            Fault::new("guid_not_granted", summary)
                .seen(format!("it has {}, wanted is {wanted}", view.hardware))
                .seen(format!("the SA declined {} times in a row", view.declines))
                .seen(format!("another port may have {wanted}: see the SM's log"))
                .next(format!("{} port_guid sm", set_command(vf, port))),
        )
    }

    /// Entries of the VF's P_Key table behind which the port has no key.
    fn missing_pkeys(&self, vf: &NamedVf, port: PortNum) -> Option<Fault> {
        let physical = self.fabric().port(self.endpoint(vf.host.port(port.0)));
        let first = physical.and_then(|physical| physical.pkey(PKeyIndex(0)));
        let settings = self.settings.get(&at(vf, port));
        if settings.is_none() && first.is_some_and(PKey::is_valid) {
            return None;
        }
        let table = settings.cloned().unwrap_or_default().pkeys;
        let context = self.world().context(vf.host);
        let rows = context
            .pkeys()
            .filter(|row| row.port == port && row.vf == vf.vf);
        let missing: Vec<String> = rows
            .filter(|row| !row.pkey.is_valid())
            .filter_map(|row| {
                let entry = table.get(usize::from(row.index.0.0)).copied().flatten()?;
                let index = row.index.0.0;
                Some(match entry {
                    VfPKeyEntry::Value(key) => {
                        format!("index {index} is for {key}, which the port does not have")
                    }
                    VfPKeyEntry::Index(place) => {
                        format!(
                            "index {index} is for the port's entry {}, which is empty",
                            place.0.0
                        )
                    }
                })
            })
            .collect();
        if missing.is_empty() {
            return None;
        }
        let summary = "the port is not in a partition that the VF is to be in";
        let mut fault = Fault::new("pkey_missing", summary);
        fault.seen = missing;
        let fault = fault.next(format!("{} pkeys index:0", set_command(vf, port)));
        Some(fault.remark(format_args!(
            "or have the subnet manager put {} into the partition",
            vf.host_name
        )))
    }
}

/// A table in which the VF has all that it may, with so many transactions that are not answered.
fn full_table(vf: &NamedVf, row: &VfRow, open: usize) -> Option<Fault> {
    let mut tables = row.usage.named().into_iter();
    let (table, used) = tables.find_map(|(name, mut used)| {
        if name == "tids" {
            used.live = open;
        }
        (name != "queued" && used.live >= used.limit).then_some((name, used))
    })?;
    let fault = Fault::new(
        "quota_reached",
        format!("the VF has all that it may have: {table}"),
    )
    .seen(format!("{} of {} {table}", used.live, used.limit));
    let fault = match row.ages.transaction {
        Some(age) => fault.seen(format!(
            "the oldest transaction has rested {:.1} s",
            age.as_secs_f64()
        )),
        None => fault,
    };
    let table = match table {
        "tids" | "sa_requests" => "tids",
        "cm_ids" | "cm_pending" => "cm",
        _ => "mcast",
    };
    let fault = fault.next(format!(
        "vhca show {table} --host {}",
        quoted(&vf.host_name)
    ));
    Some(fault.remark("have the guest give some back, or start the service with a larger quota"))
}

/// The VF sends more than it may.
fn rate(vf: &NamedVf, port: PortNum, row: &VfRow) -> Option<Fault> {
    let waiting = row.usage.queued.live;
    if waiting == 0 {
        return None;
    }
    let fault = Fault::new("rate_limited", "the VF sends more MADs than it may").seen(format!(
        "{waiting} of {} wait for their turn",
        row.usage.queued.limit
    ));
    let lost = row.statistics.drops(DropReason::RateLimited);
    let fault = if lost > 0 {
        fault.seen(format!("{lost} were dropped so far"))
    } else {
        fault
    };
    Some(fault.next(format!("{} limits rate=0", set_command(vf, port))))
}
