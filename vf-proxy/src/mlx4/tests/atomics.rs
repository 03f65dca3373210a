//! Masked atomic operations as kernels of guests post them: RDS posts no others (kernel `rds_ib_xmit_atomic`).

use mlx4_defs::wqe::{AtomicSegment, MaskedAtomicSegment, RemoteAddressSegment, WqeOpcode};

use super::super::capability::RESERVED_LKEY;
use super::queue_scene::*;
use super::registration::{SHARED, START, Scene, names, segment};
use super::*;

/// Page that the peer's operations reach.
const TARGET: u64 = 34;

#[test]
fn masked_atomic_operations_of_a_guest_reach_its_peers_memory_and_return_what_was_there() {
    let mut scene = Scene::new();
    let list = scene.list(&[TARGET, 32]);
    let key = scene.key(1);
    let register = segment(key, 8000, list);
    scene.post(0, control(WqeOpcode::FMR), register.as_bytes());
    scene.run();
    let (target, shared) = (scene.guest.page(TARGET) + 16, scene.guest.page(SHARED));
    let remote = RemoteAddressSegment {
        address: U64::new(START),
        rkey: U32::new(key),
        ..RemoteAddressSegment::default()
    };
    let swap = MaskedAtomicSegment {
        swap_add: U64::new(0xaaaa),
        compare: U64::new(0x1234),
        swap_add_mask: U64::new(0x0ff0),
        compare_mask: U64::new(0xff),
    };
    let add = AtomicSegment {
        swap_add: U64::new(0x0101),
        compare: U64::new(0x8080),
    };
    let into = data(shared, 8, RESERVED_LKEY);
    for (opcode, operands, original, then) in [
        (WqeOpcode::MASKED_ATOMIC_CS, swap.as_bytes(), 0x5634, 0x5aa4),
        (WqeOpcode::MASKED_ATOMIC_CS, swap.as_bytes(), 0x5635, 0x5635),
        (WqeOpcode::MASKED_ATOMIC_FA, add.as_bytes(), 0xffff, 0),
    ] {
        scene.guest.write(target, &u64::to_ne_bytes(original));
        let segments = [remote.as_bytes(), operands, into.as_bytes()].concat();
        scene.post(1, control(opcode), &segments);
        let [_, done] = scene.run();
        assert_eq!(names(&done)[0].0, opcode.get());
        assert_eq!(scene.guest.read::<8>(shared), u64::to_ne_bytes(original));
        assert_eq!(scene.guest.read::<8>(target), u64::to_ne_bytes(then));
    }
}
