//! Frames of VFs: statements 5 to 22, 42, 196 and 198.

use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::ClassPortInfo;
use ib_wire::{Lid, Lmc, PKey, QKey, Qpn, Sl};
use mad_mux::policy::Rights;
use pf_context::{Output, Policy, PortConfig, Strictness, VfConfig};
use proptest::prelude::*;
use vf_tunnel::{DropReason, TUNNEL_FRAME_SIZE, ToPf};
use zerocopy::IntoBytes;

use crate::harness::*;

#[test]
fn c005_c006_a_frame_of_another_length_is_dropped() {
    let mut port = Port::new();
    let bytes = frame(SM, path_query(1));
    for length in [0, 1, 55, 56, TUNNEL_FRAME_SIZE - 1] {
        let short = &bytes.as_bytes()[..length];
        assert_eq!(
            dropped(port.vf_sends_bytes(1, short)),
            DropReason::BadLength
        );
    }
    let long = [bytes.as_bytes(), &[0]].concat();
    assert_eq!(
        dropped(port.vf_sends_bytes(1, &long)),
        DropReason::BadLength
    );
    assert_eq!(sent(port.vf_sends_bytes(1, bytes.as_bytes())).dlid, SM);
}

#[test]
fn c025_no_smp_of_a_vf_without_the_privilege_goes_anywhere_and_each_is_counted() {
    let mut port = Port::new();
    let methods = [
        Method::GET,
        Method::SET,
        Method::TRAP,
        Method::TRAP_REPRESS,
        Method::GET_RESP,
    ];
    let mut sent_so_far = 0;
    for class in [MgmtClass::SUBN_LID_ROUTED, MgmtClass::SUBN_DIRECTED_ROUTE] {
        for method in methods {
            for dlid in [SM, PEER, OWN, 0xffff] {
                let smp = mad(class, method, AttributeId::new(0x11), 5);
                let outputs = port.vf_sends_on(1, Smi, &frame(dlid, smp));
                // Silence: nothing but the record of the drop comes of it.
                assert_eq!(dropped(outputs), DropReason::SmiNotPermitted);
                sent_so_far += 1;
                let statistics = port.mux.vf_statistics(vf(1)).unwrap();
                assert_eq!(statistics.drops(DropReason::SmiNotPermitted), sent_so_far);
                let on_qp1 = dropped(port.vf_sends(1, &frame(dlid, smp)));
                assert_eq!(on_qp1, DropReason::ClassOnWrongQp);
            }
        }
    }
    assert_eq!(port.mux.sizes().tids, 0, "no transaction");
    let others = port.mux.vf_statistics(vf(2)).unwrap();
    assert_eq!(others.drops(DropReason::SmiNotPermitted), 0);
}

#[test]
fn c011_a_pkey_index_beyond_the_vfs_table_is_dropped() {
    let mut port = Port::new();
    for index in [1_u16, 127, 128, 255, u16::MAX] {
        let mut frame = frame(SM, path_query(1));
        frame.header.pkey_index.set(index);
        assert_eq!(
            dropped(port.vf_sends(1, &frame)),
            DropReason::PKeyIndexOutOfRange
        );
    }
}

#[test]
fn c012_an_unmapped_pkey_index_or_one_without_a_key_is_dropped() {
    let pkeys = vec![None, physical(3), physical(99), physical(1)];
    let config = VfConfig {
        pkeys,
        ..vf_config(1)
    };
    let mut port = Port::with(crate::harness::config(), [config]);
    for index in 0..3 {
        let mut frame = frame(SM, path_query(1));
        frame.header.pkey_index.set(index);
        assert_eq!(dropped(port.vf_sends(1, &frame)), DropReason::NoPKey);
    }
    let mut frame = frame(SM, path_query(1));
    frame.header.pkey_index.set(3);
    assert_eq!(sent(port.vf_sends(1, &frame)).pkey, OTHER);
}

#[test]
fn c013_a_port_that_is_not_the_vfs_is_dropped() {
    let mut port = Port::new();
    for number in [0, 2, 127] {
        let mut frame = frame(SM, path_query(1));
        frame.header.av.flags_port = number;
        assert_eq!(dropped(port.vf_sends(1, &frame)), DropReason::BadPort);
    }
}

