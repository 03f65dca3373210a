//! The ibsim protocol's datagrams as OpenSM and its tools exchanged them with a simulator.
#![expect(
    clippy::unwrap_used,
    reason = "a recorded datagram that is not read fails the test"
)]

use ibsim_link::codec::{Connect, Control, ControlKind, MadDatagram};
use vhca_tests::traces::{Line, Trace};
use zerocopy::IntoBytes;

fn lines() -> impl Iterator<Item = Line> {
    let traces: Vec<Trace> = vhca_tests::traces::all().unwrap();
    traces.into_iter().flat_map(|trace| trace.lines)
}

#[test]
fn every_recorded_control_datagram_is_read_as_the_recorder_did_and_written_again() {
    let mut connects = 0;
    let mut controls = 0;
    for line in lines() {
        let Line::Control { bytes, decoded, .. } = line else {
            continue;
        };
        controls += 1;
        let control = Control::parse(&bytes).unwrap();
        assert_eq!(control.as_bytes(), bytes);
        let value = |key: &str| decoded.values.get(key).map(String::as_str);
        assert_eq!(value("clientid"), Some(&*control.slot.get().to_string()));
        assert_eq!(value("len"), Some(&*control.len.get().to_string()));
        let name = match control.kind {
            ControlKind::CONNECT => "CONNECT",
            ControlKind::DISCONNECT => "DISCONNECT",
            ControlKind::GET_VENDOR => "GET_VENDOR",
            ControlKind::GET_NODE_INFO => "GET_NODEINFO",
            ControlKind::GET_PORT_INFO => "GET_PORTINFO",
            ControlKind::SET_IS_SM => "SET_ISSM",
            ControlKind::GET_PKEYS => "GET_PKEYS",
            other => panic!("{other:?}"),
        };
        assert_eq!(value("type"), Some(name));
        if control.kind == ControlKind::CONNECT {
            connects += 1;
            let connect: Connect = control.data();
            assert_eq!(value("id"), Some(&*connect.id.get().to_string()));
            let node = String::from_utf8(connect.node_name().to_vec()).unwrap();
            assert_eq!(value("nodeid"), Some(&*node));
        }
    }
    assert!(connects > 10 && controls > 50, "{connects} of {controls}");
}

#[test]
fn every_recorded_mad_passes_a_datagram_unchanged_as_far_as_it_means_something() {
    let mut mads = 0;
    for line in lines() {
        let Line::Mad {
            bytes, envelope, ..
        } = line
        else {
            continue;
        };
        mads += 1;
        let len: usize = envelope["len"].parse().unwrap();
        let mut datagram = MadDatagram::parse(&[0; 288]).unwrap();
        datagram.mad.copy_from_slice(&bytes);
        datagram.length = (len as u64).into();
        let parsed = MadDatagram::parse(datagram.as_bytes()).unwrap();
        let mad = parsed.mad();
        assert_eq!(mad.as_bytes()[..len], bytes[..len]);
        assert!(mad.as_bytes()[len..].iter().all(|byte| *byte == 0));
    }
    assert!(mads > 1000, "{mads}");
}
