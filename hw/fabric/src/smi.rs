//! The subnet management interface: how SMPs travel, by LID and by directed route (IBA 14.2.1.2,
//! 14.2.2).
//!
//! On every hop of a directed route the interface of the node moves the hop pointer, notes the port
//! by which the SMP came, and sends it on; where the route ends it gives the SMP to the SMA, or to
//! the software on QP0. Routes whose ends are LID-routed (DrSLID or DrDLID not permissive) are
//! followed, too.

use hca_api::{LocalMad, MadView, SourceAddress};
use ib_wire::mad::{Mad, MgmtClass};
use ib_wire::packet::Lrh;
use ib_wire::smp::{DirectedRouteSmp, MAX_HOPS};
use ib_wire::{Lid, PortNum};

use crate::{DropReason, Frame, Node, NodeKind, sma};

/// What becomes of an SMP.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It leaves by a port.
    Send(PortNum, Frame),
    /// It leaves by the port that the forwarding table of this switch says, if that is not the one
    /// by which it came; 0 if it starts here.
    Route(PortNum, Frame),
    /// It is for the software on QP0.
    Deliver(Frame),
    /// The node's agent has taken it, and has no answer.
    Done,
    /// It is dropped.
    Drop(DropReason),
}

/// Takes an SMP that arrived on `port`.
pub(crate) fn receive(node: &mut Node, port: PortNum, mut frame: Frame) -> Outcome {
    let Some(lrh) = frame.lrh().copied() else {
        return Outcome::Drop(DropReason::Malformed);
    };
    if !is_for(node, port, lrh.dlid) {
        return match node.kind() {
            NodeKind::Switch => Outcome::Route(port, frame),
            NodeKind::ChannelAdapter => Outcome::Drop(DropReason::ForeignLid),
        };
    }
    let Some(mut mad) = frame.smp() else {
        return Outcome::Drop(DropReason::NotAMad);
    };
    match mad.header.mgmt_class {
        MgmtClass::SUBN_LID_ROUTED => {}
        MgmtClass::SUBN_DIRECTED_ROUTE => match follow(node, port, lrh.dlid, mad.view_mut()) {
            Hop::Here => frame.set_smp(&mad, lrh.slid, lrh.dlid),
            Hop::Port(out) => {
                frame.set_smp(&mad, Lid::PERMISSIVE, Lid::PERMISSIVE);
                return Outcome::Send(out, frame);
            }
            Hop::Lid(dlid) => {
                let own = node.end_port(port).map_or(Lid::NONE, |p| p.lid);
                frame.set_smp(&mad, own, dlid);
                return Outcome::Route(PortNum(0), frame);
            }
            Hop::Nowhere => return Outcome::Drop(DropReason::BadRoute),
        },
        _ => return Outcome::Drop(DropReason::NotAMad),
    }
    arrive(node, port, &lrh, &mad, frame)
}

/// Takes an SMP that the software on QP0 of `port`, or the node's own agent, sends.
pub(crate) fn send(node: &mut Node, port: PortNum, mut frame: Frame) -> Outcome {
    let Some(lrh) = frame.lrh().copied() else {
        return Outcome::Drop(DropReason::Malformed);
    };
    let Some(mut mad) = frame.smp() else {
        return Outcome::Drop(DropReason::NotAMad);
    };
    if mad.header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE && lrh.dlid == Lid::PERMISSIVE {
        return match start(node, port, mad.view_mut()) {
            Hop::Here => {
                frame.set_smp(&mad, lrh.slid, lrh.dlid);
                arrive(node, port, &lrh, &mad, frame)
            }
            Hop::Port(out) => {
                frame.set_smp(&mad, Lid::PERMISSIVE, Lid::PERMISSIVE);
                Outcome::Send(out, frame)
            }
            Hop::Lid(_) | Hop::Nowhere => Outcome::Drop(DropReason::BadRoute),
        };
    }
    if is_for(node, port, lrh.dlid) {
        return arrive(node, port, &lrh, &mad, frame);
    }
    match node.kind() {
        NodeKind::Switch => Outcome::Route(PortNum(0), frame),
        NodeKind::ChannelAdapter => Outcome::Send(port, frame),
    }
}

/// Whether a node opens SMPs to a LID instead of passing them on.
fn is_for(node: &Node, port: PortNum, dlid: Lid) -> bool {
    dlid == Lid::PERMISSIVE || node.end_port(port).is_some_and(|p| p.owns_lid(dlid))
}

/// An SMP at its destination.
fn arrive(node: &mut Node, port: PortNum, lrh: &Lrh, mad: &Mad, frame: Frame) -> Outcome {
    let source = SourceAddress::of_smp(port, lrh.slid, lrh.sl());
    match sma::process(node, port, &MadView::Network(source), mad) {
        LocalMad::Reply(reply) => {
            let slid = if lrh.dlid == Lid::PERMISSIVE && lrh.slid != Lid::PERMISSIVE {
                node.end_port(port).map_or(Lid::NONE, |p| p.lid)
            } else {
                lrh.dlid
            };
            match Frame::of_smp(&reply, slid, lrh.slid, lrh.sl()) {
                Some(frame) => answer(node, port, frame),
                None => Outcome::Drop(DropReason::Malformed),
            }
        }
        LocalMad::Consumed => Outcome::Done,
        LocalMad::NotHandled => Outcome::Deliver(frame),
    }
}

