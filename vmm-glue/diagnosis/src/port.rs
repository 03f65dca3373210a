//! Reasons for which a VF's port is down.

use ib_wire::Lid;
use pf_context::PortReason;
use pf_context::guids::GuidWish;

use crate::commands;
use crate::fault::Fault;
use crate::snapshot::{OnPort, VfPort};
use crate::{guids, links, sa, unmanaged};

/// Returns the reason for which the port is down; `None` if it is up.
pub(crate) fn down(on: OnPort<'_>, vf: u16, row: Option<&VfPort>) -> Option<Fault> {
    let (host, port) = (&on.pf.host, on.number);
    if on.facts().is_none() {
        let ports = on.pf.ports.len();
        let fault = Fault::new("no_such_port", format!("the adapter has no port {port}"));
        let fault = fault.seen(format!("{host} has {ports} ports"));
        return Some(fault.next("name one of them with --port"));
    }
    let Some(row) = row else {
        let summary = format!("{host} has no VF {vf}");
        let known = on.pf.vfs.len();
        let fault = Fault::new("no_such_vf", summary).seen(format!("it has {known} VFs"));
        return Some(fault.next("start vhca serve with more --vfs, or name another VF"));
    };
    let set = format!("{} port_guid", commands::set_vf(host, vf, port));
    Some(match row.reason {
        PortReason::Up => return None,
        PortReason::AdminDown => Fault::new("admin_down", "the administrator keeps the port down")
            .next(format!("{} state auto", commands::set_vf(host, vf, port))),
        PortReason::PhysicalDown => physically_down(on),
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
                Some(guid) => fault.seen(format!("the SA granted {guid}")).next(
                    "wait for the subnet manager to write it (SubnSet(GUIDInfo)); see its log",
                ),
                None => fault
                    .seen("the VF takes what a subnet manager writes unasked, and none has written one")
                    .next(format!("{set} sm")),
            }
        }
        PortReason::NotSupported => {
            // The agents of a host that has lost its SA refuse the question, too.
            sa::silent(on).unwrap_or_else(|| {
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
        .seen(format!("VF {vf} needs entry {vf}"))
        .next("start the service with fewer --vfs, or use VFs of lower numbers"),
    })
}

fn physically_down(on: OnPort<'_>) -> Fault {
    let (subnet, at) = (on.subnet(), on.at());
    if let Some(flapping) = links::flapping(on) {
        return flapping;
    }
    if let Some(fault) = links::down(subnet, at) {
        return fault;
    }
    match on.physical() {
        Some(port) => unmanaged::why(on, port.lid != Lid::NONE).seen(format!(
            "{} is {:?}, its LID is {}",
            subnet.port_name(at),
            port.state,
            port.lid.get()
        )),
        None => Fault::new("no_such_port", "the adapter has no such port")
            .next("name another with --port"),
    }
}
