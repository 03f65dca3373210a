//! MADs of guests: through proxy, tunnel and PF to the SA and to each other.

use ib_endpoint::cm::{CmEventKind, ConnId, Rendezvous};
use ib_endpoint::sa_client::{StandingId, Wish};
use ib_endpoint::{MadAddress, PortPath, SaAnswer, SaEvent, SaRequest};
use ib_vtime::Duration;
use ib_wire::cm::CmRep;
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, NodeRecord, PathRecord};
use ib_wire::smp::{NodeInfo, SmpAttribute};
use ib_wire::{Gid, PKey, PortNum, Qpn, ServiceId};
use pf_context::inspect::Inspect;
use vhca_tests::mlx4_driver::{GuestId, Lab, LabPlan, TalkerSpec};

use super::lab;

const PORT: PortNum = PortNum(1);

const SERVICE: ServiceId = ServiceId::new(0x4242);

/// Asks the SA, and waits for its answer.
fn ask(lab: &mut Lab, guest: GuestId, request: SaRequest) -> SaAnswer {
    let asked = lab.on(guest, |driver, bus| {
        let now = bus.now();
        let mads = driver.mads(PORT);
        mads.sa.query(now, &mut mads.agent, request)
    });
    let mut answer = None;
    let ended = lab.run_until(|lab| {
        lab.on(guest, |driver, _| {
            while let Some(event) = driver.mads(PORT).sa.poll_event() {
                if let SaEvent::Answered { query, result } = event
                    && query == asked
                {
                    answer = Some(result);
                }
            }
        });
        Ok(answer.is_some())
    });
    assert!(ended.unwrap(), "the SA answers");
    answer.unwrap().unwrap()
}

/// Asks for the path from one guest to another.
pub(super) fn resolve(lab: &mut Lab, from: GuestId, to: GuestId) -> PortPath {
    let [sgid, dgid] = [from, to].map(|guest| lab.on(guest, |driver, _| driver.port(PORT).gid()));
    let answer = ask(lab, from, SaRequest::path_by_gids(sgid, dgid, None));
    let record: PathRecord = answer.record().unwrap();
    let view = lab.on(from, |driver, _| driver.port(PORT).view());
    PortPath::new(PORT, &view, &record).unwrap()
}

#[test]
fn guests_of_one_host_and_of_two_find_paths_to_each_other() {
    let mut lab = lab(LabPlan::new(2, 2));
    let lid = |lab: &mut Lab, guest| lab.on(guest, |driver, _| driver.port(PORT).info.lid);
    for (from, to) in [(0, 1), (0, 2), (3, 0)].map(|(from, to)| (GuestId(from), GuestId(to))) {
        let path = resolve(&mut lab, from, to);
        assert_eq!(path.record().slid, lid(&mut lab, from));
        assert_eq!(path.record().dlid, lid(&mut lab, to));
    }
}

#[test]
fn a_table_of_more_than_64_segments_arrives_whole() {
    let plan = LabPlan {
        bystanders: 120,
        ..LabPlan::new(1, 1)
    };
    let mut lab = lab(plan);
    let all = SaRequest::get_table(&NodeRecord::default(), ComponentMask::NONE);
    let answer = ask(&mut lab, GuestId(0), all);
    let mut guids: Vec<_> = answer
        .records::<NodeRecord>()
        .map(|record| record.node_info().port_guid)
        .collect();
    // 112 bytes each, 200 bytes to a segment.
    assert!(guids.len() * 112 > 64 * 200, "{} records", guids.len());
    guids.sort_unstable();
    guids.dedup();
    assert_eq!(guids.len(), 120 + 2 + 1, "bystanders, hosts, the switch");
}

