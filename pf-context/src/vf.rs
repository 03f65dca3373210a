//! The VFs of a port: who they are, and what they may do.

use cm_paravirt::ResetPolicy;
use ib_vtime::Instant;
use ib_wire::mad::Mad;
use ib_wire::{Gid, Guid, PKey, PortNum, Sl, SubnetPrefix};
use mad_mux::policy::Rights;
use vf_tunnel::{DropReason, PhysicalPKeyIndex, VfId, VirtualPKeyIndex};

use crate::asked_under::AskedUnder;
use crate::config::{AdaptAnswer, AddVfError, EgressLimit, VfConfig, VfPKeyEntry, WireLimit};
use crate::mux::PortMux;
use crate::output::{Cause, Output, Passed, VfEvent};
use crate::pkeys::{PortPKeys, VfPKeys};
use crate::redirects::Redirects;
use crate::statistics::MadStatistics;

/// A VF.
#[derive(Clone, Debug)]
pub(crate) struct Vf {
    pub(crate) guid: Option<Guid>,
    pub(crate) ca_guid: Option<Guid>,
    /// The CA that the VF's last REQ named: its own, if the PF gave it none.
    pub(crate) claimed_ca: Option<Guid>,
    pub(crate) port: PortNum,
    pub(crate) pkeys: VfPKeys,
    pub(crate) rights: Rights,
    service_levels: u16,
    adapt_answer: Option<AdaptAnswer>,
    pub(crate) redirects: Redirects,
    pub(crate) asked: AskedUnder,
    /// Whether it is the PF's own software, which is trusted and has no tunnel.
    pub(crate) is_pf: bool,
    /// Whether its tunnel works.
    pub(crate) active: bool,
    pub(crate) statistics: MadStatistics,
}

impl Vf {
    /// Changes an answer to one that the guest's driver handles correctly.
    pub(crate) fn adapt(&self, answer: &mut Mad) {
        if let Some(AdaptAnswer(adapt)) = self.adapt_answer {
            adapt(answer);
        }
    }

    pub(crate) fn new(config: VfConfig, port: &PortPKeys) -> Self {
        Self {
            guid: config.guid,
            ca_guid: config.ca_guid,
            claimed_ca: None,
            port: config.port,
            pkeys: VfPKeys::new(config.pkeys, port),
            rights: config.rights,
            service_levels: config.service_levels,
            adapt_answer: config.adapt_answer,
            redirects: Redirects::default(),
            asked: AskedUnder::default(),
            is_pf: false,
            active: true,
            statistics: MadStatistics::default(),
        }
    }

    /// Its GID under a prefix.
    pub(crate) fn gid(&self, prefix: SubnetPrefix) -> Option<Gid> {
        self.guid.map(|guid| Gid::from_parts(prefix, guid))
    }

    /// Its GIDs as others of the subnet may write them.
    pub(crate) fn gids(&self, prefix: SubnetPrefix) -> Option<[Gid; 2]> {
        self.guid
            .map(|guid| [prefix, SubnetPrefix::DEFAULT].map(|p| Gid::from_parts(p, guid)))
    }

    pub(crate) const fn may_use(&self, sl: Sl) -> bool {
        self.service_levels & 1 << sl.get() != 0
    }
}

/// The VFs by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vfs(Vec<Option<Box<Vf>>>);

impl Vfs {
    pub(crate) fn get(&self, vf: VfId) -> Option<&Vf> {
        self.0.get(vf.index())?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, vf: VfId) -> Option<&mut Vf> {
        self.0.get_mut(vf.index())?.as_deref_mut()
    }

    /// A VF whose tunnel works.
    pub(crate) fn active(&self, vf: VfId) -> Option<&Vf> {
        self.get(vf).filter(|record| record.active)
    }

    pub(crate) fn insert(&mut self, vf: VfId, record: Vf) {
        let at = vf.index();
        if at >= self.0.len() {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(Box::new(record));
    }

    fn remove(&mut self, vf: VfId) {
        if let Some(slot) = self.0.get_mut(vf.index()) {
            *slot = None;
        }
    }

    /// All of them, to change.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (VfId, &mut Vf)> {
        (0..).zip(&mut self.0).filter_map(|(number, slot)| {
            let record = slot.as_deref_mut()?;
            Some((VfId::new(number)?, record))
        })
    }

