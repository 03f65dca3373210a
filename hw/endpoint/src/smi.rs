//! The subnet management interface of a channel adapter's port: what software on QP0 does to
//! directed-route SMPs (IBA 14.2.2).
//!
//! A directed-route SMP carries the ports to leave by and, on the way back, the ports it came in
//! by. The hop pointer counts how far it is. A channel adapter never passes an SMP on, so only the
//! two ends of a route matter here:
//!
//! | direction | hop pointer | where | does |
//! | --- | --- | --- | --- |
//! | out | 0, hops to go | requester sends | pointer 1, leaves if the first hop names this port |
//! | out | 0, no hops | requester sends | pointer 1; for the port's own agents |
//! | out | last hop | responder receives | notes the port it came in by, pointer +1; for software |
//! | out | last hop + 1 | responder receives | for software: somebody below did the step above |
//! | back | last hop + 1 | responder sends | pointer -1, leaves if the last entry names this port |
//! | back | 1, no hops | responder sends | pointer 0; for the port's own manager |
//! | back | 1 | requester receives | pointer 0; for software |
//! | back | 0 | requester receives | for software: somebody below did the step above |
//!
//! Everything else is discarded. A route may also begin or end with a LID-routed part: then DrSLID
//! or DrDLID is not the permissive LID, and what an adapter sends over that part leaves unchanged.
//! The switch where the directed part begins makes the first move.

use ib_wire::mad::{Mad, MgmtClass};
use ib_wire::smp::{DirectedRouteSmp, MAX_HOPS};
use ib_wire::{Lid, PortNum};

/// Where an SMP that software sends goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmiOutgoing {
    /// Onto the wire.
    Send,
    /// To the port's own agents.
    LocalAgents,
    /// To the port's own manager: the route back has no hops.
    LocalManager,
    /// Nowhere: the route is impossible.
    Discard,
}

/// What an SMP that arrived is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmiIncoming {
    /// Software on QP0.
    Deliver,
    /// Nobody: the route is impossible.
    Discard,
}

/// Prepares an SMP that software on QP0 sends by `port`. LID-routed SMPs pass unchanged.
#[must_use]
pub fn outgoing(mad: &mut Mad, port: PortNum) -> SmiOutgoing {
    if mad.header.mgmt_class != MgmtClass::SUBN_DIRECTED_ROUTE {
        return SmiOutgoing::Send;
    }
    let smp = mad.view_mut::<DirectedRouteSmp>();
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if count > MAX_HOPS {
        return SmiOutgoing::Discard;
    }
    if smp.is_returning() {
        send_back(smp, port, pointer, count)
    } else {
        send_out(smp, port, pointer, count)
    }
}

fn send_out(smp: &mut DirectedRouteSmp, port: PortNum, pointer: u8, count: u8) -> SmiOutgoing {
    if pointer != 0 {
        return SmiOutgoing::Discard;
    }
    if smp.dr_slid != Lid::PERMISSIVE {
        return SmiOutgoing::Send;
    }
    smp.set_hop_pointer(1);
    if count == 0 {
        return if smp.dr_dlid == Lid::PERMISSIVE {
            SmiOutgoing::LocalAgents
        } else {
            SmiOutgoing::Send
        };
    }
    leave_if(smp.initial_path[1] == port.0)
}

fn send_back(smp: &mut DirectedRouteSmp, port: PortNum, pointer: u8, count: u8) -> SmiOutgoing {
    if pointer != count + 1 {
        return SmiOutgoing::Discard;
    }
    if smp.dr_dlid != Lid::PERMISSIVE {
        return SmiOutgoing::Send;
    }
    smp.set_hop_pointer(count);
    if count == 0 {
        return if smp.dr_slid == Lid::PERMISSIVE {
            SmiOutgoing::LocalManager
        } else {
            SmiOutgoing::Send
        };
    }
    leave_if(smp.return_path[usize::from(count)] == port.0)
}

const fn leave_if(by_this_port: bool) -> SmiOutgoing {
    if by_this_port {
        SmiOutgoing::Send
    } else {
        SmiOutgoing::Discard
    }
}

/// Takes an SMP that arrived on `port` for software on QP0. LID-routed SMPs pass unchanged.
#[must_use]
pub fn incoming(mad: &mut Mad, port: PortNum) -> SmiIncoming {
    if mad.header.mgmt_class != MgmtClass::SUBN_DIRECTED_ROUTE {
        return SmiIncoming::Deliver;
    }
    let smp = mad.view_mut::<DirectedRouteSmp>();
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if count > MAX_HOPS {
        return SmiIncoming::Discard;
    }
    if smp.is_returning() {
        match pointer {
            0 => SmiIncoming::Deliver,
            1 if smp.dr_slid == Lid::PERMISSIVE => {
                smp.set_hop_pointer(0);
                SmiIncoming::Deliver
            }
            _ => SmiIncoming::Discard,
        }
    } else if pointer == count + 1 {
        SmiIncoming::Deliver
    } else if pointer == count && smp.dr_dlid == Lid::PERMISSIVE {
        if count > 0 {
            smp.return_path[usize::from(count)] = port.0;
        }
        smp.set_hop_pointer(count + 1);
        SmiIncoming::Deliver
    } else {
        SmiIncoming::Discard
    }
}

