//! The VFs of a port: their tunnels, and what they see of it.

use hca_api::{AsyncEvent, FunctionManager, PortChange, PortState, SpecialQp, VirtualPort};
use ib_vtime::Instant;
use ib_wire::smp::PortState as WirePortState;
use ib_wire::{Guid, PKeyIndex};
use vf_tunnel::{DropReason, ToPf, VfId, VirtualPKeyIndex};

use super::config::{GuidSource, PfError, VfPortSpec};
use super::event::PfEvent;
use super::port::{CAUSE, PfPort, Source};
use super::tunnel::Tunnel;
use crate::PortReason;
use crate::config::{VfConfig, VfPKeyEntry};
use crate::output::PortEvent;

/// What makes a VF turn to the SA with its own GUID: an SA that has forgotten it would refuse.
const CALLS_TO_THE_SA: PortChange = PortChange::CLIENT_REREGISTER.union(PortChange::SM);

/// What a VF has of a port besides its place in the mux.
#[derive(Debug)]
pub(super) struct VfPort {
    pub(super) tunnels: Vec<Tunnel>,
    pub(super) guid_source: GuidSource,
    pub(super) admin_up: bool,
    /// Whether it has QP0 from its next reset on.
    pub(super) smi_permitted: bool,
    /// Why its port is as the owner was told last.
    reason: Option<PortReason>,
    /// What the provider shows.
    shown: VirtualPort,
    /// What the VF is to be told.
    pub(super) change: PortChange,
    /// What it is told once the SA knows its GUID again.
    held: PortChange,
    /// Whether the VF is among those of which something changed.
    pub(super) is_changed: bool,
}

impl VfPort {
    /// What the VF is to be told now. What would make it turn to the SA is held back while that has yet
    /// to hear of its GUID again.
    fn take_news(&mut self, is_unknown_to_sa: bool) -> PortChange {
        let news = core::mem::take(&mut self.change) | core::mem::take(&mut self.held);
        if is_unknown_to_sa {
            self.held = news & CALLS_TO_THE_SA;
        }
        news - self.held
    }
}

impl PfPort {
    pub(super) fn tunnel(&self, vf: VfId, special: SpecialQp) -> Option<&Tunnel> {
        let own = self.vfs.get(vf.index())?.as_ref()?;
        own.tunnels
            .iter()
            .find(|tunnel| tunnel.special() == special)
    }

    pub(super) fn tunnel_mut(&mut self, vf: VfId, special: SpecialQp) -> Option<&mut Tunnel> {
        self.vf_mut(vf)?
            .tunnels
            .iter_mut()
            .find(|tunnel| tunnel.special() == special)
    }

    pub(super) fn vf_mut(&mut self, vf: VfId) -> Option<&mut VfPort> {
        self.vfs.get_mut(vf.index())?.as_deref_mut()
    }

    /// Makes a VF's tunnels and takes it into the mux.
    pub(super) fn add_vf(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        vf: VfId,
        node_guid: Guid,
        spec: &VfPortSpec,
    ) -> Result<(), PfError> {
        let port = self.own.port();
        let config = VfConfig {
            guid: None,
            ca_guid: Some(node_guid),
            port,
            pkeys: spec.pkeys.clone(),
            rights: spec.rights,
            service_levels: spec.service_levels,
            adapt_answer: spec.adapt_answer,
        };
        self.mux
            .add_vf(vf, config)
            .map_err(|error| PfError::Vf(port, error))?;
        let made = self.make_tunnels(hca, vf, spec);
        match made {
            Ok(own) => {
                if self.vfs.len() <= vf.index() {
                    self.vfs.resize_with(vf.index() + 1, || None);
                }
                for tunnel in &own.tunnels {
                    let source = Source::Tunnel(vf, tunnel.special());
                    self.sources.insert(tunnel.cq(), source);
                    self.ready.push_back(source);
                }
                self.vfs[vf.index()] = Some(Box::new(own));
                if let Some(limit) = spec.egress {
                    self.mux.set_egress_limit(now, vf, limit);
                    // The function was just made.
                    let _ = hca.set_egress_weight(vf.into(), port, limit.weight);
                }
                self.note_change(vf, PortChange::empty());
                self.want_guid(now, vf, spec.guid);
                Ok(())
            }
            Err(error) => {
                self.mux.remove_vf(vf);
                Err(error)
            }
        }
    }

