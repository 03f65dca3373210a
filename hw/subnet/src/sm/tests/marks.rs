//! Marks of changes on switches (SwitchInfo:PortStateChange).

use ib_wire::smp::SmpAttribute;

use super::*;

#[test]
fn a_link_that_comes_up_after_its_port_was_read_in_the_first_sweep_is_found_at_once() {
    let mut fabric = small();
    fabric.unlink((2, 1));
    let mut world = World::new(fabric);
    world.manager(0, SubnetConfig::default());
    let mut is_linked = false;
    while let Some(sent) = {
        let now = world.now;
        world.sm(0).poll_transmit(now)
    } {
        let header = &sent.mad.header;
        let clears = header.method == Method::SET && header.attribute_id == SwitchInfo::ID;
        if clears && !core::mem::replace(&mut is_linked, true) {
            world.fabric.link((2, 1), (4, 3));
        }
        world.carry(0, sent);
    }
    assert!(is_linked);
    // The next light sweep is later.
    world.run(1_000);
    assert_ne!(world.fabric.lid(2), Lid::NONE);
    world.assert_all_reachable();
}
