//! What a VF did, has, and may have: statement 229.

use ib_vtime::Duration;
use ib_wire::PortNum;
use ib_wire::cm::{self, CmReq};
use ib_wire::mad::{AttributeId, Mad, Method, MgmtClass};
use ib_wire::sa::{ComponentMask, SaMad};
use ib_wire::{CommId, PKey, PKeyIndex};
use mad_mux::tid::{TidConfig, TransactionState};
use pf_context::inspect::{Counted, Inspect};
use pf_context::{
    ClassStatistics, CountedClass, EgressLimit, Limits, PortConfig, PortEvent, Use, VfAges,
    VfConfig,
};
use vf_tunnel::{DropReason, PhysicalPKeyIndex, VfId};

use crate::harness::*;

const SECOND: Duration = Duration::from_secs(1);

fn req(id: u32) -> Mad {
    let mut mad = Mad::new(cm::header(AttributeId::CM_REQ));
    let req: &mut CmReq = mad.view_mut();
    req.local_comm_id = CommId::new(id);
    req.pkey = PKey::DEFAULT_FULL;
    req.primary.local_gid = vf_gid(1);
    req.primary.remote_gid = peer_gid();
    mad
}

fn class(port: &Port, number: u16, class: CountedClass) -> ClassStatistics {
    *port.mux.vf_statistics(vf(number)).unwrap().class(class)
}

#[test]
fn c229_mads_count_by_class_and_by_how_they_ended() {
    let mut port = Port::new();
    let query = sent(port.vf_sends(1, &frame(SM, path_query(1))));
    got(port.wire_sends(&from(SM), &answer(&query.mad)));
    // A group that nobody is in: the machine answers in the SA's place.
    let leave = SaMad::new(
        Method::DELETE,
        ComponentMask::NONE,
        &ib_wire::sa::McMemberRecord::default(),
    );
    got(port.vf_sends(1, &frame(SM, Mad::from_layout(&leave))));
    let info = mad(
        MgmtClass::COM_MGT,
        Method::GET,
        AttributeId::CLASS_PORT_INFO,
        4,
    );
    got(port.vf_sends(1, &global_frame(OWN, vf_gid(2), info)));
    assert_eq!(
        class(&port, 1, CountedClass::SubnAdm),
        ClassStatistics {
            to_wire: 1,
            answered: 1,
            delivered: 2,
            ..ClassStatistics::default()
        }
    );
    let cm = |number| class(&port, number, CountedClass::ComMgt);
    assert_eq!((cm(1).loopback, cm(1).to_wire, cm(2).delivered), (1, 0, 1));
    let total = port.mux.vf_statistics(vf(1)).unwrap().total();
    assert_eq!((total.to_wire, total.loopback, total.delivered), (1, 1, 2));
}

#[test]
fn c229_drops_count_by_reason_and_for_the_port_if_for_no_vf() {
    let mut port = Port::new();
    dropped(port.vf_sends_bytes(1, &[0; 5]));
    dropped(port.vf_sends_bytes(1, &[0; 6]));
    dropped(port.wire_sends(&from(SM), &answer(&path_query(77))));
    let one = port.mux.vf_statistics(vf(1)).unwrap();
    assert_eq!(one.drops(DropReason::BadLength), 2);
    assert_eq!(one.dropped(), 2);
    assert_eq!(port.mux.vf_statistics(vf(2)).unwrap().dropped(), 0);
    let own = port.mux.port_statistics();
    assert_eq!(own.drops(DropReason::UnknownTid), 1);
    let view = port.mux.inspect(PortNum(2));
    let rows: Vec<_> = view
        .counters(port.now)
        .map(|row| (row.port.0, row.vf, row.counted, row.value))
        .collect();
    assert_eq!(
        rows,
        [
            (2, VfId::PF, Counted::Dropped(DropReason::UnknownTid), 1),
            (2, vf(1), Counted::Dropped(DropReason::BadLength), 2),
        ]
    );
}

