//! Calls of the administrator about a VF's port, and its view.

use hca_api::{Hca, PortChange, PortState, ResourceCounts};
use ib_endpoint::EndPortEvent;
use ib_vtime::Duration;
use ib_wire::{Guid, PKey, PKeyIndex, PortNum};
use mad_mux::policy::Rights;
use pf_context::context::{GuidSource, PfConfig, PfError, PfEvent, PfPort, VfPortSpec};
use pf_context::guids::GuidWish;
use pf_context::inspect::Inspect;
use pf_context::{AddVfError, EgressLimit, GuidObstacle, PortReason};

use super::*;

fn port(rig: &Rig) -> &PfPort {
    &rig.host.context().ports()[0]
}

/// Returns the union of a guest's port events.
fn told(rig: &mut Rig, n: u16) -> PortChange {
    let guest = guest(&mut rig.host, usize::from(n - 1));
    let changes = std::iter::from_fn(|| guest.poll_event()).filter_map(|event| match event {
        EndPortEvent::Port(change) => Some(change),
        _ => None,
    });
    changes.fold(PortChange::empty(), |all, change| all | change)
}

/// Returns the reasons of the port events that the context reports.
fn reasons(rig: &mut Rig, n: u16) -> Vec<PortReason> {
    let events = std::iter::from_fn(|| rig.host.context_mut().poll_event());
    let of_vf = events.filter_map(|event| match event {
        PfEvent::VfPort { vf: of, reason, .. } if of == vf(n) => Some(reason),
        _ => None,
    });
    of_vf.collect()
}

/// Describes a VF that gets its GUID from the SA.
fn of_sa(n: u16, wish: GuidWish) -> VfSpec {
    let mut spec = spec(n);
    spec.ports[0].guid = GuidSource::Sa(wish);
    spec
}

#[test]
fn a_vf_that_is_not_there_is_refused_whatever_is_wanted_of_it() {
    let mut rig = Rig::new(1);
    let (pf, mut hca) = rig.pf();
    let hca = &mut hca;
    let none = Err(PfError::NoVf(vf(9)));
    let limit = EgressLimit::default();
    assert_eq!(
        pf.set_guid_source(NOW, vf(9), PORT, GuidSource::Hardware),
        none
    );
    assert_eq!(pf.map_pkeys(hca, vf(9), PORT, &[]), none);
    assert_eq!(pf.set_egress_limit(NOW, hca, vf(9), PORT, limit), none);
    assert_eq!(pf.set_sidr(vf(9), &[]), none);
    assert_eq!(pf.set_admin_up(vf(9), PORT, true), none);
    assert_eq!(pf.set_rights(vf(9), PORT, Rights::default()), none);
    assert_eq!(pf.reset_vf(NOW, hca, vf(9)), none);
    assert_eq!(pf.resources(hca, vf(9)), Err(PfError::NoVf(vf(9))));
    assert!(pf.remove_vf(NOW, hca, vf(9)).is_err());
}

#[test]
fn a_refusal_says_what_is_wrong() {
    let texts = [
        (PfError::NoVf(vf(9)), "there is no vf:9"),
        (
            PfError::Vf(PORT, AddVfError::Exists(vf(3))),
            "port 1: vf:3 exists already",
        ),
        (PfError::Hca(HcaError::QueueFull), "the adapter refused: "),
    ];
    for (error, text) in texts {
        assert!(error.to_string().starts_with(text), "{error}");
    }
    let taken = AddVfError::BadGuid(alias(1)).to_string();
    assert!(taken.ends_with("is taken or reserved"), "{taken}");
}

#[test]
fn an_administrator_shuts_a_port_and_opens_it_again() {
    let mut rig = Rig::new(2);
    told(&mut rig, 1);
    told(&mut rig, 2);
    reasons(&mut rig, 1);
    let steps = [
        (false, PortChange::DOWN, PortReason::AdminDown),
        (true, PortChange::ACTIVE, PortReason::Up),
    ];
    for (up, change, reason) in steps {
        for _ in 0..2 {
            rig.host
                .context_mut()
                .set_admin_up(vf(1), PORT, up)
                .expect("a VF");
            rig.settle();
        }
        assert_eq!(told(&mut rig, 1), change);
        assert_eq!(told(&mut rig, 2), PortChange::empty());
        assert_eq!(reasons(&mut rig, 1), [reason], "told once");
        assert_eq!(port(&rig).reason(vf(1)), Some(reason));
    }
}

