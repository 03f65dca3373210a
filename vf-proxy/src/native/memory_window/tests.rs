use hca_api::{CompletionStatus, RemoteAddress, ResourceCounts, SendOp};

use super::*;
use crate::native::tests::loopback::{OK, Program, rights};
use crate::native::{MemoryRegion, VfPortError};

const ACCESS: CompletionStatus = CompletionStatus::RemoteAccess;

/// A program with a region whose peers have no rights but by windows, and a window.
fn program(kind: MwType) -> (Program, MemoryRegion, MemoryWindow) {
    let mut program = Program::new();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let region = program.on(|port, hca| port.reg_mr(hca, 4096, access));
    let window = program.on(|port, hca| port.alloc_mw(hca, kind));
    (program, region.unwrap(), window.unwrap())
}

/// Writes 8 bytes of the peer at an offset of the region.
fn write(program: &mut Program, region: MemoryRegion, rkey: RKey, offset: u32) -> CompletionStatus {
    let addr = region.remote(offset).addr;
    let sge = program.memory.sge(0, 8);
    program.post(1, SendOp::RdmaWrite(RemoteAddress { addr, rkey }), &[sge]);
    program.statuses(1)[0]
}

#[test]
fn t066_t067_a_program_binds_windows_by_requests_and_it_or_its_peer_ends_them() {
    for kind in [MwType::Type1, MwType::Type2] {
        let (mut program, region, window) = program(kind);
        let (mut key, bytes) = (window.first_key(), program.memory);
        for variant in 0..3_u8 {
            let start = u32::from(variant) * 64;
            let part = (region.remote(start).addr, 64);
            let bind = window.binding(key, variant, region.lkey(), part, rights());
            program.post(0, SendOp::BindWindow(bind), &[]);
            assert_eq!(program.statuses(0), [OK]);
            key = window.key(variant);
            program
                .on(|_, hca| bytes.write(hca, 0, &[variant + 1; 8]))
                .unwrap();
            assert_eq!(write(&mut program, region, key, start + 56), OK);
            let mut stored = [0; 8];
            let at = start as usize + 56;
            program
                .on(|_, hca| region.read(hca, at, &mut stored))
                .unwrap();
            assert_eq!(stored, [variant + 1; 8]);
            if kind == MwType::Type2 {
                program.post(0, SendOp::LocalInvalidate(key), &[]);
                assert_eq!(program.statuses(0), [OK]);
            }
        }
        let outside = if kind == MwType::Type1 { 57 } else { 0 };
        assert_eq!(write(&mut program, region, key, 128 + outside), ACCESS);
    }
}

#[test]
fn t068_a_region_with_windows_stays_the_ports_and_goes_after_them() {
    let (mut program, region, window) = program(MwType::Type1);
    let part = (region.addr(), 64);
    let bind = window.binding(window.first_key(), 0, region.lkey(), part, rights());
    program.post(0, SendOp::BindWindow(bind), &[]);
    assert_eq!(program.statuses(0), [OK]);
    let in_use = Err(VfPortError::Hca(HcaError::InUse));
    assert_eq!(program.on(|port, hca| port.dereg_mr(hca, region)), in_use);
    assert_eq!(write(&mut program, region, window.key(0), 0), OK);
    let gone = |program: &mut Program| program.on(|port, hca| port.dealloc_mw(hca, window));
    assert_eq!(gone(&mut program), Ok(()));
    assert_eq!(gone(&mut program), Err(VfPortError::NoWindow));
    assert_eq!(program.on(|port, hca| port.dereg_mr(hca, region)), Ok(()));
}

#[test]
fn windows_that_a_program_leaves_go_with_it_before_their_regions() {
    let (mut program, region, window) = program(MwType::Type1);
    let part = (region.addr(), 64);
    let bind = window.binding(window.first_key(), 0, region.lkey(), part, rights());
    program.post(0, SendOp::BindWindow(bind), &[]);
    assert_eq!(program.statuses(0), [OK]);
    assert_eq!(program.close(), ResourceCounts::default());
}
