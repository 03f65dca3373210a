//! Commands on objects: good ones, bad ones, and bytes that are none.

use hca_api::PortChange;
use ib_vtime::Duration;
use verbs_link::abi::completion_queue::{CreateCq, ReqNotifyCq, ResizeCq};
use verbs_link::abi::memory::{AllocMw, CreateAh, RegMr};
use verbs_link::abi::queue_pair::{
    Caps, CreateQp, CreateQpAttributes, ModifyQp, Multicast, attr_mask,
};
use verbs_link::abi::shared_receive_queue::{CreateSrq, ModifySrq};
use verbs_link::abi::{AnsweredHandleCommand, EXTENDED, HandleCommand, command};
use vf_uverbs::ContextId;
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::super::hostile::Input;
use super::Depth;
use super::program::{LID, Program};

/// Room for every answer.
const ROOM: usize = 256;

/// Commands that name an object first, with room for the longest of their answers.
const ENDS: [(u32, bool); 6] = [
    (command::DEALLOC_PD, false),
    (command::DESTROY_AH, false),
    (command::DEREG_MR, false),
    (command::DESTROY_CQ, true),
    (command::DESTROY_QP, true),
    (command::DESTROY_SRQ, true),
];

/// Objects that a program has made, and some that it has not.
pub(super) struct Objects {
    /// Handles of each command that creates, the newest last.
    handles: Vec<(u32, u32)>,
    buffer: u64,
}

impl Objects {
    pub(super) fn new(program: &mut Program) -> Self {
        Self {
            handles: Vec::new(),
            buffer: program.allocate(1 << 16),
        }
    }

    /// Returns a handle that such a command answered, or any.
    fn handle(&self, input: &mut Input<'_>, created_by: u32) -> u32 {
        let kind: Vec<u32> = (self.handles.iter())
            .filter(|(number, _)| *number == created_by)
            .map(|(_, handle)| *handle)
            .collect();
        let stray = u32::from(input.byte());
        if stray >= 0xf0 {
            return stray - 0xf0;
        }
        input.pick(&kind).unwrap_or(stray)
    }

    fn create(
        &mut self,
        program: &mut Program,
        context: ContextId,
        number: u32,
        payload: &(impl IntoBytes + Immutable),
    ) {
        let answer = program.ask(context, number, payload, ROOM);
        let handle = answer.as_deref().and_then(<[u8]>::first_chunk);
        if let Some(handle) = handle.copied().map(u32::from_ne_bytes) {
            self.handles.push((number, handle));
        }
    }

    /// Carries out the next operation of the input.
    pub(super) fn step(&mut self, program: &mut Program, input: &mut Input<'_>) {
        // Windows came later than the seeds.
        let operation = match input.byte() {
            0xff => 24,
            byte => byte % 24,
        };
        let Some(context) = input.pick(&program.contexts) else {
            program.open();
            return;
        };
        match operation {
            0..=7 => self.make(program, context, operation, input),
            8..=10 => self.change_queue_pair(program, context, input),
            11..=13 => self.end(program, context, input),
            14 => self.ask(program, context, input),
            15 => self.change_queue(program, context, input),
            16 => {
                let qp = self.handle(input, command::CREATE_QP);
                program.with(|device, hca| device.ring(hca, context, qp));
            }
            17 => any_command(program, context, input),
            18 => program.open(),
            19 => program.close(context),
            20 => restart_or_reset(program, input),
            21 => {
                let channels: Vec<_> = program.channels.iter().copied().collect();
                if let Some(channel) = input.pick(&channels) {
                    program.with(|device, _| device.close_channel(channel));
                }
            }
            24 => self.change_window(program, context, input),
            22 => program.notify(PortChange::from_bits_truncate(input.byte().into())),
            _ => program.pass(Duration::from_micros(1 << (input.byte() % 24))),
        }
    }

