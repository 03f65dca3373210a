mod arming;
mod budget;
mod flush;
mod large_queues;
mod send_errors;
mod shared_receives;
mod windows;

use hca_api::{FunctionId, FunctionManager};
use proptest::prelude::*;
use verbs_link::abi::command;
use verbs_link::abi::completion_queue::{
    AsyncRecord, CreateCompChannelAnswer, CreateCq, CreateCqAnswer, DestroyCqAnswer, ReqNotifyCq,
    ResizeCq, RxeCqAnswer, event_type,
};
use verbs_link::abi::memory::{CreateAh, HandleAnswer, RegMr, RegMrAnswer, RxeCreateAhAnswer};
use verbs_link::abi::queue_pair::{
    Caps, CreateQp, CreateQpAnswer, CreateQpAttributes, ModifyQp, PostSend, RxeCreateQpAnswer,
    attr_mask,
};
use verbs_link::abi::ring::{
    CONSUMER_INDEX, CompletionElement, DatagramArguments, MappedRing, PRODUCER_INDEX, RING_HEADER,
    ReceiveElement, SendElement, SgeElement, opcode, send_flags,
};
use verbs_link::abi::{AnsweredHandleCommand, HandleCommand};
use vf_queues::TURNS;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::testing::{LID, Process};

const QKEY: u32 = 0x1234;

/// Queues of a program for datagrams to itself.
struct Datagrams {
    process: Process,
    pd: u32,
    cq: u32,
    cq_ring: MappedRing,
    qp: u32,
    qpn: u32,
    rings: RxeCreateQpAnswer,
    channel: u32,
}

fn datagrams() -> Datagrams {
    datagrams_of(4)
}

/// The same with room for so many sends.
fn datagrams_of(sends: u32) -> Datagrams {
    datagrams_on(Process::new(), sends)
}

fn datagrams_on(process: Process, sends: u32) -> Datagrams {
    let mut queues = queues_on(process, 4, sends);
    for (state, mask) in [
        (1, attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::QKEY),
        (2, 0),
        (3, attr_mask::SQ_PSN),
    ] {
        queues.modify(state, mask).unwrap();
    }
    queues
}

/// Queues of a queue pair of a type (`enum ibv_qp_type`), in RESET.
fn queues_of(qp_type: u8, sends: u32) -> Datagrams {
    queues_on(Process::new(), qp_type, sends)
}

fn queues_on(mut process: Process, qp_type: u8, sends: u32) -> Datagrams {
    let (pd, ()): (HandleAnswer, ()) = process.ask(command::ALLOC_PD, &0_u64);
    let (channel, ()): (CreateCompChannelAnswer, ()) =
        process.ask(command::CREATE_COMP_CHANNEL, &0_u64);
    let channel = channel.fd.get();
    let create = CreateCq {
        user_handle: 0xc0.into(),
        cqe: 10.into(),
        comp_channel: i32::try_from(channel).unwrap().into(),
        ..CreateCq::default()
    };
    let (cq, ring): (CreateCqAnswer, RxeCqAnswer) = process.ask(command::CREATE_CQ, &create);
    let create = CreateQp {
        attributes: CreateQpAttributes {
            user_handle: 0x90.into(),
            pd_handle: pd.handle,
            send_cq_handle: cq.cq_handle,
            recv_cq_handle: cq.cq_handle,
            caps: Caps {
                max_send_wr: sends.into(),
                max_recv_wr: 4.into(),
                max_send_sge: 1.into(),
                max_recv_sge: 1.into(),
                max_inline_data: 0.into(),
            },
            qp_type,
            ..CreateQpAttributes::default()
        },
        ..CreateQp::default()
    };
    let (qp, rings): (CreateQpAnswer, RxeCreateQpAnswer) = process.ask(command::CREATE_QP, &create);
    let places = (sends + 1).next_power_of_two();
    assert_eq!(qp.caps.max_send_wr.get(), places - 1);
    assert_eq!(qp.caps.max_inline_data.get(), 16);
    Datagrams {
        process,
        pd: pd.handle.get(),
        cq: cq.cq_handle.get(),
        cq_ring: ring.ring,
        qp: qp.qp_handle.get(),
        qpn: qp.qpn.get(),
        rings,
        channel,
    }
}

impl Datagrams {
    fn modify(&mut self, qp_state: u8, mask: u32) -> Result<Reply, Errno> {
        let change = ModifyQp {
            qp_handle: self.qp.into(),
            attr_mask: (attr_mask::STATE | mask).into(),
            qkey: QKEY.into(),
            qp_state,
            port_num: 1,
            ..ModifyQp::default()
        };
        self.process.command(command::MODIFY_QP, &change, 0)
    }

