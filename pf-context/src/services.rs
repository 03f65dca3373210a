//! The services that VFs have registered at the SA: how many each may have, and their end.
//!
//! The SA knows requesters by LID, so for it all services of a port's VFs are the port's. It keeps
//! them until their leases end, and most never do. So each VF has a quota, and what a VF leaves behind
//! is deleted at the SA when the VF is reset. A service counts from the request on: what became of one
//! without an answer is not known.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method};
use ib_wire::sa::{SaMad, ServiceRecord};
use ib_wire::{Gid, PKey, ServiceId, SmKey, Tid};
use vf_tunnel::VfId;

/// Services of VFs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLimits {
    /// Services that a VF may have registered. Beyond it a request gets status 0x0100.
    pub per_vf: u16,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self { per_vf: 128 }
    }
}

/// Deletions that wait for the SA at the same time.
const MAX_IN_FLIGHT: usize = 16;

/// How long the SA may take for each transmission of a deletion; after the last it is given up.
const WAITS: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
    Duration::from_secs(32),
];

/// A lease may begin so much later than its request is seen here.
const LATE: Duration = Duration::from_secs(60);

/// Identity of a service at the SA (IBA 15.2.5.14, RID), and whose it is.
type Key = (VfId, ServiceId, Gid, PKey);

/// The last request about a service that can still be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    wire: Tid,
    is_deletion: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The VF has it, or may have.
    Held {
        is_confirmed: bool,
        asked: Option<Asked>,
    },
    /// The VF is gone: it is to be deleted.
    Leaving { attempts: usize, token: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Service {
    state: State,
    /// When it has certainly ended by itself.
    expires: Instant,
}

/// The services of a port's VFs.
#[derive(Clone, Debug)]
pub(crate) struct Services {
    limits: ServiceLimits,
    services: BTreeMap<Key, Service>,
    /// Those about which the SA was asked under a wire TID.
    asked: BTreeMap<Tid, Key>,
    /// Those to be deleted for which the SA has not been asked yet.
    queue: VecDeque<Key>,
    /// Deletions under way, by their tokens.
    in_flight: BTreeMap<u64, Key>,
    timers: BTreeSet<(Instant, u64)>,
    next_token: u64,
}

impl Services {
    pub(crate) const fn new(limits: ServiceLimits) -> Self {
        Self {
            limits,
            services: BTreeMap::new(),
            asked: BTreeMap::new(),
            queue: VecDeque::new(),
            in_flight: BTreeMap::new(),
            timers: BTreeSet::new(),
            next_token: 0,
        }
    }

    /// Returns `true` if a VF may send a request about a service: any but a registration beyond its
    /// quota.
    pub(crate) fn permits(&mut self, now: Instant, vf: VfId, mad: &Mad) -> bool {
        if !is_about_services(&mad.header) || mad.header.method != Method::SET {
            return true;
        }
        if self.services.contains_key(&key(vf, mad)) {
            return true;
        }
        let own: Vec<Key> = self.of(vf).collect();
        for key in &own {
            if self.services[key].expires <= now {
                self.remove(key);
            }
        }
        self.of(vf).count() < usize::from(self.limits.per_vf)
    }

    /// Notes a request that goes out under a wire TID; `is_to_sa` if the SA is known to be there.
    pub(crate) fn note(&mut self, now: Instant, vf: VfId, mad: &Mad, wire: Tid, is_to_sa: bool) {
        let is_deletion = match mad.header.method {
            Method::SET => false,
            Method::DELETE => true,
            _ => return,
        };
        if !is_about_services(&mad.header) {
            return;
        }
        let key = key(vf, mad);
        let held = self.services.get(&key).copied();
        if is_deletion && (held.is_none() || !is_to_sa) {
            return;
        }
        // What was to be deleted is the VF's again.
        self.remove(&key);
        let is_confirmed = match held.map(|service| service.state) {
            Some(State::Held { is_confirmed, .. }) => is_confirmed,
            Some(State::Leaving { .. }) => true,
            None => false,
        };
        let expires = match held {
            Some(held) if is_deletion => held.expires,
            _ => lease_end(now, mad.view()),
        };
        // An answer under a TID that stands for two services tells of neither.
        let twin = self.asked.get(&wire).copied().filter(|twin| *twin != key);
        if let Some(twin) = twin {
            self.forget_question(&twin);
        }
        let asked = (is_to_sa && twin.is_none()).then_some(Asked { wire, is_deletion });
        if asked.is_some() {
            self.asked.insert(wire, key);
        }
        let state = State::Held {
            is_confirmed,
            asked,
        };
        self.services.insert(key, Service { state, expires });
    }

    /// Notes the SA's answer to a VF's request.
    pub(crate) fn answered(&mut self, wire: Tid, header: &MadHeader) {
        if !is_about_services(header) {
            return;
        }
        let Some(key) = self.asked.get(&wire).copied() else {
            return;
        };
        let Some(service) = self.services.get_mut(&key) else {
            return;
        };
        let State::Held {
            is_confirmed,
            asked: Some(Asked { is_deletion, .. }),
        } = service.state
        else {
            return;
        };
        let status = header.status;
        let is_gone = if is_deletion {
            status == MadStatus::OK || status == MadStatus::SA_NO_RECORDS
        } else {
            status != MadStatus::OK && status != MadStatus::BUSY && !is_confirmed
        };
        if is_gone {
            self.remove(&key);
            return;
        }
        service.state = State::Held {
            is_confirmed: is_confirmed || (!is_deletion && status == MadStatus::OK),
            asked: None,
        };
        self.asked.remove(&wire);
    }

    /// Starts the deletion of all services of a VF.
    pub(crate) fn reset(&mut self, now: Instant, vf: VfId) {
        let own: Vec<Key> = self.of(vf).collect();
        for key in own {
            let Some(service) = self.services.get(&key).copied() else {
                continue;
            };
            if matches!(service.state, State::Leaving { .. }) {
                continue;
            }
            self.remove(&key);
            if service.expires > now {
                self.leave(key, service.expires);
            }
        }
    }

    /// Returns the next deletion to send, with the token for its answer.
    pub(crate) fn poll_deletion(&mut self, now: Instant) -> Option<(u64, SaMad)> {
        while let Some((due, token)) = self.timers.first().copied()
            && due <= now
        {
            self.timers.remove(&(due, token));
            let Some(key) = self.in_flight.get(&token).copied() else {
                continue;
            };
            if let Some(request) = self.transmit(now, key) {
                return Some(request);
            }
            self.remove(&key);
        }
        while self.in_flight.len() < MAX_IN_FLIGHT {
            let key = self.queue.pop_front()?;
            if let Some(State::Leaving { token, .. }) = self.services.get(&key).map(|s| s.state) {
                self.in_flight.insert(token, key);
                return self.transmit(now, key);
            }
        }
        None
    }

    /// Notes the SA's answer to a deletion. Returns `true` if one had this token.
    pub(crate) fn deleted(&mut self, token: u64, status: MadStatus) -> bool {
        let Some(key) = self.in_flight.get(&token).copied() else {
            return false;
        };
        if status != MadStatus::BUSY {
            self.remove(&key);
        }
        true
    }

    /// Returns when [`Self::poll_deletion`] has something by itself.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Returns how many services a VF has, those to be deleted included.
    pub(crate) fn count(&self, vf: VfId) -> usize {
        self.of(vf).count()
    }

    fn of(&self, vf: VfId) -> impl Iterator<Item = Key> + '_ {
        let first = (vf, ServiceId::new(0), Gid([0; 16]), PKey::new(0));
        let own = self.services.range(first..);
        own.map(|(key, _)| *key).take_while(move |key| key.0 == vf)
    }

    fn leave(&mut self, key: Key, expires: Instant) {
        let token = self.next_token;
        self.next_token += 1;
        let state = State::Leaving { attempts: 0, token };
        self.services.insert(key, Service { state, expires });
        self.queue.push_back(key);
    }

    /// Returns the next transmission of a deletion; `None` if there were enough.
    fn transmit(&mut self, now: Instant, key: Key) -> Option<(u64, SaMad)> {
        let State::Leaving { attempts, token } = &mut self.services.get_mut(&key)?.state else {
            return None;
        };
        let wait = *WAITS.get(*attempts)?;
        *attempts += 1;
        self.timers.insert((now + wait, *token));
        Some((*token, deletion(&key)))
    }

    fn forget_question(&mut self, key: &Key) {
        if let Some(Service {
            state: State::Held { asked, .. },
            ..
        }) = self.services.get_mut(key)
            && let Some(asked) = asked.take()
        {
            self.asked.remove(&asked.wire);
        }
    }

    /// Removes a service with all that refers to it.
    fn remove(&mut self, key: &Key) {
        self.forget_question(key);
        if let Some(service) = self.services.remove(key)
            && let State::Leaving { token, .. } = service.state
        {
            if self.in_flight.remove(&token).is_some() {
                self.timers.retain(|(_, of)| *of != token);
            } else {
                self.queue.retain(|queued| queued != key);
            }
        }
    }
}

