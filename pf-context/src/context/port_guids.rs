//! The alias GUIDs of a port's VFs: the manager, bound to the port's SA client and to what the
//! hardware shows.

use hca_api::{FunctionManager, PortChange};
use ib_endpoint::sa_client::QueryId;
use ib_endpoint::{SaAnswer, SaError};
use ib_vtime::Instant;
use ib_wire::Guid;
use ib_wire::smp::PortState as WirePortState;
use vf_tunnel::VfId;

use super::config::GuidSource;
use super::event::PfEvent;
use super::port::{CAUSE, PfPort};
use crate::guids::{GuidManager, GuidOutput, GuidState, GuidView};
use crate::{GuidObstacle, PortReason};

impl PfPort {
    /// Why a VF's port is up or not; `None` if there is no such VF.
    #[must_use]
    pub fn reason(&self, vf: VfId) -> Option<PortReason> {
        let own = self.vfs.get(vf.index())?.as_deref()?;
        let guid = match own.guid_source {
            GuidSource::Sa(_) => self.guids.state(vf),
            GuidSource::Hardware => self
                .mux
                .vf_guid(vf)
                .map_or(GuidState::WaitingForHardware, GuidState::InHardware),
        };
        let physical = self.own.view().state;
        Some(PortReason::of(
            physical,
            own.admin_up,
            guid,
            self.guid_obstacle,
        ))
    }

    /// Takes note of what keeps granted GUIDs out of the hardware, from whoever knows the fabric. It
    /// only adds to [`PortReason::WaitingForHardware`].
    pub fn set_guid_obstacle(&mut self, obstacle: Option<GuidObstacle>) {
        if core::mem::replace(&mut self.guid_obstacle, obstacle) == obstacle {
            return;
        }
        let vfs: Vec<VfId> = self.vf_numbers().collect();
        for vf in vfs {
            self.note_change(vf, PortChange::empty());
        }
    }

    /// A VF's GUID as an administrator sees it.
    #[must_use]
    pub fn guid_view(&self, vf: VfId) -> GuidView {
        self.guids.view(vf)
    }

    /// Starts to want a VF's GUID.
    pub(super) fn want_guid(&mut self, now: Instant, vf: VfId, source: GuidSource) {
        match source {
            GuidSource::Sa(wish) => {
                if let Err(refusal) = self.guids.want(now, vf, wish) {
                    let port = self.own.port();
                    self.events
                        .push_back(PfEvent::WishRefused { port, vf, refusal });
                }
            }
            GuidSource::Hardware => self.take_hardware_guid(vf),
        }
    }

    /// Does what the manager wants done.
    pub(super) fn drive_guids(&mut self, now: Instant, hca: &mut dyn FunctionManager) {
        if self.guids.poll_timeout().is_some_and(|due| due <= now) {
            self.guids.handle_timeout(now);
        }
        self.note_groups_left(now);
        while let Some(output) = self.guids.poll_output() {
            match output {
                GuidOutput::Request { token, request } => {
                    let policy = GuidManager::REQUEST_POLICY;
                    let query = self.own.query_with(now, *request, policy);
                    self.guid_queries.insert(query, token);
                }
                GuidOutput::Guid { vf, guid } => self.assign(vf, guid),
                GuidOutput::State { vf, .. } => self.note_change(vf, PortChange::empty()),
                GuidOutput::LeaveGroups { vf, alias } => {
                    self.mux.leave_groups(now, CAUSE, vf, alias);
                    self.carry_out(hca);
                    self.note_groups_left(now);
                }
                GuidOutput::CheckPort => {
                    if let Err(error) = self.own.refresh(now, hca) {
                        let port = self.own.port();
                        self.events.push_back(PfEvent::Unreadable { port, error });
                    }
                }
            }
        }
        // A GUID that came or went is news for its VF.
        self.carry_out(hca);
    }

    fn note_groups_left(&mut self, now: Instant) {
        while let Some(vf) = self.mux.poll_groups_left() {
            self.guids.groups_left(now, vf);
        }
    }

    /// Takes an answer of the SA, if it is the manager's.
    pub(super) fn guid_answered(
        &mut self,
        now: Instant,
        query: QueryId,
        result: &Result<SaAnswer, SaError>,
    ) -> bool {
        let Some(token) = self.guid_queries.remove(&query) else {
            return false;
        };
        self.guids.answered(now, token, result);
        self.release_held_news();
        true
    }

    /// Tells the manager how the port is now.
    pub(super) fn port_changed_for_guids(&mut self, now: Instant, change: PortChange) {
        let view = self.own.view();
        let is_active = view.state == WirePortState::ACTIVE;
        if change.contains(PortChange::GID_TABLE) {
            for (index, guid) in (0..).zip(&view.guids) {
                self.guids.hardware(now, index, *guid);
            }
        }
        self.guids.set_lid(now, view.lid);
        if change.contains(PortChange::SM) {
            self.guids.sm_changed(now);
        }
        self.guids.port_active(now, is_active);
        if change.contains(PortChange::CLIENT_REREGISTER) {
            self.guids.client_reregister(now);
        }
        if change.contains(PortChange::GID_TABLE) {
            let vfs: Vec<VfId> = self.vf_numbers().collect();
            for vf in vfs {
                if self.vf_mut(vf).map(|own| own.guid_source) == Some(GuidSource::Hardware) {
                    self.take_hardware_guid(vf);
                }
            }
        }
    }

    /// The GUID that the hardware has for a VF: the entry of its number.
    fn take_hardware_guid(&mut self, vf: VfId) {
        let guid = self.own.view().guids.get(vf.index()).copied();
        self.assign(vf, guid.filter(|guid| !guid.is_none()));
    }

    fn assign(&mut self, vf: VfId, guid: Option<Guid>) {
        // A GUID that somebody else on the port has is none.
        if self.mux.set_guid(CAUSE, vf, guid).is_err() {
            let none = self.mux.set_guid(CAUSE, vf, None);
            debug_assert!(none.is_ok(), "no GUID can always be assigned");
        }
        self.note_change(vf, PortChange::empty());
    }
}