/// Sends the agent's response. A response to the node's own software does not leave the node.
fn answer(node: &mut Node, port: PortNum, mut response: Frame) -> Outcome {
    let Some(lrh) = response.lrh().copied() else {
        return Outcome::Drop(DropReason::Malformed);
    };
    let Some(mut mad) = response.smp() else {
        return Outcome::Drop(DropReason::NotAMad);
    };
    if mad.header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE && lrh.dlid == Lid::PERMISSIVE {
        return match start(node, port, mad.view_mut()) {
            Hop::Here => {
                response.set_smp(&mad, lrh.slid, lrh.dlid);
                Outcome::Deliver(response)
            }
            Hop::Port(out) => {
                response.set_smp(&mad, Lid::PERMISSIVE, Lid::PERMISSIVE);
                Outcome::Send(out, response)
            }
            Hop::Lid(_) | Hop::Nowhere => Outcome::Drop(DropReason::BadRoute),
        };
    }
    match node.kind() {
        _ if is_for(node, port, lrh.dlid) => Outcome::Deliver(response),
        NodeKind::ChannelAdapter => Outcome::Send(port, response),
        NodeKind::Switch => Outcome::Route(PortNum(0), response),
    }
}

/// Where a directed-route SMP goes from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hop {
    /// It has arrived.
    Here,
    /// Out of a port.
    Port(PortNum),
    /// By LID from here on.
    Lid(Lid),
    /// The route makes no sense.
    Nowhere,
}

/// Makes a node's move on an SMP that came by `port` (IBA 14.2.2, C14-9 and C14-13). The hop
/// pointer and the return path change accordingly.
fn follow(node: &Node, port: PortNum, dlid: Lid, smp: &mut DirectedRouteSmp) -> Hop {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if count > MAX_HOPS {
        return Hop::Nowhere;
    }
    let is_switch = node.kind() == NodeKind::Switch;
    let at = usize::from(pointer);
    if smp.is_returning() {
        return match pointer {
            0 => Hop::Here,
            1 => {
                smp.set_hop_pointer(0);
                match smp.dr_slid {
                    Lid::PERMISSIVE => Hop::Here,
                    dr_slid if is_switch => Hop::Lid(dr_slid),
                    _ => Hop::Nowhere,
                }
            }
            // One beyond the count: the LID-routed end of the route, back at its directed part.
            _ if is_switch && pointer <= count + 1 => {
                smp.set_hop_pointer(pointer - 1);
                existing(node, smp.return_path[at - 1])
            }
            _ => Hop::Nowhere,
        };
    }
    if pointer == count + 1 {
        return Hop::Here;
    }
    if pointer > count {
        return Hop::Nowhere;
    }
    if pointer == 0 && count > 0 {
        // The directed part starts here, after a LID-routed one.
        if !is_switch || dlid == Lid::PERMISSIVE {
            return Hop::Nowhere;
        }
        smp.set_hop_pointer(1);
        return existing(node, smp.initial_path[1]);
    }
    if pointer > 0 {
        smp.return_path[at] = port.0;
    }
    if pointer < count {
        if !is_switch {
            return Hop::Nowhere;
        }
        smp.set_hop_pointer(pointer + 1);
        return existing(node, smp.initial_path[at + 1]);
    }
    smp.set_hop_pointer(pointer + 1);
    match smp.dr_dlid {
        Lid::PERMISSIVE => Hop::Here,
        dr_dlid if is_switch => Hop::Lid(dr_dlid),
        _ => Hop::Nowhere,
    }
}

/// Makes the first move on an SMP that starts, or is answered, here. Software that moved the
/// hop pointer itself (to 1 on the way out, to the hop count on the way back) is taken at its word.
fn start(node: &Node, port: PortNum, smp: &mut DirectedRouteSmp) -> Hop {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if count > MAX_HOPS {
        return Hop::Nowhere;
    }
    let last = usize::from(count);
    let (next, out) = match (smp.is_returning(), pointer) {
        (false, 0) if count == 0 => (1, None),
        (false, 0 | 1) if count > 0 => (1, Some(smp.initial_path[1])),
        (true, 1) if count == 0 => (0, None),
        (true, _) if count > 0 && (pointer == count + 1 || pointer == count) => {
            (count, Some(smp.return_path[last]))
        }
        _ => return Hop::Nowhere,
    };
    smp.set_hop_pointer(next);
    match out {
        None => Hop::Here,
        Some(out) if node.kind() == NodeKind::Switch => existing(node, out),
        Some(out) if out == port.0 => Hop::Port(port),
        Some(_) => Hop::Nowhere,
    }
}

/// A hop out of an external port, if the switch has it.
fn existing(node: &Node, port: u8) -> Hop {
    if port != 0 && port <= node.port_count() {
        Hop::Port(PortNum(port))
    } else {
        Hop::Nowhere
    }
}
