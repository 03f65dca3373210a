use emulated_hca::{Adapters, EndNode, Fabric, HcaConfig, NodeId};
use hca_api::{
    AddressVector, CompletionFlags, CompletionStatus, FunctionId, FunctionManager, FunctionSpec,
    HostMemory, LKey, Payload, PortState, RemoteAddress, ResourceCounts, SendFlags, SendOp, Sge,
    VirtualPort,
};
use ib_vtime::Instant;
use ib_wire::{Guid, Lid, Mtu, PKey, PKeyIndex, PortNum, Psn, Sl};

use super::*;
use crate::native::{
    ConnectedQpId, ConnectedQpSpec, MemoryRegion, Partition, Peer, VfPort, VfPortError, VirtualHca,
    VirtualHcaConfig,
};

const VF: FunctionId = FunctionId(1);
const PORT: PortNum = PortNum(1);
const LID: Lid = Lid::new(5);
const NOW: Instant = Instant::ZERO;
const OK: CompletionStatus = CompletionStatus::Success;
/// Where the registered pages begin, in the region's own count.
const START: u64 = 0x5_0000_0100;

/// A VF's program with two queue pairs that are connected to each other.
struct Program {
    fabric: Fabric,
    node: NodeId,
    vf: VirtualHca,
    ends: [ConnectedQpId; 2],
    memory: MemoryRegion,
}

impl Program {
    fn new() -> Self {
        let mut fabric = Fabric::new(1);
        let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
        let mut pf = fabric.hca(node, FunctionId::PF).unwrap();
        let quota = ResourceCounts {
            pds: 9,
            avs: 9,
            cqs: 9,
            srqs: 9,
            qps: 9,
            mrs: 9,
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
        let spec = ConnectedQpSpec::rc(Partition::Key(PKey::DEFAULT_FULL));
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

    fn on<T>(&mut self, call: impl FnOnce(&mut VfPort, &mut dyn Hca) -> T) -> T {
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        call(self.vf.port_mut(PORT).unwrap(), &mut hca)
    }

    fn post(&mut self, end: usize, op: SendOp<'_>, sges: &[Sge]) {
        let id = self.ends[end];
        self.on(|port, hca| {
            let qp = port.connected_qp(id).unwrap();
            let payload = Payload::Gather(sges);
            qp.post_send(hca, 1, op, payload, SendFlags::empty())
                .unwrap();
        });
    }

    fn statuses(&mut self, end: usize) -> Vec<CompletionStatus> {
        while self.fabric.poll(NOW) {}
        let id = self.ends[end];
        self.on(|port, hca| {
            let qp = port.connected_qp(id).unwrap();
            std::iter::from_fn(|| qp.poll_cq(hca))
                .map(|done| done.status)
                .collect()
        })
    }

    /// Writes 8 bytes of the end's memory by a key.
    fn write_by(&mut self, key: RKey) -> Vec<CompletionStatus> {
        let remote = RemoteAddress {
            addr: START,
            rkey: key,
        };
        let sge = self.memory.sge(0, 8);
        self.post(1, SendOp::RdmaWrite(remote), &[sge]);
        self.statuses(1)
    }
}

fn rights() -> AccessFlags {
    AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ
}

#[test]
fn t069_t070_t071_a_program_registers_pages_by_requests_and_it_or_its_peer_invalidates_them() {
    let mut program = Program::new();
    let most = rights() | AccessFlags::REMOTE_INVALIDATE;
    let region = program.on(|port, hca| port.alloc_mr(hca, 4, most)).unwrap();
    assert_eq!(region.max_pages(), 4);
    let first = program.memory.addr() & !0xfff;
    let pages = [first + (3 << 12), first + (2 << 12)];
    let memory = program.memory;
    for variant in 1..4 {
        let given = region.registration(variant, (START, 5000), &pages, rights());
        program.post(0, SendOp::FastRegister(given), &[]);
        // The request behind it uses the region.
        let remote = memory.remote(1 << 15);
        let sge = Sge {
            addr: START,
            len: 5000,
            lkey: LKey(region.key(variant).0),
        };
        program.post(0, SendOp::RdmaWrite(remote), &[sge]);
        assert_eq!(program.statuses(0), [OK, OK]);
        let mark = [variant; 8];
        program.on(|_, hca| memory.write(hca, 0, &mark)).unwrap();
        assert_eq!(program.write_by(region.key(variant)), [OK]);
        let mut stored = [0; 8];
        program
            .on(|_, hca| hca.dma_read(pages[0] + 0x100, &mut stored))
            .unwrap();
        assert_eq!(stored, mark);
        if variant == 2 {
            let id = program.ends[0];
            let received = program.on(|port, hca| {
                let qp = port.connected_qp(id).unwrap();
                qp.post_recv(hca, 2, &[]).unwrap();
                id
            });
            let sends = SendOp::SendInvalidate(region.key(variant));
            program.post(1, sends, &[]);
            assert_eq!(program.statuses(1), [OK]);
            let done =
                program.on(|port, hca| port.connected_qp(received).unwrap().poll_cq(hca).unwrap());
            assert_eq!(done.flags, CompletionFlags::INVALIDATED);
            assert_eq!(done.immediate, region.key(variant).0);
        } else {
            program.post(0, SendOp::LocalInvalidate(region.key(variant)), &[]);
            assert_eq!(program.statuses(0), [OK]);
        }
    }
    assert_eq!(
        program.write_by(region.key(3)),
        [CompletionStatus::RemoteAccess]
    );
    let gone = |program: &mut Program| program.on(|port, hca| port.dealloc_mr(hca, region));
    assert_eq!(gone(&mut program), Ok(()));
    assert_eq!(gone(&mut program), Err(VfPortError::NoRegion));
}

#[test]
fn t069_a_region_that_is_not_empty_or_too_small_ends_the_connection() {
    for (len, times) in [(4097, 1), (64, 2)] {
        let mut program = Program::new();
        let allocated = program.on(|port, hca| port.alloc_mr(hca, 1, rights()));
        let region = allocated.unwrap();
        let pages = [program.memory.addr() & !0xfff];
        let given = region.registration(0, (START & !0xfff, len), &pages, rights());
        for _ in 0..times {
            program.post(0, SendOp::FastRegister(given), &[]);
        }
        let done = program.statuses(0);
        assert_eq!(done.last(), Some(&CompletionStatus::MwBind));
    }
}

#[test]
fn what_a_program_leaves_of_such_regions_goes_with_it() {
    let mut program = Program::new();
    program
        .on(|port, hca| port.alloc_mr(hca, 4, rights()))
        .unwrap();
    let mut hca = program.fabric.hca(program.node, VF).unwrap();
    program.vf.close(NOW, &mut hca);
    let pf = program.fabric.hca(program.node, FunctionId::PF).unwrap();
    assert_eq!(pf.resources(VF).unwrap(), ResourceCounts::default());
}
