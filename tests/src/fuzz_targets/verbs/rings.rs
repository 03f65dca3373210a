//! Queue pairs that are connected to each other, and a program that writes anything into their rings.

use ib_vtime::Duration;
use verbs_link::abi::command;
use verbs_link::abi::completion_queue::{CreateCq, CreateCqAnswer, ReqNotifyCq, RxeCqAnswer};
use verbs_link::abi::memory::{AllocMw, AllocMwAnswer, HandleAnswer, RegMr, RegMrAnswer};
use verbs_link::abi::queue_pair::{
    Caps, CreateQp, CreateQpAnswer, CreateQpAttributes, RxeCreateQpAnswer,
};
use verbs_link::abi::ring::{
    BindArguments, CONSUMER_INDEX, CompletionElement, FlushArguments, INDEX_MASK,
    LOG2_ELEMENT_SIZE, MappedRing, PRODUCER_INDEX, RING_HEADER, RdmaArguments, ReceiveElement,
    SendElement, SgeElement, opcode, send_flags,
};
use verbs_link::abi::shared_receive_queue::{CreateSrq, CreateSrqAnswer, RxeCreateSrqAnswer};
use vf_uverbs::RingMemory;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::hostile::Input;
use super::Depth;
use super::objects::usual_change;
use super::program::Program;

/// Queue pairs, of which two and two are connected. The last has its receives in the shared queue.
const QUEUE_PAIRS: usize = 4;

/// The first of them are of RC, the others of UC.
const RELIABLE: usize = 2;

/// `enum ibv_qp_type`.
const RC: u8 = 2;
const UC: u8 = 3;

/// Bytes of the region.
const REGION: u32 = 1 << 20;

/// Parts of the region that requests name begin at multiples of this.
const PART: u64 = 4096;

struct QueuePair {
    handle: u32,
    number: u32,
    send: MappedRing,
    receive: MappedRing,
}

/// The queue pairs of a program, their rings, and a region of its memory.
pub(super) struct Talkers {
    queue_pairs: Vec<QueuePair>,
    cq: u32,
    completions: MappedRing,
    /// Completions that were read.
    consumed: u32,
    shared: MappedRing,
    region: u64,
    key: RegMrAnswer,
    /// Keys of a window of each type, as they were bound last.
    windows: [u32; 2],
    depth: Depth,
}

/// Carries out a command that must succeed. Returns its answer, and the provider's part behind it.
fn must<A, B>(program: &mut Program, number: u32, payload: &(impl IntoBytes + Immutable)) -> (A, B)
where
    A: FromBytes + KnownLayout + Immutable + Unaligned,
    B: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let context = program.contexts[0];
    let room = size_of::<A>() + size_of::<B>();
    let answer = program.ask(context, number, payload, room);
    let answer = answer.expect("a good command");
    let (core, rest) = A::read_from_prefix(&answer).expect("an answer as long as asked");
    (core, B::read_from_bytes(rest).expect("the rest of it"))
}

impl Talkers {
    /// Opens the queue pairs and connects them.
    pub(super) fn new(program: &mut Program) -> Self {
        let (pd, ()): (HandleAnswer, ()) = must(program, command::ALLOC_PD, &0_u64);
        let create = CreateCq {
            cqe: 255.into(),
            comp_channel: (-1).into(),
            ..CreateCq::default()
        };
        let (cq, ring): (CreateCqAnswer, RxeCqAnswer) = must(program, command::CREATE_CQ, &create);
        let create = CreateSrq {
            pd_handle: pd.handle,
            max_wr: 31.into(),
            max_sge: 2.into(),
            ..CreateSrq::default()
        };
        let (srq, shared): (CreateSrqAnswer, RxeCreateSrqAnswer) =
            must(program, command::CREATE_SRQ, &create);
        let region = program.allocate(REGION as usize);
        let register = RegMr {
            start: region.into(),
            length: u64::from(REGION).into(),
            hca_va: region.into(),
            pd_handle: pd.handle,
            access_flags: 0x1f.into(),
            ..RegMr::default()
        };
        let (key, ()): (RegMrAnswer, ()) = must(program, command::REG_MR, &register);
        let windows = [1, 2].map(|mw_type| {
            let allocate = AllocMw {
                pd_handle: pd.handle,
                mw_type,
                ..AllocMw::default()
            };
            let (window, ()): (AllocMwAnswer, ()) = must(program, command::ALLOC_MW, &allocate);
            window.rkey.get()
        });
        let queue_pairs = (0..QUEUE_PAIRS).map(|nth| {
            let create = CreateQp {
                attributes: CreateQpAttributes {
                    pd_handle: pd.handle,
                    send_cq_handle: cq.cq_handle,
                    recv_cq_handle: cq.cq_handle,
                    srq_handle: srq.srq_handle,
                    is_srq: u8::from(nth + 1 == QUEUE_PAIRS),
                    qp_type: if nth < RELIABLE { RC } else { UC },
                    caps: Caps {
                        max_send_wr: 15.into(),
                        max_recv_wr: 15.into(),
                        max_send_sge: 2.into(),
                        max_recv_sge: 2.into(),
                        max_inline_data: 64.into(),
                    },
                    ..CreateQpAttributes::default()
                },
                ..CreateQp::default()
            };
            let (qp, rings): (CreateQpAnswer, RxeCreateQpAnswer) =
                must(program, command::CREATE_QP, &create);
            QueuePair {
                handle: qp.qp_handle.get(),
                number: qp.qpn.get(),
                send: rings.send,
                receive: rings.receive,
            }
        });
        let queue_pairs: Vec<_> = queue_pairs.collect();
        let talkers = Self {
            queue_pairs,
            cq: cq.cq_handle.get(),
            completions: ring.ring,
            consumed: 0,
            shared: shared.ring,
            region,
            key,
            windows,
            depth: Depth::default(),
        };
        for nth in 0..QUEUE_PAIRS {
            talkers.connect(program, nth);
        }
        talkers
    }

