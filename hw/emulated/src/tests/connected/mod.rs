//! RC and UC queue pairs of two adapters, behind a switch each.

mod causes;
mod errors;
mod foreign;
mod forging;
mod held;
mod hostile;
mod random;
mod registration;
mod reliable;
mod states;
mod timed;
mod unreliable;
mod whole;
mod windows;

use core::time::Duration;

use hca_api::{
    AccessFlags, AddressVector, Completion, CompletionFlags, CompletionOp, CompletionStatus,
    CqHandle, DmaBuffer, FunctionId, FunctionManager, Hca, HcaError, HcaEvent, LocalMad, MadView,
    MrKeys, MrKind, MrSpec, Payload, PdHandle, PortState, QpCaps, QpHandle, QpKind, QpModify,
    QpSpec, QpState, RKey, ReceiveMode, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest,
    Sge,
};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::packet::FlushPlacement;
use ib_wire::smp::{
    LidRoutedSmp, LinearForwardingTable, PortInfo, PortPhysState, PortState as WirePortState,
    SmpAttribute, SwitchInfo,
};
use ib_wire::{Lid, Mtu, PKeyIndex, PortNum, Psn, Qpn, Sl};

use crate::hca::Device;
use crate::hca::tests::add_vf;
use crate::{
    Adapters, Built, DropReason, EndNode, Endpoint, Fabric, Fault, FaultPlan, HcaConfig, NodeId,
    PacketFilter, Topology, When,
};

const PORT: PortNum = PortNum(1);
const PF: FunctionId = FunctionId::PF;
/// Bytes of the region of each end.
const REGION: usize = 1 << 18;
const MTU: Mtu = Mtu::MTU_1024;

/// A queue pair with a region that it allows its peer everything with.
#[derive(Clone, Copy, Debug)]
struct End {
    host: usize,
    function: FunctionId,
    pd: PdHandle,
    cq: CqHandle,
    qp: QpHandle,
    qpn: Qpn,
    memory: DmaBuffer,
    keys: MrKeys,
}

impl End {
    const fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge {
            addr: self.memory.addr + offset as u64,
            len,
            lkey: self.keys.lkey,
        }
    }

    const fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            addr: self.memory.addr + offset as u64,
            rkey: self.keys.rkey,
        }
    }
}

/// Two hosts on two switches, without a subnet manager: what one would write is there.
struct Rig {
    fabric: Fabric,
    hosts: [NodeId; 2],
    now: Instant,
}

/// Sets an attribute at a switch's SMA, as a subnet manager does.
fn change_switch<A: SmpAttribute + Copy>(
    fabric: &mut Fabric,
    switch: NodeId,
    modifier: u32,
    change: impl FnOnce(&mut A),
) {
    let mut ask = |mad: &Mad| {
        let outcome = fabric.process_local_mad(switch.port(0), &MadView::Host, mad);
        let LocalMad::Reply(reply) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(reply.header.status, MadStatus::OK);
        reply
    };
    let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, A::ID);
    let mut mad = Mad::new(header);
    mad.header.attribute_modifier = modifier.into();
    mad = ask(&mad);
    mad.header.method = Method::SET;
    change(mad.view_mut::<LidRoutedSmp>().attribute_mut());
    ask(&mad);
}

/// Takes a switch's port whose link is up to the state active.
fn activate(fabric: &mut Fabric, at: Endpoint) {
    for state in [WirePortState::ARMED, WirePortState::ACTIVE] {
        change_switch(fabric, at.node, at.port.0.into(), |info: &mut PortInfo| {
            info.set_port_state(state);
            info.set_phys_state(PortPhysState::NO_CHANGE);
            info.set_neighbor_mtu(Mtu::MTU_2048);
        });
    }
}

/// Changes where a switch sends packets for the LIDs up to `top`.
fn route(fabric: &mut Fabric, switch: NodeId, top: u16, change: impl FnOnce(&mut [PortNum])) {
    change_switch(fabric, switch, 0, |info: &mut SwitchInfo| {
        info.linear_fdb_top = Lid::new(top);
    });
    change_switch(fabric, switch, 0, |table: &mut LinearForwardingTable| {
        change(&mut table.ports);
    });
}

impl Rig {
    fn new() -> Self {
        Self::with_latency(Duration::ZERO)
    }

    fn with_latency(latency: Duration) -> Self {
        let mut plan = Topology::two_switches(1);
        plan.link.latency = latency;
        Self::on(plan.build(7))
    }

