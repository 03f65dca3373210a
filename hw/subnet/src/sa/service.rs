//! ServiceRecord: services that register with the SA.

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, ServiceRecord};
use ib_wire::{Gid, PKey, ServiceId};
use zerocopy::IntoBytes;

use super::Sa;
use super::request::{Outcome, Records, Refusal, Request};

/// Most services that are registered at the same time.
pub const MAX_SERVICES: usize = 16 * 1024;

/// Bits and places of the service data: first component, number of components, offset of the first
/// and size of each (IBA 15.2.5.14).
const SERVICE_DATA: [(u32, u32, usize, usize); 4] = [
    (7, 16, 112, 1),
    (23, 8, 128, 2),
    (31, 4, 144, 4),
    (35, 2, 160, 8),
];

/// A registered service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    record: ServiceRecord,
    expires: Instant,
}

/// What names a service (IBA 15.2.5.14, RID).
fn rid(record: &ServiceRecord) -> (ServiceId, Gid, PKey) {
    (record.service_id, record.service_gid, record.service_pkey)
}

impl Sa {
    pub(super) fn service_records(&mut self, request: &Request<'_>) -> Outcome {
        let record: ServiceRecord = request.record();
        match request.method() {
            Method::GET | Method::GET_TABLE => self.query_services(request, &record),
            Method::SET => self.register_service(request, record),
            Method::DELETE => self.delete_service(request, &record),
            _ => Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE.into()),
        }
    }

    fn register_service(&mut self, request: &Request<'_>, record: ServiceRecord) -> Outcome {
        self.check_service_pkey(request, &record)?;
        if !request.has(ServiceRecord::SERVICE_ID | ServiceRecord::SERVICE_GID) {
            return Err(MadStatus::SA_REQ_INVALID.into());
        }
        let mut record = record;
        if !request.has(ServiceRecord::SERVICE_LEASE) {
            record.service_lease.set(ServiceRecord::INDEFINITE_LEASE);
        }
        let expires = match record.service_lease.get() {
            ServiceRecord::INDEFINITE_LEASE => Instant::FAR_FUTURE,
            seconds => request.now + Duration::from_secs(u64::from(seconds.max(1))),
        };
        let service = Service { record, expires };
        let held = self
            .services
            .iter()
            .position(|held| rid(&held.record) == rid(&record));
        match held {
            Some(at) => self.services[at] = service,
            None if self.services.len() >= MAX_SERVICES => {
                return Err(MadStatus::SA_NO_RESOURCES.into());
            }
            // The newest comes first in tables, as OpenSM lists them.
            None => self.services.push_front(service),
        }
        if !request.has(ServiceRecord::SERVICE_PKEY) {
            record.service_pkey = PKey::DEFAULT_FULL;
        }
        show(request, record)
    }

    fn delete_service(&mut self, request: &Request<'_>, record: &ServiceRecord) -> Outcome {
        self.check_service_pkey(request, record)?;
        let found = self
            .services
            .iter()
            .position(|held| rid(&held.record) == rid(record));
        let at = found.ok_or(MadStatus::SA_NO_RECORDS)?;
        let removed = self.services.remove(at).ok_or(MadStatus::SA_NO_RECORDS)?;
        show(request, removed.record)
    }

    fn query_services(&self, request: &Request<'_>, wanted: &ServiceRecord) -> Outcome {
        let asking = request.requester()?.1;
        let mut found = Records::none::<ServiceRecord>();
        for Service { record, .. } in &self.services {
            if matches_service(request, wanted, record) && asking.has_partition(record.service_pkey)
            {
                found.push(&shown(request, *record))?;
            }
        }
        Ok(found)
    }

    /// A service may name only a partition that its port and the sender are in.
    fn check_service_pkey(
        &self,
        request: &Request<'_>,
        record: &ServiceRecord,
    ) -> Result<(), Refusal> {
        let invalid = Refusal::Status(MadStatus::SA_REQ_INVALID);
        let Ok((_, asking)) = request.requester() else {
            return Err(invalid);
        };
        if !request.has(ServiceRecord::SERVICE_PKEY) {
            return Ok(());
        }
        let mut allowed = asking.has_partition(record.service_pkey);
        if request.has(ServiceRecord::SERVICE_GID) && !record.service_gid.is_multicast() {
            let topology = request.topology();
            let port = self.port_of_guid(topology, record.service_gid.interface_id());
            let port = port.and_then(|id| topology.port(id));
            allowed &= port.is_some_and(|port| port.has_partition(record.service_pkey));
        }
        if allowed { Ok(()) } else { Err(invalid) }
    }

    pub(super) fn next_lease_end(&self) -> Option<Instant> {
        let ends = self.services.iter().map(|service| service.expires);
        ends.filter(|end| *end != Instant::FAR_FUTURE).min()
    }

    pub(super) fn expire_services(&mut self, now: Instant) {
        self.services.retain(|service| service.expires > now);
    }
}

fn matches_service(request: &Request<'_>, wanted: &ServiceRecord, held: &ServiceRecord) -> bool {
    request.matches(
        ServiceRecord::SERVICE_ID,
        wanted.service_id,
        held.service_id,
    ) && request.matches(
        ServiceRecord::SERVICE_GID,
        wanted.service_gid,
        held.service_gid,
    ) && request.matches(
        ServiceRecord::SERVICE_PKEY,
        wanted.service_pkey,
        held.service_pkey,
    ) && request.matches(
        ServiceRecord::SERVICE_KEY,
        wanted.service_key,
        held.service_key,
    ) && request.matches(
        ServiceRecord::SERVICE_NAME,
        wanted.service_name,
        held.service_name,
    ) && SERVICE_DATA.iter().all(|(first, count, offset, size)| {
        (0..*count).zip((*offset..).step_by(*size)).all(|(i, at)| {
            let component = ComponentMask::new(1 << (first + i));
            let field = at..at + size;
            let (wanted, held) = (wanted.as_bytes(), held.as_bytes());
            request.matches(component, &wanted[field.clone()], &held[field])
        })
    })
}

/// The key is for trusted eyes only (IBA 15.2.5.14).
fn shown(request: &Request<'_>, mut record: ServiceRecord) -> ServiceRecord {
    if !request.is_trusted() {
        record.service_key = [0; 16];
    }
    record
}

fn show(request: &Request<'_>, record: ServiceRecord) -> Outcome {
    Records::one(&shown(request, record))
}
