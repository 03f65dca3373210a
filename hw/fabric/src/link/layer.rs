//! The link layer of a port: what it checks, counts and lets through (IBA 7.2, 7.3).

use hca_api::PortState;
use ib_wire::packet::{Lrh, link_header};
use ib_wire::{Mtu, Vl};

use crate::{DropReason, Frame, PhysicalPort, RunHead};

/// Bytes of headers and ICRC that a packet may have besides an MTU of payload (IBA 7.7.8).
const MAX_OVERHEAD: usize = 124;

/// What a port makes of a packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is on VL15.
    Management,
    /// It is on a data lane.
    Data,
    /// It was refused; if the port has a counter for that, it counts.
    Refused(DropReason),
}

/// Whether a packet fits the MTU. SMPs always do.
fn fits(lrh: &Lrh, mtu: Mtu) -> bool {
    let counted = usize::from(lrh.length_words()) * 4;
    mtu.bytes()
        .is_none_or(|payload| counted <= payload + MAX_OVERHEAD)
}

/// Returns `true` if each packet of a run fits the MTU.
pub(crate) fn run_fits(head: &RunHead, mtu: Mtu) -> bool {
    let most = mtu.bytes().map(|payload| (payload + MAX_OVERHEAD) as u64);
    most.is_none_or(|most| head.longest * 4 <= most)
}

/// Counts the packets of a run that went onto the wire.
pub(crate) fn count_run_sent(port: &mut PhysicalPort, head: &RunHead) {
    port.counters.xmit_data += head.words;
    port.counters.xmit_packets += u64::from(head.packets);
    port.counters.unicast_xmit_packets += u64::from(head.packets);
}

/// Counts the packets of a run that came off the wire.
pub(crate) fn count_run_received(port: &mut PhysicalPort, head: &RunHead) {
    port.counters.rcv_data += head.words;
    port.counters.rcv_packets += u64::from(head.packets);
    port.counters.unicast_rcv_packets += u64::from(head.packets);
}

/// Takes a packet off the wire.
pub(crate) fn receive(port: &mut PhysicalPort, frame: &mut Frame) -> Arrival {
    if !frame.vcrc_matches() {
        port.counters.rcv_errors += 1;
        return Arrival::Refused(DropReason::BadVcrc);
    }
    let Ok(lrh) = link_header(frame.bytes()) else {
        port.counters.rcv_errors += 1;
        return Arrival::Refused(DropReason::Malformed);
    };
    let words = u64::from(lrh.length_words());
    let multicast = lrh.dlid.is_multicast();
    let management = lrh.vl() == Vl::MANAGEMENT;
    if management {
        if port.state == PortState::Down {
            return Arrival::Refused(DropReason::PortNotActive);
        }
    } else {
        if !fits(lrh, port.mtu_cap) {
            port.counters.rcv_errors += 1;
            return Arrival::Refused(DropReason::TooLong);
        }
        match port.state {
            PortState::Active | PortState::Armed => {}
            PortState::Down | PortState::Init => {
                return Arrival::Refused(DropReason::PortNotActive);
            }
        }
    }
    let counters = &mut port.counters;
    counters.rcv_data += words;
    counters.rcv_packets += 1;
    if multicast {
        counters.multicast_rcv_packets += 1;
    } else {
        counters.unicast_rcv_packets += 1;
    }
    if management {
        Arrival::Management
    } else {
        Arrival::Data
    }
}

/// Checks that a port can send a packet now. If not, the port counts it.
pub(crate) fn may_send(port: &mut PhysicalPort, frame: &Frame) -> Result<(), DropReason> {
    let checked = sendable(port, frame);
    if checked.is_err() {
        port.counters.xmit_discards += 1;
    }
    checked
}

fn sendable(port: &PhysicalPort, frame: &Frame) -> Result<(), DropReason> {
    let lrh = frame.lrh().ok_or(DropReason::Malformed)?;
    let management = lrh.vl() == Vl::MANAGEMENT;
    let ready = match port.state {
        PortState::Down => false,
        PortState::Init | PortState::Armed => management,
        PortState::Active => true,
    };
    if !ready {
        Err(DropReason::PortNotActive)
    } else if !management && !fits(lrh, port.neighbor_mtu) {
        Err(DropReason::TooLong)
    } else {
        Ok(())
    }
}

/// Counts a packet that goes onto the wire.
pub(crate) fn count_sent(port: &mut PhysicalPort, frame: &Frame) {
    let Some(lrh) = frame.lrh() else {
        return;
    };
    let counters = &mut port.counters;
    counters.xmit_data += u64::from(lrh.length_words());
    counters.xmit_packets += 1;
    if lrh.dlid.is_multicast() {
        counters.multicast_xmit_packets += 1;
    } else {
        counters.unicast_xmit_packets += 1;
    }
}
