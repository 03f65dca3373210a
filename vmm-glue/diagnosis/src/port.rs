//! Reasons for which a VF's port is down.

use pf_context::PortReason;
use pf_context::guids::GuidWish;

use crate::commands;
use crate::fault::Fault;
use crate::snapshot::{OnPort, VfPort};
use crate::{guids, sa};

/// Returns the fault that there is no such port, or no such VF.
pub(crate) fn missing(on: OnPort<'_>, vf: u16) -> Fault {
    let (host, port) = (&on.pf.host, on.number);
    if on.facts().is_none() {
        let ports = on.pf.ports.len();
        let fault = Fault::new("no_such_port", format!("the adapter has no port {port}"));
        let fault = fault.seen(format!("{host} has {ports} ports"));
        return fault.next("name one of them with --port");
    }
    let known = on.pf.vfs.len();
    Fault::new("no_such_vf", format!("{host} has no VF {vf}"))
        .seen(format!("it has {known} VFs"))
        .next("start vhca serve with more --vfs, or name another VF")
}

/// Returns the fault that the administrator keeps the port down.
pub(crate) fn disabled(on: OnPort<'_>, vf: u16, row: &VfPort) -> Option<Fault> {
    let set = commands::set_vf(&on.pf.host, vf, on.number);
    (row.reason == PortReason::AdminDown).then(|| {
        Fault::new("admin_down", "the administrator keeps the port down")
            .next(format!("{set} state auto"))
    })
}

/// Returns the reason of a VF's own for which its port is down; `None` if it is up, or down for another reason.
pub(crate) fn down(on: OnPort<'_>, vf: u16, row: &VfPort) -> Option<Fault> {
    let set = format!("{} port_guid", commands::set_vf(&on.pf.host, vf, on.number));
    Some(match row.reason {
        PortReason::Up | PortReason::AdminDown | PortReason::PhysicalDown => return None,
        PortReason::NoGuidRequested => match row.refusal {
            Some(refusal) => Fault::new("guid_refused", "the GUID that was set is impossible")
                .seen(refusal.to_string())
                .next(format!("{set} sm")),
            None => Fault::new("no_guid_requested", "no GUID is wanted for the VF")
                .next(format!("{set} sm")),
        },
        PortReason::WaitingForSa => guids::waiting(on, row.since),
        PortReason::Declined { retry_at } => {
            let wait = retry_at.saturating_duration_since(on.snapshot.taken);
            let summary = "the SA declined the GUID that was asked for";
            let fault = Fault::new("guid_declined", summary)
                .seen(format!("declined {} times in a row", row.guid.declines))
                .seen(format!("it is asked again in {:.1} s", wait.as_secs_f64()));
            let fault = match row.guid.wish {
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
            match row.guid.granted {
                Some(guid) => fault
                    .seen(format!("the SA granted {guid}"))
                    .next(commands::sweep(on.subnet(), on.at())),
                None => fault
                    .seen("the VF takes what a subnet manager writes unasked, and none has written one")
                    .next(format!("{set} sm")),
            }
        }
        // The agents of a host that has lost its SA refuse the question, too.
        PortReason::NotSupported if sa::is_silent(on) => return None,
        PortReason::NotSupported => {
            let summary = "the SA cannot give out additional GUIDs";
            Fault::new("guids_not_supported", summary)
                .seen("it refused the GUIDInfoRecord, or does not name it in its ClassPortInfo")
                .next(format!("{set} hardware"))
                .remark(
                    "then write GUIDs to the port's table yourself; or run another subnet manager",
                )
        }
        PortReason::TableTooSmall => Fault::new(
            "guid_table_full",
            "the port's GUID table has no entry for the VF",
        )
        .seen(format!("VF {vf} needs entry {vf}"))
        .next("start the service with fewer --vfs, or use VFs of lower numbers"),
    })
}
