use super::*;

const RESERVE: ResourceOp = ResourceOp::RESERVE;
const MAP: ResourceOp = ResourceOp::MAP_ICM;
const BOTH: ResourceOp = ResourceOp::RESERVE_AND_MAP;

/// Two halves of a parameter.
fn halves(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[test]
fn queue_pair_numbers_are_aligned_and_given_back_in_parts() {
    let mut guest = Guest::probed();
    let (status, first) = guest.allocate(ResourceType::QP, RESERVE, halves(4, 64));
    assert_eq!((status, first % 64), (Status::OK, 0));
    assert_eq!(guest.allocate(ResourceType::QP, MAP, first).0, Status::OK);
    assert_eq!(
        guest.free(ResourceType::QP, RESERVE, first | 4 << 32),
        Status::RESOURCE_BUSY
    );
    assert_eq!(guest.free(ResourceType::QP, MAP, first), Status::OK);
    assert_eq!(guest.free(ResourceType::QP, MAP, first), Status::BAD_PARAM);
    assert_eq!(
        guest.free(ResourceType::QP, RESERVE, first | 5 << 32),
        Status::BAD_PARAM
    );
    assert_eq!(
        guest.free(ResourceType::QP, RESERVE, (first + 1) | 3 << 32),
        Status::OK
    );
    assert_eq!(
        guest.free(ResourceType::QP, RESERVE, first | 1 << 32),
        Status::OK
    );
}

#[test]
fn queue_pair_numbers_that_cannot_be_meant_are_refused() {
    let mut guest = Guest::probed();
    for (count, align) in [(0, 1), (1, 3), (1, 1 << 31)] {
        let (status, _) = guest.allocate(ResourceType::QP, RESERVE, halves(count, align));
        assert_eq!(status, Status::BAD_PARAM, "{count} aligned to {align}");
    }
    let (status, _) = guest.allocate(ResourceType::QP, RESERVE, halves(0xff_ffff, 1));
    assert_eq!(status, Status::EXCEED_LIM);
    assert_eq!(
        guest.allocate(ResourceType::QP, MAP, 0x41).0,
        Status::BAD_PARAM
    );
    assert_eq!(
        guest.free(ResourceType::QP, RESERVE, u64::MAX),
        Status::BAD_PARAM
    );
}

#[test]
fn proxies_are_mapped_without_a_reservation_and_never_released() {
    let mut guest = Guest::probed();
    let input = Input {
        modifier: 1,
        variant: 1,
        ..Input::default()
    };
    assert_eq!(guest.command(Opcode::QUERY_FUNC_CAP, input).0, Status::OK);
    let at = guest.outbox();
    let cap = guest.read_layout::<QueryFuncCapPort>(at);
    assert_eq!(cap.physical_port, 1);
    let qpns = [cap.qp0_proxy, cap.qp1_proxy, cap.qp0_tunnel, cap.qp1_tunnel].map(|qpn| qpn.get());
    let base = qpns[0];
    assert_eq!(base % 8, 0);
    assert_eq!(qpns, [base, base + 2, base + 4, base + 6]);
    let proxy = u64::from(qpns[1]);
    assert_eq!(guest.allocate(ResourceType::QP, MAP, proxy).0, Status::OK);
    assert_eq!(guest.free(ResourceType::QP, MAP, proxy), Status::OK);
    assert_eq!(
        guest.free(ResourceType::QP, RESERVE, proxy | 1 << 32),
        Status::BAD_PARAM
    );
    let tunnel = u64::from(qpns[3]);
    assert_eq!(
        guest.allocate(ResourceType::QP, MAP, tunnel).0,
        Status::BAD_PARAM
    );
    assert_eq!(guest.command(Opcode::QUERY_FUNC_CAP, input).0, Status::OK);
    assert_eq!(
        guest.read_layout::<QueryFuncCapPort>(at),
        cap,
        "the same again"
    );
}

#[test]
fn a_port_that_the_function_does_not_have_is_a_bad_parameter() {
    let mut guest = Guest::probed();
    for (opcode, port) in [
        (Opcode::QUERY_PORT, 3),
        (Opcode::QUERY_PORT, 0),
        (Opcode::QUERY_PORT, 0x101),
        (Opcode::INIT_PORT, 3),
        (Opcode::QUERY_FUNC_CAP, 3),
    ] {
        let input = Input {
            modifier: port,
            variant: u8::from(opcode == Opcode::QUERY_FUNC_CAP),
            ..Input::default()
        };
        assert_eq!(
            guest.command(opcode, input).0,
            Status::BAD_PARAM,
            "{opcode:?} of {port}"
        );
    }
}

#[test]
fn queues_and_counters_have_numbers_within_their_tables() {
    let mut guest = Guest::probed();
    let (_, cqn) = guest.allocate(ResourceType::CQ, BOTH, 0);
    let (_, srqn) = guest.allocate(ResourceType::SRQ, BOTH, 0);
    let (status, counter) = guest.allocate(ResourceType::COUNTER, RESERVE, 0);
    assert_eq!((status, counter), (Status::OK, 0));
    assert_eq!((cqn, srqn), (0x40, 0x40));
    assert_eq!(guest.free(ResourceType::CQ, BOTH, cqn), Status::OK);
    assert_eq!(guest.free(ResourceType::CQ, BOTH, cqn), Status::BAD_PARAM);
    assert_eq!(guest.free(ResourceType::SRQ, BOTH, srqn), Status::OK);
    assert_eq!(guest.free(ResourceType::COUNTER, RESERVE, 0), Status::OK);
    assert_eq!(
        guest.free(ResourceType::COUNTER, RESERVE, 0),
        Status::BAD_PARAM
    );
}

#[test]
fn kinds_of_resources_that_the_function_does_not_have_are_refused() {
    let mut guest = Guest::probed();
    for kind in (0..=255).map(ResourceType::new) {
        for op in (3..16).map(ResourceOp::new) {
            assert_eq!(guest.allocate(kind, op, 0).0, Status::BAD_PARAM);
            assert_eq!(guest.free(kind, op, 0), Status::BAD_PARAM);
        }
    }
    let (status, _) = guest.allocate(ResourceType::MTT, BOTH, 200);
    assert_eq!(status, Status::EXCEED_LIM);
    let (status, _) = guest.allocate(ResourceType::MTT, BOTH, 256);
    assert_eq!(status, Status::BAD_PARAM);
}
