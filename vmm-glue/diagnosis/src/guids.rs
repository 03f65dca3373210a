//! GUIDs that a VF waits for, or does not get.

use ib_vtime::Duration;
use pf_context::guids::GuidWish;

use crate::fault::Fault;
use crate::snapshot::{OnPort, VfPort};
use crate::{commands, sa};

/// Time that the SA may take to grant a GUID: several times what a busy one needs, and less than a second try.
const SILENCE: Duration = Duration::from_secs(2);

/// Returns the reason for which the SA has not granted a GUID that it was asked for.
pub(crate) fn waiting(on: OnPort<'_>, since: Option<Duration>) -> Fault {
    let fault = Fault::new("waiting_for_sa", "the SA has not granted the VF's GUID yet");
    if sa::answers(on) && since.is_some_and(|since| since >= SILENCE) {
        let fault = fault.seen("the SA answers other questions of the port");
        return fault.next("see the subnet manager's log: it fails to grant the GUID");
    }
    fault.next("wait two seconds")
}

/// Returns the fault of a VF that keeps its former GUID because the SA grants it no other.
pub(crate) fn another(on: OnPort<'_>, vf: u16, row: &VfPort) -> Option<Fault> {
    let view = row.guid;
    let GuidWish::Admin(wanted) = view.wish else {
        return None;
    };
    if view.hardware == wanted || view.hardware.is_none() {
        return None;
    }
    if view.declines == 0 {
        let waiting = waiting(on, row.since);
        return Some(waiting.seen(format!("the VF has {}, wanted is {wanted}", view.hardware)));
    }
    let summary = "the VF has another GUID than the one that was set";
    let set = commands::set_vf(&on.pf.host, vf, on.number);
    Some(
        Fault::new("guid_not_granted", summary)
            .seen(format!("it has {}, wanted is {wanted}", view.hardware))
            .seen(format!("the SA declined {} times in a row", view.declines))
            .seen(format!("another port may have {wanted}: see the SM's log"))
            .next(format!("{set} port_guid sm")),
    )
}