    /// All of them, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (VfId, &Vf)> {
        (0..).zip(&self.0).filter_map(|(number, slot)| {
            let record = slot.as_deref()?;
            Some((VfId::new(number)?, record))
        })
    }
}

impl PortMux {
    /// Adds a VF, whose tunnel works from now on.
    ///
    /// # Errors
    /// [`AddVfError`]; nothing has changed then.
    pub fn add_vf(&mut self, vf: VfId, config: VfConfig) -> Result<(), AddVfError> {
        if self.vfs.get(vf).is_some() {
            return Err(AddVfError::Exists(vf));
        }
        if let Some(guid) = config.guid
            && !self.gids.assign(vf, Some(guid))
        {
            return Err(AddVfError::BadGuid(guid));
        }
        self.tell_gids();
        self.limiter.add(vf, self.egress_limit);
        self.vfs.insert(vf, Vf::new(config, &self.pkeys));
        Ok(())
    }

    /// Starts or stops a VF's tunnel. A stopped one neither sends nor receives; what the VF has in
    /// the tables stays until [`PortMux::reset_vf`].
    pub fn set_active(&mut self, vf: VfId, active: bool) {
        if let Some(record) = self.vfs.get_mut(vf) {
            record.active = active;
        }
    }

    /// Takes note that the hardware has another GUID for a VF, or none. The VF is told, and its port
    /// follows: with a GUID it is as the physical port is, without it is down.
    ///
    /// # Errors
    /// [`AddVfError::BadGuid`]; nothing has changed then.
    pub fn set_guid(
        &mut self,
        cause: Cause,
        vf: VfId,
        guid: Option<Guid>,
    ) -> Result<(), AddVfError> {
        let Some(before) = self.vfs.get(vf).map(|record| record.guid) else {
            return Ok(());
        };
        if !self.gids.assign(vf, guid) {
            return Err(AddVfError::BadGuid(guid.unwrap_or_default()));
        }
        if before == guid {
            return Ok(());
        }
        self.tell_gids();
        if let Some(record) = self.vfs.get_mut(vf) {
            record.guid = guid;
        }
        for guid in [before, guid].into_iter().flatten() {
            self.paths.invalidate_guid(guid);
        }
        self.tell(cause, vf, VfEvent::GidChange);
        match (self.port.up, before, guid) {
            (true, None, Some(_)) => self.tell(cause, vf, VfEvent::PortUp),
            (true, Some(_), None) => self.tell(cause, vf, VfEvent::PortDown),
            _ => {}
        }
        Ok(())
    }

    /// Gives a VF other rights from now on, but for SMPs: see [`Self::set_smi`].
    pub fn set_rights(&mut self, vf: VfId, rights: Rights) {
        if let Some(record) = self.vfs.get_mut(vf) {
            let smi = record.rights.smi;
            record.rights = Rights { smi, ..rights };
        }
    }

    /// Gives a VF the right to send SMPs, or takes it away, from now on.
    pub fn set_smi(&mut self, vf: VfId, permitted: bool) {
        if let Some(record) = self.vfs.get_mut(vf) {
            record.rights.smi = permitted;
        }
    }

    /// Changes a VF's rate, queue and weight, from now on.
    pub fn set_egress_limit(&mut self, now: Instant, vf: VfId, limit: EgressLimit) {
        self.limiter.change(now, vf, limit);
        self.release(now);
    }

    /// Changes the port's rate, from now on.
    pub fn set_wire_limit(&mut self, now: Instant, limit: WireLimit) {
        self.limiter.change_wire(now, limit);
        self.release(now);
    }

    /// Says how many more frames of VFs the send ring behind the mux takes; `None`, as at the start,
    /// for any number. Frames beyond it wait in their VFs' queues, and when those are full end as
    /// [`DropReason::Backpressure`].
    ///
    /// Each frame of a VF that goes on counts, whatever the machines make of it, so say anew what the
    /// ring takes whenever the outputs have been posted or a send has completed. What the port itself
    /// sends does not count: keep some room for it.
    pub fn set_wire_room(&mut self, now: Instant, room: Option<usize>) {
        self.limiter.set_wire_room(room);
        self.release(now);
    }

    /// Puts something else behind a VF's P_Key index, or nothing. The VF is told if that is another
    /// place of the port's table or another key; an index beyond its table is none.
    pub fn map_pkey(
        &mut self,
        cause: Cause,
        vf: VfId,
        index: VirtualPKeyIndex,
        to: Option<VfPKeyEntry>,
    ) {
        let record = self.vfs.get_mut(vf);
        if record.is_some_and(|record| record.pkeys.map(index, to, &self.pkeys)) {
            self.tell(cause, vf, VfEvent::PKeyChange);
        }
    }

