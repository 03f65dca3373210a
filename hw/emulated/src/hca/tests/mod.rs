//! Tests of whole functions and devices.

mod datagram;
mod held;
mod keys;
mod multicast;
mod on_fabric;
mod queues;
mod sequences;
mod special;
mod tunnel;
mod virtual_port;

use hca_api::{
    AccessFlags, AddressSpace, AddressVector, Completion, CompletionFlags, CompletionOp,
    CompletionStatus, CqHandle, DmaBuffer, FunctionId, FunctionManager, FunctionSpec, GlobalRoute,
    Hca, HcaError, HostMemory, LKey, MrKind, MrSpec, Payload, PdHandle, PortState, QpCaps,
    QpHandle, QpKind, QpModify, QpNumbers, QpSpec, QpState, ReceiveMode, RecvRequest, SendFlags,
    SendOp, SendRequest, Sge, UdAddress, UdDestination, VirtualPort,
};
use ib_vtime::Instant;
use ib_wire::{Gid, GidIndex, Guid, Lid, Mtu, PKey, PKeyIndex, PortNum, Psn, QKey, Qpn, Sl};

use super::{Device, DropReason, NO_QUOTA};
use crate::{EndNode, HcaConfig};

const PORT: PortNum = PortNum(1);
const PF: FunctionId = FunctionId::PF;
const VF1: FunctionId = FunctionId(1);
const VF2: FunctionId = FunctionId(2);
const QKEY: QKey = QKey::new(0x1234);
const GRH: usize = 40;
const MESSAGE: usize = 256;
const SLOT: usize = 4096;

/// An adapter whose port 1 is active and has a LID.
fn device(lid: u16) -> Device {
    let guid = Guid::new(0x0002_c903_0000_0000 + u64::from(lid) * 0x1000);
    let mut device = Device::new(&HcaConfig::new(guid, "test"), 7);
    let port = device.node_mut().port_mut(PORT).unwrap();
    port.state = PortState::Active;
    port.lid = Lid::new(lid);
    port.neighbor_mtu = Mtu::MTU_2048;
    device
}

/// Writes the first entries of the P_Key table.
fn set_pkeys(device: &mut Device, pkeys: impl IntoIterator<Item = u16>) {
    let port = device.node_mut().port_mut(PORT).unwrap();
    for (index, pkey) in (0..).zip(pkeys) {
        port.set_pkey(PKeyIndex(index), PKey::new(pkey));
    }
}

/// Writes an entry of the GUID table.
fn set_alias_guid(device: &mut Device, index: u16, guid: Guid) {
    let port = device.node_mut().port_mut(PORT).unwrap();
    port.set_alias_guid(GidIndex(index), guid);
}

/// Adds a VF with the default partition at index 0 and an active virtual port.
pub(crate) fn add_vf(device: &mut Device, id: FunctionId) {
    add_vf_in(device, id, Box::new(HostMemory::new()));
}

/// The same for a VF with a memory of the caller's.
fn add_vf_in(device: &mut Device, id: FunctionId, memory: Box<dyn AddressSpace>) {
    let mut pf = device.function(PF).unwrap();
    pf.create_function(FunctionSpec {
        id,
        node_guid: Guid::new(0x0014_0500_0000_0000 + u64::from(id.0)),
        memory,
        quota: NO_QUOTA,
    })
    .unwrap();
    let view = VirtualPort {
        state: PortState::Active,
        pkeys: vec![Some(PKeyIndex(0))],
        smi_enabled: false,
    };
    pf.set_virtual_port(id, PORT, view).unwrap();
}

/// A queue pair with a buffer for one message at offset 0 to send from, and others to receive into.
#[derive(Clone, Copy, Debug)]
struct Peer {
    function: FunctionId,
    cq: CqHandle,
    qp: QpHandle,
    numbers: QpNumbers,
    memory: DmaBuffer,
    lkey: LKey,
}

fn caps() -> QpCaps {
    QpCaps {
        max_send_wr: 128,
        max_recv_wr: 16,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline: 256,
    }
}

fn spec(kind: QpKind, pd: PdHandle, cq: CqHandle) -> QpSpec {
    QpSpec {
        kind,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: caps(),
        signal_all: true,
        receives: ReceiveMode::Posted,
        qpn: None,
        block_multicast_loopback: false,
    }
}

fn to_state(state: QpState) -> QpModify {
    QpModify {
        state: Some(state),
        ..QpModify::default()
    }
}

