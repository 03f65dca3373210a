//! What the guests ask the SA.

use hca_api::FunctionId;
use ib_endpoint::SaRequest;
use ib_endpoint::sa_client::Wish;
use ib_wire::sa::{ComponentMask, ServiceRecord};
use ib_wire::{PKey, ServiceId, Tid};
use pf_context::inspect::Inspect;
use vhca_control::Facts;

use crate::demo::network::NamedPort;
use crate::demo::stage::{Stage, StepResult, ensure, gid};

/// Services that a guest offers: their table needs more than 64 RMPP segments.
pub(super) const SERVICES: usize = 80;

/// The seed of the guests that are clones.
const CLONES: u64 = 0xc10e;

/// Data bytes of an RMPP segment of the SA (IBA 15.2.1.1).
const SEGMENT_DATA: usize = 200;

pub(super) fn path(stage: &mut Stage) -> StepResult {
    let guests = [stage.network.a(1), stage.network.a(2), stage.network.b(1)];
    let [a, sibling, stranger] = guests;
    let near = *stage.path(a, sibling)?.record();
    let far = *stage.path(a, stranger)?.record();
    let world = stage.world()?;
    let [own, near_lid, far_lid] = guests.map(|guest| world.port(guest.at).view().lid);
    let lids = (near.slid, near.dlid, far.slid, far.dlid);
    ensure(lids == (own, near_lid, own, far_lid), || {
        format!("the SA says {lids:?}, the ports say {own}, {near_lid} and {far_lid}")
    })?;
    Ok(Facts::new()
        .show("sgid", far.sgid)
        .list("dgids", [near.dgid, far.dgid])
        .show("slid", far.slid)
        .list("dlids", [near.dlid, far.dlid])
        .show("mtu", far.mtu_value())
        .show("rate", far.rate_value())
        .show("sl", far.sl())
        .show("pkey", far.pkey))
}

/// Two guests of one host, clones that use equal transaction ids, read a large table at once.
pub(super) fn large_tables(stage: &mut Stage) -> StepResult {
    register_services(stage)?;
    let clones = [stage.network.a(3), stage.network.a(4)];
    let clones = [
        stage.boot(clones[0], Some(CLONES))?,
        stage.boot(clones[1], Some(CLONES))?,
    ];
    let received = mads_received(stage, clones)?;
    let world = stage.world()?;
    let now = world.now();
    let asked = clones.map(|clone| world.port_mut(clone.at).query(now, all_services()));
    let tids = transactions(stage, clones)?;
    ensure(tids.iter().all(|(own, _)| *own == tids[0].0), || {
        format!("the clones use different ids: {tids:?}")
    })?;
    let mut records = Vec::new();
    for (clone, query) in clones.into_iter().zip(asked) {
        let answer = stage.wait_answer(clone, "table of services", query)?;
        records.push(answer.records::<ServiceRecord>().count());
    }
    let now_received = mads_received(stage, clones)?;
    let bytes = SERVICES * size_of::<ServiceRecord>();
    let segments = bytes.div_ceil(SEGMENT_DATA) as u64;
    ensure(records == [SERVICES; 2], || {
        format!("{SERVICES} services registered, the clones got {records:?}")
    })?;
    for (before, after) in received.into_iter().zip(now_received) {
        ensure(segments > 64 && after - before == segments, || {
            format!("{bytes} bytes came in {} MADs", after - before)
        })?;
    }
    Ok(Facts::new()
        .list("clones", clones.map(|clone| clone.name))
        .show("guest_tid", tids[0].0)
        .list("wire_tids", tids.iter().map(|(_, wire)| wire))
        .with("records_each", SERVICES)
        .with("bytes_each", bytes)
        .with("rmpp_segments_each", segments))
}

/// Registers the services of a guest of host-b, one by one.
fn register_services(stage: &mut Stage) -> StepResult<()> {
    let owner = stage.network.b(2);
    let service_gid = gid(stage.world()?, owner);
    for number in (0..).take(SERVICES) {
        let record = ServiceRecord {
            service_id: ServiceId::new(0x1000_0000_0000_0000 + number),
            service_gid,
            service_pkey: PKey::DEFAULT_FULL,
            service_lease: ServiceRecord::INDEFINITE_LEASE.into(),
            ..ServiceRecord::default()
        };
        stage.wish(owner, "service registration", Wish::Service(record))?;
    }
    Ok(())
}

/// The ids of the transactions that guests of host-a have under way: the guest's own and the one on
/// the wire.
fn transactions(stage: &mut Stage, guests: [NamedPort; 2]) -> StepResult<[(Tid, Tid); 2]> {
    let host = stage.network.hosts[0].id;
    stage.wait_for("a transaction of each clone", |world| {
        let of = |guest: NamedPort| {
            let context = world.context(host);
            let mut rows = context.tids(world.now());
            let row = rows.find(|row| FunctionId::from(row.vf) == guest.at.function)?;
            Some((row.transaction.tid.0, row.transaction.wire_tid.0))
        };
        Some([of(guests[0])?, of(guests[1])?])
    })
}

/// MADs that the guests' QP1 received so far.
fn mads_received(stage: &mut Stage, guests: [NamedPort; 2]) -> StepResult<[u64; 2]> {
    let world = stage.world()?;
    Ok(guests.map(|guest| world.port_mut(guest.at).gsi().counters().received))
}

fn all_services() -> SaRequest {
    SaRequest::get_table(&ServiceRecord::default(), ComponentMask::NONE)
}

/// Services that the SA knows, as a guest is told.
pub(super) fn count_services(stage: &mut Stage) -> StepResult<usize> {
    let asker = stage.network.b(1);
    let answer = stage.query(asker, "table of services", all_services())?;
    Ok(answer.records::<ServiceRecord>().count())
}
