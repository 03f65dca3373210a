//! Connections of a function that is held.

use super::*;

#[test]
fn a_write_to_a_held_function_waits_and_one_of_its_own_does_too() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.write(&a, 0, b"from a");
    rig.write(&b, 64, b"from b");
    rig.write(&b, 0, &[0; 6]);
    let node = rig.hosts[1];
    let sge = |end: &End, offset: usize| Sge {
        addr: end.memory.addr + offset as u64,
        len: 6,
        lkey: end.keys.lkey,
    };
    rig.post(&b, 2, SendOp::RdmaWrite(a.remote(64)), sge(&b, 64))
        .unwrap();
    rig.fabric.device_mut(node).unwrap().hold(PF, true);
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), sge(&a, 0))
        .unwrap();
    rig.run(1);
    assert_eq!(rig.read(&b, 0, 6), [0; 6]);
    assert_eq!(rig.read(&a, 64, 6), [0; 6]);
    assert_eq!(rig.outcomes(&a), []);
    rig.fabric.device_mut(node).unwrap().hold(PF, false);
    rig.run(1);
    assert_eq!(rig.read(&b, 0, 6), b"from a");
    assert_eq!(rig.read(&a, 64, 6), b"from b");
    assert_eq!(rig.outcomes(&a), [(1, CompletionStatus::Success)]);
    assert_eq!(rig.outcomes(&b), [(2, CompletionStatus::Success)]);
}
