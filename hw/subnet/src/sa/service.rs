//! ServiceRecord: services that register with the SA.

use std::collections::{BTreeMap, BTreeSet};

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, ServiceRecord};
use ib_wire::{Gid, Guid, PKey, ServiceId};
use zerocopy::IntoBytes;

use super::Sa;
use super::request::{Found, Outcome, Records, Refusal, Request};
use super::search::{Place, Search};

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

/// Most services that one port registers, so that no port takes the places of all.
pub const MAX_SERVICES_PER_PORT: usize = 2048;

/// A registered service.
#[derive(Clone, Copy, Debug)]
struct Service {
    record: ServiceRecord,
    expires: Instant,
    /// The port that registered it.
    owner: Guid,
}

/// What names a service (IBA 15.2.5.14, RID).
type Rid = (ServiceId, Gid, PKey);

const fn rid(record: &ServiceRecord) -> Rid {
    (record.service_id, record.service_gid, record.service_pkey)
}

/// The registered services.
#[derive(Debug, Default)]
pub(super) struct Services {
    /// By the numbers of their registration, counted down: the newest comes first in tables, as
    /// OpenSM lists them.
    by_number: BTreeMap<u64, Service>,
    by_rid: BTreeMap<Rid, u64>,
    /// The ends of leases.
    ends: BTreeSet<(Instant, u64)>,
    /// How many each port registered.
    shares: BTreeMap<Guid, usize>,
}

impl Services {
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Registers a service, or does so anew.
    fn register(&mut self, service: Service) -> Result<(), Refusal> {
        let held = self.by_rid.get(&rid(&service.record)).copied();
        let number = match held {
            Some(number) => number,
            None if self.len() >= MAX_SERVICES => {
                return Err(MadStatus::SA_NO_RESOURCES.into());
            }
            None => {
                let newest = self.by_number.keys().next();
                newest.map_or(u64::MAX, |newest| newest - 1)
            }
        };
        let before = self.by_number.get(&number).map(|held| held.owner);
        let share = self.shares.get(&service.owner).copied().unwrap_or(0);
        if before != Some(service.owner) && share >= MAX_SERVICES_PER_PORT {
            return Err(MadStatus::SA_NO_RESOURCES.into());
        }
        self.remove(number);
        *self.shares.entry(service.owner).or_default() += 1;
        self.by_rid.insert(rid(&service.record), number);
        if service.expires != Instant::FAR_FUTURE {
            self.ends.insert((service.expires, number));
        }
        self.by_number.insert(number, service);
        Ok(())
    }

    fn remove(&mut self, number: u64) -> Option<Service> {
        let removed = self.by_number.remove(&number)?;
        self.by_rid.remove(&rid(&removed.record));
        self.ends.remove(&(removed.expires, number));
        if let Some(share) = self.shares.get_mut(&removed.owner) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&removed.owner);
            }
        }
        Some(removed)
    }
}

impl Sa {
    pub(super) fn change_services(&mut self, request: &Request<'_>) -> Outcome {
        let record: ServiceRecord = request.record();
        match request.method() {
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
        self.services.register(Service {
            record,
            expires,
            owner: request.requester()?.1.guid,
        })?;
        if !request.has(ServiceRecord::SERVICE_PKEY) {
            record.service_pkey = PKey::DEFAULT_FULL;
        }
        show(request, record)
    }

    fn delete_service(&mut self, request: &Request<'_>, record: &ServiceRecord) -> Outcome {
        self.check_service_pkey(request, record)?;
        let held = self.services.by_rid.get(&rid(record)).copied();
        let removed = held.and_then(|number| self.services.remove(number));
        let removed = removed.ok_or(MadStatus::SA_NO_RECORDS)?;
        show(request, removed.record)
    }

    pub(super) fn query_services(&self, request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: ServiceRecord = request.record();
        let asking = request.requester()?.1;
        let next = |place| {
            let first = u64::try_from(place).ok()?;
            let (number, held) = self.services.by_number.range(first..).next()?;
            Some((Place::from(*number), held))
        };
        while let Some((_, Service { record, .. })) = search.next(next) {
            if matches_service(request, &wanted, record)
                && asking.has_partition(record.service_pkey)
            {
                search.push(&shown(request, *record))?;
            }
        }
        Ok(())
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
        self.services.ends.first().map(|(end, _)| *end)
    }

    pub(super) fn expire_services(&mut self, now: Instant) {
        while let Some((end, number)) = self.services.ends.first().copied()
            && end <= now
        {
            self.services.remove(number);
        }
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
