//! The stand-ins of the special queue pairs, as `mlx4_ib` builds and uses them.

use hca_api::{
    AccessFlags, Completion, CqHandle, DmaBuffer, MrKind, MrSpec, Payload, QpCaps, QpHandle,
    QpKind, QpModify, QpSpec, QpState as ProviderState, ReceiveMode, RecvRequest, SendFlags,
    SendOp, SendRequest, Sge, SpecialQp,
};
use ib_wire::Psn;
use mlx4_defs::cqe::CqeOpcode;
use mlx4_defs::qp::QpState;
use mlx4_defs::wqe::{USE_QP_QKEY, WqeOpcode};

use super::super::capability::RESERVED_LKEY;
use super::queue_scene::*;
use super::*;

const OUT: u64 = 40;
const IN: u64 = 44;
/// The header that the driver puts in front of a MAD.
const HEADER: usize = 56;
/// Header and MAD.
const FRAME: usize = HEADER + 256;

/// The PF's end of a tunnel.
struct TunnelEnd {
    qp: QpHandle,
    cq: CqHandle,
    memory: DmaBuffer,
    lkey: hca_api::LKey,
}

impl Guest {
    fn special_qpns(&mut self) -> QueryFuncCapPort {
        let input = Input {
            modifier: 1,
            variant: 1,
            ..Input::default()
        };
        self.ok(Opcode::QUERY_FUNC_CAP, input);
        let outbox = self.outbox();
        self.read_layout(outbox)
    }

    fn tunnel_end(&mut self, special: SpecialQp) -> TunnelEnd {
        let mut pf = self.fabric.hca(self.node, FunctionId::PF).unwrap();
        let memory = pf.allocate_dma(8192).unwrap();
        let pd = pf.alloc_pd().unwrap();
        let region = MrSpec {
            pd,
            kind: MrKind::WholeSpace,
            access: AccessFlags::LOCAL_WRITE,
            key: None,
        };
        let lkey = pf.register_mr(&region).unwrap().lkey;
        let cq = pf.create_cq(64).unwrap();
        let spec = QpSpec {
            kind: QpKind::Tunnel {
                function: VF,
                special,
                port: PORT,
            },
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: 8,
                max_recv_wr: 8,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 512,
            },
            signal_all: true,
            receives: ReceiveMode::Posted,
            qpn: None,
            block_multicast_loopback: false,
        };
        let (qp, _) = pf.create_qp(spec).unwrap();
        for state in [
            ProviderState::Init,
            ProviderState::ReadyToReceive,
            ProviderState::ReadyToSend,
        ] {
            let change = QpModify {
                state: Some(state),
                sq_psn: (state == ProviderState::ReadyToSend).then(Psn::default),
                ..QpModify::default()
            };
            pf.modify_qp(qp, &change).unwrap();
        }
        let scatter = [Sge {
            addr: memory.addr,
            len: 512,
            lkey,
        }];
        let receive = RecvRequest {
            wr_id: 1,
            scatter: &scatter,
        };
        pf.post_recv(qp, &receive).unwrap();
        TunnelEnd {
            qp,
            cq,
            memory,
            lkey,
        }
    }

    fn tunnelled(&mut self, end: &TunnelEnd) -> Option<Completion> {
        let mut pf = self.fabric.hca(self.node, FunctionId::PF).unwrap();
        let mut out = [Completion::BLANK];
        (pf.poll_cq(end.cq, &mut out).unwrap() != 0).then_some(out[0])
    }
}

/// A MAD as the driver sends it: its header inline, and the MAD in two pieces of memory.
fn send_mad(guest: &mut Guest, proxy: &mut DriverQp, tunnel: u32) {
    let out = guest.page(OUT);
    let mad: Vec<u8> = (0..=255).collect();
    guest.write(out, &mad);
    let mut to = datagram(tunnel);
    to.av.set_force_loopback(true);
    to.qkey = ib_wire::QKey::new(USE_QP_QKEY);
    let mut segments = to.as_bytes().to_vec();
    segments.extend(inline(&[7; HEADER]));
    for piece in [
        data(out, 24, RESERVED_LKEY),
        data(out + 24, 232, RESERVED_LKEY),
    ] {
        segments.extend(piece.as_bytes());
    }
    guest.post_send(proxy, control(WqeOpcode::SEND), &segments);
    guest.ring(proxy);
}

