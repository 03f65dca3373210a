//! A VF whose two queue pairs are connected to each other, on an adapter of its own.

use emulated_hca::{Adapters, EndNode, Fabric, HcaConfig, NodeId};
use hca_api::{
    AccessFlags, AddressVector, Completion, CompletionStatus, FunctionId, FunctionManager,
    FunctionSpec, Hca, HostMemory, Payload, PortState, RKey, RemoteAddress, ResourceCounts,
    SendFlags, SendOp, Sge, VirtualPort,
};
use ib_vtime::Instant;
use ib_wire::{Guid, Lid, Mtu, PKey, PKeyIndex, PortNum, Psn, Sl};

use crate::native::{
    ConnectedQp, ConnectedQpId, ConnectedQpSpec, MemoryRegion, Partition, Peer, VfPort,
    VfPortEvent, VirtualHca, VirtualHcaConfig, VirtualHcaEvent,
};

const VF: FunctionId = FunctionId(1);
const PORT: PortNum = PortNum(1);
const LID: Lid = Lid::new(5);
pub(in crate::native) const NOW: Instant = Instant::ZERO;
pub(in crate::native) const OK: CompletionStatus = CompletionStatus::Success;
/// Where the registered pages begin, in the region's own count.
pub(in crate::native) const START: u64 = 0x5_0000_0100;

/// A VF's program with two queue pairs that are connected to each other.
pub(in crate::native) struct Program {
    fabric: Fabric,
    node: NodeId,
    vf: VirtualHca,
    pub(in crate::native) ends: [ConnectedQpId; 2],
    pub(in crate::native) memory: MemoryRegion,
}

impl Program {
    /// Makes the program; every request of its queue pairs completes.
    pub(in crate::native) fn new() -> Self {
        Self::signalling(true)
    }

    /// Makes the program, whose requests all complete or those alone that are signalled.
    pub(in crate::native) fn signalling(sq_sig_all: bool) -> Self {
        let mut fabric = Fabric::new(1);
        let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
        let mut pf = fabric.hca(node, FunctionId::PF).unwrap();
        let quota = ResourceCounts {
            pds: 9,
            avs: 9,
            cqs: 20,
            srqs: 9,
            qps: 20,
            mrs: 100,
            mws: 9,
            attachments: 9,
        };
        let spec = FunctionSpec {
            id: VF,
            node_guid: Guid::new(2),
            memory: Box::new(HostMemory::new()),
            quota,
        };
        pf.create_function(spec).unwrap();
        let view = VirtualPort {
            state: PortState::Active,
            pkeys: vec![Some(PKeyIndex(0))],
            smi_enabled: false,
        };
        pf.set_virtual_port(VF, PORT, view).unwrap();
        let port = fabric.device_mut(node).unwrap().node_mut().port_mut(PORT);
        let port = port.unwrap();
        port.state = PortState::Active;
        port.lid = LID;
        port.neighbor_mtu = Mtu::MTU_2048;
        let mut hca = fabric.hca(node, VF).unwrap();
        let mut vf = VirtualHca::open(NOW, &mut hca, VirtualHcaConfig::new(7)).unwrap();
        let own = vf.port_mut(PORT).unwrap();
        let spec = ConnectedQpSpec {
            sq_sig_all,
            ..ConnectedQpSpec::rc(Partition::Key(PKey::DEFAULT_FULL))
        };
        let ends = [0, 1].map(|_| own.open_connected_qp(&mut hca, &spec).unwrap());
        let memory = own.reg_mr(&mut hca, 1 << 16, rights()).unwrap();
        for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let peer = Peer {
                address: AddressVector {
                    port: PORT,
                    dlid: LID,
                    sl: Sl::default(),
                    path_bits: 0,
                    static_rate: None,
                    grh: None,
                },
                path_mtu: Mtu::MTU_1024,
                qpn: own.connected_qp(peer).unwrap().qpn(),
                psn: Psn::from_low_bits(0),
            };
            own.connected_qp(end)
                .unwrap()
                .connect(&mut hca, &peer)
                .unwrap();
        }
        Self {
            fabric,
            node,
            vf,
            ends,
            memory,
        }
    }

    pub(in crate::native) fn on<T>(
        &mut self,
        call: impl FnOnce(&mut VfPort, &mut dyn Hca) -> T,
    ) -> T {
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        call(self.vf.port_mut(PORT).unwrap(), &mut hca)
    }

    pub(in crate::native) fn post(&mut self, end: usize, op: SendOp<'_>, sges: &[Sge]) {
        self.on_qp(end, |qp, hca| {
            let payload = Payload::Gather(sges);
            qp.post_send(hca, 1, op, payload, SendFlags::empty())
                .unwrap();
        });
    }

    pub(in crate::native) fn on_qp<T>(
        &mut self,
        end: usize,
        call: impl FnOnce(&ConnectedQp, &mut dyn Hca) -> T,
    ) -> T {
        let id = self.ends[end];
        self.on(|port, hca| call(port.connected_qp(id).unwrap(), hca))
    }

    /// Lets all happen, and returns the completions of an end.
    pub(in crate::native) fn completions(&mut self, end: usize) -> Vec<Completion> {
        while self.fabric.poll(NOW) {}
        self.on_qp(end, |qp, hca| {
            std::iter::from_fn(|| qp.poll_cq(hca)).collect()
        })
    }

    pub(in crate::native) fn statuses(&mut self, end: usize) -> Vec<CompletionStatus> {
        let done = self.completions(end);
        done.into_iter().map(|done| done.status).collect()
    }

    /// Lets all happen, and returns the events of connections.
    pub(in crate::native) fn events(&mut self) -> Vec<VfPortEvent> {
        while self.fabric.poll(NOW) {}
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        while let Some(event) = hca.poll_event() {
            self.vf.handle_hca_event(NOW, &mut hca, &event).unwrap();
        }
        let events = std::iter::from_fn(|| self.vf.poll_event());
        let of_port = events.filter_map(|event| match event {
            VirtualHcaEvent::Port { event, .. } => Some(event),
            VirtualHcaEvent::Dead => None,
        });
        of_port
            .filter(|event| {
                use VfPortEvent::{CompletionsReady, ConnectionFailed, SharedCompletionsReady};
                matches!(
                    event,
                    CompletionsReady(_) | ConnectionFailed(_) | SharedCompletionsReady(_)
                )
            })
            .collect()
    }

    /// Closes the VF, and returns what it still owns.
    pub(in crate::native) fn close(mut self) -> ResourceCounts {
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        self.vf.close(NOW, &mut hca);
        let pf = self.fabric.hca(self.node, FunctionId::PF).unwrap();
        pf.resources(VF).unwrap()
    }

    /// Writes 8 bytes of the end's memory by a key.
    pub(in crate::native) fn write_by(&mut self, key: RKey) -> Vec<CompletionStatus> {
        let remote = RemoteAddress {
            addr: START,
            rkey: key,
        };
        let sge = self.memory.sge(0, 8);
        self.post(1, SendOp::RdmaWrite(remote), &[sge]);
        self.statuses(1)
    }
}

pub(in crate::native) fn rights() -> AccessFlags {
    AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ
}
