//! What a registration made for a program may do: numbers of its own, any class, RMPP packets.

use ib_wire::rmpp::RmppHeader;

use super::*;

/// A host with a registration of the SA's class for a program.
fn program(lid: u16, registration: Registration) -> Host {
    let mut agent = MadAgent::new(MadAgentConfig::gsi(u64::from(lid)));
    let id = agent.register(registration).unwrap();
    Host {
        agent,
        id,
        address: MadAddress::gsi(Lid::new(lid)),
    }
}

fn numbered(class: MgmtClass, tid: u64) -> Message {
    let mut mad = mad(class, Method::GET);
    mad.header.tid = Tid::new(tid);
    Message::single(mad)
}

fn send(host: &mut Host, message: Message) -> Result<RequestId, SendError> {
    let to = MadAddress::gsi(Lid::new(2));
    host.agent
        .send_numbered_request(at(0), host.id, to, message, POLICY)
}

fn segment(method: Method, tid: Tid) -> Mad {
    let mut mad = mad(MgmtClass::SUBN_ADM, method);
    mad.header.tid = tid;
    mad.view_mut::<RmppMad>().rmpp = RmppHeader::ack(3, 9);
    mad
}

#[test]
fn a_numbered_request_keeps_the_low_half_of_its_transaction_id() {
    let mut host = program(1, Registration::sender());
    let message = numbered(MgmtClass::PERF, 0xffff_0001_1234_5678);
    let id = send(&mut host, message).unwrap();
    let expected = u64::from(host.id.get()) << 32 | 0x1234_5678;
    assert_eq!(id.tid().get(), expected);
    assert_eq!(host.transmit(0).unwrap().header.tid.get(), expected);
}

#[test]
fn a_second_numbered_request_with_the_same_low_half_is_a_duplicate() {
    let mut host = program(1, Registration::sender());
    send(&mut host, numbered(MgmtClass::PERF, 7)).unwrap();
    let again = send(&mut host, numbered(MgmtClass::PERF, 1 << 32 | 7));
    assert_eq!(again, Err(SendError::Duplicate));
    send(&mut host, numbered(MgmtClass::PERF, 8)).unwrap();
}

#[test]
fn a_busy_answer_to_a_numbered_request_is_given() {
    let mut host = program(1, Registration::sender());
    let request = send(&mut host, numbered(MgmtClass::PERF, 7)).unwrap();
    let mut busy = response_to(&host.transmit(0).unwrap());
    busy.header.status = MadStatus::BUSY;
    let from = MadAddress::gsi(Lid::new(2));
    host.agent.handle_mad(at(1), &from, &busy);
    assert!(
        matches!(host.event(), Some(AgentEvent::Response { request: of, message, .. })
            if of == request && message.status() == MadStatus::BUSY)
    );
}

#[test]
fn a_sender_sends_every_class_of_its_queue_pair_and_no_other() {
    let mut host = program(1, Registration::sender());
    send(&mut host, numbered(MgmtClass::PERF, 1)).unwrap();
    send(&mut host, numbered(MgmtClass::SUBN_ADM, 2)).unwrap();
    let smp = numbered(MgmtClass::SUBN_LID_ROUTED, 3);
    assert_eq!(send(&mut host, smp), Err(SendError::WrongClass));
}

#[test]
fn who_takes_packets_gets_those_of_requests_and_of_its_own_answers() {
    let methods = MethodSet::of(&[Method::GET_MULTI]);
    let mut host = program(
        1,
        Registration {
            takes_packets: true,
            ..Registration::new(MgmtClass::SUBN_ADM, methods)
        },
    );
    let from = MadAddress::gsi(Lid::new(2));
    let of_ours = host.id.tid_with_low_half_of(Tid::new(5));
    for packet in [
        segment(Method::GET_MULTI, Tid::new(1)),
        segment(Method::GET_TABLE_RESP, of_ours),
    ] {
        assert_eq!(
            host.agent.handle_mad(at(0), &from, &packet),
            Disposition::Delivered
        );
        assert!(
            matches!(host.event(), Some(AgentEvent::Request { message, .. }) if *message.mad() == packet)
        );
    }
    assert!(host.transmit(0).is_none(), "nobody else acknowledges");
}

#[test]
fn the_first_packet_of_an_answer_ends_the_request_of_who_takes_packets() {
    let mut host = program(
        1,
        Registration {
            takes_packets: true,
            ..Registration::new(MgmtClass::SUBN_ADM, MethodSet::NONE)
        },
    );
    let request = send(&mut host, numbered(MgmtClass::SUBN_ADM, 5)).unwrap();
    host.transmit(0).unwrap();
    let first = segment(Method::GET_RESP, request.tid());
    let from = MadAddress::gsi(Lid::new(2));
    host.agent.handle_mad(at(0), &from, &first);
    assert!(
        matches!(host.event(), Some(AgentEvent::Response { request: of, .. }) if of == request)
    );
    host.agent.handle_mad(at(0), &from, &first);
    assert!(matches!(host.event(), Some(AgentEvent::Request { .. })));
    assert!(host.agent.sizes().is_empty());
}

#[test]
fn who_takes_get_decides_who_answers_class_port_info() {
    let mut host = program(1, Registration::new(MgmtClass::PERF, MethodSet::NONE));
    let bits = 1 << Method::GET.get();
    let taker =
        Registration::new(MgmtClass::PERF, MethodSet::from_bits(bits)).with_class_port_info(None);
    let mut get = mad(MgmtClass::PERF, Method::GET);
    get.header.attribute_id = AttributeId::CLASS_PORT_INFO;
    let from = MadAddress::gsi(Lid::new(2));
    assert_eq!(
        host.agent.handle_mad(at(0), &from, &get),
        Disposition::Answered
    );
    host.agent.register(taker).unwrap();
    assert_eq!(
        host.agent.handle_mad(at(0), &from, &get),
        Disposition::Delivered
    );
}