    /// A rig whose adapters have one secret, so that they choose the same numbers.
    fn of_twins() -> Self {
        let twin =
            |fabric: &mut Fabric, config: &HcaConfig| fabric.add_end_node(Device::new(config, 7));
        Self::on(Topology::two_switches(1).build_on(Fabric::new(7), twin))
    }

    fn on((fabric, built): (Fabric, Built)) -> Self {
        let mut rig = Self {
            fabric,
            hosts: [built.hcas[0], built.hcas[1]],
            now: Instant::ZERO,
        };
        rig.run(1);
        for (host, lid) in [(0, 1), (1, 2)] {
            let switch = built.switches[host];
            let port = rig.device(host).node_mut().port_mut(PORT).unwrap();
            port.state = PortState::Active;
            port.neighbor_mtu = Mtu::MTU_2048;
            port.lid = Lid::new(lid);
            for port in [1, 7] {
                activate(&mut rig.fabric, switch.port(port));
            }
            route(&mut rig.fabric, switch, 2, |ports| {
                for (to, far) in [(1, host == 1), (2, host == 0)] {
                    ports[to] = PortNum(if far { 7 } else { 1 });
                }
            });
        }
        rig
    }

    /// Runs the fabric for so many milliseconds.
    fn run(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        let until = self.now;
        while let Some(next) = self.fabric.poll_timeout().filter(|at| *at <= until) {
            while self.fabric.poll(next) {}
        }
        while self.fabric.poll(until) {}
    }

    fn hca(&mut self, host: usize) -> impl Hca {
        self.fabric.hca(self.hosts[host], PF).unwrap()
    }

    fn owner(&mut self, end: &End) -> impl Hca {
        self.fabric.hca(self.hosts[end.host], end.function).unwrap()
    }

    fn device(&mut self, host: usize) -> &mut Device {
        self.fabric.device_mut(self.hosts[host]).unwrap()
    }

    /// Adds a VF with an active port in the default partition.
    fn add_vf(&mut self, host: usize, id: FunctionId) {
        add_vf(self.device(host), id);
    }

    /// Makes a queue pair of the physical function, initialised.
    fn end(&mut self, host: usize, kind: QpKind) -> End {
        self.end_of(host, PF, kind)
    }

    /// Makes a queue pair of a function, initialised.
    fn end_of(&mut self, host: usize, function: FunctionId, kind: QpKind) -> End {
        let mut hca = self.fabric.hca(self.hosts[host], function).unwrap();
        let memory = hca.allocate_dma(REGION).unwrap();
        let pd = hca.alloc_pd().unwrap();
        let cq = hca.create_cq(1 << 12).unwrap();
        let keys = hca
            .register_mr(&MrSpec {
                pd,
                kind: MrKind::Virtual {
                    addr: memory.addr,
                    len: memory.len as u64,
                },
                access: everything(),
                key: None,
            })
            .unwrap();
        let (qp, numbers) = hca.create_qp(spec(kind, pd, cq)).unwrap();
        hca.modify_qp(qp, &init()).unwrap();
        End {
            host,
            function,
            pd,
            cq,
            qp,
            qpn: numbers.external,
            memory,
            keys,
        }
    }

    fn modify(&mut self, end: &End, change: &QpModify) -> Result<(), HcaError> {
        self.owner(end).modify_qp(end.qp, change)
    }

    /// Connects an end to a peer and takes it to RTS.
    fn open(&mut self, end: &End, peer: &End, reliable: bool) {
        self.modify(end, &to_rtr(peer, reliable)).unwrap();
        self.modify(end, &to_rts(end, reliable)).unwrap();
    }

    /// Makes two queue pairs that are connected.
    fn pair(&mut self, kind: QpKind) -> [End; 2] {
        let ends = [self.end(0, kind), self.end(1, kind)];
        self.join(&ends, kind);
        ends
    }

    /// Connects two queue pairs.
    fn join(&mut self, ends: &[End; 2], kind: QpKind) {
        let reliable = kind == QpKind::Rc;
        self.open(&ends[0], &ends[1], reliable);
        self.open(&ends[1], &ends[0], reliable);
    }

    fn post(&mut self, end: &End, wr_id: u64, op: SendOp<'_>, sge: Sge) -> Result<(), HcaError> {
        self.owner(end).post_send(
            end.qp,
            &SendRequest {
                wr_id,
                op,
                payload: Payload::Gather(&[sge]),
                flags: SendFlags::SIGNALED,
                destination: None,
            },
        )
    }

