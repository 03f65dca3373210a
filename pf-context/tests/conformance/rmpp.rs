//! Multi-packet transfers through the whole: statements 187 to 189.

use ib_wire::mad::{AttributeId, Mad, Method, MgmtClass};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppMad};
use pf_context::{DeliveryClass, DeliveryDepth, DeliveryQueue};
use vf_tunnel::DropReason;

use crate::harness::*;

const TID: u64 = 0xfedc_ba98_7654_3210;

/// VF 1 asks for a table; gives the request as the SA sees it.
fn ask(port: &mut Port) -> Mad {
    let request = mad(
        MgmtClass::SUBN_ADM,
        Method::GET_TABLE,
        AttributeId::PATH_RECORD,
        TID,
    );
    sent(port.vf_sends(1, &frame(SM, request))).mad
}

/// A segment of the SA's answer, with bytes of its own.
fn segment(request: &Mad, number: u32, flags: RmppFlags) -> Mad {
    let mut segment = answer(request);
    segment.view_mut::<RmppMad>().rmpp = RmppHeader::data(number, 220, flags);
    segment.data[100] = u8::try_from(number).unwrap();
    segment
}

fn with_tid(mut mad: Mad, tid: u64) -> Mad {
    mad.header.tid = ib_wire::Tid::new(tid);
    mad
}

#[test]
fn c187_a_table_of_one_segment_comes_and_its_ack_goes() {
    let mut port = Port::new();
    let request = ask(&mut port);
    let only = segment(&request, 1, RmppFlags::FIRST.union(RmppFlags::LAST));
    assert_eq!(
        got(port.wire_sends(&from(SM), &only)).mad,
        with_tid(only, TID)
    );

    let mut ack = mad(
        MgmtClass::SUBN_ADM,
        Method::GET_TABLE,
        AttributeId::PATH_RECORD,
        TID,
    );
    ack.view_mut::<RmppMad>().rmpp = RmppHeader::ack(1, 64);
    let out = sent(port.vf_sends(1, &frame(SM, ack)));
    assert_eq!(out.mad, with_tid(ack, request.header.tid.get()));
    assert_eq!(port.mux.sizes().tids, 1);
}

#[test]
fn c189_segments_in_any_order_and_number_pass_as_they_are() {
    let mut port = Port::new();
    let request = ask(&mut port);
    for number in [1, 3, 2, 2, 5, 4, 1, 5] {
        let flags = match number {
            1 => RmppFlags::FIRST,
            5 => RmppFlags::LAST,
            _ => RmppFlags::default(),
        };
        let segment = segment(&request, number, flags);
        let delivered = got(port.wire_sends(&from(SM), &segment));
        assert_eq!((delivered.vf, delivered.mad), (1, with_tid(segment, TID)));
    }
}

#[test]
fn c188_a_guest_that_never_acks_holds_one_transaction_and_the_depth_of_its_queue() {
    let mut port = Port::new();
    let request = ask(&mut port);
    let before = port.mux.sizes();
    let depth = DeliveryDepth::default();
    let mut untaken = DeliveryQueue::new(depth);
    let mut refused = 0;
    for number in 1..=2_000 {
        let mut segment = answer(&request);
        segment.view_mut::<RmppMad>().rmpp = RmppHeader::data(number, 220, RmppFlags::default());
        let mad = got(port.wire_sends(&from(SM), &segment)).mad;
        match untaken.push(mad, DeliveryClass::of(&mad)) {
            Ok(()) => {}
            Err(reason) => {
                assert_eq!(reason, DropReason::Backpressure);
                refused += 1;
            }
        }
    }
    assert_eq!(port.mux.sizes(), before);
    assert_eq!((untaken.len(), refused), (depth.bulk, 2_000 - depth.bulk));
}
