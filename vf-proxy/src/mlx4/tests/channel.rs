use super::*;
use mlx4_defs::Uar;

#[test]
fn a_query_is_answered_in_the_guests_mailbox() {
    let mut guest = Guest::probed();
    let (status, _) = guest.command(Opcode::QUERY_HCA, Input::default());
    assert_eq!(status, Status::OK);
    let at = guest.outbox();
    let hca = guest.read_layout::<QueryHca>(at);
    assert_eq!((hca.log_qps(), hca.log_mpts()), (20, 22));
}

#[test]
fn an_unknown_command_is_a_bad_parameter() {
    let mut guest = Guest::probed();
    let (status, _) = guest.command(Opcode::new(0xfff), Input::default());
    assert_eq!(status, Status::BAD_PARAM);
}

#[test]
fn a_mailbox_that_is_not_memory_is_a_bad_parameter() {
    let mut guest = Guest::probed();
    let input = Input {
        param: 0x1000,
        modifier: 1,
        ..Input::default()
    };
    assert_eq!(guest.command(Opcode::WRITE_MTT, input).0, Status::BAD_PARAM);
}

#[test]
fn a_command_register_that_is_not_memory_is_an_internal_error() {
    let mut guest = Guest::new();
    guest.post(CommCommand::RESET, 0);
    guest.serve_reset();
    for part in [
        CommCommand::VHCR0,
        CommCommand::VHCR1,
        CommCommand::VHCR2,
        CommCommand::VHCR_EN,
        CommCommand::VHCR_POST,
    ] {
        guest.post(part, 0);
    }
    guest.serve_reset();
    assert_eq!(guest.register(SLAVE_READ), [0, 2, 0, 0]);
}

#[test]
fn commands_that_end_by_event_are_counted_from_one() {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    assert_eq!(guest.eqe(0).as_bytes(), [0xcc; EQE_SIZE]);
    guest.nop();
    let eqe = guest.eqe(0);
    assert_eq!(eqe.event_type, EventType::CMD);
    assert_eq!(eqe.view::<CommandEvent>().token.get(), 1);
    assert!(!eqe.owner());
    assert_eq!(guest.interrupts(), [3]);
    guest.nop();
    assert_eq!(guest.eqe(1).view::<CommandEvent>().token.get(), 2);
    assert_eq!(guest.interrupts(), [], "the queue is fired");
    guest.command(Opcode::QUERY_FW, Input::default());
    guest.nop();
    assert_eq!(guest.eqe(2).view::<CommandEvent>().token.get(), 1);
}

#[test]
fn arming_an_event_queue_with_entries_left_interrupts_at_once() {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    guest.nop();
    guest.nop();
    assert_eq!(guest.interrupts(), [3]);
    guest.write_bar(2, 0x1800, &[0x80, 0, 0, 1]);
    assert_eq!(guest.interrupts(), [3]);
    guest.write_bar(2, 0x1800, &[0x80, 0, 0, 2]);
    assert_eq!(guest.interrupts(), []);
    guest.nop();
    assert_eq!(guest.interrupts(), [3]);
    guest.write_bar(2, 0x1800, &[0, 0, 0, 2]);
    assert_eq!(guest.interrupts(), [], "not armed");
}

#[test]
fn a_full_event_queue_is_not_overwritten_and_what_came_meanwhile_comes_later() {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    for _ in 0..128 {
        guest.nop();
    }
    let first = guest.eqe(0);
    guest.nop();
    guest.nop();
    assert_eq!(guest.eqe(0), first);
    guest.write_bar(2, 0x1800, &[0, 0, 0, 1]);
    assert!(guest.eqe(0).owner(), "second pass");
    assert_eq!(guest.eqe(0).view::<CommandEvent>().token.get(), 129);
    assert!(!guest.eqe(1).owner(), "no room yet");
    assert_eq!(guest.interrupts(), [3], "the first of all");
    guest.write_bar(2, 0x1800, &[0x80, 0, 0, 0x80]);
    assert_eq!(guest.eqe(1).view::<CommandEvent>().token.get(), 130);
    assert_eq!(guest.interrupts(), [3]);
    assert_eq!(guest.function.lost_events(), 0);
}

#[test]
fn events_for_which_there_is_no_memory_any_more_are_counted() {
    let mut guest = Guest::probed();
    let mut hca = guest.fabric.hca(guest.node, VF).unwrap();
    let ram = hca.allocate_dma(8192).unwrap();
    let page = (ram.addr.next_multiple_of(4096) - guest.base) / 4096;
    guest.make_event_queue_in(page, 4);
    guest.nop();
    assert_eq!(guest.interrupts(), [3]);
    guest.write_bar(2, 0x1800, &[0x80, 0, 0, 1]);
    let mut hca = guest.fabric.hca(guest.node, VF).unwrap();
    hca.free_dma(ram);
    guest.nop();
    assert_eq!(guest.interrupts(), []);
    assert_eq!(guest.function.lost_events(), 1);
}

#[test]
fn pages_of_a_live_event_queue_cannot_be_given_back() {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    let op = ResourceOp::RESERVE_AND_MAP;
    let free = |guest: &mut Guest| guest.resource(Opcode::FREE_RES, ResourceType::MTT, op, 0).0;
    assert_eq!(free(&mut guest), Status::RESOURCE_BUSY);
    let input = Input {
        modifier: 4,
        variant: 1,
        ..Input::default()
    };
    assert_eq!(guest.command(Opcode::HW2SW_EQ, input).0, Status::OK);
    assert_eq!(
        guest.command(Opcode::HW2SW_EQ, input).0,
        Status::BAD_RESOURCE
    );
    assert_eq!(free(&mut guest), Status::OK);
}

