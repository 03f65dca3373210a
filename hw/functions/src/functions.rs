//! The functions of an adapter, and how they are lent.

use core::fmt;
use std::collections::{BTreeMap, VecDeque};

use hca_api::{
    Adapter, AddressSpace, AsyncEvent, CqHandle, FunctionId, Hca, HcaError, HcaEvent, MrHandle,
    MrKeys, MrKind, MrSpec, PdHandle, QpHandle, ResourceCounts, Sge, SrqHandle,
};
use ib_vtime::{Instant, Secret, SecretNumbers, TimerQueue};

use crate::cq::CompletionQueue;
use crate::event::{EventSource, origin};
use crate::memory::SharedSpaces;
use crate::numbers::Numbers;
use crate::pulled::QueueId;
use crate::regions::Region;
use crate::remains::Remains;
use crate::side::{FIRST_END, Memory, Side};
use crate::vf::Vf;

/// Virtual functions in software over an adapter that knows one function, the physical one.
///
/// It keeps handles of the adapter and owns no adapter: [`Functions::on`] joins the two for a call or a few. An adapter that
/// was used with one `Functions` is used with that one alone.
#[derive(Debug)]
pub struct Functions {
    max_functions: u16,
    pub(crate) vfs: BTreeMap<FunctionId, Box<Vf>>,
    /// Objects of the physical function, as far as this layer needs them.
    pub(crate) physical: Side,
    /// Objects of the physical function, including the objects in the adapter.
    pub(crate) owned: ResourceCounts,
    pub(crate) spaces: SharedSpaces,
    /// Owners of the adapter's objects that belong to virtual functions.
    pub(crate) cq_owners: BTreeMap<CqHandle, FunctionId>,
    pub(crate) qp_owners: BTreeMap<QpHandle, FunctionId>,
    pub(crate) srq_owners: BTreeMap<SrqHandle, FunctionId>,
    /// Functions that may have events which [`Adapter::poll_ready`] has not returned yet.
    stirred: VecDeque<FunctionId>,
    /// Objects of functions that were reset.
    pub(crate) remains: Remains,
    /// Numbers of the ends of tunnels.
    pub(crate) numbers: Numbers,
    pub(crate) secrets: SecretNumbers,
    /// Where messages of tunnels are gathered.
    pub(crate) message: Vec<u8>,
    /// Where lists of virtual functions are rewritten for the adapter.
    pub(crate) sges: Vec<Sge>,
    /// Queues of receives that are to be read.
    pub(crate) readings: TimerQueue<(FunctionId, QueueId)>,
    /// Time of the last [`Self::handle_timeout`], and the number of such calls.
    pub(crate) now: Instant,
    pub(crate) turn: u64,
}

impl Functions {
    /// Returns an adapter of up to `max_functions` virtual functions, with none yet. Keys of memory regions follow from the
    /// secret.
    #[must_use]
    pub fn new(max_functions: u16, secret: impl Into<Secret>) -> Self {
        Self {
            max_functions,
            vfs: BTreeMap::new(),
            physical: Side::new(FIRST_END),
            owned: ResourceCounts::default(),
            spaces: SharedSpaces::default(),
            cq_owners: BTreeMap::new(),
            qp_owners: BTreeMap::new(),
            srq_owners: BTreeMap::new(),
            stirred: VecDeque::new(),
            remains: Remains::default(),
            numbers: Numbers::default(),
            secrets: secret.into().numbers(),
            message: Vec::new(),
            sges: Vec::new(),
            readings: TimerQueue::new(),
            now: Instant::ZERO,
            turn: 0,
        }
    }

    /// Returns the memory that the adapter's function is to reach: its own, and that of virtual functions. Over an adapter without
    /// it they have no data.
    #[must_use]
    pub fn memory(&self) -> Box<dyn AddressSpace> {
        Box::new(self.spaces.clone())
    }