    fn receive(&mut self, end: &End, wr_id: u64, sge: Sge) {
        let request = RecvRequest {
            wr_id,
            scatter: &[sge],
        };
        self.owner(end).post_recv(end.qp, &request).unwrap();
    }

    fn done(&mut self, end: &End) -> Vec<Completion> {
        let mut out = vec![Completion::BLANK; 1 << 12];
        let count = self.owner(end).poll_cq(end.cq, &mut out).unwrap();
        out.truncate(count);
        out
    }

    /// Names and results of all completions that wait.
    fn outcomes(&mut self, end: &End) -> Vec<(u64, CompletionStatus)> {
        let done = self.done(end);
        done.iter().map(|done| (done.wr_id, done.status)).collect()
    }

    fn write(&mut self, end: &End, offset: usize, bytes: &[u8]) {
        let addr = end.memory.addr + offset as u64;
        self.owner(end).dma_write(addr, bytes).unwrap();
    }

    fn read(&mut self, end: &End, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let addr = end.memory.addr + offset as u64;
        self.owner(end).dma_read(addr, &mut bytes).unwrap();
        bytes
    }

    fn state(&mut self, end: &End) -> QpState {
        self.owner(end).query_qp(end.qp).unwrap().state
    }

    fn events(&mut self, end: &End) -> Vec<HcaEvent> {
        let mut hca = self.owner(end);
        let mut events = Vec::new();
        while let Some(event) = hca.poll_event() {
            if !matches!(
                event,
                HcaEvent::Async(hca_api::AsyncEvent::Port { .. }) | HcaEvent::Completion(_)
            ) {
                events.push(event);
            }
        }
        events
    }

    /// Plans a fault on what both hosts send.
    fn faults(&mut self, when: When, fault: Fault) {
        for (seed, host) in (1..).zip(self.hosts) {
            let plan = FaultPlan::new(seed).rule(PacketFilter::default(), when, fault);
            self.fabric.set_faults(host.port(1), Some(&plan));
        }
    }
}

const fn everything() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        .union(AccessFlags::REMOTE_WRITE)
        .union(AccessFlags::REMOTE_READ)
        .union(AccessFlags::REMOTE_ATOMIC)
        .union(AccessFlags::FLUSH_GLOBAL)
}

const fn spec(kind: QpKind, pd: PdHandle, cq: CqHandle) -> QpSpec {
    QpSpec {
        kind,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 256,
        },
        signal_all: false,
        receives: ReceiveMode::Posted,
        qpn: None,
        block_multicast_loopback: false,
    }
}

fn init() -> QpModify {
    QpModify {
        state: Some(QpState::Init),
        port: Some(PORT),
        pkey_index: Some(PKeyIndex(0)),
        access: Some(everything()),
        ..QpModify::default()
    }
}

fn first_psn(qpn: Qpn) -> Psn {
    // So that messages cross the end of the count.
    Psn::from_low_bits(0xff_fff0).wrapping_add(qpn.get() & 3)
}

fn to_rtr(peer: &End, reliable: bool) -> QpModify {
    QpModify {
        state: Some(QpState::ReadyToReceive),
        path_mtu: Some(MTU),
        dest_qpn: Some(peer.qpn),
        rq_psn: Some(first_psn(peer.qpn)),
        primary: Some(AddressVector {
            port: PORT,
            dlid: Lid::new(if peer.host == 0 { 1 } else { 2 }),
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        }),
        max_dest_rd_atomic: reliable.then_some(4),
        min_rnr_timer: reliable.then_some(12),
        ..QpModify::default()
    }
}

fn to_rts(end: &End, reliable: bool) -> QpModify {
    QpModify {
        state: Some(QpState::ReadyToSend),
        sq_psn: Some(first_psn(end.qpn)),
        timeout: reliable.then_some(8),
        retry_count: reliable.then_some(7),
        rnr_retry: reliable.then_some(7),
        max_rd_atomic: reliable.then_some(4),
        ..QpModify::default()
    }
}

fn to_state(state: QpState) -> QpModify {
    QpModify {
        state: Some(state),
        ..QpModify::default()
    }
}

/// Packets that connections of a function refused because another queue pair is their peer.
fn foreign(device: &Device, function: FunctionId) -> u64 {
    let counted = device.drops().of(PORT, function, DropReason::ForeignPeer);
    counted.map_or(0, |counted| counted.packets)
}

/// Bytes that tell where they belong.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..u32::try_from(len).unwrap())
        .map(|at| at.wrapping_mul(0x9e37_79b1).to_be_bytes()[0] ^ seed)
        .collect()
}