/// Makes a queue pair of `kind` ready to send.
fn open_with(
    device: &mut Device,
    function: FunctionId,
    qkey: QKey,
    make: impl FnOnce(PdHandle, CqHandle) -> QpSpec,
) -> Result<Peer, HcaError> {
    let mut hca = device.function(function).unwrap();
    let memory = hca.allocate_dma(16 * SLOT)?;
    let pd = hca.alloc_pd()?;
    let region = hca.register_mr(&MrSpec {
        pd,
        kind: MrKind::Virtual {
            addr: memory.addr,
            len: memory.len as u64,
        },
        access: AccessFlags::LOCAL_WRITE,
        key: None,
    })?;
    let cq = hca.create_cq(256)?;
    let (qp, numbers) = hca.create_qp(make(pd, cq))?;
    hca.modify_qp(
        qp,
        &QpModify {
            port: Some(PORT),
            pkey_index: Some(PKeyIndex(0)),
            qkey: Some(qkey),
            ..to_state(QpState::Init)
        },
    )?;
    ready(&mut hca, qp);
    Ok(Peer {
        function,
        cq,
        qp,
        numbers,
        memory,
        lkey: region.lkey,
    })
}

/// Takes an initialised queue pair to ready-to-send.
fn ready(hca: &mut dyn Hca, qp: QpHandle) {
    hca.modify_qp(qp, &to_state(QpState::ReadyToReceive))
        .unwrap();
    let rts = QpModify {
        sq_psn: Some(Psn::default()),
        ..to_state(QpState::ReadyToSend)
    };
    hca.modify_qp(qp, &rts).unwrap();
}

fn open(device: &mut Device, function: FunctionId, kind: QpKind) -> Peer {
    let qkey = match kind {
        QpKind::Ud => QKEY,
        _ => QKey::GSI,
    };
    open_with(device, function, qkey, |pd, cq| spec(kind, pd, cq)).unwrap()
}

fn vector(dlid: u16) -> AddressVector {
    AddressVector {
        port: PORT,
        dlid: Lid::new(dlid),
        sl: Sl::default(),
        path_bits: 0,
        static_rate: None,
        grh: None,
    }
}

fn global(dlid: u16, remote_gid: Gid) -> AddressVector {
    AddressVector {
        grh: Some(GlobalRoute {
            remote_gid,
            sgid_index: GidIndex(0),
            flow_label: 0x12345,
            hop_limit: 3,
            traffic_class: 9,
        }),
        ..vector(dlid)
    }
}

fn to(vector: AddressVector, qpn: Qpn, qkey: QKey) -> UdDestination {
    UdDestination {
        address: UdAddress::Vector(vector),
        qpn,
        qkey,
        pkey_index: None,
    }
}

impl Peer {
    fn send_slot(&self, len: usize) -> Sge {
        Sge {
            addr: self.memory.addr,
            len: u32::try_from(len).unwrap(),
            lkey: self.lkey,
        }
    }

    fn recv_slot(&self, index: u64) -> Sge {
        Sge {
            addr: self.memory.addr + index * SLOT as u64,
            len: u32::try_from(SLOT).unwrap(),
            lkey: self.lkey,
        }
    }

    fn post_recv(&self, device: &mut Device, wr_id: u64) {
        let scatter = [self.recv_slot(wr_id)];
        device
            .function(self.function)
            .unwrap()
            .post_recv(
                self.qp,
                &RecvRequest {
                    wr_id,
                    scatter: &scatter,
                },
            )
            .unwrap();
    }

    /// Sends `message` from memory.
    fn send(
        &self,
        device: &mut Device,
        destination: Option<UdDestination>,
        message: &[u8],
    ) -> Result<(), HcaError> {
        let mut hca = device.function(self.function).unwrap();
        hca.dma_write(self.memory.addr, message).unwrap();
        let gather = [self.send_slot(message.len())];
        hca.post_send(self.qp, &request(&gather, destination))
    }

    /// All completions that wait.
    fn poll(&self, device: &mut Device) -> Vec<Completion> {
        let mut out = [Completion::BLANK; 256];
        let mut hca = device.function(self.function).unwrap();
        let count = hca.poll_cq(self.cq, &mut out).unwrap();
        out[..count].to_vec()
    }

    /// Names and results of all completions that wait.
    fn outcomes(&self, device: &mut Device) -> Vec<(u64, CompletionStatus)> {
        let all = self.poll(device);
        all.iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// The only completion that waits.
    fn poll_one(&self, device: &mut Device) -> Completion {
        let all = self.poll(device);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }

    /// The contents of a receive buffer.
    fn received(&self, device: &mut Device, wr_id: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let hca = device.function(self.function).unwrap();
        hca.dma_read(self.memory.addr + wr_id * SLOT as u64, &mut bytes)
            .unwrap();
        bytes
    }

    fn state(&self, device: &mut Device) -> QpState {
        let hca = device.function(self.function).unwrap();
        hca.query_qp(self.qp).unwrap().state
    }
}

fn request(gather: &[Sge], destination: Option<UdDestination>) -> SendRequest<'_> {
    SendRequest {
        wr_id: 77,
        op: SendOp::Send,
        payload: Payload::Gather(gather),
        flags: SendFlags::empty(),
        destination,
    }
}

/// Moves all packets from one device's port to another's.
fn pipe(from: &mut Device, to: &mut Device) -> usize {
    let mut moved = 0;
    while let Some(frame) = from.poll_transmit(Instant::ZERO, PORT) {
        to.receive(Instant::ZERO, PORT, frame);
        moved += 1;
    }
    moved
}