/// Has a guest wish for a membership, which makes the group if there is none.
pub(super) fn join(lab: &mut Lab, guest: GuestId, mgid: Gid) -> StandingId {
    lab.on(guest, |driver, bus| {
        let mut record = McMemberRecord {
            mgid,
            port_gid: driver.port(PORT).gid(),
            pkey: PKey::DEFAULT_FULL,
            qkey: TalkerSpec::QKEY,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        let wish = Wish::Membership {
            record,
            mask: McMemberRecord::CREATE,
        };
        let now = bus.now();
        let mads = driver.mads(PORT);
        mads.sa.wish(now, &mut mads.agent, wish)
    })
}

/// Waits until a wish was granted; gives the SA's record.
pub(super) fn granted(lab: &mut Lab, guest: GuestId, standing: StandingId) -> McMemberRecord {
    let mut record = None;
    let ended = lab.run_until(|lab| {
        lab.on(guest, |driver, _| {
            while let Some(event) = driver.mads(PORT).sa.poll_event() {
                match event {
                    SaEvent::Granted {
                        standing: of,
                        answer,
                    } if of == standing => record = answer.record::<McMemberRecord>(),
                    event => panic!("{event:?}"),
                }
            }
        });
        Ok(record.is_some())
    });
    assert!(ended.unwrap(), "the membership is granted");
    record.unwrap()
}

/// An address of groups that nobody else uses.
pub(super) fn group(number: u8) -> Gid {
    Gid([0xff, 0x12, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number])
}

#[test]
fn joins_of_all_guests_of_a_port_are_one_membership_at_the_sa() {
    let mut lab = lab(LabPlan::new(1, 8));
    let guests: Vec<GuestId> = lab.guest_ids().collect();
    let wishes: Vec<_> = guests
        .iter()
        .map(|guest| (*guest, join(&mut lab, *guest, group(7))))
        .collect();
    for (guest, standing) in wishes {
        assert_eq!(granted(&mut lab, guest, standing).mgid, group(7));
    }
    let context = lab.world().context(lab.hosts()[0]);
    let groups: Vec<_> = Inspect::groups(context)
        .filter(|row| row.mgid == group(7))
        .collect();
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].members.len(), guests.len());
    assert_eq!(groups[0].joined, JoinState::FULL_MEMBER);
}

#[test]
fn guests_connect_by_cm_through_the_pf() {
    let mut lab = lab(LabPlan::new(2, 2));
    for (from, to) in [(0, 1), (0, 2)].map(|(from, to)| (GuestId(from), GuestId(to))) {
        lab.on(to, |driver, _| {
            driver.mads(PORT).cm.listen(SERVICE, u64::MAX).unwrap();
        });
        // Whose GID it is tells which guest behind the LID is meant.
        let path = resolve(&mut lab, from, to).with_grh();
        let request = path.request(SERVICE, Qpn::from_low_bits(0x700));
        let active = lab.on(from, |driver, bus| {
            let cm = &mut driver.mads(PORT).cm;
            cm.send_req(bus.now(), &path.gsi(), &request, Rendezvous::ClientServer)
                .unwrap()
        });
        let passive = cm_event(&mut lab, to, |kind| {
            matches!(kind, CmEventKind::ReqReceived { .. })
        });
        lab.on(to, |driver, bus| {
            let reply = CmRep {
                local_qpn: Qpn::from_low_bits(0x800),
                ..CmRep::default()
            };
            let cm = &mut driver.mads(PORT).cm;
            cm.send_rep(bus.now(), passive, &reply).unwrap();
        });
        cm_event(&mut lab, from, |kind| {
            matches!(kind, CmEventKind::RepReceived(_))
        });
        lab.on(from, |driver, bus| {
            let cm = &mut driver.mads(PORT).cm;
            cm.send_rtu(bus.now(), active, b"").unwrap();
        });
        cm_event(&mut lab, to, |kind| {
            matches!(kind, CmEventKind::RtuReceived(_))
        });
    }
}

/// Waits for an event of a guest's connection manager.
fn cm_event(lab: &mut Lab, guest: GuestId, is_it: impl Fn(&CmEventKind) -> bool) -> ConnId {
    let mut found = None;
    let ended = lab.run_until(|lab| {
        lab.on(guest, |driver, _| {
            while let Some(event) = driver.mads(PORT).cm.poll_event() {
                if is_it(&event.kind) {
                    found = Some(event.conn);
                }
            }
        });
        Ok(found.is_some())
    });
    assert!(ended.unwrap(), "the event comes");
    found.unwrap()
}

#[test]
fn a_smp_from_a_guest_goes_nowhere_and_completes() {
    let mut lab = lab(LabPlan::new(1, 1));
    let guest = GuestId(0);
    lab.on(guest, |driver, bus| {
        let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, NodeInfo::ID);
        let to = MadAddress::smi(driver.port(PORT).info.master_sm_lid);
        for _ in 0..300 {
            driver.send_smp(bus, PORT, &to, &Mad::new(header)).unwrap();
            bus.wait(Duration::from_micros(10));
            driver.serve(bus).unwrap();
        }
    });
    lab.run_for(Duration::from_millis(100)).unwrap();
    lab.on(guest, |driver, _| assert_eq!(driver.mads(PORT).smps, 0));
}