    /// Brings a queue pair from any state to the one in which it sends.
    fn connect(&self, program: &mut Program, nth: usize) {
        let peer = self.queue_pairs[nth ^ 1].number;
        for state in [0, 1, 2, 3] {
            let mut change = usual_change(state, nth < RELIABLE);
            change.qp_handle = self.queue_pairs[nth].handle.into();
            change.dest_qp_num = peer.into();
            program.ask(program.contexts[0], command::MODIFY_QP, &change, 0);
        }
    }

    /// Carries out the next operation of the input.
    pub(super) fn step(&mut self, program: &mut Program, input: &mut Input<'_>) {
        let operation = input.byte() % 16;
        let nth = input.index(QUEUE_PAIRS);
        match operation {
            0..=3 => self.post_send(program, nth, input),
            4..=5 => self.post_receive(program, nth, input),
            6 => self.scribble(program, nth, input),
            7 => self.set_index(program, nth, input),
            8 => program
                .memory
                .set_restless(u32::from(input.byte()).saturating_sub(128)),
            9 => self.connect(program, nth),
            10 => {
                let mut change = usual_change(input.byte() % 8, nth < RELIABLE);
                change.qp_handle = self.queue_pairs[nth].handle.into();
                program.ask(program.contexts[0], command::MODIFY_QP, &change, 0);
            }
            11 => {
                let arm = ReqNotifyCq {
                    cq_handle: self.cq.into(),
                    solicited_only: 0.into(),
                };
                program.ask(program.contexts[0], command::REQ_NOTIFY_CQ, &arm, 0);
            }
            12 => self.ring(program, nth),
            13..=14 => {
                program.settle();
                self.read_completions(program);
            }
            _ => program.pass(Duration::from_micros(1 << (input.byte() % 24))),
        }
    }

    fn ring(&self, program: &mut Program, nth: usize) {
        let (context, qp) = (program.contexts[0], self.queue_pairs[nth].handle);
        program.with(|device, hca| device.ring(hca, context, qp));
    }

    fn any_ring(&self, nth: usize, input: &mut Input<'_>) -> MappedRing {
        let of = &self.queue_pairs[nth];
        let rings = [of.send, of.receive, self.completions, self.shared];
        input.pick(&rings).unwrap_or(of.send)
    }

    fn entry(&self, input: &mut Input<'_>) -> SgeElement {
        let wild = input.byte() >= 0xf0;
        let length = 1_u32 << (input.byte() % 20);
        SgeElement {
            addr: (self.region + u64::from(input.byte()) * PART).into(),
            length: if wild { u32::MAX } else { length }.into(),
            lkey: self.key.lkey,
        }
    }

