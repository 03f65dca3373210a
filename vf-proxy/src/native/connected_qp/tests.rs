use hca_api::{CompletionOp, CompletionStatus, DeviceCaps};
use ib_wire::packet::FlushPlacement;

use super::*;
use crate::native::tests::loopback::{OK, Program, rights};

#[test]
fn drained_queues_have_completed_all_before_the_mark() {
    let mut program = Program::new();
    let sge = program.memory.sge(0, 64);
    program.on_qp(0, |qp, hca| {
        for name in 10..13 {
            qp.post_recv(hca, name, &[sge]).unwrap();
        }
    });
    for _ in 0..5 {
        let remote = program.memory.remote(1 << 15);
        program.post(0, SendOp::RdmaWrite(remote), &[sge]);
    }
    program.on_qp(0, |qp, hca| {
        qp.drain_send(hca, 77).unwrap();
        qp.drain_receive(hca, 78).unwrap();
    });
    let done = program.completions(0);
    let flushed = done
        .iter()
        .filter(|done| done.status == CompletionStatus::Flushed);
    let names: Vec<_> = flushed.map(|done| done.wr_id).collect();
    let (sends, receives): (Vec<u64>, Vec<u64>) =
        names.into_iter().partition(|name| [1, 77].contains(name));
    assert_eq!(sends, [1, 1, 1, 1, 1, 77]);
    assert_eq!(receives, [10, 11, 12, 78]);
    // A second drain is no error.
    program.on_qp(0, |qp, hca| qp.drain_send(hca, 79)).unwrap();
    assert_eq!(program.completions(0)[0].wr_id, 79);
}

#[test]
fn a_query_returns_what_the_queue_pair_was_made_of_and_connected_to() {
    let mut program = Program::new();
    let other = program.on_qp(1, |qp, _| qp.qpn());
    let (spec, before) = program.on_qp(0, |qp, hca| (*qp.spec(), qp.query(hca).unwrap()));
    assert_eq!(before.kind, spec.kind);
    assert_eq!(before.state, QpState::ReadyToSend);
    assert_eq!(before.caps, spec.caps);
    assert_eq!(before.port, Some(PortNum(1)));
    assert_eq!(before.access, spec.qp_access_flags);
    assert_eq!((before.dest_qpn, before.path_mtu), (other, Mtu::MTU_1024));
    assert_eq!(before.primary.map(|path| path.dlid), Some(before.dest_lid));
    assert_eq!((before.sq_psn, before.rq_psn), (spec.sq_psn, spec.sq_psn));
    let limits = [before.timeout, before.retry_count, before.rnr_retry];
    assert_eq!(limits, [spec.timeout, spec.retry_cnt, spec.rnr_retry]);
    let reads = [before.max_rd_atomic, before.max_dest_rd_atomic];
    assert_eq!(reads, [spec.max_rd_atomic, spec.max_dest_rd_atomic]);
    assert_eq!(before.min_rnr_timer, spec.min_rnr_timer);
    assert!(!before.draining);

    let (sge, remote) = (program.memory.sge(0, 3000), program.memory.remote(1 << 15));
    program.post(0, SendOp::RdmaWrite(remote), &[sge]);
    assert_eq!(program.statuses(0), [OK]);
    let after = [0, 1].map(|end| program.on_qp(end, |qp, hca| qp.query(hca)).unwrap());
    let next = Psn::from_low_bits(3);
    assert_eq!((after[0].sq_psn, after[1].rq_psn), (next, next));
    program.on_qp(0, |qp, hca| qp.drain_send(hca, 1)).unwrap();
    let state = program.on_qp(0, |qp, hca| qp.query(hca)).unwrap().state;
    assert_eq!(state, QpState::Error);
}

#[test]
fn an_atomic_write_stores_8_bytes_of_its_list_or_with_its_request() {
    let mut program = Program::new();
    program.on(|_, hca| assert!(hca.attributes().caps.contains(DeviceCaps::ATOMIC_WRITE)));
    let memory = program.memory;
    let op = SendOp::AtomicWrite(memory.remote(1 << 15));
    program.on(|_, hca| memory.write(hca, 0, &[7; 8]).unwrap());
    program.post(0, op, &[memory.sge(0, 8)]);
    let done = program.completions(0);
    let [done] = done[..] else {
        panic!("{done:?}");
    };
    assert_eq!((done.status, done.op), (OK, CompletionOp::AtomicWrite));
    let mut stored = [0; 8];
    program.on(|_, hca| memory.read(hca, 1 << 15, &mut stored).unwrap());
    assert_eq!(stored, [7; 8]);
    program.on_qp(0, |qp, hca| {
        let payload = Payload::Inline(&[9; 8]);
        qp.post_send(hca, 2, op, payload, SendFlags::empty())
            .unwrap();
    });
    assert_eq!(program.statuses(0), [OK]);
    program.on(|_, hca| memory.read(hca, 1 << 15, &mut stored).unwrap());
    assert_eq!(stored, [9; 8]);
    program.post(0, op, &[memory.sge(0, 7)]);
    assert_eq!(program.statuses(0), [CompletionStatus::LocalLength]);
}

#[test]
fn a_flush_completes_for_regions_with_the_right_and_ends_the_connection_for_others() {
    let mut program = Program::new();
    program.on(|_, hca| assert!(hca.attributes().caps.contains(DeviceCaps::FLUSH_GLOBAL)));
    let access = rights() | AccessFlags::FLUSH_GLOBAL;
    let open = program.on(|port, hca| port.reg_mr(hca, 4096, access).unwrap());
    let flush = |remote, len| SendOp::Flush {
        remote,
        len,
        placement: FlushPlacement::GLOBAL,
    };
    program.post(0, SendOp::RdmaWrite(open.remote(0)), &[open.sge(8, 8)]);
    for len in [Some(4096), Some(0), None] {
        program.post(0, flush(open.remote(0), len), &[]);
    }
    let done = program.completions(0);
    let ops: Vec<_> = done.iter().map(|done| (done.status, done.op)).collect();
    let flushed = (OK, CompletionOp::Flush);
    assert_eq!(
        ops,
        [(OK, CompletionOp::RdmaWrite), flushed, flushed, flushed]
    );
    let closed = program.memory.remote(0);
    program.post(0, flush(closed, Some(8)), &[]);
    assert_eq!(program.statuses(0), [CompletionStatus::RemoteAccess]);
}