    fn make_tunnels(
        &self,
        hca: &mut dyn FunctionManager,
        vf: VfId,
        spec: &VfPortSpec,
    ) -> Result<VfPort, PfError> {
        let smi = self.smi.is_some() && spec.rights.smi;
        let shown = VirtualPort {
            state: PortState::Down,
            pkeys: self.physical_pkeys(vf),
            smi_enabled: smi,
        };
        let port = self.own.port();
        hca.set_virtual_port(vf.into(), port, shown.clone())?;
        let gsi = Tunnel::open(hca, vf, SpecialQp::Gsi, port, &self.depths)?;
        let mut tunnels = vec![gsi];
        if smi {
            match Tunnel::open(hca, vf, SpecialQp::Smi, port, &self.depths) {
                Ok(tunnel) => tunnels.push(tunnel),
                Err(error) => {
                    for tunnel in tunnels {
                        tunnel.close(hca);
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(VfPort {
            tunnels,
            guid_source: spec.guid,
            admin_up: true,
            smi_permitted: spec.rights.smi,
            reason: None,
            shown,
            change: PortChange::empty(),
            held: PortChange::empty(),
            is_changed: false,
        })
    }

    /// Takes a VF's tunnels away and forgets it.
    pub(super) fn remove_vf(&mut self, now: Instant, hca: &mut dyn FunctionManager, vf: VfId) {
        self.reset_vf(now, hca, vf);
        self.guids.withdraw(now, vf);
        self.drive_guids(now, hca);
        self.mux.remove_vf(vf);
        let own = self.vfs.get_mut(vf.index()).and_then(Option::take);
        for tunnel in own.into_iter().flat_map(|own| own.tunnels) {
            self.sources.remove(&tunnel.cq());
            tunnel.close(hca);
        }
        self.ready
            .retain(|source| !matches!(source, Source::Tunnel(of, _) if *of == vf));
        self.changed.retain(|changed| *changed != vf);
    }

    /// Ends all that a VF had under way, with what it had sent and was not yet taken.
    pub(super) fn reset_vf(&mut self, now: Instant, hca: &mut dyn FunctionManager, vf: VfId) {
        let mut frame = ToPf::zeroed();
        for special in [SpecialQp::Gsi, SpecialQp::Smi] {
            while self
                .tunnel_mut(vf, special)
                .is_some_and(|tunnel| tunnel.receive(hca, &mut frame).is_some())
            {
                self.mux.refuse(CAUSE, Some(vf), DropReason::VfInReset);
            }
            if let Some(tunnel) = self.tunnel_mut(vf, special) {
                tunnel.clear();
            }
        }
        self.mux.reset_vf(now, CAUSE, vf);
        self.carry_out(hca);
        self.latch_smi(hca, vf);
    }

    /// Gives a VF that begins anew its tunnel for QP0, or takes it away, as it is permitted now. If the
    /// HCA refuses, things stay as they were.
    fn latch_smi(&mut self, hca: &mut dyn FunctionManager, vf: VfId) {
        let port = self.own.port();
        let (has_smi, depths) = (self.smi.is_some(), self.depths);
        let Some(own) = self.vf_mut(vf) else { return };
        let permitted = own.smi_permitted && has_smi;
        if permitted == own.shown.smi_enabled {
            return;
        }
        let source = Source::Tunnel(vf, SpecialQp::Smi);
        let of_smi = own
            .tunnels
            .iter()
            .position(|tunnel| tunnel.special() == SpecialQp::Smi);
        if let (true, None) = (permitted, of_smi) {
            let Ok(tunnel) = Tunnel::open(hca, vf, SpecialQp::Smi, port, &depths) else {
                return;
            };
            let cq = tunnel.cq();
            own.tunnels.push(tunnel);
            self.sources.insert(cq, source);
            self.ready.push_back(source);
        } else if let (false, Some(at)) = (permitted, of_smi) {
            let tunnel = own.tunnels.remove(at);
            self.sources.remove(&tunnel.cq());
            tunnel.close(hca);
            self.ready.retain(|ready| *ready != source);
        }
        let Some(own) = self.vf_mut(vf) else { return };
        let mut view = own.shown.clone();
        view.smi_enabled = permitted;
        if hca.set_virtual_port(vf.into(), port, view.clone()).is_ok() {
            own.shown = view;
            self.mux.set_smi(vf, permitted);
        }
    }

    /// Opens or shuts a VF's port by the administrator's will.
    pub(super) fn set_admin(&mut self, vf: VfId, up: bool) {
        let was = self.reason(vf).is_some_and(PortReason::is_up);
        let Some(own) = self.vf_mut(vf) else { return };
        own.admin_up = up;
        self.mux.set_active(vf, up);
        let change = match (was, self.reason(vf).is_some_and(PortReason::is_up)) {
            (false, true) => PortChange::ACTIVE,
            (true, false) => PortChange::DOWN,
            _ => PortChange::empty(),
        };
        self.note_change(vf, change);
    }

    /// Puts something else behind all of a VF's P_Key indices.
    pub(super) fn map_pkeys(
        &mut self,
        hca: &mut dyn FunctionManager,
        vf: VfId,
        table: &[Option<VfPKeyEntry>],
    ) {
        let given = table.iter().copied().chain(core::iter::repeat(None));
        let len = self.mux.physical_pkeys(vf).len();
        for (index, entry) in (0..).zip(given.take(len)) {
            let index = VirtualPKeyIndex(PKeyIndex(index));
            self.mux.map_pkey(CAUSE, vf, index, entry);
        }
        self.note_change(vf, PortChange::empty());
        self.carry_out(hca);
    }

    pub(super) fn set_guid_source(&mut self, now: Instant, vf: VfId, source: GuidSource) {
        let Some(own) = self.vf_mut(vf) else { return };
        own.guid_source = source;
        if source == GuidSource::Hardware {
            self.guids.withdraw(now, vf);
        }
        self.want_guid(now, vf, source);
    }

    /// Gives all GUIDs back.
    pub(super) fn shut_down(&mut self, now: Instant) {
        self.guids.withdraw_all(now);
    }

    /// Whether the SA has been told all that it is to be told of the VFs.
    pub(super) fn is_quiet(&self) -> bool {
        let (guids, mux) = (self.guids.sizes(), self.mux.sizes());
        let at_sa = mux.mcast_groups + mux.mcast_members + mux.subscriptions;
        guids.requests + guids.timers + at_sa == 0
    }

    /// Takes over what the PF's own software read of the port.
    pub(super) fn port_changed(&mut self, now: Instant, change: PortChange) {
        let view = self.own.view().clone();
        let is_active = view.state == WirePortState::ACTIVE;
        if change.contains(PortChange::PKEY_TABLE) {
            self.tell_mux(now, PortEvent::PKeyTable(view.pkeys));
        }
        if change.contains(PortChange::GID_TABLE) {
            self.tell_mux(now, PortEvent::GidPrefix(view.prefix));
        }
        if change.contains(PortChange::LID) {
            self.mux.set_lmc(view.lmc);
            self.tell_mux(now, PortEvent::LidChange(view.lid));
        }
        if change.contains(PortChange::SM) {
            let (lid, sl) = (view.sm_lid, view.sm_sl);
            self.tell_mux(now, PortEvent::SmChange { lid, sl });
        }
        self.tell_mux(
            now,
            if is_active {
                PortEvent::PortUp
            } else {
                PortEvent::PortDown
            },
        );
        if change.contains(PortChange::CLIENT_REREGISTER) {
            self.tell_mux(now, PortEvent::ClientReregister);
        }
        self.port_changed_for_guids(now, change);
        for vf in self.vf_numbers().collect::<Vec<_>>() {
            self.note_change(vf, PortChange::empty());
        }
    }

    /// The SA has said something of GUIDs: VFs that wait for it may go on.
    pub(super) fn release_held_news(&mut self) {
        let waiting: Vec<VfId> = self.vf_numbers().collect();
        for vf in waiting {
            if self.vf_mut(vf).is_some_and(|own| !own.held.is_empty()) {
                self.note_change(vf, PortChange::empty());
            }
        }
    }

    fn tell_mux(&mut self, now: Instant, event: PortEvent) {
        self.mux.event(now, CAUSE, event);
    }

    /// The places of the port's P_Key table behind a VF's own indices, as the provider takes them.
    fn physical_pkeys(&self, vf: VfId) -> Vec<Option<PKeyIndex>> {
        let places = self.mux.physical_pkeys(vf).iter();
        places.map(|place| place.map(|place| place.0)).collect()
    }

    pub(super) fn vf_numbers(&self) -> impl Iterator<Item = VfId> {
        (0..)
            .zip(&self.vfs)
            .filter_map(|(number, own)| own.as_ref().and_then(|_| VfId::new(number)))
    }

    /// Shows the VFs of which something changed their port anew, and then tells them.
    pub(super) fn tell_vfs(&mut self, hca: &mut dyn FunctionManager) {
        for vf in core::mem::take(&mut self.changed) {
            let port = self.own.port();
            let Some(reason) = self.reason(vf) else {
                continue;
            };
            let pkeys = self.physical_pkeys(vf);
            let is_unknown_to_sa = self.guids.is_being_confirmed(vf);
            let Some(own) = self.vf_mut(vf) else { continue };
            own.is_changed = false;
            let is_news = own.reason.replace(reason) != Some(reason);
            let view = VirtualPort {
                state: if reason.is_up() {
                    PortState::Active
                } else {
                    PortState::Down
                },
                pkeys,
                smi_enabled: own.shown.smi_enabled,
            };
            if view != own.shown && hca.set_virtual_port(vf.into(), port, view.clone()).is_ok() {
                own.shown = view;
            }
            let change = own.take_news(is_unknown_to_sa);
            if !change.is_empty() {
                let event = AsyncEvent::Port { port, change };
                let told = hca.notify(vf.into(), event);
                debug_assert!(told.is_ok(), "a VF of ours has this port");
            }
            if is_news {
                self.events.push_back(PfEvent::VfPort { port, vf, reason });
            }
        }
    }
}
