//! Why a VF's port is down.

use ib_vtime::Duration;
use ib_wire::{Lid, PortNum};
use pf_context::PortReason;
use pf_context::guids::GuidWish;

use super::{Fault, set_command};
use crate::serve::set::at;
use crate::serve::{Lab, NamedVf};
use vhca::world::HostPortId;

/// How long the SA may take to grant a GUID: several times what a busy one needs, and less than a second try.
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
        let set = format!("{} port_guid", set_command(vf, port));
        Some(match reason {
            PortReason::Up => return None,
            PortReason::AdminDown => {
                Fault::new("admin_down", "the administrator keeps the port down")
                    .next(format!("{} state auto", set_command(vf, port)))
            }
            PortReason::PhysicalDown => self.why_physically_down(vf.host.port(port.0)),
            PortReason::NoGuidRequested => match self.history.refusal(at(vf, port)) {
                Some(refusal) => Fault::new("guid_refused", "the GUID that was set is impossible")
                    .seen(refusal.to_string())
                    .next(format!("{set} sm")),
                None => Fault::new("no_guid_requested", "no GUID is wanted for the VF")
                    .next(format!("{set} sm")),
            },
            PortReason::WaitingForSa => self.why_waiting(vf.host.port(port.0), since),
            PortReason::Declined { retry_at } => {
                let view = own.guid_view(vf.vf);
                let wait = retry_at.saturating_duration_since(self.world().now());
                let summary = "the SA declined the GUID that was asked for";
                let fault = Fault::new("guid_declined", summary)
                    .seen(format!("declined {} times in a row", view.declines))
                    .seen(format!("it is asked again in {:.1} s", wait.as_secs_f64()));
                let fault = match view.wish {
                    GuidWish::Admin(guid) => {
                        fault.seen(format!("another port may have {guid}: see the SM's log"))
                    }
                    GuidWish::SmAssigned | GuidWish::None => fault,
                };
                fault.next(format!("{set} sm"))
            }
            PortReason::WaitingForHardware {
                obstacle: Some(obstacle),
            } => {
                let summary = "the fabric's SMA takes no GUIDs, which the SA has granted";
                Fault::new("guids_not_taken", summary)
                    .seen(obstacle.as_str())
                    .next("start the service with --local-guids, which writes them to the adapters itself")
            }
            PortReason::WaitingForHardware { obstacle: None } => {
                let summary = "the GUID is not in the port's table yet";
                let fault = Fault::new("waiting_for_hardware", summary);
                match own.guid_view(vf.vf).granted {
                    Some(guid) => fault
                        .seen(format!("the SA granted {guid}"))
                        .next("wait for the subnet manager to write it (SubnSet(GUIDInfo)); see its log"),
                    None => fault
                        .seen("the VF takes what a subnet manager writes unasked, and none has written one")
                        .next(format!("{set} sm")),
                }
            }
            PortReason::NotSupported => {
                // Where no SA is any more, the agents of its host refuse the question, too.
                self.why_sa_is_silent(vf.host.port(port.0)).unwrap_or_else(|| {
                    let summary = "the SA cannot give out additional GUIDs";
                    Fault::new("guids_not_supported", summary)
                        .seen("it refused the GUIDInfoRecord, or does not name it in its ClassPortInfo")
                        .next(format!("{set} hardware"))
                        .remark("then write GUIDs to the port's table yourself; or run another subnet manager")
                })
            }
            PortReason::TableTooSmall => Fault::new(
                "guid_table_full",
                "the port's GUID table has no entry for the VF",
            )
            .seen(format!("VF {number} needs entry {number}"))
            .next("start the service with fewer --vfs, or use VFs of lower numbers"),
        })
    }

    fn why_physically_down(&self, of: HostPortId) -> Fault {
        let at = self.endpoint(of);
        if let Some(flapping) = self.why_flapping(of) {
            return flapping;
        }
        if let Some(fault) = self.link_fault(at) {
            return fault;
        }
        match self.fabric().port(at) {
            Some(port) => {
                let fault = self.why_not_managed(at, port.lid != Lid::NONE);
                fault.seen(format!(
                    "{} is {:?}, its LID is {}",
                    self.port_name(at),
                    port.state,
                    port.lid.get()
                ))
            }
            None => Fault::new("no_such_port", "the adapter has no such port")
                .next("name another with --port"),
        }
    }

    /// Why the SA has not granted a GUID that it was asked for.
    pub(super) fn why_waiting(&self, of: HostPortId, since: Option<Duration>) -> Fault {
        let silent = || self.why_sa_is_silent(of);
        if let Some(fault) = self.why_flapping(of).or_else(silent) {
            return fault;
        }
        let fault = Fault::new("waiting_for_sa", "the SA has not granted the VF's GUID yet");
        if self.sa_answers(of) && since.is_some_and(|since| since >= SILENCE) {
            let fault = fault.seen("the SA answers other questions of the port");
            return fault.next("see the subnet manager's log: it fails to grant the GUID");
        }
        fault.next("wait two seconds")
    }
}
