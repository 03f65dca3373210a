//! The PF's own software on its port.

use ib_endpoint::{AgentEvent, Message, MethodSet, Registration, RetryPolicy};

use pf_context::context::PfEvent;

use super::*;

const POLICY: RetryPolicy = RetryPolicy::new(Duration::from_secs(1), 1);

#[test]
fn what_the_pfs_own_software_says_to_itself_is_answered_in_one_turn() {
    let mut rig = Rig::new(0);
    let (pf, mut hca) = rig.pf();
    let own = pf.port_mut(PORT).expect("the port").own_mut();
    let class = MgmtClass::DEV_MGT;
    let server = Registration::new(class, MethodSet::of(&[Method::GET]));
    let agent = own.gsi().register(server).expect("a free class");
    let header = MadHeader::new(class, Method::GET, AttributeId::CLASS_PORT_INFO);
    let message = Message::single(Mad::new(header));
    let to = MadAddress::gsi(LID);
    let asked = own.gsi().send_request(NOW, agent, to, message, POLICY);
    let asked = asked.expect("room for a request");
    // Each of the request, the answer and what comes of it is a round.
    pf.poll(NOW, &mut hca);
    let events: Vec<PfEvent> = std::iter::from_fn(|| pf.poll_event()).collect();
    let is_answer = |event: &PfEvent| {
        matches!(
            event,
            PfEvent::Own { event: EndPortEvent::Gsi(AgentEvent::Response { request, .. }), .. }
                if *request == asked
        )
    };
    assert!(events.iter().any(is_answer), "{events:?}");
}
