use core::time::Duration;

use ib_vtime::Instant;
use ib_wire::notice::{MKeyDetails, Notice, TrapNumber};

use super::*;
use crate::DropReason;

const KEY: u64 = 0x1234_5678;

/// An adapter with a key, of some protection, and a lease of one second.
fn guarded(protect: u8) -> Node {
    let mut node = adapter();
    let mut info = managed(&mut node, 0);
    info.mkey = MKey::new(KEY);
    info.set_mkey_protect(protect);
    info.mkey_lease_period = 1.into();
    set(&mut node, 0, info);
    node
}

fn get_with(node: &mut Node, key: u64) -> Option<PortInfo> {
    let mad = request(Method::GET, 0, key, PortInfo::default());
    match process(node, PORT, &from_network(), &mad) {
        LocalMad::Reply(reply) => Some(*reply.view::<LidRoutedSmp>().attribute()),
        LocalMad::Consumed => None,
        LocalMad::NotHandled => panic!("not handled"),
    }
}

fn set_with(node: &mut Node, key: u64) -> bool {
    let mut info = get_with(node, KEY).unwrap();
    info.set_port_state(ib_wire::smp::PortState::NO_CHANGE);
    info.set_phys_state(ib_wire::smp::PortPhysState::NO_CHANGE);
    let mad = request(Method::SET, 0, key, info);
    process(node, PORT, &from_network(), &mad) != LocalMad::Consumed
}

#[test]
fn a_wrong_key_reads_as_far_as_the_protection_allows_and_never_writes() {
    for (protect, sees) in [(0, Some(KEY)), (1, Some(0)), (2, None), (3, None)] {
        let mut node = guarded(protect);
        let read = get_with(&mut node, 1).map(|info| info.mkey.get());
        assert_eq!(read, sees, "protection {protect}");
        assert!(!set_with(&mut node, 1), "protection {protect}");
    }
}

#[test]
fn the_right_key_and_the_host_itself_may_do_everything() {
    let mut node = guarded(3);
    assert_eq!(get_with(&mut node, KEY).unwrap().mkey.get(), KEY);
    assert!(set_with(&mut node, KEY));
    let mad = request(Method::GET, 0, 0, PortInfo::default());
    let local = process(&mut node, PORT, &MadView::Host, &mad);
    assert!(matches!(local, LocalMad::Reply(_)));
}

#[test]
fn a_violation_is_counted_and_told_the_sm() {
    let mut node = guarded(2);
    assert_eq!(get_with(&mut node, 0xbad), None);
    assert_eq!(node.port(PORT).unwrap().m_key_violations, 1);
    assert_eq!(node.drops().get(DropReason::BadMKey), 1);
    let (port, trap) = node.poll_trap().unwrap();
    assert_eq!(port, PORT);
    let notice: &Notice = trap.view::<LidRoutedSmp>().attribute();
    assert_eq!(notice.trap_number, TrapNumber::BAD_MKEY);
    let details: &MKeyDetails = notice.details();
    assert_eq!(details.mkey, MKey::new(0xbad));
    assert_eq!(details.attribute_id, PortInfo::ID);
    assert!(!details.dr_notice());
}

#[test]
fn a_lease_that_runs_out_opens_the_port_and_the_owner_stops_it() {
    let second = Duration::from_secs(1);
    let mut node = guarded(2);
    assert_eq!(get_with(&mut node, 1), None);
    // The owner shows up in time.
    assert!(get_with(&mut node, KEY).is_some());
    node.set_now(Instant::ZERO + second * 2);
    assert_eq!(get_with(&mut node, 1), None);
    node.set_now(Instant::ZERO + second * 3);
    let info = get_with(&mut node, 1).unwrap();
    assert_eq!(info.mkey_protect(), 0);
}

/// Two ports may be in two subnets, and the manager of the one is nobody to the other.
#[test]
fn the_key_of_the_other_port_guards_what_is_read_of_it() {
    const OTHER: PortNum = PortNum(2);
    for (protect, sees) in [(0, Some(KEY)), (1, Some(0)), (2, None), (3, None)] {
        let mut node = adapter();
        let other = node.port_mut(OTHER).unwrap();
        other.m_key = MKey::new(KEY);
        other.m_key_protect = protect;
        let mut read = |method, key| {
            let mad = request(method, u32::from(OTHER.0), key, PortInfo::default());
            match process(&mut node, PORT, &from_network(), &mad) {
                LocalMad::Reply(reply) => {
                    let info: &PortInfo = reply.view::<LidRoutedSmp>().attribute();
                    Some(info.mkey.get())
                }
                LocalMad::Consumed => None,
                LocalMad::NotHandled => panic!("not handled"),
            }
        };
        assert_eq!(read(Method::GET, 1), sees, "protection {protect}");
        assert_eq!(read(Method::GET, KEY), Some(KEY), "protection {protect}");
        assert_eq!(read(Method::SET, 1), None, "protection {protect}");
        let violations = node.port(OTHER).unwrap().m_key_violations;
        assert_eq!(violations, if protect < 2 { 1 } else { 2 });
        assert_eq!(node.port(PORT).unwrap().m_key_violations, 0);
    }
}
