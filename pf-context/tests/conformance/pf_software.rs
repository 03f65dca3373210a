//! The PF's own software as a tenant of its port: statements 33, 61 and what it shares with the VFs.

use ib_wire::cm::{self, CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::{InformInfo, TrapNumber};
use ib_wire::sa::{ComponentMask, GuidInfoRecord, JoinState, McMemberRecord, SaMad};
use ib_wire::{CommId, Gid, Guid, PKey, PortNum, SubnetPrefix, Tid};
use mad_mux::tid::TidConfig;
use pf_context::{Limits, PortConfig, WireSource};
use vf_tunnel::{DropReason, VfId};

use crate::harness::*;

/// The number under which the PF's own software shows up.
const PF: u16 = 0;

fn shared() -> Port {
    let mut port = Port::new();
    port.mux.attach_pf_software(PortConfig::default().guid);
    port
}

fn port_gid() -> Gid {
    Gid::from_parts(PREFIX, PortConfig::default().guid)
}

fn cm_message(attribute: AttributeId, local: u32, remote: u32) -> Mad {
    let mut mad = Mad::new(cm::header(attribute));
    let ids: &mut CmRtu = mad.view_mut();
    ids.local_comm_id = CommId::new(local);
    ids.remote_comm_id = CommId::new(remote);
    mad
}

fn local_id(mad: &Mad) -> u32 {
    mad.view::<CmRtu>().local_comm_id.get()
}

fn req(id: u32, local: Gid, remote: Gid) -> Mad {
    let mut mad = cm_message(AttributeId::CM_REQ, id, 0);
    let req: &mut CmReq = mad.view_mut();
    req.pkey = PKey::DEFAULT_FULL;
    req.primary.local_gid = local;
    req.primary.remote_gid = remote;
    mad
}

impl Port {
    fn pf_sends(&mut self, dlid: u16, mad: Mad) -> Vec<pf_context::Output> {
        self.tenant_sends(VfId::PF, &frame(dlid, mad))
    }
}

#[test]
fn c033_no_class_filter_applies_to_the_pfs_own_software() {
    let mut port = shared();
    for class in [0x04, 0x05, 0x08, 0x09, 0x10, 0x30, 0x4f] {
        let class = MgmtClass::new(class);
        let request = mad(class, Method::GET, AttributeId::new(0x11), 5);
        let out = sent(port.pf_sends(PEER, request));
        let back = got(port.wire_sends(&from(PEER), &answer(&out.mad)));
        assert_eq!((back.vf, back.mad), (PF, answer(&request)), "{class:?}");
    }
}

fn inform(trap: u16) -> Mad {
    let info = InformInfo {
        is_generic: 1,
        subscribe: 1,
        trap_number: TrapNumber::new(trap),
        ..InformInfo::default()
    };
    Mad::from_layout(&SaMad::new(Method::SET, ComponentMask::NONE, &info))
}

fn join(number: u64, port_gid: Gid) -> Mad {
    let mut record = McMemberRecord {
        mgid: Gid::from_parts(SubnetPrefix::new(0xff12_a01b << 32), Guid::new(number)),
        port_gid,
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    Mad::from_layout(&SaMad::new(Method::SET, mask, &record))
}

#[test]
fn no_quota_of_the_vfs_holds_for_the_pfs_own_software() {
    let limits = Limits {
        tids: TidConfig {
            per_vf: 2,
            sa_per_vf: 1,
        },
        cm: cm_paravirt::Config {
            ids_per_vf: 1,
            ..cm_paravirt::Config::default()
        },
        mcast: mcast_agg::Config {
            groups_per_member: 1,
            waiting_per_member: 1,
            ..mcast_agg::Config::default()
        },
        notices: mcast_agg::notices::Config {
            subscriptions_per_member: 1,
            waiting_per_member: 1,
            ..mcast_agg::notices::Config::default()
        },
        ..Limits::default()
    };
    let mut port = Port::with(PortConfig { limits, ..config() }, [vf_config(1)]);
    port.mux.attach_pf_software(PortConfig::default().guid);
    for number in 1..=5 {
        sent(port.pf_sends(SM, path_query(number)));
        let id = u32::try_from(number).unwrap();
        sent(port.pf_sends(PEER, req(id, port_gid(), peer_gid())));
        let with_tid = |mut mad: Mad| {
            mad.header.tid = Tid::new(number);
            mad
        };
        sent(port.pf_sends(SM, with_tid(join(number, port_gid()))));
        sent(port.pf_sends(SM, with_tid(inform(60 + u16::try_from(number).unwrap()))));
    }
    let usage = port.mux.vf_usage(VfId::PF);
    assert_eq!((usage.tids.live, usage.sa_requests.live), (5, 5));
    assert_eq!(
        (usage.cm_ids.live, usage.joins.live, usage.subscribing.live),
        (5, 5, 5)
    );
    assert!(
        usage
            .named()
            .iter()
            .all(|(name, used)| used.live <= used.limit || *name == "queued")
    );
    // Five of its own, and five each for its groups and subscriptions.
    assert_eq!(port.mux.inspect(PortNum(1)).port().sa_requests, 15);

    let tid = |number| frame(SM, path_query(number));
    sent(port.vf_sends(1, &tid(1)));
    assert_eq!(dropped(port.vf_sends(1, &tid(2))), DropReason::SaQuota);
}

#[test]
fn the_pfs_own_software_joins_and_leaves_for_another_port_and_a_vf_does_not() {
    let mut port = shared();
    for (tid, method) in [(1, Method::SET), (2, Method::DELETE)] {
        let mut proxy = join(1, peer_gid());
        (proxy.header.method, proxy.header.tid) = (method, Tid::new(tid));
        let out = sent(port.pf_sends(SM, proxy));
        let asked: McMemberRecord = out.mad.view::<SaMad>().record();
        assert_eq!(asked.port_gid, peer_gid());
        let back = got(port.wire_sends(&from(SM), &answer(&out.mad)));
        assert_eq!((back.vf, back.mad.header.tid), (PF, Tid::new(tid)));
        let refused = got(port.vf_sends(1, &frame(SM, proxy)));
        assert_eq!(refused.mad.header.status, MadStatus::SA_REQ_INVALID);
    }
    assert_eq!(port.mux.sizes().mcast_groups, 0, "no group of this port's");
}

#[test]
fn what_is_for_no_vf_goes_to_the_pfs_own_software_or_else_nowhere() {
    let vendor = mad(MgmtClass::new(0x32), Method::GET, AttributeId::new(1), 9);
    let query = path_query(4);
    for request in [vendor, query] {
        assert_eq!(got(shared().wire_sends(&from(PEER), &request)).vf, PF);
        let alone = dropped(Port::new().wire_sends(&from(PEER), &request));
        assert!(
            matches!(alone, DropReason::NoTarget | DropReason::ClassNotPermitted),
            "{alone}"
        );
    }
    let for_vf = WireSource {
        grh: Some(route(peer_gid(), vf_gid(1))),
        ..from(PEER)
    };
    let refused = dropped(shared().wire_sends(&for_vf, &vendor));
    assert_eq!(refused, DropReason::ClassNotPermitted);
}

#[test]
fn the_pf_and_a_vf_connect_with_equal_ids_and_neither_gets_what_is_the_others() {
    let mut port = shared();
    let own = sent(port.pf_sends(PEER, req(5, port_gid(), peer_gid())));
    let of_vf = sent(port.vf_sends(1, &frame(PEER, req(5, vf_gid(1), peer_gid()))));
    let (own, of_vf) = (local_id(&own.mad), local_id(&of_vf.mad));
    assert_ne!(own, of_vf);
    for (wire, tenant) in [(own, PF), (of_vf, 1)] {
        let rep = cm_message(AttributeId::CM_REP, 90 + wire % 2, wire);
        let back = got(port.wire_sends(&from(PEER), &rep));
        assert_eq!(back.vf, tenant);
        assert_eq!(back.mad.view::<CmRtu>().remote_comm_id.get(), 5);
    }
    let inward = req(7, peer_gid(), port_gid());
    assert_eq!(got(port.wire_sends(&from(PEER), &inward)).vf, PF);
}

#[test]
fn only_the_pf_changes_guids_at_the_sa() {
    let mut port = shared();
    let record = GuidInfoRecord::default();
    let mask = GuidInfoRecord::LID | GuidInfoRecord::BLOCK;
    let request = Mad::from_layout(&SaMad::new(Method::SET, mask, &record));
    assert_eq!(
        dropped(port.vf_sends(1, &frame(SM, request))),
        DropReason::GuidInfoNotPermitted
    );
    let out = sent(port.pf_sends(SM, request));
    assert_eq!(got(port.wire_sends(&from(SM), &answer(&out.mad))).vf, PF);
}

#[test]
fn an_sa_on_this_very_port_answers_its_vfs() {
    let config = PortConfig {
        sm_lid: ib_wire::Lid::new(OWN),
        ..config()
    };
    let mut port = Port::with(config, [vf_config(1)]);
    port.mux.attach_pf_software(Guid::new(0x99));
    let asked = got(port.vf_sends(1, &frame(OWN, path_query(6))));
    assert_eq!(asked.vf, PF);
    let answered = got(port.pf_sends(OWN, answer(&asked.mad)));
    assert_eq!((answered.vf, answered.mad.header.tid.get()), (1, 6));
}