#[test]
fn a_reset_by_the_pf_is_an_internal_error_from_which_the_driver_recovers() {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    guest.reset_by_pf();
    assert_eq!(guest.register(SLAVE_READ)[1], 2);
    guest.write_bar(2, FLAGS, &[0, 1, 0, 0]);
    guest.serve_reset();
    assert_eq!(guest.register(FLAGS), [0, 1, 1, 0]);
    assert_eq!(guest.register(SLAVE_READ), [0; 4]);
    guest.toggle = false;
    guest.start();
    guest.make_event_queue(4);
    guest.nop();
    assert_eq!(guest.eqe(0).view::<CommandEvent>().token.get(), 1);
}

#[test]
fn a_failure_of_the_adapter_is_an_internal_error_until_the_driver_has_reset_the_function() {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    let event = HcaEvent::Async(AsyncEvent::DeviceFatal);
    let mut hca = guest.fabric.hca(guest.node, VF).unwrap();
    guest.function.handle_hca_event(NOW, &mut hca, &event);
    assert_eq!(guest.register(SLAVE_READ)[1], 2);
    guest.post(CommCommand::VHCR_POST, 0);
    guest.serve_reset();
    assert_eq!(guest.register(SLAVE_READ)[1], 2, "not before a reset");
    guest.start();
    assert_eq!(guest.register(SLAVE_READ)[1], 0);
    guest.make_event_queue(4);
}

#[test]
fn a_function_level_reset_forgets_everything_but_the_identity() {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    guest.nop();
    guest.write_config(0x68, &[0, 0x80]);
    let mut command = [0xff; 4];
    guest.function.config_read(4, &mut command);
    assert_eq!(command, [0, 0, 0x10, 0]);
    guest.enable(MEMORY);
    assert_eq!(guest.register(FLAGS), [0, 0, 2, 0], "offline");
    guest.serve_reset();
    assert_eq!(guest.interrupts(), []);
    assert_eq!(guest.register(FLAGS), [0; 4]);
    guest.enable(MEMORY | MASTER);
    guest.toggle = false;
    guest.start();
    guest.make_event_queue(4);
}

#[test]
fn a_function_whose_memory_space_is_off_answers_nothing() {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    guest.enable(MASTER);
    assert_eq!(guest.register(SLAVE_READ), [0xff; 4]);
    let mut entry = [0; 16];
    guest.function.bar_read(4, 0, &mut entry);
    assert_eq!(entry, [0xff; 16]);
    guest.write_bar(2, FLAGS, &[0, 1, 0, 0]);
    guest.write_bar(4, 12, &[0; 4]);
    guest.enable(MEMORY | MASTER);
    assert_eq!(guest.function.poll_event(), None, "no reset was asked for");
    assert_eq!(guest.register(FLAGS), [0; 4]);
    guest.function.bar_read(4, 12, &mut entry[..4]);
    assert_eq!(entry[..4], [1, 0, 0, 0]);
    guest.nop();
    assert_eq!(guest.interrupts(), [3]);
}

#[test]
fn a_function_that_is_no_bus_master_reaches_no_memory_and_does_not_interrupt() {
    let mut guest = Guest::probed();
    guest.make_event_queue(4);
    guest.nop();
    guest.enable(MEMORY);
    assert_eq!(guest.interrupts(), [3], "it was signalled before");
    guest.write_bar(2, 0x1800, &[0x80, 0, 0, 0]);
    assert_eq!(guest.interrupts(), [], "one is left, and cannot be told");
    guest.enable(MEMORY | MASTER);
    assert_eq!(guest.interrupts(), [3]);
    guest.enable(MEMORY);
    guest.post(CommCommand::VHCR_POST, 0);
    guest.serve_reset();
    assert_eq!(guest.register(SLAVE_READ)[1], 2, "an internal error");
    let vhcr = guest.vhcr();
    let mut hca = guest.fabric.hca(guest.node, VF).unwrap();
    assert!(hca.dma_write(vhcr, &[0; 4]).is_err());
    guest.enable(MEMORY | MASTER);
    guest.start();
    guest.make_event_queue(4);
    guest.nop();
    assert_eq!(guest.interrupts(), [3]);
}

#[test]
fn registers_read_big_endian_and_what_is_between_them_is_zero() {
    let mut guest = Guest::new();
    assert_eq!(guest.register(8), [0x40, 0, 0, 0]);
    let mut bytes = [0xa5; 24];
    guest.function.bar_read(2, 4, &mut bytes);
    assert_eq!(bytes[..8], [0, 2, 0, 0, 0x40, 0, 0, 0]);
    assert_eq!(bytes[8..], [0; 16]);
    guest.function.bar_read(2, u64::MAX - 3, &mut bytes);
    assert_eq!(bytes, [0; 24]);
    guest.function.bar_read(0, 0, &mut bytes);
    assert_eq!(bytes, [0; 24]);
    guest.write_bar(2, u64::MAX - 3, &[0xff; 16]);
    guest.write_bar(1, 0, &[0xff; 16]);
}

#[test]
fn nothing_is_behind_the_last_uar() {
    let mut guest = Guest::probed();
    // First halves of completion queue doorbells, which wait for the second.
    for uar in [0x7ff, 0x800, 0x1_0000, 0x100_0082] {
        guest.write_bar(2, uar << 12 | 0x20, &[0; 4]);
    }
    let known: Vec<_> = guest.function.cq_doorbells.keys().copied().collect();
    assert_eq!(known, [Uar::from_low_bits(0x7ff)]);
}
