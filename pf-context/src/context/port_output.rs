//! What the mux of a port wants done.

use hca_api::{FunctionManager, GlobalRoute, HcaError, PortChange, SpecialQp};
use ib_endpoint::MadAddress;
use ib_wire::mad::Mad;
use ib_wire::packet::Grh;
use ib_wire::{Gid, GidIndex, PKeyIndex, QKey};
use vf_tunnel::{DropReason, ToVf, VfId};

use super::event::port_change;
use super::port::{CAUSE, PfPort};
use crate::output::{Output, Passed, Route, VfDelivery, VfEvent, WireSend};

impl PfPort {
    /// Does what the mux wants done.
    pub(super) fn carry_out(&mut self, hca: &mut dyn FunctionManager) {
        while let Some((_, output)) = self.mux.poll_output() {
            match output {
                Output::ToWire(send, mad) => self.send(hca, &send, &mad),
                Output::ToVf(to, mad) => self.deliver(hca, &to, &mad),
                Output::VfEvent { vf, event } => self.note_event(vf, event),
                Output::Dropped { vf, reason } => self.tell_drop(vf, reason),
            }
        }
    }

    /// Sends a MAD that was judged where it lies on its way.
    pub(super) fn carry_on(&mut self, hca: &mut dyn FunctionManager, passed: &Passed, mad: &Mad) {
        match passed {
            Passed::ToWire(send) => self.send(hca, send, mad),
            Passed::ToVf(to) => self.deliver(hca, to, mad),
            Passed::Nothing => {}
        }
    }

    /// Sends a MAD to the wire, or keeps it while no send buffer is free.
    fn send(&mut self, hca: &mut dyn FunctionManager, send: &WireSend, mad: &Mad) {
        if self.unsent.is_empty() && self.try_send(hca, send, mad) {
            return;
        }
        // Answers to the fabric and farewells of VFs that are reset come without being asked for:
        // an adapter that completes nothing must not make them fill memory.
        if self.unsent.len() < self.most_unsent() {
            self.unsent.push_back((*send, *mad));
        } else {
            self.refuse(send.vf, DropReason::Backpressure);
        }
    }

    /// Delivers a MAD to the PF's own software or through a VF's tunnel.
    fn deliver(&mut self, hca: &mut dyn FunctionManager, to: &VfDelivery, mad: &Mad) {
        if to.vf == VfId::PF {
            self.deliver_to_own(to, mad);
        } else {
            self.deliver_to_vf(hca, to, mad);
        }
    }

    /// Sends what waited for a buffer of a special QP.
    pub(super) fn send_unsent(&mut self, hca: &mut dyn FunctionManager) {
        while let Some((send, mad)) = self.unsent.pop_front() {
            if !self.try_send(hca, &send, &mad) {
                self.unsent.push_front((send, mad));
                return;
            }
        }
    }

    /// Sends a MAD by its special QP. `false`: there is no buffer free.
    fn try_send(&mut self, hca: &mut dyn FunctionManager, send: &WireSend, mad: &Mad) -> bool {
        let &WireSend {
            vf,
            qp,
            dlid,
            dqpn,
            qkey,
            sl,
            pkey,
            path_bits,
            grh,
        } = send;
        let view = self.own.view();
        let pkey_index = match qp {
            SpecialQp::Smi => Some(PKeyIndex(0)),
            SpecialQp::Gsi => view.pkey_index(pkey),
        };
        let grh = grh.map(|route| {
            let sgid_index = self.gid_index(vf, route.sgid);
            sgid_index.map(|index| global_route(&route, route.dgid, index))
        });
        // The port's tables changed since the mux decided: the key or the GID is no longer there.
        let Some(pkey_index) = pkey_index else {
            self.refuse(vf, DropReason::NoPKey);
            return true;
        };
        if grh == Some(None) {
            self.refuse(vf, DropReason::NoGuid);
            return true;
        }
        let to = MadAddress {
            lid: dlid,
            qpn: dqpn,
            qkey,
            sl,
            pkey_index,
            path_bits,
            grh: grh.flatten(),
        };
        let special = match qp {
            SpecialQp::Gsi => Some(&mut self.gsi),
            SpecialQp::Smi => self.smi.as_mut(),
        };
        match special.map(|special| special.send(hca, &to, mad)) {
            Some(Err(HcaError::QueueFull)) => return false,
            Some(Ok(())) => {}
            Some(Err(_)) | None => self.refused_sends += 1,
        }
        true
    }

    /// Where a GID of the port's stands in its table: a VF's at the VF's own number.
    fn gid_index(&self, vf: Option<VfId>, gid: Gid) -> Option<GidIndex> {
        let view = self.own.view();
        let at_vf = vf.map(|vf| GidIndex(vf.get()));
        let is_it =
            |index: &GidIndex| view.guids.get(usize::from(index.0)) == Some(&gid.interface_id());
        at_vf.filter(is_it).or_else(|| {
            let mut indices = (0..).map(GidIndex).take(view.guids.len());
            indices.find(is_it)
        })
    }

    fn deliver_to_own(&mut self, to: &VfDelivery, mad: &Mad) {
        let &VfDelivery {
            qp: SpecialQp::Gsi,
            slid,
            sqpn,
            sl,
            pkey_index,
            grh,
            ..
        } = to
        else {
            // Nothing of the PF's own listens on QP0 here: a subnet manager has that QP itself.
            return self.refuse(None, DropReason::UnsolicitedSmp);
        };
        let from = MadAddress {
            lid: slid,
            qpn: sqpn,
            qkey: QKey::GSI,
            sl,
            pkey_index: pkey_index.0,
            path_bits: 0,
            grh: grh.map(|route| global_route(&route, route.sgid, GidIndex(0))),
        };
        self.own.gsi_transport().deliver(from, *mad);
    }

    fn deliver_to_vf(&mut self, hca: &mut dyn FunctionManager, to: &VfDelivery, mad: &Mad) {
        let &VfDelivery {
            vf,
            qp,
            slid,
            sqpn,
            sl,
            pkey_index,
            grh,
        } = to;
        let frame = ToVf::new(sqpn, slid, sl, pkey_index, grh.as_ref().map(header), *mad);
        let Some(tunnel) = self.tunnel_mut(vf, qp) else {
            return self.refuse(Some(vf), DropReason::VfDown);
        };
        if let Err(reason) = tunnel.deliver(hca, &frame) {
            self.refuse(Some(vf), reason);
        }
    }

    /// Ends a frame that the mux let pass.
    fn refuse(&mut self, vf: Option<VfId>, reason: DropReason) {
        self.mux.refuse(CAUSE, vf, reason);
    }

    fn note_event(&mut self, vf: VfId, event: VfEvent) {
        self.note_change(vf, port_change(event));
    }

    /// What a VF is to be told is merged until it is told, so however much happens, nothing is lost.
    pub(super) fn note_change(&mut self, vf: VfId, change: PortChange) {
        if let Some(own) = self.vf_mut(vf) {
            if !own.is_changed {
                own.is_changed = true;
                own.change = change;
                self.changed.push(vf);
            } else {
                own.change |= change;
            }
        }
    }
}

fn global_route(route: &Route, remote_gid: Gid, sgid_index: GidIndex) -> GlobalRoute {
    GlobalRoute {
        remote_gid,
        sgid_index,
        flow_label: route.flow_label,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
    }
}

fn header(route: &Route) -> Grh {
    let mut grh = Grh::new(route.sgid, route.dgid, route.hop_limit);
    grh.set_traffic_class(route.traffic_class);
    grh.set_flow_label(route.flow_label);
    grh
}
