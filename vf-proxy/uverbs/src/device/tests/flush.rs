//! Queue pairs in error.

use super::*;

/// Number of the error state (`enum ib_qp_state`).
const ERROR: u8 = 6;

/// Polls the device at a time, and once more for the completions that the first poll made.
fn run(queues: &mut Datagrams, now: Instant) {
    for _ in 0..2 {
        let process = &mut queues.process;
        process.with(|device, hca| device.take_turn(now, hca, &mut || false));
    }
}

#[test]
fn a_receive_posted_in_error_is_flushed_within_20_ms_however_long_none_came() {
    let mut queues = datagrams();
    queues.modify(ERROR, 0).unwrap();
    let mut now = Instant::ZERO;
    let mut look = |queues: &mut Datagrams| {
        let next = queues.process.device.poll_timeout().unwrap();
        assert!(next <= now + Duration::from_millis(20));
        now = now.max(next);
        run(queues, now);
    };
    (0..100).for_each(|_| look(&mut queues));
    let receive = ReceiveElement {
        wr_id: 7.into(),
        ..ReceiveElement::default()
    };
    queues.write(queues.rings.receive, 0, receive.as_bytes(), 1);
    assert_eq!(queues.completion(0), CompletionElement::default());
    look(&mut queues);
    let flushed = queues.completion(0);
    assert_eq!((flushed.wr_id.get(), flushed.status.get()), (7, 5));
}

#[test]
fn a_step_looks_at_a_part_of_the_queue_pairs_in_error_and_the_next_step_at_the_next() {
    let mut process = Process::new();
    // Queue pairs that are gone are in error no longer.
    (1000..1100).for_each(|handle| process.device.backlog.flush.add(handle));
    let mut steps = 0;
    while process.with(|device, hca| Consumer::poll(device, Instant::ZERO, hca)) {
        steps += 1;
    }
    assert_eq!(steps, 100 / 32);
    assert_eq!(process.device.poll_timeout(), None);
}
