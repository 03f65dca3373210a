//! The channel of BAR 2, commands, and an event queue.

use mlx4_defs::bar::Register;
use mlx4_defs::comm::{self, CommAnswer, CommCommand, CommFlags, CommRequest};
use mlx4_defs::eq::{EqContext, EqDoorbell, EqState, EventMask, MapEq};
use mlx4_defs::eqe::{EQE_SIZE, Eqe, EventType};
use mlx4_defs::mtt::{MttBase, MttEntry, WriteMtt};
use mlx4_defs::query::{FuncCapRequest, QueryFuncCap};
use mlx4_defs::resource::{ResourceModifier, ResourceOp, ResourceType};
use mlx4_defs::{Eqn, MailboxLayout, MttIndex, Opcode, Status, TOKEN, Vhcr};
use zerocopy::FromBytes;
use zerocopy::network_endian::{U16, U32, U64};

use super::cpu;
use super::pci::Function;

/// The VF's command interface.
pub(crate) struct Hca {
    pub(crate) function: Function,
    toggle: bool,
    block: u64,
    pub(crate) inbox: u64,
    pub(crate) outbox: u64,
}

impl Hca {
    /// Takes a function whose registers are placed.
    pub(crate) fn new(mut function: Function) -> Self {
        function.bars = super::FIRST;
        let [block, inbox, outbox] = [(); 3].map(|()| cpu::allocate(1));
        Self {
            function,
            toggle: false,
            block,
            inbox,
            outbox,
        }
    }

    pub(crate) fn move_to(&mut self, bars: [u64; 2]) {
        self.function.move_bars(bars);
        self.function.bars = bars;
    }

    fn read<T: FromBytes>(&self, offset: u64) -> T {
        let word: [u8; 4] = cpu::read(self.function.bars[0] + offset);
        T::read_from_bytes(&word).unwrap()
    }

    /// Stores a word in the order of the register.
    pub(crate) fn write(&self, offset: u64, word: U32) {
        let word = u32::from_ne_bytes(word.to_bytes());
        cpu::write(self.function.bars[0] + offset, word);
    }

    pub(crate) fn is_online(&self) -> bool {
        let flags: U32 = self.read(comm::FLAGS);
        flags.get() != u32::MAX && !CommFlags { word: flags }.offline()
    }

    /// Returns `true` if the last request is answered.
    pub(crate) fn is_idle(&self) -> bool {
        let answer: CommAnswer = self.read(comm::SLAVE_READ);
        answer.toggle() == self.toggle
    }

    /// Waits for the answer to the last request.
    pub(crate) fn wait(&self) {
        while !self.is_idle() {
            cpu::relax();
        }
    }

    fn post(&mut self, command: CommCommand, param: u16) {
        self.toggle = !self.toggle;
        let request = CommRequest::new(self.toggle, command, param);
        self.write(comm::SLAVE_WRITE, request.word);
    }

    fn call(&mut self, command: CommCommand, param: u16) {
        self.post(command, param);
        self.wait();
    }

    pub(crate) fn reset(&mut self) {
        self.toggle = self.read::<CommAnswer>(comm::SLAVE_READ).toggle();
        self.call(CommCommand::RESET, 0);
    }

    /// Tells the device where commands are.
    pub(crate) fn set_block(&mut self) {
        let [a, b, c, d, e, f, g, h] = self.block.to_be_bytes();
        self.call(CommCommand::VHCR0, u16::from_be_bytes([a, b]));
        self.call(CommCommand::VHCR1, u16::from_be_bytes([c, d]));
        self.call(CommCommand::VHCR2, u16::from_be_bytes([e, f]));
        self.call(CommCommand::VHCR_EN, u16::from_be_bytes([g, h]));
    }

    fn post_command(&mut self, opcode: Opcode, op_modifier: u8, vhcr: Vhcr) {
        let mut vhcr = Vhcr {
            token: U16::new(TOKEN),
            ..vhcr
        };
        vhcr.set_opcode(opcode);
        vhcr.set_op_modifier(op_modifier);
        cpu::write(self.block, vhcr);
        self.post(CommCommand::VHCR_POST, 0);
    }

    /// Has a command executed, and returns its value.
    pub(crate) fn execute(&mut self, opcode: Opcode, op_modifier: u8, vhcr: Vhcr) -> u64 {
        self.post_command(opcode, op_modifier, vhcr);
        self.wait();
        let vhcr: Vhcr = cpu::read(self.block);
        assert!(vhcr.status == Status::OK);
        vhcr.out_param.get()
    }

    /// Has a command executed whose input is a value.
    pub(crate) fn command(&mut self, opcode: Opcode, in_modifier: u32, value: u64) {
        let vhcr = Vhcr {
            in_param: U64::new(value),
            in_modifier: U32::new(in_modifier),
            ..Vhcr::default()
        };
        self.execute(opcode, 0, vhcr);
    }

