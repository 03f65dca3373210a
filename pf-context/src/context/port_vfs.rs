//! The VFs of a port: their tunnels, and what they see of it.

use hca_api::{AsyncEvent, FunctionManager, PortChange, PortState, SpecialQp, VirtualPort};
use ib_vtime::Instant;
use ib_wire::smp::PortState as WirePortState;
use ib_wire::{Guid, PKeyIndex};
use vf_tunnel::{DropReason, ToPf, VfId};

use super::config::{PfError, VfPortSpec};
use super::port::{CAUSE, PfPort, Source};
use super::tunnel::Tunnel;
use crate::config::VfConfig;
use crate::output::PortEvent;

/// What a VF has of a port besides its place in the mux.
#[derive(Debug)]
pub(super) struct VfPort {
    pub(super) tunnels: Vec<Tunnel>,
    admin_up: bool,
    /// What the provider shows.
    shown: VirtualPort,
    /// What the VF is to be told.
    pub(super) change: PortChange,
    /// Whether the VF is among those of which something changed.
    pub(super) is_changed: bool,
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
        hca: &mut dyn FunctionManager,
        vf: VfId,
        node_guid: Guid,
        spec: &VfPortSpec,
    ) -> Result<(), PfError> {
        let port = self.own.port();
        let config = VfConfig {
            guid: self.hardware_guid(vf),
            ca_guid: Some(node_guid),
            port,
            pkeys: spec.pkeys.clone(),
            rights: spec.rights,
            service_levels: spec.service_levels,
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
                self.note_change(vf, PortChange::empty());
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
            admin_up: true,
            shown,
            change: PortChange::empty(),
            is_changed: false,
        })
    }

    /// Takes a VF's tunnels away and forgets it.
    pub(super) fn remove_vf(&mut self, now: Instant, hca: &mut dyn FunctionManager, vf: VfId) {
        self.reset_vf(now, hca, vf);
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
    }

    /// Opens or shuts a VF's port by the administrator's will.
    pub(super) fn set_admin(&mut self, vf: VfId, up: bool) {
        let Some(own) = self.vf_mut(vf) else { return };
        let was = core::mem::replace(&mut own.admin_up, up);
        self.mux.set_active(vf, up);
        if was != up && self.is_up_but_for_admin(vf) {
            let change = if up {
                PortChange::ACTIVE
            } else {
                PortChange::DOWN
            };
            self.note_change(vf, change);
        }
    }

    /// Takes over what the PF's own software read of the port.
    pub(super) fn port_changed(&mut self, now: Instant, change: PortChange) {
        let view = self.own.view().clone();
        let is_active = view.state == WirePortState::ACTIVE;
        if change.contains(PortChange::PKEY_TABLE) {
            self.tell_mux(now, PortEvent::PKeyTable(view.pkeys));
            self.follow_pkeys();
        }
        if change.contains(PortChange::GID_TABLE) {
            self.tell_mux(now, PortEvent::GidPrefix(view.prefix));
            self.read_guids();
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
    }

    fn tell_mux(&mut self, now: Instant, event: PortEvent) {
        self.mux.event(now, CAUSE, event);
    }

    /// The places of the port's P_Key table behind a VF's own indices, as the provider takes them.
    fn physical_pkeys(&self, vf: VfId) -> Vec<Option<PKeyIndex>> {
        let places = self.mux.physical_pkeys(vf).iter();
        places.map(|place| place.map(|place| place.0)).collect()
    }

    /// Has the functions of VFs follow keys that are at another place now.
    fn follow_pkeys(&mut self) {
        let moved: Vec<VfId> = self
            .vf_numbers()
            .filter(|&vf| {
                let own = self.vfs.get(vf.index()).and_then(Option::as_ref);
                own.is_some_and(|own| own.shown.pkeys != self.physical_pkeys(vf))
            })
            .collect();
        for vf in moved {
            self.note_change(vf, PortChange::empty());
        }
    }

    /// The GUID that the hardware has for a VF: the entry of its number.
    fn hardware_guid(&self, vf: VfId) -> Option<Guid> {
        let guid = self.own.view().guids.get(vf.index()).copied()?;
        (!guid.is_none()).then_some(guid)
    }

    fn read_guids(&mut self) {
        let vfs: Vec<VfId> = self.vf_numbers().collect();
        for vf in vfs {
            let guid = self.hardware_guid(vf);
            // A GUID that somebody else has is none.
            if self.mux.set_guid(CAUSE, vf, guid).is_err() {
                let _ = self.mux.set_guid(CAUSE, vf, None);
            }
        }
    }

    pub(super) fn vf_numbers(&self) -> impl Iterator<Item = VfId> {
        (0..)
            .zip(&self.vfs)
            .filter_map(|(number, own)| own.as_ref().and_then(|_| VfId::new(number)))
    }

    fn is_up_but_for_admin(&self, vf: VfId) -> bool {
        let active = self.own.view().state == WirePortState::ACTIVE;
        active && self.mux.vf_guid(vf).is_some()
    }

    /// Shows the VFs of which something changed their port anew, and then tells them.
    pub(super) fn tell_vfs(&mut self, hca: &mut dyn FunctionManager) {
        for vf in core::mem::take(&mut self.changed) {
            let up = self.is_up_but_for_admin(vf);
            let port = self.own.port();
            let pkeys = self.physical_pkeys(vf);
            let Some(own) = self.vf_mut(vf) else { continue };
            own.is_changed = false;
            let view = VirtualPort {
                state: if up && own.admin_up {
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
            let change = core::mem::take(&mut own.change);
            if !change.is_empty() {
                let event = AsyncEvent::Port { port, change };
                let told = hca.notify(vf.into(), event);
                debug_assert!(told.is_ok(), "a VF of ours has this port");
            }
        }
    }
}
