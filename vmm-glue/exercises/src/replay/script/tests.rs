//! Lines of each form, and lines of none.

use super::*;

fn step(json: &str) -> Step {
    parse(json.as_bytes(), 2).unwrap()
}

fn reason(json: &str) -> String {
    parse(json.as_bytes(), 2).unwrap_err().to_string()
}

fn frame(json: &str) -> Vec<u8> {
    match step(json).action {
        Action::FromVf { frame, .. } => frame,
        other => panic!("{other:?}"),
    }
}

fn port_event(json: &str) -> PortEvent {
    match step(json).action {
        Action::Port(event) => event,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_vfs_mad_becomes_a_tunnel_frame() {
    let mad = "5a".repeat(256);
    let json = format!(
        r#"{{"at":12,"from":"vf:2","qp":"smi","dlid":258,"dqpn":3,"qkey":"0x1020304","sl":5,
        "pkey_index":6,"grh":{{"sgid_index":7,"dgid":"fe80::1","tclass":8,"flow":9,"hop":10}},
        "mad":"{mad}"}}"#
    );
    let Step { at, action } = step(&json);
    assert_eq!(at, Instant::from_millis(12));
    let Action::FromVf { vf, qp, frame } = action else {
        panic!("a VF's MAD");
    };
    assert_eq!((vf.get(), qp), (2, SpecialQp::Smi));
    let frame = ToPf::from_bytes(&frame).unwrap();
    let header = frame.header;
    assert_eq!(header.av.port().0, 1);
    assert_eq!(header.av.dlid, Lid::new(0x102));
    assert_eq!(header.av.sl().get(), 5);
    assert_eq!(
        header.global_route(),
        Some(GlobalRoute {
            remote_gid: Gid::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
            sgid_index: GidIndex(7),
            flow_label: 9,
            hop_limit: 10,
            traffic_class: 8,
        })
    );
    assert_eq!(header.remote_qpn.get(), 3);
    assert_eq!(header.remote_qkey, QKey::new(0x0102_0304));
    assert_eq!(header.pkey_index.get(), 6);
    assert_eq!(frame.mad.as_bytes(), [0x5a; 256]);
}

#[test]
fn what_a_vfs_mad_leaves_out_is_what_goes_to_qp1() {
    let short = frame(r#"{"at":0,"from":"vf:1","dlid":1,"mad":""}"#);
    let full = frame(
        r#"{"at":0,"from":"vf:1","qp":"gsi","dlid":1,"dqpn":1,"qkey":"0x80010000","sl":0,
        "pkey_index":0,"grh":null,"mad":""}"#,
    );
    assert_eq!(short, full);
    let smp = frame(r#"{"at":0,"from":"vf:1","qp":"smi","dlid":1,"mad":""}"#);
    let full =
        frame(r#"{"at":0,"from":"vf:1","qp":"smi","dlid":1,"dqpn":0,"qkey":"0x0","mad":""}"#);
    assert_eq!(smp, full);
}

#[test]
fn a_vfs_mad_keeps_whatever_length_it_has() {
    let header = 56;
    for (digits, bytes) in [(0, 0), (2, 1), (510, 255), (512, 256), (514, 257)] {
        let mad = "0".repeat(digits);
        let json = format!(r#"{{"at":0,"from":"vf:1","dlid":1,"mad":"{mad}"}}"#);
        assert_eq!(frame(&json).len(), header + bytes);
    }
}

#[test]
fn a_mad_from_the_wire_is_read_with_all_its_fields() {
    let action = step(
        r#"{"at":13,"from":"wire","qp":"smi","slid":4,"sqpn":5,"sl":6,"pkey":"0x7fff",
        "grh":{"sgid":"fe80::1","dgid":"fe80::2","tclass":7,"flow":8,"hop":9},"mad":"0102"}"#,
    )
    .action;
    let address = |last| Gid::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last));
    let source = WireSource {
        slid: Lid::new(4),
        sqpn: Qpn::from_low_bits(5),
        sl: Sl::from_low_bits(6),
        pkey: PKey::DEFAULT_LIMITED,
        path_bits: 0,
        grh: Some(Route {
            sgid: address(1),
            dgid: address(2),
            traffic_class: 7,
            flow_label: 8,
            hop_limit: 9,
        }),
    };
    let (qp, mad) = (SpecialQp::Smi, vec![1, 2]);
    assert_eq!(action, Action::FromWire { qp, source, mad });
}

#[test]
fn what_a_mad_from_the_wire_leaves_out_is_what_comes_from_qp1() {
    let short = step(r#"{"at":0,"from":"wire","slid":1,"mad":""}"#);
    let full = step(
        r#"{"at":0,"from":"wire","qp":"gsi","slid":1,"sqpn":1,"sl":0,"pkey":"0xffff",
        "grh":null,"mad":""}"#,
    );
    assert_eq!(short, full);
}

