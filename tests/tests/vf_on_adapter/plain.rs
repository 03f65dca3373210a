//! Virtual functions in software over the least of the physical one of an emulated adapter.

use emulated_hca::HcaConfig;
use hca_api::{
    AccessFlags, Adapter, FunctionId, FunctionManager, FunctionSpec, Hca, HcaError, HostMemory,
    LKey, MrKind, MrSpec, QpCaps, QpKind, QpSpec, ReceiveMode,
};
use ib_wire::{Guid, Qpn};
use vhca_tests::divided_device::{
    DividedDevice, PlainDevice as Device, PlainFunction as Function, Whole,
};
use vhca_tests::vf_subnet::QUOTA;

#[expect(clippy::duplicate_mod, reason = "the same scenes on another adapter")]
#[path = "suite.rs"]
mod suite;

const VF1: FunctionId = FunctionId(1);

/// Answers of a virtual function to requests that not all adapters serve.
#[derive(Debug, PartialEq, Eq)]
struct Answers {
    chosen_key: Result<(LKey, bool), HcaError>,
    chosen_number: Result<(), HcaError>,
    numbers: Result<Qpn, HcaError>,
    resized: Result<(), HcaError>,
    counted: Result<usize, HcaError>,
}

fn ask(mut device: impl Adapter) -> Answers {
    let mut pf = device.function(FunctionId::PF).expect("the PF");
    let spec = FunctionSpec {
        id: VF1,
        node_guid: Guid::new(0x2001),
        memory: Box::new(HostMemory::new()),
        quota: QUOTA,
    };
    pf.create_function(spec).expect("a VF");
    drop(pf);
    let mut hca = device.function(VF1).expect("a VF");
    let addr = hca.allocate_dma(64).expect("memory").addr;
    let pd = hca.alloc_pd().expect("a PD");
    let cq = hca.create_cq(16).expect("a CQ");
    let chosen = 0x1234_5678;
    let region = hca.register_mr(&MrSpec {
        pd,
        kind: MrKind::Virtual { addr, len: 64 },
        access: AccessFlags::LOCAL_WRITE,
        key: Some(chosen),
    });
    let spec = QpSpec {
        kind: QpKind::Ud,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        },
        signal_all: true,
        receives: ReceiveMode::Posted,
        qpn: Some(Qpn::new(0x900).expect("a number")),
        block_multicast_loopback: false,
    };
    Answers {
        chosen_key: region.map(|keys| (keys.lkey, keys.rkey.0 == chosen)),
        chosen_number: hca.create_qp(spec).map(|_| ()),
        numbers: hca.reserve_qpns(1, 1),
        resized: hca.resize_cq(cq, 32),
        counted: hca.peek_cq(cq, 4),
    }
}

/// The list of the crate's README.
#[test]
fn virtual_functions_over_the_least_adapter_have_the_adapters_remote_keys_and_neither_resize_nor_count()
 {
    const NONE: HcaError = HcaError::Unsupported;

    let config = HcaConfig::new(Guid::new(0x1000), "host");
    let whole = ask(DividedDevice::<Whole>::new(&config, 1));
    let key = LKey(0x1234_5678);
    let expected = Answers {
        chosen_key: Ok((key, true)),
        chosen_number: Err(HcaError::InvalidParameter),
        numbers: Ok(Qpn::from_low_bits(0xe_0000)),
        resized: Ok(()),
        counted: Ok(0),
    };
    assert_eq!(whole, expected);
    let least = ask(Device::new(&config, 1));
    let expected = Answers {
        chosen_key: Ok((key, false)),
        resized: Err(NONE),
        counted: Err(NONE),
        ..expected
    };
    assert_eq!(least, expected);
}
