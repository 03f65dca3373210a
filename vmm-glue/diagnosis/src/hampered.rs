//! Faults that hamper a VF whose port is up.

use crate::commands;
use crate::fault::Fault;
use crate::shell::quoted;
use crate::snapshot::{OnPort, RECENT, VfPort};
use crate::{foreign_peers, guids, partitions};

/// Returns the fault of a VF whose port is up.
pub(crate) fn why(on: OnPort<'_>, vf: u16, row: &VfPort) -> Option<Fault> {
    guids::another(on, vf, row)
        .or_else(|| partitions::missing(on, vf, row))
        .or_else(|| partitions::none_of_vf(on, vf, row))
        .or_else(|| full_table(&on.pf.host, row))
        .or_else(|| rate(on, vf, row))
        .or_else(|| foreign_peers::why(on, vf, row))
        .or_else(|| no_receives(on, row))
}

/// Packets for the VF find no receive.
fn no_receives(on: OnPort<'_>, row: &VfPort) -> Option<Fault> {
    let lost = row.no_receives?;
    let ago = on.ago(lost.last);
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

/// A table in which the VF has all that it may.
fn full_table(host: &str, row: &VfPort) -> Option<Fault> {
    let mut tables = row.usage.named().into_iter();
    let (table, used) = tables.find_map(|(name, mut used)| {
        if name == "tids" && used.live >= used.limit {
            used.live = row.open_transactions;
        }
        (name != "queued" && used.live >= used.limit).then_some((name, used))
    })?;
    let fault = Fault::new(
        "quota_reached",
        format!("the VF has all that it may have: {table}"),
    )
    .seen(format!("{} of {} {table}", used.live, used.limit));
    let fault = match row.oldest_transaction {
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
    let fault = fault.next(format!("vhca show {table} --host {}", quoted(host)));
    Some(fault.remark("have the guest give some back, or start the service with a larger quota"))
}

/// The VF sends more than it may.
fn rate(on: OnPort<'_>, vf: u16, row: &VfPort) -> Option<Fault> {
    let waiting = row.usage.queued.live;
    if waiting == 0 {
        return None;
    }
    let fault = Fault::new("rate_limited", "the VF sends more MADs than it may").seen(format!(
        "{waiting} of {} wait for their turn",
        row.usage.queued.limit
    ));
    let lost = row.rate_drops;
    let fault = if lost > 0 {
        fault.seen(format!("{lost} were dropped so far"))
    } else {
        fault
    };
    let set = commands::set_vf(&on.pf.host, vf, on.number);
    Some(fault.next(format!("{set} limits rate=0")))
}
