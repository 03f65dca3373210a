use hca_api::{CompletionStatus, ResourceCounts, SendOp};

use super::*;
use crate::native::tests::loopback::Program;
use crate::native::{ConnectedQpSpec, Partition, VfPortError};
use ib_wire::PKey;

/// A queue pair of 16 sends and as many receives.
fn spec() -> ConnectedQpSpec {
    let mut spec = ConnectedQpSpec::rc(Partition::Key(PKey::DEFAULT_FULL));
    (spec.caps.max_send_wr, spec.caps.max_recv_wr) = (16, 16);
    spec
}

/// A program with queue pairs on one completion queue of their size, each in ERR with `requests` flushed.
fn flushed(requests: &[u64]) -> (Program, SharedCompletionsId, Vec<ConnectedQpId>) {
    let mut program = Program::new();
    let entries = 32 * u32::try_from(requests.len()).unwrap();
    let (shared, qps) = program.on(|port, hca| {
        let shared = port.create_shared_completions(hca, entries).unwrap();
        let mut open = || port.open_connected_qp_on(hca, &spec(), shared);
        let qps: Vec<_> = requests.iter().map(|_| open().unwrap()).collect();
        let full = VfPortError::Hca(HcaError::InsufficientResources);
        assert_eq!(open(), Err(full));
        for (qp, count) in qps.iter().zip(requests) {
            let qp = port.connected_qp(*qp).unwrap();
            for name in 0..*count {
                qp.drain_receive(hca, name).unwrap();
            }
            assert_eq!(qp.poll_cq(hca), None);
        }
        (shared, qps)
    });
    (program, shared, qps)
}

#[test]
fn a_queue_pair_with_many_completions_leaves_each_other_its_turn() {
    let (mut program, shared, qps) = flushed(&[12, 2, 0, 1]);
    let mut polled = Vec::new();
    loop {
        let some = program.on(|port, hca| port.poll_shared_completions(hca, shared, 4));
        let some = some.unwrap();
        let is_all = some.len() < 4;
        polled.push(some);
        if is_all {
            break;
        }
    }
    let sizes: Vec<_> = polled.iter().map(Vec::len).collect();
    assert_eq!(sizes, [4, 4, 4, 3]);
    let of = |number: usize| qps.iter().position(|qp| *qp == polled[0][number].0);
    assert_eq!([0, 1, 2, 3].map(of), [Some(0), Some(1), Some(3), Some(0)]);
    for (qp, count) in qps.iter().zip([12, 2, 0, 1]) {
        let own = polled.iter().flatten().filter(|(id, _)| id == qp);
        let names: Vec<_> = own.map(|(_, done)| done.wr_id).collect();
        assert_eq!(names, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn completions_of_a_queue_pair_that_is_closed_go_with_it() {
    let (mut program, shared, qps) = flushed(&[3, 3]);
    let before = program.on(|port, hca| {
        let polled = port.poll_shared_completions(hca, shared, 1).unwrap();
        assert_eq!(polled[0].0, qps[0]);
        port.close_connected_qp(hca, qps[0]).unwrap();
        let in_use = port.destroy_shared_completions(hca, shared);
        assert_eq!(in_use, Err(VfPortError::Hca(HcaError::InUse)));
        // The room is free again.
        let next = port.open_connected_qp_on(hca, &spec(), shared).unwrap();
        let polled = port.poll_shared_completions(hca, shared, 10).unwrap();
        assert!(polled.iter().all(|(id, _)| *id == qps[1]));
        assert_eq!(polled.len(), 3);
        port.close_connected_qp(hca, next).unwrap();
        port.close_connected_qp(hca, qps[1]).unwrap();
        port.destroy_shared_completions(hca, shared).unwrap();
        port.destroy_shared_completions(hca, shared)
    });
    assert_eq!(before, Err(VfPortError::NoSharedCompletions));
    assert_eq!(program.close(), ResourceCounts::default());
}

#[test]
fn a_shared_queue_announces_the_next_completion_after_it_was_empty() {
    use crate::native::VfPortEvent;

    let (mut program, shared, qps) = flushed(&[1, 0]);
    let ready = VfPortEvent::SharedCompletionsReady(shared);
    let failed = VfPortEvent::ConnectionFailed(qps[1]);
    assert_eq!(program.events(), std::slice::from_ref(&ready));
    let drain = |program: &mut Program, name| {
        program.on(|port, hca| {
            let qp = port.connected_qp(qps[1]).unwrap();
            qp.drain_send(hca, name).unwrap();
        });
    };
    drain(&mut program, 1);
    assert_eq!(program.events(), []);
    let poll = |program: &mut Program, budget| {
        let polled = program.on(|port, hca| port.poll_shared_completions(hca, shared, budget));
        let polled = polled.unwrap().into_iter();
        polled.map(|(_, done)| done.status).collect::<Vec<_>>()
    };
    let flushed = CompletionStatus::Flushed;
    assert_eq!(poll(&mut program, 2), [flushed; 2]);
    drain(&mut program, 2);
    assert_eq!(program.events(), []);
    assert_eq!(poll(&mut program, 9), [flushed]);
    drain(&mut program, 3);
    let events = program.events();
    assert!(events.contains(&ready) && !events.contains(&failed));
    program.post(0, SendOp::Send, &[]);
    assert!(!program.events().contains(&ready));
}

#[test]
fn what_a_program_leaves_of_shared_completions_goes_with_it() {
    let (program, _, _) = flushed(&[3, 0]);
    assert_eq!(program.close(), ResourceCounts::default());
}
