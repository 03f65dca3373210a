//! What the hosts ask the SA.

use ib_endpoint::SaRequest;
use ib_endpoint::sa_client::Wish;
use ib_wire::sa::{ComponentMask, PathRecord, ServiceRecord};
use ib_wire::{PKey, ServiceId};

use crate::demo::Facts;
use crate::demo::stage::{Stage, StepResult, ensure, gid};

/// Services that host-a offers: their table needs more than 64 RMPP segments.
const SERVICES: u64 = 80;

/// Data bytes of an RMPP segment of the SA (IBA 15.2.1.1).
const SEGMENT_DATA: usize = 200;

pub(super) fn path(stage: &mut Stage) -> StepResult {
    let (a, b) = (stage.network.a1, stage.network.b1);
    let path: PathRecord = stage.path(a, b)?;
    let world = stage.world()?;
    let (from, to) = (world.port(a.at).view().lid, world.port(b.at).view().lid);
    ensure((path.slid, path.dlid) == (from, to), || {
        format!(
            "the SA says {} to {}, the ports say {from} to {to}",
            path.slid, path.dlid
        )
    })?;
    Ok(Facts::new()
        .show("sgid", path.sgid)
        .show("dgid", path.dgid)
        .show("slid", path.slid)
        .show("dlid", path.dlid)
        .show("mtu", path.mtu_value())
        .show("rate", path.rate_value())
        .show("sl", path.sl())
        .show("pkey", path.pkey))
}

pub(super) fn large_table(stage: &mut Stage) -> StepResult {
    let a = stage.network.a1;
    let service_gid = gid(stage.world()?, a);
    for number in 0..SERVICES {
        let record = ServiceRecord {
            service_id: ServiceId::new(0x1000_0000_0000_0000 + number),
            service_gid,
            service_pkey: PKey::DEFAULT_FULL,
            service_lease: ServiceRecord::INDEFINITE_LEASE.into(),
            ..ServiceRecord::default()
        };
        stage.wish(a, "service registration", Wish::Service(record))?;
    }
    let received = mads_received(stage)?;
    let services = count_services(stage)?;
    let received = mads_received(stage)? - received;
    ensure(services as u64 == SERVICES, || {
        format!("{SERVICES} services registered, the SA's table has {services}")
    })?;
    let bytes = services * size_of::<ServiceRecord>();
    let segments = bytes.div_ceil(SEGMENT_DATA) as u64;
    ensure(segments > 64 && received == segments, || {
        format!("{bytes} bytes came in {received} MADs")
    })?;
    Ok(Facts::new()
        .with("records", services)
        .with("bytes", bytes)
        .with("rmpp_segments", segments))
}

/// MADs that host-b's QP1 received so far.
fn mads_received(stage: &mut Stage) -> StepResult<u64> {
    let b = stage.network.b1;
    Ok(stage.world()?.port_mut(b.at).gsi().counters().received)
}

/// Services that the SA knows, as host-b is told.
pub(super) fn count_services(stage: &mut Stage) -> StepResult<usize> {
    let everything = SaRequest::get_table(&ServiceRecord::default(), ComponentMask::NONE);
    let b = stage.network.b1;
    let answer = stage.query(b, "table of services", everything)?;
    Ok(answer.records::<ServiceRecord>().count())
}