    fn write(&self, ring: MappedRing, element: u64, bytes: &[u8], producer: u32) {
        let offset = ring.offset.get();
        let rings = &self.process.rings;
        rings.store_at(offset + RING_HEADER + element, bytes);
        rings.store(offset + PRODUCER_INDEX, producer);
    }

    fn completion(&self, index: u64) -> CompletionElement {
        let mut element = CompletionElement::default();
        let at = self.cq_ring.offset.get() + RING_HEADER + index * 64;
        self.process.rings.read(at, element.as_mut_bytes());
        element
    }

    /// Sends 12 inline bytes to itself, and waits until that is done.
    fn send(&mut self, wr_id: u64, slot: u64) {
        self.post_send(wr_id, slot);
        self.process.settle();
    }

    /// Returns arguments of a request to itself, by a new address handle.
    fn own_address(&mut self) -> DatagramArguments {
        let create = CreateAh {
            pd_handle: self.pd.into(),
            dlid: LID.into(),
            port_num: 1,
            ..CreateAh::default()
        };
        let (_, ah): (HandleAnswer, RxeCreateAhAnswer) =
            self.process.ask(command::CREATE_AH, &create);
        DatagramArguments {
            remote_qpn: self.qpn.into(),
            remote_qkey: QKEY.into(),
            ah_num: ah.ah_num,
            ..DatagramArguments::default()
        }
    }

    fn post_send(&mut self, wr_id: u64, slot: u64) {
        let to = self.own_address();
        let mut request = SendElement {
            wr_id: wr_id.into(),
            opcode: opcode::SEND.into(),
            send_flags: (send_flags::SIGNALED | send_flags::INLINE).into(),
            length: 12.into(),
            ..SendElement::default()
        };
        request.arguments[..to.as_bytes().len()].copy_from_slice(to.as_bytes());
        let bytes = [request.as_bytes(), b"hello, world"].concat();
        self.post(slot, &bytes);
    }

    /// Writes a send request into its ring, and rings the doorbell.
    fn post(&mut self, slot: u64, bytes: &[u8]) {
        let producer = u32::try_from(slot + 1).unwrap();
        self.write(self.rings.send, slot * 256, bytes, producer);
        let doorbell = PostSend {
            qp_handle: self.qp.into(),
            ..PostSend::default()
        };
        self.process
            .command(command::POST_SEND, &doorbell, 4)
            .unwrap();
    }

    /// Polls the device when the program has filled its ring of 127 sends again.
    fn poll_full(&mut self, now: Instant) -> bool {
        let ring = self.rings.send.offset.get();
        let taken = self.process.rings.load(ring + CONSUMER_INDEX);
        let full = taken.wrapping_sub(1) & 127;
        self.process.rings.store(ring + PRODUCER_INDEX, full);
        self.process.with(|device, hca| device.poll(now, hca))
    }
}

#[test]
fn a_datagram_goes_from_ring_to_ring_and_its_completions_wake_the_program() {
    for process in [Process::new(), Process::new().in_software()] {
        pass_a_datagram(datagrams_on(process, 4));
    }
}

fn pass_a_datagram(mut queues: Datagrams) {
    let memory = queues.process.with(|_, hca| hca.allocate_dma(64).unwrap());
    let register = RegMr {
        start: memory.addr.into(),
        length: 64.into(),
        hca_va: memory.addr.into(),
        pd_handle: queues.pd.into(),
        access_flags: 1.into(),
        ..RegMr::default()
    };
    let (mr, ()): (RegMrAnswer, ()) = queues.process.ask(command::REG_MR, &register);
    let receive = ReceiveElement {
        wr_id: 11.into(),
        num_sge: 1.into(),
        ..ReceiveElement::default()
    };
    let sge = SgeElement {
        addr: memory.addr.into(),
        length: 64.into(),
        lkey: mr.lkey,
    };
    let bytes = [receive.as_bytes(), sge.as_bytes()].concat();
    queues.write(queues.rings.receive, 0, &bytes, 1);
    let arm = ReqNotifyCq {
        cq_handle: queues.cq.into(),
        solicited_only: 0.into(),
    };
    queues
        .process
        .command(command::REQ_NOTIFY_CQ, &arm, 0)
        .unwrap();
    queues.send(22, 0);
    let found = [queues.completion(0), queues.completion(1)];
    let received = found.iter().find(|one| one.opcode.get() == 128).unwrap();
    assert_eq!((received.wr_id.get(), received.status.get()), (11, 0));
    assert_eq!(received.byte_len.get(), 40 + 12);
    assert_eq!(
        (received.slid.get(), received.src_qp.get()),
        (LID, queues.qpn)
    );
    let sent = found.iter().find(|one| one.opcode.get() == 0).unwrap();
    assert_eq!((sent.wr_id.get(), sent.status.get()), (22, 0));
    let mut text = [0; 12];
    queues
        .process
        .with(|_, hca| hca.dma_read(memory.addr + 40, &mut text).unwrap());
    assert_eq!(&text, b"hello, world");
    let event = queues.process.device.poll_event().unwrap();
    assert_eq!(event.channel, ChannelId(queues.channel));
    assert_eq!(event.bytes, 0xc0_u64.to_ne_bytes());
    assert_eq!(queues.process.device.poll_event(), None, "armed once");
}

