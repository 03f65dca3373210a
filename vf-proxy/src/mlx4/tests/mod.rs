//! Tests of the whole function, driven as the driver drives it.

mod atomics;
mod channel;
mod datagrams;
mod hostile_rings;
mod lengthy;
mod offloads;
mod pci;
mod ports;
mod proxies;
mod queue_lives;
mod queue_scene;
mod regions;
mod registration;
mod reregistration;
mod resources;

use emulated_hca::{Adapters, Fabric, HcaConfig, NodeId};
use hca_api::{
    AddressSpace, FunctionId, FunctionManager, FunctionSpec, HostMemory, ResourceCounts,
};
use ib_wire::Guid;
use mlx4_defs::comm::{CommCommand, CommRequest, FLAGS, SLAVE_READ, SLAVE_WRITE};
use mlx4_defs::eq::{EqContext, EqState, EventMask};
use mlx4_defs::eqe::{CommandEvent, EQE_SIZE, Eqe, EventType};
use mlx4_defs::mtt::{MttBase, MttEntry, WriteMtt};
use mlx4_defs::query::{QueryFuncCapPort, QueryHca};
use mlx4_defs::resource::{ResourceModifier, ResourceOp, ResourceType};
use mlx4_defs::{Mailbox, MailboxLayout, MttIndex, Opcode, Status, TOKEN, VHCR_SIZE, Vhcr};
use zerocopy::network_endian::{U16, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::*;

const VF: FunctionId = FunctionId(1);
const NOW: Instant = Instant::ZERO;
const MANY: u32 = 100;
/// Command register: memory space.
const MEMORY: u8 = 2;
/// Command register: bus master.
const MASTER: u8 = 4;
/// Pages of the guest's memory.
const PAGES: usize = 64;

/// A guest at an adapter of its own: its memory, and the function.
struct Guest {
    fabric: Fabric,
    node: NodeId,
    function: Mlx4Function,
    /// First byte of the guest's memory.
    base: u64,
    toggle: bool,
}

/// What a command is given, besides its opcode.
#[derive(Clone, Copy, Default)]
struct Input {
    param: u64,
    modifier: u32,
    variant: u8,
    event: bool,
}

impl Guest {
    fn new() -> Self {
        Self::with_memory(HostMemory::new())
    }

    fn with_memory(mut memory: impl AddressSpace + 'static) -> Self {
        let mut fabric = Fabric::new(1);
        let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
        let ram = memory.allocate((PAGES + 1) << 12).unwrap();
        let spec = FunctionSpec {
            id: VF,
            node_guid: Guid::new(2),
            memory: Box::new(memory),
            quota: ResourceCounts {
                pds: MANY,
                avs: MANY,
                cqs: MANY,
                srqs: MANY,
                qps: MANY,
                mrs: MANY,
                mws: MANY,
                attachments: MANY,
            },
        };
        let mut pf = fabric.hca(node, FunctionId::PF).unwrap();
        pf.create_function(spec).unwrap();
        let mut guest = Self {
            fabric,
            node,
            function: Mlx4Function::new(&Mlx4Config { vectors: 4 }),
            base: ram.addr.next_multiple_of(4096),
            toggle: false,
        };
        guest.enable(MEMORY | MASTER);
        guest
    }

    /// Writes the command register.
    fn enable(&mut self, command: u8) {
        self.write_config(0x04, &[command, 0]);
    }

    fn write_config(&mut self, offset: u16, bytes: &[u8]) {
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        self.function.config_write(NOW, &mut hca, offset, bytes);
    }

    /// A guest whose driver has given the address of its command register.
    fn probed() -> Self {
        let mut guest = Self::new();
        guest.start();
        guest
    }

    fn start(&mut self) {
        self.post(CommCommand::RESET, 0);
        self.serve_reset();
        let [_, _, .., a, b] = self.vhcr().to_be_bytes();
        let [c, d, e, f, g, h, ..] = self.vhcr().to_be_bytes();
        self.post(CommCommand::VHCR0, u16::from_be_bytes([c, d]));
        self.post(CommCommand::VHCR1, u16::from_be_bytes([e, f]));
        self.post(CommCommand::VHCR2, u16::from_be_bytes([g, h]));
        self.post(CommCommand::VHCR_EN, u16::from_be_bytes([a, b]));
    }

    fn page(&self, index: u64) -> u64 {
        self.base + index * 4096
    }

    fn vhcr(&self) -> u64 {
        self.page(0)
    }

    fn inbox(&self) -> u64 {
        self.page(1)
    }

    fn outbox(&self) -> u64 {
        self.page(2)
    }

    fn write_bar(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        self.function.bar_write(NOW, &mut hca, bar, offset, bytes);
    }

    fn register(&mut self, offset: u64) -> [u8; 4] {
        let mut word = [0xa5; 4];
        self.function.bar_read(2, offset, &mut word);
        word
    }

    fn post(&mut self, command: CommCommand, param: u16) {
        self.toggle = !self.toggle;
        let request = CommRequest::new(self.toggle, command, param);
        self.write_bar(2, SLAVE_WRITE, request.as_bytes());
    }

    /// Does what the PF does when the function wants a reset.
    fn serve_reset(&mut self) {
        assert_eq!(self.function.poll_event(), Some(PciEvent::ResetWanted));
        self.reset_by_pf();
    }

    fn reset_by_pf(&mut self) {
        let mut pf = self.fabric.hca(self.node, FunctionId::PF).unwrap();
        pf.reset_function(VF).unwrap();
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        while let Some(event) = hca.poll_event() {
            self.function.handle_hca_event(NOW, &mut hca, &event);
        }
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) {
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        hca.dma_write(addr, bytes).unwrap();
    }

    fn read<const N: usize>(&mut self, addr: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let hca = self.fabric.hca(self.node, VF).unwrap();
        hca.dma_read(addr, &mut bytes).unwrap();
        bytes
    }

    fn read_layout<T: MailboxLayout>(&mut self, addr: u64) -> T {
        let mut bytes = vec![0; size_of::<T>()];
        let hca = self.fabric.hca(self.node, VF).unwrap();
        hca.dma_read(addr, &mut bytes).unwrap();
        T::read_from_bytes(&bytes).unwrap()
    }

    /// What the VF owns at the adapter.
    fn owned(&mut self) -> ResourceCounts {
        let pf = self.fabric.hca(self.node, FunctionId::PF).unwrap();
        pf.resources(VF).unwrap()
    }

    fn put<T: MailboxLayout>(&mut self, input: &T) -> Input {
        let inbox = self.inbox();
        self.write(inbox, Mailbox::with(input).as_bytes());
        Input {
            param: inbox,
            ..Input::default()
        }
    }

    /// Gives a command; tells the status and the immediate result.
    fn command(&mut self, opcode: Opcode, input: Input) -> (Status, u64) {
        self.begin(opcode, input);
        assert!(self.is_done());
        self.result()
    }

    /// Whether the last command is done.
    fn is_done(&mut self) -> bool {
        let answer = CommRequest::new(self.toggle, CommCommand::RESET, 0);
        self.register(SLAVE_READ) == answer.as_bytes()
    }

    /// What came of a command that is done.
    fn result(&mut self) -> (Status, u64) {
        let after: Vhcr = zerocopy::transmute!(self.read::<VHCR_SIZE>(self.vhcr()));
        (after.status, after.out_param.get())
    }

    /// Gives a command.
    fn begin(&mut self, opcode: Opcode, input: Input) {
        let mut vhcr = Vhcr {
            in_param: U64::new(input.param),
            in_modifier: U32::new(input.modifier),
            out_param: U64::new(self.outbox()),
            token: U16::new(TOKEN),
            ..Vhcr::default()
        };
        vhcr.set_event(input.event);
        vhcr.set_op_modifier(input.variant);
        vhcr.set_opcode(opcode);
        let at = self.vhcr();
        self.write(at, vhcr.as_bytes());
        self.post(CommCommand::VHCR_POST, 0);
    }

    fn allocate(&mut self, kind: ResourceType, op: ResourceOp, param: u64) -> (Status, u64) {
        self.resource(Opcode::ALLOC_RES, kind, op, param)
    }

    fn free(&mut self, kind: ResourceType, op: ResourceOp, param: u64) -> Status {
        self.resource(Opcode::FREE_RES, kind, op, param).0
    }

    fn resource(
        &mut self,
        opcode: Opcode,
        kind: ResourceType,
        op: ResourceOp,
        param: u64,
    ) -> (Status, u64) {
        let modifier = ResourceModifier::new(kind).word.get();
        let input = Input {
            param,
            modifier,
            variant: op.get(),
            event: false,
        };
        self.command(opcode, input)
    }

    /// Gives pages of the guest's memory entries of the translation table.
    fn map_pages(&mut self, first_page: u64, order: u8) -> u64 {
        let op = ResourceOp::RESERVE_AND_MAP;
        let (status, first) = self.allocate(ResourceType::MTT, op, order.into());
        assert_eq!(status, Status::OK);
        let mut write = WriteMtt {
            first: U64::new(first),
            ..WriteMtt::default()
        };
        let count = 1_u32 << order;
        for (entry, page) in write.entries.iter_mut().zip(0..u64::from(count)) {
            *entry = MttEntry::new(self.page(first_page + page));
        }
        let mut input = self.put(&write);
        input.modifier = count;
        assert_eq!(self.command(Opcode::WRITE_MTT, input).0, Status::OK);
        first
    }

    /// Makes an armed event queue of 128 entries in the guest's page 8, and assigns the end of commands
    /// to it.
    fn make_event_queue(&mut self, eqn: u32) {
        self.make_event_queue_in(8, eqn);
    }

    fn make_event_queue_in(&mut self, page: u64, eqn: u32) {
        let first = self.map_pages(page, 0);
        let mut context = EqContext {
            vector: 3,
            mtt_base: MttBase::from_entry(MttIndex(first)),
            ..EqContext::default()
        };
        context.set_state(EqState::ARMED);
        context.set_log_entries(7);
        let mut input = self.put(&context);
        input.modifier = eqn;
        assert_eq!(self.command(Opcode::SW2HW_EQ, input).0, Status::OK);
        let input = Input {
            param: EventMask::default().with(EventType::CMD).0,
            modifier: eqn,
            ..Input::default()
        };
        assert_eq!(self.command(Opcode::MAP_EQ, input).0, Status::OK);
    }

    fn eqe(&mut self, index: u64) -> Eqe {
        let at = self.page(8) + index * EQE_SIZE as u64;
        let bytes = self.read::<EQE_SIZE>(at);
        Eqe::read_from_bytes(&bytes).unwrap()
    }

    fn nop(&mut self) {
        let input = Input {
            modifier: 0x1f,
            event: true,
            ..Input::default()
        };
        assert_eq!(self.command(Opcode::NOP, input).0, Status::OK);
    }

    fn interrupts(&mut self) -> Vec<u16> {
        let events = std::iter::from_fn(|| self.function.poll_event());
        events
            .filter_map(|event| match event {
                PciEvent::Interrupt { vector } => Some(vector),
                PciEvent::ResetWanted => panic!("a reset"),
                _ => None,
            })
            .collect()
    }
}