    /// Has a command executed whose input is a mailbox.
    pub(crate) fn send<T: MailboxLayout>(&mut self, opcode: Opcode, in_modifier: u32, input: T) {
        cpu::write(self.inbox, input);
        self.command(opcode, in_modifier, self.inbox);
    }

    pub(crate) fn query_with<T: FromBytes>(&mut self, opcode: Opcode, in_modifier: u32) -> T {
        let vhcr = Vhcr {
            in_modifier: U32::new(in_modifier),
            out_param: U64::new(self.outbox),
            ..Vhcr::default()
        };
        self.execute(opcode, 0, vhcr);
        cpu::read(self.outbox)
    }

    pub(crate) fn query<T: FromBytes>(&mut self, opcode: Opcode) -> T {
        self.query_with(opcode, 0)
    }

    pub(crate) fn capabilities(&mut self) -> QueryFuncCap {
        let mut request = FuncCapRequest::default();
        request.set_any_eq_count(true);
        self.query_with(Opcode::QUERY_FUNC_CAP, request.word.get())
    }

    /// Takes numbers of the device.
    pub(crate) fn allocate(&mut self, what: ResourceType, how: ResourceOp, value: u64) -> u64 {
        let vhcr = Vhcr {
            in_param: U64::new(value),
            in_modifier: ResourceModifier::new(what).word,
            ..Vhcr::default()
        };
        self.execute(Opcode::ALLOC_RES, how.get(), vhcr)
    }

    /// Takes pages for a queue, a power of two, and returns them with their place in the translation table.
    pub(crate) fn queue_memory(&mut self, pages: u64) -> (u64, MttBase) {
        let memory = cpu::allocate(pages);
        let order = u64::from(pages.ilog2());
        let (table, take) = (ResourceType::MTT, ResourceOp::RESERVE_AND_MAP);
        let first = self.allocate(table, take, order);
        let mut write = WriteMtt {
            first: U64::new(first),
            ..WriteMtt::default()
        };
        let addresses = (memory..).step_by(4096);
        for (entry, page) in write.entries[..pages as usize].iter_mut().zip(addresses) {
            *entry = MttEntry::new(page);
        }
        self.send(Opcode::WRITE_MTT, pages as u32, write);
        (memory, MttBase::from_entry(MttIndex(first)))
    }

    /// Posts a command that does nothing, and ends by an event.
    pub(crate) fn post_nop(&mut self) {
        let mut vhcr = Vhcr {
            in_modifier: U32::new(0x1f),
            ..Vhcr::default()
        };
        vhcr.set_event(true);
        self.post_command(Opcode::NOP, 0, vhcr);
    }
}

/// The queue for the ends of commands.
pub(crate) struct EventQueue {
    eqn: Eqn,
    entries: u64,
    consumer: u32,
}

/// Entries of an event queue, log2.
const LOG_ENTRIES: u8 = 8;

impl EventQueue {
    pub(crate) fn new(hca: &mut Hca) -> Self {
        let eqn = Eqn(hca.capabilities().reserved_eqs.get() & 0xff_ffff);
        let (entries, mtt_base) = hca.queue_memory((EQE_SIZE as u64) << LOG_ENTRIES >> 12);
        let mut context = EqContext {
            mtt_base,
            ..EqContext::default()
        };
        context.set_state(EqState::ARMED);
        context.set_log_entries(LOG_ENTRIES);
        hca.send(Opcode::SW2HW_EQ, eqn.0, context);
        let mut map = MapEq::default();
        map.set_eqn(eqn);
        let mask = EventMask::default().with(EventType::CMD);
        hca.command(Opcode::MAP_EQ, map.word.get(), mask.0);
        let queue = Self {
            eqn,
            entries,
            consumer: 0,
        };
        queue.arm(hca);
        queue
    }

    /// Takes the event of a command, if there is one.
    pub(crate) fn take_command(&mut self) -> bool {
        let slot = u64::from(self.consumer & ((1 << LOG_ENTRIES) - 1));
        let entry: Eqe = cpu::read(self.entries + slot * EQE_SIZE as u64);
        if entry.owner() != (self.consumer >> LOG_ENTRIES & 1 != 0) {
            return false;
        }
        assert!(entry.event_type == EventType::CMD);
        self.consumer += 1;
        true
    }

    /// Wants an interrupt for the next event.
    pub(crate) fn arm(&self, hca: &Hca) {
        let doorbell = EqDoorbell::new(self.consumer, true);
        hca.write(Register::Eq { eqn: self.eqn }.offset(), doorbell.word);
    }
}