#[test]
fn objects_in_use_and_objects_of_other_files_are_left_alone() {
    let mut queues = datagrams();
    let destroy = |handle: u32| AnsweredHandleCommand {
        handle: handle.into(),
        ..AnsweredHandleCommand::default()
    };
    let (cq, qp, pd) = (queues.cq, queues.qp, queues.pd);
    let process = &mut queues.process;
    let dealloc = HandleCommand { handle: pd.into() };
    let refused = process.command(command::DESTROY_CQ, &destroy(cq), 8);
    assert_eq!(refused, Err(Errno::EBUSY));
    let refused = process.command(command::DEALLOC_PD, &dealloc, 0);
    assert_eq!(refused, Err(Errno::EBUSY));
    let own = process.context;
    process.context = process.device.open().unwrap();
    process.command(command::GET_CONTEXT, &0_u64, 8).unwrap();
    let refused = process.command(command::DESTROY_QP, &destroy(qp), 4);
    assert_eq!(refused, Err(Errno::EINVAL));
    process.context = own;
    process
        .command(command::DESTROY_QP, &destroy(qp), 4)
        .unwrap();
    let reply = process
        .command(command::DESTROY_CQ, &destroy(cq), 8)
        .unwrap();
    let counts = DestroyCqAnswer::read_from_bytes(&reply.answer).unwrap();
    assert_eq!(counts, DestroyCqAnswer::default());
    assert_eq!(reply.retired[0].element, 0xc0);
    process.command(command::DEALLOC_PD, &dealloc, 0).unwrap();
}

#[test]
fn a_completion_queue_is_not_resized_below_what_has_completed() {
    let mut queues = datagrams();
    let resize = |queues: &mut Datagrams, cqe: u32| {
        let resize = ResizeCq {
            cq_handle: queues.cq.into(),
            cqe: cqe.into(),
            ..ResizeCq::default()
        };
        let reply = queues.process.command(command::RESIZE_CQ, &resize, 24);
        reply.map(|_| ())
    };
    assert_eq!(resize(&mut queues, 1), Ok(()));
    assert_eq!(resize(&mut queues, 7), Ok(()));
    for nth in 0..4 {
        queues.post_send(nth, nth);
    }
    assert_eq!(resize(&mut queues, 1), Err(Errno::EINVAL));
    assert_eq!(resize(&mut queues, 15), Ok(()));
}

#[test]
fn a_closed_file_leaves_nothing() {
    let mut queues = datagrams();
    let context = queues.process.context;
    queues
        .process
        .with(|device, hca| device.close(hca, context));
    let device = &queues.process.device;
    assert!(device.qps.0.is_empty() && device.cqs.0.is_empty() && device.pds.0.is_empty());
    assert!(device.channels.is_empty() && device.contexts.is_empty());
}

#[test]
fn a_file_with_many_objects_goes_in_steps_and_its_room_is_there_at_once() {
    const DOMAINS: usize = 200;
    const STEP: usize = 32;

    let budget = Budget::new(1 << 18, None);
    let mut process = Process::with_budget(budget.clone(), 1 << 18);
    let old = process.context;
    for _ in 0..DOMAINS {
        let _: (HandleAnswer, ()) = process.ask(command::ALLOC_PD, &0_u64);
    }
    process.context = process.device.open().unwrap();
    process.command(command::GET_CONTEXT, &0_u64, 8).unwrap();
    // Another file takes the rest of the budget.
    let mut others = 0;
    while process.command(command::ALLOC_PD, &0_u64, 4).is_ok() {
        others += 1;
    }
    let count = |process: &Process| process.device.pds.0.len() - others;
    process.with(|device, hca| device.close(hca, old));
    assert_eq!(count(&process), DOMAINS - STEP);
    assert_eq!(process.device.contexts(), 1);
    process.with(|device, hca| assert!(Consumer::poll(device, Instant::ZERO, hca)));
    assert_eq!(count(&process), DOMAINS - 2 * STEP);
    // All that the closed file had can be had again.
    for _ in 0..DOMAINS {
        process.command(command::ALLOC_PD, &0_u64, 4).unwrap();
    }
    process.settle();
    assert_eq!(count(&process), DOMAINS);
    assert_eq!(process.device.poll_timeout(), None);
}

