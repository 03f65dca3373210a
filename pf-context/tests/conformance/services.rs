//! Services that VFs register at the SA: their quota, and their end with the VF.

use ib_vtime::Duration;
use ib_wire::ServiceId;
use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{ComponentMask, SaMad, ServiceRecord};
use ib_wire::{Gid, Tid};
use pf_context::{Limits, Output, PortConfig, ServiceLimits};
use vf_tunnel::DropReason;

use crate::harness::*;

const RID: ComponentMask = ServiceRecord::SERVICE_ID.union(ServiceRecord::SERVICE_GID);

fn port() -> Port {
    let limits = Limits {
        services: ServiceLimits { per_vf: 2 },
        ..Limits::default()
    };
    let config = PortConfig { limits, ..config() };
    Port::with(config, [vf_config(1), vf_config(2)])
}

fn request(method: Method, id: u64, gid: Gid, tid: u64) -> Mad {
    let record = ServiceRecord {
        service_id: ServiceId::new(id),
        service_gid: gid,
        ..ServiceRecord::default()
    };
    let mut mad = Mad::from_layout(&SaMad::new(method, RID, &record));
    mad.header.tid = Tid::new(tid);
    mad
}

impl Port {
    /// A VF's request, which the SA answers with a status; `None` if the PF refuses it.
    fn serve(&mut self, number: u16, method: Method, id: u64, status: MadStatus) -> Option<()> {
        self.now += Duration::from_millis(1);
        let tid = self.now.as_nanos();
        let mad = request(method, id, vf_gid(number), tid);
        let outputs = self.vf_sends(number, &frame(SM, mad));
        if matches!(outputs[0], Output::ToVf(..)) {
            let refused = got(outputs);
            assert_eq!(refused.mad.header.status, MadStatus::SA_NO_RESOURCES);
            assert_eq!(refused.mad.header.method, Method::GET_RESP);
            assert_eq!(refused.mad.header.tid, Tid::new(tid));
            return None;
        }
        let mut back = answer(&sent(outputs).mad);
        back.header.status = status;
        assert_eq!(got(self.wire_sends(&from(SM), &back)).vf, number);
        Some(())
    }

    fn register(&mut self, number: u16, id: u64) -> Option<()> {
        self.serve(number, Method::SET, id, MadStatus::OK)
    }

    fn held(&self, number: u16) -> usize {
        self.mux.vf_services(vf(number))
    }
}

/// The deletions among outputs, which are nothing else, by their service ids.
fn deletions(outputs: Vec<Output>) -> Vec<(u64, Mad)> {
    let mut deletions: Vec<(u64, Mad)> = outputs
        .into_iter()
        .map(|output| match output {
            Output::ToWire(send, mad) => {
                assert_eq!((send.vf, mad.header.method), (None, Method::DELETE));
                let record: ServiceRecord = mad.view::<SaMad>().record();
                (record.service_id.get(), mad)
            }
            other => panic!("no deletion: {other:?}"),
        })
        .collect();
    deletions.sort_by_key(|(id, _)| *id);
    deletions
}

fn ids(deletions: &[(u64, Mad)]) -> Vec<u64> {
    deletions.iter().map(|(id, _)| *id).collect()
}

#[test]
fn a_vf_registers_its_quota_of_services_and_others_are_not_hurt() {
    let mut port = port();
    assert!(port.register(1, 1).is_some());
    assert!(port.register(1, 2).is_some());
    assert!(port.register(1, 3).is_none());
    assert!(port.register(1, 2).is_some(), "a lease is renewed");
    assert!(port.register(2, 1).is_some(), "another VF");
    assert!(
        port.serve(1, Method::DELETE, 1, MadStatus::OK).is_some() && port.register(1, 3).is_some(),
        "a deletion makes room"
    );
    assert_eq!((port.held(1), port.held(2)), (2, 1));
    assert!(port.register(1, 4).is_none());
    let elsewhere = request(Method::SET, 9, vf_gid(1), 77);
    assert_eq!(
        dropped(port.vf_sends(1, &frame(PEER, elsewhere))),
        DropReason::SaQuota,
        "another LID may be the SA's as well"
    );
}

#[test]
fn what_the_sa_refused_does_not_count_and_what_it_did_not_answer_does() {
    let mut port = port();
    port.serve(1, Method::SET, 1, MadStatus::SA_REQ_INVALID);
    assert_eq!(port.held(1), 0);
    port.serve(1, Method::SET, 1, MadStatus::BUSY);
    assert_eq!(port.held(1), 1, "it may have it");
    port.register(1, 2);
    port.serve(1, Method::SET, 2, MadStatus::SA_REQ_INVALID);
    assert_eq!(port.held(1), 2, "as it was before");
    port.serve(1, Method::DELETE, 2, MadStatus::BUSY);
    assert_eq!(port.held(1), 2);
    port.serve(1, Method::DELETE, 2, MadStatus::SA_NO_RECORDS);
    assert_eq!(port.held(1), 1);
}

