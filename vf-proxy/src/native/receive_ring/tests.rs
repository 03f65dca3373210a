use hca_api::{Payload, QpState, SendFlags, SendOp};

use super::*;
use crate::native::tests::loopback::Program;

/// First name of the receives.
const NAME: u64 = 100;

impl Program {
    fn ring(&mut self, count: u32) -> ReceiveRing {
        let ring = self.on(|port, hca| ReceiveRing::allocate(port, hca, NAME, count, 64));
        let mut ring = ring.unwrap();
        self.on_qp(1, |qp, hca| ring.fill(hca, qp)).unwrap();
        ring
    }

    /// Hands the completions of the receiver to its ring.
    fn received(&mut self, ring: &mut ReceiveRing) -> Vec<Result<Received, CompletionStatus>> {
        let done = self.completions(1);
        let taken = done
            .iter()
            .filter_map(|done| self.on_qp(1, |qp, hca| ring.receive(hca, qp, done)));
        taken.collect()
    }
}

#[test]
fn a_ring_of_two_takes_any_number_of_messages_in_order() {
    let mut program = Program::new();
    let mut ring = program.ring(2);
    for round in 0..100_u8 {
        let messages = [vec![round; 3], vec![round; 64]];
        for message in &messages {
            let sent = program.on_qp(0, |qp, hca| {
                let payload = Payload::Inline(message);
                qp.post_send(hca, 1, SendOp::Send, payload, SendFlags::empty())
            });
            sent.unwrap();
        }
        let received = program.received(&mut ring).into_iter();
        let bytes: Vec<_> = received.map(|message| message.unwrap().bytes).collect();
        assert_eq!(bytes, messages);
        assert_eq!(ring.posted(), 2);
        program.completions(0);
    }
}

#[test]
fn immediate_data_and_keys_that_peers_invalidated_come_with_the_message() {
    let mut program = Program::new();
    let mut ring = program.ring(4);
    let remote = program.memory.remote(0);
    let sge = program.memory.sge(0, 8);
    program.post(0, SendOp::SendImmediate(7), &[sge]);
    program.post(0, SendOp::RdmaWriteImmediate(remote, 8), &[sge]);
    let received = program.received(&mut ring).into_iter();
    let received = received.map(|message| {
        let message = message.unwrap();
        (message.bytes.len(), message.immediate, message.invalidated)
    });
    let expected = [(8, Some(7), None), (0, Some(8), None)];
    assert_eq!(received.collect::<Vec<_>>(), expected);
}

#[test]
fn buffers_that_were_flushed_stay_with_their_owner() {
    let mut program = Program::new();
    let mut ring = program.ring(3);
    program
        .on_qp(1, |qp, hca| qp.drain_receive(hca, 9))
        .unwrap();
    let done = program.completions(1);
    let names: Vec<_> = done.iter().map(|done| done.wr_id).collect();
    assert_eq!(names, [NAME, NAME + 1, NAME + 2, 9]);
    for done in &done {
        let taken = program.on_qp(1, |qp, hca| ring.receive(hca, qp, done));
        let is_ours = done.wr_id != 9;
        assert_eq!(taken, is_ours.then_some(Err(CompletionStatus::Flushed)));
    }
    assert_eq!(ring.posted(), 0);
    let state = program.on_qp(1, |qp, hca| qp.query(hca)).unwrap().state;
    assert_eq!(state, QpState::Error);
    let region = ring.region;
    program.on(|port, hca| ring.deallocate(port, hca)).unwrap();
    let gone = program.on(|port, hca| port.dereg_mr(hca, region));
    assert_eq!(gone, Err(VfPortError::NoRegion));
}