#[test]
fn c229_what_a_vf_has_stands_beside_what_it_may_have() {
    let limits = Limits {
        tids: TidConfig {
            per_vf: 9,
            sa_per_vf: 8,
        },
        cm: cm_paravirt::Config {
            ids_per_vf: 7,
            ..cm_paravirt::Config::default()
        },
        egress: EgressLimit {
            mads_per_second: 1,
            burst: 3,
            queue: 6,
            ..EgressLimit::default()
        },
        ..Limits::default()
    };
    let mut port = Port::with(PortConfig { limits, ..config() }, [vf_config(1)]);
    let query = sent(port.vf_sends(1, &frame(SM, path_query(1))));
    sent(port.vf_sends(1, &frame(SM, path_query(2))));
    sent(port.vf_sends(1, &frame(PEER, req(5))));
    got(port.wire_sends(&from(SM), &answer(&query.mad)));
    assert!(port.vf_sends(1, &frame(SM, path_query(3))).is_empty());
    let usage = port.mux.vf_usage(vf(1));
    let of = |live, limit| Use { live, limit };
    assert_eq!(usage.tids, of(2, 9));
    assert_eq!(usage.sa_requests, of(1, 8));
    assert_eq!(usage.cm_ids, of(1, 7));
    assert_eq!(usage.queued, of(1, 6));
    assert_eq!(usage.groups.live, 0);
    assert_eq!(port.mux.vf_usage(vf(2)).tids, of(0, 9), "no such VF");
}

#[test]
fn c229_the_oldest_of_each_kind_tells_its_age() {
    let limits = Limits {
        egress: EgressLimit {
            mads_per_second: 1,
            burst: 2,
            queue: 6,
            ..EgressLimit::default()
        },
        ..Limits::default()
    };
    let mut port = Port::with(
        PortConfig { limits, ..config() },
        [vf_config(1), vf_config(2)],
    );
    sent(port.vf_sends(1, &frame(SM, path_query(1))));
    port.now += SECOND / 4;
    sent(port.vf_sends(1, &frame(PEER, req(5))));
    port.now += SECOND / 4;
    assert!(port.vf_sends(1, &frame(SM, path_query(2))).is_empty());
    port.now += SECOND / 4;
    let ages = port.mux.vf_ages(port.now, vf(1));
    assert_eq!(ages.frame, Some(SECOND / 4));
    let about = |age: Option<Duration>, millis| {
        let expected = Duration::from_millis(millis);
        age.unwrap().abs_diff(expected) < Duration::from_millis(70)
    };
    assert!(about(ages.transaction, 750), "{ages:?}");
    assert!(about(ages.exchange, 500), "{ages:?}");
    assert_eq!(port.mux.vf_ages(port.now, vf(2)), VfAges::default());
}

#[test]
fn a_port_shows_its_vfs_transactions_guids_and_keys() {
    let other = VfConfig {
        pkeys: vec![physical(1)],
        ..vf_config(1)
    };
    let mut port = Port::with(config(), [other, vf_config(2)]);
    let query = sent(port.vf_sends(2, &frame(SM, path_query(9))));
    port.event(PortEvent::PortDown);
    let view = port.mux.inspect(PortNum(2));

    let tids: Vec<_> = view.tids(port.now).collect();
    assert_eq!(tids.len(), 1);
    assert_eq!((tids[0].port, tids[0].vf), (PortNum(2), vf(2)));
    assert_eq!(
        (
            tids[0].transaction.tid.0.get(),
            tids[0].transaction.wire_tid.0
        ),
        (9, query.mad.header.tid)
    );
    assert_eq!(tids[0].transaction.state, TransactionState::Open);

    let vfs: Vec<_> = view.vfs(port.now).collect();
    let states: Vec<_> = vfs.iter().map(|row| (row.vf, row.up, row.reason)).collect();
    let down = |number| (vf(number), false, "physical_down");
    assert_eq!(states, [down(1), down(2)]);
    assert_eq!(view.port().vfs, 2);

    let guids: Vec<_> = view.guids().map(|row| (row.vf, row.guid)).collect();
    let own = Some(config().guid);
    let of_vf = |number| (vf(number), Some(vf_guid(number)));
    assert_eq!(guids, [(VfId::PF, own), of_vf(1), of_vf(2)]);

    let place = |index| Some(PhysicalPKeyIndex(PKeyIndex(index)));
    let keys: Vec<_> = view
        .pkeys()
        .map(|row| (row.vf, row.index.0.0, row.physical, row.pkey))
        .collect();
    let mut expected: Vec<_> = (0..)
        .zip(PKEYS)
        .map(|(at, key)| (VfId::PF, at, place(at), key))
        .collect();
    expected.push((vf(1), 0, place(1), OTHER));
    expected.push((vf(2), 0, place(0), PKey::DEFAULT_FULL));
    assert_eq!(keys, expected);
}
