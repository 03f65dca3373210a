//! Datagrams between virtual functions in software, and between virtual functions of the adapter itself.
//!
//! Both adapters are emulated, and the layer stands between one of them and its virtual functions, so the layer costs the difference
//! of a run's two times.

use anyhow::{Context, ensure};
use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    Adapter, AddressVector, FunctionId, FunctionManager, FunctionSpec, HostMemory, PortState,
    QpKind, ResourceCounts, UdAddress, UdDestination, VirtualPort,
};
use hca_functions::Functions;
use ib_endpoint::{DatagramQp, DatagramQpSpec};
use ib_wire::{Guid, Lid, PKeyIndex, PortNum, QKey, Sl};

use super::clock::Stopwatch;
use super::{Measured, Sample, nanos_per};

const PORT: PortNum = PortNum(1);
const OWN: Lid = Lid::new(3);
const FROM: FunctionId = FunctionId(1);
const TO: FunctionId = FunctionId(2);
const MESSAGE: [u8; 256] = [0x5a; 256];
const MESSAGES: u32 = 200_000;
/// Requests of a message: a send, and a receive that takes the place of the one that it fills.
const REQUESTS: f64 = 2.0;

pub(super) fn prepare() -> Measured {
    Measured {
        setup: format!(
            "time that virtual functions in software add to a request and its completion, of UD datagrams of {} bytes",
            MESSAGE.len()
        ),
        ops: u64::from(MESSAGES) * 2,
        mads_per_op: None,
        run: Box::new(|seed| run(seed.into())),
    }
}

fn run(seed: u64) -> anyhow::Result<Sample> {
    let config = HcaConfig::new(Guid::new(0x1000), "host");
    let mut device = Device::new(&config, seed);
    activate(&mut device)?;
    let own = message_cost(&mut device)? / REQUESTS;

    let mut functions = Functions::new(8, seed);
    let mut device = Device::with_memory(&config, seed, functions.memory());
    activate(&mut device)?;
    let mut hca = device.function(FunctionId::PF).context("no PF")?;
    let in_software = message_cost(&mut functions.on(&mut hca))? / REQUESTS;
    Ok(Sample {
        nanos: (in_software - own).max(0.0),
        bytes_per_live: None,
        figures: vec![
            ("ns/request, adapter's own", own),
            ("ns/request, in software", in_software),
        ],
    })
}

fn activate(device: &mut Device) -> anyhow::Result<()> {
    let port = device.node_mut().port_mut(PORT).context("no port")?;
    port.state = PortState::Active;
    port.lid = OWN;
    Ok(())
}

/// Returns the nanoseconds for each message from one virtual function to another.
fn message_cost(adapter: &mut impl Adapter) -> anyhow::Result<f64> {
    let mut from = open(adapter, FROM)?;
    let mut to = open(adapter, TO)?;
    let destination = UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: PORT,
            dlid: OWN,
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        }),
        qpn: to.numbers().real,
        qkey: QKey::new(1),
        pkey_index: None,
    };
    let mut message = [0; MESSAGE.len()];
    let began = Stopwatch::start();
    for _ in 0..MESSAGES {
        let mut hca = adapter.function(FROM).context("no sender")?;
        from.send(&mut hca, Some(&destination), &MESSAGE)?;
        ensure!(
            from.poll_into(&mut hca, &mut []).is_none(),
            "a message came back"
        );
        drop(hca);
        let mut hca = adapter.function(TO).context("no receiver")?;
        let received = to.poll_into(&mut hca, &mut message);
        ensure!(
            received.is_some_and(|received| received.len == MESSAGE.len()),
            "no message arrived"
        );
    }
    let cost = nanos_per(began.elapsed(), MESSAGES.into());
    ensure!(message == MESSAGE, "other bytes arrived");
    Ok(cost)
}

/// Makes a virtual function with a queue pair.
fn open(adapter: &mut impl Adapter, id: FunctionId) -> anyhow::Result<DatagramQp> {
    let spec = FunctionSpec {
        id,
        node_guid: Guid::new(0x2000 + u64::from(id.0)),
        memory: Box::new(HostMemory::new()),
        quota: ResourceCounts {
            pds: 1,
            cqs: 2,
            qps: 1,
            mrs: 1,
            ..ResourceCounts::default()
        },
    };
    let view = VirtualPort {
        state: PortState::Active,
        pkeys: vec![Some(PKeyIndex(0))],
        smi_enabled: false,
    };
    let mut pf = adapter.function(FunctionId::PF).context("no PF")?;
    pf.create_function(spec)?;
    pf.set_virtual_port(id, PORT, view)?;
    drop(pf);
    let mut hca = adapter.function(id).context("no such function")?;
    let spec = DatagramQpSpec {
        kind: QpKind::Ud,
        port: PORT,
        pkey_index: PKeyIndex(0),
        qkey: QKey::new(1),
        receives: 16,
        sends: 16,
        max_message: 256,
        block_multicast_loopback: false,
    };
    Ok(DatagramQp::open(&mut hca, spec)?)
}