#[test]
fn a_program_that_posts_without_end_has_a_bounded_number_of_turns_at_an_instant() {
    let mut queues = datagrams_of(126);
    queues.modify(6, 0).unwrap();
    let mut turns = 0;
    while queues.poll_full(Instant::ZERO) {
        turns += 1;
        assert!(turns < 2 * TURNS);
    }
    assert!(turns >= TURNS - 1);
    let next = queues.process.device.poll_timeout().unwrap();
    assert!(next > Instant::ZERO);
    assert!(queues.poll_full(next));
}

#[test]
fn a_device_is_one_processs_until_it_is_reset() {
    let mut process = Process::new();
    let rings = process.rings.clone();
    let device = &mut process.device;
    assert!(!device.claim(rings.clone(), Budget::default()));
    device.release();
    assert!(device.take_reset_request() && !device.take_reset_request());
    assert!(
        !device.claim(rings.clone(), Budget::default()),
        "not reset yet"
    );
    let reset = HcaEvent::Async(AsyncEvent::FunctionReset);
    process.with(|device, hca| device.handle_hca_event(Instant::ZERO, hca, &reset));
    assert!(process.device.claim(rings, Budget::default()));
}

#[test]
fn on_a_function_of_others_a_process_that_is_gone_leaves_objects_that_are_destroyed_and_no_reset() {
    let mut process = Process::new();
    process.device.shares_function = true;
    for _ in 0..100 {
        process.command(command::ALLOC_PD, &0_u64, 4).unwrap();
    }
    let others = process.with(|_, hca| hca.alloc_pd().unwrap());
    process.device.release();
    assert!(!process.device.is_free() && !process.device.take_reset_request());
    let rings = process.rings.clone();
    assert!(!process.device.claim(rings.clone(), Budget::default()));
    process.settle();
    let hca = process.adapter.function(FunctionId::PF).unwrap();
    let left = hca.resources(FunctionId::PF).unwrap();
    assert_eq!(left.pds, 1);
    process.with(|_, hca| hca.dealloc_pd(others).unwrap());
    assert!(process.device.claim(rings, Budget::default()));
}

#[test]
fn a_request_that_nobody_knows_fails_and_ends_the_queue_pair() {
    let mut queues = datagrams();
    let request = SendElement {
        wr_id: 5.into(),
        opcode: 200.into(),
        ..SendElement::default()
    };
    queues.write(queues.rings.send, 0, request.as_bytes(), 1);
    let doorbell = PostSend {
        qp_handle: queues.qp.into(),
        ..PostSend::default()
    };
    queues
        .process
        .command(command::POST_SEND, &doorbell, 4)
        .unwrap();
    let failed = queues.completion(0);
    assert_eq!((failed.wr_id.get(), failed.status.get()), (5, 2));
    queues.send(6, 1);
    let flushed = queues.completion(1);
    assert_eq!((flushed.wr_id.get(), flushed.status.get()), (6, 5));
}

#[test]
fn an_overrun_takes_the_queue_pairs_of_the_completion_queue_to_the_error_state() {
    let mut queues = datagrams_of(63);
    let provider = queues.process.device.qps.0[&queues.qp].object.provider;
    for slot in 0..20 {
        queues.send(slot, slot);
    }
    let device = &mut queues.process.device;
    let records = core::iter::from_fn(|| device.poll_event());
    let told: Vec<_> = records
        .filter_map(|record| AsyncRecord::read_from_bytes(&record.bytes).ok())
        .map(|record| (record.element.get(), record.event_type.get()))
        .collect();
    let expected = [(0xc0, event_type::CQ_ERR), (0x90, event_type::QP_FATAL)];
    assert_eq!(told, expected);
    let state = |queues: &mut Datagrams| {
        queues
            .process
            .with(|_, hca| hca.query_qp(provider).unwrap().state)
    };
    assert_eq!(state(&mut queues), hca_api::QpState::Error);
    queues.modify(0, 0).unwrap();
    assert_eq!(state(&mut queues), hca_api::QpState::Reset);
}

