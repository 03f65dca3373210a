//! What happens to the port, and whom it concerns.

use ib_vtime::Instant;
use ib_wire::{Lid, PKey, Sl, SubnetPrefix};
use vf_tunnel::{SubnetLmcs, VfId};

use crate::mux::PortMux;
use crate::output::{Cause, PortEvent, VfEvent};
use crate::pkeys::PortPKeys;
use crate::vf::Vf;

impl PortMux {
    /// Takes note of what happened to the port. VFs that it concerns are told, and everything that
    /// they could read then is new already. What changes nothing tells nobody.
    pub fn event(&mut self, now: Instant, cause: Cause, event: PortEvent) {
        self.release(now);
        // Each of these can change any path, and what LIDs a port has.
        self.paths.invalidate();
        self.with_lmcs(SubnetLmcs::forget);
        match event {
            PortEvent::ClientReregister => {
                self.register_again(now);
                self.tell_all(cause, VfEvent::ClientReregister);
            }
            PortEvent::LidChange(lid) => self.lid_changed(cause, lid),
            PortEvent::SmChange { lid, sl } => self.sm_changed(now, cause, lid, sl),
            PortEvent::PortDown => self.port_changed(cause, false),
            PortEvent::PortUp => self.port_changed(cause, true),
            PortEvent::PKeyTable(table) => self.pkeys_changed(cause, table),
            PortEvent::GidPrefix(prefix) => self.prefix_changed(cause, prefix),
        }
        self.pump(now, cause);
    }

    fn register_again(&mut self, now: Instant) {
        self.mcast.client_reregister(now);
        self.notices.client_reregister(now);
    }

    fn lid_changed(&mut self, cause: Cause, lid: Lid) {
        if lid != self.port.lid {
            self.port.lid = lid;
            self.cm.lock().machine.forget_addresses(self.number);
            self.tell_all(cause, VfEvent::LidChange);
        }
    }

    /// Another address may mean another SM, which knows nothing of the port's memberships; another SL
    /// means the same one.
    fn sm_changed(&mut self, now: Instant, cause: Cause, lid: Lid, sl: Sl) {
        let (moved, other_sl) = (lid != self.port.sm_lid, sl != self.port.sm_sl);
        self.port.sm_lid = lid;
        self.port.sm_sl = sl;
        if moved {
            self.register_again(now);
        } else if other_sl {
            self.mcast.sm_changed(now);
            self.notices.sm_changed(now);
        }
        if moved || other_sl {
            self.tell_all(cause, VfEvent::SmChange);
        }
    }

    /// Only VFs whose port follows the physical one are told: those with a GUID.
    fn port_changed(&mut self, cause: Cause, up: bool) {
        if up != self.port.up {
            self.port.up = up;
            let event = if up {
                VfEvent::PortUp
            } else {
                VfEvent::PortDown
            };
            self.tell_those(cause, event, |vf| vf.guid.is_some());
        }
    }

    fn pkeys_changed(&mut self, cause: Cause, table: Vec<PKey>) {
        self.pkeys = PortPKeys::new(table);
        self.refresh_pf_pkeys();
        let port = &self.pkeys;
        let changed: Vec<VfId> = self
            .vfs
            .iter_mut()
            .filter_map(|(vf, record)| (record.pkeys.refresh(port) && record.active).then_some(vf))
            .collect();
        for vf in changed {
            self.tell(cause, vf, VfEvent::PKeyChange);
        }
    }

    fn prefix_changed(&mut self, cause: Cause, prefix: SubnetPrefix) {
        if prefix != self.gids.prefix() {
            self.gids.set_prefix(prefix);
            self.mcast.set_prefix(prefix);
            self.tell_gids();
            self.tell_all(cause, VfEvent::GidChange);
        }
    }

    fn tell_all(&mut self, cause: Cause, event: VfEvent) {
        self.tell_those(cause, event, |_| true);
    }

    /// Tells the VFs that can be told: a stopped one reads everything anew when it starts.
    fn tell_those(&mut self, cause: Cause, event: VfEvent, concerned: impl Fn(&Vf) -> bool) {
        let vfs = self.vfs.iter();
        let told: Vec<VfId> = vfs
            .filter(|(_, record)| record.active && concerned(record))
            .map(|(vf, _)| vf)
            .collect();
        for vf in told {
            self.tell(cause, vf, event);
        }
    }
}
