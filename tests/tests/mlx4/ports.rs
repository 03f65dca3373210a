//! Guests with two ports, and what they are told of them.

use ib_endpoint::{SaEvent, SaRequest};
use ib_vtime::Duration;
use ib_wire::PortNum;
use vf_tunnel::VfId;
use vhca_tests::mlx4_driver::{Event, GuestId, Lab, LabPlan, Talker, TalkerSpec};

use super::lab;

const A: GuestId = GuestId(0);
const B: GuestId = GuestId(2);

fn two_ports() -> Lab {
    lab(LabPlan {
        ports: 2,
        ..LabPlan::new(2, 2)
    })
}

#[test]
fn datagrams_leave_and_arrive_by_the_port_that_is_meant() {
    let mut lab = two_ports();
    for (here, there) in [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(a, b)| (PortNum(a), PortNum(b))) {
        let spec = |port| TalkerSpec {
            port,
            ..TalkerSpec::default()
        };
        let mut from = lab
            .on(A, |driver, bus| Talker::open(driver, bus, &spec(here)))
            .unwrap();
        let mut to = lab
            .on(B, |driver, bus| Talker::open(driver, bus, &spec(there)))
            .unwrap();
        let lid =
            |lab: &mut Lab, guest, port| lab.on(guest, |driver, _| driver.port(port).info.lid);
        let (from_lid, to_lid) = (lid(&mut lab, A, here), lid(&mut lab, B, there));
        let way = from.way_to(to.address(to_lid));
        lab.on(A, |driver, bus| from.say(driver, bus, &way, b"by which?"))
            .unwrap();
        lab.run_for(Duration::from_millis(1)).unwrap();
        let heard = lab.on(B, |driver, _| to.hear(driver)).unwrap();
        assert_eq!(heard.len(), 1, "{here:?} to {there:?}");
        assert_eq!(heard[0].source.slid, from_lid);
    }
}

#[test]
fn both_ports_reach_the_sa() {
    let mut lab = two_ports();
    for port in [PortNum(1), PortNum(2)] {
        let asked = lab.on(A, |driver, bus| {
            let gid = driver.port(port).gid();
            let now = bus.now();
            let mads = driver.mads(port);
            mads.sa.query(
                now,
                &mut mads.agent,
                SaRequest::path_by_gids(gid, gid, None),
            )
        });
        let answered = lab.run_until(|lab| {
            lab.on(A, |driver, _| {
                let sa = &mut driver.mads(port).sa;
                let mut events = core::iter::from_fn(|| sa.poll_event());
                Ok(events.any(|event| {
                    matches!(event, SaEvent::Answered { query, result: Ok(_) } if query == asked)
                }))
            })
        });
        assert!(answered.unwrap(), "{port:?}");
    }
}

#[test]
fn a_port_that_the_administrator_shuts_and_opens_is_told_of_to_its_guest_alone() {
    let mut lab = two_ports();
    lab.run_for(Duration::from_secs(1)).unwrap();
    let drain = |lab: &mut Lab, guest| {
        lab.on(guest, |driver, _| {
            core::iter::from_fn(|| driver.poll_event()).collect::<Vec<Event>>()
        })
    };
    for guest in lab.guest_ids() {
        drain(&mut lab, guest);
    }
    let host = lab.hosts()[0];
    for up in [false, true] {
        let context = lab.world_mut().context_mut(host);
        context
            .set_admin_up(VfId::new(1).unwrap(), PortNum(2), up)
            .unwrap();
        lab.run_for(Duration::from_secs(1)).unwrap();
        let told = drain(&mut lab, A);
        let expected = Event::PortChange {
            port: PortNum(2),
            active: up,
        };
        assert!(told.contains(&expected), "{told:?}");
        assert!(lab.on(A, |driver, _| driver.port(PortNum(1)).is_active()));
        assert_eq!(
            lab.on(A, |driver, _| driver.port(PortNum(2)).is_active()),
            up
        );
        for guest in lab.guest_ids().skip(1) {
            assert_eq!(drain(&mut lab, guest), [], "{guest:?}");
        }
    }
}
