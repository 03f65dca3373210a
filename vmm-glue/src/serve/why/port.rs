//! Why a VF's port is down.

use emulated_hca::{Endpoint, Fabric, PhysicalPort};
use hca_api::{PhysicalState, PortState};
use ib_vtime::Duration;
use ib_wire::{Lid, PortNum};
use pf_context::PortReason;

use super::Fault;
use crate::serve::set::at;
use crate::serve::{Lab, NamedVf};

/// How long the SA may take before it counts as silent: several times what a busy one needs, and less
/// than a second try.
const SILENCE: Duration = Duration::from_secs(2);

impl Lab {
    /// Why the port is down; `None` if it is up.
    pub(super) fn why_down(
        &self,
        vf: &NamedVf,
        port: PortNum,
        since: Option<Duration>,
    ) -> Option<Fault> {
        let context = self.world().context(vf.host);
        let number = vf.vf.get();
        let own = port.index().checked_sub(1);
        let Some(own) = own.and_then(|index| context.ports().get(index)) else {
            let ports = context.ports().len();
            let fault = Fault::new("no_such_port", format!("the adapter has no port {port}"));
            let fault = fault.seen(format!("{} has {ports} ports", vf.host_name));
            return Some(fault.next("name one of them with --port"));
        };
        let Some(reason) = own.reason(vf.vf) else {
            let summary = format!("{} has no VF {number}", vf.host_name);
            let known = context.vfs().count();
            let fault = Fault::new("no_such_vf", summary).seen(format!("it has {known} VFs"));
            return Some(fault.next("start vhca serve with more --vfs, or name another VF"));
        };
        let set = format!("vhca set vf {}/{number} port_guid", vf.host_name);
        Some(match reason {
            PortReason::Up => return None,
            PortReason::AdminDown => {
                Fault::new("admin_down", "the administrator keeps the port down")
                    .next(format!("vhca set vf {}/{number} state auto", vf.host_name))
            }
            PortReason::PhysicalDown => self.why_physically_down(vf, port),
            PortReason::NoGuidRequested => match self.history.refusal(at(vf, port)) {
                Some(refusal) => Fault::new("guid_refused", "the GUID that was set is impossible")
                    .seen(refusal.to_string())
                    .next(format!("{set} another GUID, or {set} sm")),
                None => Fault::new("no_guid_requested", "nobody wants a GUID for the VF")
                    .next(format!("{set} sm, or a GUID of your own")),
            },
            PortReason::WaitingForSa => self.why_no_answer(vf, port, since),
            PortReason::Declined { retry_at } => {
                let view = own.guid_view(vf.vf);
                let wait = retry_at.saturating_duration_since(self.world().now());
                let summary = "the SA declined the GUID that was asked for";
                Fault::new("guid_declined", summary)
                    .seen(format!("declined {} times in a row", view.declines))
                    .seen(format!("it is asked again in {:.1} s", wait.as_secs_f64()))
                    .next(format!(
                        "another port may have that GUID: see the SM's log, or {set} sm"
                    ))
            }
            PortReason::WaitingForHardware { .. } => {
                let granted = own.guid_view(vf.vf).granted;
                let summary = "the GUID is not in the port's table yet";
                let fault = Fault::new("waiting_for_hardware", summary);
                let fault = match granted {
                    Some(guid) => fault.seen(format!("the SA granted {guid}")),
                    None => fault.seen("nobody has written one"),
                };
                let fault = match reason.detail() {
                    Some(detail) => fault.seen(detail),
                    None => fault,
                };
                fault.next("the SM writes it with SubnSet(GUIDInfo): see its log")
            }
            PortReason::NotSupported => Fault::new(
                "guids_not_supported",
                "the SA cannot give out additional GUIDs",
            )
            .seen("it refused the GUIDInfoRecord, or does not name it in its ClassPortInfo")
            .next(format!(
                "run another SM, or {set} hardware and write GUIDs yourself"
            )),
            PortReason::TableTooSmall => Fault::new(
                "guid_table_full",
                "the port's GUID table has no entry for the VF",
            )
            .seen(format!("VF {number} needs entry {number}"))
            .next("use VFs of lower numbers"),
        })
    }