    fn make(&mut self, program: &mut Program, context: ContextId, what: u8, input: &mut Input<'_>) {
        let pd = self.handle(input, command::ALLOC_PD);
        match what {
            0 => self.create(program, context, command::ALLOC_PD, &0_u64),
            1 => self.create(program, context, command::CREATE_COMP_CHANNEL, &0_u64),
            2 => {
                let channel = self.handle(input, command::CREATE_COMP_CHANNEL);
                let create = CreateCq {
                    cqe: size(input).into(),
                    comp_channel: if input.flag() {
                        channel.cast_signed().into()
                    } else {
                        (-1).into()
                    },
                    ..CreateCq::default()
                };
                self.create(program, context, command::CREATE_CQ, &create);
            }
            3 => {
                let create = CreateSrq {
                    pd_handle: pd.into(),
                    max_wr: size(input).into(),
                    max_sge: u32::from(input.byte() % 40).into(),
                    srq_limit: u32::from(input.byte()).into(),
                    ..CreateSrq::default()
                };
                self.create(program, context, command::CREATE_SRQ, &create);
            }
            4 => {
                let length = u64::from(size(input)) << (input.byte() % 40);
                let start = self.buffer + u64::from(input.byte());
                let own_addresses = u64::from(input.byte() / 0xf0) * 4097;
                let register = RegMr {
                    start: start.into(),
                    length: length.into(),
                    hca_va: (start + own_addresses).into(),
                    pd_handle: pd.into(),
                    access_flags: u32::from(input.byte()).into(),
                    ..RegMr::default()
                };
                self.create(program, context, command::REG_MR, &register);
            }
            5 => {
                let mut create = CreateAh::default();
                input.fill(create.as_mut_bytes());
                if input.flag() {
                    create = CreateAh {
                        dlid: LID.into(),
                        port_num: 1,
                        ..CreateAh::default()
                    };
                }
                create.pd_handle = pd.into();
                self.create(program, context, command::CREATE_AH, &create);
            }
            _ => self.make_queue_pair(program, context, pd, input),
        }
    }

    fn make_queue_pair(
        &mut self,
        program: &mut Program,
        context: ContextId,
        pd: u32,
        input: &mut Input<'_>,
    ) {
        let create = CreateQp {
            attributes: CreateQpAttributes {
                pd_handle: pd.into(),
                send_cq_handle: self.handle(input, command::CREATE_CQ).into(),
                recv_cq_handle: self.handle(input, command::CREATE_CQ).into(),
                srq_handle: self.handle(input, command::CREATE_SRQ).into(),
                caps: Caps {
                    max_send_wr: size(input).into(),
                    max_recv_wr: size(input).into(),
                    max_send_sge: u32::from(input.byte() % 40).into(),
                    max_recv_sge: u32::from(input.byte() % 40).into(),
                    max_inline_data: u32::from(input.byte()).into(),
                },
                qp_type: 2 + input.byte() % 4,
                is_srq: input.byte() / 192,
                ..CreateQpAttributes::default()
            },
            ..CreateQp::default()
        };
        self.create(program, context, command::CREATE_QP, &create);
    }

    /// Makes a window, or ends one.
    fn change_window(&mut self, program: &mut Program, context: ContextId, input: &mut Input<'_>) {
        if input.flag() {
            let allocate = AllocMw {
                pd_handle: self.handle(input, command::ALLOC_PD).into(),
                mw_type: input.byte() % 4,
                ..AllocMw::default()
            };
            self.create(program, context, command::ALLOC_MW, &allocate);
        } else {
            let destroy = HandleCommand {
                handle: self.handle(input, command::ALLOC_MW).into(),
            };
            program.ask(context, command::DEALLOC_MW, &destroy, 0);
        }
    }

    fn change_queue_pair(&self, program: &mut Program, context: ContextId, input: &mut Input<'_>) {
        let qp = self.handle(input, command::CREATE_QP);
        let state = input.byte() % 9;
        let mut change = usual_change(state, input.flag());
        if input.byte() >= 0xc0 {
            input.damage(change.as_mut_bytes());
        }
        change.qp_handle = qp.into();
        program.ask(context, command::MODIFY_QP, &change, 0);
    }

    fn change_queue(&self, program: &mut Program, context: ContextId, input: &mut Input<'_>) {
        let cq = self.handle(input, command::CREATE_CQ);
        let srq = self.handle(input, command::CREATE_SRQ);
        let group = Multicast {
            gid: [0xff; 16],
            qp_handle: self.handle(input, command::CREATE_QP).into(),
            ..Multicast::default()
        };
        match input.byte() % 5 {
            0 => {
                let resize = ResizeCq {
                    cq_handle: cq.into(),
                    cqe: size(input).into(),
                    ..ResizeCq::default()
                };
                program.ask(context, command::RESIZE_CQ, &resize, ROOM);
            }
            1 => {
                let arm = ReqNotifyCq {
                    cq_handle: cq.into(),
                    solicited_only: u32::from(input.byte() % 2).into(),
                };
                program.ask(context, command::REQ_NOTIFY_CQ, &arm, 0);
            }
            2 => {
                let change = ModifySrq {
                    srq_handle: srq.into(),
                    attr_mask: u32::from(input.byte() % 4).into(),
                    max_wr: size(input).into(),
                    srq_limit: u32::from(input.byte()).into(),
                };
                program.ask(context, command::MODIFY_SRQ, &change, 0);
            }
            3 => drop(program.ask(context, command::ATTACH_MCAST, &group, 0)),
            _ => drop(program.ask(context, command::DETACH_MCAST, &group, 0)),
        }
    }