#[test]
fn every_event_is_read() {
    let reset = step(r#"{"at":20,"event":"vf_reset","vf":1}"#).action;
    assert_eq!(reset, Action::VfReset(VfId::new(1).unwrap()));
    for (json, expected) in [
        (
            r#"{"at":0,"event":"client_reregister"}"#,
            PortEvent::ClientReregister,
        ),
        (
            r#"{"at":0,"event":"lid_change","lid":7}"#,
            PortEvent::LidChange(Lid::new(7)),
        ),
        (
            r#"{"at":0,"event":"sm_change","sm_lid":3,"sm_sl":4}"#,
            PortEvent::SmChange {
                lid: Lid::new(3),
                sl: Sl::from_low_bits(4),
            },
        ),
        (r#"{"at":0,"event":"port_down"}"#, PortEvent::PortDown),
        (r#"{"at":0,"event":"port_up"}"#, PortEvent::PortUp),
        (
            r#"{"at":0,"event":"pkey_table","pkeys":["0xffff","0x0"]}"#,
            PortEvent::PKeyTable(vec![PKey::DEFAULT_FULL, PKey::INVALID]),
        ),
        (
            r#"{"at":0,"event":"gid_prefix","subnet_prefix":"fec0::"}"#,
            PortEvent::GidPrefix(SubnetPrefix::new(0xfec0 << 48)),
        ),
    ] {
        assert_eq!(port_event(json), expected);
    }
}

#[test]
fn a_line_with_a_time_only_is_a_barrier() {
    for (json, stats) in [
        (r#"{"at":90000}"#, false),
        (r#"{"at":90000,"stats":false}"#, false),
        (r#"{"at":90000,"stats":true}"#, true),
    ] {
        let at = Instant::from_millis(90_000);
        assert_eq!(
            step(json),
            Step {
                at,
                action: Action::Barrier { stats }
            }
        );
    }
}

#[test]
fn lines_that_are_not_of_a_form_are_refused_with_the_reason() {
    for (json, expected) in [
        ("", "EOF while parsing"),
        ("{\"at\":1", "EOF while parsing"),
        ("{\"at\":1}}", "trailing characters"),
        ("5", "expected an object"),
        ("[1]", "expected an object"),
        ("{}", "missing field `at`"),
        (r#"{"at":-1}"#, "invalid value: integer `-1`"),
        (r#"{"at":1.5}"#, "invalid type: floating point `1.5`"),
        (r#"{"at":"1"}"#, "invalid type: string"),
        (r#"{"at":18446744073710}"#, "`at` is 18446744073710"),
        (r#"{"at":1,"at":2}"#, "duplicate field `at`"),
        (r#"{"at":1,"stat":true}"#, "unknown field `stat`"),
        (r#"{"config":{}}"#, "only be the first line"),
        (
            r#"{"at":1,"from":"vf:3","dlid":1,"mad":""}"#,
            "there is no VF 3",
        ),
        (
            r#"{"at":1,"from":"vf:0","dlid":1,"mad":""}"#,
            "there is no VF 0",
        ),
        (
            r#"{"at":1,"from":"vf:x","dlid":1,"mad":""}"#,
            "`from` is `vf:x`",
        ),
        (
            r#"{"at":1,"from":"vf:+1","dlid":1,"mad":""}"#,
            "`from` is `vf:+1`",
        ),
        (
            r#"{"at":1,"from":"vf:01","dlid":1,"mad":""}"#,
            "`from` is `vf:01`",
        ),
        (
            r#"{"at":1,"from":"pf","dlid":1,"mad":""}"#,
            "`from` is `pf`",
        ),
        (
            r#"{"at":1,"from":1,"dlid":1,"mad":""}"#,
            "invalid type: integer",
        ),
        (r#"{"at":1,"from":"vf:1","mad":""}"#, "missing field `dlid`"),
        (r#"{"at":1,"from":"vf:1","dlid":1}"#, "missing field `mad`"),
        (
            r#"{"at":1,"from":"vf:1","slid":1,"mad":""}"#,
            "unknown field `slid`",
        ),
        (
            r#"{"at":1,"from":"wire","dlid":1,"mad":""}"#,
            "unknown field `dlid`",
        ),
        (r#"{"at":1,"from":"wire","mad":""}"#, "missing field `slid`"),
        (
            r#"{"at":1,"from":"vf:1","dlid":1,"mad":"012"}"#,
            "not whole bytes",
        ),
        (
            r#"{"at":1,"from":"vf:1","dlid":1,"mad":"0x"}"#,
            "not hexadecimal",
        ),
        (
            r#"{"at":1,"from":"vf:1","dlid":1,"qp":"rc","mad":""}"#,
            "unknown variant `rc`",
        ),
        (
            r#"{"at":1,"from":"vf:1","dlid":1,"sl":16,"mad":""}"#,
            "no service level",
        ),
        (
            r#"{"at":1,"from":"vf:1","dlid":1,"dqpn":16777216,"mad":""}"#,
            "24 bits",
        ),
        (
            r#"{"at":1,"from":"vf:1","dlid":1,"grh":{},"mad":""}"#,
            "missing field `dgid`",
        ),
        (
            r#"{"at":1,"from":"vf:1","dlid":1,"grh":{"dgid":"fe80::1","flow":1048576},"mad":""}"#,
            "20 bits",
        ),
        (
            r#"{"at":1,"from":"vf:1","dlid":1,"grh":{"sgid":"::","dgid":"::"},"mad":""}"#,
            "unknown field `sgid`",
        ),
        (
            r#"{"at":1,"event":"vf_start","vf":1}"#,
            "unknown variant `vf_start`",
        ),
        (r#"{"at":1,"event":"vf_reset","vf":3}"#, "there is no VF 3"),
        (r#"{"at":1,"event":"vf_reset"}"#, "missing field `vf`"),
        (r#"{"at":1,"event":"port_up","vf":1}"#, "unknown field `vf`"),
        (
            r#"{"at":1,"event":"gid_prefix","subnet_prefix":"fe80::1"}"#,
            "`fe80::1` is no subnet prefix",
        ),
    ] {
        let reason = reason(json);
        assert!(reason.contains(expected), "{json}: {reason}");
        assert!(!reason.contains("at line"), "{reason}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let reason = parse(b"{\"at\":1,\"\xff\":1}", 2).unwrap_err().to_string();
    assert!(reason.contains("invalid unicode"), "{reason}");
}

#[test]
fn an_error_of_form_tells_the_column() {
    assert_eq!(
        reason(r#"{"at":1,"stat":true}"#),
        "unknown field `stat`, expected `at` or `stats`, at column 14"
    );
}