#[test]
fn a_vfs_pkey_table_is_what_it_was_given_last() {
    let mut rig = Rig::new(1);
    let key = |rig: &mut Rig| {
        let hca = rig.device.function(FunctionId(1)).expect("a VF");
        hca.query_pkey(PORT, PKeyIndex(0))
    };
    assert_eq!(key(&mut rig), Ok(PKey::DEFAULT_FULL));
    let (pf, mut hca) = rig.pf();
    pf.map_pkeys(&mut hca, vf(1), PORT, &[]).expect("a VF");
    rig.settle();
    assert_eq!(key(&mut rig), Ok(PKey::INVALID));
    assert!(told(&mut rig, 1).contains(PortChange::PKEY_TABLE));
}

#[test]
fn a_guid_of_the_hardwares_is_taken_and_given_up_for_one_of_the_sas() {
    let mut rig = Rig::new(1);
    let wish = GuidSource::Sa(GuidWish::Admin(Guid::new(0x77)));
    rig.host
        .context_mut()
        .set_guid_source(NOW, vf(1), PORT, wish)
        .expect("a VF");
    rig.settle();
    assert_eq!(port(&rig).reason(vf(1)), Some(PortReason::WaitingForSa));
    let row = rig
        .host
        .context()
        .guids()
        .find(|row| row.vf == vf(1))
        .expect("a row");
    assert_eq!(row.state, "waiting_for_sa");
    let source = GuidSource::Hardware;
    rig.host
        .context_mut()
        .set_guid_source(NOW, vf(1), PORT, source)
        .expect("a VF");
    rig.settle();
    assert_eq!(port(&rig).reason(vf(1)), Some(PortReason::Up));
    let row = rig
        .host
        .context()
        .guids()
        .find(|row| row.vf == vf(1))
        .expect("a row");
    assert_eq!(row.state, "in_hardware");
    assert_eq!(row.guid, Some(alias(1)));
    assert_eq!(port(&rig).guid_view(vf(1)).wish, GuidWish::None);
}

#[test]
fn what_keeps_guids_out_of_hardware_is_told_of_vfs_that_wait_for_it() {
    let mut rig = Rig::new(1);
    set_guid(&mut rig.device, 1, Guid::NONE);
    rig.device.ports_changed(NOW);
    rig.settle();
    reasons(&mut rig, 1);
    let obstacle = Some(GuidObstacle::RefusedByFabric);
    let reason = PortReason::WaitingForHardware { obstacle };
    for told in [vec![reason], vec![]] {
        let port = rig.host.context_mut().port_mut(PORT).expect("the port");
        port.set_guid_obstacle(obstacle);
        rig.settle();
        assert_eq!(reasons(&mut rig, 1), told);
    }
}

#[test]
fn a_guid_is_asked_for_at_once_on_a_port_that_is_active_and_again_without_an_answer() {
    let mut rig = Rig::new(0);
    while rig.device.poll_transmit(NOW, PORT).is_some() {}
    assert!(rig.host.context().is_quiet());
    let (pf, mut hca) = rig.pf();
    pf.add_vf(NOW, &mut hca, vf(1), of_sa(1, GuidWish::SmAssigned))
        .expect("a VF");
    let mut asked = 0;
    let mut now = NOW;
    for _ in 0..40 {
        now = rig.settle_at(now);
        asked += std::iter::from_fn(|| rig.device.poll_transmit(now, PORT)).count();
        assert!(!rig.host.context().is_quiet());
        assert!(rig.host.context().poll_timeout().is_some());
    }
    assert!(asked > 3, "{asked}");
}

