//! Who takes which MADs.

use alloc::collections::BTreeMap;

use ib_wire::Tid;
use ib_wire::mad::{BASE_VERSION, Mad, Method, MgmtClass};
use ib_wire::notice::ClassPortInfo;
use ib_wire::rmpp::VendorOuiMad;

/// Names a registration with a [`crate::MadAgent`]. The number stands in the upper half of every
/// transaction id that the registration uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(u32);

impl AgentId {
    /// The largest number: mlx4 virtual functions own the top byte of a transaction id, so Linux
    /// keeps agent numbers below 2^24 (`ib_register_mad_agent`), and so do we.
    const MAX: u32 = (1 << 24) - 1;

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    pub(crate) fn tid(self, low: u32) -> Tid {
        Tid::new(u64::from(self.0) << 32 | u64::from(low))
    }

    /// The transaction id on the wire of a message that came with `tid`: the low half is kept.
    #[must_use]
    pub fn tid_with_low_half_of(self, tid: Tid) -> Tid {
        Tid::new(u64::from(self.0) << 32 | tid.get() & u64::from(u32::MAX))
    }
}

/// A set of request methods, 0x00 to 0x7F.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodSet(u128);

impl MethodSet {
    /// No method: the registration sends requests and takes none.
    pub const NONE: Self = Self(0);

    /// The set of these methods; response methods are left out, since answers go by transaction id.
    #[must_use]
    pub fn of(methods: &[Method]) -> Self {
        let bit = |method: &Method| {
            if method.is_response() {
                0
            } else {
                1 << method.get()
            }
        };
        Self(methods.iter().map(bit).fold(0, |set, bit| set | bit))
    }

    /// The set with method `n` where bit `n` is set, as the mask of a umad registration has it.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Whether the method is in the set.
    #[must_use]
    pub const fn contains(self, method: Method) -> bool {
        !method.is_response() && self.0 & (1 << method.get()) != 0
    }

    const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// An organisation's identifier, which tells apart vendors within a vendor class (IBA 16.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Oui(pub [u8; 3]);

/// What a registration sends and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Management class.
    pub class: MgmtClass,
    /// Version of the class.
    pub class_version: u8,
    /// Of vendor classes 0x30 to 0x4F, the vendor.
    pub oui: Option<Oui>,
    /// The requests it takes.
    pub methods: MethodSet,
    /// What the agent answers to Get(ClassPortInfo) by itself; `None` leaves these requests to
    /// whoever takes Get.
    pub class_port_info: Option<ClassPortInfo>,
    /// Whether it may send messages of other classes, too, as far as they belong on the queue pair.
    pub sends_any_class: bool,
    /// Whether it gets RMPP packets one by one and sends such packets itself, instead of whole
    /// messages (the kernel's `IB_USER_MAD_USER_RMPP`).
    pub takes_packets: bool,
    /// Whether its events are kept apart from those of the others, for
    /// [`MadAgent::poll_event_of`](crate::MadAgent::poll_event_of).
    pub is_apart: bool,
}

impl Registration {
    /// A registration for the class's supported version. For classes other than subnet management
    /// the agent answers ClassPortInfo requests, with the versions and nothing else.
    #[must_use]
    pub fn new(class: MgmtClass, methods: MethodSet) -> Self {
        let class_version = class.supported_version();
        let class_port_info = ClassPortInfo {
            base_version: BASE_VERSION,
            class_version,
            ..ClassPortInfo::default()
        };
        Self {
            class,
            class_version,
            oui: None,
            methods,
            class_port_info: (!class.is_smp()).then_some(class_port_info),
            sends_any_class: false,
            takes_packets: false,
            is_apart: false,
        }
    }

    /// A registration that only sends, messages of any class: the answers to its requests are all
    /// that it gets.
    #[must_use]
    pub fn sender() -> Self {
        Self {
            class_port_info: None,
            sends_any_class: true,
            ..Self::new(MgmtClass::new(0), MethodSet::NONE)
        }
    }

    /// The same, with a queue of its own for its events. So the registrations of programs that share
    /// a port with the owner's own software neither see nor delay each other's.
    #[must_use]
    pub fn apart(self) -> Self {
        Self {
            is_apart: true,
            ..self
        }
    }