#[test]
fn an_accomplice_elsewhere_makes_no_room_in_a_quota() {
    let mut port = port();
    port.register(1, 1);
    let deletion = request(Method::DELETE, 1, vf_gid(1), 5);
    let out = sent(port.vf_sends(1, &frame(PEER, deletion)));
    got(port.wire_sends(&from(PEER), &answer(&out.mad)));
    assert_eq!(port.held(1), 1);
}

#[test]
fn one_answer_for_two_requests_under_a_tid_tells_of_neither() {
    let mut port = port();
    sent(port.vf_sends(1, &frame(SM, request(Method::SET, 1, vf_gid(1), 5))));
    let out = sent(port.vf_sends(1, &frame(SM, request(Method::SET, 2, vf_gid(1), 5))));
    let mut refused = answer(&out.mad);
    refused.header.status = MadStatus::SA_REQ_INVALID;
    got(port.wire_sends(&from(SM), &refused));
    assert_eq!(port.held(1), 2);
}

#[test]
fn services_of_a_vf_that_is_reset_are_deleted_at_the_sa() {
    let mut port = port();
    port.register(1, 1);
    port.register(1, 2);
    port.register(2, 3);
    let gone = deletions(port.reset(1));
    assert_eq!(ids(&gone), [1, 2]);
    assert_eq!(port.held(1), 2, "until the SA has answered");
    let record: ServiceRecord = gone[0].1.view::<SaMad>().record();
    assert_eq!(record.service_gid, vf_gid(1));
    assert!(port.wire_sends(&from(SM), &answer(&gone[0].1)).is_empty());
    assert_eq!(port.held(1), 1);
    let again: Vec<Output> = port
        .wait(Duration::from_secs(1))
        .into_iter()
        .map(|(_, output)| output)
        .collect();
    let again = deletions(again);
    assert_eq!(ids(&again), [2], "a lost one is sent again");
    assert!(port.wire_sends(&from(SM), &answer(&again[0].1)).is_empty());
    assert_eq!((port.held(1), port.held(2)), (0, 1));
    assert!(port.wait(Duration::from_secs(100)).is_empty());
}

#[test]
fn a_service_that_the_vf_registers_anew_is_not_deleted_any_more() {
    let mut port = port();
    port.register(1, 1);
    assert_eq!(ids(&deletions(port.reset(1))), [1]);
    port.register(1, 1);
    assert!(port.wait(Duration::from_secs(100)).is_empty());
    assert_eq!(port.held(1), 1);
}

#[test]
fn a_silent_sa_is_asked_for_a_deletion_for_a_minute_and_no_longer() {
    let mut port = port();
    port.register(1, 1);
    let first = deletions(port.reset(1));
    assert_eq!(ids(&first), [1]);
    let more = port.wait(Duration::from_secs(100));
    assert_eq!(more.len(), 5);
    assert_eq!(port.held(1), 0);
}

#[test]
fn a_service_counts_until_its_lease_has_certainly_ended() {
    let mut port = port();
    let lease = |id, tid| {
        let mut mad = request(Method::SET, id, vf_gid(1), tid);
        let sa: &mut SaMad = mad.view_mut();
        sa.component_mask = RID | ServiceRecord::SERVICE_LEASE;
        sa.record_mut::<ServiceRecord>().service_lease.set(10);
        mad
    };
    for id in [1, 2] {
        let out = sent(port.vf_sends(1, &frame(SM, lease(id, id))));
        got(port.wire_sends(&from(SM), &answer(&out.mad)));
    }
    port.now += Duration::from_secs(11);
    assert!(port.register(1, 3).is_none());
    port.now += Duration::from_secs(60);
    assert!(port.register(1, 3).is_some());
    assert_eq!(port.held(1), 1);
    assert_eq!(ids(&deletions(port.reset(1))), [3]);
}

#[test]
fn deletions_wait_for_those_before_them() {
    let limits = Limits {
        services: ServiceLimits { per_vf: 40 },
        ..Limits::default()
    };
    let mut port = Port::with(PortConfig { limits, ..config() }, [vf_config(1)]);
    for id in 1..=40 {
        port.register(1, id);
    }
    let first = deletions(port.reset(1));
    assert_eq!(first.len(), 16);
    let next = deletions(port.wire_sends(&from(SM), &answer(&first[0].1)));
    assert_eq!(ids(&next), [17]);
    let mut open: Vec<Mad> = first[1..]
        .iter()
        .chain(&next)
        .map(|(_, mad)| *mad)
        .collect();
    while let Some(mad) = open.pop() {
        let next = deletions(port.wire_sends(&from(SM), &answer(&mad)));
        open.extend(next.iter().map(|(_, mad)| *mad));
    }
    assert_eq!(port.held(1), 0);
}