#[test]
fn a_context_that_is_closed_leaves_nothing_of_its_own() {
    let mut rig = Rig::new(2);
    rig.host.close(NOW, &mut rig.device);
    let hca = rig.device.function(FunctionId::PF).expect("the PF");
    let left = hca.resources(FunctionId::PF);
    assert_eq!(left, Ok(ResourceCounts::default()));
    assert!(rig.device.function(FunctionId(1)).is_none());
}

#[test]
fn a_context_that_shuts_down_resets_its_vfs() {
    let mut rig = Rig::new(2);
    let mut hca = rig.device.function(FunctionId::PF).expect("the PF");
    rig.host
        .context_mut()
        .shut_down(NOW, &mut hca)
        .expect("VFs");
    let owned = rig.host.context().resources(&hca, vf(1)).expect("a VF").0;
    assert_eq!(owned, ResourceCounts::default());
    assert!(rig.host.context().is_quiet());
}

#[test]
fn a_context_that_shuts_down_wants_no_guid_any_more() {
    let mut rig = Rig::new(0);
    let (pf, mut hca) = rig.pf();
    let wish = GuidWish::Admin(Guid::new(0x77));
    pf.add_vf(NOW, &mut hca, vf(1), of_sa(1, wish))
        .expect("a VF");
    assert_eq!(pf.ports()[0].guid_view(vf(1)).wish, wish);
    pf.shut_down(NOW, &mut hca).expect("VFs");
    assert_eq!(pf.ports()[0].guid_view(vf(1)).wish, GuidWish::None);
}

#[test]
fn what_a_vf_has_at_the_sa_is_to_be_given_back() {
    let mut rig = Rig::new(1);
    assert!(rig.host.context().is_quiet());
    rings::join(&mut rig, 1);
    rig.settle();
    assert_eq!(port(&rig).mux().sizes().mcast_groups, 1);
    assert!(!rig.host.context().is_quiet());
}

#[test]
fn what_a_vf_is_to_be_told_makes_the_context_due_at_once() {
    let mut rig = Rig::new(1);
    rings::ask(&mut rig, 1, 1);
    rig.settle();
    assert!(rig.host.context().poll_timeout() > Some(NOW));
    rig.host
        .context_mut()
        .set_admin_up(vf(1), PORT, false)
        .expect("a VF");
    assert_eq!(rig.host.context().poll_timeout(), Some(NOW));
}

#[test]
fn the_second_port_is_polled_as_well_as_the_first() {
    for sender in [PortNum(1), PortNum(2)] {
        let mut config = PfConfig::new(7);
        config.budget = 1;
        let mut rig = Rig::on_ports(2, 0, &config);
        let mut spec = spec(1);
        spec.ports.push(spec.ports[0].clone());
        let (pf, mut hca) = rig.pf();
        pf.add_vf(NOW, &mut hca, vf(1), spec).expect("a VF");
        rig.settle();
        let mut hca = rig.device.function(FunctionId(1)).expect("a VF");
        let mut proxy = ProxyQp::open(&mut hca, SpecialQp::Gsi, sender, 64).expect("a proxy QP");
        for tid in 0..9 {
            let mad = rings::query(tid);
            let to = MadAddress::gsi(Lid::new(9));
            proxy.send(&mut hca, &to, &mad).expect("room");
        }
        let (pf, mut hca) = rig.pf();
        while let Some(event) = hca.poll_event() {
            pf.handle_hca_event(NOW, &mut hca, &event);
        }
        while pf.poll(NOW, &mut hca) {}
        let got = pf.ports()[sender.index() - 1].mux().vf_statistics(vf(1));
        assert_eq!(rings::seen(got.expect("a VF")), 9, "{sender:?}");
    }
}

#[test]
fn requests_without_an_answer_end_by_the_clock_of_the_context() {
    let mut rig = Rig::new(1);
    rings::ask(&mut rig, 1, 3);
    rig.settle();
    assert_eq!(port(&rig).mux().sizes().tids, 3);
    let due = rig.host.context().poll_timeout().expect("a time");
    assert!(due > NOW && due <= NOW + Duration::from_secs(61));
    let mut now = due;
    for _ in 0..100 {
        now = rig.settle_at(now);
    }
    assert_eq!(port(&rig).mux().sizes().tids, 0);
}

