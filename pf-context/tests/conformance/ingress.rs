//! Packets from the wire: statements 32, 48, 56, 59 to 75.

use ib_wire::mad::{AttributeId, Mad, Method, MgmtClass};
use ib_wire::perf::{PerfAttribute, PortCounters};
use ib_wire::sa::{PortInfoRecord, SaMad};
use ib_wire::smp::PortInfo;
use ib_wire::{Gid, Guid, Lid, Lmc, PKey, Qpn, Sl, SubnetPrefix};
use mad_mux::policy::Rights;
use pf_context::{
    AdaptAnswer, Output, Policy, PortConfig, PortEvent, Strictness, VfConfig, WireSource,
};
use vf_proxy::mlx4::PERSONALITY;
use vf_tunnel::DropReason;
use zerocopy::IntoBytes;

use crate::harness::*;

/// A request that VFs which serve may get.
fn request() -> Mad {
    mad(MgmtClass::DEV_MGT, Method::GET, AttributeId::new(0x10), 77)
}

fn server(number: u16) -> VfConfig {
    VfConfig {
        rights: Rights {
            serve: true,
            ..Rights::default()
        },
        ..vf_config(number)
    }
}

fn servers() -> Port {
    Port::with(config(), [server(1), server(2)])
}

fn to(dgid: Gid) -> WireSource {
    WireSource {
        grh: Some(route(peer_gid(), dgid)),
        ..from(PEER)
    }
}

#[test]
fn an_sa_query_comes_back_with_the_guests_own_tid() {
    let mut port = Port::new();
    let tid = 0xffff_ffff_ffff_ffff;
    let out = sent(port.vf_sends(2, &frame(SM, path_query(tid))));
    assert_eq!(out.dlid, SM);
    assert!(out.mad.header.tid.get() <= u64::from(u32::MAX));
    let delivered = got(port.wire_sends(&from(SM), &answer(&out.mad)));
    assert_eq!((delivered.vf, delivered.slid), (2, SM));
    assert_eq!(
        delivered.mad.as_bytes(),
        answer(&path_query(tid)).as_bytes()
    );
}

#[test]
fn c048_c049_an_answer_that_nobody_waits_for_is_dropped() {
    let mut port = Port::new();
    let mut unknown = answer(&path_query(1));
    assert_eq!(
        dropped(port.wire_sends(&from(SM), &unknown)),
        DropReason::UnknownTid
    );
    let out = sent(port.vf_sends(1, &frame(SM, path_query(1))));
    unknown.header.tid = out.mad.header.tid;
    assert_eq!(
        dropped(port.wire_sends(&from(PEER), &unknown)),
        DropReason::WrongPeer
    );
    assert_eq!(got(port.wire_sends(&from(SM), &unknown)).vf, 1);
}

#[test]
fn c059_a_request_goes_to_the_owner_of_its_destination_gid() {
    let mut port = servers();
    for number in [1, 2] {
        let delivered = got(port.wire_sends(&to(vf_gid(number)), &request()));
        assert_eq!(delivered.vf, number);
        assert_eq!(delivered.mad, request());
    }
}

#[test]
fn c060_to_c063_a_destination_gid_that_is_no_vfs_is_dropped() {
    let mut port = servers();
    let foreign = SubnetPrefix::new(0xfec0_0000_0000_0001);
    for (gid, reason) in [
        (Gid::from_parts(foreign, vf_guid(1)), DropReason::BadPrefix),
        (
            Gid::from_parts(PREFIX, mad_mux::steering::SA_WELL_KNOWN),
            DropReason::NoTarget,
        ),
        (Gid::from_parts(PREFIX, Guid::NONE), DropReason::UnknownGid),
        (Gid::from_parts(PREFIX, vf_guid(9)), DropReason::UnknownGid),
    ] {
        assert_eq!(dropped(port.wire_sends(&to(gid), &request())), reason);
    }
}

#[test]
fn c064_a_request_without_grh_is_for_no_vf() {
    let mut port = servers();
    assert_eq!(
        dropped(port.wire_sends(&from(PEER), &request())),
        DropReason::NoTarget
    );
}

#[test]
fn c065_an_answer_to_another_vfs_gid_is_dropped_and_changes_nothing() {
    let mut port = Port::new();
    let out = sent(port.vf_sends(1, &global_frame(PEER, peer_gid(), path_query(1))));
    let back = answer(&out.mad);
    assert_eq!(
        dropped(port.wire_sends(&to(vf_gid(2)), &back)),
        DropReason::TargetMismatch
    );
    assert_eq!(got(port.wire_sends(&to(vf_gid(1)), &back)).vf, 1);
}