#[test]
fn an_ack_timeout_of_more_than_five_bits_is_refused() {
    let mut queues = datagrams();
    for (timeout, alt_timeout, mask) in [(32, 0, attr_mask::TIMEOUT), (0, 255, attr_mask::ALT_PATH)]
    {
        let change = ModifyQp {
            qp_handle: queues.qp.into(),
            attr_mask: mask.into(),
            timeout,
            alt_timeout,
            ..ModifyQp::default()
        };
        let refused = queues.process.command(command::MODIFY_QP, &change, 0);
        assert_eq!(refused, Err(Errno::EINVAL));
    }
}

#[test]
fn states_follow_the_rules_of_the_adapter() {
    let mut queues = datagrams();
    assert_eq!(queues.modify(2, 0), Err(Errno::EINVAL));
    assert_eq!(queues.modify(9, 0), Err(Errno::EINVAL));
    queues.modify(6, 0).unwrap();
    queues.modify(0, 0).unwrap();
    assert_eq!(
        queues.modify(1, 0),
        Err(Errno::EINVAL),
        "attributes are missing"
    );
}

proptest! {
    /// Commands of every number and length, and rings with anything in them.
    #[test]
    fn nothing_that_a_program_writes_ends_the_service(
        commands in prop::collection::vec(
            (0_u32..48, any::<bool>(), prop::collection::vec(any::<u8>(), 0..140), any::<u16>()),
            1..20,
        ),
        ring in prop::collection::vec(any::<u8>(), 1024),
        indices in prop::collection::vec(any::<u32>(), 4),
    ) {
        let mut queues = datagrams();
        for place in [queues.rings.send, queues.rings.receive, queues.cq_ring] {
            let offset = place.offset.get();
            let rings = queues.process.rings.clone();
            rings.store_at(offset + RING_HEADER, &ring[..448]);
            rings.store(offset + PRODUCER_INDEX, indices[0]);
            rings.store(offset + 256, indices[1]);
            rings.store(offset + 4, indices[2]);
        }
        for (number, extended, mut payload, room) in commands {
            // Handles are small, so that some are right.
            for word in payload.chunks_exact_mut(4) {
                word[1..].iter_mut().for_each(|byte| *byte &= 1);
                word[0] &= 15;
            }
            payload.truncate(payload.len() / 8 * 8);
            let context = queues.process.context;
            let mut bytes = (number | u32::from(extended) << 31).to_ne_bytes().to_vec();
            let words = if extended { payload.len() / 8 } else { payload.len() / 4 + 2 };
            bytes.extend(u16::try_from(words).unwrap().to_ne_bytes());
            bytes.extend((room & 63).to_ne_bytes());
            if extended {
                bytes.extend([0; 16]);
            }
            bytes.extend(&payload);
            let _ = queues.process.with(|device, hca| device.command(hca, context, &bytes));
            queues.process.settle();
            while queues.process.device.poll_event().is_some() {}
        }
    }
}

/// A region may have addresses of its own (`ibv_reg_mr_iova`), and costs no list of its pages, however long it is.
#[test]
fn a_region_may_have_addresses_of_its_own() {
    let mut process = Process::new();
    let (pd, ()): (HandleAnswer, ()) = process.ask(command::ALLOC_PD, &0_u64);
    let mut register = |start: u64, length: u64, iova: u64| {
        let register = RegMr {
            start: start.into(),
            length: length.into(),
            hca_va: iova.into(),
            pd_handle: pd.handle,
            access_flags: 1.into(),
            ..RegMr::default()
        };
        let room = size_of::<RegMrAnswer>();
        let reply = process.command(command::REG_MR, &register, room);
        reply.map(|_| ())
    };
    assert_eq!(register(0x1_2345, 1 << 36, 0x345), Ok(()));
    assert_eq!(register(0x1_2345, 4096, 0x346), Err(Errno::EINVAL));
    assert_eq!(register(0x1000, 4096, u64::MAX - 0xfff), Ok(()));
    assert_eq!(register(0x1000, 8192, u64::MAX - 0xfff), Err(Errno::EINVAL));
    let beyond = [1 << 63, (1 << 56) - 4096, u64::MAX - 0xfff];
    for start in beyond {
        assert_eq!(
            register(start, 8192, start),
            Err(Errno::EFAULT),
            "{start:#x}"
        );
    }
}