#[test]
fn a_vf_that_goes_takes_nothing_of_another_with_it() {
    let mut rig = Rig::new(2);
    reasons(&mut rig, 2);
    rings::ask(&mut rig, 2, 3);
    rig.host
        .context_mut()
        .set_admin_up(vf(2), PORT, false)
        .expect("a VF");
    rig.host
        .context_mut()
        .set_admin_up(vf(1), PORT, false)
        .expect("a VF");
    let (pf, mut hca) = rig.pf();
    while let Some(event) = hca.poll_event() {
        pf.handle_hca_event(NOW, &mut hca, &event);
    }
    pf.remove_vf(NOW, &mut hca, vf(1)).expect("a VF");
    while pf.poll(NOW, &mut hca) {}
    assert_eq!(reasons(&mut rig, 2), [PortReason::AdminDown]);
    let statistics = port(&rig).mux().vf_statistics(vf(2)).expect("a VF");
    assert_eq!(rings::seen(statistics), 3);
    assert_eq!(port(&rig).reason(vf(1)), None);
}

#[test]
fn a_vfs_tunnels_have_numbers_of_their_own() {
    let rig = Rig::new(2);
    let [one, other] = [1, 2].map(|n| {
        let qpns: Vec<_> = port(&rig).tunnel_qpns(vf(n)).collect();
        assert_eq!(qpns.len(), 1);
        qpns[0]
    });
    assert_ne!(one, other);
    assert!(one.get() > 1 && other.get() > 1);
}

#[test]
fn a_vf_that_is_permitted_qp0_has_it_from_its_next_reset_on() {
    let mut config = PfConfig::new(7);
    config.smi = true;
    let mut rig = Rig::with(2, &config);
    let smi = Rights {
        smi: true,
        ..Rights::default()
    };
    for (rights, tunnels) in [(smi, 2), (Rights::default(), 1)] {
        rings::ask(&mut rig, 2, 2);
        let before = rings::seen(port(&rig).mux().vf_statistics(vf(2)).expect("a VF"));
        let (pf, mut hca) = rig.pf();
        pf.set_rights(vf(1), PORT, rights).expect("a VF");
        while let Some(event) = hca.poll_event() {
            pf.handle_hca_event(NOW, &mut hca, &event);
        }
        pf.reset_vf(NOW, &mut hca, vf(1)).expect("a VF");
        while pf.poll(NOW, &mut hca) {}
        assert_eq!(port(&rig).tunnel_qpns(vf(1)).count(), tunnels);
        let after = rings::seen(port(&rig).mux().vf_statistics(vf(2)).expect("a VF"));
        assert_eq!(after - before, 2, "a neighbour is served all the same");
    }
}

#[test]
fn ports_beyond_the_spec_have_the_default() {
    let mut rig = Rig::on_ports(2, 0, &PfConfig::new(7));
    let (pf, mut hca) = rig.pf();
    pf.add_vf(NOW, &mut hca, vf(1), spec(1)).expect("a VF");
    let second = &pf.ports()[1];
    assert_eq!(
        VfPortSpec::default().guid,
        GuidSource::Sa(GuidWish::SmAssigned)
    );
    assert_eq!(second.guid_view(vf(1)).wish, GuidWish::SmAssigned);
}

#[test]
fn a_vf_sees_a_port_in_the_state_of_its_hardware() {
    let mut rig = Rig::new(1);
    told(&mut rig, 1);
    let physical = rig.device.node_mut().port_mut(PORT).expect("the port");
    physical.state = PortState::Down;
    rig.device.ports_changed(NOW);
    rig.settle();
    assert!(told(&mut rig, 1).contains(PortChange::DOWN));
    assert_eq!(port(&rig).reason(vf(1)), Some(PortReason::PhysicalDown));
}