/// The answer to a received SMP with the same data: response method, way back, status 0.
#[must_use]
pub fn answer(request: &Mad) -> Mad {
    let mut answer = *request;
    answer.header.method = request.header.method.response();
    if request.header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE {
        answer.view_mut::<DirectedRouteSmp>().set_returning(true);
    }
    answer
}

#[cfg(test)]
mod tests {
    use ib_wire::mad::{AttributeId, MadHeader, Method};
    use proptest::prelude::*;

    use super::*;

    const PORT: PortNum = PortNum(1);

    fn smp(path: &[u8]) -> Mad {
        let header = MadHeader::new(
            MgmtClass::SUBN_DIRECTED_ROUTE,
            Method::GET,
            AttributeId::new(0x11),
        );
        let mut mad = Mad::new(header);
        assert!(mad.view_mut::<DirectedRouteSmp>().set_path(path));
        mad
    }

    fn pointer(mad: &Mad) -> u8 {
        mad.view::<DirectedRouteSmp>().hop_pointer()
    }

    #[test]
    fn a_request_leaves_by_the_port_of_its_first_hop() {
        let mut mad = smp(&[1, 5]);
        assert_eq!(outgoing(&mut mad, PORT), SmiOutgoing::Send);
        assert_eq!(pointer(&mad), 1);
        assert_eq!(
            outgoing(&mut smp(&[1, 5]), PortNum(2)),
            SmiOutgoing::Discard
        );
        assert_eq!(outgoing(&mut mad, PORT), SmiOutgoing::Discard, "only once");
    }

    #[test]
    fn a_route_without_hops_is_for_the_ports_own_agents_and_returns_to_its_manager() {
        let mut mad = smp(&[]);
        assert_eq!(outgoing(&mut mad, PORT), SmiOutgoing::LocalAgents);
        let mut back = answer(&mad);
        assert_eq!(outgoing(&mut back, PORT), SmiOutgoing::LocalManager);
        assert_eq!(pointer(&back), 0);
        assert_eq!(incoming(&mut back, PORT), SmiIncoming::Deliver);
    }

    #[test]
    fn a_request_and_its_answer_travel_a_link_between_two_adapters() {
        let mut mad = smp(&[1]);
        assert_eq!(outgoing(&mut mad, PORT), SmiOutgoing::Send);
        assert_eq!(incoming(&mut mad, PortNum(2)), SmiIncoming::Deliver);
        assert_eq!(mad.view::<DirectedRouteSmp>().return_path[1], 2);
        let mut back = answer(&mad);
        assert!(back.view::<DirectedRouteSmp>().is_returning());
        assert_eq!(outgoing(&mut back, PortNum(2)), SmiOutgoing::Send);
        assert_eq!(incoming(&mut back, PORT), SmiIncoming::Deliver);
        assert_eq!(pointer(&back), 0);
        assert_eq!(back.header.method, Method::GET_RESP);
    }

    #[test]
    fn what_begins_with_a_lid_routed_part_leaves_unchanged() {
        let mut request = smp(&[3]);
        request.view_mut::<DirectedRouteSmp>().dr_slid = Lid::new(5);
        let before = request;
        assert_eq!(outgoing(&mut request, PORT), SmiOutgoing::Send);
        assert_eq!(request, before);

        let mut arrived = smp(&[3]);
        let view = arrived.view_mut::<DirectedRouteSmp>();
        view.dr_dlid = Lid::new(6);
        view.set_hop_pointer(2);
        assert_eq!(incoming(&mut arrived, PORT), SmiIncoming::Deliver);
        let mut back = answer(&arrived);
        let before = back;
        assert_eq!(outgoing(&mut back, PORT), SmiOutgoing::Send);
        assert_eq!(back, before);
    }

    #[test]
    fn an_adapter_is_no_hop_of_anybody_elses_route() {
        let mut mad = smp(&[1, 2, 3]);
        mad.view_mut::<DirectedRouteSmp>().set_hop_pointer(2);
        assert_eq!(incoming(&mut mad, PORT), SmiIncoming::Discard);
        mad.view_mut::<DirectedRouteSmp>().set_returning(true);
        assert_eq!(incoming(&mut mad, PORT), SmiIncoming::Discard);
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 256), port: u8) {
            let mut mad = Mad::from_bytes(&bytes).unwrap();
            mad.header.mgmt_class = MgmtClass::SUBN_DIRECTED_ROUTE;
            let hops = mad.view::<DirectedRouteSmp>().hop_count();
            let sent = outgoing(&mut mad.clone(), PortNum(port));
            let received = incoming(&mut mad, PortNum(port));
            if hops > MAX_HOPS {
                prop_assert_eq!(sent, SmiOutgoing::Discard);
                prop_assert_eq!(received, SmiIncoming::Discard);
            }
        }
    }
}