#[test]
fn a_mad_goes_through_the_tunnel_and_back_as_it_is() {
    let mut guest = Guest::online();
    let numbers = guest.special_qpns();
    let mut cq = guest.make_cq(10);
    let mut proxy = guest.make_qp_with(12, &cq, numbers.qp1_proxy.get(), |context| {
        // The driver writes the key of QP1, and the port's number as it is.
        context.qkey = ib_wire::QKey::GSI;
        context.set_log_sq_stride(8 - 4);
        context.set_log_sq_entries(4);
    });
    proxy.log_send = 8;
    proxy.log_sends = 4;
    guest.forget_posted(&mut proxy);
    assert_eq!(guest.state(&proxy), QpState::RTS);
    let end = guest.tunnel_end(SpecialQp::Gsi);
    send_mad(&mut guest, &mut proxy, numbers.qp1_tunnel.get());
    let sent = guest.poll_one(&mut cq);
    assert_eq!(sent.qpn.get(), proxy.qpn, "the device's number, not 1");
    assert_eq!(sent.owner_opcode.opcode(), WqeOpcode::SEND.get());
    let arrived = guest.tunnelled(&end).unwrap();
    assert_eq!(arrived.byte_len as usize, GRH + FRAME);
    let mut frame = [0; FRAME];
    let pf = guest.fabric.hca(guest.node, FunctionId::PF).unwrap();
    pf.dma_read(end.memory.addr + GRH as u64, &mut frame)
        .unwrap();
    assert_eq!(frame[..HEADER], [7; HEADER]);
    assert!((0..=255).eq(frame[HEADER..].iter().copied()));

    // A driver's turn of completions, to the last one.
    let mut busy = guest.make_qp(16, &cq);
    for _ in 0..32 {
        guest.post_send(&mut busy, control(WqeOpcode::SEND), datagram(1).as_bytes());
    }
    guest.ring(&busy);
    guest.settle();
    assert_eq!(guest.poll_all(&mut cq).len(), 32);

    // 40 bytes of GRH space, the header, 40 more for the GRH of the MAD, and the MAD.
    let into = guest.page(IN);
    guest.receive_list(
        &mut proxy,
        &[
            data(into, 56, RESERVED_LKEY),
            data(into + 1024, 296, RESERVED_LKEY),
        ],
    );
    let mut pf = guest.fabric.hca(guest.node, FunctionId::PF).unwrap();
    pf.dma_write(end.memory.addr, &[9; FRAME]).unwrap();
    let gather = [Sge {
        addr: end.memory.addr,
        len: 312,
        lkey: end.lkey,
    }];
    pf.post_send(
        end.qp,
        &SendRequest {
            wr_id: 0,
            op: SendOp::Send,
            payload: Payload::Gather(&gather),
            flags: SendFlags::empty(),
            destination: None,
        },
    )
    .unwrap();
    guest.settle();
    let received = guest.poll_one(&mut cq);
    assert_eq!(received.owner_opcode.opcode(), CqeOpcode::RECV_SEND.get());
    assert_eq!(received.qpn.get(), proxy.qpn);
    assert_eq!(received.byte_count.get(), 352);
    let mut header = [0; 56];
    header[40..].fill(9);
    assert_eq!(guest.read::<56>(into), header);
    assert_eq!(guest.read::<296>(into + 1024), [9; 296]);
}

/// Without SMI nothing comes of what QP0 sends, and its driver is content.
#[test]
fn the_stand_in_of_qp0_sends_into_the_void() {
    let mut guest = Guest::online();
    let numbers = guest.special_qpns();
    let mut cq = guest.make_cq(10);
    let mut proxy = guest.make_qp_with(12, &cq, numbers.qp0_proxy.get(), |context| {
        context.qkey = ib_wire::QKey::default();
        context.set_log_sq_stride(8 - 4);
        context.set_log_sq_entries(4);
    });
    proxy.log_send = 8;
    proxy.log_sends = 4;
    guest.forget_posted(&mut proxy);
    let end = guest.tunnel_end(SpecialQp::Smi);
    send_mad(&mut guest, &mut proxy, numbers.qp0_tunnel.get());
    assert_eq!(syndrome(&guest.poll_one(&mut cq)), None);
    assert_eq!(guest.tunnelled(&end), None);
}

/// A proxy is a datagram queue pair, and its number cannot be had for anything else.
#[test]
fn the_number_of_a_stand_in_is_for_nothing_else() {
    let mut guest = Guest::online();
    let numbers = guest.special_qpns();
    let cq = guest.make_cq(10);
    let qp = guest.prepare_qp(12, numbers.qp1_proxy.get());
    for service in [0, 1, 6, 7] {
        let mut context = guest.context(&qp, &cq);
        context.set_service_type(mlx4_defs::qp::ServiceType::new(service));
        let status = guest.transition(Opcode::RST2INIT_QP, qp.qpn, &context, 0);
        assert_eq!(status, Status::BAD_PARAM);
    }
    let tunnel = numbers.qp1_tunnel.get().into();
    let (status, _) = guest.allocate(ResourceType::QP, ResourceOp::MAP_ICM, tunnel);
    assert_ne!(status, Status::OK);
}
