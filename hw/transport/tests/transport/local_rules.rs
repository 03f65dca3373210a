//! Rules of requests that send nothing: fast registrations and local invalidates.

use ib_transport::{Operation, RequesterState, RetryCount, Status};

use crate::packets::{ack, data, nak};
use crate::rig::{READ, Rig, SEND, WRITE};

const REGISTER: Operation = Operation::Local { after_all: false };
const INVALIDATE: Operation = Operation::Local { after_all: true };

impl Rig {
    /// Returns the names of the requests that completed, in order.
    fn completed(&self) -> Vec<u64> {
        self.end.host.sends.iter().map(|sent| sent.0).collect()
    }

    fn executed(&self) -> &[u64] {
        &self.end.host.executed
    }
}

#[test]
fn t069_a_registration_takes_no_psn_and_starts_in_order_while_earlier_requests_are_outstanding() {
    let mut rig = Rig::new();
    rig.post(WRITE, 600).post(REGISTER, 0).post(SEND, 5);
    assert_eq!(rig.psns(), [10, 11, 12, 13]);
    assert_eq!(rig.executed(), [1]);
    assert_eq!(rig.completed(), [], "what stands before it is not complete");
    rig.reply(ack(12));
    assert_eq!(rig.completed(), [0, 1]);
    rig.reply(ack(13));
    assert_eq!(rig.completed(), [0, 1, 2]);
    assert_eq!(rig.done(), 3);
    // Alone it completes at once.
    rig.post(REGISTER, 0);
    assert_eq!(rig.psns(), []);
    assert_eq!((rig.executed(), rig.done()), (&[1, 3][..], 4));
    assert_eq!(rig.end.rc.poll_timeout(), None);
    rig.post(SEND, 5);
    assert_eq!(rig.psns(), [14]);
}

#[test]
fn t069_a_registration_does_not_start_before_a_request_that_waits() {
    let mut rig = Rig::with(|config| config.max_reads = 1);
    rig.post(READ, 5).post(READ, 5).post(REGISTER, 0);
    assert_eq!(rig.psns(), [10]);
    assert_eq!(rig.executed(), []);
    rig.reply(data(10, true, true, 5));
    assert_eq!(rig.psns(), [11]);
    assert_eq!(rig.executed(), [2]);
}

#[test]
fn t016_t069_a_fenced_registration_waits_for_reads_and_for_nothing_else() {
    let mut rig = Rig::new();
    rig.post(SEND, 5).post_fenced(REGISTER, 0, true);
    assert_eq!(rig.psns(), [10]);
    assert_eq!(rig.executed(), [1]);
    rig.post(READ, 5).post_fenced(REGISTER, 0, true);
    assert_eq!(rig.psns(), [11]);
    assert_eq!(rig.executed(), [1]);
    rig.reply(data(11, true, true, 5));
    assert_eq!(rig.psns(), []);
    assert_eq!((rig.executed(), rig.done()), (&[1, 3][..], 4));
}

#[test]
fn t070_an_invalidate_waits_for_all_earlier_requests_and_all_later_ones_for_it() {
    let mut rig = Rig::new();
    rig.post(WRITE, 5)
        .post(READ, 5)
        .post(INVALIDATE, 0)
        .post(SEND, 5);
    assert_eq!(rig.psns(), [10, 11]);
    rig.reply(ack(10));
    assert_eq!(rig.psns(), []);
    assert_eq!(rig.executed(), []);
    rig.reply(data(11, true, true, 5));
    assert_eq!(rig.psns(), [12]);
    assert_eq!((rig.executed(), rig.done()), (&[2][..], 3));
}

#[test]
fn t012_t069_requests_complete_in_order_however_the_acknowledgements_come() {
    let mut rig = Rig::new();
    rig.post(SEND, 5).post(REGISTER, 0).post(REGISTER, 0);
    rig.post(SEND, 5).post(REGISTER, 0).post(SEND, 5);
    assert_eq!(rig.psns(), [10, 11, 12]);
    rig.reply(ack(11));
    assert_eq!(rig.completed(), [0, 1, 2, 3, 4]);
    rig.reply(ack(12));
    assert_eq!(rig.completed(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn t018_t069_what_is_sent_again_is_not_carried_out_again() {
    let mut rig = Rig::new();
    rig.post(SEND, 5).post(REGISTER, 0).post(SEND, 5);
    rig.post(REGISTER, 0).post(SEND, 5);
    assert_eq!(rig.psns(), [10, 11, 12]);
    rig.elapse();
    assert_eq!(rig.psns(), [10], "one packet, until the peer answers");
    rig.reply(ack(10));
    assert_eq!(rig.psns(), [11, 12]);
    rig.reply(nak(11, ib_wire::packet::NakCode::PSN_SEQUENCE_ERROR));
    assert_eq!(rig.psns(), [11, 12]);
    rig.reply(ack(12));
    assert_eq!(rig.executed(), [1, 3]);
    assert_eq!(rig.completed(), [0, 1, 2, 3, 4]);
    assert_eq!(rig.done(), 5);
}

#[test]
fn t068_t069_t070_a_refused_request_fails_the_queue_behind_those_before_it() {
    for operation in [REGISTER, INVALIDATE] {
        let mut rig = Rig::new();
        rig.end.host.bad_buffers.insert(1);
        rig.post(SEND, 5).post(operation, 0).post(SEND, 5);
        assert_eq!(rig.psns(), [10]);
        assert_eq!(rig.statuses(), []);
        rig.reply(ack(10));
        assert_eq!(rig.psns(), []);
        let expected = [Status::Success, Status::MemoryManagement, Status::Flushed];
        assert_eq!(rig.statuses(), expected);
        assert_eq!(rig.end.rc.requester().state(), RequesterState::Failed);
        assert!(rig.end.rc.is_failed());
    }
}

#[test]
fn t024_t069_a_request_that_fails_flushes_the_local_ones_behind_it() {
    let mut rig = Rig::with(|config| config.retries = RetryCount::from_low_bits(0));
    rig.post(SEND, 5).post(REGISTER, 0).post(INVALIDATE, 0);
    assert_eq!(rig.psns(), [10]);
    rig.elapse();
    let expected = [Status::RetryExceeded, Status::Flushed, Status::Flushed];
    assert_eq!(rig.statuses(), expected);
    assert_eq!(rig.executed(), [1]);
}

#[test]
fn t052_t069_a_drained_queue_carries_out_nothing_until_it_is_resumed() {
    let mut rig = Rig::new();
    rig.post(SEND, 5);
    assert_eq!(rig.psns(), [10]);
    rig.end.rc.drain(&mut rig.end.host);
    rig.post(REGISTER, 0);
    rig.reply(ack(10));
    assert_eq!(rig.psns(), []);
    assert_eq!(rig.end.rc.requester().state(), RequesterState::Drained);
    assert_eq!(rig.executed(), []);
    rig.end.rc.start();
    assert_eq!(rig.psns(), []);
    assert_eq!((rig.executed(), rig.done()), (&[1][..], 2));
}

#[test]
fn t069_a_poll_carries_out_so_many_requests_and_the_next_one_goes_on() {
    let mut rig = Rig::new();
    (0..40).for_each(|_| {
        rig.post(REGISTER, 0);
    });
    rig.post(SEND, 5);
    let mut before = 0;
    for most in [16, 32] {
        assert_eq!(rig.psns(), []);
        assert!(rig.executed().len() <= most && rig.executed().len() > before);
        before = rig.executed().len();
    }
    assert_eq!(rig.psns(), [10]);
    assert_eq!(rig.executed().len(), 40);
}