    /// Returns the adapter with its functions, of which `hca` is the physical one.
    pub fn on<'a>(&'a mut self, hca: &'a mut dyn Hca) -> DividedAdapter<'a> {
        DividedAdapter {
            functions: self,
            hca,
        }
    }

    /// Lends a function of the adapter whose own one is `hca`. `None` if there is none of this number.
    pub fn function<H: Hca>(&mut self, hca: H, id: FunctionId) -> Option<Function<'_, H>> {
        if id != FunctionId::PF {
            self.vf(id).ok()?;
        }
        Some(Function {
            functions: self,
            hca,
            id,
        })
    }

    /// Returns a function that may have events, as [`Adapter::poll_ready`] does.
    #[must_use]
    pub fn poll_ready(&mut self, hca: &mut dyn Hca) -> Option<FunctionId> {
        self.take_events(hca);
        while let Some(id) = self.stirred.pop_front() {
            let side = match id {
                FunctionId::PF => Some(&mut self.physical),
                _ => self.vfs.get_mut(&id).map(|vf| &mut vf.side),
            };
            let Some(side) = side else {
                continue;
            };
            side.is_stirred = false;
            if !side.events.is_empty() {
                return Some(id);
            }
        }
        None
    }

    pub(crate) const fn max_functions(&self) -> u16 {
        self.max_functions
    }

    pub(crate) fn vf(&self, id: FunctionId) -> Result<&Vf, HcaError> {
        let vf = self.vfs.get(&id);
        vf.map(Box::as_ref).ok_or(HcaError::InvalidHandle)
    }

    /// Returns a virtual function, to be changed.
    pub(crate) fn vf_mut(&mut self, id: FunctionId) -> Result<&mut Vf, HcaError> {
        let vf = self.vfs.get_mut(&id);
        vf.map(Box::as_mut).ok_or(HcaError::InvalidHandle)
    }

    pub(crate) fn insert(&mut self, id: FunctionId, vf: Vf) {
        self.vfs.insert(id, Box::new(vf));
    }

    pub(crate) fn remove(&mut self, id: FunctionId) -> Option<Vf> {
        self.stirred.retain(|stirred| *stirred != id);
        self.vfs.remove(&id).map(|vf| *vf)
    }

    pub(crate) fn side(&self, id: FunctionId) -> Result<&Side, HcaError> {
        match id {
            FunctionId::PF => Ok(&self.physical),
            _ => Ok(&self.vf(id)?.side),
        }
    }

    /// Returns a function's objects, to be changed. Whatever raises an event comes this way.
    pub(crate) fn side_mut(&mut self, id: FunctionId) -> Result<&mut Side, HcaError> {
        let side = match id {
            FunctionId::PF => &mut self.physical,
            _ => &mut self.vfs.get_mut(&id).ok_or(HcaError::InvalidHandle)?.side,
        };
        stir(&mut self.stirred, id, side);
        Ok(side)
    }

    /// Returns a function's objects and its memory.
    pub(crate) fn parts<'a>(
        &'a mut self,
        id: FunctionId,
        hca: &'a mut dyn Hca,
    ) -> Result<(&'a mut Side, Memory<'a>), HcaError> {
        let (side, memory) = match id {
            FunctionId::PF => (&mut self.physical, Memory::Physical(hca)),
            _ => {
                let vf = self.vfs.get_mut(&id).ok_or(HcaError::InvalidHandle)?;
                (&mut vf.side, Memory::Virtual(&mut vf.memory))
            }
        };
        stir(&mut self.stirred, id, side);
        Ok((side, memory))
    }

    /// Refuses an object beyond the quota of a virtual function.
    pub(crate) fn check_quota(
        &self,
        id: FunctionId,
        count: impl Fn(&ResourceCounts) -> u32,
    ) -> Result<(), HcaError> {
        let Ok(vf) = self.vf(id) else {
            return Ok(());
        };
        if count(&vf.resources()) < count(&vf.quota) {
            Ok(())
        } else {
            Err(HcaError::InsufficientResources)
        }
    }

    /// Takes the events of the adapter's function, and gives each to its owner.
    pub(crate) fn take_events(&mut self, hca: &mut dyn Hca) {
        while let Some(event) = hca.poll_event() {
            let owner = match origin(&event) {
                Some(EventSource::Cq(cq)) => self.cq_owners.get(&cq).copied(),
                Some(EventSource::Qp(qp)) => self.qp_owners.get(&qp).copied(),
                Some(EventSource::Srq(srq)) => self.srq_owners.get(&srq).copied(),
                Some(EventSource::Pd(pd)) => self.owner_of_pd(pd),
                None => None,
            };
            let owner = owner.unwrap_or(FunctionId::PF);
            if let HcaEvent::Async(event) = event
                && self.refills(hca, owner, event)
            {
                continue;
            }
            if event == HcaEvent::Async(AsyncEvent::DeviceFatal) {
                for (id, vf) in &mut self.vfs {
                    vf.side.events.raise(AsyncEvent::DeviceFatal);
                    stir(&mut self.stirred, *id, &mut vf.side);
                }
            }
            let Ok(side) = self.side_mut(owner) else {
                continue;
            };
            match event {
                HcaEvent::Completion(cq) => {
                    let queue = side.cqs.get_mut(&cq);
                    if queue.is_some_and(CompletionQueue::announce) {
                        side.events.announce(cq);
                    }
                }
                HcaEvent::Async(event) => side.events.raise(event),
            }
        }
    }

    /// Returns the virtual function that has a protection domain of the adapter.
    fn owner_of_pd(&self, pd: PdHandle) -> Option<FunctionId> {
        let mut vfs = self.vfs.iter();
        let owner = vfs.find(|(_, vf)| vf.own_pd(pd).is_ok());
        owner.map(|(id, _)| *id)
    }

    /// Notes a region of the physical function, which the ends of tunnels then can use. One without bytes of its own they cannot.
    pub(crate) fn note_region(&mut self, spec: &MrSpec<'_>, keys: &MrKeys) {
        let is_empty = matches!(spec.kind, MrKind::FastRegister { .. });
        if let (Ok(region), false) = (Region::new(spec), is_empty)
            && self.physical.hold_pd(spec.pd).is_ok()
        {
            let regions = &mut self.physical.regions;
            regions.insert(keys.handle, keys.lkey.0, region);
        }
    }

    /// Forgets a memory region of the physical function.
    pub(crate) fn forget_region(&mut self, mr: MrHandle) {
        if let Some(region) = self.physical.regions.remove(mr) {
            self.physical.release_pd(region.pd);
        }
    }
}

