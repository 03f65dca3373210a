//! Datagram queue pairs with their buffers, on an adapter that can do more and on one that can do less.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends at the first thing that fails"
)]

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AddressVector, FunctionId, FunctionManager, Hca, PortState, QpKind, QpModify, QpState,
    UdAddress, UdDestination,
};
use ib_endpoint::{DatagramQp, DatagramQpSpec};
use ib_wire::{Guid, Lid, PKeyIndex, PortNum, QKey, Sl};
use vhca_tests::faulty_hca::FaultyHca;

const PORT: PortNum = PortNum(1);
const LID: Lid = Lid::new(3);
const QKEY: QKey = QKey::new(1);
/// A length of its own, so that buffers do not end where others begin.
const LONGEST: u32 = 300;

fn device() -> Device {
    let mut device = Device::new(&HcaConfig::new(Guid::new(0x1000), "host"), 1);
    let port = device.node_mut().port_mut(PORT).unwrap();
    port.state = PortState::Active;
    port.lid = LID;
    device
}

fn spec(receives: u32, sends: u32) -> DatagramQpSpec {
    DatagramQpSpec {
        kind: QpKind::Ud,
        port: PORT,
        pkey_index: PKeyIndex(0),
        qkey: QKEY,
        receives,
        sends,
        max_message: LONGEST,
        block_multicast_loopback: false,
    }
}

fn to(qp: &DatagramQp) -> UdDestination {
    UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: PORT,
            dlid: LID,
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        }),
        qpn: qp.numbers().external,
        qkey: QKEY,
        pkey_index: None,
    }
}

/// Sends many times what the queues hold, and looks at each message.
fn converse(hca: &mut dyn FunctionManager, depth: u32) {
    let before = hca.resources(FunctionId::PF).unwrap();
    let mut sender = DatagramQp::open(hca, spec(1, depth)).unwrap();
    let mut receiver = DatagramQp::open(hca, spec(depth, 1)).unwrap();
    let destination = to(&receiver);
    let (mut sent, mut received) = (0_u32, 0_u32);
    for round in 0..50 {
        let burst = (round % depth + 1).min(u32::try_from(sender.free_sends()).unwrap());
        assert!(burst > 0, "the queue is stuck");
        for _ in 0..burst {
            let message = vec![sent.to_be_bytes()[3]; (sent % (LONGEST + 1)) as usize];
            sender.send(hca, Some(&destination), &message).unwrap();
            sent += 1;
        }
        assert!(sender.poll(hca).is_none(), "nobody sends to it");
        while let Some(datagram) = receiver.poll(hca) {
            let expected = vec![received.to_be_bytes()[3]; (received % (LONGEST + 1)) as usize];
            assert_eq!(datagram.bytes, expected);
            received += 1;
        }
        assert_eq!(received, sent);
    }
    assert!(sender.is_at_rest() && receiver.is_at_rest());
    assert_eq!((sender.failures(), receiver.failures()), ((0, 0), (0, 0)));
    sender.close(hca);
    receiver.close(hca);
    assert_eq!(hca.resources(FunctionId::PF).unwrap(), before);
}

#[test]
fn messages_pass_whole_and_in_order_at_any_depth_whatever_the_adapter_can_do() {
    for is_plain in [false, true] {
        for depth in [1, 2, 7, 8, 16, 33, 64, 100] {
            let mut device = device();
            let mut hca = device.function(FunctionId::PF).unwrap();
            let mut hca = FaultyHca::new(&mut hca);
            hca.is_plain = is_plain;
            converse(&mut hca, depth);
        }
    }
}

/// A burst that is longer than the queue loses what is beyond it, and nothing else.
#[test]
fn as_many_messages_wait_as_there_are_receives() {
    for is_plain in [false, true] {
        let mut device = device();
        let mut hca = device.function(FunctionId::PF).unwrap();
        let mut hca = FaultyHca::new(&mut hca);
        hca.is_plain = is_plain;
        let mut sender = DatagramQp::open(&mut hca, spec(1, 200)).unwrap();
        let mut receiver = DatagramQp::open(&mut hca, spec(70, 1)).unwrap();
        let destination = to(&receiver);
        for n in 0..100 {
            sender.send(&mut hca, Some(&destination), &[n]).unwrap();
        }
        let got: Vec<u8> = std::iter::from_fn(|| receiver.poll(&mut hca))
            .map(|datagram| datagram.bytes[0])
            .collect();
        assert_eq!(got, (0..70).collect::<Vec<u8>>());
        assert!(receiver.is_at_rest());
    }
}

/// A receive that is posted in the error state is flushed at once, and would be again for ever.
#[test]
fn a_queue_pair_in_error_gives_each_receive_back_once() {
    for is_plain in [false, true] {
        let mut device = device();
        let mut hca = device.function(FunctionId::PF).unwrap();
        let mut hca = FaultyHca::new(&mut hca);
        hca.is_plain = is_plain;
        let mut qp = DatagramQp::open(&mut hca, spec(20, 1)).unwrap();
        let error = QpModify {
            state: Some(QpState::Error),
            ..QpModify::default()
        };
        hca.modify_qp(qp.handle(), &error).unwrap();
        for _ in 0..2 {
            assert!(qp.poll(&mut hca).is_none());
            assert_eq!(qp.failures(), (0, 20));
            assert!(!qp.arm(&mut hca) && !qp.is_at_rest());
        }
        qp.close(&mut hca);
    }
}