    /// The same, with this ClassPortInfo or none.
    #[must_use]
    pub fn with_class_port_info(self, class_port_info: Option<ClassPortInfo>) -> Self {
        Self {
            class_port_info,
            ..self
        }
    }

    /// The same for one vendor.
    #[must_use]
    pub fn with_oui(self, oui: Oui) -> Self {
        Self {
            oui: Some(oui),
            ..self
        }
    }
}

/// Why a registration was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Another registration takes one of the methods.
    #[error("agent {0:?} takes one of these methods already")]
    Conflict(AgentId),
    /// SMPs belong on QP0, everything else on QP1 (IBA 13.5.1).
    #[error("class {0} does not belong on this queue pair")]
    WrongQueuePair(MgmtClass),
    /// Vendor classes 0x30 to 0x4F need an OUI, and only they have one.
    #[error("class {0} and the OUI do not fit")]
    Oui(MgmtClass),
    /// All agent numbers are taken.
    #[error("too many agents")]
    TooMany,
}

/// Who takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// This registration.
    Agent(AgentId),
    /// The class and version are known, the method is not.
    NoMethod,
    /// The class is known, the version is not.
    NoVersion,
    /// Nobody speaks the class (or is this vendor).
    NoClass,
}

#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) registration: Registration,
    /// The low half of the next transaction id.
    next_tid: u32,
}

/// All registrations of an agent.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    agents: BTreeMap<AgentId, Registered>,
    /// The raw client.
    raw: Option<AgentId>,
    last: u32,
}

impl Registry {
    pub(crate) fn insert(
        &mut self,
        registration: Registration,
        first_tid: u32,
    ) -> Result<AgentId, RegisterError> {
        if registration.class.is_vendor_oui() != registration.oui.is_some() {
            return Err(RegisterError::Oui(registration.class));
        }
        let conflict = self.agents.iter().find(|(_, other)| {
            let other = &other.registration;
            other.class == registration.class
                && other.class_version == registration.class_version
                && other.oui == registration.oui
                && other.methods.intersects(registration.methods)
        });
        if let Some((id, _)) = conflict {
            return Err(RegisterError::Conflict(*id));
        }
        let id = self.free_id().ok_or(RegisterError::TooMany)?;
        self.last = id.0;
        let registered = Registered {
            registration,
            next_tid: first_tid,
        };
        self.agents.insert(id, registered);
        Ok(id)
    }

    /// Takes in the raw client.
    pub(crate) fn insert_raw(&mut self) -> Result<AgentId, RegisterError> {
        if let Some(raw) = self.raw {
            return Err(RegisterError::Conflict(raw));
        }
        let id = self.free_id().ok_or(RegisterError::TooMany)?;
        self.last = id.0;
        self.raw = Some(id);
        Ok(id)
    }

    pub(crate) const fn raw(&self) -> Option<AgentId> {
        self.raw
    }

    pub(crate) fn remove(&mut self, id: AgentId) -> bool {
        self.raw.take_if(|raw| *raw == id).is_some() || self.agents.remove(&id).is_some()
    }

    /// The number of the latest registration.
    pub(crate) const fn last(&self) -> u32 {
        self.last
    }

    pub(crate) fn get(&self, id: AgentId) -> Option<&Registration> {
        self.agents.get(&id).map(|agent| &agent.registration)
    }

    /// The agent's next transaction id. The low half runs through all its values before one
    /// returns.
    pub(crate) fn next_tid(&mut self, id: AgentId) -> Option<Tid> {
        let agent = self.agents.get_mut(&id)?;
        let low = agent.next_tid;
        agent.next_tid = low.wrapping_add(1);
        Some(id.tid(low))
    }

    pub(crate) fn route(&self, mad: &Mad) -> Route {
        let header = &mad.header;
        let mut route = Route::NoClass;
        for (id, agent) in &self.agents {
            let registration = &agent.registration;
            if !registration.speaks_class_of(mad) {
                continue;
            }
            if registration.class_version != header.class_version {
                if route == Route::NoClass {
                    route = Route::NoVersion;
                }
            } else if registration.methods.contains(header.method) {
                return Route::Agent(*id);
            } else {
                route = Route::NoMethod;
            }
        }
        route
    }