    /// The place of the port's P_Key table behind each of a VF's own indices; nothing if there is no
    /// such VF. What is mapped by value can move whenever the port's table changes
    /// ([`PortEvent::PKeyTable`](crate::PortEvent::PKeyTable)): let the VF's function follow
    /// before anything is done about the outputs of that event.
    #[must_use]
    pub fn physical_pkeys(&self, vf: VfId) -> &[Option<PhysicalPKeyIndex>] {
        self.vfs.get(vf).map_or(&[], |record| record.pkeys.places())
    }

    /// Forgets all that a VF had under way: it was reset, or its guest is gone. It can go on at once.
    ///
    /// By policy its peers are told.
    pub fn reset_vf(&mut self, now: Instant, cause: Cause, vf: VfId) {
        for held in self.limiter.clear(vf) {
            self.drop_frame(held.cause, Some(vf), DropReason::VfInReset);
        }
        for held in self.paths.reset(vf) {
            self.drop_frame(held.cause, Some(vf), DropReason::VfInReset);
        }
        let Some(record) = self.vfs.get_mut(vf) else {
            return;
        };
        record.redirects.clear();
        record.asked.clear();
        // Its peers know the requests that the REJs name by the CA that the requests named.
        let ca_guid = record.ca_guid.or_else(|| record.claimed_ca.take());
        let ca_guid = ca_guid.or(record.guid).unwrap_or(Guid::NONE);
        let policy = if self.policy.signal_reset {
            ResetPolicy::Signal { ca_guid }
        } else {
            ResetPolicy::Silent
        };
        let cut = self.tids.reset(now, vf);
        self.cm.lock().machine.vf_reset(now, vf, policy);
        self.mcast.reset(now, vf.into());
        self.notices.reset(now, vf.into());
        self.services.reset(now, vf);
        self.join_routes.forget(vf);
        if self.policy.signal_reset {
            for transfer in &cut {
                self.abort(now, cause, vf, transfer);
            }
        }
        while let Some(message) = self.next_farewell() {
            self.farewell(now, cause, &message);
        }
        self.pump(now, cause);
    }

    /// Forgets a VF and its GUID. What it had in the tables goes with [`PortMux::reset_vf`], before.
    pub fn remove_vf(&mut self, vf: VfId) {
        let gone = self.gids.assign(vf, None);
        debug_assert!(gone, "no GUID can always be assigned");
        self.tell_gids();
        // Nobody else can be in the way of no entries.
        let _ = self.set_sidr(vf, &[]);
        self.limiter.remove(vf);
        self.vfs.remove(vf);
    }

    /// The GUID that the hardware has for a VF.
    #[must_use]
    pub fn vf_guid(&self, vf: VfId) -> Option<Guid> {
        self.vfs.get(vf)?.guid
    }

    /// Counts and reports a frame of a VF, or for it, that the caller ended.
    pub fn refuse(&mut self, cause: Cause, vf: Option<VfId>, reason: DropReason) {
        self.drop_frame(cause, vf, reason);
    }

    /// Counts and reports the end of a frame.
    pub(crate) fn drop_frame(&mut self, cause: Cause, vf: Option<VfId>, reason: DropReason) {
        self.statistics_of(vf).count_drop(reason);
        self.emit(cause, Output::Dropped { vf, reason });
    }

    /// The same for a frame of which nothing goes on.
    pub(crate) fn end(&mut self, cause: Cause, vf: Option<VfId>, reason: DropReason) -> Passed {
        self.drop_frame(cause, vf, reason);
        Passed::Nothing
    }

    pub(crate) fn tell(&mut self, cause: Cause, vf: VfId, event: VfEvent) {
        self.emit(cause, Output::VfEvent { vf, event });
    }

    /// The key of a message of ours in a VF's name: the exchange's, or the VF's first.
    pub(crate) fn pkey_for(&self, vf: VfId, exchange: PKey) -> PKey {
        if exchange.is_valid() {
            return exchange;
        }
        let keys = self.vfs.get(vf).map(|record| record.pkeys.keys());
        keys.and_then(|keys| keys.iter().copied().find(|key| key.is_valid()))
            .unwrap_or_else(|| self.pkeys.for_management())
    }
}
