use hca_api::{CompletionFlags, CompletionStatus, LKey, ResourceCounts, SendOp, Sge};

use super::*;
use crate::native::VfPortError;
use crate::native::tests::loopback::{OK, Program, START, rights};

#[test]
fn t069_t070_t071_a_program_registers_pages_by_requests_and_it_or_its_peer_invalidates_them() {
    let mut program = Program::new();
    let most = rights() | AccessFlags::REMOTE_INVALIDATE;
    let region = program.on(|port, hca| port.alloc_mr(hca, 4, most)).unwrap();
    assert_eq!(region.max_pages(), 4);
    let first = program.memory.addr() & !0xfff;
    let pages = [first + (3 << 12), first + (2 << 12)];
    let memory = program.memory;
    for variant in 1..4 {
        let given = region.registration(variant, (START, 5000), &pages, rights());
        program.post(0, SendOp::FastRegister(given), &[]);
        // The request behind it uses the region.
        let remote = memory.remote(1 << 15);
        let sge = Sge {
            addr: START,
            len: 5000,
            lkey: LKey(region.key(variant).0),
        };
        program.post(0, SendOp::RdmaWrite(remote), &[sge]);
        assert_eq!(program.statuses(0), [OK, OK]);
        let mark = [variant; 8];
        program.on(|_, hca| memory.write(hca, 0, &mark)).unwrap();
        assert_eq!(program.write_by(region.key(variant)), [OK]);
        let mut stored = [0; 8];
        program
            .on(|_, hca| hca.dma_read(pages[0] + 0x100, &mut stored))
            .unwrap();
        assert_eq!(stored, mark);
        if variant == 2 {
            let id = program.ends[0];
            let received = program.on(|port, hca| {
                let qp = port.connected_qp(id).unwrap();
                qp.post_recv(hca, 2, &[]).unwrap();
                id
            });
            let sends = SendOp::SendInvalidate(region.key(variant));
            program.post(1, sends, &[]);
            assert_eq!(program.statuses(1), [OK]);
            let done =
                program.on(|port, hca| port.connected_qp(received).unwrap().poll_cq(hca).unwrap());
            assert_eq!(done.flags, CompletionFlags::INVALIDATED);
            assert_eq!(done.immediate, region.key(variant).0);
        } else {
            program.post(0, SendOp::LocalInvalidate(region.key(variant)), &[]);
            assert_eq!(program.statuses(0), [OK]);
        }
    }
    assert_eq!(
        program.write_by(region.key(3)),
        [CompletionStatus::RemoteAccess]
    );
    let gone = |program: &mut Program| program.on(|port, hca| port.dealloc_mr(hca, region));
    assert_eq!(gone(&mut program), Ok(()));
    assert_eq!(gone(&mut program), Err(VfPortError::NoRegion));
}

#[test]
fn t069_a_region_that_is_not_empty_or_too_small_ends_the_connection() {
    for (len, times) in [(4097, 1), (64, 2)] {
        let mut program = Program::new();
        let allocated = program.on(|port, hca| port.alloc_mr(hca, 1, rights()));
        let region = allocated.unwrap();
        let pages = [program.memory.addr() & !0xfff];
        let given = region.registration(0, (START & !0xfff, len), &pages, rights());
        for _ in 0..times {
            program.post(0, SendOp::FastRegister(given), &[]);
        }
        let done = program.statuses(0);
        assert_eq!(done.last(), Some(&CompletionStatus::MwBind));
    }
}

#[test]
fn what_a_program_leaves_of_such_regions_goes_with_it() {
    let mut program = Program::new();
    program
        .on(|port, hca| port.alloc_mr(hca, 4, rights()))
        .unwrap();
    assert_eq!(program.close(), ResourceCounts::default());
}
