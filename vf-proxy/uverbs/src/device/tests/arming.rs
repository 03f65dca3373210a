//! Completion queues that a program arms without an answer.

use verbs_link::abi::completion_queue::ResizeCqAnswer;

use super::*;

/// Returns the number of events that wait.
fn events(queues: &mut Datagrams) -> usize {
    core::iter::from_fn(|| queues.process.device.poll_event()).count()
}

#[test]
fn a_completion_that_came_since_the_program_looked_wakes_it_at_once() {
    let mut queues = datagrams();
    let (context, cq) = (queues.process.context, queues.cq);
    queues.send(1, 0);
    assert_eq!(events(&mut queues), 0);
    queues.process.device.arm(context, cq, false, 0);
    assert_eq!(events(&mut queues), 1, "the one after index 0");
    queues.process.device.arm(context, cq, false, 1);
    assert_eq!(events(&mut queues), 0, "the program saw it");
    queues.send(2, 1);
    assert_eq!(events(&mut queues), 1, "the next one");
    queues.send(3, 2);
    assert_eq!(events(&mut queues), 0, "armed once");
}

#[test]
fn a_program_that_waits_for_solicited_completions_sleeps_through_others() {
    let mut queues = datagrams();
    let (context, cq) = (queues.process.context, queues.cq);
    queues.send(1, 0);
    queues.process.device.arm(context, cq, true, 0);
    assert_eq!(events(&mut queues), 0);
    // One that waits for any completion is not made to wait for solicited ones.
    queues.process.device.arm(context, cq, false, 1);
    queues.process.device.arm(context, cq, true, 1);
    queues.send(2, 1);
    assert_eq!(events(&mut queues), 1);
}

#[test]
fn queues_of_other_files_and_wild_indices_harm_none() {
    let mut queues = datagrams();
    let (context, cq) = (queues.process.context, queues.cq);
    queues.process.device.arm(context, cq + 100, false, 0);
    let other = queues.process.device.open().unwrap();
    queues.process.device.arm(other, cq, false, 0);
    queues.send(1, 0);
    assert_eq!(events(&mut queues), 0, "no file with the queue armed it");
    for seen in [u32::MAX, 1 << 31, 0x1001] {
        queues.process.device.arm(context, cq, false, seen);
        assert!(events(&mut queues) <= 1, "{seen:#x}");
    }
}

/// Indices of the new ring say nothing about the old one.
#[test]
fn the_first_arming_after_a_resize_wakes_the_program() {
    let mut queues = datagrams();
    let (context, cq) = (queues.process.context, queues.cq);
    queues.send(1, 0);
    let resize = ResizeCq {
        cq_handle: cq.into(),
        cqe: 100.into(),
        ..ResizeCq::default()
    };
    let resized = size_of::<ResizeCqAnswer>() + size_of::<RxeCqAnswer>();
    let process = &mut queues.process;
    process
        .command(command::RESIZE_CQ, &resize, resized)
        .unwrap();
    process.device.arm(context, cq, false, 1);
    assert_eq!(events(&mut queues), 1);
    queues.process.device.arm(context, cq, false, 1);
    assert_eq!(events(&mut queues), 0);
}