/// Puts a function in line with the functions that may have events.
fn stir(stirred: &mut VecDeque<FunctionId>, id: FunctionId, side: &mut Side) {
    if !core::mem::replace(&mut side.is_stirred, true) {
        stirred.push_back(id);
    }
}

/// An adapter with its virtual functions.
pub struct DividedAdapter<'a> {
    functions: &'a mut Functions,
    hca: &'a mut dyn Hca,
}

impl fmt::Debug for DividedAdapter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let functions = &self.functions;
        f.debug_struct("DividedAdapter")
            .field("functions", functions)
            .finish_non_exhaustive()
    }
}

impl Adapter for DividedAdapter<'_> {
    type Function<'a>
        = Function<'a, &'a mut dyn Hca>
    where
        Self: 'a;

    fn function(&mut self, id: FunctionId) -> Option<Self::Function<'_>> {
        self.functions.function(&mut *self.hca, id)
    }

    fn poll_ready(&mut self) -> Option<FunctionId> {
        self.functions.poll_ready(self.hca)
    }
}

/// One function of an adapter, lent for a call or a few.
///
/// It implements [`hca_api::Hca`] and [`hca_api::FunctionManager`].
pub struct Function<'a, H> {
    pub(crate) functions: &'a mut Functions,
    pub(crate) hca: H,
    pub(crate) id: FunctionId,
}

impl<H> fmt::Debug for Function<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
