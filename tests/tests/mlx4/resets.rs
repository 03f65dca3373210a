//! Resets, removals and restarts in the middle of everything: nothing is left, and the others go on.

use hca_api::ResourceCounts;
use ib_vtime::Duration;
use ib_wire::PortNum;
use pf_context::inspect::Inspect;
use vhca_tests::mlx4_driver::{
    Bus, DriverError, GuestId, Lab, LabPlan, StrayAccesses, Talker, TalkerSpec,
    function_level_reset,
};

use super::lab;
use super::mads::{granted, group, join};

const A: GuestId = GuestId(0);
const B: GuestId = GuestId(1);
const PORT: PortNum = PortNum(1);

/// How a guest's driver goes away.
#[derive(Clone, Copy, Debug)]
enum End {
    Removed,
    MachineReset,
    FunctionReset,
    ResetByPf,
}

/// Fills a guest with everything: talkers with requests under way, a group, queries, a region.
fn fill(lab: &mut Lab, guest: GuestId) -> Vec<Talker> {
    let mut talkers = Vec::new();
    for shared in [false, true] {
        let spec = TalkerSpec {
            shared,
            ..TalkerSpec::default()
        };
        talkers.push(lab.on(guest, |driver, bus| {
            Talker::open(driver, bus, &spec).unwrap()
        }));
    }
    let standing = join(lab, guest, group(3));
    granted(lab, guest, standing);
    lab.on(guest, |driver, bus| {
        let lid = driver.port(PORT).info.lid;
        for talker in &mut talkers {
            driver
                .set_attached(bus, talker.qpn, group(3), true, false)
                .unwrap();
            let way = talker.way_to(talker.address(lid));
            for _ in 0..10 {
                talker.say(driver, bus, &way, b"under way").unwrap();
            }
        }
    });
    talkers
}

/// Ends a guest's driver, and checks that nothing is left of it.
fn end(lab: &mut Lab, guest: GuestId, how: End, talkers: Vec<Talker>) {
    match how {
        End::Removed => {
            lab.on(guest, |driver, bus| {
                for talker in talkers {
                    driver
                        .set_attached(bus, talker.qpn, group(3), false, false)
                        .unwrap();
                    talker.close(driver, bus).unwrap();
                }
            });
            lab.shut_down(guest).unwrap();
        }
        End::MachineReset | End::FunctionReset => {
            let mut bus = lab.bus(guest);
            match how {
                End::MachineReset => bus.reset(),
                _ => function_level_reset(&mut bus).unwrap(),
            }
            drop(bus);
            abandon(lab, guest, talkers);
        }
        End::ResetByPf => {
            lab.reset_vf(guest);
            let told = lab.run_for(Duration::from_secs(6));
            assert_eq!(told, Err(DriverError::Internal));
            abandon(lab, guest, talkers);
        }
    }
    lab.run_for(Duration::from_secs(5)).unwrap();
    assert_eq!(lab.owned(guest), ResourceCounts::default(), "{how:?}");
    let memory = &lab.guest(guest).memory;
    assert_eq!(memory.allocated_pages(), 0, "{how:?}");
    assert_eq!(memory.stray_accesses(), StrayAccesses::default(), "{how:?}");
}

fn abandon(lab: &mut Lab, guest: GuestId, talkers: Vec<Talker>) {
    for talker in talkers {
        talker.abandon();
    }
    lab.abandon(guest);
}

#[test]
fn whatever_ends_a_driver_leaves_nothing_and_the_next_one_works() {
    let mut lab = lab(LabPlan::new(1, 2));
    let ends = [
        End::Removed,
        End::MachineReset,
        End::FunctionReset,
        End::ResetByPf,
    ];
    for how in ends {
        let talkers = fill(&mut lab, A);
        end(&mut lab, A, how, talkers);
        let host = lab.hosts()[0];
        let context = lab.world().context(host);
        let groups = Inspect::groups(context).filter(|row| !row.members.is_empty());
        assert_eq!(groups.count(), 0, "{how:?}");
        lab.boot(A).unwrap();
        let up = lab.run_until(|lab| Ok(lab.is_up(A)));
        assert!(up.unwrap(), "{how:?}");
    }
}

#[test]
fn fifty_removals_and_probes_leave_the_pf_as_it_was() {
    let mut lab = lab(LabPlan::new(1, 2));
    let sizes = |lab: &Lab| {
        let context = lab.world().context(lab.hosts()[0]);
        let now = lab.world().now();
        (
            Inspect::cm(context, now).count(),
            Inspect::groups(context).count(),
            Inspect::subscriptions(context).count(),
        )
    };
    let before = sizes(&lab);
    let owned = lab.owned(A);
    for _ in 0..50 {
        lab.shut_down(A).unwrap();
        assert_eq!(lab.owned(A), ResourceCounts::default());
        assert_eq!(lab.guest(A).memory.allocated_pages(), 0);
        lab.boot(A).unwrap();
    }
    lab.run_for(Duration::from_secs(5)).unwrap();
    assert_eq!(lab.owned(A), owned);
    assert_eq!(sizes(&lab), before);
    assert!(lab.is_up(A) && lab.is_up(B));
}

#[test]
fn a_guest_that_resets_in_the_middle_of_traffic_does_not_disturb_its_neighbour() {
    let mut lab = lab(LabPlan::new(2, 2));
    let spec = TalkerSpec::default();
    let [mut left, mut right] = [B, GuestId(3)].map(|guest| {
        lab.on(guest, |driver, bus| {
            Talker::open(driver, bus, &spec).unwrap()
        })
    });
    let lid = lab.on(GuestId(3), |driver, _| driver.port(PORT).info.lid);
    let way = left.way_to(right.address(lid));
    let mut said = 0_u32;
    for how in [End::MachineReset, End::FunctionReset]
        .into_iter()
        .cycle()
        .take(6)
    {
        let talkers = fill(&mut lab, A);
        for _ in 0..20 {
            let text = said.to_be_bytes();
            lab.on(B, |driver, bus| left.say(driver, bus, &way, &text))
                .unwrap();
            lab.run_for(Duration::from_millis(1)).unwrap();
            let heard = lab.on(GuestId(3), |driver, _| right.hear(driver)).unwrap();
            assert_eq!(heard.len(), 1);
            assert_eq!(heard[0].bytes, text);
            said += 1;
        }
        end(&mut lab, A, how, talkers);
        lab.boot(A).unwrap();
        assert!(lab.run_until(|lab| Ok(lab.is_up(A))).unwrap());
    }
}