#[test]
fn c014_c196_the_source_gid_is_the_vfs_own_whatever_the_frame_says() {
    let mut port = Port::new();
    for index in [0, 1, 2, 255] {
        let mut frame = global_frame(PEER, peer_gid(), path_query(1));
        frame.header.av.sgid_index = index;
        let grh = sent(port.vf_sends(1, &frame)).grh.unwrap();
        assert_eq!((grh.sgid, grh.dgid), (vf_gid(1), peer_gid()));
        assert_eq!(grh.hop_limit, 9);
    }
}

#[test]
fn c015_a_vf_without_guid_sends_nothing_with_a_grh() {
    let config = VfConfig {
        guid: None,
        ..vf_config(1)
    };
    let mut port = Port::with(crate::harness::config(), [config]);
    let global = global_frame(PEER, peer_gid(), path_query(1));
    assert_eq!(dropped(port.vf_sends(1, &global)), DropReason::NoGuid);
    assert!(
        sent(port.vf_sends(1, &frame(SM, path_query(1))))
            .grh
            .is_none()
    );
}

#[test]
fn c016_path_bits_are_masked_to_the_lmc() {
    for (lmc, expected) in [(0, 0), (1, 1), (3, 7), (7, 0x7f)] {
        let config = PortConfig {
            lid: Lid::new(0x80),
            lmc: Lmc::from_low_bits(lmc),
            ..config()
        };
        let mut port = Port::with(config, [vf_config(1)]);
        let mut frame = frame(SM, path_query(1));
        frame.header.av.grh_path_bits = 0x7f;
        assert_eq!(sent(port.vf_sends(1, &frame)).path_bits, expected);
    }
}

#[test]
fn c017_the_force_loopback_flag_is_ignored() {
    let mut port = Port::new();
    let mut frame = frame(SM, path_query(1));
    frame.header.av.flags_port |= 0x80;
    assert_eq!(sent(port.vf_sends(1, &frame)).dlid, SM);
}

#[test]
fn c018_an_sl_that_the_vf_may_not_use_is_dropped() {
    let config = VfConfig {
        service_levels: 0b101,
        ..vf_config(1)
    };
    let mut port = Port::with(crate::harness::config(), [config]);
    for sl in 0..16_u32 {
        let mut frame = frame(SM, path_query(1));
        frame.header.av.sl_tclass_flow.set(sl << 28);
        let outputs = port.vf_sends(1, &frame);
        if sl == 0 || sl == 2 {
            sent(outputs);
        } else {
            assert_eq!(dropped(outputs), DropReason::BadSl);
        }
    }
}

fn compat() -> PortConfig {
    PortConfig {
        policy: Policy {
            remote_qp: Strictness::Compat,
            ..Policy::default()
        },
        ..config()
    }
}

#[test]
fn c019_another_qkey_is_dropped_if_strict_and_else_sent() {
    let mut other = frame(SM, path_query(1));
    other.header.remote_qkey = QKey::new(0x1234);
    let own = [0x8000_0000, 0x8001_0000, 0xffff_0000].map(|qkey| {
        let mut own = frame(SM, path_query(2));
        own.header.remote_qkey = QKey::new(qkey);
        own
    });

    let mut port = Port::new();
    assert_eq!(dropped(port.vf_sends(1, &other)), DropReason::BadQKey);
    for own in &own {
        assert_eq!(sent(port.vf_sends(1, own)).qkey, QKey::GSI);
    }

    let mut port = Port::with(compat(), [vf_config(1)]);
    assert_eq!(sent(port.vf_sends(1, &other)).qkey, QKey::new(0x1234));
    for own in &own {
        assert_eq!(sent(port.vf_sends(1, own)).qkey, QKey::GSI);
    }
}

#[test]
fn c020_another_remote_qp_is_dropped_if_strict_and_else_sent() {
    let mut frame = frame(PEER, path_query(1));
    let qpn = Qpn::from_low_bits(0x48);
    frame.header.remote_qpn = qpn;
    assert_eq!(
        dropped(Port::new().vf_sends(1, &frame)),
        DropReason::BadRemoteQp
    );
    let mut port = Port::with(compat(), [vf_config(1)]);
    assert_eq!(sent(port.vf_sends(1, &frame)).dqpn, qpn);
}

/// An answer that sends its reader to another QP.
fn redirect(request: &Mad, lid: u16, qpn: Qpn, qkey: QKey) -> Mad {
    let info = ClassPortInfo {
        redirect_lid: Lid::new(lid),
        redirect_qp: qpn,
        redirect_qkey: qkey,
        ..ClassPortInfo::default()
    };
    let mut back = answer(request);
    back.header.status = MadStatus::REDIRECT;
    let data = &mut back.data[64 - 24..];
    data[..72].copy_from_slice(info.as_bytes());
    back
}