#[test]
fn c066_a_stopped_vf_gets_nothing() {
    let mut port = servers();
    let out = sent(port.vf_sends(1, &frame(SM, path_query(1))));
    port.mux.set_active(vf(1), false);
    assert_eq!(
        dropped(port.wire_sends(&to(vf_gid(1)), &request())),
        DropReason::VfDown
    );
    assert_eq!(
        dropped(port.wire_sends(&from(SM), &answer(&out.mad))),
        DropReason::VfDown
    );
}

#[test]
fn c067_a_packet_that_is_no_whole_mad_is_dropped_and_leaves_no_byte_in_the_next() {
    let mut port = servers();
    let filled = |byte| {
        let mut mad = request();
        mad.data.fill(byte);
        mad
    };
    let mut expect = |mad: &Mad| {
        let delivered = got(port.wire_sends(&to(vf_gid(1)), mad));
        assert_eq!(delivered.mad.data, mad.data);
        for length in [0, 24, 255, 257] {
            let mut bytes = filled(0xee).as_bytes().to_vec();
            bytes.resize(length, 0xee);
            assert_eq!(
                dropped(port.wire_sends_bytes(Gsi, &to(vf_gid(1)), &bytes)),
                DropReason::BadLength
            );
        }
    };
    expect(&filled(0xaa));
    expect(&filled(0x55));
}

fn in_partition(pkey: PKey) -> WireSource {
    WireSource {
        pkey,
        ..to(vf_gid(1))
    }
}

fn with_pkeys(policy: Policy, physical_indices: &[u16]) -> Port {
    let vf = VfConfig {
        pkeys: physical_indices.iter().map(|&i| physical(i)).collect(),
        ..server(1)
    };
    let config = PortConfig {
        policy,
        pkeys: vec![PKey::DEFAULT_FULL, OTHER, LIMITED, PKey::new(0x8456)],
        ..config()
    };
    Port::with(config, [vf])
}

#[test]
fn c069_a_packet_of_a_partition_that_the_vf_is_not_in_is_dropped() {
    let mut port = with_pkeys(Policy::default(), &[1]);
    for pkey in [PKey::DEFAULT_FULL, PKey::INVALID, PKey::new(0x8000)] {
        assert_eq!(
            dropped(port.wire_sends(&in_partition(pkey), &request())),
            DropReason::PKeyMismatch
        );
    }
}

#[test]
fn c070_the_index_of_a_full_member_is_reported_before_that_of_a_limited_one() {
    let mut port = with_pkeys(Policy::default(), &[0, 2, 3]);
    for pkey in [0x8456, 0x0456] {
        let delivered = got(port.wire_sends(&in_partition(PKey::new(pkey)), &request()));
        assert_eq!(delivered.pkey_index, 2);
    }
}

#[test]
fn c071_c072_limited_members_get_packets_of_full_ones_and_of_others_by_policy() {
    let full = in_partition(PKey::new(0x8456));
    let limited = in_partition(LIMITED);
    let mut strict = with_pkeys(Policy::default(), &[2]);
    assert_eq!(got(strict.wire_sends(&full, &request())).pkey_index, 0);
    assert_eq!(
        dropped(strict.wire_sends(&limited, &request())),
        DropReason::PKeyMismatch
    );
    let policy = Policy {
        limited_pkeys: Strictness::Compat,
        ..Policy::default()
    };
    let mut compat = with_pkeys(policy, &[2]);
    assert_eq!(got(compat.wire_sends(&limited, &request())).pkey_index, 0);
}

#[test]
fn c073_c074_the_virtual_index_that_is_reported_leads_back_to_the_partition() {
    let mut port = with_pkeys(Policy::default(), &[3, 1, 0]);
    let delivered = got(port.wire_sends(&in_partition(OTHER), &request()));
    assert_eq!(delivered.pkey_index, 1);
    let mut reply = frame(PEER, answer(&request()));
    reply.mad.header.method = Method::GET;
    reply.header.pkey_index.set(delivered.pkey_index);
    assert_eq!(sent(port.vf_sends(1, &reply)).pkey.base(), OTHER.base());
}

#[test]
fn c068_c075_a_delivery_shows_the_source_as_it_was_on_the_wire() {
    let mut port = servers();
    let source = WireSource {
        sqpn: Qpn::from_low_bits(0x12_3456),
        sl: Sl::from_low_bits(5),
        ..to(vf_gid(2))
    };
    let delivered = got(port.wire_sends(&source, &request()));
    assert_eq!((delivered.slid, delivered.sqpn), (PEER, source.sqpn));
    assert_eq!((delivered.sl, delivered.grh), (source.sl, source.grh));

    let out = sent(port.vf_sends(1, &frame(SM, path_query(1))));
    let local = got(port.wire_sends(&from(SM), &answer(&out.mad)));
    assert_eq!(local.grh, None);
}

