use ib_wire::Guid;
use ib_wire::mad::MadHeader;

use super::*;
use crate::HcaConfig;

fn node() -> Node {
    Node::channel_adapter(&HcaConfig::new(Guid::new(0x10), "host"))
}

fn request<A: PerfAttribute>(method: Method, attribute: A) -> Mad {
    let mut mad = Mad::new(MadHeader::new(MgmtClass::PERF, method, A::ID));
    *mad.view_mut::<PerfMad>().attribute_mut() = attribute;
    mad
}

fn ask(node: &mut Node, mad: &Mad) -> Mad {
    match process(node, PortNum(1), mad) {
        LocalMad::Reply(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn get_basic(node: &mut Node, port: PortNum) -> perf::PortCounters {
    let mad = request(
        Method::GET,
        perf::PortCounters {
            port_select: port,
            ..perf::PortCounters::default()
        },
    );
    *ask(node, &mad).view::<PerfMad>().attribute()
}

fn get_extended(node: &mut Node, port: PortNum) -> PortCountersExtended {
    let mad = request(
        Method::GET,
        PortCountersExtended {
            port_select: port,
            ..PortCountersExtended::default()
        },
    );
    *ask(node, &mad).view::<PerfMad>().attribute()
}

#[test]
fn basic_counters_stick_at_their_width_and_extended_ones_go_on() {
    let mut node = node();
    let counters = &mut node.port_mut(PortNum(1)).unwrap().counters;
    counters.xmit_data = 1 << 32;
    counters.link_downed = 300;
    counters.local_link_integrity_errors = 16;
    let basic = get_basic(&mut node, PortNum(1));
    assert_eq!(basic.port_xmit_data.get(), u32::MAX);
    assert_eq!(basic.link_downed_counter, 255);
    assert_eq!(basic.local_link_integrity_errors(), 15);
    let extended = get_extended(&mut node, PortNum(1));
    assert_eq!(extended.port_xmit_data.get(), 1 << 32);
    assert_eq!(extended.link_downed_counter.get(), 300);
}

#[test]
fn a_set_clears_what_it_selects_and_only_of_its_own_attribute() {
    let mut node = node();
    let counters = &mut node.port_mut(PortNum(1)).unwrap().counters;
    (counters.xmit_data, counters.rcv_data, counters.rcv_errors) = (10, 20, 30);
    let clear = perf::PortCounters {
        port_select: PortNum(1),
        // PortXmitData and PortRcvErrors.
        counter_select: (1 << 12 | 1 << 3).into(),
        ..perf::PortCounters::default()
    };
    ask(&mut node, &request(Method::SET, clear));
    let basic = get_basic(&mut node, PortNum(1));
    assert_eq!(basic.port_xmit_data.get(), 0);
    assert_eq!(basic.port_rcv_data.get(), 20);
    assert_eq!(basic.port_rcv_errors.get(), 0);
    assert_eq!(get_extended(&mut node, PortNum(1)).port_xmit_data.get(), 10);

    let clear = PortCountersExtended {
        port_select: PortNum(1),
        counter_select: 0xff.into(),
        ..PortCountersExtended::default()
    };
    ask(&mut node, &request(Method::SET, clear));
    assert_eq!(get_extended(&mut node, PortNum(1)).port_rcv_data.get(), 0);
    assert_eq!(get_basic(&mut node, PortNum(1)).port_rcv_data.get(), 20);
    node.port_mut(PortNum(1)).unwrap().counters.rcv_data += 5;
    assert_eq!(get_extended(&mut node, PortNum(1)).port_rcv_data.get(), 5);
    assert_eq!(get_basic(&mut node, PortNum(1)).port_rcv_data.get(), 25);
}

#[test]
fn all_ports_together_are_the_sum() {
    let mut node = node();
    node.port_mut(PortNum(1)).unwrap().counters.rcv_packets = 3;
    node.port_mut(PortNum(2)).unwrap().counters.rcv_packets = 4;
    assert_eq!(get_basic(&mut node, ALL_PORTS).port_rcv_pkts.get(), 7);
    assert_eq!(get_extended(&mut node, ALL_PORTS).port_rcv_pkts.get(), 7);
}

#[test]
fn requests_that_make_no_sense_are_answered_with_the_reason() {
    let mut node = node();
    let select = |port| perf::PortCounters {
        port_select: PortNum(port),
        ..perf::PortCounters::default()
    };
    let status = |node: &mut Node, mad: &Mad| ask(node, mad).header.status;
    let mut mad = request(Method::GET, select(3));
    assert_eq!(status(&mut node, &mad), MadStatus::INVALID_FIELD);
    mad = request(Method::GET, select(0));
    assert_eq!(status(&mut node, &mad), MadStatus::INVALID_FIELD);
    mad = request(Method::new(0x15), select(1));
    assert_eq!(status(&mut node, &mad), MadStatus::UNSUPPORTED_METHOD);
    mad = request(Method::GET, select(1));
    mad.header.attribute_id = AttributeId::new(0x0015);
    assert_eq!(
        status(&mut node, &mad),
        MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE
    );
    mad.header.class_version = 2;
    assert_eq!(status(&mut node, &mad), MadStatus::BAD_VERSION);
    mad.header.method = Method::GET_RESP;
    assert_eq!(process(&mut node, PortNum(1), &mad), LocalMad::NotHandled);
}

#[test]
fn class_port_info_announces_all_ports_and_extended_counters() {
    let mut node = node();
    let mad = request(Method::GET, class_port_info());
    let info: ClassPortInfo = *ask(&mut node, &mad).view::<PerfMad>().attribute();
    assert_eq!(info.capability_mask.get(), 0x9300);
    assert_eq!(info.capability_mask2(), 2);
}

/// Asks for a sample of port 1 of what counters 0 and 1 are to count.
fn control(node: &mut Node, method: Method, change: PortSamplesControl) -> PortSamplesControl {
    let control = PortSamplesControl {
        port_select: PortNum(1),
        ..change
    };
    let reply = ask(node, &request(method, control));
    assert_eq!(reply.header.status, MadStatus::OK);
    *reply.view::<PerfMad>().attribute()
}

fn sampled(node: &mut Node) -> (u8, [u32; 2]) {
    let mad = request(Method::GET, PortSamplesResult::default());
    let result: PortSamplesResult = *ask(node, &mad).view::<PerfMad>().attribute();
    assert_eq!(result.tag.get(), 0x77);
    let [first, second, ..] = result.counters;
    (result.sample_status(), [first.get(), second.get()])
}

#[test]
fn a_sample_counts_between_its_start_and_its_end() {
    use core::time::Duration;

    let mut node = node();
    let idle = control(&mut node, Method::GET, PortSamplesControl::default());
    assert_eq!((idle.sample_status(), idle.counter_width()), (0, 4));
    assert_eq!(idle.counter_mask0(), 1);
    assert_eq!(idle.counter_masks1_to_9(), 0o111_100_000);
    let mut wanted = PortSamplesControl {
        sample_start: 250.into(),
        sample_interval: 500.into(),
        tag: 0x77.into(),
        ..PortSamplesControl::default()
    };
    wanted.counter_select[0].set(4);
    wanted.counter_select[1].set(1);
    let begun = control(&mut node, Method::SET, wanted);
    assert_eq!((begun.sample_status(), begun.tag), (1, wanted.tag));
    let count = |node: &mut Node, ticks: u32| {
        let counters = &mut node.port_mut(PortNum(1)).unwrap().counters;
        counters.rcv_packets += 1;
        counters.xmit_data += 10;
        node.set_now(node.now() + Duration::from_nanos(4) * ticks);
        node.advance_samples();
        sampled(node)
    };
    assert_eq!(count(&mut node, 249), (1, [0, 0]));
    assert_eq!(count(&mut node, 1), (2, [0, 0]));
    assert_eq!(count(&mut node, 499), (2, [1, 10]));
    let ignored = PortSamplesControl {
        tag: 0x88.into(),
        ..wanted
    };
    assert_eq!(control(&mut node, Method::SET, ignored).tag, wanted.tag);
    assert_eq!(count(&mut node, 1), (0, [2, 20]));
    assert_eq!(count(&mut node, 1), (0, [2, 20]), "it is over");

    let other = PortSamplesControl {
        port_select: PortNum(2),
        ..wanted
    };
    let refused = ask(&mut node, &request(Method::SET, other));
    assert_eq!(refused.header.status, MadStatus::INVALID_FIELD);
}