    fn endpoint(&self, vf: &NamedVf, port: PortNum) -> Endpoint {
        self.world().host(vf.host).node().port(port.0)
    }

    fn why_physically_down(&self, vf: &NamedVf, port: PortNum) -> Fault {
        let at = self.endpoint(vf, port);
        let fabric = self.fabric();
        let name = format!("{}/{port}", vf.host_name);
        let Some(physical) = fabric.port(at) else {
            return Fault::new("no_such_port", "the adapter has no such port")
                .next("name another with --port");
        };
        let Some(peer) = fabric.peer(at) else {
            return Fault::new("no_cable", "nothing is plugged into the physical port")
                .seen(format!("no link at {name} in the topology"))
                .next("give the port a link in the topology file");
        };
        let is_gateway = fabric.is_gateway(peer.node);
        let peer = self.port_name(peer);
        if is_gateway && physical.physical_state != PhysicalState::LinkUp {
            return Fault::new("not_attached", "the simulator's node is not attached")
                .seen(format!("{name} leads to {peer}, which is not there"))
                .next("start the simulator, or see its log; vhca attaches as soon as it can");
        }
        if physical.physical_state != PhysicalState::LinkUp {
            return Fault::new("link_down", "the physical link is down")
                .seen(format!("{name} is {:?}", physical.physical_state))
                .seen(format!("its link leads to {peer}"))
                .next(format!("vhca set link {name} up, or see to the cable"));
        }
        let state = format!("{name} is {:?}, its link to {peer} is up", physical.state);
        let has_lid = physical.lid != Lid::NONE;
        match physical.state {
            PortState::Init | PortState::Down if !has_lid => Fault::new(
                "no_sm",
                "no subnet manager has configured the physical port",
            )
            .seen(state)
            .seen("it has no LID")
            .next("start a subnet manager: vhca serve --sm lite, or OpenSM"),
            _ => Fault::new(
                "port_not_active",
                "the subnet manager has not activated the port",
            )
            .seen(state)
            .seen(format!("its LID is {}", physical.lid.get()))
            .next("see whether the subnet manager runs, and its log"),
        }
    }

    fn why_no_answer(&self, vf: &NamedVf, port: PortNum, since: Option<Duration>) -> Fault {
        let at = self.endpoint(vf, port);
        let sm_lid = self.fabric().port(at).map_or(Lid::NONE, |port| port.sm_lid);
        let whom = format!("the SA is at LID {}", sm_lid.get());
        if since.is_none_or(|since| since < SILENCE) {
            return Fault::new("waiting_for_sa", "the SA has not granted the VF's GUID yet")
                .seen(whom)
                .next("wait a moment");
        }
        let fault = Fault::new("sa_not_answering", "the SA does not answer").seen(whom);
        let manager = owner(self.fabric(), sm_lid);
        let fault = match manager {
            None => fault.seen("no port has that LID"),
            Some((end, port)) => {
                let name = self.port_name(end);
                fault.seen(format!("that is {name}, which is {:?}", port.state))
            }
        };
        fault.next("see whether the subnet manager runs and its link is up")
    }

    fn port_name(&self, at: Endpoint) -> String {
        let node = self.fabric().node(at.node);
        let name = node.and_then(|node| node.description.as_str());
        format!("{}/{}", name.unwrap_or("?"), at.port)
    }
}

/// The port that has a LID.
fn owner(fabric: &Fabric, lid: Lid) -> Option<(Endpoint, &PhysicalPort)> {
    fabric.nodes().find_map(|(id, _)| {
        let ports = fabric.node(id)?.ports().iter();
        let port = ports
            .filter(|port| port.lid != Lid::NONE)
            .find(|port| port.owns_lid(lid))?;
        Some((id.port(port.number.0), port))
    })
}
