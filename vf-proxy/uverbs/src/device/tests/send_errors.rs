//! Requests that fail before the provider has them.

use hca_api::Cause;
use verbs_link::abi::queue_pair::QueryQpAnswer;

use super::*;

const LOCAL_QP_OP: u32 = 2;
const FLUSHED: u32 = 5;

impl Datagrams {
    /// Returns the state of the queue pair (`enum ibv_qp_state`).
    fn state(&mut self) -> u8 {
        let query = AnsweredHandleCommand {
            handle: self.qp.into(),
            ..AnsweredHandleCommand::default()
        };
        let (state, ()): (QueryQpAnswer, ()) = self.process.ask(command::QUERY_QP, &query);
        state.qp_state
    }

    fn outcome(&self, index: u64) -> (u64, u32, u32) {
        let done = self.completion(index);
        (done.wr_id.get(), done.status.get(), done.vendor_err.get())
    }
}

/// IBA 10.3.1.6.
#[test]
fn t023_a_wrong_request_of_a_datagram_queue_pair_stops_its_send_queue_alone() {
    const SQE: u8 = 5;
    const SQD: u8 = 4;
    const RTS: u8 = 3;

    for (opcode, has_address, cause) in [
        (opcode::RDMA_WRITE, true, Cause::BadRequest),
        (opcode::SEND, false, Cause::BadAddress),
        (0x7f, true, Cause::BadRequest),
    ] {
        let mut queues = datagrams();
        let receive = ReceiveElement {
            wr_id: 3.into(),
            ..ReceiveElement::default()
        };
        queues.write(queues.rings.receive, 0, receive.as_bytes(), 1);
        let mut wrong = SendElement {
            wr_id: 1.into(),
            opcode: opcode.into(),
            ..SendElement::default()
        };
        if has_address {
            let to = queues.own_address();
            wrong.arguments[..to.as_bytes().len()].copy_from_slice(to.as_bytes());
        }
        queues.post(0, wrong.as_bytes());
        queues.send(2, 1);
        let failed = (1, LOCAL_QP_OP, cause as u32);
        assert_eq!(
            [0, 1].map(|at| queues.outcome(at)),
            [failed, (2, FLUSHED, 0)]
        );
        assert_eq!(queues.state(), SQE);
        assert_eq!(queues.modify(SQD, 0).map(|_| ()), Err(Errno::EINVAL));
        queues.modify(RTS, 0).unwrap();
        assert_eq!(queues.state(), RTS);
        // A receive too short for it fails, which shows that the send left.
        queues.send(4, 2);
        let too_short = (3, 1, Cause::ReceiveTooShort as u32);
        let done = [2, 3].map(|at| queues.outcome(at));
        assert!(
            done.contains(&too_short) && done.contains(&(4, 0, 0)),
            "{done:?}"
        );
    }
}

#[test]
fn t023_a_wrong_request_of_a_reliable_connection_ends_it() {
    let mut queues = queues_of(2, 4);
    let wrong = SendElement {
        opcode: 0x7f.into(),
        ..SendElement::default()
    };
    let mask = attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::ACCESS_FLAGS;
    queues.modify(1, mask).unwrap();
    queues.post(0, wrong.as_bytes());
    assert_eq!(queues.completion(0).status.get(), LOCAL_QP_OP);
    assert_eq!(queues.state(), 6);
}