#[test]
fn c020_a_redirect_opens_its_qp_to_the_vf_that_was_sent_there() {
    let mut port = Port::new();
    let request = mad(MgmtClass::DEV_MGT, Method::GET, AttributeId::new(0x10), 1);
    let (qpn, qkey) = (Qpn::from_low_bits(0x48), QKey::new(0x1234));
    let redirected = |lid, qkey| {
        let mut frame = frame(lid, request);
        frame.header.remote_qpn = qpn;
        frame.header.remote_qkey = qkey;
        frame
    };
    let out = sent(port.vf_sends(1, &frame(PEER, request)));
    let back = redirect(&out.mad, PEER + 1, qpn, qkey);
    got(port.wire_sends(&from(PEER), &back));

    let allowed = redirected(PEER + 1, qkey);
    let out = sent(port.vf_sends(1, &allowed));
    assert_eq!((out.dqpn, out.qkey), (qpn, qkey));
    sent(port.vf_sends(1, &redirected(PEER + 1, QKey::GSI)));
    for (number, frame, reason) in [
        (2, allowed, DropReason::BadRemoteQp),
        (1, redirected(PEER, qkey), DropReason::BadRemoteQp),
        (1, redirected(PEER + 1, QKey::new(1)), DropReason::BadQKey),
    ] {
        assert_eq!(dropped(port.vf_sends(number, &frame)), reason);
    }
    port.reset(1);
    assert_eq!(dropped(port.vf_sends(1, &allowed)), DropReason::BadRemoteQp);
}

#[test]
fn c021_reserved_bytes_of_the_header_are_ignored() {
    let mut port = Port::new();
    let mut frame = frame(SM, path_query(1));
    frame.header.reserved0 = 0xff;
    frame.header.reserved1 = [0xff; 6];
    frame.header.av.reserved0 = 0xff;
    frame.header.av.reserved1 = 0xff;
    assert_eq!(sent(port.vf_sends(1, &frame)).dlid, SM);
}

#[test]
fn c022_a_vf_that_is_stopped_sends_nothing() {
    let mut port = Port::new();
    port.mux.set_active(vf(1), false);
    let frame = frame(SM, path_query(1));
    assert_eq!(dropped(port.vf_sends(1, &frame)), DropReason::VfInReset);
    port.mux.set_active(vf(1), true);
    sent(port.vf_sends(1, &frame));
}

#[test]
fn c042_c194_an_sa_answer_to_the_ports_own_lid_is_dropped_even_from_a_server() {
    let config = VfConfig {
        rights: Rights {
            serve: true,
            ..Rights::default()
        },
        ..vf_config(1)
    };
    let mut port = Port::with(crate::harness::config(), [config]);
    for method in [
        Method::GET_RESP,
        Method::GET_TABLE_RESP,
        Method::DELETE_RESP,
    ] {
        let forged = mad(
            MgmtClass::SUBN_ADM,
            method,
            AttributeId::MC_MEMBER_RECORD,
            1,
        );
        assert_eq!(
            dropped(port.vf_sends(1, &frame(OWN, forged))),
            DropReason::ResponseNotPermitted
        );
    }
}

#[test]
fn an_smp_of_a_vf_that_may_goes_by_qp0_without_qkey() {
    let config = VfConfig {
        rights: Rights {
            smi: true,
            ..Rights::default()
        },
        ..vf_config(1)
    };
    let mut port = Port::with(crate::harness::config(), [config]);
    let smp = mad(
        MgmtClass::SUBN_LID_ROUTED,
        Method::GET,
        AttributeId::new(0x11),
        1,
    );
    let mut frame = frame(PEER, smp);
    frame.header.remote_qpn = Qpn::SMI;
    frame.header.pkey_index.set(77);
    let out = sent(port.vf_sends_on(1, Smi, &frame));
    assert_eq!((out.qp, out.qkey, out.dqpn), (Smi, QKey::SMI, Qpn::SMI));
    assert_eq!(out.pkey, PKey::DEFAULT_FULL);
    let back = answer(&out.mad);
    let mut source = from(PEER);
    source.sqpn = Qpn::SMI;
    let delivered = got(port.wire_sends_bytes(Smi, &source, back.as_bytes()));
    assert_eq!((delivered.vf, delivered.mad.header.tid.get()), (1, 1));
}