    /// The registration that sent the request which a MAD with this transaction id answers.
    pub(crate) fn asker(&self, tid: Tid) -> Option<(AgentId, &Registration)> {
        let id = AgentId(u32::try_from(tid.get() >> 32).ok()?);
        self.get(id).map(|registration| (id, registration))
    }

    /// The ClassPortInfo that answers a request: what the registration that takes the request says,
    /// or else the first one of its class and version that has one.
    pub(crate) fn class_port_info(&self, mad: &Mad) -> Option<ClassPortInfo> {
        if let Route::Agent(taker) = self.route(mad) {
            return self.get(taker)?.class_port_info;
        }
        self.agents
            .values()
            .map(|agent| &agent.registration)
            .filter(|registration| registration.covers(mad))
            .find_map(|registration| registration.class_port_info)
    }

    /// The next number after the last one given that is not in use.
    fn free_id(&self) -> Option<AgentId> {
        let successor = |n: u32| if n >= AgentId::MAX { 1 } else { n + 1 };
        let mut candidate = successor(self.last);
        // Among len + 2 candidates one is free: the raw client has one besides.
        for _ in 0..self.agents.len() + 2 {
            if !self.agents.contains_key(&AgentId(candidate))
                && self.raw != Some(AgentId(candidate))
            {
                return Some(AgentId(candidate));
            }
            candidate = successor(candidate);
        }
        None
    }
}

impl Registration {
    /// Whether it may send a MAD.
    pub(crate) fn may_send(&self, mad: &Mad) -> bool {
        self.sends_any_class || self.covers(mad)
    }

    /// Whether a MAD is of this class, version and vendor.
    pub(crate) fn covers(&self, mad: &Mad) -> bool {
        self.speaks_class_of(mad) && self.class_version == mad.header.class_version
    }

    fn speaks_class_of(&self, mad: &Mad) -> bool {
        self.class == mad.header.mgmt_class
            && self
                .oui
                .is_none_or(|oui| mad.view::<VendorOuiMad>().oui == oui.0)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn vendor(oui: [u8; 3]) -> Registration {
        let methods = MethodSet::of(&[Method::GET]);
        Registration::new(MgmtClass::new(0x32), methods).with_oui(Oui(oui))
    }

    #[test]
    fn overlapping_methods_of_a_class_conflict() {
        let mut registry = Registry::default();
        let perf = |methods: &[Method]| Registration::new(MgmtClass::PERF, MethodSet::of(methods));
        let first = registry
            .insert(perf(&[Method::GET, Method::SET]), 0)
            .unwrap();
        assert_eq!(
            registry.insert(perf(&[Method::SET]), 0),
            Err(RegisterError::Conflict(first))
        );
        registry.insert(perf(&[Method::TRAP]), 0).unwrap();
        registry.insert(perf(&[]), 0).unwrap();
        assert!(registry.remove(first));
        registry.insert(perf(&[Method::SET]), 0).unwrap();
    }

    #[test]
    fn vendors_share_a_class_by_oui() {
        let mut registry = Registry::default();
        let one = registry.insert(vendor([1, 2, 3]), 0).unwrap();
        let two = registry.insert(vendor([1, 2, 4]), 0).unwrap();
        assert_ne!(one, two);
        assert_eq!(
            registry.insert(vendor([1, 2, 3]), 0),
            Err(RegisterError::Conflict(one))
        );
        let mut bare = vendor([0; 3]);
        bare.oui = None;
        assert!(matches!(
            registry.insert(bare, 0),
            Err(RegisterError::Oui(_))
        ));
    }

    #[test]
    fn numbers_are_not_reused_at_once() {
        let mut registry = Registry::default();
        let one = registry.insert(vendor([1, 2, 3]), 0).unwrap();
        registry.remove(one);
        let two = registry.insert(vendor([1, 2, 3]), 0).unwrap();
        assert_ne!(one, two);
    }

    #[test]
    fn a_transaction_id_has_the_agent_in_its_upper_half() {
        let mut registry = Registry::default();
        let id = registry.insert(vendor([1, 2, 3]), u32::MAX).unwrap();
        let tids: Vec<u64> = (0..2)
            .map(|_| registry.next_tid(id).unwrap().get())
            .collect();
        assert_eq!(tids, [0x1_ffff_ffff, 0x1_0000_0000]);
    }
}
