//! Carriers that do not cut records, and have a way of their own for packets.

use super::*;

#[test]
fn packets_and_other_records_leave_by_ways_of_their_own_as_one_stream_would_have_them() {
    let mut pair = Pair::open();
    let packet = frame(lane(3), &[9; 20]);
    pair.ends[0].send(packet.clone());
    pair.ends[0].report_port(false);
    let (mut control, mut packets) = (Vec::new(), Vec::new());
    assert!(pair.ends[0].poll_control(&mut control, usize::MAX));
    assert!(pair.ends[0].poll_packets(&mut packets, usize::MAX));
    assert_eq!(control[0], 4, "a port record");
    assert_eq!(packets[0], 1, "a packet");
    assert!(!pair.ends[0].poll_control(&mut control, usize::MAX));
    assert!(!pair.ends[0].poll_packets(&mut packets, usize::MAX));
    for mut records in [control, packets] {
        pair.ends[1].handle_records(pair.now, &mut records);
    }
    let event = pair.ends[1].poll_event();
    assert_eq!(event, Some(SessionEvent::PeerPort { enabled: false }));
    let arrived = pair.take(1, |_| true).unwrap();
    assert_eq!(arrived.bytes(), packet.bytes());
}

#[test]
fn records_besides_packets_are_polled_whole_as_far_as_there_is_room() {
    let mut pair = Pair::open();
    pair.ends[0].report_port(false);
    pair.ends[0].report_port(true);
    // A header and a body of four bytes each.
    for (most, length) in [(11, 0), (12, 12), (100, 12), (100, 0)] {
        let mut control = Vec::new();
        let polled = pair.ends[0].poll_control(&mut control, most);
        assert_eq!((polled, control.len()), (length > 0, length));
    }
}

#[test]
fn a_run_that_is_last_keeps_the_buffer_it_came_in_unless_that_is_much_larger() {
    let payload = vec![7; 4096];
    for (spare, is_kept) in [(0, true), (16 << 10, false)] {
        let mut pair = Pair::open();
        pair.ends[0].send(Crossing::Run(run(BthOpcode::RC_SEND_MIDDLE, &payload)));
        assert!(pair.ends[0].has_packets());
        let mut records = Vec::with_capacity(payload.len() + 64 + spare);
        assert!(pair.ends[0].poll_packets(&mut records, 1));
        assert!(!pair.ends[0].has_packets());
        pair.ends[1].handle_records(pair.now, &mut records);
        assert_eq!(records.is_empty(), is_kept);
        match pair.ends[1].poll_crossing(|_| true) {
            Some(Crossing::Run(run)) => assert_eq!(run.payload(), payload),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_record_that_is_cut_ends_a_session_whose_carrier_cuts_none() {
    let mut pair = Pair::open();
    pair.ends[0].report_port(true);
    let mut control = Vec::new();
    assert!(pair.ends[0].poll_control(&mut control, usize::MAX));
    control.pop();
    pair.ends[1].handle_records(pair.now, &mut control);
    assert_eq!(pair.closed(1), Some(CloseReason::Garbage));
}