#[test]
fn a_port_without_lid_has_no_siblings_to_reach() {
    let config = PortConfig {
        lid: Lid::NONE,
        lmc: Lmc::from_low_bits(7),
        ..config()
    };
    let mut port = Port::with(config, [vf_config(1)]);
    assert_eq!(
        sent(port.vf_sends(1, &frame(PEER, path_query(1)))).dlid,
        PEER
    );
}

/// Asserts that what leaves by the wire for a VF is what that VF may send.
fn assert_valid(number: u16, config: &VfConfig, frame: &ToPf, out: &Sent, sl: Sl) {
    let class = out.mad.header.mgmt_class;
    assert_eq!(out.qp, Gsi);
    assert_eq!(out.mad.header.base_version, 1);
    assert_eq!(out.mad.header.class_version, class.supported_version());
    assert!(!class.is_smp(), "{class:?}");
    assert_eq!(out.dlid, frame.header.av.dlid.get());
    assert!(out.dqpn == frame.header.remote_qpn && out.dqpn != Qpn::SMI);
    assert!(out.qkey == QKey::GSI || !out.qkey.is_privileged());
    assert_eq!(out.pkey, PKey::DEFAULT_FULL);
    assert_eq!(out.path_bits & !0b11, 0);
    assert_ne!(config.service_levels & 1 << sl.get(), 0);
    let has_grh = frame.header.av.grh_path_bits & 0x80 != 0;
    assert_eq!(out.grh.map(|grh| grh.sgid), has_grh.then(|| vf_gid(number)));
}

proptest! {
    #[test]
    fn c197_any_frame_has_one_verdict_and_what_is_sent_is_valid(
        bytes in prop::collection::vec(any::<u8>(), TUNNEL_FRAME_SIZE),
        // Half of the frames get past the first checks.
        plausible in any::<bool>(),
        number in 1_u16..3,
    ) {
        let port_config = PortConfig {
            lid: Lid::new(OWN),
            lmc: Lmc::from_low_bits(2),
            ..compat()
        };
        let config = |number| VfConfig {
            service_levels: 0x5a5a,
            ..vf_config(number)
        };
        let mut port = Port::with(port_config, [config(1), config(2)]);
        let mut frame = ToPf::from_bytes(&bytes).unwrap();
        if plausible {
            frame.header.av.flags_port = 1;
            frame.header.pkey_index.set(0);
            let class = [MgmtClass::SUBN_ADM, MgmtClass::COM_MGT, MgmtClass::DEV_MGT];
            frame.mad.header.mgmt_class = class[usize::from(bytes[0]) % 3];
            frame.mad.header.class_version = frame.mad.header.mgmt_class.supported_version();
            frame.mad.header.base_version = 1;
            frame.mad.header.method = Method::new(bytes[1] & 0x87);
        }
        let outputs = port.vf_sends(number, &frame);
        prop_assert_eq!(outputs.len(), 1);
        if let Output::ToWire(send, _) = outputs[0] {
            prop_assert_eq!(send.vf, Some(vf(number)));
            assert_valid(number, &config(number), &frame, &sent(outputs), send.sl);
        }
    }
}

#[test]
fn rights_that_are_given_and_taken_count_from_the_next_frame_on() {
    let ping = MgmtClass::new(0x32);
    let request = |tid| mad(ping, Method::GET, AttributeId::new(0), tid);
    let mut port = Port::new();
    let none = Rights::default();
    let vendor = Rights {
        vendor: true,
        ..none
    };
    let refused = port.vf_sends(1, &frame(PEER, request(1)));
    assert_eq!(dropped(refused), DropReason::ClassNotPermitted);
    port.mux.set_rights(vf(1), vendor);
    let out = sent(port.vf_sends(1, &frame(PEER, request(2))));
    let back = got(port.wire_sends(&from(PEER), &answer(&out.mad)));
    assert_eq!((back.vf, back.mad.header.tid), (1, request(2).header.tid));
    let of_another = port.vf_sends(2, &frame(PEER, request(3)));
    assert_eq!(dropped(of_another), DropReason::ClassNotPermitted);
    port.mux.set_rights(vf(1), none);
    let refused = port.vf_sends(1, &frame(PEER, request(4)));
    assert_eq!(dropped(refused), DropReason::ClassNotPermitted);
}