/// A port with the LIDs 8 to 11.
fn with_four_lids() -> Port {
    let lmc = Lmc::from_low_bits(2);
    Port::with(PortConfig { lmc, ..config() }, [server(1), server(2)])
}

#[test]
fn c075_a_vf_answers_with_the_path_bits_under_which_it_was_asked() {
    let mut port = with_four_lids();
    let source = WireSource {
        path_bits: 3,
        ..to(vf_gid(1))
    };
    let asked = request();
    got(port.wire_sends(&source, &asked));
    let reply = answer(&asked);
    for _ in 0..2 {
        assert_eq!(sent(port.vf_sends(1, &frame(PEER, reply))).path_bits, 3);
    }
    // Not for others, nor for other peers; and what the VF says itself counts.
    assert_eq!(sent(port.vf_sends(2, &frame(PEER, reply))).path_bits, 0);
    assert_eq!(sent(port.vf_sends(1, &frame(PEER + 1, reply))).path_bits, 0);
    let mut chosen = frame(PEER, reply);
    chosen.header.av.grh_path_bits |= 1;
    assert_eq!(sent(port.vf_sends(1, &chosen)).path_bits, 1);
    port.reset(1);
    assert_eq!(sent(port.vf_sends(1, &frame(PEER, reply))).path_bits, 0);
}

#[test]
fn c075_a_sibling_is_answered_from_the_lid_that_it_asked() {
    let mut port = with_four_lids();
    let asked = request();
    let inward = got(port.vf_sends(2, &global_frame(OWN + 2, vf_gid(1), asked)));
    assert_eq!(inward.slid, OWN);
    let back = global_frame(OWN, vf_gid(2), answer(&inward.mad));
    assert_eq!(got(port.vf_sends(1, &back)).slid, OWN + 2);
}

#[test]
fn c049_an_answer_from_a_peers_base_lid_is_a_vfs_that_asked_at_another() {
    let mut port = with_four_lids();
    let asked = request();
    let out = sent(port.vf_sends(1, &frame(PEER + 2, asked)));
    let got = got(port.wire_sends(&from(PEER), &answer(&out.mad)));
    assert_eq!((got.vf, got.slid, got.mad), (1, PEER, answer(&asked)));
}

#[test]
fn c049_a_neighbour_of_the_port_that_was_asked_does_not_answer_for_it_and_is_counted() {
    let mut port = servers();
    let asked = request();
    // The neighbour's LID is that of the port but for the lowest bit, or for the others that path bits may be.
    for neighbour in [PEER + 1, PEER + 3, PEER + 8, PEER - 4] {
        let dropped_before = port.mux.vf_statistics(vf(1)).unwrap().dropped();
        let out = sent(port.vf_sends(1, &frame(PEER + 2, asked)));
        let forged = dropped(port.wire_sends(&from(neighbour), &answer(&out.mad)));
        assert_eq!(forged, DropReason::WrongPeer, "{neighbour:#x}");
        let statistics = port.mux.vf_statistics(vf(1)).unwrap();
        assert_eq!(statistics.dropped(), dropped_before + 1);
        assert_eq!(
            statistics.drops(DropReason::WrongPeer),
            statistics.dropped()
        );
        let true_one = got(port.wire_sends(&from(PEER + 2), &answer(&out.mad)));
        assert_eq!((true_one.vf, true_one.mad), (1, answer(&asked)));
    }
}

/// The answer that says of a port with a base LID how many LIDs it has.
fn port_info(asked: &Mad, base: u16, lmc: u8) -> Mad {
    let mut answer = answer(asked);
    let mut info = PortInfo {
        lid: Lid::new(base),
        ..PortInfo::default()
    };
    info.set_lmc(Lmc::from_low_bits(lmc));
    *answer.view_mut::<SaMad>().record_mut() = PortInfoRecord {
        end_port_lid: Lid::new(base),
        port_info: info,
        ..PortInfoRecord::default()
    };
    answer
}