fn is_about_services(header: &MadHeader) -> bool {
    header.attribute_id == AttributeId::SERVICE_RECORD
}

fn key(vf: VfId, mad: &Mad) -> Key {
    let record: ServiceRecord = mad.view::<SaMad>().record();
    let ServiceRecord {
        service_id,
        service_gid,
        service_pkey,
        ..
    } = record;
    (vf, service_id, service_gid, service_pkey)
}

/// Returns when a service that is registered now has certainly ended.
fn lease_end(now: Instant, mad: &SaMad) -> Instant {
    let lease = mad.record::<ServiceRecord>().service_lease.get();
    let is_named = mad.component_mask.contains(ServiceRecord::SERVICE_LEASE);
    if !is_named || lease == ServiceRecord::INDEFINITE_LEASE {
        return Instant::FAR_FUTURE;
    }
    now + LATE + Duration::from_secs(u64::from(lease))
}

fn deletion(&(_, service_id, service_gid, service_pkey): &Key) -> SaMad {
    let record = ServiceRecord {
        service_id,
        service_gid,
        service_pkey,
        ..ServiceRecord::default()
    };
    let mask = ServiceRecord::SERVICE_ID | ServiceRecord::SERVICE_GID;
    SaMad::new(Method::DELETE, mask, &record)
}

/// Turns a registration into the SA's refusal for lack of resources.
pub(crate) fn refuse(mad: &mut Mad) {
    let sa: &mut SaMad = mad.view_mut();
    sa.header.method = Method::GET_RESP;
    sa.header.status = MadStatus::SA_NO_RESOURCES;
    sa.sm_key = SmKey::default();
}
