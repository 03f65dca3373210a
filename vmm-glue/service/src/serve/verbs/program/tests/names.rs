//! Addresses of a network that is not loopback: VFs are nodes of IP over InfiniBand.

use super::*;

/// A service with a VF for programs on each host, whose addresses begin with 10.77.
fn on_a_network() -> Service {
    let options = Options {
        verbs_network: "10.77.0.0/16".parse().unwrap(),
        ..options()
    };
    started(&options)
}

/// Resolves an address on a VF whose table has no other VFs, as if they were of another service. Returns the number and the status of
/// the event, and the GID that was found.
fn resolve_beyond(service: &mut Service, from: Opened, to: Ipv4Addr) -> (u32, i32, Gid) {
    let id = from.create(service, TCP);
    let mut resolve = ResolveAddr {
        id: id.into(),
        dst_size: 16.into(),
        ..ResolveAddr::default()
    };
    resolve.dst_addr[..2].copy_from_slice(&2_u16.to_ne_bytes());
    resolve.dst_addr[4..8].copy_from_slice(&to.octets());
    let mut addresses = service.lab().addresses(from.at).unwrap();
    addresses.gids.clear();
    let header = CmCommandHeader {
        command: cm_command::RESOLVE_ADDR.into(),
        in_bytes: 288.into(),
        out_bytes: 0.into(),
    };
    let bytes = [header.as_bytes(), resolve.as_bytes()].concat();
    let world = service.lab_mut().world_mut();
    let done = world.with_consumer(from.at, |vf: &mut VfProgram, hca, now| {
        vf.cm_command(now, hca, &addresses, from.channel, &bytes)
    });
    done.unwrap().unwrap();
    let event = from.event(service);
    let query = IdCommand {
        id: id.into(),
        argument: 2.into(),
        ..IdCommand::default()
    };
    let answer = from.command(service, cm_command::QUERY, query.as_bytes());
    let answer = QueryAddrAnswer::read_from_bytes(&answer).unwrap();
    let mut gid = [0; 16];
    gid.copy_from_slice(&answer.dst_addr[8..24]);
    let status = event.status.get().cast_signed();
    (event.event.get(), status, Gid(gid))
}

#[test]
fn a_vf_finds_another_that_its_service_does_not_know_by_arp() {
    let mut service = on_a_network();
    let asking = Opened::new(&mut service, "H2-1");
    let (to, gid) = address_of(&service, asking, "H1-1");
    assert_eq!(to.octets()[..2], [10, 77]);
    let resolved = (cm_event::ADDR_RESOLVED, 0, gid);
    assert_eq!(resolve_beyond(&mut service, asking, to), resolved);
    // A program that comes and goes leaves a VF that answers by a new queue pair.
    let gone = Opened::new(&mut service, "H1-1");
    service.lab_mut().release_vf(gone.at);
    pass(&mut service, Duration::from_secs(40));
    assert_eq!(resolve_beyond(&mut service, asking, to), resolved);
}

#[test]
fn an_address_that_no_node_has_is_an_error_after_three_seconds() {
    let mut service = on_a_network();
    let asking = Opened::new(&mut service, "H2-1");
    let id = asking.create(&mut service, TCP);
    let mut resolve = ResolveAddr {
        id: id.into(),
        dst_size: 16.into(),
        ..ResolveAddr::default()
    };
    resolve.dst_addr[..2].copy_from_slice(&2_u16.to_ne_bytes());
    resolve.dst_addr[4..8].copy_from_slice(&[10, 77, 200, 1]);
    asking.command(&mut service, cm_command::RESOLVE_ADDR, resolve.as_bytes());
    pass(&mut service, Duration::from_millis(2900));
    let world = service.lab_mut().world_mut();
    let vf = world.consumer_mut::<VfProgram>(asking.at).unwrap();
    assert!(vf.cm.poll_event().is_none());
    pass(&mut service, Duration::from_millis(100));
    asking.expect(&mut service, cm_event::ADDR_ERROR, -110);
}