    fn end(&mut self, program: &mut Program, context: ContextId, input: &mut Input<'_>) {
        let at = input.index(ENDS.len());
        let (number, answered) = ENDS[at];
        let handle = match self.handles.is_empty() {
            true => input.byte().into(),
            false => input.pick(&self.handles).map_or(0, |(_, handle)| handle),
        };
        if answered {
            let destroy = AnsweredHandleCommand {
                handle: handle.into(),
                ..AnsweredHandleCommand::default()
            };
            program.ask(context, number, &destroy, ROOM);
        } else {
            let destroy = HandleCommand {
                handle: handle.into(),
            };
            program.ask(context, number, &destroy, 0);
        }
    }

    fn ask(&self, program: &mut Program, context: ContextId, input: &mut Input<'_>) {
        let query = AnsweredHandleCommand {
            handle: self.handle(input, command::CREATE_QP).into(),
            reserved: u32::MAX.into(),
            ..AnsweredHandleCommand::default()
        };
        let numbers = [command::QUERY_QP, command::QUERY_SRQ, command::QUERY_PORT];
        let number = input.pick(&numbers).unwrap_or(command::QUERY_DEVICE);
        program.ask(context, number, &query, ROOM * 2);
    }

    pub(super) fn depth(&self, program: &Program) -> Depth {
        Depth {
            commands: program.commands,
            kinds: (0..=command::CREATE_XSRQ)
                .filter(|kind| self.handles.iter().any(|(number, _)| number == kind))
                .count(),
            ..Depth::default()
        }
    }
}

/// Returns a size: small, or of any power of two.
fn size(input: &mut Input<'_>) -> u32 {
    let byte = input.byte();
    match byte {
        0..0xe0 => u32::from(byte % 64),
        _ => 1 << (byte % 32),
    }
}

/// Returns the change to a state that programs ask for with connections at the own port. Those of unreliable connections have
/// fewer attributes.
pub(super) fn usual_change(state: u8, reliable: bool) -> ModifyQp {
    const OF_RC: u32 = attr_mask::MAX_DEST_RD_ATOMIC
        | attr_mask::MIN_RNR_TIMER
        | attr_mask::TIMEOUT
        | attr_mask::RETRY_CNT
        | attr_mask::RNR_RETRY
        | attr_mask::MAX_QP_RD_ATOMIC;
    let mask = match state {
        1 => attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::ACCESS_FLAGS,
        2 => {
            let path = attr_mask::AV | attr_mask::PATH_MTU | attr_mask::DEST_QPN;
            path | attr_mask::RQ_PSN | attr_mask::MAX_DEST_RD_ATOMIC | attr_mask::MIN_RNR_TIMER
        }
        3 => {
            attr_mask::SQ_PSN | (OF_RC & !attr_mask::MAX_DEST_RD_ATOMIC & !attr_mask::MIN_RNR_TIMER)
        }
        _ => 0,
    };
    let mask = if reliable { mask } else { mask & !OF_RC };
    let mut change = ModifyQp::new_zeroed();
    change.attr_mask = (attr_mask::STATE | mask).into();
    change.qp_state = state;
    change.port_num = 1;
    change.dest.port_num = 1;
    change.dest.dlid = LID.into();
    change.path_mtu = 4;
    change.qp_access_flags = 0xf.into();
    change.max_rd_atomic = 4;
    change.max_dest_rd_atomic = 4;
    change.timeout = 8;
    change.retry_cnt = 3;
    change.rnr_retry = 3;
    change
}

/// Writes a command of any number, length and form.
fn any_command(program: &mut Program, context: ContextId, input: &mut Input<'_>) {
    let number = u32::from(input.byte() % 48);
    let extended = input.flag();
    let mut payload = vec![0; usize::from(input.byte())];
    input.fill(&mut payload);
    let word = if extended { number | EXTENDED } else { number };
    let (words, second): (usize, &[u8]) = if extended {
        (payload.len() / 8, &[0; 16])
    } else {
        (payload.len() / 4 + 2, &[])
    };
    // Most lengths are right: others are refused at once.
    let words = words + usize::from(input.byte() / 0xf0);
    let words = u16::try_from(words).expect("a short payload");
    let bytes = [
        &word.to_ne_bytes()[..],
        &words.to_ne_bytes(),
        &u16::from(input.byte()).to_ne_bytes(),
        second,
        &payload,
    ];
    program.command(context, &bytes.concat());
}

/// Ends the process, or resets its function beneath it.
fn restart_or_reset(program: &mut Program, input: &mut Input<'_>) {
    if input.flag() {
        program.restart();
    } else {
        program.reset();
    }
}