#[test]
fn c049_a_base_lid_is_the_one_that_the_sa_says_until_lids_may_have_changed() {
    let mut port = Port::new();
    let ask = |port: &mut Port, dlid: u16| {
        let id = AttributeId::PORT_INFO_RECORD;
        let asked = mad(MgmtClass::SUBN_ADM, Method::GET, id, 9);
        sent(port.vf_sends(2, &frame(dlid, asked))).mad
    };
    let from_base = |port: &mut Port| {
        let out = sent(port.vf_sends(1, &frame(PEER + 2, path_query(3))));
        let outputs = port.wire_sends(&from(PEER), &answer(&out.mad));
        matches!(outputs[..], [Output::ToVf(..)])
    };
    assert!(!from_base(&mut port));

    // A port's own word, which could claim its neighbours' LIDs.
    let asked = ask(&mut port, PEER);
    got(port.wire_sends(&from(PEER), &port_info(&asked, PEER, 2)));
    assert!(!from_base(&mut port));

    let asked = ask(&mut port, SM);
    got(port.wire_sends(&from(SM), &port_info(&asked, PEER, 2)));
    assert!(from_base(&mut port));
    port.event(PortEvent::ClientReregister);
    assert!(!from_base(&mut port));
}

#[test]
fn c032_a_pma_get_to_a_vfs_gid_is_dropped_and_never_answered_for_the_pf() {
    let get = mad(MgmtClass::PERF, Method::GET, PortCounters::ID, 1);
    for rights in [false, true] {
        let config_1 = VfConfig {
            rights: Rights {
                perf_mgt: rights,
                ..Rights::default()
            },
            ..vf_config(1)
        };
        let mut port = Port::with(config(), [config_1]);
        let refused = [
            DropReason::ClassNotPermitted,
            DropReason::MethodNotPermitted,
        ];
        let alone = dropped(port.wire_sends(&to(vf_gid(1)), &get));
        assert!(refused.contains(&alone), "{alone}");
        port.mux
            .attach_pf_software(Guid::new(0x0002_c903_0000_0001));
        let beside_the_pf = dropped(port.wire_sends(&to(vf_gid(1)), &get));
        assert!(refused.contains(&beside_the_pf), "{beside_the_pf}");
    }
}

#[test]
fn c056_a_trap_of_a_vf_that_may_send_it_is_repressed_under_its_own_tid() {
    let trapper = VfConfig {
        rights: Rights {
            trap: true,
            ..Rights::default()
        },
        ..vf_config(1)
    };
    let mut port = Port::with(config(), [trapper, vf_config(2)]);
    let trap = mad(MgmtClass::SUBN_ADM, Method::TRAP, AttributeId::NOTICE, 77);
    let dropped_reason = dropped(port.vf_sends(2, &frame(SM, trap)));
    assert_eq!(dropped_reason, DropReason::MethodNotPermitted);

    let out = sent(port.vf_sends(1, &frame(SM, trap)));
    let repress = answer(&out.mad);
    assert_eq!(repress.header.method, Method::TRAP_REPRESS);
    let reason = dropped(port.wire_sends(&from(PEER), &repress));
    assert_eq!(reason, DropReason::WrongPeer);
    let delivered = got(port.wire_sends(&from(SM), &repress));
    assert_eq!((delivered.vf, delivered.mad), (1, answer(&trap)));
    let mut unasked = repress;
    unasked.header.tid = ib_wire::Tid::new(repress.header.tid.get() ^ 1);
    let reason = dropped(port.wire_sends(&from(SM), &unasked));
    assert_eq!(reason, DropReason::UnknownTid);
}

#[test]
fn an_answer_about_counters_reaches_the_guest_of_an_mlx4_function() {
    let of = |number, adapt_answer| VfConfig {
        rights: Rights {
            perf_mgt: true,
            ..Rights::default()
        },
        adapt_answer,
        ..vf_config(number)
    };
    let mlx4 = AdaptAnswer(PERSONALITY.adapt_answer);
    let vfs = [of(1, None), of(2, Some(mlx4))];
    let mut port = Port::with(config(), vfs);
    // What the driver takes for itself, an attribute that it leaves alone, and another class.
    for (class, attribute, seen) in [
        (MgmtClass::PERF, 0x01, 0xff01),
        (MgmtClass::PERF, 0x12, 0xff12),
        (MgmtClass::PERF, 0x1d, 0xff1d),
        (MgmtClass::PERF, 0x15, 0x15),
        (MgmtClass::DEV_MGT, 0x01, 0x01),
    ] {
        for (number, seen) in [(1, attribute), (2, seen)] {
            let attribute = AttributeId::new(attribute);
            let request = mad(class, Method::GET, attribute, u64::from(attribute.get()));
            let out = sent(port.vf_sends(number, &frame(PEER, request)));
            let back = got(port.wire_sends(&from(PEER), &answer(&out.mad)));
            assert_eq!(back.mad.header.attribute_id, AttributeId::new(seen));
            assert_eq!(back.mad.header.tid, request.header.tid);
        }
    }
}
