//! Guests and fabrics that mean harm: statements 193, 198 and 199.

use ib_vtime::{Duration, SplitMix64};
use ib_wire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ib_wire::{Gid, Lid, Tid};
use mad_mux::policy::Rights;
use pf_context::{EgressLimit, Limits, Output, PortConfig, Sizes, VfConfig};
use vf_tunnel::{DropReason, ToPf};
use zerocopy::IntoBytes;

use crate::harness::*;

fn limited(egress: EgressLimit) -> PortConfig {
    let limits = Limits {
        egress,
        ..Limits::default()
    };
    PortConfig { limits, ..config() }
}

/// A frame with class, method, attribute, TID, destination and contents at random, as far as they get
/// anywhere.
fn random_frame(random: &mut SplitMix64) -> ToPf {
    const CLASSES: [MgmtClass; 4] = [
        MgmtClass::SUBN_ADM,
        MgmtClass::COM_MGT,
        MgmtClass::DEV_MGT,
        MgmtClass::PERF,
    ];
    const ATTRIBUTES: [AttributeId; 6] = [
        AttributeId::PATH_RECORD,
        AttributeId::MC_MEMBER_RECORD,
        AttributeId::INFORM_INFO,
        AttributeId::CM_REQ,
        AttributeId::CM_SIDR_REQ,
        AttributeId::CM_REP,
    ];
    let class = CLASSES[(random.next() % 4) as usize];
    let attribute = ATTRIBUTES[(random.next() % 6) as usize];
    let method = match class {
        MgmtClass::COM_MGT => Method::SEND,
        _ => [Method::GET, Method::SET, Method::GET_TABLE][(random.next() % 3) as usize],
    };
    let mut header = MadHeader::new(class, method, attribute);
    header.tid = Tid::new(random.next());
    let mut mad = ib_wire::mad::Mad::new(header);
    for chunk in mad.data.chunks_exact_mut(4) {
        chunk.copy_from_slice(&random.next_u32().to_be_bytes());
    }
    // Communication ids, identities and component masks that the checks let pass.
    if attribute == AttributeId::CM_REQ {
        let req: &mut ib_wire::cm::CmReq = mad.view_mut();
        req.pkey = ib_wire::PKey::DEFAULT_FULL;
        req.primary.local_gid = vf_gid(1);
        req.alternate = ib_wire::cm::CmPath::default();
    }
    let dlid = [SM, PEER, u16::try_from(random.below(0x4000)).unwrap() + 50];
    let dlid = dlid[(random.next() % 3) as usize];
    if random.chance(1, 2) {
        global_frame(
            dlid,
            Gid(core::array::from_fn(|_| random.next().to_be_bytes()[0])),
            mad,
        )
    } else {
        frame(dlid, mad)
    }
}

#[test]
fn c193_random_requests_fill_no_table_beyond_its_quota_and_it_drains() {
    let unlimited = EgressLimit {
        mads_per_second: 0,
        ..EgressLimit::default()
    };
    let limits = limited(unlimited).limits;
    let vf_1 = VfConfig {
        rights: Rights {
            perf_mgt: true,
            ..Rights::default()
        },
        ..vf_config(1)
    };
    let mut port = Port::with(limited(unlimited), [vf_1, vf_config(2)]);
    let mut random = SplitMix64::new(193);
    for _ in 0..50_000 {
        port.vf_sends(1, &random_frame(&mut random));
    }
    let sizes = port.mux.sizes();
    let port_requests = limits.mcast.max_in_flight + 64;
    assert!(sizes.tids > 100 && sizes.cm_ids > 100, "{sizes:?}");
    assert!(
        sizes.tids <= limits.tids.per_vf as usize + port_requests,
        "{sizes:?}"
    );
    assert!(sizes.cm_ids <= limits.cm.ids_per_vf as usize, "{sizes:?}");
    let groups = usize::from(limits.mcast.groups_per_member);
    assert!(
        sizes.mcast_members <= groups && sizes.queued == 0,
        "{sizes:?}"
    );
    // A sibling does what it likes.
    sent(port.vf_sends(2, &frame(SM, path_query(1))));

    port.reset(1);
    port.wait(Duration::from_secs(600));
    assert_eq!(port.mux.sizes(), Sizes::default());
}

#[test]
fn c198_a_frame_that_waits_is_the_one_that_was_submitted() {
    let one_a_second = EgressLimit {
        mads_per_second: 1,
        burst: 1,
        ..EgressLimit::default()
    };
    let mut port = Port::with(limited(one_a_second), [vf_config(1)]);
    sent(port.vf_sends(1, &frame(SM, path_query(0))));

    let mut shared = frame(SM, path_query(7)).as_bytes().to_vec();
    assert!(port.vf_sends_bytes(1, &shared).is_empty());
    shared.copy_from_slice(frame(PEER, path_query(0xbad)).as_bytes());
    let [(_, Output::ToWire(send, mad))] = &port.wait(Duration::from_secs(1))[..] else {
        panic!("one frame");
    };
    assert_eq!(send.dlid, Lid::new(SM));
    let delivered = got(port.wire_sends(&from(SM), &answer(mad)));
    assert_eq!(delivered.mad.header.tid, Tid::new(7));
}

#[test]
fn c199_responses_with_random_tids_reach_nobody_and_hide_no_true_one() {
    let mut port = Port::new();
    let mut random = SplitMix64::new(199);
    // A million a second, for a fifth of a second, and a true exchange every millisecond.
    for millisecond in 0..200 {
        let out = sent(port.vf_sends(1, &frame(SM, path_query(millisecond))));
        for forged in 0..1_000 {
            let mut response = answer(&out.mad);
            // All of the 32 bits that the PF uses, from the LID that was asked and from another.
            response.header.tid = Tid::new(u64::from(random.next_u32()));
            let source = from([SM, PEER][forged % 2]);
            let reason = dropped(port.wire_sends(&source, &response));
            let unknown = [DropReason::UnknownTid, DropReason::WrongPeer];
            assert!(unknown.contains(&reason), "{reason}");
        }
        let delivered = got(port.wire_sends(&from(SM), &answer(&out.mad)));
        assert_eq!(delivered.mad.header.tid, Tid::new(millisecond));
        port.wait(Duration::from_millis(1));
    }
    port.wait(Duration::from_secs(60));
    assert_eq!(port.mux.sizes(), Sizes::default());
}
