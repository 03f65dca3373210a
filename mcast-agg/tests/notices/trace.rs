//! What OpenSM 3.3.23 was recorded to answer a subscriber, and what that answered to its reports.

use ib_wire::mad::{AttributeId, Mad, Method};
use ib_wire::sa::SaMad;
use mcast_agg::notices::Output;
use mcast_agg::{MemberId, Outcome};
use zerocopy::IntoBytes;

use crate::port::*;

const TRACE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/golden/opensm-traces/informinfo-report-trap128.txt"
);

/// The MADs of the subscriber about an attribute with one of the methods: its own and those that
/// came to it, with the length that counts.
fn recorded(attribute: AttributeId, methods: [Method; 2]) -> Vec<(usize, SaMad)> {
    let text = std::fs::read_to_string(TRACE).unwrap();
    let mads = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.get(2) != Some(&"cl=1") {
            return None;
        }
        let len = words.iter().find_map(|word| word.strip_prefix("len="))?;
        let hex = words.iter().find(|word| word.len() == 512)?;
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..256).map(byte).collect();
        let mad = *Mad::from_bytes(&bytes).unwrap().view::<SaMad>();
        Some((len.parse().unwrap(), mad))
    });
    let wanted = |(_, mad): &(usize, SaMad)| {
        mad.header.attribute_id == attribute && methods.contains(&mad.header.method)
    };
    mads.filter(wanted).collect()
}

#[test]
fn local_answers_are_opensms_bytes() {
    let inform = recorded(AttributeId::INFORM_INFO, [Method::SET, Method::GET_RESP]);
    assert_eq!(inform.len(), 20, "five subscribed, five ended");
    let mut port = Port::new();
    let (first, second) = (vf(1), vf(2));
    for pair in inform.chunks(2) {
        let (_, request) = pair[0];
        let (len, recorded) = pair[1];
        // The subscription is there already when the second VF asks, and still there when it ends.
        if subscribes(&request) {
            assert_eq!(port.ask(first, &mut request.clone()), Outcome::Absorbed);
            let (token, _) = port.sa_request();
            port.agg.handle_response(port.now, token, &recorded);
            assert!(matches!(port.outputs()[..], [Output::Answer { .. }]));
        }
        let mut answer = request;
        assert_eq!(port.ask(second, &mut answer), Outcome::Answered);
        answer.header.tid = recorded.header.tid;
        assert_eq!(answer.as_bytes()[..len], recorded.as_bytes()[..len]);
        port.nothing_more();
    }
}

#[test]
fn recorded_reports_are_answered_as_the_recorded_subscriber_did() {
    let reports = recorded(AttributeId::NOTICE, [Method::REPORT, Method::REPORT_RESP]);
    assert_eq!(reports.len(), 4, "two reports");
    let mut port = Port::new();
    for pair in reports.chunks(2) {
        let (_, report) = pair[0];
        let answer = port.agg.report(port.now, &report, |_| true).unwrap();
        assert_eq!(answer.as_bytes(), pair[1].1.as_bytes());
        let [(MemberId::PF, copy)] = port.copies()[..] else {
            panic!("nobody subscribed");
        };
        assert_eq!(copy.data, report.data);
    }
}