    fn post_send(&mut self, program: &mut Program, nth: usize, input: &mut Input<'_>) {
        let entry = self.entry(input);
        let mut request = SendElement {
            wr_id: 1.into(),
            opcode: u32::from(input.byte() % 16).into(),
            send_flags: (u32::from(input.byte() % 16) | send_flags::SIGNALED).into(),
            length: entry.length,
            num_sge: 1.into(),
            ..SendElement::default()
        };
        let drawn = input.byte();
        let window = &mut self.windows[usize::from(drawn & 1)];
        let arguments = if request.opcode.get() == opcode::BIND_MW {
            let bind = BindArguments {
                addr: entry.addr,
                length: u64::from(entry.length.get()).into(),
                mr_lkey: self.key.lkey,
                mw_rkey: (*window).into(),
                rkey: u32::from(drawn).into(),
                access: u32::from(drawn).into(),
            };
            *window = *window & !0xff | u32::from(drawn);
            bind.as_bytes().to_vec()
        } else if request.opcode.get() == opcode::FLUSH {
            let flush = FlushArguments {
                remote_addr: (self.region + u64::from(drawn) * PART).into(),
                rkey: self.key.rkey,
                placement: drawn & 3,
                selectivity: drawn >> 6,
                ..FlushArguments::default()
            };
            flush.as_bytes().to_vec()
        } else {
            let by_window = drawn >= 0xc0;
            let at_peer = RdmaArguments {
                remote_addr: (self.region + u64::from(drawn) * PART).into(),
                rkey: if by_window {
                    (*window).into()
                } else {
                    self.key.rkey
                },
                ..RdmaArguments::default()
            };
            at_peer.as_bytes().to_vec()
        };
        request.arguments[..arguments.len()].copy_from_slice(&arguments);
        let mut bytes = [request.as_bytes(), entry.as_bytes()].concat();
        if input.byte() >= 0xe0 {
            input.damage(&mut bytes);
        }
        put(program, self.queue_pairs[nth].send, &bytes);
        if input.byte() < 0xe0 {
            self.ring(program, nth);
        }
    }

    fn post_receive(&self, program: &mut Program, nth: usize, input: &mut Input<'_>) {
        let entry = self.entry(input);
        let request = ReceiveElement {
            wr_id: 2.into(),
            length: entry.length,
            num_sge: u32::from(input.byte() < 0xf0).into(),
            ..ReceiveElement::default()
        };
        let mut bytes = [request.as_bytes(), entry.as_bytes()].concat();
        if input.byte() >= 0xe0 {
            input.damage(&mut bytes);
        }
        let receive = self.queue_pairs[nth].receive;
        let has_own = receive.size.get() > 0;
        put(program, if has_own { receive } else { self.shared }, &bytes);
    }

    /// Writes anything anywhere in a ring, also into what only the device should write.
    fn scribble(&self, program: &mut Program, nth: usize, input: &mut Input<'_>) {
        let ring = self.any_ring(nth, input);
        let mut bytes = [0; 64];
        input.fill(&mut bytes);
        let room = u64::from(ring.size.get()).saturating_sub(bytes.len() as u64);
        let at = (u64::from(input.byte()) << 8 | u64::from(input.byte())) % (room + 1);
        if room > 0 {
            program.memory.write(ring.offset.get() + at, &bytes);
        }
    }

    fn set_index(&self, program: &mut Program, nth: usize, input: &mut Input<'_>) {
        let ring = self.any_ring(nth, input);
        let places = [
            PRODUCER_INDEX,
            CONSUMER_INDEX,
            INDEX_MASK,
            LOG2_ELEMENT_SIZE,
        ];
        let place = input.pick(&places).unwrap_or(PRODUCER_INDEX);
        let values = [0, 1, 15, 31, 0x7fff_ffff, u32::MAX, input.byte().into()];
        let value = input.pick(&values).unwrap_or(0);
        if ring.size.get() > 0 {
            program.memory.store(ring.offset.get() + place, value);
        }
    }

    fn read_completions(&mut self, program: &mut Program) {
        let ring = self.completions;
        let offset = ring.offset.get();
        let produced = program.index(offset + PRODUCER_INDEX);
        let mask = program.index(offset + INDEX_MASK);
        for _ in 0..256 {
            if self.consumed == produced || mask != 255 {
                break;
            }
            let mut completion = CompletionElement::default();
            let at = u64::from(self.consumed & mask) * 64;
            let place = offset + RING_HEADER + at;
            program.memory.read(place, completion.as_mut_bytes());
            match completion.status.get() {
                0 => self.depth.completed += 1,
                _ => self.depth.failed += 1,
            }
            self.consumed = (self.consumed + 1) & mask;
        }
        program.memory.store(offset + CONSUMER_INDEX, self.consumed);
    }

    pub(super) fn depth(&self, program: &Program) -> Depth {
        Depth {
            commands: program.commands,
            ..self.depth
        }
    }
}

/// Writes an element to where the index of a ring says, and moves the index as libibverbs does.
fn put(program: &Program, ring: MappedRing, bytes: &[u8]) {
    let offset = ring.offset.get();
    let produced = program.index(offset + PRODUCER_INDEX);
    let mask = program.index(offset + INDEX_MASK);
    let log2 = program.index(offset + LOG2_ELEMENT_SIZE);
    let at = u64::from(produced & mask).checked_shl(log2).unwrap_or(0);
    let end = RING_HEADER + at + bytes.len() as u64;
    if at <= u64::from(ring.size.get()) && end <= u64::from(ring.size.get()) {
        program.memory.write(offset + RING_HEADER + at, bytes);
    }
    let next = produced.wrapping_add(1) & mask;
    program.memory.store(offset + PRODUCER_INDEX, next);
}
